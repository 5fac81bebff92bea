//! What a list asks for, and the sources its rows come from in the order of lists.
//!
//! A source hands out rows of one index of the database in portions, each found by the position of
//! the last one, so that no statement stays open between them and inserts move nothing.

use std::path::Path;
use std::sync::Arc;

use frontdesk_core::ids::Key;
use rusqlite::{Connection, ToSql};

use super::entry::{Entry, Position, folder_text};
use super::{IndexError, read};

/// Rows of the first portion of a source; later ones are larger.
const PORTION_ROWS: usize = 64;

/// Rows of the largest portion.
const PORTION_ROWS_MAX: usize = 1_024;

/// Sessions whose ids begin alike that are put in order in memory; more are found by going through
/// all sessions in order.
const ALIKE_ROWS_MAX: usize = 1_000;

/// Which sessions are archived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Archived {
    /// Those that are not.
    #[default]
    No,
    /// Only those that are.
    Only,
    /// All.
    Any,
}

/// A folder as a list filters by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Folder {
    /// As it was given.
    given: String,
    /// Without links, where it exists.
    real: Option<String>,
}

impl Folder {
    /// The folder of a path, looked up on the disk.
    #[must_use]
    pub fn new(given: &str) -> Self {
        let real = std::fs::canonicalize(given).ok();
        let real = real.as_deref().and_then(Path::to_str).map(folder_text);
        Self { given: folder_text(given), real }
    }

    /// Whether a session's folder is this one: the same text, or the same place.
    #[must_use]
    pub fn is(&self, given: &str, real: Option<&Path>) -> bool {
        let given = folder_text(given);
        let real = real.and_then(Path::to_str).map(folder_text);
        given == self.given
            || self.real.as_ref().is_some_and(|own| given == *own || real.as_ref() == Some(own))
    }
}

/// The part of a query that the database answers. Times are microseconds since the Unix epoch.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// Of this agent.
    pub agent: Option<String>,
    /// In this folder.
    pub folder: Option<Folder>,
    /// Put aside or not.
    pub archived: Archived,
    /// Changed later than this.
    pub after: Option<i64>,
    /// Changed earlier than this.
    pub before: Option<i64>,
    /// Children, or sessions that are none.
    pub children: Option<bool>,
    /// Key or native id begins with this.
    pub prefix: Option<String>,
}

/// Rows of one index of the database, in order.
pub(super) struct Source {
    which: Which,
    rest: std::vec::IntoIter<Entry>,
    from: Option<Position>,
    portion: usize,
    ended: bool,
}

enum Which {
    All,
    Agent,
    Folder(String),
    Real(String),
    /// Those with a stamp from the future, which stand lower than their stamp.
    Future,
    /// Put in order already.
    Fixed,
}

impl Source {
    fn new(which: Which, from: Option<Position>) -> Self {
        let rest = Vec::new().into_iter();
        Self { which, rest, from, portion: PORTION_ROWS, ended: false }
    }

    fn fixed(mut rows: Vec<Entry>, from: Option<Position>) -> Self {
        rows.retain(|row| from.is_none_or(|from| row.position() < from));
        rows.sort_by_key(|row| std::cmp::Reverse(row.position()));
        let rest = rows.into_iter();
        Self { which: Which::Fixed, rest, from, portion: 0, ended: true }
    }

    /// The next row.
    pub(super) fn next(
        &mut self,
        conn: &Connection,
        sessions: &Path,
        columns: &Columns,
    ) -> Result<Option<Entry>, IndexError> {
        if let Some(entry) = self.rest.next() {
            return Ok(Some(entry));
        }
        if self.ended {
            return Ok(None);
        }
        let rows = self.fetch(conn, sessions, columns)?;
        self.ended = rows.len() < self.portion;
        self.portion = (self.portion * 2).min(PORTION_ROWS_MAX);
        if let Some(last) = rows.last() {
            self.from = Some(last.position());
        }
        self.rest = rows.into_iter();
        Ok(self.rest.next())
    }

    fn fetch(
        &self,
        conn: &Connection,
        sessions: &Path,
        columns: &Columns,
    ) -> Result<Vec<Entry>, IndexError> {
        let mut sql = format!("SELECT {} FROM session INDEXED BY ", read::COLUMNS);
        let mut values: Vec<Box<dyn ToSql>> = Vec::new();
        sql.push_str(match &self.which {
            Which::All => "by_order WHERE listed = 1",
            Which::Agent => "by_agent WHERE listed = 1",
            Which::Folder(_) => "by_folder WHERE listed = 1 AND folder = ?",
            Which::Real(_) => "by_real WHERE listed = 1 AND real IS NOT NULL AND real = ?",
            Which::Future => "by_future WHERE listed = 1 AND ordered < updated",
            Which::Fixed => return Ok(Vec::new()),
        });
        if let Which::Folder(folder) | Which::Real(folder) = &self.which {
            values.push(Box::new(folder.clone()));
        }
        if let Some(agent) = &columns.agent {
            sql.push_str(" AND agent = ?");
            values.push(Box::new(agent.clone()));
        }
        match columns.archived {
            Archived::No => sql.push_str(" AND archived = 0"),
            Archived::Only => sql.push_str(" AND archived = 1"),
            Archived::Any => {}
        }
        if let Some(children) = columns.children {
            sql.push_str(if children { " AND child = 1" } else { " AND child = 0" });
        }
        if let Some(after) = columns.after {
            let column = if matches!(self.which, Which::Future) { "updated" } else { "ordered" };
            sql.push_str(&format!(" AND {column} > ?"));
            values.push(Box::new(after));
        }
        if let Some(before) = columns.before {
            // Nothing stands higher than its stamp.
            sql.push_str(" AND ordered < ? AND updated < ?");
            values.push(Box::new(before));
            values.push(Box::new(before));
        }
        if let Some(from) = self.from {
            sql.push_str(" AND (ordered, updated, key) < (?, ?, ?)");
            values.push(Box::new(from.ordered));
            values.push(Box::new(from.updated));
            values.push(Box::new(read::key_bytes(from.key)));
        }
        sql.push_str(" ORDER BY ordered DESC, updated DESC, key DESC LIMIT ?");
        values.push(Box::new(i64::try_from(self.portion).unwrap_or(i64::MAX)));
        read::rows(conn, sessions, &sql, &values)
    }
}

/// The sources that together have all rows a query can want, and maybe some that it does not: who
/// asks looks at each.
pub(super) fn sources(
    conn: &Connection,
    sessions: &Path,
    columns: &Columns,
    from: Option<Position>,
) -> Result<Vec<Source>, IndexError> {
    if let Some(prefix) = &columns.prefix
        && let Some(rows) = alike(conn, sessions, prefix)?
    {
        return Ok(vec![Source::fixed(rows, from)]);
    }
    let mut all = Vec::new();
    if let Some(folder) = &columns.folder {
        all.push(Which::Folder(folder.given.clone()));
        if let Some(real) = &folder.real {
            if *real != folder.given {
                all.push(Which::Folder(real.clone()));
            }
            all.push(Which::Real(real.clone()));
        }
    } else if columns.agent.is_some() {
        all.push(Which::Agent);
    } else {
        all.push(Which::All);
    }
    if columns.after.is_some() {
        all.push(Which::Future);
    }
    Ok(all.into_iter().map(|which| Source::new(which, from)).collect())
}

/// Sessions whose key or native id begins with `prefix`; `None` if they are many.
fn alike(
    conn: &Connection,
    sessions: &Path,
    prefix: &str,
) -> Result<Option<Vec<Entry>>, IndexError> {
    let mut rows: Vec<Entry> = Vec::new();
    let limit = i64::try_from(ALIKE_ROWS_MAX + 1).unwrap_or(i64::MAX);
    if let Some((low, high)) = key_range(prefix) {
        let sql = format!(
            "SELECT {} FROM session WHERE key BETWEEN ? AND ? AND listed = 1 LIMIT ?",
            read::COLUMNS
        );
        rows.extend(read::rows(
            conn,
            sessions,
            &sql,
            &[Box::new(low.to_vec()), Box::new(high.to_vec()), Box::new(limit)],
        )?);
    }
    // Text is compared by its bytes, and nothing that begins with `prefix` is behind this.
    let end = format!("{prefix}\u{10ffff}");
    let sql = format!(
        "SELECT {} FROM session INDEXED BY by_native WHERE native >= ? AND native < ? AND listed = 1 LIMIT ?",
        read::COLUMNS
    );
    rows.extend(read::rows(
        conn,
        sessions,
        &sql,
        &[Box::new(prefix.to_owned()), Box::new(end), Box::new(limit)],
    )?);
    if rows.len() > ALIKE_ROWS_MAX {
        return Ok(None);
    }
    rows.sort_by_key(|row| row.key);
    rows.dedup_by_key(|row| row.key);
    Ok(Some(rows))
}

/// The keys that begin with a text; `None` if none does.
fn key_range(prefix: &str) -> Option<([u8; 16], [u8; 16])> {
    const SHAPE: &[u8; 36] = b"00000000-0000-0000-0000-000000000000";
    if prefix.len() > SHAPE.len() {
        return None;
    }
    for (found, shape) in prefix.bytes().zip(SHAPE) {
        let fits = if *shape == b'-' { found == b'-' } else { found.is_ascii_hexdigit() };
        if !fits {
            return None;
        }
    }
    let digits: String = prefix.chars().filter(|ch| *ch != '-').collect();
    let filled = |with: char| {
        let mut text = digits.clone();
        text.extend(std::iter::repeat_n(with, 32 - digits.len()));
        u128::from_str_radix(&text, 16).ok().map(u128::to_be_bytes)
    };
    Some((filled('0')?, filled('f')?))
}

/// A filter in Rust over rows of type `R`, applied before paging.
pub type Wanted<R> = Arc<dyn Fn(&R) -> bool + Send + Sync>;

/// The keys of rows that were handed out, for sources that have some in common.
#[derive(Default)]
pub(super) struct Seen(Vec<Key>);

impl Seen {
    /// Whether a key comes for the first time, given that rows come in order: the same row of
    /// another source comes right behind.
    pub(super) fn is_new(&mut self, key: Key) -> bool {
        if self.0.contains(&key) {
            return false;
        }
        // As many as there are sources can be the same.
        if self.0.len() >= 4 {
            self.0.remove(0);
        }
        self.0.push(key);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_range_of_keys() {
        let range = |prefix: &str| {
            key_range(prefix).map(|(low, high)| {
                let text = |bytes| uuid::Uuid::from_bytes(bytes).to_string();
                (text(low), text(high))
            })
        };
        let whole = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";
        assert_eq!(range(whole).unwrap(), (whole.into(), whole.into()));
        let (low, high) = range("01A22BB6-2").unwrap();
        assert_eq!(low, "01a22bb6-2000-0000-0000-000000000000");
        assert_eq!(high, "01a22bb6-2fff-ffff-ffff-ffffffffffff");
        assert!(range("").is_some());
        for none in ["x", "01a22bb62", "01a22bb6--", &format!("{whole}0")] {
            assert_eq!(range(none), None, "{none}");
        }
    }

    #[test]
    fn a_folder_is_found_by_its_text_and_by_its_place() {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().canonicalize().unwrap().join("real");
        let link = temp.path().join("link");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let folder = Folder::new(&text(&link));
        assert!(folder.is(&format!("{}/", text(&link)), None));
        assert!(folder.is(&text(&real), None));
        assert!(folder.is("/elsewhere", Some(&real)));
        assert!(!folder.is("/elsewhere", None));
        assert!(Folder::new("/gone/x").is("/gone//x/", None));
    }
}
