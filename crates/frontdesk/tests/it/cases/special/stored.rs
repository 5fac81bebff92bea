//! Rounds of kill -9 over what is stored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::checks::files_below;
use super::super::levers::pull;
use super::super::pattern::{cut, shorten};
use super::super::puppets::{text_update, update_frame};
use super::super::run::{PATIENCE, Run};
use super::{holder, number, prompt, request, text};

/// Bytes of one update: more than a pipe takes at once.
const UPDATE_BYTES: usize = 200_000;
/// Updates of a session in a round.
const UPDATES: usize = 10;

/// Two sessions stream large updates while clients of both cause records too, and the desk is killed
/// at a random moment. After each round every line but possibly the last is a record of its own
/// session, numbers go up, and what a client saw stands there in the order in which it saw it.
pub(super) fn weld_rounds(run: &mut Run, about: &Value) -> Result<(), String> {
    let rounds = match std::env::var("CASE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()) {
        Some(rounds) => rounds,
        // All of what was written is read again behind each round; `CASE_ROUNDS=50` plays them all.
        None if std::env::var_os("CI").is_some() => number(about, "rounds")?.div_ceil(4),
        None => number(about, "rounds")?.div_ceil(10),
    };
    let sessions = [text(about, "session")?.to_owned(), text(about, "other")?.to_owned()];
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut chance = seed.map_or(1, |since| u64::from(since.subsec_nanos()) | 1);
    run.world.note(&format!("the moments are made from {chance}"));
    let mut looked: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for round in 0..rounds {
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
        for ((session, client), numbers) in seen {
            let there = journaled(run, &session, round)?;
            if !there.starts_with(&numbers) {
                return Err(format!(
                    "round {round}: {client} saw {numbers:?} of {session}, and the log has {there:?}"
                ));
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

fn journaled(run: &mut Run, session: &str, round: usize) -> Result<Vec<u64>, String> {
    let records = run.log(session)?;
    Ok(records.iter().filter_map(|record| number_in(&record["data"]["update"], round)).collect())
}

/// Looks at what was written to every journal since the last look.
fn check_files(run: &Run, looked: &mut BTreeMap<PathBuf, usize>) -> Result<(), String> {
    let store = run.place.home().join("data/sessions");
    let journals = files_below(&store);
    for path in journals.into_iter().filter(|path| path.ends_with("journal.jsonl")) {
        let bytes = std::fs::read(&path).map_err(|e| e.to_string())?;
        let start = looked.insert(path.clone(), bytes.len()).unwrap_or(0);
        check_lines(&path, &bytes[start..])?;
    }
    Ok(())
}

fn check_lines(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let mut last = 0;
    let mut own: Option<String> = None;
    // The piece behind the last line end is a line that was being written, or nothing.
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    for line in bytes[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let shown = || shorten(&String::from_utf8_lossy(line), 200);
        let record: Value = serde_json::from_slice(line)
            .map_err(|e| format!("{}: {e}: {}", path.display(), shown()))?;
        let seq = record["seq"].as_u64().ok_or(format!("no number: {}", shown()))?;
        if seq <= last {
            return Err(format!("{}: {seq} follows {last}", path.display()));
        }
        last = seq;
        if let Some(session) = record["data"]["sessionId"].as_str() {
            let first = own.get_or_insert_with(|| session.to_owned());
            if first != session {
                return Err(format!("{}: records of {first} and {session}", path.display()));
            }
        }
    }
    Ok(())
}
