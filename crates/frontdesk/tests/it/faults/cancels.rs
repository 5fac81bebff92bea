//! Cancelling: by whoever takes part, at any moment, with one answer for every prompt and question.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    Chance, SOON, begin_prompt, client, client_of, demo_desk, endings, eventually, log, native,
    new_session, of_kind, openings, place, status, store, stored, turn,
};
use crate::acp::{ANSWER, Acp, Pending, Reply};
use crate::desk::Desk;

/// Cancels one request of a client's own.
fn cancel_request(acp: &Acp, prompt: Pending) {
    acp.notify("$/cancel_request", json!({ "requestId": prompt.id() }));
}

fn queued(acp: &mut Acp, session: &str, wanted: u64) {
    eventually("the prompts in the queue", SOON, || {
        acp.ok("_frontdesk/session", json!({ "sessionId": session }))["queuedTurns"] == wanted
    });
}

/// How many of the prompts with these words the agent ever had.
fn reached(stored: &[Value], words: &str) -> usize {
    stored.iter().filter(|line| line.to_string().contains(words)).count()
}

/// Two clients of one session in which the first one's turn runs, and does not end by itself.
fn two_in_a_turn(desk: &Desk) -> (Acp, Acp, String, Pending) {
    let (mut one, mut two) = (client(desk), client(desk));
    let session = new_session(desk, &mut one);
    turn(&mut one, &session, "say hello");
    two.ok("session/resume", place(desk, Some(&session)));
    let from = one.mark();
    let running = begin_prompt(&mut one, &session, "say begun\nwait 60000");
    one.wait_update(&session, from, "the turn", |it| it["content"]["text"] == "begun");
    (one, two, session, running)
}

#[test]
fn a_cancel_is_for_the_running_turn_of_anybody_and_the_callers_own_queue() {
    let desk = demo_desk().open();
    let (mut one, mut two, session, running) = two_in_a_turn(&desk);
    let mine = begin_prompt(&mut two, &session, "say of two");
    queued(&mut one, &session, 1);
    let others = begin_prompt(&mut one, &session, "say of one");
    queued(&mut one, &session, 2);
    let (from, from_two) = (one.mark(), two.mark());
    two.notify("session/cancel", json!({ "sessionId": session }));
    for (acp, prompt) in [(&one, running), (&two, mine)] {
        let answer = acp.wait(prompt, ANSWER).expect("a cancel is no error");
        assert_eq!(answer["stopReason"], "cancelled");
    }
    // What somebody else has waiting is not the caller's to cancel.
    assert_eq!(one.wait(others, ANSWER).expect("it runs")["stopReason"], "end_turn");
    assert_eq!(one.text(&session, "agent_message_chunk", from), "of one");
    two.wait_update(&session, from_two, "the next turn", |it| it["content"]["text"] == "of one");
    let outcomes: Vec<Value> =
        endings(&log(&mut one, &session)).iter().map(|it| it["outcome"].clone()).collect();
    assert_eq!(outcomes, ["completed", "cancelled", "cancelled", "completed"]);
    // Two cancels and one of nothing at all change nothing.
    two.notify("session/cancel", json!({ "sessionId": session }));
    one.notify("session/cancel", json!({ "sessionId": session }));
    // Both are dealt with, else they would be for the turn that follows.
    two.ok("_frontdesk/info", json!({}));
    turn(&mut one, &session, "say still here");
    let native = native(&mut one, &session);
    assert_eq!(openings(&store(&desk), &native).len(), 1, "the agent was left alone");
    assert_eq!(reached(&stored(&store(&desk), &native), "of two"), 0);
}

#[test]
fn a_request_is_cancelled_where_it_is_waiting_running_or_done() {
    let desk = demo_desk().open();
    let (mut one, mut two, session, running) = two_in_a_turn(&desk);
    let waiting = begin_prompt(&mut two, &session, "say never");
    queued(&mut one, &session, 1);
    // It waits: taken back at once; the running one of the same connection's other client is not.
    cancel_request(&two, waiting);
    assert_eq!(two.wait(waiting, ANSWER).expect_err("it was taken back").code, -32800);
    assert_eq!(status(&mut one, &session).1["state"], "running");
    // An id of somebody else's, or of nothing, cancels nothing.
    two.notify("$/cancel_request", json!({ "requestId": running.id() + 1_000 }));
    two.ok("_frontdesk/info", json!({}));
    assert_eq!(status(&mut one, &session).1["state"], "running");
    // It runs: the agent is told under the id of its own hop, and answers itself.
    cancel_request(&one, running);
    assert_eq!(one.wait(running, ANSWER).expect_err("the agent ends it").code, -32800);
    // It is done: nothing more is answered, and the session goes on.
    cancel_request(&one, running);
    cancel_request(&two, waiting);
    turn(&mut one, &session, "say after");
    let records = log(&mut one, &session);
    let outcomes: Vec<Value> = endings(&records).iter().map(|it| it["outcome"].clone()).collect();
    assert_eq!(outcomes, ["completed", "cancelled", "cancelled", "completed"]);
    let native = native(&mut one, &session);
    assert_eq!(reached(&stored(&store(&desk), &native), "never"), 0);
}

#[test]
fn a_question_that_is_answered_and_cancelled_in_the_same_moment_has_one_end() {
    let mut chance = Chance::new("answered_and_cancelled");
    let desk = demo_desk().open();
    let silent = || -> crate::acp::Answers { Arc::new(|_| Reply::Silence) };
    let (mut one, mut two) =
        (client_of(&desk, "demo", silent()), client_of(&desk, "demo", silent()));
    let mut outside = client(&desk);
    let session = new_session(&desk, &mut one);
    two.ok("session/resume", place(&desk, Some(&session)));
    let rounds = 60;
    for round in 0..rounds {
        let from = one.mark();
        let running = begin_prompt(&mut one, &session, "ask May I?\nsay done");
        let asked = one.wait_ask(from, "session/request_permission");
        let yes = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
        let open = one.ok("_frontdesk/pending", json!({ "sessionId": session }));
        let mut late = yes.clone();
        late["interaction"] = open["pending"][0]["interaction"].clone();
        let answer = json!({ "jsonrpc": "2.0", "id": asked.id, "result": yes });
        let cancel = |acp: &Acp| acp.notify("session/cancel", json!({ "sessionId": session }));
        let told = match chance.below(4) {
            0 => {
                one.send(&answer);
                cancel(&two);
                None
            }
            1 => {
                cancel(&two);
                one.send(&answer);
                None
            }
            2 => {
                let told = outside.begin("_frontdesk/answer", late);
                cancel(&two);
                Some(told)
            }
            _ => {
                cancel(&one);
                Some(outside.begin("_frontdesk/answer", late))
            }
        };
        let ended = one.wait(running, ANSWER).expect("a cancel is no error");
        let reason = ended["stopReason"].as_str().unwrap_or_default().to_owned();
        assert!(matches!(reason.as_str(), "end_turn" | "cancelled"), "round {round}: {ended}");
        let told = told.map(|told| outside.wait(told, ANSWER));
        let records = log(&mut outside, &session);
        let settled = of_kind(&records, "interaction_settled");
        assert_eq!(settled.len(), round + 1, "round {round}");
        let outcome = settled[round]["outcome"].as_str().unwrap_or_default();
        match &told {
            Some(Ok(_)) => assert_eq!(outcome, "answered", "round {round}"),
            Some(Err(error)) => {
                assert_eq!((error.code, outcome), (-31018, "cancelled"), "round {round}");
            }
            None => assert!(matches!(outcome, "answered" | "cancelled"), "round {round}"),
        }
        if reason == "end_turn" {
            assert_eq!(outcome, "answered", "round {round}: nobody is let through unasked");
        }
        let left = outside.ok("_frontdesk/pending", json!({}));
        assert_eq!(left["pending"], json!([]), "round {round}");
        assert_eq!(status(&mut outside, &session).1["state"], "idle", "round {round}");
    }
    let records = log(&mut outside, &session);
    assert_eq!(endings(&records).len(), rounds);
    let count = |word: &str| {
        let all = of_kind(&records, "interaction_settled");
        all.iter().filter(|it| it["outcome"] == word).count()
    };
    println!("answered {}, cancelled {}", count("answered"), count("cancelled"));
    let native = native(&mut one, &session);
    assert_eq!(openings(&store(&desk), &native).len(), 1);
}
