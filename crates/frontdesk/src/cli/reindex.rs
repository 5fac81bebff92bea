//! `frontdesk reindex`: makes the index anew from all journals, with a daemon or without.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::client::{CALL, Client, ClientError};
use super::out::{BAD, DIM};
use super::{Exit, Failure, Shell, time};
use crate::index::Counts;

/// Time between two looks at how far the daemon is.
const LOOK: Duration = Duration::from_millis(100);

/// Columns of the bar.
const BAR_COLUMNS: usize = 30;

/// Arguments of `reindex`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk reindex\n\nThe daemon goes on serving meanwhile.")]
pub(crate) struct Args {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// How far it is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Progress {
    running: bool,
    sessions: u64,
    passages: u64,
    bytes: u64,
    unreadable: u64,
    total: Option<u64>,
    ms: u64,
    runs: u64,
    error: Option<String>,
}

/// Makes the index anew.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let done = match shell.connect() {
        Ok(client) => ask(client, shell)?,
        Err(Failure::Client(ClientError::NoDaemon(_))) => alone(shell)?,
        Err(error) => return Err(error),
    };
    shell.out.progress("");
    if args.json {
        let mut document = json!({
            "sessions": done.sessions, "passages": done.passages, "bytes": done.bytes,
            "unreadable": done.unreadable, "ms": done.ms,
        });
        if let Some(error) = &done.error {
            document["error"] = json!({ "message": error });
        }
        shell.out.json(&document.to_string())?;
    }
    if let Some(error) = &done.error {
        let text = super::text::line(error);
        shell.out.remark(BAD, &format!("the index could not be made: {text}"));
        return Ok(Exit::Failed);
    }
    if !args.json {
        let line = format!(
            "{}, {} of transcripts, {} of journals in {}",
            count(done.sessions, "session"),
            count(done.passages, "passage"),
            size(done.bytes),
            time::span_ms(done.ms),
        );
        shell.out.line(&line)?;
    }
    if done.unreadable > 0 {
        let text = format!(
            "{} could not be read; see frontdesk doctor",
            count(done.unreadable, "journal")
        );
        shell.out.remark(BAD, &text);
        return Ok(Exit::Failed);
    }
    Ok(Exit::Done)
}

/// Has the daemon do it, and watches.
fn ask(mut client: Client, shell: &mut Shell) -> Result<Progress, Failure> {
    let mut look = |params: serde_json::Value| -> Result<Progress, ClientError> {
        client.call("_frontdesk/reindex", &params, CALL)?.read()
    };
    let before = look(json!({}))?.runs;
    let mut progress = look(json!({ "start": true }))?;
    while progress.running || (progress.runs == before && progress.error.is_none()) {
        shell.out.progress(&bar(&progress));
        std::thread::sleep(LOOK);
        progress = look(json!({}))?;
    }
    Ok(progress)
}

/// Does it here: no daemon runs.
fn alone(shell: &mut Shell) -> Result<Progress, Failure> {
    shell.out.remark(DIM, "no daemon runs here");
    let began = std::time::Instant::now();
    let Shell { paths, out, .. } = shell;
    let of = |counts: Counts| Progress {
        sessions: counts.sessions,
        passages: counts.passages,
        bytes: counts.bytes,
        unreadable: counts.unreadable,
        ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        ..Progress::default()
    };
    let counts = crate::serve::reindex(paths, |counts| out.progress(&bar(&of(counts))))?;
    Ok(of(counts))
}

fn bar(progress: &Progress) -> String {
    let Some(total) = progress.total.filter(|total| *total >= progress.sessions && *total > 0)
    else {
        return count(progress.sessions, "session");
    };
    let part = usize::try_from(progress.sessions * BAR_COLUMNS as u64 / total).unwrap_or_default();
    let (done, left) = ("=".repeat(part), " ".repeat(BAR_COLUMNS.saturating_sub(part)));
    let percent = progress.sessions * 100 / total;
    format!("[{done}{left}] {percent} % of {}", count(total, "session"))
}

fn count(number: u64, word: &str) -> String {
    time::plural(i64::try_from(number).unwrap_or(i64::MAX), word)
}

fn size(bytes: u64) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} bytes"),
        10_000..=9_999_999 => format!("{} kB", bytes / 1_000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_and_never_overflows() {
        let at = |sessions, total| bar(&Progress { sessions, total, ..Progress::default() });
        assert_eq!(at(3, None), "3 sessions");
        assert_eq!(at(1, Some(0)), "1 session");
        assert_eq!(
            at(50, Some(100)),
            format!("[{}{}] 50 % of 100 sessions", "=".repeat(15), " ".repeat(15))
        );
        assert_eq!(at(100, Some(100)), format!("[{}] 100 % of 100 sessions", "=".repeat(30)));
        // More than there were before.
        assert_eq!(at(101, Some(100)), "101 sessions");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(999), "999 bytes");
        assert_eq!(size(123_456), "123 kB");
        assert_eq!(size(245_000_000), "245 MB");
    }
}
