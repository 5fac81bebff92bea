//! `frontdesk ls`: the list of sessions.

use std::path::PathBuf;

use super::out::{BOLD, DIM, GOOD, PLAIN, WANTED};
use super::rows::{self, Query, Rows};
use super::table::{fixed, flexible, lay_out};
use super::wire::Row;
use super::{Exit, Failure, Shell, text, time};

/// Arguments of `ls`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk ls --status active --cwd .")]
pub(crate) struct Args {
    /// Only sessions of this agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Only sessions in this folder
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Only sessions that are loaded, or only those that are not
    #[arg(long, value_parser = ["active", "inactive"])]
    status: Option<String>,
    /// Show at most this many, newest first
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Ask the agents for their own lists first
    #[arg(long)]
    refresh: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Lists sessions.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let query = Query {
        agent: args.agent.clone(),
        cwd: args.cwd.as_ref().map(|cwd| shell.absolute(cwd).display().to_string()),
        status: args.status.clone(),
        prefix: None,
        refresh: args.refresh,
    };
    let mut client = shell.connect()?;
    let found = rows::fetch(&mut client, &query, args.limit as usize)?;
    if args.json {
        let document = found.to_json().map_err(anyhow::Error::from)?;
        shell.out.json(&document)?;
    } else {
        show(&found, shell)?;
    }
    if !found.unreachable.is_empty() {
        let names = text::line(&found.unreachable.join(", "));
        shell.out.remark(WANTED, &format!("could not be asked for their lists: {names}"));
    }
    if found.more {
        let shown = found.rows.len();
        shell.out.remark(DIM, &format!("the first {shown}; more with --limit"));
    }
    Ok(Exit::Done)
}

fn show(found: &Rows, shell: &mut Shell) -> Result<(), Failure> {
    if found.rows.is_empty() {
        shell.out.remark(DIM, "no sessions");
        return Ok(());
    }
    let ids: Vec<&str> = found.rows.iter().map(|row| row.id.as_str()).collect();
    let now = (shell.now)();
    let cells: Vec<Vec<String>> = rows::short_ids(&ids)
        .into_iter()
        .zip(&found.rows)
        .map(|(id, row)| {
            vec![
                id,
                row.status_words(),
                time::ago(row.last_instant(), now),
                text::line(&row.agent),
                text::cut_front(
                    &text::folder(&row.cwd, shell.user_home.as_deref()),
                    FOLDER_COLUMNS_MAX,
                ),
                row.title.as_deref().map(text::line).unwrap_or_default(),
            ]
        })
        .collect();
    let columns = [
        fixed("ID"),
        fixed("STATUS"),
        fixed("AGE"),
        fixed("AGENT"),
        flexible("FOLDER"),
        flexible("TITLE"),
    ];
    let lines = lay_out(&columns, &cells, shell.out.width_columns);
    for (index, line) in lines.iter().enumerate() {
        let row = index.checked_sub(1).and_then(|index| found.rows.get(index));
        shell.out.styled(row.map_or(BOLD, style), line)?;
    }
    Ok(())
}

/// Widest a folder is shown; the end of a longer one tells most.
const FOLDER_COLUMNS_MAX: usize = 40;

/// How a row looks: those who want something stand out, the quiet ones step back.
pub(crate) fn style(row: &Row) -> anstyle::Style {
    match (row.status.as_str(), row.state.as_deref()) {
        (_, Some("requires_action")) => WANTED,
        (_, Some("running")) => GOOD,
        ("active", _) => PLAIN,
        _ => DIM,
    }
}
