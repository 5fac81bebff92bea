//! agentao behind Frontdesk: no list, -32600 for unknown sessions, and a killed session is lost.

use serde_json::json;

use crate::acp::{Acp, prompt};
use crate::desk::Desk;
use crate::editor::{Permission, capabilities, editor};
use crate::interop::parts::{Rig, parts};

fn join(desk: &Desk, rig: &Rig) -> Acp {
    let mut client = desk.acp("agentao", editor(rig.work(), Permission::Allow));
    client.initialize(capabilities());
    client
}

fn new_session(client: &mut Acp, rig: &Rig) -> String {
    let made = client.ok("session/new", rig.new_params());
    made["sessionId"].as_str().unwrap().to_owned()
}

#[test]
fn its_turns_pass_and_its_missing_abilities_are_made_good() {
    let parts = parts!();
    let rig = Rig::new();
    let desk = Desk::builder().work(rig.work()).agent(parts.agentao(&rig)).open();
    let mut client = join(&desk, &rig);
    let session = new_session(&mut client, &rig);
    let (answer, from) = client.turn(&session, "hello agentao");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    assert!(client.text(&session, "agent_message_chunk", from).contains("hello agentao"));
    let (answer, from) = client.turn(&session, "please use tool now");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    assert_eq!(client.asked(from).len(), 1);
    assert!(rig.work().join("fake_tool_out.txt").is_file());
    // It has no list and no status; Frontdesk has.
    crate::desk::row(&client.ok("session/list", json!({})), &session);
    let status = client.ok("session/status", json!({ "sessionId": session }));
    assert_eq!(status["status"], "active");
    client.ok("session/close", json!({ "sessionId": session }));
    let status = client.ok("session/status", json!({ "sessionId": session }));
    assert_eq!(status["status"], "inactive");
}

#[test]
fn its_unknown_sessions_are_minus_32002_with_the_id() {
    let parts = parts!();
    let rig = Rig::new();
    let desk = Desk::builder().work(rig.work()).agent(parts.agentao(&rig)).open();
    let mut client = join(&desk, &rig);
    let id = "sess_4a4e5d9cde5643229d909a45d55a0aa0";
    for (method, params) in [
        ("session/load", rig.open_params(id)),
        ("session/resume", rig.open_params(id)),
        ("session/prompt", prompt(id, "hello")),
        ("session/status", json!({ "sessionId": id })),
    ] {
        let error = client.err(method, params);
        assert_eq!((error.code, &error.data["sessionId"]), (-32002, &json!(id)), "{method}");
    }
}

#[test]
fn a_cleanly_stopped_session_is_loaded_again() {
    let parts = parts!();
    let rig = Rig::new();
    let mut desk = Desk::builder().work(rig.work()).agent(parts.agentao(&rig)).open();
    let mut client = join(&desk, &rig);
    let session = new_session(&mut client, &rig);
    client.turn(&session, "hello before").0.unwrap();
    drop(client);
    desk.restart();
    let mut client = join(&desk, &rig);
    let from = client.mark();
    client.ok("session/load", rig.open_params(&session));
    let user = client.text(&session, "user_message_chunk", from);
    assert_eq!(user.matches("hello before").count(), 1, "{user}");
    client.turn(&session, "hello after").0.unwrap();
}

#[test]
fn a_killed_session_is_lost_but_its_history_is_shown_and_the_error_says_what_is_lost() {
    let parts = parts!();
    let rig = Rig::new();
    let mut desk = Desk::builder().work(rig.work()).agent(parts.agentao(&rig)).open();
    let mut client = join(&desk, &rig);
    let session = new_session(&mut client, &rig);
    client.turn(&session, "hello before").0.unwrap();
    for process in desk.processes() {
        let pid = nix::unistd::Pid::from_raw(process.pid);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    desk.kill9();
    drop(client);
    desk.start();

    let calls = rig.model.calls().len();
    let mut client = join(&desk, &rig);
    let from = client.mark();
    client.ok("session/load", rig.open_params(&session));
    let shown = client.text(&session, "user_message_chunk", from);
    assert_eq!(shown.matches("hello before").count(), 1, "{shown}");
    let error = client.turn(&session, "hello after").0.unwrap_err();
    assert_eq!((error.code, &error.data["sessionId"]), (-32002, &json!(session)), "{error:?}");
    assert!(error.message.len() > "Resource not found".len(), "it must say what is lost");
    assert_eq!(rig.model.calls().len(), calls, "a new conversation was begun in silence");
    let status = client.ok("session/status", json!({ "sessionId": session }));
    assert_eq!(status["status"], "inactive");
    assert_eq!(status["_meta"]["frontdesk"]["resumable"], false);
}
