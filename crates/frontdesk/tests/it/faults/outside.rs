//! Sessions that went on outside Frontdesk, in the agent itself: found, continued, imported.

use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use super::{
    client, demo_desk, log, new_session, of_kind, openings, place, seen, status, store, told, turn,
};
use crate::acp::{Acp, refuse_all};
use crate::desk::{Desk, row};

/// Longer than an agent may save after its last word without having gone on.
const LATER: Duration = Duration::from_secs(3);

/// The agent itself, without Frontdesk.
fn directly(desk: &Desk) -> Acp {
    let mut client = desk.direct("demo", refuse_all());
    client.initialize(json!({}));
    client
}

/// Ends a client and waits until its agent has ended.
fn leave(client: Acp) {
    assert!(client.finish(super::SOON).is_some(), "the agent ends with its input");
}

#[test]
fn a_session_that_goes_in_and_out_is_whole_and_said_once() {
    let desk = demo_desk().limit("list_fresh_ms", 10).open();
    let mut outside = directly(&desk);
    let native = new_session(&desk, &mut outside);
    turn(&mut outside, &native, "say one");
    turn(&mut outside, &native, "stream 3");
    leave(outside);

    let mut one = client(&desk);
    let listed = one.ok("session/list", json!({}));
    assert!(row(&listed, &native)["title"].is_string());
    assert_eq!(status(&mut one, &native).0, "inactive");
    let mut wanted: Vec<String> = ["user:say one", "agent:one", "user:stream 3"]
        .into_iter()
        .map(str::to_owned)
        .chain((1..=3).map(|at| format!("agent:chunk {at} of 3 ")))
        .collect();
    let from = one.mark();
    one.ok("session/load", place(&desk, Some(&native)));
    assert_eq!(seen(&one.updates(&native, from)), wanted);
    turn(&mut one, &native, "say two");
    one.ok("session/close", json!({ "sessionId": native }));
    wanted.extend(["user:say two", "agent:two"].map(str::to_owned));
    assert_eq!(told(&log(&mut one, &native)), wanted);

    // Outside again, a little later, with a text that was there before.
    for round in 0..2 {
        sleep(LATER);
        let mut outside = directly(&desk);
        outside.ok("session/load", place(&desk, Some(&native)));
        turn(&mut outside, &native, "say one");
        leave(outside);
        wanted.extend(["user:say one", "agent:one"].map(str::to_owned));
        let from = one.mark();
        one.ok("session/load", place(&desk, Some(&native)));
        assert_eq!(seen(&one.updates(&native, from)), wanted, "round {round}");
        assert_eq!(told(&log(&mut one, &native)), wanted, "round {round}");
        let words = format!("say back {round}");
        turn(&mut one, &native, &words);
        wanted.extend([format!("user:{words}"), format!("agent:back {round}")]);
        one.ok("session/close", json!({ "sessionId": native }));
    }
    let listed = one.ok("session/list", json!({}));
    row(&listed, &native);
    let records = log(&mut one, &native);
    assert_eq!(told(&records), wanted);
    assert!(of_kind(&records, "note").is_empty(), "all of it could be matched");
    assert_eq!(openings(&store(&desk), &native).len(), 6);
}

#[test]
fn a_session_made_here_and_continued_outside_is_imported() {
    let mut desk = demo_desk().limit("list_fresh_ms", 10).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let native = super::native(&mut one, &session);
    turn(&mut one, &session, "say inside");
    desk.stop();
    sleep(LATER);
    let mut outside = directly(&desk);
    outside.ok("session/resume", place(&desk, Some(&native)));
    turn(&mut outside, &native, "say outside");
    leave(outside);
    desk.start();
    let mut one = client(&desk);
    let wanted = ["user:say inside", "agent:inside", "user:say outside", "agent:outside"];
    // By resume: the history is imported, not shown; the next load has it.
    one.ok("session/resume", place(&desk, Some(&session)));
    let mut two = client(&desk);
    let from = two.mark();
    two.ok("session/load", place(&desk, Some(&session)));
    assert_eq!(seen(&two.updates(&session, from)), wanted);
    assert_eq!(told(&log(&mut one, &session)), wanted);
    assert_eq!(one.ok("session/list", json!({}))["sessions"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_session_whose_journal_is_gone_keeps_no_other_one_out_of_the_list() {
    let desk = demo_desk().limit("list_fresh_ms", 0).open();
    let mut outside = directly(&desk);
    let lost = new_session(&desk, &mut outside);
    turn(&mut outside, &lost, "say one");
    let mut one = client(&desk);
    let listed = one.ok("session/list", json!({}));
    let key = row(&listed, &lost)["_meta"]["frontdesk"]["key"].as_str().unwrap().to_owned();
    let known = one.ok("_frontdesk/session", json!({ "sessionId": key }));
    let journal = std::path::Path::new(known["path"].as_str().unwrap());
    std::fs::remove_dir_all(journal.parent().unwrap()).unwrap();
    turn(&mut outside, &lost, "say two");
    // One on each side of it, whichever way the agent's list goes.
    let newer = new_session(&desk, &mut outside);
    turn(&mut outside, &newer, "say three");
    turn(&mut outside, &lost, "say four");
    let newest = new_session(&desk, &mut outside);
    turn(&mut outside, &newest, "say five");
    leave(outside);
    let listed = one.ok("session/list", json!({}));
    assert!(listed["_meta"].is_null(), "{listed}");
    row(&listed, &newer);
    row(&listed, &newest);
}
