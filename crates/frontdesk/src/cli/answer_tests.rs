//! `pending`, `approve` and `deny` against a scripted daemon.

use serde_json::{Value, json};

use super::Exit;
use super::fake::FakeDesk;
use super::tests::{KEY, desk};

fn question(id: &str, session: &str, title: &str) -> Value {
    json!({
        "interaction": id, "sessionId": session, "key": session, "agent": "demo",
        "kind": "permission", "method": "session/request_permission", "title": title, "ageMs": 65_000,
        "params": { "options": [{ "optionId": "\u{e9}", "name": "Yes\u{1b}[31m", "kind": "allow_once" }] },
    })
}

const OTHER: &str = "01a22bb6-9999-7132-b868-40a3a5d1f51f";

/// Two questions of one session and one of another.
fn three() -> Value {
    let all = [
        question("ask_01a22bb62da27132_8", KEY, "May I build?"),
        question("ask_01a22bb62da27132_81", KEY, "May I push?"),
        question("ask_01a22bb699997132_8", OTHER, "May I go?"),
    ];
    json!({ "pending": all })
}

#[test]
fn pending_shows_what_is_asked_of_whom_for_how_long() {
    let desk = desk("_frontdesk/pending", |message, peer| {
        let mut all = three();
        all["pending"][1]["asked"] = json!([{ "key": "k", "name": "Zed" }]);
        all["pending"][2]["asked"] = json!([]);
        peer.reply(message, &all);
    });
    let out = desk.run(&["pending"]).out;
    for wanted in
        ["ask_01a22bb62da27132_8 ", "1 min", "May I build?", "asked: Zed", "no attached client"]
    {
        assert!(out.contains(wanted), "{wanted}: {out}");
    }
    assert!(!out.contains('\u{1b}'), "what agents send moves no cursor: {out:?}");
    assert_eq!(desk.run(&["pending", "--json"]).json()["pending"].as_array().unwrap().len(), 3);
    desk.run(&["pending", KEY]);
    assert_eq!(desk.calls("_frontdesk/pending")[2]["params"], json!({ "sessionId": KEY }));
}

#[test]
fn no_questions_is_an_empty_result() {
    let desk =
        desk("_frontdesk/pending", |message, peer| peer.reply(message, &json!({ "pending": [] })));
    let ran = desk.run(&["pending"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, ""));
    assert!(ran.err.contains("no open questions"), "{}", ran.err);
}

#[test]
fn what_fits_several_questions_answers_none() {
    let desk = desk("_frontdesk/pending", |message, peer| peer.reply(message, &three()));
    for typed in [KEY, "ask_01a22bb62da27132", "01a22bb6", "ask_"] {
        let ran = desk.run(&["approve", typed]);
        assert_eq!(ran.exit, Exit::Usage, "{typed}: {}", ran.err);
        assert!(ran.err.contains("ask_01a22bb62da27132_81  May I push?"), "{typed}: {}", ran.err);
    }
    assert!(desk.calls("_frontdesk/answer").is_empty());
}

#[test]
fn a_whole_id_never_means_a_longer_one() {
    let desk = desk("_frontdesk/pending", |message, peer| {
        let asked = &message["params"]["interaction"];
        assert_eq!(asked, "ask_01a22bb62da27132_8", "the daemon is asked for this one alone");
        peer.fail(message, -31018, "the question was answered");
    });
    let ran = desk.run(&["deny", "ask_01a22bb62da27132_8"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("the question was answered"), "{}", ran.err);
    assert!(desk.calls("_frontdesk/answer").is_empty());
}

#[test]
fn the_answer_names_the_offered_id_and_is_told() {
    let desk = FakeDesk::start(|message, peer| match message["method"].as_str() {
        Some("_frontdesk/answer") => {
            let answer = json!({ "outcome": message["params"]["outcome"] });
            peer.reply(message, &json!({ "interaction": "x", "answer": answer }));
        }
        _ => peer
            .reply(message, &json!({ "pending": [question("ask_01a22bb62da27132_8", KEY, "?")] })),
    });
    let ran = desk.run(&["approve", "01a22bb6"]);
    let words = "answered ask_01a22bb62da27132_8 with Yes[31m\n";
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, words), "{}", ran.err);
    let wanted = json!({
        "sessionId": KEY, "interaction": "ask_01a22bb62da27132_8",
        "outcome": { "outcome": "selected", "optionId": "\u{e9}" },
    });
    assert_eq!(desk.calls("_frontdesk/answer")[0]["params"], wanted);
    // Nothing that is offered says no: the question is cancelled.
    assert_eq!(desk.run(&["deny", "01a22bb6"]).exit, Exit::Done);
    assert_eq!(
        desk.calls("_frontdesk/answer")[1]["params"]["outcome"],
        json!({ "outcome": "cancelled" })
    );
}
