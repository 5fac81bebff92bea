//! Interactions: questions from the agent to people. The first valid answer wins, the rest are
//! withdrawn; an error, a disconnect or a word nobody knows is not an answer; with nobody attached
//! who can show it the question waits and is asked again on attach. What the session's policy answers
//! is not asked.
//! Source: ACP v1 "Requesting permission".

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::types::{Position, Tag};
use super::{Effect, Session};
use crate::agent::ClientAbilities;
use crate::envelope::{Frame, Message, quote};
use crate::errors::{Code, WireError};
use crate::ids::ConnId;
use crate::policy::{CANCELLED, ruling};
use crate::record::Kind;

/// `reason` of a question that its agent took back.
pub(super) const BY_AGENT: &str = "agent";

/// Longest part of a question that a remark about it repeats, in characters.
const MESSAGE_CHARS: usize = 200;

/// One open question.
#[derive(Debug)]
pub(super) struct Ask {
    /// Its id in the journal.
    pub(super) interaction: String,
    /// The agent's request.
    pub(super) frame: Frame,
    /// The id clients are asked with: made of instance and position, so that a frame handled
    /// again carries the same id.
    pub(super) hop: Box<str>,
    /// Who has been asked and has not refused.
    pub(super) asked: BTreeSet<ConnId>,
    /// Elicitations are for clients that can show them.
    pub(super) elicitation: bool,
    /// Only this client is asked.
    pub(super) only: Option<ConnId>,
}

impl Ask {
    /// Whether a client with these abilities can show it. Every client shows a request for a
    /// permission, and a form or an address only who said so. Source: ACP "Elicitation" (modes).
    fn is_shown_by(&self, can: ClientAbilities) -> bool {
        let asked = || serde_json::from_str::<Value>(self.frame.params()?).ok();
        match asked().as_ref().and_then(|params| params["mode"].as_str()) {
            _ if !self.elicitation => true,
            Some("form") => can.elicitation_form,
            Some("url") => can.elicitation_url,
            _ => can.can_take("elicitation/create"),
        }
    }

    /// What it asks, for a sentence about it.
    fn about(&self) -> Option<String> {
        let params: Value = serde_json::from_str(self.frame.params()?).ok()?;
        let text = params["message"].as_str().filter(|text| !text.is_empty())?;
        Some(format!(": {:?}", text.chars().take(MESSAGE_CHARS).collect::<String>()))
    }
}

/// An answer of somebody who need not take part in the session.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The question's id in the journal.
    pub interaction: String,
    /// Who, as the record names it.
    pub by: Value,
    /// The result that the agent gets, JSON text.
    pub result: String,
}

/// Why a result settles nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// No such question is open.
    #[error("failed to answer: the question is not open")]
    NotOpen,
    /// It is no answer to the question: it has another shape, or chooses what was not offered.
    #[error("failed to answer: this is no answer that the agent offered")]
    NotOffered,
}

impl Session {
    /// A question about a client's own request: only that client is asked, and by its own id.
    pub(super) fn open_ask_about(&mut self, frame: &Frame, at: &Position, about: Option<Tag>) {
        let running = self.turn.as_ref().filter(|turn| Some(turn.tag) == about);
        let owner = running.map(|turn| (turn.conn, turn.id.clone())).or_else(|| {
            let forward = self.forwards.get(&about?)?;
            Some((forward.conn, forward.id.clone()))
        });
        let own = owner.and_then(|(conn, id)| {
            let mut params: Value = serde_json::from_str(frame.params()?).ok()?;
            params["requestId"] = serde_json::from_str(&id).ok()?;
            let text = Frame::call(&frame.method, frame.id(), &params.to_string());
            match Message::parse(text) {
                Ok(Message::Request(frame)) => Some((conn, frame)),
                _ => None,
            }
        });
        match own {
            Some((conn, frame)) => self.open_ask(frame, at, Some(conn)),
            None => {
                let error =
                    WireError::new(Code::InvalidParams, "params.requestId names no open request");
                let id = frame.id().unwrap_or("null");
                self.settle_owed(&hop_id(at), Frame::failure(id, &error.to_json()));
            }
        }
    }

    pub(super) fn open_ask(&mut self, frame: Frame, at: &Position, only: Option<ConnId>) {
        let agent_id: Box<str> = frame.id().unwrap_or("null").into();
        let limit = self.limits.open_interactions as usize;
        if self.asks.len() >= limit {
            let error =
                WireError::new(Code::QueueFull, format!("{limit} questions are open already"));
            return self.settle_owed(&hop_id(at), Frame::failure(&agent_id, &error.to_json()));
        }
        let elicitation = &*frame.method == "elicitation/create";
        let hop = hop_id(at);
        let interaction = format!("{}{}", self.ask_prefix, self.view.seq + 1);
        let data = format!(
            r#"{{"interaction":{},"method":{},"requestId":{},"hop":{},"params":{}}}"#,
            quote(&interaction),
            quote(&frame.method),
            quote(&agent_id),
            quote(&hop),
            frame.params().unwrap_or("null"),
        );
        self.append(Kind::InteractionOpened, Some(at.source.clone()), bytes::Bytes::from(data));
        // Before the sync, and so before anything can settle it.
        self.out.push(Effect::Owe { hop: hop.clone(), frame: None });
        self.out.push(Effect::Sync);
        let asked = BTreeSet::new();
        let ask = Ask { interaction, frame, hop: hop.clone(), asked, elicitation, only };
        self.asks.insert(hop.clone(), ask);
        self.active();
        if self.is_cancelling() {
            return self.cancel_ask(&hop);
        }
        if self.rule(&hop) {
            return;
        }
        let live: Vec<ConnId> =
            self.clients.iter().filter(|(_, a)| a.live).map(|(conn, _)| *conn).collect();
        for conn in &live {
            self.offer(*conn, &hop);
        }
        self.tell_not_shown(&live, &hop);
    }

    /// Has the policy settle an open question, if it does; says whether it did.
    fn rule(&mut self, hop: &str) -> bool {
        let Some(mode) = self.view.policy.as_ref().map(|policy| policy.mode) else { return false };
        let ruling = self.asks.get(hop).and_then(|ask| {
            let is_permission = &*ask.frame.method == "session/request_permission";
            is_permission.then(|| ruling(mode, ask.frame.params()?)).flatten()
        });
        let Some(answer) = ruling else { return false };
        let Some(ask) = self.asks.remove(hop) else { return false };
        let frame = Frame::success(ask.frame.id().unwrap_or("null"), &answer);
        self.settle_answered(&ask, &json!({ "policy": mode.as_str() }), &answer, frame, None);
        true
    }

    /// The policy has changed: what is open is settled by the new one.
    pub(super) fn rule_open_asks(&mut self) {
        let open: Vec<Box<str>> = self.asks.keys().cloned().collect();
        for hop in open {
            self.rule(&hop);
        }
    }

    /// Asks a client that has just come everything that is open.
    pub(super) fn offer_open_asks(&mut self, conn: ConnId) {
        let open: Vec<Box<str>> = self.asks.keys().cloned().collect();
        for hop in open {
            self.offer(conn, &hop);
            self.tell_not_shown(&[conn], &hop);
        }
    }

    fn offer(&mut self, conn: ConnId, hop: &str) {
        let spelling = quote(&self.spelling(conn));
        let native = self.native().to_owned();
        let Some(attachment) = self.clients.get(&conn) else { return };
        let Some(ask) = self.asks.get_mut(hop) else { return };
        // A question of a child is asked in the child's id.
        let own = ask.frame.session_id().as_deref() == Some(native.as_str());
        if ask.only.is_some_and(|only| only != conn) {
            return;
        }
        if !ask.is_shown_by(attachment.client.can) {
            return;
        }
        ask.asked.insert(conn);
        let frame = ask.frame.spliced(Some(&quote(hop)), own.then_some(&*spelling));
        self.out.push(Effect::Tell { conn, frame, hop: Some(hop.into()), mark: None });
    }

    pub(super) fn client_answer(&mut self, conn: ConnId, hop: &str, frame: &Frame) {
        self.active();
        if !self.asks.contains_key(hop) {
            return self.pass_answer(conn, hop, frame);
        }
        let Some(ask) = self.asks.get_mut(hop) else { return };
        let result = frame.result().filter(|result| is_answer(&ask.frame, result));
        let Some(result) = result else {
            ask.asked.remove(&conn);
            if frame.result().is_some() {
                self.tell_not_offered(conn, hop);
            }
            return;
        };
        let by = self
            .clients
            .get(&conn)
            .map(|a| json!({ "client": &*a.client.key, "name": &*a.client.name }))
            .unwrap_or_default();
        let Some(ask) = self.asks.remove(hop) else { return };
        let answer = frame.spliced(ask.frame.id(), None);
        self.settle_answered(&ask, &by, result, answer, Some(conn));
    }

    /// Whether a result (JSON text) would settle an open question.
    ///
    /// # Errors
    /// Why it would not.
    pub fn may_answer(&self, interaction: &str, result: &str) -> Result<(), NoAnswer> {
        let ask = self.asks.values().find(|ask| ask.interaction == interaction);
        let ask = ask.ok_or(NoAnswer::NotOpen)?;
        if is_answer(&ask.frame, result) { Ok(()) } else { Err(NoAnswer::NotOffered) }
    }

    /// A person answers without taking part; what [`Session::may_answer`] refuses changes nothing.
    pub(super) fn decide(&mut self, decision: &Decision) {
        if self.may_answer(&decision.interaction, &decision.result).is_err() {
            return;
        }
        self.active();
        let found = self.asks.iter().find(|(_, ask)| ask.interaction == decision.interaction);
        let Some(hop) = found.map(|(hop, _)| hop.clone()) else { return };
        let Some(ask) = self.asks.remove(&hop) else { return };
        let answer = Frame::success(ask.frame.id().unwrap_or("null"), &decision.result);
        self.settle_answered(&ask, &decision.by, &decision.result, answer, None);
    }

    /// Records an answer, gives it to the agent and withdraws the question elsewhere.
    fn settle_answered(
        &mut self,
        ask: &Ask,
        by: &Value,
        result: &str,
        answer: bytes::Bytes,
        but: Option<ConnId>,
    ) {
        let data = format!(
            r#"{{"interaction":{},"outcome":"answered","by":{by},"answer":{result}}}"#,
            quote(&ask.interaction),
        );
        self.append(Kind::InteractionSettled, None, bytes::Bytes::from(data));
        self.out.push(Effect::Sync);
        self.settle_owed(&ask.hop, answer);
        self.withdraw(ask, but);
    }

    /// A client answered with what was not offered. It has no more to answer; a person at it would
    /// wait in vain if nothing said so.
    fn tell_not_offered(&mut self, conn: ConnId, hop: &str) {
        let Some(ask) = self.asks.get(hop) else { return };
        let text = format!(
            "This answer was not one that the agent offered; the question is still open. \
             Answer it with `frontdesk approve {0}` or `frontdesk deny {0}`",
            ask.interaction
        );
        let meta = format!(r#""interaction":{}"#, quote(&ask.interaction));
        let frame = crate::render::remark(&self.spelling(conn), &text, &meta);
        self.tell(conn, frame);
    }

    /// A question waits that no client can show. It can be answered from outside, and people at these
    /// clients would see nothing but a turn that stands still.
    fn tell_not_shown(&mut self, conns: &[ConnId], hop: &str) {
        let Some(ask) = self.asks.get(hop).filter(|ask| ask.asked.is_empty()) else { return };
        let asked = ask.about().unwrap_or_default();
        let text = format!(
            "The agent asks something that no attached client can show{asked}. \
             See it with `frontdesk pending`; answer it with `frontdesk approve {0}` or `frontdesk deny {0}`",
            ask.interaction
        );
        let meta = format!(r#""interaction":{}"#, quote(&ask.interaction));
        let only = ask.only;
        for conn in conns.iter().filter(|conn| only.is_none_or(|only| only == **conn)) {
            let frame = crate::render::remark(&self.spelling(*conn), &text, &meta);
            self.tell(*conn, frame);
        }
    }

    /// The turn that runs is being cancelled, or was closed as cancelled and still runs at the
    /// agent: what it asks is not for people any more.
    fn is_cancelling(&self) -> bool {
        match &self.turn {
            Some(turn) => turn.cancelled_ms.is_some(),
            None => self.stuck.is_some(),
        }
    }

    /// The turn is being cancelled: the agent gets `cancelled` for each question now.
    pub(super) fn cancel_asks(&mut self) {
        let open: Vec<Box<str>> = self.asks.keys().cloned().collect();
        open.iter().for_each(|hop| self.cancel_ask(hop));
    }

    fn cancel_ask(&mut self, hop: &str) {
        let Some(ask) = self.asks.remove(hop) else { return };
        self.settle(&ask, "cancelled", None);
        let answer = cancelled_answer(&ask.frame);
        self.out.push(Effect::Sync);
        self.settle_owed(&ask.hop, answer);
        self.withdraw(&ask, None);
    }

    /// The turn that asked has ended: clients are told, and the agent gets its answers all the same,
    /// unless its instance has ended.
    pub(super) fn withdraw_all(&mut self, agent_is_there: bool) {
        let asks = std::mem::take(&mut self.asks);
        for ask in asks.into_values() {
            self.settle(&ask, "withdrawn", None);
            let frame = agent_is_there.then(|| cancelled_answer(&ask.frame));
            self.out.push(Effect::Settle { hop: ask.hop.clone(), frame });
            self.withdraw(&ask, None);
        }
        self.withdraw_passes(agent_is_there);
    }

    /// The agent took its own question back; it still gets its one answer.
    pub(super) fn agent_withdraws(&mut self, agent_id: &str) -> bool {
        let found = self.asks.iter().find(|(_, ask)| ask.frame.id() == Some(agent_id));
        let Some(hop) = found.map(|(hop, _)| hop.clone()) else { return false };
        if let Some(ask) = self.asks.remove(&hop) {
            self.settle(&ask, "withdrawn", Some(BY_AGENT));
            let error = WireError::new(Code::Cancelled, "Request cancelled");
            self.settle_owed(&ask.hop, Frame::failure(agent_id, &error.to_json()));
            self.withdraw(&ask, None);
        }
        true
    }

    /// Answers a request of the agent.
    pub(super) fn settle_owed(&mut self, hop: &str, frame: bytes::Bytes) {
        self.out.push(Effect::Settle { hop: hop.into(), frame: Some(frame) });
    }

    fn settle(&mut self, ask: &Ask, outcome: &str, reason: Option<&str>) {
        let mut data = json!({ "interaction": ask.interaction, "outcome": outcome });
        if let Some(reason) = reason {
            data["reason"] = json!(reason);
        }
        self.append_json(Kind::InteractionSettled, &data);
    }

    fn withdraw(&mut self, ask: &Ask, but: Option<ConnId>) {
        for conn in ask.asked.iter().filter(|conn| Some(**conn) != but) {
            self.out.push(Effect::Forget { conn: *conn, hop: ask.hop.clone() });
            self.out.push(Effect::Tell {
                conn: *conn,
                frame: cancel_frame(&ask.hop),
                hop: None,
                mark: None,
            });
        }
    }
}

/// The agent's answer where a question is cancelled with its turn. Source: ACP v1 "Cancellation".
pub(super) fn cancelled_answer(question: &Frame) -> bytes::Bytes {
    let id = question.id().unwrap_or("null");
    if &*question.method == "elicitation/create" {
        Frame::success(id, r#"{"action":"cancel"}"#)
    } else {
        Frame::success(id, CANCELLED)
    }
}

/// `$/cancel_request` for a request that a client was sent.
pub(super) fn cancel_frame(hop: &str) -> bytes::Bytes {
    Frame::call("$/cancel_request", None, &format!(r#"{{"requestId":{}}}"#, quote(hop)))
}

/// The id under which a client is sent a request of the agent.
pub(super) fn hop_id(at: &Position) -> Box<str> {
    at.source.hop()
}

/// Whether the result of a response answers the question. Words we do not know pass, so that newer
/// clients can answer newer agents; a choice that was not offered does not.
fn is_answer(question: &Frame, result: &str) -> bool {
    let Ok(result) = serde_json::from_str::<Value>(result) else { return false };
    if &*question.method == "elicitation/create" {
        return result.get("action").is_some();
    }
    let outcome = result.get("outcome");
    match outcome.and_then(|outcome| outcome.get("outcome")).and_then(Value::as_str) {
        Some("selected") => {
            let chosen = outcome.and_then(|outcome| outcome.get("optionId"));
            let params: Value = question
                .params()
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default();
            let options = params.get("options").and_then(Value::as_array);
            chosen.is_some()
                && options
                    .is_some_and(|options| options.iter().any(|o| o.get("optionId") == chosen))
        }
        Some(_) => true,
        None => false,
    }
}
