//! kill -9 of daemon, shim, holder and agent at random moments, round after round against one home:
//! two editors over shims and a plain client on the socket prompt, answer questions, load, make and
//! close sessions, and a checker compares the journals with what clients were shown and with what the
//! agents themselves logged that they were told and said.
//!
//! Each test prints its counts in one line that begins with `faults |`. `FRONTDESK_FAULT_ROUNDS` sets
//! the rounds, `FRONTDESK_FAULT_SEED` repeats the choices (not the moments); `scripts/faults` runs all
//! four and prints a table.

mod agents;
mod check;
mod counts;
mod guests;
mod house;

use self::house::{House, Kind};
use super::Chance;

/// Rounds of each kind in a run of all tests.
const ROUNDS: u64 = 10;

fn run(kind: Kind, test: &str) {
    let rounds = super::rounds(ROUNDS);
    let mut house = House::open(kind, Chance::new(test));
    for round in 1..=rounds {
        house.round();
        if round % 50 == 0 {
            println!("{}", house.counts);
        }
    }
    let counts = house.end();
    println!("{counts}");
    assert!(counts.is_clean(), "{counts}");
    assert!(counts.prompts > rounds && counts.compared > rounds, "the test tests: {counts}");
}

#[test]
fn a_killed_daemon_loses_and_repeats_nothing() {
    run(Kind::Daemon, "a_killed_daemon");
}

#[test]
fn a_killed_shim_loses_and_repeats_nothing() {
    run(Kind::Shim, "a_killed_shim");
}

#[test]
fn a_killed_holder_leaves_no_second_owner() {
    run(Kind::Holder, "a_killed_holder");
}

#[test]
fn a_killed_agent_leaves_no_second_owner() {
    run(Kind::Agent, "a_killed_agent");
}
