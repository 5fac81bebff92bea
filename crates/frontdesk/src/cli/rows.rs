//! Rows of the session list: fetching pages, and finding the session a person means.

use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use frontdesk_core::ids::Key;

use super::client::{Answer, CALL, CALL_AGENT, Client, ClientError};
use super::wire::{Page, Row};
use super::{Failure, Shell, text};

/// Shortest beginning of an id that is looked up.
const PREFIX_CHARS_MIN: usize = 4;
/// Candidates shown for an ambiguous beginning.
const CANDIDATES_MAX: usize = 10;
/// Rows asked for at a time.
const PAGE_ROWS_MAX: usize = 200;
/// Rows asked for in a search.
const FOUND_ROWS_MAX: usize = 1_000;
/// Shortest id shown in a table: the part of a version 7 UUID that holds its instant.
const SHOWN_CHARS_MIN: usize = 13;

/// Arguments of a command about one session.
#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// The session: an id, or a unique beginning of one
    #[arg(value_name = "ID")]
    session: String,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

impl One {
    /// Calls a method about the session, and waits for at most `wait`.
    pub(crate) fn ask(
        &self,
        method: &str,
        wait: Duration,
        shell: &mut Shell,
    ) -> Result<Answer, Failure> {
        let mut client = shell.connect()?;
        let id = resolve(&mut client, &self.session)?;
        Ok(client.call(method, &session_params(&id, false), wait)?)
    }
}

/// Which rows to fetch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    /// Only this agent's.
    pub(crate) agent: Option<String>,
    /// Only those in this folder.
    pub(crate) cwd: Option<String>,
    /// `active` or `inactive`.
    pub(crate) status: Option<String>,
    /// Only those whose key or native id begins so.
    pub(crate) prefix: Option<String>,
    /// Only those that wait for somebody.
    pub(crate) attention: bool,
    /// Only those that were put aside.
    pub(crate) archived: bool,
    /// Only those that changed later than this, RFC 3339.
    pub(crate) since: Option<String>,
    /// Only those that changed earlier than this, RFC 3339.
    pub(crate) until: Option<String>,
    /// Only those with these words, best first.
    pub(crate) search: Option<String>,
    /// Whether agents are asked for their lists first.
    pub(crate) refresh: bool,
}

/// Rows of one or more pages.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// The rows, as sent.
    pub(crate) raw: Vec<Box<RawValue>>,
    /// The rows, read.
    pub(crate) rows: Vec<Row>,
    /// Agents that could not be asked.
    pub(crate) unreachable: Vec<String>,
    /// Whether the daemon has more.
    pub(crate) more: bool,
}

impl Rows {
    /// The document that `--json` prints: the rows exactly as sent.
    pub(crate) fn to_json(&self) -> Result<String, serde_json::Error> {
        #[derive(serde::Serialize)]
        struct Document<'a> {
            sessions: &'a [Box<RawValue>],
            more: bool,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            unreachable: &'a [String],
        }
        serde_json::to_string(&Document {
            sessions: &self.raw,
            more: self.more,
            unreachable: &self.unreachable,
        })
    }
}

/// Fetches rows page by page, up to `limit_rows`.
///
/// # Errors
/// If the daemon cannot be asked, or answers with the same cursor for ever.
pub(crate) fn fetch(
    client: &mut Client,
    query: &Query,
    limit_rows: usize,
) -> Result<Rows, ClientError> {
    let mut rows = Rows::default();
    let mut cursor: Option<String> = None;
    loop {
        let mut params = Map::new();
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                params.insert(name.to_owned(), value);
            }
        };
        set("agent", query.agent.clone().map(Value::from));
        set("cwd", query.cwd.clone().map(Value::from));
        set("status", query.status.clone().map(Value::from));
        set("prefix", query.prefix.clone().map(Value::from));
        set("attention", query.attention.then_some(Value::Bool(true)));
        set("archived", query.archived.then_some(Value::Bool(true)));
        set("updatedAfter", query.since.clone().map(Value::from));
        set("updatedBefore", query.until.clone().map(Value::from));
        set("search", query.search.clone().map(Value::from));
        // Only the first page asks the agents; the rest is read from what that brought.
        set("refresh", (query.refresh && cursor.is_none()).then_some(Value::Bool(true)));
        let room = limit_rows.saturating_sub(rows.raw.len());
        // What a search finds comes in one page.
        let page_rows = if query.search.is_some() { FOUND_ROWS_MAX } else { PAGE_ROWS_MAX };
        set("limit", Some(Value::from(room.min(page_rows))));
        set("cursor", cursor.clone().map(Value::from));
        let page: Page = client
            .call("_frontdesk/sessions", &params, if query.refresh { CALL_AGENT } else { CALL })?
            .read()?;
        for name in page.unreachable {
            if !rows.unreachable.contains(&name) {
                rows.unreachable.push(name);
            }
        }
        let empty = page.sessions.is_empty();
        for raw in page.sessions {
            if rows.raw.len() == limit_rows {
                rows.more = true;
                return Ok(rows);
            }
            rows.rows.push(read_row(&raw)?);
            rows.raw.push(raw);
        }
        rows.more = page.next_cursor.is_some() || page.more;
        if page.next_cursor.is_none() || rows.raw.len() >= limit_rows {
            return Ok(rows);
        }
        // A cursor that leads nowhere would never end.
        if empty || page.next_cursor == cursor {
            return Ok(rows);
        }
        cursor = page.next_cursor;
    }
}

fn read_row(raw: &RawValue) -> Result<Row, ClientError> {
    serde_json::from_str(raw.get())
        .map_err(|source| ClientError::Shape { method: "_frontdesk/sessions".to_owned(), source })
}

/// Finds the id that a person means: a whole id, or a unique beginning of a key or native id.
///
/// What nobody's list has is handed on as typed: the daemon then says that it is unknown, or
/// asks the agents.
///
/// # Errors
/// [`Failure::Usage`] with the candidates where a beginning fits several sessions.
pub(crate) fn resolve(client: &mut Client, typed: &str) -> Result<String, Failure> {
    if typed.is_empty() {
        return Err(Failure::Usage("a session id is needed; `frontdesk ls` lists them".to_owned()));
    }
    // A whole key needs no look-up, and most scripts have one.
    if typed.parse::<Key>().is_ok() || typed.chars().count() < PREFIX_CHARS_MIN {
        return Ok(typed.to_owned());
    }
    let query = Query { prefix: Some(typed.to_owned()), ..Query::default() };
    let found = fetch(client, &query, CANDIDATES_MAX + 1)?;
    match choose(typed, &found.rows) {
        Choice::One(row) => Ok(row.id.clone()),
        Choice::None => Ok(typed.to_owned()),
        Choice::Several(rows) => Err(Failure::Usage(ambiguous(typed, &rows))),
    }
}

#[derive(Debug)]
enum Choice<'a> {
    None,
    One(&'a Row),
    Several(Vec<&'a Row>),
}

/// The row that `typed` names: exactly, else as a beginning. Of several sessions with one native
/// id it means the one that is loaded.
fn choose<'a>(typed: &str, rows: &'a [Row]) -> Choice<'a> {
    let spellings =
        |row: &'a Row| [Some(row.id.as_str()), Some(row.key.as_str()), row.native_id.as_deref()];
    let exact: Vec<&Row> = rows
        .iter()
        .filter(|row| spellings(row).into_iter().flatten().any(|id| same(id, typed)))
        .collect();
    let loaded: Vec<&Row> = exact.iter().copied().filter(|row| row.status == "active").collect();
    let begins = |id: &str| id.get(..typed.len()).is_some_and(|start| same(start, typed));
    let beginnings = || rows.iter().filter(|row| spellings(row).into_iter().flatten().any(begins));
    match (exact.as_slice(), loaded.as_slice()) {
        ([one], _) | (_, [one]) => Choice::One(one),
        ([], _) => {
            let fitting: Vec<&Row> = beginnings().collect();
            match fitting.as_slice() {
                [] => Choice::None,
                [one] => Choice::One(one),
                _ => Choice::Several(fitting),
            }
        }
        _ => Choice::Several(exact),
    }
}

/// Keys are UUIDs and compare without case; agents' own ids compare as they are.
fn same(id: &str, typed: &str) -> bool {
    let uuid_like = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    id == typed || (uuid_like(id) && uuid_like(typed) && id.eq_ignore_ascii_case(typed))
}

fn ambiguous(typed: &str, rows: &[&Row]) -> String {
    let mut message = format!("{} names several sessions:", text::line(typed));
    for row in rows.iter().take(CANDIDATES_MAX) {
        let title = row.title.as_deref().map(text::line).unwrap_or_default();
        let id = text::line(&row.key);
        message.push_str(&format!(
            "\n  {id}  {}  {}",
            text::line(&row.agent),
            text::cut(&title, 60)
        ));
    }
    if rows.len() > CANDIDATES_MAX {
        message.push_str("\n  and more");
    }
    message
}

/// The beginnings of ids that tell these rows apart, for a table.
pub(crate) fn short_ids(ids: &[&str]) -> Vec<String> {
    let mut sorted: Vec<&str> = ids.to_vec();
    sorted.sort_unstable();
    ids.iter()
        .map(|id| {
            let at = sorted.partition_point(|other| other < id);
            let before = at.checked_sub(1).and_then(|at| sorted.get(at));
            let after = sorted.get(at + 1);
            let shared = before
                .into_iter()
                .chain(after)
                .map(|other| id.chars().zip(other.chars()).take_while(|(a, b)| a == b).count())
                .max()
                .unwrap_or(0);
            text::line(&id.chars().take(SHOWN_CHARS_MIN.max(shared + 1)).collect::<String>())
        })
        .collect()
}

/// The parameters that name a session, with `_meta.frontdesk.force` where it is wanted.
pub(crate) fn session_params(id: &str, force: bool) -> Value {
    if force {
        json!({ "sessionId": id, "_meta": { "frontdesk": { "force": true } } })
    } else {
        json!({ "sessionId": id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, native: Option<&str>, status: &str) -> Row {
        Row {
            id: id.to_owned(),
            key: id.to_owned(),
            native_id: native.map(str::to_owned),
            status: status.to_owned(),
            ..Row::default()
        }
    }

    fn chosen(typed: &str, rows: &[Row]) -> String {
        match choose(typed, rows) {
            Choice::None => "none".to_owned(),
            Choice::One(row) => row.id.clone(),
            Choice::Several(rows) => format!("several {}", rows.len()),
        }
    }

    #[test]
    fn a_unique_beginning_names_a_session() {
        let rows = [
            row("01a22bb6-2da2-7132-b868-40a3a5d1f51f", Some("ses_Abc"), "inactive"),
            row("01a22bb6-2da3-7000-b868-40a3a5d1f51f", Some("ses_abd"), "active"),
        ];
        assert_eq!(chosen("01a22bb6-2da2", &rows), rows[0].id);
        assert_eq!(chosen("01A22BB6-2DA3", &rows), rows[1].id);
        assert_eq!(chosen("01a22bb6", &rows), "several 2");
        assert_eq!(chosen("ses_A", &rows), rows[0].id);
        assert_eq!(chosen("ses_", &rows), "several 2");
        assert_eq!(chosen("ses_x", &rows), "none");
        assert_eq!(chosen("日本", &rows), "none");
    }

    #[test]
    fn a_whole_id_wins_over_a_beginning() {
        let rows = [row("k1", Some("abcd"), "inactive"), row("k2", Some("abcde"), "active")];
        assert_eq!(chosen("abcd", &rows), "k1");
    }

    #[test]
    fn of_equal_native_ids_the_loaded_one_is_meant() {
        let mut rows = vec![row("k1", Some("main"), "inactive"), row("k2", Some("main"), "active")];
        assert_eq!(chosen("main", &rows), "k2");
        rows.push(row("k3", Some("main"), "active"));
        assert_eq!(chosen("main", &rows), "several 3");
    }

    #[test]
    fn short_ids_tell_rows_apart() {
        let ids = ["01a22bb6-2da2-7132-b868", "01a22bb6-2da2-7132-c868", "01a99999-0000", "ab"];
        assert_eq!(
            short_ids(&ids),
            ["01a22bb6-2da2-7132-b", "01a22bb6-2da2-7132-c", "01a99999-0000", "ab"]
        );
        assert_eq!(short_ids(&["same", "same"]), ["same", "same"]);
        assert!(short_ids(&[]).is_empty());
    }
}
