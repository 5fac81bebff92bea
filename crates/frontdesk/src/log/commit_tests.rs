use super::super::testing::{Bench, at, durable, eventually, key, line_of};
use super::*;
use std::sync::atomic::Ordering;

fn entries_of(path: &Path) -> (Vec<Seq>, bool) {
    let mut entries = Entries::open(path).unwrap();
    let mut seqs = Vec::new();
    while let Some(entry) = entries.next().unwrap() {
        seqs.push(entry.seq);
    }
    (seqs, entries.is_torn())
}

#[test]
fn an_entry_is_read_as_it_was_written() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("001.log");
    let mut text = Vec::new();
    frame(&mut text, key(1), "2026/11/30/a folder", 7, &line_of(&durable(7)));
    frame(&mut text, key(2), "b", u64::MAX, b"any line\n");
    std::fs::write(&path, &text).unwrap();
    let mut entries = Entries::open(&path).unwrap();
    let first = entries.next().unwrap().unwrap();
    assert_eq!((first.key, first.folder.as_str(), first.seq), (key(1), "2026/11/30/a folder", 7));
    let line =
        &text[usize::try_from(first.offset).unwrap()..][..usize::try_from(first.len).unwrap()];
    assert_eq!(line, line_of(&durable(7)));
    let second = entries.next().unwrap().unwrap();
    assert_eq!((second.key, second.seq, second.len), (key(2), u64::MAX, 9));
    assert!(entries.next().unwrap().is_none());
    assert!(!entries.is_torn());
}

#[test]
fn a_file_is_good_up_to_the_entry_that_is_cut_short_or_changed() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("001.log");
    let mut text = Vec::new();
    let mut ends = vec![0];
    for seq in 1..=3 {
        frame(&mut text, key(1), "f", seq, &line_of(&durable(seq)));
        ends.push(text.len());
    }
    for cut in 0..=text.len() {
        std::fs::write(&path, &text[..cut]).unwrap();
        let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
        let (seqs, torn) = entries_of(&path);
        assert_eq!(seqs.len(), whole, "cut at {cut}");
        assert_eq!(torn, !ends.contains(&cut), "cut at {cut}");
    }
    for flipped in 0..text.len() {
        let mut text = text.clone();
        text[flipped] ^= 0x11;
        std::fs::write(&path, &text).unwrap();
        let whole = ends.iter().filter(|end| **end <= flipped).count() - 1;
        assert_eq!(entries_of(&path), ((1..=whole as u64).collect(), true), "byte {flipped}");
    }
    for bad in [&b"\0\0\0\0"[..], b"\n", b"00000000 x\n", &[b'a'; 20_000]] {
        std::fs::write(&path, bad).unwrap();
        assert_eq!(entries_of(&path), (vec![], true));
    }
}

#[test]
fn only_names_of_our_own_making_are_numbers() {
    assert_eq!(file_number("007.log"), Some(7));
    assert_eq!(file_number(&file_name(12_345)), Some(12_345));
    for foreign in ["7.log", "0007.log", "007.txt", "+07.log", "x.log", ".log", "007.log~"] {
        assert_eq!(file_number(foreign), None, "{foreign}");
    }
}

#[tokio::test]
async fn a_full_file_goes_once_its_journals_are_synced() {
    let limits = Limits { commit_log_bytes: 1, stream_sync_ms: 2, ..Limits::default() };
    let bench = Bench::new(&limits);
    bench.disk.journal_sync_fails.store(true, Ordering::SeqCst);
    let mut one = bench.log.create(key(1), at()).unwrap();
    let mut two = bench.log.create(key(2), at()).unwrap();
    one.append(&[durable(1)]).unwrap().synced().await.unwrap();
    two.append(&[durable(1)]).unwrap().synced().await.unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(bench.commit_files(), ["001.log", "002.log"], "the journals are not synced");
    bench.disk.journal_sync_fails.store(false, Ordering::SeqCst);
    one.append(&[durable(2)]).unwrap().synced().await.unwrap();
    eventually("the files go", || bench.commit_files().is_empty());
    let synced = bench.disk.synced.lock().unwrap();
    for journal in [&one, &two] {
        assert!(synced.iter().any(|path| path == journal.path()));
    }
}
