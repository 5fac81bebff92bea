//! Who has what: one row per known session, read without waiting for anybody.
//!
//! Status, list and every look-up of an id read here; lanes publish here. Nothing in this room can
//! start, load or attach anything, so "asking is free" holds by construction.
//!
//! Rows in memory are those of sessions that have a lane, and those the index does not have yet.
//! They stand before the rows of the index, where everything else is one look-up: a cold session
//! costs no memory. A row leaves memory only after the index has it, so that no look-up that asks
//! memory first and the index then can miss one.

mod pending;
mod same;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, RwLock};
use std::time::Instant;

use frontdesk_core::fold::{Origin, View};
use frontdesk_core::ids::Key;
use frontdesk_core::route::{Candidate, Meaning, meaning};
use frontdesk_core::session::Session;

use self::same::Standing;
pub use super::row::{Live, Row};
use super::standing::Bell;
use crate::agent::instance::Instance;
use crate::index::{Index, Known};
use crate::lock::{read, write};

/// All known sessions.
#[derive(Debug)]
pub struct Directory {
    tables: RwLock<Tables>,
    pub(super) index: Arc<Index>,
    /// Rings when a row has to be written to the index, and when one was.
    pub(super) bell: Arc<Bell>,
    since: Instant,
}

#[derive(Debug, Default)]
struct Tables {
    rows: HashMap<Key, Hot>,
    natives: HashMap<Arc<str>, Vec<Key>>,
    /// Sessions that are none any more, until the index knows it.
    gone: HashMap<Key, Gone>,
    /// Keys of rows and gone sessions that the index does not have as they are.
    dirty: HashSet<Key>,
}

/// A row in memory.
#[derive(Debug)]
struct Hot {
    row: Arc<Row>,
    /// Lanes that hold it.
    pins: u32,
    /// Native ids under which it is found.
    aliases: Vec<Arc<str>>,
    /// The agent for which the index counts it.
    counted: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
struct Gone {
    what: Change,
    counted: Option<Arc<str>>,
}

/// What the index has to be told.
#[derive(Clone, Debug)]
pub enum Change {
    /// A row as it is now.
    Put(Arc<Row>),
    /// A session was deleted; its tombstone stays.
    Deleted(Arc<Row>),
    /// It never was a session.
    Forgotten,
}

/// What a look-up by agent and native id found.
#[derive(Clone, Debug)]
pub enum Found {
    /// A known session.
    Known(Arc<Row>),
    /// A deleted one: it is not taken in again.
    Deleted,
}

/// What a probe's id is.
#[derive(Clone, Debug)]
pub enum Probed {
    /// The key of this session.
    Row(Arc<Row>),
    /// What [`Directory::look_up`] says of it.
    Means((Meaning, bool)),
}

impl Directory {
    /// A directory over an index.
    #[must_use]
    pub fn new(index: Arc<Index>) -> Self {
        Self { tables: RwLock::default(), index, bell: Arc::default(), since: Instant::now() }
    }

    /// Adds or replaces a row.
    pub fn insert(&self, row: Row) {
        let counted = self.counted(row.key);
        let mut tables = write(&self.tables);
        let deleted = row.view.deleted;
        if deleted {
            tables.bury(row, counted);
        } else {
            let entombed =
                matches!(tables.gone.get(&row.key), Some(Gone { what: Change::Deleted(_), .. }));
            // A late word does not bring a deleted session back.
            if entombed {
                return;
            }
            tables.insert(row, counted);
        }
        drop(tables);
        self.bell.ring();
    }

    /// The agent for which the index counts a session.
    fn counted(&self, key: Key) -> Option<Arc<str>> {
        let entry = self.index.get(key)?;
        entry.view.is_listed().then(|| entry.view.agent.as_str().into())
    }

    /// The row of a session.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<Arc<Row>> {
        {
            let tables = read(&self.tables);
            if let Some(hot) = tables.rows.get(&key) {
                return Some(hot.row.clone());
            }
            if tables.gone.contains_key(&key) {
                return None;
            }
        }
        let entry = self.index.get(key).filter(|entry| !entry.view.deleted)?;
        Some(Arc::new(Row::of(entry, self.since)))
    }

    /// The row of a session, which is kept in memory from now on until it is [let go](Self::unpin).
    #[must_use]
    pub fn pin(&self, key: Key) -> Option<Arc<Row>> {
        let row = self.get(key)?;
        let counted = self.counted(key);
        let mut tables = write(&self.tables);
        if tables.gone.contains_key(&key) {
            return None;
        }
        if !tables.rows.contains_key(&key) {
            let row = Arc::unwrap_or_clone(row);
            tables.insert(row, counted);
            tables.dirty.remove(&key);
        }
        let hot = tables.rows.get_mut(&key)?;
        hot.pins += 1;
        Some(hot.row.clone())
    }

    /// A lane that held a row has ended.
    pub fn unpin(&self, key: Key) {
        let mut tables = write(&self.tables);
        if let Some(hot) = tables.rows.get_mut(&key) {
            hot.pins = hot.pins.saturating_sub(1);
            // It leaves memory when the index has it for certain.
            tables.dirty.insert(key);
            drop(tables);
            self.bell.ring();
        }
    }

    /// How many sessions are known, of one agent or of all.
    #[must_use]
    pub fn count(&self, agent: Option<&str>) -> u64 {
        let is = |other: &str| agent.is_none_or(|agent| agent == other);
        let tables = read(&self.tables);
        let hot = tables.rows.values();
        let here = hot.filter(|hot| hot.row.is_listed() && is(&hot.row.view.agent)).count();
        let counted = tables.rows.values().map(|hot| &hot.counted);
        let counted = counted.chain(tables.gone.values().map(|gone| &gone.counted));
        let twice = counted.flatten().filter(|agent| is(agent)).count();
        drop(tables);
        (self.index.count(agent) + here as u64).saturating_sub(twice as u64)
    }

    /// What an id means on an endpoint (DESIGN section 4).
    #[must_use]
    pub fn resolve(&self, id: &str, bound: Option<&str>) -> Meaning {
        self.look_up(id, bound).0
    }

    /// What an id means on an endpoint, and, where it means nothing, whether that is because the
    /// session was deleted.
    #[must_use]
    pub fn look_up(&self, id: &str, bound: Option<&str>) -> (Meaning, bool) {
        let by_key = id.parse::<Key>().ok().and_then(|key| self.standing(key));
        let entombed = match by_key {
            Some(Standing::Own(key)) => return (meaning(Some(key), &[], bound), false),
            Some(Standing::Deleted) => true,
            None => false,
        };
        self.look_up_native(id, bound, entombed)
    }

    /// The same for a probe, which most often asks about a key: its row at once, and one look at the
    /// index for a key that nothing has.
    #[must_use]
    pub fn probe(&self, id: &str, bound: Option<&str>) -> Probed {
        let Ok(key) = id.parse::<Key>() else {
            return Probed::Means(self.look_up_native(id, bound, false));
        };
        let (hot, is_gone) = {
            let tables = read(&self.tables);
            (tables.rows.get(&key).map(|hot| hot.row.clone()), tables.gone.contains_key(&key))
        };
        let cold = || Some(Arc::new(Row::of(self.index.get(key)?, self.since)));
        match hot.or_else(|| if is_gone { None } else { cold() }) {
            Some(row) if !row.view.deleted && row.view.same_as.is_none() => Probed::Row(row),
            None if !is_gone => Probed::Means(self.look_up_native(id, bound, false)),
            // A deleted one, or one that turned out to be another.
            _ => Probed::Means(self.look_up(id, bound)),
        }
    }

    /// What an id means that is no key; `entombed` where it is that of a deleted session.
    fn look_up_native(&self, id: &str, bound: Option<&str>, entombed: bool) -> (Meaning, bool) {
        let known = own_first(self.natives(id), id);
        let candidates: Vec<Candidate<'_>> = known
            .iter()
            .filter(|(known, _)| !known.deleted)
            .map(|(known, row)| Candidate {
                key: known.key,
                agent: &known.agent,
                loaded: row.as_ref().is_some_and(|row| row.is_loaded()),
            })
            .collect();
        let deleted = candidates.is_empty() && (entombed || !known.is_empty());
        (meaning(None, &candidates, bound), deleted)
    }

    /// Sessions with a native id, deleted ones too, in the order of their keys; with their rows
    /// where these are in memory.
    fn natives(&self, native: &str) -> Vec<(Known, Option<Arc<Row>>)> {
        let mut known = read(&self.tables).named(native);
        let cold = self.index.natives(native);
        if !cold.is_empty() {
            let tables = read(&self.tables);
            for cold in cold {
                if known.iter().any(|(other, _)| other.key == cold.key)
                    || tables.gone.contains_key(&cold.key)
                {
                    continue;
                }
                let row = tables.rows.get(&cold.key).map(|hot| hot.row.clone());
                if row.as_ref().is_some_and(|row| row.view.same_as.is_some()) {
                    continue;
                }
                known.push((cold, row));
            }
        }
        known.sort_by_key(|(known, _)| known.key);
        known
    }

    /// The session of an agent with this native id, if there is one; deleted ones count.
    #[must_use]
    pub fn find_native(&self, agent: &str, native: &str) -> Option<Found> {
        let known = self.natives(native);
        let own: Vec<_> = known.iter().filter(|(known, _)| known.agent == agent).collect();
        if own.iter().any(|(known, _)| known.deleted) {
            return Some(Found::Deleted);
        }
        let (known, row) = own.first()?;
        row.clone().or_else(|| self.get(known.key)).map(Found::Known)
    }

    /// Rows of the same conversation as `key` that hold nothing: found in a list, never loaded.
    #[must_use]
    pub fn twins(&self, agent: &str, native: &str, key: Key) -> Vec<Arc<Row>> {
        let known = self.natives(native).into_iter();
        let others =
            known.filter(|(other, _)| other.key != key && other.agent == agent && !other.deleted);
        let rows = others.filter_map(|(other, row)| row.or_else(|| self.get(other.key)));
        rows.filter(|row| {
            row.view.origin == Origin::Adopted && row.view.items == 0 && row.live.is_none()
        })
        .collect()
    }

    /// Sessions that an instance has or is about to have, and that pass.
    #[must_use]
    pub fn loaded(&self, wanted: impl Fn(&Row) -> bool) -> Vec<Arc<Row>> {
        let tables = read(&self.tables);
        let rows = tables.rows.values().map(|hot| &hot.row);
        rows.filter(|row| row.is_loaded() && wanted(row)).cloned().collect()
    }

    /// A lane tells what its session is now. `live`: `None` cold, `Some(None)` on its way,
    /// `Some(Some(_))` at this instance.
    pub fn publish(
        &self,
        key: Key,
        session: &Session,
        live: Option<Option<&Arc<Instance>>>,
        bytes: u64,
    ) {
        let mut tables = write(&self.tables);
        let Some(hot) = tables.rows.get_mut(&key) else { return };
        let row = Arc::make_mut(&mut hot.row);
        let view = session.view();
        let native_is_new = row.view.native != view.native || row.view.aliases != view.aliases;
        let was_at_work = row.view.open_turn.is_some();
        let mut changed = row.bytes != bytes;
        if !Arc::ptr_eq(&row.view, view) {
            changed |= row.view.seq != view.seq;
            row.take_view(view.clone());
        }
        row.live = live.map(|instance| Live {
            state: session.state(),
            owner: instance.map(|i| row.owner(i, session)),
            lease: session.phase(),
        });
        row.clients = session.client_count();
        row.queued = session.queued_turns();
        row.seen = Instant::now();
        row.bytes = bytes;
        debug_assert!(session.phase().is_cold() == row.live.is_none());
        if native_is_new {
            let (row, counted) = ((*hot.row).clone(), hot.counted.clone());
            tables.insert(row, counted);
        }
        // A session at work waits to be written until its turn has ended.
        let rested = was_at_work && session.view().open_turn.is_none();
        if changed && (tables.dirty.insert(key) || rested) {
            drop(tables);
            self.bell.ring();
        }
    }

    /// A list told something newer about a session that no lane has.
    pub fn update_view(&self, key: Key, view: View, bytes: u64) {
        let Some(row) = self.get(key) else { return };
        let mut row = Arc::unwrap_or_clone(row);
        row.take_view(Arc::new(view));
        row.bytes = bytes;
        self.insert(row);
    }

    /// A session that turned out not to be one.
    pub fn forget(&self, key: Key) {
        let counted = self.counted(key);
        let mut tables = write(&self.tables);
        tables.remove(key);
        tables.gone.insert(key, Gone { what: Change::Forgotten, counted });
        tables.dirty.insert(key);
        drop(tables);
        self.bell.ring();
    }

    /// A session was deleted.
    pub fn entomb(&self, key: Key) {
        let Some(row) = self.get(key) else { return };
        let counted = self.counted(key);
        let mut tables = write(&self.tables);
        tables.bury(Arc::unwrap_or_clone(row), counted);
        drop(tables);
        self.bell.ring();
    }

    /// Whether the index does not have a session as it is.
    #[must_use]
    pub fn is_dirty(&self, key: Key) -> bool {
        read(&self.tables).dirty.contains(&key)
    }

    /// Whether a session is in memory: what is true of it is here, and not in its journal alone.
    #[must_use]
    pub fn is_hot(&self, key: Key) -> bool {
        let tables = read(&self.tables);
        tables.rows.contains_key(&key) || tables.gone.contains_key(&key)
    }
}

/// Where several that an id may mean are loaded, those whose first id it is: what an agent said of
/// another one's id takes nothing from its owner.
fn own_first(known: Vec<(Known, Option<Arc<Row>>)>, id: &str) -> Vec<(Known, Option<Arc<Row>>)> {
    let loaded = |row: &Option<Arc<Row>>| row.as_ref().is_some_and(|row| row.is_loaded());
    let own = |row: &Option<Arc<Row>>| {
        loaded(row) && row.as_ref().is_some_and(|row| row.view.native.as_deref() == Some(id))
    };
    let several = known.iter().filter(|(_, row)| loaded(row)).count() > 1;
    if several && known.iter().any(|(_, row)| own(row)) {
        return known.into_iter().filter(|(_, row)| own(row)).collect();
    }
    known
}

impl Tables {
    fn insert(&mut self, row: Row, counted: Option<Arc<str>>) {
        let key = row.key;
        self.gone.remove(&key);
        let mut aliases = self.rows.get(&key).map(|hot| hot.aliases.clone()).unwrap_or_default();
        self.find_under(key, &mut aliases, row.view.natives());
        let pins = self.rows.get(&key).map_or(0, |hot| hot.pins);
        self.rows.insert(key, Hot { row: Arc::new(row), pins, aliases, counted });
        self.dirty.insert(key);
    }

    /// A row is found under further native ids; `aliases` are those under which it is.
    fn find_under<'a>(
        &mut self,
        key: Key,
        aliases: &mut Vec<Arc<str>>,
        natives: impl IntoIterator<Item = &'a str>,
    ) {
        for native in natives {
            if aliases.iter().any(|alias| **alias == *native) {
                continue;
            }
            let native: Arc<str> = native.into();
            self.natives.entry(native.clone()).or_default().push(key);
            aliases.push(native);
        }
    }

    fn remove(&mut self, key: Key) {
        let Some(hot) = self.rows.remove(&key) else { return };
        self.dirty.remove(&key);
        for alias in hot.aliases {
            if let Some(keys) = self.natives.get_mut(&alias) {
                keys.retain(|other| *other != key);
                if keys.is_empty() {
                    self.natives.remove(&alias);
                }
            }
        }
    }

    fn bury(&mut self, mut row: Row, counted: Option<Arc<str>>) {
        let key = row.key;
        self.remove(key);
        Arc::make_mut(&mut row.view).entomb();
        self.gone.insert(key, Gone { what: Change::Deleted(Arc::new(row)), counted });
        self.dirty.insert(key);
    }

    /// Sessions in memory that are found under a native id, deleted ones too.
    fn named(&self, native: &str) -> Vec<(Known, Option<Arc<Row>>)> {
        let keys = self.natives.get(native).map(Vec::as_slice).unwrap_or_default();
        let rows = keys.iter().filter_map(|key| self.rows.get(key));
        let rows = rows.filter(|hot| hot.row.view.same_as.is_none());
        let mut known: Vec<_> = rows
            .map(|hot| {
                let agent = hot.row.view.agent.clone();
                (Known { key: hot.row.key, agent, deleted: false }, Some(hot.row.clone()))
            })
            .collect();
        for (key, gone) in &self.gone {
            if let Change::Deleted(row) = &gone.what
                && row.view.is_called(native)
            {
                let agent = row.view.agent.clone();
                known.push((Known { key: *key, agent, deleted: true }, None));
            }
        }
        known
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
pub(in crate::node) mod tests;
