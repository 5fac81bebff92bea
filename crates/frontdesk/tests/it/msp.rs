//! The MSP face over the real program, with a plain client of our own. What the published SDKs see
//! is in `interop/msp.rs`.

mod commands;
mod decide;
mod fields;
mod follow;
mod framing;
mod kept;
mod limits;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::acp::{Acp, Answers, Line, refuse_all};
use crate::desk::{AgentSpec, Desk, DeskBuilder, frontdesk};
use crate::editor::{Permission, capabilities, editor};

/// A desk with the demo agent.
fn desk() -> DeskBuilder {
    Desk::builder().agent(AgentSpec::new("demo", [frontdesk(), Path::new("demo-agent")]))
}

/// An MSP client on `frontdesk msp` that has not said anything yet.
fn raw(desk: &Desk) -> Acp {
    let mut command = desk.command(frontdesk());
    Acp::spawn("msp", command.arg("msp"), refuse_all())
}

/// An MSP client that has greeted; `capabilities` as in `initialize`.
fn client(desk: &Desk, capabilities: Value) -> Acp {
    let mut client = raw(desk);
    let info = json!({ "name": "tests", "version": "1" });
    client.ok("initialize", json!({ "clientInfo": info, "capabilities": capabilities }));
    client.send(&json!({ "jsonrpc": "2.0", "method": "initialized" }));
    client
}

/// An ACP client with a new session.
fn session(desk: &Desk, answers: Answers) -> (Acp, String) {
    let mut acp = desk.acp("demo", answers);
    acp.initialize(capabilities());
    let made = acp.ok("session/new", json!({ "cwd": desk.work(), "mcpServers": [] }));
    let id = made["sessionId"].as_str().unwrap().to_owned();
    (acp, id)
}

/// An editor that allows everything.
fn allow(desk: &Desk) -> Answers {
    editor(desk.work(), Permission::Allow)
}

/// What a client heard of one method behind a place, in order.
fn heard(client: &Acp, from: usize) -> Vec<(String, Value)> {
    let lines = client.lines(from).into_iter().filter_map(|line| match line {
        Line::In(frame) if frame["method"].is_string() => Some(frame),
        _ => None,
    });
    lines.map(|f| (f["method"].as_str().unwrap().to_owned(), f["params"].clone())).collect()
}

/// Waits for a notification behind a place; its params.
fn hear(client: &Acp, from: usize, method: &str, when: impl Fn(&Value) -> bool) -> Value {
    client.wait_frame(from, method, |frame| frame["method"] == method && when(&frame["params"]))
        ["params"]
        .clone()
}

/// The events of one session behind a place.
fn events(client: &Acp, from: usize) -> Vec<(String, Value)> {
    let all = heard(client, from).into_iter();
    all.filter(|(_, params)| params["viewCursor"].as_str().is_some_and(|c| c.contains('.')))
        .collect()
}

/// The kind of error.
fn kind(error: &crate::acp::RpcError) -> (i64, &str) {
    (error.code, error.data["kind"].as_str().unwrap_or_default())
}

/// Longest wait for the end of a program.
const EXIT: Duration = Duration::from_secs(60);
