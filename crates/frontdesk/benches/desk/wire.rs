//! One client, the same on pipes and on sockets: whole lines out, lines in, nothing clever.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, bail, ensure};
use memchr::{memchr, memchr_iter, memmem};
use serde_json::Value;

/// Bytes read at once.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes kept of a line that goes over pieces, while lines are only counted.
const TAIL_BYTES: usize = 4 << 10;

/// A connection to an agent or to what stands for one.
pub(crate) struct Wire {
    out: File,
    input: File,
    buffer: Vec<u8>,
    /// The unread bytes in the buffer.
    from: usize,
    to: usize,
    last_id: u64,
}

/// What a stream brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// Lines, the answer included.
    pub(crate) lines: u64,
    /// Bytes, line ends included.
    pub(crate) bytes: u64,
}

impl Wire {
    /// A client that writes to `out` and reads from `input`.
    pub(crate) fn new(out: OwnedFd, input: OwnedFd) -> Self {
        let buffer = vec![0; PIECE_BYTES];
        Self { out: out.into(), input: input.into(), buffer, from: 0, to: 0, last_id: 0 }
    }

    /// Sends bytes that end with a line end.
    pub(crate) fn send(&mut self, line: &[u8]) -> Result<()> {
        self.out.write_all(line).context("failed to send")
    }

    /// The next line without its line end.
    pub(crate) fn line(&mut self) -> Result<&[u8]> {
        let mut seen = 0;
        loop {
            if let Some(at) = memchr(b'\n', &self.buffer[self.from + seen..self.to]) {
                let line = self.from..self.from + seen + at;
                self.from = line.end + 1;
                return Ok(&self.buffer[line]);
            }
            seen = self.to - self.from;
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<()> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if self.to == self.buffer.len() {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            if self.to == self.buffer.len() {
                self.buffer.resize(self.to * 2, 0);
            }
        }
        let read = self.input.read(&mut self.buffer[self.to..]).context("failed to receive")?;
        ensure!(read > 0, "failed to receive: the other side has closed the connection");
        self.to += read;
        Ok(())
    }

    /// A request as a line; `params` is JSON text.
    pub(crate) fn request(&mut self, method: &str, params: &str) -> Vec<u8> {
        self.last_id += 1;
        request(self.last_id, method, params)
    }

    /// Asks and waits for the answer; what comes before it is passed over.
    pub(crate) fn call(&mut self, method: &str, params: &str) -> Result<Value> {
        let line = self.request(method, params);
        self.send(&line)?;
        let id = self.last_id;
        loop {
            let answer: Value = serde_json::from_slice(self.line()?)?;
            if answer["id"] != id || answer.get("method").is_some() {
                continue;
            }
            if answer["error"].is_null() {
                return Ok(answer["result"].clone());
            }
            bail!("failed to call {method}: {}", answer["error"]);
        }
    }

    /// Sends a request and waits for a line that answers one; notifications are passed over.
    pub(crate) fn trip(&mut self, line: &[u8]) -> Result<()> {
        self.send(line)?;
        loop {
            let answer = self.line()?;
            if memmem::find(answer, br#""result":"#).is_some() {
                return Ok(());
            }
            if memmem::find(answer, br#""method":"#).is_none() {
                bail!("failed to ask: {}", String::from_utf8_lossy(answer));
            }
        }
    }

    /// Reads `lines` lines.
    pub(crate) fn skip(&mut self, lines: usize) -> Result<()> {
        for _ in 0..lines {
            self.line()?;
        }
        Ok(())
    }

    /// Counts lines up to the answer of a prompt, which is the last thing to come.
    pub(crate) fn count_to_answer(&mut self) -> Result<Counted> {
        let mut counted = Counted::default();
        let mut tail = Vec::new();
        loop {
            let piece = &self.buffer[self.from..self.to];
            counted.bytes += piece.len() as u64;
            counted.lines += memchr_iter(b'\n', piece).count() as u64;
            tail.extend_from_slice(&piece[piece.len().saturating_sub(TAIL_BYTES)..]);
            tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
            self.from = self.to;
            if tail.last() == Some(&b'\n') {
                let start = tail[..tail.len() - 1].iter().rposition(|byte| *byte == b'\n');
                let last = &tail[start.map_or(0, |at| at + 1)..];
                if memmem::find(last, br#""stopReason":"#).is_some() {
                    return Ok(counted);
                }
                ensure!(
                    memmem::find(last, br#""error":{"#).is_none(),
                    "failed to prompt: {}",
                    String::from_utf8_lossy(last)
                );
            }
            self.fill()?;
        }
    }
}

/// A request as a line.
pub(crate) fn request(id: u64, method: &str, params: &str) -> Vec<u8> {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n")
        .into_bytes()
}
