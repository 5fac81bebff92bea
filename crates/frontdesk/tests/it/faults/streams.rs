//! Every client sees every item once and in order, whenever it comes and however slow it reads.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::{
    Chance, SOON, begin_prompt, client, demo_desk, endings, eventually, log, new_session, place,
    same, seen, told, turn,
};
use crate::acp::{ANSWER, Acp, Line};
use crate::desk::Desk;

/// Clients besides the one that made the session.
const JOINERS: usize = 4;
/// Turns of all clients together, and chunks of each.
const TURNS: usize = 6;
const CHUNKS: usize = 500;

/// What a client must have been shown by the end: all that was told, without its own prompts.
fn without_own(told: &[String], who: &str) -> Vec<String> {
    let own = format!("# by {who} ");
    told.iter().filter(|it| !it.contains(&own)).cloned().collect()
}

/// Waits until a client's transcript of a session has `wanted` items, and compares.
fn shown_in_the_end(client: &Acp, session: &str, from: usize, wanted: &[String], who: &str) {
    let limit = Duration::from_secs(60);
    let until = std::time::Instant::now() + limit;
    let mut found = seen(&client.updates(session, from));
    while found.len() < wanted.len() && std::time::Instant::now() < until {
        thread::sleep(Duration::from_millis(50));
        found = seen(&client.updates(session, from));
    }
    same(&found, wanted, who);
}

#[test]
fn clients_that_join_while_an_agent_streams_see_all_of_it_once() {
    let mut chance = Chance::new("clients_that_join_while_an_agent_streams");
    let desk = Arc::new(demo_desk().open());
    let mut maker = client(&desk);
    let session = new_session(&desk, &mut maker);
    let mut joiners: Vec<_> = Vec::new();
    for at in 0..JOINERS {
        let (desk, session) = (desk.clone(), session.clone());
        let pause = chance.below(2500);
        let load = at % 2 == 0;
        joiners.push(thread::spawn(move || {
            let mut joiner = client(&desk);
            thread::sleep(Duration::from_millis(pause));
            let who = format!("joiner-{at}");
            let from = joiner.mark();
            let method = if load { "session/load" } else { "session/resume" };
            joiner.ok(method, place(&desk, Some(&session)));
            let words = format!("# by {who} \nstream {} every 1", CHUNKS + at);
            turn(&mut joiner, &session, &words);
            (joiner, who, from, load)
        }));
    }
    for at in 0..TURNS - JOINERS {
        turn(
            &mut maker,
            &session,
            &format!("# by maker {at}\nstream {} every 1", CHUNKS + 50 + at),
        );
    }
    let joined: Vec<_> = joiners.into_iter().map(|it| it.join().expect("a joiner")).collect();
    let records = log(&mut maker, &session);
    let told = told(&records);
    assert_eq!(endings(&records).len(), TURNS);
    let chunks = told.iter().filter(|it| it.starts_with("agent:")).count();
    assert!(chunks >= TURNS * CHUNKS, "{chunks} chunks in the journal");
    shown_in_the_end(&maker, &session, 0, &without_own(&told, "maker"), "maker");
    for (joiner, who, from, load) in joined {
        let wanted = without_own(&told, &who);
        if load {
            shown_in_the_end(&joiner, &session, from, &wanted, &who);
        } else {
            // It came somewhere in the middle; from there on it has all.
            let shown = || seen(&joiner.updates(&session, from));
            eventually("the last of it", SOON, || shown().last() == wanted.last());
            let found = shown();
            let skipped = wanted.len().saturating_sub(found.len());
            assert!(found.len() >= CHUNKS, "{who} saw {} items only", found.len());
            same(&found, &wanted[skipped..], &who);
        }
    }
}

/// Stops a client's process so that it reads nothing; goes on when dropped.
struct Paused(Pid);

impl Paused {
    fn new(client: &Acp) -> Self {
        let pid = Pid::from_raw(i32::try_from(client.pid()).expect("a pid"));
        kill(pid, Signal::SIGSTOP).expect("its own child");
        Self(pid)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

fn small_outbox() -> Desk {
    demo_desk().limit("outbox_bytes", 65_536).open()
}

#[test]
fn a_client_that_does_not_read_for_a_while_misses_nothing() {
    let desk = small_outbox();
    let (mut maker, mut slow, mut loader) = (client(&desk), client(&desk), client(&desk));
    let session = new_session(&desk, &mut maker);
    turn(&mut maker, &session, "say begin");
    let from = slow.mark();
    slow.ok("session/resume", place(&desk, Some(&session)));
    let paused = Paused::new(&slow);
    // Far more than outbox, socket and pipe take: 3 MB.
    let running = begin_prompt(&mut maker, &session, "stream 1500 bytes 2000");
    let loaded_from = loader.mark();
    loader.ok("session/load", place(&desk, Some(&session)));
    assert_eq!(maker.wait(running, ANSWER).expect("it ends")["stopReason"], "end_turn");
    turn(&mut maker, &session, "say while it does not read");
    drop(paused);
    // And in the middle of a stream again.
    let running = begin_prompt(&mut maker, &session, "stream 400 every 1 bytes 1500");
    thread::sleep(Duration::from_millis(100));
    let paused = Paused::new(&slow);
    thread::sleep(Duration::from_millis(300));
    drop(paused);
    assert!(maker.wait(running, ANSWER).is_ok());
    turn(&mut maker, &session, "say end");
    let told = told(&log(&mut maker, &session));
    shown_in_the_end(&slow, &session, from, &told[2..], "the slow one");
    shown_in_the_end(&loader, &session, loaded_from, &told, "the loader");
    // It takes part as before.
    turn(&mut slow, &session, "say I am back");
}

#[test]
fn a_slow_client_gets_its_own_answer_behind_what_was_said_before_it() {
    let desk = small_outbox();
    let mut slow = client(&desk);
    let session = new_session(&desk, &mut slow);
    let from = slow.mark();
    let running = begin_prompt(&mut slow, &session, "stream 1500 bytes 2000\nsay the last word");
    slow.wait_update(&session, from, "the first chunk", |it| {
        it["sessionUpdate"] == "agent_message_chunk"
    });
    let paused = Paused::new(&slow);
    let mut other = client(&desk);
    eventually("the end of the turn", SOON, || {
        !super::of_kind(&log(&mut other, &session), "turn_ended").is_empty()
    });
    drop(paused);
    assert_eq!(slow.wait(running, ANSWER).expect("it ends")["stopReason"], "end_turn");
    // Everything of the turn lies before its answer.
    let lines = slow.lines(from);
    let answer = lines
        .iter()
        .position(|line| matches!(line, Line::In(it) if it["result"]["stopReason"].is_string()))
        .expect("the answer is in the transcript");
    let updates: Vec<_> = lines[..answer]
        .iter()
        .filter_map(|line| match line {
            Line::In(it) if it["method"] == "session/update" => {
                Some(it["params"]["update"].clone())
            }
            _ => None,
        })
        .collect();
    let told = told(&log(&mut other, &session));
    same(&seen(&updates), &told[1..], "before the answer");
}

#[test]
fn a_question_reaches_a_client_behind_what_was_said_before_it() {
    let desk = small_outbox();
    let mut slow = client(&desk);
    slow.answer_with(crate::editor::editor(desk.work(), crate::editor::Permission::Allow));
    let session = new_session(&desk, &mut slow);
    let from = slow.mark();
    let words = "stream 1500 bytes 2000\nask May I?\nsay thank you";
    let running = begin_prompt(&mut slow, &session, words);
    slow.wait_update(&session, from, "the first chunk", |it| {
        it["sessionUpdate"] == "agent_message_chunk"
    });
    let paused = Paused::new(&slow);
    let mut other = client(&desk);
    eventually("the question", SOON, || {
        !super::of_kind(&log(&mut other, &session), "interaction_opened").is_empty()
    });
    drop(paused);
    assert_eq!(slow.wait(running, ANSWER).expect("it ends")["stopReason"], "end_turn");
    let lines = slow.lines(from);
    let asked = lines
        .iter()
        .position(
            |line| matches!(line, Line::In(it) if it["method"] == "session/request_permission"),
        )
        .expect("it was asked");
    let chunks = lines[..asked].iter().filter(
        |line| matches!(line, Line::In(it) if it["params"]["update"]["sessionUpdate"] == "agent_message_chunk"),
    );
    assert_eq!(chunks.count(), 1500);
    let asks = slow.asked(from).into_iter().filter(|it| it.method == "session/request_permission");
    assert_eq!(asks.count(), 1);
}

#[test]
fn a_load_that_is_repeated_on_one_connection_shows_everything_each_time() {
    let desk = demo_desk().open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "stream 30");
    let told = told(&log(&mut one, &session));
    for _ in 0..3 {
        let from = one.mark();
        one.ok("session/load", place(&desk, Some(&session)));
        shown_in_the_end(&one, &session, from, &told, "a load");
    }
    let from = one.mark();
    turn(&mut one, &session, "say once");
    assert_eq!(seen(&one.updates(&session, from)), ["agent:once"]);
    let info = one.ok("_frontdesk/session", json!({ "sessionId": session }));
    assert_eq!(info["clients"].as_array().map(Vec::len), Some(1), "{info}");
}
