//! The session machine: `(state, input, now) → effects`, one per session, no input or output.
//!
//! It keeps who is attached, which turn runs and which wait, which questions are open, and what
//! must be written before what is shown. The daemon's lane feeds it and carries out its effects in
//! order. Twin of `frontdesk::session`: the rule here, the act there.
//!
//! Rooms: [`types`] what goes in and out, [`made`] of it what makes a session; `attach` clients;
//! `turns` prompts and cancel; `asks` questions to people; `passes` other requests of the agent;
//! `agent_side` what an agent sends; `life` starting, closing and ending; `owner` whose it is; [`why`] for what reason;
//! `keep` what is kept about a
//! session besides its turns; `ends`, `fate` and `carried` what a later daemon takes up.

mod agent_side;
mod asks;
mod attach;
mod carried;
mod clients;
mod ends;
mod fate;
mod keep;
mod life;
pub mod made;
mod owner;
mod passes;
mod rejoin;
mod turns;
pub mod types;
pub mod why;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::envelope::{Frame, quote};
use crate::errors::WireError;
use crate::fold::View;
use crate::ids::{ConnId, Key, Seq};
use crate::lease::{Lease, Phase, Place};
use crate::limits::Limits;
use crate::record::{Kind, RECORD_VERSION, Record, Source};
use crate::render::{Audience, Renderer, Shown, respell};
use crate::status::State;
use asks::Ask;
pub use asks::{Decision, NoAnswer};
use carried::Again;
pub use carried::{Asked, Carried, Carry, SentRequest};
pub use clients::{Attach, Client, How, Mark, Rejoin};
pub use ends::{Ends, KnownChild, Replaying, subagent_update};
pub use fate::{Fate, Going, Told, fate};
use life::{EarlyEnd, Replay};
pub use made::{Born, By, First, Rename};
use passes::Pass;
use rejoin::Rejoining;
use turns::{Forward, Queued, Stuck, Turn};
pub use types::{AgentFacts, Effect, Input, Now, OpenMode, Position, Tag};
pub use why::{CloseWhy, StartFailure};

/// One client taking part.
#[derive(Debug)]
struct Attachment {
    client: Client,
    /// The id this client asked with.
    spelling: Box<str>,
    /// Gets frames as they come; otherwise it still reads history from the journal.
    live: bool,
    /// When it came.
    since: jiff::Timestamp,
    /// The last record when it came: what it causes later it is not shown again.
    joined: Seq,
    /// A load or resume that is not answered yet.
    reply: Option<(Box<str>, How)>,
    /// What it was shown of a load's history before.
    from: Mark,
    /// It goes on after its connection was gone, and is not told so yet.
    rejoin: Option<Box<Rejoining>>,
    /// Waits for the session to be started.
    waiting: bool,
    /// Answers that wait until it has read what was said before them.
    owed: Vec<(Box<str>, Bytes)>,
    /// A load or resume that came while it was still reading: taken when it has read all.
    again: Option<Box<Attach>>,
}

/// The machine of one session.
#[derive(Debug)]
pub struct Session {
    /// Shared with whoever shows it; a record makes a new one.
    view: Arc<View>,
    limits: Arc<Limits>,
    lease: Lease,
    facts: AgentFacts,
    /// Why it is being unloaded, while it is.
    unloading: CloseWhy,
    /// In boxes: a map has room for eleven as soon as it has one.
    clients: BTreeMap<ConnId, Box<Attachment>>,
    /// Those that take no more part and still read what was said before.
    leaving: BTreeMap<ConnId, attach::Leaving>,
    turn: Option<Turn>,
    queue: VecDeque<Queued>,
    stuck: Option<Stuck>,
    forwards: BTreeMap<Tag, Forward>,
    asks: BTreeMap<Box<str>, Ask>,
    /// What the ids of its questions begin with.
    ask_prefix: Box<str>,
    passes: BTreeMap<Box<str>, Pass>,
    terminals: BTreeMap<String, ConnId>,
    parked: VecDeque<Input>,
    replay: Replay,
    /// The instance has ended while it was opening the session, and what comes of that is on its way.
    early_end: Option<EarlyEnd>,
    /// Place of the last frame that came while the session was being loaded.
    replayed: Option<Source>,
    renderer: Renderer,
    closers: Vec<(ConnId, Box<str>)>,
    /// A fork whose history is still being copied: whom it is told, and the agent's answer.
    newborn: Option<Box<(First, Frame)>>,
    active_ms: u64,
    stopping: Option<u64>,
    next_tag: u64,
    now: Now,
    /// What another daemon handled before and its agent's output may bring again.
    again: Option<Again>,
    out: Vec<Effect>,
    /// Options or commands came that were not [shared](Self::share) yet.
    has_unshared: bool,
}

impl Session {
    /// A session that the journal knows and no instance has.
    #[must_use]
    pub fn cold(view: View, limits: Arc<Limits>, now: Now) -> Self {
        let lease = Lease::cold(view.epoch, view.resumable == Some(false));
        Self {
            view: Arc::new(view),
            limits,
            lease,
            facts: AgentFacts::default(),
            unloading: CloseWhy::default(),
            clients: BTreeMap::new(),
            leaving: BTreeMap::new(),
            turn: None,
            queue: VecDeque::new(),
            stuck: None,
            forwards: BTreeMap::new(),
            asks: BTreeMap::new(),
            ask_prefix: "ask_".into(),
            passes: BTreeMap::new(),
            terminals: BTreeMap::new(),
            parked: VecDeque::new(),
            replay: Replay::None,
            early_end: None,
            replayed: None,
            renderer: Renderer::default(),
            closers: Vec::new(),
            newborn: None,
            active_ms: now.mono_ms,
            stopping: None,
            next_tag: 1,
            now,
            again: None,
            out: Vec::new(),
            has_unshared: true,
        }
    }

    /// Has the ids of its questions name the session, so that none means another session's.
    #[must_use]
    pub fn with_key(mut self, key: Key) -> Self {
        self.ask_prefix = crate::question::prefix_of(key).into();
        self
    }

    /// Takes one input and says what must happen, in order.
    pub fn handle(&mut self, input: Input, now: Now) -> Vec<Effect> {
        self.now = now;
        self.take(input);
        self.tick_stop();
        std::mem::take(&mut self.out)
    }

    fn take(&mut self, input: Input) {
        if self.phase() == Phase::Draining && input.waits_for_draining() {
            self.parked.push_back(input);
            return;
        }
        match input {
            Input::Attach(attach) => self.attach(attach),
            Input::Rejoin(rejoin) => self.rejoin(*rejoin),
            Input::Found { conn, found } => self.found(conn, found),
            Input::CaughtUp { conn, seq } => self.caught_up(conn, seq),
            Input::Lagging { conn } => self.lagging(conn),
            Input::Detach { conn } => {
                self.parked.retain(|input| input.conn() != Some(conn));
                self.leaving.remove(&conn);
                self.detach(conn);
            }
            Input::Prompt { conn, frame } => self.prompt(conn, &frame),
            Input::Forward { conn, frame } => self.forward(conn, frame),
            Input::Notify { conn, frame } => self.notify(conn, frame),
            Input::ToChild { conn, frame } => self.notify_child(conn, &frame),
            Input::Cancel { conn } => self.cancel(conn),
            Input::CancelRequest { conn, id } => self.cancel_request(conn, &id),
            Input::Answer { conn, hop, frame } => self.client_answer(conn, &hop, &frame),
            Input::Decide(decision) => self.decide(&decision),
            Input::Close { conn, id, force } => self.close(conn, &id, force),
            // The agent's late answer, or its end, came first.
            Input::Unload { why: CloseWhy::Stuck } if self.stuck.is_none() => {}
            Input::Unload { why } => self.unload(why),
            Input::Stop { grace_ms } => self.stop(grace_ms),
            Input::Born(born) => self.born(*born),
            Input::Copied { items } => self.copied(items),
            Input::CopyEnded => self.admit_newborn(),
            Input::Rename(rename) => self.rename(&rename),
            Input::Command(done) => self.command(&done),
            Input::Policy { mode, command_id } => self.set_policy(mode, command_id.as_deref()),
            Input::Archive { archived } => self.archive(archived),
            Input::Workspace(workspace) => self.workspace(&workspace),
            Input::Opening { facts, mode } => self.opening(facts, mode),
            Input::Started { result } => self.started(&result),
            Input::StartFailed { failure, doubt } => self.start_failed(failure, doubt),
            Input::Agent { message, at, about } => self.agent_message(message, at, about),
            Input::AgentAnswer { tag, frame, at } => {
                self.agent_answer(tag, &frame, Some(at.source));
            }
            Input::AgentError { tag, error } => self.agent_error(tag, &error),
            Input::Ended { why, detail, proven } => self.ended(&why, detail, proven),
            Input::Closed { let_go } => self.closed(let_go),
            Input::Gone { at } => self.gone(&at),
            Input::Probed { at, probe, owes } => self.probed(&at, probe, owes),
            Input::Take { by } => self.taken(by),
            Input::Wake => self.call_back(None, How::Resume, None),
            Input::Record { kind, data } => self.append(kind, None, Bytes::from(data)),
            Input::Tick => self.tick(),
        }
    }

    /// When the next `Input::Tick` is due, on the monotonic clock in milliseconds.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        let passes = self.passes.values().filter_map(|pass| pass.deadline_ms);
        passes
            .chain(
                self.turn
                    .as_ref()
                    .and_then(|turn| turn.cancelled_ms)
                    .map(|at| at + self.limits.cancel_grace_ms),
            )
            .chain(self.stuck.as_ref().map(|stuck| stuck.since_ms + self.limits.cancel_kill_ms))
            .chain(self.stopping.filter(|_| self.phase() == Phase::Live))
            .chain(self.idle_deadline())
            .min()
    }

    /// What the records add up to.
    #[must_use]
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// The phase of the lease.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.lease.phase()
    }

    /// The lease.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Somebody may have the session: an earlier daemon has left it so.
    pub fn suspect(&mut self, at: Place) {
        self.lease.suspect(at);
    }

    /// A word of an instance that is not the owner any more was not taken.
    pub fn count_late(&mut self) {
        self.lease.count_late();
    }

    /// What the session is doing; `None` unless an instance has it.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        match self.phase() {
            Phase::Live if !self.asks.is_empty() => Some(State::RequiresAction),
            Phase::Live if self.turn.is_some() => Some(State::Running),
            Phase::Live => Some(State::Idle),
            _ => None,
        }
    }

    /// Clients taking part.
    #[must_use]
    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// Clients taking part: whether each is shown what comes, and since when it is there.
    pub fn clients(&self) -> impl Iterator<Item = (&Client, bool, jiff::Timestamp)> {
        self.clients.values().map(|it| (&it.client, it.live, it.since))
    }

    /// Clients that are shown what comes, each with the id it asked with.
    pub fn watchers(&self) -> impl Iterator<Item = (ConnId, &str)> {
        let live = self.clients.iter().filter(|(_, attachment)| attachment.live);
        live.map(|(conn, attachment)| (*conn, attachment.spelling.as_ref()))
    }

    /// The id that a client asked with.
    #[must_use]
    pub fn spelling_of(&self, conn: ConnId) -> Option<&str> {
        self.clients.get(&conn).map(|attachment| &*attachment.spelling)
    }

    /// Prompts that wait.
    #[must_use]
    pub fn queued_turns(&self) -> usize {
        self.queue.len()
    }

    /// Open questions: interaction id, method and params, and the clients that are being asked.
    pub fn open_questions(&self) -> impl Iterator<Item = (&str, &Frame, Vec<&Client>)> {
        self.asks.values().map(|ask| {
            let asked = ask.asked.iter().filter_map(|conn| self.clients.get(conn));
            (ask.interaction.as_str(), &ask.frame, asked.map(|it| &it.client).collect())
        })
    }

    /// Whether a client's answer under this id is waited for.
    #[must_use]
    pub fn is_asked(&self, hop: &str) -> bool {
        self.asks.contains_key(hop) || self.passes.contains_key(hop)
    }

    /// Whether nothing holds the machine in memory: cold, nobody attached, nothing owed.
    #[must_use]
    pub fn at_rest(&self) -> bool {
        self.phase().is_cold()
            && self.clients.is_empty()
            && self.leaving.is_empty()
            && self.queue.is_empty()
            && self.parked.is_empty()
            && self.closers.is_empty()
    }

    /// The agent's id of the session.
    #[must_use]
    pub fn native(&self) -> &str {
        self.view.native.as_deref().unwrap_or_default()
    }

    fn tag(&mut self) -> Tag {
        let tag = Tag(self.next_tag);
        self.next_tag += 1;
        tag
    }

    fn active(&mut self) {
        self.active_ms = self.now.mono_ms;
    }

    /// Appends a record and shows it to those who read along.
    fn append(&mut self, kind: Kind, src: Option<Source>, data: Bytes) {
        let record = self.record(kind, src, data);
        let mut shown = Vec::new();
        let native = self.native().to_owned();
        self.renderer.acp_v1(&record, &native, &mut shown);
        self.out.push(Effect::Append(record));
        let count = shown.len();
        let seq = self.view.seq;
        for (at, Shown { to, frame }) in shown.into_iter().enumerate() {
            let mark = Some(Mark::of(seq, at, count));
            self.show_as(&to, mark, |spelling| respell(&frame, &native, spelling));
        }
    }

    /// Appends an update of the agent and shows its own frame, which costs no second reading.
    fn append_update(&mut self, kind: Kind, src: Source, data: Bytes, frame: &Frame) {
        let record = self.record(kind, Some(src), data);
        let to = self.renderer.audience(&record);
        let mark = Some(Mark::whole(record.seq));
        self.out.push(Effect::Append(record));
        let own = frame.session_id().as_deref() == Some(self.native());
        self.show_as(&to, mark, |spelling| {
            if own { frame.spliced(None, Some(&quote(spelling))) } else { frame.text.clone() }
        });
    }

    fn record(&mut self, kind: Kind, src: Option<Source>, data: Bytes) -> Record {
        let record = Record {
            v: RECORD_VERSION,
            seq: self.view.seq + 1,
            epoch: self.lease.epoch(),
            at: self.now.wall,
            kind,
            src,
            data,
        };
        self.fold(&record);
        record
    }

    fn append_json(&mut self, kind: Kind, data: &Value) {
        self.append(kind, None, Bytes::from(data.to_string()));
    }

    /// Sends a frame to all live attachments of an audience, each in its own spelling.
    fn show(&mut self, to: &Audience, frame: &Bytes) {
        let native = self.native().to_owned();
        self.show_as(to, None, |spelling| respell(frame, &native, spelling));
    }

    fn show_as(&mut self, to: &Audience, mark: Option<Mark>, frame_in: impl Fn(&str) -> Bytes) {
        let mut last: Option<(&str, Bytes)> = None;
        for (conn, attachment) in &self.clients {
            let key = attachment.client.key.as_ref();
            let wanted = match to {
                Audience::All => true,
                Audience::Others(sender) => key != sender.as_ref(),
                Audience::Sender(sender) => key == sender.as_ref(),
            };
            if !wanted || !attachment.live {
                continue;
            }
            let spelled = match &last {
                Some((spelling, frame)) if *spelling == attachment.spelling.as_ref() => {
                    frame.clone()
                }
                _ => frame_in(&attachment.spelling),
            };
            self.out.push(Effect::Tell { conn: *conn, frame: spelled.clone(), hop: None, mark });
            last = Some((&attachment.spelling, spelled));
        }
    }

    fn tell(&mut self, conn: ConnId, frame: Bytes) {
        self.out.push(Effect::Tell { conn, frame, hop: None, mark: None });
    }

    /// Answers a client's request; behind what was said before it, also where the client is slow.
    fn answer(&mut self, conn: ConnId, id: &str, frame: Bytes) {
        if let Some(reading) = self.clients.get_mut(&conn).filter(|it| it.is_reading()) {
            return reading.owed.push((id.into(), frame));
        }
        self.out.push(Effect::Answer { conn, id: id.into(), frame, mark: None });
    }

    fn tell_error(&mut self, conn: ConnId, id: &str, error: &WireError) {
        self.answer(conn, id, Frame::failure(id, &error.to_json()));
    }

    fn spelling(&self, conn: ConnId) -> String {
        self.clients.get(&conn).map_or_else(|| self.native().to_owned(), |a| a.spelling.to_string())
    }

    fn not_active(&self, conn: ConnId, asked: Option<&str>) -> WireError {
        let spelled = self.spelling(conn);
        let mut error = WireError::not_found(asked.unwrap_or(&spelled));
        error.message =
            "Resource not found: the session is not active on this connection; load or resume it first".into();
        error
    }

    /// Whether only its history can be had: its agent cannot continue it, or it is a child, which
    /// its parent alone continues.
    fn is_history(&self) -> bool {
        self.view.resumable == Some(false) || self.view.parent.is_some()
    }

    /// What is lost, for a session that its agent cannot continue.
    fn lost_error(&self, asked: &str) -> WireError {
        let turns = self.view.turn_count;
        let mut error = WireError::not_found(asked);
        if let Some(parent) = &self.view.parent {
            error.message = format!(
                "Resource not found: this is a subagent's session, which only its parent {parent} \
                 continues; what it said can be read with session/load"
            );
            error.data = Some(json!({ "sessionId": asked, "resumable": false, "parent": parent }));
            return error;
        }
        error.message = format!(
            "Resource not found: agent {} cannot continue this session; what it knew of it is lost. \
             Its {turns} recorded turns can still be read with session/load; start a new session to go on",
            quote(&self.view.agent),
        );
        error.data = Some(json!({ "sessionId": asked, "resumable": false, "turns": turns }));
        error
    }
}

#[cfg(test)]
mod tests;
