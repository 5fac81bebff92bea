//! A small blocking client of the daemon: JSON-RPC lines over the unix socket.
//!
//! Every command but the ones that start something uses it. One thread reads the socket into a
//! bounded queue; the command takes from the queue when it is ready, so a command that is slow to
//! print slows the daemon's outbox for it, not this process's memory. Key strokes and signals may
//! be put into the same queue, so a command has one place to wait at.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use frontdesk_core::envelope::{Frame, Message};
use frontdesk_core::limits::Limits;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::paths::Paths;
use crate::shim::daemon::{DaemonProcess, daemon_of};

/// Messages read ahead of the command.
const QUEUE_MESSAGES_MAX: usize = 64;
/// Messages put aside while a call waits for its answer.
const ASIDE_MESSAGES_MAX: usize = 16_384;
/// Time for the daemon to answer `initialize`.
const HANDSHAKE_MS_MAX: u64 = 10_000;
/// Time for the daemon to take a message.
const WRITE_MS_MAX: u64 = 30_000;
/// Time for a call that the daemon answers from memory or one file.
pub(crate) const CALL: Duration = Duration::from_secs(30);
/// Time for a call that may start an agent and open a session in it. The daemon's own limits are
/// shorter and give the better error.
pub(crate) const CALL_AGENT: Duration = Duration::from_secs(180);

/// What the queue brings.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message of the daemon.
    Message(Message),
    /// Ctrl-C.
    Interrupt,
    /// A line typed on the terminal.
    Typed(String),
    /// Nothing more will be typed.
    TypedEnd,
    /// The connection has ended.
    Ended(ClientError),
}

/// An error answer of the daemon.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RpcError {
    /// JSON-RPC error code.
    pub(crate) code: i64,
    /// One sentence.
    pub(crate) message: String,
    /// More, for programs.
    pub(crate) data: Option<Value>,
}

impl RpcError {
    fn parse(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        Self {
            code: value["code"].as_i64().unwrap_or(-32603),
            message: value["message"].as_str().unwrap_or("an error without a message").to_owned(),
            data: value.get("data").cloned(),
        }
    }

    /// What the data says beyond what the person just typed, for a line below the message.
    pub(crate) fn more(&self) -> Option<String> {
        let words: Vec<String> = self
            .data
            .as_ref()?
            .as_object()?
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "sessionId" | "retryable" | "method"))
            .map(|(name, value)| match value {
                Value::String(text) => format!("{name}: {text}"),
                other => format!("{name}: {other}"),
            })
            .collect();
        (!words.is_empty()).then(|| super::text::line(&words.join(", ")))
    }

    /// The error as the JSON document that `--json` prints.
    pub(crate) fn to_json(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        error
    }
}

/// Why the daemon could not be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// Nothing listens on the socket.
    #[error("no daemon is running (nothing listens on {0}); start one with `frontdesk serve`")]
    NoDaemon(PathBuf),
    /// The socket is there but cannot be used.
    #[error("failed to connect to {path}: {source}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The daemon answered with an error.
    #[error("{}", super::text::line(&.0.message))]
    Rpc(RpcError),
    /// The daemon closed the connection.
    #[error("the daemon closed the connection")]
    Closed,
    /// Reading or writing failed.
    #[error("failed to talk to the daemon: {0}")]
    Io(#[from] io::Error),
    /// A daemon is there and does not say a word.
    #[error("{0}")]
    Silent(String),
    /// No answer in time.
    #[error("failed to get an answer to {method} within {seconds} s")]
    Timeout {
        /// The method.
        method: String,
        /// How long was waited.
        seconds: u64,
    },
    /// The answer has another shape than this version expects.
    #[error(
        "failed to read the answer to {method}: {source}; are client and daemon of one version?"
    )]
    Shape {
        /// The method.
        method: String,
        /// What did not fit.
        source: serde_json::Error,
    },
    /// The daemon sent a line that is no message, or one above the limit.
    #[error("failed to read from the daemon: {0}")]
    Garbage(String),
    /// More messages than can be put aside.
    #[error("failed to wait for {0}: too many other messages came first")]
    Flooded(String),
    /// Ctrl-C while a call waited.
    #[error("interrupted")]
    Interrupted,
}

/// How a command introduces itself.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    /// The client key: a fresh UUID for each command.
    pub(crate) client_key: String,
    /// The folder the command runs in.
    pub(crate) cwd: PathBuf,
    /// Whether the command can write files for an agent. Only the demo can.
    pub(crate) writes_files: bool,
}

impl Hello {
    /// The introduction of an ordinary command.
    pub(crate) fn new(cwd: &Path) -> Self {
        Self {
            client_key: uuid::Uuid::now_v7().to_string(),
            cwd: cwd.to_path_buf(),
            writes_files: false,
        }
    }
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    method: String,
    frame: Frame,
}

impl Answer {
    /// The result's JSON text, exactly as sent.
    pub(crate) fn raw(&self) -> &str {
        self.frame.result().unwrap_or("null")
    }

    /// The result as a typed value.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_str(self.raw())
            .map_err(|source| ClientError::Shape { method: self.method.clone(), source })
    }
}

/// A connection to the daemon.
pub(crate) struct Client {
    stream: UnixStream,
    sender: SyncSender<Event>,
    events: Receiver<Event>,
    aside: VecDeque<Event>,
    next_id: u64,
    ended: bool,
}

impl Client {
    /// Connects, introduces the command and initializes.
    ///
    /// # Errors
    /// [`ClientError::NoDaemon`] where nothing listens; else what went wrong.
    pub(crate) fn connect(paths: &Paths, hello: &Hello) -> Result<Self, ClientError> {
        let path = paths.socket();
        let stream = UnixStream::connect(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ClientError::NoDaemon(path.clone())
            }
            _ => ClientError::Connect { path: path.clone(), source },
        })?;
        stream.set_write_timeout(Some(Duration::from_millis(WRITE_MS_MAX)))?;
        let (sender, events) = sync_channel(QUEUE_MESSAGES_MAX);
        let (reader, queue) = (stream.try_clone()?, sender.clone());
        std::thread::Builder::new()
            .name("reader".to_owned())
            .spawn(move || read_messages(reader, &queue, Limits::default().frame_bytes))?;
        let aside = VecDeque::new();
        let mut client = Self { stream, sender, events, aside, next_id: 0, ended: false };
        client.write_line(&json!({
            "frontdesk": 1,
            "face": "acp",
            "client": hello.client_key,
            "kind": "cli",
            "cwd": hello.cwd,
            // The command line speaks one spelling, whatever the configuration says.
            "statusWords": "active",
        }))?;
        let capabilities = if hello.writes_files {
            json!({ "fs": { "readTextFile": false, "writeTextFile": true } })
        } else {
            json!({})
        };
        let greeted = client.call(
            "initialize",
            &json!({
                "protocolVersion": 1,
                "clientCapabilities": capabilities,
                "clientInfo": { "name": "frontdesk-cli", "version": env!("CARGO_PKG_VERSION") },
            }),
            Duration::from_millis(HANDSHAKE_MS_MAX),
        );
        match greeted {
            Ok(_) => Ok(client),
            Err(ClientError::Timeout { seconds, .. }) => {
                Err(ClientError::Silent(silent(seconds, daemon_of(paths))))
            }
            Err(error) => Err(error),
        }
    }

    /// The queue's entrance, for other threads that have something to say to the command.
    pub(crate) fn sender(&self) -> SyncSender<Event> {
        self.sender.clone()
    }

    /// Sends a request and returns its id.
    pub(crate) fn request(
        &mut self,
        method: &str,
        params: &impl Serialize,
    ) -> Result<String, ClientError> {
        self.next_id += 1;
        self.write_line(
            &json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params }),
        )?;
        Ok(self.next_id.to_string())
    }

    /// Sends a notification.
    pub(crate) fn notify(
        &mut self,
        method: &str,
        params: &impl Serialize,
    ) -> Result<(), ClientError> {
        self.write_line(&json!({ "jsonrpc": "2.0", "method": method, "params": params }))
    }

    /// Answers a request of the daemon; `id` is the id's JSON text as it came.
    pub(crate) fn answer(&mut self, id: &str, result: &Value) -> Result<(), ClientError> {
        self.write_bytes(&Frame::success(id, &result.to_string()))
    }

    /// Answers a request of the daemon with an error.
    pub(crate) fn refuse(&mut self, id: &str, code: i64, message: &str) -> Result<(), ClientError> {
        let error = json!({ "code": code, "message": message }).to_string();
        self.write_bytes(&Frame::failure(id, &error))
    }

    /// Sends a request and waits for its answer. What comes in between is put aside for
    /// [`Client::next`].
    ///
    /// # Errors
    /// [`ClientError::Rpc`] for an error answer; else why there is none.
    pub(crate) fn call(
        &mut self,
        method: &str,
        params: &impl Serialize,
        wait: Duration,
    ) -> Result<Answer, ClientError> {
        let id = self.request(method, params)?;
        let deadline = Instant::now() + wait;
        loop {
            match self.receive(Some(deadline.saturating_duration_since(Instant::now())))? {
                None => {
                    let seconds = wait.as_secs();
                    return Err(ClientError::Timeout { method: method.to_owned(), seconds });
                }
                Some(Event::Message(Message::Response(frame)))
                    if frame.id() == Some(id.as_str()) || is_for_nobody(&frame) =>
                {
                    return answer(method, frame);
                }
                Some(Event::Ended(error)) => return Err(error),
                Some(Event::Interrupt) => return Err(ClientError::Interrupted),
                Some(other) if self.aside.len() < ASIDE_MESSAGES_MAX => self.aside.push_back(other),
                Some(_) => return Err(ClientError::Flooded(method.to_owned())),
            }
        }
    }

    /// The next event; `None` when the time is over. Without a time it waits for ever.
    ///
    /// # Errors
    /// When the connection has ended.
    pub(crate) fn next(&mut self, wait: Option<Duration>) -> Result<Option<Event>, ClientError> {
        let event = match self.aside.pop_front() {
            Some(event) => Some(event),
            None => self.receive(wait)?,
        };
        match event {
            Some(Event::Ended(error)) => Err(error),
            event => Ok(event),
        }
    }

    fn receive(&mut self, wait: Option<Duration>) -> Result<Option<Event>, ClientError> {
        // This client holds a sender of its own, so the queue never ends by itself.
        if self.ended {
            return Err(ClientError::Closed);
        }
        let event = match wait {
            None => self.events.recv().map_err(|_| ClientError::Closed)?,
            Some(wait) => match self.events.recv_timeout(wait) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(ClientError::Closed),
            },
        };
        self.ended = matches!(event, Event::Ended(_));
        Ok(Some(event))
    }

    fn write_line(&mut self, value: &Value) -> Result<(), ClientError> {
        self.write_bytes(value.to_string().as_bytes())
    }

    fn write_bytes(&mut self, text: &[u8]) -> Result<(), ClientError> {
        let mut line = Vec::with_capacity(text.len() + 1);
        line.extend_from_slice(text);
        line.push(b'\n');
        self.stream.write_all(&line).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ClientError::Closed,
            _ => ClientError::Io(error),
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Wakes the reading thread, which holds the other half.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Which daemon it is that does not answer, and what to type.
fn silent(seconds: u64, daemon: Option<DaemonProcess>) -> String {
    let Some(DaemonProcess { pid, is_stopped }) = daemon else {
        return format!("failed to get a word from the daemon within {seconds} s");
    };
    let what = if is_stopped {
        format!("it is stopped (SIGSTOP); let it go on with `kill -CONT {pid}`")
    } else {
        "it may be busy, or hang; try again".to_owned()
    };
    format!(
        "failed to get a word from the daemon, pid {pid}, within {seconds} s: {what}, or end it with \
         `kill -KILL {pid}`: agents and their turns go on, and the next daemon takes them over"
    )
}

/// The outcome of a response frame.
pub(crate) fn answer(method: &str, frame: Frame) -> Result<Answer, ClientError> {
    match frame.error() {
        Some(error) => Err(ClientError::Rpc(RpcError::parse(error))),
        None => Ok(Answer { method: method.to_owned(), frame }),
    }
}

/// An error that the daemon could not tie to a request, such as a refused connection.
fn is_for_nobody(frame: &Frame) -> bool {
    frame.error().is_some() && matches!(frame.id(), None | Some("null"))
}

/// Reads messages into the queue until the stream or the reader of the queue ends. A line may have
/// `limit_bytes` without its line end.
fn read_messages(stream: UnixStream, queue: &SyncSender<Event>, limit_bytes: u64) {
    let mut reader = BufReader::with_capacity(64 << 10, stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let event = match reader.by_ref().take(limit_bytes + 1).read_until(b'\n', &mut line) {
            Ok(0) => Event::Ended(ClientError::Closed),
            Ok(_) if line.last() == Some(&b'\n') => {
                line.pop();
                match Message::parse(Bytes::copy_from_slice(&line)) {
                    Ok(message) => Event::Message(message),
                    Err(frontdesk_core::envelope::Malformed::Blank) => continue,
                    Err(error) => Event::Ended(ClientError::Garbage(error.to_string())),
                }
            }
            Ok(read) if read as u64 > limit_bytes => {
                let error = format!("a message is longer than {limit_bytes} bytes");
                Event::Ended(ClientError::Garbage(error))
            }
            Ok(_) => Event::Ended(ClientError::Closed),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                Event::Ended(ClientError::Closed)
            }
            Err(error) => Event::Ended(ClientError::Io(error)),
        };
        let ended = matches!(event, Event::Ended(_));
        if queue.send(event).is_err() || ended {
            return;
        }
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
