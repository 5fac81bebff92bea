//! What the agent does wrong on purpose, and how it ends.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getsid};
use serde_json::json;
use tempfile::tempdir;

use super::client::{Agent, WAIT_S};

fn stored(store: &std::path::Path, session: &str) -> String {
    fs::read_to_string(store.join(format!("{session}.jsonl"))).unwrap()
}

#[test]
fn a_crash_keeps_what_was_shown() {
    let dir = tempdir().unwrap();
    for (script, exit, signal) in
        [("crash", Some(1), None), ("crash 7", Some(7), None), ("kill", None, Some(9))]
    {
        let mut agent = Agent::ready(dir.path(), &[]);
        let session = agent.session(dir.path());
        agent.prompt(&session, &format!("say before\n{script}\nsay after"));
        agent.until(|m| m["params"]["update"]["content"]["text"] == "before");
        assert!(agent.stdout_ends(), "{script}: no answer, nothing more");
        let status = agent.ended();
        assert_eq!((status.code(), status.signal()), (exit, signal));
        let stored = stored(dir.path(), &session);
        assert!(stored.contains("before") && !stored.contains("\"ended\""));
    }
}

#[test]
fn a_hang_ignores_cancel_but_can_be_closed() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    let prompt = agent.prompt(&session, "say hanging\nhang");
    agent.until(|m| m["params"]["update"]["content"]["text"] == "hanging");
    for _ in 0..100 {
        agent.notify("session/cancel", json!({ "sessionId": session }));
        agent.notify("$/cancel_request", json!({ "requestId": prompt }));
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(agent.status(&session), Ok(json!({ "status": "active" })));
    assert!(!agent.seen.iter().any(|m| m["id"] == prompt));
    agent.call("session/close", json!({ "sessionId": session })).unwrap();
    assert_eq!(agent.status(&session), Ok(json!({ "status": "inactive" })));
    let params = json!({ "sessionId": session, "cwd": dir.path(), "mcpServers": [] });
    agent.call("session/load", params).unwrap();
    assert!(agent.turn(&session, "say back").is_ok());
    agent.hang_up();
    assert_eq!(agent.ended().code(), Some(0));
}

#[test]
fn garbage_and_huge_frames_do_not_break_the_turn() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    assert_eq!(agent.turn(&session, "garbage\nsay ok").unwrap()["stopReason"], "end_turn");
    assert!(agent.noise.len() >= 10);
    assert!(agent.noise.iter().any(|line| std::str::from_utf8(line).is_err()));
    assert_eq!(agent.said(), "ok");

    for bytes in [1000, 3 << 20] {
        let prompt = agent.prompt(&session, &format!("huge {bytes}"));
        let deadline = Instant::now() + Duration::from_secs(WAIT_S);
        let line = agent.line(deadline).unwrap();
        assert_eq!(line.len(), bytes + 1);
        agent.answer(&prompt).unwrap();
    }
    agent.kill();
    let mut next = Agent::ready(dir.path(), &[]);
    let params = json!({ "sessionId": session, "cwd": dir.path(), "mcpServers": [] });
    next.call("session/load", params).unwrap();
    assert!(next.updates().iter().any(|u| u.to_string().len() > 3_000_000));
}

#[test]
fn stdout_can_close_while_the_agent_lives() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let session = agent.session(dir.path());
    agent.prompt(&session, "say before\nclose-stdout\nsay after");
    agent.until(|m| m["params"]["update"]["content"]["text"] == "before");
    assert!(agent.stdout_ends());
    assert!(agent.child.try_wait().unwrap().is_none());
    agent.hang_up();
    assert_eq!(agent.ended().code(), Some(0));
    assert!(stored(dir.path(), &session).contains("after"));
}

#[test]
fn stderr_gets_as_many_bytes_as_asked() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::start_with(dir.path(), &[], Stdio::piped());
    agent.hello(json!({}));
    let mut stderr = agent.child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        stderr.read_to_end(&mut all).map(|_| all.len())
    });
    let session = agent.session(dir.path());
    agent.turn(&session, "stderr 200000").unwrap();
    agent.hang_up();
    agent.ended();
    assert_eq!(reader.join().unwrap().unwrap(), 200_000);
}

#[test]
fn children_outlive_the_agent_with_and_without_a_process_session_of_their_own() {
    let dir = tempdir().unwrap();
    for (script, own, holds_stdout) in [
        ("child 60", false, true),
        ("child 60 detached", false, false),
        ("daemon-child 60", true, true),
        ("daemon-child 60 detached", true, false),
    ] {
        let mut agent = Agent::ready(dir.path(), &[]);
        let session = agent.session(dir.path());
        agent.turn(&session, script).unwrap();
        let said = agent.said();
        let pid = Pid::from_raw(said.strip_prefix("child pid=").unwrap().parse().unwrap());
        let deadline = Instant::now() + Duration::from_secs(WAIT_S);
        while own && getsid(Some(pid)).unwrap() != pid && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(getsid(Some(pid)).unwrap() == pid, own, "{script}");
        agent.hang_up();
        assert_eq!(agent.ended().code(), Some(0));
        let soon = Instant::now() + Duration::from_millis(300);
        let open = matches!(agent.line(soon), Err(std::sync::mpsc::RecvTimeoutError::Timeout));
        let alive = kill(pid, None).is_ok();
        kill(pid, Signal::SIGKILL).unwrap();
        assert!(alive, "{script}");
        assert_eq!(open, holds_stdout, "{script}");
    }
}

#[test]
fn the_end_of_stdin_cancels_saves_and_exits() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &[]);
    let [waits, asks, hangs] = [0; 3].map(|_| agent.session(dir.path()));
    agent.prompt(&waits, "wait 60000");
    agent.prompt(&asks, "ask");
    agent.prompt(&hangs, "hang");
    agent.asked("session/request_permission");
    let start = Instant::now();
    agent.hang_up();
    assert_eq!(agent.ended().code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(stored(dir.path(), &waits).contains(r#""stopReason":"cancelled""#));
    assert!(stored(dir.path(), &asks).contains(r#""stopReason":"cancelled""#));
}

#[test]
fn a_last_line_without_a_line_end_still_counts() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::start(dir.path(), &[]);
    agent.raw(br#"{"jsonrpc":"2.0","id":5,"method":"initialize","params":{"protocolVersion":1}}"#);
    agent.hang_up();
    assert!(agent.answer(&json!(5)).is_ok());
    assert_eq!(agent.ended().code(), Some(0));
}

#[test]
fn an_agent_may_stay_when_stdin_ends_and_term_ends_any() {
    let dir = tempdir().unwrap();
    let mut agent = Agent::ready(dir.path(), &["--stay"]);
    let session = agent.session(dir.path());
    let prompt = agent.prompt(&session, "stream 30 every 10");
    agent.hang_up();
    assert_eq!(agent.answer(&prompt).unwrap()["stopReason"], "end_turn");
    std::thread::sleep(Duration::from_millis(200));
    assert!(agent.child.try_wait().unwrap().is_none());
    kill(Pid::from_raw(i32::try_from(agent.child.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(agent.ended().signal(), Some(15));
}

#[test]
fn a_start_can_be_slow_and_talkative() {
    let dir = tempdir().unwrap();
    let start = Instant::now();
    let mut agent = Agent::start(dir.path(), &["--banner", "Hi, I am busy", "--slow-start", "150"]);
    agent.hello(json!({}));
    assert!(start.elapsed() >= Duration::from_millis(150));
    assert_eq!(agent.noise, [b"Hi, I am busy\n"]);
}

#[test]
fn a_client_that_reads_nothing_cannot_keep_the_agent_alive() {
    let dir = tempdir().unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_frontdesk"))
        .args(["demo-agent", "--store"])
        .arg(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut say = |message: serde_json::Value| {
        std::io::Write::write_all(&mut stdin, format!("{message}\n").as_bytes()).unwrap();
        let mut line = String::new();
        if message["method"] != "session/prompt" {
            std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        }
        serde_json::from_str(&line).unwrap_or(serde_json::Value::Null)
    };
    say(json!({ "id": 1, "method": "initialize", "params": { "protocolVersion": 1 } }));
    let new = json!({ "cwd": "/", "mcpServers": [] });
    let made = say(json!({ "id": 2, "method": "session/new", "params": new }));
    let prompt = json!([{ "type": "text", "text": "huge 10000000" }]);
    let params = json!({ "sessionId": made["result"]["sessionId"], "prompt": prompt });
    say(json!({ "id": 3, "method": "session/prompt", "params": params }));
    std::thread::sleep(Duration::from_millis(200));
    drop(stdin);
    let deadline = Instant::now() + Duration::from_secs(WAIT_S);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the agent waits for a client that does not read");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn wrong_options_and_help() {
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_frontdesk"));
        command.arg("demo-agent").args(args).stdin(Stdio::null()).output().unwrap()
    };
    let help = run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8(help.stdout).unwrap().contains("stream N [every MS] [bytes B]"));
    let wrong = run(&["--nonsense"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("--nonsense"));
}
