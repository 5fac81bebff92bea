//! `frontdesk policy`: what becomes of a session's questions before people are asked.

use frontdesk_core::fold::ApprovalMode;
use serde_json::{Value, json};

use super::client::CALL;
use super::out::DIM;
use super::{Exit, Failure, Shell, rows, text};

/// Arguments of `policy`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk policy 01a22bb6-2da2 denyUnmatched")]
pub(crate) struct Args {
    /// The session: an id, or a unique beginning of one
    #[arg(value_name = "ID")]
    session: String,
    /// allowAll, promptUnmatched, onRequest or denyUnmatched
    #[arg(value_name = "MODE", value_parser = mode)]
    mode: ApprovalMode,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads a mode of the command line.
pub(crate) fn mode(word: &str) -> Result<ApprovalMode, String> {
    ApprovalMode::from_text(word).ok_or_else(|| {
        format!("it is one of {}", ApprovalMode::ALL.map(ApprovalMode::as_str).join(", "))
    })
}

/// Changes a session's policy.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let mut client = shell.connect()?;
    let id = rows::resolve(&mut client, &args.session)?;
    let params = json!({ "sessionId": id, "mode": args.mode });
    let answer = client.call("_frontdesk/policy", &params, CALL)?;
    if args.json {
        shell.out.json(answer.raw())?;
        return Ok(Exit::Done);
    }
    let told: Value = answer.read()?;
    shell.out.line(&format!("policy of {} is {}", text::line(&id), args.mode.as_str()))?;
    if told["decides"] == json!(false) {
        shell.out.remark(DIM, UNSURE);
    }
    Ok(Exit::Done)
}

/// Said where a policy may decide nothing.
const UNSURE: &str = "  it covers questions; this agent has asked none yet, or is in a mode of its own that asks none";
