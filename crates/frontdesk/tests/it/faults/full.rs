//! A disk that fills up under a running daemon, and one that cannot be written at all.

use serde_json::{Value, json};

use super::asks::silent;
use super::carry::answer_that_was_not_sent;
use super::{
    SOON, begin_prompt, client, demo_desk, endings, eventually, log, new_session, of_kind, place,
    same, seen, status, told, turn,
};
use crate::acp::{Acp, prompt};
use crate::desk::{Desk, DeskBuilder};
use crate::small_disk::SmallDisk;

/// Size of the disk.
const DISK_MIB: u32 = 24;
/// How often the disk fills up in one stream.
const FILLS: usize = 4;
/// `Behind`.
const BEHIND: i64 = -31013;

/// A desk whose data lies on a small disk; `None` if there may be none.
fn small_desk() -> Option<(Desk, SmallDisk)> {
    lay(demo_desk())
}

fn lay(desk: DeskBuilder) -> Option<(Desk, SmallDisk)> {
    let mut desk =
        desk.limit("cancel_grace_ms", 500).limit("agent_close_ms", 500).limit("drain_s", 1).build();
    let disk = SmallDisk::lay(&desk.home().join("data"), DISK_MIB)?;
    desk.start();
    Some((desk, disk))
}

fn is_behind(client: &mut Acp, session: &str) -> bool {
    status(client, session).1["behind"] == true
}

/// What a client saw, without the remarks about the disk.
fn without_remarks(updates: &[Value]) -> Vec<String> {
    let own = |update: &&Value| update["_meta"]["frontdesk"].get("behind").is_none();
    seen(&updates.iter().filter(own).cloned().collect::<Vec<_>>())
}

/// The remarks about the disk: fallen behind, caught up.
fn remarks(updates: &[Value]) -> Vec<bool> {
    let behind = |update: &Value| update["_meta"]["frontdesk"]["behind"].as_bool();
    updates.iter().filter_map(behind).collect()
}

#[test]
fn a_full_disk_is_left_again_with_everything_in_order_and_once() {
    let Some((mut desk, disk)) = small_desk() else { return };
    let mut one = client(&desk);
    let mut looker = client(&desk);
    let session = new_session(&desk, &mut one);
    let other = new_session(&desk, &mut looker);
    looker.ok("session/close", json!({ "sessionId": other }));
    let from = one.mark();
    let running = begin_prompt(&mut one, &session, "stream 300 every 10");
    eventually("the stream begins", SOON, || one.updates(&session, from).len() > 20);
    disk.fill();
    eventually("it is told", SOON, || is_behind(&mut looker, &session));
    let info = looker.ok("_frontdesk/info", json!({}));
    assert_eq!(info["disk"]["full"], true, "{info}");
    assert_eq!(looker.ok("_frontdesk/session", json!({ "sessionId": session }))["behind"], true);
    // Nothing new is begun.
    for (method, params) in [
        ("session/new", place(&desk, None)),
        ("session/load", place(&desk, Some(&other))),
        ("session/resume", place(&desk, Some(&other))),
    ] {
        let error = looker.err(method, params);
        assert_eq!((error.code, &error.data["retryable"]), (BEHIND, &json!(true)), "{error:?}");
    }
    // What runs can be joined and read.
    let mut second = client(&desk);
    let joined = second.mark();
    second.ok("session/load", place(&desk, Some(&session)));
    let history = without_remarks(&second.updates(&session, joined));
    assert!(history.len() > 20, "{history:?}");
    let error = second.err("session/prompt", prompt(&session, "say more"));
    assert_eq!(error.code, BEHIND, "{error:?}");
    // Nothing is shown that is not in the journal.
    eventually("all that is journaled is shown", SOON, || {
        let there = told(&log(&mut looker, &session));
        there.len() == 1 + without_remarks(&one.updates(&session, from)).len()
    });
    let shown = without_remarks(&one.updates(&session, from));
    let there = told(&log(&mut looker, &session));
    same(&there[1..], &shown, "shown and journaled");
    assert!(shown.len() < 300, "the disk was full before the stream's end");

    disk.free();
    assert_eq!(one.wait(running, SOON).expect("the turn ends")["stopReason"], "end_turn");
    eventually("it has caught up", SOON, || !is_behind(&mut looker, &session));
    let updates = one.updates(&session, from);
    assert_eq!(remarks(&updates), [true, false]);
    let shown = without_remarks(&updates);
    assert_eq!(shown.len(), 300, "each once");
    let records = log(&mut looker, &session);
    same(&told(&records)[1..], &shown, "shown and journaled");
    assert_eq!(endings(&records).len(), 1);
    assert_eq!(of_kind(&records, "note").len(), 0, "remarks about the journal are not in it");
    turn(&mut one, &session, "say after");
    looker.ok("session/resume", place(&desk, Some(&other)));

    desk.kill9();
    desk.start();
    let mut later = client(&desk);
    let from = later.mark();
    later.ok("session/load", place(&desk, Some(&session)));
    let again = without_remarks(&later.updates(&session, from));
    same(&again[1..301], &shown, "loaded after a kill");
}

#[test]
fn what_is_held_back_keeps_its_order_where_less_may_be_held_than_comes() {
    // When the disk is found full one message is in the mailbox, and another one on its way there.
    let Some((desk, disk)) = lay(demo_desk().limit("lane_messages", 1)) else { return };
    let (mut one, mut looker) = (client(&desk), client(&desk));
    let session = new_session(&desk, &mut one);
    let from = one.mark();
    let running = begin_prompt(&mut one, &session, "stream 20000");
    let shown = |one: &Acp| one.updates(&session, from).len();
    for _ in 0..FILLS {
        let before = shown(&one);
        eventually("the stream goes on", SOON, || shown(&one) > before + 20);
        disk.fill();
        eventually("it is told", SOON, || is_behind(&mut looker, &session));
        disk.free();
        eventually("it has caught up", SOON, || !is_behind(&mut looker, &session));
    }
    // It takes as long as it takes, but it goes on.
    while !one.is_answered(running) {
        let before = one.mark();
        eventually("the stream goes on", SOON, || one.is_answered(running) || one.mark() > before);
    }
    assert_eq!(one.wait(running, SOON).expect("the turn ends")["stopReason"], "end_turn");
    let updates = one.updates(&session, from);
    assert_eq!(remarks(&updates).len(), 2 * FILLS, "it was full meanwhile");
    let wanted: Vec<String> = (1..=20000).map(|at| format!("agent:chunk {at} of 20000 ")).collect();
    same(&without_remarks(&updates), &wanted, "in order and once");
}

#[test]
fn cancel_and_close_work_while_the_disk_is_full() {
    let Some((desk, disk)) = small_desk() else { return };
    let (mut one, mut looker) = (client(&desk), client(&desk));
    let session = new_session(&desk, &mut one);
    let from = one.mark();
    let running = begin_prompt(&mut one, &session, "stream 100000 every 2");
    eventually("the stream begins", SOON, || one.updates(&session, from).len() > 20);
    disk.fill();
    eventually("it is told", SOON, || is_behind(&mut looker, &session));
    one.notify("session/cancel", json!({ "sessionId": session }));
    assert_eq!(one.wait(running, SOON).expect("it is answered")["stopReason"], "cancelled");
    let ended = of_kind(&log(&mut looker, &session), "turn_ended").len();
    assert_eq!(ended, 1, "out of the reserve");
    one.ok("session/close", json!({ "sessionId": session }));
    assert_eq!(status(&mut looker, &session).0, "inactive");
    assert!(is_behind(&mut looker, &session), "the disk is as full as before");
    let closed = of_kind(&log(&mut looker, &session), "closed").len();
    assert_eq!(closed, 1);
    disk.free();
    eventually("it has caught up", SOON, || !is_behind(&mut looker, &session));
    one.ok("session/load", place(&desk, Some(&session)));
    turn(&mut one, &session, "say again");
}

#[test]
fn who_has_a_session_is_told_while_the_disk_is_full() {
    let Some((desk, disk)) = lay(demo_desk().limit("probe_ms", 300)) else { return };
    let mut one = desk.acp("demo", silent());
    one.initialize(json!({ "elicitation": { "form": {} } }));
    let mut looker = client(&desk);
    let session = new_session(&desk, &mut one);
    let running = begin_prompt(&mut one, &session, "elicit What?");
    let question = one.wait_ask(0, "elicitation/create");
    // Nothing is left to write an answer with: its lane waits in the middle of its work.
    std::fs::remove_file(desk.home().join("data/reserve")).expect("there is a reserve");
    disk.fill();
    let mut askers: Vec<Acp> = (0..4).map(|_| client(&desk)).collect();
    let asked = json!({ "sessionId": session });
    let content = json!({ "answer": "x".repeat(2 << 20) });
    let answer = json!({ "action": "accept", "content": content });
    one.send(&json!({ "jsonrpc": "2.0", "id": question.id, "result": answer }));
    // Many ask meanwhile, some of them between its last word and its failure.
    let mut begun = Vec::new();
    for _ in 0..50 {
        for (at, asker) in askers.iter_mut().enumerate() {
            for method in ["_frontdesk/who", "_frontdesk/session"] {
                begun.push((at, asker.begin(method, asked.clone())));
            }
        }
    }
    for (at, begun) in begun {
        let told = askers[at].wait(begun, SOON).expect("who has it");
        assert_eq!(told["key"], session.as_str(), "{told}");
    }
    assert!(is_behind(&mut looker, &session), "the disk is as full as before");
    let who = looker.ok("_frontdesk/who", asked.clone());
    assert_eq!((&who["behind"], who.get("clients")), (&json!(true), None), "{who}");
    assert_eq!(who["lease"], "live");
    disk.free();
    assert_eq!(one.wait(running, SOON).expect("the turn ends")["stopReason"], "end_turn");
    let who = looker.ok("_frontdesk/who", asked);
    assert_eq!(who.get("behind"), None, "{who}");
    assert_eq!(who["clients"].as_array().map(Vec::len), Some(1), "{who}");
}

#[test]
fn a_daemon_can_be_stopped_while_the_disk_is_full() {
    let Some((mut desk, disk)) = small_desk() else { return };
    let (mut one, mut looker) = (client(&desk), client(&desk));
    let session = new_session(&desk, &mut one);
    let from = one.mark();
    let running = begin_prompt(&mut one, &session, "stream 100000 every 2");
    eventually("the stream begins", SOON, || one.updates(&session, from).len() > 20);
    disk.fill();
    eventually("it is told", SOON, || is_behind(&mut looker, &session));
    drop(looker);
    // Within the drain time and the holder's own: it cannot spool the agent's last words.
    assert!(desk.stop().success());
    assert_eq!(one.wait(running, SOON).expect("it is answered")["stopReason"], "cancelled");
    drop(one);
    disk.free();
    desk.start();
    let mut later = client(&desk);
    let records = log(&mut later, &session);
    assert_eq!(endings(&records)[0]["outcome"], "cancelled");
    later.ok("session/load", place(&desk, Some(&session)));
    turn(&mut later, &session, "say again");
}

#[test]
fn a_disk_that_is_full_at_the_start_serves_what_is_there() {
    let Some((mut desk, disk)) = small_desk() else { return };
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say hello");
    drop(one);
    desk.kill_all();
    std::fs::remove_file(desk.home().join("data/reserve")).expect("there is a reserve");
    disk.fill();
    desk.start();
    let mut later = client(&desk);
    assert!(is_behind(&mut later, &session));
    assert!(told(&log(&mut later, &session)).contains(&"agent:hello".to_owned()));
    assert_eq!(later.err("session/load", place(&desk, Some(&session))).code, BEHIND);
    disk.free();
    eventually("there is room", SOON, || !is_behind(&mut later, &session));
    later.ok("session/load", place(&desk, Some(&session)));
    turn(&mut later, &session, "say again");
}

#[test]
fn a_session_that_goes_on_and_can_write_nothing_does_not_hold_up_the_start() {
    let Some((mut desk, disk)) = small_desk() else { return };
    // Longer than any room that is left over.
    let session = answer_that_was_not_sent(&mut desk, &"x".repeat(1 << 20));
    std::fs::remove_file(desk.home().join("data/reserve")).expect("there is a reserve");
    disk.fill();
    desk.start();
    let mut later = client(&desk);
    assert_eq!(of_kind(&log(&mut later, &session), "turn_ended").len(), 0);
    disk.free();
    let ended = |client: &mut Acp| of_kind(&log(client, &session), "turn_ended").len() == 1;
    eventually("the turn ends", SOON, || ended(&mut later));
    let records = log(&mut later, &session);
    assert_eq!(endings(&records)[0]["outcome"], "completed");
    assert_eq!(told(&records)[1..], ["agent:Allowed (allow_once).", "agent:after"]);
}

#[test]
fn a_read_only_folder_is_read_and_every_write_refused_in_clear_words() {
    let Some((mut desk, mut disk)) = small_desk() else { return };
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say hello");
    drop(one);
    assert!(desk.stop().success());
    disk.set_read_only(true);
    desk.start();
    let mut later = client(&desk);
    let before = log(&mut later, &session);
    assert!(told(&before).contains(&"agent:hello".to_owned()));
    for (method, params) in
        [("session/load", place(&desk, Some(&session))), ("session/new", place(&desk, None))]
    {
        let error = later.err(method, params);
        assert_eq!(error.code, BEHIND, "{error:?}");
        assert!(error.message.contains("cannot be written"), "{error:?}");
    }
    drop(later);
    desk.kill9();
    disk.set_read_only(false);
    desk.start();
    let mut again = client(&desk);
    assert_eq!(log(&mut again, &session), before, "nothing is lost");
    again.ok("session/load", place(&desk, Some(&session)));
    turn(&mut again, &session, "say again");
}
