//! `prompt` and `demo` against a scripted daemon: streams, questions, endings.

use serde_json::{Value, json};

use super::Exit;
use super::fake::{FakeDesk, Peer};
use super::tests::{KEY, row};

/// A daemon whose session answers a prompt with `turn`, which gets every message after it.
fn prompted(mut turn: impl FnMut(&Value, &Value, &mut Peer) + Send + 'static) -> FakeDesk {
    let mut prompt = Value::Null;
    FakeDesk::start(move |message, peer| match message["method"].as_str() {
        Some("_frontdesk/session") => peer.reply(message, &row(KEY, "One")),
        Some("session/resume") => {
            // Updates may come before the answer; they must not be lost or taken for it.
            peer.update(&json!({ "sessionUpdate": "current_mode_update", "currentModeId": "ask" }));
            peer.reply(message, &json!({}));
        }
        Some("session/prompt") => {
            prompt = message.clone();
            turn(message, message, peer);
        }
        _ => turn(message, &prompt, peer),
    })
}

fn chunk(kind: &str, text: &str) -> Value {
    json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } })
}

const OPTIONS: &str = r#"[{"optionId":"yes","name":"Allow once","kind":"allow_once"},{"optionId":"no","name":"Reject","kind":"reject_once"}]"#;

fn ask_permission(peer: &mut Peer) {
    peer.send_text(&format!(
        r#"{{"jsonrpc":"2.0","id":"q1","method":"session/request_permission","params":{{"sessionId":"s","toolCall":{{"toolCallId":"t","title":"Write a"}},"options":{OPTIONS}}}}}"#
    ));
}

#[test]
fn prompt_streams_the_answer_to_stdout_and_the_rest_to_stderr() {
    let desk = prompted(|_, prompt, peer| {
        peer.update(&chunk("agent_thought_chunk", "hm\u{1b}[5m"));
        peer.update(&json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "Read", "status": "pending" }));
        peer.update(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed" }));
        peer.update(&json!({ "sessionUpdate": "plan", "entries": [{ "content": "a", "status": "in_progress" }] }));
        peer.update(&chunk("user_message_chunk", "foreign"));
        peer.update(&json!({ "sessionUpdate": "brand_new" }));
        peer.update(&chunk("agent_message_chunk", "Hel"));
        peer.update(&chunk("agent_message_chunk", "lo\n\u{1b}[2J\u{9b}there"));
        peer.reply(prompt, &json!({ "stopReason": "end_turn" }));
    });
    let ran = desk.run(&["prompt", KEY, "hi"]);
    assert_eq!(ran.exit, Exit::Done);
    assert_eq!(ran.out, "Hello\n[2Jthere\n");
    insta::assert_snapshot!(ran.err, @r"
    another turn is running; this prompt waits for its end
    mode: ask
    hm[5m
    tool: Read [pending]
    tool: Read [completed]
    plan: [>] a
    another client asks: foreign
    [brand_new]
    ");
    let resume = &desk.calls("session/resume")[0]["params"];
    assert_eq!(resume["cwd"], "/home/a/x");
    assert_eq!(desk.calls("session/prompt")[0]["params"]["prompt"][0]["text"], "hi");
    desk.run(&["prompt", KEY, "-"]);
    assert_eq!(desk.calls("session/prompt")[1]["params"]["prompt"][0]["text"], "from stdin");
}

#[test]
fn an_answer_to_another_client_stays_out_of_this_one() {
    let desk = prompted(|_, prompt, peer| {
        let turn = |client: &str, state: &str| json!({ "sessionUpdate": "session_info_update", "_meta": { "frontdesk": { "turn": { "client": client, "state": state } } } });
        peer.update(&turn("another", "running"));
        peer.update(&chunk("agent_message_chunk", "theirs"));
        peer.update(&turn("another", "ended"));
        peer.update(&chunk("agent_message_chunk", "mine"));
        peer.reply(prompt, &json!({ "stopReason": "end_turn" }));
    });
    let ran = desk.run(&["prompt", KEY, "hi"]);
    assert_eq!(ran.out, "mine\n");
    assert!(ran.err.contains("theirs"), "{}", ran.err);
}

#[test]
fn prompt_json_is_a_line_each() {
    let desk = prompted(|_, prompt, peer| {
        peer.send_text(r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"x","n":1e2}}}"#);
        peer.reply(prompt, &json!({ "stopReason": "end_turn", "usage": 3 }));
    });
    let ran = desk.run(&["prompt", KEY, "hi", "--json"]);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ran.out);
    assert!(lines[1].contains(r#""n":1e2"#));
    assert_eq!(lines[2], r#"{"result":{"stopReason":"end_turn","usage":3}}"#);
}

#[test]
fn a_question_is_answered_by_the_typed_number() {
    let desk = prompted(|message, prompt, peer| {
        if message == prompt {
            ask_permission(peer);
        } else {
            let chosen = message["result"]["outcome"]["optionId"].as_str().unwrap();
            assert_eq!(message["id"], "q1");
            peer.update(&chunk("agent_message_chunk", chosen));
            peer.reply(prompt, &json!({ "stopReason": "end_turn" }));
        }
    });
    // The first line is no answer; the question is shown again.
    let ran = desk.run_with(&["prompt", KEY, "hi"], Some("maybe\n2\n"));
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "no\n"));
    assert_eq!(ran.err.matches("choose 1-2").count(), 2, "{}", ran.err);
}

#[test]
fn without_a_terminal_a_question_waits_for_others() {
    let desk = prompted(|message, prompt, peer| {
        if message == prompt {
            ask_permission(peer);
            peer.send(&json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": { "requestId": "q1" } }));
        } else {
            // The withdrawn question gets its one answer, and that is no choice.
            assert_eq!(message["error"]["code"], -32800);
            peer.reply(prompt, &json!({ "stopReason": "end_turn" }));
        }
    });
    let ran = desk.run(&["prompt", KEY, "hi"]);
    assert_eq!(ran.exit, Exit::Done);
    assert!(
        ran.err.contains("no terminal") && ran.err.contains("answered elsewhere"),
        "{}",
        ran.err
    );
}

#[test]
fn a_keyboard_that_ends_is_no_answer() {
    let desk = prompted(|message, prompt, peer| {
        if message == prompt {
            ask_permission(peer);
            std::thread::sleep(std::time::Duration::from_millis(50));
            peer.reply(prompt, &json!({ "stopReason": "cancelled" }));
        } else {
            panic!("answered: {message}");
        }
    });
    let ran = desk.run_with(&["prompt", KEY, "hi"], Some(""));
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("the turn ended early: cancelled"), "{}", ran.err);
}

#[test]
fn what_the_client_does_not_serve_is_refused_at_once() {
    let desk = prompted(|message, prompt, peer| {
        if message == prompt {
            peer.send(
                &json!({ "jsonrpc": "2.0", "id": 1, "method": "fs/read_text_file", "params": {} }),
            );
        } else {
            assert_eq!((&message["id"], &message["error"]["code"]), (&json!(1), &json!(-32601)));
            peer.reply(prompt, &json!({ "stopReason": "end_turn" }));
        }
    });
    assert_eq!(desk.run(&["prompt", KEY, "hi"]).exit, Exit::Done);
}

#[test]
fn a_failed_turn_is_exit_1_and_an_unknown_session_4() {
    for (code, exit) in [(-32603, Exit::Failed), (-32002, Exit::Unknown)] {
        let desk = prompted(move |_, prompt, peer| peer.fail(prompt, code, "it broke"));
        let ran = desk.run(&["prompt", KEY, "hi", "--json"]);
        assert_eq!(ran.exit, exit);
        let last: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
        assert_eq!(last["error"]["code"], code);
    }
}

#[test]
fn a_daemon_that_dies_in_a_turn_ends_the_command() {
    let desk = prompted(|_, _, peer| peer.close());
    let ran = desk.run(&["prompt", KEY, "hi"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("closed the connection"), "{}", ran.err);
}

#[test]
fn garbage_from_the_daemon_is_an_error_and_no_hang() {
    for garbage in ["{", "[]", "\u{0}", "{\"jsonrpc\":\"2.0\"}"] {
        let desk = prompted(move |_, _, peer| peer.send_text(garbage));
        let ran = desk.run(&["prompt", KEY, "hi"]);
        assert_eq!(ran.exit, Exit::Failed, "{garbage}");
        assert!(ran.err.contains("failed to read from the daemon"), "{}", ran.err);
    }
}

/// Answers the demo: sessions, prompts that end at once, `stop`.
fn play(stopped: std::path::PathBuf) -> impl FnMut(&Value, &mut Peer) + Send + 'static {
    move |message, peer| match message["method"].as_str() {
        Some("session/new") => {
            peer.reply(message, &json!({ "sessionId": message["id"].to_string() }))
        }
        Some("session/prompt") => peer.reply(message, &json!({ "stopReason": "end_turn" })),
        Some("_frontdesk/session") => peer.reply(message, &row("s", "Title")),
        Some("_frontdesk/stop") => {
            peer.reply(message, &json!({}));
            std::fs::write(&stopped, "").unwrap();
        }
        method => panic!("unexpected {method:?}"),
    }
}

#[test]
fn demo_starts_a_daemon_in_a_temp_home_and_leaves_nothing() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut desk = FakeDesk::absent();
    let folder = desk.home.path().to_path_buf();
    let shown = folder.display();
    let program = folder.join("daemon");
    let script = format!(
        "#!/bin/sh\nprintf %s \"$FRONTDESK_HOME\" > {shown}/t; mv {shown}/t {shown}/home\n\
         until [ -e {shown}/bound ]; do sleep 0.01; done\necho ready socket=x http=- version=0\n\
         until [ -e {shown}/stopped ]; do sleep 0.01; done\ntouch {shown}/ended\n"
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    desk.program = Some(program);
    desk.home_is_given = false;
    let desk = std::sync::Arc::new(desk);
    let daemon = std::thread::spawn({
        let (desk, folder) = (std::sync::Arc::clone(&desk), folder.clone());
        move || {
            while !folder.join("home").exists() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let home = std::fs::read_to_string(folder.join("home")).unwrap();
            let run = std::path::Path::new(&home).join("run");
            std::fs::create_dir_all(&run).unwrap();
            desk.listen(&run.join("frontdesk.sock"), play(folder.join("stopped")));
            std::fs::write(folder.join("bound"), "").unwrap();
        }
    });
    let ran = desk.run(&["demo", "--json"]);
    daemon.join().unwrap();
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert!(folder.join("ended").exists(), "the daemon was killed instead of stopped");
    let home = std::fs::read_to_string(folder.join("home")).unwrap();
    assert!(home.contains("frontdesk-demo-"), "{home}");
    assert!(!std::path::Path::new(&home).parent().unwrap().exists(), "{home}");
}

#[test]
fn demo_tells_why_its_daemon_did_not_start() {
    let mut desk = FakeDesk::absent();
    // `ls serve` fails at once and says so on stderr.
    desk.program = Some("/bin/ls".into());
    let ran = desk.run(&["demo"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(
        ran.err.contains("failed to start the daemon: ") && ran.err.contains("serve"),
        "{}",
        ran.err
    );
}

#[test]
fn demo_plays_on_a_daemon_that_runs_and_leaves_it_running() {
    let mut made = 0;
    let mut prompts: Vec<Value> = Vec::new();
    let desk = FakeDesk::start(move |message, peer| match message["method"].as_str() {
        Some("session/new") => {
            made += 1;
            peer.reply(message, &json!({ "sessionId": format!("s{made}") }));
        }
        Some("session/prompt") => prompts.push(message.clone()),
        Some("_frontdesk/session") => {
            let id = message["params"]["sessionId"].as_str().unwrap();
            peer.reply(message, &row(id, "Title"));
            for prompt in prompts.drain(..) {
                let session = prompt["params"]["sessionId"].clone();
                let update = chunk("agent_message_chunk", "last words");
                peer.send(&json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": session, "update": update } }));
                peer.reply(&prompt, &json!({ "stopReason": "end_turn" }));
            }
        }
        method => panic!("unexpected {method:?}"),
    });
    let ran = desk.run(&["demo"]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert!(ran.out.contains("last words") && ran.out.contains("frontdesk serve"), "{}", ran.out);
    assert_eq!(desk.calls("session/new").len(), 3);
    assert_eq!(desk.calls("_frontdesk/stop").len(), 0);
}

#[test]
fn demo_fails_with_its_turns() {
    let desk = FakeDesk::start(|message, peer| match message["method"].as_str() {
        Some("session/new") => peer.reply(message, &json!({ "sessionId": "s" })),
        Some("session/prompt") => peer.fail(message, -31002, "the agent ended\u{7}"),
        _ => peer.reply(message, &row("s", "Title")),
    });
    let ran = desk.run(&["demo", "--json"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("Run the tests: the agent ended\n"), "{}", ran.err);
    assert_eq!(ran.json()["sessions"].as_array().unwrap().len(), 3);
}

#[test]
fn demo_without_a_daemon_program_says_what_failed() {
    let ran = FakeDesk::absent().run(&["demo"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("failed to start /nonexistent/frontdesk serve"), "{}", ran.err);
}
