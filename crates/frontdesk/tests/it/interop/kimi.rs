//! kimi-code behind Frontdesk: it runs its commands in the client's terminal.

use serde_json::json;

use crate::acp::Acp;
use crate::desk::{Desk, row};
use crate::editor::{Permission, capabilities, editor};
use crate::interop::parts::{Rig, parts};

/// Hello, and a command in the client's terminal.
pub(super) fn turns(client: &mut Acp, rig: &Rig, session: &str) {
    let (answer, from) = client.turn(session, "hello kimi");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    let said = client.text(session, "agent_message_chunk", from);
    assert_eq!(said, "Fake model says: hello kimi");
    let (answer, from) = client.turn(session, "please use tool now");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    let asked: Vec<String> = client.asked(from).into_iter().map(|ask| ask.method).collect();
    for method in ["session/request_permission", "terminal/create"] {
        assert!(asked.contains(&method.to_owned()), "{asked:?}");
    }
    assert!(rig.work().join("fake_tool_out.txt").is_file());
}

#[test]
fn terminals_list_and_load_work_through_frontdesk() {
    let parts = parts!();
    let rig = Rig::new();
    let mut desk = Desk::builder().work(rig.work()).agent(parts.kimi(&rig)).open();
    let mut first = desk.acp("kimi", editor(rig.work(), Permission::Allow));
    first.initialize(capabilities());
    let made = first.ok("session/new", rig.new_params());
    let session = made["sessionId"].as_str().unwrap().to_owned();
    turns(&mut first, &rig, &session);
    // kimi lists a session from the start and under its own id; it is still one row.
    row(&first.ok("session/list", json!({})), &session);
    assert_eq!(desk.instances(), 1);
    drop(first);
    desk.restart();

    let mut second = desk.acp("kimi", editor(rig.work(), Permission::Allow));
    second.initialize(capabilities());
    row(&second.ok("session/list", json!({})), &session);
    let from = second.mark();
    second.ok("session/load", rig.open_params(&session));
    let user = second.text(&session, "user_message_chunk", from);
    assert_eq!(user.matches("hello kimi").count(), 1, "{user}");
    let (answer, from) = second.turn(&session, "hello again");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    let said = second.text(&session, "agent_message_chunk", from);
    assert_eq!(said, "Fake model says: hello again");
}
