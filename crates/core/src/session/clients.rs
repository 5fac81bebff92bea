//! How clients come in, and how far they have been shown a session.

use std::sync::Arc;

use bytes::Bytes;

use crate::agent::ClientAbilities;
use crate::ids::{ConnId, Seq};

/// A client as the machine sees it.
#[derive(Clone, Debug)]
pub struct Client {
    /// The connection.
    pub conn: ConnId,
    /// The client's own key, kept over reconnects.
    pub key: Arc<str>,
    /// What it calls itself.
    pub name: Arc<str>,
    /// What the agent may ask of it.
    pub can: ClientAbilities,
}

/// How a client comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// `session/load`: history first, then the answer.
    Load,
    /// `session/resume`: no history.
    Resume,
}

/// A client wants to take part.
#[derive(Clone, Debug)]
pub struct Attach {
    /// Who.
    pub client: Client,
    /// The request's id, as text.
    pub id: Box<str>,
    /// Load or resume.
    pub how: How,
    /// The id it asked with.
    pub spelling: Box<str>,
    /// Its parameters as text, for a start.
    pub params: Bytes,
    /// What it has been shown of the history that a load shows.
    pub from: Mark,
}

/// How far a client has been shown a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The last record that it was shown something of.
    pub seq: Seq,
    /// How many frames of that record; 0 where it was all.
    pub part: u32,
}

impl Mark {
    /// Everything up to a record.
    #[must_use]
    pub const fn whole(seq: Seq) -> Self {
        Self { seq, part: 0 }
    }

    /// Behind the frame `at` (from 0) of the `count` frames of a record.
    #[must_use]
    pub fn of(seq: Seq, at: usize, count: usize) -> Self {
        let part = if at + 1 >= count { 0 } else { u32::try_from(at + 1).unwrap_or(u32::MAX) };
        Self { seq, part }
    }
}

/// A client wants to go on.
#[derive(Clone, Debug)]
pub struct Rejoin {
    /// Who.
    pub client: Client,
    /// The request's id, as text.
    pub id: Box<str>,
    /// The id of the session that it used before.
    pub spelling: Box<str>,
    /// What it was shown; without it, nothing is shown again.
    pub seen: Option<Mark>,
    /// Its prompts without an answer: each one's id, as text, and a record that is older than its own.
    pub prompts: Vec<(Box<str>, Seq)>,
}
