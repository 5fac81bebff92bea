//! Several sessions in one instance: what happens to one must not give another a second owner.

use serde_json::json;

use super::{
    SOON, agent_lives, begin_prompt, client, demo, endings, eventually, log, native, new_session,
    openings, place, status, store, turn,
};
use crate::acp::{ANSWER, Acp, prompt};
use crate::desk::Desk;

/// A desk whose instances take four sessions each, with quick cancel limits.
fn shared_desk() -> Desk {
    let agent = demo("demo", &[]).setting("sessions_per_instance = 4");
    let desk = Desk::builder().agent(agent);
    desk.limit("cancel_grace_ms", 200).limit("cancel_kill_ms", 1_200).open()
}

/// The processes that have ever had a session and live.
fn owners(desk: &Desk, native: &str) -> Vec<i32> {
    let mut pids: Vec<i32> =
        openings(&store(desk), native).into_iter().map(|(_, pid)| pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.retain(|pid| agent_lives(*pid));
    pids
}

fn hang_and_cancel(client: &mut Acp, session: &str) {
    let from = client.mark();
    let hanging = begin_prompt(client, session, "say I hang\nhang");
    client.wait_update(session, from, "the turn", |it| it["content"]["text"] == "I hang");
    client.notify("session/cancel", json!({ "sessionId": session }));
    let answer = client.wait(hanging, ANSWER).expect("a cancel is no error");
    assert_eq!(answer["stopReason"], "cancelled");
}

#[test]
fn a_crash_of_a_shared_instance_answers_all_and_all_come_back() {
    let desk = shared_desk();
    let mut one = client(&desk);
    let sessions: Vec<String> = (0..4).map(|_| new_session(&desk, &mut one)).collect();
    assert_eq!(desk.instances(), 1, "{:?}", desk.processes());
    let running: Vec<_> = sessions[1..]
        .iter()
        .map(|session| {
            let from = one.mark();
            let running = begin_prompt(&mut one, session, "say x\nwait 20000");
            one.wait_update(session, from, "the turn", |it| it["content"]["text"] == "x");
            running
        })
        .collect();
    let error = one.err("session/prompt", prompt(&sessions[0], "say x\ncrash"));
    assert_eq!((error.code, &error.data["sessionId"]), (-31002, &json!(sessions[0])));
    for (pending, session) in running.into_iter().zip(&sessions[1..]) {
        let error = one.wait(pending, SOON).expect_err("its instance crashed");
        assert_eq!((error.code, &error.data["sessionId"]), (-31002, &json!(session)));
    }
    for session in &sessions {
        turn(&mut one, session, "say again");
        assert_eq!(endings(&log(&mut one, session)).len(), 2);
        let native = native(&mut one, session);
        assert_eq!(owners(&desk, &native).len(), 1);
    }
}

#[test]
fn a_stuck_turn_beside_an_idle_session_ends_their_instance() {
    let desk = shared_desk();
    let mut one = client(&desk);
    let (stuck, idle) = (new_session(&desk, &mut one), new_session(&desk, &mut one));
    let (stuck_native, idle_native) = (native(&mut one, &stuck), native(&mut one, &idle));
    turn(&mut one, &idle, "say before");
    hang_and_cancel(&mut one, &stuck);
    assert_eq!(one.err("session/prompt", prompt(&stuck, "say too early")).code, -31011);
    for session in [&stuck, &idle] {
        turn(&mut one, session, "say after");
    }
    for native in [&stuck_native, &idle_native] {
        assert_eq!(owners(&desk, native).len(), 1, "{:?}", openings(&store(&desk), native));
    }
    let first = openings(&store(&desk), &stuck_native)[0].1;
    assert!(!agent_lives(first), "the process with the stuck turn is gone");
}

#[test]
fn a_stuck_turn_beside_a_running_one_does_not_cut_it_off() {
    let desk = shared_desk();
    let (mut one, mut two) = (client(&desk), client(&desk));
    let stuck = new_session(&desk, &mut one);
    let busy = new_session(&desk, &mut two);
    let native = native(&mut one, &stuck);
    assert_eq!(desk.instances(), 1, "{:?}", desk.processes());
    let running = begin_prompt(&mut two, &busy, "say a\nwait 5000\nsay b");
    hang_and_cancel(&mut one, &stuck);
    assert_eq!(one.err("session/prompt", prompt(&stuck, "say too early")).code, -31011);
    assert_eq!(status(&mut two, &busy).0, "active");
    // Nobody else has the session while the first one may, and prompts are told so.
    assert_eq!(one.err("session/prompt", prompt(&stuck, "say still too early")).code, -31011);
    let owners = owners(&desk, &native);
    assert_eq!(owners.len(), 1, "{owners:?} have it: {:?}", openings(&store(&desk), &native));
    let answer = two.wait(running, ANSWER).expect("its turn ends by itself");
    assert_eq!(answer["stopReason"], "end_turn");
    // Now the instance may go, and the session comes back.
    eventually("the end of the stuck instance", SOON, || !agent_lives(owners[0]));
    turn(&mut one, &stuck, "say after");
    turn(&mut two, &busy, "say after");
}

/// An agent that cannot be told to let a session go still has it: nobody else may.
#[test]
fn a_session_that_its_agent_cannot_close_has_one_owner_all_the_same() {
    let agent = demo("demo", &["--no-close"]).setting("sessions_per_instance = 2");
    let desk = Desk::builder().agent(agent).open();
    let mut one = client(&desk);
    let (first, second) = (new_session(&desk, &mut one), new_session(&desk, &mut one));
    for session in [&first, &second] {
        turn(&mut one, session, "say hello");
    }
    let native = native(&mut one, &first);
    one.ok("session/close", json!({ "sessionId": first }));
    // Its place is taken by another one.
    let third = new_session(&desk, &mut one);
    turn(&mut one, &third, "say hello");
    one.ok("session/resume", place(&desk, Some(&first)));
    turn(&mut one, &first, "say again");
    let owners = owners(&desk, &native);
    assert_eq!(owners.len(), 1, "{owners:?} have it: {:?}", openings(&store(&desk), &native));
}

#[test]
fn one_session_of_a_shared_instance_moves_to_a_new_one_only_when_it_is_let_go() {
    let desk = shared_desk();
    let mut one = client(&desk);
    let (first, second) = (new_session(&desk, &mut one), new_session(&desk, &mut one));
    for session in [&first, &second] {
        turn(&mut one, session, "say hello");
    }
    let native = native(&mut one, &first);
    for _ in 0..5 {
        one.ok("session/close", json!({ "sessionId": first }));
        assert_eq!(status(&mut one, &first).0, "inactive");
        assert_eq!(status(&mut one, &second).0, "active");
        one.ok("session/resume", place(&desk, Some(&first)));
        turn(&mut one, &first, "say again");
        assert_eq!(owners(&desk, &native).len(), 1);
    }
    assert_eq!(desk.instances(), 1);
}
