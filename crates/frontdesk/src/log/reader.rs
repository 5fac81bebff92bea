//! Reads journals, whatever happened to them. Used for replay to clients, by the fold, by the
//! commands that show a journal, and inside `log`.
//!
//! Damage is an observation, never an error: all whole records are served, in the order of their
//! numbers, each once. A reader can stand at the end and go on when more was appended.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use bytes::{Buf as _, Bytes, BytesMut};
use frontdesk_core::ids::Seq;
use frontdesk_core::record::{Kind, Record, salvage};

use super::{LogError, len_of};

/// Longest line that is read, in bytes; a longer one is skipped without being held in memory. It
/// has to hold the longest frame, and some.
pub const LINE_BYTES_MAX: usize = 256 << 20;

/// Damage described one by one by a reader; the rest is only counted.
const DAMAGE_KEPT_MAX: usize = 1_000;

/// Bytes read at a time, where a line is not longer.
const PIECE_BYTES: usize = 256 << 10;

/// Bytes read at a time at most.
const PIECE_BYTES_MAX: usize = 8 << 20;

/// Something in a journal that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where the line begins, in bytes from the start of the file.
    pub offset: u64,
    /// Length of the line without its line end, in bytes.
    pub bytes: u64,
    /// The line's number, counted from 1; `None` when the reader did not start at the first line.
    pub line: Option<u64>,
    /// What is wrong.
    pub what: What,
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// No record, or a record and something else; what is whole was read.
    Unreadable,
    /// NUL bytes; what is whole beside them was read.
    Nul,
    /// Several records without a line end between them; all were read.
    Welded,
    /// Longer than [`LINE_BYTES_MAX`]; skipped.
    TooLong,
    /// The last line is cut short; not served.
    Torn,
    /// A record whose number was served before or is lower than one that was; skipped.
    Repeated {
        /// Its number.
        seq: Seq,
    },
    /// A record whose number fits neither what is before nor what is behind; skipped.
    Misnumbered {
        /// Its number.
        seq: Seq,
    },
    /// Records are missing before this one, which was served.
    Gap {
        /// The last number before the gap.
        after: Seq,
        /// The first number behind it.
        next: Seq,
    },
}

/// A place in the file.
#[derive(Clone, Copy)]
struct Span {
    offset: u64,
    bytes: u64,
    line: Option<u64>,
}

impl Span {
    fn damage(self, what: What) -> Damage {
        Damage { offset: self.offset, bytes: self.bytes, line: self.line, what }
    }
}

/// Takes records as they are served, with the offset of their line.
pub(super) trait Sink {
    fn put(&mut self, record: Record, offset: u64);
}

impl Sink for Vec<Record> {
    fn put(&mut self, record: Record, _: u64) {
        self.push(record);
    }
}

impl<F: FnMut(Record, u64)> Sink for F {
    fn put(&mut self, record: Record, offset: u64) {
        self(record, offset);
    }
}

/// What is thrown away up to the next line end.
#[derive(Clone, Copy)]
enum Skip {
    /// The rest of a line in whose middle reading began.
    Rest,
    /// A line that is too long, from its first byte.
    TooLong(u64),
}

/// Reads one journal from a position on. Waits for the disk: call it where that is allowed.
///
/// The payloads of a batch share the memory of the pieces they were read in (256 KiB and more):
/// copy what is kept for long.
pub struct Reader {
    file: File,
    path: PathBuf,
    /// Bytes read and not served.
    buf: BytesMut,
    /// Where `buf` begins in the file.
    at: u64,
    /// Bytes of `buf` that are known to hold no line end.
    scanned: usize,
    skip: Option<Skip>,
    lines: Option<u64>,
    line_bytes_max: usize,
    /// Bytes from here on are as if they were not there.
    pub(super) limit: u64,
    /// Bytes that the file is known to have; its size is asked only beyond them.
    known: u64,
    /// Number of the last record served or filtered out.
    last: Seq,
    /// Records with lower numbers are read and not served.
    from: Seq,
    /// A record behind a gap: what follows tells whether its number can be true.
    held: Option<(Record, Span)>,
    damage: Vec<Damage>,
    damage_count: u64,
}

impl Reader {
    /// Starts at the first record.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        let file = File::open(path).map_err(LogError::io("open", path))?;
        Ok(Self {
            file,
            path: path.to_path_buf(),
            buf: BytesMut::new(),
            at: 0,
            scanned: 0,
            skip: None,
            lines: Some(0),
            line_bytes_max: LINE_BYTES_MAX,
            limit: u64::MAX,
            known: 0,
            last: 0,
            from: 0,
            held: None,
            damage: Vec::new(),
            damage_count: 0,
        })
    }

    /// Starts at a byte where a line begins, behind the record `seq`: what a snapshot notes.
    ///
    /// # Errors
    /// If the file cannot be read or no line begins there.
    pub fn open_at(path: &Path, offset: u64, seq: Seq) -> Result<Self, LogError> {
        let mut reader = Self::open(path)?;
        let mut before = [b'\n'];
        let wrong = || LogError::Position { path: path.to_path_buf(), offset };
        if offset > len_of(&reader.file, path)? {
            return Err(wrong());
        }
        if let Some(place) = offset.checked_sub(1) {
            reader.file.read_exact_at(&mut before, place).map_err(LogError::io("read", path))?;
        }
        if before != [b'\n'] {
            return Err(wrong());
        }
        reader.at = offset;
        reader.last = seq;
        reader.lines = (offset == 0).then_some(0);
        Ok(reader)
    }

    /// Starts at or before the record `seq`, found from the end, and serves records from it on: for
    /// the newest part of a long journal. What lies before is not looked at.
    ///
    /// # Errors
    /// If the file cannot be opened or read.
    pub fn open_before(path: &Path, seq: Seq) -> Result<Self, LogError> {
        let mut reader = super::tail::open_before(path, seq)?;
        reader.from = seq;
        Ok(reader)
    }

    /// Starts at the first line that begins at `offset` or behind it, with no idea of the number
    /// to expect.
    pub(super) fn open_near(path: &Path, offset: u64) -> Result<Self, LogError> {
        let mut reader = Self::open(path)?;
        if let Some(before) = offset.checked_sub(1) {
            reader.at = before;
            reader.skip = Some(Skip::Rest);
            reader.lines = None;
        }
        Ok(reader)
    }

    /// Serves only records numbered `seq` or higher from here on. A number that was passed already
    /// takes the reader back to the start.
    pub fn read_from(&mut self, seq: Seq) {
        if seq <= self.last {
            self.buf.clear();
            self.at = 0;
            self.scanned = 0;
            self.skip = None;
            self.lines = Some(0);
            self.last = 0;
            self.held = None;
            self.damage.clear();
            self.damage_count = 0;
        }
        self.from = seq;
    }

    /// The next records, until their lines sum up to `bytes_max`; at least one if there is one.
    /// Empty at the present end, and then possibly not empty later. A last line without its line
    /// end is not served: it may still be written.
    ///
    /// # Errors
    /// If the disk cannot be read. Damage is no error.
    pub fn read_batch(&mut self, bytes_max: usize) -> Result<Vec<Record>, LogError> {
        let mut out = Vec::new();
        let mut bytes = 0;
        while bytes < bytes_max || out.is_empty() {
            match self.step(&mut out)? {
                Some(read) => bytes += read,
                None => break,
            }
        }
        Ok(out)
    }

    /// Reads to the present end, [`Self::finish`] included.
    pub(super) fn read_all(&mut self, out: &mut impl Sink) -> Result<(), LogError> {
        while self.step(out)?.is_some() {}
        self.finish_to(out);
        Ok(())
    }

    /// Takes one line and says how long it was; at the present end lets go of what is held.
    fn step(&mut self, out: &mut impl Sink) -> Result<Option<usize>, LogError> {
        let Some((line, span)) = self.next_line()? else {
            self.let_go(out);
            return Ok(None);
        };
        self.take_line(&line, span, out);
        Ok(Some(line.len()))
    }

    /// The last line of a journal that nobody writes, if it is a whole record that lacks only its
    /// line end. Call it at the end. Otherwise bytes left there are noted as [`What::Torn`].
    pub fn finish(&mut self) -> Option<Record> {
        let mut out = Vec::new();
        self.finish_to(&mut out);
        out.pop()
    }

    fn finish_to(&mut self, out: &mut impl Sink) {
        if self.buf.is_empty() {
            return;
        }
        let line = Bytes::copy_from_slice(&self.buf);
        let span = Span {
            offset: self.at,
            bytes: line.len() as u64,
            line: self.lines.map(|lines| lines + 1),
        };
        match Record::parse(&line) {
            Ok(record) if self.skip.is_none() => {
                self.at += line.len() as u64;
                self.buf.clear();
                self.scanned = 0;
                self.accept(record, span, out);
                self.let_go(out);
            }
            _ => {
                let torn = span.damage(What::Torn);
                if self.damage.last() != Some(&torn) {
                    self.note(torn);
                }
            }
        }
    }

    /// Where the next line begins, in bytes: with [`Self::last_seq`], what a snapshot notes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.held.as_ref().map_or(self.at, |(_, span)| span.offset)
    }

    /// Number of the last record that was passed; 0 at the start.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        self.last
    }

    /// Whether the bytes up to the present end lack a line end.
    pub(super) fn is_torn(&self) -> Result<bool, LogError> {
        let end = len_of(&self.file, &self.path)?.min(self.limit);
        let mut last = [b'\n'];
        if let Some(place) = end.checked_sub(1) {
            let read = self.file.read_exact_at(&mut last, place);
            read.map_err(LogError::io("read", &self.path))?;
        }
        Ok(last != [b'\n'])
    }

    /// Bytes behind the last line end, when the reader is at the present end: a line being written,
    /// or a torn one.
    #[must_use]
    pub fn tail_bytes(&self) -> u64 {
        self.buf.len() as u64
    }

    /// The damage passed so far, in order; at most a thousand, see [`Self::damage_count`].
    #[must_use]
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// How much damage was passed so far.
    #[must_use]
    pub fn damage_count(&self) -> u64 {
        self.damage_count
    }

    fn note(&mut self, damage: Damage) {
        self.damage_count += 1;
        if self.damage.len() < DAMAGE_KEPT_MAX {
            self.damage.push(damage);
        }
    }

    /// Takes what is whole on a line.
    fn take_line(&mut self, line: &Bytes, span: Span, out: &mut impl Sink) {
        if let Ok(record) = Record::parse(line) {
            return self.accept(record, span, out);
        }
        let read = salvage(line);
        if read.unreadable {
            self.note(span.damage(What::Unreadable));
        } else if read.nul {
            self.note(span.damage(What::Nul));
        } else if read.records.len() > 1 {
            self.note(span.damage(What::Welded));
        }
        for record in read.records {
            self.accept(record, span, out);
        }
    }

    /// Serves a record if its number is the next one; else judges by what follows.
    fn accept(&mut self, record: Record, span: Span, out: &mut impl Sink) {
        if let Some((held, held_span)) = self.held.take() {
            if record.seq > held.seq {
                self.serve_after_gap(held, held_span, out);
            } else if record.seq > self.last && record.seq < held.seq {
                self.note(held_span.damage(What::Misnumbered { seq: held.seq }));
            } else {
                self.held = Some((held, held_span));
                return self.note(span.damage(What::Repeated { seq: record.seq }));
            }
        }
        if record.seq <= self.last {
            self.note(span.damage(What::Repeated { seq: record.seq }));
        } else if record.seq == self.last + 1
            || record.kind == Kind::Damage
            || (self.last == 0 && record.kind == Kind::Deleted)
        {
            // A tombstone keeps the number it was given; what was before it is gone on purpose. A
            // repair puts a record in the place of those that are lost.
            self.serve(record, span, out);
        } else {
            self.held = Some((record, span));
        }
    }

    fn serve(&mut self, record: Record, span: Span, out: &mut impl Sink) {
        self.last = record.seq;
        if record.seq >= self.from {
            out.put(record, span.offset);
        }
    }

    fn serve_after_gap(&mut self, record: Record, span: Span, out: &mut impl Sink) {
        // Where reading began in the middle there is no number to miss.
        if self.last > 0 || self.lines.is_some() {
            self.note(span.damage(What::Gap { after: self.last, next: record.seq }));
        }
        self.serve(record, span, out);
    }

    /// Serves a record that is held: nothing follows that could speak against it.
    fn let_go(&mut self, out: &mut impl Sink) {
        if let Some((held, span)) = self.held.take() {
            self.serve_after_gap(held, span, out);
        }
    }

    /// The next line that has its line end, without it.
    fn next_line(&mut self) -> Result<Option<(Bytes, Span)>, LogError> {
        loop {
            if let Some(found) = memchr::memchr(b'\n', &self.buf[self.scanned..]) {
                let line = self.buf.split_to(self.scanned + found).freeze();
                self.buf.advance(1);
                let span = Span {
                    offset: self.at,
                    bytes: line.len() as u64,
                    line: self.lines.map(|lines| lines + 1),
                };
                self.scanned = 0;
                self.at += span.bytes + 1;
                self.lines = span.line;
                match self.skip.take() {
                    None => return Ok(Some((line, span))),
                    Some(Skip::Rest) => {}
                    Some(Skip::TooLong(offset)) => {
                        let bytes = self.at - 1 - offset;
                        self.note(Span { offset, bytes, ..span }.damage(What::TooLong));
                    }
                }
                continue;
            }
            self.scanned = self.buf.len();
            if self.skip.is_none() && self.buf.len() > self.line_bytes_max {
                self.skip = Some(Skip::TooLong(self.at));
            }
            if self.skip.is_some() {
                self.at += self.buf.len() as u64;
                self.buf.clear();
                self.scanned = 0;
            }
            if self.fill()? == 0 {
                return Ok(None);
            }
        }
    }

    /// Reads one more piece; 0 at the present end.
    fn fill(&mut self) -> Result<usize, LogError> {
        let have = self.buf.len();
        let place = self.at + have as u64;
        if place >= self.known && self.known < self.limit {
            self.known = len_of(&self.file, &self.path)?;
        }
        let left = self.known.min(self.limit).saturating_sub(place);
        if left == 0 {
            if have == 0 {
                // A reader that waits at the end holds no memory.
                self.buf = BytesMut::new();
            }
            return Ok(0);
        }
        // Long lines are read in larger pieces, so that growing the buffer stays cheap.
        let piece = have.clamp(PIECE_BYTES, PIECE_BYTES_MAX);
        let piece = usize::try_from(left).map_or(piece, |left| left.min(piece));
        self.buf.resize(have + piece, 0);
        let read = loop {
            match self.file.read_at(&mut self.buf[have..], place) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.buf.truncate(have + read.as_ref().map_or(0, |read| *read));
        read.map_err(LogError::io("read", &self.path))
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
