//! The index's file: its tables, its version, and what is done with one that is no good.
//!
//! Everything in it is derived. A file of another version, a damaged one or none at all is as good
//! as an empty one: it is removed and made again.

use std::path::{Path, PathBuf};

use frontdesk_core::fold::FOLD_VERSION;
use rusqlite::{Connection, OpenFlags};

use super::IndexError;

/// Version of the tables below.
const SCHEMA_VERSION: u32 = 2;

/// What `user_version` says in a file that this program can read: tables and fold.
pub(super) const VERSION: u32 = SCHEMA_VERSION << 16 | FOLD_VERSION;

/// Memory that one connection keeps of the file, in KiB.
const CACHE_KIB: u32 = 512;

/// How long a connection waits for another one's lock, in milliseconds. There is one writer, so
/// that only the end of a recovery is ever waited for.
const BUSY_MS: u32 = 2_000;

/// One row a session; `listed` is 0 for deleted and unproven ones, and for those that turned out to
/// be another one, whose key is `same`. Their further native ids are in `alias`. The order of lists is
/// (`ordered`, `updated`, `key`), falling.
const TABLES: &str = "
CREATE TABLE session (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,
    agent TEXT NOT NULL,
    native TEXT,
    folder TEXT NOT NULL,
    real TEXT,
    day TEXT NOT NULL,
    ordered INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    listed INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    same BLOB,
    archived INTEGER NOT NULL,
    child INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    head INTEGER NOT NULL,
    text_bytes INTEGER NOT NULL,
    text_seq INTEGER NOT NULL,
    titles INTEGER NOT NULL,
    view TEXT NOT NULL
) STRICT;
CREATE INDEX by_order ON session(ordered, updated, key) WHERE listed = 1;
CREATE INDEX by_agent ON session(agent, ordered, updated, key) WHERE listed = 1;
CREATE INDEX by_folder ON session(folder, ordered, updated, key) WHERE listed = 1;
CREATE INDEX by_real ON session(real, ordered, updated, key) WHERE listed = 1 AND real IS NOT NULL;
CREATE INDEX by_future ON session(ordered, updated, key) WHERE listed = 1 AND ordered < updated;
CREATE INDEX by_native ON session(native) WHERE native IS NOT NULL;
CREATE TABLE alias (id TEXT NOT NULL, session INTEGER NOT NULL, PRIMARY KEY (id, session))
    STRICT, WITHOUT ROWID;
CREATE INDEX alias_of ON alias(session);
CREATE TABLE tally (agent TEXT PRIMARY KEY, sessions INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE passage (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    place INTEGER NOT NULL
) STRICT;
CREATE INDEX passage_of ON passage(session);
CREATE VIRTUAL TABLE spoken USING fts5(
    text, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 2');
CREATE VIRTUAL TABLE titled USING fts5(
    text, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 2');
";

/// Opens an index for writing; `None` if there is none that can be used.
///
/// # Errors
/// If the file is there and cannot be read at all; what is wrong with its content is no error.
pub(super) fn open(path: &Path) -> Result<Option<Connection>, IndexError> {
    if !path.try_exists().map_err(|source| IndexError::file("look at", path, source))? {
        return Ok(None);
    }
    let opened = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE).and_then(|conn| {
        let version: u32 = conn.query_row("PRAGMA user_version", (), |row| row.get(0))?;
        // A file that is no database fails here, and one whose first pages are gone.
        let _: u32 = conn.query_row("SELECT count(*) FROM meta", (), |row| row.get(0))?;
        Ok((version, conn))
    });
    match opened {
        Ok((VERSION, conn)) => {
            tune_writer(&conn)?;
            Ok(Some(conn))
        }
        Ok((version, _)) => {
            tracing::info!(path = %path.display(), version, "the index is of another version and is made again");
            Ok(None)
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the index cannot be read and is made again");
            Ok(None)
        }
    }
}

/// Makes an empty index in place of whatever is there.
///
/// # Errors
/// If the disk refuses.
pub(super) fn create(path: &Path) -> Result<Connection, IndexError> {
    remove(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let conn = connect(path, flags)?;
    tune_writer(&conn)?;
    conn.execute_batch(&format!("BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;"))?;
    Ok(conn)
}

/// Opens a connection that only reads.
pub(super) fn reader(path: &Path) -> Result<Connection, IndexError> {
    Ok(connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?)
}

fn connect(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    // Each connection has one user at a time, behind a lock of ours.
    let conn = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    conn.busy_timeout(std::time::Duration::from_millis(u64::from(BUSY_MS)))?;
    conn.set_prepared_statement_cache_capacity(64);
    // A mapped file would make a failing disk kill the daemon.
    conn.pragma_update(None, "mmap_size", 0)?;
    conn.pragma_update(None, "cache_size", -i64::from(CACHE_KIB))?;
    conn.pragma_update(None, "cell_size_check", true)?;
    Ok(conn)
}

fn tune_writer(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    conn.pragma_update(None, "synchronous", "normal")?;
    // What was deleted does not stay in unused parts of the file.
    conn.pragma_update_and_check(None, "secure_delete", true, |_| Ok(()))?;
    conn.pragma_update_and_check(None, "journal_size_limit", 16 << 20, |_| Ok(()))
}

/// The file and those that SQLite keeps beside it.
fn files(path: &Path) -> [PathBuf; 3] {
    let beside = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    [path.to_path_buf(), beside("-wal"), beside("-shm")]
}

/// Removes an index; one that is not there is removed already.
///
/// # Errors
/// If the disk refuses.
pub(super) fn remove(path: &Path) -> Result<(), IndexError> {
    files(path).iter().try_for_each(|file| remove_file(file))
}

fn remove_file(file: &Path) -> Result<(), IndexError> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(IndexError::file("remove", file, error))
        }
        _ => Ok(()),
    }
}

/// Puts a finished index, which nobody has open, in the place of the old one, which nobody has open.
///
/// # Errors
/// If the disk refuses.
pub(super) fn put_in_place(made: &Path, path: &Path) -> Result<(), IndexError> {
    // The old one's log first: it must never be taken for the new one's.
    let [_, wal, shm] = files(path);
    remove_file(&wal)?;
    remove_file(&shm)?;
    std::fs::rename(made, path).map_err(|source| IndexError::file("put in place", path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_of_another_version_or_no_index_at_all_is_none() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("index.sqlite");
        assert!(open(&path).unwrap().is_none());
        drop(create(&path).unwrap());
        assert!(open(&path).unwrap().is_some());
        let conn = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
        conn.pragma_update(None, "user_version", VERSION + 1).unwrap();
        drop(conn);
        assert!(open(&path).unwrap().is_none());
        drop(create(&path).unwrap());
        let whole = std::fs::read(&path).unwrap();
        for bad in [&b""[..], b"SQLite", &whole[..whole.len() / 2], &[0; 8192]] {
            remove(&path).unwrap();
            std::fs::write(&path, bad).unwrap();
            let opened = open(&path).unwrap();
            // Half a file may open; then its first use tells.
            assert!(opened.is_none() || !bad.is_empty(), "{}", bad.len());
            drop(opened);
            drop(create(&path).unwrap());
            assert!(open(&path).unwrap().is_some());
        }
    }

    #[test]
    fn the_version_says_who_folded() {
        assert_eq!(VERSION & 0xffff, FOLD_VERSION);
    }
}
