//! Starting, unloading and ending: the lease's phases (DESIGN section 6).

use serde_json::{Value, json};

use super::made::{Born, First};
use super::types::{AgentFacts, OpenMode};
use super::why::{CloseWhy, StartFailure};
use super::{Attachment, Effect, How, Input, Mark, Session};
use crate::envelope::{Frame, quote};
use crate::errors::{Code, WireError, not_found_as_asked};
use crate::ids::ConnId;
use crate::import::Import;
use crate::lease::{Phase, Place, Refusal};
use crate::record::Kind;

/// What happens to the history an agent replays while it loads.
#[derive(Debug)]
pub(super) enum Replay {
    /// It does not replay.
    None,
    /// Ours is complete.
    Swallow,
    /// Matched against ours.
    Import(Box<Import>),
}

/// The end of an instance, as [`Input::Ended`] told of it.
#[derive(Debug)]
pub(super) struct EarlyEnd {
    why: String,
    detail: Value,
    proven: bool,
}

impl Session {
    pub(super) fn born(&mut self, born: Born) {
        let Born { by, client_info, first, answer, facts, parameters, forked_from, .. } = born;
        self.facts = facts;
        if let Some(epoch) = self.lease.born(self.facts.place.clone()) {
            self.facts.epoch = epoch;
        }
        let result: Value =
            answer.result().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let native = result.get("sessionId").and_then(Value::as_str).unwrap_or_default().to_owned();
        self.append_json(
            Kind::Claimed,
            &json!({ "agent": born.agent, "instance": self.facts.instance }),
        );
        let mut created = json!({
            "agent": born.agent,
            "nativeId": native,
            "cwd": born.cwd,
            "additionalDirectories": born.additional_directories,
            "by": { "client": &*by.client, "name": &*by.name },
            "result": result,
        });
        match &forked_from {
            Some(from) => created["forkedFrom"] = json!(from),
            None => {
                if let Some(info) = &client_info {
                    created["clientInfo"] = json!(info);
                }
            }
        }
        self.append_json(Kind::Created, &created);
        self.append_json(
            Kind::Loaded,
            &json!({ "agent": born.agent, "instance": self.facts.instance, "how": "new" }),
        );
        self.append(Kind::Parameters, None, bytes::Bytes::from(parameters));
        self.begin_policy(born.approval);
        self.newborn = first.map(|first| Box::new((first, answer)));
        self.active();
        if forked_from.is_none() {
            self.admit_newborn();
        }
    }

    /// A piece of its parent's history, for a fork.
    pub(super) fn copied(&mut self, items: Vec<bytes::Bytes>) {
        for data in items {
            self.append(Kind::Imported, None, data);
        }
    }

    /// All that a new session begins with is written: whoever asked for it is answered.
    pub(super) fn admit_newborn(&mut self) {
        if self.view.forked_from.is_some() {
            // The last copied message ends here: nothing that follows continues it.
            let text = "the history up to here is that of the session this one was forked from";
            self.append_json(Kind::Note, &json!({ "text": text }));
        }
        self.out.push(Effect::Sync);
        let Some(newborn) = self.newborn.take() else { return };
        let (First { client, id, spelling }, answer) = *newborn;
        let conn = client.conn;
        let frame = answer.spliced(Some(&id), Some(&quote(&spelling)));
        let mark = Some(Mark::whole(self.view.seq));
        self.out.push(Effect::Answer { conn, id, frame, mark });
        let attachment = Box::new(Attachment {
            client,
            spelling,
            live: true,
            since: self.now.wall,
            joined: self.view.seq,
            reply: None,
            from: Mark::default(),
            rejoin: None,
            waiting: false,
            owed: Vec::new(),
            again: None,
        });
        self.clients.insert(conn, attachment);
    }

    pub(super) fn opening(&mut self, facts: AgentFacts, mode: OpenMode) {
        // Else another place may have it, and whoever asks this one has not asked here.
        let Some(epoch) = self.lease.ask(facts.place.clone()) else { return };
        let mut claimed = json!({ "agent": self.view.agent, "instance": facts.instance });
        if let Place::Url(url) = &facts.place {
            claimed["url"] = json!(url);
        }
        match mode {
            OpenMode::Resume => {}
            OpenMode::Swallow => claimed["replay"] = json!("swallow"),
            OpenMode::Import { .. } => claimed["replay"] = json!("import"),
        }
        self.facts = AgentFacts { epoch, ..facts };
        self.append_json(Kind::Claimed, &claimed);
        self.early_end = None;
        self.replayed = None;
        self.replay = match mode {
            OpenMode::Resume => Replay::None,
            OpenMode::Swallow => Replay::Swallow,
            OpenMode::Import { known, note } => {
                if let Some(text) = note {
                    self.append_json(Kind::Note, &json!({ "text": text, "shown": true }));
                }
                Replay::Import(Box::new(Import::new(known)))
            }
        };
    }

    pub(super) fn started(&mut self, result: &str) {
        if self.phase() != Phase::Starting {
            let error = WireError::new(Code::HeldElsewhere, "another place may have this session");
            return self.start_failed(StartFailure::Ours(error), false);
        }
        if let Replay::Import(import) = std::mem::replace(&mut self.replay, Replay::None) {
            let rest = import.finish();
            if let Some(text) = rest.note {
                self.append_json(Kind::Note, &json!({ "text": text, "shown": true }));
            }
            for data in rest.items {
                self.append(Kind::Imported, None, data);
            }
        }
        self.lease.opened();
        let result: Value = serde_json::from_str(result).unwrap_or_default();
        let loaded =
            json!({ "agent": self.view.agent, "instance": self.facts.instance, "result": result });
        // A daemon that reads the replay again knows by the source that it is over.
        let src = self.replayed.take();
        self.append(Kind::Loaded, src, bytes::Bytes::from(loaded.to_string()));
        self.begin_policy(None);
        self.out.push(Effect::Sync);
        let waiting: Vec<ConnId> =
            self.clients.iter().filter(|(_, a)| a.waiting).map(|(conn, _)| *conn).collect();
        for conn in waiting {
            self.admit(conn);
        }
        self.unpark();
        self.active();
        // Its last word was yes, and it was heard after that of its end: there is no other one to come.
        if let Some(end) = self.early_end.take() {
            self.ended(&end.why, end.detail, end.proven);
        }
        if self.stopping.is_some() {
            return self.tick_stop();
        }
        self.advance();
    }

    pub(super) fn start_failed(&mut self, failure: StartFailure, doubt: bool) {
        let hopeless = matches!(failure, StartFailure::Gone | StartFailure::CannotReturn);
        self.lease.refused(match hopeless {
            _ if doubt => Refusal::NoAnswer,
            true => Refusal::NotThere,
            false => Refusal::CouldNot,
        });
        self.replay = Replay::None;
        self.early_end = None;
        let settled = self.view.suspect.is_some() && self.lease.doubt().is_none();
        if self.view.loaded_by.is_some() || settled {
            let data = self.ending("start failed");
            self.append_json(Kind::Closed, &data);
        }
        if hopeless && self.view.resumable != Some(false) {
            self.append_json(Kind::Metadata, &json!({ "resumable": false }));
        }
        let waiting: Vec<ConnId> =
            self.clients.iter().filter(|(_, a)| a.waiting).map(|(conn, _)| *conn).collect();
        for conn in waiting {
            self.refuse(conn, &failure);
        }
        let parked = std::mem::take(&mut self.parked);
        for input in parked {
            match input {
                Input::Forward { conn, frame } => {
                    let id = frame.id().unwrap_or("null");
                    let (_, text) = self.failure_error(&failure, &self.spelling(conn));
                    self.answer(conn, id, Frame::failure(id, &text));
                }
                other => self.take(other),
            }
        }
        self.fail_queue(&failure);
    }

    /// Tells one waiting client that the session could not be started.
    fn refuse(&mut self, conn: ConnId, failure: &StartFailure) {
        let Some(mut attachment) = self.clients.remove(&conn) else { return };
        let Some((id, how)) = attachment.reply.take() else {
            // Attached before an idle unload: it stays, its prompts are answered below.
            attachment.waiting = false;
            self.clients.insert(conn, attachment);
            return;
        };
        let hopeless = matches!(failure, StartFailure::Gone | StartFailure::CannotReturn);
        if hopeless && how == How::Load && self.view.items > 0 {
            attachment.waiting = false;
            attachment.reply = Some((id, how));
            self.clients.insert(conn, attachment);
            return self.admit(conn);
        }
        let spelling = attachment.spelling.clone();
        let (_, text) = self.failure_error(failure, &spelling);
        self.answer(conn, &id, Frame::failure(&id, &text));
        self.out.push(Effect::Left { conn });
    }

    fn failure_error(&self, failure: &StartFailure, asked: &str) -> (WireError, String) {
        match failure {
            StartFailure::Gone | StartFailure::CannotReturn => {
                let error = self.lost_error(asked);
                let text = error.to_json();
                (error, text)
            }
            StartFailure::Ours(error) => {
                let mut error = error.clone();
                if let Some(named) = error.data.as_mut().and_then(|data| data.get_mut("sessionId"))
                {
                    *named = json!(asked);
                }
                let text = error.to_json();
                (error, text)
            }
            StartFailure::Agent(text) => (
                WireError::new(Code::AgentStart, "the agent refused to load the session"),
                not_found_as_asked(text, asked).unwrap_or_else(|| text.clone()),
            ),
        }
    }

    /// Answers every waiting prompt with the failure, each in its client's spelling.
    fn fail_queue(&mut self, failure: &StartFailure) {
        for queued in std::mem::take(&mut self.queue) {
            let id: Box<str> = queued.frame.id().unwrap_or("null").into();
            let (error, text) = self.failure_error(failure, &self.spelling(queued.conn));
            self.record_ending(&queued.turn, "failed", Some(&error));
            self.answer(queued.conn, &id, Frame::failure(&id, &text));
        }
    }

    fn unpark(&mut self) {
        for input in std::mem::take(&mut self.parked) {
            self.take(input);
        }
    }

    /// `session/close` (DESIGN section 6, "Close").
    pub(super) fn close(&mut self, conn: ConnId, id: &str, force: bool) {
        let takes_part = |it: &Attachment| !it.rejoin.as_ref().is_some_and(|it| it.is_dismissed());
        let others = self.clients.iter().filter(|(other, it)| **other != conn && takes_part(it));
        let others = others.count();
        if !force && others > 0 && self.clients.contains_key(&conn) {
            self.drop_queue(Some(conn), Ok(()));
            if self.turn.as_ref().is_some_and(|turn| turn.conn == conn) {
                self.cancel_turn();
                self.abandon_turn();
            }
            let result =
                json!({ "_meta": { "frontdesk": { "closed": false, "remaining": others } } });
            self.answer(conn, id, Frame::success(id, &result.to_string()));
            self.dismiss(conn);
            return;
        }
        if !force && others > 0 {
            let text = format!("{others} clients are attached; say force to close it all the same");
            return self.tell_error(conn, id, &WireError::new(Code::InUse, text));
        }
        self.closers.push((conn, id.into()));
        match self.phase() {
            Phase::Cold | Phase::Lost | Phase::Suspect => self.closed(false),
            Phase::Claiming | Phase::Starting => {
                // The start ends first; then this is taken again.
                self.closers.pop();
                self.parked.push_back(Input::Close { conn, id: id.into(), force });
            }
            Phase::Live => self.unload(CloseWhy::Client),
            Phase::Draining => {}
        }
    }

    /// Cancels all work and has the session closed at the agent.
    pub(super) fn unload(&mut self, why: CloseWhy) {
        match self.phase() {
            Phase::Live => {}
            Phase::Cold | Phase::Lost | Phase::Suspect => return self.closed(false),
            Phase::Claiming | Phase::Starting | Phase::Draining => return,
        }
        self.end_work();
        self.lease.drain();
        self.unloading = why;
        self.out.push(Effect::Shut { why });
    }

    /// The unload is done, and the agent has let go or may still have it.
    pub(super) fn closed(&mut self, let_go: bool) {
        let is_draining = self.phase() == Phase::Draining;
        let why = if is_draining { self.unloading } else { CloseWhy::Client };
        self.lease.closed(let_go);
        self.terminals.clear();
        if self.view.loaded_by.is_some() {
            let data = self.ending(why.as_str());
            self.append_json(Kind::Closed, &data);
            self.out.push(Effect::Sync);
        }
        let closers = std::mem::take(&mut self.closers);
        for (conn, id) in &closers {
            self.answer(*conn, id, Frame::success(id, "{}"));
        }
        if !why.keeps_clients() {
            let conns: Vec<ConnId> = self.clients.keys().copied().collect();
            for conn in conns {
                // What is deleted cannot be read on.
                let at_once = why == CloseWhy::Delete;
                if at_once || closers.iter().any(|(closer, _)| *closer == conn) {
                    self.dismiss(conn);
                } else {
                    self.dismiss_behind(conn);
                }
            }
        }
        self.unpark();
    }

    /// The instance went away by itself. Where that is not `proven` its agent may have the session
    /// all the same.
    pub(super) fn ended(&mut self, why: &str, detail: Value, proven: bool) {
        let phase = self.phase();
        self.lease.ended(&self.facts.place, proven);
        let starting = phase.is_starting();
        if !starting && phase != Phase::Live {
            return;
        }
        self.withdraw_all(false);
        let native = self.native().to_owned();
        let text = format!("the agent's instance that ran this session ended: {why}");
        let error = WireError::new(Code::InstanceEnded, text)
            .with_data(json!({ "sessionId": native, "instance": self.facts.instance }));
        if let Some(turn) = &self.turn {
            let spelled = self.spelling(turn.conn);
            let error = error
                .clone()
                .with_data(json!({ "sessionId": spelled, "instance": self.facts.instance }));
            self.close_turn("failed", Err(&error));
        }
        self.fail_forwards(&error);
        self.stuck = None;
        self.terminals.clear();
        if starting {
            if phase == Phase::Starting {
                self.early_end = Some(EarlyEnd { why: why.into(), detail, proven });
            }
            return;
        }
        let mut data = self.ending(why);
        data["instance"] = json!(self.facts.instance);
        data["detail"] = detail;
        self.append_json(Kind::Lost, &data);
        // Prompts that waited are not lost with the instance: they run once it is loaded again.
        self.advance();
    }

    pub(super) fn fail_forwards(&mut self, error: &WireError) {
        for forward in std::mem::take(&mut self.forwards).into_values() {
            self.tell_error(forward.conn, &forward.id, error);
        }
    }

    /// The daemon stops: no new prompts, running turns get their grace.
    pub(super) fn stop(&mut self, grace_ms: u64) {
        let error = WireError::new(Code::Stopping, "Frontdesk is stopping");
        self.drop_queue(None, Err(&error));
        self.stopping = Some(self.now.mono_ms + grace_ms);
    }

    /// Looked at after every input of a stopping daemon: a turn may have ended before its grace, a
    /// start that was under way may have come to its end.
    pub(super) fn tick_stop(&mut self) {
        let Some(until) = self.stopping else { return };
        let nobody = self.clients.is_empty() && !self.asks.is_empty();
        let done = self.turn.is_none() || nobody || self.now.mono_ms >= until;
        if done && self.phase() == Phase::Live {
            self.unload(CloseWhy::Stop);
        }
    }

    pub(super) fn idle_deadline(&self) -> Option<u64> {
        let idle = self.phase() == Phase::Live
            && self.facts.can_return
            && self.view.turn_count > 0
            && self.turn.is_none()
            && self.stuck.is_none()
            && self.asks.is_empty()
            && self.passes.is_empty()
            && self.queue.is_empty()
            && self.forwards.is_empty();
        (idle && self.facts.idle_unload_ms > 0).then(|| self.active_ms + self.facts.idle_unload_ms)
    }

    pub(super) fn tick(&mut self) {
        self.tick_passes();
        self.tick_cancel();
        if self.idle_deadline().is_some_and(|at| self.now.mono_ms >= at) {
            self.unload(CloseWhy::Idle);
        }
    }
}
