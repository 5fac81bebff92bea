//! What a later daemon makes of one journal and one ledger, and what it does at once.

use std::collections::BTreeSet;

use super::*;
use crate::errors::Code;

fn record(seq: Seq, kind: Kind, data: &str) -> Record {
    Record {
        v: RECORD_VERSION,
        seq,
        epoch: 1,
        at: Timestamp::UNIX_EPOCH,
        kind,
        src: None,
        data: Bytes::copy_from_slice(data.as_bytes()),
    }
}

/// A live session of the instance `i`, with these records behind its load.
fn taken_up(more: &[(Kind, &str)], parts: Carry) -> Carried {
    let mut journal = vec![
        record(1, Kind::Claimed, r#"{"agent":"a","instance":"i"}"#),
        record(2, Kind::Created, r#"{"agent":"a","nativeId":"n","cwd":"/w"}"#),
        record(3, Kind::Loaded, r#"{"agent":"a","instance":"i","how":"new"}"#),
    ];
    for (kind, data) in more {
        journal.push(record(journal.len() as u64 + 1, kind.clone(), data));
    }
    let mut view = View::default();
    view.extend(&journal);
    let mut ends = Ends::new("i", parts.owed.iter().map(|(hop, _)| hop.clone()).collect(), 64);
    ends.extend(&journal);
    assert!(ends.is_loaded());
    let now = Now { wall: Timestamp::UNIX_EPOCH, mono_ms: 0 };
    Session::carried(
        view,
        Carry { ends, facts: facts(), ..parts },
        Arc::new(Limits::default()),
        now,
    )
}

fn sent_prompt(number: u64, turn: &str) -> SentRequest {
    SentRequest {
        number,
        turn: Some(turn.into()),
        id: "9".into(),
        method: "session/prompt".into(),
        params: Bytes::new(),
    }
}

const STARTED: &str = r#"{"turn":"turn_4","client":"k1","requestId":"9","sender":"c","prompt":[{"type":"text","text":"x"}],"rest":{"_meta":{"a":1e2}}}"#;

#[test]
fn a_prompt_goes_out_as_it_came_in_where_nobody_sent_it() {
    let carried = taken_up(&[(Kind::TurnStarted, STARTED)], Carry::default());
    // It had no name yet either.
    let [Effect::Append(named), Effect::Send { frame, turn, client, .. }] = &carried.effects[..]
    else {
        panic!("{:?}", carried.effects)
    };
    assert_eq!(named.kind, Kind::Renamed);
    let params = frame.params().unwrap();
    assert_eq!(
        params,
        r#"{"sessionId":"n","prompt":[{"type":"text","text":"x"}],"_meta":{"a":1e2}}"#
    );
    assert_eq!((turn.as_deref(), &**client, frame.id()), (Some("turn_4"), "k1", Some("9")));
    let sent = Carry { requests: vec![sent_prompt(5, "turn_4")], ..Carry::default() };
    let carried = taken_up(&[(Kind::TurnStarted, STARTED)], sent);
    assert!(carried.effects.is_empty(), "it is at the agent");
    assert_eq!(carried.sent.iter().map(|(_, number)| *number).collect::<Vec<_>>(), [5]);
    assert_eq!(carried.session.state(), Some(State::Running));
}

#[test]
fn the_rest_of_a_prompt_keeps_its_spelling() {
    use crate::session::carried::other_members;
    let params =
        r#"{ "_meta" : {"b": 1E2,"a":[ ]},"prompt":[],"x":"\u00e9","sessionId":"s","x":2}"#;
    let rest = other_members(params).unwrap();
    assert_eq!(rest, r#"{"_meta":{"b": 1E2,"a":[ ]},"x":"\u00e9","x":2}"#);
    assert_eq!(other_members(r#"{"sessionId":"s","prompt":[]}"#), None);
    assert_eq!(other_members("null"), None);
}

#[test]
fn a_turn_that_was_closed_for_its_agent_still_holds_up_the_next() {
    let ended = r#"{"turn":"turn_4","outcome":"cancelled","stopReason":"cancelled"}"#;
    let queued = STARTED.replace("turn_4", "turn_6");
    let records =
        [(Kind::TurnStarted, STARTED), (Kind::TurnEnded, ended), (Kind::TurnQueued, &*queued)];
    let sent = || Carry { requests: vec![sent_prompt(5, "turn_4")], ..Carry::default() };
    let Carried { mut session, sent: waits, effects } = taken_up(&records, sent());
    assert!(effects.is_empty() && session.queued_turns() == 1);
    let now = Now { wall: Timestamp::UNIX_EPOCH, mono_ms: 5 };
    let source = Source { instance: InstanceId("i".into()), end: 90, part: 0 };
    let answer = frame(r#"{"id":5,"result":{"stopReason":"cancelled"}}"#);
    let input = Input::AgentAnswer { tag: waits[0].0, frame: answer, at: Position { source } };
    let effects = session.handle(input, now);
    assert_eq!(
        words(&effects),
        ["write note", "write turn_started", "write renamed", "send session/prompt"]
    );
    // Once the late answer is recorded nothing is waited for.
    let late = r#"{"turn":"turn_4","late":true,"answer":{}}"#;
    let records = [records[0].clone(), records[1].clone(), (Kind::Note, late), records[2].clone()];
    let carried = taken_up(&records, sent());
    assert_eq!(
        words(&carried.effects),
        ["write turn_started", "write renamed", "send session/prompt"]
    );
}

#[test]
fn a_cancel_that_was_sent_runs_its_grace_and_one_of_before_does_not() {
    for (cancelled, deadline) in [(None, false), (Some(4), false), (Some(6), true)] {
        let requests = vec![sent_prompt(5, "turn_4")];
        let parts = Carry { requests, cancelled, ..Carry::default() };
        let mut carried = taken_up(&[(Kind::TurnStarted, STARTED)], parts);
        let grace = Limits::default().cancel_grace_ms;
        assert_eq!(carried.session.deadline_ms() == Some(grace), deadline, "{cancelled:?}");
        let now = Now { wall: Timestamp::UNIX_EPOCH, mono_ms: grace };
        let effects = carried.session.handle(Input::Tick, now);
        assert_eq!(words(&effects).contains(&"write turn_ended".to_owned()), deadline);
    }
}

#[test]
fn a_waiting_prompt_of_an_older_version_is_ended_and_not_forgotten() {
    let queued = r#"{"turn":"turn_5","client":"k1","requestId":"9","sender":"c"}"#;
    let sent = Carry { requests: vec![sent_prompt(5, "turn_4")], ..Carry::default() };
    let carried = taken_up(&[(Kind::TurnStarted, STARTED), (Kind::TurnQueued, queued)], sent);
    let [Effect::Append(ended)] = &carried.effects[..] else { panic!("{:?}", carried.effects) };
    assert_eq!(ended.kind, Kind::TurnEnded);
    assert!(String::from_utf8_lossy(&ended.data).contains("turn_5"));
    assert!(carried.session.view().queued_turns.is_empty());
}

#[test]
fn what_a_client_may_have_done_is_refused_and_what_changes_nothing_is_asked_again() {
    let ask = |method: &str| {
        Some(Bytes::from(format!(r#"{{"id":1,"method":"{method}","params":{{"sessionId":"n"}}}}"#)))
    };
    for method in ["fs/write_text_file", "terminal/create", "terminal/output"] {
        let owed = vec![("i:9:0".into(), ask(method))];
        let carried = taken_up(&[], Carry { owed, ..Carry::default() });
        let [Effect::Settle { frame: Some(frame), .. }] = &carried.effects[..] else {
            panic!("{method}: {:?}", carried.effects)
        };
        assert!(outcome(frame).starts_with('-'), "{method}");
    }
    for method in ["fs/read_text_file", "_x/y"] {
        let owed = vec![("i:9:0".into(), ask(method))];
        let Carried { mut session, effects, .. } =
            taken_up(&[], Carry { owed, ..Carry::default() });
        assert!(effects.is_empty(), "{method}");
        // Nobody comes: it is answered in bounded time.
        let mono_ms = Limits::default().ext_answer_ms;
        assert_eq!(session.deadline_ms(), Some(mono_ms));
        let effects = session.handle(Input::Tick, Now { wall: Timestamp::UNIX_EPOCH, mono_ms });
        let settled = effects.iter().any(|it| matches!(it, Effect::Settle { frame: Some(_), .. }));
        assert!(settled, "{method}: {effects:?}");
    }
}

#[test]
fn a_question_about_the_request_of_a_client_that_is_gone_is_asked_of_nobody() {
    let opened = r#"{"interaction":"ask_5","method":"elicitation/create","requestId":"3","hop":"i:9:0","params":{"requestId":"mine","mode":"form"}}"#;
    let records = [(Kind::TurnStarted, STARTED), (Kind::InteractionOpened, opened)];
    let owed = vec![("i:9:0".into(), None)];
    let requests = vec![sent_prompt(5, "turn_4")];
    let Carried { mut session, .. } =
        taken_up(&records, Carry { owed, requests, ..Carry::default() });
    let mut client = client(2);
    client.can.elicitation_form = true;
    let params = Bytes::from_static(b"{}");
    let attach = Attach {
        client,
        id: "7".into(),
        how: How::Resume,
        spelling: "n".into(),
        params,
        from: Mark::default(),
    };
    let now = Now { wall: Timestamp::UNIX_EPOCH, mono_ms: 0 };
    let effects = session.handle(Input::Attach(attach), now);
    assert!(
        !effects.iter().any(|it| matches!(it, Effect::Tell { hop: Some(_), .. })),
        "{effects:?}"
    );
    assert_eq!(session.state(), Some(State::RequiresAction));
}

#[test]
fn another_instances_records_and_claims_are_not_ours() {
    let mut ends = Ends::new("i", BTreeSet::new(), 64);
    ends.extend(&[record(1, Kind::Claimed, r#"{"instance":"j"}"#), record(2, Kind::Loaded, "{}")]);
    assert!(!ends.is_loaded());
    ends.extend(&[record(3, Kind::Claimed, r#"{"instance":"i"}"#)]);
    assert!(!ends.is_loaded(), "it is being loaded");
    ends.extend(&[record(4, Kind::Loaded, "{}")]);
    assert!(ends.is_loaded());
    let named =
        r#"{"sessionId":"n","update":{"sessionUpdate":"subagent_update","sessionId":"child"}}"#;
    ends.extend(&[record(5, Kind::Update, named)]);
    let children: Vec<_> = ends.children().map(|(native, child)| (native, child.key)).collect();
    assert_eq!(children, [("child", None)]);
    let key = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";
    let told = format!(r#"{{"child":"{key}","nativeId":"child","state":"idle","x":1}}"#);
    ends.extend(&[record(6, Kind::Subagent, &told)]);
    let (_, child) = ends.children().next().unwrap();
    assert_eq!(child.key, key.parse().ok());
    assert_eq!(Value::from(child.told.clone()), json!({ "state": "idle" }));
    ends.extend(&[record(7, Kind::Lost, "{}")]);
    assert!(!ends.is_loaded() && ends.children().next().is_none());
}

#[test]
fn as_many_children_are_remembered_as_the_limit_says() {
    let named = |child: &str| {
        let update = format!(r#"{{"sessionUpdate":"subagent_update","sessionId":"{child}"}}"#);
        format!(r#"{{"sessionId":"n","update":{update}}}"#)
    };
    let told = |child: &str, state: &str| {
        let key = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";
        format!(r#"{{"child":"{key}","nativeId":"{child}","state":"{state}"}}"#)
    };
    let mut ends = Ends::new("i", BTreeSet::new(), 2);
    for (seq, child) in [(1, "a"), (2, "b"), (3, "c"), (4, "a")] {
        ends.extend(&[record(seq, Kind::Update, &named(child))]);
    }
    // Of those that are remembered what is told last is; one more is not let in this way either.
    for (seq, child) in [(5, "b"), (6, "c")] {
        ends.extend(&[record(seq, Kind::Subagent, &told(child, "idle"))]);
    }
    let children: Vec<_> =
        ends.children().map(|(name, child)| (name, child.key.is_some())).collect();
    assert_eq!(children, [("a", false), ("b", true)]);
}

/// A session that the instance `i` was asked to open, with this in the record of the claim.
fn being_opened(claimed: &str, opening: Asked, more: &[(Kind, &str)]) -> Carried {
    let mut journal = vec![
        record(1, Kind::Created, r#"{"agent":"a","nativeId":"n","cwd":"/w"}"#),
        record(2, Kind::Closed, r#"{"reason":"client"}"#),
        record(3, Kind::Claimed, claimed),
    ];
    for (kind, data) in more {
        journal.push(record(journal.len() as u64 + 1, kind.clone(), data));
    }
    let mut view = View::default();
    view.extend(&journal);
    let mut ends = Ends::new("i", BTreeSet::new(), 64);
    ends.extend(&journal);
    assert!(ends.is_claimed() && !ends.is_loaded());
    let carry = Carry { ends, facts: facts(), opening: Some(opening), ..Carry::default() };
    let now = Now { wall: Timestamp::UNIX_EPOCH, mono_ms: 0 };
    Session::carried(view, carry, Arc::new(Limits::default()), now)
}

fn chunk(session: &mut Session, end: u64) -> Vec<Effect> {
    let source = Source { instance: InstanceId("i".into()), end, part: 0 };
    let text = r#"{"method":"session/update","params":{"sessionId":"n","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"x"}}}}"#;
    let message = Message::parse(Bytes::from(text)).unwrap();
    let input = Input::Agent { message, at: Position { source }, about: None };
    session.handle(input, Now { wall: Timestamp::UNIX_EPOCH, mono_ms: 0 })
}

#[test]
fn an_opening_that_outlives_its_daemon_ends_as_the_agent_says() {
    let now = Now { wall: Timestamp::UNIX_EPOCH, mono_ms: 0 };
    let swallowed = r#"{"agent":"a","instance":"i","replay":"swallow"}"#;
    let fresh = Asked { may_have: false };
    let Carried { mut session, effects, .. } = being_opened(swallowed, fresh, &[]);
    assert!(effects.is_empty() && session.phase() == Phase::Starting, "{effects:?}");
    // Its history is ours already; what comes behind the answer is new.
    assert!(words(&chunk(&mut session, 90)).is_empty());
    let effects = session.handle(Input::Started { result: "{}".into() }, now);
    assert_eq!(words(&effects), ["write loaded", "sync"]);
    let Effect::Append(loaded) = &effects[0] else { panic!("{effects:?}") };
    assert_eq!(loaded.src.as_ref().map(|src| src.end), Some(90), "the replay is over there");
    assert_eq!(words(&chunk(&mut session, 180)), ["write update"]);
    assert_eq!(session.state(), Some(State::Idle));

    // A prompt that waited for it runs.
    let claimed = r#"{"agent":"a","instance":"i"}"#;
    let queued = STARTED.replace("turn_4", "turn_6");
    let waits = [(Kind::TurnQueued, &*queued)];
    let Carried { mut session, .. } = being_opened(claimed, fresh, &waits);
    let effects = session.handle(Input::Started { result: "{}".into() }, now);
    assert!(words(&effects).contains(&"send session/prompt".to_owned()), "{effects:?}");

    let refused = |may_have| {
        let Carried { mut session, .. } = being_opened(claimed, Asked { may_have }, &waits);
        let failure = StartFailure::Agent(r#"{"code":-32603,"message":"no"}"#.into());
        let effects = session.handle(Input::StartFailed { failure, doubt: false }, now);
        assert_eq!(words(&effects)[..2], ["write closed", "write turn_ended"]);
        session.phase()
    };
    assert_eq!(refused(false), Phase::Cold);
    assert_eq!(refused(true), Phase::Suspect, "it may have had it before");
    let Carried { mut session, .. } = being_opened(claimed, fresh, &[]);
    let error = WireError::new(Code::AgentTimeout, "silent");
    let failure = StartFailure::Ours(error);
    session.handle(Input::StartFailed { failure, doubt: true }, now);
    assert_eq!(session.phase(), Phase::Suspect, "it may open it yet");
}

#[test]
fn what_was_being_unloaded_is_unloaded_again_for_the_same_reason() {
    let now = Now { wall: Timestamp::UNIX_EPOCH, mono_ms: 0 };
    let ended = r#"{"turn":"turn_4","outcome":"cancelled","stopReason":"cancelled"}"#;
    let records = [(Kind::TurnStarted, STARTED), (Kind::TurnEnded, ended)];
    let requests = vec![sent_prompt(5, "turn_4")];
    let parts = Carry { requests, closing: Some(CloseWhy::Idle), ..Carry::default() };
    let Carried { mut session, effects, .. } = taken_up(&records, parts);
    assert_eq!(words(&effects), ["shut idle"]);
    assert_eq!(session.phase(), Phase::Draining);
    assert_eq!(words(&chunk(&mut session, 90)), ["write update"], "it is heard to the end");
    let effects = session.handle(Input::Closed { let_go: true }, now);
    let Effect::Append(closed) = &effects[0] else { panic!("{effects:?}") };
    assert_eq!((&closed.kind, &closed.data[..]), (&Kind::Closed, &br#"{"reason":"idle"}"#[..]));
    assert_eq!(session.phase(), Phase::Cold);
}

#[test]
fn the_reason_of_a_close_is_read_back() {
    use CloseWhy::{Client, Delete, Idle, Stop, Stuck, Take};
    for why in [Client, Idle, Stop, Delete, Stuck, Take] {
        assert_eq!(CloseWhy::of_word(why.as_str()), why);
    }
    assert_eq!(CloseWhy::of_word("of another version"), Client);
}
