use std::fs;
use std::path::PathBuf;

use uuid::Uuid;

use frontdesk_core::ids::Key;

use super::*;

fn line(seq: u64, kind: &str, data: &Value) -> String {
    let at = "2026-11-30T14:00:05.000000Z";
    let line = json!({ "v": 1, "seq": seq, "epoch": 1, "at": at, "kind": kind, "data": data });
    format!("{line}\n")
}

/// A journal that says its own name; `records` records, the last without its line end.
fn journal(folder: &Path, number: u128, records: u64) -> Found {
    let path: PathBuf = folder.join(format!("{number}.jsonl"));
    let mut text = String::new();
    for seq in 1..=records {
        text += &line(seq, "title", &json!({ "title": format!("{number} at {seq}") }));
    }
    text.pop();
    fs::write(&path, &text).unwrap();
    Found { path, key: Key::new(Uuid::from_u128(number)), bytes: text.len() as u64 }
}

fn titles(views: &[Result<View, LogError>]) -> Vec<Option<String>> {
    views.iter().map(|view| view.as_ref().ok().and_then(|view| view.title.clone())).collect()
}

#[test]
fn views_come_in_the_order_of_their_journals_whoever_reads_them() {
    let temp = tempfile::tempdir().unwrap();
    for count in [0, 1, SHARED_JOURNALS_MIN - 1, SHARED_JOURNALS_MIN, SHARED_JOURNALS_MIN * 2 + 1] {
        let round: Vec<_> = (0..count as u128)
            .map(|number| journal(temp.path(), number, 1 + u64::try_from(number % 5).unwrap()))
            .collect();
        for found in round.iter().skip(3).step_by(7) {
            fs::remove_file(&found.path).unwrap();
        }
        let wanted: Vec<_> = (0..count)
            .map(|number| (number % 7 != 3).then(|| format!("{number} at {}", 1 + number % 5)))
            .collect();
        assert_eq!(titles(&read_round(&round)), wanted, "{count} journals");
    }
}

#[test]
fn a_snapshot_is_used_where_the_journal_is_long() {
    let temp = tempfile::tempdir().unwrap();
    let (short, long) = (journal(temp.path(), 1, 2), journal(temp.path(), 2, 2_000));
    assert!(short.bytes <= WHOLE_BYTES_MAX && long.bytes > WHOLE_BYTES_MAX);
    for (found, at) in [(short, 1), (long, 1_999)] {
        let text = fs::read_to_string(&found.path).unwrap();
        let bytes = text.rfind('\n').unwrap() as u64 + 1;
        let view = View { seq: at, title: None, cwd: "/snapshot".to_owned(), ..View::default() };
        save_view(&found.path, bytes, &view).unwrap();
        let read = read_found(&found).unwrap();
        assert_eq!(read.cwd == "/snapshot", found.bytes > WHOLE_BYTES_MAX);
        assert_eq!(read.title, read_view(&found.path).unwrap().title);
        assert_eq!(read.seq, at + 1);
    }
}

#[test]
fn a_snapshot_of_another_fold_is_folded_again() {
    let temp = tempfile::tempdir().unwrap();
    let found = journal(temp.path(), 1, 2_000);
    let text = fs::read_to_string(&found.path).unwrap();
    let bytes = text.rfind('\n').unwrap() as u64 + 1;
    let view = View { seq: 1_999, cwd: "/snapshot".to_owned(), ..View::default() };
    for version in [0, FOLD_VERSION + 1] {
        let fold = json!({ "version": version, "view": view });
        let fold = serde_json::value::to_raw_value(&fold).unwrap();
        Snapshot { journal_bytes: bytes, seq: 1_999, fold }.write(&found.path).unwrap();
        assert_ne!(read_view(&found.path).unwrap().cwd, "/snapshot");
    }
    // One of 0.1.0 was the bare view.
    let fold = serde_json::value::to_raw_value(&view).unwrap();
    Snapshot { journal_bytes: bytes, seq: 1_999, fold }.write(&found.path).unwrap();
    assert_ne!(read_view(&found.path).unwrap().cwd, "/snapshot");
    save_view(&found.path, bytes, &view).unwrap();
    assert_eq!(read_view(&found.path).unwrap().cwd, "/snapshot");
}
