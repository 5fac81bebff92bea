//! One MSP client: the handshake, whose a method is, and what it is sent.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use frontdesk_core::envelope::{Frame, Malformed, Message, peek_id};
use frontdesk_core::ids::{Key, SESSION_ID_BYTES_MAX};
use frontdesk_core::lines::Framed;
use frontdesk_core::msp::params::{Params, Read as _};
use frontdesk_core::msp::{ErrorKind, Initialize, MspError, gate};
use frontdesk_core::route::Meaning;
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use super::follow::Follower;
use super::fork::{self, Forked};
use super::{Face, command, decide, frames, list, news, page, read};
use crate::conn::outbox::Pushed;
use crate::conn::{Conn, Greeting};
use crate::lock::lock;
use crate::node::directory::Row;

/// Births that are remembered, so that a fork's own client is told of it once: by the answer's task
/// or by the news, whichever is first.
const STARTED_MAX: usize = 256;

/// One MSP connection.
#[derive(Debug)]
pub struct Peer {
    pub(super) face: Arc<Face>,
    pub(super) conn: Arc<Conn>,
    state: Mutex<State>,
    /// Requests that wait for their answers.
    waiting: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    said: Option<Arc<Initialize>>,
    /// The client said `initialized`: it is told what happens.
    told: Option<AbortHandle>,
    follows: HashMap<Key, Follower>,
    /// Sessions whose birth it was told, the last ones.
    started: VecDeque<Key>,
    garbage: u32,
    /// The connection is gone: what is still carried out for it is not followed.
    ended: bool,
}

/// What a method answers.
pub(super) type Answer = Result<Value, MspError>;

/// Where the work of a method is done.
enum Work {
    /// Here, in order with what the client sends next.
    Done(Answer),
    /// Done, and the client has its answer.
    Answered,
    /// In a task of its own: it reads a journal or waits for an agent.
    Task(Pin<Box<dyn Future<Output = Forked> + Send>>),
}

impl Work {
    fn task(work: impl Future<Output = Answer> + Send + 'static) -> Self {
        Self::Task(Box::pin(async move { (work.await, None) }))
    }
}

impl Peer {
    /// A client that named the face.
    #[must_use]
    pub fn new(face: Arc<Face>, conn: Arc<Conn>) -> Arc<Self> {
        let waiting = Arc::default();
        Arc::new(Self { face, conn, state: Mutex::default(), waiting })
    }

    /// Takes one line; `false` if the client is cut off.
    pub async fn take(self: &Arc<Self>, line: Framed) -> bool {
        let error = match line {
            Framed::Line { text, .. } => match Message::parse(text) {
                Ok(Message::Request(frame)) if frame.id() != Some("null") => {
                    self.request(frame).await;
                    return true;
                }
                Ok(Message::Request(_)) => {
                    MspError::new(ErrorKind::InvalidRequest, "a request's id cannot be null")
                }
                Ok(Message::Notification(frame)) => {
                    self.notified(&frame);
                    return true;
                }
                // Receipts of what was shown; nothing here waits for one.
                Ok(Message::Response(_)) | Err(Malformed::Blank) => return true,
                Err(Malformed::NotJson) => {
                    MspError::new(ErrorKind::ParseError, "the line is not valid JSON")
                }
                Err(malformed @ (Malformed::NotMessage | Malformed::Batch)) => {
                    MspError::new(ErrorKind::InvalidRequest, malformed.to_string())
                }
            },
            Framed::TooLong { head, tail, bytes, .. } => {
                self.too_long(&head, &tail, bytes);
                return true;
            }
        };
        self.conn.send(frames::failure("null", &error));
        let mut state = lock(&self.state);
        state.garbage += 1;
        let limit = self.face.node.limits.client_garbage_lines;
        let cut_off = state.garbage >= limit;
        drop(state);
        if cut_off {
            tracing::warn!(conn = %self.conn.id, lines = limit, "cut a client off that sends no messages");
            self.conn.outbox.finish();
        }
        !cut_off
    }

    /// The connection is gone: nothing more is read for it.
    pub fn end(&self) {
        let mut state = lock(&self.state);
        if let Some(told) = state.told.take() {
            told.abort();
        }
        // A follower ends when it is dropped.
        state.follows.clear();
        state.ended = true;
    }

    /// What the client said in `initialize`; `None` before it did.
    pub(super) fn said(&self) -> Option<Arc<Initialize>> {
        lock(&self.state).said.clone()
    }

    fn too_long(&self, head: &[u8], tail: &[u8], bytes: u64) {
        let limit = self.face.node.limits.msp_frame_bytes;
        let text = format!("the frame is {bytes} bytes long; the limit is {limit}");
        let (kind, id) = match peek_id(head, tail).filter(|id| id != "null") {
            Some(id) => (ErrorKind::InputTooLarge, id),
            None => (ErrorKind::ParseError, "null".to_owned()),
        };
        let error = MspError::new(kind, text).with("limitBytes", limit);
        self.conn.send(frames::failure(&id, &error));
    }

    async fn request(self: &Arc<Self>, frame: Frame) {
        let id = id_of(&frame);
        if !self.conn.opened(&id) {
            let text = "a request with this id is open already";
            let error = MspError::new(ErrorKind::InvalidRequest, text);
            self.conn.send(frames::failure(&id, &error));
            return;
        }
        match self.work(&frame).await {
            Ok(Work::Done(answer)) => self.answer(&id, answer),
            Ok(Work::Answered) => {}
            Ok(Work::Task(work)) => {
                let limit = self.face.node.limits.msp_requests;
                let (peer, waiting) = (self.clone(), Waiting::new(&self.waiting, limit));
                let Some(waiting) = waiting else {
                    let text = "too many requests wait for their answers";
                    let error = MspError::new(ErrorKind::Overloaded, text);
                    return self.answer(&id, Err(error));
                };
                tokio::spawn(async move {
                    let (answer, followed) = work.await;
                    peer.answer(&id, answer);
                    if let Some(key) = followed {
                        peer.go(key);
                    }
                    drop(waiting);
                });
            }
            Err(error) => self.answer(&id, Err(error)),
        }
    }

    /// Whose a method is. What is not here is not served, and says so.
    async fn work(self: &Arc<Self>, frame: &Frame) -> Result<Work, MspError> {
        let method = &*frame.method;
        let said = self.said();
        if method == "initialize" {
            return self.initialize(frame, said.is_some()).map(|result| Work::Done(Ok(result)));
        }
        let Some(said) = said else {
            return Err(MspError::new(ErrorKind::NotInitialized, "send initialize first"));
        };
        let params = params(frame)?;
        gate::check(method, &params, said.experimental)?;
        let peer = self.clone();
        Ok(match method {
            "session/list" => Work::task(async move { list::list(&peer, &params).await }),
            "session/read" => Work::task(async move { read::read(&peer, &params).await }),
            "session/rename" => Work::Done(command::rename(self, &params).await),
            "session/fork" => Work::Task(Box::pin(async move { fork::fork(&peer, &params).await })),
            "approval/decide" => Work::task(async move { decide::decide(&peer, &params).await }),
            "approval/listPending" => {
                Work::task(async move { read::pending(&peer, &params).await })
            }
            "view/page" => Work::task(async move { page::page(&peer, &params).await }),
            "view/subscribe" => self.subscribe(&params, &id_of(frame)).await?,
            "view/unsubscribe" => Work::Done(self.unsubscribe(&params).await),
            // The commands that begin and steer turns come here.
            _ => return Err(MspError::method_not_found(method)),
        })
    }

    fn initialize(&self, frame: &Frame, again: bool) -> Answer {
        if again {
            let text = "initialize was sent already on this connection";
            return Err(MspError::new(ErrorKind::AlreadyInitialized, text));
        }
        let said = Initialize::read(&params(frame)?)?;
        let result = said.result(&self.face.host);
        self.conn.greet(Greeting::read(frame.params().unwrap_or("{}")));
        lock(&self.state).said = Some(Arc::new(said));
        Ok(result)
    }

    fn notified(self: &Arc<Self>, frame: &Frame) {
        // Others (`userInput/engaged`) are hints for what comes with later methods.
        if &*frame.method != "initialized" {
            return;
        }
        let mut state = lock(&self.state);
        if state.said.is_some() && state.told.is_none() {
            let listener = self.face.node.feed.listen();
            state.told = Some(tokio::spawn(news::tell(self.clone(), listener)).abort_handle());
        }
    }

    /// Answers a request; an answer that is longer than a frame is an error instead.
    pub(super) fn answer(&self, id: &str, answer: Answer) {
        let text = match answer {
            Ok(result) => {
                let text = result.to_string();
                let limit = self.face.frame_bytes();
                if text.len() + id.len() + 64 <= limit {
                    return self.conn.answer(id, Ok(&text));
                }
                MspError::new(ErrorKind::Internal, "the answer is longer than a frame may be")
                    .with("limitBytes", limit)
                    .to_json()
            }
            Err(error) => error.to_json(),
        };
        self.conn.answer_error_text(id, &text);
    }

    /// Sends a notification the client did not opt out of.
    pub(super) fn notify(&self, method: &str, params: &Value) -> Pushed {
        let wants = self.said().is_some_and(|said| said.wants(method));
        if wants { self.send(frames::notification(method, params)) } else { Pushed::Fits }
    }

    pub(super) fn send(&self, frame: Bytes) -> Pushed {
        self.conn.send(frame)
    }

    /// Notes that the client was told of a birth; `false` if it was told before.
    pub(super) fn first_told(&self, key: Key) -> bool {
        let mut state = lock(&self.state);
        if state.started.contains(&key) {
            return false;
        }
        if state.started.len() >= STARTED_MAX {
            state.started.pop_front();
        }
        state.started.push_back(key);
        true
    }

    /// The session that `params.sessionId` means. One that nothing knows may be in a journal that
    /// the index does not have yet: that is waited for, at most `index_wait_ms`.
    pub(super) async fn row(&self, params: &Params) -> Result<Arc<Row>, MspError> {
        let unknown = |found: &Result<Arc<Row>, MspError>| matches!(found, Err(error) if error.kind == ErrorKind::SessionNotFound);
        let known = self.known_row(params);
        if !unknown(&known) {
            return known;
        }
        let complete = self.face.node.index_complete().await;
        let known = self.known_row(params);
        if unknown(&known) && !complete { Err(list::index_is_behind()) } else { known }
    }

    /// The session that `params.sessionId` means, as far as is known now.
    fn known_row(&self, params: &Params) -> Result<Arc<Row>, MspError> {
        let asked = params.needed("sessionId")?;
        let unknown = || MspError::session_not_found(asked);
        if asked.len() > SESSION_ID_BYTES_MAX {
            return Err(unknown());
        }
        let directory = &self.face.node.directory;
        match directory.resolve(asked, None) {
            Meaning::One(key) => {
                directory.get(key).filter(|row| !row.view.unproven).ok_or_else(unknown)
            }
            Meaning::Unknown => Err(unknown()),
            Meaning::Several(keys) => {
                let rows = keys.iter().filter_map(|key| directory.get(*key));
                let paths: Vec<Value> = rows.map(|row| json!(row.path)).collect();
                let text = "several sessions have this id; use one of their keys";
                Err(MspError::new(ErrorKind::SessionAmbiguous, text)
                    .with("sessionId", asked)
                    .with("paths", paths))
            }
        }
    }

    async fn subscribe(self: &Arc<Self>, params: &Params, id: &str) -> Result<Work, MspError> {
        let row = self.row(params).await?;
        let after = params.text("after")?;
        if !lock(&self.state).follows.contains_key(&row.key) {
            self.room_to_follow()?;
        }
        let (follower, head) = Follower::begin(self, &row, after).await?;
        self.keep_follower(row.key, follower).await;
        // The answer goes first; what is behind it is sent by the follower.
        self.answer(id, Ok(json!({ "viewCursor": head.text(row.key) })));
        self.go(row.key);
        Ok(Work::Answered)
    }

    /// Whether one more session may be followed.
    pub(super) fn room_to_follow(&self) -> Result<(), MspError> {
        let limit = self.face.node.limits.msp_subscriptions as usize;
        if lock(&self.state).follows.len() < limit {
            return Ok(());
        }
        let text = format!("{limit} sessions are followed already on this connection");
        Err(MspError::new(ErrorKind::Backpressured, text).with("capacity", limit))
    }

    /// Keeps a follower, in place of one of the same session.
    pub(super) async fn keep_follower(&self, key: Key, follower: Follower) {
        let before = {
            let mut state = lock(&self.state);
            if state.ended { None } else { state.follows.insert(key, follower) }
        };
        if let Some(before) = before {
            before.end().await;
        }
    }

    /// The client has its answer: what it follows may come.
    fn go(&self, key: Key) {
        if let Some(follower) = lock(&self.state).follows.get_mut(&key) {
            follower.go();
        }
    }

    async fn unsubscribe(&self, params: &Params) -> Answer {
        let asked = params.needed("sessionId")?;
        // A session that is gone meanwhile is followed no more all the same.
        let key = match self.known_row(params) {
            Ok(row) => row.key,
            Err(error) => asked.parse::<Key>().map_err(|_| error)?,
        };
        let before = lock(&self.state).follows.remove(&key);
        if let Some(before) = before {
            before.end().await;
        }
        Ok(json!({}))
    }
}

/// Counts a request that waits, within the limit.
struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn new(count: &Arc<AtomicUsize>, limit: u32) -> Option<Self> {
        let waiting = Self(count.clone());
        let before = count.fetch_add(1, Ordering::Relaxed);
        (before < limit as usize).then_some(waiting)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The id of a request, as JSON text.
fn id_of(frame: &Frame) -> String {
    frame.id().unwrap_or("null").to_owned()
}

/// The params of a request: an object, or nothing.
fn params(frame: &Frame) -> Result<Params, MspError> {
    let Some(text) = frame.params().filter(|text| *text != "null") else {
        return Ok(Params::new());
    };
    match serde_json::from_str(text) {
        Ok(Value::Object(params)) => Ok(params),
        _ => Err(MspError::invalid("params must be an object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_requests_wait_as_the_limit_says() {
        let count = Arc::default();
        let first = Waiting::new(&count, 2);
        let second = Waiting::new(&count, 2);
        assert!(first.is_some() && second.is_some());
        assert!(Waiting::new(&count, 2).is_none());
        assert!(Waiting::new(&count, 2).is_none(), "who was refused does not wait");
        drop(first);
        let third = Waiting::new(&count, 2);
        assert!(third.is_some());
        drop((second, third));
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }
}
