//! Idle unload: what nobody uses leaves memory and comes back unnoticed; what waits stays.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{
    SOON, begin_prompt, client, client_of, demo, endings, eventually, log, native, new_session,
    of_kind, openings, place, seen, status, store, told, turn,
};
use crate::acp::{ANSWER, Reply, refuse_all};
use crate::desk::{Desk, DeskBuilder};

/// Longer than the idle time of these desks, by far.
const LONG: Duration = Duration::from_millis(2_600);

fn idle_desk(args: &[&str]) -> DeskBuilder {
    Desk::builder().setting("idle_unload_s = 1").agent(demo("demo", args))
}

/// Unloaded when idle, called back by the next prompt, for agents that come back in different ways.
#[test]
fn an_idle_session_is_unloaded_and_comes_back_unnoticed() {
    for args in [&[][..], &["--no-resume"], &["--no-load"], &["--stay", "--no-close"]] {
        let desk = idle_desk(args).open();
        let (mut one, mut two) = (client(&desk), client(&desk));
        let session = new_session(&desk, &mut one);
        let native = native(&mut one, &session);
        turn(&mut one, &session, "say first");
        two.ok("session/load", place(&desk, Some(&session)));
        desk.wait_instances(0, SOON);
        // The process is gone a moment before the session is said to be.
        eventually("the unload's end", SOON, || status(&mut one, &session).0 == "inactive");
        let (from_one, from_two) = (one.mark(), two.mark());
        turn(&mut one, &session, "say second");
        turn(&mut two, &session, "say third");
        two.wait_update(&session, from_two, "the third", |it| it["content"]["text"] == "third");
        one.wait_update(&session, from_one, "the third", |it| it["content"]["text"] == "third");
        let by_one = ["agent:second", "user:say third", "agent:third"];
        assert_eq!(seen(&one.updates(&session, from_one)), by_one, "{args:?}");
        let by_two = ["user:say second", "agent:second", "agent:third"];
        assert_eq!(seen(&two.updates(&session, from_two)), by_two, "{args:?}");
        let all: Vec<String> = ["first", "second", "third"]
            .iter()
            .flat_map(|it| [format!("user:say {it}"), format!("agent:{it}")])
            .collect();
        let records = log(&mut one, &session);
        assert_eq!(told(&records), all, "{args:?}");
        assert_eq!(endings(&records).len(), 3);
        assert_eq!(of_kind(&records, "closed")[0]["reason"], "idle");
        let mut three = client(&desk);
        let from = three.mark();
        three.ok("session/load", place(&desk, Some(&session)));
        assert_eq!(seen(&three.updates(&session, from)), all, "{args:?}");
        assert_eq!(openings(&store(&desk), &native).len(), 2, "{args:?}");
    }
}

#[test]
fn what_waits_for_a_person_or_has_done_nothing_stays() {
    let desk = idle_desk(&[]).open();
    let mut asked = client_of(&desk, "demo", Arc::new(|_| Reply::Silence));
    let mut fresh = client(&desk);
    let mut busy = client(&desk);
    let waiting = new_session(&desk, &mut asked);
    let untouched = new_session(&desk, &mut fresh);
    let working = new_session(&desk, &mut busy);
    turn(&mut asked, &waiting, "say hello");
    let asking = begin_prompt(&mut asked, &waiting, "ask May I?");
    let question = asked.wait_ask(0, "session/request_permission");
    let quiet = begin_prompt(&mut busy, &working, "say a\nwait 9000\nsay b");
    std::thread::sleep(LONG);
    for (client, session) in
        [(&mut asked, &waiting), (&mut fresh, &untouched), (&mut busy, &working)]
    {
        assert_eq!(status(client, session).0, "active", "{session}");
    }
    assert_eq!(desk.instances(), 3);
    assert!(!asked.is_answered(asking));
    // The question can still be answered.
    let outcome =
        json!({ "outcome": "selected", "optionId": question.params["options"][0]["optionId"] });
    asked.send(&json!({ "jsonrpc": "2.0", "id": question.id, "result": { "outcome": outcome } }));
    assert_eq!(asked.wait(asking, ANSWER).expect("it goes on")["stopReason"], "end_turn");
    assert_eq!(busy.wait(quiet, ANSWER).expect("a quiet turn ends")["stopReason"], "end_turn");
    turn(&mut fresh, &untouched, "say I am used now");
    // Now all three may go.
    desk.wait_instances(0, SOON);
}

#[test]
fn a_question_without_anybody_attached_keeps_its_session() {
    let desk = idle_desk(&[]).open();
    let mut asked = client_of(&desk, "demo", Arc::new(|_| Reply::Silence));
    let session = new_session(&desk, &mut asked);
    turn(&mut asked, &session, "say hello");
    let _ = begin_prompt(&mut asked, &session, "ask May I?\nsay thanks");
    asked.wait_ask(0, "session/request_permission");
    drop(asked);
    std::thread::sleep(LONG);
    let mut next = client_of(
        &desk,
        "demo",
        crate::editor::editor(desk.work(), crate::editor::Permission::Allow),
    );
    assert_eq!(status(&mut next, &session).0, "active");
    let from = next.mark();
    next.ok("session/load", place(&desk, Some(&session)));
    next.wait_update(&session, from, "the rest", |it| it["content"]["text"] == "thanks");
    assert_eq!(endings(&log(&mut next, &session)).len(), 2);
}

#[test]
fn an_agent_that_cannot_come_back_is_never_unloaded() {
    let desk = idle_desk(&["--no-load", "--no-resume"]).open();
    let mut one = client_of(&desk, "demo", refuse_all());
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say hello");
    std::thread::sleep(LONG);
    assert_eq!(status(&mut one, &session).0, "active");
    turn(&mut one, &session, "say still here");
    assert_eq!(openings(&store(&desk), &native(&mut one, &session)).len(), 1);
}

#[test]
fn prompts_that_meet_an_unload_are_answered() {
    let desk = idle_desk(&[]).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say begin");
    let mut said = vec!["begin".to_owned()];
    for round in 0..6 {
        // Around the moment of the unload: a little before, in it, a little after.
        std::thread::sleep(Duration::from_millis(985 + 6 * round));
        turn(&mut one, &session, &format!("say {round}"));
        said.push(round.to_string());
    }
    let records = log(&mut one, &session);
    let wanted: Vec<String> =
        said.iter().flat_map(|it| [format!("user:say {it}"), format!("agent:{it}")]).collect();
    assert_eq!(told(&records), wanted);
}
