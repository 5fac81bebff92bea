//! `_frontdesk/rename`, `archive`, `policy`, `fork`: what is kept about a session, changed by a
//! client. None of them loads the session; each is answered when it is durable.

use std::sync::Arc;

use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::fold::ApprovalMode;
use frontdesk_core::session::{Input, Rename};
use frontdesk_core::{names, policy};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::open::by;
use crate::conn::Conn;
use crate::node::Node;
use crate::node::birth::Forking;
use crate::node::directory::Row;
use crate::session::LaneMsg;

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
    let rename = Rename { name: name.to_owned(), by: Some(by(conn)), command_id: None };
    change(node, row, Input::Rename(rename)).await?;
    Ok(json!({ "name": name }))
}

async fn archive(node: &Arc<Node>, row: &Row, params: &Value) -> Result<Value, WireError> {
    let archived = match &params["archived"] {
        Value::Null => true,
        Value::Bool(archived) => *archived,
        _ => return Err(invalid("params.archived must be true or false")),
    };
    change(node, row, Input::Archive { archived }).await?;
    Ok(json!({ "archived": archived }))
}

async fn set_policy(node: &Arc<Node>, row: &Row, params: &Value) -> Result<Value, WireError> {
    let mode = approval_mode(&params["mode"])?
        .ok_or_else(|| invalid(format!("params.mode must be one of {}", modes())))?;
    change(node, row, Input::Policy { mode, command_id: None }).await?;
    let row = node.directory.get(row.key);
    Ok(row.map_or_else(|| json!({}), |row| policy_json(node, &row)))
}

async fn fork(node: &Arc<Node>, conn: &Arc<Conn>, parent: Arc<Row>) -> Result<Value, WireError> {
    let forking = Forking { parent, frame: None, by: by(conn), conn: None, command_id: None };
    let key = node.fork(forking).await?;
    let row = node.directory.get(key);
    let from = row.and_then(|row| row.view.forked_from.clone());
    Ok(json!({ "sessionId": key, "forkedFrom": from }))
}

/// Gives a session's lane one input and waits until what follows is durable.
async fn change(node: &Arc<Node>, row: &Row, input: Input) -> Result<(), WireError> {
    node.not_behind(Some(row.key))?;
    let lane = node.lane(row.key).ok_or_else(|| WireError::not_found(&row.public_id()))?;
    let (done, is_done) = oneshot::channel();
    lane.send(LaneMsg::Durable { inputs: vec![input], done }).await;
    is_done
        .await
        .map_err(|_| WireError::new(Code::Storage, "the session's journal could not be written"))
}

/// What is said of a session's policy: what Frontdesk was told, and whether it is known to decide.
pub(super) fn policy_json(node: &Node, row: &Row) -> Value {
    let Some(told) = &row.view.policy else { return json!({}) };
    let asks = node.agent(&row.view.agent).is_some_and(|agent| agent.asks == Some(true));
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
