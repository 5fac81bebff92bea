//! The command line as a process: exit codes, streams, signals. The daemon is a script here; the
//! commands' words are tested beside their code.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests do")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

const WAIT: Duration = Duration::from_secs(60);

fn frontdesk(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
    command.args(args).env("FRONTDESK_HOME", home).stdin(Stdio::null());
    command
}

fn run(home: &Path, args: &[&str]) -> Output {
    frontdesk(home, args).output().unwrap()
}

/// A daemon that starts a turn and ends it as cancelled when told to; it tells what it heard.
fn cancelling_desk(home: &Path) -> Receiver<String> {
    std::fs::create_dir_all(home.join("run")).unwrap();
    let listener = UnixListener::bind(home.join("run/frontdesk.sock")).unwrap();
    let (heard, hears) = channel();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut writer = stream.try_clone().unwrap();
        let mut prompt = Value::Null;
        for line in BufReader::new(stream).lines() {
            let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let method = message["method"].as_str().unwrap_or("").to_owned();
            match method.as_str() {
                "session/prompt" => {
                    prompt = message["id"].clone();
                    let chunk = json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "begun\u{1b}[31m" } });
                    let params = json!({ "sessionId": "s", "update": chunk });
                    send(
                        &mut writer,
                        &json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }),
                    );
                }
                "session/cancel" => {
                    send(
                        &mut writer,
                        &json!({ "jsonrpc": "2.0", "id": prompt, "result": { "stopReason": "cancelled" } }),
                    );
                }
                _ if message.get("id").is_some() => {
                    let row = json!({ "id": "s", "key": "s", "cwd": "/", "sessions": [] });
                    send(
                        &mut writer,
                        &json!({ "jsonrpc": "2.0", "id": message["id"], "result": row }),
                    );
                }
                _ => {}
            }
            if heard.send(method).is_err() {
                return;
            }
        }
    });
    hears
}

fn send(writer: &mut UnixStream, message: &Value) {
    writer.write_all(format!("{message}\n").as_bytes()).unwrap();
}

/// Ends a child that a failed test left behind.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn exit_codes_reach_the_shell() {
    let home = tempfile::tempdir().unwrap();
    for (args, code) in [
        (&["--help"][..], 0),
        (&["--version"], 0),
        (&["prompt", "--help"], 0),
        (&["completions", "bash"], 0),
        (&["nonsense"], 2),
        (&[], 2),
        (&["ls", "--limit", "x"], 2),
        (&["ls"], 6),
        (&["stop"], 6),
        (&["status", "x", "--json"], 6),
        (&["doctor"], 0),
    ] {
        let output = run(home.path(), args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert_eq!(output.stdout.is_empty(), code != 0 && !args.contains(&"--json"), "{args:?}");
    }
}

#[test]
fn what_is_no_terminal_gets_no_colours() {
    let home = tempfile::tempdir().unwrap();
    for args in [&["doctor"][..], &["--help"], &["ls"]] {
        let output = run(home.path(), args);
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{args:?}");
    }
}

#[test]
fn a_relative_home_is_refused() {
    let output = run(Path::new("relative"), &["ls"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not an absolute path"));
}

#[test]
fn ctrl_c_cancels_the_turn_and_waits_for_its_end() {
    let home = tempfile::tempdir().unwrap();
    let hears = cancelling_desk(home.path());
    let child = frontdesk(home.path(), &["prompt", "s", "hi"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Guard(child);
    let mut begun = [0; 9];
    child.0.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"begun[31m");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.0.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    while hears.recv_timeout(WAIT).unwrap() != "session/cancel" {}
    assert_eq!(child.0.wait().unwrap().code(), Some(1));
    let mut remarks = String::new();
    child.0.stderr.as_mut().unwrap().read_to_string(&mut remarks).unwrap();
    assert!(remarks.contains("the turn ended early: cancelled"), "{remarks}");
}

#[test]
fn a_reader_that_leaves_is_no_fault() {
    let home = tempfile::tempdir().unwrap();
    let mut child = frontdesk(home.path(), &["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
