//! What goes into the session machine and what comes out.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;

use super::asks::Decision;
use super::clients::{Attach, How, Mark, Rejoin};
use super::made::{Born, By, Rename};
use super::why::{CloseWhy, StartFailure};
use crate::envelope::{Frame, Message};
use crate::errors::WireError;
use crate::fold::{ApprovalMode, Done};
use crate::ids::{ConnId, Epoch, Seq};
use crate::lease::{Place, Probe};
use crate::record::{Kind, Record, Source};
use crate::workspace::Workspace;

/// The time, both ways: for records and for waiting.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Wall clock, for records.
    pub wall: Timestamp,
    /// Monotonic clock in milliseconds, for limits.
    pub mono_ms: u64,
}

/// A request of ours to the agent; the lane gives it an id on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// The instance that has, or is about to have, the session.
#[derive(Clone, Debug, Default)]
pub struct AgentFacts {
    /// The instance.
    pub instance: InstanceName,
    /// Where it is, for the lease.
    pub place: Place,
    /// Epoch of the claim.
    pub epoch: Epoch,
    /// It can load or resume a session, so it may be unloaded when idle.
    pub can_return: bool,
    /// Unload after this long without activity, in milliseconds.
    pub idle_unload_ms: u64,
    /// It loses sessions that are killed: never kill it over a stuck turn.
    pub loses_killed: bool,
    /// The policy for questions of sessions that were told none, where the configuration has one.
    pub approval: Option<ApprovalMode>,
}

/// An instance's id as text; empty when there is none.
pub type InstanceName = String;

/// What to do with the history that an agent replays while it loads.
#[derive(Clone, Debug)]
pub enum OpenMode {
    /// Resume: there is none.
    Resume,
    /// Ours is complete: swallow it.
    Swallow,
    /// Match it against the user texts of our turns and import what is new.
    Import {
        /// User texts of the turns in our journal, in order.
        known: Vec<String>,
        /// Our history begins here: say so if the agent only resumes.
        note: Option<String>,
    },
}

/// Where an agent's frame ended in its instance's output.
#[derive(Clone, Debug)]
pub struct Position {
    /// The instance, the offset behind the frame, and which message of its line.
    pub source: Source,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client loads or resumes.
    Attach(Attach),
    /// A client whose connection was gone goes on where it was.
    Rejoin(Box<Rejoin>),
    /// What the journal has of prompts that `Effect::Find` named: the answer, if it was recorded.
    Found {
        /// Who.
        conn: ConnId,
        /// Each prompt's id, as text, and its answer.
        found: Vec<(Box<str>, Option<Bytes>)>,
    },
    /// A client has read the journal up to `seq`.
    CaughtUp {
        /// Who.
        conn: ConnId,
        /// Last record it was sent.
        seq: Seq,
    },
    /// A client's outbox is full: it is served from the journal until it has caught up.
    Lagging {
        /// Who.
        conn: ConnId,
    },
    /// A client's connection is gone.
    Detach {
        /// Who.
        conn: ConnId,
    },
    /// `session/prompt`.
    Prompt {
        /// Who.
        conn: ConnId,
        /// The request.
        frame: Frame,
    },
    /// Any other request of an attached client that goes to the agent.
    Forward {
        /// Who.
        conn: ConnId,
        /// The request.
        frame: Frame,
    },
    /// Any notification of an attached client but `session/cancel`.
    Notify {
        /// Who.
        conn: ConnId,
        /// The notification.
        frame: Frame,
    },
    /// A notification of an attached client for a child of the session, in the child's own id.
    ToChild {
        /// Who.
        conn: ConnId,
        /// The notification.
        frame: Frame,
    },
    /// `session/cancel`.
    Cancel {
        /// Who.
        conn: ConnId,
    },
    /// `$/cancel_request` for one of the client's own requests.
    CancelRequest {
        /// Who.
        conn: ConnId,
        /// The request's id, as text.
        id: Box<str>,
    },
    /// A client answered a request it was sent.
    Answer {
        /// Who.
        conn: ConnId,
        /// The id it was sent with, without quotes.
        hop: Box<str>,
        /// The answer.
        frame: Frame,
    },
    /// Somebody who need not take part answers an open question.
    Decide(Box<Decision>),
    /// `session/close`.
    Close {
        /// Who.
        conn: ConnId,
        /// The request's id, as text.
        id: Box<str>,
        /// Whatever others do.
        force: bool,
    },
    /// Unload now.
    Unload {
        /// Why.
        why: CloseWhy,
    },
    /// The daemon stops: running turns get `grace_ms`.
    Stop {
        /// Grace in milliseconds.
        grace_ms: u64,
    },
    /// The agent made this session.
    Born(Box<Born>),
    /// A piece of the history that a fork begins with: params of updates, in the fork's own id.
    Copied {
        /// In order.
        items: Vec<Bytes>,
    },
    /// The fork has its history: whoever asked for it is answered.
    CopyEnded,
    /// A person names the session.
    Rename(Rename),
    /// A command with an id of its caller's was taken in, or has its answer.
    Command(Box<Done>),
    /// The policy for questions changes; what is open is settled by the new one.
    Policy {
        /// The new one.
        mode: ApprovalMode,
        /// The caller's id of the command, where the face has one.
        command_id: Option<String>,
    },
    /// The session is put aside or taken back.
    Archive {
        /// Which of both.
        archived: bool,
    },
    /// What git says of the session's folder.
    Workspace(Workspace),
    /// An instance has been claimed and is about to be asked.
    Opening {
        /// The instance.
        facts: AgentFacts,
        /// What to do with its replay.
        mode: OpenMode,
    },
    /// The agent has it: result of load or resume, JSON text.
    Started {
        /// The result.
        result: String,
    },
    /// The agent does not have it.
    StartFailed {
        /// Why.
        failure: StartFailure,
        /// The agent was asked and has not answered: it may open it yet.
        doubt: bool,
    },
    /// A request or notification of the agent.
    Agent {
        /// The message.
        message: Message,
        /// Where it ended.
        at: Position,
        /// The request of a client's that it is about, where it names one instead of the session.
        about: Option<Tag>,
    },
    /// The agent answered.
    AgentAnswer {
        /// What was sent.
        tag: Tag,
        /// The answer.
        frame: Frame,
        /// Where it ended.
        at: Position,
    },
    /// The agent will not answer: it ended, or its answer was too long.
    AgentError {
        /// What was sent.
        tag: Tag,
        /// Why.
        error: WireError,
    },
    /// The instance is gone.
    Ended {
        /// One plain sentence.
        why: String,
        /// Exit status, last words on stderr.
        detail: Value,
        /// It has nothing of the session any more, and that is proven: its holder has said so, or
        /// its process group is recorded as ended. The end of a connection proves nothing.
        proven: bool,
    },
    /// The unload that was asked for is done, as far as it could be.
    Closed {
        /// The agent has let the session go, or is proven gone; else it may still have it.
        let_go: bool,
    },
    /// An instance that may have the session is proven gone.
    Gone {
        /// Which.
        at: Place,
    },
    /// A place that may have the session was asked for its status.
    Probed {
        /// Which.
        at: Place,
        /// What it said.
        probe: Probe,
        /// It had a request to open the session by then.
        owes: bool,
    },
    /// Somebody takes the session from whoever has it; its clients stay.
    Take {
        /// Who.
        by: By,
    },
    /// Have it loaded, for nobody in particular.
    Wake,
    /// Append a record of the daemon's own.
    Record {
        /// Its kind.
        kind: Kind,
        /// Its payload, JSON text.
        data: String,
    },
    /// A deadline has passed.
    Tick,
}

impl Input {
    /// The client whose request this is, for requests that may wait.
    pub(super) fn conn(&self) -> Option<ConnId> {
        match self {
            Self::Attach(attach) => Some(attach.client.conn),
            Self::Rejoin(rejoin) => Some(rejoin.client.conn),
            Self::Prompt { conn, .. } | Self::Forward { conn, .. } | Self::Close { conn, .. } => {
                Some(*conn)
            }
            _ => None,
        }
    }

    /// Whether this waits until an unload that has begun is done.
    pub(super) fn waits_for_draining(&self) -> bool {
        match self {
            Self::Attach(_)
            | Self::Rejoin(_)
            | Self::Prompt { .. }
            | Self::Forward { .. }
            | Self::Close { .. }
            | Self::Unload { .. }
            | Self::Take { .. }
            | Self::Wake => true,
            Self::CaughtUp { .. }
            | Self::Found { .. }
            | Self::Lagging { .. }
            | Self::Detach { .. }
            | Self::Notify { .. }
            | Self::ToChild { .. }
            | Self::Cancel { .. }
            | Self::CancelRequest { .. }
            | Self::Answer { .. }
            | Self::Decide(_)
            | Self::Stop { .. }
            | Self::Born(_)
            | Self::Copied { .. }
            | Self::CopyEnded
            | Self::Rename(_)
            | Self::Command(_)
            | Self::Policy { .. }
            | Self::Archive { .. }
            | Self::Workspace(_)
            | Self::Opening { .. }
            | Self::Started { .. }
            | Self::StartFailed { .. }
            | Self::Agent { .. }
            | Self::AgentAnswer { .. }
            | Self::AgentError { .. }
            | Self::Ended { .. }
            | Self::Closed { .. }
            | Self::Gone { .. }
            | Self::Probed { .. }
            | Self::Record { .. }
            | Self::Tick => false,
        }
    }
}

/// One thing that must happen, in order with the others.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Write this record. Always before what follows is carried out.
    Append(Record),
    /// Wait until what was appended so far is durable.
    Sync,
    /// Send a frame to a client.
    Tell {
        /// Whom.
        conn: ConnId,
        /// What.
        frame: Bytes,
        /// For requests: the id under which its answer comes back to this session.
        hop: Option<Box<str>>,
        /// How far the client has been shown the session with it.
        mark: Option<Mark>,
    },
    /// Answer a client's request.
    Answer {
        /// Whom.
        conn: ConnId,
        /// The request's id, as text.
        id: Box<str>,
        /// The whole answer.
        frame: Bytes,
        /// From where on the client is shown the session.
        mark: Option<Mark>,
    },
    /// The client's answer to this request is no longer wanted.
    Forget {
        /// Whom.
        conn: ConnId,
        /// The id it was sent with.
        hop: Box<str>,
    },
    /// Send the client's records after `from` out of the journal, then say `CaughtUp`.
    CatchUp {
        /// Whom.
        conn: ConnId,
        /// Its key, for what it has said itself.
        key: Arc<str>,
        /// The id it asked with.
        spelling: Box<str>,
        /// What it has been shown.
        from: Mark,
        /// Records after this one that it caused itself are not shown to it again.
        own_after: Seq,
    },
    /// A request of an earlier connection of this client is answered on this one.
    TakenBack {
        /// Whom.
        conn: ConnId,
        /// The request's id, as text.
        id: Box<str>,
    },
    /// Look prompts of a client up in the journal, then say `Found`.
    Find {
        /// Whom.
        conn: ConnId,
        /// Its key.
        key: Arc<str>,
        /// Each prompt's id, as text, and a record that is older than its own.
        prompts: Vec<(Box<str>, Seq)>,
    },
    /// Send a client's request to the agent under a new id and with its own session id.
    Send {
        /// Names it in the answer.
        tag: Tag,
        /// The client's frame.
        frame: Frame,
        /// Whose it is, for the ledger.
        client: Arc<str>,
        /// The turn it begins, for the ledger.
        turn: Option<Box<str>>,
    },
    /// Send the agent a notification.
    Notify(Bytes),
    /// The agent is owed an answer to a request of its own from here on: put it into the ledger.
    Owe {
        /// The id clients are asked with.
        hop: Box<str>,
        /// The request, where the journal does not have it.
        frame: Option<Bytes>,
    },
    /// Nothing is owed to the agent for this request any more.
    Settle {
        /// The id clients were asked with.
        hop: Box<str>,
        /// The answer; `None` where the agent waits for none any more.
        frame: Option<Bytes>,
    },
    /// Tell the agent that we no longer want an answer.
    CancelSent(Tag),
    /// Claim an instance and have it load or resume the session.
    Open {
        /// The client that caused it, if one did.
        conn: Option<ConnId>,
        /// How it asked.
        how: How,
        /// The client's own parameters as text, if it sent some.
        params: Option<Bytes>,
        /// The only place that may be asked: it may have the session already.
        at: Option<Place>,
    },
    /// Close the session at the agent and end its instance if it has no other.
    Shut {
        /// Why.
        why: CloseWhy,
    },
    /// Whoever might have had the session has said that it does not: its claim is free.
    LetGo {
        /// Where.
        at: Place,
    },
    /// A cancelled turn never ended at the agent: have the session unloaded (`Input::Unload`), unless
    /// another session of its instance has a turn.
    EndStuck,
    /// The client takes part: its later messages for this session are ours.
    Joined {
        /// Whom.
        conn: ConnId,
    },
    /// The client takes no more part: its later messages for this session are not ours.
    Left {
        /// Whom.
        conn: ConnId,
    },
}
