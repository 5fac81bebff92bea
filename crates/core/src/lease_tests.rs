//! The lease by hand. What follows when everything may happen in any order is in
//! `lease_model_tests.rs`.

#[path = "lease_model_tests.rs"]
mod model;

use super::*;

fn place(name: &str) -> Place {
    Place::Instance(name.into())
}

fn live(at: &str) -> Lease {
    let mut lease = Lease::cold(4, false);
    assert_eq!(lease.claim(), Some(None));
    assert_eq!(lease.ask(place(at)), Some(5));
    lease.opened();
    lease
}

#[test]
fn a_life_from_cold_to_cold() {
    let mut lease = Lease::cold(4, false);
    assert_eq!(lease.claim(), Some(None), "any place will do");
    assert_eq!(lease.phase(), Phase::Claiming);
    assert_eq!(lease.claim(), None, "one claim at a time");
    assert_eq!(lease.ask(place("i")), Some(5));
    assert_eq!((lease.phase(), lease.owner()), (Phase::Starting, Some(&place("i"))));
    assert_eq!(lease.ask(place("j")), None);
    lease.opened();
    assert!(lease.accepts(5) && !lease.accepts(4));
    assert!(lease.drain() && !lease.drain());
    lease.closed(true);
    assert_eq!((lease.phase(), lease.owner(), lease.accepts(5)), (Phase::Cold, None, false));
}

#[test]
fn only_the_place_that_may_have_it_is_asked_again() {
    let mut lease = live("i");
    lease.drain();
    lease.closed(false);
    assert_eq!((lease.phase(), lease.doubt()), (Phase::Suspect, Some(&place("i"))));
    assert_eq!(lease.claim(), Some(Some(place("i"))));
    assert_eq!(lease.ask(place("j")), None);
    lease.refused(Refusal::CouldNot);
    assert_eq!(lease.phase(), Phase::Suspect, "an error proves nothing");
    lease.probed(&place("j"), Probe::Cold);
    lease.probed(&place("i"), Probe::Loaded);
    lease.probed(&place("i"), Probe::Nothing);
    lease.ended(&place("i"), false);
    lease.ended(&place("j"), true);
    assert_eq!(lease.phase(), Phase::Suspect, "nor does any of these");
    let mut dead = lease.clone();
    dead.ended(&place("i"), true);
    assert_eq!((dead.phase(), dead.doubt()), (Phase::Cold, None));
    lease.probed(&place("i"), Probe::Cold);
    assert_eq!((lease.phase(), lease.doubt()), (Phase::Cold, None));
}

#[test]
fn what_was_asked_and_not_answered_may_come_at_any_time() {
    let mut lease = Lease::cold(0, false);
    let _ = lease.claim();
    lease.ask(place("i")).unwrap();
    lease.refused(Refusal::NoAnswer);
    lease.probed(&place("i"), Probe::Cold);
    assert_eq!(lease.phase(), Phase::Suspect, "it may open it behind the probe");
    assert_eq!(lease.claim(), Some(Some(place("i"))));
    lease.ask(place("i")).unwrap();
    lease.opened();
    lease.drain();
    lease.closed(true);
    assert_eq!(lease.phase(), Phase::Suspect, "it may open it behind the close");
    let mut late = lease.clone();
    late.answered(&place("j"));
    late.probed(&place("i"), Probe::Cold);
    assert_eq!(late.phase(), Phase::Suspect, "another one's answer is not its own");
    late.answered(&place("i"));
    assert_eq!(late.phase(), Phase::Suspect, "its answer alone proves nothing");
    late.probed(&place("i"), Probe::Cold);
    assert_eq!(late.phase(), Phase::Cold);
    lease.ended(&place("i"), true);
    assert_eq!(lease.phase(), Phase::Cold);
}

#[test]
fn the_end_of_a_connection_proves_nothing() {
    let url = Place::Url("ws://127.0.0.1:1".into());
    let mut lease = Lease::carried(3, url.clone());
    lease.ended(&url, false);
    assert_eq!((lease.phase(), lease.doubt()), (Phase::Suspect, Some(&url)));
    assert_eq!(lease.claim(), Some(Some(url.clone())));
    lease.ask(url.clone()).unwrap();
    lease.ended(&url, false);
    lease.refused(Refusal::CouldNot);
    assert_eq!(lease.phase(), Phase::Suspect, "it ended while it was being asked");
    lease.probed(&url, Probe::Cold);
    assert_eq!(lease.phase(), Phase::Cold);
}

#[test]
fn a_take_fences_the_owner_and_waits_for_its_end() {
    let mut lease = live("i");
    assert_eq!(lease.take(), Some(6));
    assert_eq!(
        (lease.phase(), lease.accepts(5), lease.accepts(6)),
        (Phase::Draining, false, false)
    );
    lease.count_late();
    assert_eq!((lease.late(), lease.take(), lease.claim()), (1, None, None));
    lease.closed(false);
    assert_eq!(lease.phase(), Phase::Suspect);
    assert_eq!(lease.take(), Some(7), "it is told again");
    lease.ended(&place("i"), true);
    lease.closed(false);
    assert_eq!((lease.phase(), lease.epoch()), (Phase::Cold, 7));
    assert_eq!(lease.take(), None, "there is nobody to take it from");
}

#[test]
fn what_its_agent_does_not_have_is_lost_and_never_claimed() {
    let mut lease = Lease::cold(0, false);
    let _ = lease.claim();
    lease.refused(Refusal::NotThere);
    assert_eq!((lease.phase(), lease.claim()), (Phase::Lost, None));
    let mut before = Lease::cold(0, true);
    assert_eq!((before.phase(), before.claim()), (Phase::Lost, None));
    // An instance that is asked may say so, too.
    let mut asked = Lease::cold(0, false);
    let _ = asked.claim();
    asked.ask(place("i")).unwrap();
    asked.refused(Refusal::NotThere);
    assert_eq!(asked.phase(), Phase::Lost);
}
