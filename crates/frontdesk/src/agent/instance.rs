//! One running agent: what it was sent and owes, which sessions it has, and the task that reads it.
//!
//! Requests get the number of their input as id, so that an id is never used twice in the life of
//! an instance. Before a request is sent its origin is appended to the instance's ledger.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use frontdesk_core::agent::{Abilities, Quirks, refine};
use frontdesk_core::envelope::{Frame, Message};
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::ids::InstanceId;
use frontdesk_core::limits::Limits;
use frontdesk_core::session::{Position, Tag};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, oneshot, watch};

use super::ledger::Ledger;
use super::link::{DEAD_WORD, LinkSender};
use super::routes::Route;
use crate::config::{AgentConfig, without_secrets};
use crate::lock::lock;
use crate::session::{LaneHandle, Mailbox};

/// How often an agent that has to wait is looked at for its end.
const PAUSE_LOOK: Duration = Duration::from_millis(250);

/// How long somebody who joins waits for the word of an end, where a process is said to be gone.
const END_WORD: Duration = Duration::from_millis(250);

/// A running agent process with its holder.
#[derive(Debug)]
pub struct Instance {
    /// Its id, unique over restarts.
    pub id: InstanceId,
    /// The agent's entry.
    pub agent: Arc<AgentConfig>,
    /// The address it was reached at, where it is a connection and no process of ours. As
    /// configured: it may hold secrets.
    pub url: Option<Arc<str>>,
    /// When it was started.
    pub since: Timestamp,
    /// The agent's process, where known.
    pub pid: Option<u32>,
    /// The working directory it was started in.
    pub cwd: String,
    /// The client abilities it was told, as params text of `initialize`.
    pub greeting: String,
    /// The other end of its holder.
    pub link: LinkSender,
    /// Limits in force.
    pub limits: Arc<Limits>,
    /// Its spools and its stderr.
    pub data_dir: std::path::PathBuf,
    /// Its holder's socket and record.
    pub run_dir: std::path::PathBuf,
    pub(super) ledger: tokio::sync::Mutex<Ledger>,
    /// Last input that the holder has accepted.
    pub(super) accepted: AtomicU64,
    /// Output up to here is acknowledged.
    pub(super) acked: AtomicU64,
    /// Requests of the agent that an earlier daemon answered and that may be read again.
    pub(super) answered: BTreeSet<Box<str>>,
    pub(super) shared: Mutex<Shared>,
    pub(super) heard: AtomicU64,
    clock: Instant,
    pub(super) ended: watch::Sender<Option<Ended>>,
    pub(super) gone: watch::Sender<bool>,
    /// Unloadings that have begun and are not recorded.
    pub(super) closing: watch::Sender<usize>,
    init: OnceLock<(Value, Abilities)>,
    quirks: OnceLock<Quirks>,
    stopping: AtomicBool,
    /// Its holder has said that the first process has ended.
    pub(super) exit_told: AtomicBool,
    /// Things that were dropped and counted.
    pub counters: Counters,
    /// Room for status questions about different ids at once.
    pub probes: Semaphore,
    paused: watch::Receiver<bool>,
}

/// Things that were dropped and counted.
#[derive(Debug, Default)]
pub struct Counters {
    /// Lines that were no message.
    pub noise_lines: AtomicU64,
    /// Updates for sessions that this instance does not have.
    pub dropped_updates: AtomicU64,
    /// Answers to nothing that was asked.
    pub late_answers: AtomicU64,
    /// Frames beyond the limit.
    pub long_frames: AtomicU64,
}

/// How an instance ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// One plain sentence.
    pub why: String,
    /// Exit status and last words, for an operator.
    pub detail: Value,
    /// It has no session any more, see `Input::Ended`.
    pub proven: bool,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) pending: HashMap<u64, Pending>,
    /// When each call that is not answered was sent.
    pub(super) asked: HashMap<u64, u64>,
    pub(super) routes: HashMap<Arc<str>, Route>,
    /// Sessions that are no longer here and whose lanes have not dealt with all that they were given.
    pub(super) leaving: Vec<Route>,
    /// Child sessions, by the parent that named them.
    pub(super) children: HashMap<Arc<str>, Arc<str>>,
    pub(super) early: VecDeque<(Arc<str>, Message, Place)>,
    pub(super) reserved: usize,
    /// Sessions that are unloaded here and that the agent could not be told to let go; with what it
    /// has sent for each of them since.
    pub(super) kept: HashMap<Arc<str>, u64>,
    /// Sessions that it was asked to open without an answer in time, by the number of the request.
    pub(super) unanswered: HashMap<u64, Arc<str>>,
    /// The answers to requests to close a session that an earlier daemon sent.
    pub(super) closes: HashMap<Box<str>, oneshot::Receiver<Result<Frame, WireError>>>,
    /// From other ids of its sessions to those used here, and from these to what it is spoken to by.
    pub(super) heard: HashMap<Arc<str>, Arc<str>>,
    pub(super) spoken: HashMap<Arc<str>, Arc<str>>,
}

/// Where a message of the agent ended.
#[derive(Clone, Debug)]
pub struct Place {
    /// The instance, the offset behind its line, and which message of the line.
    pub at: Position,
    /// What may be acknowledged once it is dealt with: of a batch, all of it with the last one only.
    pub ack: u64,
}

/// Who waits for an answer.
#[derive(Debug)]
pub(super) enum Pending {
    /// A call of the daemon's own.
    Call(oneshot::Sender<Result<Frame, WireError>>),
    /// A session, by the agent's id of it.
    Lane(LaneHandle, Tag, Arc<str>),
    /// A request to open this session, by the agent's id.
    Opening(oneshot::Sender<Result<Opened, WireError>>, Arc<str>),
    /// A call whose answer names a new session.
    Birth(oneshot::Sender<Result<Birth, WireError>>, LaneHandle, Mailbox),
}

/// An agent's answer to a request to open a session. It is dealt with when the session's lane has
/// recorded what became of it.
#[derive(Debug)]
pub struct Opened {
    /// The answer.
    pub frame: Frame,
    /// Number of the request.
    pub number: u64,
    /// What may be acknowledged once it has been dealt with.
    pub ack: u64,
    /// Position of the session's last frame that was dealt with.
    pub done: Arc<AtomicU64>,
}

/// An agent has made a session: its answer, and the lane that its updates go to already.
#[derive(Debug)]
pub struct Birth {
    /// The agent's answer.
    pub frame: Frame,
    /// The agent's id of the session.
    pub native: Arc<str>,
    /// Number of the request.
    pub number: u64,
    /// What may be acknowledged once a later daemon would find the session.
    pub ack: u64,
    /// Position of the session's last frame that was dealt with.
    pub done: Arc<AtomicU64>,
    /// Where its messages go.
    pub rx: Mailbox,
}

/// What a new instance is made of.
#[derive(Debug)]
pub struct Parts {
    /// See [`Instance::id`].
    pub id: InstanceId,
    /// See [`Instance::agent`].
    pub agent: Arc<AgentConfig>,
    /// See [`Instance::url`].
    pub url: Option<Arc<str>>,
    /// See [`Instance::pid`].
    pub pid: Option<u32>,
    /// See [`Instance::cwd`].
    pub cwd: String,
    /// See [`Instance::greeting`].
    pub greeting: String,
    /// See [`Instance::link`].
    pub link: LinkSender,
    /// Its ledger.
    pub ledger: Ledger,
    /// See [`Instance::limits`].
    pub limits: Arc<Limits>,
    /// See [`Instance::data_dir`].
    pub data_dir: std::path::PathBuf,
    /// See [`Instance::run_dir`].
    pub run_dir: std::path::PathBuf,
    /// Whether what it says has to wait.
    pub paused: watch::Receiver<bool>,
    /// What an earlier daemon knew of it.
    pub before: Before,
}

/// What an earlier daemon knew of an instance; nothing of a new one.
#[derive(Debug, Default)]
pub struct Before {
    /// When it was started.
    pub since: Option<Timestamp>,
    /// The last input that its holder has accepted.
    pub accepted: u64,
    /// First offset of the output that may be read again.
    pub acked: u64,
    /// Requests of the agent that were answered.
    pub answered: BTreeSet<Box<str>>,
    /// Sessions that the agent may still have.
    pub kept: BTreeSet<Box<str>>,
}

impl Instance {
    /// An instance whose holder has said hello.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts { id, agent, url, pid, cwd, greeting, link, ledger, limits, .. } = parts;
        let Parts { data_dir, run_dir, paused, before, .. } = parts;
        let probes = Semaphore::new(limits.probe_requests as usize);
        let kept = before.kept.iter().map(|native| (Arc::from(&**native), 0)).collect();
        Self {
            id,
            agent,
            url,
            since: before.since.unwrap_or_else(Timestamp::now),
            pid,
            cwd,
            greeting,
            link,
            limits,
            data_dir,
            run_dir,
            ledger: tokio::sync::Mutex::new(ledger),
            accepted: AtomicU64::new(before.accepted),
            acked: AtomicU64::new(before.acked),
            answered: before.answered,
            shared: Mutex::new(Shared { kept, ..Shared::default() }),
            heard: AtomicU64::new(0),
            clock: Instant::now(),
            ended: watch::Sender::new(None),
            gone: watch::Sender::new(false),
            closing: watch::Sender::new(0),
            init: OnceLock::new(),
            quirks: OnceLock::new(),
            stopping: AtomicBool::new(false),
            exit_told: AtomicBool::new(false),
            counters: Counters::default(),
            probes,
            paused,
        }
    }

    /// Waits while the journals take nothing: what a session's agent says stays in its holder and
    /// its pipe meanwhile. An agent that is being ended is read to its end all the same.
    pub(super) async fn may_speak(&self) {
        let mut paused = self.paused.clone();
        while *paused.borrow_and_update() && !self.stopping.load(Ordering::Relaxed) {
            let changed = tokio::time::timeout(PAUSE_LOOK, paused.changed());
            if matches!(changed.await, Ok(Err(_))) {
                return;
            }
        }
    }

    /// What it answered to `initialize`.
    #[must_use]
    pub fn initialized(&self) -> Option<&(Value, Abilities)> {
        self.init.get()
    }

    /// What it can really do; nothing before it has answered `initialize`.
    #[must_use]
    pub fn abilities(&self) -> Abilities {
        self.init.get().map(|(_, abilities)| abilities.clone()).unwrap_or_default()
    }

    /// Keeps what it answered to `initialize`.
    pub fn set_initialized(&self, result: Value) {
        let told = Abilities::from_result(&result);
        let name = told.name.clone().unwrap_or_default();
        let version = told.agent_version.clone().unwrap_or_default();
        let known = refine(self.agent.known, &name, &version);
        let quirks = self.agent.quirks_of(known);
        let _ = self.quirks.set(quirks);
        let _ = self.init.set((result, told.with_quirks(&quirks)));
    }

    /// How it differs from an honest agent: by its command, and once it has said its name and
    /// version, by those.
    #[must_use]
    pub fn quirks(&self) -> Quirks {
        self.quirks.get().copied().unwrap_or(self.agent.quirks)
    }

    /// The address it is connected to, without what may be secret in it; `None` for a process.
    #[must_use]
    pub fn shown_url(&self) -> Option<String> {
        self.url.as_deref().map(without_secrets)
    }

    /// Whether its first process is there and no zombie. A process that is gone may have left
    /// another one that speaks on.
    #[must_use]
    pub fn first_process_lives(&self) -> bool {
        let stat = self.pid.and_then(|pid| super::proc::stat(i32::try_from(pid).ok()?));
        self.pid.is_none() || stat.is_some_and(|stat| !stat.is_dead())
    }

    /// Waits a moment until it has ended, where its first process is gone already.
    pub async fn ends_soon(&self) -> Option<Ended> {
        // As long as its holder has not said so the end is on its way; behind that it may be that
        // another process has its output and speaks on.
        let is_told = self.exit_told.load(Ordering::Acquire);
        let limit = if is_told { END_WORD } else { DEAD_WORD + END_WORD };
        let mut ended = self.ended.subscribe();
        let _ = tokio::time::timeout(limit, ended.wait_for(Option::is_some)).await;
        self.has_ended()
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn has_ended(&self) -> Option<Ended> {
        self.ended.borrow().clone()
    }

    /// Waits until its process tree is proven gone.
    pub async fn wait_gone(&self) {
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }

    /// Whether its process tree is proven gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        *self.gone.borrow()
    }

    /// Sessions it has or is about to have.
    #[must_use]
    pub fn sessions(&self) -> usize {
        let shared = lock(&self.shared);
        shared.routes.len() + shared.reserved
    }

    /// Whether it can get more to do.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.has_ended().is_none() && !self.stopping.load(Ordering::Relaxed)
    }

    /// Takes a place for one session; `false` if there is none.
    pub fn reserve(&self, sessions_max: usize) -> bool {
        let mut shared = lock(&self.shared);
        let free = self.is_usable() && shared.routes.len() + shared.reserved < sessions_max;
        shared.reserved += usize::from(free);
        free
    }

    /// Whether it owes an answer and has said nothing since it was asked, for `ms` milliseconds.
    #[must_use]
    pub fn is_silent(&self, ms: u64) -> bool {
        let (heard, now) = (self.heard.load(Ordering::Relaxed), self.now_ms());
        let shared = lock(&self.shared);
        shared
            .pending
            .keys()
            .filter_map(|id| shared.asked.get(id))
            .any(|at| heard < *at && now > *at + ms)
    }

    /// Gives a place back that was not used, or has become a session.
    pub fn unreserve(&self) {
        let mut shared = lock(&self.shared);
        shared.reserved = shared.reserved.saturating_sub(1);
    }

    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The error for whoever waits for an instance that has ended.
    #[must_use]
    pub fn ended_error(&self) -> WireError {
        let ended = self.has_ended();
        let why = ended.as_ref().map_or("its connection is closed", |ended| ended.why.as_str());
        WireError::new(
            Code::InstanceEnded,
            format!("the instance of agent {} ended: {why}", self.agent.name),
        )
        .with_data(json!({ "instance": self.id, "agent": self.agent.name, "state": "ended" }))
    }

    /// The bounded file with what it said on stderr.
    #[must_use]
    pub fn stderr_path(&self) -> std::path::PathBuf {
        self.data_dir.join("stderr.log")
    }

    /// Ends the process tree: closed input, and behind it TERM and KILL. Some agents save at a
    /// clean end only; those that are known not to end by themselves are not waited for.
    pub fn stop(self: &Arc<Self>) {
        if self.stopping.swap(true, Ordering::Relaxed) {
            return;
        }
        if self.quirks().no_exit_on_eof || self.has_ended().is_some() {
            return self.link.stop(self.limits.stop_term_ms);
        }
        self.link.close_input();
        let instance = self.clone();
        tokio::spawn(async move {
            let limit = Duration::from_millis(instance.limits.stop_eof_ms);
            let mut ended = instance.ended.subscribe();
            let _ = tokio::time::timeout(limit, ended.wait_for(Option::is_some)).await;
            instance.link.stop(instance.limits.stop_term_ms);
        });
    }

    /// Ends the process tree without asking: TERM, KILL.
    pub fn kill(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.link.stop(self.limits.stop_term_ms);
    }
}
