//! Turns: a prompt, its ending, and what that ending means on this face.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::blocks::piece;
use super::{ITEM_TEXT_BYTES_MAX, LABEL_BYTES_MAX, Out, Renderer, cut, object};
use crate::record::Record;

/// A turn without an ending.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Turn {
    /// Its id, which is the journal's: rows name a turn that runs by it, too.
    pub(super) id: String,
    at: Timestamp,
    /// Marks of the texts of its prompt, to know an echo by.
    pub(super) said: Vec<u64>,
}

/// How a turn ended; `lastTurn` of `session/read`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastTurn {
    /// Its id.
    pub turn_id: String,
    /// `completed`, `failed` or `cancelled`.
    pub terminal: String,
    /// More about it, where there is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What went wrong, where something did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    turn: String,
    #[serde(default)]
    prompt: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ended {
    turn: String,
    #[serde(default)]
    outcome: String,
    #[serde(default)]
    stop_reason: Option<String>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    error: Value,
    #[serde(default)]
    result: Value,
}

impl Renderer {
    pub(super) fn start_turn(&mut self, record: &Record, out: &mut Out<'_>) {
        let Some(started) = record.payload::<Started>() else { return };
        self.end_talk(out);
        self.abort_turn(out);
        self.tools.clear();
        let id = started.turn;
        let params = json!({ "turnId": id, "commandId": id });
        out.durable("turn/started", object(params), record.seq);
        let mut text = String::new();
        let mut attachments = Vec::new();
        let mut said = Vec::new();
        for block in &started.prompt {
            let piece = piece(block);
            text.push_str(&piece.text);
            attachments.extend(piece.attachment);
            said.extend(block["text"].as_str().map(mark));
        }
        let (text, more) = cut(&text, ITEM_TEXT_BYTES_MAX);
        let mut item = object(json!({
            "itemId": out.item_id(),
            "kind": "userMessage",
            "turnId": id,
            "commandId": id,
            "revision": 1,
            "status": "completed",
            "recordedAt": record.at,
            "text": text,
        }));
        if !attachments.is_empty() {
            item.insert("attachments".into(), json!(attachments));
        }
        if more {
            item.insert("truncated".into(), json!(true));
        }
        out.durable("item/completed", object(json!({ "item": item })), record.seq);
        self.turn = Some(Turn { id, at: record.at, said });
    }

    pub(super) fn end_turn(&mut self, record: &Record, out: &mut Out<'_>) {
        let Some(ended) = record.payload::<Ended>() else { return };
        let open = self.turn.take_if(|turn| turn.id == ended.turn);
        let Some(turn) = open else {
            return never_began(&ended, out);
        };
        self.end_talk(out);
        let last = ended.as_last(turn.id);
        self.end_tools(&last.terminal, out);
        let mut params = object(json!(last));
        if let Ok(ms) = u64::try_from(record.at.duration_since(turn.at).as_millis()) {
            params.insert("durationMs".into(), json!(ms));
        }
        if let Some(usage) = usage(&ended.result["usage"]) {
            params.insert("usage".into(), usage);
        }
        out.durable("turn/completed", params, record.seq);
        self.last_turn = Some(last);
    }

    /// The turn has no ending of its own and never will: its instance is gone, or another began.
    pub(super) fn abort_turn(&mut self, out: &mut Out<'_>) {
        let Some(turn) = self.turn.take() else { return };
        self.end_tools("failed", out);
        let last = LastTurn {
            turn_id: turn.id,
            terminal: "failed".into(),
            reason: Some("incomplete".into()),
            error: None,
        };
        out.durable("turn/completed", object(json!(last)), out.seq);
        self.last_turn = Some(last);
    }
}

/// A prompt that only waited: taken back, or it could not begin.
fn never_began(ended: &Ended, out: &mut Out<'_>) {
    let id = &ended.turn;
    if ended.outcome == "cancelled" {
        let params = json!({ "turnId": id, "commandId": id });
        return out.durable("turn/unqueued", object(params), out.seq);
    }
    let mut last = ended.as_last(id.clone());
    if last.error.is_some() {
        last.error = Some(error("launchError", message(&ended.error)));
    }
    out.durable("turn/completed", object(json!(last)), out.seq);
}

impl Ended {
    fn as_last(&self, turn_id: String) -> LastTurn {
        let plain = |terminal: &str, reason: Option<String>| (terminal.to_owned(), reason, None);
        let (terminal, reason, error) = match (self.outcome.as_str(), self.stop_reason.as_deref()) {
            ("cancelled", _) | ("completed", Some("cancelled")) => {
                plain("cancelled", self.reason.clone())
            }
            ("completed", Some("max_turn_requests")) => {
                let text = "the agent reached its limit of model calls in one turn";
                ("failed".into(), None, Some(error("stepLimit", text)))
            }
            ("completed", Some("refusal")) => {
                let text = "the agent refused to go on";
                ("failed".into(), Some("refusal".into()), Some(error("requestDenied", text)))
            }
            ("completed", Some("end_turn") | None) => plain("completed", None),
            ("completed", Some(other)) => plain("completed", Some(cut(other, 256).0.to_owned())),
            // What a crash cut short has a reason and no error.
            (_, _) if self.reason.is_some() => plain("failed", self.reason.clone()),
            (_, _) => {
                let kind = if self.error["code"] == -32000 { "authRequired" } else { "agentError" };
                ("failed".into(), None, Some(error(kind, message(&self.error))))
            }
        };
        LastTurn { turn_id, terminal, reason, error }
    }
}

fn message(error: &Value) -> &str {
    cut(error["message"].as_str().unwrap_or("the agent failed"), LABEL_BYTES_MAX).0
}

fn error(kind: &str, message: &str) -> Value {
    json!({ "kind": kind, "message": message, "retryable": false })
}

/// Token counts, where the agent told every one that this face needs.
fn usage(told: &Value) -> Option<Value> {
    let count = |name: &str| told.get(name).and_then(Value::as_u64);
    Some(json!({
        "inputTokens": count("inputTokens")?,
        "outputTokens": count("outputTokens")?,
        "cachedTokens": count("cachedReadTokens")?,
        "reasoningTokens": count("thoughtTokens")?,
    }))
}

/// A short mark of a text (FNV-1a, 64 bits).
pub(super) fn mark(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
