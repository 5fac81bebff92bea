//! What is stopped and not dead, clocks that are wrong, and crowds that come at once.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Barrier};
use std::thread;

use frontdesk::agent::proc;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{
    SOON, begin_prompt, client, demo_desk, endings, eventually, home_processes, log, native,
    new_session, of_kind, openings, place, records_in, same, seen, signal, status, store, told,
    turn,
};
use crate::acp::{Acp, refuse_all};
use crate::desk::{Desk, frontdesk};

/// Daemons and editors that come at once.
const CROWD: usize = 50;

fn is_stopped(pid: i32) -> bool {
    proc::stat(pid).is_some_and(|stat| stat.state == b'T')
}

fn stop_process(pid: i32) {
    signal(pid, Signal::SIGSTOP);
    eventually("a stopped process", SOON, || is_stopped(pid));
}

#[test]
fn a_stopped_agent_is_quiet_and_can_be_cancelled_and_ended() {
    let desk = demo_desk().limit("cancel_grace_ms", 300).limit("stop_term_ms", 300).open();
    let (mut one, mut two) = (client(&desk), client(&desk));
    let session = new_session(&desk, &mut one);
    let id = native(&mut one, &session);
    turn(&mut one, &session, "say before");
    two.ok("session/resume", place(&desk, Some(&session)));
    let agent = openings(&store(&desk), &id)[0].1;
    for ends_it in [false, true] {
        let from = one.mark();
        let running = begin_prompt(&mut one, &session, "say begun\nwait 1500\nsay done");
        one.wait_update(&session, from, "the turn", |it| it["content"]["text"] == "begun");
        stop_process(agent);
        let (word, meta) = status(&mut two, &session);
        assert_eq!((word.as_str(), &meta["state"]), ("active", &json!("running")), "{meta}");
        assert_eq!(meta["source"], "owner", "it is answered without the agent");
        let quiet = |meta: &Value| meta["quietMs"].as_u64().expect("how quiet it is");
        let before = quiet(&meta);
        eventually("a turn that gets quieter", SOON, || {
            quiet(&status(&mut two, &session).1) > before
        });
        if ends_it {
            let force = json!({ "frontdesk": { "force": true } });
            two.ok("session/close", json!({ "sessionId": session, "_meta": force }));
            assert_eq!(one.wait(running, SOON).expect("no error")["stopReason"], "cancelled");
            eventually("the agent's end", SOON, || !super::agent_lives(agent));
            assert_eq!(status(&mut two, &session).0, "inactive");
        } else {
            one.notify("session/cancel", json!({ "sessionId": session }));
            assert_eq!(one.wait(running, SOON).expect("no error")["stopReason"], "cancelled");
            assert!(is_stopped(agent), "it is left alone");
            signal(agent, Signal::SIGCONT);
            turn(&mut one, &session, "say again");
        }
    }
    let outcomes: Vec<Value> =
        endings(&log(&mut two, &session)).iter().map(|it| it["outcome"].clone()).collect();
    assert_eq!(outcomes, ["completed", "cancelled", "completed", "cancelled"]);
}

#[test]
fn a_stopped_daemon_is_told_of_in_clear_words_and_loses_nothing() {
    let mut desk = demo_desk().open();
    let mut editor = desk.acp_lasting("demo", refuse_all());
    editor.initialize(json!({}));
    let session = new_session(&desk, &mut editor);
    let from = editor.mark();
    let running = begin_prompt(&mut editor, &session, "stream 100 every 10");
    editor.wait_update(&session, from, "a chunk", |it| it["content"]["text"].is_string());
    let pid = desk.daemon_pid().expect("it runs").cast_signed();
    stop_process(pid);
    // Said while nobody listens.
    let next = begin_prompt(&mut editor, &session, "say next");
    let commands = [&["ls"][..], &["stop"], &["stop", "--all"], &["status", &session]];
    let outputs = thread::scope(|scope| {
        let desk = &desk;
        let runs = commands.map(|words| scope.spawn(move || (words, desk.cli(words))));
        runs.map(|run| run.join().expect("it ends"))
    });
    for (words, output) in outputs {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        for wanted in [format!("pid {pid}"), format!("kill -CONT {pid}"), "stopped".to_owned()] {
            assert!(said.contains(&wanted), "{words:?}: {said}");
        }
    }
    let second = desk.cli(&["serve"]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains(&pid.to_string()), "{said}");
    let says = format!("the daemon, pid {pid}, is stopped");
    eventually("the shim's word", SOON, || editor.stderr().contains(&says));
    assert!(!editor.is_answered(running) && !editor.is_answered(next), "nothing is made up");
    assert!(is_stopped(pid));
    signal(pid, Signal::SIGCONT);
    for pending in [running, next] {
        assert_eq!(editor.wait(pending, SOON).expect("it is answered")["stopReason"], "end_turn");
    }
    let mut wanted: Vec<String> = (1..=100).map(|at| format!("agent:chunk {at} of 100 ")).collect();
    wanted.push("agent:next".to_owned());
    same(&seen(&editor.updates(&session, from)), &wanted, "what the editor was shown");
    assert_eq!(editor.stderr().matches(&says).count(), 1, "it is said once");
    assert!(desk.stop().success());
}

/// Gives every record of a journal another stamp.
fn stamp(journal: &std::path::Path, at: impl Fn(usize) -> String) {
    let mut text = String::new();
    for (index, mut record) in records_in(journal).into_iter().enumerate() {
        record["at"] = json!(at(index));
        text.push_str(&format!("{record}\n"));
    }
    fs::write(journal, text).expect("it can be written");
}

#[test]
fn stamps_of_a_clock_that_was_wrong_change_no_order_and_no_outcome() {
    let at = |name: &str, index: usize| match name {
        "future" => format!("2199-01-01T00:00:{:02}.000000Z", index % 60),
        "past" => format!("1999-01-01T00:00:{:02}.000000Z", index % 60),
        // It went backwards while the session was written.
        _ => format!("20{:02}-06-01T00:00:00.000000Z", 99 - index.min(90)),
    };
    for name in ["future", "past", "backwards"] {
        let mut desk = demo_desk().open();
        let mut one = client(&desk);
        let session = new_session(&desk, &mut one);
        for words in ["say a", "say b", "say c"] {
            turn(&mut one, &session, words);
        }
        let row = one.ok("_frontdesk/session", json!({ "sessionId": session }));
        let journal = std::path::PathBuf::from(row["path"].as_str().expect("a path"));
        let before = told(&log(&mut one, &session));
        drop(one);
        assert!(desk.stop().success());
        stamp(&journal, |index| at(name, index));
        frontdesk::log::Snapshot::remove(&journal);
        for file in ["index.sqlite", "index.sqlite-wal", "index.sqlite-shm"] {
            let _ = fs::remove_file(desk.home().join("data").join(file));
        }
        desk.start();
        let mut two = client(&desk);
        assert_eq!(status(&mut two, &session).0, "inactive", "{name}");
        let listed = two.ok("session/list", json!({}));
        assert_eq!(crate::desk::row(&listed, &session)["sessionId"], json!(session));
        let from = two.mark();
        two.ok("session/load", place(&desk, Some(&session)));
        same(&seen(&two.updates(&session, from)), &before, name);
        let (word, meta) = status(&mut two, &session);
        assert_eq!(word, "active", "{name}");
        assert!(meta["ageMs"].as_u64().is_some(), "an age is never below nothing: {meta}");
        turn(&mut two, &session, "say d");
        let records = log(&mut two, &session);
        assert_eq!(endings(&records).len(), 4, "{name}");
        assert!(desk.cli(&["ls"]).status.success());
        // And once more over a crash in a turn.
        begin_prompt(&mut two, &session, "say e\nwait 800\nsay f");
        eventually("the turn", SOON, || told(&log(&mut two, &session)).contains(&"agent:e".into()));
        desk.kill9();
        desk.start();
        let mut three = client(&desk);
        eventually("its ending", SOON, || {
            of_kind(&log(&mut three, &session), "turn_ended").len() == 5
        });
        assert_eq!(endings(&log(&mut three, &session))[4]["outcome"], "completed", "{name}");
    }
}

/// One `frontdesk serve` of a crowd: its process, and its first line on stdout.
fn serve(desk: &Desk) -> (Child, String) {
    let mut child = desk
        .command(frontdesk())
        .arg("serve")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let out = child.stdout.take().expect("it has a stdout");
    let _ = BufReader::new(out).read_line(&mut line);
    (child, line)
}

#[test]
fn of_fifty_daemons_started_at_once_on_one_home_exactly_one_is_ready() {
    let desk = Arc::new(demo_desk().build());
    // The second time behind a killed one, which leaves its lock file and its socket.
    for _ in 0..2 {
        let gate = Arc::new(Barrier::new(CROWD));
        let starts: Vec<_> = (0..CROWD)
            .map(|_| {
                let (desk, gate) = (desk.clone(), gate.clone());
                thread::spawn(move || {
                    gate.wait();
                    serve(&desk)
                })
            })
            .collect();
        let all: Vec<(Child, String)> =
            starts.into_iter().map(|it| it.join().expect("it says something")).collect();
        let (ready, refused): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, line)| line.starts_with("ready "));
        assert_eq!(ready.len(), 1, "ready");
        let pid = ready[0].0.id();
        for (child, _) in refused {
            let output = child.wait_with_output().expect("it ends");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success(), "{said}");
            assert!(said.contains("a daemon runs on this home already"), "{said}");
        }
        let info = client(&desk).ok("_frontdesk/info", json!({}));
        assert_eq!(info["pid"], json!(pid));
        for (mut child, _) in ready {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }
}

/// The daemons of a home.
fn daemons(desk: &Desk) -> Vec<i32> {
    let all = home_processes(desk).into_iter();
    all.filter(|(_, words)| words.contains(" serve ")).map(|(pid, _)| pid).collect()
}

#[test]
fn fifty_editors_at_once_find_one_daemon_where_it_is_dead_and_over_a_kill() {
    let mut desk = demo_desk().setting("sessions_per_instance = 100").open();
    // A dead daemon with its socket.
    desk.kill9();
    assert!(desk.socket().exists());
    let desk = Arc::new(desk);
    let gate = Arc::new(Barrier::new(CROWD));
    let starts: Vec<_> = (0..CROWD)
        .map(|_| {
            let (desk, gate) = (desk.clone(), gate.clone());
            thread::spawn(move || {
                gate.wait();
                let mut editor = desk.acp_lasting("demo", refuse_all());
                editor.initialize(json!({}));
                let session = new_session(&desk, &mut editor);
                (editor, session)
            })
        })
        .collect();
    let mut editors: Vec<(Acp, String)> =
        starts.into_iter().map(|it| it.join().expect("each is answered")).collect();
    let first = daemons(&desk);
    assert_eq!(first.len(), 1, "one daemon");
    let sessions: BTreeSet<&String> = editors.iter().map(|(_, session)| session).collect();
    assert_eq!(sessions.len(), CROWD);

    // Killed in the middle of fifty turns.
    let froms: Vec<usize> = editors.iter().map(|(editor, _)| editor.mark()).collect();
    let begun: Vec<_> = editors
        .iter_mut()
        .map(|(editor, session)| begin_prompt(editor, session, "stream 40 every 20"))
        .collect();
    let (editor, session) = &editors[CROWD - 1];
    editor.wait_update(session, froms[CROWD - 1], "a chunk", |it| it["content"].is_object());
    signal(first[0], Signal::SIGKILL);
    let wanted: Vec<String> = (1..=40).map(|at| format!("agent:chunk {at} of 40 ")).collect();
    for (((editor, session), turn), from) in editors.iter().zip(begun).zip(froms) {
        let answer = editor.wait(turn, crate::acp::ANSWER).expect("each turn ends");
        assert_eq!(answer["stopReason"], "end_turn");
        same(&seen(&editor.updates(session, from)), &wanted, session);
    }
    let second = daemons(&desk);
    assert!(second.len() == 1 && second != first, "{first:?}, {second:?}");
    println!("{CROWD} editors, one daemon before and one behind the kill, nothing lost");
    assert!(desk.cli(&["stop", "--all"]).status.success());
    drop(editors);
    super::nothing_runs(&desk);
}
