use std::fs;
use std::path::PathBuf;

use uuid::Uuid;

use frontdesk_core::ids::Key;

use super::*;
use crate::log::Found;

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

#[test]
fn a_snapshot_is_used_and_read_on_from() {
    let temp = tempfile::tempdir().unwrap();
    let found = journal(temp.path(), 1, 2_000);
    let text = fs::read_to_string(&found.path).unwrap();
    let bytes = text.rfind('\n').unwrap() as u64 + 1;
    let view = View { seq: 1_999, title: None, cwd: "/snapshot".to_owned(), ..View::default() };
    save_view(&found.path, bytes, &view).unwrap();
    let read = read_view(&found.path).unwrap();
    assert_eq!((read.cwd.as_str(), read.seq), ("/snapshot", 2_000));
    assert_eq!(read.title.as_deref(), Some("1 at 2000"));
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
