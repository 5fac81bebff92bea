//! What became of prompts whose client was away: looked up in the journal, by the client's key and
//! the request's own id.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::ids::{ConnId, Seq};
use frontdesk_core::record::{Kind, Record};
use frontdesk_core::session::Input;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{LaneHandle, LaneMsg};
use crate::log::Reader;

/// Bytes read from the journal at a time.
const BATCH_BYTES: usize = 256 << 10;

type Prompts = Vec<(Box<str>, Seq)>;
type Found = Vec<(Box<str>, Option<Bytes>)>;

/// Prompts of one client that neither run nor wait.
#[derive(Debug)]
pub(super) struct Find {
    pub(super) conn: ConnId,
    pub(super) lane: LaneHandle,
    pub(super) path: PathBuf,
    pub(super) key: Arc<str>,
    pub(super) prompts: Prompts,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Turn<'a> {
    turn: String,
    client: String,
    request_id: String,
    outcome: String,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

impl Find {
    /// Reads what the journal has of them, then says `Found`.
    pub(super) async fn run(self) {
        let Self { conn, lane, path, key, prompts } = self;
        let ids: Vec<Box<str>> = prompts.iter().map(|(id, _)| id.clone()).collect();
        let looked = tokio::task::spawn_blocking(move || look(&path, &key, &prompts)).await;
        let found = looked.map_err(|error| error.to_string()).and_then(|it| it);
        let found = found.unwrap_or_else(|error| {
            tracing::error!(session = %lane.key(), error, "failed to look for prompts");
            // Never run a second time for that.
            let text = "the journal could not be read";
            let error = WireError::new(Code::Storage, text).to_json();
            ids.into_iter().map(|id| (id.clone(), Some(Frame::failure(&id, &error)))).collect()
        });
        lane.send(LaneMsg::Input(Input::Found { conn, found })).await;
    }
}

/// Each prompt with its answer; without one if no turn was ever recorded for it.
fn look(path: &Path, key: &str, prompts: &Prompts) -> Result<Found, String> {
    let from = prompts.iter().map(|(_, after)| *after).min().unwrap_or(0);
    let reader = match from {
        0 => Reader::open(path),
        from => Reader::open_before(path, from + 1),
    };
    let mut reader = reader.map_err(|error| error.to_string())?;
    let mut turns: HashMap<String, Box<str>> = HashMap::new();
    let mut answers: HashMap<Box<str>, Bytes> = HashMap::new();
    loop {
        let batch = reader.read_batch(BATCH_BYTES).map_err(|error| error.to_string())?;
        if batch.is_empty() {
            break;
        }
        for record in batch {
            take(&record, key, prompts, &mut turns, &mut answers);
        }
    }
    Ok(prompts.iter().map(|(id, _)| (id.clone(), answers.remove(id))).collect())
}

fn take(
    record: &Record,
    key: &str,
    prompts: &Prompts,
    turns: &mut HashMap<String, Box<str>>,
    answers: &mut HashMap<Box<str>, Bytes>,
) {
    if !matches!(record.kind, Kind::TurnQueued | Kind::TurnStarted | Kind::TurnEnded) {
        return;
    }
    let turn: Turn<'_> = serde_json::from_slice(&record.data).unwrap_or_default();
    if record.kind == Kind::TurnEnded {
        if let Some(id) = turns.get(&turn.turn) {
            answers.insert(id.clone(), answer(id, &turn));
        }
        return;
    }
    let asked = prompts.iter().find(|(id, after)| **id == *turn.request_id && record.seq > *after);
    if let Some((id, _)) = asked.filter(|_| turn.client == key) {
        turns.insert(turn.turn, id.clone());
        // Recorded, and neither running nor ended: it is not run again.
        answers.insert(id.clone(), lost(id));
    }
}

fn answer(id: &str, turn: &Turn<'_>) -> Bytes {
    match (turn.result, turn.error) {
        (Some(result), _) => Frame::success(id, result.get()),
        (None, Some(error)) => Frame::failure(id, error.get()),
        (None, None) if turn.outcome == "cancelled" => {
            Frame::success(id, r#"{"stopReason":"cancelled"}"#)
        }
        (None, None) => lost(id),
    }
}

fn lost(id: &str) -> Bytes {
    let text = "the agent's instance ended before it answered";
    Frame::failure(id, &WireError::new(Code::InstanceEnded, text).to_json())
}
