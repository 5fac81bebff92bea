//! One connection of a daemon: what it has been told and what it is still to be told. Used by
//! `run`.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use frontdesk_core::hold::{Exit, HolderDecoder, PIECE_BYTES_MAX, ToDaemon, out_header};

use super::spool::Spool;

/// Short messages that wait for one connection, in bytes; a daemon that lets more gather is cut off.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// How long the news that a frame was accepted waits for something to go with, in milliseconds.
/// Agents answer most requests sooner, and nobody acts on it before a connection is made anew.
const ACCEPTED_MS_MAX: u64 = 50;
/// Pieces of output sent before other work gets its turn.
const PIECES_PER_TURN: u32 = 16;

/// What there is to tell beside output and answers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct News {
    pub(super) input_closed: bool,
    pub(super) exit: Option<Exit>,
    /// Offset behind the last byte of output, once there will be no more.
    pub(super) eof: Option<u64>,
    pub(super) gone: bool,
}

/// Output that is in memory just now, with its offset.
pub(super) type Fresh<'a> = Option<(u64, &'a [u8])>;

#[derive(Debug)]
pub(super) struct Conn {
    stream: UnixStream,
    pub(super) decoder: HolderDecoder,
    /// Whether this is the daemon that gets the output.
    pub(super) attached: bool,
    /// Whether it is to be told of the end of everything: it is attached, or asked for that end.
    awaits_end: bool,
    /// Short messages, the first `queue_sent` bytes of them sent.
    queue: Vec<u8>,
    queue_sent: usize,
    /// Offset of the next output byte to send.
    cursor: u64,
    /// Messages that may wait, and until when.
    late: Vec<u8>,
    late_due: Option<Instant>,
    /// What is still unsent in front of a piece: late messages and its header.
    header: Vec<u8>,
    header_left: usize,
    /// What is still unsent of the piece, from `cursor` on.
    piece_left: usize,
    told: News,
    /// Whether there is more to send than the socket took.
    pub(super) is_behind: bool,
    /// Whether the socket was full the last time: until it has room nothing is read for it.
    is_blocked: bool,
}

impl Conn {
    pub(super) fn new(stream: UnixStream, hello: &ToDaemon<'_>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let mut conn = Self {
            stream,
            decoder: HolderDecoder::default(),
            attached: false,
            awaits_end: false,
            queue: Vec::new(),
            queue_sent: 0,
            cursor: 0,
            late: Vec::new(),
            late_due: None,
            header: Vec::new(),
            header_left: 0,
            piece_left: 0,
            told: News::default(),
            is_behind: false,
            is_blocked: false,
        };
        hello.encode(&mut conn.queue);
        Ok(conn)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.read(bytes)
    }

    /// Output goes to this connection, from `offset` on. Attaching again on one connection is
    /// refused, since it could cut a piece in two.
    pub(super) const fn attach(&mut self, offset: u64) -> bool {
        let is_first = !self.attached;
        self.attached = true;
        self.awaits_end = true;
        if is_first {
            self.cursor = offset;
        }
        is_first
    }

    /// This connection asked for the end and is to be told of it.
    pub(super) const fn await_end(&mut self) {
        self.awaits_end = true;
    }

    pub(super) fn push(&mut self, message: &ToDaemon<'_>) {
        // Nothing overtakes what was said before.
        self.queue.append(&mut self.late);
        self.late_due = None;
        message.encode(&mut self.queue);
    }

    /// Like [`Self::push`], for what may wait a little for something to go with.
    pub(super) fn push_late(&mut self, message: &ToDaemon<'_>, now: Instant) {
        message.encode(&mut self.late);
        self.late_due = self.late_due.or(Some(now + Duration::from_millis(ACCEPTED_MS_MAX)));
    }

    /// When what may wait has waited long enough.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.late_due
    }

    /// What may wait has waited long enough.
    pub(super) fn be_on_time(&mut self, now: Instant) {
        if self.late_due.is_some_and(|due| now >= due) || self.late.len() > PIECE_BYTES_MAX {
            self.queue.append(&mut self.late);
            self.late_due = None;
        }
    }

    /// The socket has room again.
    pub(super) const fn unblock(&mut self) {
        self.is_blocked = false;
    }

    /// Whether it has been told everything up to the end of the agent, or does not care.
    pub(super) fn has_told_all(&self) -> bool {
        !self.awaits_end || (self.told.gone && self.queue.is_empty() && self.late.is_empty())
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// If the connection is of no more use.
    pub(super) fn pump(
        &mut self,
        out: &Spool,
        fresh: Fresh<'_>,
        news: &News,
        scratch: &mut [u8],
    ) -> io::Result<()> {
        self.is_behind = false;
        let mut turns = PIECES_PER_TURN;
        loop {
            if self.is_blocked {
                self.is_behind = true;
                let is_hopeless = self.queue.len() > QUEUE_BYTES_MAX;
                return if is_hopeless { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) };
            }
            let sent = if self.header_left > 0 || self.piece_left > 0 {
                self.send_piece(out, fresh, scratch)
            } else if !self.queue.is_empty() {
                self.send_queue()
            } else if self.attached && self.cursor < out.end() {
                if turns == 0 {
                    self.is_behind = true;
                    return Ok(());
                }
                turns -= 1;
                self.begin_piece(out.end());
                Ok(())
            } else if self.tell(out.end(), news) {
                Ok(())
            } else {
                return Ok(());
            };
            match sent {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_blocked = true,
                Err(error) => return Err(error),
            }
        }
    }

    fn begin_piece(&mut self, end: u64) {
        let left = usize::try_from(end - self.cursor).unwrap_or(usize::MAX);
        self.piece_left = left.min(PIECE_BYTES_MAX);
        self.header.clear();
        self.header.append(&mut self.late);
        self.late_due = None;
        self.header.extend_from_slice(&out_header(self.cursor, self.piece_left));
        self.header_left = self.header.len();
    }

    fn send_piece(&mut self, out: &Spool, fresh: Fresh<'_>, scratch: &mut [u8]) -> io::Result<()> {
        let known = fresh.and_then(|(offset, bytes)| {
            let from = usize::try_from(self.cursor.checked_sub(offset)?).ok()?;
            bytes.get(from..from.checked_add(self.piece_left)?)
        });
        let piece = match known {
            Some(piece) => piece,
            None => {
                let count = out.read(self.cursor, &mut scratch[..self.piece_left])?;
                &scratch[..count]
            }
        };
        let header = &self.header[self.header.len() - self.header_left..];
        let sent = self.stream.write_vectored(&[IoSlice::new(header), IoSlice::new(piece)])?;
        self.is_blocked = sent < header.len() + piece.len();
        let of_header = sent.min(self.header_left);
        self.header_left -= of_header;
        self.piece_left -= sent - of_header;
        self.cursor += (sent - of_header) as u64;
        Ok(())
    }

    fn send_queue(&mut self) -> io::Result<()> {
        self.queue_sent += self.stream.write(&self.queue[self.queue_sent..])?;
        if self.queue_sent == self.queue.len() {
            self.queue_sent = 0;
            // A queue that was long once is not kept long.
            if self.queue.capacity() > PIECE_BYTES_MAX {
                self.queue = Vec::new();
            } else {
                self.queue.clear();
            }
        }
        Ok(())
    }

    /// Queues the next news that is due: the end of the output only behind the last of it, and the
    /// end of everything last. Says whether there was any.
    fn tell(&mut self, out_end: u64, news: &News) -> bool {
        let told_output = !self.attached || self.told.eof.is_some();
        if self.attached && news.input_closed && !self.told.input_closed {
            self.told.input_closed = true;
            self.push(&ToDaemon::InputClosed);
        } else if self.attached
            && self.told.exit.is_none()
            && let Some(exit) = news.exit
        {
            self.told.exit = news.exit;
            self.push(&ToDaemon::AgentExited(exit));
        } else if !told_output
            && self.cursor >= out_end
            && let Some(end) = news.eof
        {
            self.told.eof = news.eof;
            self.push(&ToDaemon::Eof { end });
        } else if self.awaits_end && told_output && news.gone && !self.told.gone {
            self.told.gone = true;
            self.push(&ToDaemon::Gone);
        } else {
            return false;
        }
        true
    }
}
