//! acpx as the client: one process a command, sessions that live across them.

use std::process::{Output, Stdio};

use serde_json::Value;

use crate::desk::{Desk, frontdesk};
use crate::interop::parts::{Parts, Rig, parts};

/// Seconds that acpx's own queue process keeps the agent after a prompt.
const TTL_S: &str = "2";

struct Acpx<'a> {
    parts: &'a Parts,
    desk: &'a Desk,
    rig: &'a Rig,
    agent: String,
}

impl Acpx<'_> {
    /// Runs one acpx command to its end.
    fn run(&self, words: &[&str]) -> Output {
        let mut command = self.desk.command(self.parts.node22());
        command.arg(self.parts.acpx()).args(["--agent", &self.agent]);
        command.arg("--cwd").arg(self.rig.work());
        command.args(["--approve-all", "--format", "json", "--ttl", TTL_S]).args(words);
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Runs one command that must succeed; the JSON lines it printed.
    fn lines(&self, words: &[&str]) -> Vec<Value> {
        let out = self.run(words);
        let text = String::from_utf8_lossy(&out.stdout);
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "acpx {words:?}: {text}\n{stderr}");
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// The text of all message chunks in what acpx printed.
fn said(lines: &[Value]) -> String {
    let updates = lines.iter().map(|line| &line["params"]["update"]);
    let chunks = updates.filter(|update| update["sessionUpdate"] == "agent_message_chunk");
    chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
}

/// The session ids of all updates in what acpx printed.
fn sessions(lines: &[Value]) -> Vec<String> {
    let ids = lines.iter().filter_map(|line| line["params"]["sessionId"].as_str());
    let mut ids: Vec<String> = ids.map(str::to_owned).collect();
    ids.dedup();
    ids
}

fn three_commands(parts: &Parts, desk: &Desk, rig: &Rig, agent: String) -> (String, String) {
    let acpx = Acpx { parts, desk, rig, agent };
    let made = acpx.lines(&["sessions", "new"]);
    assert!(!made.is_empty(), "acpx said nothing about the new session");
    let first = acpx.lines(&["prompt", "hello acpx"]);
    assert!(said(&first).contains("Fake model says: hello acpx"), "{first:?}");
    // Its queue process is gone after this, so the next prompt loads the session again.
    std::thread::sleep(std::time::Duration::from_secs(4));
    let second = acpx.lines(&["prompt", "please use tool now"]);
    assert!(rig.work().join("fake_tool_out.txt").is_file());
    let pick = |lines: &[Value]| sessions(lines).pop().unwrap_or_default();
    (pick(&first), pick(&second))
}

#[test]
fn acpx_runs_codex_by_itself() {
    let parts = parts!();
    let rig = Rig::new();
    let agent = parts.codex(&rig);
    let mut builder = Desk::builder().work(rig.work()).agent(agent.clone());
    for (name, value) in &agent.env {
        builder = builder.env(name, value);
    }
    let desk = builder.build();
    let (first, second) = three_commands(parts, &desk, &rig, agent.command.join(" "));
    assert_eq!(first, second);
}

#[test]
fn acpx_finds_its_session_again_through_frontdesk() {
    let parts = parts!();
    let rig = Rig::new();
    let desk = Desk::builder().work(rig.work()).agent(parts.codex(&rig)).open();
    let agent = format!("{} acp --agent codex", frontdesk().display());
    let (first, second) = three_commands(parts, &desk, &rig, agent);
    assert_eq!(first, second, "acpx was given another session");
    let list = desk.cli(&["ls", "--json"]);
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    let text = list.to_string();
    assert_eq!(text.matches(&first).count().min(1), 1, "{text}");
    assert_eq!(rig.model.calls().iter().filter(|words| *words == "hello acpx").count(), 1);
    assert!(desk.instances() <= 1, "{:?}", desk.processes());
}
