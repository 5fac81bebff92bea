//! `frontdesk archive`: puts a session aside, or takes it back.

use serde_json::json;

use super::client::CALL;
use super::{Exit, Failure, Shell, rows, text};

/// Arguments of `archive`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  frontdesk archive 01a22bb6-2da2\n  frontdesk archive 01a22bb6-2da2 --undo"
)]
pub(crate) struct Args {
    /// The session: an id, or a unique beginning of one
    #[arg(value_name = "ID")]
    session: String,
    /// Take it back
    #[arg(long)]
    undo: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Puts a session aside.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let mut client = shell.connect()?;
    let id = rows::resolve(&mut client, &args.session)?;
    let params = json!({ "sessionId": id, "archived": !args.undo });
    let answer = client.call("_frontdesk/archive", &params, CALL)?;
    if args.json {
        shell.out.json(answer.raw())?;
    } else {
        let word = if args.undo { "taken back" } else { "archived" };
        shell.out.line(&format!("{word} {}", text::line(&id)))?;
    }
    Ok(Exit::Done)
}
