//! Sending to an agent: each frame gets its number and its line in the ledger, and goes to the
//! holder after that.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use frontdesk_core::envelope::{Frame, Message, quote};
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::session::Tag;
use serde_json::json;
use tokio::sync::oneshot;

use super::instance::{Birth, Instance, Opened, Pending, Shared};
use super::ledger::{Entry, Ledger};
use super::link::Room;
use crate::lock::lock;
use crate::session::{LaneHandle, Mailbox};

/// A client's request for a session, and whose it is.
#[derive(Debug)]
pub struct Request<'a> {
    /// Names it in the answer.
    pub tag: Tag,
    /// The client's frame.
    pub frame: &'a Frame,
    /// Key of the client.
    pub client: &'a str,
    /// The agent's id of the session.
    pub native: &'a str,
    /// The turn it begins.
    pub turn: Option<&'a str>,
}

/// A call of the daemon's own that somebody waits for. Its answer is for nobody once that is over,
/// also where the caller has only stopped waiting.
struct Waiting<'a> {
    instance: &'a Instance,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.instance.shared).pending.remove(&self.id);
    }
}

impl Instance {
    /// Sends a notification; also where the ledger cannot be written, since a cancel must always work.
    ///
    /// # Errors
    /// If the instance has ended.
    pub async fn notify(&self, frame: Bytes) -> Result<(), WireError> {
        let message = Message::parse(frame.clone());
        let parsed = message.as_ref().ok().map(Message::frame);
        let method = parsed.map_or("", |frame| &*frame.method);
        let session = parsed.and_then(Frame::session_id).unwrap_or_default();
        let posted =
            self.post(Entry::Notification { method, session: &session }, frame.clone()).await;
        match posted {
            Err(error) if error.code == Code::Storage => {
                let room = self.room(frame.len()).await?;
                let mut ledger = self.ledger.lock().await;
                let number = ledger.skip();
                let frame = self.in_its_name(frame);
                self.link.put(number, frame, room).map_err(|_| self.ended_error())
            }
            posted => posted,
        }
    }

    /// Answers a request of the agent, which clients were asked under `hop`; without a frame it is
    /// only noted that the agent waits no more.
    ///
    /// # Errors
    /// If the instance has ended, or the ledger cannot be written ([`Code::Storage`]).
    pub async fn settle(&self, hop: &str, frame: Option<Bytes>) -> Result<(), WireError> {
        match frame {
            Some(frame) => self.post(Entry::Answer { hop }, frame).await,
            None => self.ledger.lock().await.waive(hop).map_err(|error| self.unwritten(&error)),
        }
    }

    /// Notes that the agent is owed an answer; `frame` where the journal does not have the request.
    ///
    /// # Errors
    /// If the ledger cannot be written ([`Code::Storage`]).
    pub async fn owe(
        &self,
        hop: &str,
        native: &str,
        frame: Option<&[u8]>,
    ) -> Result<(), WireError> {
        let owed = self.ledger.lock().await.owe(hop, native, frame);
        owed.map_err(|error| self.unwritten(&error))
    }

    /// Whether an earlier daemon has answered a request of the agent that is read again.
    pub(super) fn has_answered(&self, hop: &str) -> bool {
        self.answered.contains(hop)
    }

    /// An answer has been dealt with.
    pub async fn dealt_with(&self, number: u64) {
        self.hold_no_more(number);
        let mut ledger = self.ledger.lock().await;
        if let Err(error) = ledger.done(number) {
            // It stays open there: read again, its answer is late.
            tracing::warn!(instance = %self.id, %error, "failed to write the ledger");
        }
        self.cut_if_long(&mut ledger);
    }

    fn cut_if_long(&self, ledger: &mut Ledger) {
        if !ledger.is_long() {
            return;
        }
        let (accepted, acked) =
            (self.accepted.load(Ordering::Relaxed), self.acked.load(Ordering::Relaxed));
        if let Err(error) = ledger.cut(accepted, acked) {
            tracing::warn!(instance = %self.id, %error, "failed to cut the ledger");
        }
    }

    pub(super) fn unwritten(&self, error: &std::io::Error) -> WireError {
        tracing::warn!(instance = %self.id, %error, "failed to write the ledger");
        WireError::new(Code::Storage, "the ledger of the agent's instance could not be written")
            .with_data(json!({ "instance": self.id, "agent": self.agent.name }))
    }

    /// Room for a frame, before the ledger is locked: whoever reads the agent needs the ledger, and
    /// an agent that speaks may take nothing meanwhile.
    async fn room(&self, bytes: usize) -> Result<Room<'_>, WireError> {
        self.link.room(bytes).await.map_err(|_| self.ended_error())
    }

    async fn post(&self, entry: Entry<'_>, frame: Bytes) -> Result<(), WireError> {
        let room = self.room(frame.len()).await?;
        let mut ledger = self.ledger.lock().await;
        if self.has_ended().is_some() {
            return Err(self.ended_error());
        }
        let number = ledger.next();
        let frame = self.in_its_name(frame);
        ledger.input(number, entry, &frame).map_err(|error| self.unwritten(&error))?;
        self.cut_if_long(&mut ledger);
        self.link.put(number, frame, room).map_err(|_| self.ended_error())
    }

    /// Sends again what the ledger has and the holder has not, under its own numbers.
    ///
    /// # Errors
    /// If the instance has ended.
    pub async fn send_again(&self, frames: Vec<(u64, Bytes)>) -> Result<(), WireError> {
        let _in_order = self.ledger.lock().await;
        for (number, frame) in frames {
            self.link.send(number, frame).await.map_err(|_| self.ended_error())?;
        }
        Ok(())
    }

    /// The answer to a request that was sent before this daemon goes to this lane.
    pub fn await_answer(&self, number: u64, lane: &LaneHandle, tag: Tag, native: &str) {
        self.await_again(number, Pending::Lane(lane.clone(), tag, native.into()));
    }

    /// Sends a client's request for a session; its answer goes to the session's lane.
    ///
    /// # Errors
    /// If the instance has ended.
    pub async fn request_for(
        &self,
        lane: &LaneHandle,
        request: &Request<'_>,
    ) -> Result<u64, WireError> {
        let Request { tag, frame, client, native, turn } = *request;
        let id = frame.id().unwrap_or("null");
        let entry = Entry::Request { client, id, method: &frame.method, session: native, turn };
        let session = quote(native);
        let pending = Pending::Lane(lane.clone(), tag, native.into());
        let with_id = |id: &str| frame.spliced(Some(id), Some(&session));
        self.send_request(pending, entry, frame.text.len(), with_id).await
    }

    /// Calls a method of the daemon's own and waits while the agent says anything at all.
    ///
    /// # Errors
    /// The agent's end, or its silence for `silence_ms`. The agent's own error is an `Ok` frame.
    pub async fn call(
        &self,
        method: &str,
        params: &str,
        silence_ms: u64,
    ) -> Result<Frame, WireError> {
        let (tx, rx) = oneshot::channel();
        let entry = Entry::Request { client: "", id: "null", method, session: "", turn: None };
        let with_id = |id: &str| Frame::call(method, Some(id), params);
        let id = self.send_request(Pending::Call(tx), entry, params.len(), with_id).await?;
        let _waiting = Waiting { instance: self, id };
        self.while_it_speaks(rx, method, silence_ms).await
    }

    /// Asks the agent to open a session, and waits as [`Instance::call`] does.
    ///
    /// # Errors
    /// As [`Instance::call`].
    pub async fn call_opening(
        &self,
        method: &str,
        params: &str,
        native: &str,
    ) -> Result<Opened, WireError> {
        let (tx, rx) = oneshot::channel();
        let entry = Entry::Request { client: "", id: "null", method, session: native, turn: None };
        let pending = Pending::Opening(tx, native.into());
        let with_id = |id: &str| Frame::call(method, Some(id), params);
        let number = self.send_request(pending, entry, params.len(), with_id).await?;
        self.opened(rx, number, method).await
    }

    /// Waits for the answer to a request to open a session that is under way.
    ///
    /// # Errors
    /// As [`Instance::call`].
    pub async fn opened(
        &self,
        rx: oneshot::Receiver<Result<Opened, WireError>>,
        number: u64,
        method: &str,
    ) -> Result<Opened, WireError> {
        let answer = self.while_it_speaks(rx, method, self.limits.agent_open_ms).await;
        if let Err(error) = &answer {
            self.give_up_opening(number, error.code == Code::AgentTimeout);
        }
        answer
    }

    /// The answer to a request to open a session that was sent before this daemon.
    pub fn await_opening(
        &self,
        number: u64,
        native: &str,
    ) -> oneshot::Receiver<Result<Opened, WireError>> {
        let (tx, rx) = oneshot::channel();
        self.await_again(number, Pending::Opening(tx, native.into()));
        rx
    }

    /// The answer to a request of the daemon's own that was sent before this one.
    pub fn await_call(&self, number: u64) -> oneshot::Receiver<Result<Frame, WireError>> {
        let (tx, rx) = oneshot::channel();
        self.await_again(number, Pending::Call(tx));
        rx
    }

    /// The answer to a request to close a session that was sent before this daemon is for
    /// [`Instance::call_close`].
    pub fn await_close(&self, native: Box<str>, number: u64) {
        let answer = self.await_call(number);
        lock(&self.shared).closes.insert(native, answer);
    }

    /// Asks the agent to close a session, and waits as [`Instance::call`] does. Where an earlier daemon
    /// has asked that already it only waits: an agent may refuse to close what it is closing.
    ///
    /// # Errors
    /// As [`Instance::call`].
    pub async fn call_close(&self, native: &str) -> Result<Frame, WireError> {
        let (method, silence_ms) = ("session/close", self.limits.agent_close_ms);
        let asked = lock(&self.shared).closes.remove(native);
        if let Some(answer) = asked {
            return self.while_it_speaks(answer, method, silence_ms).await;
        }
        self.call(method, &json!({ "sessionId": native }).to_string(), silence_ms).await
    }

    fn await_again(&self, number: u64, pending: Pending) {
        let mut shared = lock(&self.shared);
        shared.pending.insert(number, pending);
        shared.asked.insert(number, self.now_ms());
    }

    /// Passes on a request whose answer names a new session.
    ///
    /// # Errors
    /// As [`Instance::call`]; an error answer of the agent's is an `Err` with its text in `data`.
    pub async fn call_birth(
        &self,
        frame: &Frame,
        session: Option<&str>,
        client: &str,
        lane: (LaneHandle, Mailbox),
    ) -> Result<Birth, WireError> {
        let (tx, rx) = oneshot::channel();
        let entry = Entry::Request {
            client,
            id: frame.id().unwrap_or("null"),
            method: &frame.method,
            session: session.unwrap_or_default(),
            turn: None,
        };
        let session = session.map(quote);
        let with_id = |id: &str| frame.spliced(Some(id), session.as_deref());
        let pending = Pending::Birth(tx, lane.0, lane.1);
        let id = self.send_request(pending, entry, frame.text.len(), with_id).await?;
        let answer = self.while_it_speaks(rx, &frame.method, self.limits.agent_open_ms).await;
        let mut shared = lock(&self.shared);
        shared.pending.remove(&id);
        if !shared.pending.values().any(|pending| matches!(pending, Pending::Birth(..))) {
            let dropped = shared.early.len() as u64;
            shared.early.clear();
            self.counters.dropped_updates.fetch_add(dropped, Ordering::Relaxed);
        }
        answer
    }

    async fn send_request(
        &self,
        pending: Pending,
        entry: Entry<'_>,
        bytes: usize,
        frame: impl FnOnce(&str) -> Bytes,
    ) -> Result<u64, WireError> {
        let room = self.room(bytes).await?;
        let mut ledger = self.ledger.lock().await;
        if self.has_ended().is_some() {
            return Err(self.ended_error());
        }
        let number = ledger.next();
        let frame = self.in_its_name(frame(&number.to_string()));
        ledger.input(number, entry, &frame).map_err(|error| self.unwritten(&error))?;
        self.cut_if_long(&mut ledger);
        {
            let mut shared = lock(&self.shared);
            shared.pending.insert(number, pending);
            let Shared { pending, asked, .. } = &mut *shared;
            asked.retain(|id, _| pending.contains_key(id));
            asked.insert(number, self.now_ms());
        }
        // An end between the check and this line has emptied the table already.
        if self.has_ended().is_some() || self.link.put(number, frame, room).is_err() {
            lock(&self.shared).pending.remove(&number);
            return Err(self.ended_error());
        }
        Ok(number)
    }

    async fn while_it_speaks<T>(
        &self,
        mut rx: oneshot::Receiver<Result<T, WireError>>,
        method: &str,
        silence_ms: u64,
    ) -> Result<T, WireError> {
        let started = self.now_ms();
        loop {
            let last = self.heard.load(Ordering::Relaxed).max(started);
            let silent = self.now_ms().saturating_sub(last);
            let left = silence_ms.saturating_sub(silent);
            if left == 0 {
                let text = format!(
                    "agent {} did not answer {method} within {silence_ms} ms",
                    self.agent.name
                );
                return Err(WireError::new(Code::AgentTimeout, text)
                    .with_data(json!({ "instance": self.id, "state": "silent" })));
            }
            match tokio::time::timeout(Duration::from_millis(left), &mut rx).await {
                Ok(Ok(answer)) => return answer,
                Ok(Err(_)) => return Err(self.ended_error()),
                Err(_) => {}
            }
        }
    }
}
