//! Claims of a daemon that died in the middle: they hold nobody up.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{
    SOON, client, demo, eventually, native, new_session, openings, place, status, store, turn,
};
use crate::desk::Desk;

/// The locked claim files of a desk.
fn claimed(desk: &Desk) -> usize {
    let folder = desk.home().parent().expect("a home lies in a folder").join("c");
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter(|file| fs::File::open(file.path()).is_ok_and(|it| it.try_lock().is_err())).count()
}

#[test]
fn a_session_that_was_claimed_when_its_daemon_died_can_be_opened_where_it_is_claimed() {
    let two_each = demo("demo", &[]).setting("sessions_per_instance = 2");
    let mut desk = Desk::builder().agent(two_each).open();
    let mut one = client(&desk);
    let cold = new_session(&desk, &mut one);
    let id = native(&mut one, &cold);
    turn(&mut one, &cold, "say first");
    let force = json!({ "frontdesk": { "force": true } });
    one.ok("session/close", json!({ "sessionId": cold, "_meta": force }));
    let first = new_session(&desk, &mut one);
    let first_id = native(&mut one, &first);
    let agent = openings(&store(&desk), &first_id)[0].1;
    // An agent that does not answer: the session is claimed, and is not opened yet.
    kill(Pid::from_raw(agent), Signal::SIGSTOP).expect("the agent is there");
    one.begin("session/load", place(&desk, Some(&cold)));
    eventually("its claim", SOON, || claimed(&desk) == 2);
    desk.kill9();
    kill(Pid::from_raw(agent), Signal::SIGCONT).expect("the agent is there");
    desk.start();
    let mut two = client(&desk);
    assert_eq!(status(&mut two, &first).0, "active", "its instance is carried on");
    // Nobody else fits into the first instance now.
    new_session(&desk, &mut two);
    two.ok("session/load", place(&desk, Some(&cold)));
    turn(&mut two, &cold, "say again");
    let opened: Vec<Value> = super::stored(&store(&desk), &id);
    let doubles = opened.iter().filter(|line| line["alone"] == false).count();
    assert_eq!(doubles, 0, "{opened:?}");
}
