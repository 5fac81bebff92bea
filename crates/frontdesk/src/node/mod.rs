//! One daemon: its sessions, instances and clients; gathers facts, carries out decisions.
//!
//! Rooms: [`birth`] new sessions; [`carry`] what an earlier daemon left running; [`children`] subagents;
//! [`directory`] who has what; [`page`] pages of it; [`feed`] what changes; [`keeper`] the index's
//! thread; [`ending`] how it ends; [`instances`] agents that run; [`urls`] those reached by address; [`probes`] questions to
//! them; [`lists`] the agents' own lists; `open` calling a session back; [`recover`] what an earlier
//! daemon left; [`sweep`] what is left of instances nobody has.

mod adopting;
mod aliases;
pub mod birth;
pub mod carry;
pub mod change;
pub mod children;
pub mod claims;
pub mod directory;
pub mod elsewhere;
pub mod ending;
pub mod feed;
mod greeted;
pub mod instances;
pub mod keeper;
mod learned;
mod listed;
pub mod lists;
mod open;
pub mod page;
pub mod probes;
pub mod recover;
mod row;
pub mod standing;
pub mod sweep;
pub mod urls;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::fold::Common;
use frontdesk_core::ids::{ConnId, InstanceId, Key};
use frontdesk_core::limits::Limits;
use frontdesk_core::session::{Input, Now, Session};
use frontdesk_core::status::Words;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::agent::instance::Instance;
use crate::config::{AgentConfig, Config};
use crate::conn::Conn;
use crate::index::{Cursors, Index};
use crate::lock::lock;
use crate::log::Log;
use crate::paths::Paths;
use crate::session::{LaneHandle, LaneMsg, Mailbox, Start};
use crate::workspace::Workspaces;
use directory::Directory;
use ending::Stopping;
use feed::Feed;
pub use greeted::Greeted;
use keeper::Keeper;
use lists::Lists;
pub use open::OpenRequest;
use probes::Probes;
use standing::Standings;
use urls::Url;

/// The running daemon.
#[derive(Debug)]
pub struct Node {
    /// Its folders.
    pub paths: Paths,
    /// This program, for holders and the built-in agent.
    pub exe: PathBuf,
    /// The configuration in force.
    pub config: Config,
    /// The configuration's agents, by name.
    pub agents: BTreeMap<String, Arc<AgentConfig>>,
    /// The limits in force.
    pub limits: Arc<Limits>,
    /// The journals.
    pub log: Arc<Log>,
    /// The folder of claim files, one for this user and machine.
    pub claims: PathBuf,
    /// Who has what.
    pub directory: Directory,
    /// How the index stands to the journals.
    pub standings: Standings,
    /// The thread of the index.
    pub keeper: Keeper,
    /// Where lists go on.
    pub cursors: Cursors,
    /// Where lanes tell what changes.
    pub feed: Feed,
    /// What sessions that have a lane were told alike.
    common: Mutex<Common>,
    /// The agents' own lists.
    pub lists: Lists,
    /// The branches of the sessions' folders.
    pub workspaces: Workspaces,
    /// When it began.
    pub since: Timestamp,
    /// Status questions to instances.
    pub probes: Arc<Probes>,
    /// The addresses of agents that run already, by the agent's name.
    urls: BTreeMap<String, Vec<Arc<Url>>>,
    lanes: Mutex<HashMap<Key, LaneHandle>>,
    instances: Mutex<HashMap<InstanceId, Arc<Instance>>>,
    nursery: sweep::Nursery,
    conns: Mutex<HashMap<ConnId, Arc<Conn>>>,
    /// What agents answered to `initialize`, kept over restarts.
    greeted: Mutex<HashMap<String, Greeted>>,
    /// Quirks that agents have shown, kept over restarts.
    learned: Mutex<HashMap<String, BTreeSet<Box<str>>>>,
    next_conn: AtomicU64,
    clock: Instant,
    stop: watch::Sender<Option<Stopping>>,
    dropped: Dropped,
    /// What former owners of sessions have said and nobody took, where there was any.
    late: Mutex<HashMap<Key, u64>>,
}

/// Counts of what was dropped by instances that have ended.
#[derive(Debug, Default)]
struct Dropped {
    noise_lines: AtomicU64,
    dropped_updates: AtomicU64,
    late_answers: AtomicU64,
    long_frames: AtomicU64,
    /// Answers of clients to what nobody waits for any more.
    late_replies: AtomicU64,
}

impl Node {
    /// A daemon over an open log. Sessions are known once [`Node::open_index`] was called.
    #[must_use]
    pub fn new(paths: Paths, exe: PathBuf, config: Config, log: Log, claims: PathBuf) -> Self {
        let limits = Arc::new(config.limits.clone());
        let agents = config
            .agents
            .iter()
            .map(|agent| (agent.name.clone(), Arc::new(agent.clone())))
            .collect();
        let with_urls = config.agents.iter().filter(|agent| !agent.urls.is_empty());
        let urls =
            with_urls.map(|agent| (agent.name.clone(), Url::all_of(agent, &claims))).collect();
        let workspaces = Workspaces::new(&limits);
        let index = Index::new(&paths.data, log.sessions_dir());
        let cursors = Cursors::open(&paths.data);
        let node = Self {
            paths,
            exe,
            config,
            agents,
            limits,
            log: Arc::new(log),
            claims,
            directory: Directory::new(Arc::new(index)),
            standings: Standings::default(),
            keeper: Keeper::default(),
            cursors,
            feed: Feed::default(),
            common: Mutex::default(),
            lists: Lists::default(),
            workspaces,
            since: Timestamp::now(),
            probes: Arc::default(),
            urls,
            lanes: Mutex::default(),
            instances: Mutex::default(),
            nursery: sweep::Nursery::default(),
            conns: Mutex::default(),
            greeted: Mutex::default(),
            learned: Mutex::default(),
            next_conn: AtomicU64::new(1),
            clock: Instant::now(),
            stop: watch::Sender::new(None),
            dropped: Dropped::default(),
            late: Mutex::default(),
        };
        node.read_greetings();
        node.read_learned();
        node
    }

    /// The time for the session machines.
    #[must_use]
    pub fn now(&self) -> Now {
        let mono_ms = u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX);
        // As a journal has it: what is told of a session must not change with the next start.
        let now = Timestamp::now();
        let wall = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
        Now { wall, mono_ms }
    }

    /// A deadline of a session machine as an instant.
    #[must_use]
    pub fn instant_of(&self, mono_ms: u64) -> tokio::time::Instant {
        // Far deadlines (never) are a year away.
        let bounded = mono_ms.min(self.now().mono_ms + 365 * 24 * 3_600_000);
        tokio::time::Instant::from_std(self.clock + Duration::from_millis(bounded))
    }

    /// An agent by name.
    #[must_use]
    pub fn agent(&self, name: &str) -> Option<Arc<AgentConfig>> {
        self.agents.get(name).cloned()
    }

    /// Whether an agent's entry says that it asks.
    #[must_use]
    pub fn asks(&self, agent: &str) -> bool {
        self.agents.get(agent).is_some_and(|agent| agent.asks == Some(true))
    }

    /// An agent by name, or an error that says which there are.
    ///
    /// # Errors
    /// `-32602` if there is no such agent.
    pub fn agent_or_error(&self, name: &str) -> Result<Arc<AgentConfig>, WireError> {
        self.agent(name).ok_or_else(|| {
            let known: Vec<_> = self.agents.keys().cloned().collect();
            let text = format!("there is no agent {name:?}; known agents: {}", known.join(", "));
            WireError::new(Code::InvalidParams, text).with_data(json!({ "agents": known }))
        })
    }

    /// The words that clients are answered `session/status` with, where they do not choose.
    #[must_use]
    pub fn words(&self) -> Words {
        Words::from_text(self.config.status_words.as_str()).unwrap_or_default()
    }

    /// A fresh session key.
    #[must_use]
    pub fn fresh_key(&self) -> Key {
        Key::new(uuid::Uuid::now_v7())
    }

    /// The lane of a known session; started if it does not run.
    #[must_use]
    pub fn lane(self: &Arc<Self>, key: Key) -> Option<LaneHandle> {
        let mut lanes = lock(&self.lanes);
        if let Some(lane) = lanes.get(&key).filter(|lane| !lane.is_closed()) {
            return Some(lane.clone());
        }
        let row = self.directory.pin(key)?;
        let (lane, rx) = LaneHandle::new(key, self.limits.lane_messages);
        lanes.insert(key, lane.clone());
        drop(lanes);
        crate::session::spawn(self.clone(), lane.clone(), rx, Start::Journal(row.path.clone()));
        Some(lane)
    }

    /// The lane of a session if it runs.
    #[must_use]
    pub fn running_lane(&self, key: Key) -> Option<LaneHandle> {
        lock(&self.lanes).get(&key).filter(|lane| !lane.is_closed()).cloned()
    }

    /// Starts the lane of a session that an agent has just made.
    pub fn start_born(self: &Arc<Self>, lane: LaneHandle, rx: Mailbox, start: Start) {
        lock(&self.lanes).insert(lane.key(), lane.clone());
        let _row = self.directory.pin(lane.key());
        crate::session::spawn(self.clone(), lane, rx, start);
    }

    /// Agents whose own list may be asked on behalf of an unbound client: the default one, those that
    /// run, and those behind urls.
    #[must_use]
    pub fn agents_known_to_list(&self) -> Vec<Arc<AgentConfig>> {
        let running = self.running_instances();
        let mut agents: Vec<_> = self.agent(&self.config.default_agent).into_iter().collect();
        agents.extend(running.iter().map(|instance| instance.agent.clone()));
        // Those behind urls are not started by being asked.
        agents.extend(self.urls.keys().filter_map(|name| self.agent(name)));
        agents.sort_by(|left, right| left.name.cmp(&right.name));
        agents.dedup_by(|left, right| left.name == right.name);
        agents
    }

    /// A lane wants to end: it may, if nobody else holds a handle and nothing waits for it.
    pub fn release_lane(&self, lane: &LaneHandle, rx: &Mailbox) -> bool {
        let mut lanes = lock(&self.lanes);
        // One handle is the lane's own, one is the table's.
        let free = lane.is_last(1) && rx.is_empty();
        if free {
            lanes.remove(&lane.key());
        }
        free
    }

    /// A lane has ended.
    pub fn lane_ended(&self, key: Key) {
        self.directory.unpin(key);
        let mut lanes = lock(&self.lanes);
        if lanes.get(&key).is_some_and(LaneHandle::is_closed) {
            lanes.remove(&key);
        }
    }

    /// Holds what a session was told in one place with the sessions that were told the same.
    pub fn share(&self, session: &mut Session) {
        if session.has_unshared() {
            session.share(&mut lock(&self.common));
        }
    }

    /// A connection's number.
    #[must_use]
    pub fn next_conn(&self) -> ConnId {
        ConnId(self.next_conn.fetch_add(1, Ordering::Relaxed))
    }

    /// Adds a connection; `false` if there are too many.
    pub fn add_conn(&self, conn: &Arc<Conn>) -> bool {
        let mut conns = lock(&self.conns);
        let free = conns.len() < self.limits.connections as usize;
        if free {
            conns.insert(conn.id, conn.clone());
        }
        free
    }

    /// A client is connected anew: what is left of its earlier connections is cut off.
    pub fn replace_conns(&self, key: &str) {
        for conn in lock(&self.conns).values().filter(|conn| *conn.key == *key) {
            conn.replace();
        }
    }

    /// A connection is gone: its sessions hear of it, its spare instance is ended.
    pub async fn remove_conn(&self, conn: &Conn) {
        lock(&self.conns).remove(&conn.id);
        let (lanes, spare) = conn.end();
        for lane in lanes {
            lane.send(LaneMsg::Input(Input::Detach { conn: conn.id })).await;
        }
        if let Some(spare) = spare {
            self.retire(&spare);
        }
    }

    /// How many clients are connected.
    #[must_use]
    pub fn conn_count(&self) -> usize {
        lock(&self.conns).len()
    }

    /// Instances that run.
    #[must_use]
    pub fn running_instances(&self) -> Vec<Arc<Instance>> {
        lock(&self.instances).values().cloned().collect()
    }

    /// Adds up what an ended instance dropped.
    pub fn count_dropped(&self, instance: &Instance) {
        let add = |to: &AtomicU64, from: &AtomicU64| {
            to.fetch_add(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        add(&self.dropped.noise_lines, &instance.counters.noise_lines);
        add(&self.dropped.dropped_updates, &instance.counters.dropped_updates);
        add(&self.dropped.late_answers, &instance.counters.late_answers);
        add(&self.dropped.long_frames, &instance.counters.long_frames);
    }

    /// What former owners of a session have said since this daemon began, and nobody took.
    #[must_use]
    pub fn late_writes(&self, key: Key) -> u64 {
        lock(&self.late).get(&key).copied().unwrap_or_default()
    }

    /// Keeps that count beyond a lane.
    pub fn note_late_writes(&self, key: Key, count: u64) {
        if count > 0 {
            lock(&self.late).insert(key, count);
        }
    }

    /// A client answered what nobody waits for any more: it reaches no agent.
    pub fn count_late_reply(&self) {
        self.dropped.late_replies.fetch_add(1, Ordering::Relaxed);
    }

    /// What was dropped so far, running instances included.
    #[must_use]
    pub fn counters(&self) -> Value {
        let running = self.running_instances();
        let total = |ended: &AtomicU64, of: fn(&Instance) -> &AtomicU64| {
            let now: u64 = running.iter().map(|i| of(i).load(Ordering::Relaxed)).sum();
            ended.load(Ordering::Relaxed) + now
        };
        json!({
            "noise_lines": total(&self.dropped.noise_lines, |i| &i.counters.noise_lines),
            "dropped_updates": total(&self.dropped.dropped_updates, |i| &i.counters.dropped_updates),
            "late_answers": total(&self.dropped.late_answers, |i| &i.counters.late_answers),
            "long_frames": total(&self.dropped.long_frames, |i| &i.counters.long_frames),
            "late_replies": self.dropped.late_replies.load(Ordering::Relaxed),
        })
    }
}
