//! `frontdesk fork`: makes a session that begins with another one's history, and prints its id.

use serde_json::{Value, json};

use super::client::CALL_AGENT;
use super::{Exit, Failure, Shell, rows, text};

/// Arguments of `fork`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk fork 01a22bb6-2da2")]
pub(crate) struct Args {
    /// The session: an id, or a unique beginning of one
    #[arg(value_name = "ID")]
    session: String,
    /// Print the whole answer as one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Forks a session.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let mut client = shell.connect()?;
    let id = rows::resolve(&mut client, &args.session)?;
    let answer = client.call("_frontdesk/fork", &json!({ "sessionId": id }), CALL_AGENT)?;
    if args.json {
        shell.out.json(answer.raw())?;
        return Ok(Exit::Done);
    }
    let made: Value = answer.read()?;
    let fork = made["sessionId"].as_str().ok_or_else(|| {
        anyhow::anyhow!("failed to read the answer to _frontdesk/fork: no sessionId")
    })?;
    shell.out.line(&text::line(fork))?;
    Ok(Exit::Done)
}
