//! The daemon's end of a holder: starts it or finds it again, sends frames, receives lines. And, in
//! `url`, the same towards an agent that runs already and is reached by its address.
//!
//! An instance's lane owns the [`LinkReceiver`]; everybody who speaks to the agent has a clone of
//! the [`LinkSender`]. There is no task in between: a frame is written by the call that sends it,
//! and what a holder says is read and cut into lines by the call that waits for it. Only what a
//! full socket does not take is left to a task that ends when it is done.

mod holder;
mod outbox;
mod receiver;
#[cfg(test)]
mod tests;
mod url;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use frontdesk_core::hold::{
    CLAIM_INFO_BYTES_MAX, CLAIM_NAME_BYTES_MAX, Exit, Hello, Refusal, ToHolder,
};
use frontdesk_core::limits::Limits;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use tokio::time::timeout;

pub use crate::hold::claim::{
    ClaimOutcome, look as look_at_claim, remove_stale as remove_stale_claims,
};
pub use crate::hold::{FailKind, HolderSpec};
pub use holder::{Met, meet, reconnect, start};
use outbox::{ClaimAnswer, Shared};
pub use receiver::DEAD_WORD;
use receiver::HolderReceiver;
pub use url::{Address, TlsError, UrlClaims, UrlError, claims_in};

/// Time for a running holder to answer the daemon's first message or a claim, in milliseconds.
const ANSWER_MS: u64 = 10_000;

/// A connection to a holder.
#[derive(Debug)]
pub struct Link {
    /// The holder's greeting: who is who, and how far everything is.
    pub hello: Hello,
    /// The way to the agent.
    pub sender: LinkSender,
    /// The way from the agent.
    pub receiver: LinkReceiver,
}

impl Link {
    fn holder(hello: Hello, shared: Arc<Shared>, receiver: HolderReceiver) -> Self {
        let (sender, receiver) = (LinkSender::Holder(shared), LinkReceiver::Holder(receiver));
        Self { hello, sender, receiver }
    }

    /// The two ways.
    #[must_use]
    pub fn split(self) -> (LinkSender, LinkReceiver) {
        (self.sender, self.receiver)
    }
}

/// What comes from a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// A line of the agent's output.
    Line {
        /// Its bytes, without line feed and carriage return.
        text: Bytes,
        /// Offset behind its line feed: what to acknowledge when the line has been dealt with.
        end: u64,
    },
    /// A line beyond the frame limit.
    TooLong {
        /// Its first bytes, at most 64 KiB.
        head: Bytes,
        /// Its last bytes, at most 4 KiB.
        tail: Bytes,
        /// Its whole length in bytes, without the line feed.
        bytes: u64,
        /// Offset behind its line feed.
        end: u64,
    },
    /// The frame with this number is safe in the holder's spool.
    Accepted(u64),
    /// The frame with this number was not taken; the agent will not see it.
    Refused(u64, Refusal),
    /// The agent takes no more input: it has closed it, its output has ended, or it is stopped.
    InputClosed,
    /// The agent's first process has ended. This is neither its death nor the end of its output,
    /// and it may overtake output.
    AgentExited(Exit),
    /// The output has ended, and all of it came before this.
    Eof {
        /// Offset behind its last byte.
        end: u64,
    },
    /// Proven: no process of the agent is left. The holder leaves when the end of the output is
    /// acknowledged, or at a stop.
    Gone,
    /// The holder is gone, or does not speak the protocol, without having said [`LinkEvent::Gone`]:
    /// the agent is being killed by the kernel. `proc::end_recorded` proves it.
    HolderLost,
    /// The connection to a url is over, and why. The agent may have its sessions all the same.
    Closed(String),
}

/// Why something with a holder failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A path that must be absolute.
    #[error("failed to start an agent with the folder {0}: it is not an absolute path")]
    Relative(PathBuf),
    /// The order cannot be written: a path is no UTF-8.
    #[error("failed to describe the agent to its holder")]
    Order(#[source] serde_json::Error),
    /// The holder itself cannot be started.
    #[error("failed to start a holder")]
    Spawn(#[source] io::Error),
    /// The holder could not start its agent.
    #[error("{message}")]
    Start {
        /// What kept it.
        kind: FailKind,
        /// The whole story in one line.
        message: String,
    },
    /// The holder ended without a word.
    #[error("failed to start a holder: it ended without a report")]
    Silent,
    /// The holder did not report in time.
    #[error("failed to start a holder within {0} ms")]
    Slow(u64),
    /// A holder's socket cannot be reached.
    #[error("failed to reach the holder at {path}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Output that is asked for has been given back to the disk.
    #[error("failed to read output from offset {wanted}: the holder has it from {start} on")]
    Trimmed {
        /// First offset wanted.
        wanted: u64,
        /// First offset there is.
        start: u64,
    },
    /// The holder is gone.
    #[error("failed to reach the holder: it is gone")]
    HolderLost,
    /// The connection to a url is over.
    #[error("failed to reach the agent: the connection is over")]
    UrlLost,
    /// A frame that no text message can hold.
    #[error("failed to send a frame: it is no UTF-8")]
    NoText,
    /// The holder did not answer in time.
    #[error("failed to get an answer of the holder within {ANSWER_MS} ms")]
    NoAnswer,
    /// Frames must be sent with growing numbers.
    #[error("failed to send frame {number}: {last} was sent before")]
    OutOfOrder {
        /// The frame's number.
        number: u64,
        /// Number of the last frame.
        last: u64,
    },
    /// A claim's name or text is too long.
    #[error("failed to claim: a name or text of {0} bytes is too long")]
    ClaimTooLong(usize),
    /// A claim could neither be made nor be found held.
    #[error("{0}")]
    Claim(String),
}

/// Connects to an agent that runs already. Sessions are claimed in `claims`, which outlive the
/// connection.
///
/// # Errors
/// If there is no connection within `url_connect_ms`.
pub async fn reach(
    address: Address<'_>,
    claims: UrlClaims,
    limits: &Limits,
) -> Result<(LinkSender, LinkReceiver), UrlError> {
    let (shared, receiver) = url::connect(address, claims, limits).await?;
    Ok((LinkSender::Url(shared), LinkReceiver::Url(Box::new(receiver))))
}

/// The way from an agent.
#[derive(Debug)]
pub enum LinkReceiver {
    /// Through its holder.
    #[expect(private_interfaces, reason = "the inside of a link")]
    Holder(HolderReceiver),
    /// By its address.
    #[expect(private_interfaces, reason = "the inside of a link")]
    Url(Box<url::Receiver>),
}

impl LinkReceiver {
    /// Waits for events and appends all that are there; `false` when there will be none any more.
    /// Dropping the future loses nothing.
    pub async fn next_batch(&mut self, out: &mut Vec<LinkEvent>) -> bool {
        match self {
            Self::Holder(holder) => holder.next_batch(out).await,
            Self::Url(url) => url.next_batch(out).await,
        }
    }

    /// The word of how the first process ended, where the end of its output came first; `None` if
    /// there is none in time, or it is no process of ours. What else comes meanwhile is put into
    /// the queue. `lives` tells whether the process is there.
    pub async fn exit_word(
        &mut self,
        queue: &mut VecDeque<LinkEvent>,
        lives: impl Fn() -> bool,
    ) -> Option<Exit> {
        match self {
            Self::Holder(holder) => holder.exit_word(queue, lives).await,
            Self::Url(_) => None,
        }
    }
}

/// Room for one frame in the queue to an agent; given back where no frame comes.
#[derive(Debug)]
pub struct Room<'a>(SemaphorePermit<'a>);

impl<'a> Room<'a> {
    /// `None` if the queue is closed. A frame longer than the queue has it for itself.
    async fn wait(queue: &'a Semaphore, bytes: usize, most: u32) -> Option<Self> {
        let cost = u32::try_from(bytes).unwrap_or(u32::MAX).clamp(1, most);
        queue.acquire_many(cost).await.ok().map(Self)
    }

    /// Its permits, which the queue gives back when the frame has left it.
    fn taken(self) -> u32 {
        let cost = u32::try_from(self.0.num_permits()).unwrap_or(u32::MAX);
        self.0.forget();
        cost
    }
}

/// The way to an agent. Clones share one queue.
#[derive(Clone, Debug)]
pub enum LinkSender {
    /// Through its holder.
    #[expect(private_interfaces, reason = "the inside of a link")]
    Holder(Arc<Shared>),
    /// By its address.
    #[expect(private_interfaces, reason = "the inside of a link")]
    Url(Arc<url::Shared>),
}

impl LinkSender {
    /// Sends one frame, without a line end and without a line feed inside. Numbers grow with each
    /// frame over the life of the instance, so calls must be made in order: by one task at a time.
    ///
    /// It waits while 1 MiB is queued that the other side has not read. [`LinkEvent::Accepted`]
    /// tells that the frame is safe in the holder's spool, or written to the agent's socket.
    /// Dropping the future sends the frame whole or not at all.
    ///
    /// # Errors
    /// If the other side is gone, or the number is not higher than the last one.
    pub async fn send(&self, number: u64, frame: Bytes) -> Result<(), LinkError> {
        let room = self.room(frame.len()).await?;
        self.put(number, frame, room)
    }

    /// Waits for room for one frame of about so many bytes, as [`LinkSender::send`] does. Whoever
    /// holds what the reading of the agent needs waits for it first: an agent may take nothing until
    /// it was heard.
    ///
    /// # Errors
    /// If the other side is gone.
    pub async fn room(&self, bytes: usize) -> Result<Room<'_>, LinkError> {
        match self {
            Self::Holder(shared) => shared.room(bytes).await,
            Self::Url(shared) => shared.room(bytes).await,
        }
    }

    /// Sends one frame for which there is room. It never waits.
    ///
    /// # Errors
    /// As [`LinkSender::send`].
    pub fn put(&self, number: u64, frame: Bytes, room: Room<'_>) -> Result<(), LinkError> {
        match self {
            Self::Holder(shared) => shared.put(number, frame, room),
            Self::Url(shared) => shared.put(number, frame, room),
        }
    }

    /// Tells the holder that output before `offset` is not needed any more: with the next frame, or
    /// when 64 KiB have come together, or at once behind [`LinkEvent::Eof`]. It never waits.
    pub fn ack(&self, offset: u64) {
        if let Self::Holder(shared) = self {
            shared.ack(offset);
        }
    }

    /// Closes the agent's input: a polite agent saves and ends. It never waits. A url is
    /// disconnected.
    pub fn close_input(&self) {
        match self {
            Self::Holder(shared) => shared.push(&ToHolder::CloseInput),
            Self::Url(shared) => shared.disconnect(),
        }
    }

    /// Ends the agent and all it started, `term_ms` milliseconds between TERM and KILL.
    /// [`LinkEvent::Gone`] tells that it is done; then the holder leaves. It never waits. A url is
    /// disconnected, which [`LinkEvent::Closed`] tells, and nothing is ended.
    pub fn stop(&self, term_ms: u64) {
        let term_ms = u32::try_from(term_ms).unwrap_or(u32::MAX);
        match self {
            Self::Holder(shared) => shared.push(&ToHolder::Stop { term_ms }),
            Self::Url(shared) => shared.disconnect(),
        }
    }

    /// Locks the claim file `name` in the holder, or for a url in this process, with `info` in it
    /// for others to read. The receiver must be polled meanwhile.
    ///
    /// # Errors
    /// If the claim could neither be made nor be found held, or the holder is gone.
    pub async fn claim(&self, name: &str, info: &str) -> Result<ClaimOutcome, LinkError> {
        for (text, limit) in [(name, CLAIM_NAME_BYTES_MAX), (info, CLAIM_INFO_BYTES_MAX)] {
            if text.len() > limit {
                return Err(LinkError::ClaimTooLong(text.len()));
            }
        }
        let shared = match self {
            Self::Holder(shared) => shared,
            Self::Url(shared) => return shared.claim(name, info).await,
        };
        match ask(shared, name, &ToHolder::Claim { name, info }).await? {
            ClaimAnswer::Claimed => Ok(ClaimOutcome::Claimed),
            ClaimAnswer::Held(info) => Ok(ClaimOutcome::Held(info)),
            ClaimAnswer::Failed(reason) => Err(LinkError::Claim(reason)),
            ClaimAnswer::Released => Err(LinkError::HolderLost),
        }
    }

    /// Frees the claim file `name`. One that is not ours is left alone. The receiver must be polled
    /// meanwhile.
    ///
    /// # Errors
    /// If the holder is gone, which frees its claims too.
    pub async fn release(&self, name: &str) -> Result<(), LinkError> {
        if name.len() > CLAIM_NAME_BYTES_MAX {
            return Err(LinkError::ClaimTooLong(name.len()));
        }
        match self {
            Self::Holder(shared) => {
                ask(shared, name, &ToHolder::Release { name }).await.map(|_| ())
            }
            Self::Url(shared) => {
                shared.release(name);
                Ok(())
            }
        }
    }
}

async fn ask(
    shared: &Arc<Shared>,
    name: &str,
    question: &ToHolder<'_>,
) -> Result<ClaimAnswer, LinkError> {
    let (answer, answered) = oneshot::channel();
    shared.ask(name, answer, question);
    match timeout(Duration::from_millis(ANSWER_MS), answered).await {
        Ok(answer) => answer.map_err(|_| LinkError::HolderLost),
        Err(_) => Err(LinkError::NoAnswer),
    }
}
