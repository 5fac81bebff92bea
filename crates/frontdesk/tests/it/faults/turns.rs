//! Turns that hang, crash, or are cut off by a stop: each has one answer and one ending.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{
    SOON, agent_lives, begin_prompt, client, client_of, demo, demo_desk, endings, eventually, log,
    native, new_session, nothing_runs, of_kind, openings, place, records_in, seen, status, store,
    told, turn,
};
use crate::acp::{ANSWER, Acp, Reply, refuse_all};
use crate::desk::Desk;

#[test]
fn a_hanging_turn_is_cancelled_after_its_grace_and_ended_after_its_time() {
    let desk = demo_desk().limit("cancel_grace_ms", 300).limit("cancel_kill_ms", 2_000).open();
    let (mut one, mut two) = (client(&desk), client(&desk));
    let session = new_session(&desk, &mut one);
    let native = native(&mut one, &session);
    turn(&mut one, &session, "say before");
    two.ok("session/resume", place(&desk, Some(&session)));
    let from = one.mark();
    let hanging = begin_prompt(&mut one, &session, "say I hang\nhang");
    one.wait_update(&session, from, "the turn", |it| it["content"]["text"] == "I hang");
    let cancelled = Instant::now();
    one.notify("session/cancel", json!({ "sessionId": session }));
    let answer = one.wait(hanging, ANSWER).expect("a cancel is no error");
    assert_eq!(answer["stopReason"], "cancelled");
    assert!(cancelled.elapsed() >= Duration::from_millis(290), "the agent gets its grace");
    assert_eq!(status(&mut one, &session).0, "active");

    // The next prompts wait for the agent, and are told when that is over.
    let next = begin_prompt(&mut one, &session, "say too early");
    let other = begin_prompt(&mut two, &session, "say too early as well");
    for error in [one.wait(next, ANSWER), two.wait(other, ANSWER)] {
        let error = error.expect_err("the agent is stuck");
        assert_eq!(error.code, -31011, "{error:?}");
        assert!(error.message.contains("close --force"), "{error:?}");
    }
    assert!(cancelled.elapsed() >= Duration::from_millis(1_900));

    // And the session works again, with another process.
    let stuck = openings(&store(&desk), &native)[0].1;
    let from = two.mark();
    turn(&mut one, &session, "say after");
    let opened = openings(&store(&desk), &native);
    assert_eq!(opened.len(), 2, "{opened:?}");
    assert!(opened[1].1 != stuck && !agent_lives(stuck));
    two.wait_update(&session, from, "the next turn", |it| it["content"]["text"] == "after");
    let records = log(&mut one, &session);
    let outcomes: Vec<Value> = endings(&records).iter().map(|it| it["outcome"].clone()).collect();
    assert_eq!(outcomes, ["completed", "cancelled", "failed", "failed", "completed"]);
    assert_eq!(of_kind(&records, "closed")[0]["reason"], "stuck");
}

#[test]
fn a_late_answer_frees_the_session_before_its_time() {
    let desk = demo_desk().limit("cancel_grace_ms", 200).limit("cancel_kill_ms", 30_000).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let from = one.mark();
    let running = begin_prompt(&mut one, &session, "say begun\nlate 20 50");
    one.wait_update(&session, from, "the turn", |it| it["content"]["text"] == "begun");
    one.notify("session/cancel", json!({ "sessionId": session }));
    assert_eq!(one.wait(running, ANSWER).expect("no error")["stopReason"], "cancelled");
    turn(&mut one, &session, "say next");
    assert_eq!(endings(&log(&mut one, &session)).len(), 2);
    // The agent goes on for a while: twenty late items, each shown once.
    eventually("all late items, in the journal and shown once", SOON, || {
        let told = told(&log(&mut one, &session)).len();
        told > 20 && seen(&one.updates(&session, from)).len() + 2 == told
    });
}

#[test]
fn a_crash_answers_its_turn_and_runs_what_waited() {
    let desk = demo_desk().open();
    let (mut one, mut two) = (client(&desk), client(&desk));
    let session = new_session(&desk, &mut one);
    let native = native(&mut one, &session);
    turn(&mut one, &session, "say hello");
    two.ok("session/resume", place(&desk, Some(&native)));
    let (from_one, from_two) = (one.mark(), two.mark());
    let crashing = begin_prompt(&mut one, &session, "stream 5\nwait 400\ncrash");
    one.wait_update(&session, from_one, "the turn", |it| it["content"]["text"].is_string());
    let second = begin_prompt(&mut two, &native, "say of two");
    eventually("the second in the queue", SOON, || {
        let row = one.ok("_frontdesk/session", json!({ "sessionId": session }));
        row["queuedTurns"] == 1
    });
    let third = begin_prompt(&mut one, &session, "say of one");
    let error = one.wait(crashing, ANSWER).expect_err("the agent crashed");
    assert_eq!((error.code, &error.data["sessionId"]), (-31002, &json!(session)), "{error:?}");
    for answer in [two.wait(second, ANSWER), one.wait(third, ANSWER)] {
        assert_eq!(answer.expect("it runs after the crash")["stopReason"], "end_turn");
    }
    let chunks: Vec<String> = (1..=5).map(|at| format!("agent:chunk {at} of 5 ")).collect();
    let tail = ["agent:of two", "user:say of one", "agent:of one"].map(str::to_owned);
    let head = ["user:stream 5\nwait 400\ncrash".to_owned()];
    let by_two: Vec<String> = head.into_iter().chain(chunks.clone()).chain(tail.clone()).collect();
    two.wait_update(&native, from_two, "the last word", |it| it["content"]["text"] == "of one");
    assert_eq!(seen(&two.updates(&native, from_two)), by_two);
    let by_one: Vec<String> = chunks
        .into_iter()
        .chain(["user:say of two", "agent:of two", "agent:of one"].map(str::to_owned))
        .collect();
    assert_eq!(seen(&one.updates(&session, from_one)), by_one);
    let opened = openings(&store(&desk), &native);
    assert_eq!(opened.len(), 2, "{opened:?}");
    assert!(!agent_lives(opened[0].1));
    let records = log(&mut one, &session);
    let kinds: Vec<&str> = records.iter().filter_map(|it| it["kind"].as_str()).collect();
    let lost = kinds.iter().position(|it| *it == "lost").expect("the loss is recorded");
    let loaded = kinds.iter().rposition(|it| *it == "loaded").expect("it was loaded again");
    let ended = kinds[..lost].iter().filter(|it| **it == "turn_ended").count();
    assert!(lost < loaded && ended == 2, "{kinds:?}");
    assert_eq!(endings(&records).len(), 4);
}

#[test]
fn a_crash_without_anything_waiting_leaves_the_session_inactive() {
    let desk = demo_desk().open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    for words in ["say x\ncrash", "say x\nkill", "say x\nclose-stdout\nwait 20000"] {
        let error = one.err("session/prompt", crate::acp::prompt(&session, words));
        assert_eq!((error.code, &error.data["sessionId"]), (-31002, &json!(session)), "{error:?}");
        assert_eq!(status(&mut one, &session).0, "inactive", "{words:?}");
        desk.wait_instances(0, SOON);
        let next = begin_prompt(&mut one, &session, "say a\nwait 300\nsay b");
        let from = one.mark();
        one.wait_update(&session, from, "the next turn", |it| it["content"]["text"] == "a");
        assert_eq!(status(&mut one, &session).0, "active");
        assert_eq!(one.wait(next, ANSWER).expect("it works again")["stopReason"], "end_turn");
    }
    let records = log(&mut one, &session);
    assert_eq!(endings(&records).len(), 6);
}

#[test]
fn other_requests_of_a_crashed_agent_are_answered_too() {
    let desk = demo_desk().open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say hello");
    let from = one.mark();
    let running = begin_prompt(&mut one, &session, "say x\nwait 200\nkill");
    one.wait_update(&session, from, "the turn", |it| it["content"]["text"] == "x");
    // A method the agent does not answer before it dies, or refuses at once: never silence.
    let asked: Vec<_> = (0..20)
        .map(|_| one.begin("session/set_mode", json!({ "sessionId": session, "modeId": "auto" })))
        .collect();
    let _ = one.wait(running, ANSWER);
    for pending in asked {
        let _ = one.wait(pending, SOON);
    }
}

#[test]
fn a_stop_ends_a_running_turn_with_an_answer() {
    let mut desk = demo_desk().limit("drain_s", 1).open();
    let (mut one, mut two) = (client(&desk), client(&desk));
    let session = new_session(&desk, &mut one);
    let waiting = new_session(&desk, &mut two);
    let path = |client: &mut Acp, session: &str| {
        let row = client.ok("_frontdesk/session", json!({ "sessionId": session }));
        PathBuf::from(row["path"].as_str().expect("a session has a journal"))
    };
    let journals = [path(&mut one, &session), path(&mut two, &waiting)];
    turn(&mut one, &session, "child 600 detached\nsay hello");
    two.answer_with(Arc::new(|_| Reply::Silence));
    let asking = begin_prompt(&mut two, &waiting, "ask May I?");
    two.wait_ask(0, "session/request_permission");
    let from = one.mark();
    let running = begin_prompt(&mut one, &session, "stream 100000 every 10");
    one.wait_update(&session, from, "the turn", |it| it["content"]["text"].is_string());
    let queued = begin_prompt(&mut one, &session, "say never");
    let began = Instant::now();
    let stopped = desk.cli(&["stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(began.elapsed() >= Duration::from_millis(990), "turns get their time");
    for answer in [one.wait(running, SOON), two.wait(asking, SOON)] {
        assert_eq!(answer.expect("a cancel is no error")["stopReason"], "cancelled");
    }
    assert_eq!(one.wait(queued, SOON).expect_err("nothing new is begun").code, -31006);
    let status = desk.stop();
    assert!(status.success(), "{status:?}");
    for client in [&mut one, &mut two] {
        assert!(client.wait_exit(SOON).is_some(), "a shim outlives its daemon");
    }
    nothing_runs(&desk);
    // The journals themselves, as files: whole, with an ending for each turn.
    for (journal, outcomes) in
        journals.iter().zip([&["completed", "failed", "cancelled"][..], &["cancelled"]])
    {
        let records = records_in(journal);
        let mut found: Vec<Value> =
            endings(&records).iter().map(|it| it["outcome"].clone()).collect();
        found.sort_by_key(ToString::to_string);
        let mut wanted = outcomes.to_vec();
        wanted.sort_unstable();
        assert_eq!(found, wanted);
        assert_eq!(of_kind(&records, "closed").last().expect("it was closed")["reason"], "stop");
        let (opened, settled) =
            (of_kind(&records, "interaction_opened"), of_kind(&records, "interaction_settled"));
        assert_eq!(opened.len(), settled.len(), "each question has its end");
    }
}

#[test]
fn a_turn_that_ends_in_time_is_let_end_before_a_stop() {
    let mut desk = demo_desk().limit("drain_s", 10).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let from = one.mark();
    let running = begin_prompt(&mut one, &session, "say a\nwait 700\nsay b");
    one.wait_update(&session, from, "the turn", |it| it["content"]["text"] == "a");
    let began = Instant::now();
    assert!(desk.stop().success());
    assert!(began.elapsed() < Duration::from_secs(8), "nobody waits longer than the turn");
    assert_eq!(one.wait(running, SOON).expect("it ends")["stopReason"], "end_turn");
    assert_eq!(seen(&one.updates(&session, from)), ["agent:a", "agent:b"]);
    nothing_runs_but(&desk, &mut one);
    desk.start();
    let mut next = client(&desk);
    assert_eq!(status(&mut next, &session).0, "inactive");
    next.ok("session/load", place(&desk, Some(&session)));
    turn(&mut next, &session, "say c");
}

#[test]
fn a_stop_while_an_agent_starts_waits_for_nobody() {
    for slow in [600, 30_000] {
        let agent = demo("demo", &["--slow-start", &slow.to_string()]);
        let desk = Desk::builder().limit("drain_s", 1).agent(demo("quick", &[])).agent(agent);
        let mut desk = desk.open();
        let mut quick = client_of(&desk, "quick", refuse_all());
        let session = new_session(&desk, &mut quick);
        turn(&mut quick, &session, "say hello");
        // An endpoint of its own would start the agent to answer `initialize`.
        let mut one = desk.acp_unbound(refuse_all());
        one.initialize(json!({}));
        let mut params = place(&desk, None);
        params["_meta"] = json!({ "frontdesk": { "agent": "demo" } });
        let made = one.begin("session/new", params);
        std::thread::sleep(Duration::from_millis(250));
        let began = Instant::now();
        assert!(desk.stop().success());
        let took = began.elapsed();
        assert!(took < SOON, "{slow}: it took {took:?}");
        let made = one.wait(made, SOON);
        nothing_runs_but(&desk, &mut one);
        desk.start();
        let mut next = client_of(&desk, "quick", refuse_all());
        assert_eq!(status(&mut next, &session).0, "inactive");
        match made {
            // It was made a moment before: then it is there.
            Ok(made) => {
                let id = made["sessionId"].as_str().expect("it has an id");
                assert_eq!(status(&mut next, id).0, "inactive");
            }
            Err(error) => {
                let codes = [-31001, -31002, -31006];
                assert!(codes.contains(&error.code), "{slow}: {error:?}");
            }
        }
    }
}

#[test]
fn a_stop_while_a_session_is_called_back_unloads_it() {
    let agent = demo("demo", &["--slow-start", "1200"]);
    let mut desk = Desk::builder().limit("drain_s", 1).agent(agent).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say hello");
    one.ok("session/close", json!({ "sessionId": session }));
    desk.restart();
    let mut one = client(&desk);
    let loading = one.begin("session/load", place(&desk, Some(&session)));
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    assert!(desk.stop().success());
    let took = began.elapsed();
    assert!(took < SOON, "it took {took:?}");
    // Loaded or refused: it is answered.
    let _ = one.wait(loading, SOON);
    nothing_runs_but(&desk, &mut one);
    desk.start();
    let mut next = client(&desk);
    assert_eq!(status(&mut next, &session).0, "inactive");
    next.ok("session/load", place(&desk, Some(&session)));
    assert_eq!(told(&log(&mut next, &session)).len(), 2);
}

/// Waits until nothing of the desk runs; the client's shim ends with its daemon.
fn nothing_runs_but(desk: &Desk, client: &mut Acp) {
    assert!(client.wait_exit(SOON).is_some(), "a shim outlives its daemon");
    nothing_runs(desk);
}
