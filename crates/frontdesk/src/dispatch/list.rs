//! `session/list`: ours and the agents' own, one row per conversation, newest change first.
//!
//! The cursor is a position in that order (time, key), so that it survives inserts.

use std::path::PathBuf;
use std::sync::Arc;

use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::ids::Key;
use frontdesk_core::route::same_folder;
use serde_json::{Value, json};

use super::{cwd_of, params};
use crate::conn::Conn;
use crate::node::Node;
use crate::node::directory::Row;

/// Which sessions a list is about.
#[derive(Debug, Default)]
pub(super) struct Filter {
    agent: Option<String>,
    cwd: Option<(String, Option<PathBuf>)>,
    active: Option<bool>,
    prefix: Option<String>,
    /// Subagents are left out.
    tops: bool,
}

/// One page.
pub(super) struct Page {
    pub(super) rows: Vec<Arc<Row>>,
    pub(super) next: Option<String>,
}

pub(super) async fn list(
    node: Arc<Node>,
    conn: Arc<Conn>,
    frame: Frame,
) -> Option<Result<String, WireError>> {
    Some(list_page(&node, &conn, &params(&frame)).await)
}

async fn list_page(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    params: &Value,
) -> Result<String, WireError> {
    let mut filter = Filter { agent: conn.bound.clone(), tops: true, ..Filter::default() };
    if !params.get("cwd").is_none_or(Value::is_null) {
        filter = filter.in_folder(cwd_of(params)?);
    }
    let cursor = cursor_of(params)?;
    let mut unreachable = Vec::new();
    if cursor.is_none() {
        // Only an editor bound to an agent starts that agent for its list.
        let start = conn.bound.is_some();
        let agents = match &conn.bound {
            Some(bound) => node.agent(bound).into_iter().collect(),
            None => node.agents_known_to_list(),
        };
        unreachable = node.refresh_lists(agents, Some(conn.clone()), start).await;
    }
    let page = page(node, &filter, cursor, node.limits.page_rows as usize);
    let sessions: Vec<Value> = page.rows.iter().map(|row| acp_row(node, conn, row)).collect();
    let mut result = json!({ "sessions": sessions });
    if let Some(next) = page.next {
        result["nextCursor"] = json!(next);
    }
    if !unreachable.is_empty() {
        result["_meta"] = json!({ "frontdesk": { "unreachable": unreachable } });
    }
    Ok(result.to_string())
}

/// A row as ACP v1 has it; what else is known goes into `_meta`.
fn acp_row(node: &Node, conn: &Conn, row: &Row) -> Value {
    let public = row.public_id();
    // A native id that several sessions have names none of them.
    let unique = matches!(
        node.directory.resolve(&public, conn.bound.as_deref()),
        frontdesk_core::route::Meaning::One(key) if key == row.key
    );
    let id = if unique { public } else { row.key.to_string() };
    let mut session = json!({ "sessionId": id, "cwd": row.view.cwd });
    if let Some(title) = frontdesk_core::names::shown(&row.view) {
        session["title"] = json!(title);
    }
    if let Some(at) = row.view.updated_at {
        session["updatedAt"] = json!(at);
    }
    if !row.view.additional_directories.is_empty() {
        session["additionalDirectories"] = json!(row.view.additional_directories);
    }
    let status = if row.is_loaded() { conn.words.loaded() } else { conn.words.cold() };
    let mut meta = json!({ "key": row.key, "agent": row.view.agent, "status": status });
    if row.view.resumable == Some(false) {
        meta["resumable"] = json!(false);
    }
    session["_meta"] = json!({ "frontdesk": meta });
    session
}

impl Filter {
    /// Reads the filter of `_frontdesk/sessions`.
    pub(super) fn read(params: &Value) -> Result<Self, WireError> {
        let text = |name: &str| params.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
        let active = match text("status").as_deref() {
            None => None,
            Some("active" | "open") => Some(true),
            Some("inactive" | "saved") => Some(false),
            Some(other) => {
                let message = format!("params.status must be active or inactive, not {other:?}");
                return Err(WireError::new(Code::InvalidParams, message));
            }
        };
        let filter =
            Self { agent: text("agent"), cwd: None, active, prefix: text("prefix"), tops: false };
        Ok(if params.get("cwd").is_some_and(Value::is_string) {
            filter.in_folder(cwd_of(params)?)
        } else {
            filter
        })
    }

    fn in_folder(self, cwd: String) -> Self {
        let real = std::fs::canonicalize(&cwd).ok();
        Self { cwd: Some((cwd, real)), ..self }
    }

    fn takes(&self, row: &Row) -> bool {
        let agent = self.agent.as_ref().is_none_or(|agent| row.view.agent == *agent);
        let cwd = self.cwd.as_ref().is_none_or(|(cwd, real)| {
            same_folder(cwd, &row.view.cwd) || (real.is_some() && *real == row.real_cwd)
        });
        let active = self.active.is_none_or(|active| row.is_loaded() == active);
        let prefix = self.prefix.as_ref().is_none_or(|prefix| {
            let native = row.view.native.as_deref().unwrap_or_default();
            row.key.to_string().starts_with(&prefix.to_ascii_lowercase())
                || native.starts_with(prefix.as_str())
        });
        agent && cwd && active && prefix && !(self.tops && row.view.parent.is_some())
    }
}

/// One page of the rows that pass, behind the cursor.
pub(super) fn page(node: &Node, filter: &Filter, cursor: Option<Cursor>, rows_max: usize) -> Page {
    let all = node.directory.select(|row| {
        filter.takes(row) && cursor.is_none_or(|(at, key)| (micros(row), row.key) < (at, key))
    });
    let more = all.len() > rows_max;
    let rows: Vec<Arc<Row>> = all.into_iter().take(rows_max).collect();
    let next = rows.last().filter(|_| more).map(|row| format!("{}_{}", micros(row), row.key));
    Page { rows, next }
}

/// A position in the order of the list.
pub(super) type Cursor = (i64, Key);

/// Reads the cursor in params.
pub(super) fn cursor_of(params: &Value) -> Result<Option<Cursor>, WireError> {
    match params.get("cursor") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_str()
            .and_then(|text| text.split_once('_'))
            .and_then(|(at, key)| Some((at.parse().ok()?, key.parse().ok()?)))
            .map(Some)
            .ok_or_else(|| {
                WireError::new(
                    Code::InvalidParams,
                    "params.cursor is not one that session/list gave",
                )
            }),
    }
}

fn micros(row: &Row) -> i64 {
    row.changed_at().as_microsecond()
}
