//! The agents' own lists: merged into ours, one row per conversation.
//!
//! Agents that lack a list, refuse it, answer `null` or lie are tolerated. What becomes of the rows is
//! in `adopting`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use frontdesk_core::agent::aliases::is_row_of;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Node;
use crate::agent::instance::Instance;
use crate::config::{AgentConfig, URLS_MAX};
use crate::conn::Conn;
use crate::lock::lock;

/// Sessions of one agent whose url is remembered.
const LISTED_MAX: usize = 1 << 18;

/// Urls, as bits in their order, by session; there are at most [`URLS_MAX`].
type Holders = HashMap<Box<str>, u64>;

/// When each agent's list was read last, and by whom it is being read.
#[derive(Debug, Default)]
pub struct Lists {
    read: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<Instant>>>>>,
    /// Of an agent behind several urls: which could not be asked the last time, and which of them has
    /// a session that not all of them have.
    urls: Mutex<HashMap<String, (Vec<String>, Holders)>>,
    taking_in: Mutex<()>,
}

impl Lists {
    /// Held from the question whether a session is known to the row that makes it known: an agent's list
    /// may have a session before the answer that made it is taken in, and both are one session.
    pub(super) fn taking_in(&self) -> MutexGuard<'_, ()> {
        lock(&self.taking_in)
    }

    /// Waits while lists are being read, for at most `limit`; starts nothing.
    pub async fn settle(&self, limit: Duration) {
        let slots: Vec<_> = lock(&self.read).values().cloned().collect();
        let until = tokio::time::Instant::now() + limit;
        for slot in slots {
            let _ = tokio::time::timeout_at(until, slot.lock()).await;
        }
    }

    fn note(&self, agent: &str, missing: Vec<String>, holders: Holders) {
        let mut urls = lock(&self.urls);
        let (was_missing, known) = urls.entry(agent.to_owned()).or_default();
        *was_missing = missing;
        if was_missing.is_empty() {
            *known = holders;
            return;
        }
        // Of those that could not be asked only what they said before is known.
        for (native, bits) in holders {
            if known.len() < LISTED_MAX || known.contains_key(&native) {
                *known.entry(native).or_default() |= bits;
            }
        }
    }

    /// The urls of an agent that could not be asked for their list the last time.
    #[must_use]
    pub fn missing(&self, agent: &str) -> Vec<String> {
        lock(&self.urls).get(agent).map(|(missing, _)| missing.clone()).unwrap_or_default()
    }

    /// Whether the url at this place, of an agent's, has a session in its list: `None` where that tells
    /// it from no other.
    #[must_use]
    pub fn is_at(&self, agent: &str, native: &str, at: usize) -> Option<bool> {
        let urls = lock(&self.urls);
        let bits = urls.get(agent)?.1.get(native)?;
        Some(at < URLS_MAX && bits & (1 << at) != 0)
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
                Ok(_) | Err(_) => match self.lists.missing(&name) {
                    missing if missing.is_empty() => unreachable.push(name),
                    missing => unreachable.extend(missing),
                },
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
        let (rows, answered) = if agent.urls.is_empty() {
            let Some(read) = self.read_list(agent, conn, start).await else { return !start };
            read
        } else {
            self.read_lists(agent).await
        };
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
        if answered {
            *last = Some(Instant::now());
        }
        answered
    }

    /// The rows of one instance's list, and whether it was had; `None` if no instance could be asked.
    async fn read_list(
        self: &Arc<Self>,
        agent: &Arc<AgentConfig>,
        conn: Option<&Arc<Conn>>,
        start: bool,
    ) -> Option<(Vec<Value>, bool)> {
        let (instance, is_new) = self.any_instance(agent, conn, start).await?;
        let read = self.rows_of(&instance).await;
        if is_new {
            match conn {
                Some(conn) => self.set_aside(instance, conn),
                None => self.retire(&instance),
            }
        }
        Some(read)
    }

    async fn rows_of(&self, instance: &Arc<Instance>) -> (Vec<Value>, bool) {
        let asked = instance.abilities().list;
        let pages = if asked { self.list_pages(instance, None).await } else { Vec::new() };
        let answered = !asked || pages.iter().any(|page| page.get("sessions").is_some());
        let rows = |page: Value| match page {
            Value::Object(mut page) => page.remove("sessions"),
            _ => None,
        };
        let rows = pages.into_iter().filter_map(rows).filter_map(|rows| match rows {
            Value::Array(rows) => Some(rows),
            _ => None,
        });
        (rows.flatten().collect(), answered)
    }

    /// The rows of the lists of all urls of an agent, read at once: each session once. What was had is
    /// used also where one of them could not be asked.
    async fn read_lists(self: &Arc<Self>, agent: &Arc<AgentConfig>) -> (Vec<Value>, bool) {
        let urls = self.urls_of(&agent.name);
        let until = tokio::time::Instant::now() + Duration::from_millis(self.limits.url_connect_ms);
        let reads = urls.iter().map(|url| {
            let (node, url) = (self.clone(), url.clone());
            url.want();
            tokio::spawn(async move {
                url.first_attempt(until).await;
                match url.instance() {
                    Some(instance) => node.rows_of(&instance).await,
                    None => (Vec::new(), false),
                }
            })
        });
        let reads: Vec<_> = reads.collect();
        let mut lists = Vec::new();
        let mut missing = Vec::new();
        for (url, read) in urls.iter().zip(reads) {
            let (rows, answered) = read.await.unwrap_or_default();
            if !answered {
                missing.push(url.shown());
            }
            lists.push(rows);
        }
        let (rows, holders) = merge(lists);
        let answered = missing.is_empty();
        self.lists.note(&agent.name, missing, holders);
        (rows, answered)
    }

    /// Some instance of an agent that can be asked: a running one, the client's spare one, or, if
    /// `start` says so, a new one.
    pub async fn any_instance(
        self: &Arc<Self>,
        agent: &Arc<AgentConfig>,
        conn: Option<&Arc<Conn>>,
        start: bool,
    ) -> Option<(Arc<Instance>, bool)> {
        if !agent.urls.is_empty() {
            let up = self.urls_of(&agent.name).iter().find_map(|url| url.instance());
            return match up {
                None if start => self.any_url(agent).await.ok().map(|instance| (instance, false)),
                up => up.map(|instance| (instance, false)),
            };
        }
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
            let has = |row: &Value| until.is_some_and(|until| is_row_of(row, until));
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

    /// The row of one session in an instance's list, by any of its ids.
    pub async fn listed_row(&self, instance: &Arc<Instance>, id: &str) -> Option<Value> {
        let pages = match instance.abilities().list {
            true => self.list_pages(instance, Some(id)).await,
            false => Vec::new(),
        };
        let rows = pages.iter().filter_map(|page| page.get("sessions")?.as_array()).flatten();
        rows.into_iter().find(|row| is_row_of(row, id)).cloned()
    }
}

/// Rows of several lists, each session once: the row that was changed last. And which of the lists
/// have a session that not all of them have.
fn merge(lists: Vec<Vec<Value>>) -> (Vec<Value>, Holders) {
    let all: u64 = (0..lists.len().min(URLS_MAX)).fold(0, |bits, at| bits | (1 << at));
    let mut rows: Vec<Value> = Vec::new();
    let mut found: HashMap<Box<str>, (usize, u64)> = HashMap::new();
    let changed =
        |row: &Value| row["updatedAt"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    for (at, list) in lists.into_iter().enumerate() {
        let bit = if at < URLS_MAX { 1 << at } else { 0 };
        for row in list {
            let Some(native) = row["sessionId"].as_str().map(Box::from) else { continue };
            match found.entry(native) {
                Entry::Vacant(entry) => {
                    entry.insert((rows.len(), bit));
                    rows.push(row);
                }
                Entry::Occupied(mut entry) => {
                    let (place, bits) = entry.get_mut();
                    *bits |= bit;
                    if changed(&row) > changed(&rows[*place]) {
                        rows[*place] = row;
                    }
                }
            }
        }
    }
    let some = found.into_iter().filter(|(_, (_, bits))| *bits != all).take(LISTED_MAX);
    (rows, some.map(|(native, (_, bits))| (native, bits)).collect())
}
