//! `frontdesk log`: a session's journal, record by record.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::client::{CALL, Client};
use super::out::{BAD, DIM, GOOD, PLAIN, WANTED};
use super::{Exit, Failure, Shell, rows, text};

/// Records asked for at a time.
const PAGE_RECORDS_MAX: u64 = 500;
/// How long one call waits for something new. The daemon answers earlier when there is.
const FOLLOW_WAIT_MS: u64 = 20_000;
/// Longest summary of one record where the width of the terminal does not say.
const SUMMARY_COLUMNS_MAX: usize = 300;

/// Arguments of `log`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk log 01a22bb6-2da2 --follow")]
pub(crate) struct Args {
    /// The session: an id, or a unique beginning of one
    #[arg(value_name = "ID")]
    session: String,
    /// Go on as records are written
    #[arg(long, short)]
    follow: bool,
    /// Begin behind this record
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    after: u64,
    /// Print the records exactly as in the journal, one JSON document a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Deserialize)]
struct Page {
    records: Vec<Box<RawValue>>,
    #[serde(default)]
    last: u64,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Record {
    seq: u64,
    at: String,
    kind: String,
    data: Value,
}

/// Prints a journal.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let mut client = shell.connect()?;
    let id = rows::resolve(&mut client, &args.session)?;
    let mut after = args.after;
    let mut at_end = false;
    loop {
        let wait_ms = if at_end { FOLLOW_WAIT_MS } else { 0 };
        let page = fetch(&mut client, &id, after, wait_ms)?;
        let before = after;
        for raw in &page.records {
            let record: Record = serde_json::from_str(raw.get()).unwrap_or_default();
            after = after.max(record.seq);
            if args.json {
                shell.out.json(raw.get())?;
            } else {
                show(&record, shell)?;
            }
        }
        if shell.out.is_closed() {
            return Ok(Exit::Done);
        }
        at_end = page.records.is_empty();
        if !at_end && after == before {
            // Records whose position cannot be read would come again for ever.
            after = page.last;
            at_end = after <= before;
        }
        if at_end && !args.follow {
            return Ok(Exit::Done);
        }
    }
}

fn fetch(client: &mut Client, id: &str, after: u64, wait_ms: u64) -> Result<Page, Failure> {
    let mut params = json!({ "sessionId": id, "after": after, "limit": PAGE_RECORDS_MAX });
    if wait_ms > 0 {
        params["waitMs"] = Value::from(wait_ms);
    }
    let wait = CALL + Duration::from_millis(wait_ms);
    Ok(client.call("_frontdesk/log", &params, wait)?.read()?)
}

fn show(record: &Record, shell: &mut Shell) -> Result<(), Failure> {
    let line = format!(
        "{:>6}  {}  {:<18} {}",
        record.seq,
        clock(&record.at),
        text::line(&record.kind),
        summary(&record.data)
    );
    let line = text::cut(line.trim_end(), shell.out.width_columns.unwrap_or(SUMMARY_COLUMNS_MAX));
    let style = match record.kind.as_str() {
        "turn_started" | "turn_ended" | "created" | "loaded" => GOOD,
        "interaction_opened" => WANTED,
        "lost" | "damage" | "turn_late" => BAD,
        "update" | "imported" => PLAIN,
        _ => DIM,
    };
    Ok(shell.out.styled(style, &line)?)
}

/// An instant to the second, in UTC. `--json` has the microseconds.
fn clock(at: &str) -> String {
    at.parse::<jiff::Timestamp>()
        .map_or_else(|_| "-".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%SZ").to_string())
}

/// The gist of a record's payload on one line.
fn summary(data: &Value) -> String {
    let update = data.get("update").unwrap_or(data);
    if let Some(kind) = update["sessionUpdate"].as_str() {
        let words = update["content"]["text"].as_str().or(update["title"].as_str());
        let status = update["status"].as_str().map(|status| format!(" ({status})"));
        let words = words.map_or_else(String::new, |words| format!(": {words}"));
        return text::line(&format!("{kind}{words}{}", status.unwrap_or_default()));
    }
    let Value::Object(members) = data else {
        return if data.is_null() { String::new() } else { text::line(&data.to_string()) };
    };
    let words: Vec<String> = members
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| match value {
            Value::String(value) => format!("{name}={value}"),
            value => format!("{name}={value}"),
        })
        .collect();
    text::line(&words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_summed_up_on_one_line() {
        for (data, want) in [
            (
                json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "a\nb\u{1b}[2J" } }),
                "agent_message_chunk: a b[2J",
            ),
            (
                json!({ "update": { "sessionUpdate": "tool_call", "title": "Read", "status": "pending" } }),
                "tool_call: Read (pending)",
            ),
            (json!({ "stopReason": "end_turn", "n": 1, "x": null }), "stopReason=end_turn n=1"),
            (json!({ "a": { "b": [1] } }), "a={\"b\":[1]}"),
            (Value::Null, ""),
            (json!([1, 2]), "[1,2]"),
        ] {
            assert_eq!(summary(&data), want);
        }
    }

    #[test]
    fn clocks_are_utc_to_the_second() {
        assert_eq!(clock("2026-11-30T12:00:00.123456Z"), "2026-11-30 12:00:00Z");
        assert_eq!(clock("soon"), "-");
    }
}
