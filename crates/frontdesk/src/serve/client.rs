//! One connection on the unix socket: who calls, then frames in order.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use frontdesk_core::envelope::{Frame, Malformed, Message, batch_elements, peek_id};
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::lines::{Framed, Lines};
use frontdesk_core::status::Words;
use serde_json::json;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::conn::{Conn, Hello};
use crate::dispatch;
use crate::msp::{Face, Peer};
use crate::node::Node;

/// Bytes read at once; one such buffer serves all connections of a thread.
const READ_BYTES: usize = 64 << 10;
/// Longest first line, in bytes.
const HELLO_BYTES_MAX: usize = 64 << 10;
/// How often a connection whose client has finished sending looks for open requests.
const EOF_AGAIN: Duration = Duration::from_millis(5);

/// How long a client that has finished sending may take to read what waits for it.
const FLUSH: Duration = Duration::from_secs(5);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Serves one connection until it is gone.
pub(super) async fn serve(node: Arc<Node>, msp: Arc<Face>, stream: UnixStream) {
    if !is_own_user(&stream) {
        tracing::warn!("refused a connection of another user");
        return;
    }
    let (reader, writer) = stream.into_split();
    let mut input = Input { reader, lines: Lines::new(HELLO_BYTES_MAX, 0), ready: Vec::new() };
    let limit = Duration::from_millis(node.limits.handshake_ms);
    let hello = match tokio::time::timeout(limit, input.next()).await {
        Ok(Some(Framed::Line { text: line, .. })) => read_hello(&line),
        Ok(Some(Framed::TooLong { .. })) => Err("the first line is too long".to_owned()),
        Ok(None) => return,
        Err(_) => Err(format!("no first line came within {} ms", limit.as_millis())),
    };
    let is_msp = hello.as_ref().is_ok_and(|hello| hello.face == "msp");
    let is_again = hello.as_ref().is_ok_and(|hello| hello.again);
    let conn = match hello.and_then(|hello| greet(&node, hello)) {
        Ok(conn) => conn,
        Err(text) => return refuse(writer, &WireError::new(Code::InvalidRequest, text)).await,
    };
    if is_again {
        node.replace_conns(&conn.key);
    }
    if !node.add_conn(&conn) {
        let text = format!("{} clients are connected already", node.limits.connections);
        return refuse(writer, &WireError::new(Code::TooMany, text)).await;
    }
    let stall = Duration::from_millis(node.limits.client_stall_ms);
    let mut writing = {
        let conn = conn.clone();
        tokio::spawn(async move { conn.outbox.write_to(writer, stall).await })
    };
    let limits = &node.limits;
    let frame_bytes = if is_msp { limits.msp_frame_bytes } else { limits.frame_bytes };
    input.lines.set_limit(usize::try_from(frame_bytes).unwrap_or(usize::MAX));
    if is_msp {
        read_msp(msp, &conn, &mut input).await;
    } else {
        read(&node, &conn, &mut input).await;
    }
    finish(&node, &conn).await;
    // What waits is still written, as long as the client takes it.
    let flushed = tokio::time::timeout(FLUSH, &mut writing).await.is_ok();
    node.remove_conn(&conn).await;
    // A finished task must not be waited for again.
    if !flushed {
        let _ = writing.await;
    }
}

fn is_own_user(stream: &UnixStream) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0)
}

fn read_hello(line: &[u8]) -> Result<Hello, String> {
    let hello: Hello = serde_json::from_slice(line).map_err(|_| {
        r#"the first line must name the face, as {"frontdesk":1,"face":"acp","client":"<uuid>"}"#.to_owned()
    })?;
    if hello.frontdesk != 1 {
        return Err(format!(
            "the first line has version {}; this daemon speaks 1",
            hello.frontdesk
        ));
    }
    if !matches!(&*hello.face, "acp" | "msp") {
        let face = &hello.face;
        return Err(format!("there is no face {face:?}; there are \"acp\" and \"msp\""));
    }
    Ok(hello)
}

fn greet(node: &Node, hello: Hello) -> Result<Arc<Conn>, String> {
    let words = match &hello.status_words {
        None => node.words(),
        Some(text) => Words::from_text(text)
            .ok_or_else(|| format!("statusWords must be \"active\" or \"open\", not {text:?}"))?,
    };
    if let Some(agent) = &hello.agent {
        node.agent_or_error(agent).map_err(|error| error.message)?;
    }
    let key = hello.client.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let key = key.chars().take(128).collect::<String>();
    Ok(Arc::new(Conn::new(node.next_conn(), key.into(), hello, words, node.limits.outbox_bytes)))
}

async fn refuse(mut writer: OwnedWriteHalf, error: &WireError) {
    use tokio::io::AsyncWriteExt as _;
    let mut line = Frame::failure("null", &error.to_json()).to_vec();
    line.push(b'\n');
    let _ = tokio::time::timeout(Duration::from_secs(1), writer.write_all(&line)).await;
}

/// Reads frames until the client stops sending, is cut off, or takes nothing any more.
async fn read(node: &Arc<Node>, conn: &Arc<Conn>, input: &mut Input) {
    let mut garbage = 0;
    while let Some(line) = input.next().await {
        let error = match line {
            Framed::Line { text, .. } => match Message::parse(text.clone()) {
                Ok(message) => {
                    dispatch::message(node, conn, message).await;
                    continue;
                }
                Err(Malformed::Blank) => continue,
                Err(Malformed::Batch) if wants_no_answer(&text) => continue,
                Err(malformed) => unreadable(malformed),
            },
            Framed::TooLong { head, tail, bytes, .. } => {
                too_long(conn, node.limits.frame_bytes, &head, &tail, bytes);
                continue;
            }
        };
        garbage += 1;
        conn.send(Frame::failure("null", &error.to_json()));
        if garbage >= node.limits.client_garbage_lines {
            tracing::warn!(conn = %conn.id, lines = garbage, "cut a client off that sends no messages");
            conn.outbox.finish();
            return;
        }
    }
}

/// As [`read`], for the MSP face.
async fn read_msp(face: Arc<Face>, conn: &Arc<Conn>, input: &mut Input) {
    let peer = Peer::new(face, conn.clone());
    while let Some(line) = input.next().await {
        if !peer.take(line).await {
            break;
        }
    }
    peer.end();
}

/// A batch of notifications only is refused like every batch, and as a batch of notifications it
/// gets no answer (JSON-RPC 2.0, section 6).
fn wants_no_answer(text: &Bytes) -> bool {
    let elements = batch_elements(text);
    !elements.is_empty()
        && elements.into_iter().all(|e| matches!(Message::parse(e), Ok(Message::Notification(_))))
}

fn unreadable(malformed: Malformed) -> WireError {
    let code = match malformed {
        Malformed::NotJson => Code::ParseError,
        Malformed::NotMessage | Malformed::Batch | Malformed::Blank => Code::InvalidRequest,
    };
    WireError::new(code, malformed.to_string())
}

fn too_long(conn: &Conn, limit: u64, head: &[u8], tail: &[u8], bytes: u64) {
    let text = format!("the frame is {bytes} bytes long; the limit is {limit}");
    let error = WireError::new(Code::FrameTooLarge, text)
        .with_data(json!({ "bytes": bytes, "limitBytes": limit }));
    let id = peek_id(head, tail).unwrap_or_else(|| "null".to_owned());
    conn.send(Frame::failure(&id, &error.to_json()));
}

/// The client has finished sending: what it asked is still answered for a while.
async fn finish(node: &Node, conn: &Conn) {
    let until = tokio::time::Instant::now() + Duration::from_millis(node.limits.client_eof_ms);
    while conn.open_requests() > 0 && tokio::time::Instant::now() < until {
        tokio::time::sleep(EOF_AGAIN).await;
    }
    conn.outbox.finish();
}

/// The reading side of a connection.
struct Input {
    reader: OwnedReadHalf,
    lines: Lines,
    /// Lines that have been read and not taken, last first.
    ready: Vec<Framed>,
}

impl Input {
    /// The next line; `None` at the end.
    async fn next(&mut self) -> Option<Framed> {
        loop {
            if let Some(line) = self.ready.pop() {
                return Some(line);
            }
            match poll_fn(|cx| self.poll_read(cx)).await {
                Ok(0) => {
                    let mut last = None;
                    self.lines.finish(|line| last = Some(line));
                    return last;
                }
                Ok(_) => self.ready.reverse(),
                Err(_) => return None,
            }
        }
    }

    /// Reads once what is there. The runtime knows that a read which did not fill the buffer has
    /// emptied the socket, so that waiting for the next frame costs no second read.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut piece = ReadBuf::new(scratch);
            ready!(Pin::new(&mut self.reader).poll_read(cx, &mut piece))?;
            self.lines.feed(piece.filled(), |line| self.ready.push(line));
            Poll::Ready(Ok(piece.filled().len()))
        })
    }
}
