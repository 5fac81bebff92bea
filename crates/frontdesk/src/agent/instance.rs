//! One running agent: what it was sent and owes, which sessions it has, and the task that reads it.
//!
//! Requests get the number of their input as id, so that an id is never used twice in the life of
//! an instance. Before a request is sent its origin is appended to the instance's ledger.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use frontdesk_core::agent::{Abilities, Quirks, refine};
use frontdesk_core::envelope::{Frame, Message, quote};
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::ids::InstanceId;
use frontdesk_core::limits::Limits;
use frontdesk_core::session::{Position, Tag};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use super::link::LinkSender;
use crate::config::AgentConfig;
use crate::lock::lock;
use crate::session::{LaneHandle, LaneMsg};

/// How often an agent that has to wait is looked at for its end.
const PAUSE_LOOK: Duration = Duration::from_millis(250);

/// A running agent process with its holder.
#[derive(Debug)]
pub struct Instance {
    /// Its id, unique over restarts.
    pub id: InstanceId,
    /// The agent's entry.
    pub agent: Arc<AgentConfig>,
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
    send: tokio::sync::Mutex<SendState>,
    pub(super) shared: Mutex<Shared>,
    pub(super) heard: AtomicU64,
    clock: Instant,
    pub(super) ended: watch::Sender<Option<Ended>>,
    pub(super) gone: watch::Sender<bool>,
    init: OnceLock<(Value, Abilities)>,
    quirks: OnceLock<Quirks>,
    stopping: AtomicBool,
    /// Things that were dropped and counted.
    pub counters: Counters,
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
}

#[derive(Debug)]
struct SendState {
    next: u64,
    ledger: Option<std::fs::File>,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) pending: HashMap<u64, Pending>,
    /// When each call that is not answered was sent.
    asked: HashMap<u64, u64>,
    pub(super) routes: HashMap<Arc<str>, Route>,
    /// Child sessions, by the parent that named them.
    pub(super) children: HashMap<Arc<str>, Arc<str>>,
    pub(super) early: VecDeque<(Arc<str>, Message, Position)>,
    pub(super) reserved: usize,
    /// Sessions that are unloaded here and that the agent could not be told to let go.
    kept: HashSet<Arc<str>>,
}

/// A session that an instance has.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) lane: LaneHandle,
    pub(super) handed: u64,
    pub(super) done: Arc<AtomicU64>,
}

/// Who waits for an answer.
#[derive(Debug)]
pub(super) enum Pending {
    /// A call of the daemon's own.
    Call(oneshot::Sender<Result<Frame, WireError>>),
    /// A session.
    Lane(LaneHandle, Tag),
    /// A call whose answer names a new session.
    Birth(oneshot::Sender<Result<Birth, WireError>>, LaneHandle, mpsc::Receiver<LaneMsg>),
}

/// An agent has made a session: its answer, and the lane that its updates go to already.
#[derive(Debug)]
pub struct Birth {
    /// The agent's answer.
    pub frame: Frame,
    /// The agent's id of the session.
    pub native: Arc<str>,
    /// Where its messages go.
    pub rx: mpsc::Receiver<LaneMsg>,
}

/// What goes into the ledger before a request is sent.
#[derive(Debug)]
pub struct Origin<'a> {
    /// Key of the client that asked; empty for the daemon's own.
    pub client: &'a str,
    /// The client's id, as text.
    pub id: &'a str,
    /// The method.
    pub method: &'a str,
    /// The agent's id of the session.
    pub session: &'a str,
}

/// What a new instance is made of.
#[derive(Debug)]
pub struct Parts {
    /// See [`Instance::id`].
    pub id: InstanceId,
    /// See [`Instance::agent`].
    pub agent: Arc<AgentConfig>,
    /// See [`Instance::pid`].
    pub pid: Option<u32>,
    /// See [`Instance::cwd`].
    pub cwd: String,
    /// See [`Instance::greeting`].
    pub greeting: String,
    /// See [`Instance::link`].
    pub link: LinkSender,
    /// The ledger, open for appending.
    pub ledger: Option<std::fs::File>,
    /// See [`Instance::limits`].
    pub limits: Arc<Limits>,
    /// See [`Instance::data_dir`].
    pub data_dir: std::path::PathBuf,
    /// See [`Instance::run_dir`].
    pub run_dir: std::path::PathBuf,
    /// Whether what it says has to wait.
    pub paused: watch::Receiver<bool>,
}

impl Instance {
    /// An instance whose holder has said hello.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts {
            id,
            agent,
            pid,
            cwd,
            greeting,
            link,
            ledger,
            limits,
            data_dir,
            run_dir,
            paused,
        } = parts;
        Self {
            id,
            agent,
            since: Timestamp::now(),
            pid,
            cwd,
            greeting,
            link,
            limits,
            data_dir,
            run_dir,
            send: tokio::sync::Mutex::new(SendState { next: 1, ledger }),
            shared: Mutex::default(),
            heard: AtomicU64::new(0),
            clock: Instant::now(),
            ended: watch::Sender::new(None),
            gone: watch::Sender::new(false),
            init: OnceLock::new(),
            quirks: OnceLock::new(),
            stopping: AtomicBool::new(false),
            counters: Counters::default(),
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

    /// Whether its first process is there and no zombie. A process that is gone may have left
    /// another one that speaks on.
    #[must_use]
    pub fn first_process_lives(&self) -> bool {
        let stat = self.pid.and_then(|pid| super::proc::stat(i32::try_from(pid).ok()?));
        self.pid.is_none() || stat.is_some_and(|stat| !stat.is_dead())
    }

    /// Waits until it has ended, for at most `limit`.
    pub async fn ends_within(&self, limit: Duration) -> Option<Ended> {
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

    /// Sessions it has or is about to have.
    #[must_use]
    pub fn sessions(&self) -> usize {
        let shared = lock(&self.shared);
        shared.routes.len() + shared.reserved
    }

    /// Takes a place for one session; `false` if there is none.
    pub fn reserve(&self, sessions_max: usize) -> bool {
        let mut shared = lock(&self.shared);
        let usable = self.has_ended().is_none() && !self.stopping.load(Ordering::Relaxed);
        let free = usable && shared.routes.len() + shared.reserved < sessions_max;
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

    /// Sends the agent's messages for a session to its lane.
    pub fn route(&self, native: &str, lane: &LaneHandle) -> Arc<AtomicU64> {
        let done = Arc::new(AtomicU64::new(0));
        let route = Route { lane: lane.clone(), handed: 0, done: done.clone() };
        let mut shared = lock(&self.shared);
        shared.kept.remove(native);
        shared.routes.insert(native.into(), route);
        done
    }

    /// The agent could not be told to let this session go: only this instance may open it again
    /// while it lives, and its claim stays.
    pub fn keep(&self, native: &str) {
        lock(&self.shared).kept.insert(native.into());
    }

    /// Whether the agent may still have a session that is unloaded here.
    #[must_use]
    pub fn keeps(&self, native: &str) -> bool {
        lock(&self.shared).kept.contains(native)
    }

    /// Whether a session is here.
    #[must_use]
    pub fn has_route(&self, native: &str) -> bool {
        lock(&self.shared).routes.contains_key(native)
    }

    /// A session is no longer here; how many are left.
    pub fn unroute(&self, native: &str) -> usize {
        let mut shared = lock(&self.shared);
        shared.routes.remove(native);
        shared.children.retain(|_, parent| **parent != *native);
        shared.routes.len() + shared.reserved
    }

    /// Sends a frame that needs no answer.
    ///
    /// # Errors
    /// If the instance has ended.
    pub async fn post(&self, frame: Bytes) -> Result<(), WireError> {
        let mut send = self.send.lock().await;
        let number = send.next;
        send.next += 1;
        self.link.send(number, frame).await.map_err(|_| self.ended_error())
    }

    /// Sends a client's request for a session; its answer goes to the session's lane.
    ///
    /// # Errors
    /// If the instance has ended.
    pub async fn request_for(
        &self,
        lane: &LaneHandle,
        tag: Tag,
        frame: &Frame,
        client: &str,
        native: &str,
    ) -> Result<u64, WireError> {
        let origin = Origin {
            client,
            id: frame.id().unwrap_or("null"),
            method: &frame.method,
            session: native,
        };
        let session = quote(native);
        self.send_request(Pending::Lane(lane.clone(), tag), &origin, |id| {
            frame.spliced(Some(id), Some(&session))
        })
        .await
    }

    /// Calls a method of the daemon's own and waits while the agent says anything at all.
    ///
    /// # Errors
    /// The agent's end, or its silence for `silence_ms`. The agent's own error is an `Ok` frame.
    pub async fn call(
        &self,
        method: &str,
        params: &str,
        silence_ms: u64,
    ) -> Result<Frame, WireError> {
        let (tx, rx) = oneshot::channel();
        let origin = Origin { client: "", id: "null", method, session: "" };
        let id = self
            .send_request(Pending::Call(tx), &origin, |id| Frame::call(method, Some(id), params))
            .await?;
        let answer = self.while_it_speaks(rx, method, silence_ms).await;
        if answer.is_err() {
            lock(&self.shared).pending.remove(&id);
        }
        answer
    }

    /// Passes on a request whose answer names a new session.
    ///
    /// # Errors
    /// As [`Instance::call`]; an error answer of the agent's is an `Err` with its text in `data`.
    pub async fn call_birth(
        &self,
        frame: &Frame,
        session: Option<&str>,
        client: &str,
        lane: (LaneHandle, mpsc::Receiver<LaneMsg>),
    ) -> Result<Birth, WireError> {
        let (tx, rx) = oneshot::channel();
        let origin = Origin {
            client,
            id: frame.id().unwrap_or("null"),
            method: &frame.method,
            session: session.unwrap_or_default(),
        };
        let session = session.map(quote);
        let id = self
            .send_request(Pending::Birth(tx, lane.0, lane.1), &origin, |id| {
                frame.spliced(Some(id), session.as_deref())
            })
            .await?;
        let answer = self.while_it_speaks(rx, &frame.method, self.limits.agent_open_ms).await;
        let mut shared = lock(&self.shared);
        shared.pending.remove(&id);
        if !shared.pending.values().any(|pending| matches!(pending, Pending::Birth(..))) {
            let dropped = shared.early.len() as u64;
            shared.early.clear();
            self.counters.dropped_updates.fetch_add(dropped, Ordering::Relaxed);
        }
        answer
    }

    async fn send_request(
        &self,
        pending: Pending,
        origin: &Origin<'_>,
        frame: impl FnOnce(&str) -> Bytes,
    ) -> Result<u64, WireError> {
        let mut send = self.send.lock().await;
        if self.has_ended().is_some() {
            return Err(self.ended_error());
        }
        let number = send.next;
        send.next += 1;
        let line = json!({
            "input": number, "client": origin.client, "id": origin.id,
            "method": origin.method, "session": origin.session,
        });
        // One write: the file has no buffer, and formatting into it would write each token alone.
        let line = format!("{line}\n");
        if let Some(ledger) = &mut send.ledger
            && let Err(error) = ledger.write_all(line.as_bytes())
        {
            tracing::warn!(instance = %self.id, %error, "failed to write the ledger");
        }
        {
            let mut shared = lock(&self.shared);
            shared.pending.insert(number, pending);
            let Shared { pending, asked, .. } = &mut *shared;
            asked.retain(|id, _| pending.contains_key(id));
            asked.insert(number, self.now_ms());
        }
        // An end between the check and this line has emptied the table already.
        if self.has_ended().is_some()
            || self.link.send(number, frame(&number.to_string())).await.is_err()
        {
            lock(&self.shared).pending.remove(&number);
            return Err(self.ended_error());
        }
        Ok(number)
    }

    async fn while_it_speaks<T>(
        &self,
        mut rx: oneshot::Receiver<Result<T, WireError>>,
        method: &str,
        silence_ms: u64,
    ) -> Result<T, WireError> {
        let started = self.now_ms();
        loop {
            let last = self.heard.load(Ordering::Relaxed).max(started);
            let silent = self.now_ms().saturating_sub(last);
            let left = silence_ms.saturating_sub(silent);
            if left == 0 {
                let text = format!(
                    "agent {} did not answer {method} within {silence_ms} ms",
                    self.agent.name
                );
                return Err(WireError::new(Code::AgentTimeout, text)
                    .with_data(json!({ "instance": self.id, "state": "silent" })));
            }
            match tokio::time::timeout(Duration::from_millis(left), &mut rx).await {
                Ok(Ok(answer)) => return answer,
                Ok(Err(_)) => return Err(self.ended_error()),
                Err(_) => {}
            }
        }
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

    /// A session has handled everything up to `end`: what all sessions have handled is acknowledged.
    pub fn handled(&self, done: &AtomicU64, end: u64) {
        done.store(end, Ordering::Relaxed);
        let shared = lock(&self.shared);
        let mut until = end;
        for route in shared.routes.values() {
            let done = route.done.load(Ordering::Relaxed);
            if done < route.handed {
                until = until.min(done);
            }
        }
        drop(shared);
        self.link.ack(until);
    }

    /// All messages up to `end` have been given out; where no session still works on one, they are
    /// acknowledged, so that what is for no session does not fill the spool.
    pub fn nothing_owed(&self, end: u64) {
        let shared = lock(&self.shared);
        let busy = shared.routes.values().any(|r| r.done.load(Ordering::Relaxed) < r.handed);
        drop(shared);
        if !busy && end > 0 {
            self.link.ack(end);
        }
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
