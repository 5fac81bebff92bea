//! What a holder says, as events. Used by the instance's lane.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use frontdesk_core::hold::{DaemonDecoder, Exit, Hello, PIECE_BYTES_MAX, ToDaemon};
use frontdesk_core::lines::{Framed, Lines};
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::unix::OwnedReadHalf;
use tokio::time::{Instant, timeout};

use super::outbox::{ClaimAnswer, Shared};
use super::{LinkError, LinkEvent};

/// How long the end of the output waits for the word of how the process ended, while the process is
/// there: it may be on its way out, or have closed no more than its output.
const EXIT_WORD: Duration = Duration::from_millis(250);

/// How long it waits where the process is dead: the holder is about to hear of it, and on a busy
/// machine that takes a while.
pub const DEAD_WORD: Duration = Duration::from_secs(2);

thread_local! {
    /// Where bytes land between the socket and the lines they belong to. It is of the thread, so
    /// that an idle link costs no buffer.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; PIECE_BYTES_MAX].into());
}

/// The way from an agent, through its holder.
#[derive(Debug)]
pub(super) struct HolderReceiver {
    stream: OwnedReadHalf,
    shared: Arc<Shared>,
    decoder: DaemonDecoder,
    lines: Lines,
    hello: Option<Box<Hello>>,
    /// Events that came with the greeting.
    early: Vec<LinkEvent>,
    limit_bytes: usize,
    /// Output may begin behind the offset that was asked for.
    may_skip: bool,
    is_gone: bool,
    is_lost: bool,
}

enum Read {
    Some,
    Nothing,
    Closed,
}

impl HolderReceiver {
    pub(super) fn new(
        stream: OwnedReadHalf,
        shared: Arc<Shared>,
        from_offset: u64,
        frame_bytes: u64,
    ) -> Self {
        let limit = usize::try_from(frame_bytes).unwrap_or(usize::MAX - 1).min(usize::MAX - 1);
        Self {
            stream,
            shared,
            decoder: DaemonDecoder::default(),
            lines: Lines::new(limit, from_offset),
            hello: None,
            early: Vec::new(),
            limit_bytes: limit,
            may_skip: false,
            is_gone: false,
            is_lost: false,
        }
    }

    /// Output will come from here on, or from further on where that was given back meanwhile. A
    /// holder gives output back at the end of a line only.
    pub(super) fn begin_at(&mut self, from_offset: u64) {
        self.lines = Lines::new(self.limit_bytes, from_offset);
        self.may_skip = true;
    }

    /// Waits for the holder's first message.
    pub(super) async fn greeting(&mut self) -> Result<Hello, LinkError> {
        let mut early = std::mem::take(&mut self.early);
        loop {
            let read = poll_fn(|cx| self.poll_read(cx, &mut early)).await;
            if let Some(hello) = self.hello.take() {
                self.early = early;
                return Ok(*hello);
            }
            if let Read::Closed = read {
                self.shared.lose();
                return Err(LinkError::HolderLost);
            }
        }
    }

    /// Waits for events and appends all that are there, from one read of at most 64 KiB; `false`
    /// when there will be none any more. Dropping the future loses nothing.
    pub(super) async fn next_batch(&mut self, out: &mut Vec<LinkEvent>) -> bool {
        if !self.early.is_empty() {
            out.append(&mut self.early);
            return true;
        }
        let before = out.len();
        while out.len() == before && !self.is_lost {
            if let Read::Closed = poll_fn(|cx| self.poll_read(cx, out)).await {
                self.is_lost = true;
                self.shared.lose();
                if !self.is_gone {
                    out.push(LinkEvent::HolderLost);
                }
            }
        }
        out.len() > before
    }

    /// The word of how the first process ended, where the end of its output came first; `None` if
    /// there is none in time. What else comes meanwhile is put into the queue. `lives` tells whether
    /// the process is there.
    pub(super) async fn exit_word(
        &mut self,
        queue: &mut VecDeque<LinkEvent>,
        lives: impl Fn() -> bool,
    ) -> Option<Exit> {
        let began = Instant::now();
        let mut events = Vec::new();
        loop {
            for event in queue.iter() {
                match event {
                    LinkEvent::AgentExited(exit) => return Some(*exit),
                    LinkEvent::Gone | LinkEvent::HolderLost => return None,
                    _ => {}
                }
            }
            let limit = if lives() { EXIT_WORD } else { DEAD_WORD };
            let left = limit.checked_sub(began.elapsed()).filter(|left| !left.is_zero())?;
            // A process that was there may be dead at the next look.
            let more = timeout(left.min(EXIT_WORD), self.next_batch(&mut events)).await;
            queue.extend(events.drain(..));
            if matches!(more, Ok(false)) {
                return None;
            }
        }
    }

    /// Reads once what is there. The runtime knows that a read which did not fill the buffer has
    /// emptied the socket, so that waiting for more costs no second read.
    fn poll_read(&mut self, cx: &mut Context<'_>, out: &mut Vec<LinkEvent>) -> Poll<Read> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut piece = ReadBuf::new(scratch);
            let read = std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece));
            Poll::Ready(match read {
                Ok(()) if piece.filled().is_empty() => Read::Closed,
                Ok(()) => self.hear(piece.filled(), out),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Read::Nothing,
                Err(_) => Read::Closed,
            })
        })
    }

    fn hear(&mut self, bytes: &[u8], out: &mut Vec<LinkEvent>) -> Read {
        let Self { shared, decoder, lines, hello, is_gone, limit_bytes, may_skip, .. } = self;
        let mut has_gap = false;
        let heard = decoder.feed(bytes, |message| match message {
            ToDaemon::Hello(greeting) => *hello = Some(greeting),
            ToDaemon::Out { offset, bytes } => {
                if std::mem::take(may_skip) && offset > lines.offset() {
                    *lines = Lines::new(*limit_bytes, offset);
                }
                match lines.offset().checked_sub(offset) {
                    // Bytes that were had before are passed over.
                    Some(known) => {
                        let known = usize::try_from(known).unwrap_or(usize::MAX).min(bytes.len());
                        lines.feed(&bytes[known..], |line| out.push(line.into()));
                    }
                    None => has_gap = true,
                }
            }
            ToDaemon::Accepted { number } => out.push(LinkEvent::Accepted(number)),
            ToDaemon::Refused { number, reason } => out.push(LinkEvent::Refused(number, reason)),
            ToDaemon::InputClosed => out.push(LinkEvent::InputClosed),
            ToDaemon::AgentExited(exit) => out.push(LinkEvent::AgentExited(exit)),
            ToDaemon::Eof { end } => {
                has_gap |= end > lines.offset() && !*may_skip;
                lines.finish(|line| out.push(line.into()));
                out.push(LinkEvent::Eof { end });
                shared.ack_at_once();
            }
            ToDaemon::Gone => {
                *is_gone = true;
                out.push(LinkEvent::Gone);
            }
            ToDaemon::Claimed { name } => shared.answer(name, ClaimAnswer::Claimed),
            ToDaemon::Held { name, info } => {
                shared.answer(name, ClaimAnswer::Held(info.to_owned()));
            }
            ToDaemon::ClaimFailed { name, reason } => {
                shared.answer(name, ClaimAnswer::Failed(reason.to_owned()));
            }
            ToDaemon::Released { name } => shared.answer(name, ClaimAnswer::Released),
        });
        if heard.is_err() || has_gap { Read::Closed } else { Read::Some }
    }
}

impl From<Framed> for LinkEvent {
    fn from(line: Framed) -> Self {
        match line {
            Framed::Line { text, end } => Self::Line { text, end },
            Framed::TooLong { head, tail, bytes, end } => Self::TooLong { head, tail, bytes, end },
        }
    }
}
