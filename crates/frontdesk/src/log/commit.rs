//! The commit log: one file that makes the durable records of all sessions durable with one sync.
//!
//! `data/commit/NNN.log` is a row of entries. An entry is a header line
//! `CHECKSUM KEY SEQ LENGTH FOLDER` and then the journal's very line, `LENGTH` bytes with its line
//! end. The checksum (CRC-32, eight hex digits) covers all of the entry behind itself; the folder
//! is relative to `data/sessions/`. A file is good up to its first entry that is cut short or does
//! not fit its checksum: that one was being written when the machine stopped, and nobody was told
//! that it is safe.
//!
//! One thread writes it ([`Committer`]): each round takes all that waits, writes it with one write,
//! syncs once and wakes all tickets. A round begins at once when somebody waits for it; else
//! `commit_delay_ms` after its first entry, so that what follows soon shares its sync. `journal`
//! queues, `replay` reads.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use frontdesk_core::ids::{Key, Seq};
use frontdesk_core::limits::Limits;
use tokio::sync::oneshot;

use super::disk::AppendFile;
use super::replay;
use super::slot::{Shared, Slot, count, sync_all};
use super::space::RETRY;

/// Longest header line of an entry, in bytes.
const HEADER_BYTES_MAX: u64 = 8 << 10;

/// Entries in bytes that begin a round though nobody waits for it: beyond this, writing takes so
/// long that a shared sync saves little.
const DELAYED_BYTES_MAX: u64 = 1 << 20;

/// How often a round that fails is tried after the log was told to end.
const LAST_TRIES: u32 = 3;

/// How a round ended, for every ticket that waited for it.
pub(super) type Outcome = Result<(), Arc<str>>;

/// Appends one entry to `out`. `line` ends with its line end, `folder` holds none.
pub(super) fn frame(out: &mut Vec<u8>, key: Key, folder: &str, seq: Seq, line: &[u8]) {
    let mut header = String::with_capacity(64 + folder.len());
    // Writing into a `String` cannot fail.
    let _ = writeln!(header, " {key} {seq} {} {folder}", line.len());
    let mut sum = crc32fast::Hasher::new();
    sum.update(header.as_bytes());
    sum.update(line);
    out.extend_from_slice(format!("{:08x}", sum.finalize()).as_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(line);
}

/// One entry, its line still in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) folder: String,
    pub(super) seq: Seq,
    /// Where the line begins, in bytes.
    pub(super) offset: u64,
    /// Length of the line with its line end, in bytes.
    pub(super) len: u64,
}

/// Reads the entries of one file in order, checking each. Stops at the first that is not whole.
pub(super) struct Entries {
    file: BufReader<File>,
    at: u64,
    end: u64,
}

impl Entries {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let end = file.metadata()?.len();
        Ok(Self { file: BufReader::with_capacity(64 << 10, file), at: 0, end })
    }

    /// The next whole entry.
    pub(super) fn next(&mut self) -> io::Result<Option<Entry>> {
        let mut header = Vec::new();
        (&mut self.file).take(HEADER_BYTES_MAX).read_until(b'\n', &mut header)?;
        let Some((sum, mut entry)) = parse_header(&header) else { return Ok(None) };
        entry.offset = self.at + header.len() as u64;
        if entry.len == 0 || entry.len > self.end.saturating_sub(entry.offset) {
            return Ok(None);
        }
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&header[SUM_BYTES..]);
        let mut left = entry.len;
        while left > 0 {
            let piece = self.file.fill_buf()?;
            if piece.is_empty() {
                return Ok(None);
            }
            let taken = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            hasher.update(&piece[..taken]);
            self.file.consume(taken);
            left -= taken as u64;
        }
        if hasher.finalize() != sum {
            return Ok(None);
        }
        self.at = entry.offset + entry.len;
        Ok(Some(entry))
    }

    /// Whether bytes are left behind the last whole entry.
    pub(super) fn is_torn(&self) -> bool {
        self.at < self.end
    }
}

/// Length of the checksum at the start of a header, in bytes.
const SUM_BYTES: usize = 8;

fn parse_header(header: &[u8]) -> Option<(u32, Entry)> {
    let text = std::str::from_utf8(header).ok()?.strip_suffix('\n')?;
    let (sum, rest) = text.split_at_checked(SUM_BYTES)?;
    let mut parts = rest.strip_prefix(' ')?.splitn(4, ' ');
    let entry = Entry {
        key: parts.next()?.parse().ok()?,
        seq: parts.next()?.parse().ok()?,
        len: parts.next()?.parse().ok()?,
        folder: parts.next()?.to_owned(),
        offset: 0,
    };
    Some((u32::from_str_radix(sum, 16).ok()?, entry))
}

/// The name of file `number`.
pub(super) fn file_name(number: u64) -> String {
    format!("{number:03}.log")
}

/// The number in a file's name; `None` for files that are not ours.
pub(super) fn file_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    let number = digits.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// What waits for the next round.
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    wake: Condvar,
    bytes_max: u64,
    delay: Duration,
}

#[derive(Default)]
struct Waiting {
    /// Number of the next round.
    round: u64,
    /// When its first entry came.
    since: Option<Instant>,
    /// Somebody waits for it.
    awaited: bool,
    entries: Vec<u8>,
    slots: Vec<Arc<Slot>>,
    tickets: Vec<oneshot::Sender<Outcome>>,
    /// The file is to be closed, so that it can go.
    roll: bool,
    stopping: bool,
}

/// The news of one round.
pub(super) struct Waiter {
    queue: Arc<Queue>,
    round: u64,
    heard: oneshot::Receiver<Outcome>,
}

impl Waiter {
    /// Begins the round if it has not begun, and waits until it is over. `None` if there is nobody
    /// to end it.
    pub(super) async fn outcome(self) -> Option<Outcome> {
        self.queue.hurry(self.round);
        self.heard.await.ok()
    }
}

impl Queue {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            waiting: Mutex::default(),
            wake: Condvar::new(),
            bytes_max: limits.commit_queue_bytes,
            delay: Duration::from_millis(limits.commit_delay_ms),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether more may be queued; asked before the journal is written. `None` after
    /// [`Queue::stop`].
    pub(super) fn has_room(&self) -> Option<bool> {
        let waiting = self.lock();
        (!waiting.stopping).then_some((waiting.entries.len() as u64) < self.bytes_max)
    }

    /// Queues the entries of one append; the waiter hears of their round.
    pub(super) fn push(self: &Arc<Self>, slot: Arc<Slot>, entries: Vec<u8>) -> Waiter {
        let (ticket, heard) = oneshot::channel();
        let mut waiting = self.lock();
        let waiter = Waiter { queue: Arc::clone(self), round: waiting.round, heard };
        if waiting.stopping {
            // Nobody would write it: the ticket is dropped and tells so.
            return waiter;
        }
        let first = waiting.since.is_none();
        waiting.since.get_or_insert_with(Instant::now);
        if waiting.entries.is_empty() {
            waiting.entries = entries;
        } else {
            waiting.entries.extend_from_slice(&entries);
        }
        waiting.slots.push(slot);
        waiting.tickets.push(ticket);
        let full = self.is_full(&waiting);
        drop(waiting);
        // Otherwise the thread sleeps until the first entry's delay is over.
        if first || full {
            self.wake.notify_one();
        }
        waiter
    }

    /// Has a round begin without delay; nothing if it has begun.
    fn hurry(&self, round: u64) {
        let mut waiting = self.lock();
        if waiting.round == round && !waiting.awaited {
            waiting.awaited = true;
            drop(waiting);
            self.wake.notify_one();
        }
    }

    fn is_full(&self, waiting: &Waiting) -> bool {
        waiting.entries.len() as u64 >= DELAYED_BYTES_MAX.min(self.bytes_max)
    }

    /// How long the next round is still to be delayed; `None` if nothing waits for one.
    fn delay_left(&self, waiting: &Waiting) -> Option<Duration> {
        let since = waiting.since?;
        let now = waiting.awaited || waiting.roll || waiting.stopping || self.is_full(waiting);
        Some(if now { Duration::ZERO } else { self.delay.saturating_sub(since.elapsed()) })
    }

    /// Bytes waiting for the next round.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.lock().entries.len() as u64
    }

    /// Has the thread go on to a new file, so that the present one goes soon.
    pub(super) fn roll(&self) {
        self.lock().roll = true;
        self.wake.notify_one();
    }

    /// Lets the thread write what waits and end. Later appends are refused.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_one();
    }

    /// Waits for so long, or until the log is to end; says whether it is.
    fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut waiting = self.lock();
        while !waiting.stopping {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.wake.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// The next round; `None` when there will be none.
    fn take(&self) -> Option<Waiting> {
        let mut waiting = self.lock();
        loop {
            let left = self.delay_left(&waiting);
            if left.is_some_and(|left| left.is_zero()) || waiting.roll {
                let (stopping, round) = (waiting.stopping, waiting.round + 1);
                let next = Waiting { stopping, round, ..Waiting::default() };
                return Some(std::mem::replace(&mut *waiting, next));
            }
            if waiting.stopping {
                return None;
            }
            waiting = match left {
                Some(left) => {
                    let woken = self.wake.wait_timeout(waiting, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// A file of the commit log that takes no more, and the journals it speaks of.
pub(super) struct Retiring {
    pub(super) path: PathBuf,
    pub(super) slots: Vec<Arc<Slot>>,
}

impl Retiring {
    /// Syncs the journals that this file speaks of, then deletes it. Can be called again after a
    /// failure: what is synced stays synced.
    pub(super) fn retire(&mut self, shared: &Shared) -> io::Result<()> {
        sync_all(shared, &self.slots).map_err(|(_, error)| error)?;
        let suspect: Vec<_> = self.slots.iter().filter(|slot| slot.is_suspect()).collect();
        if !suspect.is_empty() && self.is_needed(&suspect)? {
            // The next start puts the lines back: nobody else may write these journals.
            tracing::error!(path = %self.path.display(), "the disk lost lines of a journal; this file has them and is kept for the next start");
            return Ok(());
        }
        shared.disk.remove(&self.path)
    }

    /// Whether this file has lines that a journal whose sync failed has lost.
    fn is_needed(&self, suspect: &[&Arc<Slot>]) -> io::Result<bool> {
        let journals = suspect.iter().map(|slot| (slot.key, slot.path.as_path())).collect();
        match replay::lacks_any(&self.path, &journals) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            other => other,
        }
    }
}

/// The file that is being written.
struct CommitFile {
    path: PathBuf,
    file: Arc<dyn AppendFile>,
    bytes: u64,
    slots: HashMap<Key, Arc<Slot>>,
}

impl CommitFile {
    fn close(self) -> Retiring {
        Retiring { path: self.path, slots: self.slots.into_values().collect() }
    }
}

/// The thread that writes the commit log.
pub(super) struct Committer {
    shared: Arc<Shared>,
    folder: PathBuf,
    next: u64,
    file_bytes_max: u64,
    file: Option<CommitFile>,
}

impl Committer {
    pub(super) fn new(shared: Arc<Shared>, folder: PathBuf, next: u64, limits: &Limits) -> Self {
        Self { shared, folder, next, file_bytes_max: limits.commit_log_bytes, file: None }
    }

    /// Runs until [`Queue::stop`]; hands back the last file, and why something could not be made
    /// durable.
    pub(super) fn run(mut self) -> (Option<Retiring>, Outcome) {
        let mut all = Ok(());
        let shared = Arc::clone(&self.shared);
        while let Some(round) = shared.commit.take() {
            if !round.tickets.is_empty() {
                let outcome = self.round(&round.entries, &round.slots);
                count(&shared.rounds);
                all = all.and(outcome.clone());
                for ticket in round.tickets {
                    // Nobody has to wait for a ticket.
                    let _ = ticket.send(outcome.clone());
                }
            }
            if round.roll {
                self.roll();
            }
        }
        (self.file.take().map(CommitFile::close), all)
    }

    /// Makes one round durable: in the commit log, or where that fails in each journal. It is tried
    /// until it succeeds, because nothing of it may be acknowledged before; only a log that is to
    /// end gives up.
    fn round(&mut self, entries: &[u8], slots: &[Arc<Slot>]) -> Outcome {
        let mut last_tries = LAST_TRIES;
        loop {
            let error = match self.write_anew(entries, slots) {
                Ok(()) => break,
                Err(error) => error,
            };
            count(&self.shared.detours);
            let said = self.shared.space.now().unsynced;
            if !said {
                tracing::warn!(%error, "failed to write the commit log; syncing each journal instead");
            }
            let Err((_, error)) = sync_all(&self.shared, slots) else { break };
            if !said {
                tracing::error!(%error, "failed to make records durable; nothing is acknowledged until they are");
            }
            self.shared.space.set_unsynced(true);
            if self.shared.commit.pause(RETRY) {
                last_tries -= 1;
            }
            if last_tries == 0 {
                return Err(Arc::from(error.to_string()));
            }
        }
        self.shared.space.set_unsynced(false);
        Ok(())
    }

    /// Writes a round to the file that is open and, if that fails, to a new one. A file that failed
    /// once is not written again: what its last bytes are is unknown, and after a failed sync a
    /// second one may call good what is lost. Its earlier rounds stay valid.
    fn write_anew(&mut self, entries: &[u8], slots: &[Arc<Slot>]) -> io::Result<()> {
        if self.file.is_some() {
            match self.write(entries, slots) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, "failed to write a file of the commit log; going on in a new one");
                    self.roll();
                }
            }
        }
        self.write(entries, slots).inspect_err(|_| self.roll())
    }

    fn write(&mut self, entries: &[u8], slots: &[Arc<Slot>]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let path = self.folder.join(file_name(self.next));
                self.next += 1;
                let file = self.shared.disk.open_append(&path, true)?;
                let opened = CommitFile { path, file, bytes: 0, slots: HashMap::new() };
                let opened = self.file.insert(opened);
                // Its name must be as durable as its content.
                self.shared.disk.sync_folder(&self.folder)?;
                opened
            }
        };
        self.shared.append_all(&*file.file, entries).map_err(|(_, error)| error)?;
        file.file.sync()?;
        file.bytes += entries.len() as u64;
        for slot in slots {
            file.slots.insert(slot.key, Arc::clone(slot));
        }
        if file.bytes >= self.file_bytes_max {
            self.roll();
        }
        Ok(())
    }

    fn roll(&mut self) {
        if let Some(file) = self.file.take() {
            self.shared.flush.retire(file.close());
        }
    }
}

impl Drop for Committer {
    /// However the thread ends, nobody waits for it any more.
    fn drop(&mut self) {
        let mut waiting = self.shared.commit.lock();
        waiting.stopping = true;
        waiting.tickets.clear();
    }
}

#[cfg(test)]
#[path = "commit_tests.rs"]
mod tests;
