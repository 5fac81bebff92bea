//! `frontdesk new`: makes a session and prints its id.

use std::path::PathBuf;

use frontdesk_core::fold::ApprovalMode;
use serde_json::{Value, json};

use super::client::CALL_AGENT;
use super::{Exit, Failure, Shell, text};

/// Arguments of `new`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk new --agent demo --cwd ~/project")]
pub(crate) struct Args {
    /// The agent; without it the default agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// The session's folder; without it the current one
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// What becomes of its questions: allowAll, promptUnmatched, onRequest or denyUnmatched
    #[arg(long, value_name = "MODE", value_parser = super::policy::mode)]
    policy: Option<ApprovalMode>,
    /// Print the whole answer as one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Makes a session.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let cwd = args.cwd.as_ref().map_or_else(|| shell.cwd.clone(), |cwd| shell.absolute(cwd));
    if !cwd.is_dir() {
        return Err(Failure::Usage(format!("{} is not a folder", cwd.display())));
    }
    let mut params = json!({ "cwd": cwd, "mcpServers": [] });
    if let Some(agent) = &args.agent {
        params["_meta"]["frontdesk"]["agent"] = json!(agent);
    }
    if let Some(mode) = args.policy {
        params["_meta"]["frontdesk"]["approvalMode"] = json!(mode);
    }
    let answer = shell.connect()?.call("session/new", &params, CALL_AGENT)?;
    if args.json {
        shell.out.json(answer.raw())?;
        return Ok(Exit::Done);
    }
    let made: Value = answer.read()?;
    let id = made["sessionId"]
        .as_str()
        .ok_or_else(|| anyhow::anyhow!("failed to read the answer to session/new: no sessionId"))?;
    shell.out.line(&text::line(id))?;
    Ok(Exit::Done)
}
