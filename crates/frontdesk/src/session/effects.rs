//! What a lane does: the machine's effects, carried out in order.
//!
//! Everything appended is written before anything that was said after it is shown; three kinds of
//! things wait until it is durable, which the machine marks with `Effect::Sync`.

use std::time::Duration;

use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::ids::ConnId;
use frontdesk_core::lease::Place;
use frontdesk_core::session::{CloseWhy, Effect, How, Input, Mark, Tag};

use tokio::sync::oneshot;

use super::LaneMsg;
use super::catch_up::CatchUp;
use super::find::Find;
use super::lane::Lane;
use crate::agent::sending::Request;
use crate::conn::outbox::Pushed;
use crate::node::OpenRequest;

/// Pause before a failed write is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// What is told in place of an answer that is not safe and will not be: the daemon ends.
const UNSAFE: &str = "what this asks for could not be made durable before the daemon ended";

/// What carrying out effects brought to light.
#[derive(Debug, Default)]
struct Found {
    /// Clients whose outbox is full.
    full: Vec<ConnId>,
    /// The stuck turn holds up nobody else: its instance may be ended.
    hopeless: bool,
    /// Records could not be made durable, and nobody will try again.
    is_unsafe: bool,
}

/// Whether somebody who gets this may ask how the session is and has to be told what made it: the
/// agent a prompt, a client an answer or a question.
fn can_be_read(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Send { .. } | Effect::Answer { .. } | Effect::Tell { hop: Some(_), .. }
    )
}

impl Lane {
    /// Carries out effects in order; everything appended up to the next wait is written in one go,
    /// before anything that was said after it. `false` if records are not safe and never will be.
    pub(super) async fn carry_out(&mut self, effects: Vec<Effect>) -> bool {
        let mut rest: std::collections::VecDeque<Effect> = effects.into();
        let mut is_told = false;
        while !rest.is_empty() {
            let end =
                rest.iter().position(|e| matches!(e, Effect::Sync)).map_or(rest.len(), |at| at + 1);
            let segment: Vec<Effect> = rest.drain(..end).collect();
            for effect in &segment {
                if let Effect::Append(record) = effect {
                    self.unwritten.push(record.clone());
                }
            }
            let mut found = Found::default();
            if !self.write().await {
                self.take_back(segment.into_iter().chain(rest)).await;
                return false;
            }
            let mut written = Vec::new();
            for effect in segment {
                match effect {
                    Effect::Append(record) => written.push(record),
                    effect => {
                        if !is_told && can_be_read(&effect) {
                            self.tell_directory();
                            is_told = true;
                        }
                        self.perform(effect, &mut found).await;
                    }
                }
            }
            if found.is_unsafe {
                self.take_back(rest).await;
                return false;
            }
            // Behind the sync where there is one: who follows is shown no more than clients are.
            self.node.feed.written(self.handle.key(), &written);
            self.shown = written.last().map_or(self.shown, |record| record.seq);
            let now = self.node.now();
            for conn in found.full {
                rest.extend(self.session.handle(Input::Lagging { conn }, now));
            }
            if found.hopeless {
                rest.extend(self.session.handle(Input::Unload { why: CloseWhy::Stuck }, now));
            }
        }
        true
    }

    /// Writes what is unwritten; while that fails nothing is shown and nothing is read. `false` if
    /// it never will be: the session was deleted, or the log has ended.
    pub(super) async fn write(&mut self) -> bool {
        while !self.unwritten.is_empty() {
            match self.journal.append(&self.unwritten) {
                Ok(ticket) => {
                    // With its room: the next records may be long in coming.
                    self.unwritten = Vec::new();
                    self.tell_behind();
                    if !ticket.is_settled() {
                        self.tickets.push(ticket);
                    }
                }
                Err(error) => {
                    if !self.behind {
                        tracing::error!(session = %self.handle.key(), %error, "failed to write the journal; waiting");
                    }
                    self.tell_behind();
                    if !error.is_retryable() {
                        self.unwritten.clear();
                        return false;
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        true
    }

    /// Waits until all that was appended is on the disk; clients are told when that takes long
    /// because the disk takes nothing. `false` if it will not be: the log has ended.
    pub(super) async fn sync(&mut self) -> bool {
        let mut is_safe = true;
        for ticket in std::mem::take(&mut self.tickets) {
            let mut synced = std::pin::pin!(ticket.synced());
            let outcome = loop {
                let mut health = self.health.clone();
                tokio::select! {
                    biased;
                    outcome = &mut synced => break outcome,
                    Ok(()) = health.changed() => {
                        self.health.mark_unchanged();
                        self.tell_behind();
                    }
                }
            };
            if let Err(error) = outcome {
                tracing::error!(session = %self.handle.key(), %error, "failed to make records durable");
                is_safe = false;
            }
        }
        self.tell_behind();
        is_safe
    }

    /// What would have been said after records that are not safe: it is not said. Records that come
    /// behind them are written all the same, and requests get an error.
    async fn take_back(&mut self, rest: impl IntoIterator<Item = Effect>) {
        for effect in rest {
            match effect {
                Effect::Append(record) if record.seq > self.journal.last_seq() => {
                    self.unwritten.push(record);
                }
                Effect::Answer { conn, id, .. } => {
                    if let Some(to) = self.conns.get(&conn) {
                        to.answer(&id, Err(&WireError::new(Code::Storage, UNSAFE)));
                    }
                }
                _ => {}
            }
        }
        self.write().await;
    }

    async fn perform(&mut self, effect: Effect, found: &mut Found) {
        match effect {
            Effect::Append(_) => {}
            Effect::Sync => found.is_unsafe |= !self.sync().await,
            Effect::Tell { conn, frame, hop, mark } => {
                let is_full = self.tell(conn, frame, hop.as_deref(), mark) == Pushed::Full;
                if is_full && hop.is_none() && !found.full.contains(&conn) {
                    found.full.push(conn);
                }
            }
            Effect::Answer { conn, id, frame, mark } => {
                if let Some(to) = self.conns.get(&conn) {
                    to.answer_marked(&id, self.marked(conn, mark), frame);
                }
            }
            Effect::Forget { conn, hop } => {
                if let Some(to) = self.conns.get(&conn) {
                    let _ = to.answered(&hop);
                }
            }
            Effect::CatchUp { conn, key, spelling, from, own_after } => {
                let Some(conn) = self.conns.get(&conn).cloned() else { return };
                let (lane, path) = (self.handle.clone(), self.journal.path().to_path_buf());
                let native = self.session.native().to_owned();
                let catch_up = CatchUp { conn, lane, path, native, spelling, key, from, own_after };
                tokio::spawn(catch_up.run());
            }
            Effect::TakenBack { conn, id } => {
                if let Some(conn) = self.conns.get(&conn) {
                    conn.opened(&id);
                }
            }
            Effect::Find { conn, key, prompts } => {
                let path = self.journal.path().to_path_buf();
                let find = Find { conn, lane: self.handle.clone(), path, key, prompts };
                tokio::spawn(find.run());
            }
            Effect::Send { tag, frame, client, turn } => {
                self.send(tag, &frame, &client, turn.as_deref()).await;
            }
            Effect::Notify(frame) => {
                if let Some(instance) = &self.instance {
                    let _ = instance.notify(frame).await;
                }
            }
            Effect::Owe { hop, frame } => self.owe(&hop, frame).await,
            Effect::Settle { hop, frame } => self.settle(&hop, frame).await,
            Effect::CancelSent(tag) => self.cancel_sent(tag).await,
            Effect::Open { conn, how, params, at } => self.open(conn, how, params, at),
            Effect::Shut { why } => self.shut(why).await,
            Effect::LetGo { at } => {
                if let Some(instance) = self.node.instance_at(&at) {
                    self.node.give_back(&instance, self.session.native()).await;
                }
            }
            Effect::EndStuck => {
                let key = self.handle.key();
                let instance = self.instance.as_deref();
                found.hopeless = instance.is_some_and(|i| !self.node.has_turn(i, Some(key)));
            }
            Effect::Joined { conn } => {
                if let Some(conn) = self.conns.get(&conn) {
                    conn.join(&self.handle);
                }
            }
            Effect::Left { conn } => {
                if let Some(conn) = self.conns.get(&conn) {
                    conn.leave(self.handle.key());
                }
            }
        }
    }

    /// Shows a client a frame; with `hop` it is a question that the client has to answer.
    fn tell(
        &self,
        conn: ConnId,
        frame: bytes::Bytes,
        hop: Option<&str>,
        mark: Option<Mark>,
    ) -> Pushed {
        let Some(to) = self.conns.get(&conn) else { return Pushed::Closed };
        if let Some(hop) = hop {
            to.expect(hop, &self.handle);
        }
        to.send_marked(self.marked(conn, mark), frame)
    }

    /// A mark with the session as the client spells it.
    fn marked(&self, conn: ConnId, mark: Option<Mark>) -> Option<(Mark, &str)> {
        Some((mark?, self.session.spelling_of(conn)?))
    }

    /// What the agent is owed is written down; until that works nothing else happens here.
    async fn owe(&self, hop: &str, frame: Option<bytes::Bytes>) {
        let Some(instance) = &self.instance else { return };
        let native = self.session.native();
        while instance.owe(hop, native, frame.as_deref()).await.is_err() {
            tokio::time::sleep(RETRY).await;
        }
    }

    /// An answer that cannot be written down is not sent yet: the agent waits for it.
    async fn settle(&self, hop: &str, frame: Option<bytes::Bytes>) {
        let Some(instance) = &self.instance else { return };
        while let Err(error) = instance.settle(hop, frame.clone()).await {
            if error.code != Code::Storage {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn cancel_sent(&self, tag: Tag) {
        if let (Some(instance), Some(id)) = (&self.instance, self.sent.get(&tag)) {
            let params = format!(r#"{{"requestId":{id}}}"#);
            let _ = instance.notify(Frame::call("$/cancel_request", None, &params)).await;
        }
    }

    async fn send(&mut self, tag: Tag, frame: &Frame, client: &str, turn: Option<&str>) {
        let sent = match &self.instance {
            Some(instance) => {
                let native = self.session.native();
                let request = Request { tag, frame, client, native, turn };
                instance.request_for(&self.handle, &request).await
            }
            None => Err(WireError::new(Code::InstanceEnded, "no instance has this session")),
        };
        match sent {
            Ok(id) => {
                self.sent.retain(|other, _| other.0 + 256 > tag.0);
                self.sent.insert(tag, id);
            }
            // The end of the instance comes through the mailbox and answers it with the rest.
            Err(error) if self.instance.as_ref().is_some_and(|i| i.has_ended().is_some()) => {
                tracing::debug!(%error.message, "a request met an instance that has ended");
            }
            Err(error) => {
                let handle = self.handle.clone();
                tokio::spawn(async move {
                    handle.send(LaneMsg::Input(Input::AgentError { tag, error })).await;
                });
            }
        }
    }

    fn open(
        &mut self,
        conn: Option<ConnId>,
        how: How,
        params: Option<bytes::Bytes>,
        at: Option<Place>,
    ) {
        let caused_by = conn.or_else(|| self.conns.keys().next().copied());
        let request = OpenRequest {
            lane: self.handle.clone(),
            view: self.session.view().clone(),
            journal: self.journal.path().to_path_buf(),
            previous: self.instance.take().or_else(|| self.previous.take()),
            conn: caused_by.and_then(|conn| self.conns.get(&conn).cloned()),
            how,
            params,
            at,
        };
        let node = self.node.clone();
        tokio::spawn(async move { node.open_session(request).await });
    }

    async fn shut(&mut self, why: CloseWhy) {
        let place = self.session.lease().owner();
        let own = self.instance.clone().or_else(|| self.doubted.clone());
        let instance = own.filter(|instance| place == Some(&instance.place()));
        // An instance that is not here any more has nothing; an address is another matter.
        let nobody = matches!(place, Some(Place::Instance(_)) | None);
        let handle = self.handle.clone();
        let node = self.node.clone();
        let native = self.session.native().to_owned();
        if let Some(instance) = &instance {
            instance.note_closing(&native, why).await;
        }
        let noted = instance.clone();
        tokio::spawn(async move {
            let let_go = match instance {
                Some(instance) => node.close_at_agent(&instance, &native, handle.key(), why).await,
                None => nobody,
            };
            handle.send(LaneMsg::Input(Input::Closed { let_go })).await;
            if let Some(instance) = noted {
                // Behind the record of it; a lane that ends drops this.
                let (done, is_done) = oneshot::channel();
                handle.send(LaneMsg::Durable { inputs: Vec::new(), done }).await;
                // It may rest at once.
                drop(handle);
                let _ = is_done.await;
                instance.note_closed();
            }
        });
    }
}
