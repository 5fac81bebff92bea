//! What a shim remembers, and what it makes of a new daemon.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SESSION: &str = "s \"1\"";

fn line(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}

fn request(id: i64, method: &str, params: Value) -> Bytes {
    line(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
}

fn prompt(id: i64) -> Bytes {
    request(id, "session/prompt", json!({ "sessionId": SESSION, "prompt": [] }))
}

fn ok(id: &Value, result: Value) -> Bytes {
    line(&json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

fn marked(mark: &Bytes, frame: &Bytes) -> Bytes {
    [mark.as_ref(), frame.as_ref()].concat().into()
}

fn update(text: &str) -> Bytes {
    let params = json!({ "sessionId": SESSION, "update": { "text": text } });
    line(&json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }))
}

fn ask(hop: &str) -> Bytes {
    let params = json!({ "sessionId": SESSION });
    let method = "session/request_permission";
    line(&json!({ "jsonrpc": "2.0", "id": hop, "method": method, "params": params }))
}

/// A shim and what passed on both sides.
#[derive(Default)]
struct Bench {
    shim: Shim,
}

impl Bench {
    /// Greeted, and in one session up to record 5.
    fn new() -> Self {
        let mut bench = Self::default();
        bench.editor(&request(0, "initialize", json!({ "protocolVersion": 1 })));
        bench.editor(&request(1, "session/new", json!({ "cwd": "/w" })));
        assert_eq!(bench.out().len(), 2);
        bench.daemon(&ok(&json!(0), json!({})));
        let born = ok(&json!(1), json!({ "sessionId": SESSION }));
        assert_eq!(bench.daemon(&marked(&answer_mark(Mark::whole(5), SESSION), &born)), [born]);
        bench
    }

    fn editor(&mut self, line: &Bytes) {
        assert_eq!(self.shim.from_editor(line.clone()), None);
    }

    fn out(&mut self) -> Vec<Bytes> {
        std::iter::from_fn(|| self.shim.next_out()).collect()
    }

    fn daemon(&mut self, line: &Bytes) -> Vec<Bytes> {
        let mut show = Vec::new();
        self.shim.from_daemon(line, &mut show);
        show
    }

    fn shown(&mut self, mark: Mark, text: &str) {
        let frame = update(text);
        assert_eq!(self.daemon(&marked(&mark_text(mark, SESSION), &frame)), [frame]);
    }

    /// Another daemon; what it is told, and what the editor is shown at once.
    fn again(&mut self) -> (Vec<Value>, Vec<Bytes>) {
        let mut show = Vec::new();
        self.shim.disconnected();
        assert_eq!(self.out(), Vec::<Bytes>::new());
        self.shim.reconnected(&mut show);
        let told = self.out();
        (told.iter().map(|line| serde_json::from_slice(line).unwrap()).collect(), show)
    }

    /// The new daemon answers all that it was told.
    fn welcome(&mut self, told: &[Value], open: &[&str], unknown: &[i64]) -> Vec<Bytes> {
        let mut show = Vec::new();
        for request in told {
            let result = match request["method"].as_str() {
                Some("_frontdesk/rejoin") => json!({ "open": open, "unknown": unknown }),
                _ => json!({}),
            };
            self.shim.from_daemon(&ok(&request["id"], result), &mut show);
        }
        show
    }
}

#[test]
fn frames_pass_byte_for_byte_and_marks_are_taken_off() {
    let mut bench = Bench::new();
    let odd = Bytes::from_static(br#" {"id" : 7,"method":"x/y", "params":{"a":1e2}}"#);
    bench.editor(&odd);
    assert_eq!(bench.out(), [odd]);
    let broken = Bytes::from_static(b"{no json");
    bench.editor(&broken);
    assert_eq!(bench.out(), [broken]);
    bench.shown(Mark::whole(6), "a\tb");
    bench.shown(Mark { seq: 7, part: 1 }, "c");
    let plain = update("no record of it");
    assert_eq!(bench.daemon(&plain), [plain]);
    let (told, shown) = bench.again();
    // What was asked and is neither known nor repeatable.
    assert_eq!(shown, Vec::<Bytes>::new());
    assert_eq!(told[0]["method"], "initialize");
    assert_eq!(told[0]["params"]["protocolVersion"], 1);
    let params = json!({ "sessionId": SESSION, "seen": { "seq": 7, "part": 1 }, "prompts": [] });
    assert_eq!((&told[1]["method"], &told[1]["params"]), (&json!("_frontdesk/rejoin"), &params));
    let shown = bench.welcome(&told, &[], &[]);
    assert_eq!(shown.len(), 1);
    let error: Value = serde_json::from_slice(&shown[0]).unwrap();
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(7), &json!(-31002)));
}

#[test]
fn a_second_greeting_that_is_refused_changes_nothing_for_the_next_daemon() {
    let mut bench = Bench::new();
    let second = request(2, "initialize", json!({ "protocolVersion": 7 }));
    bench.editor(&second);
    assert_eq!(bench.out(), [second]);
    let refused = line(&json!({ "jsonrpc": "2.0", "id": 2, "error": { "code": -32600 } }));
    assert_eq!(bench.daemon(&refused), [refused]);
    let (told, _) = bench.again();
    assert_eq!(told[0]["params"]["protocolVersion"], 1);
    assert_eq!(told[1]["method"], "_frontdesk/rejoin");
}

#[test]
fn a_prompt_is_looked_up_and_sent_again_only_if_it_never_came() {
    for is_unknown in [false, true] {
        let mut bench = Bench::new();
        bench.editor(&prompt(2));
        assert_eq!(bench.out(), [prompt(2)]);
        bench.shown(Mark::whole(8), "x");
        let (told, _) = bench.again();
        assert_eq!(told[1]["params"]["prompts"], json!([{ "id": 2, "after": 5 }]));
        // What is said meanwhile waits behind it.
        bench.editor(&prompt(3));
        assert_eq!(bench.out(), Vec::<Bytes>::new());
        let unknown: &[i64] = if is_unknown { &[2] } else { &[] };
        assert_eq!(bench.welcome(&told, &[], unknown), Vec::<Bytes>::new());
        let wanted = if is_unknown { vec![prompt(2), prompt(3)] } else { vec![prompt(3)] };
        assert_eq!(bench.out(), wanted);
        let answer = ok(&json!(2), json!({ "stopReason": "end_turn" }));
        assert_eq!(bench.daemon(&answer), [answer]);
        let (told, _) = bench.again();
        assert_eq!(told[1]["params"]["prompts"], json!([{ "id": 3, "after": 8 }]));
    }
}

#[test]
fn a_prompt_that_never_left_is_not_looked_up() {
    let mut bench = Bench::new();
    bench.shim.disconnected();
    bench.editor(&prompt(2));
    let (told, _) = bench.again();
    assert_eq!(told[1]["params"]["prompts"], json!([]));
    bench.welcome(&told, &[], &[]);
    assert_eq!(bench.out(), [prompt(2)]);
}

#[test]
fn a_question_is_shown_once_and_its_answer_sent_to_whoever_asks_again() {
    let mut bench = Bench::new();
    assert_eq!(bench.daemon(&ask("h1")), [ask("h1")]);
    assert_eq!(bench.daemon(&ask("h2")), [ask("h2")]);
    let answer = ok(&json!("h1"), json!({ "yes": 1 }));
    bench.editor(&answer);
    assert_eq!(bench.out(), std::slice::from_ref(&answer));
    let (told, _) = bench.again();
    assert_eq!(bench.daemon(&ask("h2")), Vec::<Bytes>::new());
    assert_eq!(bench.daemon(&ask("h1")), Vec::<Bytes>::new());
    assert_eq!(bench.out(), [answer]);
    assert_eq!(bench.welcome(&told, &["h1", "h2"], &[]), Vec::<Bytes>::new());
    let late = ok(&json!("h2"), json!({ "no": 1 }));
    bench.editor(&late);
    assert_eq!(bench.out(), [late]);
}

#[test]
fn an_answer_given_while_nobody_was_there_goes_to_the_next_daemon_once() {
    let mut bench = Bench::new();
    bench.daemon(&ask("h1"));
    bench.shim.disconnected();
    let answer = ok(&json!("h1"), json!({}));
    bench.editor(&answer);
    let (told, _) = bench.again();
    assert_eq!(bench.daemon(&ask("h1")), Vec::<Bytes>::new());
    bench.welcome(&told, &["h1"], &[]);
    assert_eq!(bench.out(), [answer]);
}

#[test]
fn a_question_that_nobody_asks_any_more_is_taken_back() {
    let mut bench = Bench::new();
    bench.daemon(&ask("h1"));
    let (told, _) = bench.again();
    let shown = bench.welcome(&told, &[], &[]);
    let cancel: Value = serde_json::from_slice(&shown[0]).unwrap();
    assert_eq!((shown.len(), &cancel["method"]), (1, &json!("$/cancel_request")));
    assert_eq!(cancel["params"]["requestId"], "h1");
}

#[test]
fn a_load_goes_on_where_it_was_and_one_that_has_not_begun_begins() {
    let load = request(9, "session/load", json!({ "sessionId": SESSION, "cwd": "/w" }));
    for has_begun in [false, true] {
        let mut bench = Bench::new();
        bench.shown(Mark::whole(40), "live");
        bench.editor(&load);
        bench.out();
        bench.shown(Mark::whole(41), "live still");
        if has_begun {
            bench.shown(Mark::whole(6), "history");
        }
        let (told, _) = bench.again();
        let rejoin = json!({ "sessionId": SESSION, "prompts": [] });
        assert_eq!(told[1]["params"], rejoin, "nothing is shown besides the load");
        let begun = json!({ "sessionId": SESSION, "load": { "seq": 6, "part": 0 } });
        assert_eq!(told.get(2).map(|it| &it["params"]), has_begun.then_some(&begun));
        assert_eq!(bench.welcome(&told, &[], &[]), Vec::<Bytes>::new());
        assert_eq!(bench.out(), std::slice::from_ref(&load));
    }
}

#[test]
fn a_session_that_is_gone_answers_what_waits_in_it() {
    let mut bench = Bench::new();
    bench.editor(&prompt(2));
    bench.out();
    let (told, _) = bench.again();
    bench.daemon(&ok(&told[0]["id"], json!({})));
    let error = json!({ "code": -32002, "message": "Resource not found" });
    let refusal = json!({ "jsonrpc": "2.0", "id": told[1]["id"], "error": error });
    let shown = bench.daemon(&line(&refusal));
    let answer: Value = serde_json::from_slice(&shown[0]).unwrap();
    assert_eq!((shown.len(), &answer["id"], &answer["error"]), (1, &json!(2), &error));
    let (told, _) = bench.again();
    assert_eq!(told.len(), 1, "nothing is rejoined");
}

#[test]
fn a_cancel_is_sent_again_unless_a_later_prompt_would_be_cancelled_by_it() {
    let cancel = line(&json!({ "method": "session/cancel", "params": { "sessionId": SESSION } }));
    for has_later in [false, true] {
        let mut bench = Bench::new();
        bench.editor(&prompt(2));
        bench.editor(&cancel);
        if has_later {
            bench.editor(&prompt(3));
        }
        bench.out();
        let (told, _) = bench.again();
        bench.welcome(&told, &[], &[]);
        let wanted: &[Bytes] = if has_later { &[] } else { std::slice::from_ref(&cancel) };
        assert_eq!(bench.out(), wanted);
        // With its prompt it is forgotten.
        bench.daemon(&ok(&json!(2), json!({})));
        bench.daemon(&ok(&json!(3), json!({})));
        let (told, _) = bench.again();
        bench.welcome(&told, &[], &[]);
        assert_eq!(bench.out(), Vec::<Bytes>::new());
    }
}

#[test]
fn a_greeting_that_was_not_answered_is_sent_as_it_was() {
    let mut bench = Bench::default();
    let hello = request(0, "initialize", json!({ "protocolVersion": 1 }));
    bench.editor(&hello);
    bench.out();
    let mut show = Vec::new();
    bench.shim.disconnected();
    bench.shim.reconnected(&mut show);
    assert_eq!((bench.out(), show), (vec![hello], Vec::new()));
    let answer = ok(&json!(0), json!({}));
    assert_eq!(bench.daemon(&answer), [answer]);
}

#[test]
fn limits_hold() {
    let mut bench = Bench::new();
    for id in 0..i64::try_from(REQUESTS_MAX).unwrap() {
        bench.editor(&request(10 + id, "x", json!({})));
    }
    let refused = bench.shim.from_editor(request(9, "x", json!({}))).unwrap();
    let refused: Value = serde_json::from_slice(&refused).unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(9), &json!(-31004)));
    let twice = bench.shim.from_editor(request(10, "x", json!({}))).unwrap();
    let twice: Value = serde_json::from_slice(&twice).unwrap();
    assert_eq!(twice["error"]["code"], -32600);
    assert!(!bench.shim.is_full());
    bench.editor(&line(&json!({ "method": "n", "params": "x".repeat(HELD_BYTES_MAX) })));
    assert!(bench.shim.is_full());
    bench.out();
    assert!(!bench.shim.is_full() && bench.shim.is_empty());
    assert_eq!(bench.shim.give_up("over").len(), REQUESTS_MAX);
    // Answers beyond the limit: the oldest is forgotten, and so is shown again.
    for hop in 0..=HOPS_MAX {
        bench.daemon(&ask(&format!("h{hop}")));
        bench.editor(&ok(&json!(format!("h{hop}")), json!({})));
    }
    bench.again();
    assert_eq!(bench.daemon(&ask("h0")), [ask("h0")]);
    assert_eq!(bench.daemon(&ask("h1024")), Vec::<Bytes>::new());
}

#[test]
fn a_daemon_that_was_told_to_stop_says_so() {
    let mut bench = Bench::new();
    assert!(!bench.shim.has_stopped());
    assert_eq!(bench.daemon(&Bytes::from_static(STOP)), Vec::<Bytes>::new());
    assert!(bench.shim.has_stopped());
}

proptest! {
    #[test]
    fn marks_are_read_as_they_were_written(seq in 0_u64.., part in 0_u32.., session in ".*") {
        let mark = Mark { seq, part };
        let frame = update("x");
        let shown = Marked::Shown { mark, session: session.as_str().into(), frame: frame.clone() };
        prop_assert_eq!(read_mark(&marked(&mark_text(mark, &session), &frame)), shown);
        let answer = Marked::Answer { mark, session: session.as_str().into(), frame: frame.clone() };
        prop_assert_eq!(read_mark(&marked(&answer_mark(mark, &session), &frame)), answer);
    }

    #[test]
    fn no_line_of_either_side_is_too_odd(lines in proptest::collection::vec(".*", 0..20)) {
        let mut bench = Bench::new();
        for (at, text) in lines.into_iter().enumerate() {
            let _ = bench.shim.from_editor(Bytes::from(text.clone()));
            bench.daemon(&Bytes::from(format!("@{text}")));
            bench.daemon(&Bytes::from(text));
            if at % 5 == 4 {
                bench.again();
            }
        }
    }
}
