//! The official SDKs as clients of Frontdesk, in front of the demo agent.
//!
//! The scripts `client.py` and `client.mjs` do the same and print one JSON report each.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::desk::{AgentSpec, Desk, frontdesk, row};
use crate::interop::parts::{Parts, parts, scripts};

/// A client script and who made it.
pub(super) struct SdkClient {
    name: &'static str,
    script: &'static str,
}

const PYTHON: SdkClient = SdkClient { name: "python", script: "python/client.py" };
const TYPESCRIPT: SdkClient = SdkClient { name: "typescript", script: "node/client.mjs" };
pub(super) const CLIENTS: [SdkClient; 2] = [PYTHON, TYPESCRIPT];

impl SdkClient {
    /// Runs one phase of the script against `agent`; its report.
    pub(super) fn run(
        &self,
        parts: &Parts,
        desk: &Desk,
        phase: &[&str],
        agent: &[String],
        env: &BTreeMap<String, String>,
    ) -> Value {
        let program = if self.name == "python" { parts.python() } else { parts.node().to_owned() };
        let mut command: Command = desk.command(program);
        command.arg(scripts().join(self.script)).arg(phase[0]).arg(desk.work()).args(&phase[1..]);
        command.arg("--").args(agent).envs(env).env("ACP_SDK", parts.ts_sdk());
        let out = command.stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{} failed: {stderr}", self.name);
        serde_json::from_slice(&out.stdout)
            .unwrap_or_else(|error| panic!("{}: no report ({error}): {stderr}", self.name))
    }
}

/// What the turns of the first phase must show, whoever stands between.
pub(super) fn check_turns(report: &Value, work: &Path) {
    let ended = |turn: &str, reason: &str| {
        assert_eq!(report[turn]["result"]["stopReason"], reason, "{turn}: {}", report[turn]);
    };
    for turn in ["say", "stream", "ask", "write", "read", "run"] {
        ended(turn, "end_turn");
    }
    ended("cancelled", "cancelled");
    assert!(said(&report["say"]).contains("hello from"), "{}", report["say"]);
    assert!(chunks(&report["stream"]) >= 5, "{}", report["stream"]);
    let asked = |turn: &str, method: &str| {
        let asked = report[turn]["asked"].as_array().unwrap();
        assert!(asked.contains(&json!(method)), "{turn} asked {asked:?}");
    };
    asked("ask", "session/request_permission");
    asked("write", "session/request_permission");
    asked("write", "fs/write_text_file");
    asked("read", "fs/read_text_file");
    asked("run", "terminal/create");
    asked("run", "terminal/wait_for_exit");
    asked("run", "terminal/release");
    let note = std::fs::read_to_string(work.join("note.txt")).unwrap();
    assert_eq!(note.trim_end(), "written-by-the-agent");
}

fn chunks(turn: &Value) -> usize {
    let updates = turn["updates"].as_array().unwrap();
    updates.iter().filter(|update| update["kind"] == "agent_message_chunk").count()
}

fn said(turn: &Value) -> String {
    let updates = turn["updates"].as_array().unwrap();
    let chunks = updates.iter().filter(|update| update["kind"] == "agent_message_chunk");
    chunks.filter_map(|update| update["text"].as_str()).collect()
}

fn both_phases(client: &SdkClient, parts: &Parts) {
    let demo = AgentSpec::new("demo", [frontdesk(), Path::new("demo-agent")]);
    let desk = Desk::builder().agent(demo).open();
    let bound: Vec<String> =
        [&frontdesk().display().to_string(), "acp", "--agent", "demo"].map(str::to_owned).to_vec();
    let none = BTreeMap::new();
    let first = client.run(parts, &desk, &["first"], &bound, &none);
    check_turns(&first, &desk.work());
    let session = first["new"]["result"]["sessionId"].as_str().unwrap();
    row(&first["list"]["result"], session);
    for (when, status) in [("status_running", "active"), ("status", "active")] {
        assert_eq!(first[when]["result"]["status"], status, "{when}: {}", first[when]);
    }
    let unknown = &first["status_unknown"]["error"];
    assert_eq!(unknown["code"], -32002);
    assert_eq!(unknown["data"]["sessionId"], "no-such-session");
    assert_eq!(first["ext"]["error"]["code"], -32601, "{}", first["ext"]);

    let second = client.run(parts, &desk, &["second", session], &bound, &none);
    assert!(second["load"]["result"].is_object(), "{}", second["load"]);
    let replay = second["load"]["updates"].as_array().unwrap();
    assert!(replay.iter().all(|update| update["session"] == session));
    let of = |kind: &str| -> String {
        let kind = replay.iter().filter(|update| update["kind"] == kind);
        kind.filter_map(|update| update["text"].as_str()).collect()
    };
    let user = of("user_message_chunk");
    for words in ["say hello from", "stream 5", "write note.txt", "wait 60000"] {
        assert_eq!(user.matches(words).count(), 1, "{words} in {user}");
    }
    assert!(of("agent_message_chunk").contains(said(&first["stream"]).trim()));
    assert!(said(&second["again"]).contains("after the load"), "{}", second["again"]);
    assert!(second["close"]["result"].is_object(), "{}", second["close"]);
}

#[test]
fn the_python_sdk_as_a_client_does_everything_through_frontdesk() {
    let parts = parts!();
    both_phases(&PYTHON, parts);
}

#[test]
fn the_typescript_sdk_as_a_client_does_everything_through_frontdesk() {
    let parts = parts!();
    both_phases(&TYPESCRIPT, parts);
}
