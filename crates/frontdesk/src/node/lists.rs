//! The agents' own lists: merged into ours, one row per conversation.
//!
//! A session found in an agent's list gets a journal of one `adopted` record, in batches, never by
//! a status probe. Agents that lack a list, refuse it, answer `null` or lie are tolerated.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use frontdesk_core::fold::{Origin, View};
use frontdesk_core::ids::{Key, SESSION_ID_BYTES_MAX, uuid_v7_millis};
use frontdesk_core::record::{Kind, RECORD_VERSION, Record};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::Node;
use super::directory::{Found, Row};
use crate::agent::instance::Instance;
use crate::config::AgentConfig;
use crate::conn::Conn;
use crate::lock::lock;
use crate::log::LogError;

/// An agent's list may be as much behind what the agent told us and still be of the same moment.
const LISTED_LATE: SignedDuration = SignedDuration::from_secs(2);

/// When each agent's list was read last, and by whom it is being read.
#[derive(Debug, Default)]
pub struct Lists {
    read: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<Instant>>>>>,
}

impl Lists {
    /// Waits while lists are being read, for at most `limit`; starts nothing.
    pub async fn settle(&self, limit: Duration) {
        let slots: Vec<_> = lock(&self.read).values().cloned().collect();
        let until = tokio::time::Instant::now() + limit;
        for slot in slots {
            let _ = tokio::time::timeout_at(until, slot.lock()).await;
        }
    }

    /// Whether an agent's list was read in this daemon's life.
    #[must_use]
    pub fn was_read(&self, agent: &str) -> bool {
        let slot = lock(&self.read).get(agent).cloned();
        slot.is_some_and(|slot| slot.try_lock().is_ok_and(|last| last.is_some()))
    }
}

impl Node {
    /// Agents that have a list which nobody has read since this daemon began: an id that is
    /// unknown here may be theirs.
    #[must_use]
    pub fn unread_lists(&self) -> Vec<String> {
        let has_list = |agent: &AgentConfig| self.greeted(agent).is_some_and(|g| g.abilities.list);
        let unread = self.agents.values().filter(|a| has_list(a) && !self.lists.was_read(&a.name));
        unread.map(|agent| agent.name.clone()).collect()
    }

    /// Takes the sessions of these agents' own lists in; names the agents that could not be asked.
    ///
    /// An agent that does not run is started only if `start` says so. Waits at most
    /// `list_wait_ms`; a slow list goes on being read and is there the next time.
    pub async fn refresh_lists(
        self: &Arc<Self>,
        agents: Vec<Arc<AgentConfig>>,
        conn: Option<Arc<Conn>>,
        start: bool,
    ) -> Vec<String> {
        let limit = Duration::from_millis(self.limits.list_wait_ms);
        let mut reads = Vec::new();
        for agent in agents {
            let node = self.clone();
            let conn = conn.clone();
            let name = agent.name.clone();
            let read =
                tokio::spawn(async move { node.refresh_list(&agent, conn.as_ref(), start).await });
            reads.push((name, read));
        }
        let until = tokio::time::Instant::now() + limit;
        let mut unreachable = Vec::new();
        for (name, read) in reads {
            match tokio::time::timeout_at(until, read).await {
                Ok(Ok(true)) => {}
                Ok(_) | Err(_) => unreachable.push(name),
            }
        }
        unreachable
    }

    /// Reads one agent's list; one reader at a time, and not again while it is fresh.
    async fn refresh_list(
        self: &Arc<Self>,
        agent: &Arc<AgentConfig>,
        conn: Option<&Arc<Conn>>,
        start: bool,
    ) -> bool {
        let slot = lock(&self.lists.read).entry(agent.name.clone()).or_default().clone();
        let mut last = slot.lock().await;
        let fresh = Duration::from_millis(self.limits.list_fresh_ms);
        if last.is_some_and(|at| at.elapsed() < fresh) {
            return true;
        }
        if self.greeted(agent).is_some_and(|greeted| !greeted.abilities.list) {
            return true;
        }
        let Some((instance, is_new)) = self.any_instance(agent, conn, start).await else {
            return !start;
        };
        let asked = instance.abilities().list;
        let pages = if asked { self.list_pages(&instance, None).await } else { Vec::new() };
        if is_new {
            match conn {
                Some(conn) => self.set_aside(instance, conn),
                None => self.retire(&instance),
            }
        }
        let rows: Vec<Value> = pages
            .iter()
            .filter_map(|page| page.get("sessions")?.as_array())
            .flatten()
            .cloned()
            .collect();
        // What is not in the index yet must not be taken in a second time.
        if !self.index_in_step().await {
            return false;
        }
        let node = self.clone();
        let name = agent.name.clone();
        let adopted = tokio::task::spawn_blocking(move || node.adopt_all(&name, &rows)).await;
        if let Ok(Err(error)) = adopted {
            tracing::error!(agent = %agent.name, %error, "failed to take an agent's sessions in");
            return false;
        }
        let answered = !asked || pages.iter().any(|page| page.get("sessions").is_some());
        if answered {
            *last = Some(Instant::now());
        }
        answered
    }

    /// Some instance of an agent that can be asked: a running one, the client's spare one, or, if
    /// `start` says so, a new one.
    pub async fn any_instance(
        self: &Arc<Self>,
        agent: &Arc<AgentConfig>,
        conn: Option<&Arc<Conn>>,
        start: bool,
    ) -> Option<(Arc<Instance>, bool)> {
        let spare = conn.and_then(|conn| conn.spare());
        let running = self.running_instances();
        let usable = |instance: &Arc<Instance>| {
            instance.agent.name == agent.name
                && instance.initialized().is_some()
                && instance.has_ended().is_none()
        };
        if let Some(found) = spare.into_iter().chain(running).find(usable) {
            return Some((found, false));
        }
        if !start {
            return None;
        }
        let greeting = conn
            .and_then(|conn| conn.greeting())
            .map_or_else(|| super::instances::NO_CLIENT.into(), |greeting| greeting.params.clone());
        let cwd = conn.and_then(|conn| conn.cwd.clone()).unwrap_or_default();
        match self.start_instance(agent, &greeting, &cwd).await {
            Ok(instance) => Some((instance, true)),
            Err(error) => {
                tracing::warn!(agent = %agent.name, error = %error.message, "an agent could not be asked");
                None
            }
        }
    }

    /// The results of `session/list`, page by page, at most `list_pages`; stops early at a page
    /// that has `until`.
    pub(super) async fn list_pages(
        &self,
        instance: &Arc<Instance>,
        until: Option<&str>,
    ) -> Vec<Value> {
        let mut pages: Vec<Value> = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..self.limits.list_pages {
            let params =
                cursor.as_ref().map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
            let answer =
                instance.call("session/list", &params.to_string(), self.limits.list_wait_ms).await;
            let page: Value = match &answer {
                Ok(frame) => frame
                    .result()
                    .and_then(|text| serde_json::from_str(text).ok())
                    .unwrap_or_default(),
                Err(_) => Value::Null,
            };
            let next = page.get("nextCursor").and_then(Value::as_str).map(ToOwned::to_owned);
            let has = |row: &Value| {
                row.get("sessionId").and_then(Value::as_str) == until && until.is_some()
            };
            let found = page
                .get("sessions")
                .and_then(Value::as_array)
                .is_some_and(|rows| rows.iter().any(has));
            pages.push(page);
            // A cursor that repeats would never end.
            if found || next.is_none() || next == cursor {
                break;
            }
            cursor = next;
        }
        pages
    }

    /// Takes rows of an agent's list in. Blocking.
    ///
    /// # Errors
    /// If a journal cannot be written.
    pub fn adopt_all(&self, agent: &str, rows: &[Value]) -> Result<(), LogError> {
        for row in rows {
            self.directory.wait_for_room(self.limits.index_rows as usize);
            let Some(native) = row.get("sessionId").and_then(Value::as_str) else { continue };
            if native.is_empty() || native.len() > SESSION_ID_BYTES_MAX {
                continue;
            }
            if self.is_being_born(agent, native) {
                continue;
            }
            match self.directory.find_native(agent, native) {
                Some(Found::Deleted) => {}
                Some(Found::Known(known)) => self.refresh_row(&known, row)?,
                None => self.adopt(agent, native, row)?,
            }
        }
        Ok(())
    }

    /// Whether an instance has just told this id in an answer that is still being taken in.
    fn is_being_born(&self, agent: &str, native: &str) -> bool {
        let running = self.running_instances();
        running.iter().any(|i| i.agent.name == agent && i.has_route(native))
            && self.directory.find_native(agent, native).is_none()
    }

    /// A session that was just made was taken in from a list a moment before: that row goes.
    pub fn absorb_twin(&self, agent: &str, native: &str, key: Key) {
        for twin in self.directory.twins(agent, native, key) {
            if self.running_lane(twin.key).is_some() {
                continue;
            }
            self.directory.forget(twin.key);
            let folder = twin.path.parent().map(std::path::Path::to_path_buf);
            if let Some(Err(error)) = folder.map(std::fs::remove_dir_all) {
                tracing::warn!(path = %twin.path.display(), %error, "failed to remove a journal");
            }
        }
    }

    fn adopt(&self, agent: &str, native: &str, row: &Value) -> Result<(), LogError> {
        let now = Timestamp::now();
        let text = |name: &str| row.get(name).and_then(Value::as_str);
        let (created, from) = began(native, text("updatedAt"), now);
        let data = json!({
            "agent": agent,
            "nativeId": native,
            "cwd": text("cwd").unwrap_or_default(),
            "additionalDirectories": row.get("additionalDirectories").filter(|dirs| dirs.is_array()).cloned().unwrap_or_else(|| json!([])),
            "title": text("title"),
            "updatedAt": text("updatedAt"),
            "createdAt": created,
            "createdAtFrom": from,
            "unproven": row.get("_unproven").is_some(),
        });
        let key = self.take_in(now, &data)?;
        self.feed.publish(key, self.directory.get(key), false);
        Ok(())
    }

    /// Begins the journal and the row of a session that an agent told of, with `data` of an `adopted`
    /// record. Blocking.
    pub(super) fn take_in(&self, now: Timestamp, data: &Value) -> Result<Key, LogError> {
        let key = self.fresh_key();
        let record = adopted_record(1, Kind::Adopted, now, data);
        let mut journal = self.log.create(key, now)?;
        // Adoptions can be made again: nobody waits for their sync.
        let _unsynced = journal.append(std::slice::from_ref(&record))?;
        let mut view = View::default();
        view.apply(&record);
        self.directory.insert(Row::cold(key, view, journal.path().to_path_buf(), journal.bytes()));
        Ok(key)
    }

    /// A known session: a later `updatedAt` or another title is kept, if no lane writes there now.
    fn refresh_row(&self, known: &Arc<Row>, row: &Value) -> Result<(), LogError> {
        let text = |name: &str| row.get(name).and_then(Value::as_str);
        let listed: Option<Timestamp> = text("updatedAt").and_then(|at| at.parse().ok());
        // A list that is behind what we have seen does not know the title of now.
        let stale = match (listed, known.view.updated_at) {
            (Some(listed), Some(ours)) => ours.duration_since(listed) > LISTED_LATE,
            _ => false,
        };
        let title = text("title").filter(|_| !stale);
        let title = title.filter(|title| known.view.title.as_deref() != Some(*title));
        let newer = listed > known.view.listed_at;
        let own = known.view.origin == Origin::Created;
        let is_news = known.view.updated_at < listed;
        if !((newer && (is_news || !own)) || title.is_some())
            || self.running_lane(known.key).is_some()
        {
            return Ok(());
        }
        let data = json!({ "updatedAt": text("updatedAt"), "title": title });
        let mut journal = match self.log.open_journal(&known.path) {
            Ok(journal) => journal,
            // A lane has it by now.
            Err(LogError::InUse { .. }) => return Ok(()),
            // The rest of the list is taken in all the same.
            Err(error) => {
                tracing::warn!(session = %known.key, %error, "failed to open a journal for what a list told");
                return Ok(());
            }
        };
        let record =
            adopted_record(journal.last_seq() + 1, Kind::Metadata, Timestamp::now(), &data);
        // Adoptions can be made again: nobody waits for their sync.
        let _unsynced = journal.append(std::slice::from_ref(&record))?;
        let mut view = known.view.clone();
        view.apply(&record);
        self.directory.update_view(known.key, view, journal.bytes());
        Ok(())
    }
}

/// When a session that an agent told of began, and by whose word: the instant in its id, else the
/// earliest one that the agent gave, else now.
pub(super) fn began(
    native: &str,
    listed: Option<&str>,
    now: Timestamp,
) -> (Timestamp, &'static str) {
    let minted = native.parse::<uuid::Uuid>().ok().and_then(uuid_v7_millis);
    let minted = minted.and_then(|ms| Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok());
    match (minted, listed.and_then(|at| at.parse().ok())) {
        (Some(at), _) => (at, "id"),
        (None, Some(at)) => (at, "list"),
        (None, None) => (now, "adoption"),
    }
}

fn adopted_record(seq: u64, kind: Kind, at: Timestamp, data: &Value) -> Record {
    let data = bytes::Bytes::from(data.to_string());
    Record { v: RECORD_VERSION, seq, epoch: 0, at, kind, src: None, data }
}
