//! `frontdesk ls`: the list of sessions, and search in them.

use std::path::PathBuf;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::out::{BOLD, DIM, GOOD, PLAIN, WANTED};
use super::rows::{self, Query, Rows};
use super::table::{fixed, flexible, lay_out};
use super::wire::Row;
use super::{Exit, Failure, Shell, text, time};

/// Arguments of `ls`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  frontdesk ls --status active --cwd .\n  frontdesk ls --search 'flaky test' --since 2w"
)]
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
    /// Only sessions that wait for somebody's answer
    #[arg(long)]
    attention: bool,
    /// Only sessions with these words in a title or in what was said; "…" is a phrase
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// Only sessions that changed later: a time, a day, or how long ago (2026-11-30, 3d, 2h)
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only sessions that changed earlier
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only sessions that were put aside
    #[arg(long)]
    archived: bool,
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
    let now = (shell.now)();
    let at = |name: &str, text: &Option<String>| {
        text.as_deref().map(|text| instant(name, text, now)).transpose()
    };
    let query = Query {
        agent: args.agent.clone(),
        cwd: args.cwd.as_ref().map(|cwd| shell.absolute(cwd).display().to_string()),
        status: args.status.clone(),
        prefix: None,
        attention: args.attention,
        archived: args.archived,
        since: at("since", &args.since)?,
        until: at("until", &args.until)?,
        search: args.search.clone(),
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
                row.title.as_deref().or(row.name.as_deref()).map(text::line).unwrap_or_default(),
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
        if let Some(snippet) = row.and_then(|row| row.found.as_ref()).map(|found| &found.snippet) {
            shell.out.styled(DIM, &format!("    {}", text::line(snippet)))?;
        }
    }
    Ok(())
}

/// A time as people give it: an instant, a day of this machine's zone, or how long ago.
fn instant(name: &str, text: &str, now: Timestamp) -> Result<String, Failure> {
    let zone = TimeZone::system();
    let day = || zone.to_timestamp(text.parse::<Date>().ok()?.at(0, 0, 0, 0)).ok();
    let ago = || {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let seconds = match unit {
            "m" => 60,
            "h" => 3_600,
            "d" => 86_400,
            "w" => 604_800,
            _ => return None,
        };
        let number: i64 = number.parse::<u32>().ok()?.into();
        now.checked_sub(SignedDuration::from_secs(number * seconds)).ok()
    };
    let found = text.parse::<Timestamp>().ok().or_else(day).or_else(ago);
    found.map(|at| at.to_string()).ok_or_else(|| {
        Failure::Usage(format!(
            "--{name} takes a time such as 2026-11-30T12:00:00Z, 2026-11-30, 2w, 3d, 2h or 30m, not {text:?}"
        ))
    })
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
