//! Records, keys and a disk that fails on command, for the tests of `log`.

use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use bytes::Bytes;
use frontdesk_core::ids::{Key, Seq};
use frontdesk_core::limits::Limits;
use frontdesk_core::record::{Kind, RECORD_VERSION, Record};
use uuid::Uuid;

use super::disk::{AppendFile, Disk, OsDisk};

pub(super) fn key(number: u128) -> Key {
    Key::new(Uuid::from_u128(0x01a2_2bb6_2da2_7132_b868_0000_0000_0000 | number))
}

pub(super) fn at() -> jiff::Timestamp {
    "2026-11-30T23:59:59.000001Z".parse().unwrap()
}

pub(super) fn record_of(kind: Kind, seq: Seq) -> Record {
    let data = Bytes::from(format!(r#"{{"n":{seq},"text":"line {seq} \u2028 {{\"v\":1}}"}}"#));
    Record { v: RECORD_VERSION, seq, epoch: 1, at: at(), kind, src: None, data }
}

/// A streamed record.
pub(super) fn record(seq: Seq) -> Record {
    record_of(Kind::Update, seq)
}

/// A durable record.
pub(super) fn durable(seq: Seq) -> Record {
    record_of(Kind::TurnEnded, seq)
}

pub(super) fn line_of(record: &Record) -> Vec<u8> {
    let mut line = Vec::new();
    record.write_line(&mut line);
    line
}

/// The lines of streamed records.
pub(super) fn lines(seqs: RangeInclusive<Seq>) -> Vec<u8> {
    seqs.flat_map(|seq| line_of(&record(seq))).collect()
}

/// The numbers of all records a fresh reader serves.
pub(super) fn seqs(path: &Path) -> Vec<Seq> {
    let mut reader = super::Reader::open(path).unwrap();
    let mut seqs: Vec<_> =
        reader.read_batch(usize::MAX).unwrap().iter().map(|record| record.seq).collect();
    seqs.extend(reader.finish().map(|record| record.seq));
    seqs
}

/// The operating system's disk with faults that a test turns on.
#[derive(Default)]
pub(super) struct FaultDisk {
    /// Bytes that journals still take; negative for no bound.
    pub(super) journal_room: AtomicI64,
    /// Bytes that the commit log still takes; negative for no bound.
    pub(super) commit_room: AtomicI64,
    /// Syncs of the commit log fail.
    pub(super) commit_sync_fails: AtomicBool,
    /// Syncs of journals fail.
    pub(super) journal_sync_fails: AtomicBool,
    /// Writes to journals.
    pub(super) journal_writes: AtomicUsize,
    /// Bytes that one write takes at most; zero for no bound.
    pub(super) short_bytes: AtomicUsize,
    /// What was done, where a test wants to know.
    pub(super) trace: Mutex<Option<Vec<Op>>>,
    /// The paths synced, in order.
    pub(super) synced: Mutex<Vec<PathBuf>>,
    /// How long each file was when its last sync began.
    pub(super) synced_bytes: Mutex<HashMap<PathBuf, u64>>,
    /// While closed, syncs of the commit log wait.
    gate: (Mutex<bool>, Condvar),
}

impl FaultDisk {
    pub(super) fn new() -> Arc<Self> {
        let disk = Self::default();
        disk.journal_room.store(-1, Ordering::SeqCst);
        disk.commit_room.store(-1, Ordering::SeqCst);
        Arc::new(disk)
    }

    pub(super) fn close_gate(&self, closed: bool) {
        *self.gate.0.lock().unwrap() = closed;
        self.gate.1.notify_all();
    }

    pub(super) fn syncs(&self, of_commit: bool) -> usize {
        self.synced.lock().unwrap().iter().filter(|path| is_commit(path) == of_commit).count()
    }
}

fn is_commit(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log")
}

/// So that a test can keep its own handle.
pub(super) struct Handle(pub(super) Arc<FaultDisk>);

impl Disk for Handle {
    fn open_append(&self, path: &Path, create: bool) -> io::Result<Arc<dyn AppendFile>> {
        let file = OsDisk.open_append(path, create)?;
        if create {
            self.0.note(Op::Append(path.to_path_buf(), Vec::new()));
        }
        Ok(Arc::new(FaultFile { disk: Arc::clone(&self.0), path: path.to_path_buf(), file }))
    }

    fn rewrite(&self, path: &Path, from: u64) -> io::Result<()> {
        self.0.sync_outcome(path)?;
        OsDisk.rewrite(path, from)?;
        self.0.synced.lock().unwrap().push(path.to_path_buf());
        self.0.note(Op::Rewrite(path.to_path_buf(), from));
        Ok(())
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        OsDisk.sync_folder(path)?;
        self.0.note(Op::Names(path.to_path_buf()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.note(Op::Remove(path.to_path_buf()));
        OsDisk.remove(path)
    }
}

struct FaultFile {
    disk: Arc<FaultDisk>,
    path: PathBuf,
    file: Arc<dyn AppendFile>,
}

impl AppendFile for FaultFile {
    fn append(&self, bytes: &[u8]) -> io::Result<usize> {
        let room =
            if is_commit(&self.path) { &self.disk.commit_room } else { &self.disk.journal_room };
        if !is_commit(&self.path) {
            self.disk.journal_writes.fetch_add(1, Ordering::SeqCst);
        }
        let short = self.disk.short_bytes.load(Ordering::SeqCst);
        let bytes = if short == 0 { bytes } else { &bytes[..bytes.len().min(short)] };
        let left = room.load(Ordering::SeqCst);
        if left < 0 {
            let taken = self.file.append(bytes)?;
            self.disk.note(Op::Append(self.path.clone(), bytes[..taken].to_vec()));
            return Ok(taken);
        }
        let fits = usize::try_from(left).unwrap().min(bytes.len());
        if fits == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let taken = self.file.append(&bytes[..fits])?;
        self.disk.note(Op::Append(self.path.clone(), bytes[..taken].to_vec()));
        room.fetch_sub(i64::try_from(taken).unwrap(), Ordering::SeqCst);
        Ok(taken)
    }

    fn sync(&self) -> io::Result<()> {
        let commit = is_commit(&self.path);
        if commit {
            let closed = self.disk.gate.0.lock().unwrap();
            drop(self.disk.gate.1.wait_while(closed, |closed| *closed).unwrap());
        }
        self.disk.sync_outcome(&self.path)?;
        let bytes = std::fs::metadata(&self.path)?.len();
        self.file.sync()?;
        self.disk.synced_bytes.lock().unwrap().insert(self.path.clone(), bytes);
        self.disk.synced.lock().unwrap().push(self.path.clone());
        self.disk.note(Op::Sync(self.path.clone()));
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }
}

/// One thing that was done to the disk, or told to somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Bytes were put at the end of a file.
    Append(PathBuf, Vec<u8>),
    /// All that a file had so far is on the disk.
    Sync(PathBuf),
    /// A sync failed: what was not on the disk may never get there.
    SyncFailed(PathBuf),
    /// A file was written over itself from an offset on, and synced.
    Rewrite(PathBuf, u64),
    /// The names in a folder are on the disk.
    Names(PathBuf),
    /// A file was removed.
    Remove(PathBuf),
    /// Somebody was told that a record of this session is safe.
    Told(Key, Seq),
}

impl FaultDisk {
    pub(super) fn note(&self, op: Op) {
        if let Some(trace) = &mut *self.trace.lock().unwrap() {
            trace.push(op);
        }
    }

    fn sync_outcome(&self, path: &Path) -> io::Result<()> {
        let of_commit = is_commit(path);
        let fails = if of_commit { &self.commit_sync_fails } else { &self.journal_sync_fails };
        if fails.load(Ordering::SeqCst) {
            self.note(Op::SyncFailed(path.to_path_buf()));
            return Err(io::Error::other("the sync fails on command"));
        }
        Ok(())
    }
}

/// A log on a disk of its own that fails on command.
pub(super) struct Bench {
    pub(super) data: tempfile::TempDir,
    pub(super) disk: Arc<FaultDisk>,
    pub(super) log: super::Log,
}

impl Bench {
    pub(super) fn new(limits: &Limits) -> Self {
        let data = tempfile::tempdir().unwrap();
        let disk = FaultDisk::new();
        let handle = Arc::new(Handle(Arc::clone(&disk)));
        let log = super::Log::open_on(handle, data.path(), limits).unwrap().0;
        Self { data, disk, log }
    }

    /// The files of the commit log, by name.
    pub(super) fn commit_files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.data.path().join("commit")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.ends_with(".log")).collect();
        names.sort();
        names
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // So that a failed test ends.
        self.disk.close_gate(false);
    }
}

/// Waits, with a generous limit, for what another thread does.
pub(super) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("{what}: not within ten seconds");
}

/// A small generator of random numbers; the seed is printed by whoever makes one.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn seeded(test: &str) -> Self {
        let seed = std::env::var("FRONTDESK_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| Uuid::now_v7().as_u64_pair().1 | 1);
        eprintln!("{test}: FRONTDESK_TEST_SEED={seed}");
        Self(seed)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
