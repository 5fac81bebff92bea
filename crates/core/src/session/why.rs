//! Why a session is unloaded, and why it could not be started.

use crate::errors::WireError;

/// Why a session is unloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CloseWhy {
    /// A client closed it.
    #[default]
    Client,
    /// Nobody used it.
    Idle,
    /// The daemon stops.
    Stop,
    /// It is about to be deleted.
    Delete,
    /// A cancelled turn never ended at the agent.
    Stuck,
    /// Somebody took it.
    Take,
}

impl CloseWhy {
    /// Whether its clients stay: their next prompt calls the session back.
    #[must_use]
    pub fn keeps_clients(self) -> bool {
        matches!(self, Self::Idle | Self::Stuck | Self::Take)
    }

    /// Reads the word of a ledger; one of another version is a client's.
    #[must_use]
    pub fn of_word(word: &str) -> Self {
        let all = [Self::Idle, Self::Stop, Self::Delete, Self::Stuck, Self::Take];
        all.into_iter().find(|why| why.as_str() == word).unwrap_or_default()
    }

    /// The word in the journal.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Idle => "idle",
            Self::Stop => "stop",
            Self::Delete => "delete",
            Self::Stuck => "stuck",
            Self::Take => "take",
        }
    }
}

/// Why a session could not be started.
#[derive(Clone, Debug)]
pub enum StartFailure {
    /// The agent says that it does not have it any more.
    Gone,
    /// The agent can neither load nor resume.
    CannotReturn,
    /// An error of the agent's, passed on as it is (JSON text of the error object).
    Agent(String),
    /// An error of ours.
    Ours(WireError),
}
