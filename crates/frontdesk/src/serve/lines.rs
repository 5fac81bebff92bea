//! Bytes to lines, with a limit and bounded memory.
//!
//! Owned by whoever reads a stream of newline-delimited JSON from a client.

use bytes::{Bytes, BytesMut};

/// Bytes kept of the front of a line that is too long, to find its id.
pub const HEAD_BYTES: usize = 64 << 10;
/// Bytes kept of its end.
pub const TAIL_BYTES: usize = 4 << 10;

/// One line of input.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A line within the limit, without its line end.
    Text(Bytes),
    /// A line beyond the limit: only its ends are kept.
    TooLong {
        /// Its first bytes.
        head: Bytes,
        /// Its last bytes.
        tail: Bytes,
        /// Its whole length.
        bytes: u64,
    },
}

/// Collects pieces into lines.
#[derive(Debug)]
pub struct Lines {
    buffer: BytesMut,
    bytes_max: usize,
    skipping: Option<Skipped>,
}

#[derive(Debug)]
struct Skipped {
    head: Bytes,
    tail: BytesMut,
    bytes: u64,
}

impl Lines {
    /// Lines of at most `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        Self { buffer: BytesMut::new(), bytes_max, skipping: None }
    }

    /// The same lines with another limit from here on.
    #[must_use]
    pub fn with_limit(self, bytes_max: u64) -> Self {
        Self { bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX), ..self }
    }

    /// Takes a piece and appends the lines that it completes.
    pub fn feed(&mut self, mut piece: &[u8], out: &mut Vec<Line>) {
        while let Some(at) = piece.iter().position(|byte| *byte == b'\n') {
            self.keep(&piece[..at]);
            out.push(self.end_line());
            piece = &piece[at + 1..];
        }
        self.keep(piece);
    }

    /// The last piece, where the stream ended without a line end.
    pub fn finish(&mut self) -> Option<Line> {
        (self.skipping.is_some() || !self.buffer.is_empty()).then(|| self.end_line())
    }

    fn keep(&mut self, part: &[u8]) {
        if let Some(skipped) = &mut self.skipping {
            skipped.keep(part);
        } else if self.buffer.len() + part.len() > self.bytes_max {
            let mut all = std::mem::take(&mut self.buffer);
            let room = HEAD_BYTES.saturating_sub(all.len()).min(part.len());
            let bytes = all.len() as u64;
            let mut skipped = Skipped { head: Bytes::new(), tail: BytesMut::new(), bytes };
            skipped.tail.extend_from_slice(&all[all.len().saturating_sub(TAIL_BYTES)..]);
            all.truncate(HEAD_BYTES);
            all.extend_from_slice(&part[..room]);
            skipped.head = all.freeze();
            skipped.keep(part);
            self.skipping = Some(skipped);
        } else {
            self.buffer.extend_from_slice(part);
        }
    }

    fn end_line(&mut self) -> Line {
        if let Some(skipped) = self.skipping.take() {
            let Skipped { head, tail, bytes } = skipped;
            return Line::TooLong { head, tail: tail.freeze(), bytes };
        }
        // An idle connection keeps no buffer.
        let mut line = std::mem::take(&mut self.buffer);
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        Line::Text(line.freeze())
    }
}

impl Skipped {
    fn keep(&mut self, part: &[u8]) {
        self.bytes += part.len() as u64;
        self.tail.extend_from_slice(&part[part.len().saturating_sub(TAIL_BYTES)..]);
        let surplus = self.tail.len().saturating_sub(TAIL_BYTES);
        if surplus > TAIL_BYTES || self.tail.len() > 2 * TAIL_BYTES {
            let _ = self.tail.split_to(surplus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(limit: u64, pieces: &[&[u8]]) -> Vec<Line> {
        let mut lines = Lines::new(limit);
        let mut out = Vec::new();
        for piece in pieces {
            lines.feed(piece, &mut out);
        }
        out.extend(lines.finish());
        out
    }

    fn text(line: &str) -> Line {
        Line::Text(Bytes::copy_from_slice(line.as_bytes()))
    }

    #[test]
    fn pieces_become_lines_wherever_they_are_cut() {
        let whole = b"one\r\n\ntwo\nthree";
        for cut in 0..whole.len() {
            let (left, right) = whole.split_at(cut);
            let want = [text("one"), text(""), text("two"), text("three")];
            assert_eq!(run(9, &[left, right]), want, "cut at {cut}");
        }
    }

    #[test]
    fn a_line_at_the_limit_passes_and_one_byte_more_is_skipped() {
        assert_eq!(run(4, &[b"1234\n", b"5\n"]), [text("1234"), text("5")]);
        let lines = run(4, &[b"12", b"345\n5\n"]);
        assert_eq!(lines.len(), 2);
        assert!(matches!(&lines[0], Line::TooLong { head, bytes: 5, .. } if head == "12345"));
        assert_eq!(lines[1], text("5"));
    }

    #[test]
    fn a_long_line_keeps_its_ends_and_bounded_memory() {
        let mut lines = Lines::new(1 << 20);
        let mut out = Vec::new();
        lines.feed(b"{\"id\":1,", &mut out);
        for _ in 0..64 {
            lines.feed(&vec![b'x'; 64 << 10], &mut out);
            let held = lines.buffer.len()
                + lines.skipping.as_ref().map_or(0, |s| s.tail.len() + s.head.len());
            assert!(held <= (1 << 20) + (256 << 10), "{held}");
        }
        lines.feed(b",\"end\":1}\n", &mut out);
        let Line::TooLong { head, tail, bytes } = &out[0] else { panic!("{out:?}") };
        assert!(head.starts_with(b"{\"id\":1,") && tail.ends_with(b",\"end\":1}"));
        assert_eq!(*bytes, 8 + 64 * (64 << 10) + 9);
    }
}
