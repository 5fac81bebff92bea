//! Each limit of the face, at the limit.

use serde_json::json;

use super::{EXIT, client, desk, events, hear, kind, session};
use crate::acp::refuse_all;
use crate::faults::eventually;
use crate::small_disk::SmallDisk;

const ONE: &str = "01a22bb6-2da2-7132-b868-40a3a5d1f521";
const TWO: &str = "01a22bb6-2da2-7132-b868-40a3a5d1f522";
const STRANGER: &str = "00000000-0000-7000-8000-000000000000";

#[test]
fn a_frame_at_the_limit_is_taken_and_a_longer_one_gets_the_limit() {
    const LIMIT: usize = 2000;
    let desk = desk().limit("msp_frame_bytes", LIMIT as u64).open();
    let mut one = client(&desk, json!({}));
    let frame = |id: &str, bytes: usize| {
        let head = format!(
            r#"{{"jsonrpc":"2.0",{id}"method":"session/read","params":{{"sessionId":"{STRANGER}","x":""#
        );
        let pad = "x".repeat(bytes - head.len() - r#""}}"#.len());
        format!("{head}{pad}\"}}}}\n")
    };
    let answer = |one: &crate::acp::Acp, from, id: serde_json::Value| {
        one.wait_frame(from, "an answer", |f| f["id"] == id && f["error"].is_object())["error"]
            .clone()
    };
    let from = one.mark();
    one.send_raw(frame(r#""id":"fits","#, LIMIT).as_bytes());
    assert_eq!(answer(&one, from, json!("fits"))["code"], -32020);
    one.send_raw(frame(r#""id":"long","#, LIMIT + 1).as_bytes());
    let error = answer(&one, from, json!("long"));
    assert_eq!((&error["code"], &error["data"]["limitBytes"]), (&json!(-32002), &json!(LIMIT)));
    assert_eq!(error["data"]["kind"], "inputTooLarge");
    one.send_raw(frame("", LIMIT + 1).as_bytes());
    let error = answer(&one, from, json!(null));
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32700), &json!("parseError")));
    one.ok("session/list", json!({}));
}

#[test]
fn what_does_not_fit_a_frame_is_left_out_and_said() {
    let desk = desk().limit("msp_frame_bytes", 20_000).open();
    let mut one = client(&desk, json!({}));
    let (mut acp, id) = session(&desk, refuse_all());
    one.ok("view/subscribe", json!({ "sessionId": id }));
    let from = one.mark();
    // A message of 30,000 bytes in chunks that fit: its completed item does not.
    acp.turn(&id, "stream 10 bytes 3000").0.unwrap();
    let done = hear(&one, from, "turn/completed", |_| true);
    let seen = events(&one, from);
    let gap = super::heard(&one, from).into_iter().find(|(m, _)| m == "view/gap").unwrap().1;
    let at = |cursor: &serde_json::Value| seen.iter().position(|(_, p)| p["viewCursor"] == *cursor);
    assert_eq!(gap["next"], done["viewCursor"]);
    assert_eq!(at(&gap["after"]).map(|place| place + 1), at(&gap["next"]), "{gap}");
    let page = json!({ "sessionId": id, "limit": 50, "cursor": gap["after"] });
    let error = one.err("view/page", page);
    assert_eq!(kind(&error), (-32603, "pageEventTooLarge"));
    assert_eq!(error.data["sessionId"], json!(id));
    let read = one.ok("session/read", json!({ "sessionId": id, "excludeItems": false }));
    assert_eq!(read["history"]["mode"], "none");
    assert_eq!(read["history"]["noneReason"], "historyBudget");
    assert_eq!(read["lastTurn"]["terminal"], "completed");
}

#[test]
fn as_many_sessions_are_followed_as_the_limit_says() {
    let desk = desk().limit("msp_subscriptions", 2).setting("sessions_per_instance = 4").open();
    let mut one = client(&desk, json!({}));
    let (mut acp, first) = session(&desk, refuse_all());
    let mut more = || {
        let made = acp.ok("session/new", json!({ "cwd": desk.work(), "mcpServers": [] }));
        made["sessionId"].as_str().unwrap().to_owned()
    };
    let (second, third) = (more(), more());
    for id in [&first, &second, &second] {
        one.ok("view/subscribe", json!({ "sessionId": id }));
    }
    let error = one.err("view/subscribe", json!({ "sessionId": third }));
    assert_eq!(kind(&error), (-32031, "backpressured"));
    assert_eq!(error.data["capacity"], 2);
    one.ok("view/unsubscribe", json!({ "sessionId": first }));
    one.ok("view/subscribe", json!({ "sessionId": third }));
}

#[test]
fn lines_that_are_no_messages_end_the_connection_at_the_limit() {
    let desk = desk().limit("client_garbage_lines", 3).open();
    let mut one = client(&desk, json!({}));
    let from = one.mark();
    one.send_raw(b"x\nx\n");
    one.wait_frame(from, "an error", |f| f["error"]["code"] == -32700);
    one.ok("session/list", json!({}));
    one.send_raw(b"x\n");
    assert!(one.wait_exit(super::EXIT).is_some());
}

#[test]
fn a_command_that_cannot_be_recorded_is_refused_for_now_and_done_later() {
    let mut desk = desk().limit("drain_s", 1).limit("cancel_grace_ms", 500).build();
    let Some(disk) = SmallDisk::lay(&desk.home().join("data"), 24) else { return };
    desk.start();
    let mut one = client(&desk, json!({}));
    let (mut acp, id) = session(&desk, refuse_all());
    acp.turn(&id, "say hello").0.unwrap();
    let turn = acp.begin("session/prompt", crate::acp::prompt(&id, "stream 100000 every 2"));
    let from = acp.mark();
    acp.wait_frame(from, "the stream", |frame| frame["method"] == "session/update");
    disk.fill();
    let mut looker = desk.acp("demo", refuse_all());
    looker.initialize(crate::editor::capabilities());
    let is_behind = |looker: &mut crate::acp::Acp| {
        looker.ok("_frontdesk/session", json!({ "sessionId": id }))["behind"] == true
    };
    eventually("it is told", EXIT, || is_behind(&mut looker));
    let rename = json!({ "commandId": ONE, "sessionId": id, "name": "Later" });
    let fork = json!({ "commandId": TWO, "sessionId": id });
    for (method, params) in [("session/rename", &rename), ("session/fork", &fork)] {
        let error = one.err(method, params.clone());
        assert_eq!(kind(&error), (-32031, "backpressured"), "{method}: {error:?}");
        assert_eq!(error.data["capacity"], 0, "{error:?}");
        assert_eq!(error.data["retryable"], true, "{error:?}");
        assert!(error.message.contains("disk is full"), "{error:?}");
    }
    acp.notify("session/cancel", json!({ "sessionId": id }));
    acp.wait(turn, EXIT).unwrap();
    disk.free();
    eventually("there is room", EXIT, || !is_behind(&mut looker));
    assert_eq!(one.ok("session/rename", rename)["name"], "Later");
    let forked = one.ok("session/fork", fork)["session"]["forkedFrom"]["sessionId"].clone();
    assert_eq!(forked, json!(id));
}

#[test]
fn without_an_index_nothing_is_called_unknown_and_no_list_is_half() {
    let mut desk = desk().limit("index_wait_ms", 300).open();
    let (acp, id) = session(&desk, refuse_all());
    drop(acp);
    assert!(desk.stop().success());
    std::fs::remove_file(desk.home().join("data/index.sqlite")).unwrap();
    // Nothing can be made in the place of a folder.
    let blocked = desk.home().join("data/index.new.sqlite");
    std::fs::create_dir_all(blocked.join("x")).unwrap();
    desk.start();
    let mut one = client(&desk, json!({}));
    for (method, params) in [
        ("session/list", json!({})),
        ("session/read", json!({ "sessionId": id })),
        ("session/read", json!({ "sessionId": STRANGER })),
        ("view/subscribe", json!({ "sessionId": id })),
    ] {
        let error = one.err(method, params.clone());
        assert_eq!(kind(&error), (-32001, "overloaded"), "{method} {params}");
        assert_eq!(error.data["retryable"], true, "{method} {params}");
    }
    std::fs::remove_dir_all(&blocked).unwrap();
    eventually("the index", EXIT, || one.request("session/list", json!({})).is_ok());
    assert_eq!(one.ok("session/list", json!({}))["sessions"][0]["sessionId"], json!(id));
    let error = one.err("session/read", json!({ "sessionId": STRANGER }));
    assert_eq!(kind(&error), (-32020, "sessionNotFound"));
}

#[test]
fn a_cursor_is_good_over_a_restart_and_for_its_own_listing_alone() {
    let mut desk = desk().open();
    let made: Vec<_> = (0..2).map(|_| session(&desk, refuse_all())).collect();
    let page = |one: &mut crate::acp::Acp| one.ok("session/list", json!({ "limit": 1 }));
    let first = page(&mut client(&desk, json!({})));
    let cursor = first["nextCursor"].as_str().unwrap().to_owned();
    drop(made);
    assert!(desk.stop().success());
    desk.start();
    let mut one = client(&desk, json!({}));
    let rest = one.ok("session/list", json!({ "limit": 9, "cursor": cursor }));
    let ids = |page: &serde_json::Value| -> Vec<serde_json::Value> {
        page["sessions"].as_array().unwrap().iter().map(|row| row["sessionId"].clone()).collect()
    };
    assert_eq!((ids(&rest).len(), &rest["nextCursor"]), (1, &json!(null)), "{rest}");
    assert_ne!(ids(&rest), ids(&first));
    let mut acp = desk.acp("demo", refuse_all());
    acp.initialize(crate::editor::capabilities());
    let other_face = acp.err("session/list", json!({ "cursor": cursor }));
    assert_eq!(other_face.code, -32602);
    for wrong in [
        json!({ "cursor": cursor, "workspaceRoot": "/elsewhere" }),
        json!({ "cursor": cursor, "updatedAfter": "2026-01-01T00:00:00Z" }),
        json!({ "cursor": cursor.replace('0', "1") }),
    ] {
        assert_eq!(
            kind(&one.err("session/list", wrong.clone())),
            (-32602, "invalidParams"),
            "{wrong}"
        );
    }
}
