//! The client at its limits: long lines, silence, floods, a daemon that leaves.

use std::io::Write as _;
use std::time::Duration;

use serde_json::json;

use super::super::fake::FakeDesk;
use super::*;

/// What the reading thread makes of these bytes, with lines of at most 40 bytes.
fn read(bytes: &[u8]) -> Vec<Event> {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let (sender, events) = sync_channel(64);
    ours.write_all(bytes).unwrap();
    drop(ours);
    read_messages(theirs, &sender, 40);
    drop(sender);
    events.into_iter().collect()
}

/// A notification of exactly this many bytes.
fn line(bytes: usize) -> String {
    let empty = r#"{"method":"m","params":{"a":""}}"#;
    format!(r#"{{"method":"m","params":{{"a":"{}"}}}}"#, "x".repeat(bytes - empty.len()))
}

#[test]
fn a_line_may_be_as_long_as_the_limit_and_no_longer() {
    let fits = read(format!("{}\n", line(40)).as_bytes());
    assert!(matches!(fits[..], [Event::Message(_), Event::Ended(ClientError::Closed)]), "{fits:?}");
    let long = read(format!("{}\n", line(41)).as_bytes());
    assert!(matches!(long[..], [Event::Ended(ClientError::Garbage(_))]), "{long:?}");
    let endless = read(&[b' '; 4_000]);
    assert!(matches!(endless[..], [Event::Ended(ClientError::Garbage(_))]), "{endless:?}");
}

#[test]
fn blank_lines_are_skipped_and_a_torn_last_line_is_no_message() {
    let events = read(b"\r\n\n{\"method\":\"m\"}\r\n{\"method\":");
    assert!(
        matches!(events[..], [Event::Message(_), Event::Ended(ClientError::Closed)]),
        "{events:?}"
    );
}

fn connect(desk: &FakeDesk) -> Client {
    Client::connect(&desk.paths, &Hello::new(desk.home.path())).unwrap()
}

#[test]
fn a_silent_daemon_is_not_waited_for_for_ever() {
    let desk = FakeDesk::start(|_, _| {});
    let mut client = connect(&desk);
    let error = client.call("x", &json!({}), Duration::from_millis(20)).unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    assert!(client.next(Some(Duration::from_millis(1))).unwrap().is_none());
}

#[test]
fn what_comes_before_the_answer_is_kept_in_order() {
    let desk = FakeDesk::start(|message, peer| {
        for n in 0..300 {
            peer.send(&json!({ "method": format!("n{n}") }));
        }
        peer.reply(message, &json!({ "ok": 1 }));
    });
    let mut client = connect(&desk);
    assert_eq!(client.call("x", &json!({}), CALL).unwrap().raw(), r#"{"ok":1}"#);
    for n in 0..300 {
        match client.next(Some(CALL)).unwrap() {
            Some(Event::Message(Message::Notification(frame))) => {
                assert_eq!(*frame.method, *format!("n{n}"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_flood_before_the_answer_is_an_error_and_no_memory() {
    let desk = FakeDesk::start(|_, peer| {
        for _ in 0..=ASIDE_MESSAGES_MAX {
            peer.send_text(r#"{"method":"n"}"#);
        }
    });
    let error = connect(&desk).call("x", &json!({}), CALL).unwrap_err();
    assert!(matches!(error, ClientError::Flooded(_)), "{error}");
}

#[test]
fn a_daemon_that_leaves_ends_every_call_at_once() {
    let desk = FakeDesk::start(|_, peer| peer.close());
    let mut client = connect(&desk);
    for _ in 0..3 {
        let error = client.call("x", &json!({}), CALL).unwrap_err();
        assert!(matches!(error, ClientError::Closed), "{error}");
    }
    assert!(matches!(client.next(None), Err(ClientError::Closed)));
}

#[test]
fn an_answer_of_another_shape_says_so() {
    let desk = FakeDesk::start(|message, peer| peer.reply(message, &json!([1])));
    let answer = connect(&desk).call("x", &json!({}), CALL).unwrap();
    let error = answer.read::<std::collections::HashMap<String, u8>>().unwrap_err();
    assert!(error.to_string().starts_with("failed to read the answer to x"), "{error}");
}
