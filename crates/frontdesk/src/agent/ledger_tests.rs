use super::*;

const KEY: &str = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";

fn prompt<'a>(session: &'a str, turn: &'a str) -> Entry<'a> {
    Entry::Request { client: "k", id: "\"a\"", method: "session/prompt", session, turn: Some(turn) }
}

fn own<'a>(method: &'a str) -> Entry<'a> {
    Entry::Request { client: "", id: "null", method, session: "", turn: None }
}

fn frame(number: u64, method: &str, session: &str) -> Vec<u8> {
    let text = format!(
        r#"{{"id":{number},"method":"{method}","params":{{"sessionId":"{session}","x":1e2}}}}"#
    );
    text.into_bytes()
}

fn text(folder: &Path) -> String {
    fs::read_to_string(folder.join(LEDGER_FILE)).unwrap()
}

/// A ledger with one of everything.
fn full(folder: &Path) -> Ledger {
    let mut ledger = Ledger::create(folder).unwrap();
    let mut input = |entry: Entry<'_>, frame: &[u8]| {
        let number = ledger.next();
        ledger.input(number, entry, frame).unwrap();
    };
    input(own("initialize"), b"{}");
    input(prompt("s", "turn_5"), &frame(2, "session/prompt", "s"));
    let set = Entry::Request {
        client: "k",
        id: "7",
        method: "session/set_mode",
        session: "s",
        turn: None,
    };
    input(set, &frame(3, "session/set_mode", "s"));
    input(
        Entry::Notification { method: "session/cancel", session: "s" },
        &frame(4, "session/cancel", "s"),
    );
    ledger.owe("i:90:0", "s", None).unwrap();
    ledger.owe("i:95:1", "s", Some(br#"{"id":9,"method":"fs/read_text_file"}"#)).unwrap();
    ledger.input(5, Entry::Answer { hop: "i:90:0" }, br#"{"id":8,"result":{}}"#).unwrap();
    ledger.done(1).unwrap();
    ledger.enlist("s", KEY.parse().unwrap(), Path::new("/j/journal.jsonl")).unwrap();
    ledger.keep("old", true).unwrap();
    ledger.keep("back", true).unwrap();
    ledger.keep("back", false).unwrap();
    ledger
}

#[test]
fn what_is_written_adds_up() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = full(folder.path());
    assert_eq!(ledger.next(), 6);
    let balance = read(folder.path(), 3).unwrap();
    assert_eq!(balance.last, 5);
    let requests: Vec<_> =
        balance.requests.iter().map(|sent| (sent.number, &*sent.method)).collect();
    assert_eq!(requests, [(2, "session/prompt"), (3, "session/set_mode")]);
    let sent = &balance.requests[0];
    assert_eq!((&*sent.client, &*sent.id, sent.turn.as_deref()), ("k", "\"a\"", Some("turn_5")));
    assert!(sent.params.is_empty(), "a prompt is in the journal");
    assert_eq!(balance.requests[1].params, &br#"{"sessionId":"s","x":1e2}"#[..]);
    let unaccepted: Vec<_> = balance.unaccepted.iter().map(|(number, _)| *number).collect();
    assert_eq!(unaccepted, [4, 5]);
    assert_eq!(balance.unaccepted[0].1, frame(4, "session/cancel", "s"), "byte for byte");
    let owed: Vec<_> = balance.owed.iter().map(|owed| (&*owed.hop, owed.frame.is_some())).collect();
    assert_eq!(owed, [("i:95:1", true)]);
    assert_eq!(balance.settled, BTreeSet::from(["i:90:0".into()]));
    assert_eq!(balance.cancelled, BTreeMap::from([("s".into(), 4)]));
    assert_eq!(balance.kept, BTreeSet::from(["old".into()]));
    assert_eq!(balance.here["s"].journal, Path::new("/j/journal.jsonl"));
}

#[test]
fn an_answer_is_known_as_long_as_its_question_may_come_again() {
    let folder = tempfile::tempdir().unwrap();
    drop(full(folder.path()));
    let mut balance = read(folder.path(), 3).unwrap();
    balance.acknowledge(89);
    assert_eq!(balance.settled, BTreeSet::from(["i:90:0".into()]));
    balance.acknowledge(90);
    assert!(balance.settled.is_empty());
    assert_eq!(balance.owed.len(), 1, "it is owed all the same");
}

#[test]
fn a_torn_last_line_was_never_acted_on_and_any_other_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    drop(full(folder.path()));
    let whole = read(folder.path(), 3).unwrap();
    let lines = text(folder.path());
    let path = folder.path().join(LEDGER_FILE);
    for torn in [
        r#"{"input":6,"method":"x","frame":{"#,
        r#"{"input":6,"method":"x","session":"s","frame":{}}"#,
    ] {
        fs::write(&path, format!("{lines}{torn}")).unwrap();
        assert_eq!(read(folder.path(), 3).unwrap(), whole, "{torn}");
        let mut ledger = Ledger::resume(folder.path(), &whole, 3).unwrap();
        let number = ledger.next();
        ledger.input(number, prompt("s", "turn_9"), &frame(6, "session/prompt", "s")).unwrap();
        assert_eq!(read(folder.path(), 5).unwrap().unaccepted.len(), 1);
        fs::write(&path, format!("{lines}{torn}\n{{\"done\":2}}\n")).unwrap();
        if torn.ends_with("frame\":{") {
            let damaged = read(folder.path(), 3);
            assert!(matches!(damaged, Err(LedgerError::Damaged { .. })), "{damaged:?}");
        }
    }
    let version = lines.replacen("\"ledger\":1", "\"ledger\":2", 1);
    let old = lines.split_once('\n').unwrap().1.to_owned();
    for other in [version, old, String::new()] {
        fs::write(&path, other).unwrap();
        assert!(matches!(read(folder.path(), 3), Err(LedgerError::Version(_))));
    }
    fs::remove_file(&path).unwrap();
    assert!(matches!(read(folder.path(), 3), Err(LedgerError::Read { .. })));
}

#[test]
fn a_cut_keeps_what_is_open_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = full(folder.path());
    let before = read(folder.path(), 4).unwrap();
    ledger.cut(4, 0).unwrap();
    assert_eq!(read(folder.path(), 4).unwrap(), before, "nothing that counts is gone");
    // All is accepted and acknowledged: the answer is history.
    ledger.cut(5, 200).unwrap();
    let balance = read(folder.path(), 5).unwrap();
    assert!(balance.settled.is_empty() && balance.unaccepted.is_empty());
    assert_eq!((balance.last, balance.requests.len(), balance.owed.len()), (5, 2, 1));
    assert_eq!(balance.cancelled, before.cancelled);
    assert_eq!((balance.here, balance.kept), (before.here, before.kept));
    assert!(!text(folder.path()).contains("initialize"));
    // It goes on in the new file.
    ledger.done(2).unwrap();
    ledger.done(3).unwrap();
    ledger.waive("i:95:1").unwrap();
    let number = ledger.next();
    ledger.input(number, prompt("s", "turn_8"), &frame(number, "session/prompt", "s")).unwrap();
    let balance = read(folder.path(), 5).unwrap();
    assert_eq!((number, balance.requests.len(), balance.owed.len()), (6, 1, 0));
    let names = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 1, "no file is left over");
}

#[test]
fn it_is_long_beyond_its_limit_and_only_cut_again_when_it_has_doubled() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::create(folder.path()).unwrap();
    let header = text(folder.path()).len() as u64;
    let start = text(folder.path()).len();
    ledger.input(1, own("x"), b"\"\"").unwrap();
    let line = (text(folder.path()).len() - start) as u64;
    // A frame that fills it to its limit exactly.
    let rest = LEDGER_BYTES_MAX - header - 2 * line;
    let frame = format!("\"{}\"", "x".repeat(usize::try_from(rest).unwrap()));
    ledger.input(2, own("x"), frame.as_bytes()).unwrap();
    assert_eq!(text(folder.path()).len() as u64, LEDGER_BYTES_MAX);
    assert!(!ledger.is_long());
    ledger.done(1).unwrap();
    assert!(ledger.is_long());
    ledger.cut(2, 0).unwrap();
    assert!(!ledger.is_long() && text(folder.path()).len() as u64 > LEDGER_BYTES_MAX / 2);
    ledger.done(2).unwrap();
    ledger.cut(2, 0).unwrap();
    assert_eq!(text(folder.path()), "{\"ledger\":1,\"last\":2}\n");
}

#[test]
fn a_session_that_was_asked_to_close_is_closing_until_it_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::create(folder.path()).unwrap();
    let closing = |folder: &Path| read(folder, 9).unwrap().closing.len();
    for (number, method, wanted) in [
        (1, "session/resume", 0),
        (2, "session/close", 1),
        (3, "session/load", 0),
        (4, "session/close", 1),
    ] {
        ledger.input(number, own(method), &frame(number, method, "s")).unwrap();
        ledger.done(number).unwrap();
        assert_eq!(closing(folder.path()), wanted, "{method}");
        ledger.cut(number, 0).unwrap();
        assert_eq!(closing(folder.path()), wanted, "{method}, cut");
        assert!(read(folder.path(), 9).unwrap().requests.is_empty(), "all are answered");
    }
}

#[test]
fn what_a_full_disk_takes_half_is_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    drop(full(folder.path()));
    let full_disk = OpenOptions::new().append(true).open("/dev/full").unwrap();
    let mut ledger = Ledger::over(folder.path().join(LEDGER_FILE), full_disk, 0);
    let number = ledger.next();
    assert!(ledger.input(number, prompt("s", "t"), b"{}").is_err());
    assert_eq!(ledger.next(), number, "the number is free");
    assert_eq!(ledger.skip(), number);
    assert_eq!(ledger.next(), number + 1);
}

#[test]
fn a_frame_that_was_refused_is_not_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::create(folder.path()).unwrap();
    ledger.input(1, prompt("s", "turn_1"), &frame(1, "session/prompt", "s")).unwrap();
    assert_eq!(read(folder.path(), 0).unwrap().unaccepted.len(), 1);
    ledger.done(1).unwrap();
    let is_forgotten = || {
        let balance = read(folder.path(), 0).unwrap();
        balance.unaccepted.is_empty() && balance.requests.is_empty()
    };
    assert!(is_forgotten());
    ledger.cut(0, 0).unwrap();
    assert!(is_forgotten(), "cut");
}

#[test]
fn a_session_is_opening_closing_or_let_go_by_what_was_done_last() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::create(folder.path()).unwrap();
    let state = || {
        let balance = read(folder.path(), 9).unwrap();
        assert_eq!(balance.moved.len(), 1);
        let (opening, closing) = (balance.opening.get("s"), balance.closing.get("s"));
        (opening.copied(), closing.copied(), balance.let_go.contains("s"))
    };
    ledger.input(1, own("session/load"), &frame(1, "session/load", "s")).unwrap();
    assert_eq!(state(), (Some(1), None, false));
    ledger.let_go("s").unwrap();
    assert_eq!(state(), (None, None, true), "refused");
    ledger.done(1).unwrap();
    ledger.input(2, own("session/load"), &frame(2, "session/load", "s")).unwrap();
    ledger.done(2).unwrap();
    assert_eq!(state(), (None, None, false), "answered, and nobody has recorded how");
    ledger.close("s", CloseWhy::Idle).unwrap();
    let closing = (None, Some(CloseWhy::Idle), false);
    assert_eq!(state(), closing, "nothing was sent yet");
    ledger.cut(2, 0).unwrap();
    assert_eq!(state(), closing, "cut");
    ledger.input(3, own("session/close"), &frame(3, "session/close", "s")).unwrap();
    assert_eq!(state(), closing);
    let asked = || read(folder.path(), 9).unwrap().close_asked.get("s").copied();
    assert_eq!(asked(), Some(3));
    ledger.done(3).unwrap();
    assert_eq!(asked(), None, "answered");
    assert_eq!(state(), (None, Some(CloseWhy::Idle), true));
    ledger.keep("s", true).unwrap();
    assert_eq!(state(), closing, "it said no");
    ledger.input(4, own("session/load"), &frame(4, "session/load", "s")).unwrap();
    assert_eq!(state(), (Some(4), None, false));
    ledger.cut(3, 0).unwrap();
    assert_eq!(state(), (Some(4), None, false), "cut");
}
