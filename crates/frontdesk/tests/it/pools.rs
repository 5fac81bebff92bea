//! Several sessions in one process of an agent: who gets the next, and where the limits are.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::acp::{Acp, prompt, refuse_all};
use crate::desk::{AgentSpec, Desk, frontdesk};

const SOON: Duration = Duration::from_secs(60);

fn desk(sessions: u32) -> Desk {
    let words = [frontdesk(), Path::new("demo-agent")].map(Path::to_path_buf);
    let agent = AgentSpec::new("demo", words.iter().map(PathBuf::as_path));
    Desk::builder().agent(agent.setting(&format!("sessions_per_instance = {sessions}"))).open()
}

fn client(desk: &Desk) -> Acp {
    let mut client = desk.acp("demo", refuse_all());
    client.initialize(json!({}));
    client
}

/// Makes a session; its id, and the process that has it.
fn new_session(desk: &Desk, client: &mut Acp) -> (String, u64) {
    let made = client.ok("session/new", json!({ "cwd": desk.work(), "mcpServers": [] }));
    let session = made["sessionId"].as_str().expect("an id").to_owned();
    let pid = pid_of(client, &session);
    (session, pid)
}

fn pid_of(client: &mut Acp, session: &str) -> u64 {
    let told = client.ok("session/status", json!({ "sessionId": session }));
    told["_meta"]["frontdesk"]["owner"]["pid"].as_u64().expect("a process")
}

fn count(made: &[(String, u64)], pid: u64) -> usize {
    made.iter().filter(|(_, at)| *at == pid).count()
}

#[test]
fn a_process_is_filled_to_its_limit_before_another_is_started() {
    let desk = desk(2);
    let mut client = client(&desk);
    let made: Vec<_> = (0..5).map(|_| new_session(&desk, &mut client)).collect();
    assert_eq!(desk.instances(), 3, "{made:?}");
    assert!(made.iter().all(|(_, pid)| count(&made, *pid) <= 2), "{made:?}");
}

#[test]
fn the_one_with_the_fewest_sessions_gets_the_next() {
    let desk = desk(4);
    let mut client = client(&desk);
    // Four in the first, one in the second.
    let mut made: Vec<_> = (0..5).map(|_| new_session(&desk, &mut client)).collect();
    let (first, second) = (made[0].1, made[4].1);
    assert_eq!((count(&made, first), count(&made, second)), (4, 1));
    // Two of the first are closed: both have room now.
    for _ in 0..2 {
        let at = made.iter().position(|(_, pid)| *pid == first).unwrap();
        let (session, _) = made.remove(at);
        client.ok("session/close", json!({ "sessionId": session }));
    }
    made.push(new_session(&desk, &mut client));
    assert_eq!((count(&made, first), count(&made, second)), (2, 2));
    for _ in 0..4 {
        made.push(new_session(&desk, &mut client));
    }
    assert_eq!((count(&made, first), count(&made, second)), (4, 4));
    assert_eq!(desk.instances(), 2);
}

#[test]
fn one_that_owes_an_answer_and_says_nothing_gets_no_more() {
    let desk = desk(8);
    let mut client = client(&desk);
    let (session, stuck) = new_session(&desk, &mut client);
    let pid = Pid::from_raw(i32::try_from(stuck).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    let asked = client.begin("session/prompt", prompt(&session, "say late"));
    std::thread::sleep(Duration::from_secs(1));
    let (_, other) = new_session(&desk, &mut client);
    assert_ne!(other, stuck);
    kill(pid, Signal::SIGCONT).unwrap();
    let answer: Value = client.wait(asked, SOON).expect("it goes on");
    assert_eq!(answer["stopReason"], "end_turn");
}

#[test]
fn many_at_once_do_not_pass_the_limit() {
    let desk = desk(2);
    let mut client = client(&desk);
    let new = json!({ "cwd": desk.work(), "mcpServers": [] });
    let asked: Vec<_> = (0..6).map(|_| client.begin("session/new", new.clone())).collect();
    let mut made = Vec::new();
    for pending in asked {
        let result = client.wait(pending, SOON).expect("a session");
        let session = result["sessionId"].as_str().expect("an id").to_owned();
        made.push((session.clone(), pid_of(&mut client, &session)));
    }
    assert!(made.iter().all(|(_, pid)| count(&made, *pid) <= 2), "{made:?}");
}
