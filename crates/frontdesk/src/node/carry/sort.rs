//! What becomes of the sessions that an instance's ledger names, by what ledger and journals tell.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use frontdesk_core::fold::View;
use frontdesk_core::session::{Ends, Fate, Going, Told, fate};

use super::super::recover::from_snapshot;
use super::Candidate;
use crate::agent::ledger::{Balance, Here};
use crate::log::{LogError, Reader};

/// Bytes read from a journal at a time.
const BATCH_BYTES: usize = 1 << 20;

/// A session of an instance, as its journal tells of it.
pub(super) struct Found {
    pub(super) native: Box<str>,
    pub(super) here: Here,
    pub(super) view: View,
    pub(super) bytes: u64,
    pub(super) ends: Ends,
    pub(super) how: Going,
}

impl Found {
    /// Number of the request to open it, where that is under way.
    pub(super) fn opening(&self) -> Option<u64> {
        match self.how {
            Going::Opening(number) => Some(number),
            Going::Live | Going::Closing(_) => None,
        }
    }

    /// Number of the request to close it, where that is under way.
    pub(super) fn close_asked(&self, balance: &Balance) -> Option<u64> {
        match self.how {
            Going::Closing(_) => balance.close_asked.get(&self.native).copied(),
            Going::Live | Going::Opening(_) => None,
        }
    }
}

/// What becomes of the sessions that an instance's ledger names.
#[derive(Default)]
pub(super) struct Sorted {
    pub(super) carried: Vec<Found>,
    /// The agent may have them, and nobody can tell.
    pub(super) doubtful: Vec<Box<str>>,
    /// The agent does not have them; their claims may not have been freed yet.
    pub(super) let_go: Vec<Box<str>>,
    /// The agent has made them, and nobody was told: their journals are empty.
    pub(super) orphans: Vec<Box<str>>,
}

/// Reads the sessions that an instance's ledger names, and tells those that it has for sure from
/// those that it may have.
pub(super) async fn sort(candidate: &Candidate, children_max: usize) -> Sorted {
    let mut sorted = Sorted::default();
    let owed: BTreeMap<Box<str>, BTreeSet<Box<str>>> =
        candidate.balance.owed.iter().fold(BTreeMap::new(), |mut all, owed| {
            all.entry(owed.session.clone()).or_default().insert(owed.hop.clone());
            all
        });
    for (native, here) in &candidate.balance.here {
        let owed = owed.get(native).cloned().unwrap_or_default();
        let ends = Ends::new(&candidate.id.0, owed, children_max);
        let path = here.journal.clone();
        let read = tokio::task::spawn_blocking(move || read(&path, ends)).await;
        let read = read.map_err(|error| error.to_string());
        let (view, ends, bytes) = match read.and_then(|it| it.map_err(|error| error.to_string())) {
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(session = %here.key, error, "failed to read the journal of a session to carry on");
                sorted.doubtful.push(native.clone());
                continue;
            }
        };
        let (native, here) = (native.clone(), here.clone());
        let told = told(&candidate.balance, &native);
        match fate(&candidate.id.0, &native, &view, &ends, told) {
            Fate::Goes(how) => {
                sorted.carried.push(Found { native, here, view, bytes, ends, how });
            }
            Fate::Doubtful => sorted.doubtful.push(native),
            Fate::LetGo => sorted.let_go.push(native),
            Fate::Orphan => sorted.orphans.push(native),
        }
    }
    sorted
}

/// What the ledger says of a session.
fn told(balance: &Balance, native: &str) -> Told {
    Told {
        closing: balance.closing.get(native).copied(),
        opening: balance.opening.get(native).copied(),
        asked: balance.moved.contains(native),
        kept: balance.kept.contains(native),
        let_go: balance.let_go.contains(native),
    }
}

fn read(path: &Path, mut ends: Ends) -> Result<(View, Ends, u64), LogError> {
    // A snapshot from before the session was loaded hides nothing that is open now.
    let snapshot = from_snapshot(path).filter(|(view, _)| {
        view.loaded_by.is_none() && view.open_turn.is_none() && view.queued_turns.is_empty()
    });
    let (mut view, mut reader) = match snapshot {
        Some(found) => found,
        None => (View::default(), Reader::open(path)?),
    };
    loop {
        let batch = reader.read_batch(BATCH_BYTES)?;
        if batch.is_empty() {
            // A whole last line that lacks only its line end counts.
            let last = reader.finish();
            view.extend(&last);
            ends.extend(&last);
            return Ok((view, ends, reader.offset()));
        }
        view.extend(&batch);
        ends.extend(&batch);
    }
}
