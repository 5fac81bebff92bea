//! `frontdesk fork`: makes a session that begins with another one's history, and prints its id.

use serde_json::Value;

use super::client::CALL_AGENT;
use super::rows::One;
use super::{Exit, Failure, Shell, text};

/// Arguments of `fork`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk fork 01a22bb6-2da2")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) one: One,
}

/// Forks a session.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let answer = args.one.ask("_frontdesk/fork", CALL_AGENT, shell)?;
    if args.one.json {
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
