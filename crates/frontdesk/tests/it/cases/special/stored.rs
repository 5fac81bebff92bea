//! Rounds of kill -9 over what is stored.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::checks::files_below;
use super::super::levers::pull;
use super::super::pattern::{cut, shorten};
use super::super::puppets::{text_update, update_frame};
use super::super::run::{PATIENCE, Run};
use super::{holder, prompt, request, rounds, text};

/// Bytes of one update: more than a pipe takes at once.
const UPDATE_BYTES: usize = 200_000;
/// Updates of a session in a round.
const UPDATES: usize = 10;
/// Rounds after which new sessions take the place of the old ones: each start reads what the sessions
/// that are loaded have said so far, and hundreds of megabytes of it only make the case slow.
const SET_ROUNDS: usize = 5;

/// Two sessions stream large updates while clients of both cause records too, and the desk is killed
/// at a random moment. After each round every line but possibly the last is a record of its own
/// session, numbers go up, and what a client saw stands there in the order in which it saw it.
pub(super) fn weld_rounds(run: &mut Run, about: &Value) -> Result<(), String> {
    let rounds = rounds(about)?;
    let names = [text(about, "session")?.to_owned(), text(about, "other")?.to_owned()];
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut chance = seed.map_or(1, |since| u64::from(since.subsec_nanos()) | 1);
    run.world.note(&format!("the moments are made from {chance}"));
    let mut looked: BTreeMap<PathBuf, Looked> = BTreeMap::new();
    let mut told: BTreeMap<String, u64> = BTreeMap::new();
    let mut sessions = names.clone();
    for round in 0..rounds {
        if round % SET_ROUNDS == 0 {
            for (session, name) in sessions.iter_mut().zip(&names) {
                if round > 0 {
                    let place = json!({ "sessionId": session });
                    let closed = run.call("cA", "session/close", &place, PATIENCE)?;
                    if closed.get("result").is_none() {
                        return Err(format!("round {round}: close: {}", cut(&closed)));
                    }
                }
                *session = format!("{name}-{round}");
                pull(run, "hold", &[json!("cA"), json!(session)])?;
            }
        }
        for session in &sessions {
            let place = json!({ "sessionId": session, "cwd": "${WS}/alpha", "mcpServers": [] });
            for client in ["cA", "cB"] {
                let joined = run.call(client, "session/resume", &place, PATIENCE)?;
                if joined.get("result").is_none() {
                    return Err(format!("round {round}: {client} got {}", cut(&joined)));
                }
            }
        }
        let since = run.world.lock().order;
        stream(run, &sessions, round)?;
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        thread::sleep(Duration::from_millis(chance % 250));
        let seen = seen(run, since, round)?;
        pull(run, "kill_desk", &[])?;
        check_files(run, &mut looked)?;
        pull(run, "start_desk", &[])?;
        for session in &sessions {
            let there = journaled(run, session, round, &mut told)?;
            for ((_, client), numbers) in seen.iter().filter(|((of, _), _)| of == session) {
                if !there.starts_with(numbers) {
                    return Err(format!(
                        "round {round}: {client} saw {numbers:?} of {session}, and the log has {there:?}"
                    ));
                }
            }
        }
    }
    Ok(())
}

fn stream(run: &mut Run, sessions: &[String; 2], round: usize) -> Result<(), String> {
    for (index, session) in sessions.iter().enumerate() {
        let id = json!(format!("p-{round}-{index}"));
        request(run, "cA", &id, "session/prompt", &prompt(session, "go on"))?;
        let at = holder(run, session)?;
        run.world.wait(PATIENCE, "the prompt at the agent", |state| {
            let open = &state.puppet(at)?.open;
            let prompts = |method: &str, of: &Option<String>| {
                method == "session/prompt" && of.as_deref() == Some(session)
            };
            Ok(open.iter().any(|(_, method, of)| prompts(method, of)).then_some(()))
        })?;
    }
    for number in 0..UPDATES {
        for (index, session) in sessions.iter().enumerate() {
            let pad = "x".repeat(UPDATE_BYTES);
            let update = text_update("agent_message_chunk", &format!("r{round} {number} {pad}"));
            let at = holder(run, session)?;
            run.puppet_says(at, &update_frame(session, &update))?;
            let mode = json!({ "sessionId": session, "modeId": format!("m{number}") });
            let id = json!(format!("m-{round}-{index}-{number}"));
            request(run, "cB", &id, "session/set_mode", &mode)?;
            if number == UPDATES / 2 {
                let params = run
                    .world
                    .lock()
                    .names
                    .fill(&json!({ "sessionId": session }), super::super::pattern::Side::Client)?;
                let cancel =
                    json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params });
                run.send("cA", &cancel)?;
            }
        }
    }
    Ok(())
}

/// The numbers of this round's updates that each client was shown, by session.
fn seen(
    run: &Run,
    since: u64,
    round: usize,
) -> Result<BTreeMap<(String, String), Vec<u64>>, String> {
    let mut seen: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
    for client in ["cA", "cB"] {
        let (_, frames) = run.frames(client, since)?;
        let names = run.world.lock().names.clone();
        for frame in frames {
            let Some(value) = &frame.value else { continue };
            let Some(number) = number_in(&value["params"]["update"], round) else { continue };
            let spelled = value["params"]["sessionId"].as_str().unwrap_or_default();
            let minted = names.minted.iter().find(|native| names.public(native) == spelled);
            let native = minted.cloned().unwrap_or_else(|| spelled.to_owned());
            seen.entry((native, client.to_owned())).or_default().push(number);
        }
    }
    Ok(seen)
}

fn number_in(update: &Value, round: usize) -> Option<u64> {
    let text = update["content"]["text"].as_str()?;
    text.strip_prefix(&format!("r{round} "))?.split(' ').next()?.parse().ok()
}

/// The numbers of this round's updates in the log, behind what the last round read of it.
fn journaled(
    run: &mut Run,
    session: &str,
    round: usize,
    told: &mut BTreeMap<String, u64>,
) -> Result<Vec<u64>, String> {
    let last = told.entry(session.to_owned()).or_default();
    let records = run.log_after(session, *last)?;
    *last = records.last().and_then(|record| record["seq"].as_u64()).unwrap_or(*last);
    Ok(records.iter().filter_map(|record| number_in(&record["data"]["update"], round)).collect())
}

/// How far a journal was looked at, and what its next lines have to fit.
#[derive(Debug, Default)]
struct Looked {
    bytes: u64,
    seq: u64,
    own: Option<String>,
}

/// Looks at what was written to every journal since the last look.
fn check_files(run: &Run, looked: &mut BTreeMap<PathBuf, Looked>) -> Result<(), String> {
    let store = run.place.home().join("data/sessions");
    let journals = files_below(&store);
    for path in journals.into_iter().filter(|path| path.ends_with("journal.jsonl")) {
        let looked = looked.entry(path.clone()).or_default();
        let mut bytes = Vec::new();
        let mut file = File::open(&path).map_err(|e| e.to_string())?;
        file.seek(SeekFrom::Start(looked.bytes)).map_err(|e| e.to_string())?;
        file.read_to_end(&mut bytes).map_err(|e| e.to_string())?;
        looked.bytes += bytes.len() as u64;
        looked.check(&bytes).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

impl Looked {
    fn check(&mut self, bytes: &[u8]) -> Result<(), String> {
        // The piece behind the last line end is a line that was being written, or nothing.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in bytes[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let shown = || shorten(&String::from_utf8_lossy(line), 200);
            let record: Value =
                serde_json::from_slice(line).map_err(|e| format!("{e}: {}", shown()))?;
            let seq = record["seq"].as_u64().ok_or(format!("no number: {}", shown()))?;
            if seq <= self.seq {
                return Err(format!("{seq} follows {}", self.seq));
            }
            self.seq = seq;
            if let Some(session) = record["data"]["sessionId"].as_str() {
                let first = self.own.get_or_insert_with(|| session.to_owned());
                if first != session {
                    return Err(format!("records of {first} and {session}"));
                }
            }
        }
        Ok(())
    }
}
