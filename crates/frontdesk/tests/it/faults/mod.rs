//! The daemon's promises from outside, on the real binary: what must hold when daemons, agents and
//! clients die, race, stall or come twice.
//!
//! The built-in demo agent is the agent. Its store tells which processes ever had a session, so
//! "one owner" is read from the agent's side and not from Frontdesk's own word. Tests that choose
//! moments at random print a seed; `FRONTDESK_TEST_SEED` replays it.

mod aliases;
mod asks;
mod cancels;
mod carry;
mod claims;
mod closing;
mod damage;
mod ends;
mod frozen;
mod full;
mod homes;
mod idle;
mod keep;
mod kills;
mod leases;
mod old;
mod orphans;
mod outside;
mod races;
mod returns;
mod rounds;
mod shared;
mod shim;
mod storm;
mod story;
mod streams;
mod take;
mod turns;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::acp::{Acp, Answers, Pending, prompt, refuse_all};
use crate::desk::{AgentSpec, DESK_MARK, Desk, DeskBuilder, frontdesk};

/// Longest wait for something that happens by itself.
const SOON: Duration = Duration::from_secs(60);
/// How often such a wait looks.
const LOOK: Duration = Duration::from_millis(10);

/// A desk with the demo agent as `demo`.
fn demo_desk() -> DeskBuilder {
    Desk::builder().agent(demo("demo", &[]))
}

/// The demo agent as an entry of the configuration, with these further arguments.
fn demo(name: &str, args: &[&str]) -> AgentSpec {
    let words = [frontdesk(), Path::new("demo-agent")].into_iter().map(Path::to_path_buf);
    AgentSpec::new(name, words.chain(args.iter().map(PathBuf::from)))
}

/// A greeted client of the agent `demo` that refuses whatever it is asked.
fn client(desk: &Desk) -> Acp {
    client_of(desk, "demo", refuse_all())
}

fn client_of(desk: &Desk, agent: &str, answers: Answers) -> Acp {
    let mut client = desk.acp(agent, answers);
    client.initialize(json!({}));
    client
}

/// The parameters of `session/new`, `load` and `resume`.
pub(crate) fn place(desk: &Desk, session: Option<&str>) -> Value {
    let mut params = json!({ "cwd": desk.work(), "mcpServers": [] });
    if let Some(session) = session {
        params["sessionId"] = json!(session);
    }
    params
}

/// Makes a session; its public id.
pub(crate) fn new_session(desk: &Desk, client: &mut Acp) -> String {
    let made = client.ok("session/new", place(desk, None));
    made["sessionId"].as_str().expect("a session has an id").to_owned()
}

/// A session with one finished turn that nobody has loaded; its id and the agent's own.
fn cold_session(desk: &Desk) -> (String, String) {
    let mut maker = client(desk);
    let session = new_session(desk, &mut maker);
    let native = native(&mut maker, &session);
    turn(&mut maker, &session, "say hello");
    maker.ok("session/close", json!({ "sessionId": session }));
    (session, native)
}

/// Sends a prompt and does not wait.
fn begin_prompt(client: &mut Acp, session: &str, words: &str) -> Pending {
    client.begin("session/prompt", prompt(session, words))
}

/// Runs a turn that must end by itself.
pub(crate) fn turn(client: &mut Acp, session: &str, words: &str) {
    let result = client.ok("session/prompt", prompt(session, words));
    assert_eq!(result["stopReason"], "end_turn", "{words:?}: {result}");
}

/// The word that `session/status` says, and `_meta.frontdesk`.
pub(crate) fn status(client: &mut Acp, session: &str) -> (String, Value) {
    let result = client.ok("session/status", json!({ "sessionId": session }));
    let word = result["status"].as_str().expect("a status is a word").to_owned();
    (word, result["_meta"]["frontdesk"].clone())
}

/// Waits until `wanted` holds.
pub(crate) fn eventually(what: &str, limit: Duration, mut wanted: impl FnMut() -> bool) {
    let until = Instant::now() + limit;
    while !wanted() {
        assert!(Instant::now() < until, "no sight of {what} within {limit:?}");
        std::thread::sleep(LOOK);
    }
}

/// Rounds of a test that does something again and again: `FRONTDESK_FAULT_ROUNDS`, else this many.
fn rounds(otherwise: u64) -> u64 {
    let told = std::env::var("FRONTDESK_FAULT_ROUNDS").ok();
    told.and_then(|told| told.parse().ok()).unwrap_or(otherwise)
}

fn signal(pid: i32, what: Signal) {
    kill(Pid::from_raw(pid), what).expect("the process is there");
}

/// The holders of a desk.
fn holders(desk: &Desk) -> Vec<i32> {
    let all = home_processes(desk).into_iter();
    all.filter(|(_, words)| words.contains(" hold ")).map(|(pid, _)| pid).collect()
}

/// A session's records, as `_frontdesk/log` gives them.
fn log(client: &mut Acp, session: &str) -> Vec<Value> {
    let mut records: Vec<Value> = Vec::new();
    loop {
        let after = records.last().map_or(json!(0), |record| record["seq"].clone());
        let page = client.ok("_frontdesk/log", json!({ "sessionId": session, "after": after }));
        let page = page["records"].as_array().expect("a log has records").clone();
        if page.is_empty() {
            break;
        }
        records.extend(page);
    }
    let seqs: Vec<u64> = records.iter().filter_map(|record| record["seq"].as_u64()).collect();
    let wanted: Vec<u64> = (1..).take(records.len()).collect();
    assert_eq!(seqs, wanted, "a journal's numbers have no gap and no double");
    records
}

/// The records of a journal file; a line that is none fails the test.
fn records_in(journal: &Path) -> Vec<Value> {
    let text = fs::read_to_string(journal).expect("a journal is a file of text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is a record")).collect()
}

/// The payloads of one kind, in order.
fn of_kind<'r>(records: &'r [Value], kind: &str) -> Vec<&'r Value> {
    records.iter().filter(|record| record["kind"] == kind).map(|record| &record["data"]).collect()
}

/// What people said and were told, out of records: `user:TEXT` and `agent:TEXT`.
fn told(records: &[Value]) -> Vec<String> {
    let mut out = Vec::new();
    for record in records {
        let data = &record["data"];
        match record["kind"].as_str() {
            Some("turn_started") => {
                let blocks = data["prompt"].as_array().expect("a turn has its prompt");
                out.extend(
                    blocks.iter().filter_map(|b| Some(format!("user:{}", b["text"].as_str()?))),
                );
            }
            Some("update" | "imported" | "turn_late") => out.extend(said(&data["update"])),
            _ => {}
        }
    }
    out
}

/// What people said and were told, out of a client's updates.
fn seen(updates: &[Value]) -> Vec<String> {
    updates.iter().filter_map(said).collect()
}

fn said(update: &Value) -> Option<String> {
    let who = match update["sessionUpdate"].as_str()? {
        "agent_message_chunk" => "agent",
        "user_message_chunk" => "user",
        _ => return None,
    };
    let text = update["content"]["text"].as_str()?;
    (!is_about_a_torn_line(text)).then(|| format!("{who}:{text}"))
}

/// Whether this is the remark about a line that is cut short. A `kill -9` may end a write between two
/// pages of the file: the piece stays there as one bad line, is of nothing that was shown or
/// acknowledged, and its record comes behind it. Records that are missing have other words, and are
/// found by what is missing.
fn is_about_a_torn_line(text: &str) -> bool {
    text.starts_with("[frontdesk] The record of this session is damaged")
        && text.contains("torn or unreadable")
        && !text.contains("missing")
}

/// Fails with the first difference, not with two lists of thousands.
#[track_caller]
fn same(found: &[String], wanted: &[String], what: &str) {
    if found == wanted {
        return;
    }
    let at = found.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    let show = |list: &[String]| {
        let from = at.saturating_sub(2);
        list.iter().skip(from).take(6).cloned().collect::<Vec<_>>()
    };
    panic!(
        "{what}: {} items, {} wanted; they differ at {at}: found {:?}, wanted {:?}",
        found.len(),
        wanted.len(),
        show(found),
        show(wanted)
    );
}

/// Every turn that was started or queued has exactly one ending; the endings by turn.
fn endings(records: &[Value]) -> Vec<Value> {
    let name = |data: &Value| data["turn"].as_str().unwrap_or_default().to_owned();
    let ended = of_kind(records, "turn_ended");
    let mut begun: Vec<String> = Vec::new();
    for kind in ["turn_queued", "turn_started"] {
        begun.extend(of_kind(records, kind).into_iter().map(name));
    }
    begun.sort();
    begun.dedup();
    let mut names: Vec<String> = ended.iter().map(|data| name(data)).collect();
    names.sort();
    assert_eq!(names, begun, "each turn has one ending");
    ended.into_iter().cloned().collect()
}

/// The demo agent's folder of sessions, for a desk whose agent was not told another one.
fn store(desk: &Desk) -> PathBuf {
    desk.user_home().join(".local/state/frontdesk-demo")
}

/// The lines of one stored session of the demo agent.
fn stored(store: &Path, native: &str) -> Vec<Value> {
    let text = fs::read_to_string(store.join(format!("{native}.jsonl"))).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// How many sessions the demo agent has.
fn stored_count(store: &Path) -> usize {
    fs::read_dir(store).map_or(0, Iterator::count)
}

/// The processes that ever had a session, in order: how they opened it, and their pid.
fn openings(store: &Path, native: &str) -> Vec<(String, i32)> {
    let lines = stored(store, native);
    let opened = lines.iter().filter(|line| line["event"] == "opened");
    let both = opened.map(|line| {
        let pid = line["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        (line["how"].as_str().unwrap_or_default().to_owned(), pid.expect("opened tells its pid"))
    });
    both.collect()
}

/// The agent's id of a session.
pub(crate) fn native(client: &mut Acp, session: &str) -> String {
    let row = client.ok("_frontdesk/session", json!({ "sessionId": session }));
    row["nativeId"].as_str().expect("a session has a native id").to_owned()
}

/// Whether a demo agent with this pid lives; a zombie or another program does not count.
fn agent_lives(pid: i32) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).contains("demo-agent")
}

/// The live processes of a desk's home, by its environment: pid and command line.
fn home_processes(desk: &Desk) -> Vec<(i32, String)> {
    let home = format!("FRONTDESK_HOME={}", desk.home().display());
    let root = desk.home().parent().expect("a home lies in a folder").to_path_buf();
    let mark = format!("{DESK_MARK}={}", root.display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc is there").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let has = |wanted: &str| environment.split(|b| *b == 0).any(|e| e == wanted.as_bytes());
        if has(&home) || has(&mark) {
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push((pid, String::from_utf8_lossy(&words).replace('\0', " ")));
        }
    }
    found
}

/// Waits until nothing of a desk's home runs.
fn nothing_runs(desk: &Desk) {
    let until = Instant::now() + SOON;
    loop {
        let left = home_processes(desk);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "still running: {left:?}");
        std::thread::sleep(LOOK);
    }
}

/// Random numbers that a seed repeats (splitmix64).
struct Chance(u64);

impl Chance {
    /// From `FRONTDESK_FAULT_SEED` or `FRONTDESK_TEST_SEED`, else from the clock; prints the seed.
    fn new(test: &str) -> Self {
        let named = ["FRONTDESK_FAULT_SEED", "FRONTDESK_TEST_SEED"].iter();
        let named =
            named.filter_map(|name| std::env::var(name).ok()).find_map(|it| it.parse().ok());
        let seed = named.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(1, |since| u64::from(since.subsec_nanos()) ^ since.as_secs())
        });
        println!("{test}: FRONTDESK_TEST_SEED={seed}");
        Self(seed)
    }

    /// A number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Waits for a random time below `ms` milliseconds.
    fn pause(&mut self, ms: u64) {
        std::thread::sleep(Duration::from_millis(self.below(ms)));
    }
}
