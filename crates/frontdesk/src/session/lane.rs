//! The actor around the session machine.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::envelope::Message;
use frontdesk_core::fold::View;
use frontdesk_core::ids::{ConnId, Key, Seq};
use frontdesk_core::lease::Phase;
use frontdesk_core::record::Record;
use frontdesk_core::session::{Effect, Input, Session, Tag};
use frontdesk_core::status::State;
use frontdesk_core::workspace::Workspace;
use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::alarm::Alarm;
use super::behind::Quiet;
use super::carrying::{Carry, Handled, carry_on};
use super::children::{Child, Heard};
use super::promise::Promise;
use super::telling::refuse_all;
use super::{Copy, LaneHandle, LaneMsg, Mailbox};
use crate::agent::instance::Instance;
use crate::conn::Conn;
use crate::log::{Health, Journal, LogError, Snapshot, Ticket};
use crate::node::Node;
use crate::workspace::Follow;

/// Messages handled before effects are carried out: one write for all their records.
const BATCH_MESSAGES: usize = 64;
/// How long a lane waits for the one before it to let the journal go.
const FREE_WITHIN: Duration = Duration::from_secs(5);
/// How often a lane without work looks whether it may end.
const REST_AGAIN: Duration = Duration::from_secs(1);

/// How a lane begins.
#[derive(Debug)]
pub enum Start {
    /// From an existing journal, read in the lane.
    Journal(PathBuf),
    /// With a new journal, for a session that an agent has just made.
    Born {
        /// The journal.
        journal: Journal,
        /// The instance that has it.
        instance: Arc<Instance>,
        /// The client that takes part from here on, and `Input::Born`: handled before anything else.
        first: Box<(Option<Arc<Conn>>, Input)>,
        /// The history that a fork begins with.
        copy: Option<Copy>,
        /// Told when all that the session begins with is durable.
        ready: oneshot::Sender<()>,
    },
    /// Live since before this daemon.
    Carried(Box<Carry>),
}

/// What a lane does when it has done what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Wait,
    End,
}

/// Starts a lane.
pub fn spawn(node: Arc<Node>, handle: LaneHandle, rx: Mailbox, start: Start) {
    tokio::spawn(live(node, handle, rx, start));
}

async fn live(node: Arc<Node>, handle: LaneHandle, rx: Mailbox, start: Start) {
    let key = handle.key();
    let mut mailbox = Some(rx);
    // In a box of its own, as all that a lane does but for waiting: most lanes wait most of the
    // time, and what is not in a box has its room all that time.
    let begun = Box::pin(begin(&node, handle, &mut mailbox, start)).await;
    match begun {
        Ok(lane) => lane.run().await,
        Err(error) => {
            tracing::error!(session = %key, %error, "failed to open a journal");
            if let Some(rx) = mailbox {
                refuse_all(rx).await;
            }
        }
    }
    node.lane_ended(key);
}

async fn begin(
    node: &Arc<Node>,
    handle: LaneHandle,
    mailbox: &mut Option<Mailbox>,
    start: Start,
) -> Result<Box<Lane>, LogError> {
    let (journal, view, snapshot_bytes, instance, birth) = match start {
        Start::Carried(carry) => return carry_on(node, handle, mailbox, *carry).await,
        Start::Born { journal, instance, first, copy, ready } => {
            (journal, View::default(), 0, Some(instance), Some((*first, copy, ready)))
        }
        Start::Journal(path) => {
            let log = node.log.clone();
            let opened = tokio::task::spawn_blocking(move || {
                // First the journal, so that the lane before this one has written its last word.
                let mut journal = open_when_free(&log, &path)?;
                let view = crate::node::recover::read_for_lane(&mut journal)?;
                journal.fence(view.epoch);
                let covered = Snapshot::read(&path).map_or(0, |(found, _)| found.journal_bytes);
                Ok::<_, LogError>((journal, view, covered))
            });
            let (journal, view, covered) = opened.await.map_err(|_| LogError::Closed)??;
            (journal, view, covered, None, None)
        }
    };
    let rx = mailbox.take().ok_or(LogError::Closed)?;
    let session = Session::cold(view, node.limits.clone(), node.now()).with_key(handle.key());
    let mut lane = Lane::new(node, handle, rx, session, journal, instance);
    if birth.is_none() {
        lane.recall_doubt().await;
    }
    lane.snapshot_bytes = snapshot_bytes;
    if let Some(((conn, born), copy, ready)) = birth {
        lane.conns.extend(conn.map(|conn| (conn.id, conn)));
        let mut safe = lane.handle_now(born).await;
        if let Some(copy) = copy {
            lane.copy(copy).await;
            safe = lane.handle_now(Input::CopyEnded).await;
        }
        lane.publish();
        if safe {
            let _ = ready.send(());
        }
    }
    Ok(lane)
}

pub(super) struct Lane {
    pub(super) node: Arc<Node>,
    pub(super) handle: LaneHandle,
    pub(super) rx: Mailbox,
    pub(super) session: Session,
    pub(super) journal: Journal,
    pub(super) instance: Option<Arc<Instance>>,
    /// The instance that had it last: it must be gone before another one may.
    pub(super) previous: Option<Arc<Instance>>,
    /// The instance that may have it, while that is in doubt and the instance runs.
    pub(super) doubted: Option<Arc<Instance>>,
    /// When it is asked next whether it has, as long as that is in doubt.
    pub(super) ask_at: Option<tokio::time::Instant>,
    /// Words of former owners that lanes before this one refused.
    pub(super) late_before: u64,
    pub(super) conns: HashMap<ConnId, Arc<Conn>>,
    /// Requests at the agent: our tag to the id on the wire.
    pub(super) sent: HashMap<Tag, u64>,
    pub(super) unwritten: Vec<Record>,
    /// The last record that clients were shown.
    pub(super) shown: Seq,
    /// Rounds of the commit log that nobody has waited for yet.
    pub(super) tickets: Vec<Ticket>,
    /// Clients were told that the journal is behind.
    pub(super) behind: bool,
    /// How the log is.
    pub(super) health: watch::Receiver<Health>,
    /// What agents said while there was no room for it.
    pub(super) held: VecDeque<LaneMsg>,
    /// How much of the journal its last snapshot covers, in bytes.
    pub(super) snapshot_bytes: u64,
    /// A snapshot is being written.
    pub(super) saving: Option<JoinHandle<()>>,
    pub(super) entombed: bool,
    /// Further ids of the session that are claimed while it is loaded.
    pub(super) names: Vec<String>,
    /// Subagents that the agent has announced while the session is loaded, by the agent's id.
    pub(super) children: HashMap<String, Child>,
    /// Those that it had before this daemon, until something is said about them.
    pub(super) recalled: HashMap<String, (Key, Map<String, Value>)>,
    /// What was said about them and is not passed on yet.
    pub(super) heard: Vec<Heard>,
    /// The branch of its folder, from the first time that an instance has it.
    follow: Option<Follow>,
    /// Records could not be written and never will be.
    pub(super) is_undone: bool,
    /// The next daemon goes on from here.
    pub(super) handed_over: Option<oneshot::Sender<()>>,
}

impl Lane {
    pub(super) fn new(
        node: &Arc<Node>,
        handle: LaneHandle,
        rx: Mailbox,
        session: Session,
        journal: Journal,
        instance: Option<Arc<Instance>>,
    ) -> Box<Self> {
        let late_before = node.late_writes(handle.key());
        Box::new(Self {
            node: node.clone(),
            handle,
            rx,
            shown: session.view().seq,
            session,
            journal,
            instance,
            previous: None,
            doubted: None,
            ask_at: None,
            late_before,
            conns: HashMap::new(),
            sent: HashMap::new(),
            unwritten: Vec::new(),
            tickets: Vec::new(),
            behind: false,
            health: node.log.follow_health(),
            held: VecDeque::new(),
            snapshot_bytes: 0,
            saving: None,
            entombed: false,
            names: Vec::new(),
            children: HashMap::new(),
            recalled: HashMap::new(),
            heard: Vec::new(),
            follow: None,
            is_undone: false,
            handed_over: None,
        })
    }

    async fn run(mut self: Box<Self>) {
        let mut alarm = Alarm::new();
        let mut quiet = Quiet::new();
        loop {
            if self.may_rest() {
                break;
            }
            self.follow_workspace();
            let deadline = self.session.deadline_ms().map(|at| self.node.instant_of(at));
            alarm.set(deadline);
            let Some(batch) = self.next(&mut alarm, &quiet).await else { break };
            self.look_for_space(&batch, &mut quiet);
            if Box::pin(self.act(batch)).await == Then::End {
                break;
            }
        }
        Box::pin(self.finish()).await;
    }

    /// Does what messages ask for, all that follows from them included.
    async fn act(&mut self, mut batch: Vec<LaneMsg>) -> Then {
        let mut effects = Vec::new();
        let mut handled = Handled::default();
        let mut promised = Vec::new();
        let paused = self.holds_back();
        if !paused {
            // In the order in which they came, before what came later.
            batch.splice(..0, self.held.drain(..));
        }
        for message in batch {
            if paused && self.has_to_wait(&message) {
                self.held.push_back(message);
                continue;
            }
            if let LaneMsg::Client(_, Input::Attach(_)) = &message {
                self.look_at_instance(&mut effects).await;
            }
            if let Some(message) = self.promise(message, &mut effects, &mut promised) {
                self.take(message, &mut effects, &mut handled);
            }
        }
        if promised.iter().any(Promise::is_of_the_disk) {
            effects.push(Effect::Sync);
        }
        self.make_children().await;
        let safe = self.carry_out(effects).await;
        self.tell_children().await;
        self.is_undone |= !safe;
        self.tell_handled(handled).await;
        self.publish();
        self.follow_names();
        promised.into_iter().filter(|_| safe).for_each(Promise::keep);
        self.snapshot();
        if self.entombed {
            return Then::End;
        }
        self.hand_over().await;
        Then::Wait
    }

    /// Waits for something to do, which may be to look again. `None` when nothing will ever come.
    async fn next(&mut self, alarm: &mut Alarm, quiet: &Quiet) -> Option<Vec<LaneMsg>> {
        let (mut batch, mut mail) = (Vec::new(), Vec::new());
        let lease = self.session.lease();
        let is_suspect = lease.phase() == Phase::Suspect;
        let place = lease.doubt().filter(|_| is_suspect).cloned();
        // Whatever comes to the lane meanwhile puts this off no further.
        let ask_at = place
            .is_some()
            .then(|| self.ask_at.unwrap_or_else(|| super::doubt::next_time(&self.node)));
        self.ask_at = ask_at;
        let doubt = place.zip(ask_at).map(|(place, at)| (place, self.doubted.clone(), at));
        let (node, native) = (self.node.clone(), self.session.native().to_owned());
        tokio::select! {
            biased;
            changed = self.health.changed() => {
                self.tell_behind();
                // Without a sender the log is gone, and with it everything.
                changed.ok()?;
            }
            got = self.rx.recv_many(&mut mail, BATCH_MESSAGES) => {
                if got == 0 {
                    return None;
                }
                batch.extend(mail.into_iter().map(|message| *message));
            }
            () = alarm.rings() => batch.push(LaneMsg::Input(Input::Tick)),
            workspace = news(self.follow.as_mut()) => {
                batch.push(LaneMsg::Input(Input::Workspace(workspace)));
            }
            input = super::doubt::settled(&node, doubt, &native) => {
                self.ask_at = None;
                batch.push(LaneMsg::Input(input));
            }
            () = quiet.is_long(), if self.session.state() == Some(State::Running) => {}
            // Somebody still holds a handle: look again later.
            () = tokio::time::sleep(REST_AGAIN), if self.session.at_rest() => {}
        }
        Some(batch)
    }

    /// From the first time on that an instance has the session its folder's branch is followed;
    /// what waits already comes first.
    fn follow_workspace(&mut self) {
        if self.follow.is_some() || !self.rx.is_empty() {
            return;
        }
        let cwd = &self.session.view().cwd;
        if matches!(self.session.phase(), Phase::Live) && !cwd.is_empty() {
            self.follow = Some(self.node.workspaces.follow(Path::new(cwd)));
        }
    }

    /// Before somebody joins: an instance whose process has just died is not joined any more, also
    /// where the word of its end is still on its way.
    async fn look_at_instance(&mut self, effects: &mut Vec<Effect>) {
        let live = matches!(self.session.phase(), Phase::Live);
        let Some(instance) = self.instance.clone().filter(|i| live && !i.first_process_lives())
        else {
            return;
        };
        if let Some(ended) = instance.ends_soon().await {
            let input = Input::Ended { why: ended.why, detail: ended.detail, proven: ended.proven };
            effects.extend(self.session.handle(input, self.node.now()));
            self.previous = self.instance.take();
        }
    }

    fn take(&mut self, message: LaneMsg, effects: &mut Vec<Effect>, handled: &mut Handled) {
        let now = self.node.now();
        let input = match message {
            LaneMsg::Input(input) => {
                if let Input::Detach { conn } = &input {
                    self.conns.remove(conn);
                }
                input
            }
            LaneMsg::Client(conn, input) => {
                self.conns.entry(conn.id).or_insert(conn);
                if let Input::Answer { hop, .. } = &input
                    && !self.session.is_asked(hop)
                {
                    self.node.count_late_reply();
                }
                input
            }
            LaneMsg::Answered { number, input, ack, done } => {
                let of = match &input {
                    Input::AgentAnswer { at, .. } => Some(at.source.instance.clone()),
                    _ => None,
                };
                handled.note(done, ack, of);
                handled.answers.push(number);
                input
            }
            LaneMsg::Agent { message, at, ack, done } => {
                let ours = self.instance.as_ref().is_some_and(|i| i.id == at.source.instance);
                handled.note(done, ack, Some(at.source.instance.clone()));
                if !ours {
                    // A late frame of an instance that is not the owner any more.
                    self.session.count_late();
                    return;
                }
                self.hear_child(&message, &at);
                let about = self.request_it_is_about(&message);
                Input::Agent { message, at, about }
            }
            LaneMsg::Ended { instance, input } => {
                if self.instance.as_ref().is_none_or(|own| own.id != instance) {
                    return;
                }
                input
            }
            LaneMsg::HandOver(tx) => {
                self.handed_over = Some(tx);
                return;
            }
            // Taken before, because somebody waits for its end.
            LaneMsg::Opening { .. }
            | LaneMsg::Durable { .. }
            | LaneMsg::Take { .. }
            | LaneMsg::Command { .. }
            | LaneMsg::Decide { .. } => return,
            LaneMsg::Describe(tx) => {
                let _ = tx.send(self.describe());
                return;
            }
            LaneMsg::Entomb(tx) => {
                let _ = tx.send(self.entomb());
                return;
            }
        };
        effects.extend(self.session.handle(input, now));
    }

    /// An elicitation may name one of our requests instead of the session.
    fn request_it_is_about(&self, message: &Message) -> Option<Tag> {
        let Message::Request(frame) = message else { return None };
        if &*frame.method != "elicitation/create" || frame.has_session_id() {
            return None;
        }
        let params: Value = serde_json::from_str(frame.params()?).ok()?;
        let id = params.get("requestId")?.as_u64()?;
        self.sent.iter().find(|(_, sent)| **sent == id).map(|(tag, _)| *tag)
    }

    /// Tells the directory what is loaded here and what the records add up to.
    pub(super) fn publish(&mut self) {
        let phase = self.session.phase();
        if (phase.is_cold() || phase == Phase::Suspect)
            && let Some(instance) = self.instance.take()
        {
            self.previous = Some(instance);
            self.children.clear();
        }
        self.follow_doubt();
        self.node.share(&mut self.session);
        let late = self.late_before + self.session.lease().late();
        self.node.note_late_writes(self.handle.key(), late);
        if self.is_nothing() && self.session.client_count() == 0 {
            // Before the lane ends, so that nobody finds a row whose journal is about to go.
            self.node.directory.forget(self.handle.key());
        }
        self.tell_directory();
        self.node.feed.shown(self.handle.key(), self.shown);
    }

    /// The row says what the session is now, before anybody is told something that follows from it.
    pub(super) fn tell_directory(&self) {
        let live = match self.session.phase() {
            Phase::Cold | Phase::Lost => None,
            Phase::Live => Some(self.instance.as_ref()),
            Phase::Claiming | Phase::Starting | Phase::Draining | Phase::Suspect => Some(None),
        };
        let key = self.handle.key();
        self.node.directory.publish(key, &self.session, live, self.journal.bytes());
        let asks = self.node.asks(&self.session.view().agent);
        self.node.feed.publish(key, self.node.directory.get(key), asks);
    }
}

/// Opens a journal; the session's lane before this one may still be ending.
fn open_when_free(log: &crate::log::Log, path: &std::path::Path) -> Result<Journal, LogError> {
    let until = std::time::Instant::now() + FREE_WITHIN;
    loop {
        match log.open_journal(path) {
            Err(LogError::InUse { .. }) if std::time::Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other,
        }
    }
}

/// What git says of the followed folder, when that changes; for ever if none is followed.
async fn news(follow: Option<&mut Follow>) -> Workspace {
    match follow {
        Some(follow) => follow.changed().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
