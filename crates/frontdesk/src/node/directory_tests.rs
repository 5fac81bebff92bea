use std::path::Path;

use jiff::Timestamp;
use uuid::Uuid;

use super::*;
use crate::index::{Rebuild, Writer, put_row};

pub(in crate::node) fn key(number: u128) -> Key {
    Key::new(Uuid::from_u128(0x01a2_2bb6_2da2_7132_b868_0000_0000_0000 | number))
}

/// A row that changed in this second.
pub(in crate::node) fn row(sessions: &Path, number: u128, agent: &str, second: i64) -> Row {
    let path = sessions.join("2026/11/30").join(key(number).to_string()).join("journal.jsonl");
    let view = View {
        seq: 1,
        agent: agent.to_owned(),
        native: Some(format!("n{number}")),
        cwd: "/w".to_owned(),
        origin: Origin::Adopted,
        updated_at: Timestamp::from_second(second).ok(),
        ..View::default()
    };
    Row::cold(key(number), view, path, 0)
}

/// A directory over an empty index.
pub(in crate::node) struct Home {
    pub(in crate::node) directory: Directory,
    pub(in crate::node) writer: Writer,
    _temp: tempfile::TempDir,
}

impl Home {
    pub(in crate::node) fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let sessions = temp.path().join("sessions");
        std::fs::create_dir(&sessions).unwrap();
        let index = Arc::new(Index::new(temp.path(), &sessions));
        let made = Rebuild::begin(&index).unwrap().finish();
        let writer = index.replace(made, None).unwrap();
        Self { directory: Directory::new(index), writer, _temp: temp }
    }

    pub(in crate::node) fn insert(&self, number: u128, agent: &str, second: i64) {
        self.directory.insert(row(self.directory.index.sessions(), number, agent, second));
    }

    /// As the index's thread does it.
    pub(in crate::node) fn flush(&mut self) {
        let changes = self.directory.take_dirty(usize::MAX, true);
        self.writer
            .batch(|writer| {
                for (key, change) in &changes {
                    match change {
                        Change::Put(row) | Change::Deleted(row) => put_row(writer, &row.entry())?,
                        Change::Forgotten => writer.remove(*key)?,
                    }
                }
                Ok(())
            })
            .unwrap();
        self.directory.settled(&changes);
    }
}

fn in_memory(directory: &Directory) -> usize {
    directory.in_memory().0.len()
}

#[test]
fn a_cold_session_costs_no_memory_and_is_found_by_every_name() {
    let mut home = Home::new();
    for number in 1..=3 {
        home.insert(number, "a", 100);
    }
    let check = |directory: &Directory| {
        assert_eq!((directory.count(None), directory.count(Some("a"))), (3, 3));
        assert_eq!(directory.count(Some("b")), 0);
        assert_eq!(directory.resolve(&key(2).to_string(), None), Meaning::One(key(2)));
        assert_eq!(directory.resolve("n2", None), Meaning::One(key(2)));
        assert_eq!(directory.resolve("n9", None), Meaning::Unknown);
        let row = directory.get(key(2)).unwrap();
        assert_eq!((row.view.cwd.as_str(), row.view.native.as_deref()), ("/w", Some("n2")));
        let found = directory.find_native("a", "n2");
        assert!(matches!(found, Some(Found::Known(row)) if row.key == key(2)));
        assert!(directory.find_native("b", "n2").is_none());
        assert!(!directory.look_up("n2", None).1);
        assert_eq!(directory.twins("a", "n2", key(9)).len(), 1);
    };
    check(&home.directory);
    assert_eq!(in_memory(&home.directory), 3);
    home.flush();
    assert_eq!(in_memory(&home.directory), 0);
    check(&home.directory);
    assert_eq!(home.directory.tables.read().unwrap().natives.len(), 0, "no name is left over");
}

#[test]
fn a_row_stays_in_memory_while_a_lane_has_it() {
    let mut home = Home::new();
    home.insert(1, "a", 100);
    home.flush();
    assert!(home.directory.pin(key(1)).is_some() && home.directory.pin(key(1)).is_some());
    assert!(home.directory.pin(key(2)).is_none());
    assert!(!home.directory.is_dirty(key(1)));
    home.directory.unpin(key(1));
    home.flush();
    assert!(home.directory.is_hot(key(1)), "the second lane has it");
    assert_eq!(home.directory.count(None), 1);
    home.directory.unpin(key(1));
    home.flush();
    assert!(!home.directory.is_hot(key(1)) && home.directory.get(key(1)).is_some());
}

#[test]
fn a_change_that_comes_while_one_is_written_is_written_too() {
    let mut home = Home::new();
    home.insert(1, "a", 100);
    let taken = home.directory.take_dirty(9, false);
    home.insert(1, "b", 200);
    home.directory.settled(&taken);
    assert!(home.directory.is_dirty(key(1)) && home.directory.is_hot(key(1)));
    home.flush();
    assert_eq!(home.directory.get(key(1)).unwrap().view.agent, "b");
    assert_eq!(home.directory.take_dirty(9, true).len(), 0);
    home.insert(1, "c", 300);
    let taken = home.directory.take_dirty(9, false);
    home.directory.give_back(&taken);
    assert!(home.directory.is_dirty(key(1)), "it could not be written");
}

#[test]
fn a_deleted_session_is_known_as_one_and_never_comes_back() {
    let mut home = Home::new();
    home.insert(1, "a", 100);
    home.insert(2, "a", 100);
    home.flush();
    home.directory.entomb(key(1));
    home.directory.forget(key(2));
    let check = |directory: &Directory| {
        assert!(directory.get(key(1)).is_none() && directory.get(key(2)).is_none());
        assert!(directory.pin(key(1)).is_none());
        assert!(matches!(directory.find_native("a", "n1"), Some(Found::Deleted)));
        assert!(
            directory.find_native("b", "n1").is_none()
                && directory.find_native("a", "n2").is_none()
        );
        assert!(directory.look_up("n1", None).1 && directory.look_up(&key(1).to_string(), None).1);
        assert!(
            !directory.look_up("n2", None).1 && !directory.look_up(&key(2).to_string(), None).1
        );
        assert_eq!((directory.count(None), directory.resolve("n1", None)), (0, Meaning::Unknown));
    };
    check(&home.directory);
    let late = row(home.directory.index.sessions(), 1, "a", 500);
    home.directory.insert(late);
    check(&home.directory);
    home.flush();
    check(&home.directory);
    // The same conversation, made again, is another session.
    let mut again = row(home.directory.index.sessions(), 3, "b", 100);
    Arc::make_mut(&mut again.view).native = Some("n1".into());
    home.directory.insert(again);
    assert!(!home.directory.look_up("n1", None).1);
    assert_eq!(home.directory.resolve("n1", None), Meaning::One(key(3)));
}

#[test]
fn a_probe_and_a_look_up_say_the_same_of_every_id() {
    let mut home = Home::new();
    for number in 1..=3 {
        home.insert(number, "a", 100);
    }
    let mut same = row(home.directory.index.sessions(), 4, "a", 100);
    Arc::make_mut(&mut same.view).same_as = Some(key(1).to_string());
    home.directory.insert(same);
    home.directory.entomb(key(2));
    home.directory.forget(key(3));
    let check = |directory: &Directory| {
        let row = directory.probe(&key(1).to_string(), None);
        assert!(matches!(row, Probed::Row(row) if row.key == key(1)));
        let means = |id: &str| match directory.probe(id, None) {
            Probed::Means(means) => means,
            Probed::Row(row) => panic!("{id}: {row:?}"),
        };
        assert_eq!(means(&key(4).to_string()), (Meaning::One(key(1)), false), "it is the first");
        for id in [2, 3, 4, 5].map(|number| key(number).to_string()) {
            assert_eq!(means(&id), directory.look_up(&id, None), "{id}");
        }
        for id in ["n1", "n2", "n3", "n4", "n5"] {
            assert_eq!(means(id), directory.look_up(id, None), "{id}");
        }
    };
    check(&home.directory);
    home.flush();
    check(&home.directory);
}

#[test]
fn an_id_of_several_is_told_apart_wherever_they_are() {
    let mut home = Home::new();
    for (number, agent) in [(1, "a"), (2, "b")] {
        let mut row = row(home.directory.index.sessions(), number, agent, 100);
        Arc::make_mut(&mut row.view).native = Some("shared".into());
        home.directory.insert(row);
        if number == 1 {
            home.flush();
        }
    }
    let several = Meaning::Several(vec![key(1), key(2)]);
    assert_eq!(home.directory.resolve("shared", None), several);
    assert_eq!(home.directory.resolve("shared", Some("a")), Meaning::One(key(1)));
    assert_eq!(home.directory.resolve("shared", Some("b")), Meaning::One(key(2)));
    assert_eq!(home.directory.twins("a", "shared", key(2)).len(), 1);
}

#[test]
fn who_takes_sessions_in_waits_for_room() {
    let mut home = Home::new();
    for number in 0..3 {
        home.insert(number, "a", 100);
    }
    home.directory.wait_for_room(3);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| home.directory.wait_for_room(2));
        assert!(!waiting.is_finished(), "three wait");
        let changes = home.directory.take_dirty(1, true);
        home.directory.settled(&changes);
        waiting.join().unwrap();
    });
    home.flush();
}
