//! Clients that go on after their connection was gone.

use super::scenarios::{CHUNK, end_turn};
use super::*;

fn rejoin(conn: u64, seen: Option<Mark>, prompts: &[(&str, Seq)]) -> Input {
    let prompts = prompts.iter().map(|(id, after)| ((*id).into(), *after)).collect();
    // The client of connection 1, on another one.
    let client = Client { conn: ConnId(conn), ..client(1) };
    let (id, spelling) = ("\"r\"".into(), "key".into());
    Input::Rejoin(Box::new(Rejoin { client, id, spelling, seen, prompts }))
}

fn told(effects: &[Effect]) -> String {
    let answer = effects.iter().rev().find_map(|effect| match effect {
        Effect::Answer { id, frame, .. } if **id == *"\"r\"" => Some(frame.clone()),
        _ => None,
    });
    frame(std::str::from_utf8(&answer.unwrap()).unwrap()).result().unwrap().to_owned()
}

#[test]
fn a_running_prompt_and_a_waiting_one_are_answered_on_the_new_connection() {
    let mut bench = Bench::live();
    let first = bench.prompt(1, "3", "hi");
    bench.prompt(1, "4", "and then");
    let seen = bench.session.view().seq;
    bench.run(Input::Detach { conn: ConnId(1) });
    assert_eq!(words(&bench.agent(CHUNK)), ["write update"]);
    let effects = bench.run(rejoin(9, Some(Mark::whole(seen)), &[("3", 5), ("4", 5)]));
    let catch_up = format!("catch-up c9 from {seen}");
    assert_eq!(words(&effects), ["taken back c9 3", "taken back c9 4", &catch_up]);
    // The turn ends while it still reads: first what it missed, then the answer.
    let effects = end_turn(&mut bench, sent(&first));
    assert!(!words(&effects).iter().any(|word| word.starts_with("answer")), "{effects:?}");
    let seq = bench.session.view().seq;
    let effects = bench.run(Input::CaughtUp { conn: ConnId(9), seq });
    assert_eq!(words(&effects)[..1], ["answer c9 3 ok"]);
    assert_eq!(told(&effects), r#"{"open":[],"unknown":[]}"#);
}

#[test]
fn a_prompt_that_neither_runs_nor_waits_is_looked_up() {
    let mut bench = Bench::live();
    let first = bench.prompt(1, "3", "hi");
    end_turn(&mut bench, sent(&first));
    bench.run(Input::Detach { conn: ConnId(1) });
    let seen = Some(Mark::whole(bench.session.view().seq));
    assert_eq!(words(&bench.run(rejoin(9, seen, &[("3", 5), ("4", 5)]))), ["find c9 2"]);
    let answer = Bytes::from_static(br#"{"id":3,"result":{"stopReason":"end_turn"}}"#);
    let found = vec![("3".into(), Some(answer)), ("4".into(), None)];
    let effects = bench.run(Input::Found { conn: ConnId(9), found });
    assert_eq!(words(&effects)[..1], ["answer c9 3 ok"]);
    assert_eq!(told(&effects), r#"{"open":[],"unknown":[4]}"#);
}

#[test]
fn another_client_takes_back_nothing_of_it() {
    let mut bench = Bench::live();
    bench.prompt(1, "3", "hi");
    let input = Rejoin {
        client: client(2),
        id: "\"r\"".into(),
        spelling: "key".into(),
        seen: None,
        prompts: vec![("3".into(), 0)],
    };
    assert_eq!(words(&bench.run(Input::Rejoin(Box::new(input)))), ["find c2 1"]);
}

#[test]
fn a_cold_session_is_not_loaded_for_it_and_a_taken_connection_is_refused() {
    let mut bench = Bench::cold(View::default());
    let effects = bench.run(rejoin(9, Some(Mark::default()), &[]));
    assert_eq!(words(&effects), ["answer c9 \"r\" ok"]);
    assert!(matches!(bench.session.phase(), Phase::Cold));
    let effects = bench.run(rejoin(9, None, &[]));
    assert_eq!(words(&effects), ["answer c9 \"r\" -32600"]);
    assert_eq!(bench.session.client_count(), 1);
}

#[test]
fn a_record_that_was_shown_in_part_is_read_again() {
    let mut bench = Bench::live();
    bench.run(Input::Detach { conn: ConnId(1) });
    let seq = bench.session.view().seq;
    let effects = bench.run(rejoin(9, Some(Mark { seq, part: 1 }), &[]));
    let from = effects.iter().find_map(|effect| match effect {
        Effect::CatchUp { from, own_after, .. } => Some((*from, *own_after)),
        _ => None,
    });
    assert_eq!(from, Some((Mark { seq, part: 1 }, 0)));
}

fn with_force(id: &str) -> Input {
    Input::Close { conn: ConnId(2), id: id.into(), force: true }
}

#[test]
fn behind_two_closes_it_is_told_what_the_journal_says_and_then_dismissed() {
    let mut bench = Bench::live();
    bench.prompt(1, "3", "hi");
    bench.run(Input::Detach { conn: ConnId(1) });
    // The first close ends the turn; the second one comes behind the client.
    let effects = words(&bench.run(with_force("8")));
    assert!(effects.contains(&"shut client".into()), "{effects:?}");
    let seen = Some(Mark::whole(3));
    assert!(bench.run(rejoin(9, seen, &[("3", 3), ("4", 3)])).is_empty());
    assert!(bench.run(with_force("9")).is_empty());
    let effects = bench.run(Input::Closed { let_go: true });
    let closed = ["write closed", "sync", "answer c2 8 ok", "find c9 2", "answer c2 9 ok"];
    assert_eq!(words(&effects), closed);
    // The session is not put to rest without it, nor does it stand in the way of a close that is said without force.
    assert!(!bench.session.at_rest());
    let close = Input::Close { conn: ConnId(2), id: "10".into(), force: false };
    assert_eq!(words(&bench.run(close)), ["answer c2 10 ok"]);

    let ended = Bytes::from_static(br#"{"id":3,"result":{"stopReason":"cancelled"}}"#);
    let found = vec![("3".into(), Some(ended)), ("4".into(), None)];
    let effects = bench.run(Input::Found { conn: ConnId(9), found });
    assert_eq!(words(&effects), ["catch-up c9 from 3"]);
    assert!(!bench.session.at_rest());
    let seq = bench.session.view().seq;
    let effects = bench.run(Input::CaughtUp { conn: ConnId(9), seq });
    let left = ["answer c9 3 ok", "answer c9 \"r\" -32002", "left c9"];
    assert_eq!(words(&effects), left);
    assert!(bench.session.at_rest());
}

#[test]
fn one_that_still_reads_when_the_session_is_closed_keeps_its_answers() {
    let mut bench = Bench::live();
    let first = bench.prompt(1, "3", "hi");
    end_turn(&mut bench, sent(&first));
    bench.run(Input::Detach { conn: ConnId(1) });
    bench.run(rejoin(9, Some(Mark::whole(3)), &[("3", 3)]));
    let ended = Bytes::from_static(br#"{"id":3,"result":{"stopReason":"end_turn"}}"#);
    let found = vec![("3".into(), Some(ended))];
    let effects = bench.run(Input::Found { conn: ConnId(9), found });
    assert_eq!(words(&effects), ["catch-up c9 from 3"]);
    bench.run(with_force("8"));
    // It has read all there was, and what was said last came behind that.
    let seq = bench.session.view().seq;
    let effects = words(&bench.run(Input::Closed { let_go: true }));
    assert!(!effects.contains(&"left c9".into()), "{effects:?}");
    let close = Input::Close { conn: ConnId(2), id: "10".into(), force: false };
    assert_eq!(words(&bench.run(close)), ["answer c2 10 ok"], "it takes part no more");
    let effects = words(&bench.run(Input::CaughtUp { conn: ConnId(9), seq }));
    assert_eq!(effects, [format!("catch-up c9 from {seq}")]);
    let seq = bench.session.view().seq;
    let effects = words(&bench.run(Input::CaughtUp { conn: ConnId(9), seq }));
    assert_eq!(effects, ["answer c9 3 ok", "answer c9 \"r\" -32002", "left c9"]);
    assert!(bench.session.at_rest());
}

#[test]
fn a_slow_client_reads_to_the_end_of_a_session_that_another_one_closes() {
    let mut bench = Bench::live();
    bench.run(Input::Lagging { conn: ConnId(1) });
    let seq = bench.session.view().seq;
    bench.run(with_force("8"));
    assert_eq!(words(&bench.agent(CHUNK)), ["write update"]);
    let effects = words(&bench.run(Input::Closed { let_go: true }));
    assert!(!effects.contains(&"left c1".into()), "{effects:?}");
    let effects = words(&bench.run(Input::CaughtUp { conn: ConnId(1), seq }));
    assert_eq!(effects, [format!("catch-up c1 from {seq}")]);
    // Gone is gone: nobody waits for it.
    bench.run(Input::Detach { conn: ConnId(1) });
    assert!(bench.session.at_rest());
}

#[test]
fn a_slow_client_that_closes_is_shown_nothing_more() {
    let mut bench = Bench::live();
    bench.run(Input::Lagging { conn: ConnId(1) });
    bench.run(Input::Close { conn: ConnId(1), id: "8".into(), force: true });
    let effects = words(&bench.run(Input::Closed { let_go: true }));
    assert!(effects.ends_with(&["answer c1 8 ok".into(), "left c1".into()]), "{effects:?}");
    assert!(bench.session.at_rest());
}

#[test]
fn one_that_comes_again_while_it_leaves_stays() {
    let mut bench = Bench::live();
    bench.run(Input::Lagging { conn: ConnId(1) });
    bench.run(with_force("8"));
    bench.run(Input::Closed { let_go: true });
    let attach = Attach {
        client: client(1),
        id: "9".into(),
        how: How::Load,
        spelling: "key".into(),
        params: Bytes::from_static(b"{}"),
        from: Mark::default(),
    };
    // Two readings at once would show everything twice.
    assert!(bench.run(Input::Attach(attach)).is_empty());
    let seq = bench.session.view().seq;
    let effects = words(&bench.run(Input::CaughtUp { conn: ConnId(1), seq }));
    assert_eq!(effects, ["open"]);
}
