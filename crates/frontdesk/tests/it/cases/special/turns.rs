//! What is told of turns while they run, and in the moment in which they end.

use serde_json::{Value, json};

use super::super::pattern::cut;
use super::super::run::{PATIENCE, Run};
use super::{answered, holder, prompt, request, rounds, text};

/// Prompts, one after the other: status and rows of both faces are asked for when the agent has the
/// prompt, and again behind its answer, without any pause.
pub(super) fn turns_are_seen(run: &mut Run, about: &Value) -> Result<(), String> {
    let (session, rounds) = (text(about, "session")?.to_owned(), rounds(about)?);
    let info = json!({ "clientInfo": { "name": "case", "version": "1" } });
    let greeted = run.call("m", "initialize", &info, PATIENCE)?;
    greeted.get("result").ok_or(format!("m was greeted with {}", cut(&greeted)))?;
    run.send("m", &json!({ "jsonrpc": "2.0", "method": "initialized" }))?;
    let at = holder(run, &session)?;
    let (first, _) = seen(run, &session)?;
    let begun = first["turns"].as_u64().ok_or("no count of turns")?;
    let before = run.world.lock().order;
    for round in 0..rounds {
        let id = json!(8_000_000 + round);
        request(run, "cA", &id, "session/prompt", &prompt(&session, "work"))?;
        let open = run.world.wait(PATIENCE, "the prompt at the agent", |state| {
            let mut open = state.puppet(at)?.open.iter();
            let found = open.find(|(_, method, _)| method == "session/prompt");
            Ok(found.map(|(id, _, _)| id.clone()))
        })?;
        let (told, all) = seen(run, &session)?;
        let turns = begun + round as u64;
        if told != json!({ "state": ["running"], "turn": true, "turns": turns }) {
            return Err(format!("round {round}: while it runs {told} is told: {all}"));
        }
        let result = json!({ "stopReason": "end_turn" });
        run.puppet_says(at, &json!({ "jsonrpc": "2.0", "id": open, "result": result }))?;
        answered(run, "cA", &id, PATIENCE)?;
        let (told, all) = seen(run, &session)?;
        if told != json!({ "state": ["idle"], "turn": false, "turns": turns + 1 }) {
            return Err(format!("round {round}: behind the answer {told} is told: {all}"));
        }
    }
    changes(run, &session, before, rounds)
}

/// What all sources say, as one: the states, whether a turn runs, how many have ended.
fn seen(run: &mut Run, session: &str) -> Result<(Value, String), String> {
    let params = json!({ "sessionId": session });
    let asked = [
        ("cB", "session/status"),
        ("m", "session/read"),
        ("cB", "_frontdesk/session"),
        ("cA", "session/status"),
    ];
    // All at once: the first answer tells what was true first.
    let mut open = Vec::new();
    for (client, method) in asked {
        open.push((client, run.ask(client, method, &params)?));
    }
    let mut answers = Vec::new();
    for (client, id) in open {
        answers.push(run.answer(client, &id, PATIENCE)?["result"].clone());
    }
    let msp = &answers[1]["session"];
    let mut states = vec![
        answers[0]["_meta"]["frontdesk"]["state"].clone(),
        msp["status"].clone(),
        answers[2]["state"].clone(),
        answers[3]["_meta"]["frontdesk"]["state"].clone(),
    ];
    states.dedup();
    let mut turns = vec![msp["turnCount"].clone(), answers[2]["turnCount"].clone()];
    turns.dedup();
    let turns = if turns.len() == 1 { turns.remove(0) } else { json!(turns) };
    let told = json!({ "state": states, "turn": msp["activeTurnId"].is_string(), "turns": turns });
    Ok((told, cut(&json!(answers))))
}

/// Each turn was told to the listener as one change to running and one back.
fn changes(run: &mut Run, session: &str, since: u64, rounds: usize) -> Result<(), String> {
    let public = run.world.lock().names.public(session).to_owned();
    run.until(PATIENCE, |run| {
        let (_, frames) = run.frames("m", since)?;
        let values = frames.iter().filter_map(|frame| frame.value.as_ref());
        let told: Vec<&str> = values
            .filter(|it| it["method"] == "session/statusChanged")
            .filter(|it| it["params"]["sessionId"] == public.as_str())
            .filter_map(|it| it["params"]["status"].as_str())
            .collect();
        let wanted: Vec<&str> = ["running", "idle"].into_iter().cycle().take(2 * rounds).collect();
        if told == wanted {
            return Ok(());
        }
        Err(format!("{} changes were told for {rounds} turns", told.len()))
    })
}
