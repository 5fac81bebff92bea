//! What a start does with what the last one left: holders are ended by record, the commit log is
//! played, every journal becomes a row, and what was open is closed in the journal.

use std::collections::HashMap;
use std::path::Path;
use std::thread;

use frontdesk_core::fold::{FOLD_VERSION, View};
use frontdesk_core::record::{Kind, RECORD_VERSION, Record};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Node;
use super::directory::Row;
use crate::log::{Found, Log, LogError, Reader, Snapshot, scan};

/// Bytes read from a journal at a time.
const BATCH_BYTES: usize = 1 << 20;

/// Longest journal that is read whole though it may have a snapshot, in bytes: checking that a
/// snapshot fits takes longer than reading this much.
const WHOLE_BYTES_MAX: u64 = 64 << 10;

/// Journals whose views are in hand at a time, before they are rows.
const ROUND_JOURNALS: usize = 1_024;

/// Journals that are worth a second thread.
const SHARED_JOURNALS_MIN: usize = 64;

/// What was found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recovered {
    /// Sessions known.
    pub sessions: usize,
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
    let snapshot = Snapshot::read(path).and_then(|(snapshot, reader)| {
        let folded: Folded = serde_json::from_str(snapshot.fold.get()).ok()?;
        (folded.version == FOLD_VERSION).then_some((folded.view, reader))
    });
    let (view, reader) = match snapshot {
        Some(found) => found,
        None => (View::default(), Reader::open(path)?),
    };
    fold(view, reader)
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

/// Folds the journals of a round, in their order; half of them on a second thread.
fn read_round(round: &[Found]) -> Vec<Result<View, LogError>> {
    let read = |half: &[Found]| half.iter().map(read_found).collect::<Vec<_>>();
    if round.len() < SHARED_JOURNALS_MIN {
        return read(round);
    }
    let (left, right) = round.split_at(round.len() / 2);
    thread::scope(|scope| {
        let second = thread::Builder::new().name("recover".to_owned());
        let second = second.spawn_scoped(scope, || read(right));
        let mut views = read(left);
        // Reading changes nothing: where the thread failed, it is done here.
        let rest = second.ok().and_then(|second| second.join().ok());
        views.extend(rest.unwrap_or_else(|| read(right)));
        views
    })
}

/// Folds a journal that nobody writes.
fn read_found(found: &Found) -> Result<View, LogError> {
    if found.bytes > WHOLE_BYTES_MAX {
        return read_view(&found.path);
    }
    fold(View::default(), Reader::open_sized(&found.path, found.bytes)?)
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

impl Node {
    /// Reads every journal into the directory and closes what a crash left open.
    pub fn recover_sessions(&self) -> Recovered {
        let mut recovered = Recovered::default();
        // Many sessions share few working directories.
        let mut real_cwds = HashMap::new();
        let mut journals = scan(self.log.sessions_dir());
        loop {
            let round: Vec<Found> = journals.by_ref().take(ROUND_JOURNALS).collect();
            if round.is_empty() {
                return recovered;
            }
            let views = read_round(&round);
            // Rows go in in the order of the scan: the first of a native id is the one that is found.
            for (found, view) in round.into_iter().zip(views) {
                let Found { path, key, bytes } = found;
                if self.directory.get(key).is_some() {
                    // Carried on: its lane has it.
                    recovered.sessions += 1;
                    continue;
                }
                match view {
                    Ok(view) => {
                        let (view, turns) = close_open_ends(&self.log, &path, view);
                        recovered.turns += turns;
                        recovered.sessions += usize::from(!view.deleted);
                        let real_cwd = real_cwds
                            .entry(view.cwd.clone())
                            .or_insert_with(|| std::fs::canonicalize(&view.cwd).ok());
                        let row = Row::cold_in(key, view, path, bytes, real_cwd.clone());
                        self.directory.insert(row);
                    }
                    Err(error) => {
                        recovered.unreadable += 1;
                        tracing::error!(path = %path.display(), %error, "failed to read a journal");
                    }
                }
            }
        }
    }
}

/// Turns without an ending are closed as failed, questions as cancelled, and the session as lost:
/// its instance is proven gone before this runs.
fn close_open_ends(log: &Log, path: &Path, mut view: View) -> (View, usize) {
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
    let turns = endings.iter().filter(|(kind, _)| *kind == Kind::TurnEnded).count();
    if view.loaded_by.is_some() {
        endings.push((Kind::Lost, json!({ "reason": "crash_inferred" })));
    }
    if endings.is_empty() {
        return (view, 0);
    }
    let mut seq = view.seq;
    let records: Vec<Record> = endings
        .into_iter()
        .map(|(kind, data)| {
            seq += 1;
            Record {
                v: RECORD_VERSION,
                seq,
                epoch: view.epoch,
                at: Timestamp::now(),
                kind,
                src: None,
                data: bytes::Bytes::from(data.to_string()),
            }
        })
        .collect();
    let written = log.open_journal(path).and_then(|mut journal| journal.append(&records));
    match written {
        Ok(_) => view.extend(&records),
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "failed to close what a crash left open");
        }
    }
    (view, turns)
}

#[cfg(test)]
#[path = "recover_tests.rs"]
mod tests;
