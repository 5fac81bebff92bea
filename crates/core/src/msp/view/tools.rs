//! Tool calls: one item each, from the first word of it to its end.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::blocks::tool_text;
use super::{LABEL_BYTES_MAX, Out, Renderer, TOOL_TEXT_BYTES_MAX, cut, object};
use crate::ids::Seq;
use crate::record::Record;

/// Ended calls of one turn that are remembered for what is still said of them.
const ENDED_TOOLS_MAX: usize = 256;
/// Calls that are open at once; one more ends the oldest, nobody knows how.
const OPEN_TOOLS_MAX: usize = 1024;

/// The word for a call whose turn ended well and whose own end nobody told. The protocol's set is
/// open, and a word a client does not know means ended, it is not known how.
const UNTOLD: &str = "unknown";

/// A tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Tool {
    pub(super) item: String,
    /// The agent's id of the call.
    pub(super) call: String,
    pub(super) turn: Option<String>,
    title: String,
    kind: String,
    args: Option<String>,
    output: String,
    cut: bool,
    status: String,
    revision: u64,
    first: Seq,
    at: Timestamp,
    /// A person said no to it.
    pub(super) denied: bool,
}

impl Tool {
    pub(super) fn new(call: &str, turn: Option<String>, out: &Out<'_>) -> Self {
        Self {
            item: out.item_id(),
            call: cut(call, LABEL_BYTES_MAX).0.to_owned(),
            turn,
            title: String::new(),
            kind: String::new(),
            args: None,
            output: String::new(),
            cut: false,
            status: "inProgress".into(),
            revision: 0,
            first: out.seq,
            at: out.at,
            denied: false,
        }
    }

    fn has_ended(&self) -> bool {
        self.status != "inProgress"
    }

    /// Takes what an update says; `false` if that is nothing new.
    pub(super) fn take(&mut self, update: &Value) -> bool {
        let before = self.clone();
        if let Some(title) = update["title"].as_str() {
            cut(title, LABEL_BYTES_MAX).0.clone_into(&mut self.title);
        }
        if let Some(kind) = update["kind"].as_str() {
            cut(kind, LABEL_BYTES_MAX).0.clone_into(&mut self.kind);
        }
        if let Some(input) = update.get("rawInput").filter(|input| !input.is_null()) {
            self.args = Some(self.shorten(&input.to_string()));
        }
        if update.get("content").is_some_and(Value::is_array) {
            self.output = self.shorten(&tool_text(&update["content"]));
        } else if let Some(raw) = update["rawOutput"].as_str() {
            self.output = self.shorten(raw);
        }
        match update["status"].as_str() {
            Some("pending" | "in_progress") | None => {}
            Some("failed") if self.denied => self.status = "rejected".into(),
            Some(word) => cut(word, 64).0.clone_into(&mut self.status),
        }
        *self != before
    }

    fn shorten(&mut self, text: &str) -> String {
        let (text, more) = cut(text, TOOL_TEXT_BYTES_MAX);
        self.cut |= more;
        text.to_owned()
    }

    pub(super) fn name(&self) -> &str {
        if self.kind.is_empty() { "other" } else { &self.kind }
    }

    /// The arguments as JSON text; `null` where the agent told none.
    pub(super) fn raw_args(&self) -> &str {
        self.args.as_deref().unwrap_or("null")
    }

    fn params(&self) -> Map<String, Value> {
        let mut item = object(json!({
            "itemId": self.item,
            "kind": "toolCall",
            "turnId": self.turn,
            "revision": self.revision,
            "status": self.status,
            "recordedAt": self.at,
            "callId": self.call,
            "tool": self.name(),
        }));
        if !self.title.is_empty() {
            let title = &self.title;
            let label = json!({ "active": title, "done": title, "neutral": title });
            item.insert("displayLabel".into(), label);
            item.insert("fallbackText".into(), json!(title));
        }
        if let Some(args) = &self.args {
            item.insert("args".into(), json!(args));
        }
        if !self.output.is_empty() {
            item.insert("visibleOutput".into(), json!(self.output));
        }
        if self.cut {
            item.insert("truncated".into(), json!(true));
        }
        object(json!({ "item": item }))
    }

    /// Tells the item as it is now; `had_ended`: its end was told before.
    fn tell(&mut self, had_ended: bool, out: &mut Out<'_>) {
        self.revision += 1;
        let method = match (self.revision, had_ended, self.has_ended()) {
            (1, _, false) => "item/started",
            (_, false, true) => "item/completed",
            _ => "item/updated",
        };
        if !out.passes() {
            out.durable(method, self.params(), self.first);
        }
    }
}

impl Renderer {
    /// `tool_call` and `tool_call_update`, which an agent may send without the first.
    pub(super) fn tool(&mut self, record: &Record, update: &Value, out: &mut Out<'_>) {
        let call = update["toolCallId"].as_str().unwrap_or_default();
        let turn = self.turn_id(record);
        self.know_tool(call, turn, update, out);
    }

    /// Tells what is new about a call; the index of its entry.
    pub(super) fn know_tool(
        &mut self,
        call: &str,
        turn: Option<String>,
        update: &Value,
        out: &mut Out<'_>,
    ) -> usize {
        let call = cut(call, LABEL_BYTES_MAX).0;
        let known = self.tools.iter().rposition(|tool| tool.call == call);
        let at = known.unwrap_or_else(|| {
            self.make_room(out);
            self.tools.push(Arc::new(Tool::new(call, turn, out)));
            self.tools.len() - 1
        });
        if let Some(tool) = self.tools.get_mut(at).map(Arc::make_mut) {
            let had_ended = tool.has_ended();
            let is_new = tool.take(update);
            if tool.revision == 0 && tool.has_ended() {
                // Its end is a second revision, also where the first word of it was its last.
                let end = std::mem::replace(&mut tool.status, "inProgress".into());
                tool.tell(false, out);
                tool.status = end;
                tool.tell(false, out);
            } else if is_new || tool.revision == 0 {
                tool.tell(had_ended, out);
            }
        }
        at
    }

    /// Forgets the oldest call where as many are remembered as may be.
    fn make_room(&mut self, out: &mut Out<'_>) {
        let ended = self.tools.iter().filter(|tool| tool.has_ended()).count();
        let open = self.tools.len() - ended;
        if ended >= ENDED_TOOLS_MAX
            && let Some(oldest) = self.tools.iter().position(|tool| tool.has_ended())
        {
            self.tools.remove(oldest);
        }
        if open >= OPEN_TOOLS_MAX
            && let Some(oldest) = self.tools.iter().position(|tool| !tool.has_ended())
        {
            let mut tool = self.tools.remove(oldest);
            let tool = Arc::make_mut(&mut tool);
            tool.status = UNTOLD.into();
            tool.tell(false, out);
        }
    }

    /// The turn is over, so are its calls.
    pub(super) fn end_tools(&mut self, terminal: &str, out: &mut Out<'_>) {
        let status = if terminal == "completed" { UNTOLD } else { terminal };
        for tool in self.tools.iter_mut().filter(|tool| !tool.has_ended()).map(Arc::make_mut) {
            tool.status = if tool.denied { "rejected".into() } else { status.to_owned() };
            tool.tell(false, out);
        }
    }
}
