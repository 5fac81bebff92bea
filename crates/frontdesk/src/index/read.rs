//! Rows of the index as they are read.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use frontdesk_core::ids::Key;
use rusqlite::{Connection, Row, ToSql, params_from_iter};

use super::entry::{Entry, folder_text};
use super::{IndexError, Known, Standing};
use crate::log::JOURNAL_NAME;

/// The columns of which an [`Entry`] is made, in its order.
pub(super) const COLUMNS: &str = "key, view, day, real, ordered, bytes";

/// A key as a column has it.
pub(super) fn key_bytes(key: Key) -> Vec<u8> {
    key.uuid().as_bytes().to_vec()
}

pub(super) fn key_of(bytes: &[u8]) -> Result<Key, IndexError> {
    let uuid = uuid::Uuid::from_slice(bytes).map_err(|_| IndexError::Damaged("a key"))?;
    Ok(Key::new(uuid))
}

/// The journal of a session.
pub(super) fn path_of(sessions: &Path, day: &str, key: Key) -> PathBuf {
    sessions.join(day).join(key.to_string()).join(JOURNAL_NAME)
}

/// The date folders of a journal, below the sessions folder.
pub(super) fn day_of(sessions: &Path, path: &Path) -> String {
    let day = path.strip_prefix(sessions).ok().and_then(|inside| inside.parent()?.parent());
    day.and_then(Path::to_str).unwrap_or_default().to_owned()
}

/// Makes an entry of a row with [`COLUMNS`].
pub(super) fn entry(row: &Row<'_>, sessions: &Path) -> Result<Entry, IndexError> {
    let key = key_of(row.get_ref(0)?.as_blob().map_err(|_| IndexError::Damaged("a key"))?)?;
    let text = row.get_ref(1)?.as_str().map_err(|_| IndexError::Damaged("a view"))?;
    let view: frontdesk_core::fold::View =
        serde_json::from_str(text).map_err(|_| IndexError::Damaged("a view"))?;
    let day = row.get_ref(2)?.as_str().map_err(|_| IndexError::Damaged("a path"))?;
    let real: Option<String> = row.get(3)?;
    let real = real.or_else(|| view.cwd.starts_with('/').then(|| folder_text(&view.cwd)));
    Ok(Entry {
        key,
        path: path_of(sessions, day, key),
        real_cwd: real.map(PathBuf::from),
        ordered: row.get(4)?,
        bytes: u64::try_from(row.get::<_, i64>(5)?).unwrap_or_default(),
        view,
    })
}

/// The entries that a statement finds.
pub(super) fn rows(
    conn: &Connection,
    sessions: &Path,
    sql: &str,
    values: &[Box<dyn ToSql>],
) -> Result<Vec<Entry>, IndexError> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push(entry(row, sessions)?);
    }
    Ok(entries)
}

/// The entry of a key, deleted ones too.
pub(super) fn get(
    conn: &Connection,
    sessions: &Path,
    key: Key,
) -> Result<Option<Entry>, IndexError> {
    // Every probe asks this: its text is not put together each time.
    static GET: LazyLock<String> =
        LazyLock::new(|| format!("SELECT {COLUMNS} FROM session WHERE key = ?"));
    let mut statement = conn.prepare_cached(&GET)?;
    let mut rows = statement.query([key_bytes(key)])?;
    rows.next()?.map(|row| entry(row, sessions)).transpose()
}

/// What the session of a key is; `None` if it is not known.
pub(super) fn standing(conn: &Connection, key: Key) -> Result<Option<Standing>, IndexError> {
    let mut statement = conn.prepare_cached("SELECT deleted, same FROM session WHERE key = ?")?;
    let mut rows = statement.query([key_bytes(key)])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    if row.get(0)? {
        return Ok(Some(Standing::Deleted));
    }
    let same: Option<Vec<u8>> = row.get(1)?;
    Ok(Some(match same {
        Some(same) => Standing::SameAs(key_of(&same)?),
        None => Standing::Own,
    }))
}

/// Sessions with a native id, their first one or an alias, deleted ones too, in the order of their
/// keys. Those that turned out to be another one are left out: that one has their ids.
pub(super) fn natives(conn: &Connection, native: &str) -> Result<Vec<Known>, IndexError> {
    // Every probe of an unknown id asks this: the few that are found are put in order here, and not in a
    // table that is made for each question.
    let sql = "SELECT key, agent, deleted FROM session WHERE native = ?1 AND same IS NULL
        UNION ALL SELECT key, agent, deleted FROM alias JOIN session ON session.id = alias.session
        WHERE alias.id = ?1 AND same IS NULL";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([native])?;
    let mut known = Vec::new();
    while let Some(row) = rows.next()? {
        let key = key_of(row.get_ref(0)?.as_blob().map_err(|_| IndexError::Damaged("a key"))?)?;
        known.push(Known { key, agent: row.get(1)?, deleted: row.get(2)? });
    }
    known.sort_unstable_by_key(|known| known.key);
    known.dedup_by_key(|known| known.key);
    Ok(known)
}

/// Sessions that are listed, of one agent or of all.
pub(super) fn count(conn: &Connection, agent: Option<&str>) -> Result<u64, IndexError> {
    let count: i64 = match agent {
        Some(agent) => conn
            .prepare_cached("SELECT coalesce(sum(sessions), 0) FROM tally WHERE agent = ?")?
            .query_row([agent], |row| row.get(0))?,
        None => conn
            .prepare_cached("SELECT coalesce(sum(sessions), 0) FROM tally")?
            .query_row((), |row| row.get(0))?,
    };
    Ok(u64::try_from(count).unwrap_or_default())
}

/// A number among the index's own facts.
pub(super) fn meta(conn: &Connection, name: &str) -> Result<Option<i64>, IndexError> {
    let mut statement = conn.prepare_cached("SELECT value FROM meta WHERE name = ?")?;
    let mut rows = statement.query([name])?;
    Ok(rows.next()?.map(|row| row.get(0)).transpose()?)
}
