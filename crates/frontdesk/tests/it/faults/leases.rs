//! Racing for one session: two clients of one home (see also case C09), and two homes on one store.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use serde_json::json;

use super::homes::{only_one_at_a_time, store_of, two_homes};
use super::{
    Chance, agent_lives, client, cold_session, demo_desk, native, new_session, openings, place,
    rounds, seen, status, store, turn,
};
use crate::acp::prompt;

#[test]
fn c09_racing_resumes_reach_one_instance_once() {
    let desk = demo_desk().open();
    let mut chance = Chance::new("c09");
    let (session, native) = cold_session(&desk);
    let mut clients = vec![client(&desk), client(&desk)];
    let rounds = rounds(50);
    for round in 0..rounds {
        let before = openings(&store(&desk), &native).len();
        let gate = Arc::new(Barrier::new(2));
        let racing: Vec<_> = clients
            .drain(..)
            .map(|mut racer| {
                let (gate, params) = (gate.clone(), place(&desk, Some(&session)));
                let jitter = Duration::from_micros(chance.below(3_000));
                thread::spawn(move || {
                    gate.wait();
                    thread::sleep(jitter);
                    racer.ok("session/resume", params);
                    racer
                })
            })
            .collect();
        clients.extend(racing.into_iter().map(|it| it.join().expect("both are let in")));
        let opened = openings(&store(&desk), &native).len() - before;
        assert_eq!(opened, 1, "round {round}: one resume for both");
        if round % 10 == 0 {
            // Both are attached there: what one does the other one sees.
            let marks: Vec<usize> = clients.iter().map(|client| client.mark()).collect();
            turn(&mut clients[0], &session, "say one");
            clients[1].wait_update(&session, marks[1], "the other's turn", |it| {
                it["content"]["text"] == "one" && it["sessionUpdate"] == "agent_message_chunk"
            });
            turn(&mut clients[1], &session, "say two");
            clients[0].wait_update(&session, marks[0], "the other's turn", |it| {
                it["content"]["text"] == "two" && it["sessionUpdate"] == "agent_message_chunk"
            });
            let told = seen(&clients[0].updates(&session, marks[0]));
            assert_eq!(told, ["agent:one", "user:say two", "agent:two"]);
        }
        let force = json!({ "sessionId": session, "_meta": { "frontdesk": { "force": true } } });
        clients[0].ok("session/close", force);
    }
    println!("c09: {rounds} races, one opening each");
}

#[test]
fn c09_where_the_resume_fails_both_are_told_and_nothing_stays() {
    let desk = demo_desk().open();
    let (session, native) = cold_session(&desk);
    std::fs::remove_file(store(&desk).join(format!("{native}.jsonl"))).expect("it is stored");
    let mut racers = [client(&desk), client(&desk)];
    let params = place(&desk, Some(&session));
    let waiting = racers.each_mut().map(|racer| racer.begin("session/resume", params.clone()));
    for (racer, pending) in racers.iter().zip(waiting) {
        let error = racer.wait(pending, super::SOON).expect_err("its agent does not have it");
        assert_eq!((error.code, &error.data["sessionId"]), (-32002, &json!(session)));
    }
    assert_eq!(status(&mut client(&desk), &session).0, "inactive");
    for racer in &mut racers {
        assert_eq!(racer.err("session/prompt", prompt(&session, "say x")).code, -32002);
    }
}

#[test]
fn two_homes_that_race_for_one_session_never_both_have_it() {
    let shared = tempfile::tempdir().expect("a folder");
    let (first, second) = two_homes(shared.path());
    let store = store_of(shared.path());
    let mut chance = Chance::new("two homes");
    let mut one = client(&first);
    let session = new_session(&first, &mut one);
    let native = native(&mut one, &session);
    turn(&mut one, &session, "say hello");
    one.ok("session/close", json!({ "sessionId": session }));
    let folder = place(&first, None)["cwd"].clone();
    let mut racers = vec![(one, session.clone()), (client(&second), native.clone())];
    let (mut won, rounds) = ([0_u64; 2], rounds(20));
    for round in 0..rounds {
        let gate = Arc::new(Barrier::new(2));
        let racing: Vec<_> = racers
            .drain(..)
            .map(|(mut racer, id)| {
                let params = json!({ "sessionId": id, "cwd": folder, "mcpServers": [] });
                let (gate, jitter) = (gate.clone(), Duration::from_micros(chance.below(3_000)));
                thread::spawn(move || {
                    gate.wait();
                    thread::sleep(jitter);
                    let outcome = racer.request("session/resume", params);
                    (racer, id, outcome)
                })
            })
            .collect();
        let mut winner = None;
        for (at, race) in racing.into_iter().enumerate() {
            let (racer, id, outcome) = race.join().expect("both are answered");
            match outcome {
                Ok(_) => {
                    assert_eq!(winner.replace(at), None, "round {round}: both homes have it");
                }
                Err(error) => assert_eq!(error.code, -31005, "round {round}: {error:?}"),
            }
            racers.push((racer, id));
        }
        let winner = winner.unwrap_or_else(|| panic!("round {round}: nobody got it"));
        won[winner] += 1;
        let alive = openings(&store, &native).into_iter().map(|(_, pid)| pid);
        let mut alive: Vec<i32> = alive.filter(|pid| agent_lives(*pid)).collect();
        alive.sort_unstable();
        alive.dedup();
        assert_eq!(alive.len(), 1, "round {round}: {alive:?} have it");
        let (racer, id) = &mut racers[winner];
        racer.ok("session/close", json!({ "sessionId": id }));
        only_one_at_a_time(&store, &native);
    }
    println!("two homes: {rounds} races, won {won:?}");
}
