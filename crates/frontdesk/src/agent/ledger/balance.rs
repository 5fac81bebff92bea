//! What a ledger adds up to. Used by a later daemon, and where a ledger is cut.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use bytes::Bytes;
use frontdesk_core::envelope::Message;
use frontdesk_core::ids::Key;
use frontdesk_core::session::CloseWhy;
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
    /// Sessions that were to be opened and are not answered for: the number of that request.
    pub opening: BTreeMap<Box<str>, u64>,
    /// Sessions that were to be unloaded and not opened again since: why.
    pub closing: BTreeMap<Box<str>, CloseWhy>,
    /// Sessions that it was asked to close and has not answered for: the number of that request.
    pub close_asked: BTreeMap<Box<str>, u64>,
    /// Sessions that the agent has let go, or has refused to open, and was not asked for again since.
    pub let_go: BTreeSet<Box<str>>,
    /// All sessions that the agent was asked to open or to close.
    pub moved: BTreeSet<Box<str>>,
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
    pub(super) closing: Option<Box<str>>,
    #[serde(default)]
    pub(super) why: Box<str>,
    pub(super) let_go: Option<Box<str>>,
}

impl Line<'_> {
    /// Whether it tells of an agent's having a session in memory, or not any more.
    pub(super) fn moves_session(&self) -> bool {
        self.closing.is_some() || self.let_go.is_some() || moves_session(&self.method)
    }
}

/// What was done last about an agent's having a session, behind or with an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Move {
    /// It was asked to open it.
    Opens,
    /// It was asked to close it.
    Closes,
    /// It is to be unloaded, and nothing need have been sent.
    Closing,
    /// It is proven not to have it.
    LetGo,
}

/// The last move of each session, with its input's number.
type Moves = BTreeMap<Box<str>, (u64, Move)>;

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
    let mut moves = Moves::new();
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
    balance.settle(moves, &done);
    Ok(balance)
}

impl Balance {
    /// Forgets answers to requests that ended up to offset `acked` of the output: those are not read
    /// again. Each session that goes on keeps a copy of the others.
    pub fn acknowledge(&mut self, acked: u64) {
        self.settled.retain(|hop| end_of(hop) > acked);
    }

    /// Says of each session what its last move comes to.
    fn settle(&mut self, moves: Moves, done: &BTreeSet<u64>) {
        for (native, (number, last)) in moves {
            let is_done = done.contains(&number);
            let is_kept = self.kept.contains(&native);
            match last {
                Move::Opens if !is_done => _ = self.opening.insert(native.clone(), number),
                Move::Closes if is_done && !is_kept => _ = self.let_go.insert(native.clone()),
                Move::Closes if !is_done => _ = self.close_asked.insert(native.clone(), number),
                Move::LetGo => _ = self.let_go.insert(native.clone()),
                Move::Opens | Move::Closes | Move::Closing => {}
            }
            match last {
                // An earlier version wrote only the request.
                Move::Closes | Move::Closing => _ = self.closing.entry(native.clone()).or_default(),
                Move::Opens | Move::LetGo => _ = self.closing.remove(&native),
            }
            self.moved.insert(native);
        }
    }

    fn add(&mut self, line: Line<'_>, accepted: u64, done: &mut BTreeSet<u64>, moves: &mut Moves) {
        let frame = line.frame.map(|raw| Bytes::copy_from_slice(raw.get().as_bytes()));
        if let Some(number) = line.done {
            done.insert(number);
        }
        if let Some(key) = line.here {
            self.here.insert(line.session, Here { key, journal: line.journal });
            return;
        }
        let mut note = |native: Box<str>, at: u64, moved: Move| {
            let last = moves.entry(native).or_insert((at, moved));
            *last = (at, moved).max(*last);
        };
        if let Some(native) = line.closing {
            self.closing.insert(native.clone(), CloseWhy::of_word(&line.why));
            note(native, line.last.unwrap_or(0), Move::Closing);
        }
        if let Some(native) = line.let_go {
            note(native, line.last.unwrap_or(0), Move::LetGo);
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
            let closes = &*line.method == "session/close";
            note(native.as_ref().into(), number, if closes { Move::Closes } else { Move::Opens });
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
