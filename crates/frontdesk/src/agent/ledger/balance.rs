//! What a ledger adds up to. Used by a later daemon, and where a ledger is cut.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use bytes::Bytes;
use frontdesk_core::envelope::Message;
use frontdesk_core::ids::Key;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{LEDGER_FILE, VERSION, end_of};

/// A session that an agent was asked to make or open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Here {
    /// Its key.
    pub key: Key,
    /// Its journal.
    pub journal: PathBuf,
}

/// A request that was sent and may still be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its number.
    pub number: u64,
    /// Key of the client that asked; empty for the daemon's own.
    pub client: Box<str>,
    /// The client's id, as text.
    pub id: Box<str>,
    /// The method.
    pub method: Box<str>,
    /// The agent's id of the session.
    pub session: Box<str>,
    /// The turn it begins.
    pub turn: Option<Box<str>>,
    /// Its parameters as text; not kept of a prompt.
    pub params: Bytes,
}

/// What the agent is owed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owed {
    /// The request's hop id.
    pub hop: Box<str>,
    /// The agent's id of the session.
    pub session: Box<str>,
    /// The request, where the journal does not have it.
    pub frame: Option<Bytes>,
}

/// What a ledger adds up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Highest input number.
    pub last: u64,
    /// Requests that may still be answered, in order.
    pub requests: Vec<Sent>,
    /// Input that the holder has not accepted, in order.
    pub unaccepted: Vec<(u64, Bytes)>,
    /// Requests of the agent that are not answered, in order.
    pub owed: Vec<Owed>,
    /// Requests of the agent that were answered, or need no answer any more.
    pub settled: BTreeSet<Box<str>>,
    /// The last `session/cancel` of each session.
    pub cancelled: BTreeMap<Box<str>, u64>,
    /// Sessions that the agent was asked to make or open, by native id.
    pub here: BTreeMap<Box<str>, Here>,
    /// Sessions that were asked to be closed and not opened again since.
    pub closing: BTreeSet<Box<str>>,
    /// Sessions that were asked to be closed, with an answer to that, and not opened again since.
    pub let_go: BTreeSet<Box<str>>,
    /// Sessions that are unloaded here and that the agent may still have.
    pub kept: BTreeSet<Box<str>>,
}

/// Why a ledger tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file cannot be read.
    #[error("failed to read the ledger {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It was written by a version before or after this one.
    #[error("failed to read the ledger {0}: it is of another version")]
    Version(PathBuf),
    /// A line before the last one is damaged.
    #[error("failed to read the ledger {path}: line {line} is damaged")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
    },
}

/// One line, whichever it is.
#[derive(Deserialize)]
pub(super) struct Line<'a> {
    pub(super) ledger: Option<u64>,
    pub(super) last: Option<u64>,
    pub(super) input: Option<u64>,
    pub(super) client: Option<Box<str>>,
    pub(super) id: Option<Box<str>>,
    #[serde(default)]
    pub(super) method: Box<str>,
    #[serde(default)]
    pub(super) session: Box<str>,
    pub(super) turn: Option<Box<str>>,
    #[serde(borrow)]
    pub(super) frame: Option<&'a RawValue>,
    pub(super) done: Option<u64>,
    pub(super) owed: Option<Box<str>>,
    pub(super) settled: Option<Box<str>>,
    pub(super) here: Option<Key>,
    #[serde(default)]
    pub(super) journal: PathBuf,
    pub(super) kept: Option<Box<str>>,
    pub(super) freed: Option<Box<str>>,
}

/// Adds a ledger up. `accepted` is the last input that the holder has.
///
/// # Errors
/// If it cannot be read, is of another version, or is damaged before its last line.
pub fn read(data_dir: &Path, accepted: u64) -> Result<Balance, LedgerError> {
    let path = data_dir.join(LEDGER_FILE);
    let text =
        fs::read(&path).map_err(|source| LedgerError::Read { path: path.clone(), source })?;
    let mut balance = Balance::default();
    let mut lines = text.split_inclusive(|byte| *byte == b'\n').enumerate();
    let first = lines.next().and_then(|(_, line)| serde_json::from_slice::<Line<'_>>(line).ok());
    match first {
        Some(Line { ledger: Some(VERSION), last, .. }) => balance.last = last.unwrap_or(0),
        _ => return Err(LedgerError::Version(path)),
    }
    let mut done = BTreeSet::new();
    let mut moves: BTreeMap<Box<str>, (u64, bool)> = BTreeMap::new();
    for (at, line) in lines {
        match serde_json::from_slice::<Line<'_>>(line) {
            Ok(read) if line.ends_with(b"\n") => {
                balance.add(read, accepted, &mut done, &mut moves);
            }
            _ if !line.ends_with(b"\n") => {}
            _ => return Err(LedgerError::Damaged { path, line: at + 1 }),
        }
    }
    balance.requests.retain(|sent| !done.contains(&sent.number));
    // A holder that had no room for a frame will not get it later.
    balance.unaccepted.retain(|(number, _)| !done.contains(number));
    for (native, (number, _)) in moves.into_iter().filter(|(_, (_, closes))| *closes) {
        if done.contains(&number) && !balance.kept.contains(&native) {
            balance.let_go.insert(native.clone());
        }
        balance.closing.insert(native);
    }
    Ok(balance)
}

impl Balance {
    /// Forgets answers to requests that ended up to offset `acked` of the output: those are not read
    /// again. Each session that goes on keeps a copy of the others.
    pub fn acknowledge(&mut self, acked: u64) {
        self.settled.retain(|hop| end_of(hop) > acked);
    }

    fn add(
        &mut self,
        line: Line<'_>,
        accepted: u64,
        done: &mut BTreeSet<u64>,
        moves: &mut BTreeMap<Box<str>, (u64, bool)>,
    ) {
        let frame = line.frame.map(|raw| Bytes::copy_from_slice(raw.get().as_bytes()));
        if let Some(number) = line.done {
            done.insert(number);
        }
        if let Some(key) = line.here {
            self.here.insert(line.session, Here { key, journal: line.journal });
            return;
        }
        if let Some(native) = line.kept {
            self.kept.insert(native);
        }
        if let Some(native) = line.freed {
            self.kept.remove(&native);
        }
        if let Some(hop) = line.settled {
            self.owed.retain(|owed| owed.hop != hop);
            self.settled.insert(hop);
        }
        if let Some(hop) = line.owed {
            let (session, frame) = (line.session, frame);
            self.owed.push(Owed { hop, session, frame });
            return;
        }
        let (Some(number), Some(frame)) = (line.input, frame) else { return };
        self.last = self.last.max(number);
        if number > accepted {
            self.unaccepted.push((number, frame.clone()));
        }
        if &*line.method == "session/cancel" {
            let last = self.cancelled.entry(line.session.clone()).or_default();
            *last = number.max(*last);
        }
        let (Some(client), Some(id)) = (line.client, line.id) else { return };
        let parsed = Message::parse(frame).ok();
        let message = parsed.as_ref().map(Message::frame);
        if moves_session(&line.method)
            && let Some(native) = message.and_then(|frame| frame.session_id())
        {
            let last = moves.entry(native.as_ref().into()).or_default();
            *last = (number, &*line.method == "session/close").max(*last);
        }
        let params = message.filter(|_| line.turn.is_none()).and_then(|frame| frame.params_bytes());
        self.requests.push(Sent {
            number,
            client,
            id,
            method: line.method,
            session: line.session,
            turn: line.turn,
            params: params.unwrap_or_default(),
        });
    }
}

/// Whether a request changes if an agent has a session in memory.
pub(super) fn moves_session(method: &str) -> bool {
    matches!(method, "session/close" | "session/load" | "session/resume")
}
