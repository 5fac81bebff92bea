//! The methods, one by one.

use std::fs;
use std::path::Path;

use agent_client_protocol_schema::v1;
use serde_json::{Value, json};
use tempfile::tempdir;

use super::client::{Agent, code, not_found, typed};

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entry = |entry: fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    };
    let mut all: Vec<_> = fs::read_dir(folder).unwrap().map(|e| entry(e.unwrap())).collect();
    all.sort();
    all
}

fn open(session: &str, cwd: &Path) -> Value {
    json!({ "sessionId": session, "cwd": cwd, "mcpServers": [] })
}

#[test]
fn the_handshake_answers_version_1_and_names_every_ability() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::start(dir.path(), &[]);
    for version in [1, 2, 65535] {
        let result = agent.call("initialize", json!({ "protocolVersion": version })).unwrap();
        typed::<v1::InitializeResponse>(&result);
        assert_eq!(result["protocolVersion"], 1);
        assert_eq!(result["agentInfo"]["name"], "frontdesk-demo");
        let can = &result["agentCapabilities"];
        assert_eq!(can["loadSession"], true);
        assert_eq!(can["promptCapabilities"]["image"], true);
        assert_eq!(can["promptCapabilities"]["embeddedContext"], true);
        let session = can["sessionCapabilities"].as_object().unwrap();
        let names: Vec<&String> = session.keys().collect();
        assert_eq!(names, ["list", "resume", "close", "delete", "fork", "status"]);
        assert!(session.values().all(|marker| *marker == json!({})));
    }
    assert_eq!(code(&agent.call("initialize", json!({ "protocolVersion": "1" }))), -32602);
    assert_eq!(agent.call("authenticate", json!({ "methodId": "any" })), Ok(json!({})));
}

#[test]
fn wrong_calls_get_one_clear_error_each() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::start(dir.path(), &[]);
    assert_eq!(code(&agent.call("session/list", json!({}))), -32600);
    agent.hello(json!({}));
    assert_eq!(code(&agent.call("no/such", json!({}))), -32601);
    assert_eq!(code(&agent.call("_no/such", json!({}))), -32601);
    assert_eq!(code(&agent.call("session/status", json!([]))), -32602);
    assert_eq!(code(&agent.call("session/status", json!({ "sessionId": 7 }))), -32602);
    let new = |params| ("session/new", params);
    for (method, params) in [
        new(json!({ "cwd": "relative", "mcpServers": [] })),
        new(json!({ "cwd": "/" })),
        new(json!({ "mcpServers": [] })),
        new(json!({ "cwd": "/", "mcpServers": {} })),
        new(json!({ "cwd": "/", "mcpServers": [], "additionalDirectories": [1] })),
        ("session/load", json!({ "sessionId": "x", "cwd": "/" })),
        ("session/prompt", json!({ "sessionId": "x" })),
        ("session/prompt", json!({ "sessionId": "x", "prompt": [{ "text": "a" }] })),
        ("session/list", json!({ "cursor": "nonsense" })),
        ("session/list", json!({ "cwd": 1 })),
    ] {
        assert_eq!(code(&agent.call(method, params.clone())), -32602, "{method} {params}");
    }
    agent.notify("no/such/notification", json!({}));
    agent.notify("session/cancel", json!({ "sessionId": "x" }));
    agent.notify("$/cancel_request", json!({ "requestId": 99 }));
    agent.send(&json!({ "jsonrpc": "2.0", "id": 77, "result": "an answer nobody waits for" }));
    assert!(agent.call("session/list", json!({})).is_ok());
}

#[test]
fn unreadable_lines_get_an_error_without_an_id_and_cost_nothing() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let huge = [vec![b'x'; (64 << 20) + 1], vec![b'\n']].concat();
    for (line, code) in [
        (&b"{\n"[..], -32700),
        (b"hello\n", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/sta\n", -32700),
        (b"\xff\xfe\n", -32700),
        (&huge, -32700),
        (b"42\n", -32600),
        (b"[]\n", -32600),
        (b"{}\n", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"x\"}\n", -32600),
    ] {
        agent.raw(b"\n  \r\n");
        agent.raw(line);
        let answer = agent.until(|m| m.get("error").is_some());
        assert_eq!(answer["id"], Value::Null);
        assert_eq!(
            answer["error"]["code"],
            code,
            "{:?}",
            String::from_utf8_lossy(&line[..9.min(line.len())])
        );
    }
    assert!(agent.call("session/list", json!({})).is_ok());
}

#[test]
fn request_ids_come_back_as_they_were() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    for id in ["1", "\"1\"", "-7", "9223372036854775808", "123456789012345678901234567890", "null"]
    {
        agent.raw(
            format!("{{\"id\":{id},\"method\":\"session/list\",\"params\":{{}}}}\n").as_bytes(),
        );
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let line = String::from_utf8(agent.line(deadline).unwrap()).unwrap();
        assert!(line.contains(&format!("\"id\":{id},\"result\"")), "{line}");
    }
}

#[test]
fn a_new_session_is_on_disk_at_once_and_offers_modes_options_and_commands() {
    let dir = tempdir().unwrap();
    let store = dir.path().join("store");
    let mut agent = Agent::ready(&store, &[]);
    let params = json!({ "cwd": "/w", "mcpServers": [], "additionalDirectories": ["/d"] });
    let result = agent.call("session/new", params).unwrap();
    typed::<v1::NewSessionResponse>(&result);
    let id: uuid::Uuid = result["sessionId"].as_str().unwrap().parse().unwrap();
    assert_eq!(id.get_version_num(), 7);
    assert_eq!(result["modes"]["currentModeId"], "ask");
    assert_eq!(result["configOptions"].as_array().unwrap().len(), 2);
    let commands = agent.until(|m| m["method"] == "session/update");
    assert_eq!(commands["params"]["update"]["sessionUpdate"], "available_commands_update");
    agent.kill();

    let mut next = Agent::ready(&store, &[]);
    let listed = next.call("session/list", json!({})).unwrap();
    typed::<v1::ListSessionsResponse>(&listed);
    assert_eq!(listed["sessions"][0]["sessionId"], id.to_string());
    assert_eq!(listed["sessions"][0]["cwd"], "/w");
    assert_eq!(listed["sessions"][0]["additionalDirectories"], json!(["/d"]));
}

#[test]
fn status_tells_and_changes_nothing() {
    let dir = tempdir().unwrap();
    let store = dir.path().join("store");
    let mut agent = Agent::ready(&store, &[]);
    let saved = agent.session(dir.path());
    agent.kill();

    let mut agent = Agent::ready(&store, &[]);
    let loaded = agent.session(dir.path());
    let before = files(&store);
    for _ in 0..200 {
        assert_eq!(agent.status(&saved), Ok(json!({ "status": "inactive" })));
        assert_eq!(agent.status(&loaded), Ok(json!({ "status": "active" })));
    }
    let odd = "../store/é\u{202e}\"\n";
    for unknown in ["", "x", odd, &saved.to_uppercase(), &"x".repeat(5000)] {
        not_found(&agent.status(unknown), unknown);
    }
    assert_eq!(files(&store), before);
    not_found(&agent.turn(&saved, "hello"), &saved);
    assert_eq!(agent.status(&saved), Ok(json!({ "status": "inactive" })));
}

#[test]
fn status_does_not_wait_for_turns_questions_or_hangs() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let sessions: Vec<String> = (0..4).map(|_| agent.session(dir.path())).collect();
    agent.prompt(&sessions[0], "wait 60000");
    agent.prompt(&sessions[1], "ask");
    agent.asked("session/request_permission");
    agent.prompt(&sessions[2], "hang");
    agent.prompt(&sessions[3], "stream 100000 every 1");
    for session in &sessions {
        assert_eq!(agent.status(session), Ok(json!({ "status": "active" })));
    }
    not_found(&agent.status("nobody"), "nobody");
}

#[test]
fn load_after_kill_9_replays_all_that_was_shown() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    agent.turn(&session, "hello").unwrap();
    let mut shown = agent.updates();
    agent.turn(&session, "plan a; b\ntool look\nthink 2\nsay done\nusage\nmode auto").unwrap();
    shown.extend(agent.updates());
    agent.seen.clear();
    agent.prompt(&session, "stream 5\nwait 60000");
    agent.until(|m| m["params"]["update"]["content"]["text"] == "chunk 5 of 5 ");
    shown.extend(agent.updates());
    agent.kill();

    let mut next = Agent::ready(dir.path(), &[]);
    let result = next.call("session/load", open(&session, dir.path())).unwrap();
    typed::<v1::LoadSessionResponse>(&result);
    assert_eq!(result["modes"]["currentModeId"], "auto");
    let replay = next.updates();
    let users: Vec<&Value> = replay
        .iter()
        .filter(|u| u["sessionUpdate"] == "user_message_chunk")
        .map(|u| &u["content"]["text"])
        .collect();
    assert_eq!(users.len(), 3);
    assert_eq!(users[0], "hello");
    let history = |u: &&Value| {
        let kind = u["sessionUpdate"].as_str().unwrap();
        !["user_message_chunk", "usage_update", "current_mode_update", "session_info_update"]
            .contains(&kind)
    };
    let mut want: Vec<&Value> = shown.iter().filter(history).collect();
    let last = json!({
        "sessionUpdate": "agent_message_chunk",
        "content": { "type": "text", "text": "chunk 5 of 5 " },
        "messageId": "t3-message1",
    });
    want.push(&last);
    assert_eq!(replay.iter().filter(history).collect::<Vec<_>>(), want);
    assert_eq!(next.status(&session), Ok(json!({ "status": "active" })));
    assert_eq!(next.turn(&session, "say on").unwrap()["stopReason"], "end_turn");
    assert_eq!(next.said(), "on");

    next.seen.clear();
    next.call("session/load", open(&session, dir.path())).unwrap();
    assert_eq!(next.updates().len(), replay.len() + 2, "a second load shows the new turn, too");
}

#[test]
fn resume_shows_no_history_and_unknown_sessions_are_not_found() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    agent.turn(&session, "hello").unwrap();
    agent.kill();

    let mut next = Agent::ready(dir.path(), &[]);
    let params = json!({ "sessionId": session, "cwd": "/elsewhere" });
    let result = next.call("session/resume", params).unwrap();
    typed::<v1::ResumeSessionResponse>(&result);
    assert!(next.updates().is_empty(), "{:?}", next.seen);
    assert_eq!(next.turn(&session, "say hi").unwrap()["stopReason"], "end_turn");
    let listed = next.call("session/list", json!({})).unwrap();
    assert_eq!(listed["sessions"][0]["cwd"], "/elsewhere", "the new folder counts");
    for method in ["session/load", "session/resume", "session/fork"] {
        not_found(&next.call(method, open("nobody", dir.path())), "nobody");
    }
    let here = json!({ "sessionId": "nobody", "modeId": "ask" });
    not_found(&next.call("session/set_mode", here), "nobody");
    not_found(&next.call("session/close", json!({ "sessionId": "nobody" })), "nobody");
}

#[test]
fn list_has_pages_a_folder_filter_and_the_newest_first() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let mut made = Vec::new();
    for at in 0..120 {
        let cwd = if at % 3 == 0 { "/three" } else { "/other" };
        made.push(agent.session(Path::new(cwd)));
    }
    agent
        .turn(&made[5], "A long title that goes on and on and on, beyond any sixty characters")
        .unwrap();
    let mut pages = Vec::new();
    let mut ids = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let result = agent.call("session/list", json!({ "cursor": cursor })).unwrap();
        typed::<v1::ListSessionsResponse>(&result);
        let rows = result["sessions"].as_array().unwrap();
        pages.push(rows.len());
        ids.extend(rows.iter().map(|row| row["sessionId"].as_str().unwrap().to_owned()));
        if pages.len() == 1 {
            let title = rows[0]["title"].as_str().unwrap();
            assert_eq!(title, "A long title that goes on and on and on, beyond any sixty c…");
            assert!(rows[1].get("title").is_none());
        }
        match result.get("nextCursor") {
            Some(next) => cursor = next.clone(),
            None => break,
        }
    }
    assert_eq!(pages, [50, 50, 20]);
    let first = made.remove(5);
    made.reverse();
    made.insert(0, first);
    assert_eq!(ids, made);
    let filtered = agent.call("session/list", json!({ "cwd": "/three/" })).unwrap();
    assert_eq!(filtered["sessions"].as_array().unwrap().len(), 40);
    let none = agent.call("session/list", json!({ "cwd": "/thr" })).unwrap();
    assert_eq!(none, json!({ "sessions": [] }));
}

#[test]
fn close_cancels_unloads_and_is_followed_by_silence() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let prompt = agent.prompt(&session, "stream 1000000 every 1");
    agent.until(|m| m["method"] == "session/update");
    let close = agent.ask("session/close", json!({ "sessionId": session }));
    assert_eq!(agent.answer(&prompt).unwrap()["stopReason"], "cancelled");
    assert_eq!(agent.answer(&close), Ok(json!({})));
    agent.seen.clear();
    assert_eq!(agent.status(&session), Ok(json!({ "status": "inactive" })));
    not_found(&agent.turn(&session, "hello"), &session);
    assert!(agent.seen.is_empty(), "{:?}", agent.seen);
    agent.call("session/resume", open(&session, dir.path())).unwrap();
    assert!(agent.turn(&session, "hello").is_ok());

    agent.prompt(&session, "late 3 50");
    agent.call("session/close", json!({ "sessionId": session })).unwrap();
    agent.seen.clear();
    std::thread::sleep(std::time::Duration::from_millis(300));
    agent.status(&session).unwrap();
    assert!(agent.seen.is_empty(), "{:?}", agent.seen);
}

#[test]
fn delete_removes_and_unknown_sessions_succeed() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let [loaded, running] = [agent.session(dir.path()), agent.session(dir.path())];
    let prompt = agent.prompt(&running, "wait 60000");
    for session in [&running, &loaded, "nobody", "../x"] {
        let deleted = agent.call("session/delete", json!({ "sessionId": session }));
        assert_eq!(deleted, Ok(json!({})));
        not_found(&agent.status(session), session);
    }
    let answered = agent.seen.iter().find(|m| m["id"] == prompt && m.get("method").is_none());
    assert_eq!(answered.unwrap()["result"]["stopReason"], "cancelled");
    assert!(files(dir.path()).is_empty());
}

#[test]
fn a_fork_is_a_session_of_its_own_with_the_same_history() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    agent.turn(&session, "hello").unwrap();
    let result = agent.call("session/fork", open(&session, dir.path())).unwrap();
    let fork = result["sessionId"].as_str().unwrap().to_owned();
    agent.until(|m| m["params"]["update"]["sessionUpdate"] == "available_commands_update");
    assert_ne!(fork, session);
    assert_eq!(result["modes"]["currentModeId"], "ask");
    assert_eq!(agent.status(&fork), Ok(json!({ "status": "active" })));
    agent.turn(&fork, "say only here").unwrap();
    let [mut old, new] = [session, fork].map(|id| {
        agent.seen.clear();
        agent.call("session/load", open(&id, dir.path())).unwrap();
        let replay = agent.updates();
        agent.until(|m| m["params"]["update"]["sessionUpdate"] == "available_commands_update");
        replay
    });
    let user = |update: &Value| update["sessionUpdate"] == "user_message_chunk";
    assert_eq!(old.iter().filter(|update| user(update)).count(), 1);
    assert_eq!(new[..old.len()], old);
    old.extend(new[old.len()..].to_vec());
    assert_eq!(old.iter().filter(|update| user(update)).count(), 2);
    assert_eq!(old.last().unwrap()["content"]["text"], "only here");
}

#[test]
fn modes_and_options_are_set_checked_and_kept() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let mode = |id: &str| json!({ "sessionId": session, "modeId": id });
    assert_eq!(agent.call("session/set_mode", mode("auto")), Ok(json!({})));
    assert_eq!(code(&agent.call("session/set_mode", mode("yolo"))), -32602);
    let option =
        |id: &str, value: Value| json!({ "sessionId": session, "configId": id, "value": value });
    let set = "session/set_config_option";
    let result = agent.call(set, option("model", json!("careful"))).unwrap();
    typed::<v1::SetSessionConfigOptionResponse>(&result);
    assert_eq!(result["configOptions"][0]["currentValue"], "careful");
    let mut typed_option = option("thoughts", json!(false));
    typed_option["type"] = json!("boolean");
    let result = agent.call(set, typed_option).unwrap();
    assert_eq!(result["configOptions"][1]["currentValue"], "off");
    for (id, value) in [("model", json!("x")), ("x", json!("on")), ("model", json!(null))] {
        assert_eq!(code(&agent.call(set, option(id, value))), -32602);
    }
    agent.turn(&session, "hello").unwrap();
    assert!(!agent.kinds().contains(&"agent_thought_chunk".to_owned()));
    agent.kill();

    let mut next = Agent::ready(dir.path(), &[]);
    let result = next.call("session/resume", open(&session, dir.path())).unwrap();
    assert_eq!(result["modes"]["currentModeId"], "auto");
    assert_eq!(result["configOptions"][0]["currentValue"], "careful");
    assert_eq!(result["configOptions"][1]["currentValue"], "off");
}

#[test]
fn each_ability_can_be_taken_away() {
    for name in ["load", "resume", "list", "status", "close", "delete", "fork"] {
        let dir = tempdir().unwrap();
        let mut agent = Agent::start(dir.path(), &[&format!("--no-{name}")]);
        let can = agent.hello(json!({}))["agentCapabilities"].clone();
        let session = agent.session(dir.path());
        let markers = can["sessionCapabilities"].as_object().unwrap();
        assert_eq!(can["loadSession"], json!(name != "load"));
        assert_eq!(markers.len(), if name == "load" { 6 } else { 5 });
        assert!(!markers.contains_key(name));
        let answer = agent.call(&format!("session/{name}"), open(&session, dir.path()));
        assert_eq!(code(&answer), -32601, "{name}");
    }
}

#[test]
fn the_published_words_of_status_can_be_had() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &["--status-open"]);
    let session = agent.session(dir.path());
    assert_eq!(agent.status(&session), Ok(json!({ "status": "open" })));
    agent.call("session/close", json!({ "sessionId": session })).unwrap();
    assert_eq!(agent.status(&session), Ok(json!({ "status": "saved" })));
}
