//! What the agent asks of its client.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::tempdir;

use super::client::Agent;

fn chose(option: &str) -> Value {
    json!({ "outcome": { "outcome": "selected", "optionId": option } })
}

#[test]
fn a_permission_goes_on_by_its_outcome() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    for (answer, status, said) in [
        (chose("allow_once"), "completed", "Allowed (allow_once).on"),
        (chose("allow_always"), "completed", "Allowed (allow_always).on"),
        (chose("reject_once"), "failed", "Not allowed (reject_once).on"),
        (chose("made up"), "failed", "Not allowed (made up).on"),
        (json!({}), "failed", "Not allowed (unknown outcome null).on"),
        (json!({ "outcome": { "outcome": "later" } }), "failed", "Not allowed (unknown outcome"),
    ] {
        agent.seen.clear();
        let prompt = agent.prompt(&session, "ask May I?\nsay on");
        let request = agent.asked("session/request_permission");
        assert_eq!(request["params"]["toolCall"]["title"], "May I?");
        let options = request["params"]["options"].as_array().unwrap();
        let kinds: Vec<&str> = options.iter().map(|o| o["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["allow_once", "allow_always", "reject_once"]);
        agent.reply(&request, answer);
        assert_eq!(agent.answer(&prompt).unwrap()["stopReason"], "end_turn");
        assert!(agent.said().starts_with(said), "{}", agent.said());
        let ended = agent.updates().into_iter().find(|u| u["sessionUpdate"] == "tool_call_update");
        assert_eq!(ended.unwrap()["status"], status);
    }
}

#[test]
fn an_error_is_no_permission_and_cancelled_ends_the_turn() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let prompt = agent.prompt(&session, "ask\nsay on");
    let request = agent.asked("session/request_permission");
    agent.reply_error(&request, -32601);
    assert_eq!(agent.answer(&prompt).unwrap()["stopReason"], "end_turn");
    assert_eq!(agent.said(), "Not allowed (no (-32601)).on");

    agent.seen.clear();
    let prompt = agent.prompt(&session, "ask\nsay on");
    let request = agent.asked("session/request_permission");
    agent.reply(&request, json!({ "outcome": { "outcome": "cancelled" } }));
    assert_eq!(agent.answer(&prompt).unwrap()["stopReason"], "cancelled");
    assert_eq!(agent.said(), "");
}

#[test]
fn cancel_with_an_open_permission_waits_for_the_client_but_not_for_ever() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let withdrawn =
        |agent: &Agent| agent.seen.iter().filter(|m| m["method"] == "$/cancel_request").count();
    for answers in [true, false] {
        agent.seen.clear();
        let prompt = agent.prompt(&session, "ask");
        let request = agent.asked("session/request_permission");
        agent.notify("session/cancel", json!({ "sessionId": session }));
        if answers {
            agent.reply(&request, json!({ "outcome": { "outcome": "cancelled" } }));
        }
        assert_eq!(agent.answer(&prompt).unwrap()["stopReason"], "cancelled");
        assert_eq!(withdrawn(&agent), usize::from(!answers));
        let last = agent.updates().into_iter().rfind(|u| u["sessionUpdate"] == "tool_call_update");
        assert_eq!(last.unwrap()["status"], "failed");
        // Too late: nobody waits for it any more.
        agent.reply(&request, chose("allow_once"));
        assert!(agent.turn(&session, "say next").is_ok());
    }
}

#[test]
fn files_are_read_and_written_through_the_client() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let path = dir.path().join("sub/a.txt").to_string_lossy().into_owned();

    let prompt = agent.prompt(&session, "read sub/a.txt");
    let request = agent.asked("fs/read_text_file");
    assert_eq!(request["params"]["path"], path);
    agent.reply(&request, json!({ "content": "line one\n" }));
    agent.answer(&prompt).unwrap();
    assert_eq!(agent.said(), format!("{path} has 9 bytes."));

    agent.seen.clear();
    let prompt = agent.prompt(&session, "write sub/a.txt two\\n");
    let request = agent.asked("session/request_permission");
    assert_eq!(request["params"]["toolCall"]["content"][0]["newText"], "two\n");
    agent.reply(&request, chose("allow_always"));
    let request = agent.asked("fs/write_text_file");
    assert_eq!(request["params"]["content"], "two\n");
    agent.reply(&request, Value::Null);
    agent.answer(&prompt).unwrap();
    assert_eq!(agent.said(), format!("{path} is written."));

    let prompt = agent.prompt(&session, "write /other/b.txt three");
    let request = agent.asked("fs/write_text_file");
    assert_eq!(request["params"]["path"], "/other/b.txt", "always means: not asked again");
    agent.seen.clear();
    agent.reply_error(&request, -32603);
    assert_eq!(agent.answer(&prompt).unwrap()["stopReason"], "end_turn");
    assert_eq!(agent.said(), "Writing /other/b.txt failed: no (-32603)");
    assert!(!dir.path().join("sub").exists(), "the agent itself wrote nothing");
}

#[test]
fn a_refused_write_writes_nothing_and_mode_auto_does_not_ask() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let prompt = agent.prompt(&session, "write a.txt x");
    let request = agent.asked("session/request_permission");
    agent.reply(&request, chose("reject_once"));
    agent.answer(&prompt).unwrap();
    assert!(agent.said().contains("was not written"));
    let prompt = agent.prompt(&session, "mode auto\nwrite a.txt x");
    let request = agent.until(|m| m.get("id").is_some());
    assert_eq!(request["method"], "fs/write_text_file");
    agent.reply(&request, json!({}));
    agent.answer(&prompt).unwrap();
}

#[test]
fn without_the_clients_files_the_agent_stays_in_its_folders() {
    let dir = tempdir().unwrap();
    let [work, other] = ["work", "other"].map(|name| dir.path().join(name));
    fs::create_dir(&work).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("secret"), "s").unwrap();
    std::os::unix::fs::symlink(other.join("secret"), work.join("link")).unwrap();
    std::os::unix::fs::symlink(other.join("fresh"), work.join("dangling")).unwrap();
    let mut agent = Agent::start(&dir.path().join("store"), &[]);
    agent.hello(json!({}));
    let session = agent.session(&work);
    agent.turn(&session, "mode auto\nwrite a.txt hello\nread a.txt").unwrap();
    assert!(agent.said().ends_with("a.txt has 5 bytes."), "{}", agent.said());
    assert_eq!(fs::read_to_string(work.join("a.txt")).unwrap(), "hello");
    for path in ["../other/secret", "link", "dangling", "../other/fresh", "no/../../other/new", "/"]
    {
        for command in [format!("read {path}"), format!("write {path} gone")] {
            agent.turn(&session, &command).unwrap();
            assert!(agent.said().contains("lies outside"), "{command}: {}", agent.said());
        }
    }
    agent.turn(&session, "read missing.txt").unwrap();
    assert!(agent.said().contains("failed to read"), "{}", agent.said());
    assert_eq!(fs::read_to_string(other.join("secret")).unwrap(), "s");
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
    agent.turn(&session, "run ls\nelicit Name?").unwrap();
    assert!(agent.said().contains("offers no terminal"));
    assert!(agent.said().contains("offers no forms"));
    assert!(!agent.seen.iter().any(|m| m.get("id").is_some() && m.get("method").is_some()));
}

#[test]
fn capabilities_can_be_ignored_to_provoke_errors() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::start(dir.path(), &["--ignore-capabilities"]);
    agent.hello(json!({}));
    let session = agent.session(dir.path());
    let prompt = agent.prompt(&session, "read a\nrun ls");
    for method in ["fs/read_text_file", "terminal/create"] {
        let request = agent.asked(method);
        agent.reply_error(&request, -32601);
    }
    assert_eq!(agent.answer(&prompt).unwrap()["stopReason"], "end_turn");
}

#[test]
fn a_command_runs_in_the_clients_terminal() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let prompt = agent.prompt(&session, "run echo hi | tr a-z A-Z");
    let create = agent.asked("terminal/create");
    assert_eq!(create["params"]["command"], "sh");
    assert_eq!(create["params"]["args"], json!(["-c", "echo hi | tr a-z A-Z"]));
    assert_eq!(create["params"]["cwd"], json!(dir.path()));
    agent.reply(&create, json!({ "terminalId": "term 1" }));
    for (method, result) in [
        ("terminal/wait_for_exit", json!({ "exitCode": 3, "signal": null })),
        ("terminal/output", json!({ "output": "HI\n", "truncated": false })),
        ("terminal/release", json!({})),
    ] {
        let request = agent.asked(method);
        assert_eq!(request["params"]["terminalId"], "term 1");
        agent.reply(&request, result);
    }
    agent.answer(&prompt).unwrap();
    assert_eq!(agent.said(), "`echo hi | tr a-z A-Z` ended with 3:\nHI\n");
    let shows = |u: &Value| u["content"][0]["terminalId"] == "term 1";
    assert!(agent.updates().iter().any(shows));
    assert!(agent.updates().iter().any(|u| u["status"] == "failed"));
}

#[test]
fn cancel_ends_the_running_command_too() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let prompt = agent.prompt(&session, "run sleep 1000");
    let create = agent.asked("terminal/create");
    agent.reply(&create, json!({ "terminalId": "t" }));
    let wait = agent.asked("terminal/wait_for_exit");
    let start = Instant::now();
    agent.notify("session/cancel", json!({ "sessionId": session }));
    let withdrawn = agent.until(|m| m["method"] == "$/cancel_request");
    assert_eq!(withdrawn["params"]["requestId"], wait["id"]);
    agent.reply_error(&wait, -32800);
    agent.asked("terminal/kill");
    agent.asked("terminal/release");
    assert_eq!(agent.answer(&prompt).unwrap()["stopReason"], "cancelled");
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn forms_and_extensions_come_back_as_text() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let prompt = agent.prompt(&session, "elicit Your name?");
    let request = agent.asked("elicitation/create");
    assert_eq!(request["params"]["message"], "Your name?");
    agent.reply(&request, json!({ "action": "accept", "content": { "answer": "Ada" } }));
    agent.answer(&prompt).unwrap();
    assert!(agent.said().contains("Ada"));

    let prompt = agent.prompt(&session, "ext _my/thing {\"a\":[1]}\next _other");
    let request = agent.asked("_my/thing");
    assert_eq!(request["params"], json!({ "a": [1] }));
    agent.reply_error(&request, -32601);
    let request = agent.asked("_other");
    assert_eq!(request["params"], json!({ "sessionId": session }));
    agent.reply(&request, json!([true]));
    agent.answer(&prompt).unwrap();
    assert!(agent.said().contains("_my/thing came back as an error"));
    assert!(agent.said().ends_with("_other came back: [true]"));
}
