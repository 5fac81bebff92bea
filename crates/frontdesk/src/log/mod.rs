//! The log: every session's journal, and the one commit log that makes them durable.
//!
//! Owns `data/sessions/` (journals and their snapshots), `data/commit/` and `data/params/`. `node`
//! opens it at start and makes or opens journals; each `session` lane writes its own [`Journal`];
//! everyone who shows history reads with a [`Reader`], which tolerates any damage.
//!
//! How a record becomes durable (DESIGN section 7): [`Journal::append`] writes the batch to the
//! journal at once, so that it survives the death of the daemon. Durable lines are also queued to
//! the commit log, whose thread writes what all sessions have waiting and syncs once; the
//! [`Ticket`] waits for that, and has it done at once: lines that nobody waits for are taken along
//! or go within `commit_delay_ms`. Journals themselves are synced later: within
//! `stream_sync_ms` where they hold streamed lines, else when the commit log file that speaks of
//! them is to be deleted. At start [`Log::open`] plays the commit log into journals that lack its
//! records.

mod check;
mod commit;
mod disk;
mod flush;
mod journal;
mod params;
mod reader;
mod redact;
mod replay;
mod scan;
mod slot;
mod snapshot;
mod space;
mod tail;
#[cfg(test)]
mod testing;
mod touched;

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use frontdesk_core::ids::{Epoch, Key, Seq};
use frontdesk_core::limits::Limits;
use frontdesk_core::record::Record;
use jiff::Timestamp;
use jiff::tz::Offset;
use tokio::sync::watch;

pub use self::check::{Checked, check, in_words, repair};
pub use self::journal::{Journal, Ticket};
pub use self::params::Params;
pub use self::reader::{Damage, LINE_BYTES_MAX, Reader, What};
pub use self::redact::redact;
pub use self::replay::{Committed, Replayed, committed};
pub use self::scan::{Found, scan};
pub use self::snapshot::Snapshot;
pub use self::space::Health;
pub use self::touched::{Left as TouchedLeft, TOUCHED_NAME, Touched};

use self::commit::{Committer, Retiring};
use self::disk::{Disk, OsDisk};
use self::slot::Shared;
use self::space::Space;

/// Name of the journal in its session's folder.
pub const JOURNAL_NAME: &str = "journal.jsonl";

/// Why the log could not do something.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The operating system refused.
    #[error("failed to {what} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// There is no space left; the same records can be appended again later.
    #[error("failed to append to {path}: the disk is full")]
    Full {
        /// The journal.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Too much waits for a sync; nothing was written, try again after a round.
    #[error("failed to append to {path}: the commit log is behind")]
    Behind {
        /// The journal.
        path: PathBuf,
    },
    /// The records are not numbered upwards from what the journal holds.
    #[error("failed to append record {seq}: the journal is at {last} already")]
    Order {
        /// Number of the first record that does not fit.
        seq: Seq,
        /// Number it had to exceed.
        last: Seq,
    },
    /// The record is of an owner that is none any more.
    #[error("failed to append record {seq} of epoch {old}: the session is at epoch {epoch}")]
    OldEpoch {
        /// Number of the record.
        seq: Seq,
        /// Its epoch.
        old: Epoch,
        /// The session's.
        epoch: Epoch,
    },
    /// The session was deleted; its tombstone stays the only record.
    #[error("failed to use {path}: the session was deleted")]
    Entombed {
        /// The journal.
        path: PathBuf,
    },
    /// Another [`Journal`] for the same session is open.
    #[error("failed to open {path}: it has a writer already")]
    InUse {
        /// The journal.
        path: PathBuf,
    },
    /// The path is no journal below the sessions folder.
    #[error("failed to use {path}: it is not the journal of a session here")]
    Foreign {
        /// The path.
        path: PathBuf,
    },
    /// A reader was to start where no line starts.
    #[error("failed to read {path} from byte {offset}: no line starts there")]
    Position {
        /// The journal.
        path: PathBuf,
        /// The offset in bytes.
        offset: u64,
    },
    /// A sync failed: the records are written, but may not survive a power cut.
    #[error("failed to sync: {0}")]
    Sync(Arc<str>),
    /// The log was closed.
    #[error("failed to write: the log is closed")]
    Closed,
}

impl LogError {
    /// Wraps an error of the operating system.
    fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_path_buf(), source }
    }

    /// Whether the same call can succeed later without anyone changing it.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Full { .. } | Self::Behind { .. } | Self::InUse { .. } => true,
            // A failed device, a read-only folder: people repair these while we run.
            Self::Io { .. } | Self::Sync(_) => true,
            Self::Order { .. }
            | Self::OldEpoch { .. }
            | Self::Entombed { .. }
            | Self::Foreign { .. }
            | Self::Position { .. }
            | Self::Closed => false,
        }
    }
}

/// What the log has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Rounds of the commit log.
    pub rounds: u64,
    /// Rounds that the commit log could not take, made durable journal by journal.
    pub detours: u64,
    /// Bytes waiting for the next round.
    pub waiting_bytes: u64,
    /// Journals open at this moment.
    pub open_files: usize,
}

/// The log of one daemon. One per data folder: the daemon's lock sees to that.
pub struct Log {
    shared: Arc<Shared>,
    params: Params,
    threads: Mutex<Option<Threads>>,
}

struct Threads {
    commit: JoinHandle<(Option<Retiring>, commit::Outcome)>,
    flush: JoinHandle<()>,
}

impl Log {
    /// Opens the log below `data`, plays the commit log into the journals and starts the two
    /// threads. Waits for the disk.
    ///
    /// # Errors
    /// If the folders cannot be made or read. A journal that cannot take its records is no error:
    /// it is named in [`Replayed::failed`], and the commit log is kept until it can.
    pub fn open(data: &Path, limits: &Limits) -> Result<(Self, Replayed), LogError> {
        Self::open_on(Arc::new(OsDisk), data, limits)
    }

    fn open_on(
        disk: Arc<dyn Disk>,
        data: &Path,
        limits: &Limits,
    ) -> Result<(Self, Replayed), LogError> {
        let sessions = data.join("sessions");
        let commit = data.join("commit");
        for folder in [&sessions, &commit] {
            disk::make_folder(folder).map_err(LogError::io("make", folder))?;
        }
        let params = Params::open(data)?;
        let (mut replayed, left) = replay::replay(&commit, &sessions)?;
        let (touched, behind) = Touched::open(data);
        replayed.behind = behind;
        let space = Space::new(data, limits.reserve_bytes);
        let shared = Arc::new(Shared::new(disk, sessions, space, limits, touched));
        shared.take_over(&left);
        let committer = Committer::new(Arc::clone(&shared), commit.clone(), left.next, limits);
        let commit = spawn("commit-log", &commit, move || committer.run())?;
        let flusher = Arc::clone(&shared);
        let folder = shared.sessions.clone();
        let flush = spawn("journal-sync", &folder, move || flush::run(&flusher));
        let flush = match flush {
            Ok(flush) => flush,
            Err(error) => {
                shared.commit.stop();
                return Err(error);
            }
        };
        let threads = Mutex::new(Some(Threads { commit, flush }));
        Ok((Self { shared, params, threads }, replayed))
    }

    /// Where the journal of a session made at `at` lies: the date is the UTC date.
    #[must_use]
    pub fn journal_path(&self, key: Key, at: Timestamp) -> PathBuf {
        let date = Offset::UTC.to_datetime(at).date();
        self.shared
            .sessions
            .join(format!("{:04}/{:02}/{:02}", date.year(), date.month(), date.day()))
            .join(key.to_string())
            .join(JOURNAL_NAME)
    }

    /// Makes the folder and the empty journal of a new session.
    ///
    /// # Errors
    /// If the journal exists already or the disk refuses.
    pub fn create(&self, key: Key, at: Timestamp) -> Result<Journal, LogError> {
        let path = self.journal_path(key, at);
        let slot = self.shared.slots.take(key, &path)?;
        let made = disk::make_folder(disk::parent(&path)).and_then(|()| disk::make_file(&path));
        if let Err(source) = made {
            slot.release();
            return Err(LogError::Io { what: "make", path, source });
        }
        slot.mark_fresh();
        Ok(Journal::new(Arc::clone(&self.shared), slot, 0, 0, false))
    }

    /// Opens the journal of a known session for writing. Reads the end of the file, backwards in
    /// pieces, to find the last record; changes nothing.
    ///
    /// # Errors
    /// If it cannot be read, lies elsewhere, has a writer, or holds a tombstone.
    pub fn open_journal(&self, path: &Path) -> Result<Journal, LogError> {
        let key = self.key_of(path)?;
        let slot = self.shared.slots.take(key, path)?;
        match tail::read_end(path) {
            Ok(end) if end.entombed => {
                slot.release();
                Err(LogError::Entombed { path: path.to_path_buf() })
            }
            Ok(end) => {
                Ok(Journal::new(Arc::clone(&self.shared), slot, end.last, end.bytes, end.torn))
            }
            Err(error) => {
                slot.release();
                Err(error)
            }
        }
    }

    /// Deletes a session: its journal becomes the single record `tombstone`, synced, and its
    /// snapshot and parameters are removed; copies in the commit log go soon after. A journal that is open cannot be written to any more.
    /// Waits for the disk.
    ///
    /// # Errors
    /// If the disk refuses; the journal is then as it was.
    pub fn entomb(&self, path: &Path, tombstone: &Record) -> Result<(), LogError> {
        let key = self.key_of(path)?;
        let mut line = Vec::new();
        tombstone.write_line(&mut line);
        let write = || {
            disk::make_folder(disk::parent(path))?;
            disk::replace(path, &line, disk::Care::Truth)?;
            disk::sync_folders(disk::parent(path), &self.shared.sessions)
        };
        let write = || loop {
            match write() {
                // A delete makes room: it may have what it needs out of the reserve.
                Err(error)
                    if disk::is_full(&error) && self.shared.space.lend(line.len() as u64) => {}
                other => return other,
            }
        };
        let slot = self.shared.slots.slot(key, path);
        self.shared.note_written(&slot);
        slot.entomb(write).map_err(LogError::io("entomb", path))?;
        // The commit log may still hold what was deleted.
        self.shared.commit.roll();
        Snapshot::remove(path);
        self.params.remove(key)
    }

    /// The store of whole parameters, secrets included.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The sessions whose journals may be ahead of the index.
    #[must_use]
    pub fn touched(&self) -> &Touched {
        &self.shared.touched
    }

    /// Whether somebody has the right to write this session's journal at this moment.
    #[must_use]
    pub fn has_writer(&self, key: Key) -> bool {
        self.shared.slots.has_writer(key)
    }

    /// The folder of all journals.
    #[must_use]
    pub fn sessions_dir(&self) -> &Path {
        &self.shared.sessions
    }

    /// How the log is: whether the disk is full, whether syncs fail.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.space.now()
    }

    /// Looks whether there is space, where nothing is written that could tell. Does not wait.
    pub fn look_for_space(&self) {
        self.shared.space.look();
    }

    /// Follows how the log is.
    #[must_use]
    pub fn follow_health(&self) -> watch::Receiver<Health> {
        self.shared.space.health()
    }

    /// Follows whether agents are to wait with what they say: there is no room for it.
    #[must_use]
    pub fn follow_paused(&self) -> watch::Receiver<bool> {
        self.shared.space.paused()
    }

    /// Whether a session's last append failed.
    #[must_use]
    pub fn is_stuck(&self, key: Key) -> bool {
        self.shared.space.is_stuck(key)
    }

    /// Whether a session's journal is behind what happens in it: the log is, or its last append
    /// failed.
    #[must_use]
    pub fn is_behind(&self, key: Key) -> bool {
        self.health().is_behind() || self.shared.space.is_stuck(key)
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            rounds: self.shared.rounds.load(Ordering::Relaxed),
            detours: self.shared.detours.load(Ordering::Relaxed),
            waiting_bytes: self.shared.commit.waiting_bytes(),
            open_files: self.shared.slots.open_files(),
        }
    }

    /// Ends the threads: all that was appended is synced, and the commit log is deleted, so that
    /// the next start has nothing to play. Later appends fail. Waits for the disk; closing twice
    /// is closing once.
    ///
    /// # Errors
    /// If something could not be synced; the commit log is then kept.
    pub fn close(&self) -> Result<(), LogError> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(threads) = threads else { return Ok(()) };
        self.shared.space.close();
        self.shared.commit.stop();
        // A thread that panicked has said so; what it owed is found by the next start.
        let (file, committed) = threads.commit.join().unwrap_or((None, Ok(())));
        if let Some(file) = file {
            self.shared.flush.retire(file);
        }
        self.shared.flush.stop();
        let _ = threads.flush.join();
        let flushed = self.shared.flush.failure().map_or(Ok(()), Err);
        committed.and(flushed).map_err(LogError::Sync)
    }

    /// The key that a journal's folder names.
    fn key_of(&self, path: &Path) -> Result<Key, LogError> {
        let foreign = || LogError::Foreign { path: path.to_path_buf() };
        let inside = path.strip_prefix(&self.shared.sessions).map_err(|_| foreign())?;
        let plain = inside.components().all(|part| matches!(part, Component::Normal(_)))
            && inside.to_str().is_some_and(|inside| !inside.contains('\n'));
        let named = inside.file_name().is_some_and(|name| name == JOURNAL_NAME);
        let folder = inside.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        let key = folder.and_then(|folder| folder.parse().ok());
        key.filter(|_| plain && named).ok_or_else(foreign)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "the log was closed with work left for the next start");
        }
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    path: &Path,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, LogError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(LogError::io("start the thread of", path))
}

/// Size of a file in bytes.
fn len_of(file: &fs::File, path: &Path) -> Result<u64, LogError> {
    file.metadata().map(|meta| meta.len()).map_err(LogError::io("look at", path))
}

#[cfg(test)]
mod durable_tests;
#[cfg(test)]
mod tests;

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}
