//! Who has what: one row per known session, read without waiting.
//!
//! Status, list and every look-up of an id read here; lanes publish here. Nothing in this room can
//! start, load or attach anything, so "asking is free" holds by construction.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::Instant;

use frontdesk_core::fold::{Origin, View};
use frontdesk_core::ids::Key;
use frontdesk_core::route::{Candidate, Meaning, meaning};
use frontdesk_core::session::{Phase, Session};
use frontdesk_core::status::{Facts, Owner, State};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::agent::instance::Instance;
use crate::lock::{read, write};

/// One known session.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its key.
    pub key: Key,
    /// What its records add up to.
    pub view: View,
    /// Its journal.
    pub path: PathBuf,
    /// The working directory without links, where it exists here.
    pub real_cwd: Option<PathBuf>,
    /// Loaded, or on its way.
    pub live: Option<Live>,
    /// Clients taking part.
    pub clients: usize,
    /// Prompts that wait.
    pub queued: usize,
    /// When this row was last true for sure.
    pub seen: Instant,
    /// Bytes of its journal.
    pub bytes: u64,
}

/// A session that an instance has or is about to have.
#[derive(Clone, Debug)]
pub struct Live {
    /// What it is doing; `None` while it is being started or closed.
    pub state: Option<State>,
    /// The instance; `None` while it is being started or closed.
    pub owner: Option<Arc<Owner>>,
}

/// All known sessions.
#[derive(Debug, Default)]
pub struct Directory {
    tables: RwLock<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    rows: HashMap<Key, Arc<Row>>,
    natives: HashMap<Arc<str>, Vec<Key>>,
    /// Deleted ones: (agent, native id) that no list brings back.
    tombs: HashMap<(String, String), Key>,
}

impl Row {
    /// A row for a session that no instance has.
    #[must_use]
    pub fn cold(key: Key, view: View, path: PathBuf, bytes: u64) -> Self {
        let real_cwd = std::fs::canonicalize(&view.cwd).ok();
        Self::cold_in(key, view, path, bytes, real_cwd)
    }

    /// As [`Row::cold`], where the working directory without links is known.
    #[must_use]
    pub fn cold_in(
        key: Key,
        view: View,
        path: PathBuf,
        bytes: u64,
        real_cwd: Option<PathBuf>,
    ) -> Self {
        Self {
            key,
            view,
            path,
            real_cwd,
            live: None,
            clients: 0,
            queued: 0,
            seen: Instant::now(),
            bytes,
        }
    }

    /// The id ACP clients are told: the key of sessions made here, the native id of found ones.
    #[must_use]
    pub fn public_id(&self) -> String {
        match (&self.view.origin, &self.view.native) {
            (Origin::Adopted, Some(native)) => native.clone(),
            _ => self.key.to_string(),
        }
    }

    /// When it last changed, for ordering.
    #[must_use]
    pub fn changed_at(&self) -> Timestamp {
        self.view.updated_at.or(self.view.created_at).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Whether an instance has it or is about to.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.live.is_some()
    }

    /// Whether an instance is proven to have it: not while it is being started or closed.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.owner.is_some() && live.state.is_some())
    }

    /// The owner as it is told; the one of before where it has not changed.
    fn owner(&self, instance: &Instance, session: &Session) -> Arc<Owner> {
        let epoch = session.view().epoch;
        let before = self.live.as_ref().and_then(|live| live.owner.as_ref());
        match before.filter(|owner| owner.epoch == epoch && *owner.instance == *instance.id.0) {
            Some(owner) => owner.clone(),
            None => Arc::new(Owner {
                agent: instance.agent.name.clone(),
                instance: instance.id.to_string(),
                pid: instance.pid,
                since: instance.since.to_string(),
                epoch,
            }),
        }
    }

    /// What is known for a probe.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let loaded = self.live.as_ref().and_then(|live| Some((live.state, live.owner.clone()?)));
        let age_ms = if self.is_loaded() { 0 } else { millis(self.seen.elapsed()) };
        Facts {
            moving: self.live.is_some() && loaded.is_none(),
            loaded,
            recorded: !self.view.unproven,
            resumable: self.view.resumable,
            agent: Some(self.view.agent.clone()),
            age_ms,
            ..Facts::default()
        }
    }

    /// The row as `_frontdesk/sessions` shows it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let view = &self.view;
        let owner = self.live.as_ref().and_then(|live| live.owner.as_ref());
        let mut row = json!({
            "id": self.public_id(),
            "key": self.key,
            "agent": view.agent,
            "nativeId": view.native,
            "cwd": view.cwd,
            "title": frontdesk_core::names::shown(view),
            "status": if self.is_loaded() { "active" } else { "inactive" },
            "source": if self.is_loaded() { "owner" } else { "index" },
            "ageMs": if self.is_loaded() { 0 } else { millis(self.seen.elapsed()) },
            "createdAt": view.created_at,
            "updatedAt": view.updated_at,
            "lastActivityAt": view.last_activity_at,
            "turnCount": view.turn_count,
            "queuedTurns": self.queued,
            "clients": self.clients,
            "path": self.path,
            "bytes": self.bytes,
        });
        if let Some(state) = self.live.as_ref().and_then(|live| live.state) {
            row["state"] = json!(state);
        }
        if let Some(owner) = owner {
            row["owner"] = json!(**owner);
        }
        if let Some(resumable) = view.resumable {
            row["resumable"] = json!(resumable);
        }
        if let Some(row) = row.as_object_mut() {
            row.retain(|_, value| !value.is_null());
        }
        row
    }
}

impl Directory {
    /// Adds or replaces a row.
    pub fn insert(&self, row: Row) {
        let mut tables = write(&self.tables);
        if row.view.deleted {
            tables.bury(&row);
            return;
        }
        tables.insert(row);
    }

    /// The row of a session.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<Arc<Row>> {
        read(&self.tables).rows.get(&key).cloned()
    }

    /// How many sessions are known.
    #[must_use]
    pub fn len(&self) -> usize {
        read(&self.tables).rows.len()
    }

    /// Whether no session is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What an id means on an endpoint (DESIGN section 4).
    #[must_use]
    pub fn resolve(&self, id: &str, bound: Option<&str>) -> Meaning {
        let tables = read(&self.tables);
        let by_key = id.parse::<Key>().ok().filter(|key| tables.rows.contains_key(key));
        let natives = tables.natives.get(id).map(Vec::as_slice).unwrap_or_default();
        let rows: Vec<&Arc<Row>> = natives.iter().filter_map(|key| tables.rows.get(key)).collect();
        let candidates: Vec<Candidate<'_>> = rows
            .iter()
            .map(|row| Candidate { key: row.key, agent: &row.view.agent, loaded: row.is_loaded() })
            .collect();
        meaning(by_key, &candidates, bound)
    }

    /// The session of an agent with this native id, if there is exactly one; deleted ones count.
    #[must_use]
    pub fn find_native(&self, agent: &str, native: &str) -> Option<Found> {
        let tables = read(&self.tables);
        if tables.tombs.contains_key(&(agent.to_owned(), native.to_owned())) {
            return Some(Found::Deleted);
        }
        let keys = tables.natives.get(native)?;
        let mut rows = keys
            .iter()
            .filter_map(|key| tables.rows.get(key))
            .filter(|row| row.view.agent == agent);
        rows.next().map(|row| Found::Known(row.clone()))
    }

    /// Rows of the same conversation as `key` that hold nothing: found in a list, never loaded.
    #[must_use]
    pub fn twins(&self, agent: &str, native: &str, key: Key) -> Vec<Arc<Row>> {
        let tables = read(&self.tables);
        let keys = tables.natives.get(native).map(Vec::as_slice).unwrap_or_default();
        let rows =
            keys.iter().filter(|other| **other != key).filter_map(|key| tables.rows.get(key));
        rows.filter(|row| {
            row.view.agent == agent
                && row.view.origin == Origin::Adopted
                && row.view.items == 0
                && row.live.is_none()
        })
        .cloned()
        .collect()
    }

    /// Whether an id is the native id of a deleted session and of no other.
    #[must_use]
    pub fn is_deleted(&self, native: &str) -> bool {
        let tables = read(&self.tables);
        let known = tables.natives.get(native).is_some_and(|keys| !keys.is_empty());
        !known && tables.tombs.keys().any(|(_, tomb)| tomb == native)
    }

    /// All rows that pass, newest change first.
    #[must_use]
    pub fn select(&self, wanted: impl Fn(&Row) -> bool) -> Vec<Arc<Row>> {
        let mut rows: Vec<_> = read(&self.tables)
            .rows
            .values()
            .filter(|row| !row.view.unproven && wanted(row))
            .cloned()
            .collect();
        rows.sort_by(|left, right| {
            (right.changed_at(), right.key).cmp(&(left.changed_at(), left.key))
        });
        rows
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
        let Some(row) = tables.rows.get_mut(&key) else { return };
        let row = Arc::make_mut(row);
        let native_is_new = row.view.native != session.view().native;
        if row.view.seq != session.view().seq {
            row.view = session.view().clone();
        }
        row.live = live.map(|instance| Live {
            state: session.state(),
            owner: instance.map(|i| row.owner(i, session)),
        });
        row.clients = session.client_count();
        row.queued = session.queued_turns();
        row.seen = Instant::now();
        row.bytes = bytes;
        debug_assert!(matches!(session.phase(), Phase::Cold) == row.live.is_none());
        if native_is_new {
            let row = row.clone();
            tables.insert(row);
        }
    }

    /// A list told something newer about a session that no lane has.
    pub fn update_view(&self, key: Key, view: View) {
        let mut tables = write(&self.tables);
        if let Some(row) = tables.rows.get_mut(&key) {
            Arc::make_mut(row).view = view;
        }
    }

    /// A session that turned out not to be one.
    pub fn forget(&self, key: Key) {
        let mut tables = write(&self.tables);
        if let Some(row) = tables.rows.remove(&key)
            && let Some(native) = &row.view.native
            && let Some(keys) = tables.natives.get_mut(native.as_str())
        {
            keys.retain(|other| *other != key);
        }
    }

    /// A session was deleted.
    pub fn entomb(&self, key: Key) {
        let mut tables = write(&self.tables);
        if let Some(row) = tables.rows.remove(&key) {
            tables.bury(&row);
        }
    }
}

/// What a look-up by agent and native id found.
#[derive(Clone, Debug)]
pub enum Found {
    /// A known session.
    Known(Arc<Row>),
    /// A deleted one: it is not taken in again.
    Deleted,
}

impl Tables {
    fn insert(&mut self, row: Row) {
        if let Some(native) = &row.view.native {
            let keys = self.natives.entry(native.as_str().into()).or_default();
            if !keys.contains(&row.key) {
                keys.push(row.key);
            }
        }
        self.rows.insert(row.key, Arc::new(row));
    }

    fn bury(&mut self, row: &Row) {
        if let Some(native) = &row.view.native {
            self.tombs.insert((row.view.agent.clone(), native.clone()), row.key);
            if let Some(keys) = self.natives.get_mut(native.as_str()) {
                keys.retain(|key| *key != row.key);
            }
        }
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
