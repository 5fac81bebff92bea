//! Agents made with the official SDKs, behind Frontdesk: ids that repeat, versions that are echoed,
//! lists that are `null`.

use serde_json::{Value, json};

use crate::acp::Acp;
use crate::desk::{AgentSpec, Desk, row};
use crate::editor::{Permission, capabilities, editor};
use crate::interop::parts::parts;

fn join(desk: &Desk, agent: &AgentSpec) -> (Acp, Value) {
    let mut client = desk.acp(&agent.name, editor(desk.work(), Permission::Allow));
    let hello = client.initialize(capabilities());
    (client, hello)
}

fn new_session(client: &mut Acp, desk: &Desk) -> String {
    let made = client.ok("session/new", json!({ "cwd": desk.work(), "mcpServers": [] }));
    made["sessionId"].as_str().unwrap().to_owned()
}

fn open_params(desk: &Desk, session: &str) -> Value {
    json!({ "sessionId": session, "cwd": desk.work(), "mcpServers": [] })
}

/// Everything an agent asks of an editor, through Frontdesk.
fn every_turn(client: &mut Acp, desk: &Desk, session: &str) {
    for (words, said) in [
        ("say hello", "hello"),
        ("stream 5", "chunk 0 chunk 1 chunk 2 chunk 3 chunk 4 "),
        ("ask May I?", "answer: yes"),
        ("write note.txt written-by-the-agent", "answer: yeswritten"),
        ("read note.txt", "written-by-the-agent"),
        ("run echo from-the-terminal", "from-the-terminal\n"),
    ] {
        let (answer, from) = client.turn(session, words);
        assert_eq!(answer.unwrap()["stopReason"], "end_turn", "{words}");
        assert_eq!(client.text(session, "agent_message_chunk", from), said, "{words}");
    }
    let note = std::fs::read_to_string(desk.work().join("note.txt")).unwrap();
    assert_eq!(note, "written-by-the-agent");
    let from = client.mark();
    let turn = client.begin("session/prompt", crate::acp::prompt(session, "wait 60000"));
    client.wait_update(session, from, "the wait", |update| update["content"]["text"] == "waiting");
    client.notify("session/cancel", json!({ "sessionId": session }));
    let answer = client.wait(turn, crate::acp::ANSWER).unwrap();
    assert_eq!(answer["stopReason"], "cancelled");
}

#[test]
fn sessions_of_an_agent_whose_ids_repeat_stay_apart() {
    let parts = parts!();
    let agent = parts.python_agent();
    let desk = Desk::builder().agent(agent.clone()).open();
    let (mut one, _) = join(&desk, &agent);
    let (mut two, _) = join(&desk, &agent);
    // One process a session, and each process calls its first session "0".
    let (first, second) = (new_session(&mut one, &desk), new_session(&mut two, &desk));
    assert_ne!(first, second, "two conversations under one id");
    every_turn(&mut one, &desk, &first);
    let from = one.mark();
    two.turn(&second, "say only for two").0.unwrap();
    assert!(one.updates(&second, from).is_empty() && one.updates(&first, from).is_empty());
    let list = one.ok("session/list", json!({}));
    row(&list, &first);
    row(&list, &second);
    assert_eq!(desk.instances(), 2);
    for session in [&first, &second] {
        let status = two.ok("session/status", json!({ "sessionId": session }));
        assert_eq!(status["status"], "active");
    }
}

#[test]
fn an_agent_that_echoes_version_2_in_version_1s_shape_is_version_1() {
    let parts = parts!();
    let agent = parts.python_agent();
    let desk = Desk::builder().agent(agent.clone()).open();
    let mut client = desk.acp(&agent.name, editor(desk.work(), Permission::Allow));
    let offer = json!({ "protocolVersion": 2, "clientCapabilities": capabilities() });
    let hello = client.ok("initialize", offer);
    assert_eq!(hello["protocolVersion"], 1, "{hello}");
    let session = new_session(&mut client, &desk);
    every_turn(&mut client, &desk, &session);
}

#[test]
fn a_null_list_is_an_empty_one() {
    let parts = parts!();
    let agent = parts.python_agent();
    let mut desk = Desk::builder().agent(agent.clone()).open();
    let (mut client, hello) = join(&desk, &agent);
    assert!(hello["agentCapabilities"]["sessionCapabilities"]["list"].is_object(), "{hello}");
    assert_eq!(client.ok("session/list", json!({}))["sessions"], json!([]));
    let session = new_session(&mut client, &desk);
    client.turn(&session, "say remember me").0.unwrap();
    drop(client);
    desk.restart();
    // It accepts any id and replays nothing: the history shown is ours.
    let (mut client, _) = join(&desk, &agent);
    row(&client.ok("session/list", json!({})), &session);
    let from = client.mark();
    client.ok("session/load", open_params(&desk, &session));
    assert_eq!(client.text(&session, "user_message_chunk", from), "say remember me");
    assert_eq!(client.text(&session, "agent_message_chunk", from), "remember me");
}

#[test]
fn the_typescript_sdk_as_an_agent_does_every_turn() {
    let parts = parts!();
    let agent = parts.ts_agent();
    let mut desk = Desk::builder().agent(agent.clone()).open();
    let (mut client, hello) = join(&desk, &agent);
    assert_eq!(hello["agentInfo"]["name"], "typescript-example");
    let session = new_session(&mut client, &desk);
    every_turn(&mut client, &desk, &session);
    row(&client.ok("session/list", json!({})), &session);
    drop(client);
    desk.restart();
    // It kept nothing, so load shows our history, and a turn is refused with what is lost.
    let (mut client, _) = join(&desk, &agent);
    let from = client.mark();
    client.ok("session/load", open_params(&desk, &session));
    assert!(client.text(&session, "user_message_chunk", from).contains("say hello"));
    let error = client.turn(&session, "say hello").0.unwrap_err();
    assert_eq!((error.code, &error.data["sessionId"]), (-32002, &json!(session)), "{error:?}");
}

#[test]
fn the_typescript_example_agent_runs_and_its_history_outlives_it() {
    let parts = parts!();
    let agent = parts.ts_example();
    let mut desk = Desk::builder().agent(agent.clone()).open();
    let (mut client, hello) = join(&desk, &agent);
    assert_eq!(hello["agentCapabilities"]["loadSession"], true, "Frontdesk shows the history");
    let session = new_session(&mut client, &desk);
    let (answer, from) = client.turn(&session, "change the configuration");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    assert_eq!(client.asked(from).len(), 1);
    let said = client.text(&session, "agent_message_chunk", from);
    assert!(said.contains("successfully updated the configuration"), "{said}");
    drop(client);
    desk.restart();
    // It can neither load nor resume: the history is shown, the next prompt says what is lost.
    let (mut client, _) = join(&desk, &agent);
    let from = client.mark();
    client.ok("session/load", open_params(&desk, &session));
    assert_eq!(client.text(&session, "user_message_chunk", from), "change the configuration");
    assert_eq!(client.text(&session, "agent_message_chunk", from), said);
    let error = client.turn(&session, "again").0.unwrap_err();
    assert_eq!((error.code, &error.data["sessionId"]), (-32002, &json!(session)), "{error:?}");
    assert_eq!(client.ok("session/status", json!({ "sessionId": session }))["status"], "inactive");
}
