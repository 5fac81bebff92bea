//! `frontdesk close`: ends a session and keeps its history.

use serde_json::Value;

use super::client::CALL;
use super::out::WANTED;
use super::{Exit, Failure, Shell, rows, text, time};

/// Arguments of `close`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk close 01a22bb6-2da2 --force")]
pub(crate) struct Args {
    /// The session: an id, or a unique beginning of one
    #[arg(value_name = "ID")]
    session: String,
    /// Close it although others are attached or a turn does not end
    #[arg(long)]
    force: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Closes a session.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let mut client = shell.connect()?;
    let id = rows::resolve(&mut client, &args.session)?;
    let answer = client.call("session/close", &rows::session_params(&id, args.force), CALL)?;
    let result: Value = answer.read()?;
    let outcome = &result["_meta"]["frontdesk"];
    let remaining = outcome["remaining"].as_i64().unwrap_or(0);
    let open = outcome["closed"] == Value::Bool(false);
    if args.json {
        shell.out.json(answer.raw())?;
    } else if open {
        let others = time::plural(remaining, "other client");
        shell.out.remark(WANTED, &format!("still open for {others}; --force closes it for all"));
    } else {
        shell.out.line(&format!("closed {}", text::line(&id)))?;
    }
    Ok(if open { Exit::Failed } else { Exit::Done })
}
