//! kill -9 of the daemon and its holders at random moments: what was shown is in the journal, every
//! turn has its ending, and no agent of the dead daemon is left when a session is called back. (A
//! daemon that dies alone is in `carry`.)

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::{
    Chance, SOON, agent_lives, begin_prompt, client, demo_desk, endings, log, native, new_session,
    of_kind, openings, place, rounds, same, seen, status, store, told, turn,
};
use crate::acp::{Acp, Pending};
use crate::desk::Desk;

/// Sessions that stream at the same time.
const SESSIONS: usize = 20;
/// Rounds after which new sessions take the place of the old ones: a history of thousands of items
/// only makes the test slow.
const SET_ROUNDS: usize = 5;
/// How often the daemon is killed; `FRONTDESK_FAULT_ROUNDS` says how often in a long run.
const ROUNDS: u64 = 20;

/// What all rounds add up to.
#[derive(Debug, Default)]
struct Counts {
    rounds: usize,
    /// Frames that clients were shown, each compared with the journal.
    compared: usize,
    /// Shown and not in the journal.
    lost: usize,
    /// Shown more often than it is in the journal.
    repeated: usize,
    /// In another order than in the journal.
    unexplained: usize,
    /// Written, and not shown before the kill: as it should be.
    unshown: usize,
    /// Prompts that were answered before the kill, and have their ending.
    answered: usize,
}

impl Counts {
    /// Compares what a client was shown with what is in the journal, in order.
    fn compare(&mut self, shown: &[String], kept: &[String]) {
        self.compared += shown.len();
        let count = |list: &[String]| {
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            list.iter().for_each(|text| *counts.entry(text.clone()).or_default() += 1);
            counts
        };
        let (seen, there) = (count(shown), count(kept));
        for (text, times) in &seen {
            match there.get(text) {
                None => self.lost += times,
                Some(kept) => self.repeated += times.saturating_sub(*kept),
            }
        }
        let in_order = kept.starts_with(shown);
        self.unexplained += usize::from(!in_order);
        self.unshown += kept.len().saturating_sub(shown.len());
    }

    fn is_clean(&self) -> bool {
        self.lost + self.repeated + self.unexplained == 0
    }
}

/// One session and the client that is in it.
struct Seat {
    client: Acp,
    session: String,
    native: String,
    from: usize,
    asked: Vec<Pending>,
}

fn take_seats(desk: &Desk, sessions: &[(String, String)]) -> Vec<Seat> {
    let mut seats = Vec::new();
    for (session, native) in sessions {
        let mut client = client(desk);
        let from = client.mark();
        client.ok("session/load", place(desk, Some(session)));
        seats.push(Seat {
            client,
            session: session.clone(),
            native: native.clone(),
            from,
            asked: Vec::new(),
        });
    }
    seats
}

#[test]
fn what_was_shown_is_there_after_a_kill_at_any_moment() {
    let mut chance = Chance::new("what_was_shown_is_there_after_a_kill");
    let rounds = usize::try_from(rounds(ROUNDS)).expect("few");
    let mut desk =
        demo_desk().setting("sessions_per_instance = 5").limit("stop_term_ms", 200).open();
    let mut counts = Counts::default();
    while counts.rounds < rounds {
        let sessions = begin_sessions(&desk);
        for _ in 0..SET_ROUNDS.min(rounds - counts.rounds) {
            kill_while_streaming(&mut desk, &sessions, &mut chance, &mut counts);
            counts.rounds += 1;
        }
        load_all(&desk, &sessions);
        println!("{counts:?}");
    }
    assert!(counts.compared > rounds * SESSIONS, "the test tests: {counts:?}");
}

/// Sessions of one turn each: public and native ids.
fn begin_sessions(desk: &Desk) -> Vec<(String, String)> {
    let mut maker = client(desk);
    let make = |_| {
        let session = new_session(desk, &mut maker);
        let native = native(&mut maker, &session);
        turn(&mut maker, &session, "say begin");
        (session, native)
    };
    (0..SESSIONS).map(make).collect()
}

fn kill_while_streaming(
    desk: &mut Desk,
    sessions: &[(String, String)],
    chance: &mut Chance,
    counts: &mut Counts,
) {
    let round = counts.rounds;
    let mut seats = take_seats(desk, sessions);
    for (at, seat) in seats.iter_mut().enumerate() {
        // Two prompts each: one runs and one waits when the daemon dies.
        let id = seat.session.clone();
        for words in ["stream 60 every 4", "stream 5"] {
            let words = format!("# r{round} s{at}\n{words}");
            seat.asked.push(begin_prompt(&mut seat.client, &id, &words));
        }
    }
    chance.pause(700);
    desk.kill_all();
    for seat in &mut seats {
        assert!(seat.client.wait_exit(SOON).is_some(), "a shim outlives its daemon");
    }
    desk.start();
    for (_, native) in sessions {
        for (how, pid) in openings(&store(desk), native) {
            assert!(!agent_lives(pid), "round {round}: {pid} ({how}) lives after the restart");
        }
    }
    assert_eq!(desk.instances(), 0, "round {round}: {:?}", desk.processes());
    let mut looker = client(desk);
    for seat in &seats {
        check_after(&mut looker, seat, counts);
    }
}

/// Everything can be loaded, whole, and goes on.
fn load_all(desk: &Desk, sessions: &[(String, String)]) {
    for seat in &mut take_seats(desk, sessions) {
        let id = seat.session.clone();
        turn(&mut seat.client, &id, "say the end");
        let records = log(&mut seat.client, &id);
        let wanted = told(&records);
        let mut found = seen(&seat.client.updates(&id, seat.from));
        let last = found.pop();
        assert_eq!(last.as_deref(), Some("agent:the end"));
        same(&found, &wanted[..wanted.len() - 2], "a load after the last kill");
        let claims = of_kind(&records, "claimed").len();
        assert_eq!(claims, openings(&store(desk), &seat.native).len(), "one opening a claim");
    }
}

/// After the restart: nothing shown is missing, every turn has its ending, nothing is loaded.
fn check_after(looker: &mut Acp, seat: &Seat, counts: &mut Counts) {
    let round = counts.rounds;
    let what = format!("round {round}, {}", seat.session);
    assert_eq!(status(looker, &seat.session).0, "inactive", "{what}");
    let records = log(looker, &seat.session);
    let all = told(&records);
    let found = seen(&seat.client.updates(&seat.session, seat.from));
    // Its own prompts of this round are not shown to it.
    let own = format!("# r{round} ");
    let wanted: Vec<String> = all.iter().filter(|it| !it.contains(&own)).cloned().collect();
    counts.compare(&found, &wanted);
    if !counts.is_clean() {
        println!("{what}: {counts:?}");
        same(&found, &wanted[..found.len().min(wanted.len())], &what);
    }
    assert!(counts.is_clean(), "{what}: {counts:?}");
    let ended = endings(&records);
    let answered = seat.asked.iter().filter(|asked| seat.client.is_answered(**asked)).count();
    let of_round = ended.iter().rev().take(seat.asked.len());
    let completed = of_round.filter(|turn| turn["outcome"] == "completed").count();
    assert!(completed >= answered, "{what}: {answered} were answered, {completed} have ended");
    counts.answered += answered;
    for (data, turn) in of_kind(&records, "turn_ended").iter().zip(&ended) {
        if data["outcome"] == "failed" {
            assert_eq!(turn["reason"], "crash_inferred", "{what}: {turn}");
        }
    }
    let last = records.last().map(|record| record["kind"].clone());
    assert_eq!(last, Some(json!("lost")), "{what}: the journal says that it is not loaded");
}

#[test]
fn answers_that_were_given_before_a_kill_stay_given() {
    let mut chance = Chance::new("answers_that_were_given_before_a_kill");
    let mut desk = demo_desk().open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let mut done = 0;
    for round in 0..5 {
        // Turns of no length: the kill falls between write, sync and answer.
        let from = one.mark();
        let begun: Vec<_> = (0..12)
            .map(|at| begin_prompt(&mut one, &session, &format!("say {round}-{at}")))
            .collect();
        chance.pause(60);
        desk.kill_all();
        assert!(one.wait_exit(SOON).is_some());
        let answered = begun.iter().filter(|it| one.is_answered(**it)).count();
        done += answered;
        desk.start();
        let shown = seen(&one.updates(&session, from));
        one = client(&desk);
        let records = log(&mut one, &session);
        let outcomes = endings(&records);
        let completed = outcomes.iter().filter(|it| it["outcome"] == "completed").count();
        assert!(completed >= done, "round {round}: {completed} in the journal, {done} answered");
        let said = told(&records);
        for text in &shown {
            let count = said.iter().filter(|it| *it == text).count();
            assert_eq!(count, 1, "round {round}: {text}");
        }
        done = completed;
        let from = one.mark();
        one.ok("session/load", place(&desk, Some(&session)));
        same(&seen(&one.updates(&session, from)), &said, "a load");
    }
    turn(&mut one, &session, "say the end");
}

#[test]
fn a_daemon_that_is_killed_while_a_session_is_made_leaves_no_half_of_one() {
    let mut chance = Chance::new("a_daemon_that_is_killed_while_a_session_is_made");
    let mut desk = demo_desk().open();
    for round in 0..6 {
        let mut one = client(&desk);
        let made = one.begin("session/new", place(&desk, None));
        std::thread::sleep(Duration::from_millis(chance.below(80)));
        desk.kill9();
        assert!(one.wait_exit(SOON).is_some());
        desk.start();
        let mut next = client(&desk);
        if one.is_answered(made) {
            let made = one.wait(made, SOON).expect("it was made");
            let id = made["sessionId"].as_str().expect("it has an id").to_owned();
            next.ok("session/resume", place(&desk, Some(&id)));
            turn(&mut next, &id, "say it is there");
        }
        // Rows that are listed can be opened.
        let rows = next.ok("session/list", json!({}));
        for row in rows["sessions"].as_array().expect("a list").clone() {
            let id = row["sessionId"].as_str().expect("an id").to_owned();
            let opened = next.request("session/resume", place(&desk, Some(&id)));
            assert!(opened.is_ok(), "round {round}: {row}: {opened:?}");
        }
    }
}
