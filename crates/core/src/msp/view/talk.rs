//! Messages and thoughts: chunks become one item that starts, grows and completes.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::blocks::piece;
use super::{ITEM_TEXT_BYTES_MAX, Out, Renderer, boundary, object};
use crate::ids::Seq;
use crate::record::{Kind, Record};

/// Pictures of one message that are told.
const ATTACHMENTS_MAX: usize = 64;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Voice {
    /// A person.
    User,
    /// The agent.
    Agent,
    /// The agent, to itself.
    Thought,
}

/// A message that may still grow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Talk {
    voice: Voice,
    item: String,
    turn: Option<String>,
    /// The agent's own id of the message, where it gives one.
    message: Option<String>,
    text: String,
    attachments: Vec<Value>,
    first: Seq,
    at: Timestamp,
    /// A replayed message is not continued by a live one.
    kind: String,
}

impl Talk {
    fn start(&self, out: &mut Out<'_>) {
        if !out.passes() {
            out.passing("item/started", self.params(1, "inProgress"));
        }
    }

    fn complete(&self, out: &mut Out<'_>) {
        if !out.passes() {
            out.durable("item/completed", self.params(2, "completed"), self.first);
        }
    }

    fn params(&self, revision: u64, status: &str) -> Map<String, Value> {
        let mut item = object(json!({
            "itemId": self.item,
            "kind": match self.voice {
                Voice::User => "userMessage",
                Voice::Agent => "agentMessage",
                Voice::Thought => "reasoning",
            },
            "turnId": self.turn,
            "revision": revision,
            "status": status,
            "recordedAt": self.at,
        }));
        match self.voice {
            Voice::Thought => item.insert("summary".into(), json!([self.text])),
            Voice::User | Voice::Agent => item.insert("text".into(), json!(self.text)),
        };
        if !self.attachments.is_empty() {
            item.insert("attachments".into(), json!(self.attachments));
        }
        object(json!({ "item": item }))
    }
}

impl Renderer {
    /// One chunk of a message.
    pub(super) fn say(
        &mut self,
        voice: Voice,
        record: &Record,
        content: &Value,
        message: Option<&str>,
        out: &mut Out<'_>,
    ) {
        let piece = piece(content);
        let turn = self.turn_id(record);
        let goes_on = self.talk.as_ref().is_some_and(|talk| {
            talk.voice == voice
                && talk.turn == turn
                && talk.kind == record.kind.as_str()
                && talk.message.as_deref() == message
        });
        if !goes_on {
            self.end_talk(out);
        }
        if piece.text.is_empty() && piece.attachment.is_none() {
            return;
        }
        if self.talk.is_none() {
            self.begin_talk(voice, record, turn, message, out);
        }
        if let Some(talk) = &mut self.talk
            && let Some(attachment) = piece.attachment
            && talk.attachments.len() < ATTACHMENTS_MAX
        {
            talk.attachments.push(attachment);
        }
        let mut rest = piece.text.as_str();
        while !rest.is_empty() {
            let Some(talk) = &mut self.talk else { return };
            let room = ITEM_TEXT_BYTES_MAX.saturating_sub(talk.text.len());
            let fits = if rest.len() <= room { rest.len() } else { boundary(rest, room) };
            if fits == 0 {
                // The message goes on in another item, so that each one fits a frame.
                self.split_talk(record, out);
                continue;
            }
            let (now, later) = rest.split_at(fits);
            talk.text.push_str(now);
            rest = later;
            if out.passes() {
                continue;
            }
            let field = if voice == Voice::Thought { "summary.0" } else { "text" };
            let params = json!({ "itemId": talk.item, "field": field, "delta": now });
            out.passing("item/delta", object(params));
        }
    }

    fn begin_talk(
        &mut self,
        voice: Voice,
        record: &Record,
        turn: Option<String>,
        message: Option<&str>,
        out: &mut Out<'_>,
    ) {
        let talk = Talk {
            voice,
            item: out.item_id(),
            turn,
            message: message.map(ToOwned::to_owned),
            text: String::new(),
            attachments: Vec::new(),
            first: record.seq,
            at: record.at,
            kind: record.kind.as_str().to_owned(),
        };
        talk.start(out);
        self.talk = Some(talk);
    }

    fn split_talk(&mut self, record: &Record, out: &mut Out<'_>) {
        let Some(full) = self.talk.take() else { return };
        let item = format!("{}_{}", out.item_id(), out.place);
        full.complete(out);
        let talk = Talk {
            item,
            text: String::new(),
            attachments: Vec::new(),
            first: record.seq,
            at: record.at,
            ..full
        };
        talk.start(out);
        self.talk = Some(talk);
    }

    /// The message is complete: something else came.
    pub(super) fn end_talk(&mut self, out: &mut Out<'_>) {
        if let Some(talk) = self.talk.take() {
            talk.complete(out);
        }
    }

    /// An agent's own repetition of the running prompt: the prompt is shown already.
    pub(super) fn is_echo(&self, record: &Record, content: &Value) -> bool {
        let Some(turn) = self.turn.as_ref().filter(|_| record.kind == Kind::Update) else {
            return false;
        };
        let text = content["text"].as_str();
        text.is_some_and(|text| turn.said.contains(&super::turns::mark(text)))
    }
}
