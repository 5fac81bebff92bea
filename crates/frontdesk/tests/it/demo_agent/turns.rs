//! What turns show and how they end.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::tempdir;

use super::client::{Agent, code};

#[test]
fn plain_text_is_answered_and_makes_the_title() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    assert_eq!(agent.turn(&session, "hello  there\nfriend").unwrap()["stopReason"], "end_turn");
    assert_eq!(agent.said(), "You said: hello  there\nfriend");
    let kinds = agent.kinds();
    assert_eq!(kinds.first().unwrap(), "agent_thought_chunk");
    assert_eq!(kinds.last().unwrap(), "session_info_update");
    assert_eq!(agent.updates().last().unwrap()["title"], "hello there friend");
    agent.turn(&session, "again").unwrap();
    assert!(!agent.kinds().contains(&"session_info_update".to_owned()));

    agent.seen.clear();
    let image = json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" });
    let params = json!({ "sessionId": session, "prompt": [image] });
    agent.call("session/prompt", params).unwrap();
    assert_eq!(agent.said(), "You said nothing. (with: image)");
    let params = json!({ "sessionId": session, "prompt": [] });
    assert_eq!(agent.call("session/prompt", params).unwrap()["stopReason"], "end_turn");
}

#[test]
fn every_showing_command_shows_valid_updates() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let mut kinds = |script: &str| {
        assert_eq!(agent.turn(&session, script).unwrap()["stopReason"], "end_turn", "{script}");
        let mut kinds = agent.kinds();
        kinds.retain(|kind| kind != "session_info_update");
        (kinds, agent.updates(), agent.said())
    };
    assert_eq!(kinds("say a\\nb").2, "a\nb");
    let (stream, updates, _) = kinds("stream 4 every 1 bytes 100");
    assert_eq!(stream, ["agent_message_chunk"; 4]);
    assert!(updates.iter().all(|u| u["content"]["text"].as_str().unwrap().len() == 100));
    assert_eq!(kinds("think 3").0, ["agent_thought_chunk"; 3]);
    let (plan, updates, _) = kinds("plan a; b");
    assert_eq!(plan, ["plan"; 3]);
    let states = |at: usize| -> Vec<String> {
        let entries = updates[at]["entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["status"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(states(0), ["in_progress", "pending"]);
    assert_eq!(states(1), ["completed", "in_progress"]);
    assert_eq!(states(2), ["completed", "completed"]);
    let (tool, updates, _) = kinds("tool Look around");
    assert_eq!(tool, ["tool_call", "tool_call_update", "tool_call_update"]);
    assert_eq!(updates[2]["status"], "completed");
    assert_eq!(kinds("commands").0, ["available_commands_update"]);
    assert_eq!(kinds("usage").0, ["usage_update"]);
    assert_eq!(kinds("mode auto").0, ["current_mode_update"]);
    assert_eq!(kinds("mode yolo").2, "There is no mode yolo.");
    assert_eq!(kinds("title New name").1[0]["title"], "New name");
    assert_eq!(kinds("say a\nno such thing").2, "aThis is no command: no such thing");
    let listed = agent.call("session/list", json!({})).unwrap();
    assert_eq!(listed["sessions"][0]["title"], "New name");
}

#[test]
fn updates_and_raw_lines_are_sent_byte_for_byte() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let update = r#"{"sessionUpdate":"agent_message_chunk", "content":{"type":"text","text":"\u00e9\/"},"_x":1.0e2}"#;
    let raw = r#"{"jsonrpc":"2.0","method":"_demo/x","params":{"a":1.50}}"#;
    agent.prompt(&session, &format!("update {update}\nraw {raw}"));
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut line = || String::from_utf8(agent.line(deadline).unwrap()).unwrap();
    assert!(line().contains(update));
    assert_eq!(line().trim_end(), raw);
}

#[test]
fn turns_end_as_the_script_says() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let refused = agent.turn(&session, "say no\nrefuse\nsay never").unwrap();
    assert_eq!(refused["stopReason"], "refusal");
    assert_eq!(agent.said(), "no");
    assert_eq!(agent.turn(&session, "max-tokens").unwrap()["stopReason"], "max_tokens");
    let failed = agent.turn(&session, "fail -32000 log in first").unwrap_err();
    assert_eq!(failed, json!({ "code": -32000, "message": "log in first" }));
    assert_eq!(agent.turn(&session, "say ok").unwrap()["stopReason"], "end_turn");
}

#[test]
fn one_turn_at_a_time_in_a_session_and_many_in_many() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let [one, two] = [agent.session(dir.path()), agent.session(dir.path())];
    let first = agent.prompt(&one, "wait 60000");
    let second = agent.prompt(&one, "say no");
    assert_eq!(code(&agent.answer(&second)), -32600);
    let load = json!({ "sessionId": one, "cwd": dir.path(), "mcpServers": [] });
    assert_eq!(code(&agent.call("session/load", load.clone())), -32600);
    assert!(agent.call("session/resume", load).is_ok(), "resume reads nothing out, so it may");
    assert_eq!(agent.turn(&two, "say yes").unwrap()["stopReason"], "end_turn");
    agent.notify("session/cancel", json!({ "sessionId": one }));
    assert_eq!(agent.answer(&first).unwrap()["stopReason"], "cancelled");

    let many: Vec<(String, Value)> = (0..8)
        .map(|_| agent.session(dir.path()))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|id| (id.clone(), agent.prompt(&id, "stream 50 bytes 20000")))
        .collect();
    for (_, prompt) in &many {
        let answered = |m: &Value| m["id"] == *prompt && m.get("method").is_none();
        if !agent.seen.iter().any(answered) {
            agent.answer(prompt).unwrap();
        }
    }
    for (session, _) in &many {
        let mine = agent.seen.iter().filter(|m| m["params"]["sessionId"] == *session);
        let chunks: Vec<&str> =
            mine.filter_map(|m| m["params"]["update"]["content"]["text"].as_str()).collect();
        assert_eq!(chunks.len(), 50);
        for (at, chunk) in chunks.iter().enumerate() {
            assert!(chunk.starts_with(&format!("chunk {} of 50 ", at + 1)));
        }
    }
    assert!(agent.noise.is_empty(), "all lines are whole");
}

#[test]
fn cancel_ends_every_kind_of_turn_soon() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    for script in
        ["wait 60000", "stream 1000000 every 60000", "stream 10000000", "think 9 every 60000"]
    {
        agent.seen.clear();
        let prompt = agent.prompt(&session, script);
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        agent.notify("session/cancel", json!({ "sessionId": session }));
        assert_eq!(agent.answer(&prompt).unwrap()["stopReason"], "cancelled", "{script}");
        assert!(start.elapsed() < Duration::from_secs(2), "{script}: {:?}", start.elapsed());
    }
}

#[test]
fn a_cancelled_request_is_answered_as_such() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let prompt = agent.prompt(&session, "tool x\nwait 60000");
    agent.until(|m| m["params"]["update"]["status"] == "completed");
    agent.notify("$/cancel_request", json!({ "requestId": prompt.to_string() }));
    assert!(agent.status(&session).is_ok(), "a string is another id than the number");
    agent.notify("$/cancel_request", json!({ "requestId": prompt }));
    assert_eq!(code(&agent.answer(&prompt)), -32800);
    assert!(agent.turn(&session, "say next").is_ok());
}

#[test]
fn late_chunks_come_behind_the_answer() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let prompt = agent.prompt(&session, "say first\nlate 3 10");
    agent.until(|m| m["params"]["update"]["content"]["text"] == "first");
    agent.notify("session/cancel", json!({ "sessionId": session }));
    assert_eq!(agent.answer(&prompt).unwrap()["stopReason"], "cancelled");
    agent.seen.clear();
    for at in 1..=3 {
        let late = format!("late chunk {at} of 3 ");
        agent.until(|m| m["params"]["update"]["content"]["text"] == late.as_str());
    }
    assert!(agent.turn(&session, "say next").is_ok());
}

#[test]
fn asking_always_asks_before_anything() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &["--ask-always"]);
    let session = agent.session(dir.path());
    agent.call("session/set_mode", json!({ "sessionId": session, "modeId": "auto" })).unwrap();
    for (option, said) in [("allow_once", "You said: hi"), ("reject_once", "Not allowed")] {
        agent.seen.clear();
        let prompt = agent.prompt(&session, "hi");
        let request = agent.asked("session/request_permission");
        let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
        agent.reply(&request, outcome);
        assert_eq!(agent.answer(&prompt).unwrap()["stopReason"], "end_turn");
        assert!(agent.said().contains(said), "{}", agent.said());
    }
}
