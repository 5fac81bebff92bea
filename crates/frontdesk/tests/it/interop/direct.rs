//! The agents and our SDK scripts without Frontdesk: what they do by themselves.
//!
//! The facts asserted here are the ones the other tests build on.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::acp::Acp;
use crate::desk::{AgentSpec, Desk, row};
use crate::editor::{Permission, capabilities, editor};
use crate::interop::parts::{Rig, parts};
use crate::interop::{codex, kimi, sdk_clients};

/// A client on the agent itself, initialized.
fn start(desk: &Desk, rig: &Rig, agent: &AgentSpec) -> Acp {
    let mut client = desk.direct(&agent.name, editor(rig.work(), Permission::Allow));
    client.initialize(capabilities());
    client
}

#[test]
fn codex_runs_turns_and_loads_them_in_a_new_process() {
    let parts = parts!();
    let rig = Rig::new();
    let agent = parts.codex(&rig);
    let desk = Desk::builder().agent(agent.clone()).build();
    let mut first = start(&desk, &rig, &agent);
    let session = codex::new_session(&mut first, &rig);
    codex::four_turns(&mut first, &rig, &session);
    assert!(first.finish(Duration::from_secs(1)).is_none(), "it now ends on a closed stdin");

    let mut second = start(&desk, &rig, &agent);
    let list = second.ok("session/list", json!({}));
    assert_eq!(row(&list, &session)["cwd"], rig.cwd().as_str());
    let from = second.mark();
    second.ok("session/load", rig.open_params(&session));
    assert!(second.text(&session, "user_message_chunk", from).contains("hello codex"));
    assert!(second.text(&session, "agent_message_chunk", from).contains("says: hello codex"));
}

#[test]
fn agentao_runs_turns_and_names_unknown_sessions_in_its_own_way() {
    let parts = parts!();
    let rig = Rig::new();
    let agent = parts.agentao(&rig);
    let desk = Desk::builder().agent(agent.clone()).build();
    let mut client = start(&desk, &rig, &agent);
    let made = client.ok("session/new", rig.new_params());
    let session = made["sessionId"].as_str().unwrap().to_owned();
    let (answer, from) = client.turn(&session, "hello agentao");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    assert!(client.text(&session, "agent_message_chunk", from).contains("hello agentao"));
    let (answer, from) = client.turn(&session, "please use tool now");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    assert_eq!(client.asked(from).len(), 1);
    assert!(rig.work().join("fake_tool_out.txt").is_file());
    let unknown = client.err("session/load", rig.open_params("sess_0"));
    assert_eq!(unknown.code, -32600);
    drop(client);

    let mut second = start(&desk, &rig, &agent);
    let lost = second.err("session/load", rig.open_params(&session));
    assert_eq!(lost.code, -32600, "it now keeps killed sessions");

    // Only a closed stdin makes it save: TERM loses the session as KILL does. So an agent has to
    // be given the time to end by itself before it is sent any signal.
    for (kept, signal) in [(true, None), (false, Some(Signal::SIGTERM))] {
        let made = second.ok("session/new", rig.new_params());
        let session = made["sessionId"].as_str().unwrap().to_owned();
        second.turn(&session, "hello agentao").0.unwrap();
        if let Some(signal) = signal {
            kill(Pid::from_raw(i32::try_from(second.pid()).unwrap()), signal).unwrap();
        }
        second.finish(Duration::from_secs(10)).expect("it ends");
        second = start(&desk, &rig, &agent);
        let load = second.request("session/load", rig.open_params(&session));
        assert_eq!(load.is_ok(), kept, "{signal:?}: {load:?}");
    }
}

#[test]
fn kimi_runs_the_command_in_the_clients_terminal() {
    let parts = parts!();
    let rig = Rig::new();
    let agent = parts.kimi(&rig);
    let desk = Desk::builder().agent(agent.clone()).build();
    let mut first = start(&desk, &rig, &agent);
    let made = first.ok("session/new", rig.new_params());
    let session = made["sessionId"].as_str().unwrap().to_owned();
    kimi::turns(&mut first, &rig, &session);
    first.finish(Duration::from_secs(10)).expect("it ends when its stdin is closed");

    let mut second = start(&desk, &rig, &agent);
    row(&second.ok("session/list", json!({})), &session);
    let from = second.mark();
    second.ok("session/load", rig.open_params(&session));
    assert!(second.text(&session, "user_message_chunk", from).contains("hello kimi"));
}

#[test]
fn the_sdk_scripts_understand_one_another() {
    let parts = parts!();
    for agent in [parts.python_agent(), parts.ts_agent()] {
        let desk = Desk::builder().agent(agent.clone()).build();
        for client in sdk_clients::CLIENTS {
            let report = client.run(parts, &desk, &["first"], &agent.command, &agent.env);
            sdk_clients::check_turns(&report, &desk.work());
        }
    }
}

#[test]
fn the_typescript_example_asks_in_every_turn() {
    let parts = parts!();
    let agent = parts.ts_example();
    let desk = Desk::builder().agent(agent.clone()).build();
    let mut client = desk.direct(&agent.name, editor(desk.work(), Permission::Allow));
    let hello = client.initialize(capabilities());
    assert_eq!(hello["agentCapabilities"]["loadSession"], false);
    let made = client.ok("session/new", json!({ "cwd": desk.work(), "mcpServers": [] }));
    let session = made["sessionId"].as_str().unwrap().to_owned();
    let (answer, from) = client.turn(&session, "hello");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    assert_eq!(client.asked(from).len(), 1);
    assert_eq!(client.err("session/list", json!({})).code, -32601);
}
