//! Numbered frames on their way to the agent. Used by `run`.
//!
//! A frame is written to the spool as it comes, becomes part of it when it is complete, and only
//! then goes to the agent, as fast as the agent reads.

use std::fs::File;
use std::io::{self, Write};

use frontdesk_core::hold::{PIECE_BYTES_MAX, Refusal};

use super::spool::Spool;

/// Pieces written to the agent before other work gets its turn.
const PIECES_PER_TURN: u32 = 16;

#[derive(Debug)]
pub(super) struct Input {
    spool: Spool,
    limit_bytes: u64,
    /// Number of the last accepted frame.
    pub(super) last: u64,
    open: Option<Open>,
    /// Length of the line that stands in the caller's scratch and is all of the spool; 0 otherwise.
    fresh_bytes: usize,
}

#[derive(Debug)]
struct Open {
    number: u64,
    total_bytes: u64,
    got_bytes: u64,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Take,
    /// Accepted before: its bytes are not wanted.
    Again,
    Refuse(Refusal),
}

/// The answer to a complete frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Accepted(u64),
    Refused(u64, Refusal),
}

/// The daemon broke the order of frames and pieces.
#[derive(Debug)]
pub(super) struct OutOfOrder;

/// What became of an attempt to write to the agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pumped {
    /// Nothing is left to write, or the agent does not read for now.
    Waiting,
    /// The agent has closed its input.
    Closed,
}

impl Input {
    pub(super) const fn new(spool: Spool, limit_bytes: u64) -> Self {
        Self { spool, limit_bytes, last: 0, open: None, fresh_bytes: 0 }
    }

    /// Whether the agent still has to be given something.
    pub(super) const fn is_waiting(&self) -> bool {
        self.spool.len() > 0
    }

    /// A frame begins. `closed` says that the agent takes no more input. `scratch` has room for a
    /// piece and a line feed.
    pub(super) fn begin(
        &mut self,
        number: u64,
        total_bytes: u64,
        piece: &[u8],
        closed: bool,
        scratch: &mut [u8],
    ) -> Result<Option<Answer>, OutOfOrder> {
        if self.open.is_some() {
            return Err(OutOfOrder);
        }
        let room = self.limit_bytes.saturating_sub(self.spool.len());
        let fate = if number <= self.last {
            Fate::Again
        } else if closed {
            Fate::Refuse(Refusal::Closed)
        } else if total_bytes >= room {
            Fate::Refuse(Refusal::Full)
        } else {
            Fate::Take
        };
        if fate == Fate::Take
            && piece.len() as u64 == total_bytes
            && let Some(line) = scratch.get_mut(..=piece.len())
        {
            // The usual case, a small frame in one piece: one write.
            let (text, end) = line.split_at_mut(piece.len());
            text.copy_from_slice(piece);
            end.copy_from_slice(b"\n");
            let is_alone = !self.is_waiting();
            return Ok(Some(match self.spool.append(line) {
                Ok(()) => {
                    self.fresh_bytes = if is_alone { line.len() } else { 0 };
                    self.accepted(number)
                }
                Err(_) => Answer::Refused(number, Refusal::Disk),
            }));
        }
        self.open = Some(Open { number, total_bytes, got_bytes: 0, fate });
        self.piece(piece)
    }

    /// The open frame goes on.
    pub(super) fn piece(&mut self, piece: &[u8]) -> Result<Option<Answer>, OutOfOrder> {
        let open = self.open.as_mut().ok_or(OutOfOrder)?;
        if piece.len() as u64 > open.total_bytes - open.got_bytes {
            return Err(OutOfOrder);
        }
        if open.fate == Fate::Take && self.spool.write_ahead(open.got_bytes, piece).is_err() {
            open.fate = Fate::Refuse(Refusal::Disk);
        }
        open.got_bytes += piece.len() as u64;
        if open.got_bytes < open.total_bytes {
            return Ok(None);
        }
        let Open { number, total_bytes, fate, .. } = *open;
        self.open = None;
        Ok(Some(match fate {
            Fate::Again => Answer::Accepted(number),
            Fate::Refuse(reason) => Answer::Refused(number, reason),
            Fate::Take => match self.spool.write_ahead(total_bytes, b"\n") {
                Ok(()) => {
                    self.spool.advance(total_bytes + 1);
                    self.accepted(number)
                }
                Err(_) => Answer::Refused(number, Refusal::Disk),
            },
        }))
    }

    const fn accepted(&mut self, number: u64) -> Answer {
        self.last = number;
        Answer::Accepted(number)
    }

    /// The connection that was sending is gone: its open frame never was.
    pub(super) fn abandon(&mut self) {
        self.open = None;
        // What it sent last may not have been pumped, and others use the scratch meanwhile.
        self.fresh_bytes = 0;
    }

    /// The agent is going: what it has not read is dropped.
    pub(super) fn drop_all(&mut self) {
        self.spool.trim(self.spool.end());
    }

    /// Writes to the agent what it takes without waiting. `scratch` is the same that [`Self::begin`]
    /// had last: one frame, the usual case, is not read back.
    pub(super) fn pump(&mut self, stdin: &mut File, scratch: &mut [u8]) -> Pumped {
        let mut fresh_bytes = std::mem::take(&mut self.fresh_bytes);
        for _ in 0..PIECES_PER_TURN {
            if !self.is_waiting() {
                break;
            }
            let is_fresh = self.spool.len() == std::mem::take(&mut fresh_bytes) as u64;
            let count = if is_fresh {
                usize::try_from(self.spool.len()).unwrap_or(usize::MAX)
            } else if let Ok(count) =
                self.spool.read(self.spool.start(), &mut scratch[..PIECE_BYTES_MAX])
            {
                count
            } else {
                // The spool cannot be read back: the agent would get a damaged frame.
                return Pumped::Closed;
            };
            match stdin.write(&scratch[..count]) {
                Ok(written) => {
                    self.spool.trim(self.spool.start() + written as u64);
                    if written < count {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Pumped::Closed,
            }
        }
        if self.open.is_none() {
            self.spool.reuse();
        }
        Pumped::Waiting
    }
}
