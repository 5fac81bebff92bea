use std::os::unix::fs::PermissionsExt as _;

use super::testing::{Bench, at, durable, eventually, key, line_of, record, record_of, seqs};
use super::*;
use frontdesk_core::record::Kind;

fn quick() -> Limits {
    Limits { stream_sync_ms: 2, ..Limits::default() }
}

#[tokio::test]
async fn a_session_is_written_closed_opened_and_written_again() {
    let bench = Bench::new(&quick());
    let late = "2026-11-30T23:30:00-05:00".parse().unwrap();
    let mut journal = bench.log.create(key(1), late).unwrap();
    let path = bench.data.path().join(format!("sessions/2026/12/01/{}/journal.jsonl", key(1)));
    assert_eq!(journal.path(), path, "the date is the UTC date");
    assert_eq!((journal.last_seq(), journal.bytes()), (0, 0));
    let ticket = journal.append(&[record_of(Kind::Created, 1), record(2)]).unwrap();
    assert!(!ticket.is_settled());
    ticket.synced().await.unwrap();
    drop(journal);
    bench.log.close().unwrap();
    assert!(bench.commit_files().is_empty(), "a clean end leaves nothing to play");

    let (log, replayed) = Log::open(bench.data.path(), &quick()).unwrap();
    assert_eq!(replayed, Replayed::default());
    let mut journal = log.open_journal(&path).unwrap();
    assert_eq!(journal.last_seq(), 2);
    assert_eq!(journal.bytes(), fs::metadata(&path).unwrap().len());
    let _ = journal.append(&[record(3)]).unwrap();
    assert_eq!(journal.bytes(), fs::metadata(&path).unwrap().len());
    assert_eq!(seqs(&path), [1, 2, 3]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
}

/// The row of a session that turned out to be another's goes, folder and all, while its file is
/// still open and not synced.
#[test]
fn a_journal_that_was_removed_with_its_folder_is_no_failure() {
    let slow = Limits { stream_sync_ms: 60_000, ..Limits::default() };
    let data = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(data.path(), &slow).unwrap();
    let mut journal = log.create(key(1), at()).unwrap();
    let _ = journal.append(&[record(1)]).unwrap();
    fs::remove_dir_all(journal.path().parent().unwrap()).unwrap();
    log.close().unwrap();
}

#[test]
fn a_journal_has_one_writer() {
    let bench = Bench::new(&quick());
    let journal = bench.log.create(key(1), at()).unwrap();
    let path = journal.path().to_path_buf();
    assert!(matches!(bench.log.open_journal(&path), Err(LogError::InUse { .. })));
    drop(journal);
    assert!(matches!(bench.log.create(key(1), at()), Err(LogError::Io { .. })), "it is there");
    assert!(bench.log.open_journal(&path).is_ok());
}

#[test]
fn only_journals_below_the_sessions_folder_are_opened() {
    let bench = Bench::new(&quick());
    let sessions = bench.log.sessions_dir().to_path_buf();
    let folder = format!("2026/11/30/{}", key(1));
    for foreign in [
        bench.data.path().join(&folder).join("journal.jsonl"),
        sessions.join("2026/11/30/other/journal.jsonl"),
        sessions.join(&folder).join("other.jsonl"),
        sessions.join("..").join("sessions").join(&folder).join("journal.jsonl"),
        sessions.join("a\nb").join(key(1).to_string()).join("journal.jsonl"),
    ] {
        let opened = bench.log.open_journal(&foreign);
        assert!(matches!(opened, Err(LogError::Foreign { .. })), "{}", foreign.display());
        let entombed = bench.log.entomb(&foreign, &record_of(Kind::Deleted, 1));
        assert!(matches!(entombed, Err(LogError::Foreign { .. })), "{}", foreign.display());
    }
    let missing = sessions.join(folder).join("journal.jsonl");
    assert!(matches!(bench.log.open_journal(&missing), Err(LogError::Io { .. })));
    assert!(matches!(bench.log.open_journal(&missing), Err(LogError::Io { .. })), "and not InUse");
}

#[tokio::test]
async fn a_deleted_session_is_a_tombstone_and_stays_one() {
    let bench = Bench::new(&quick());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    let path = journal.path().to_path_buf();
    journal.append(&[durable(1), record(2)]).unwrap().synced().await.unwrap();
    bench.log.params().write(key(1), "{}").unwrap();
    fs::write(Snapshot::path(&path), "{}").unwrap();
    let commit = fs::read(bench.data.path().join("commit/001.log")).unwrap();
    let tombstone = record_of(Kind::Deleted, 3);
    bench.log.entomb(&path, &tombstone).unwrap();
    assert_eq!(fs::read(&path).unwrap(), line_of(&tombstone));
    assert!(matches!(journal.append(&[durable(4)]), Err(LogError::Entombed { .. })));
    drop(journal);
    assert!(matches!(bench.log.open_journal(&path), Err(LogError::Entombed { .. })));
    assert_eq!(bench.log.params().read(key(1)).unwrap(), None);
    assert!(!Snapshot::path(&path).exists());
    let mut reader = Reader::open(&path).unwrap();
    assert_eq!(reader.read_batch(1).unwrap(), [tombstone]);
    assert!(reader.damage().is_empty());

    // Killed: the commit log, which has the old records, is played against the tombstone.
    let copy = copy_of(bench.data.path());
    fs::write(copy.path().join("commit/001.log"), commit).unwrap();
    let (log, replayed) = Log::open(copy.path(), &quick()).unwrap();
    assert_eq!((replayed.entries, replayed.written), (1, 0));
    let copied = copy.path().join(path.strip_prefix(bench.data.path()).unwrap());
    assert_eq!(seqs(&copied), [3]);
    assert!(matches!(log.open_journal(&copied), Err(LogError::Entombed { .. })));
}

#[tokio::test]
async fn what_was_deleted_leaves_the_commit_log() {
    let bench = Bench::new(&quick());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    let mut other = bench.log.create(key(2), at()).unwrap();
    journal.append(&[durable(1)]).unwrap().synced().await.unwrap();
    other.append(&[durable(1)]).unwrap().synced().await.unwrap();
    bench.log.entomb(journal.path(), &record_of(Kind::Deleted, 2)).unwrap();
    eventually("the file goes", || bench.commit_files().is_empty());
    assert!(bench.disk.synced.lock().unwrap().contains(&other.path().to_path_buf()));
    other.append(&[durable(2)]).unwrap().synced().await.unwrap();
    assert_eq!(bench.commit_files(), ["002.log"]);
}

#[tokio::test]
async fn no_ticket_waits_for_ever() {
    let bench = Bench::new(&quick());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    bench.disk.close_gate(true);
    let waiting = journal.append(&[durable(1)]).unwrap();
    bench.log.shared.commit.stop();
    let slot = bench.log.shared.slots.slot(key(1), journal.path());
    let late = Ticket::of(bench.log.shared.commit.push(slot, b"late".to_vec()));
    assert!(matches!(late.synced().await, Err(LogError::Closed)));
    bench.disk.close_gate(false);
    waiting.synced().await.unwrap();
}

#[test]
fn what_lanes_hold_can_move_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Log>();
    check::<Journal>();
    check::<Ticket>();
    check::<Reader>();
    check::<Snapshot>();
}

#[test]
fn a_session_without_a_journal_can_be_entombed() {
    let bench = Bench::new(&quick());
    let path = bench.log.journal_path(key(7), at());
    bench.log.entomb(&path, &record_of(Kind::Deleted, 1)).unwrap();
    assert_eq!(seqs(&path), [1]);
}

#[test]
fn streamed_lines_are_synced_soon_and_durable_ones_alone_are_not() {
    let bench = Bench::new(&quick());
    let mut streamed = bench.log.create(key(1), at()).unwrap();
    let mut lazy = bench.log.create(key(2), at()).unwrap();
    let _ = lazy.append(&[durable(1)]).unwrap();
    assert!(streamed.append(&[record(1)]).unwrap().is_settled());
    let path = streamed.path().to_path_buf();
    eventually("the journal is synced", || bench.disk.synced.lock().unwrap().contains(&path));
    assert!(!bench.disk.synced.lock().unwrap().contains(&lazy.path().to_path_buf()));
    bench.log.close().unwrap();
    assert!(bench.disk.synced.lock().unwrap().contains(&lazy.path().to_path_buf()));
    assert!(matches!(streamed.append(&[record(2)]), Err(LogError::Closed)));
}

#[test]
fn a_failed_stream_sync_is_tried_again() {
    let bench = Bench::new(&quick());
    bench.disk.journal_sync_fails.store(true, Ordering::SeqCst);
    let mut journal = bench.log.create(key(1), at()).unwrap();
    let _ = journal.append(&[record(1)]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(bench.disk.syncs(false), 0);
    bench.disk.journal_sync_fails.store(false, Ordering::SeqCst);
    eventually("the journal is synced", || bench.disk.syncs(false) == 1);
}

#[test]
fn few_files_are_open_however_many_journals_are_live() {
    let limits = Limits { journal_files: 4, ..quick() };
    let bench = Bench::new(&limits);
    let mut journals: Vec<_> =
        (1..=40).map(|number| bench.log.create(key(number), at()).unwrap()).collect();
    for seq in 1..=5 {
        for journal in &mut journals {
            let _ = journal.append(&[record(seq)]).unwrap();
        }
        assert!(bench.log.stats().open_files <= 4, "{:?}", bench.log.stats());
    }
    for journal in &journals {
        assert_eq!(seqs(journal.path()), [1, 2, 3, 4, 5]);
    }
    journals.clear();
    assert_eq!(bench.log.stats().open_files, 0);
}

#[test]
fn a_live_journal_is_small() {
    assert!(size_of::<Journal>() + size_of::<slot::Slot>() <= 256);
}

#[test]
fn a_read_only_folder_is_an_error_that_names_it() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("sessions"), "a file in the way").unwrap();
    let error = Log::open(temp.path(), &quick()).err().unwrap();
    assert!(error.to_string().starts_with("failed to make "), "{error}");
    assert!(error.to_string().contains("sessions"), "{error}");
}

/// The data folder as a killed daemon leaves it.
pub(super) fn copy_of(data: &Path) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy(&entry.path(), &to);
            } else {
                // Files of the commit log may go while we copy.
                let copied = fs::copy(entry.path(), &to);
                assert!(copied.is_ok() || !entry.path().exists(), "{copied:?}");
            }
        }
    }
    let temp = tempfile::tempdir().unwrap();
    copy(data, temp.path());
    temp
}
