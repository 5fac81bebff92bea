//! `session/list`: ours and the agents' own, one row per conversation, newest change first.

use std::sync::Arc;

use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::{Code, WireError};
use serde_json::{Value, json};

use super::{cwd_of, params};
use crate::conn::Conn;
use crate::index::{Folder, Position};
use crate::node::Node;
use crate::node::directory::Row;
use crate::node::page::Query;

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
    let mut query = Query {
        agent: conn.bound.clone(),
        // A subagent is shown in its parent; an editor does not open it by itself.
        children: Some(false),
        limit: node.limits.page_rows as usize,
        ..Query::default()
    };
    let mut listing = json!({ "face": "acp", "agent": conn.bound });
    if !params.get("cwd").is_none_or(Value::is_null) {
        let cwd = cwd_of(params)?;
        query.folder = Some(Folder::new(&cwd));
        listing["cwd"] = json!(cwd);
    }
    let listing = listing.to_string();
    query.after = cursor_of(node, &listing, params)?;
    let mut unreachable = Vec::new();
    if query.after.is_none() {
        // Only an editor bound to an agent starts that agent for its list.
        let start = conn.bound.is_some();
        let agents = match &conn.bound {
            Some(bound) => node.agent(bound).into_iter().collect(),
            None => node.agents_known_to_list(),
        };
        unreachable = node.refresh_lists(agents, Some(conn.clone()), start).await;
    }
    ready(node).await?;
    let page = node.page(query).await;
    let sessions: Vec<Value> = page.rows.iter().map(|row| acp_row(node, conn, row)).collect();
    let mut result = json!({ "sessions": sessions });
    if let Some(next) = page.next {
        result["nextCursor"] = json!(node.cursors.seal(&listing, next));
    }
    if !unreachable.is_empty() {
        result["_meta"] = json!({ "frontdesk": { "unreachable": unreachable } });
    }
    Ok(result.to_string())
}

/// Waits until lists can be answered.
///
/// # Errors
/// If the index is still being made after `index_wait_ms`: half a list would look like a whole one.
pub(super) async fn ready(node: &Node) -> Result<(), WireError> {
    if node.index_lists().await { Ok(()) } else { Err(super::open::index_is_behind()) }
}

/// Reads the cursor in params, which has to be one of this listing.
///
/// # Errors
/// `-32602` if it is not.
pub(super) fn cursor_of(
    node: &Node,
    listing: &str,
    params: &Value,
) -> Result<Option<Position>, WireError> {
    let bad = || {
        let text = "params.cursor is not one that this list gave; begin without one";
        WireError::new(Code::InvalidParams, text)
    };
    match params.get("cursor") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(cursor)) => {
            node.cursors.open_sealed(listing, cursor).map(Some).map_err(|_| bad())
        }
        Some(_) => Err(bad()),
    }
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
