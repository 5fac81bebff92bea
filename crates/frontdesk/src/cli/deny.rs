//! `frontdesk deny`: says no to an open question.

use frontdesk_core::question::Wish;
use serde_json::json;

use super::approve::{permission, send};
use super::pending::find;
use super::{Exit, Failure, Shell};

/// Arguments of `deny`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The choice that says no for this once, else the one that says no for ever; a question without one\nis cancelled.\n\nExample:\n  frontdesk deny 01a22bb6-2da2"
)]
pub(crate) struct Args {
    /// The question, or a session with one open question: an id, or a unique beginning of one
    #[arg(value_name = "ID")]
    id: String,
    /// Neither yes nor no: the agent is told that the question was cancelled
    #[arg(long)]
    cancel: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Says no.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let mut client = shell.connect()?;
    let question = find(&mut client, &args.id)?;
    let result = match (question.kind.as_str(), args.cancel) {
        ("elicitation", true) => json!({ "action": "cancel" }).to_string(),
        ("elicitation", false) => json!({ "action": "decline" }).to_string(),
        (_, true) => json!({ "outcome": { "outcome": "cancelled" } }).to_string(),
        (_, false) => permission(&question, Wish::Deny)?,
    };
    send(&mut client, shell, &question, &result, args.json)
}
