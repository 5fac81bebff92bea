//! Lines, the handshake, and how the program ends.

use std::os::unix::fs::symlink;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{EXIT, client, desk, hear, kind, raw};
use crate::acp::{Acp, Line, refuse_all};
use crate::desk::frontdesk;

/// The next answer with a null id behind a place.
fn nameless(client: &Acp, from: usize) -> Value {
    client.wait_frame(from, "an answer without an id", |f| {
        f["id"].is_null() && f["error"].is_object()
    })
}

#[test]
fn what_is_no_request_gets_the_protocols_error_and_the_connection_goes_on() {
    let desk = desk().open();
    let mut one = client(&desk, json!({}));
    for (line, code, word) in [
        ("[]\n", -32600, "invalidRequest"),
        (
            "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/list\"}]\n",
            -32600,
            "invalidRequest",
        ),
        ("7\n", -32600, "invalidRequest"),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"session/list\"}\n",
            -32600,
            "invalidRequest",
        ),
        ("{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"session/list\"}\n", -32600, "invalidRequest"),
        ("{oops\n", -32700, "parseError"),
        ("\u{feff}{}\n", -32700, "parseError"),
    ] {
        let from = one.mark();
        one.send_raw(line.as_bytes());
        let error = nameless(&one, from)["error"].clone();
        assert_eq!(
            (&error["code"], &error["data"]["kind"]),
            (&json!(code), &json!(word)),
            "{line}"
        );
    }
    let from = one.mark();
    // Blank lines, receipts, a CR before LF, and members nobody knows are no reason for anything.
    one.send_raw(b"\n \r\n{\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{}}\r\n");
    one.send_raw(b"{\"jsonrpc\":\"2.0\",\"method\":\"userInput/engaged\",\"params\":{}}\n");
    one.ok("session/list", json!({ "commandId": "stray", "cursor": null }));
    let answers = one.lines(from).into_iter().filter(|line| matches!(line, Line::In(_)));
    assert_eq!(answers.count(), 1);
    let error = one.err("session/read", json!([1]));
    assert_eq!(kind(&error), (-32602, "invalidParams"));
}

#[test]
fn nothing_is_served_before_initialize_and_initialize_once() {
    let desk = desk().open();
    let mut one = raw(&desk);
    assert_eq!(kind(&one.err("session/list", json!({}))), (-32600, "notInitialized"));
    assert_eq!(kind(&one.err("peer/list", json!({}))), (-32600, "notInitialized"));
    assert_eq!(kind(&one.err("initialize", json!({}))), (-32602, "invalidParams"));
    let params = json!({ "clientInfo": { "name": "tests", "version": "1", "title": "Tests" } });
    let said = one.ok("initialize", params.clone());
    assert_eq!(said["platformFamily"], "unix");
    assert!(std::path::Path::new(said["museHome"].as_str().unwrap()).is_absolute());
    assert_eq!(kind(&one.err("initialize", params)), (-32600, "alreadyInitialized"));
    one.ok("session/list", json!({}));
}

#[test]
fn a_configured_fingerprint_is_shown() {
    let print = format!("sha256:{}", "ab".repeat(32));
    let desk = desk().setting(&format!("msp.fingerprint = {print:?}")).open();
    let mut one = raw(&desk);
    let params = json!({ "clientInfo": { "name": "muse_code_sdk", "version": "1.4.14" } });
    assert_eq!(one.ok("initialize", params)["schema"]["fingerprint"], print);
}

#[test]
fn a_client_is_not_sent_what_it_opted_out_of() {
    let desk = desk().open();
    let mut quiet = client(&desk, json!({ "optOutNotificationMethods": ["item/delta", "zzz"] }));
    let (mut acp, id) = super::session(&desk, refuse_all());
    quiet.ok("view/subscribe", json!({ "sessionId": id }));
    let from = quiet.mark();
    acp.turn(&id, "stream 3").0.unwrap();
    hear(&quiet, from, "turn/completed", |_| true);
    let methods: Vec<String> = super::heard(&quiet, from).into_iter().map(|(m, _)| m).collect();
    assert!(!methods.contains(&"item/delta".to_owned()), "{methods:?}");
    assert!(methods.contains(&"item/started".to_owned()), "{methods:?}");
}

#[test]
fn the_end_of_stdin_and_term_are_a_clean_end() {
    let desk = desk().open();
    let mut one = client(&desk, json!({}));
    let asked = one.begin("session/list", json!({}));
    one.close_stdin();
    assert!(one.wait(asked, EXIT).is_ok(), "what was asked is still answered");
    assert_eq!(one.wait_exit(EXIT).and_then(|status| status.code()), Some(0));
    let mut two = client(&desk, json!({}));
    two.ok("session/list", json!({}));
    kill(Pid::from_raw(two.pid().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(two.wait_exit(EXIT).and_then(|status| status.code()), Some(0));
}

#[test]
fn called_as_muse_it_serves_and_starts_the_daemon_and_refuses_every_flag() {
    let desk = desk().build();
    let muse = desk.work().join("muse");
    symlink(frontdesk(), &muse).unwrap();
    let mut one = Acp::spawn("muse", desk.command(&muse).arg("serve"), refuse_all());
    let params = json!({ "clientInfo": { "name": "tests", "version": "1" } });
    one.ok("initialize", params);
    one.close_stdin();
    assert_eq!(one.wait_exit(EXIT).and_then(|status| status.code()), Some(0));
    for args in [&["serve", "--disable-sandbox"][..], &["run"], &[]] {
        let out = desk.command(&muse).args(args).stdin(Stdio::null()).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(out.stdout.is_empty() && !out.stderr.is_empty(), "{args:?}");
    }
    assert!(desk.cli(&["stop"]).status.success());
}
