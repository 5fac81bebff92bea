//! `frontdesk rename`: gives a session a name.

use serde_json::{Value, json};

use super::client::CALL;
use super::{Exit, Failure, Shell, rows, text};

/// Arguments of `rename`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk rename 01a22bb6-2da2 \"nightly run\"")]
pub(crate) struct Args {
    /// The session: an id, or a unique beginning of one
    #[arg(value_name = "ID")]
    session: String,
    /// The name: one line, up to 200 characters
    #[arg(value_name = "NAME")]
    name: String,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Names a session.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let name = frontdesk_core::names::custom(&args.name)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let mut client = shell.connect()?;
    let id = rows::resolve(&mut client, &args.session)?;
    let params = json!({ "sessionId": id, "name": name });
    let answer = client.call("_frontdesk/rename", &params, CALL)?;
    if args.json {
        shell.out.json(answer.raw())?;
        return Ok(Exit::Done);
    }
    let named: Value = answer.read()?;
    let name = text::line(named["name"].as_str().unwrap_or(name));
    shell.out.line(&format!("renamed {} to {name}", text::line(&id)))?;
    Ok(Exit::Done)
}
