//! What goes into the session machine when a session is made or named.

use std::sync::Arc;

use super::clients::Client;
use super::types::AgentFacts;
use crate::envelope::Frame;
use crate::fold::{ApprovalMode, ClientInfo, ForkedFrom};

/// Who did something, as records name it.
#[derive(Clone, Debug)]
pub struct By {
    /// The client's own key.
    pub client: Arc<str>,
    /// What it calls itself.
    pub name: Arc<str>,
}

/// The client that takes part in a session from its beginning.
#[derive(Clone, Debug)]
pub struct First {
    /// Who asked.
    pub client: Client,
    /// The request's id, as text.
    pub id: Box<str>,
    /// Public id: the key.
    pub spelling: Box<str>,
}

/// A session that an agent has just made.
#[derive(Clone, Debug)]
pub struct Born {
    /// Who had it made.
    pub by: By,
    /// How that client named itself, where it said both name and version. Never of a fork.
    pub client_info: Option<ClientInfo>,
    /// The client that is answered and takes part; `None` where nobody does yet.
    pub first: Option<First>,
    /// The agent's answer, with its own id in it.
    pub answer: Frame,
    /// Name of the agent's entry.
    pub agent: String,
    /// The instance.
    pub facts: AgentFacts,
    /// Working directory and further directories.
    pub cwd: String,
    /// Further directories.
    pub additional_directories: Vec<String>,
    /// Parameters without secret values, JSON text.
    pub parameters: String,
    /// The session this one was forked from. Its history follows as [`super::Input::Copied`].
    pub forked_from: Option<ForkedFrom>,
    /// The policy for questions that was asked for, before the configuration's.
    pub approval: Option<ApprovalMode>,
}

/// A name that a person gives.
#[derive(Clone, Debug)]
pub struct Rename {
    /// The name, checked ([`crate::names::custom`]).
    pub name: String,
    /// Who gives it.
    pub by: Option<By>,
    /// The caller's id of the command, where the face has one.
    pub command_id: Option<String>,
}
