//! The desk may die: a daemon is killed, or hands over, and the next one goes on with what the agents
//! were doing.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{
    Chance, SOON, agent_lives, begin_prompt, client, client_of, demo, demo_desk, endings,
    eventually, home_processes, log, native, new_session, nothing_runs, of_kind, openings, place,
    same, seen, status, store, stored, told, turn,
};
use crate::acp::{Acp, Ask, Reply, prompt};
use crate::desk::Desk;

/// Rounds of a test that kills at random; `FRONTDESK_FAULT_ROUNDS` sets another number.
const ROUNDS: u64 = 4;

fn rounds() -> u64 {
    let told = std::env::var("FRONTDESK_FAULT_ROUNDS").ok();
    told.and_then(|told| told.parse().ok()).unwrap_or(ROUNDS)
}

/// A client that answers nothing by itself.
fn silent(desk: &Desk) -> Acp {
    client_of(desk, "demo", Arc::new(|_: &Ask| Reply::Silence))
}

/// Kills the daemon and waits for the client's end with it.
fn kill_daemon(desk: &mut Desk, clients: &mut [&mut Acp]) {
    desk.kill9();
    for client in clients {
        assert!(client.wait_exit(SOON).is_some(), "a shim outlives its daemon");
    }
}

/// Waits for the ending of the session's `count`th turn and gives the records.
fn wait_turns(client: &mut Acp, session: &str, count: usize) -> Vec<Value> {
    let mut records = Vec::new();
    eventually("the ending of a turn", SOON, || {
        records = log(client, session);
        of_kind(&records, "turn_ended").len() >= count
    });
    records
}

fn allow(client: &Acp, ask: &Ask) {
    let option = ask.params["options"][0]["optionId"].clone();
    let outcome = json!({ "outcome": "selected", "optionId": option });
    client.send(&json!({ "jsonrpc": "2.0", "id": ask.id, "result": { "outcome": outcome } }));
}

/// The holders of a desk.
fn holders(desk: &Desk) -> Vec<i32> {
    let all = home_processes(desk).into_iter();
    all.filter(|(_, words)| words.contains(" hold ")).map(|(pid, _)| pid).collect()
}

fn signal(pid: i32, what: Signal) {
    kill(Pid::from_raw(pid), what).expect("the process is there");
}

/// The only instance's folder below `run/instances`, or below `data/instances`.
fn only_instance(desk: &Desk, part: &str) -> PathBuf {
    let folder = desk.home().join(part).join("instances");
    let mut entries = fs::read_dir(folder).expect("there is a folder for instances");
    let entry = entries.next().expect("an instance runs").expect("it can be read");
    entry.path()
}

#[test]
fn a_question_outlives_a_killed_daemon_and_is_answered_once() {
    let mut desk = demo_desk().open();
    let mut one = silent(&desk);
    let session = new_session(&desk, &mut one);
    let id = native(&mut one, &session);
    let from = one.mark();
    begin_prompt(&mut one, &session, "say before\nask May I go on?\nsay after");
    let asked = one.wait_ask(from, "session/request_permission");
    kill_daemon(&mut desk, &mut [&mut one]);
    let agent = openings(&store(&desk), &id)[0].1;
    assert!(agent_lives(agent), "the agent outlives the daemon");

    desk.start();
    let mut two = silent(&desk);
    let (word, meta) = status(&mut two, &session);
    assert_eq!((word.as_str(), &meta["state"]), ("active", &json!("requires_action")), "{meta}");
    assert_eq!(meta["source"], "owner", "it is known at once");
    let from = two.mark();
    two.ok("session/load", place(&desk, Some(&session)));
    let again = two.wait_ask(from, "session/request_permission");
    assert_eq!(again.id, asked.id, "the same question has the same id");
    assert_eq!(again.params, asked.params);
    allow(&two, &again);
    let records = wait_turns(&mut two, &session, 1);
    assert_eq!(told(&records), ["user:say before\nask May I go on?\nsay after", "agent:before", "agent:Allowed (allow_once).", "agent:after"]);
    assert_eq!(endings(&records)[0]["outcome"], "completed");
    assert_eq!(of_kind(&records, "interaction_opened").len(), 1);
    let settled = of_kind(&records, "interaction_settled");
    assert_eq!((settled.len(), &settled[0]["outcome"]), (1, &json!("answered")), "{settled:?}");
    assert_eq!(of_kind(&records, "loaded").len(), 1, "nothing was loaded again");
    // And the session works as if nothing had happened.
    turn(&mut two, &session, "say the end");
    assert_eq!(openings(&store(&desk), &id), [("new".to_owned(), agent)], "one process, all along");
}
