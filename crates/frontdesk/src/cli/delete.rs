//! `frontdesk delete`: forgets a session.

use std::io::BufRead as _;

use serde_json::{Value, json};

use super::client::CALL;
use super::out::WANTED;
use super::wire::Row;
use super::{Exit, Failure, Shell, rows, text};

/// Arguments of `delete`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk delete 01a22bb6-2da2")]
pub(crate) struct Args {
    /// The session: an id, or a unique beginning of one
    #[arg(value_name = "ID")]
    session: String,
    /// Delete it although others are attached
    #[arg(long)]
    force: bool,
    /// Delete only what Frontdesk has of it, for agents that cannot delete
    #[arg(long)]
    local: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Print one JSON document; implies --yes
    #[arg(long)]
    pub(crate) json: bool,
}

/// Deletes a session.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let mut client = shell.connect()?;
    let id = rows::resolve(&mut client, &args.session)?;
    if !args.yes && !args.json && shell.at_terminal {
        let row = client.call("_frontdesk/session", &rows::session_params(&id, false), CALL)?;
        if !is_meant(&row.read()?, shell) {
            shell.out.remark(WANTED, "nothing was deleted");
            return Ok(Exit::Failed);
        }
    }
    let answer = client.call("session/delete", &params(args, &id), CALL)?;
    if args.json {
        shell.out.json(answer.raw())?;
    } else {
        shell.out.line(&format!("deleted {}", text::line(&id)))?;
    }
    Ok(Exit::Done)
}

fn params(args: &Args, id: &str) -> Value {
    let mut params = json!({ "sessionId": id });
    for (name, set) in [("force", args.force), ("local", args.local)] {
        if set {
            params["_meta"]["frontdesk"][name] = json!(true);
        }
    }
    params
}

/// Asks the person at the terminal; only a yes is one.
fn is_meant(row: &Row, shell: &mut Shell) -> bool {
    let title = row.title.as_deref().map_or_else(|| "(no title)".to_owned(), text::line);
    let folder = text::line(&row.cwd);
    let question = format!("delete {title} in {folder} and its history? [y/N] ");
    shell.out.remark_piece(WANTED, &question);
    let mut typed = String::new();
    let read = (shell.keyboard)().map(|mut keyboard| keyboard.read_line(&mut typed));
    matches!(read, Some(Ok(_))) && matches!(typed.trim(), "y" | "Y" | "yes")
}
