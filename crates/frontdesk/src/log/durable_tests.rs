//! The commit log's promise under faults: what was acknowledged is on the disk, whatever write or
//! sync failed and wherever the machine stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use frontdesk_core::ids::{Key, Seq};
use frontdesk_core::limits::Limits;
use tokio::time::timeout;

use super::testing::{Bench, Op, Random, at, durable, eventually, key, record, seqs};
use super::tests::copy_of;
use super::{Health, Log, LogError};

/// Long enough for a ticket that is wrongly settled to be seen.
const A_WHILE: Duration = Duration::from_millis(50);

fn limits() -> Limits {
    Limits { stream_sync_ms: 60_000, reserve_bytes: 0, ..Limits::default() }
}

fn trace(bench: &Bench) -> Vec<Op> {
    bench.disk.trace.lock().unwrap().clone().unwrap_or_default()
}

fn begin_trace(bench: &Bench) {
    *bench.disk.trace.lock().unwrap() = Some(Vec::new());
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

#[tokio::test]
async fn a_failed_sync_of_the_commit_log_is_done_again_in_a_new_file() {
    let bench = Bench::new(&limits());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    journal.append(&[durable(1)]).unwrap().synced().await.unwrap();
    begin_trace(&bench);
    bench.disk.commit_sync_fails.store(true, Ordering::SeqCst);
    bench.disk.journal_sync_fails.store(true, Ordering::SeqCst);
    let mut told = Box::pin(journal.append(&[durable(2)]).unwrap().synced());
    assert!(timeout(A_WHILE, &mut told).await.is_err(), "nothing is told that is not safe");
    eventually("it is said", || bench.log.health().unsynced);
    assert!(bench.log.is_behind(key(1)));
    bench.disk.commit_sync_fails.store(false, Ordering::SeqCst);
    told.await.unwrap();
    assert_eq!(bench.log.health(), Health::default());
    bench.disk.journal_sync_fails.store(false, Ordering::SeqCst);
    let done = trace(&bench);
    let failed: BTreeSet<_> = done
        .iter()
        .filter_map(|op| if let Op::SyncFailed(path) = op { Some(name(path)) } else { None })
        .collect();
    assert!(failed.contains("001.log") && failed.contains("002.log"), "{failed:?}");
    let good = done.iter().find_map(|op| if let Op::Sync(path) = op { Some(path) } else { None });
    let good = good.expect("a sync came through");
    assert!(!failed.contains(&name(good)), "a file whose sync failed is not trusted again");
    assert!(
        done.iter().any(|op| matches!(op, Op::Append(path, _) if path == good)),
        "the round was written again"
    );
}

#[tokio::test]
async fn a_log_that_ends_while_nothing_can_be_synced_says_so() {
    let bench = Bench::new(&limits());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    bench.disk.commit_sync_fails.store(true, Ordering::SeqCst);
    bench.disk.journal_sync_fails.store(true, Ordering::SeqCst);
    let told = tokio::spawn(journal.append(&[durable(1)]).unwrap().synced());
    eventually("it is tried", || bench.log.health().unsynced);
    let error = bench.log.close().unwrap_err();
    assert!(matches!(error, LogError::Sync(_)), "{error}");
    let error = told.await.unwrap().unwrap_err();
    assert!(matches!(error, LogError::Sync(_)) && error.is_retryable(), "{error}");
    assert_eq!(seqs(journal.path()), [1], "what was written stays");
}

#[tokio::test]
async fn a_journal_whose_sync_failed_is_written_over_itself() {
    let limits = Limits { stream_sync_ms: 2, commit_log_bytes: 1, ..limits() };
    let bench = Bench::new(&limits);
    let mut journal = bench.log.create(key(1), at()).unwrap();
    let _ = journal.append(&[record(1)]).unwrap();
    eventually("it is synced", || bench.disk.syncs(false) == 1);
    let good = journal.bytes();
    begin_trace(&bench);
    bench.disk.journal_sync_fails.store(true, Ordering::SeqCst);
    journal.append(&[record(2), durable(3)]).unwrap().synced().await.unwrap();
    eventually("the sync fails", || {
        trace(&bench).iter().any(|op| matches!(op, Op::SyncFailed(path) if path == journal.path()))
    });
    assert_eq!(bench.commit_files(), ["001.log"], "it has what the journal may have lost");
    bench.disk.journal_sync_fails.store(false, Ordering::SeqCst);
    let _ = journal.append(&[record(4)]).unwrap();
    let again = Op::Rewrite(journal.path().to_path_buf(), good);
    eventually("it is written again", || trace(&bench).contains(&again));
    eventually("the commit log goes", || bench.commit_files().is_empty());
    assert_eq!(seqs(journal.path()), [1, 2, 3, 4]);
}

#[tokio::test]
async fn what_the_disk_lost_of_a_journal_comes_back_from_the_commit_log() {
    let limits = Limits { stream_sync_ms: 2, commit_log_bytes: 1, ..limits() };
    let bench = Bench::new(&limits);
    let mut journal = bench.log.create(key(1), at()).unwrap();
    let _ = journal.append(&[record(1)]).unwrap();
    let good = journal.bytes();
    bench.disk.journal_sync_fails.store(true, Ordering::SeqCst);
    journal.append(&[durable(2), record(3)]).unwrap().synced().await.unwrap();
    eventually("it is full", || bench.commit_files() == ["001.log"]);
    std::thread::sleep(Duration::from_millis(20));
    // The kernel let go of what it could not write: the file ends earlier.
    fs::File::options().write(true).open(journal.path()).unwrap().set_len(good).unwrap();
    bench.disk.journal_sync_fails.store(false, Ordering::SeqCst);
    let path = journal.path().to_path_buf();
    drop(journal);
    bench.log.close().unwrap();
    assert_eq!(bench.commit_files(), ["001.log"], "kept: the journal lacks what it has");
    let (log, done) = Log::open(bench.data.path(), &limits).unwrap();
    assert_eq!((done.written, done.failed), (1, vec![]));
    assert_eq!(seqs(&path), [1, 2]);
    log.close().unwrap();
}

#[tokio::test]
async fn short_writes_are_gone_on_with() {
    let bench = Bench::new(&limits());
    bench.disk.short_bytes.store(7, Ordering::SeqCst);
    let mut journal = bench.log.create(key(1), at()).unwrap();
    for seq in 1..=5 {
        journal.append(&[durable(seq)]).unwrap().synced().await.unwrap();
    }
    let copy = copy_of(bench.data.path());
    let path = copy.path().join(journal.path().strip_prefix(bench.data.path()).unwrap());
    fs::remove_file(&path).unwrap();
    let (_, done) = Log::open(copy.path(), &limits()).unwrap();
    assert_eq!((done.entries, done.torn_files, done.remade), (5, 0, 1));
    assert_eq!(seqs(&path), [1, 2, 3, 4, 5], "a journal that is gone is made again");
}

#[tokio::test]
async fn a_disk_that_fills_up_between_the_two_writes_loses_nothing() {
    let bench = Bench::new(&limits());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    for (seq, room) in (1..).zip([0, 1, 30, 90, 150]) {
        bench.disk.commit_room.store(room, Ordering::SeqCst);
        journal.append(&[durable(seq)]).unwrap().synced().await.unwrap();
        let safe = bench.disk.synced_bytes.lock().unwrap()[journal.path()];
        assert_eq!(safe, journal.bytes(), "room {room}: the journal itself is safe");
        let copy = copy_of(bench.data.path());
        let path = copy.path().join(journal.path().strip_prefix(bench.data.path()).unwrap());
        let (_, done) = Log::open(copy.path(), &limits()).unwrap();
        assert_eq!(done.failed, []);
        assert_eq!(seqs(&path), (1..=seq).collect::<Vec<_>>());
    }
}

/// A file as the machine that stops may leave it.
#[derive(Clone, Default)]
struct Image {
    content: Vec<u8>,
    /// Bytes that are on the disk for certain.
    safe: usize,
    /// Ranges whose sync failed.
    doubtful: Vec<(usize, usize)>,
    removed: bool,
}

/// A disk as it may be at one moment.
#[derive(Default)]
struct Picture {
    files: BTreeMap<PathBuf, Image>,
    /// Entries whose names are on the disk.
    named: BTreeSet<PathBuf>,
    told: BTreeSet<(Key, Seq)>,
}

impl Picture {
    fn take(&mut self, op: &Op) {
        match op {
            Op::Append(path, bytes) => {
                self.files.entry(path.clone()).or_default().content.extend_from_slice(bytes);
            }
            Op::Sync(path) => {
                let file = self.files.entry(path.clone()).or_default();
                file.safe = file.content.len();
            }
            Op::SyncFailed(path) => {
                let file = self.files.entry(path.clone()).or_default();
                file.doubtful.push((file.safe, file.content.len()));
            }
            Op::Rewrite(path, from) => {
                let file = self.files.entry(path.clone()).or_default();
                file.doubtful.retain(|(start, _)| (*start as u64) < *from);
                file.safe = file.content.len();
            }
            Op::Names(folder) => {
                let paths: Vec<PathBuf> = self.files.keys().cloned().collect();
                let entries = paths.iter().flat_map(|path| path.ancestors());
                let inside = entries.filter(|entry| entry.parent() == Some(folder));
                self.named.extend(inside.map(Path::to_path_buf));
            }
            Op::Remove(path) => self.files.entry(path.clone()).or_default().removed = true,
            Op::Told(key, seq) => {
                self.told.insert((*key, *seq));
            }
        }
    }

    /// Puts the files below `to` as a machine may find them that stopped now.
    fn lay_out(&self, data: &Path, to: &Path, random: &mut Random) {
        for (path, file) in &self.files {
            let inside = path.strip_prefix(data).unwrap();
            let mut entries = path.ancestors().take_while(|entry| entry.parent() != Some(data));
            let is_named = entries.all(|entry| self.named.contains(entry));
            // A removal, too, is on the disk only later.
            let is_there = if file.removed || !is_named { random.below(2) == 0 } else { true };
            if !is_there {
                continue;
            }
            let mut content = file.content.clone();
            for (start, end) in &file.doubtful {
                if random.below(2) == 0 {
                    content[*start..*end].fill(0);
                }
            }
            let open = content.len() - file.safe;
            let cut = file.safe + usize::try_from(random.below(open as u64 + 1)).unwrap();
            match random.below(3) {
                0 => content.truncate(file.safe),
                1 => content.truncate(cut),
                _ => content[cut..].fill(0),
            }
            let place = to.join(inside);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, content).unwrap();
        }
    }
}

/// Some work of four sessions, with faults that come and go; what was done, in order.
async fn recorded(random: &mut Random) -> (PathBuf, Vec<Op>) {
    let commit_log_bytes = 300 + random.below(2_000);
    let limits = Limits { commit_log_bytes, stream_sync_ms: random.below(8), ..limits() };
    let bench = Bench::new(&limits);
    begin_trace(&bench);
    let mut journals: Vec<_> =
        (0..4).map(|number| bench.log.create(key(number), at()).unwrap()).collect();
    for _ in 0..20 {
        let at = usize::try_from(random.below(4)).unwrap();
        let seq = journals[at].last_seq() + 1;
        let fault = random.below(6);
        bench.disk.commit_sync_fails.store(fault == 0, Ordering::SeqCst);
        bench.disk.journal_sync_fails.store(fault == 1, Ordering::SeqCst);
        let room = if fault == 2 { i64::try_from(random.below(300)).unwrap() } else { -1 };
        bench.disk.commit_room.store(room, Ordering::SeqCst);
        bench.disk.short_bytes.store(if fault == 3 { 31 } else { 0 }, Ordering::SeqCst);
        let batch = [record(seq), durable(seq + 1)];
        journals[at].append(&batch).unwrap().synced().await.unwrap();
        bench.disk.note(Op::Told(key(at as u128), seq + 1));
    }
    bench.disk.commit_sync_fails.store(false, Ordering::SeqCst);
    bench.disk.journal_sync_fails.store(false, Ordering::SeqCst);
    bench.disk.commit_room.store(-1, Ordering::SeqCst);
    drop(journals);
    bench.log.close().unwrap();
    (bench.data.path().to_path_buf(), trace(&bench))
}

/// A trace in short.
fn shown(trace: &[Op]) -> String {
    let one = |op: &Op| match op {
        Op::Append(path, bytes) => format!("\n{} +{}", path.display(), bytes.len()),
        other => format!("\n{other:?}"),
    };
    trace.iter().map(one).collect()
}

/// The machine stops behind every single write, sync and removal of some recorded work: what had
/// been told is there at the next start, in order and once.
#[tokio::test]
async fn what_was_told_is_there_wherever_the_machine_stops() {
    let mut random = Random::seeded("what_was_told_is_there_wherever_the_machine_stops");
    let (mut stops, mut put_back) = (0, 0);
    for _ in 0..3 {
        let (data, trace) = recorded(&mut random).await;
        let mut picture = Picture::default();
        for (at, op) in trace.iter().enumerate() {
            picture.take(op);
            let found = tempfile::tempdir().unwrap();
            picture.lay_out(&data, found.path(), &mut random);
            let (log, done) = Log::open(found.path(), &limits()).unwrap();
            assert_eq!(done.failed, [], "behind {at}: {op:?}");
            put_back += done.written;
            stops += 1;
            for number in 0..4 {
                let path = log.journal_path(key(number), super::testing::at());
                let there = if path.exists() { seqs(&path) } else { Vec::new() };
                assert!(there.is_sorted_by(|a, b| a < b), "behind {at}: {there:?}");
                let told = picture.told.iter().filter(|(of, _)| *of == key(number));
                for (_, seq) in told {
                    assert!(
                        there.contains(seq),
                        "behind {at}: {seq} is not in {there:?}: {}",
                        shown(&trace[..=at])
                    );
                }
            }
        }
    }
    assert!(stops > 150 && put_back > 150, "the test tests: {stops} stops, {put_back} put back");
}
