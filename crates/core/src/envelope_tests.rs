//! Envelopes: classification, verbatim ids, byte-equal splicing.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<Message, Malformed> {
    Message::parse(Bytes::copy_from_slice(text.as_bytes()))
}

#[test]
fn kinds_are_told_apart_by_their_members() {
    assert!(matches!(parse(r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#), Ok(Message::Request(_))));
    assert!(matches!(parse(r#"{"method":"m","params":{}}"#), Ok(Message::Notification(_))));
    assert!(matches!(parse(r#"{"id":"a","result":null}"#), Ok(Message::Response(_))));
    assert!(matches!(parse(r#"{"error":{"code":1,"message":""}}"#), Ok(Message::Response(_))));
    assert_eq!(parse("  \t\r"), Err(Malformed::Blank));
    assert_eq!(parse("Welcome"), Err(Malformed::NotJson));
    assert_eq!(parse("42"), Err(Malformed::NotMessage));
    assert_eq!(parse(r#""text""#), Err(Malformed::NotMessage));
    assert_eq!(parse("{}"), Err(Malformed::NotMessage));
    assert_eq!(parse("[1]"), Err(Malformed::Batch));
    assert_eq!(parse("[{"), Err(Malformed::NotJson));
    assert_eq!(parse(r#"{"id":{},"method":"m"}"#), Err(Malformed::NotMessage));
    assert_eq!(parse(r#"{"id":1,"method":7}"#), Err(Malformed::NotMessage));
    assert_eq!(parse("{\"id\":1,\"method\":\"\u{fffd}"), Err(Malformed::NotJson));
    assert_eq!(
        Message::parse(Bytes::from_static(b"{\"method\":\"\xff\"}")).err(),
        Some(Malformed::NotJson)
    );
}

#[test]
fn ids_keep_their_type_and_spelling() {
    for id in ["1", "\"1\"", "9223372036854775808", "-5", "null", "\"\"", "1.5", "\"a\\u0041\""] {
        let message = parse(&format!(r#"{{"id":{id},"method":"m"}}"#)).unwrap();
        assert_eq!(message.frame().id(), Some(id));
    }
}

#[test]
fn a_null_id_is_present_and_an_absent_one_is_not() {
    assert!(matches!(parse(r#"{"id":null,"method":"m"}"#), Ok(Message::Request(_))));
    assert!(matches!(parse(r#"{"method":"m"}"#), Ok(Message::Notification(_))));
}

#[test]
fn splicing_changes_the_two_ids_and_nothing_else() {
    let text = concat!(
        r#"{ "traceparent":"00-x" ,"id" : 7,"method":"session\/update","params":{"n":1e2,"#,
        r#""sessionId":"abc","deep":{"sessionId":"abc"},"big":123456789012345678901234567890}}"#
    );
    let message = parse(text).unwrap();
    let frame = message.frame();
    assert_eq!(&*frame.method, "session/update");
    assert!(frame.has_extras());
    assert_eq!(frame.session_id().as_deref(), Some("abc"));
    let out = frame.spliced(Some("\"x\""), Some("\"longer-than-before\""));
    let want = text.replace(r#""id" : 7"#, r#""id" : "x""#).replacen(
        r#""sessionId":"abc""#,
        r#""sessionId":"longer-than-before""#,
        1,
    );
    assert_eq!(out, want.as_bytes());
    assert_eq!(frame.spliced(Some("7"), Some("\"abc\"")), text.as_bytes());
}

#[test]
fn a_session_id_of_another_type_is_seen_but_not_read() {
    let message = parse(r#"{"id":1,"method":"m","params":{"sessionId":7}}"#).unwrap();
    assert!(message.frame().has_session_id());
    assert_eq!(message.frame().session_id(), None);
    let none = parse(r#"{"id":1,"method":"m","params":[{"sessionId":"x"}]}"#).unwrap();
    assert!(!none.frame().has_session_id());
}

#[test]
fn the_session_of_a_result_is_found_too() {
    let message = parse(r#"{"result":{"sessionId":"s"},"id":3}"#).unwrap();
    assert_eq!(message.frame().session_id().as_deref(), Some("s"));
}

#[test]
fn lone_surrogates_and_line_separators_pass() {
    let text = "{\"method\":\"m\",\"params\":{\"sessionId\":\"s\",\"t\":\"\\ud800 \u{2028}\"}}";
    let message = parse(text).unwrap();
    assert_eq!(
        message.frame().spliced(None, Some("\"t\"")),
        text.replace("\"s\"", "\"t\"").as_bytes()
    );
}

#[test]
fn the_id_of_a_line_that_was_cut_is_found_at_either_end() {
    assert_eq!(
        peek_id(br#"{"jsonrpc":"2.0","id":12,"result":{"id":9"#, b"zzz\"}}"),
        Some("12".into())
    );
    assert_eq!(
        peek_id(br#"{"result":{"id":9,"text":"zz"#, br#"zz"},"id":"a-1","jsonrpc":"2.0"}"#),
        Some("\"a-1\"".into())
    );
    assert_eq!(peek_id(br#"{"method":"session/update","params":{"id":9"#, br#""}}"#), None);
}

#[test]
fn an_array_is_taken_apart() {
    let line = Bytes::from_static(br#"[ {"a":1} ,2]"#);
    assert_eq!(
        batch_elements(&line),
        vec![Bytes::from_static(br#"{"a":1}"#), Bytes::from_static(b"2")]
    );
    assert!(batch_elements(&Bytes::from_static(b"[1")).is_empty());
}

proptest! {
    #[test]
    fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Message::parse(Bytes::from(bytes.clone()));
        let _ = peek_id(&bytes, &bytes);
    }

    #[test]
    fn json_like_input_never_panics(text in r#"[\[\]{}",:a-z0-9\\ ]{0,80}"#) {
        let _ = parse(&text);
    }

    #[test]
    fn replacing_an_id_by_itself_gives_the_same_bytes(id in any::<i64>(), sid in "[a-z]{1,9}", pad in "[ ]{0,3}") {
        let text = format!(r#"{{{pad}"id":{pad}{id},"method":"m","params":{{{pad}"sessionId":"{sid}"}}}}"#);
        let message = parse(&text).unwrap();
        let id = id.to_string();
        let back = message.frame().spliced(Some("\"other\""), Some("\"else\""));
        let again = Message::parse(back).unwrap();
        let sid = quote(&sid);
        prop_assert_eq!(again.frame().spliced(Some(id.as_str()), Some(sid.as_str())), text.as_bytes());
    }
}
