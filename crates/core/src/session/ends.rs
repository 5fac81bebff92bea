//! What a journal leaves open at the instance that has its session: the part of a fold that only a
//! daemon needs which takes up the work of another one. Texts stay as they were written.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::ids::Key;
use crate::record::{Kind, Record};
use crate::render::stored_params;

/// The open ends of one session at one instance.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    instance: String,
    /// Requests of the agent that it is owed an answer for, by the instance's ledger.
    owed: BTreeSet<Box<str>>,
    /// Whether this instance claimed the session last, and then loaded it.
    is_loaded: bool,
    is_claimed: bool,
    replays: Replaying,
    /// Place of the last frame of the instance that made a record.
    pub(super) last: Option<(u64, u32)>,
    /// The turn without an ending.
    pub(super) turn: Option<Record>,
    /// Prompts that wait: turn and record's payload.
    pub(super) queued: Vec<(String, Bytes)>,
    /// A turn that was closed as cancelled and whose answer has not come.
    pub(super) stuck: Option<String>,
    /// Questions without a settlement: interaction and payload.
    pub(super) asks: Vec<(String, Bytes)>,
    /// Settled questions whose answer the ledger does not have: both payloads.
    pub(super) settled: Vec<(Bytes, Bytes)>,
    children: BTreeMap<String, KnownChild>,
    /// Child sessions that are remembered at most.
    children_max: usize,
}

/// What becomes of the history that an agent replays while it opens a session, as the record of the
/// claim has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Replaying {
    /// Ours is complete.
    #[serde(rename = "swallow")]
    Swallowed,
    /// It is matched against ours.
    #[serde(rename = "import")]
    Imported,
    /// It replays none.
    #[default]
    #[serde(other)]
    Nothing,
}

/// A child session that the agent has named.
#[derive(Clone, Debug, Default)]
pub struct KnownChild {
    /// Its key, once it has a journal.
    pub key: Option<Key>,
    /// Title and state as last recorded.
    pub told: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Facts {
    instance: String,
    turn: String,
    interaction: String,
    outcome: String,
    hop: String,
    late: bool,
    replay: Replaying,
    result: Option<serde::de::IgnoredAny>,
}

/// The `subagent_update` in the params of an update (JSON text), where it is one.
#[must_use]
pub fn subagent_update(params: &[u8]) -> Option<Value> {
    // Most updates are not about children: their bytes are looked through once and not read.
    memchr::memmem::find(params, b"subagent_update")?;
    let mut params: Value = serde_json::from_slice(params).ok()?;
    let update = params.get_mut("update")?.take();
    (update.get("sessionUpdate")? == "subagent_update").then_some(update)
}

impl Ends {
    /// Nothing yet; `owed` are the requests of the agent that the ledger says are not answered, and
    /// `children_max` child sessions are remembered.
    #[must_use]
    pub fn new(instance: &str, owed: BTreeSet<Box<str>>, children_max: usize) -> Self {
        Self { instance: instance.to_owned(), owed, children_max, ..Self::default() }
    }

    /// Whether the instance has the session in memory.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// Whether the instance has claimed the session last.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        self.is_claimed
    }

    /// What becomes of the history that the agent replays while it opens the session.
    #[must_use]
    pub fn replays(&self) -> Replaying {
        self.replays
    }

    /// Child sessions that the agent has named.
    pub fn children(&self) -> impl Iterator<Item = (&str, &KnownChild)> {
        self.children.iter().map(|(native, child)| (native.as_str(), child))
    }

    /// Folds records that follow what was folded before.
    pub fn extend<'a>(&mut self, records: impl IntoIterator<Item = &'a Record>) {
        records.into_iter().for_each(|record| self.apply(record));
    }

    fn apply(&mut self, record: &Record) {
        let src = record.src.as_ref().filter(|src| *src.instance.0 == *self.instance);
        self.last = self.last.max(src.map(crate::record::Source::place));
        match record.kind {
            Kind::Update | Kind::TurnLate => return self.learn_child(record),
            Kind::Subagent => return self.know_child(record),
            Kind::Claimed
            | Kind::Loaded
            | Kind::Closed
            | Kind::Lost
            | Kind::TurnQueued
            | Kind::TurnStarted
            | Kind::TurnEnded
            | Kind::InteractionOpened
            | Kind::InteractionSettled
            | Kind::Note => {}
            _ => return,
        }
        let facts: Facts = record.payload().unwrap_or_default();
        match record.kind {
            Kind::Claimed => {
                self.forget();
                self.is_claimed = facts.instance == self.instance;
                self.replays = facts.replay;
            }
            Kind::Loaded => {
                self.is_loaded = self.is_claimed;
                self.replays = Replaying::Nothing;
            }
            Kind::Closed | Kind::Lost => self.forget(),
            Kind::TurnQueued => self.queued.push((facts.turn, kept(&record.data))),
            Kind::TurnStarted => {
                self.queued.retain(|(turn, _)| *turn != facts.turn);
                self.turn = Some(Record { data: kept(&record.data), ..record.clone() });
            }
            Kind::TurnEnded => self.end_turn(record, facts),
            Kind::Note if facts.late && self.stuck.as_ref() == Some(&facts.turn) => {
                self.stuck = None;
            }
            Kind::InteractionOpened => self.asks.push((facts.interaction, kept(&record.data))),
            Kind::InteractionSettled => self.settle(record, &facts),
            _ => {}
        }
    }

    fn forget(&mut self) {
        // Prompts that wait go on waiting for whoever loads the session next.
        self.is_claimed = false;
        self.is_loaded = false;
        self.replays = Replaying::Nothing;
        self.turn = None;
        self.stuck = None;
        self.asks.clear();
        self.settled.clear();
        self.children.clear();
    }

    fn end_turn(&mut self, record: &Record, facts: Facts) {
        self.queued.retain(|(turn, _)| *turn != facts.turn);
        let open = self.turn.take_if(|open| name_of(open) == facts.turn);
        // The agent's own word has a result, and a source.
        let ours = record.src.is_none() && facts.result.is_none();
        if open.is_some() && ours && facts.outcome == "cancelled" {
            self.stuck = Some(facts.turn);
        }
    }

    fn settle(&mut self, record: &Record, facts: &Facts) {
        let Some(at) = self.asks.iter().position(|(ask, _)| *ask == facts.interaction) else {
            return;
        };
        let (_, opened) = self.asks.remove(at);
        let hop = serde_json::from_slice::<Facts>(&opened).unwrap_or_default().hop;
        if self.owed.contains(hop.as_str()) {
            self.settled.push((opened, kept(&record.data)));
        }
    }

    fn learn_child(&mut self, record: &Record) {
        let update = subagent_update(&stored_params(&record.data));
        if let Some(native) = update.as_ref().and_then(|update| update["sessionId"].as_str())
            && self.children.len() < self.children_max
        {
            self.children.entry(native.to_owned()).or_default();
        }
    }

    fn know_child(&mut self, record: &Record) {
        let Some(mut told) = record.payload::<Map<String, Value>>() else { return };
        let Some(Value::String(native)) = told.remove("nativeId") else { return };
        let key = told.remove("child").and_then(|key| key.as_str()?.parse().ok());
        told.retain(|name, _| name == "title" || name == "state");
        if self.children.contains_key(&native) || self.children.len() < self.children_max {
            self.children.insert(native, KnownChild { key, told });
        }
    }
}

fn name_of(turn: &Record) -> String {
    turn.payload::<Facts>().unwrap_or_default().turn
}

/// A copy of its own: what was read shares the memory of everything read with it.
fn kept(data: &Bytes) -> Bytes {
    Bytes::copy_from_slice(data)
}
