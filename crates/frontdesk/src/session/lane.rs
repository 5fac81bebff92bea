//! The actor around the session machine.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::fold::View;
use frontdesk_core::ids::{ConnId, Key};
use frontdesk_core::record::{Kind, RECORD_VERSION, Record};
use frontdesk_core::session::{CloseWhy, Effect, Input, Phase, Session, Tag};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::catch_up::CatchUp;
use super::{LaneHandle, LaneMsg};
use crate::agent::instance::Instance;
use crate::conn::Conn;
use crate::conn::outbox::Pushed;
use crate::log::{Journal, LogError, Ticket};
use crate::node::{Node, OpenRequest};

/// Messages handled before effects are carried out: one write for all their records.
const BATCH_MESSAGES: usize = 64;
/// Pause before a failed write is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// How long somebody who joins waits for the word of an end, where a process is gone already.
const END_WORD: Duration = Duration::from_millis(250);
/// How long a lane waits for the one before it to let the journal go.
const FREE_WITHIN: Duration = Duration::from_secs(5);
/// How often a lane without work looks whether it may end.
const REST_AGAIN: Duration = Duration::from_secs(1);

/// How a lane begins.
#[derive(Debug)]
pub enum Start {
    /// From an existing journal, read in the lane.
    Journal(PathBuf),
    /// With a new journal, for a session that an agent has just made.
    Born {
        /// The journal.
        journal: Journal,
        /// The instance that has it.
        instance: Arc<Instance>,
        /// The client that asked, and `Input::Born`: handled before anything else.
        first: Box<(Arc<Conn>, Input)>,
    },
}

/// Starts a lane.
pub fn spawn(node: Arc<Node>, handle: LaneHandle, rx: mpsc::Receiver<LaneMsg>, start: Start) {
    tokio::spawn(async move {
        let key = handle.key();
        let mut mailbox = Some(rx);
        match begin(&node, handle, &mut mailbox, start).await {
            Ok(lane) => lane.run().await,
            Err(error) => {
                tracing::error!(session = %key, %error, "failed to open a journal");
                if let Some(rx) = mailbox {
                    refuse_all(rx).await;
                }
            }
        }
        node.lane_ended(key);
    });
}

async fn begin(
    node: &Arc<Node>,
    handle: LaneHandle,
    mailbox: &mut Option<mpsc::Receiver<LaneMsg>>,
    start: Start,
) -> Result<Lane, LogError> {
    let (journal, view, instance, first) = match start {
        Start::Born { journal, instance, first } => {
            (journal, View::default(), Some(instance), Some(*first))
        }
        Start::Journal(path) => {
            let log = node.log.clone();
            let opened = tokio::task::spawn_blocking(move || {
                // First the journal, so that the lane before this one has written its last word.
                let journal = open_when_free(&log, &path)?;
                let view = crate::node::recover::read_view(&path)?;
                Ok::<_, LogError>((journal, view))
            });
            let (journal, view) = opened.await.map_err(|_| LogError::Closed)??;
            (journal, view, None, None)
        }
    };
    let rx = mailbox.take().ok_or(LogError::Closed)?;
    let session = Session::cold(view, node.limits.clone(), node.now());
    let mut lane = Lane {
        node: node.clone(),
        handle,
        rx,
        session,
        journal,
        instance,
        previous: None,
        conns: HashMap::new(),
        sent: HashMap::new(),
        unwritten: Vec::new(),
        ticket: None,
        behind: false,
        entombed: false,
    };
    if let Some((conn, input)) = first {
        lane.conns.insert(conn.id, conn);
        let effects = lane.session.handle(input, lane.node.now());
        lane.carry_out(effects).await;
        lane.publish();
    }
    Ok(lane)
}

struct Lane {
    node: Arc<Node>,
    handle: LaneHandle,
    rx: mpsc::Receiver<LaneMsg>,
    session: Session,
    journal: Journal,
    instance: Option<Arc<Instance>>,
    /// The instance that had it last: it must be gone before another one may.
    previous: Option<Arc<Instance>>,
    conns: HashMap<ConnId, Arc<Conn>>,
    /// Requests at the agent: our tag to the id on the wire.
    sent: HashMap<Tag, u64>,
    unwritten: Vec<Record>,
    ticket: Option<Ticket>,
    /// The journal could not be written: the disk is full or gone.
    behind: bool,
    entombed: bool,
}

impl Lane {
    async fn run(mut self) {
        let mut batch = Vec::new();
        loop {
            if self.may_rest() {
                break;
            }
            let deadline = self.session.deadline_ms().map(|at| self.node.instant_of(at));
            let got = tokio::select! {
                got = self.rx.recv_many(&mut batch, BATCH_MESSAGES) => got,
                () = sleep_until(deadline) => {
                    batch.push(LaneMsg::Input(Input::Tick));
                    1
                }
                // Somebody still holds a handle: look again later.
                () = tokio::time::sleep(REST_AGAIN), if self.session.at_rest() => 1,
            };
            if got == 0 {
                break;
            }
            let mut effects = Vec::new();
            let mut handled = Vec::new();
            for message in batch.drain(..) {
                if let LaneMsg::Client(_, Input::Attach(_)) = &message {
                    self.look_at_instance(&mut effects).await;
                }
                self.take(message, &mut effects, &mut handled);
            }
            self.carry_out(effects).await;
            if let Some(instance) = &self.instance {
                for (done, end) in handled {
                    instance.handled(&done, end);
                }
            }
            self.publish();
            if self.entombed {
                break;
            }
        }
        self.finish().await;
    }

    /// Before somebody joins: an instance whose process has just died is not joined any more, also
    /// where the word of its end is still on its way.
    async fn look_at_instance(&mut self, effects: &mut Vec<Effect>) {
        let live = matches!(self.session.phase(), Phase::Live);
        let Some(instance) = self.instance.clone().filter(|i| live && !i.first_process_lives())
        else {
            return;
        };
        if let Some(ended) = instance.ends_within(END_WORD).await {
            let input = Input::Ended { why: ended.why, detail: ended.detail };
            effects.extend(self.session.handle(input, self.node.now()));
            self.previous = self.instance.take();
        }
    }

    fn take(
        &mut self,
        message: LaneMsg,
        effects: &mut Vec<Effect>,
        handled: &mut Vec<(Arc<std::sync::atomic::AtomicU64>, u64)>,
    ) {
        let now = self.node.now();
        let input = match message {
            LaneMsg::Input(input) => {
                if let Input::Detach { conn } = &input {
                    self.conns.remove(conn);
                }
                input
            }
            LaneMsg::Client(conn, input) => {
                self.conns.entry(conn.id).or_insert(conn);
                input
            }
            LaneMsg::Agent { message, at, done } => {
                let ours = self.instance.as_ref().is_some_and(|i| i.id == at.source.instance);
                handled.retain(|(other, _)| !Arc::ptr_eq(other, &done));
                handled.push((done, at.source.end));
                if !ours {
                    // A late frame of an instance that is not the owner any more.
                    return;
                }
                Input::Agent { message, at }
            }
            LaneMsg::Opening { instance, input } => {
                self.instance = Some(instance);
                input
            }
            LaneMsg::Ended { instance, input } => {
                if self.instance.as_ref().is_none_or(|own| own.id != instance) {
                    return;
                }
                input
            }
            LaneMsg::Describe(tx) => {
                let _ = tx.send(self.describe());
                return;
            }
            LaneMsg::Entomb(tx) => {
                let _ = tx.send(self.entomb());
                return;
            }
        };
        effects.extend(self.session.handle(input, now));
    }

    /// Carries out effects in order; everything appended up to the next wait is written in one go,
    /// before anything that was said after it.
    async fn carry_out(&mut self, effects: Vec<Effect>) {
        let mut rest: std::collections::VecDeque<Effect> = effects.into();
        while !rest.is_empty() {
            let end =
                rest.iter().position(|e| matches!(e, Effect::Sync)).map_or(rest.len(), |at| at + 1);
            let segment: Vec<Effect> = rest.drain(..end).collect();
            for effect in &segment {
                if let Effect::Append(record) = effect {
                    self.unwritten.push(record.clone());
                }
            }
            self.write().await;
            let mut full = Vec::new();
            for effect in segment {
                self.perform(effect, &mut full).await;
            }
            let now = self.node.now();
            for conn in full {
                rest.extend(self.session.handle(Input::Lagging { conn }, now));
            }
        }
    }

    /// Writes what is unwritten; while that fails nothing is shown and nothing is read.
    async fn write(&mut self) {
        while !self.unwritten.is_empty() {
            match self.journal.append(&self.unwritten) {
                Ok(ticket) => {
                    self.unwritten.clear();
                    self.behind = false;
                    if !ticket.is_settled() {
                        self.ticket = Some(ticket);
                    }
                }
                Err(error) => {
                    if !self.behind {
                        tracing::error!(session = %self.handle.key(), %error, "failed to write the journal; waiting");
                    }
                    self.behind = true;
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    async fn sync(&mut self) {
        while let Some(ticket) = self.ticket.take() {
            if let Err(error) = ticket.synced().await {
                tracing::error!(session = %self.handle.key(), %error, "failed to sync the commit log");
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    async fn perform(&mut self, effect: Effect, full: &mut Vec<ConnId>) {
        match effect {
            Effect::Append(_) => {}
            Effect::Sync => self.sync().await,
            Effect::Tell { conn, frame, hop } => {
                let Some(to) = self.conns.get(&conn) else { return };
                if let Some(hop) = &hop {
                    to.expect(hop, &self.handle);
                }
                if to.send(frame) == Pushed::Full && hop.is_none() && !full.contains(&conn) {
                    full.push(conn);
                }
            }
            Effect::Answer { conn, id, frame } => {
                if let Some(to) = self.conns.get(&conn) {
                    to.closed(&id);
                    to.send(frame);
                }
            }
            Effect::Forget { conn, hop } => {
                if let Some(to) = self.conns.get(&conn) {
                    let _ = to.answered(&hop);
                }
            }
            Effect::CatchUp { conn, key, spelling, from, own_after } => {
                let Some(conn) = self.conns.get(&conn).cloned() else { return };
                let catch_up = CatchUp {
                    conn,
                    lane: self.handle.clone(),
                    path: self.journal.path().to_path_buf(),
                    native: self.session.native().to_owned(),
                    spelling,
                    key,
                    from,
                    own_after,
                };
                tokio::spawn(catch_up.run());
            }
            Effect::Send { tag, frame, client } => self.send(tag, &frame, &client).await,
            Effect::Reply(frame) => {
                if let Some(instance) = &self.instance {
                    let _ = instance.post(frame).await;
                }
            }
            Effect::CancelSent(tag) => {
                if let (Some(instance), Some(id)) = (&self.instance, self.sent.get(&tag)) {
                    let params = format!(r#"{{"requestId":{id}}}"#);
                    let frame =
                        frontdesk_core::envelope::Frame::call("$/cancel_request", None, &params);
                    let _ = instance.post(frame).await;
                }
            }
            Effect::Open { conn, how, params } => self.open(conn, how, params),
            Effect::Shut { why } => self.shut(why),
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

    async fn send(&mut self, tag: Tag, frame: &frontdesk_core::envelope::Frame, client: &str) {
        let sent = match &self.instance {
            Some(instance) => {
                instance.request_for(&self.handle, tag, frame, client, self.session.native()).await
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
        how: frontdesk_core::session::How,
        params: Option<bytes::Bytes>,
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
        };
        let node = self.node.clone();
        tokio::spawn(async move { node.open_session(request).await });
    }

    fn shut(&mut self, why: CloseWhy) {
        let instance = self.instance.clone();
        let handle = self.handle.clone();
        let node = self.node.clone();
        let native = self.session.native().to_owned();
        tokio::spawn(async move {
            if let Some(instance) = instance {
                node.close_at_agent(&instance, &native, why).await;
            }
            handle.send(LaneMsg::Input(Input::Closed)).await;
        });
    }

    /// Tells the directory what is loaded here and what the records add up to.
    fn publish(&mut self) {
        if matches!(self.session.phase(), Phase::Cold)
            && let Some(instance) = self.instance.take()
        {
            self.previous = Some(instance);
        }
        let live = match self.session.phase() {
            Phase::Cold => None,
            Phase::Starting | Phase::Draining(_) => Some(None),
            Phase::Live => Some(self.instance.as_ref()),
        };
        self.node.directory.publish(self.handle.key(), &self.session, live, self.journal.bytes());
    }

    fn describe(&self) -> Value {
        let clients: Vec<Value> = self
            .session
            .clients()
            .map(|(client, live)| json!({ "key": &*client.key, "name": &*client.name, "role": "controller", "live": live }))
            .collect();
        let interactions: Vec<Value> = self
            .session
            .open_questions()
            .map(|(id, frame)| {
                let params: Value =
                    frame.params().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
                json!({ "id": id, "method": &*frame.method, "title": params["toolCall"]["title"], "options": params["options"] })
            })
            .collect();
        json!({
            "clients": clients,
            "interactions": interactions,
            "options": self.session.view().options,
            "additionalDirectories": self.session.view().additional_directories,
            "behind": self.behind,
        })
    }

    fn entomb(&mut self) -> Result<(), String> {
        let view = self.session.view();
        let data = json!({ "agent": view.agent, "nativeId": view.native });
        let record = Record {
            v: RECORD_VERSION,
            seq: view.seq + 1,
            epoch: view.epoch,
            at: Timestamp::now(),
            kind: Kind::Deleted,
            src: None,
            data: bytes::Bytes::from(data.to_string()),
        };
        self.node.log.entomb(self.journal.path(), &record).map_err(|error| error.to_string())?;
        self.node.directory.entomb(self.handle.key());
        for conn in self.conns.values() {
            conn.leave(self.handle.key());
        }
        self.entombed = true;
        Ok(())
    }

    /// Whether the lane may end: nothing in memory is needed and nobody holds a handle.
    fn may_rest(&mut self) -> bool {
        if !self.session.at_rest() || !self.rx.is_empty() {
            return false;
        }
        for conn in std::mem::take(&mut self.conns).into_values() {
            conn.leave(self.handle.key());
        }
        self.node.release_lane(&self.handle, &self.rx)
    }

    async fn finish(mut self) {
        self.write().await;
        self.sync().await;
        let view = self.session.view();
        if view.unproven && view.items == 0 && !self.entombed {
            // Its agent does not know it: nothing was ever here.
            self.node.directory.forget(self.handle.key());
            let folder = self.journal.path().parent().map(std::path::Path::to_path_buf);
            if let Some(folder) = folder
                && let Err(error) = std::fs::remove_dir_all(&folder)
            {
                tracing::warn!(path = %folder.display(), %error, "failed to remove a journal");
            }
            return;
        }
        if !self.entombed {
            let path = self.journal.path().to_path_buf();
            let bytes = self.journal.bytes();
            let view = self.session.view().clone();
            let saved = tokio::task::spawn_blocking(move || {
                crate::node::recover::save_view(&path, bytes, &view)
            });
            if let Ok(Err(error)) = saved.await {
                tracing::warn!(session = %self.handle.key(), %error, "failed to write a snapshot");
            }
        }
        let key: Key = self.handle.key();
        tracing::debug!(session = %key, "a lane has ended");
    }
}

/// Opens a journal; the session's lane before this one may still be ending.
fn open_when_free(log: &crate::log::Log, path: &std::path::Path) -> Result<Journal, LogError> {
    let until = std::time::Instant::now() + FREE_WITHIN;
    loop {
        match log.open_journal(path) {
            Err(LogError::InUse { .. }) if std::time::Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other,
        }
    }
}

/// The journal cannot be opened: whoever asks for the session is told, for a while.
async fn refuse_all(mut rx: mpsc::Receiver<LaneMsg>) {
    rx.close();
    while let Some(message) = rx.recv().await {
        let LaneMsg::Client(conn, input) = message else { continue };
        let id: Box<str> = match &input {
            Input::Attach(attach) => attach.id.clone(),
            Input::Prompt { frame, .. } | Input::Forward { frame, .. } => {
                frame.id().unwrap_or("null").into()
            }
            Input::Close { id, .. } => id.clone(),
            _ => continue,
        };
        let error = WireError::new(Code::Storage, "the session's journal could not be opened");
        conn.answer(&id, Err(&error));
    }
}

async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
