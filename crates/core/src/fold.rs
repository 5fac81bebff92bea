//! Records to view: pure, total and incremental.
//!
//! `fold(prefix)` then the rest equals `fold(all)`. Nothing here fails: what cannot be understood
//! is counted as an anomaly. The transcript itself is read from the journal.

mod common;
mod describe;
mod facts;
mod named;
mod update;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{Epoch, Seq};
use crate::lease::Place;
use crate::record::{Kind, Record};
pub use common::{COMMON_MAX, Common};
pub use facts::{
    Anomaly, ApprovalMode, ClientInfo, Done, ForkedFrom, NameOrigin, PREVIEW_CHARS_MAX, Policy,
    Worktree,
};
pub use update::UpdateKind;

/// Version of the fold: what was folded by another one (snapshots, index rows) is folded again.
pub const FOLD_VERSION: u32 = 7;

/// Records without sense that are kept by position; more are only counted.
pub const ANOMALIES_MAX: usize = 32;

/// Member of an open question: when it was asked, RFC 3339.
pub const OPENED_AT: &str = "openedAt";

/// Commands whose answers are kept for whoever repeats them; older ones are forgotten.
pub const COMMANDS_MAX: usize = 64;

/// What a session's records add up to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct View {
    /// Position of the last record.
    pub seq: Seq,
    /// The highest epoch seen.
    pub epoch: Epoch,
    /// Name of the agent's entry in the configuration.
    pub agent: String,
    /// The agent's own id of the session.
    pub native: Option<String>,
    /// Further ids of the same conversation, as its agent told them, oldest first; at most
    /// [`ALIASES_MAX`](crate::ids::ALIASES_MAX).
    pub aliases: Vec<String>,
    /// The one of them under which the agent files it now, where that is not `native`: it is called
    /// back by this one.
    pub stored: Option<String>,
    /// Key of the session that this one turned out to be: all that names this one means that one.
    pub same_as: Option<String>,
    /// Working directory as given.
    pub cwd: String,
    /// Further directories as given.
    pub additional_directories: Vec<String>,
    /// Title as last told by the agent, live or in its list.
    pub title: Option<String>,
    /// The name allocated here: from the first prompt, or given by a person.
    pub name: Option<String>,
    /// How it came by its name.
    pub name_origin: Option<NameOrigin>,
    /// The short title that the agent made for the session (`session_info_update`).
    pub generated_name: Option<String>,
    /// The beginning of the first prompt, on one line, at most [`PREVIEW_CHARS_MAX`] characters.
    pub first_user_prompt: Option<String>,
    /// Pieces of the first prompt are still coming in: an agent replays it in chunks.
    pub first_prompt_goes_on: bool,
    /// Branch of the workspace; `None` if it has none or its HEAD is detached.
    pub branch: Option<String>,
    /// The linked working tree it runs in.
    pub worktree: Option<Worktree>,
    /// Key of the top-level session this is a child of; it is a subagent then.
    pub parent: Option<String>,
    /// The client that had it made, as it named itself.
    pub created_by_client: Option<ClientInfo>,
    /// The session it was forked from.
    pub forked_from: Option<ForkedFrom>,
    /// The policy that Frontdesk was told for it.
    pub policy: Option<Policy>,
    /// Its agent has asked for a permission here.
    pub has_asked: bool,
    /// The last commands that were carried out, oldest first.
    pub commands_done: Vec<Done>,
    /// How the session came to us.
    pub origin: Origin,
    /// When it began, as far as known.
    pub created_at: Option<Timestamp>,
    /// The last change that counts as one.
    pub updated_at: Option<Timestamp>,
    /// The last content.
    pub last_activity_at: Option<Timestamp>,
    /// The last record made from the agent's words: older than its list means it went on elsewhere.
    pub last_agent_at: Option<Timestamp>,
    /// `updatedAt` of the agent's own list, as last seen.
    pub listed_at: Option<Timestamp>,
    /// Turns that have ended here.
    pub turn_count: u64,
    /// Records that hold conversation of any origin.
    pub items: u64,
    /// Modes, models and configuration options as last told, ready for a load or resume answer.
    pub options: Arc<serde_json::Map<String, Value>>,
    /// Which of the options have been told since an instance claimed the session last.
    pub options_told: Vec<String>,
    /// The model in force, as the agent's options tell it; `None` where they do not.
    pub model_id: Option<String>,
    /// The provider of the model, as the agent's options tell it.
    pub provider_id: Option<String>,
    /// The agent's own mode in force, as its options or modes tell it.
    pub mode_id: Option<String>,
    /// The last `available_commands_update`, a frame with an empty session id: see [`Common`].
    pub commands: Option<Arc<str>>,
    /// The turn without an ending.
    pub open_turn: Option<OpenTurn>,
    /// Questions without a settlement: interaction id to what was asked, and since when
    /// ([`OPENED_AT`]).
    pub open_interactions: BTreeMap<String, Value>,
    /// Prompts that wait, by turn id.
    pub queued_turns: Vec<String>,
    /// How the last turn ended.
    pub last_stop_reason: Option<String>,
    /// The instance that has it loaded, as far as the journal knows.
    pub loaded_by: Option<String>,
    /// Where somebody may have it, as far as the journal knows: it could not be told to let go.
    pub suspect: Option<Place>,
    /// The address that was asked for it, where its agent runs by itself.
    pub asked_url: Option<String>,
    /// Taken in on a client's word alone: nobody is told of it before its agent has loaded it.
    pub unproven: bool,
    /// `false` once its agent said that it is gone or cannot load it.
    pub resumable: Option<bool>,
    /// Deleted: unknown to everybody.
    pub deleted: bool,
    /// Put aside.
    pub archived: bool,
    /// Records that made no sense: how many.
    pub anomaly_count: u64,
    /// The first [`ANOMALIES_MAX`] of them.
    pub anomalies: Vec<Anomaly>,
}

/// How a session came to us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// Made through Frontdesk: its public id is its key.
    #[default]
    Created,
    /// Found in an agent's own store: its public id on ACP is its native id.
    Adopted,
}

/// A turn that has begun and not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OpenTurn {
    /// The turn's id.
    pub turn: String,
    /// Key of the client that sent the prompt.
    pub client: String,
    /// The prompt's JSON-RPC id, as text.
    pub request_id: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Facts {
    agent: Option<String>,
    native_id: Option<String>,
    aliases: Value,
    stored_id: Option<String>,
    same_as: Option<String>,
    cwd: Option<String>,
    additional_directories: Option<Vec<String>>,
    title: Option<String>,
    updated_at: Option<String>,
    created_at: Option<String>,
    result: Option<Value>,
    instance: Option<String>,
    turn: Option<String>,
    client: Option<String>,
    request_id: Option<String>,
    stop_reason: Option<String>,
    interaction: Option<String>,
    resumable: Option<bool>,
    archived: Option<bool>,
    unproven: bool,
    name: Option<String>,
    origin: Option<String>,
    parent: Option<String>,
    how: Option<String>,
    url: Option<String>,
    // What another version may write in another shape must not cost the rest of the record.
    client_info: Value,
    kept: Value,
    forked_from: Value,
    prompt: Value,
    method: Option<String>,
}

#[derive(Deserialize)]
struct Branch {
    branch: Option<String>,
    #[serde(default)]
    worktree: Option<Worktree>,
}

impl View {
    /// Folds records that follow what was folded before.
    pub fn extend<'a>(&mut self, records: impl IntoIterator<Item = &'a Record>) {
        for record in records {
            self.apply(record);
        }
    }

    /// Folds one record. Records at or before the last position are skipped.
    pub fn apply(&mut self, record: &Record) {
        if record.seq <= self.seq {
            self.note_anomaly(record, "repeats a position");
            return;
        }
        self.seq = record.seq;
        self.epoch = self.epoch.max(record.epoch);
        if self.deleted {
            return;
        }
        match &record.kind {
            Kind::Update | Kind::Imported | Kind::TurnLate => self.apply_update(record),
            Kind::Options => {
                if let Some(options) = record.payload::<serde_json::Map<String, Value>>() {
                    self.take_options(options);
                }
            }
            Kind::Branch => match record.payload::<Branch>() {
                Some(told) => (self.branch, self.worktree) = (told.branch, told.worktree),
                None => self.note_anomaly(record, "names no branch"),
            },
            Kind::Policy => match record.payload::<Policy>() {
                Some(policy) => self.policy = Some(policy),
                None => self.note_anomaly(record, "has a policy of another version"),
            },
            Kind::Command => self.take_command(record),
            Kind::Commands | Kind::Subagent => {}
            Kind::Damage | Kind::Note | Kind::Parameters | Kind::Unknown(_) => {}
            Kind::Deleted => {
                self.entomb();
                if let Some(facts) = record.payload::<Facts>() {
                    self.identify(facts);
                }
            }
            _ => match record.payload::<Facts>() {
                Some(facts) => self.apply_facts(record, facts),
                None => self.note_anomaly(record, "has another shape than its kind"),
            },
        }
    }

    /// What stays of a deleted session: enough to know it again when an agent's list has it.
    pub fn entomb(&mut self) {
        *self = Self {
            seq: self.seq,
            epoch: self.epoch,
            agent: std::mem::take(&mut self.agent),
            native: self.native.take(),
            aliases: std::mem::take(&mut self.aliases),
            deleted: true,
            ..Self::default()
        };
    }

    fn apply_facts(&mut self, record: &Record, facts: Facts) {
        match record.kind {
            Kind::Created => {
                self.origin = Origin::Created;
                self.created_at = Some(record.at);
                self.updated_at = Some(record.at);
                self.created_by_client = serde_json::from_value(facts.client_info.clone()).ok();
                self.forked_from = describe::forked_from(&facts.forked_from);
                let result = facts.result.clone();
                self.identify(facts);
                self.take_result(result.as_ref());
            }
            Kind::Adopted => {
                self.origin = Origin::Adopted;
                self.unproven = facts.unproven;
                self.listed_at = instant(facts.updated_at.as_deref()).or(self.listed_at);
                self.created_at = instant(facts.created_at.as_deref()).or(Some(record.at));
                self.updated_at = self.listed_at.or(Some(record.at));
                self.identify(facts);
            }
            Kind::Metadata => {
                self.listed_at = instant(facts.updated_at.as_deref()).or(self.listed_at);
                self.updated_at = self.listed_at.max(self.updated_at);
                self.same_as = facts.same_as.clone().or(self.same_as.take());
                if facts.resumable.is_some() {
                    self.resumable = facts.resumable;
                }
                self.identify(facts);
            }
            Kind::Loaded => {
                self.loaded_by = facts.instance;
                self.suspect = None;
                self.resumable = None;
                self.unproven = false;
                self.take_result(facts.result.as_ref());
                self.forget_old_options();
            }
            Kind::Claimed => {
                self.loaded_by = facts.instance;
                self.options_told.clear();
                if facts.how.as_deref() != Some("take") {
                    self.asked_url = facts.url;
                }
            }
            Kind::Closed | Kind::Lost => {
                self.loaded_by = None;
                self.asked_url = None;
                self.suspect = serde_json::from_value(facts.kept).ok();
                self.open_turn = None;
                // Prompts that wait are not lost with an instance: each gets an ending of its own.
                if record.kind == Kind::Closed {
                    self.queued_turns.clear();
                }
                self.open_interactions.clear();
            }
            Kind::Archived => self.archived = facts.archived.unwrap_or(true),
            Kind::Title => self.title = facts.title.or(self.title.take()),
            Kind::Renamed => self.rename(record, facts),
            Kind::TurnQueued => self.queued_turns.extend(facts.turn),
            Kind::TurnStarted => self.start_turn(record, facts),
            Kind::TurnEnded => self.end_turn(record, facts),
            Kind::InteractionOpened => match facts.interaction {
                Some(id) => {
                    self.has_asked |= facts.method.as_deref() == Some(describe::PERMISSION);
                    let mut asked: Value = record.payload().unwrap_or_default();
                    if let Some(asked) = asked.as_object_mut() {
                        asked.insert(OPENED_AT.to_owned(), Value::from(record.at.to_string()));
                    }
                    self.open_interactions.insert(id, asked);
                }
                None => self.note_anomaly(record, "names no interaction"),
            },
            Kind::InteractionSettled => {
                if let Some(id) = facts.interaction {
                    self.open_interactions.remove(&id);
                }
            }
            // Handled by the caller: these carry other payloads.
            Kind::Update
            | Kind::Imported
            | Kind::TurnLate
            | Kind::Options
            | Kind::Commands
            | Kind::Branch
            | Kind::Policy
            | Kind::Command
            | Kind::Subagent
            | Kind::Damage
            | Kind::Note
            | Kind::Parameters
            | Kind::Deleted
            | Kind::Unknown(_) => {}
        }
    }

    fn note_anomaly(&mut self, record: &Record, what: &str) {
        self.anomaly_count += 1;
        if self.anomalies.len() < ANOMALIES_MAX {
            self.anomalies.push(Anomaly { seq: record.seq, what: what.to_owned() });
        }
    }

    fn start_turn(&mut self, record: &Record, facts: Facts) {
        self.preview_prompt(&facts.prompt);
        let turn = facts.turn.unwrap_or_default();
        self.queued_turns.retain(|queued| *queued != turn);
        self.open_turn = Some(OpenTurn {
            turn,
            client: facts.client.unwrap_or_default(),
            request_id: facts.request_id.unwrap_or_default(),
        });
        self.items += 1;
        self.touch(record);
    }

    fn end_turn(&mut self, record: &Record, facts: Facts) {
        let turn = facts.turn.unwrap_or_default();
        self.queued_turns.retain(|queued| *queued != turn);
        if self.open_turn.as_ref().is_some_and(|open| open.turn == turn) {
            self.open_turn = None;
            self.turn_count += 1;
            self.last_agent_at = Some(record.at);
        }
        self.last_stop_reason = facts.stop_reason;
        self.touch(record);
    }

    fn touch(&mut self, record: &Record) {
        self.updated_at = Some(record.at).max(self.updated_at);
        self.last_activity_at = Some(record.at).max(self.last_activity_at);
    }

    fn apply_update(&mut self, record: &Record) {
        let params = crate::render::stored_params(&record.data);
        let Some(update) = UpdateKind::of(&params) else {
            return self.note_anomaly(record, "holds no update");
        };
        if record.kind != Kind::Imported {
            self.last_agent_at = Some(record.at);
        }
        // What belongs to a child is shown with the rest and says nothing about its parent.
        let is_childs = update != UpdateKind::Conversation && self.is_of_child(record);
        match update {
            _ if is_childs => {}
            UpdateKind::Conversation => {
                self.items += 1;
                if record.kind == Kind::Imported {
                    self.preview_piece(crate::import::user_text(&params).as_deref());
                    self.last_agent_at = self.listed_at.max(self.last_agent_at);
                } else {
                    self.touch(record);
                }
            }
            UpdateKind::Info { title } => {
                if record.kind != Kind::Imported
                    && let Some((_, told)) = crate::agent::aliases::told_in_update(&params)
                {
                    self.learn_aliases(&told);
                }
                if title.is_some() {
                    self.generated_name.clone_from(&title);
                    self.title = title;
                }
            }
            UpdateKind::Mode(mode) => {
                if let Some(Value::Object(modes)) =
                    Arc::make_mut(&mut self.options).get_mut("modes")
                {
                    modes.insert("currentModeId".into(), mode.into());
                }
                self.read_options();
            }
            UpdateKind::Options(options) => {
                Arc::make_mut(&mut self.options).insert("configOptions".into(), options);
                self.read_options();
            }
            UpdateKind::Commands => self.commands = crate::render::unspelled(&params),
            UpdateKind::Other => {}
        }
    }

    fn take_result(&mut self, result: Option<&Value>) {
        if let Some(Value::Object(result)) = result {
            self.take_options(result.clone());
        }
        if let Some(result) = result {
            self.learn_aliases(&crate::agent::aliases::told(result));
        }
    }

    fn take_options(&mut self, options: serde_json::Map<String, Value>) {
        for (name, value) in options {
            if matches!(name.as_str(), "modes" | "models" | "configOptions") && !value.is_null() {
                if !self.options_told.contains(&name) {
                    self.options_told.push(name.clone());
                }
                Arc::make_mut(&mut self.options).insert(name, value);
            }
        }
        self.read_options();
    }

    /// Another instance has it now: what that one did not tell is not in force.
    fn forget_old_options(&mut self) {
        if self.options.keys().all(|name| self.options_told.contains(name)) {
            return;
        }
        let told = &self.options_told;
        Arc::make_mut(&mut self.options).retain(|name, _| told.contains(name));
        self.read_options();
    }
}

fn instant(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok()
}

#[cfg(test)]
#[path = "fold_tests.rs"]
mod tests;
