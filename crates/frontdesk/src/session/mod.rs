//! One actor per session in use: the lane that owns its order.
//!
//! A lane feeds the pure machine (`frontdesk_core::session`), writes records before anything is
//! shown, and carries out effects in order. Lanes are made by `node` on demand and end when their
//! session is cold and nobody takes part.

mod alarm;
mod behind;
mod carrying;
mod catch_up;
mod children;
mod copying;
mod doubt;
mod effects;
mod find;
mod lane;
mod names;
mod promise;
mod rest;
mod telling;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use frontdesk_core::envelope::Message;
use frontdesk_core::fold::Done;
use frontdesk_core::ids::{InstanceId, Key};
use frontdesk_core::session::{By, Decision, Input, NoAnswer, Position};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};

use crate::agent::instance::Instance;
use crate::conn::Conn;

pub use carrying::Carry;
pub use copying::Copy;
pub use lane::{Start, spawn};

/// One message for a lane.
#[derive(Debug)]
pub enum LaneMsg {
    /// An input of the machine.
    Input(Input),
    /// An input that comes from a client: the lane learns its connection first.
    Client(Arc<Conn>, Input),
    /// A message of the agent; `done` is told when it has been handled.
    Agent {
        /// The message.
        message: Message,
        /// Where it ended.
        at: Position,
        /// What may be acknowledged once it has been handled.
        ack: u64,
        /// Position of this session's last handled frame.
        done: Arc<AtomicU64>,
    },
    /// The agent's answer to a request for this session.
    Answered {
        /// Number of the request.
        number: u64,
        /// `Input::AgentAnswer`.
        input: Input,
        /// What may be acknowledged once it has been handled.
        ack: u64,
        /// Position of this session's last handled frame.
        done: Arc<AtomicU64>,
    },
    /// An instance is about to be asked for the session.
    Opening {
        /// The instance.
        instance: Arc<Instance>,
        /// `Input::Opening`.
        input: Input,
        /// Told when its records are written: not before that the instance is asked, so that a later
        /// daemon finds them with the request. Dropped where the lane cannot do it.
        written: oneshot::Sender<()>,
    },
    /// An instance has ended; ignored if it is not the session's own any more.
    Ended {
        /// Which.
        instance: InstanceId,
        /// `Input::Ended`.
        input: Input,
    },
    /// The daemon ends and another one goes on: everything up to here is written and synced, then
    /// told, and nothing more is taken.
    HandOver(oneshot::Sender<()>),
    /// Inputs of the machine, taken as one; `done` is told when what follows from them is durable
    /// and shown.
    Durable {
        /// In order.
        inputs: Vec<Input>,
        /// Dropped where the lane cannot do it.
        done: oneshot::Sender<()>,
    },
    /// Takes the session from whoever has it. Unlike other inputs it does not wait in the lane.
    Take {
        /// Who takes it.
        by: By,
        /// Told when what follows is durable and shown. Dropped where the lane cannot do it.
        told: oneshot::Sender<Taken>,
    },
    /// A command with an id of its caller's: recorded and carried out once, whoever repeats it.
    Command {
        /// Its record.
        done: Box<Done>,
        /// What it does, in order, before its record.
        inputs: Vec<Input>,
        /// Told `None` when it is durable and shown, or what was recorded under this id before.
        /// Dropped where the lane cannot do it.
        before: oneshot::Sender<Option<Box<Done>>>,
    },
    /// An answer to an open question, of somebody who need not take part.
    Decide {
        /// The answer.
        decision: Box<Decision>,
        /// The record of the command that gave it, where it has an id.
        command: Option<Box<Done>>,
        /// Told when it is durable and shown, with what was recorded under the command's id before;
        /// or why it settles nothing. Dropped where the lane cannot do it.
        told: oneshot::Sender<Decided>,
    },
    /// What is going on, for people.
    Describe(oneshot::Sender<Value>),
    /// Delete: the journal becomes a tombstone and the lane ends.
    Entomb(oneshot::Sender<Result<(), String>>),
}

/// What became of a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It took: there is a new epoch.
    Took,
    /// Nobody had the session.
    Nobody,
    /// A start or an unload is on its way and has an outcome first; nothing was done.
    NotYet,
}

/// What became of an answer: done, done before, or none.
pub type Decided = Result<Option<Box<Done>>, NoAnswer>;

/// What a lane takes its messages from. Each is in a box: most lanes have none, and a place in a
/// mailbox is made for the largest message, and before it is needed.
pub type Mailbox = mpsc::Receiver<Box<LaneMsg>>;

/// The way to a lane. While one exists the lane stays.
#[derive(Clone, Debug)]
pub struct LaneHandle {
    key: Key,
    tx: mpsc::Sender<Box<LaneMsg>>,
    /// Counts handles: the lane may rest when only the node's own is left.
    alive: Arc<()>,
}

impl LaneHandle {
    /// A lane's mailbox of `messages` places.
    #[must_use]
    pub fn new(key: Key, messages: u32) -> (Self, Mailbox) {
        let (tx, rx) = mpsc::channel(messages.max(1) as usize);
        (Self { key, tx, alive: Arc::new(()) }, rx)
    }

    /// Whose lane it is.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key
    }

    /// Puts a message into the lane; waits while it is full.
    pub async fn send(&self, message: LaneMsg) {
        let _ = self.tx.send(Box::new(message)).await;
    }

    /// Puts a message into the lane if there is room; what does not fit is dropped.
    pub fn try_send(&self, message: LaneMsg) -> bool {
        self.tx.try_send(Box::new(message)).is_ok()
    }

    /// What the lane says of itself, behind all that it was sent before; `None` if it has ended.
    ///
    /// # Errors
    /// If it gives no word until then: a lane that cannot write answers nobody.
    pub async fn describe(&self, until: Instant) -> Result<Option<Value>, Elapsed> {
        let (tx, rx) = oneshot::channel();
        let word = async {
            self.send(LaneMsg::Describe(tx)).await;
            rx.await.ok()
        };
        timeout_at(until, word).await
    }

    /// Whether this is the only handle besides `extra` others.
    #[must_use]
    pub fn is_last(&self, extra: usize) -> bool {
        Arc::strong_count(&self.alive) <= 1 + extra
    }

    /// Whether the lane has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.tx.is_closed()
    }

    /// Waits until the lane has ended.
    pub async fn closed(&self) {
        self.tx.closed().await;
    }
}
