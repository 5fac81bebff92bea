//! The official TypeScript SDK's own WebSocket endpoint, behind a url.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::desk::{AgentSpec, Desk};
use crate::editor::{Permission, capabilities, editor};
use crate::interop::parts::{Parts, parts, scripts};

struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(parts: &Parts) -> Self {
        let mut child = Command::new(parts.node())
            .arg(scripts().join("node/agent.mjs"))
            .env("ACP_SDK", parts.ts_sdk())
            .env("ACP_WS", parts.ws())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("node starts");
        let mut url = String::new();
        let out = child.stdout.take().expect("its stdout");
        BufReader::new(out).read_line(&mut url).expect("its address");
        Self { child, url: url.trim().to_owned() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn sessions_of_the_typescript_sdks_server_are_made_prompted_listed_and_called_back() {
    let parts = parts!();
    let server = Server::start(parts);
    let agent = AgentSpec::behind("ts", &[&server.url]);
    let desk = Desk::builder().agent(agent).limit("list_fresh_ms", 0).open();
    let mut client = desk.acp("ts", editor(desk.work(), Permission::Allow));
    let hello = client.initialize(capabilities());
    assert_eq!(hello["agentInfo"]["name"], "typescript-example", "{hello}");
    let made = client.ok("session/new", json!({ "cwd": desk.work(), "mcpServers": [] }));
    let session = made["sessionId"].as_str().unwrap().to_owned();
    for (words, said) in [
        ("say hello", "hello"),
        ("stream 3", "chunk 0 chunk 1 chunk 2 "),
        ("ask May I?", "answer: yes"),
    ] {
        let (answer, from) = client.turn(&session, words);
        assert_eq!(answer.unwrap()["stopReason"], "end_turn", "{words}");
        assert_eq!(client.text(&session, "agent_message_chunk", from), said, "{words}");
    }
    let from = client.mark();
    let turn = client.begin("session/prompt", crate::acp::prompt(&session, "wait 60000"));
    client.wait_update(&session, from, "the wait", |update| update["content"]["text"] == "waiting");
    client.notify("session/cancel", json!({ "sessionId": session }));
    let answer = client.wait(turn, crate::acp::ANSWER).unwrap();
    assert_eq!(answer["stopReason"], "cancelled");
    let list = client.ok("session/list", json!({}));
    assert_eq!(list["sessions"].as_array().map(Vec::len), Some(1), "{list}");
    let open = json!({ "sessionId": session, "cwd": desk.work(), "mcpServers": [] });
    let status = client.ok("session/status", json!({ "sessionId": session }));
    assert_eq!(status["status"], "active");
    client.ok("session/load", open);
    let (answer, _) = client.turn(&session, "say again");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    assert_eq!(desk.instances(), 0);
}
