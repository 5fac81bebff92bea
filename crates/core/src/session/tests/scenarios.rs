//! One story a test, told in effects.

use super::*;

pub(super) const ASK: &str = r#"{"id":5,"method":"session/request_permission","params":{"sessionId":"n","options":[{"optionId":"yes"},{"optionId":"no"}]}}"#;
pub(super) const CHUNK: &str = r#"{"method":"session/update","params":{"sessionId":"n","update":{"sessionUpdate":"agent_message_chunk"}}}"#;

pub(super) fn end_turn(bench: &mut Bench, tag: Tag) -> Vec<Effect> {
    bench.answered(tag, frame(r#"{"id":9,"result":{"stopReason":"end_turn"}}"#))
}

pub(super) fn hop_of(effects: &[Effect]) -> Box<str> {
    let mut hops = effects.iter().filter_map(|effect| match effect {
        Effect::Tell { hop: Some(hop), .. } => Some(hop.clone()),
        _ => None,
    });
    hops.next().unwrap()
}

fn answer_of(effects: &[Effect]) -> &Bytes {
    let mut answers = effects.iter().filter_map(|effect| match effect {
        Effect::Answer { frame, .. } => Some(frame),
        _ => None,
    });
    answers.next().unwrap()
}

pub(super) fn choose(option: &str) -> Frame {
    frame(&format!(
        r#"{{"id":"h","result":{{"outcome":{{"outcome":"selected","optionId":"{option}"}}}}}}"#
    ))
}

#[test]
fn a_turn_is_written_before_it_is_sent_and_ends_before_it_is_answered() {
    let mut bench = Bench::live();
    let effects = bench.prompt(1, "3", "hi");
    assert_eq!(words(&effects), ["write turn_started", "write renamed", "send session/prompt"]);
    assert_eq!(bench.session.state(), Some(State::Running));
    assert_eq!(words(&bench.agent(CHUNK)), ["write update", "tell c1 session/update"]);
    let effects = end_turn(&mut bench, sent(&effects));
    assert_eq!(words(&effects), ["write turn_ended", "sync", "answer c1 3 ok"]);
    assert_eq!(bench.session.state(), Some(State::Idle));
}

#[test]
fn a_second_client_gets_history_then_its_answer_then_what_comes() {
    let mut bench = Bench::live();
    let first = bench.prompt(1, "3", "hi");
    assert_eq!(words(&bench.attach(2, How::Load)), ["catch-up c2 from 0"]);
    // Something is written while the client still reads: it reads on from where it was.
    let seq = bench.session.view().seq;
    assert_eq!(words(&bench.agent(CHUNK)), ["write update", "tell c1 session/update"]);
    let effects = bench.run(Input::CaughtUp { conn: ConnId(2), seq });
    assert_eq!(words(&effects), [format!("catch-up c2 from {seq}")]);
    let effects = bench.run(Input::CaughtUp { conn: ConnId(2), seq: seq + 1 });
    // It also learns that a turn of somebody else's runs.
    assert_eq!(words(&effects), ["answer c2 7 ok", "tell c2 session/update"]);
    assert_eq!(
        words(&bench.agent(CHUNK)),
        ["write update", "tell c1 session/update", "tell c2 session/update"]
    );
    let effects = end_turn(&mut bench, sent(&first));
    assert_eq!(
        words(&effects),
        ["write turn_ended", "sync", "tell c2 session/update", "answer c1 3 ok"]
    );
}

#[test]
fn prompts_wait_in_order_up_to_the_limit() {
    let mut bench = Bench::live();
    bench.join(2);
    let first = bench.prompt(1, "5", "from A");
    assert_eq!(words(&bench.prompt(2, "5", "from B")), ["write turn_queued"]);
    for _ in 1..bench.session.limits.queued_turns {
        bench.prompt(2, "6", "more");
    }
    assert_eq!(words(&bench.prompt(2, "8", "too many")), ["answer c2 8 -31004"]);
    let effects = end_turn(&mut bench, sent(&first));
    assert_eq!(
        words(&effects),
        [
            "write turn_ended",
            "sync",
            "tell c2 session/update",
            "answer c1 5 ok",
            "write turn_started",
            "tell c1 session/update",
            "tell c1 session/update",
            "send session/prompt",
        ]
    );
}

#[test]
fn a_waiting_prompt_is_cancelled_with_its_own_answer() {
    let mut bench = Bench::live();
    bench.join(2);
    bench.prompt(1, "5", "a");
    bench.prompt(2, "6", "b");
    let effects = bench.run(Input::CancelRequest { conn: ConnId(2), id: "6".into() });
    assert_eq!(words(&effects), ["write turn_ended", "answer c2 6 -32800"]);
    bench.prompt(2, "7", "c");
    let effects = bench.run(Input::Cancel { conn: ConnId(2) });
    assert_eq!(words(&effects), ["write turn_ended", "answer c2 7 ok", "reply session/cancel"]);
}

#[test]
fn the_first_valid_answer_wins_and_the_rest_are_withdrawn() {
    let mut bench = Bench::live();
    bench.join(2);
    bench.prompt(1, "3", "x");
    let effects = bench.agent(ASK);
    assert_eq!(
        words(&effects),
        [
            "write interaction_opened",
            "sync",
            "ask c1 session/request_permission",
            "ask c2 session/request_permission"
        ]
    );
    assert_eq!(bench.session.state(), Some(State::RequiresAction));
    let hop = hop_of(&effects);
    let answer = |bench: &mut Bench, conn, frame| {
        words(&bench.run(Input::Answer { conn: ConnId(conn), hop: hop.clone(), frame }))
    };
    let nothing: [&str; 0] = [];
    assert_eq!(
        answer(&mut bench, 1, frame(r#"{"id":"h","error":{"code":-32601,"message":""}}"#)),
        nothing
    );
    // It is told; a person at it would wait in vain otherwise.
    assert_eq!(answer(&mut bench, 1, choose("never offered")), ["tell c1 session/update"]);
    assert_eq!(
        answer(&mut bench, 2, choose("no")),
        ["write interaction_settled", "sync", "reply ok"]
    );
    assert_eq!(answer(&mut bench, 1, choose("yes")), nothing);
    assert_eq!(bench.session.state(), Some(State::Running));
}

#[test]
fn a_question_waits_for_somebody_to_come() {
    let mut bench = Bench::live();
    bench.prompt(1, "3", "x");
    bench.run(Input::Detach { conn: ConnId(1) });
    assert_eq!(words(&bench.agent(ASK)), ["write interaction_opened", "sync"]);
    assert!(bench.session.idle_deadline().is_none());
    let effects = bench.attach(2, How::Resume);
    assert_eq!(
        words(&effects),
        ["answer c2 7 ok", "tell c2 session/update", "ask c2 session/request_permission"]
    );
    // The same question carries the same id to everybody.
    assert_eq!(&*hop_of(&effects), "i:123:0");
}

#[test]
fn cancel_answers_open_questions_and_the_agents_answer_ends_the_turn() {
    let mut bench = Bench::live();
    let first = bench.prompt(1, "3", "x");
    bench.agent(ASK);
    let effects = bench.run(Input::Cancel { conn: ConnId(1) });
    assert_eq!(
        words(&effects),
        [
            "reply session/cancel",
            "write interaction_settled",
            "sync",
            "reply ok",
            "forget c1",
            "tell c1 $/cancel_request"
        ]
    );
    let nothing: [&str; 0] = [];
    assert_eq!(words(&bench.run(Input::Cancel { conn: ConnId(1) })), nothing);
    let effects = end_turn(&mut bench, sent(&first));
    assert_eq!(words(&effects), ["write turn_ended", "sync", "answer c1 3 ok"]);
}

#[test]
fn an_agent_that_ignores_cancel_is_answered_for_and_its_late_words_are_late() {
    let mut bench = Bench::live();
    let first = bench.prompt(1, "3", "x");
    bench.run(Input::Cancel { conn: ConnId(1) });
    let nothing: [&str; 0] = [];
    assert_eq!(words(&bench.wait(9_999)), nothing);
    assert_eq!(words(&bench.wait(1)), ["write turn_ended", "sync", "answer c1 3 ok"]);
    assert_eq!(words(&bench.agent(CHUNK)), ["write turn_late", "tell c1 session/update"]);
    // The next prompt waits for the late answer.
    assert_eq!(words(&bench.prompt(1, "4", "y")), ["write turn_queued"]);
    let effects = end_turn(&mut bench, sent(&first));
    assert_eq!(words(&effects), ["write note", "write turn_started", "send session/prompt"]);
}

#[test]
fn an_agent_that_never_ends_a_cancelled_turn_is_unloaded_and_the_waiting_prompt_told() {
    let mut bench = Bench::live();
    bench.prompt(1, "3", "x");
    bench.run(Input::Cancel { conn: ConnId(1) });
    bench.wait(10_000);
    bench.prompt(1, "4", "y");
    let effects = bench.wait(50_000);
    assert_eq!(words(&effects), ["write turn_ended", "answer c1 4 -31011", "end-stuck"]);
    let effects = bench.run(Input::Unload { why: CloseWhy::Stuck });
    assert_eq!(words(&effects), ["shut stuck"]);
    assert_eq!(words(&bench.run(Input::Closed { let_go: true })), ["write closed", "sync"]);
    // The client stays: its next prompt loads the session again.
    assert_eq!(words(&bench.prompt(1, "5", "z")), ["write turn_queued", "open"]);
}

#[test]
fn a_stuck_turn_that_may_not_be_ended_is_looked_at_again_and_its_late_answer_frees_the_session() {
    let mut bench = Bench::live();
    let tag = sent(&bench.prompt(1, "3", "x"));
    bench.run(Input::Cancel { conn: ConnId(1) });
    bench.wait(10_000);
    assert_eq!(words(&bench.wait(50_000)), ["end-stuck"]);
    assert_eq!(words(&bench.prompt(1, "4", "y")), ["write turn_queued"]);
    let effects = bench.wait(60_000);
    assert_eq!(words(&effects), ["write turn_ended", "answer c1 4 -31011", "end-stuck"]);
    assert_eq!(words(&end_turn(&mut bench, tag)), ["write note"]);
    // The shell's word comes too late.
    let nothing: [&str; 0] = [];
    assert_eq!(words(&bench.run(Input::Unload { why: CloseWhy::Stuck })), nothing);
    assert_eq!(words(&bench.prompt(1, "5", "z")), ["write turn_started", "send session/prompt"]);
}

#[test]
fn a_dead_instance_leaves_nothing_open() {
    let mut bench = Bench::live();
    bench.join(2);
    bench.prompt(1, "3", "x");
    bench.agent(ASK);
    bench
        .agent(r#"{"id":"t","method":"fs/read_text_file","params":{"sessionId":"n","path":"/x"}}"#);
    bench.run(Input::Forward {
        conn: ConnId(2),
        frame: frame(
            r#"{"id":8,"method":"session/set_mode","params":{"sessionId":"n","modeId":"m"}}"#,
        ),
    });
    let effects =
        bench.run(Input::Ended { why: "killed".into(), detail: Value::Null, proven: true });
    let words = words(&effects);
    for want in [
        "write interaction_settled",
        "write turn_ended",
        "answer c1 3 -31002",
        "answer c2 8 -31002",
        "write lost",
    ] {
        assert!(words.iter().any(|word| word == want), "{want} in {words:?}");
    }
    assert_eq!(words.iter().filter(|word| word.contains("$/cancel_request")).count(), 3);
    assert!(matches!(bench.session.phase(), Phase::Cold));
    let view = bench.session.view();
    assert!(
        view.open_turn.is_none() && view.open_interactions.is_empty() && view.loaded_by.is_none()
    );
}

#[test]
fn closing_with_others_there_only_leaves_and_the_last_one_unloads() {
    let mut bench = Bench::live();
    bench.join(2);
    bench.prompt(1, "3", "x");
    let effects = bench.run(Input::Close { conn: ConnId(1), id: "4".into(), force: false });
    assert_eq!(
        words(&effects),
        [
            "reply session/cancel",
            "write turn_ended",
            "sync",
            "tell c2 session/update",
            "answer c1 3 ok",
            "answer c1 4 ok",
            "left c1"
        ]
    );
    let effects = bench.run(Input::Close { conn: ConnId(2), id: "9".into(), force: false });
    assert_eq!(words(&effects), ["shut client"]);
    // Who comes while it is being closed waits and then starts it again.
    let nothing: [&str; 0] = [];
    assert_eq!(words(&bench.attach(3, How::Resume)), nothing);
    let effects = bench.run(Input::Closed { let_go: true });
    assert_eq!(words(&effects), ["write closed", "sync", "answer c2 9 ok", "left c2", "open"]);
}

#[test]
fn a_closed_session_is_not_woken_by_a_prompt() {
    let mut bench = Bench::live();
    bench.run(Input::Close { conn: ConnId(1), id: "4".into(), force: false });
    bench.run(Input::Closed { let_go: true });
    assert_eq!(words(&bench.prompt(1, "5", "are you there")), ["answer c1 5 -32002"]);
    assert!(bench.session.at_rest());
}

#[test]
fn an_idle_session_is_unloaded_and_called_back_by_its_clients_prompt() {
    let mut bench = Bench::live();
    let nothing: [&str; 0] = [];
    assert_eq!(words(&bench.wait(2_000_000)), nothing, "never one without a finished turn");
    let first = bench.prompt(1, "3", "x");
    end_turn(&mut bench, sent(&first));
    assert_eq!(words(&bench.wait(1_799_999)), nothing);
    assert_eq!(words(&bench.wait(1)), ["shut idle"]);
    assert_eq!(words(&bench.run(Input::Closed { let_go: true })), ["write closed", "sync"]);
    assert_eq!(words(&bench.prompt(1, "4", "y")), ["write turn_queued", "open"]);
    bench
        .run(Input::Opening { facts: AgentFacts { epoch: 2, ..facts() }, mode: OpenMode::Swallow });
    assert_eq!(words(&bench.agent(CHUNK)), nothing, "the replay is swallowed");
    let effects = bench.run(Input::Started { result: "{}".into() });
    assert_eq!(
        words(&effects),
        ["write loaded", "sync", "write turn_started", "send session/prompt"]
    );
}

#[test]
fn racing_resumes_open_once() {
    let mut bench = Bench::cold(View { native: Some("n".into()), ..View::default() });
    assert_eq!(words(&bench.attach(1, How::Resume)), ["open"]);
    let nothing: [&str; 0] = [];
    assert_eq!(words(&bench.attach(2, How::Resume)), nothing);
    bench.run(Input::Opening { facts: facts(), mode: OpenMode::Resume });
    let effects = bench.run(Input::Started { result: "{}".into() });
    assert_eq!(words(&effects), ["write loaded", "sync", "answer c1 7 ok", "answer c2 7 ok"]);
}

#[test]
fn an_instance_whose_last_word_is_that_it_has_opened_the_session_is_not_waited_for() {
    let mut bench = Bench::cold(View { native: Some("n".into()), ..View::default() });
    bench.attach(1, How::Resume);
    bench.prompt(1, "5", "x");
    bench.run(Input::Opening { facts: facts(), mode: OpenMode::Resume });
    // Both were on their way, and the end came first.
    bench.run(Input::Ended { why: "killed".into(), detail: Value::Null, proven: true });
    let words = words(&bench.run(Input::Started { result: "{}".into() }));
    for want in ["write loaded", "answer c1 7 ok", "write lost", "open"] {
        assert!(words.iter().any(|word| word == want), "{want} in {words:?}");
    }
    let sent = words.iter().any(|word| word == "send session/prompt");
    assert!(!sent, "nothing is sent to a dead instance: {words:?}");
    assert!(bench.session.phase().is_starting());
}

#[test]
fn a_failed_start_passes_the_agents_error_on_and_can_be_tried_again() {
    let mut bench = Bench::cold(View { native: Some("n".into()), ..View::default() });
    bench.attach(1, How::Resume);
    let busy = StartFailure::Agent(r#"{"code":-32000,"message":"Authentication required"}"#.into());
    let effects = bench.run(Input::StartFailed { failure: busy, doubt: false });
    assert_eq!(words(&effects), ["answer c1 7 -32000", "left c1"]);
    assert_eq!(bench.session.view().resumable, None);
    assert_eq!(words(&bench.attach(1, How::Resume)), ["open"]);
}

#[test]
fn a_session_that_is_gone_shows_its_history_and_says_what_is_lost() {
    let view = View { native: Some("n".into()), items: 4, turn_count: 2, ..View::default() };
    let mut bench = Bench::cold(view);
    bench.attach(1, How::Load);
    bench.attach(2, How::Resume);
    let effects = bench.run(Input::StartFailed { failure: StartFailure::Gone, doubt: false });
    assert_eq!(
        words(&effects),
        ["write metadata", "catch-up c1 from 0", "answer c2 7 -32002", "left c2"]
    );
    let seq = bench.session.view().seq;
    let effects = bench.run(Input::CaughtUp { conn: ConnId(1), seq });
    assert_eq!(words(&effects), ["answer c1 7 ok"]);
    let frame = answer_of(&effects);
    assert!(String::from_utf8_lossy(frame).contains(r#""resumable":false"#));
    assert_eq!(words(&bench.prompt(1, "5", "go on")), ["answer c1 5 -32002"]);
    assert_eq!(bench.session.view().resumable, Some(false));
}

#[test]
fn what_an_agent_asks_of_clients_goes_to_one_that_can() {
    let mut bench = Bench::live();
    bench.join(2);
    let term = r#"{"id":1,"method":"terminal/create","params":{"sessionId":"n","command":"ls"}}"#;
    bench.prompt(2, "3", "x");
    let effects = bench.agent(term);
    assert_eq!(words(&effects), ["ask c1 terminal/create"], "only client 1 has terminals");
    let hop = hop_of(&effects);
    let made = frame(r#"{"id":"h","result":{"terminalId":"t1"}}"#);
    let effects = bench.run(Input::Answer { conn: ConnId(1), hop, frame: made });
    assert_eq!(words(&effects), ["reply ok"]);
    let of = r#"{"id":2,"method":"terminal/output","params":{"sessionId":"n","terminalId":"t1"}}"#;
    assert_eq!(words(&bench.agent(of)), ["ask c1 terminal/output"]);
    let write = r#"{"id":3,"method":"fs/write_text_file","params":{"sessionId":"n","path":"/x"}}"#;
    assert_eq!(words(&bench.agent(write)), ["reply -31008"], "nobody writes files");
    bench.run(Input::Detach { conn: ConnId(1) });
    assert_eq!(words(&bench.agent(of)), ["reply -32602"], "the terminal left with its client");
}

#[test]
fn an_unknown_request_is_tried_with_each_client_for_a_while_and_then_refused() {
    let mut bench = Bench::live();
    bench.join(2);
    let ext = r#"{"id":"q","method":"_vendor/drain","params":{"sessionId":"n"}}"#;
    let effects = bench.agent(ext);
    assert_eq!(words(&effects), ["ask c1 _vendor/drain"]);
    let effects = bench.wait(10_000);
    assert_eq!(words(&effects), ["forget c1", "tell c1 $/cancel_request", "ask c2 _vendor/drain"]);
    let hop = hop_of(&effects);
    let refused = frame(r#"{"id":"h","error":{"code":-32601,"message":"no"}}"#);
    let effects = bench.run(Input::Answer { conn: ConnId(2), hop, frame: refused });
    assert_eq!(words(&effects), ["reply -32601"]);
    bench.run(Input::Detach { conn: ConnId(1) });
    bench.run(Input::Detach { conn: ConnId(2) });
    assert_eq!(words(&bench.agent(ext)), ["reply -32601"], "at once with nobody there");
}

#[test]
fn questions_and_attachments_have_limits() {
    let mut bench = Bench::live();
    for _ in 0..bench.session.limits.open_interactions {
        bench.agent(ASK);
    }
    assert_eq!(words(&bench.agent(ASK)), ["reply -31004"]);
    for conn in 2..=u64::from(bench.session.limits.attachments) {
        bench.attach(conn, How::Resume);
    }
    assert_eq!(words(&bench.attach(99, How::Resume)), ["answer c99 7 -31012", "left c99"]);
}

#[test]
fn a_mode_that_one_client_sets_is_told_to_the_others_and_to_later_ones() {
    let mut bench = Bench::live();
    bench.join(2);
    let set = frame(
        r#"{"id":8,"method":"session/set_mode","params":{"sessionId":"key","modeId":"auto"}}"#,
    );
    let effects = bench.run(Input::Forward { conn: ConnId(2), frame: set });
    assert_eq!(words(&effects), ["send session/set_mode"]);
    let tag = sent(&effects);
    let effects = bench.answered(tag, frame(r#"{"id":1,"result":{}}"#));
    assert_eq!(words(&effects), ["write options", "tell c1 session/update", "answer c2 8 ok"]);
    let effects = bench.attach(3, How::Resume);
    let frame = answer_of(&effects);
    assert!(String::from_utf8_lossy(frame).contains(r#""currentModeId":"auto""#));
}

#[test]
fn a_stop_gives_a_running_turn_its_grace_and_then_cancels_it() {
    let mut bench = Bench::live();
    bench.prompt(1, "3", "x");
    let nothing: [&str; 0] = [];
    assert_eq!(words(&bench.run(Input::Stop { grace_ms: 10_000 })), nothing);
    assert_eq!(words(&bench.prompt(1, "4", "more")), ["answer c1 4 -31006"]);
    let effects = bench.wait(10_000);
    assert_eq!(
        words(&effects),
        ["reply session/cancel", "write turn_ended", "sync", "answer c1 3 ok", "shut stop"]
    );
    assert_eq!(
        words(&bench.run(Input::Closed { let_go: true })),
        ["write closed", "sync", "left c1"]
    );
    assert!(bench.session.at_rest());
}

#[test]
fn a_slow_client_is_served_from_the_journal_and_comes_back() {
    let mut bench = Bench::live();
    let seq = bench.session.view().seq;
    assert_eq!(
        words(&bench.run(Input::Lagging { conn: ConnId(1) })),
        [format!("catch-up c1 from {seq}")]
    );
    assert_eq!(words(&bench.agent(CHUNK)), ["write update"]);
    let nothing: [&str; 0] = [];
    assert_eq!(words(&bench.run(Input::CaughtUp { conn: ConnId(1), seq: seq + 1 })), nothing);
    assert_eq!(words(&bench.agent(CHUNK)), ["write update", "tell c1 session/update"]);
}

#[test]
fn a_slow_client_is_answered_behind_what_was_said_before() {
    let mut bench = Bench::live();
    let tag = sent(&bench.prompt(1, "3", "hi"));
    bench.run(Input::Lagging { conn: ConnId(1) });
    bench.agent(CHUNK);
    assert_eq!(words(&end_turn(&mut bench, tag)), ["write turn_ended", "sync"]);
    let seq = bench.session.view().seq;
    let behind = bench.run(Input::CaughtUp { conn: ConnId(1), seq: seq - 1 });
    assert_eq!(words(&behind), [format!("catch-up c1 from {}", seq - 1)]);
    let done = bench.run(Input::CaughtUp { conn: ConnId(1), seq });
    assert_eq!(words(&done), ["answer c1 3 ok"]);
}

#[test]
fn a_slow_client_that_leaves_is_answered_first() {
    let mut bench = Bench::live();
    bench.join(2);
    bench.run(Input::Lagging { conn: ConnId(1) });
    let effects = bench.run(Input::Close { conn: ConnId(1), id: "8".into(), force: false });
    assert_eq!(words(&effects), ["answer c1 8 ok", "left c1"]);
}

#[test]
fn a_client_that_still_reads_is_not_read_to_twice() {
    let mut bench = Bench::live();
    let seq = bench.session.view().seq;
    bench.run(Input::Lagging { conn: ConnId(1) });
    let nothing: [&str; 0] = [];
    assert_eq!(words(&bench.attach(1, How::Load)), nothing);
    let effects = bench.run(Input::CaughtUp { conn: ConnId(1), seq });
    assert_eq!(words(&effects), ["catch-up c1 from 0"]);
    let effects = bench.run(Input::CaughtUp { conn: ConnId(1), seq });
    assert_eq!(words(&effects), ["answer c1 7 ok"]);
}

#[test]
fn a_stop_waits_no_longer_than_its_turn() {
    let mut bench = Bench::live();
    let tag = sent(&bench.prompt(1, "3", "hi"));
    bench.run(Input::Stop { grace_ms: 10_000 });
    let effects = end_turn(&mut bench, tag);
    let wanted = ["write turn_ended", "sync", "answer c1 3 ok", "shut stop"];
    assert_eq!(words(&effects), wanted);
}

#[test]
fn a_stop_unloads_what_was_just_being_started() {
    let mut bench = Bench::cold(View::default());
    assert_eq!(words(&bench.attach(1, How::Resume)), ["open"]);
    let nothing: [&str; 0] = [];
    assert_eq!(words(&bench.run(Input::Stop { grace_ms: 0 })), nothing);
    assert_eq!(bench.session.deadline_ms(), None, "nothing to look at before the start ends");
    bench.run(Input::Opening { facts: facts(), mode: OpenMode::Resume });
    let effects = words(&bench.run(Input::Started { result: "{}".into() }));
    assert_eq!(effects, ["write loaded", "sync", "answer c1 7 ok", "shut stop"]);
}

#[test]
fn an_elicitation_about_a_request_goes_to_its_sender_with_its_own_id() {
    let mut bench = Bench::live();
    bench.join(2);
    let effects = bench.prompt(1, "\"mine\"", "x");
    let tag = sent(&effects);
    let text = r#"{"id":4,"method":"elicitation/create","params":{"requestId":17,"mode":"form"}}"#;
    let message = Message::parse(Bytes::from_static(text.as_bytes())).unwrap();
    let at = |end| {
        let source = Source { instance: InstanceId("i".into()), end, part: 0 };
        Position { source }
    };
    let effects =
        bench.run(Input::Agent { message: message.clone(), at: at(900), about: Some(tag) });
    let waits = ["write interaction_opened", "sync", "tell c1 session/update"];
    assert_eq!(words(&effects), waits, "client 1 shows no elicitations and is told so");
    bench.session.clients.values_mut().for_each(|a| a.client.can.elicitation_form = true);
    let effects =
        bench.run(Input::Agent { message: message.clone(), at: at(901), about: Some(tag) });
    assert_eq!(words(&effects), ["write interaction_opened", "sync", "ask c1 elicitation/create"]);
    let Some(Effect::Tell { frame, .. }) = effects.last() else { panic!() };
    assert!(String::from_utf8_lossy(frame).contains(r#""requestId":"mine""#), "{frame:?}");
    let effects = bench.run(Input::Agent { message, at: at(902), about: Some(Tag(99)) });
    assert_eq!(words(&effects), ["reply -32602"]);
}
