//! Following sessions: nothing is missed, nothing comes twice, and nothing is shown that a later
//! reader would not find.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use super::{allow, client, desk, events, hear, heard, session};
use crate::acp::refuse_all;

#[test]
fn what_was_shown_live_is_what_a_follower_from_the_start_is_shown_after_a_kill() {
    let mut desk = desk().open();
    let mut one = client(&desk, json!({}));
    let (mut acp, id) = session(&desk, allow(&desk));
    let from = one.mark();
    let start = json!({ "sessionId": id, "after": format!("v:{id}:0") });
    one.ok("view/subscribe", start.clone());
    acp.turn(&id, "think 3\nsay one\nask\ntool look\nplan A; B").0.unwrap();
    hear(&one, from, "turn/completed", |_| true);
    let _ = acp.begin("session/prompt", crate::acp::prompt(&id, "stream 400 every 1"));
    hear(&one, from, "item/delta", |params| params["delta"].as_str().unwrap().contains("50 of"));
    desk.kill_all();
    one.wait_end(super::EXIT);
    let shown = events(&one, from);
    desk.start();
    let mut two = client(&desk, json!({}));
    let from = two.mark();
    let head = two.ok("view/subscribe", start)["viewCursor"].clone();
    hear(&two, from, "turn/completed", |params| params["viewCursor"] == head);
    let again = events(&two, from);
    assert!(shown.len() > 60 && again.len() > shown.len(), "{} {}", shown.len(), again.len());
    assert_eq!(shown, again[..shown.len()], "what was shown is in the journal, in the same order");
    let (last, params) = again.last().unwrap();
    assert_eq!((last.as_str(), &params["terminal"]), ("turn/completed", &json!("failed")));
    assert_eq!(params["reason"], "crash_inferred");
}

#[test]
fn a_follower_that_comes_in_the_middle_of_a_stream_misses_nothing() {
    let desk = desk().open();
    let (mut acp, id) = session(&desk, refuse_all());
    let turn = acp.begin("session/prompt", crate::acp::prompt(&id, "stream 600 every 1"));
    let mut clients: Vec<_> = (0..4).map(|_| client(&desk, json!({}))).collect();
    let start = json!({ "sessionId": id, "after": format!("v:{id}:0") });
    for client in &mut clients {
        client.ok("view/subscribe", start.clone());
    }
    acp.wait(turn, super::EXIT).unwrap();
    let whole: Vec<String> = (1..=600).map(|n| format!("chunk {n} of 600 ")).collect();
    for client in &clients {
        let done = hear(client, 0, "item/completed", |p| p["item"]["kind"] == "agentMessage");
        let deltas: Vec<String> = events(client, 0)
            .into_iter()
            .filter(|(method, _)| method == "item/delta")
            .map(|(_, params)| params["delta"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(deltas, whole);
        assert_eq!(done["item"]["text"], whole.concat());
    }
}

#[test]
fn a_client_that_does_not_read_is_read_for_later_and_holds_nobody_up() {
    let desk = desk().limit("outbox_bytes", 65_536).open();
    let (mut acp, id) = session(&desk, refuse_all());
    let mut slow = UnixStream::connect(desk.socket()).unwrap();
    let info = json!({ "name": "slow", "version": "1" });
    for frame in [
        json!({ "frontdesk": 1, "face": "msp" }),
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "clientInfo": info } }),
        json!({ "jsonrpc": "2.0", "method": "initialized" }),
        json!({ "jsonrpc": "2.0", "id": 2, "method": "view/subscribe", "params": { "sessionId": id } }),
    ] {
        writeln!(slow, "{frame}").unwrap();
    }
    let mut lines = BufReader::new(slow)
        .lines()
        .map(|line| -> Value { serde_json::from_str(&line.unwrap()).unwrap() });
    // The subscription stands; from here on nothing is read until the turn is over.
    assert!(lines.any(|frame| frame["id"] == 2));
    acp.turn(&id, "stream 3000 bytes 300").0.unwrap();
    let mut count = 0;
    for frame in lines {
        if frame["method"] == "item/delta" {
            count += 1;
        }
        assert_ne!(frame["method"], "view/gap");
        if frame["method"] == "turn/completed" {
            break;
        }
    }
    assert_eq!(count, 3000);
}

#[test]
fn unsubscribing_ends_the_events_and_following_a_cold_session_loads_nothing() {
    let desk = desk().open();
    let mut one = client(&desk, json!({}));
    let (mut acp, id) = session(&desk, refuse_all());
    acp.turn(&id, "say hello").0.unwrap();
    acp.ok("session/close", json!({ "sessionId": id }));
    let from = one.mark();
    let start = json!({ "sessionId": id, "after": format!("v:{id}:0") });
    one.ok("view/subscribe", start);
    hear(&one, from, "turn/completed", |_| true);
    assert_eq!(
        one.ok("session/read", json!({ "sessionId": id }))["session"]["status"],
        "notLoaded"
    );
    // It is followed into its next life.
    acp.ok("session/resume", json!({ "sessionId": id, "cwd": desk.work(), "mcpServers": [] }));
    let from = one.mark();
    acp.turn(&id, "say again").0.unwrap();
    hear(&one, from, "turn/completed", |_| true);
    one.ok("view/unsubscribe", json!({ "sessionId": id }));
    let from = one.mark();
    acp.turn(&id, "say unheard").0.unwrap();
    hear(&one, from, "session/statusChanged", |params| params["status"] == "idle");
    assert!(events(&one, from).is_empty(), "{:?}", events(&one, from));
}

#[test]
fn a_status_is_told_only_when_it_changed_and_a_crash_of_an_agent_closes_nothing() {
    let desk = desk().open();
    let one = client(&desk, json!({}));
    let (mut acp, id) = session(&desk, allow(&desk));
    hear(&one, 0, "session/started", |params| params["session"]["sessionId"] == json!(id));
    let from = one.mark();
    acp.turn(&id, "ask\nstream 20").0.unwrap();
    let other = desk.acp("demo", refuse_all());
    drop(other);
    let told = |method: &str| -> Vec<Value> {
        let all = heard(&one, from).into_iter().filter(|(told, _)| told == method);
        all.map(|(_, params)| params).collect()
    };
    hear(&one, from, "session/statusChanged", |params| params["status"] == "idle");
    let words: Vec<(Value, Value)> = told("session/statusChanged")
        .into_iter()
        .map(|params| (params["status"].clone(), params["attention"].clone()))
        .collect();
    let asks = json!(["approvalPending"]);
    assert_eq!(
        words,
        [
            (json!("running"), json!(null)),
            (json!("running"), asks),
            (json!("running"), json!(null)),
            (json!("idle"), json!(null)),
        ]
    );
    let _ = acp.begin("session/prompt", crate::acp::prompt(&id, "crash"));
    hear(&one, from, "session/statusChanged", |params| params["status"] == "notLoaded");
    assert!(told("session/closed").is_empty());
}

#[test]
fn a_turn_has_one_id_in_rows_and_events() {
    let desk = desk().open();
    let mut one = client(&desk, json!({ "experimental": true }));
    let (mut acp, id) = session(&desk, refuse_all());
    one.ok("view/subscribe", json!({ "sessionId": id }));
    let about = json!({ "sessionId": id });
    let mut seen = Vec::new();
    for _ in 0..2 {
        let from = one.mark();
        let prompt = crate::acp::prompt(&id, "stream 100000 every 2");
        let running = acp.begin("session/prompt", prompt);
        let turn = hear(&one, from, "turn/started", |_| true)["turnId"].clone();
        hear(&one, from, "item/delta", |_| true);
        let read = one.ok("session/read", about.clone());
        assert_eq!(read["session"]["activeTurnId"], turn);
        let listed = one.ok("session/list", json!({}));
        assert_eq!(listed["sessions"][0]["activeTurnId"], turn);
        acp.notify("session/cancel", about.clone());
        acp.wait(running, super::EXIT).unwrap();
        let done = hear(&one, from, "turn/completed", |_| true);
        assert_eq!(done["turnId"], turn);
        let items = events(&one, from).into_iter().filter(|(method, _)| method == "item/completed");
        let of: Vec<_> = items.map(|(_, params)| params["item"]["turnId"].clone()).collect();
        assert_eq!(of, [turn.clone(), turn.clone()], "the prompt and the answer");
        let read = one.ok("session/read", about.clone());
        assert!(read["session"]["activeTurnId"].is_null(), "{read}");
        assert_eq!(read["lastTurn"]["turnId"], turn);
        seen.push(turn);
    }
    assert_ne!(seen[0], seen[1]);
}
