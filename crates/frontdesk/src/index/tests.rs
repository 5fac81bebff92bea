use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;

use frontdesk_core::fold::View;
use frontdesk_core::record::{Kind, RECORD_VERSION, Record};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::entry::write_view;
use super::*;
use crate::log::JOURNAL_NAME;

/// What one session goes through.
#[derive(Clone, Debug)]
enum Step {
    Turn { said: String, answer: Vec<String>, ended: bool },
    Imported(String, String),
    Title(String),
    Renamed(String),
    Archived(bool),
    Listed(i64),
    Mode(String),
    Asked,
    Loaded,
    Lost,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let word = "[a-f]{1,3}( [a-f]{1,3})?";
    let step = prop_oneof![
        4 => (word, prop::collection::vec(word, 0..3), any::<bool>())
            .prop_map(|(said, answer, ended)| Step::Turn { said, answer, ended }),
        1 => (word, word).prop_map(|(said, answer)| Step::Imported(said, answer)),
        1 => word.prop_map(Step::Title),
        1 => word.prop_map(Step::Renamed),
        1 => any::<bool>().prop_map(Step::Archived),
        1 => (0_i64..100).prop_map(Step::Listed),
        1 => word.prop_map(Step::Mode),
        1 => Just(Step::Asked),
        1 => Just(Step::Loaded),
        1 => Just(Step::Lost),
    ];
    prop::collection::vec(step, 0..8)
}

fn update(kind: &str, text: &str) -> Value {
    json!({ "update": { "sessionUpdate": kind, "content": { "type": "text", "text": text } } })
}

/// The records of a session.
fn records(number: u32, steps: &[Step]) -> Vec<Record> {
    let mut all: Vec<(Kind, Value)> = vec![(
        Kind::Created,
        json!({ "agent": "a", "nativeId": format!("n{number}"), "cwd": format!("/w/{}", number % 2),
            "result": { "modes": { "currentModeId": "m", "availableModes": [1] } } }),
    )];
    for (turn, step) in steps.iter().enumerate() {
        let turn = format!("turn_{turn}");
        match step {
            Step::Turn { said, answer, ended } => {
                let prompt = json!([{ "type": "text", "text": said }]);
                all.push((Kind::TurnStarted, json!({ "turn": turn, "prompt": prompt })));
                all.extend(answer.iter().map(|text| (Kind::Update, update("agent_message_chunk", text))));
                if *ended {
                    all.push((Kind::TurnEnded, json!({ "turn": turn, "outcome": "completed" })));
                }
            }
            Step::Imported(said, answer) => {
                all.push((Kind::Imported, update("user_message_chunk", said)));
                all.push((Kind::Imported, update("agent_message_chunk", answer)));
            }
            Step::Title(title) => all.push((
                Kind::Update,
                json!({ "update": { "sessionUpdate": "session_info_update", "title": title } }),
            )),
            Step::Renamed(name) => all.push((Kind::Renamed, json!({ "name": name, "origin": "custom" }))),
            Step::Archived(archived) => all.push((Kind::Archived, json!({ "archived": archived }))),
            Step::Listed(second) => {
                let at = Timestamp::from_second(1_700_000_000 + second).unwrap();
                all.push((Kind::Metadata, json!({ "updatedAt": at })));
            }
            Step::Mode(mode) => all.push((
                Kind::Update,
                json!({ "update": { "sessionUpdate": "current_mode_update", "currentModeId": mode } }),
            )),
            Step::Asked => all.push((Kind::InteractionOpened, json!({ "interaction": turn, "method": "x" }))),
            Step::Loaded => all.push((Kind::Loaded, json!({ "agent": "a", "instance": "i" }))),
            Step::Lost => all.push((Kind::Lost, json!({ "reason": "r" }))),
        }
    }
    let numbered = (1..).zip(all);
    numbered
        .map(|(seq, (kind, data))| Record {
            v: RECORD_VERSION,
            seq,
            epoch: 1,
            at: Timestamp::from_second(
                1_600_000_000 + i64::try_from(seq).unwrap() * 60 + i64::from(number),
            )
            .unwrap(),
            kind,
            src: None,
            data: bytes::Bytes::from(data.to_string()),
        })
        .collect()
}

/// Folders of a home, and an index in it.
struct Home {
    temp: tempfile::TempDir,
    index: Index,
}

fn key(number: u32) -> Key {
    Key::new(Uuid::from_u128(0x01a2_2bb6_2da2_7132_b868_0000_0000_0000 | u128::from(number)))
}

impl Home {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let sessions = temp.path().join("sessions");
        fs::create_dir(&sessions).unwrap();
        let index = Index::new(temp.path(), &sessions);
        Self { temp, index }
    }

    fn path(&self, number: u32) -> PathBuf {
        let folder = self.temp.path().join("sessions/2026/11/30").join(key(number).to_string());
        fs::create_dir_all(&folder).unwrap();
        folder.join(JOURNAL_NAME)
    }

    fn append(&self, number: u32, records: &[Record]) {
        let file = fs::OpenOptions::new().create(true).append(true).open(self.path(number));
        let mut lines = Vec::new();
        records.iter().for_each(|record| record.write_line(&mut lines));
        file.unwrap().write_all(&lines).unwrap();
    }

    fn rebuild(&self) -> Writer {
        let mut rebuild = Rebuild::begin(&self.index).unwrap();
        while rebuild.step(2, &mut |_, _, _| false).unwrap() {}
        self.index.replace(rebuild.finish(), None).unwrap()
    }

    fn all(&self) -> BTreeMap<Key, Entry> {
        let mut all = BTreeMap::new();
        let columns = Columns { archived: Archived::Any, ..Columns::default() };
        assert!(self.index.scan(&columns, None, |entry| all.insert(entry.key, entry).is_none()));
        all
    }

    fn found(&self, text: &str) -> Vec<(Key, Option<Mark>, String)> {
        let words = Words::read(text).unwrap();
        let mut found = Vec::new();
        assert!(self.index.search(&words, 1_000, |hit| {
            found.push((hit.entry.key, hit.said, hit.snippet(&words)));
            Some(())
        }));
        found
    }
}

fn catch(writer: &mut Writer, home: &Home, number: u32) {
    let path = home.path(number);
    writer.batch(|w| catch_up(w, key(number), &path, false, &mut |_, _, _| false)).unwrap();
}

/// Rows and words are the same, whether journals were read in parts or at once.
fn same_whichever_way(histories: &[(Vec<Step>, f64)]) -> Result<(), TestCaseError> {
    let home = Home::new();
    let mut writer = home.rebuild();
    for (number, (steps, _)) in (0_u32..).zip(histories) {
        let all = records(number, steps);
        home.append(number, &all[..1]);
        catch(&mut writer, &home, number);
    }
    for (number, (steps, part)) in (0_u32..).zip(histories) {
        let all = records(number, steps);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let cut = 1 + ((all.len() - 1) as f64 * part) as usize;
        home.append(number, &all[1..cut]);
        catch(&mut writer, &home, number);
        home.append(number, &all[cut..]);
        catch(&mut writer, &home, number);
    }
    let rows = home.all();
    for (number, (steps, _)) in (0_u32..).zip(histories) {
        let mut view = View::default();
        view.extend(&records(number, steps));
        let folded: View = serde_json::from_str(&write_view(&view)).unwrap();
        let row = &rows[&key(number)];
        prop_assert_eq!(&row.view, &folded);
        prop_assert_eq!(row.bytes, fs::metadata(&row.path).unwrap().len());
        prop_assert_eq!(&row.path, &home.path(number));
        let by_native = home.index.natives(&format!("n{number}"));
        prop_assert_eq!(by_native.iter().map(|known| known.key).collect::<Vec<_>>(), [key(number)]);
    }
    prop_assert_eq!(home.index.count(Some("a")), histories.len() as u64);
    let words = ["a", "b", "c", "ab", "\"a b\"", "ef d"];
    let found: Vec<_> = words.iter().map(|word| home.found(word)).collect();
    drop(writer);
    let _writer = home.rebuild();
    prop_assert_eq!(home.all(), rows);
    prop_assert_eq!(home.index.count(None), histories.len() as u64);
    for (word, found) in words.iter().zip(found) {
        prop_assert_eq!(home.found(word), found, "{}", word);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_the_folds_of_their_journals_whichever_way_they_came(
        histories in prop::collection::vec((steps(), 0.0_f64..1.0), 1..5),
    ) {
        same_whichever_way(&histories)?;
    }
}

#[test]
fn a_turn_that_was_left_open_before_a_replayed_history_reads_alike_in_parts() {
    let turn = Step::Turn { said: "a".into(), answer: vec!["a".into()], ended: false };
    let history = vec![turn, Step::Imported("b".into(), "a".into())];
    for part in [0.0, 0.3, 0.6, 0.8, 0.95] {
        same_whichever_way(&[(history.clone(), part)]).unwrap();
    }
}

#[test]
fn a_deleted_session_stays_deleted_and_its_words_are_gone() {
    let home = Home::new();
    let turn = Step::Turn { said: "needle".into(), answer: vec![], ended: true };
    home.append(1, &records(1, &[turn]));
    let mut writer = home.rebuild();
    assert_eq!(home.found("needle").len(), 1);
    let mut entry = home.index.get(key(1)).unwrap();
    entry.view = View {
        seq: 9,
        agent: "a".into(),
        native: Some("n1".into()),
        deleted: true,
        ..View::default()
    };
    writer.batch(|w| put_row(w, &entry)).unwrap();
    assert!(home.all().is_empty() && home.found("needle").is_empty());
    assert_eq!((home.index.count(None), home.index.standing(key(1))), (0, Some(Standing::Deleted)));
    let known = home.index.natives("n1");
    assert_eq!(known, [Known { key: key(1), agent: "a".into(), deleted: true }]);
    // A late word behind the tombstone changes nothing.
    let tomb = Record { kind: Kind::Deleted, seq: 9, ..records(1, &[]).remove(0) };
    fs::remove_file(home.path(1)).unwrap();
    home.append(1, std::slice::from_ref(&tomb));
    home.append(1, &[Record { kind: Kind::Title, seq: 10, ..tomb }]);
    catch(&mut writer, &home, 1);
    assert!(home.index.standing(key(1)) == Some(Standing::Deleted) && home.all().is_empty());
    let mut first = true;
    while writer.purge_step(std::mem::take(&mut first)).unwrap() {}
    writer.settle().unwrap();
    let bytes = fs::read(home.temp.path().join(INDEX_NAME)).unwrap();
    assert!(!String::from_utf8_lossy(&bytes).contains("needle"), "the word is in no page");
}

#[test]
fn a_search_looks_at_so_many_passages_and_no_more() {
    let home = Home::new();
    for number in 0..4 {
        let turn = Step::Turn { said: String::new(), answer: vec!["needle".into()], ended: true };
        home.append(number, &records(number, &[turn]));
    }
    let _writer = home.rebuild();
    for (passages, sessions) in [(1, 1), (3, 3), (4, 4), (5, 4)] {
        let mut found = Vec::new();
        let words = Words::read("needle").unwrap();
        home.index.search(&words, passages, |hit| {
            found.push(hit.entry.key);
            Some(())
        });
        // Newest first.
        let newest: Vec<_> = (0..4).rev().map(key).take(sessions).collect();
        assert_eq!(found, newest, "{passages}");
    }
}

#[test]
fn titles_come_first_and_each_kind_newest_first() {
    let home = Home::new();
    let said = Step::Turn { said: "x".into(), answer: vec!["needle".into()], ended: true };
    let named = Step::Renamed("needle".into());
    // Journals that are longer ended later.
    let histories = [
        vec![named.clone(), said.clone()],
        vec![said.clone()],
        vec![said.clone(), said.clone(), named.clone()],
        vec![said.clone(), said],
    ];
    for (number, steps) in (0_u32..).zip(&histories) {
        home.append(number, &records(number, steps));
    }
    let _writer = home.rebuild();
    let found = home.found("needle");
    let found: Vec<_> = found.iter().map(|(key, said, _)| (*key, said.is_some())).collect();
    let wanted = [(key(2), false), (key(0), false), (key(3), true), (key(1), true)];
    assert_eq!(found, wanted);
}

#[test]
fn a_journal_that_shrank_or_changed_at_its_beginning_is_read_anew() {
    let home = Home::new();
    let turn = |said: &str| Step::Turn { said: said.into(), answer: vec![], ended: true };
    home.append(1, &records(1, &[turn("needle"), turn("two"), turn("three")]));
    let mut writer = home.rebuild();
    assert_eq!(home.all()[&key(1)].view.turn_count, 3);
    let text = fs::read(home.path(1)).unwrap();
    fs::write(home.path(1), &text[..text.len() / 2]).unwrap();
    catch(&mut writer, &home, 1);
    assert!(home.all()[&key(1)].view.turn_count < 3);
    fs::remove_file(home.path(1)).unwrap();
    let mut other = records(1, &[turn("other"), turn("words"), turn("here"), turn("now")]);
    other[0].epoch = 7;
    home.append(1, &other);
    catch(&mut writer, &home, 1);
    assert_eq!(home.all()[&key(1)].view.turn_count, 4);
    assert!(home.found("needle").is_empty() && home.found("other").len() == 1);
}

#[test]
fn a_broken_page_is_noticed_and_never_taken_for_an_answer() {
    let home = Home::new();
    for number in 0..300 {
        home.append(number, &records(number, &[]));
    }
    home.rebuild().close().unwrap();
    home.index.withdraw();
    let path = home.temp.path().join(INDEX_NAME);
    let whole = fs::read(&path).unwrap();
    let page = 4_096;
    let mut noticed = 0;
    for broken in (1..whole.len() / page).step_by(3) {
        let mut bytes = whole.clone();
        bytes[broken * page..(broken + 1) * page].fill(0x5a);
        fs::write(&path, &bytes).unwrap();
        let index = Index::new(home.temp.path(), home.index.sessions());
        let Ok(Some(writer)) = index.open() else {
            noticed += 1;
            continue;
        };
        let mut rows = 0;
        let there = index.scan(&Columns::default(), None, |_| {
            rows += 1;
            true
        });
        assert_eq!(there, !index.is_damaged());
        // What cannot be seen in the rows is seen by looking at the pages.
        assert!(!there || rows == 300, "half a list: {rows}");
        assert!(!there || writer.check_pages().is_err(), "page {broken}");
        noticed += u32::from(!there);
    }
    assert!(noticed > 5, "{noticed}");
}

#[test]
fn an_index_is_replaced_in_one_step_and_a_half_made_one_is_removed() {
    let home = Home::new();
    home.append(1, &records(1, &[]));
    let old = home.rebuild();
    home.append(2, &records(2, &[]));
    let mut rebuild = Rebuild::begin(&home.index).unwrap();
    assert!(rebuild.step(1, &mut |_, _, _| false).unwrap());
    assert_eq!(home.all().len(), 1, "the old one serves");
    drop(rebuild);
    drop(old);
    home.index.withdraw();
    assert!(!home.index.is_there() && home.index.get(key(1)).is_none());
    let writer = home.index.open().unwrap().unwrap();
    assert!(!home.temp.path().join(MAKING_NAME).exists());
    let mut rebuild = Rebuild::begin(&home.index).unwrap();
    while rebuild.step(9, &mut |_, _, _| false).unwrap() {}
    assert_eq!(rebuild.counts().sessions, 2);
    let _writer = home.index.replace(rebuild.finish(), Some(writer)).unwrap();
    assert_eq!(home.all().len(), 2);
}

#[test]
fn an_empty_journal_is_no_session_and_a_damaged_one_is() {
    let home = Home::new();
    home.append(1, &[]);
    fs::write(home.path(2), "no record at all\n").unwrap();
    let _writer = home.rebuild();
    assert_eq!(home.all().keys().copied().collect::<Vec<_>>(), [key(2)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_searched_for_the_index_stays(
        texts in prop::collection::vec("(?s).{0,12}|[\\x00\"*^:() a-c²-]{0,12}", 64),
    ) {
        let home = Home::new();
        let _writer = home.rebuild();
        for words in texts.iter().filter_map(|text| Words::read(text)) {
            prop_assert!(home.index.search(&words, 10, |_| Some(())), "{:?}", words);
            prop_assert!(home.index.is_there());
        }
    }
}
