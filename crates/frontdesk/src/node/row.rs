//! One known session: what its records add up to, and what it is doing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use frontdesk_core::fold::{Origin, View};
use frontdesk_core::ids::Key;
use frontdesk_core::lease::Phase;
use frontdesk_core::session::Session;
use frontdesk_core::status::{Facts, Owner, State};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::agent::instance::Instance;
use crate::index::{Entry, Position, changed_micros, ordered};

/// One known session.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its key.
    pub key: Key,
    /// What its records add up to; its lane has the same.
    pub view: Arc<View>,
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
    /// Place in the order of lists, see [`ordered`].
    pub ordered: i64,
}

/// A session that an instance has or is about to have.
#[derive(Clone, Debug)]
pub struct Live {
    /// What it is doing; `None` while it is being started or closed.
    pub state: Option<State>,
    /// The instance; `None` while it is being started or closed.
    pub owner: Option<Arc<Owner>>,
    /// Where its lease is.
    pub lease: Phase,
}

impl Row {
    /// A row for a session that no instance has.
    #[must_use]
    pub fn cold(key: Key, view: View, path: PathBuf, bytes: u64) -> Self {
        let real_cwd = std::fs::canonicalize(&view.cwd).ok();
        let ordered = ordered(&view, Timestamp::now());
        let entry = Entry { key, view, path, real_cwd, ordered, bytes };
        Self::of(entry, Instant::now())
    }

    /// The row of a session as the index has it, which was true at `seen`.
    #[must_use]
    pub fn of(entry: Entry, seen: Instant) -> Self {
        let Entry { key, view, path, real_cwd, ordered, bytes } = entry;
        Self {
            key,
            view: Arc::new(view),
            path,
            real_cwd,
            live: None,
            clients: 0,
            queued: 0,
            seen,
            bytes,
            ordered,
        }
    }

    /// What the index keeps of it.
    #[must_use]
    pub fn entry(&self) -> Entry {
        Entry {
            key: self.key,
            view: View::clone(&self.view),
            path: self.path.clone(),
            real_cwd: self.real_cwd.clone(),
            ordered: self.ordered,
            bytes: self.bytes,
        }
    }

    /// Takes what the records add up to now, at this moment.
    pub(super) fn take_view(&mut self, view: Arc<View>) {
        self.ordered = ordered(&view, Timestamp::now());
        if self.view.cwd != view.cwd {
            self.real_cwd = std::fs::canonicalize(&view.cwd).ok();
        }
        self.view = view;
    }

    /// Where it stands in lists.
    #[must_use]
    pub fn position(&self) -> Position {
        Position { ordered: self.ordered, updated: changed_micros(&self.view), key: self.key }
    }

    /// Whether it is in lists.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.view.is_listed()
    }

    /// Whether somebody is asked something.
    #[must_use]
    pub fn wants_attention(&self) -> bool {
        self.is_loaded() && !self.view.open_interactions.is_empty()
    }

    /// The id ACP clients are told: the key of sessions made here, the native id of found ones.
    #[must_use]
    pub fn public_id(&self) -> String {
        match (&self.view.origin, &self.view.native) {
            (Origin::Adopted, Some(native)) => native.clone(),
            _ => self.key.to_string(),
        }
    }

    /// Whether an instance has it or is about to.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.live.is_some()
    }

    /// Whether an agent may have it, and nobody can tell.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.lease == Phase::Suspect)
    }

    /// Whether an instance is proven to have it: not while it is being started or closed.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.owner.is_some() && live.state.is_some())
    }

    /// The owner as it is told; the one of before where it has not changed.
    pub(super) fn owner(&self, instance: &Instance, session: &Session) -> Arc<Owner> {
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
            suspect: self.is_suspect(),
            loaded,
            recorded: !self.view.unproven,
            resumable: self.view.resumable,
            agent: Some(self.view.agent.clone()),
            age_ms,
            quiet_ms: self.quiet_ms(),
            ..Facts::default()
        }
    }

    /// How long a running turn has been without a sign of life, in milliseconds.
    fn quiet_ms(&self) -> Option<u64> {
        let runs = self.live.as_ref().is_some_and(|live| live.state == Some(State::Running));
        let heard = self.view.last_activity_at.filter(|_| runs)?;
        let quiet = Timestamp::now().duration_since(heard).as_millis();
        // A clock that was put back makes no one older.
        Some(u64::try_from(quiet).unwrap_or_default())
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
            "name": view.name,
            "archived": view.archived.then_some(true),
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
        if let Some(quiet) = self.quiet_ms() {
            row["quietMs"] = json!(quiet);
        }
        if self.is_suspect() {
            row["lease"] = json!(Phase::Suspect.word());
        }
        if let Some(owner) = owner {
            row["owner"] = json!(**owner);
        }
        if let Some(resumable) = view.resumable {
            row["resumable"] = json!(resumable);
        }
        if !view.aliases.is_empty() {
            row["aliases"] = json!(view.aliases);
        }
        if let Some(row) = row.as_object_mut() {
            row.retain(|_, value| !value.is_null());
        }
        row
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
