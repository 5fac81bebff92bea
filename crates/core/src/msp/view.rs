//! Records to view events: what an MSP client is shown of a session, for history and live alike.
//!
//! Pure, total and incremental: the events of a prefix and then of the rest are the events of all,
//! and the state between may be kept and read again. Every event has a cursor that follows from its
//! record alone, so a replay gives the same ones. Sources: msp "Turns, items, fold", the Python
//! models 1.4.13, and what both SDKs' folds do (a completed item must have a higher revision than
//! its start; the deltas of a field add up to the completed item's field).

mod asks;
mod blocks;
mod talk;
mod tools;
mod turns;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::cursor::ViewCursor;
use crate::fold::{NameOrigin, View};
use crate::ids::{Key, Seq};
use crate::record::{Kind, Record};
use crate::render::stored_params;
use asks::Ask;
use talk::{Talk, Voice};
use tools::Tool;
pub use turns::LastTurn;
use turns::Turn;

/// Longest text of one item, in bytes: a message that is longer goes on in another item. Text may
/// grow sixfold in JSON, and an event must fit a frame of 10 MiB.
pub const ITEM_TEXT_BYTES_MAX: usize = 1 << 20;
/// Longest arguments or output of a tool call that are shown, in bytes; the rest is cut off.
pub const TOOL_TEXT_BYTES_MAX: usize = 512 << 10;
/// Longest short text, as a label or a path, in bytes.
const LABEL_BYTES_MAX: usize = 4 << 10;
/// Entries of a todo list that are shown.
const TODO_ITEMS_MAX: usize = 200;

/// One event: a notification for subscribers.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its method.
    pub method: &'static str,
    /// Its params.
    pub params: Value,
    /// Where it stands.
    pub cursor: ViewCursor,
    /// Whether it is kept: `view/page` gives only those that are.
    pub durable: bool,
}

/// The state between two records of one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Renderer {
    key: Key,
    view: View,
    last: ViewCursor,
    talk: Option<Talk>,
    /// Calls of the open turn and, until the next one begins, of the last. States that are kept of
    /// one turn have those in common that did not change between them.
    tools: Vec<Arc<Tool>>,
    turn: Option<Turn>,
    last_turn: Option<LastTurn>,
    asks: BTreeMap<String, Ask>,
    todo: Option<Value>,
    todo_revision: u64,
    told: Told,
}

/// Name, branch and model as they were told last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Told {
    name: Option<String>,
    origin: Option<NameOrigin>,
    generated: Option<String>,
    branch: Option<String>,
    worktree: Option<String>,
    model: Option<String>,
    provider: Option<String>,
}

/// A `session/update` as far as its kind tells what else is needed.
#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    update: Head<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    #[serde(borrow)]
    session_update: Cow<'a, str>,
    #[serde(borrow, default)]
    message_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

/// Where the events of one record are gathered.
struct Out<'a> {
    key: Key,
    seq: Seq,
    at: Timestamp,
    place: u32,
    /// Nobody looks at the events: only their number counts.
    quiet: bool,
    events: &'a mut Vec<Event>,
}

impl Out<'_> {
    /// Adds a durable event that came from the records `first` to this one.
    fn durable(&mut self, method: &'static str, mut params: Map<String, Value>, first: Seq) {
        params.insert("sourceRange".into(), source_range(self.key, first, self.seq));
        self.push(method, params, true);
    }

    /// Adds an event that no later reader is given.
    fn passing(&mut self, method: &'static str, params: Map<String, Value>) {
        self.push(method, params, false);
    }

    /// Counts an event that is not made, where nobody looks; `false` where somebody does.
    fn passes(&mut self) -> bool {
        if self.quiet {
            self.place += 1;
        }
        self.quiet
    }

    fn push(&mut self, method: &'static str, mut params: Map<String, Value>, durable: bool) {
        self.place += 1;
        let cursor = self.cursor();
        params.insert("sessionId".into(), json!(self.key));
        params.insert("viewCursor".into(), json!(cursor.text(self.key)));
        self.events.push(Event { method, params: Value::Object(params), cursor, durable });
    }

    /// The cursor of the event that was added last.
    fn cursor(&self) -> ViewCursor {
        ViewCursor { seq: self.seq, place: self.place }
    }

    fn item_id(&self) -> String {
        format!("item_{}", self.seq)
    }
}

/// The records an event came from.
fn source_range(key: Key, first: Seq, last: Seq) -> Value {
    let position = |seq: Seq| json!({ "id": format!("{key}:{seq}"), "sequence": seq });
    json!({
        "stream": { "kind": "session", "id": key },
        "first": position(first),
        "last": position(last),
    })
}

impl Renderer {
    /// Before a session's first record.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self {
            key,
            view: View::default(),
            last: ViewCursor { seq: 0, place: 0 },
            talk: None,
            tools: Vec::new(),
            turn: None,
            last_turn: None,
            asks: BTreeMap::new(),
            todo: None,
            todo_revision: 0,
            told: Told::default(),
        }
    }

    /// Whose records it reads.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key
    }

    /// Number of the last record.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.view.seq
    }

    /// The cursor of the last event; of a session without any, the very beginning.
    #[must_use]
    pub fn head(&self) -> ViewCursor {
        self.last
    }

    /// What the records add up to.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// How the last turn ended.
    #[must_use]
    pub fn last_turn(&self) -> Option<&LastTurn> {
        self.last_turn.as_ref()
    }

    /// Adds the events of one record. Records at or before the last position are skipped, as the
    /// fold skips them.
    pub fn apply(&mut self, record: &Record, events: &mut Vec<Event>) {
        self.take(record, events, false);
    }

    /// Goes past one record: the state is as after [`Self::apply`], at less cost.
    pub fn pass(&mut self, record: &Record) {
        self.take(record, &mut Vec::new(), true);
    }

    fn take(&mut self, record: &Record, events: &mut Vec<Event>, quiet: bool) {
        if record.seq <= self.view.seq {
            return;
        }
        self.view.apply(record);
        let mut out =
            Out { key: self.key, seq: record.seq, at: record.at, place: 0, quiet, events };
        match &record.kind {
            Kind::TurnStarted => self.start_turn(record, &mut out),
            Kind::TurnEnded => self.end_turn(record, &mut out),
            // What a child says is in the child's own view.
            Kind::Update | Kind::Imported | Kind::TurnLate if self.view.is_of_child(record) => {}
            Kind::Update | Kind::Imported | Kind::TurnLate => self.update(record, &mut out),
            Kind::InteractionOpened => self.open_ask(record, &mut out),
            Kind::InteractionSettled => self.settle_ask(record, &mut out),
            Kind::Note | Kind::Damage => self.note(record, &mut out),
            Kind::Subagent => self.own_state(record, &mut out),
            Kind::Closed | Kind::Lost | Kind::Deleted => self.unloaded(&mut out),
            // A new owner: whatever the one before was saying is over.
            Kind::Claimed | Kind::Loaded => self.end_talk(&mut out),
            Kind::Created
            | Kind::Adopted
            | Kind::Parameters
            | Kind::Archived
            | Kind::Metadata
            | Kind::Options
            | Kind::Commands
            | Kind::Renamed
            | Kind::Title
            | Kind::Branch
            | Kind::Policy
            | Kind::TurnQueued
            | Kind::Command
            | Kind::Unknown(_) => {}
        }
        self.state_events(record, &mut out);
        if out.place > 0 {
            self.last = out.cursor();
        }
    }

    /// Name, branch and model: told where the record changed them.
    fn state_events(&mut self, record: &Record, out: &mut Out<'_>) {
        let (view, told) = (&self.view, &mut self.told);
        let named = told.name != view.name || told.origin != view.name_origin;
        if named || told.generated != view.generated_name {
            told.name.clone_from(&view.name);
            told.origin = view.name_origin;
            told.generated.clone_from(&view.generated_name);
            if let Some(name) = &view.name {
                let mut params = object(json!({ "name": name }));
                if let Some(origin) = view.name_origin {
                    params.insert("nameOrigin".into(), json!(origin));
                }
                if let Some(generated) = &view.generated_name {
                    params.insert("generatedName".into(), json!(generated));
                }
                out.durable("session/nameChanged", params, record.seq);
            }
        }
        let tree = view.worktree.as_ref().map(|tree| &tree.path);
        if told.branch != view.branch || told.worktree.as_ref() != tree {
            told.branch.clone_from(&view.branch);
            told.worktree = tree.cloned();
            let root = tree.unwrap_or(&view.cwd);
            let params = json!({ "branch": view.branch, "workspaceRoot": root, "vcs": "git" });
            out.durable("session/branchChanged", object(params), record.seq);
        }
        if told.model != view.model_id || told.provider != view.provider_id {
            told.model.clone_from(&view.model_id);
            told.provider.clone_from(&view.provider_id);
            if let Some(model) = &view.model_id {
                let source = model_source(&record.kind);
                let params =
                    json!({ "modelId": model, "providerId": view.provider_id, "source": source });
                out.durable("session/modelChanged", object(params), record.seq);
            }
        }
    }

    fn update(&mut self, record: &Record, out: &mut Out<'_>) {
        let params = stored_params(&record.data);
        let Ok(Params { update: head }) = serde_json::from_slice::<Params<'_>>(&params) else {
            return;
        };
        let voice = match head.session_update.as_ref() {
            "user_message_chunk" => Voice::User,
            "agent_message_chunk" => Voice::Agent,
            "agent_thought_chunk" => Voice::Thought,
            kind @ ("tool_call" | "tool_call_update" | "plan") => {
                let Ok(mut whole) = serde_json::from_slice::<Value>(&params) else { return };
                let update = whole["update"].take();
                if kind == "tool_call" {
                    self.end_talk(out);
                }
                return match kind {
                    "plan" => self.plan(&update, record.seq, out),
                    _ => self.tool(record, &update, out),
                };
            }
            // Kinds that a newer agent may send are kept in the journal and not shown here.
            _ => return,
        };
        let content = head.content.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
        let content = content.unwrap_or_default();
        if voice == Voice::User && self.is_echo(record, &content) {
            return;
        }
        self.say(voice, record, &content, head.message_id.as_deref(), out);
    }

    /// A plan replaces the todo list as a whole.
    fn plan(&mut self, update: &Value, seq: Seq, out: &mut Out<'_>) {
        let entries = update["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
        let items: Vec<Value> = entries
            .iter()
            .take(TODO_ITEMS_MAX)
            .map(|entry| {
                let text = entry["content"].as_str().unwrap_or_default();
                let status = match entry["status"].as_str() {
                    Some("in_progress") => "inProgress",
                    Some(word) => word,
                    None => "pending",
                };
                json!({ "text": cut(text, LABEL_BYTES_MAX).0, "status": cut(status, 64).0 })
            })
            .collect();
        let items = Value::Array(items);
        if self.todo.as_ref() == Some(&items) {
            return;
        }
        self.todo_revision += 1;
        let params =
            json!({ "items": items, "revision": self.todo_revision, "sourceTool": "plan" });
        self.todo = Some(items);
        out.durable("session/todoListChanged", object(params), seq);
    }

    /// A remark of Frontdesk's, as a message that says whose it is.
    fn note(&mut self, record: &Record, out: &mut Out<'_>) {
        #[derive(Deserialize)]
        struct Note {
            text: String,
            #[serde(default)]
            shown: bool,
        }
        self.end_talk(out);
        let Some(note) = record.payload::<Note>().filter(|note| note.shown) else { return };
        let text = format!("[frontdesk] {}", note.text);
        let (text, more) = cut(&text, ITEM_TEXT_BYTES_MAX);
        let mut item = object(json!({
            "itemId": out.item_id(),
            "kind": "agentMessage",
            "turnId": self.turn_id(record),
            "revision": 1,
            "status": "completed",
            "recordedAt": record.at,
            "text": text,
        }));
        if more {
            item.insert("truncated".into(), json!(true));
        }
        out.durable("item/completed", object(json!({ "item": item })), record.seq);
    }

    /// A subagent's own state: what it was saying is over when it does not run any more. A record
    /// that names a child is about that child and says nothing here.
    fn own_state(&mut self, record: &Record, out: &mut Out<'_>) {
        #[derive(Deserialize)]
        struct Told {
            #[serde(default)]
            child: Option<String>,
            #[serde(default)]
            state: Value,
        }
        let told = record.payload::<Told>().filter(|told| told.child.is_none());
        if told.is_some_and(|told| told.state["state"] != "running") {
            self.end_talk(out);
        }
    }

    /// The instance is gone: nothing of it goes on.
    fn unloaded(&mut self, out: &mut Out<'_>) {
        self.end_talk(out);
        self.abort_asks(out);
        self.abort_turn(out);
    }

    /// The turn an item belongs to; `None` outside of turns and in replayed history, whose turns
    /// nobody told us.
    fn turn_id(&self, record: &Record) -> Option<String> {
        match record.kind {
            Kind::Imported => None,
            Kind::TurnLate => self.last_turn.as_ref().map(|last| last.turn_id.clone()),
            _ => self.turn.as_ref().map(|turn| turn.id.clone()),
        }
    }
}

/// Who chose a model: an option that a client set, or what the agent began with.
fn model_source(kind: &Kind) -> &'static str {
    if matches!(kind, Kind::Options) { "user" } else { "default" }
}

/// The members of an object that was written as one.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// The beginning of a text that fits, and whether something was cut off.
fn cut(text: &str, bytes: usize) -> (&str, bool) {
    if text.len() <= bytes {
        return (text, false);
    }
    (&text[..boundary(text, bytes)], true)
}

/// The last place at or before `at` where a character begins.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
