use proptest::prelude::*;

use super::*;

fn only(line: &str) -> Step {
    let mut steps = parse(line).unwrap_or_else(|| panic!("{line:?} is no script"));
    assert_eq!(steps.len(), 1, "{line:?}");
    steps.remove(0)
}

#[test]
fn every_command_of_the_table_is_understood() {
    for word in WORDS {
        let line = word
            .usage
            .replace(['[', ']'], "")
            .replace("_METHOD JSON", "_m {\"a\":1}")
            .replace("JSON", "{\"sessionUpdate\":\"x\"}")
            .replace("every MS", "every 5")
            .replace("bytes B", "bytes 7")
            .replace("BYTES", "9")
            .replace("SECS", "3")
            .replace("CODE", "4")
            .replace(" MS", " 6")
            .replace(" N", " 2");
        assert!(!matches!(only(&line), Step::Unknown(_)), "{line:?}");
    }
}

#[test]
fn arguments_are_read() {
    assert_eq!(only("say a\\nb\\\\n"), Step::Say("a\nb\\n".into()));
    assert_eq!(
        only("stream 3 bytes 10 every 20ms"),
        Step::Stream { count: 3, every_ms: 20, bytes: Some(10) }
    );
    assert_eq!(only("/think 2"), Step::Think { count: 2, every_ms: 0 });
    assert_eq!(only("ask"), Step::Ask { title: None });
    assert_eq!(only("ask May I?"), Step::Ask { title: Some("May I?".into()) });
    assert_eq!(
        only("write a.txt one two\\n"),
        Step::Write { path: "a.txt".into(), text: "one two\n".into() }
    );
    assert_eq!(only("plan a; ;b"), Step::Plan { entries: vec!["a".into(), "b".into()] });
    assert_eq!(only("fail -7 no luck"), Step::Fail { code: -7, message: "no luck".into() });
    assert_eq!(only("crash"), Step::Crash { code: 1 });
    assert_eq!(only("crash 7"), Step::Crash { code: 7 });
    assert_eq!(only("late 2 10"), Step::Late { count: 2, every_ms: 10 });
    assert_eq!(
        only("daemon-child 5 detached"),
        Step::Child { seconds: 5, own_session: true, detached: true }
    );
    assert_eq!(
        only("child detached"),
        Step::Child { seconds: CHILD_SECONDS, own_session: false, detached: true }
    );
    assert_eq!(only("update {\"x\": 1.0e2}"), Step::Update("{\"x\": 1.0e2}".into()));
}

#[test]
fn sentences_stay_plain() {
    for text in [
        "",
        "   \n \n",
        "# only a comment",
        "hello there",
        "crash the system",
        "kill all humans",
        "hang on",
        "wait a minute",
        "stream of thought",
        "stream 3 of them",
        "think about it",
        "commands are listed where?",
        "update the readme",
        "update 1",
        "fail fast",
        "child labour",
        "child 5 6",
        "daemon-child",
        "ext method",
        "ext _m no json",
        "huge success",
        "mode of transport",
        "Say this with a capital",
        "saying",
        "say",
        "write alone",
        "plan ;;",
        "crash 256",
    ] {
        assert_eq!(parse(text), None, "{text:?}");
    }
}

#[test]
fn a_wrong_line_behind_a_command_is_told() {
    let steps = parse("say a\n\n# note\nwat is this\r\nrefuse").unwrap();
    assert_eq!(steps, [Step::Say("a".into()), Step::Unknown("wat is this".into()), Step::Refuse]);
}

#[test]
fn numbers_have_limits() {
    assert_eq!(only("wait 3600000"), Step::Wait { ms: WAIT_MS_MAX });
    assert_eq!(parse("wait 3600001"), None);
    assert_eq!(only(&format!("huge {BYTES_MAX}")), Step::Huge { bytes: BYTES_MAX });
    assert_eq!(parse(&format!("huge {}", BYTES_MAX + 1)), None);
    assert_eq!(parse("huge 99999999999999999999999"), None);
    assert_eq!(parse("huge -1"), None);
    let long = "usage\n".repeat(LINES_MAX + 5);
    assert_eq!(parse(&long).unwrap().len(), LINES_MAX);
}

proptest! {
    #[test]
    fn any_text_is_read_without_a_panic(text in any::<String>()) {
        let _ = parse(&text);
    }

    #[test]
    fn any_arguments_are_read_without_a_panic(
        at in 0..WORDS.len(),
        slash in prop_oneof![Just(""), Just("/")],
        rest in prop_oneof![
            any::<String>(),
            "[0-9a-z_{}\":;\\\\ ]{0,40}",
            "[0-9]{0,25} (every|bytes|detached)? ?[0-9]{0,25}",
        ],
    ) {
        if let Some(steps) = parse(&format!("{slash}{} {rest}", WORDS[at].name())) {
            prop_assert!(!steps.is_empty());
            prop_assert!(!matches!(steps[0], Step::Unknown(_)));
        }
    }
}
