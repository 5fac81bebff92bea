//! Racing resumes and loads: one instance each time, and everybody is let in.

use serde_json::json;

use super::{
    Chance, client, cold_session, demo_desk, native, new_session, openings, place, same, seen,
    store, turn,
};
use crate::acp::{ANSWER, Acp};

/// Clients that want the session at once.
const RACERS: usize = 8;
/// How often.
const ROUNDS: usize = 25;

#[test]
fn racing_resumes_of_a_cold_session_start_one_agent() {
    let mut chance = Chance::new("racing_resumes");
    let desk = demo_desk().open();
    let (session, native) = cold_session(&desk);
    let mut racers: Vec<Acp> = (0..RACERS).map(|_| client(&desk)).collect();
    let mut marks = [0; RACERS];
    for round in 0..ROUNDS {
        let before = openings(&store(&desk), &native);
        let begun: Vec<_> = racers
            .iter_mut()
            .map(|racer| {
                let load = chance.below(2) == 0;
                let method = if load { "session/load" } else { "session/resume" };
                // Some come by the agent's own id, and some a little later.
                let id = if chance.below(3) == 0 { &native } else { &session };
                if chance.below(4) == 0 {
                    chance.pause(30);
                }
                (racer.begin(method, place(&desk, Some(id))), id.clone())
            })
            .collect();
        for (racer, (pending, _)) in racers.iter().zip(&begun) {
            let answer = racer.wait(*pending, ANSWER);
            assert!(answer.is_ok(), "round {round}: {answer:?}\n{}", racer.transcript());
        }
        let opened = openings(&store(&desk), &native)[before.len()..].to_vec();
        assert_eq!(opened.len(), 1, "round {round}: {opened:?}");
        assert_eq!(desk.instances(), 1, "round {round}: {:?}", desk.processes());
        for (mark, racer) in marks.iter_mut().zip(&racers) {
            *mark = racer.mark();
        }
        let chance_one = usize::try_from(chance.below(RACERS as u64)).expect("a small number");
        let words = format!("stream {}", 20 + round);
        let id = begun[chance_one].1.clone();
        turn(&mut racers[chance_one], &id, &words);
        let closer = (chance_one + 1) % RACERS;
        racers[closer].ok(
            "session/close",
            json!({ "sessionId": begun[closer].1, "_meta": { "frontdesk": { "force": true } } }),
        );
        desk.wait_instances(0, super::SOON);
        for (at, racer) in racers.iter().enumerate() {
            let mut wanted: Vec<String> =
                (1..=20 + round).map(|n| format!("agent:chunk {n} of {} ", 20 + round)).collect();
            if at != chance_one {
                wanted.insert(0, format!("user:{words}"));
            }
            // A close is told to all in order, so what is not there now was never sent.
            racer.wait_update(&begun[at].1, marks[at], "the last chunk", |update| {
                update["content"]["text"]
                    .as_str()
                    .is_some_and(|text| wanted.last().is_some_and(|it| it.ends_with(text)))
            });
            let found = seen(&racer.updates(&begun[at].1, marks[at]));
            same(&found, &wanted, &format!("round {round}, racer {at}"));
        }
    }
}

#[test]
fn a_close_that_meets_racing_resumes_leaves_nobody_without_an_answer() {
    let mut chance = Chance::new("a_close_that_meets_racing_resumes");
    let desk = demo_desk().open();
    let mut racers: Vec<Acp> = (0..4).map(|_| client(&desk)).collect();
    let session = new_session(&desk, &mut racers[0]);
    let native = native(&mut racers[0], &session);
    turn(&mut racers[0], &session, "say hello");
    for round in 0..15 {
        let close = json!({ "sessionId": session, "_meta": { "frontdesk": { "force": true } } });
        let closing = racers[0].begin("session/close", close);
        chance.pause(20);
        let begun: Vec<_> = racers[1..]
            .iter_mut()
            .map(|racer| {
                chance.pause(10);
                racer.begin("session/resume", place(&desk, Some(&session)))
            })
            .collect();
        racers[0].wait(closing, ANSWER).expect("a close is answered");
        for (racer, pending) in racers[1..].iter().zip(begun) {
            // An early one may be closed before it was let in; it is told so.
            if let Err(error) = racer.wait(pending, ANSWER) {
                assert_eq!(error.code, -31002, "round {round}: {error:?}");
            }
        }
        racers[0].ok("session/resume", place(&desk, Some(&session)));
        turn(&mut racers[0], &session, "say again");
        assert_eq!(desk.instances(), 1, "round {round}");
        let opened = openings(&store(&desk), &native);
        let (_, last) = opened.last().expect("somebody has it");
        for (_, pid) in &opened {
            assert!(pid == last || !super::agent_lives(*pid), "round {round}: {opened:?}");
        }
    }
}
