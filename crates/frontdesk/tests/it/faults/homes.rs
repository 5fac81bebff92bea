//! Homes and their daemons: one daemon a home, and one owner of a session over all homes.

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{
    SOON, agent_lives, client, demo, demo_desk, eventually, home_processes, log, native,
    new_session, nothing_runs, openings, place, seen, told, turn,
};
use crate::acp::{Acp, refuse_all};
use crate::desk::{Desk, frontdesk};

/// Editors that start at once.
const SHIMS: usize = 10;

#[test]
fn ten_shims_at_once_start_one_daemon_and_stop_ends_all() {
    let desk = Arc::new(demo_desk().build());
    let gate = Arc::new(Barrier::new(SHIMS));
    let starts: Vec<_> = (0..SHIMS)
        .map(|at| {
            let (desk, gate) = (desk.clone(), gate.clone());
            thread::spawn(move || {
                gate.wait();
                let mut client = client(&desk);
                // Some have work going on when the daemon is told to stop.
                if at % 3 == 0 {
                    let session = new_session(&desk, &mut client);
                    turn(&mut client, &session, "child 600 detached\nsay hello");
                }
                let info = client.ok("_frontdesk/info", json!({}));
                (client, info["pid"].as_i64().expect("info has a pid"))
            })
        })
        .collect();
    let clients: Vec<(Acp, i64)> =
        starts.into_iter().map(|it| it.join().expect("all ten are answered")).collect();
    let pid = clients[0].1;
    assert!(clients.iter().all(|(_, other)| *other == pid), "one daemon for all");
    let serving: Vec<_> =
        home_processes(&desk).into_iter().filter(|(_, words)| words.contains(" serve ")).collect();
    assert_eq!(serving.len(), 1, "daemons of this home: {serving:?}");
    assert_eq!(i64::from(serving[0].0), pid);

    let stopped = desk.cli(&["stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
    for (mut client, _) in clients {
        assert!(client.wait_exit(SOON).is_some(), "a shim outlives its daemon");
    }
    nothing_runs(&desk);
}

#[test]
fn a_second_daemon_is_refused_and_a_dead_one_holds_nobody_up() {
    let mut desk = demo_desk().open();
    let first = desk.daemon_pid().expect("it runs").to_string();
    let second = desk.cli(&["serve"]);
    let words = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && second.stdout.is_empty(), "{second:?}");
    assert!(words.contains(&first), "the first one's pid {first} is named: {words}");
    let session = new_session(&desk, &mut client(&desk));

    desk.kill9();
    assert!(desk.socket().exists(), "a killed daemon leaves its socket");
    desk.start();
    assert_eq!(super::status(&mut client(&desk), &session).0, "active");
    // The same where a shim has to start it.
    desk.kill9();
    let mut found = client(&desk);
    let info = found.ok("_frontdesk/info", json!({}));
    assert_ne!(info["pid"].to_string(), first);
    assert!(desk.cli(&["stop"]).status.success());
    drop(found);
    nothing_runs(&desk);
}

/// Two homes whose agent writes to one store, as two windows of one user would.
pub(super) fn two_homes(shared: &Path) -> (Desk, Desk) {
    let home = || {
        demo_desk()
            .env("FRONTDESK_CLAIMS", shared.join("claims"))
            .env("HOME", shared.join("home"))
            .open()
    };
    std::fs::create_dir_all(shared.join("home")).expect("a folder");
    (home(), home())
}

pub(super) fn store_of(shared: &Path) -> std::path::PathBuf {
    shared.join("home/.local/state/frontdesk-demo")
}

#[test]
fn a_session_that_is_live_in_one_home_is_refused_in_another() {
    let shared = tempfile::tempdir().expect("a folder");
    let (mut first, second) = two_homes(shared.path());
    let store = store_of(shared.path());
    let mut one = client(&first);
    let session = new_session(&first, &mut one);
    let native = native(&mut one, &session);
    turn(&mut one, &session, "say first home");
    let mut two = client(&second);
    // The folder is the first one's: a session belongs to its folder.
    let folder = first.work();
    let params = |id: &str| json!({ "sessionId": id, "cwd": folder, "mcpServers": [] });
    for method in ["session/load", "session/resume"] {
        let error = two.err(method, params(&native));
        assert_eq!(error.code, -31005, "{error:?}");
        let (pid, socket) = (first.daemon_pid().expect("it runs"), first.socket());
        let take = "frontdesk take ".to_owned();
        for named in [pid.to_string(), socket.display().to_string(), take] {
            assert!(error.message.contains(&named), "{named} is named: {error:?}");
        }
        assert_eq!(error.data["holder"]["pid"], pid);
        assert_eq!(error.data["holder"]["socket"], json!(socket));
        assert_eq!(error.data["sessionId"], json!(native), "the id as asked");
    }
    assert_eq!(super::status(&mut two, &native).0, "inactive");
    assert_eq!(openings(&store, &native).len(), 1, "the second home's agents never had it");

    // Closed in the first: the second gets it.
    one.ok("session/close", json!({ "sessionId": session }));
    let owner = openings(&store, &native)[0].1;
    let from = two.mark();
    two.ok("session/load", params(&native));
    assert!(!agent_lives(owner), "the first home's agent has gone before the second one's has it");
    assert_eq!(seen(&two.updates(&native, from)), ["user:say first home", "agent:first home"]);
    turn(&mut two, &native, "say second home");
    assert_eq!(one.err("session/resume", params(&session)).code, -31005);
    two.ok("session/close", json!({ "sessionId": native }));

    // Killed in the first, holder and all: the second gets it. What an agent saves within two
    // seconds of our last record does not count as gone on elsewhere, hence the wait.
    thread::sleep(Duration::from_secs(3));
    one.ok("session/resume", params(&session));
    turn(&mut one, &session, "say back in the first home");
    let owner = openings(&store, &native).last().expect("an opening").1;
    let holders: Vec<i32> = home_processes(&first)
        .into_iter()
        .filter(|(_, words)| words.contains(" hold "))
        .map(|(pid, _)| pid)
        .collect();
    assert!(!holders.is_empty(), "agents have holders");
    first.kill9();
    for holder in holders {
        let _ = kill(Pid::from_raw(holder), Signal::SIGKILL);
    }
    eventually("the agent's end with its holder", SOON, || !agent_lives(owner));
    two.ok("session/load", params(&native));
    turn(&mut two, &native, "say and in the second");
    let records = log(&mut two, &native);
    let texts: Vec<String> = told(&records);
    for text in ["first home", "second home", "back in the first home", "and in the second"] {
        let found = texts.iter().filter(|it| **it == format!("agent:{text}")).count();
        assert_eq!(found, 1, "{text:?} in {texts:?}");
    }
    only_one_at_a_time(&store, &native);
}

/// Two processes never had the session at the same time: each but the last one's opening is
/// followed by its close or its end, and none but the last lives.
pub(super) fn only_one_at_a_time(store: &Path, native: &str) {
    let pids: Vec<i32> = openings(store, native).into_iter().map(|(_, pid)| pid).collect();
    let (last, others) = pids.split_last().expect("somebody had it");
    for pid in others.iter().filter(|pid| *pid != last) {
        assert!(!agent_lives(*pid), "{pid} still has what {last} has: {pids:?}");
    }
}

#[test]
fn a_home_whose_daemon_died_keeps_its_sessions_until_its_holders_have_ended() {
    let shared = tempfile::tempdir().expect("a folder");
    let (mut first, second) = two_homes(shared.path());
    let mut one = client(&first);
    let session = new_session(&first, &mut one);
    let native = native(&mut one, &session);
    turn(&mut one, &session, "say hello");
    first.kill9();
    // The holder lives, and so does the agent: it is not up for grabs.
    let mut two = client(&second);
    let error = two.err("session/resume", place(&first, Some(&native)));
    assert_eq!(error.code, -31005, "{error:?}");
    // A later daemon of the first home goes on with it, and gives it up when asked.
    first.start();
    let error = two.err("session/resume", place(&first, Some(&native)));
    assert_eq!((error.code, &error.data["holder"]["pid"]), (-31005, &json!(first.daemon_pid())));
    client(&first).ok("session/close", json!({ "sessionId": session }));
    two.ok("session/resume", place(&first, Some(&native)));
    turn(&mut two, &native, "say again");
    only_one_at_a_time(&store_of(shared.path()), &native);
}

#[test]
fn two_agents_of_one_home_do_not_share_a_session_of_one_store() {
    // Two entries of the configuration for one program and one store.
    let desk = Desk::builder().agent(demo("demo", &[])).agent(demo("other", &[])).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let native = native(&mut one, &session);
    turn(&mut one, &session, "say hello");
    let mut two = super::client_of(&desk, "other", refuse_all());
    let listed = two.ok("session/list", json!({}));
    let row = listed["sessions"]
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["sessionId"] == json!(native)).cloned());
    let row: Value = row.expect("the other entry lists it as its own");
    let error = two.err("session/load", place(&desk, row["sessionId"].as_str()));
    assert_eq!(error.code, -31005, "{error:?}");
    assert_eq!(openings(&super::store(&desk), &native).len(), 1);
}

#[test]
fn a_second_daemon_that_is_refused_leaves_the_first_one_s_socket() {
    let desk = demo_desk().open();
    for _ in 0..3 {
        let mut second = desk.command(frontdesk());
        let second = second.arg("serve").stdin(Stdio::null()).output().expect("it runs");
        assert!(!second.status.success());
    }
    client(&desk).ok("_frontdesk/info", json!({}));
}
