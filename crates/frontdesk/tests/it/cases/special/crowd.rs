//! Races and crowds.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::pattern::cut;
use super::super::puppets::{text_update, update_frame};
use super::super::run::{PATIENCE, Run};
use super::{answered, holder, is_suspect, learn, number, prompt, request, rounds, status, text};

/// The agent exits and a resume comes within the same millisecond, over and over.
///
/// After each round: what status calls active answers a prompt, and what it calls inactive can be
/// resumed and then answers a prompt. Nothing hangs.
pub(super) fn exit_and_resume_race(run: &mut Run, about: &Value) -> Result<(), String> {
    let session = text(about, "session")?;
    let rounds = rounds(about)?;
    let cwd = json!({ "sessionId": session, "cwd": "${WS}/alpha", "mcpServers": [] });
    for round in 0..rounds {
        let old = holder(run, session)?;
        run.world.lock().order(old, b'X', b"255".to_vec())?;
        thread::sleep(Duration::from_micros(100 * (round as u64 % 11)));
        let heard = run.world.lock().order;
        // Either answer will do here; what counts is that there is one, and what holds after it.
        let first = run.call("cA", "session/resume", &cwd, PATIENCE)?;
        run.world.wait(PATIENCE, "the end of the process", |state| {
            Ok(state.puppet(old)?.gone.then_some(()))
        })?;
        let until = Instant::now() + PATIENCE;
        let word = loop {
            let word = status(run, "cA", session)?;
            // The word that the process or the connection is gone takes its time, for which it counts as
            // loaded; and behind a url nobody knows yet what has become of it.
            let is_open = word == "active" && !is_suspect(run, "cA", session)?;
            if !is_open || Instant::now() > until || opened(run, heard)? {
                break if is_open { word } else { "not open".to_owned() };
            }
            thread::sleep(Duration::from_millis(5));
        };
        if word != "active" {
            let again = run.call("cA", "session/resume", &cwd, PATIENCE)?;
            if again.get("result").is_none() {
                return Err(format!(
                    "round {round}: {word} after {}, and resume was answered with {}",
                    cut(&first),
                    cut(&again)
                ));
            }
        }
        if !opened(run, heard)? {
            return Err(format!("round {round}: no living process was asked to resume"));
        }
        let told = run.call("cA", "session/prompt", &prompt(session, "turn 9"), PATIENCE)?;
        if told["result"]["stopReason"] != "end_turn" {
            return Err(format!("round {round}: the prompt was answered with {}", cut(&told)));
        }
    }
    Ok(())
}

/// Whether an agent was asked to open a session since.
fn opened(run: &mut Run, since: u64) -> Result<bool, String> {
    Ok(openings(run, since)? > 0)
}

/// How often processes of the agent were asked to open a session since.
fn openings(run: &mut Run, since: u64) -> Result<usize, String> {
    let (_, frames) = run.frames("a1", since)?;
    let opens = |method| matches!(method, Some("session/resume" | "session/load"));
    Ok(frames.iter().filter(|frame| opens(frame.method())).count())
}

/// Two clients call a cold session in the same moment, again and again: one opening, and both are in.
pub(super) fn resume_race(run: &mut Run, about: &Value) -> Result<(), String> {
    let session = text(about, "session")?;
    let place = json!({ "sessionId": session, "cwd": "${WS}/alpha", "mcpServers": [] });
    let force = json!({ "sessionId": session, "_meta": { "frontdesk": { "force": true } } });
    for round in 0..rounds(about)? {
        let closed = run.call("cA", "session/close", &force, PATIENCE)?;
        if closed.get("result").is_none() {
            return Err(format!("round {round}: the close was answered with {}", cut(&closed)));
        }
        let before = run.world.lock().order;
        let id = json!(10_000 + round);
        request(run, "cA", &id, "session/resume", &place)?;
        thread::sleep(Duration::from_micros(100 * (round as u64 % 31)));
        request(run, "cB", &id, "session/resume", &place)?;
        for client in ["cA", "cB"] {
            let answer = answered(run, client, &id, PATIENCE)?;
            if answer.get("result").is_none() {
                return Err(format!("round {round}: {client} was told {}", cut(&answer)));
            }
        }
        let count = openings(run, before)?;
        if count != 1 {
            return Err(format!("round {round}: {count} openings"));
        }
        let told = run.call("cB", "session/prompt", &prompt(session, "turn 9"), PATIENCE)?;
        if told["result"]["stopReason"] != "end_turn" {
            return Err(format!("round {round}: the prompt was answered with {}", cut(&told)));
        }
    }
    Ok(())
}

/// Many clients with equal ids, one process, answers in reverse order.
pub(super) fn fifty_clients(run: &mut Run, about: &Value) -> Result<(), String> {
    let (clients, shims) = (number(about, "clients")?, number(about, "shims")?);
    let name = |k: usize| format!("k{k}");
    let session = |k: usize| format!("own-{k}");
    for k in 0..clients {
        let door = if k < shims { "shim" } else { "socket" };
        run.boot["clients"][name(k)] = json!({ "door": door, "init": false });
        run.open(&name(k))?;
        let params = json!({ "protocolVersion": 1, "clientCapabilities": {} });
        request(run, &name(k), &json!(1), "initialize", &params)?;
        answered(run, &name(k), &json!(1), PATIENCE)?;
        run.world.lock().agent("a1")?.mint.push_back(session(k));
        let params = json!({ "cwd": "${WS}/alpha", "mcpServers": [] });
        request(run, &name(k), &json!(3), "session/new", &params)?;
        let answer = answered(run, &name(k), &json!(3), PATIENCE)?;
        learn(run, &session(k), &answer)?;
    }
    for k in 0..clients {
        let params = prompt(&session(k), &format!("prompt of {k}"));
        request(run, &name(k), &json!(2), "session/prompt", &params)?;
    }
    let mut upstream = Vec::new();
    for k in 0..clients {
        let wanted = session(k);
        let found = run.world.wait(PATIENCE, &format!("the prompt of {k}"), |state| {
            let at = state.holder("a1", &wanted).ok_or(format!("nobody holds {wanted}"))?;
            let mut open = state.puppets[at].open.iter();
            let open = open.find(|(_, method, session)| {
                method == "session/prompt" && session.as_deref() == Some(&wanted)
            });
            Ok(open.map(|(id, _, _)| (at, id.clone())))
        })?;
        upstream.push(found);
    }
    unique_ids(run)?;
    questions(run, clients, &upstream)?;
    // One client cancels its own request 2, by an id that all of them use.
    let cancelling = 10.min(clients - 1);
    run.send(
        &name(cancelling),
        &json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": { "requestId": 2 } }),
    )?;
    thread::sleep(Duration::from_millis(200));
    for k in (0..clients).rev() {
        let (at, id) = &upstream[k];
        let chunk = text_update("agent_message_chunk", &format!("for {k}"));
        run.puppet_says(*at, &update_frame(&session(k), &chunk))?;
        let result = json!({ "stopReason": "end_turn", "_meta": { "k": k } });
        run.puppet_says(*at, &json!({ "jsonrpc": "2.0", "id": id, "result": result }))?;
        thread::sleep(Duration::from_millis(k as u64 * 7 % 5));
    }
    own_answers(run, clients, cancelling)?;
    cancelled_only(run, &session(cancelling), &upstream[cancelling].1)
}

/// Every other client has a permission answer in flight; the first one's question has the id 2.
fn questions(run: &mut Run, clients: usize, upstream: &[(usize, Value)]) -> Result<(), String> {
    for k in (0..clients).step_by(2) {
        let id = if k == 0 { json!(2) } else { json!(2_000 + k) };
        let params = json!({
            "sessionId": format!("own-{k}"),
            "toolCall": { "toolCallId": format!("call-{k}"), "title": "build" },
            "options": [
                { "optionId": format!("yes-{k}"), "name": "Allow", "kind": "allow_once" },
                { "optionId": "no", "name": "Reject", "kind": "reject_once" },
            ],
        });
        let question = json!({
            "jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params,
        });
        run.puppet_says(upstream[k].0, &question)?;
    }
    for k in (0..clients).step_by(2) {
        let client = format!("k{k}");
        let id = run.world.wait(PATIENCE, &format!("the question for {client}"), |state| {
            let open = &state.client(&client)?.open;
            let open = open.iter().find(|(_, method)| method == "session/request_permission");
            Ok(open.map(|(id, _)| id.clone()))
        })?;
        let outcome = json!({ "outcome": "selected", "optionId": format!("yes-{k}") });
        let answer = json!({ "jsonrpc": "2.0", "id": id, "result": { "outcome": outcome } });
        run.send(&client, &answer)?;
    }
    for k in (0..clients).step_by(2) {
        let id = if k == 0 { json!(2) } else { json!(2_000 + k) };
        let at = upstream[k].0;
        let answer = run.world.wait(PATIENCE, &format!("the answer to {id}"), |state| {
            let frames = &state.puppet(at)?.frames;
            let found = frames
                .iter()
                .find(|frame| frame.method().is_none() && frame.member("id") == Some(&id));
            Ok(found.and_then(|frame| frame.value.clone()))
        })?;
        if answer["result"]["outcome"]["optionId"] != json!(format!("yes-{k}")) {
            return Err(format!("the question of {k} was answered with {}", cut(&answer)));
        }
    }
    Ok(())
}

/// No process has read one id for two requests.
fn unique_ids(run: &Run) -> Result<(), String> {
    let state = run.world.lock();
    for (at, puppet) in state.puppets.iter().enumerate() {
        let mut seen = std::collections::BTreeSet::new();
        for frame in puppet.frames.iter().filter(|frame| frame.method().is_some()) {
            if let Some(id) = frame.member("id")
                && !seen.insert(id.to_string())
            {
                return Err(format!("puppet {at} has read the id {id} twice"));
            }
        }
    }
    Ok(())
}

fn own_answers(run: &mut Run, clients: usize, cancelling: usize) -> Result<(), String> {
    for k in 0..clients {
        let client = format!("k{k}");
        let answer = answered(run, &client, &json!(2), PATIENCE)?;
        // The one that cancelled may have been answered for that; all others must have their own.
        if k != cancelling && answer["result"]["_meta"]["k"] != json!(k) {
            return Err(format!("{client} got {}", cut(&answer)));
        }
        run.settle(&client)?;
        let own = run.world.lock().names.public(&format!("own-{k}")).to_owned();
        let (_, frames) = run.frames(&client, 0)?;
        let answers = frames
            .iter()
            .filter(|frame| frame.method().is_none() && frame.member("id") == Some(&json!(2)));
        let answers = answers.count();
        let updates: Vec<&Value> = frames
            .iter()
            .filter(|frame| frame.method() == Some("session/update"))
            .filter_map(|frame| frame.value.as_ref())
            .collect();
        let chunks: Vec<&str> = updates
            .iter()
            .filter_map(|v| v["params"]["update"]["content"]["text"].as_str())
            .collect();
        let foreign = updates.iter().find(|update| update["params"]["sessionId"] != own.as_str());
        let mine = format!("for {k}");
        if answers != 1
            || foreign.is_some()
            || chunks.iter().filter(|text| **text == mine).count() != 1
        {
            return Err(format!(
                "{client}: {answers} answers, updates {chunks:?}, foreign {foreign:?}"
            ));
        }
    }
    Ok(())
}

/// A cancel at the agent's edge names the one request or session it was meant for.
fn cancelled_only(run: &Run, session: &str, id: &Value) -> Result<(), String> {
    let (_, frames) = run.frames("a1", 0)?;
    for frame in frames {
        let params = frame.member("params").cloned().unwrap_or_default();
        let stray = match frame.method() {
            Some("$/cancel_request") => params["requestId"] != *id,
            Some("session/cancel") => params["sessionId"] != session,
            _ => false,
        };
        if stray {
            return Err(format!("another request was cancelled: {}", cut(&params)));
        }
    }
    Ok(())
}
