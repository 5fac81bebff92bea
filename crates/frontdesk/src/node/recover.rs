//! What is done with what an earlier daemon left in a journal: it is folded, and what a crash left
//! open there is closed. Which journals that are, `keeper.rs` knows.

use std::path::Path;

use frontdesk_core::fold::{FOLD_VERSION, View};
use frontdesk_core::ids::Key;
use frontdesk_core::lease::Place;
use frontdesk_core::record::{Kind, RECORD_VERSION, Record};
use frontdesk_core::session::CloseWhy;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Node;
use crate::log::{Journal, Log, LogError, Reader, Snapshot};

/// Bytes read from a journal at a time.
const BATCH_BYTES: usize = 1 << 20;

/// What was found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recovered {
    /// Sessions known.
    pub sessions: u64,
    /// Turns that were open and are closed as failed.
    pub turns: usize,
    /// Journals that could not be read.
    pub unreadable: usize,
}

/// A view as a snapshot keeps it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Folded {
    /// [`FOLD_VERSION`] of who folded; another one's view is not used.
    version: u32,
    view: View,
}

/// Folds a journal, from its snapshot where there is one.
///
/// # Errors
/// If the journal cannot be opened or read.
pub fn read_view(path: &Path) -> Result<View, LogError> {
    let (view, reader) = match from_snapshot(path) {
        Some(found) => found,
        None => (View::default(), Reader::open(path)?),
    };
    fold(view, reader)
}

/// What a journal's snapshot has folded, and a reader that stands behind it.
pub(super) fn from_snapshot(path: &Path) -> Option<(View, Reader)> {
    let (snapshot, reader) = Snapshot::read(path)?;
    let folded: Folded = serde_json::from_str(snapshot.fold.get()).ok()?;
    (folded.version == FOLD_VERSION).then_some((folded.view, reader))
}

/// Folds the journal of a session whose lane begins, and closes what a crash left open there.
///
/// # Errors
/// If the journal cannot be read or written.
pub fn read_for_lane(journal: &mut Journal) -> Result<View, LogError> {
    let mut view = read_view(journal.path())?;
    let endings = endings_of(&view, None);
    if !endings.is_empty() && !view.deleted {
        // Whoever waits for durable records of this lane waits for these, too.
        let _soon = journal.append(&endings)?;
        view.extend(&endings);
    }
    Ok(view)
}

fn fold(mut view: View, mut reader: Reader) -> Result<View, LogError> {
    loop {
        let batch = reader.read_batch(BATCH_BYTES)?;
        if batch.is_empty() {
            // A whole last line that lacks only its line end counts.
            view.extend(&reader.finish());
            return Ok(view);
        }
        view.extend(&batch);
    }
}

/// Writes a snapshot of the fold beside its journal.
///
/// # Errors
/// If it cannot be written; it can always be made again.
pub fn save_view(path: &Path, journal_bytes: u64, view: &View) -> Result<(), LogError> {
    let folded = json!({ "version": FOLD_VERSION, "view": view });
    let Ok(fold) = serde_json::value::to_raw_value(&folded) else { return Ok(()) };
    Snapshot { journal_bytes, seq: view.seq, fold }.write(path)
}

/// Closes in journals of sessions without a lane what a crash left open. Counts turns.
pub(super) fn tidy(node: &Node, turns: &mut usize) -> impl FnMut(Key, &Path, &View) -> bool {
    |key, path, view| {
        // What a lane has is its own affair.
        if node.directory.is_hot(key) || view.deleted {
            return false;
        }
        let closed = close_open_ends(&node.log, path, view);
        *turns += closed.unwrap_or_default();
        closed.is_some()
    }
}

/// Closes what a crash left open. Says how many turns; `None` if nothing was written.
fn close_open_ends(log: &Log, path: &Path, view: &View) -> Option<usize> {
    let endings = endings_of(view, None);
    if endings.is_empty() {
        return None;
    }
    match log.open_journal(path).and_then(|mut journal| journal.append(&endings)) {
        Ok(_) => Some(endings.iter().filter(|ending| ending.kind == Kind::TurnEnded).count()),
        // A lane has it by now, and closes it.
        Err(LogError::InUse { .. }) => None,
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "failed to close what a crash left open");
            None
        }
    }
}

/// Records that a session which was being unloaded is unloaded: its instance is proven gone.
pub(super) fn close_unloaded(log: &Log, path: &Path, instance: &str, why: CloseWhy) {
    let Ok(view) = read_view(path) else { return };
    if view.loaded_by.as_deref() != Some(instance) || view.deleted {
        return;
    }
    let endings = endings_of(&view, Some(why));
    if let Err(error) = log.open_journal(path).and_then(|mut journal| journal.append(&endings)) {
        tracing::error!(path = %path.display(), %error, "failed to record that a session is unloaded");
    }
}

/// Turns without an ending are closed as failed, questions as cancelled, and the session as lost, or as
/// closed where that was under way: its instance was proven gone before anything is read, or goes on
/// with what it may have.
fn endings_of(view: &View, closing: Option<CloseWhy>) -> Vec<Record> {
    let mut endings: Vec<(Kind, Value)> = Vec::new();
    for interaction in view.open_interactions.keys() {
        endings.push((
            Kind::InteractionSettled,
            json!({ "interaction": interaction, "outcome": "cancelled", "reason": "crash_inferred" }),
        ));
    }
    let open = view.open_turn.iter().map(|open| &open.turn);
    for turn in open.chain(&view.queued_turns) {
        endings.push((
            Kind::TurnEnded,
            json!({ "turn": turn, "outcome": "failed", "stopReason": null, "reason": "crash_inferred" }),
        ));
    }
    if view.loaded_by.is_some() {
        let mut lost = json!({ "reason": "crash_inferred" });
        // The connection ended with the daemon; an agent that runs by itself may have it still.
        if let Some(place) = view.asked_url.clone().map(Place::Url).or(view.suspect.clone()) {
            lost["kept"] = json!(place);
        }
        endings.push(match closing {
            Some(why) => (Kind::Closed, json!({ "reason": why.as_str() })),
            None => (Kind::Lost, lost),
        });
    }
    let numbered = (view.seq + 1..).zip(endings);
    numbered
        .map(|(seq, (kind, data))| Record {
            v: RECORD_VERSION,
            seq,
            epoch: view.epoch,
            at: Timestamp::now(),
            kind,
            src: None,
            data: bytes::Bytes::from(data.to_string()),
        })
        .collect()
}

#[cfg(test)]
#[path = "recover_tests.rs"]
mod tests;
