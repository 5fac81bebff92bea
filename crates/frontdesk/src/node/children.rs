//! Subagents as sessions: a child that an agent announces on its parent gets a row and a journal.

use frontdesk_core::agent::listed::{began, directories};
use frontdesk_core::ids::{Key, SESSION_ID_BYTES_MAX};
use frontdesk_core::record::Kind;
use frontdesk_core::session::Input;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Node;
use super::directory::{Found, Row};
use crate::log::{LogError, Reader};
use crate::session::{LaneHandle, LaneMsg};

/// Bytes read from a journal at a time.
const BATCH_BYTES: usize = 1 << 20;

/// A child as its parent's agent announces it.
#[derive(Clone, Debug)]
pub struct Announced {
    /// The top-level session it belongs to.
    pub parent: Key,
    /// The agent's entry.
    pub agent: String,
    /// The parent's folder, where the child is told none.
    pub cwd: String,
    /// The `subagent_update`.
    pub update: Value,
}

impl Node {
    /// The session of an announced child, made if it is new. `None` if it was deleted, or its id
    /// cannot be one. Blocking.
    ///
    /// # Errors
    /// If its journal cannot be made.
    pub fn adopt_child(&self, told: &Announced) -> Result<Option<Key>, LogError> {
        let text = |name: &str| told.update.get(name).and_then(Value::as_str);
        let native = text("sessionId").unwrap_or_default();
        if native.is_empty() || native.len() > SESSION_ID_BYTES_MAX {
            return Ok(None);
        }
        let _one = self.lists.taking_in();
        match self.directory.find_native(&told.agent, native) {
            Some(Found::Deleted) => return Ok(None),
            Some(Found::Known(known)) => return Ok(Some(known.key)),
            None => {}
        }
        let now = Timestamp::now();
        let (created, from) = began(native, None, now);
        let data = json!({
            "agent": told.agent,
            "nativeId": native,
            "cwd": text("cwd").unwrap_or(&told.cwd),
            "additionalDirectories": directories(&told.update),
            "title": text("title"),
            "createdAt": created,
            "createdAtFrom": from,
            "parent": told.parent,
        });
        self.take_in(now, &data).map(Some)
    }

    /// Tells a session that was found in a list before that it is a child.
    pub async fn claim_child(&self, lane: &LaneHandle, parent: Key) {
        let known = self.directory.get(lane.key());
        if known.is_some_and(|row| row.view.parent.is_none() && row.key != parent) {
            let data = json!({ "parent": parent }).to_string();
            let input = Input::Record { kind: Kind::Metadata, data };
            lane.send(LaneMsg::Input(input)).await;
        }
    }

    /// The row of the session that a child belongs to.
    #[must_use]
    pub fn parent_of(&self, row: &Row) -> Option<std::sync::Arc<Row>> {
        self.directory.get(row.view.parent.as_deref()?.parse().ok()?)
    }
}

/// The children that a session's journal names, each once. Blocking.
///
/// # Errors
/// If the journal cannot be read.
pub fn children_in(path: &std::path::Path) -> Result<Vec<Key>, LogError> {
    let mut reader = Reader::open(path)?;
    let mut children = Vec::new();
    loop {
        let batch = reader.read_batch(BATCH_BYTES)?;
        if batch.is_empty() {
            return Ok(children);
        }
        for record in batch.iter().filter(|record| record.kind == Kind::Subagent) {
            let told: Value = record.payload().unwrap_or_default();
            let child = told["child"].as_str().and_then(|key| key.parse().ok());
            if let Some(child) = child.filter(|child| !children.contains(child)) {
                children.push(child);
            }
        }
    }
}
