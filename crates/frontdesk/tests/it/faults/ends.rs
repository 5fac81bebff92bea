//! docs/ends.md, row by row: every way to die, and what becomes of the work. The rows' names, and what
//! stands in the cells that a program can check, are read from the document; so a row without a test, a
//! test without a row, and a cell that is not true fail.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{
    SOON, agent_lives, begin_prompt, client, client_of, demo_desk, eventually, holders, log,
    native, new_session, of_kind, openings, place, signal, status, store,
};
use crate::acp::{Acp, Ask, Pending, Reply};
use crate::desk::{AgentSpec, Desk, DeskBuilder, frontdesk};
use crate::small_disk::SmallDisk;

/// One row of the document, both tables together: column to cell.
type Row = BTreeMap<String, String>;

/// What the document's tables say, by the row's name.
fn document() -> BTreeMap<String, Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ends.md");
    let text = fs::read_to_string(path).expect("the document is there");
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let mut head: Vec<String> = Vec::new();
    for line in text.lines() {
        let cells: Vec<String> =
            line.trim().trim_matches('|').split(" | ").map(|it| it.trim().to_owned()).collect();
        match cells[0].as_str() {
            _ if !line.starts_with("| ") => head.clear(),
            "what dies" => head = cells,
            rule if rule.starts_with("---") => {}
            name if !head.is_empty() => {
                assert_eq!(cells.len(), head.len(), "cells of {name}");
                let row = rows.entry(name.to_owned()).or_default();
                row.extend(head.iter().cloned().zip(cells.clone()).skip(1));
            }
            _ => {}
        }
    }
    rows
}

fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

macro_rules! rows {
    ($($name:ident: $row:literal;)*) => {
        /// The rows that are tested here.
        const ROWS: &[&str] = &[$($row),*];

        $(#[test]
        fn $name() {
            let row = document().remove($row).expect("the document has this row");
            ways::$name(&row);
        })*
    };
}

rows! {
    a_client: "a client";
    shim: "a shim";
    crash: "the daemon, by a crash";
    restart: "the daemon, by `restart`";
    stop: "the daemon, by `stop` or SIGTERM";
    holder: "a holder";
    agent_exit: "an agent, by itself";
    agent_signal: "an agent, by a signal";
    first_process: "an agent's first process, and a child speaks on";
    tool: "an agent's child";
    daemon_and_agent: "the daemon and an agent";
    daemon_and_holder: "the daemon and a holder";
    machine: "the machine";
    disk: "the disk's space";
}

/// Rows that other tests keep: `urls/death.rs`.
const ELSEWHERE: &[&str] = &["the connection to a `urls` agent"];

#[test]
fn every_row_has_a_test_and_every_test_a_row() {
    let rows = document();
    let mut named: Vec<&str> = ROWS.iter().chain(ELSEWHERE).copied().collect();
    named.sort_unstable();
    assert_eq!(rows.keys().map(String::as_str).collect::<Vec<_>>(), named);
    let columns = [
        "the running turn",
        "a prompt that waits",
        "an open question",
        "records",
        "status",
        "the claim",
        "processes",
        "the client sees",
        "the next start",
    ];
    for (name, row) in rows {
        for column in columns {
            assert!(row.get(column).is_some_and(|cell| !cell.is_empty()), "{name}: {column}");
        }
    }
}

/// A session with a turn that asks, a prompt that waits behind it, and a client that says nothing.
struct Scene {
    desk: Desk,
    one: Acp,
    session: String,
    native: String,
    agent: i32,
    asking: Pending,
    waiting: Pending,
    question: Ask,
    /// How many records there were before anything died.
    before: usize,
}

impl Scene {
    fn new(desk: DeskBuilder) -> Self {
        Self::with(desk.limit("stop_term_ms", 300).open(), "say before", "say after")
    }

    /// The turn begins with `words` and goes on with `after` behind its question.
    fn with(desk: Desk, words: &str, after: &str) -> Self {
        let mut one = client_of(&desk, "demo", Arc::new(|_: &Ask| Reply::Silence));
        let session = new_session(&desk, &mut one);
        let native = native(&mut one, &session);
        let from = one.mark();
        let words = format!("{words}\nask May I go on?\n{after}");
        let asking = begin_prompt(&mut one, &session, &words);
        let question = one.wait_ask(from, "session/request_permission");
        let waiting = begin_prompt(&mut one, &session, "say next");
        let mut looker = client(&desk);
        eventually("a prompt that waits", SOON, || {
            of_kind(&log(&mut looker, &session), "turn_queued").len() == 1
        });
        let before = log(&mut looker, &session).len();
        let agent = openings(&store(&desk), &native)[0].1;
        Self { desk, one, session, native, agent, asking, waiting, question, before }
    }

    /// The records since, of the kinds that tell what became of the work.
    fn records(&self, looker: &mut Acp) -> Vec<String> {
        let all = log(looker, &self.session);
        let tell = |record: &Value| {
            let (kind, data) = (record["kind"].as_str()?, &record["data"]);
            let kinds =
                ["turn_ended", "interaction_settled", "lost", "closed", "claimed", "loaded"];
            let words = [&data["outcome"], &data["reason"]];
            let words = words.into_iter().filter_map(Value::as_str);
            let words: Vec<&str> = std::iter::once(kind).chain(words).collect();
            kinds.contains(&kind).then(|| words.join(" "))
        };
        all[self.before..].iter().filter_map(tell).collect()
    }

    /// Whether anybody holds a claim of this desk.
    fn is_claimed(&self) -> bool {
        let locked = frontdesk::hold::claim::locked_inodes();
        let folder = self.desk.home().parent().expect("a home lies in a folder").join("c");
        let inode = |entry: fs::DirEntry| {
            use std::os::unix::fs::MetadataExt as _;
            entry.metadata().map(|meta| meta.ino()).unwrap_or_default()
        };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(inode).any(|inode| locked.contains(&inode))
    }

    /// What is seen is what the row says: records, status, claim, processes.
    fn keeps(&self, row: &Row, looker: &mut Acp) {
        let stated = quoted(&row["records"]);
        eventually("the records of the row", SOON, || self.records(looker).len() >= stated.len());
        assert_eq!(self.records(looker), stated, "records");
        let words = quoted(&row["status"]);
        let now = |looker: &mut Acp| {
            let (word, meta) = status(looker, &self.session);
            let state = meta["state"].as_str().map(str::to_owned);
            std::iter::once(word).chain(state).collect::<Vec<_>>()
        };
        eventually("the status of the row", SOON, || now(looker) == words);
        let is_claimed = row["the claim"].starts_with("stays");
        eventually("the claim of the row", SOON, || self.is_claimed() == is_claimed);
        let live = usize::from(row["processes"].starts_with("live on"));
        self.desk.wait_instances(live, SOON);
    }

    /// The question is open, asked of who comes, and answered once; then both turns end.
    fn goes_on(mut self, same_question: bool) {
        let mut two = client_of(&self.desk, "demo", Arc::new(|_: &Ask| Reply::Silence));
        let from = two.mark();
        two.ok("session/load", place(&self.desk, Some(&self.session)));
        let again = two.wait_ask(from, "session/request_permission");
        assert_eq!(again.id == self.question.id, same_question);
        let option = again.params["options"][0]["optionId"].clone();
        let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
        two.send(&json!({ "jsonrpc": "2.0", "id": again.id, "result": outcome }));
        eventually("both turns end", SOON, || {
            of_kind(&log(&mut two, &self.session), "turn_ended").len() == 2
        });
        let records = log(&mut two, &self.session);
        let outcomes: Vec<&Value> =
            of_kind(&records, "turn_ended").into_iter().map(|it| &it["outcome"]).collect();
        assert_eq!(outcomes, ["completed", "completed"]);
        assert_eq!(openings(&store(&self.desk), &self.native).len(), 1, "one process, all along");
        assert_eq!(of_kind(&records, "interaction_settled").len(), 1);
        self.desk.kill9();
    }

    /// What the client's two prompts were answered with: the codes, or the stop reason.
    fn answers(&self) -> [String; 2] {
        [self.asking, self.waiting].map(|pending| match self.one.wait(pending, SOON) {
            Ok(result) => result["stopReason"].as_str().unwrap_or_default().to_owned(),
            Err(error) => error.code.to_string(),
        })
    }

    fn client_is_told(&self, row: &Row) {
        assert_eq!(self.answers().to_vec(), quoted(&row["the client sees"]));
    }

    /// Everything is loaded again and works, with another process.
    fn comes_back(mut self) {
        let mut two = client(&self.desk);
        two.ok("session/load", place(&self.desk, Some(&self.session)));
        super::turn(&mut two, &self.session, "say again");
        let records = log(&mut two, &self.session);
        super::endings(&records);
        let open = of_kind(&records, "interaction_opened").len();
        assert_eq!(of_kind(&records, "interaction_settled").len(), open, "no question is open");
        assert!(openings(&store(&self.desk), &self.native).len() >= 2);
        assert!(!agent_lives(self.agent));
        self.desk.kill9();
    }

    fn kill_daemon(&mut self) {
        self.desk.kill9();
        assert!(self.one.wait_exit(SOON).is_some(), "a shim with --once ends with its daemon");
    }
}

fn record_of(desk: &Desk) -> PathBuf {
    let folder = desk.home().join("run/instances");
    let mut entries = fs::read_dir(folder).expect("there is a folder for instances");
    entries.next().expect("an instance").expect("it can be read").path().join("holder.json")
}

#[test]
fn the_msp_row_of_a_turn_that_died_with_daemon_and_agent_says_so_at_once() {
    let mut desk = demo_desk().open();
    let mut one = client_of(&desk, "demo", Arc::new(|_: &Ask| Reply::Silence));
    let session = new_session(&desk, &mut one);
    let id = native(&mut one, &session);
    let from = one.mark();
    begin_prompt(&mut one, &session, "ask May I?\nsay after");
    one.wait_ask(from, "session/request_permission");
    let row = |desk: &Desk| {
        let mut command = desk.command(frontdesk());
        let mut msp = Acp::spawn("msp", command.arg("msp"), crate::acp::refuse_all());
        let info = json!({ "name": "tests", "version": "1" });
        msp.ok("initialize", json!({ "clientInfo": info, "capabilities": {} }));
        msp.send(&json!({ "jsonrpc": "2.0", "method": "initialized" }));
        let listed = msp.ok("session/list", json!({}));
        let rows = listed["sessions"].as_array().expect("rows").clone();
        rows.into_iter().find(|row| row["sessionId"] == session).expect("its row")
    };
    let running = row(&desk);
    assert_eq!(running["status"], "running", "{running}");
    assert!(running["activeTurnId"].is_string() && !running["attention"].is_null(), "{running}");
    desk.kill9();
    signal(openings(&store(&desk), &id)[0].1, Signal::SIGKILL);
    desk.start();
    let over = row(&desk);
    assert_eq!(over["status"], "notLoaded", "{over}");
    assert!(over["activeTurnId"].is_null(), "{over}");
    assert!(over.get("attention").is_none_or(Value::is_null), "{over}");
    desk.kill9();
}

/// The ways to die.
mod ways {
    use super::*;

    pub(super) fn a_client(row: &Row) {
        let scene = Scene::new(demo_desk());
        scene.one.close_stdin();
        let mut looker = client(&scene.desk);
        eventually("it has left", SOON, || {
            let row = looker.ok("_frontdesk/session", json!({ "sessionId": scene.session }));
            row["clients"].as_array().is_some_and(Vec::is_empty)
        });
        scene.keeps(row, &mut looker);
        scene.goes_on(true);
    }

    pub(super) fn shim(row: &Row) {
        let mut scene = Scene::new(demo_desk());
        signal(scene.one.pid().cast_signed(), Signal::SIGKILL);
        scene.one.wait_exit(SOON);
        let mut looker = client(&scene.desk);
        scene.keeps(row, &mut looker);
        scene.goes_on(true);
    }

    pub(super) fn crash(row: &Row) {
        let mut scene = Scene::new(demo_desk());
        scene.kill_daemon();
        assert!(scene.is_claimed(), "by the holder");
        scene.desk.start();
        let mut looker = client(&scene.desk);
        scene.keeps(row, &mut looker);
        scene.goes_on(true);
    }

    pub(super) fn restart(row: &Row) {
        let mut scene = Scene::new(demo_desk());
        assert!(scene.desk.cli(&["restart"]).status.success());
        assert!(scene.one.wait_exit(SOON).is_some());
        let mut looker = client(&scene.desk);
        scene.keeps(row, &mut looker);
        scene.goes_on(true);
    }

    pub(super) fn stop(row: &Row) {
        let mut scene = Scene::new(demo_desk().limit("drain_s", 1));
        assert!(scene.desk.stop().success());
        scene.client_is_told(row);
        scene.desk.start();
        let mut looker = client(&scene.desk);
        scene.keeps(row, &mut looker);
        scene.comes_back();
    }

    fn ended(scene: Scene, row: &Row) {
        scene.client_is_told(row);
        let mut looker = client(&scene.desk);
        scene.keeps(row, &mut looker);
        scene.comes_back();
    }

    pub(super) fn holder(row: &Row) {
        let scene = Scene::new(demo_desk());
        signal(holders(&scene.desk)[0], Signal::SIGKILL);
        ended(scene, row);
    }

    pub(super) fn agent_exit(row: &Row) {
        // In a turn of another session of the same instance.
        let scene = Scene::new(demo_desk().setting("sessions_per_instance = 2"));
        let mut other = client(&scene.desk);
        let session = new_session(&scene.desk, &mut other);
        begin_prompt(&mut other, &session, "crash 3");
        ended(scene, row);
    }

    pub(super) fn agent_signal(row: &Row) {
        let scene = Scene::new(demo_desk());
        signal(scene.agent, Signal::SIGKILL);
        ended(scene, row);
    }

    pub(super) fn first_process(row: &Row) {
        let script = format!("exec 3<&0; {} demo-agent <&3 & wait", frontdesk().display());
        let agent = AgentSpec::new("demo", ["sh", "-c", script.as_str()]);
        let desk = Desk::builder().agent(agent).limit("silent_orphan_ms", 2_000);
        let scene = Scene::new(desk);
        let record = fs::read_to_string(record_of(&scene.desk)).expect("there is a record");
        let record: Value = serde_json::from_str(&record).expect("it is JSON");
        let first = record["agent"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        let first = first.expect("it has a first process");
        assert_ne!(first, scene.agent, "the agent is its child");
        signal(first, Signal::SIGKILL);
        // While it has something to say, it goes on.
        let mut looker = client(&scene.desk);
        assert_eq!(status(&mut looker, &scene.session).0, "active");
        ended(scene, row);
    }

    pub(super) fn tool(row: &Row) {
        let desk = demo_desk().limit("stop_term_ms", 300).open();
        let scene = Scene::with(desk, "child 600 detached", "say after");
        let processes = scene.desk.processes();
        let child = processes.iter().find(|it| it.command.contains("--sleep")).expect("a child");
        signal(child.pid, Signal::SIGKILL);
        eventually("its end", SOON, || !agent_lives(child.pid));
        let mut looker = client(&scene.desk);
        scene.keeps(row, &mut looker);
        scene.goes_on(true);
    }

    pub(super) fn daemon_and_agent(row: &Row) {
        let mut scene = Scene::new(demo_desk());
        scene.kill_daemon();
        signal(scene.agent, Signal::SIGKILL);
        eventually("its end", SOON, || !agent_lives(scene.agent));
        scene.desk.start();
        let mut looker = client(&scene.desk);
        scene.keeps(row, &mut looker);
        scene.comes_back();
    }

    pub(super) fn daemon_and_holder(row: &Row) {
        let mut scene = Scene::new(demo_desk());
        scene.desk.kill_all();
        scene.desk.start();
        let mut looker = client(&scene.desk);
        scene.keeps(row, &mut looker);
        scene.comes_back();
    }

    pub(super) fn machine(row: &Row) {
        let mut scene = Scene::new(demo_desk());
        let path = record_of(&scene.desk);
        scene.desk.kill_all();
        // As it is found behind a reboot: nothing runs, the record is of another boot, and its numbers
        // are those of processes that have nothing to do with it.
        let text = fs::read_to_string(&path).expect("a killed holder leaves its record");
        let mut record: Value = serde_json::from_str(&text).expect("it is JSON");
        record["boot_id"] = json!("00000000-0000-4000-8000-000000000000");
        let mut other = std::process::Command::new("setsid");
        let mut other = other.args(["sleep", "1000"]).spawn().expect("it starts");
        for process in ["holder", "agent"] {
            record[process]["pid"] = json!(other.id());
        }
        fs::write(&path, record.to_string()).expect("it can be written");
        scene.desk.start();
        let mut looker = client(&scene.desk);
        scene.keeps(row, &mut looker);
        assert!(!path.exists(), "nothing is left of it");
        assert!(other.try_wait().expect("it can be waited for").is_none(), "it is not ours");
        other.kill().expect("it lives");
        other.wait().expect("it ends");
        scene.comes_back();
    }

    pub(super) fn disk(row: &Row) {
        let desk = demo_desk().limit("stop_term_ms", 300).build();
        let Some(disk) = SmallDisk::lay(&desk.home().join("data"), 24) else { return };
        let mut desk = desk;
        desk.start();
        // More than the reserve.
        let scene = Scene::with(desk, "say before", "stream 60 bytes 100000");
        disk.fill();
        let option = scene.question.params["options"][0]["optionId"].clone();
        let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
        scene.one.send(&json!({ "jsonrpc": "2.0", "id": scene.question.id, "result": outcome }));
        let mut looker = client(&scene.desk);
        eventually("it is told", SOON, || status(&mut looker, &scene.session).1["behind"] == true);
        assert!(!scene.one.is_answered(scene.asking), "nothing is shown that is not written");
        assert!(scene.is_claimed() && row["the claim"].starts_with("stays"));
        assert_eq!(quoted(&row["status"]), ["active", "behind"]);
        assert_eq!(status(&mut looker, &scene.session).0, "active");
        disk.free();
        assert_eq!(scene.answers(), ["end_turn", "end_turn"]);
        assert_eq!(scene.records(&mut looker), quoted(&row["records"]));
        drop((looker, scene));
        drop(disk);
    }
}
