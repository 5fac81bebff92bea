//! The desk may die while a session is being closed, opened, forked or made: what its agent says of
//! that is heard by the next daemon, and nothing is left over.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{
    SOON, begin_prompt, client, client_of, demo, eventually, log, native, new_session, of_kind,
    openings, place, prompt, status, store, stored, turn,
};
use crate::acp::{Acp, Ask, Line, Reply, refuse_all};
use crate::desk::Desk;

fn signal(pid: i32, what: Signal) {
    kill(Pid::from_raw(pid), what).expect("the process is there");
}

/// All ledgers of a desk.
fn ledgers(desk: &Desk) -> String {
    let folders = fs::read_dir(desk.home().join("data/instances")).into_iter().flatten().flatten();
    let texts = folders.map(|it| fs::read_to_string(it.path().join("ledger.jsonl")));
    texts.map(Result::unwrap_or_default).collect()
}

fn in_ledger(desk: &Desk, session: &str, word: &str) {
    eventually(&format!("{word} in a ledger"), SOON, || {
        let text = ledgers(desk);
        text.lines().any(|line| line.contains(word) && line.contains(session))
    });
}

fn two_each() -> Desk {
    Desk::builder().agent(demo("demo", &[]).setting("sessions_per_instance = 2")).open()
}

fn force(session: &str) -> Value {
    json!({ "sessionId": session, "_meta": { "frontdesk": { "force": true } } })
}

fn kinds(records: &[Value]) -> Vec<&str> {
    records.iter().filter_map(|record| record["kind"].as_str()).collect()
}

/// The agent had the session in one process at a time.
fn never_twice(desk: &Desk, native: &str) {
    let lines = stored(&store(desk), native);
    let twice = lines.iter().filter(|line| line["alone"] == false).count();
    assert_eq!(twice, 0, "{lines:?}");
}

/// A session that waits with a question in a tool call, and its agent, stopped.
fn stopped_in_a_tool(desk: &Desk, one: &mut Acp) -> (String, String, i32) {
    let session = new_session(desk, one);
    let id = native(one, &session);
    let from = one.mark();
    begin_prompt(one, &session, "say before\nwrite notes.txt hello");
    one.wait_ask(from, "session/request_permission");
    let agent = openings(&store(desk), &id)[0].1;
    signal(agent, Signal::SIGSTOP);
    (session, id, agent)
}

fn was_closed_well(desk: &Desk, two: &mut Acp, session: &str, id: &str) {
    eventually("the close", SOON, || status(two, session).0 == "inactive");
    let records = log(two, session);
    assert_eq!(of_kind(&records, "lost").len(), 0, "{records:?}");
    let closed = of_kind(&records, "closed");
    assert_eq!((closed.len(), &closed[0]["reason"]), (1, &json!("client")), "{records:?}");
    assert_eq!(closed[0].get("kept"), None, "the agent has let it go");
    assert_eq!(kinds(&records).last(), Some(&"closed"));
    let updates = of_kind(&records, "update");
    let failed = |it: &&Value| {
        let update = &it["update"];
        update["sessionUpdate"] == "tool_call_update" && update["status"] == "failed"
    };
    assert_eq!(updates.into_iter().filter(failed).count(), 1, "its last words: {records:?}");
    let ended = of_kind(&records, "turn_ended");
    assert_eq!((ended.len(), &ended[0]["outcome"]), (1, &json!("cancelled")));
    assert!(status(two, session).1.get("lease").is_none(), "nobody may have it");
    two.ok("session/load", place(desk, Some(session)));
    turn(two, session, "say after");
    never_twice(desk, id);
}

#[test]
fn what_an_agent_says_while_it_is_closed_is_heard_by_the_next_daemon() {
    for has_another in [false, true] {
        let mut desk = two_each();
        let mut one = client_of(&desk, "demo", Arc::new(|_: &Ask| Reply::Silence));
        let other = has_another.then(|| new_session(&desk, &mut one));
        let (session, id, agent) = stopped_in_a_tool(&desk, &mut one);
        one.begin("session/close", force(&session));
        in_ledger(&desk, &id, "\"closing\"");
        in_ledger(&desk, &id, "session/close");
        desk.kill9();
        signal(agent, Signal::SIGCONT);
        desk.start();
        let mut two = client(&desk);
        was_closed_well(&desk, &mut two, &session, &id);
        if let Some(other) = other {
            assert_eq!(status(&mut two, &other).0, "active");
            two.ok("session/resume", place(&desk, Some(&other)));
            turn(&mut two, &other, "say mine");
        }
    }
}

#[test]
fn a_close_that_is_under_way_is_not_asked_for_a_second_time() {
    // The agent refuses to close what it is closing already.
    let desk = Desk::builder().agent(demo("demo", &[]).setting("sessions_per_instance = 2"));
    let mut desk = desk.limit("agent_close_ms", 60_000).open();
    let mut one = client_of(&desk, "demo", Arc::new(|_: &Ask| Reply::Silence));
    let _other = new_session(&desk, &mut one);
    let (session, id, agent) = stopped_in_a_tool(&desk, &mut one);
    one.begin("session/close", force(&session));
    in_ledger(&desk, &id, "session/close");
    desk.kill9();
    desk.start();
    let asked = || {
        let text = ledgers(&desk);
        text.lines().filter(|it| it.contains("session/close") && it.contains(&id)).count()
    };
    assert_eq!(asked(), 1);
    signal(agent, Signal::SIGCONT);
    let mut two = client(&desk);
    was_closed_well(&desk, &mut two, &session, &id);
    assert_eq!(asked(), 1);
}

#[test]
fn a_close_that_was_decided_and_not_sent_is_carried_out_by_the_next_daemon() {
    let mut desk = two_each();
    let mut one = client_of(&desk, "demo", Arc::new(|_: &Ask| Reply::Silence));
    let (session, id, agent) = stopped_in_a_tool(&desk, &mut one);
    one.begin("session/close", force(&session));
    in_ledger(&desk, &id, "session/close");
    desk.kill9();
    // As if it had died between the two lines, and the holder had not got the request either.
    let folder = fs::read_dir(desk.home().join("data/instances")).expect("it is there");
    let path = folder.flatten().next().expect("an instance").path().join("ledger.jsonl");
    let text = fs::read_to_string(&path).expect("there is a ledger");
    let kept: Vec<&str> =
        text.split_inclusive('\n').filter(|line| !line.contains("session/close")).collect();
    fs::write(&path, kept.concat()).expect("it can be written");
    signal(agent, Signal::SIGCONT);
    desk.start();
    let mut two = client(&desk);
    was_closed_well(&desk, &mut two, &session, &id);
}

#[test]
fn an_editor_gets_one_answer_to_a_close_that_outlives_its_daemon() {
    let mut desk = two_each();
    let mut editor = desk.acp_lasting("demo", Arc::new(|_: &Ask| Reply::Silence));
    editor.initialize(json!({}));
    let (session, id, agent) = stopped_in_a_tool(&desk, &mut editor);
    let from = editor.mark();
    let pending = editor.begin("session/close", json!({ "sessionId": session }));
    in_ledger(&desk, &id, "session/close");
    desk.kill9();
    signal(agent, Signal::SIGCONT);
    let mut two = client(&desk);
    editor.wait(pending, SOON).expect("it is closed");
    was_closed_well(&desk, &mut two, &session, &id);
    let lines = editor.lines(from);
    let is_answer = |line: &&Line| matches!(line, Line::In(it) if it["id"] == pending.id() && it.get("method").is_none());
    assert_eq!(lines.iter().filter(is_answer).count(), 1, "one answer");
}

/// A cold session, and another one whose agent is stopped and has a place for it.
fn cold_beside_a_stopped_one(desk: &Desk, one: &mut Acp) -> (String, String, String, i32) {
    let cold = new_session(desk, one);
    let id = native(one, &cold);
    turn(one, &cold, "say first");
    one.ok("session/close", force(&cold));
    let other = new_session(desk, one);
    let other_id = native(one, &other);
    let agent = openings(&store(desk), &other_id)[0].1;
    signal(agent, Signal::SIGSTOP);
    (cold, id, other, agent)
}

#[test]
fn an_opening_that_outlives_its_daemon_is_answered_to_the_next_one() {
    for method in ["session/resume", "session/load"] {
        let mut desk = two_each();
        let mut editor = desk.acp_lasting("demo", refuse_all());
        editor.initialize(json!({}));
        let (cold, id, other, agent) = cold_beside_a_stopped_one(&desk, &mut editor);
        let pending = editor.begin(method, place(&desk, Some(&cold)));
        // Its list is asked first, and does not answer.
        eventually("the request to open it", SOON, || {
            let ledgers = ledgers(&desk);
            let opens = ["\"method\":\"session/resume\"", "\"method\":\"session/load\""];
            ledgers.lines().any(|line| opens.iter().any(|it| line.contains(it)))
        });
        desk.kill9();
        let mut two = client(&desk);
        assert_eq!(status(&mut two, &cold).0, "active", "an agent was asked for it");
        signal(agent, Signal::SIGCONT);
        editor.wait(pending, SOON).expect("it is open");
        turn(&mut editor, &cold, "say second");
        let records = log(&mut two, &cold);
        assert_eq!(of_kind(&records, "lost").len(), 0, "{records:?}");
        assert_eq!(of_kind(&records, "loaded").len(), 2, "made, and opened once");
        assert_eq!(openings(&store(&desk), &id).len(), 2);
        assert_eq!(status(&mut two, &other).0, "active");
        never_twice(&desk, &id);
    }
}

#[test]
fn an_opening_that_is_refused_behind_a_restart_leaves_nothing_kept() {
    let mut desk = two_each();
    let mut one = client(&desk);
    let (cold, id, other, agent) = cold_beside_a_stopped_one(&desk, &mut one);
    fs::remove_file(store(&desk).join(format!("{id}.jsonl"))).expect("it is stored");
    one.begin("session/resume", place(&desk, Some(&cold)));
    in_ledger(&desk, &id, "\"method\":\"session/");
    eventually("the request to open it", SOON, || {
        ledgers(&desk).contains("\"method\":\"session/resume\"")
    });
    desk.kill9();
    signal(agent, Signal::SIGCONT);
    desk.start();
    let mut two = client(&desk);
    eventually("the refusal", SOON, || status(&mut two, &cold).0 == "inactive");
    for _ in 0..2 {
        let (word, meta) = status(&mut two, &cold);
        assert_eq!((word.as_str(), meta.get("lease")), ("inactive", None), "{meta}");
        assert_eq!(of_kind(&log(&mut two, &cold), "lost").len(), 0);
        // Nor does a later daemon take it for one that the instance may have.
        desk.kill9();
        desk.start();
        two = client(&desk);
        assert_eq!(status(&mut two, &other).0, "active");
    }
}

#[test]
fn a_session_that_was_refused_before_a_crash_is_not_kept_behind_it() {
    let mut desk = two_each();
    let mut one = client(&desk);
    let (cold, id, other, agent) = cold_beside_a_stopped_one(&desk, &mut one);
    signal(agent, Signal::SIGCONT);
    fs::remove_file(store(&desk).join(format!("{id}.jsonl"))).expect("it is stored");
    let error = one.err("session/resume", place(&desk, Some(&cold)));
    assert_eq!(error.code, -32002, "{error:?}");
    desk.kill9();
    desk.start();
    let mut two = client(&desk);
    let (word, meta) = status(&mut two, &cold);
    assert_eq!((word.as_str(), meta.get("lease")), ("inactive", None), "{meta}");
    assert_eq!(status(&mut two, &other).0, "active");
}

#[test]
fn a_session_that_nobody_was_told_of_is_closed_at_its_agent_or_taken_in() {
    for can_close in [true, false] {
        for method in ["session/new", "session/fork"] {
            let args: &[&str] = if can_close { &[] } else { &["--no-close"] };
            let agent = demo("demo", args).setting("sessions_per_instance = 3");
            let mut desk = Desk::builder().agent(agent).open();
            let mut one = client(&desk);
            let session = new_session(&desk, &mut one);
            let id = native(&mut one, &session);
            turn(&mut one, &session, "say first");
            let agent = openings(&store(&desk), &id)[0].1;
            signal(agent, Signal::SIGSTOP);
            let parent = (method == "session/fork").then_some(&*session);
            one.begin(method, place(&desk, parent));
            let requests = if method == "session/new" { 2 } else { 1 };
            let line = format!("\"method\":\"{method}\",\"session\"");
            eventually("the request", SOON, || ledgers(&desk).matches(&line).count() == requests);
            // One that its holder never got is not sent any more; it gets it in this time.
            std::thread::sleep(Duration::from_millis(300));
            desk.kill9();
            signal(agent, Signal::SIGCONT);
            desk.start();
            let mut two = client(&desk);
            let orphan = || -> Option<String> {
                let names = fs::read_dir(store(&desk)).expect("it has a store").flatten();
                let names = names.map(|it| it.file_name().to_string_lossy().into_owned());
                let mut ids = names.filter_map(|it| it.strip_suffix(".jsonl").map(str::to_owned));
                ids.find(|it| *it != id)
            };
            eventually("the answer of the agent", SOON, || orphan().is_some());
            let orphan = orphan().expect("it was made");
            if can_close {
                eventually("its close", SOON, || {
                    ledgers(&desk)
                        .lines()
                        .any(|line| line.contains("\"let_go\"") && line.contains(&orphan))
                });
            } else {
                // It is found by the id that its agent gave it, and is where it was made.
                eventually("its row", SOON, || {
                    let asked = two.request("session/status", json!({ "sessionId": orphan }));
                    asked.is_ok_and(|it| it["status"] == "active")
                });
                two.ok("session/load", place(&desk, Some(&orphan)));
                turn(&mut two, &orphan, "say found");
                never_twice(&desk, &orphan);
            }
            two.ok("session/resume", place(&desk, Some(&session)));
            two.ok("session/prompt", prompt(&session, "say on"));
        }
    }
}
