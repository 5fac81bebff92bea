//! `_frontdesk/rename`, `archive`, `policy`, `fork`: what is kept about a session, changed by a
//! client. None of them loads the session; each is answered when it is durable.

use std::sync::Arc;

use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::fold::ApprovalMode;
use frontdesk_core::session::{Input, Rename};
use frontdesk_core::{names, policy};
use serde_json::{Value, json};

use super::open::by;
use crate::conn::Conn;
use crate::node::Node;
use crate::node::birth::Forking;
use crate::node::change::command;
use crate::node::directory::Row;

/// Longest id that a caller may give a command, in bytes.
const COMMAND_ID_BYTES_MAX: usize = 255;

/// Carries out one of these methods.
pub(super) async fn call(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    row: Arc<Row>,
    method: &str,
    params: &Value,
) -> Result<Value, WireError> {
    match method {
        "_frontdesk/rename" => rename(node, conn, &row, params).await,
        "_frontdesk/archive" => archive(node, &row, params).await,
        "_frontdesk/policy" => set_policy(node, &row, params).await,
        "_frontdesk/fork" => fork(node, conn, row).await,
        method => Err(WireError::method_not_found(method)),
    }
}

async fn rename(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    row: &Row,
    params: &Value,
) -> Result<Value, WireError> {
    let text = params["name"].as_str().ok_or_else(|| invalid("params.name must be a string"))?;
    let name = names::custom(text).map_err(|error| invalid(error.to_string()))?;
    let command_id = command_id(params)?;
    let input = Input::Rename(Rename { name: name.to_owned(), by: Some(by(conn)), command_id });
    once(node, row, "_frontdesk/rename", params, input, json!({ "name": name })).await
}

async fn archive(node: &Arc<Node>, row: &Row, params: &Value) -> Result<Value, WireError> {
    let archived = match &params["archived"] {
        Value::Null => true,
        Value::Bool(archived) => *archived,
        _ => return Err(invalid("params.archived must be true or false")),
    };
    let (input, ack) = (Input::Archive { archived }, json!({ "archived": archived }));
    once(node, row, "_frontdesk/archive", params, input, ack).await
}

async fn set_policy(node: &Arc<Node>, row: &Row, params: &Value) -> Result<Value, WireError> {
    let mode = approval_mode(&params["mode"])?
        .ok_or_else(|| invalid(format!("params.mode must be one of {}", modes())))?;
    let command_id = command_id(params)?;
    let ack = json!({ "mode": mode, "source": "approvalReconfigure", "commandId": command_id });
    let input = Input::Policy { mode, command_id };
    let mut told = once(node, row, "_frontdesk/policy", params, input, ack).await?;
    if let Some(row) = node.directory.get(row.key) {
        told["decides"] = policy_json(node, &row)["decides"].clone();
    }
    Ok(told)
}

async fn fork(node: &Arc<Node>, conn: &Arc<Conn>, parent: Arc<Row>) -> Result<Value, WireError> {
    let forking = Forking { parent, frame: None, by: by(conn), conn: None, command_id: None };
    let key = node.fork(forking).await?;
    let row = node.directory.get(key);
    let from = row.and_then(|row| row.view.forked_from.clone());
    Ok(json!({ "sessionId": key, "forkedFrom": from }))
}

/// The caller's id of a command, if it gave one.
pub(super) fn command_id(params: &Value) -> Result<Option<String>, WireError> {
    match &params["commandId"] {
        Value::Null => Ok(None),
        Value::String(id) if (1..=COMMAND_ID_BYTES_MAX).contains(&id.len()) => Ok(Some(id.clone())),
        _ => Err(invalid(format!(
            "params.commandId must be 1 to {COMMAND_ID_BYTES_MAX} bytes of text"
        ))),
    }
}

/// Carries a change out and answers with `ack`; a command that was carried out before is answered as
/// it was then.
async fn once(
    node: &Arc<Node>,
    row: &Row,
    method: &str,
    params: &Value,
    input: Input,
    ack: Value,
) -> Result<Value, WireError> {
    let inputs = vec![input];
    let Some(id) = command_id(params)? else {
        node.change(row.key, inputs, None).await?;
        return Ok(ack);
    };
    let none = serde_json::Map::new();
    let done = command(&id, method, params.as_object().unwrap_or(&none), ack.clone());
    match node.change(row.key, inputs, Some(done.clone())).await? {
        None => Ok(ack),
        Some(before) if before.is_same(&done) => Ok(before.ack),
        Some(before) => {
            let text = format!("params.commandId was used for another {} before", before.method);
            Err(invalid(text))
        }
    }
}

/// What is said of a session's policy: what Frontdesk was told, and whether it is known to decide.
pub(super) fn policy_json(node: &Node, row: &Row) -> Value {
    let Some(told) = &row.view.policy else { return json!({}) };
    let asks = node.asks(&row.view.agent);
    json!({
        "mode": told.mode,
        "source": told.source,
        "commandId": told.command_id,
        "decides": policy::effective(&row.view, asks).is_some(),
    })
}

/// A mode in params; `None` if there is no such member.
pub(super) fn approval_mode(value: &Value) -> Result<Option<ApprovalMode>, WireError> {
    match value {
        Value::Null => Ok(None),
        Value::String(word) => ApprovalMode::from_text(word).map(Some).ok_or_else(|| {
            invalid(format!("there is no approval mode {word:?}; it is one of {}", modes()))
        }),
        _ => Err(invalid(format!("the approval mode must be one of {}", modes()))),
    }
}

fn modes() -> String {
    ApprovalMode::ALL.map(ApprovalMode::as_str).join(", ")
}

fn invalid(text: impl Into<String>) -> WireError {
    WireError::new(Code::InvalidParams, text)
}
