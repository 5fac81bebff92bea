//! The index: one row a session and the words of all transcripts, in SQLite.
//!
//! Owns `data/index.sqlite`. Derived from the journals alone: it can be removed at any time, and is
//! made again by `node` in a second file while the old one serves. Many threads read through
//! [`Index`]; one thread writes through [`Writer`]. What a running session is doing is not here but
//! in `node/directory.rs`, whose rows stand before these.

mod cursor;
mod entry;
mod query;
mod read;
mod rebuild;
mod schema;
mod search;
mod text;
mod write;

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, RwLock, TryLockError};

use frontdesk_core::ids::Key;
use rusqlite::Connection;
use rusqlite::ffi::ErrorCode;

pub use self::cursor::{BadCursor, Cursors};
pub use self::entry::{Entry, Position, changed_micros, ordered};
pub use self::query::{Archived, Columns, Folder, Wanted};
pub use self::rebuild::{Counts, Rebuild, Tidy, catch_up, put_row};
pub use self::search::{Hit, Words};
pub use self::text::{Mark, Passage};
pub use self::write::{Disk, Writer};
use crate::lock::{lock, read, write};

/// The index's file in the data folder.
pub const INDEX_NAME: &str = "index.sqlite";

/// The file of an index that is being made.
const MAKING_NAME: &str = "index.new.sqlite";

/// What the folder of an index among temporary files begins with.
const AWAY_NAME: &str = "frontdesk-index-";

/// Connections for look-ups of one session, and as many for lists and searches.
const READERS: usize = 2;

/// Why the index could not do something.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// SQLite refused.
    #[error("failed to use the index: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// What is there is not what was written.
    #[error("failed to read {0} of the index: it is damaged")]
    Damaged(&'static str),
    /// The operating system refused.
    #[error("failed to {what} {path}: {source}")]
    File {
        /// What was tried, as a verb.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A journal could not be read.
    #[error(transparent)]
    Log(#[from] crate::log::LogError),
}

impl Drop for Index {
    fn drop(&mut self) {
        if let Some(folder) = self.away.get() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

impl IndexError {
    fn file(what: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::File { what, path: path.to_path_buf(), source }
    }

    /// Whether the folder cannot be written.
    fn is_unwritable(&self) -> bool {
        use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        match self {
            Self::File { source, .. } => {
                matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem)
            }
            Self::Sqlite(rusqlite::Error::SqliteFailure(error, _)) => matches!(
                error.code,
                ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied
            ),
            _ => false,
        }
    }

    /// Whether the index itself is broken, so that only making it again helps.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged(_) => true,
            Self::Sqlite(rusqlite::Error::SqliteFailure(error, _)) => {
                matches!(
                    error.code,
                    ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown
                )
            }
            // Values of another type than was written, or a table that is missing: statements of
            // ours are right.
            Self::Sqlite(
                rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::SqlInputError { .. },
            ) => true,
            _ => false,
        }
    }
}

/// What the session of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A session of its own.
    Own,
    /// It turned out to be the same conversation as this one.
    SameAs(Key),
    /// A deleted one.
    Deleted,
}

/// A session that has a native id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its key.
    pub key: Key,
    /// Its agent.
    pub agent: String,
    /// It was deleted.
    pub deleted: bool,
}

/// The index as readers see it. While there is none every look-up finds nothing, and
/// [`Index::is_there`] says so.
#[derive(Debug)]
pub struct Index {
    data: PathBuf,
    /// The folder of our own among temporary files, where the data folder cannot be written.
    away: OnceLock<PathBuf>,
    sessions: PathBuf,
    readers: RwLock<Option<Readers>>,
    damaged: AtomicBool,
}

#[derive(Debug)]
struct Readers {
    quick: Vec<Mutex<Connection>>,
    long: Vec<Mutex<Connection>>,
}

impl Index {
    /// An index below `data` that is not open yet. `sessions` is the folder of all journals.
    #[must_use]
    pub fn new(data: &Path, sessions: &Path) -> Self {
        Self {
            data: data.to_path_buf(),
            away: OnceLock::new(),
            sessions: sessions.to_path_buf(),
            readers: RwLock::new(None),
            damaged: AtomicBool::new(false),
        }
    }

    /// Opens what is there; `None` if nothing can be used. An index that was being made and is not
    /// finished is removed.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn open(&self) -> Result<Option<Writer>, IndexError> {
        if let Err(error) = schema::remove(&self.making()) {
            return self.move_out(error).map(|()| None);
        }
        let opened = match schema::open(&self.path()) {
            Err(error) => return self.move_out(error).map(|()| None),
            Ok(opened) => opened,
        };
        let Some(conn) = opened else { return Ok(None) };
        let writer = Writer::new(conn, &self.sessions);
        self.publish()?;
        Ok(Some(writer))
    }

    /// Begins a new index beside the one that serves.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn make(&self) -> Result<Writer, IndexError> {
        let made = match schema::create(&self.making()) {
            Err(error) => {
                self.move_out(error)?;
                schema::create(&self.making())?
            }
            Ok(made) => made,
        };
        Ok(Writer::new(made, &self.sessions))
    }

    /// Puts a finished index in the place of the one that serves, in one step for all readers.
    /// `old` is the writer of that one.
    ///
    /// # Errors
    /// If the disk refuses; then there is no index.
    pub fn replace(&self, made: Writer, old: Option<Writer>) -> Result<Writer, IndexError> {
        made.close()?;
        let mut readers = write(&self.readers);
        *readers = None;
        drop(old);
        schema::put_in_place(&self.making(), &self.path())?;
        let conn = schema::open(&self.path())?.ok_or(IndexError::Damaged("the version"))?;
        *readers = Some(Readers::open(&self.path())?);
        self.damaged.store(false, Ordering::Release);
        Ok(Writer::new(conn, &self.sessions))
    }

    /// Takes a broken index out of service.
    pub fn withdraw(&self) {
        *write(&self.readers) = None;
    }

    /// Whether there is an index to ask.
    #[must_use]
    pub fn is_there(&self) -> bool {
        !self.is_damaged() && read(&self.readers).is_some()
    }

    /// Whether a reader found that it is broken.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Acquire)
    }

    /// The folder of all journals.
    #[must_use]
    pub fn sessions(&self) -> &Path {
        &self.sessions
    }

    fn path(&self) -> PathBuf {
        self.away.get().unwrap_or(&self.data).join(INDEX_NAME)
    }

    fn making(&self) -> PathBuf {
        self.path().with_file_name(MAKING_NAME)
    }

    /// The data folder cannot be written: journals are read all the same, and found through an
    /// index in a folder for temporary files, which lasts as long as the daemon.
    fn move_out(&self, error: IndexError) -> Result<(), IndexError> {
        if !error.is_unwritable() || self.away.get().is_some() {
            return Err(error);
        }
        let folder = std::env::temp_dir().join(format!("{AWAY_NAME}{}", uuid::Uuid::new_v4()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|source| IndexError::file("make", &folder, source))?;
        tracing::warn!(%error, folder = %folder.display(), "the index is kept among temporary files");
        // One thread writes an index, so nobody was faster.
        let _ = self.away.set(folder);
        Ok(())
    }

    fn publish(&self) -> Result<(), IndexError> {
        *write(&self.readers) = Some(Readers::open(&self.path())?);
        Ok(())
    }

    /// The session of a key, a deleted one too.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<Entry> {
        self.quick(|conn| read::get(conn, &self.sessions, key)).flatten()
    }

    /// What the session of a key is; `None` if there is no such session.
    #[must_use]
    pub fn standing(&self, key: Key) -> Option<Standing> {
        self.quick(|conn| read::standing(conn, key)).flatten()
    }

    /// Sessions with a native id, deleted ones too.
    #[must_use]
    pub fn natives(&self, native: &str) -> Vec<Known> {
        self.quick(|conn| read::natives(conn, native)).unwrap_or_default()
    }

    /// How many sessions are listed, of one agent or of all.
    #[must_use]
    pub fn count(&self, agent: Option<&str>) -> u64 {
        self.quick(|conn| read::count(conn, agent)).unwrap_or_default()
    }

    /// Hands out sessions in the order of lists, behind `from`, until `each` says `false`. Some may
    /// not be wanted: `columns` only narrows. Says whether there was an index. Waits for the disk.
    pub fn scan(
        &self,
        columns: &Columns,
        from: Option<Position>,
        mut each: impl FnMut(Entry) -> bool,
    ) -> bool {
        let scanned = self.long(|conn| {
            let mut sources = query::sources(conn, &self.sessions, columns, from)?;
            let mut heads = Vec::with_capacity(sources.len());
            for source in &mut sources {
                heads.push(source.next(conn, &self.sessions, columns)?);
            }
            let mut seen = query::Seen::default();
            loop {
                let positions = heads.iter().enumerate();
                let first = positions
                    .filter_map(|(at, head)| head.as_ref().map(|entry| (entry.position(), at)))
                    .max();
                let Some((_, at)) = first else { return Ok(()) };
                let next = sources[at].next(conn, &self.sessions, columns)?;
                let Some(entry) = std::mem::replace(&mut heads[at], next) else { return Ok(()) };
                if seen.is_new(entry.key) && !each(entry) {
                    return Ok(());
                }
            }
        });
        scanned.is_some()
    }

    /// What a search finds: titles first, then transcripts, newest first. `each` says whether a
    /// session is wanted and goes on: `None` ends the search. Waits for the disk.
    pub fn search(
        &self,
        words: &Words,
        passages_max: usize,
        mut each: impl FnMut(Hit) -> Option<()>,
    ) -> bool {
        let found =
            self.long(|conn| search::search(conn, &self.sessions, words, passages_max, &mut each));
        found.is_some()
    }

    fn quick<T>(&self, run: impl FnOnce(&Connection) -> Result<T, IndexError>) -> Option<T> {
        self.with(|readers| &readers.quick, run)
    }

    fn long<T>(&self, run: impl FnOnce(&Connection) -> Result<T, IndexError>) -> Option<T> {
        self.with(|readers| &readers.long, run)
    }

    fn with<T>(
        &self,
        which: impl FnOnce(&Readers) -> &Vec<Mutex<Connection>>,
        run: impl FnOnce(&Connection) -> Result<T, IndexError>,
    ) -> Option<T> {
        if self.is_damaged() {
            return None;
        }
        let readers = read(&self.readers);
        let conn = free(which(readers.as_ref()?))?;
        match run(&conn) {
            Ok(found) => Some(found),
            Err(error) => {
                if error.is_damage() {
                    self.damaged.store(true, Ordering::Release);
                }
                tracing::error!(path = %self.path().display(), %error, "failed to read the index");
                None
            }
        }
    }
}

/// A connection that nobody uses, or the first one that is free again.
fn free(conns: &[Mutex<Connection>]) -> Option<MutexGuard<'_, Connection>> {
    for conn in conns {
        match conn.try_lock() {
            Ok(conn) => return Some(conn),
            Err(TryLockError::Poisoned(conn)) => return Some(conn.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }
    Some(lock(conns.first()?))
}

impl Readers {
    fn open(path: &Path) -> Result<Self, IndexError> {
        let some = || (0..READERS).map(|_| Ok(Mutex::new(schema::reader(path)?))).collect();
        let (quick, long): (Result<_, IndexError>, Result<_, IndexError>) = (some(), some());
        Ok(Self { quick: quick?, long: long? })
    }
}

#[cfg(test)]
mod tests;
