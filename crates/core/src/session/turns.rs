//! Prompts, one at a time, and what cancels them. Every prompt gets one answer, every turn an
//! ending in the journal. Sources: ACP v1 "Prompt turn", "Cancellation"; DESIGN section 8.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::carried::other_members;
use super::types::Tag;
use super::{Effect, How, Session};
use crate::envelope::{Frame, quote};
use crate::errors::{Code, WireError, not_found_as_asked};
use crate::ids::ConnId;
use crate::lease::Phase;
use crate::record::{Kind, Source};

/// The answer to a cancelled prompt.
const CANCELLED: &str = r#"{"stopReason":"cancelled"}"#;

/// A prompt that waits for its turn.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) turn: String,
    pub(super) conn: ConnId,
    pub(super) client: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) frame: Frame,
}

/// The turn that runs at the agent.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) turn: String,
    pub(super) tag: Tag,
    pub(super) conn: ConnId,
    pub(super) client: Arc<str>,
    pub(super) id: Box<str>,
    /// When `session/cancel` was passed on.
    pub(super) cancelled_ms: Option<u64>,
}

/// A turn that was closed as cancelled while the agent still owes its answer.
#[derive(Debug)]
pub(super) struct Stuck {
    pub(super) tag: Tag,
    pub(super) turn: String,
    pub(super) since_ms: u64,
}

/// Another request of a client at the agent.
#[derive(Debug)]
pub(super) struct Forward {
    pub(super) conn: ConnId,
    pub(super) id: Box<str>,
    pub(super) method: Box<str>,
    pub(super) params: bytes::Bytes,
}

#[derive(Deserialize)]
struct PromptParams<'a> {
    #[serde(borrow)]
    prompt: &'a RawValue,
}

impl Session {
    pub(super) fn prompt(&mut self, conn: ConnId, frame: &Frame) {
        let id: Box<str> = frame.id().unwrap_or("null").into();
        let asked = frame.session_id().unwrap_or(Cow::Borrowed("")).into_owned();
        let Some(attachment) = self.clients.get(&conn) else {
            let error = self.not_active(conn, Some(&asked));
            return self.tell_error(conn, &id, &error);
        };
        let (client, name) = (attachment.client.key.clone(), attachment.client.name.clone());
        if let Err(error) = self.may_prompt(frame, &asked) {
            return self.tell_error(conn, &id, &error);
        }
        if self.view.archived {
            // Whoever goes on with a session has taken it back.
            self.archive(false);
        }
        let turn = format!("turn_{}", self.view.seq + 1);
        let waits = self.turn.is_some() || self.stuck.is_some() || self.phase() != Phase::Live;
        if waits || !self.queue.is_empty() {
            let data = prompt_data(&turn, &client, &id, &name, frame);
            self.append(Kind::TurnQueued, None, bytes::Bytes::from(data));
        }
        self.queue.push_back(Queued { turn, conn, client, name, frame: frame.clone() });
        self.active();
        self.advance();
    }

    fn may_prompt(&self, frame: &Frame, asked: &str) -> Result<(), WireError> {
        let prompt =
            frame.params().and_then(|params| serde_json::from_str::<PromptParams<'_>>(params).ok());
        if prompt.is_none_or(|params| !params.prompt.get().starts_with('[')) {
            return Err(WireError::new(
                Code::InvalidParams,
                "params.prompt must be an array of content blocks",
            ));
        }
        if self.stopping.is_some() {
            return Err(WireError::new(
                Code::Stopping,
                "Frontdesk is stopping and takes no new prompts",
            ));
        }
        if self.phase().is_cold() && self.is_history() {
            return Err(self.lost_error(asked));
        }
        let limit = self.limits.queued_turns as usize;
        if self.queue.len() >= limit {
            let text = format!(
                "{limit} prompts wait for this session already; try again when one has ended"
            );
            return Err(WireError::new(Code::QueueFull, text));
        }
        Ok(())
    }

    /// Starts the next turn, or has the session loaded again for it.
    pub(super) fn advance(&mut self) {
        if self.phase() != Phase::Live {
            if !self.queue.is_empty() {
                self.call_back(None, How::Resume, None);
            }
        } else if self.turn.is_none()
            && self.stuck.is_none()
            && let Some(next) = self.queue.pop_front()
        {
            self.start_turn(next);
        }
    }

    fn start_turn(&mut self, next: Queued) {
        let Queued { turn, conn, client, name, frame } = next;
        let id: Box<str> = frame.id().unwrap_or("null").into();
        let prompt = frame
            .params()
            .and_then(|params| serde_json::from_str::<PromptParams<'_>>(params).ok())
            .map_or("[]", |params| params.prompt.get());
        let data = prompt_data(&turn, &client, &id, &name, &frame);
        let earlier = self.view.first_user_prompt.clone();
        self.append(Kind::TurnStarted, None, bytes::Bytes::from(data));
        self.allocate_name(earlier.as_deref(), prompt);
        self.tell_turn(conn, "running", None);
        let tag = self.tag();
        let by = client.clone();
        self.out.push(Effect::Send { tag, frame, client: by, turn: Some(turn.as_str().into()) });
        self.turn = Some(Turn { turn, tag, conn, client, id, cancelled_ms: None });
    }

    pub(super) fn agent_answer(&mut self, tag: Tag, frame: &Frame, src: Option<Source>) {
        self.active();
        if self.turn.as_ref().is_some_and(|turn| turn.tag == tag) {
            if let Some(turn) = self.turn.take() {
                self.end_turn(&turn, frame, src);
            }
            return self.advance();
        }
        if self.stuck.as_ref().is_some_and(|stuck| stuck.tag == tag) {
            if let Some(stuck) = self.stuck.take() {
                let answer = frame.result().or(frame.error()).unwrap_or("null");
                let data =
                    format!(r#"{{"turn":{},"late":true,"answer":{answer}}}"#, quote(&stuck.turn));
                self.append(Kind::Note, src, bytes::Bytes::from(data));
            }
            return self.advance();
        }
        if let Some(forward) = self.forwards.remove(&tag) {
            self.forward_answered(&forward, frame, src);
        }
    }

    fn end_turn(&mut self, turn: &Turn, frame: &Frame, src: Option<Source>) {
        let stop = frame.result().and_then(stop_reason);
        let outcome = match (&stop, frame.error()) {
            (Some(reason), _) if reason == "cancelled" => "cancelled",
            // By `$/cancel_request`.
            (_, Some(error)) if code_of(error) == Some(Code::Cancelled.number()) => "cancelled",
            (_, Some(_)) => "failed",
            _ => "completed",
        };
        let (name, body) = match frame.error() {
            Some(error) => ("error", error),
            None => ("result", frame.result().unwrap_or("null")),
        };
        let stop_word = stop.clone();
        let stop = stop.map_or_else(|| "null".to_owned(), |stop| quote(&stop));
        let data = format!(
            r#"{{"turn":{},"outcome":"{outcome}","stopReason":{stop},"{name}":{body}}}"#,
            quote(&turn.turn),
        );
        self.withdraw_all(true);
        self.append(Kind::TurnEnded, src, bytes::Bytes::from(data));
        self.out.push(Effect::Sync);
        self.tell_turn(turn.conn, outcome, stop_word.as_deref());
        self.pass_answer_on(turn.conn, &turn.id, frame);
    }

    /// Version 1 has no word for a turn that somebody else began or that has ended: the others are
    /// told in `_meta` of an update that changes nothing.
    fn tell_turn(&mut self, conn: ConnId, state: &str, stop_reason: Option<&str>) {
        if self.clients.len() < 2 {
            return;
        }
        let sender = self.clients.get(&conn).map(|a| a.client.key.to_string()).unwrap_or_default();
        let frame = turn_frame(self.native(), &sender, state, stop_reason);
        self.show(&crate::render::Audience::Others(sender.into()), &frame);
    }

    /// A client that has just come learns of the turn that runs.
    pub(super) fn tell_running_turn(&mut self, conn: ConnId) {
        let Some(turn) = self.turn.as_ref().filter(|turn| turn.conn != conn) else { return };
        let sender =
            self.clients.get(&turn.conn).map(|a| a.client.key.to_string()).unwrap_or_default();
        let frame = turn_frame(&self.spelling(conn), &sender, "running", None);
        self.tell(conn, frame);
    }

    pub(super) fn agent_error(&mut self, tag: Tag, error: &WireError) {
        let frame = crate::envelope::Message::parse(Frame::failure("0", &error.to_json()));
        if let Ok(message) = frame {
            self.agent_answer(tag, message.frame(), None);
        }
    }

    /// Ends the running turn without the agent's word and answers its prompt.
    pub(super) fn close_turn(&mut self, outcome: &str, answer: Result<(), &WireError>) {
        let Some(turn) = self.turn.take() else { return };
        self.withdraw_all(true);
        self.record_ending(&turn.turn, outcome, answer.err());
        self.out.push(Effect::Sync);
        self.tell_turn(turn.conn, outcome, None);
        match answer {
            Ok(()) => self.answer(turn.conn, &turn.id, Frame::success(&turn.id, CANCELLED)),
            Err(error) => self.tell_error(turn.conn, &turn.id, error),
        }
    }

    pub(super) fn record_ending(&mut self, turn: &str, outcome: &str, error: Option<&WireError>) {
        let mut data = json!({ "turn": turn, "outcome": outcome });
        match error {
            Some(error) => {
                data["error"] = serde_json::from_str(&error.to_json()).unwrap_or_default()
            }
            None => data["stopReason"] = Value::from("cancelled"),
        }
        self.append_json(Kind::TurnEnded, &data);
    }

    /// Drops waiting prompts and answers them: as cancelled, or with an error.
    pub(super) fn drop_queue(&mut self, whose: Option<ConnId>, answer: Result<(), &WireError>) {
        let all = std::mem::take(&mut self.queue);
        let (dropped, kept): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|queued| whose.is_none_or(|conn| queued.conn == conn));
        self.queue = kept.into();
        for queued in dropped {
            let id: Box<str> = queued.frame.id().unwrap_or("null").into();
            let outcome = if answer.is_ok() { "cancelled" } else { "failed" };
            self.record_ending(&queued.turn, outcome, answer.err());
            match answer {
                Ok(()) => self.answer(queued.conn, &id, Frame::success(&id, CANCELLED)),
                Err(error) => self.tell_error(queued.conn, &id, error),
            }
        }
    }

    /// `session/cancel`: the caller's waiting prompts and the running turn, whoever began it.
    pub(super) fn cancel(&mut self, conn: ConnId) {
        if !self.clients.contains_key(&conn) {
            return;
        }
        self.drop_queue(Some(conn), Ok(()));
        self.cancel_turn();
        self.active();
    }

    /// Passes a cancel on to the agent, once, and answers its open questions as cancelled.
    pub(super) fn cancel_turn(&mut self) {
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.cancelled_ms.is_none()) else {
            return;
        };
        turn.cancelled_ms = Some(self.now.mono_ms);
        let params = format!(r#"{{"sessionId":{}}}"#, quote(self.native()));
        self.out.push(Effect::Notify(Frame::call("session/cancel", None, &params)));
        self.cancel_asks();
    }

    /// `$/cancel_request` for a request of the client's own.
    pub(super) fn cancel_request(&mut self, conn: ConnId, id: &str) {
        let waiting = self
            .queue
            .iter()
            .position(|queued| queued.conn == conn && queued.frame.id() == Some(id));
        if let Some(queued) = waiting.and_then(|at| self.queue.remove(at)) {
            let error = WireError::new(Code::Cancelled, "Request cancelled");
            self.record_ending(&queued.turn, "cancelled", None);
            return self.tell_error(conn, id, &error);
        }
        let running = self.turn.as_ref().filter(|turn| turn.conn == conn && *turn.id == *id);
        let tag = running.map(|turn| turn.tag).or_else(|| {
            let mut all = self.forwards.iter();
            all.find(|(_, forward)| forward.conn == conn && *forward.id == *id).map(|(tag, _)| *tag)
        });
        if let Some(tag) = tag {
            self.out.push(Effect::CancelSent(tag));
        }
    }

    /// The cancel rule's two deadlines (DESIGN section 8).
    pub(super) fn tick_cancel(&mut self) {
        let now = self.now.mono_ms;
        let overdue = self.turn.as_ref().is_some_and(|turn| {
            turn.cancelled_ms.is_some_and(|at| now >= at + self.limits.cancel_grace_ms)
        });
        if overdue {
            self.abandon_turn();
        }
        let hopeless = self
            .stuck
            .as_ref()
            .is_some_and(|stuck| now >= stuck.since_ms + self.limits.cancel_kill_ms);
        if hopeless {
            let text =
                "the agent has not ended a cancelled turn; end it with `frontdesk close --force`";
            let error = WireError::new(Code::TurnStuck, text);
            self.drop_queue(None, Err(&error));
            if let Some(stuck) = self.stuck.as_mut() {
                stuck.since_ms = now;
            }
            if !self.facts.loses_killed && self.phase() == Phase::Live {
                self.out.push(Effect::EndStuck);
            }
        }
    }

    /// Closes the running turn as cancelled while the agent still owes its answer.
    pub(super) fn abandon_turn(&mut self) {
        let Some(turn) = self.turn.as_ref() else { return };
        let since_ms = turn.cancelled_ms.unwrap_or(self.now.mono_ms);
        let stuck = Stuck { tag: turn.tag, turn: turn.turn.clone(), since_ms };
        self.close_turn("cancelled", Ok(()));
        self.stuck = Some(stuck);
    }

    /// A request that Frontdesk only passes on.
    pub(super) fn forward(&mut self, conn: ConnId, frame: Frame) {
        let id: Box<str> = frame.id().unwrap_or("null").into();
        let asked = frame.session_id().unwrap_or(Cow::Borrowed("")).into_owned();
        let Some(attachment) = self.clients.get(&conn) else {
            let error = self.not_active(conn, Some(&asked));
            return self.tell_error(conn, &id, &error);
        };
        let client = attachment.client.key.clone();
        if self.phase().is_cold() && self.is_history() {
            let error = self.lost_error(&asked);
            return self.tell_error(conn, &id, &error);
        }
        if self.phase() != Phase::Live {
            self.parked.push_back(super::Input::Forward { conn, frame });
            return self.call_back(None, How::Resume, None);
        }
        let tag = self.tag();
        let params = frame.params_bytes().unwrap_or_default();
        self.forwards.insert(tag, Forward { conn, id, method: frame.method.clone(), params });
        self.out.push(Effect::Send { tag, frame, client, turn: None });
        self.active();
    }

    fn forward_answered(&mut self, forward: &Forward, frame: &Frame, src: Option<Source>) {
        if self.is_covered(src.as_ref()) {
            return;
        }
        if let Some(result) = frame.result() {
            self.learn_options(forward, result, src);
        }
        self.pass_answer_on(forward.conn, &forward.id, frame);
    }

    /// Gives an agent's answer to the client that asked: its own id, its own spelling of the session,
    /// all else as it came.
    pub(super) fn pass_answer_on(&mut self, conn: ConnId, id: &str, frame: &Frame) {
        let spelling = self.spelling(conn);
        let not_found = frame.error().and_then(|error| not_found_as_asked(error, &spelling));
        let own = frame.session_id().as_deref() == Some(self.native());
        let spelling = quote(&spelling);
        let answer = match not_found {
            Some(error) => Frame::failure(id, &error),
            None => frame.spliced(Some(id), own.then_some(&*spelling)),
        };
        self.answer(conn, id, answer);
    }

    /// A mode or option that one client set is told to the others and kept for later ones.
    fn learn_options(&mut self, forward: &Forward, result: &str, src: Option<Source>) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct SetMode {
            mode_id: String,
        }
        let update = match &*forward.method {
            "session/set_mode" => {
                let Ok(set) = serde_json::from_slice::<SetMode>(&forward.params) else { return };
                let mut modes = self.view.options.get("modes").cloned().unwrap_or_default();
                if let Some(modes) = modes.as_object_mut() {
                    modes.insert("currentModeId".into(), set.mode_id.clone().into());
                    let data = json!({ "modes": modes }).to_string();
                    self.append(Kind::Options, src, bytes::Bytes::from(data));
                }
                json!({ "sessionUpdate": "current_mode_update", "currentModeId": set.mode_id })
            }
            "session/set_config_option" => {
                let value: Value = serde_json::from_str(result).unwrap_or_default();
                let Some(options) = value.get("configOptions").filter(|options| options.is_array())
                else {
                    return;
                };
                let data = json!({ "configOptions": options }).to_string();
                self.append(Kind::Options, src, bytes::Bytes::from(data));
                json!({ "sessionUpdate": "config_option_update", "configOptions": options })
            }
            _ => return,
        };
        let sender = self.clients.get(&forward.conn).map(|a| a.client.key.to_string());
        let params = json!({ "sessionId": self.native(), "update": update }).to_string();
        let frame = Frame::call("session/update", None, &params);
        let to = crate::render::Audience::Others(sender.unwrap_or_default().into());
        self.show(&to, &frame);
    }

    /// A notification for a child goes to the agent as it is: clients may cancel a child, and that
    /// cancels nothing of its parent.
    pub(super) fn notify_child(&mut self, conn: ConnId, frame: &Frame) {
        if self.clients.contains_key(&conn) && self.phase() == Phase::Live {
            self.out.push(Effect::Notify(frame.text.clone()));
        }
    }

    /// A notification that Frontdesk only passes on.
    pub(super) fn notify(&mut self, conn: ConnId, frame: Frame) {
        if self.clients.contains_key(&conn) && self.phase() == Phase::Live {
            let native = quote(self.native());
            self.out.push(Effect::Notify(frame.spliced(None, Some(&native))));
        }
    }
}

/// What a record keeps of a prompt: the client's own text, with the rest built around it, so that it
/// can be sent by a later daemon too.
fn prompt_data(turn: &str, client: &str, id: &str, name: &str, frame: &Frame) -> String {
    let params = frame.params().unwrap_or("null");
    let prompt = serde_json::from_str::<PromptParams<'_>>(params);
    let prompt = prompt.as_ref().map_or("[]", |params| params.prompt.get());
    let mut data = format!(
        r#"{{"turn":{},"client":{},"requestId":{},"sender":{},"prompt":{prompt}"#,
        quote(turn),
        quote(client),
        quote(id),
        quote(name),
    );
    if let Some(rest) = other_members(params) {
        data.push_str(r#","rest":"#);
        data.push_str(&rest);
    }
    data.push('}');
    data
}

fn turn_frame(session: &str, sender: &str, state: &str, stop_reason: Option<&str>) -> bytes::Bytes {
    let mut turn = json!({ "client": sender, "state": state });
    if let Some(reason) = stop_reason {
        turn["stopReason"] = json!(reason);
    }
    let meta = json!({ "frontdesk": { "turn": turn } });
    let update = json!({ "sessionUpdate": "session_info_update", "_meta": meta });
    let params = json!({ "sessionId": session, "update": update });
    Frame::call("session/update", None, &params.to_string())
}

fn code_of(error: &str) -> Option<i64> {
    #[derive(Deserialize)]
    struct Coded {
        code: i64,
    }
    serde_json::from_str::<Coded>(error).ok().map(|error| error.code)
}

fn stop_reason(result: &str) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Stop {
        stop_reason: String,
    }
    serde_json::from_str::<Stop>(result).ok().map(|stop| stop.stop_reason)
}
