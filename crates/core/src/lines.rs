//! Lines out of a byte stream that comes in pieces, with a limit and bounded memory. Used for what
//! agents write and for what clients send.

use bytes::Bytes;
use memchr::memchr;

/// How much of the front of a line that is too long is kept, in bytes.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// How much of the end of a line that is too long is kept, in bytes.
pub const TAIL_BYTES_MAX: usize = 4 << 10;

/// What a stream of lines gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framed {
    /// A line.
    Line {
        /// Its bytes, without the line feed and one carriage return before it.
        text: Bytes,
        /// Offset behind its line feed (or behind its last byte, at the end of the stream).
        end: u64,
    },
    /// A line beyond the limit, of which only the ends were kept, a carriage return included.
    TooLong {
        /// Its first bytes, at most [`HEAD_BYTES_MAX`].
        head: Bytes,
        /// Its last bytes, at most [`TAIL_BYTES_MAX`]; they may overlap the head.
        tail: Bytes,
        /// Its whole length in bytes, without the line feed.
        bytes: u64,
        /// Offset behind its line feed.
        end: u64,
    },
}

/// The framer: memory grows with the open line and is given back with it.
#[derive(Debug)]
pub struct Lines {
    limit_bytes: usize,
    offset: u64,
    pub(crate) open: Open,
}

#[derive(Debug)]
pub(crate) enum Open {
    Held(Vec<u8>),
    Skipped { head: Vec<u8>, tail: Vec<u8>, bytes: u64 },
}

impl Lines {
    /// Lines of at most `limit_bytes` (without line ends) of a stream that is read from `offset`
    /// on, where a line begins.
    #[must_use]
    pub const fn new(limit_bytes: usize, offset: u64) -> Self {
        Self { limit_bytes, offset, open: Open::Held(Vec::new()) }
    }

    /// The same lines with another limit from here on.
    pub const fn set_limit(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes;
    }

    /// Offset of the next byte to feed.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Takes the stream's next bytes and hands on the lines they complete.
    pub fn feed(&mut self, mut bytes: &[u8], mut sink: impl FnMut(Framed)) {
        while let Some(at) = memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..at], &bytes[at + 1..]);
            self.offset += at as u64 + 1;
            sink(self.complete(line));
            bytes = rest;
        }
        self.offset += bytes.len() as u64;
        self.hold(bytes);
    }

    /// Hands on what is left when the stream has ended without a line feed.
    pub fn finish(&mut self, mut sink: impl FnMut(Framed)) {
        let empty = match &self.open {
            Open::Held(held) => held.is_empty(),
            Open::Skipped { .. } => false,
        };
        if !empty {
            sink(self.complete(&[]));
        }
    }

    /// The open line ends with `last`.
    fn complete(&mut self, last: &[u8]) -> Framed {
        let end = self.offset;
        if let Open::Held(held) = &self.open
            && held.is_empty()
        {
            let text = without_cr(last);
            if text.len() <= self.limit_bytes {
                return Framed::Line { text: Bytes::copy_from_slice(text), end };
            }
        }
        self.hold(last);
        match std::mem::replace(&mut self.open, Open::Held(Vec::new())) {
            Open::Held(mut held) => {
                let text_bytes = without_cr(&held).len();
                if text_bytes <= self.limit_bytes {
                    held.truncate(text_bytes);
                    return Framed::Line { text: held.into(), end };
                }
                let (head, tail) = ends(&held);
                let bytes = held.len() as u64;
                Framed::TooLong { head: head.into(), tail: tail.into(), bytes, end }
            }
            Open::Skipped { head, tail, bytes } => {
                Framed::TooLong { head: head.into(), tail: tail.into(), bytes, end }
            }
        }
    }

    fn hold(&mut self, piece: &[u8]) {
        match &mut self.open {
            Open::Held(held) => {
                // One byte more than the limit may turn out to be the carriage return.
                if held.len() + piece.len() <= self.limit_bytes + 1 {
                    held.extend_from_slice(piece);
                    return;
                }
                let bytes = (held.len() + piece.len()) as u64;
                let (mut head, mut tail) = ends(held);
                keep_head(&mut head, piece);
                keep_tail(&mut tail, piece);
                self.open = Open::Skipped { head, tail, bytes };
            }
            Open::Skipped { head, tail, bytes } => {
                *bytes += piece.len() as u64;
                keep_head(head, piece);
                keep_tail(tail, piece);
            }
        }
    }
}

fn ends(line: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let head = line[..line.len().min(HEAD_BYTES_MAX)].to_vec();
    let tail = line[line.len().saturating_sub(TAIL_BYTES_MAX)..].to_vec();
    (head, tail)
}

fn keep_head(head: &mut Vec<u8>, piece: &[u8]) {
    let room = HEAD_BYTES_MAX.saturating_sub(head.len()).min(piece.len());
    head.extend_from_slice(&piece[..room]);
}

fn keep_tail(tail: &mut Vec<u8>, piece: &[u8]) {
    let piece = &piece[piece.len().saturating_sub(TAIL_BYTES_MAX)..];
    let excess = (tail.len() + piece.len()).saturating_sub(TAIL_BYTES_MAX);
    tail.drain(..excess);
    tail.extend_from_slice(piece);
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
