//! Lines in and out: bounded reading, whole-line writing, answers, and our own calls to the client.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::{Code, WireError};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::frames::FrameLog;
use super::lock;

/// An error answer, as JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure(pub(super) String);

impl Failure {
    /// `-32602` with one sentence.
    pub(super) fn params(message: &str) -> Self {
        WireError::new(Code::InvalidParams, message).into()
    }

    /// `-32600` with one sentence.
    pub(super) fn request(message: &str) -> Self {
        WireError::new(Code::InvalidRequest, message).into()
    }

    /// `-32603` with one sentence.
    pub(super) fn internal(message: &str) -> Self {
        WireError::new(Code::Internal, message).into()
    }

    /// `-32002` with the id as asked.
    pub(super) fn not_found(session: &str) -> Self {
        WireError::not_found(session).into()
    }

    /// Any code a script asks for.
    pub(super) fn custom(code: i64, message: &str) -> Self {
        Self(json!({ "code": code, "message": message }).to_string())
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Self(error.to_json())
    }
}

/// What reaches a running turn from outside.
#[derive(Debug)]
pub(super) enum Signal {
    /// `session/cancel`, or the session is being closed.
    Cancel,
    /// `$/cancel_request` for the prompt itself.
    CancelRequest,
    /// The client is gone: nobody will answer anything.
    Eof,
    /// The client answered our call: its result or its error object.
    Answer {
        /// The call's id.
        call: u64,
        /// What it answered.
        answer: Result<Value, Value>,
    },
}

/// The writing end, shared by all threads.
pub(super) struct Out {
    open: Mutex<bool>,
    /// A connection's queue, a message each; without one it is stdout.
    messages: Mutex<Option<mpsc::Sender<Bytes>>>,
    calls: Mutex<Calls>,
    log: Arc<FrameLog>,
}

#[derive(Default)]
struct Calls {
    last: u64,
    waiting: HashMap<u64, SyncSender<Signal>>,
}

impl Out {
    /// The process's stdout; what is written is noted in `log` first.
    pub(super) fn new(log: Arc<FrameLog>) -> Self {
        let messages = Mutex::default();
        Self { open: Mutex::new(true), messages, calls: Mutex::default(), log }
    }

    /// A connection: each line is one message.
    pub(super) fn to(messages: mpsc::Sender<Bytes>, log: Arc<FrameLog>) -> Self {
        Self { messages: Mutex::new(Some(messages)), ..Self::new(log) }
    }

    /// Notes a line that was read.
    pub(super) fn note_read(&self, line: &[u8]) {
        self.log.note("in", line);
    }

    /// Writes one line, whole. A client that is gone is no error: there is nobody to tell.
    pub(super) fn line(&self, text: &[u8]) {
        let mut line = Vec::with_capacity(text.len() + 1);
        line.extend_from_slice(text);
        line.push(b'\n');
        self.bytes(&line);
    }

    /// Writes bytes as they stand.
    pub(super) fn bytes(&self, bytes: &[u8]) {
        let mut open = lock(&self.open);
        if !*open {
            return;
        }
        self.log.note("out", bytes);
        let messages = lock(&self.messages).clone();
        if let Some(messages) = messages {
            for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                // Waits where the client is slow.
                *open &= messages.blocking_send(Bytes::copy_from_slice(line)).is_ok();
            }
        } else {
            let mut stdout = io::stdout().lock();
            *open = stdout.write_all(bytes).and_then(|()| stdout.flush()).is_ok();
        }
    }

    /// Sends a notification; `params` is JSON text.
    pub(super) fn notify(&self, method: &str, params: &str) {
        self.line(&Frame::call(method, None, params));
    }

    /// Answers a request; `id` is its JSON text.
    pub(super) fn answer(&self, id: &str, answer: &Result<Value, Failure>) {
        match answer {
            Ok(result) => self.line(&Frame::success(id, &result.to_string())),
            Err(Failure(error)) => self.line(&Frame::failure(id, error)),
        }
    }

    /// Answers a request and sends a notification right behind it, with nothing between.
    pub(super) fn answer_and_notify(&self, id: &str, result: &Value, method: &str, params: &str) {
        let answer = Frame::success(id, &result.to_string());
        let notification = Frame::call(method, None, params);
        self.line(&[&answer[..], &notification[..]].join(&b'\n'));
    }

    /// Sends a request and returns its id; the answer goes to `to`, or nowhere.
    pub(super) fn call(&self, method: &str, params: &str, to: Option<&SyncSender<Signal>>) -> u64 {
        let id = {
            let mut calls = lock(&self.calls);
            calls.last += 1;
            let id = calls.last;
            if let Some(to) = to {
                calls.waiting.insert(id, to.clone());
            }
            id
        };
        self.line(&Frame::call(method, Some(&id.to_string()), params));
        id
    }

    /// Stops waiting for a call's answer.
    pub(super) fn forget(&self, call: u64) {
        lock(&self.calls).waiting.remove(&call);
    }

    /// Hands the client's answer to the turn that waits for it; any other is dropped.
    pub(super) fn answered(&self, frame: &Frame) {
        let Some(call) = frame.id().and_then(|id| id.parse().ok()) else { return };
        let Some(to) = lock(&self.calls).waiting.remove(&call) else { return };
        let value = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
        let answer = match (frame.error(), frame.result()) {
            (Some(error), _) if error != "null" => Err(value(error)),
            (_, Some(result)) => Ok(value(result)),
            (_, None) => Err(Value::Null),
        };
        // Full only if the turn was cancelled many times over: it ends without this answer.
        let _ = to.try_send(Signal::Answer { call, answer });
    }

    /// Closes stdout for the client; everything written later is dropped.
    ///
    /// # Errors
    /// If the null device cannot take its place.
    pub(super) fn close(&self) -> io::Result<()> {
        let mut open = lock(&self.open);
        if lock(&self.messages).take().is_some() {
            // The last sender is gone, and the connection is closed behind what was said.
            *open = false;
            return Ok(());
        }
        // Descriptor 1 stays taken, so that no file opened later becomes "stdout" by accident.
        let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
        nix::unistd::dup2_stdout(&null)?;
        *open = false;
        Ok(())
    }

    /// Waits at most `limit` for a line being written to be whole, then lets no more begin.
    pub(super) fn settle(&self, limit: Duration) {
        let until = Instant::now() + limit;
        loop {
            if let Ok(mut open) = self.open.try_lock() {
                *open = false;
                return;
            }
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// One line without its line end.
    Line(Bytes),
    /// A line longer than the limit; it was skipped.
    TooLong,
    /// The end of the stream.
    End,
}

/// Reads one line of at most `max` bytes. The last line need not end.
///
/// # Errors
/// If the stream fails.
pub(super) fn read_line(reader: &mut impl BufRead, max: usize) -> io::Result<Read> {
    let mut line = Vec::new();
    let mut long = false;
    let mut any = false;
    loop {
        let chunk = match reader.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let ended = chunk.is_empty();
        any |= !ended;
        let at = chunk.iter().position(|byte| *byte == b'\n');
        let part = &chunk[..at.unwrap_or(chunk.len())];
        if line.len() + part.len() > max {
            long = true;
            line = Vec::new();
        }
        if !long {
            line.extend_from_slice(part);
        }
        let used = part.len() + usize::from(at.is_some());
        reader.consume(used);
        if at.is_some() || ended {
            return Ok(match (any, long) {
                (false, _) => Read::End,
                (true, true) => Read::TooLong,
                (true, false) => Read::Line(Bytes::from(line)),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_up_to_the_limit() {
        let text = b"one\r\n\n12345\n123456\nlast";
        for capacity in [1, 3, 64] {
            let mut reader = io::BufReader::with_capacity(capacity, &text[..]);
            let mut next = || read_line(&mut reader, 5).unwrap();
            assert_eq!(next(), Read::Line(Bytes::from_static(b"one\r")));
            assert_eq!(next(), Read::Line(Bytes::new()));
            assert_eq!(next(), Read::Line(Bytes::from_static(b"12345")));
            assert_eq!(next(), Read::TooLong);
            assert_eq!(next(), Read::Line(Bytes::from_static(b"last")));
            assert_eq!(next(), Read::End);
            assert_eq!(next(), Read::End);
        }
    }

    #[test]
    fn a_failure_is_one_line_of_json() {
        let Failure(text) = Failure::custom(-7, "a\n\"b\"");
        assert!(!text.contains('\n'));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["code"], -7);
        assert_eq!(value["message"], "a\n\"b\"");
    }
}
