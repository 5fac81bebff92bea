//! A connection to an agent that runs already: ACP over WebSocket, text frames of one message each.
//!
//! There is no holder and no spool: a frame counts as accepted when it is written to the socket, and
//! what the agent said while nobody was connected is not to be had. The end of the connection says
//! nothing about the agent's sessions; their claims stay with the url.

mod opening;
mod tls;
mod wire;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use frontdesk_core::limits::Limits;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use super::{ClaimOutcome, LinkError, LinkEvent, Room};
use crate::hold::claim::Claims;
pub use opening::{Address, UrlError};
pub use tls::TlsError;
use wire::Wire;

/// Frames queued for one connection, in bytes. A longer frame is queued when it has the queue for
/// itself.
const QUEUE_BYTES_MAX: u32 = 1 << 20;
/// Messages that are taken from the socket at one wake-up.
const BATCH_MESSAGES: usize = 64;
/// How long the last word to the other side may take.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long the other side is heard once nothing can be written to it.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Longest word of the other side that is repeated, in bytes.
const REASON_BYTES: usize = 200;

/// Claims of one url: they outlive its connections, since the agent may have the sessions all the same.
pub type UrlClaims = Arc<Mutex<Claims>>;

/// No claims yet, in this folder.
#[must_use]
pub fn claims_in(folder: &Path) -> UrlClaims {
    Arc::new(Mutex::new(Claims::new(folder.to_path_buf())))
}

type Socket = WebSocketStream<Wire>;

/// What both ends of a connection share.
#[derive(Debug)]
pub(super) struct Shared {
    /// One permit a byte of room in the queue.
    room: Semaphore,
    orders: mpsc::UnboundedSender<Order>,
    last_number: Mutex<u64>,
    /// The last frame that was written to the socket.
    written: AtomicU64,
    /// Set once it is over: why, and what the other side is told.
    over: watch::Sender<Option<Over>>,
    claims: UrlClaims,
}

#[derive(Clone, Debug)]
struct Over {
    why: String,
    code: CloseCode,
}

#[derive(Debug)]
enum Order {
    Frame { number: u64, text: Utf8Bytes, cost: u32 },
    Ping,
}

/// Connects and greets; the connection is there when this is done.
///
/// # Errors
/// If that does not succeed within `url_connect_ms`.
pub(super) async fn connect(
    address: Address<'_>,
    claims: UrlClaims,
    limits: &Limits,
) -> Result<(Arc<Shared>, Receiver), UrlError> {
    let (socket, bytes) = opening::open(address, limits).await?;
    let (sink, stream) = socket.split();
    let (orders, waiting) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        room: Semaphore::new(QUEUE_BYTES_MAX as usize),
        orders,
        last_number: Mutex::default(),
        written: AtomicU64::new(0),
        over: watch::Sender::new(None),
        claims,
    });
    tokio::spawn(write(shared.clone(), sink, waiting));
    let receiver = Receiver {
        stream,
        shared: shared.clone(),
        bytes,
        bytes_seen: 0,
        quiet_since: Instant::now(),
        is_pinged: false,
        ping: Duration::from_millis(limits.url_ping_ms),
        pong: Duration::from_millis(limits.url_pong_ms),
        offset: 0,
        accepted: 0,
        goodbye: None,
        is_over: false,
    };
    Ok((shared, receiver))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Shared {
    pub(super) async fn room(&self, bytes: usize) -> Result<Room<'_>, LinkError> {
        Room::wait(&self.room, bytes, QUEUE_BYTES_MAX).await.ok_or(LinkError::UrlLost)
    }

    pub(super) fn put(&self, number: u64, frame: Bytes, room: Room<'_>) -> Result<(), LinkError> {
        let text = Utf8Bytes::try_from(frame).map_err(|_| LinkError::NoText)?;
        if self.room.is_closed() {
            return Err(LinkError::UrlLost);
        }
        let mut last = lock(&self.last_number);
        if number <= *last {
            return Err(LinkError::OutOfOrder { number, last: *last });
        }
        *last = number;
        let sent = self.orders.send(Order::Frame { number, text, cost: room.taken() });
        sent.map_err(|_| LinkError::UrlLost)
    }

    /// Ends the connection, and nothing else: the agent runs on.
    pub(super) fn disconnect(&self) {
        self.end("Frontdesk has closed the connection", CloseCode::Normal);
    }

    fn end(&self, why: &str, code: CloseCode) {
        self.over.send_if_modified(|over| {
            let is_first = over.is_none();
            over.get_or_insert_with(|| Over { why: why.to_owned(), code });
            is_first
        });
        self.room.close();
    }

    pub(super) async fn claim(&self, name: &str, info: &str) -> Result<ClaimOutcome, LinkError> {
        let (claims, name, info) = (self.claims.clone(), name.to_owned(), info.to_owned());
        let claimed = tokio::task::spawn_blocking(move || lock(&claims).claim(&name, &info)).await;
        let claimed = claimed.map_err(|error| LinkError::Claim(error.to_string()))?;
        claimed.map_err(|error| LinkError::Claim(error.to_string()))
    }

    pub(super) fn release(&self, name: &str) {
        lock(&self.claims).release(name);
    }
}

/// Writes what is queued, in order, until the connection is over.
async fn write(
    shared: Arc<Shared>,
    mut sink: SplitSink<Socket, Message>,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    let mut over = shared.over.subscribe();
    loop {
        let order = tokio::select! {
            biased;
            () = is_over(&mut over) => break,
            order = orders.recv() => order,
        };
        let (message, frame) = match order {
            None => break,
            Some(Order::Ping) => (Message::Ping(Bytes::new()), None),
            Some(Order::Frame { number, text, cost }) => {
                (Message::Text(text), Some((number, cost)))
            }
        };
        let sent = tokio::select! {
            biased;
            // Also where the other side takes nothing.
            () = is_over(&mut over) => break,
            sent = sink.send(message) => sent,
        };
        if let Err(error) = sent {
            // What the agent said before is read first, and reading finds the same end; but not where
            // the other side goes on sending.
            shared.room.close();
            let _ = timeout(LAST_WORDS, is_over(&mut over)).await;
            shared.end(&in_words(&error), CloseCode::Away);
            return;
        }
        if let Some((number, cost)) = frame {
            shared.written.store(number, Ordering::Relaxed);
            shared.room.add_permits(cost as usize);
        }
    }
    let code = shared.over.borrow().as_ref().map_or(CloseCode::Normal, |over| over.code);
    let close = CloseFrame { code, reason: Utf8Bytes::default() };
    let _ = timeout(GOODBYE, sink.send(Message::Close(Some(close)))).await;
    let _ = timeout(GOODBYE, sink.close()).await;
}

async fn is_over(over: &mut watch::Receiver<Option<Over>>) {
    let _ = over.wait_for(Option::is_some).await;
}

/// The way from an agent.
#[derive(Debug)]
pub(super) struct Receiver {
    stream: SplitStream<Socket>,
    shared: Arc<Shared>,
    /// Bytes that came, whole messages or not: the sign of life.
    bytes: Arc<AtomicU64>,
    bytes_seen: u64,
    quiet_since: Instant,
    is_pinged: bool,
    ping: Duration,
    pong: Duration,
    /// Where in all that it said the next message begins, as if each were a line.
    offset: u64,
    accepted: u64,
    /// The reason that the other side gave with its last word.
    goodbye: Option<String>,
    is_over: bool,
}

impl Receiver {
    /// Waits for events and appends all that are there; `false` when there will be none any more.
    /// Dropping the future loses nothing. Nobody is called dead while this is not polled.
    pub(super) async fn next_batch(&mut self, out: &mut Vec<LinkEvent>) -> bool {
        if self.is_over {
            return false;
        }
        let before = out.len();
        let mut over = self.shared.over.subscribe();
        while out.len() == before {
            let wait = if self.is_pinged { self.pong } else { self.ping };
            let next = timeout_at(self.quiet_since + wait, self.stream.next());
            let next = tokio::select! {
                biased;
                () = is_over(&mut over) => break,
                next = next => next,
            };
            match next {
                Ok(message) => self.hear(message, out),
                Err(_) => self.is_quiet(),
            }
        }
        for _ in 1..BATCH_MESSAGES {
            let Some(message) = self.stream.next().now_or_never().filter(|_| !self.is_lost())
            else {
                break;
            };
            self.hear(message, out);
        }
        self.note_accepted(out);
        if self.is_lost() {
            self.is_over = true;
            let over = self.shared.over.borrow().clone();
            out.push(LinkEvent::Closed(over.map_or_else(String::new, |over| over.why)));
        }
        true
    }

    fn is_lost(&self) -> bool {
        self.shared.over.borrow().is_some()
    }

    fn note_accepted(&mut self, out: &mut Vec<LinkEvent>) {
        let written = self.shared.written.load(Ordering::Relaxed);
        if written > self.accepted {
            self.accepted = written;
            out.push(LinkEvent::Accepted(written));
        }
    }

    fn is_quiet(&mut self) {
        let bytes = self.bytes.load(Ordering::Relaxed);
        if bytes != self.bytes_seen {
            // A long message is on its way.
            self.lives();
        } else if self.is_pinged {
            let why = format!("it gave no sign of life within {} ms", self.pong.as_millis());
            self.shared.end(&why, CloseCode::Away);
        } else {
            self.is_pinged = true;
            self.quiet_since = Instant::now();
            let _ = self.shared.orders.send(Order::Ping);
        }
    }

    fn lives(&mut self) {
        self.bytes_seen = self.bytes.load(Ordering::Relaxed);
        self.quiet_since = Instant::now();
        self.is_pinged = false;
    }

    fn hear(&mut self, message: Option<Result<Message, Error>>, out: &mut Vec<LinkEvent>) {
        self.lives();
        match message {
            Some(Ok(Message::Text(text))) => {
                let text = one_line(text.into());
                self.offset += text.len() as u64 + 1;
                out.push(LinkEvent::Line { text, end: self.offset });
            }
            Some(Ok(Message::Close(close))) => {
                self.goodbye = Some(close.map_or_else(String::new, |close| told(&close)));
            }
            // No ACP message is binary, and pings are answered below this.
            Some(Ok(_)) => {}
            Some(Err(Error::Capacity(CapacityError::MessageTooLong { size, max_size }))) => {
                let (bytes, end) = (size as u64, self.offset);
                out.push(LinkEvent::TooLong { head: Bytes::new(), tail: Bytes::new(), bytes, end });
                let why =
                    format!("its frame of {size} bytes is longer than the limit of {max_size}");
                self.shared.end(&why, CloseCode::Size);
            }
            Some(Err(error)) => self.end(&in_words(&error)),
            None => self.end("it closed the connection"),
        }
    }

    fn end(&self, why: &str) {
        let why = match self.goodbye.as_deref() {
            Some(told) if !told.is_empty() => format!("it closed the connection: {told}"),
            Some(_) => "it closed the connection".to_owned(),
            None => why.to_owned(),
        };
        self.shared.end(&why, CloseCode::Protocol);
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.end("nobody reads it any more", CloseCode::Normal);
    }
}

/// A message as one line: line ends in JSON are blanks, since texts cannot hold any.
fn one_line(text: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &text).is_none() {
        return text;
    }
    let blank = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
    text.iter().map(blank).collect()
}

fn told(close: &CloseFrame) -> String {
    let code = u16::from(close.code);
    let reason = printable(&close.reason);
    if reason.is_empty() { format!("code {code}") } else { format!("code {code}, {reason}") }
}

/// What the other side said, fit for a message: its beginning, without control characters.
fn printable(text: &str) -> String {
    let mut said = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        if said.len() + c.len_utf8() > REASON_BYTES {
            break;
        }
        said.push(c);
    }
    said
}

fn in_words(error: &Error) -> String {
    match error {
        Error::ConnectionClosed
        | Error::AlreadyClosed
        | Error::Protocol(ProtocolError::SendAfterClosing) => "it closed the connection".to_owned(),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
            "the connection broke off".to_owned()
        }
        Error::Io(error) => {
            tls::ending(error).unwrap_or_else(|| format!("the connection broke off: {error}"))
        }
        error => format!("it does not keep to the WebSocket protocol: {error}"),
    }
}
