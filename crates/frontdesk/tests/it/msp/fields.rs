//! The 26 members of the Session object, printed from real sessions.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{client, hear};
use crate::acp::Reply;
use crate::desk::{AgentSpec, Desk, frontdesk};

const MEMBERS: [&str; 26] = [
    "sessionId",
    "path",
    "status",
    "activeTurnId",
    "createdAt",
    "updatedAt",
    "workspaceRoot",
    "providerId",
    "modelId",
    "turnCount",
    "forkedFrom",
    "sideFrom",
    "approvalMode",
    "permissionState",
    "attention",
    "lastActivityAt",
    "name",
    "nameOrigin",
    "generatedName",
    "title",
    "firstUserPrompt",
    "branch",
    "kind",
    "parentSessionId",
    "createdByClient",
    "worktree",
];

fn git(folder: &Path, words: &[&str]) {
    let out = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-C"])
        .arg(folder)
        .args(words)
        .output()
        .unwrap();
    assert!(out.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// A repository and a linked working tree on the branch `topic`.
fn worktree(desk: &Desk) -> std::path::PathBuf {
    let (main, tree) = (desk.work().join("main"), desk.work().join("tree"));
    std::fs::create_dir(&main).unwrap();
    git(&main, &["init", "-q", "-b", "main"]);
    git(&main, &["commit", "-q", "--allow-empty", "-m", "first"]);
    git(&main, &["worktree", "add", "-q", "-b", "topic", tree.to_str().unwrap()]);
    tree
}

#[test]
fn each_of_the_members_comes_from_a_real_session() {
    let demo = AgentSpec::new("demo", [frontdesk(), Path::new("demo-agent")]);
    let desk = Desk::builder().agent(demo).open();
    let tree = worktree(&desk);
    let mut wide = client(&desk, json!({ "experimentalApi": true }));
    // The question stays open.
    let mut acp = desk.acp("demo", Arc::new(|_| Reply::Silence));
    acp.initialize(json!({}));
    let meta = json!({ "frontdesk": { "approvalMode": "onRequest" } });
    let made = acp.ok("session/new", json!({ "cwd": tree, "mcpServers": [], "_meta": meta }));
    let id = made["sessionId"].as_str().unwrap();
    wide.ok("view/subscribe", json!({ "sessionId": id, "after": format!("v:{id}:0") }));
    let from = wide.mark();
    acp.turn(id, "title Parser fixes\nsay hello").0.unwrap();
    hear(&wide, 0, "session/branchChanged", |params| params["branch"] == "topic");
    let command = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";
    wide.ok("session/rename", json!({ "commandId": command, "sessionId": id, "name": "Parser" }));
    let command = "01a22bb6-2da2-7132-b868-40a3a5d1f520";
    let fork = wide.ok("session/fork", json!({ "commandId": command, "sessionId": id }));
    let _ = acp.begin("session/prompt", crate::acp::prompt(id, "ask"));
    hear(&wide, from, "approval/requested", |_| true);
    let read = wide.ok("session/read", json!({ "sessionId": id }))["session"].clone();
    let fork = fork["session"].clone();
    let rows = wide.ok("session/list", json!({}))["sessions"].clone();
    let row = rows.as_array().unwrap().iter().find(|row| row["sessionId"] == id).unwrap();

    let mut table = vec!["| member | a session at a question | its fork |".to_owned()];
    for name in MEMBERS {
        let cell =
            |of: &Value| of.get(name).map_or_else(|| "–".into(), |value| format!("`{value}`"));
        table.push(format!("| `{name}` | {} | {} |", cell(&read), cell(&fork)));
    }
    println!("{}", table.join("\n"));

    let said = |of: &Value| -> Vec<String> { of.as_object().unwrap().keys().cloned().collect() };
    let known = |names: &[String]| names.iter().all(|name| MEMBERS.contains(&name.as_str()));
    assert!(known(&said(&read)) && known(&said(&fork)) && known(&said(row)));
    // A subagent's parent is the one member that neither of these sessions has.
    let missing: Vec<&str> = MEMBERS.into_iter().filter(|name| read.get(*name).is_none()).collect();
    assert_eq!(missing, ["parentSessionId"]);
    assert_eq!(read["status"], "running");
    assert_eq!(read["attention"], json!(["approvalPending"]));
    assert_eq!((&read["branch"], &read["worktree"]["path"]), (&json!("topic"), &json!(tree)));
    assert_eq!(read["worktree"]["origin"], "attached");
    assert_eq!((&read["name"], &read["nameOrigin"]), (&json!("Parser"), &json!("custom")));
    assert_eq!(read["createdByClient"]["version"], "1");
    assert_eq!(read["approvalMode"]["mode"], "onRequest");
    assert_eq!(read["permissionState"]["reviewerAuthority"], "human");
    assert!(Path::new(read["path"].as_str().unwrap()).is_file());
    assert_eq!(fork["forkedFrom"]["sessionId"], id);
    assert!(fork.get("createdByClient").is_none() && read["forkedFrom"].is_null());
    for name in ["nameOrigin", "generatedName"] {
        assert!(row.get(name).is_none(), "{name} in a row");
    }
    // The same session to a client that did not ask for what is experimental.
    let mut narrow = client(&desk, json!({}));
    let stable = narrow.ok("session/read", json!({ "sessionId": id }))["session"].clone();
    let gone: Vec<&str> = MEMBERS
        .into_iter()
        .filter(|n| read.get(*n).is_some() && stable.get(*n).is_none())
        .collect();
    assert_eq!(gone, ["permissionState", "worktree"]);
}
