//! The one writer of an index: rows and passages.

use std::path::{Path, PathBuf};

use frontdesk_core::ids::Key;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::entry::{Entry, changed_micros, folder_text, real_text, titles, write_view};
use super::text::{Mark, Passage};
use super::{IndexError, read};

/// Passages that begin in the same microsecond, as a power of two.
const SAME_INSTANT_BITS: u32 = 10;

/// Pages of the full-text tables that are written anew in one step.
const PURGE_PAGES: i64 = 256;

/// The name of the step among the index's own facts.
const STEP: &str = "step";

/// A journal as it lies on the disk, to tell later whether it is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was written last, in microseconds since the Unix epoch; 0 if that is not known.
    pub modified: i64,
    /// Checksum of its beginning; 0 if that is not known.
    pub head: u32,
}

/// A session's journal as it was when its row was written.
pub(super) type Journal = (Key, PathBuf, Disk);

/// Writes an index. All calls wait for the disk; there is one writer a file.
#[derive(Debug)]
pub struct Writer {
    conn: Connection,
    sessions: PathBuf,
}

/// What a row was before.
struct Before {
    id: i64,
    agent: String,
    listed: bool,
    titles: i64,
}

impl Writer {
    pub(super) fn new(conn: Connection, sessions: &Path) -> Self {
        Self { conn, sessions: sessions.to_path_buf() }
    }

    /// Makes all that `run` writes visible to readers in one step; if it fails, nothing.
    ///
    /// # Errors
    /// If the disk refuses, or `run` fails.
    pub fn batch<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T, IndexError>,
    ) -> Result<T, IndexError> {
        self.conn.execute_batch("BEGIN IMMEDIATE")?;
        let done = run(self).and_then(|done| {
            self.conn.execute_batch("COMMIT")?;
            Ok(done)
        });
        if done.is_err() && !self.conn.is_autocommit() {
            // What failed is told; that nothing is left half done is all that matters here.
            let _ = self.conn.execute_batch("ROLLBACK");
        }
        done
    }

    /// Writes a session's row; its passages and their mark stay.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn put(&mut self, entry: &Entry, disk: Disk) -> Result<(), IndexError> {
        let view = &entry.view;
        let before = self.before(entry.key)?;
        let listed = view.is_listed();
        let words = if listed { titles(view) } else { String::new() };
        let words_sum = i64::from(crc32fast::hash(words.as_bytes()));
        let sql = "INSERT INTO session (key, agent, native, folder, real, day, ordered, updated,
            listed, deleted, archived, child, bytes, modified, head, text_bytes, text_seq, titles, view, same)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, 0, 0, ?16, ?17, ?18)
            ON CONFLICT (key) DO UPDATE SET agent = ?2, native = ?3, folder = ?4, real = ?5, day = ?6,
            ordered = ?7, updated = ?8, listed = ?9, deleted = ?10, archived = ?11, child = ?12,
            bytes = ?13, modified = ?14, head = ?15, titles = ?16, view = ?17, same = ?18 RETURNING id";
        let id: i64 = self.conn.prepare_cached(sql)?.query_row(
            params![
                read::key_bytes(entry.key),
                view.agent,
                view.native,
                folder_text(&view.cwd),
                real_text(&view.cwd, entry.real_cwd.as_deref()),
                read::day_of(&self.sessions, &entry.path),
                entry.ordered,
                changed_micros(view),
                listed,
                view.deleted,
                view.archived,
                view.parent.is_some(),
                number(entry.bytes),
                disk.modified,
                disk.head,
                words_sum,
                write_view(view),
                view.same_as.as_ref().and_then(|key| key.parse().ok()).map(read::key_bytes),
            ],
            |row| row.get(0),
        )?;
        self.put_aliases(id, before.is_some(), &view.aliases)?;
        if before.as_ref().map_or(0, |before| before.titles) != words_sum {
            self.conn.prepare_cached("DELETE FROM titled WHERE rowid = ?")?.execute([id])?;
            if !words.is_empty() {
                let sql = "INSERT INTO titled (rowid, text) VALUES (?, ?)";
                self.conn.prepare_cached(sql)?.execute(params![id, words])?;
            }
        }
        if view.deleted {
            self.forget_text(id)?;
        }
        let was = before.as_ref().filter(|before| before.listed).map(|before| &*before.agent);
        let is = listed.then_some(&*view.agent);
        if was != is {
            self.tally(was, -1)?;
            self.tally(is, 1)?;
        }
        Ok(())
    }

    fn put_aliases(&self, id: i64, again: bool, aliases: &[String]) -> Result<(), IndexError> {
        if again {
            self.conn.prepare_cached("DELETE FROM alias WHERE session = ?")?.execute([id])?;
        }
        for alias in aliases {
            let sql = "INSERT OR IGNORE INTO alias (id, session) VALUES (?, ?)";
            self.conn.prepare_cached(sql)?.execute(params![alias, id])?;
        }
        Ok(())
    }

    /// Removes a session that is none any more, without a trace.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn remove(&mut self, key: Key) -> Result<(), IndexError> {
        let Some(before) = self.before(key)? else { return Ok(()) };
        self.forget_text(before.id)?;
        self.conn.prepare_cached("DELETE FROM titled WHERE rowid = ?")?.execute([before.id])?;
        self.put_aliases(before.id, true, &[])?;
        self.conn.prepare_cached("DELETE FROM session WHERE id = ?")?.execute([before.id])?;
        self.tally(before.listed.then_some(&*before.agent), -1)
    }

    fn before(&self, key: Key) -> Result<Option<Before>, IndexError> {
        let sql = "SELECT id, agent, listed, titles FROM session WHERE key = ?";
        let found = self.conn.prepare_cached(sql)?.query_row([read::key_bytes(key)], |row| {
            Ok(Before {
                id: row.get(0)?,
                agent: row.get(1)?,
                listed: row.get(2)?,
                titles: row.get(3)?,
            })
        });
        Ok(found.optional()?)
    }

    fn tally(&self, agent: Option<&str>, by: i64) -> Result<(), IndexError> {
        let Some(agent) = agent else { return Ok(()) };
        let sql = "INSERT INTO tally (agent, sessions) VALUES (?1, ?2)
            ON CONFLICT (agent) DO UPDATE SET sessions = sessions + ?2";
        self.conn.prepare_cached(sql)?.execute(params![agent, by])?;
        Ok(())
    }

    /// Where the text of a session's transcript goes on; the beginning if it is not known.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn text_mark(&self, key: Key) -> Result<Mark, IndexError> {
        let sql = "SELECT text_bytes, text_seq FROM session WHERE key = ?";
        let found = self.conn.prepare_cached(sql)?.query_row([read::key_bytes(key)], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
        });
        let (bytes, seq) = found.optional()?.unwrap_or_default();
        Ok(Mark {
            bytes: u64::try_from(bytes).unwrap_or_default(),
            seq: u64::try_from(seq).unwrap_or_default(),
        })
    }

    /// Adds what was said in sessions; each passage once, in any order. Sessions that have no row
    /// are passed over.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn add_passages(&mut self, passages: Vec<(Key, Passage)>) -> Result<(), IndexError> {
        let mut rows = Vec::with_capacity(passages.len());
        for (key, passage) in passages {
            if let Some(before) = self.before(key)? {
                rows.push((passage_id(passage.at), before.id, passage));
            }
        }
        // The full-text table writes a piece of its own for each number out of order.
        rows.sort_by_key(|(id, ..)| *id);
        let mut last = i64::MIN;
        for (id, session, passage) in rows {
            let id = self.free_id(id.max(last.saturating_add(1)))?;
            last = id;
            let sql = "INSERT INTO passage (id, session, seq, place) VALUES (?, ?, ?, ?)";
            let Mark { bytes, seq } = passage.from;
            self.conn.prepare_cached(sql)?.execute(params![
                id,
                session,
                number(seq),
                number(bytes)
            ])?;
            let sql = "INSERT INTO spoken (rowid, text) VALUES (?, ?)";
            self.conn.prepare_cached(sql)?.execute(params![id, passage.text])?;
        }
        Ok(())
    }

    /// The first number from `id` on that no passage has.
    fn free_id(&self, mut id: i64) -> Result<i64, IndexError> {
        let mut statement = self.conn.prepare_cached("SELECT 1 FROM passage WHERE id = ?")?;
        while statement.exists([id])? {
            id += 1;
        }
        Ok(id)
    }

    /// Notes where the text of a session goes on.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn set_text_mark(&mut self, key: Key, mark: Mark) -> Result<(), IndexError> {
        let sql = "UPDATE session SET text_bytes = ?, text_seq = ? WHERE key = ?";
        let values = params![number(mark.bytes), number(mark.seq), read::key_bytes(key)];
        self.conn.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    /// Drops what was said behind a mark, to be read again from there.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn drop_text_behind(&mut self, key: Key, mark: Mark) -> Result<(), IndexError> {
        let Some(before) = self.before(key)? else { return Ok(()) };
        let values = (before.id, number(mark.seq));
        let sql = "DELETE FROM spoken WHERE rowid IN
            (SELECT id FROM passage WHERE session = ? AND seq >= ?)";
        self.conn.prepare_cached(sql)?.execute(values)?;
        let sql = "DELETE FROM passage WHERE session = ? AND seq >= ?";
        self.conn.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    /// Drops the text of a session, to be read again.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn drop_text(&mut self, key: Key) -> Result<(), IndexError> {
        if let Some(before) = self.before(key)? {
            self.forget_text(before.id)?;
            self.set_text_mark(key, Mark::default())?;
        }
        Ok(())
    }

    fn forget_text(&self, session: i64) -> Result<(), IndexError> {
        let sql = "DELETE FROM spoken WHERE rowid IN (SELECT id FROM passage WHERE session = ?)";
        self.conn.prepare_cached(sql)?.execute([session])?;
        self.conn.prepare_cached("DELETE FROM passage WHERE session = ?")?.execute([session])?;
        Ok(())
    }

    /// The entry of a key, and its journal as it was.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn get(&self, key: Key) -> Result<Option<(Entry, Disk)>, IndexError> {
        let Some(entry) = read::get(&self.conn, &self.sessions, key)? else { return Ok(None) };
        let sql = "SELECT bytes, modified, head FROM session WHERE key = ?";
        let disk = self.conn.prepare_cached(sql)?.query_row([read::key_bytes(key)], disk_of)?;
        Ok(Some((entry, disk)))
    }

    /// Journals as they were, in portions: those whose row comes behind `after`, and the number to
    /// go on behind.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn journals(&self, after: i64, limit: u32) -> Result<(Vec<Journal>, i64), IndexError> {
        let sql = "SELECT bytes, modified, head, id, key, day FROM session WHERE id > ?
            ORDER BY id LIMIT ?";
        let mut statement = self.conn.prepare_cached(sql)?;
        let mut rows = statement.query((after, limit))?;
        let mut found = Vec::new();
        let mut last = after;
        while let Some(row) = rows.next()? {
            last = row.get(3)?;
            let key = row.get_ref(4)?.as_blob().map_err(|_| IndexError::Damaged("a key"))?;
            let key = read::key_of(key)?;
            let day: String = row.get(5)?;
            found.push((key, read::path_of(&self.sessions, &day, key), disk_of(row)?));
        }
        Ok((found, last))
    }

    /// Whether there is a row for this key.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn has(&self, key: Key) -> Result<bool, IndexError> {
        Ok(read::standing(&self.conn, key)?.is_some())
    }

    /// The number of the last time the index was in step with the journals.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn step(&self) -> Result<Option<u64>, IndexError> {
        Ok(read::meta(&self.conn, STEP)?.and_then(|step| u64::try_from(step).ok()))
    }

    /// Notes the number of a time at which the index is in step, and syncs all that was written.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn set_step(&mut self, step: u64) -> Result<(), IndexError> {
        self.conn.pragma_update(None, "synchronous", "full")?;
        let sql = "INSERT INTO meta (name, value) VALUES (?1, ?2)
            ON CONFLICT (name) DO UPDATE SET value = ?2";
        let written = self.conn.prepare_cached(sql)?.execute(params![STEP, number(step)]);
        self.conn.pragma_update(None, "synchronous", "normal")?;
        written?;
        Ok(())
    }

    /// Takes a step in dropping the words of deleted sessions, which the full-text tables only mark:
    /// they go when the pieces they are in are written anew. `first` begins; `false` at the end.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn purge_step(&mut self, first: bool) -> Result<bool, IndexError> {
        let pages = if first { -PURGE_PAGES } else { PURGE_PAGES };
        let before = self.conn.total_changes();
        self.batch(|writer| {
            for table in ["spoken", "titled"] {
                let sql = format!("INSERT INTO {table} ({table}, rank) VALUES ('merge', ?)");
                writer.conn.prepare_cached(&sql)?.execute([pages])?;
            }
            Ok(())
        })?;
        // Each of the two commands counts as one change itself.
        Ok(first || self.conn.total_changes() - before > 2)
    }

    /// Moves what was written into the one file, and empties the log beside it, as far as no reader
    /// is in the way.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn settle(&mut self) -> Result<(), IndexError> {
        Ok(self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()))?)
    }

    /// Looks for broken pages, which takes as long as reading the file.
    ///
    /// # Errors
    /// If there is one.
    pub fn check_pages(&self) -> Result<(), IndexError> {
        let said: String = self.conn.query_row("PRAGMA quick_check(1)", (), |row| row.get(0))?;
        if said == "ok" { Ok(()) } else { Err(IndexError::Damaged("a page")) }
    }

    /// The file's size in bytes.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn file_bytes(&self) -> Result<u64, IndexError> {
        let get = |name: &str| {
            self.conn.query_row(&format!("PRAGMA {name}"), (), |row| row.get::<_, i64>(0))
        };
        let bytes = get("page_count")?.saturating_mul(get("page_size")?);
        Ok(u64::try_from(bytes).unwrap_or_default())
    }

    /// Ends writing: all is in the one file and synced.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn close(self) -> Result<(), IndexError> {
        self.conn.flush_prepared_statement_cache();
        self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()))?;
        self.conn.close().map_err(|(_, error)| error.into())
    }
}

fn disk_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Disk> {
    let bytes: i64 = row.get(0)?;
    Ok(Disk {
        bytes: u64::try_from(bytes).unwrap_or_default(),
        modified: row.get(1)?,
        head: row.get(2)?,
    })
}

/// Numbers of passages rise with time, whatever the order in which they come.
fn passage_id(at: Timestamp) -> i64 {
    at.as_microsecond().clamp(0, i64::MAX >> (SAME_INSTANT_BITS + 1)) << SAME_INSTANT_BITS
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
