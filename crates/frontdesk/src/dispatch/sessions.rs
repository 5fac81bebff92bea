//! `_frontdesk/sessions` and `_frontdesk/reindex`: lists with every filter, search, and the index.

use std::sync::Arc;

use frontdesk_core::errors::{Code, WireError};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::cwd_of;
use super::list::{cursor_of, ready};
use crate::conn::Conn;
use crate::index::{Archived, Folder, Words};
use crate::node::Node;
use crate::node::directory::Row;
use crate::node::page::Query;

/// Rows of one page, at most.
const PAGE_ROWS_MAX: u64 = 1_000;

/// Params that say which rows are wanted: a cursor is good for the same ones only.
const FILTERS: [&str; 8] =
    ["agent", "cwd", "status", "prefix", "attention", "archived", "updatedAfter", "updatedBefore"];

pub(super) async fn sessions(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    params: &Value,
) -> Result<Value, WireError> {
    let mut query = read_query(params)?;
    let limit = params["limit"].as_u64().unwrap_or(u64::from(node.limits.page_rows));
    query.limit = usize::try_from(limit.clamp(1, PAGE_ROWS_MAX)).unwrap_or(usize::MAX);
    let search = text(params, "search")?;
    let listing = listing(params);
    query.after = cursor_of(node, &listing, params)?;
    let mut unreachable = Vec::new();
    if params["refresh"].as_bool() == Some(true) {
        let named = params["agent"].as_str();
        let agents = match named {
            Some(name) => vec![node.agent_or_error(name)?],
            None => node.agents.values().cloned().collect(),
        };
        unreachable = node.refresh_lists(agents, Some(conn.clone()), true).await;
    }
    ready(node).await?;
    let mut result = match search {
        Some(search) => find(node, &search, query).await?,
        None => {
            let page = node.page(query).await;
            let rows: Vec<Value> = page.rows.iter().map(|row| shown(node, row)).collect();
            let mut result = json!({ "sessions": rows });
            if let Some(next) = page.next {
                result["nextCursor"] = json!(node.cursors.seal(&listing, next));
            }
            result
        }
    };
    if !unreachable.is_empty() {
        result["unreachable"] = json!(unreachable);
    }
    Ok(result)
}

fn shown(node: &Node, row: &Row) -> Value {
    let mut shown = super::ext::row_json(node, row);
    if node.log.is_behind(row.key) {
        shown["behind"] = json!(true);
    }
    shown
}

/// What a cursor is bound to.
fn listing(params: &Value) -> String {
    let mut listing = Map::new();
    listing.insert("face".to_owned(), json!("frontdesk"));
    for name in FILTERS {
        if let Some(value) = params.get(name).filter(|value| !value.is_null()) {
            listing.insert(name.to_owned(), value.clone());
        }
    }
    Value::Object(listing).to_string()
}

fn text(params: &Value, name: &str) -> Result<Option<String>, WireError> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(invalid(format!("params.{name} must be a string"))),
    }
}

fn invalid(text: String) -> WireError {
    WireError::new(Code::InvalidParams, text)
}

fn instant(params: &Value, name: &str) -> Result<Option<Timestamp>, WireError> {
    let Some(text) = text(params, name)? else { return Ok(None) };
    let bad = |_| invalid(format!("params.{name} must be an RFC 3339 time, not {text:?}"));
    text.parse().map(Some).map_err(bad)
}

/// Reads the filters.
fn read_query(params: &Value) -> Result<Query, WireError> {
    let active = match text(params, "status")?.as_deref() {
        None => None,
        Some("active" | "open") => Some(true),
        Some("inactive" | "saved") => Some(false),
        Some(other) => {
            let text = format!("params.status must be active or inactive, not {other:?}");
            return Err(invalid(text));
        }
    };
    let attention = match params.get("attention") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(attention)) => Some(*attention),
        Some(_) => return Err(invalid("params.attention must be true or false".to_owned())),
    };
    let archived = match params.get("archived") {
        // Who spells the beginning of an id means that session, wherever it was put.
        None | Some(Value::Null) if params.get("prefix").is_some() => Archived::Any,
        None | Some(Value::Null | Value::Bool(false)) => Archived::No,
        Some(Value::Bool(true)) => Archived::Only,
        Some(Value::String(word)) if word == "any" => Archived::Any,
        Some(_) => {
            return Err(invalid(r#"params.archived must be true, false or "any""#.to_owned()));
        }
    };
    let folder = match params.get("cwd") {
        None | Some(Value::Null) => None,
        Some(_) => Some(Folder::new(&cwd_of(params)?)),
    };
    Ok(Query {
        agent: text(params, "agent")?,
        folder,
        active,
        attention,
        archived,
        updated_after: instant(params, "updatedAfter")?,
        updated_before: instant(params, "updatedBefore")?,
        prefix: text(params, "prefix")?,
        ..Query::default()
    })
}

/// Sessions in whose titles or transcripts the words are, each with the text around them.
async fn find(node: &Arc<Node>, search: &str, query: Query) -> Result<Value, WireError> {
    if query.after.is_some() {
        return Err(invalid("params.cursor does not go with params.search".to_owned()));
    }
    let words = Words::read(search)
        .ok_or_else(|| invalid(format!("params.search has no word in it: {search:?}")))?;
    let node = node.clone();
    let searched = tokio::task::spawn_blocking(move || {
        let (mut rows, mut more) = (Vec::new(), false);
        let passages = node.limits.search_rows as usize;
        let there = node.directory.search(&words, passages, |hit, row| {
            if !query.takes(row) {
                return Some(());
            }
            if rows.len() >= query.limit {
                more = true;
                return None;
            }
            let place = if hit.said.is_some() { "transcript" } else { "title" };
            let mut found = json!({ "in": place, "snippet": hit.snippet(&words) });
            if let Some(said) = hit.said {
                found["seq"] = json!(said.seq + 1);
            }
            let mut row = shown(&node, row);
            row["match"] = found;
            rows.push(row);
            Some(())
        });
        (rows, more, there)
    });
    let (rows, more, there) = searched.await.unwrap_or_default();
    if !there {
        return Err(super::open::index_is_behind());
    }
    let mut result = json!({ "sessions": rows });
    if more {
        result["more"] = json!(true);
    }
    Ok(result)
}

/// Begins to make the index anew, or says how far that is.
pub(super) fn reindex(node: &Node, params: &Value) -> Value {
    if params["start"].as_bool() == Some(true) {
        node.ask_reindex();
    }
    let progress = node.keeper.progress();
    let mut result = json!({
        "running": progress.running,
        "sessions": progress.counts.sessions,
        "passages": progress.counts.passages,
        "bytes": progress.counts.bytes,
        "unreadable": progress.counts.unreadable,
        "ms": progress.ms,
        "runs": progress.runs,
    });
    if let Some(total) = progress.total {
        result["total"] = json!(total);
    }
    if let Some(error) = progress.error {
        result["error"] = json!(error);
    }
    result
}
