//! `session/close` and `session/delete`.

use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::session::{CloseWhy, Input};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{params, resolve, session_id};
use crate::conn::Conn;
use crate::node::Node;
use crate::node::children::children_in;
use crate::node::directory::Row;
use crate::session::LaneMsg;

fn is_forced(params: &Value) -> bool {
    params["_meta"]["frontdesk"]["force"].as_bool() == Some(true)
}

/// `session/close`, of a session the client takes part in or of any other it may see.
pub(super) async fn close(node: &Arc<Node>, conn: &Arc<Conn>, frame: &Frame) {
    let id = frame.id().unwrap_or("null");
    let found = session_id(frame).and_then(|asked| {
        let key = resolve(node, conn, &asked)?.ok_or_else(|| WireError::not_found(&asked))?;
        Ok((key, asked.into_owned()))
    });
    let (key, asked) = match found {
        Ok(found) => found,
        Err(error) => return conn.answer(id, Err(&error)),
    };
    let Some(lane) = node.lane(key) else {
        return conn.answer(id, Err(&WireError::not_found(&asked)));
    };
    let force = is_forced(&params(frame));
    let input = Input::Close { conn: conn.id, id: id.into(), force };
    lane.send(LaneMsg::Client(conn.clone(), input)).await;
}

/// `session/delete`: closed first, then deleted at the agent, then a tombstone here; with
/// `_meta.frontdesk.local` the agent keeps its own. What is unknown already succeeds.
pub(super) async fn delete(
    node: Arc<Node>,
    conn: Arc<Conn>,
    frame: Frame,
) -> Option<Result<String, WireError>> {
    Some(try_delete(&node, &conn, &frame).await.map(|()| "{}".to_owned()))
}

async fn try_delete(node: &Arc<Node>, conn: &Arc<Conn>, frame: &Frame) -> Result<(), WireError> {
    let asked = session_id(frame)?.into_owned();
    if resolve(node, conn, &asked)?.is_none() && !node.index_complete().await {
        return Err(super::open::index_is_behind());
    }
    let Some(row) = resolve(node, conn, &asked)?.and_then(|key| node.directory.get(key)) else {
        return Ok(());
    };
    let others = row.clients.saturating_sub(usize::from(conn.lane(row.key).is_some()));
    if others > 0 && !is_forced(&params(frame)) {
        let text =
            format!("{others} other clients are attached; say force to delete it all the same");
        return Err(WireError::new(Code::InUse, text)
            .with_data(json!({ "sessionId": asked, "clients": others })));
    }
    if params(frame)["_meta"]["frontdesk"]["local"].as_bool() == Some(true) {
        // Only what Frontdesk has of it. The tombstone keeps the agent's list from bringing it back.
        unload(node, &row).await?;
        return entomb(node, &row).await;
    }
    let agent = node.agent_or_error(&row.view.agent)?;
    if node.greeted(&agent).is_some_and(|greeted| !greeted.abilities.delete) {
        return Err(WireError::method_not_found("session/delete"));
    }
    let native = row.view.native.clone().unwrap_or_default();
    let (instance, is_new) = match node.instance_for(&agent, &native, conn).await {
        Some(found) => found,
        None => {
            let text = format!("agent {:?} could not be reached to delete the session", agent.name);
            return Err(WireError::new(Code::AgentStart, text));
        }
    };
    // The instance that has the session may end with it; another one is asked then.
    if let Err(error) = unload(node, &row).await {
        if is_new {
            node.set_aside(instance, conn);
        }
        return Err(error);
    }
    let (instance, is_new) = if instance.has_ended().is_some() {
        node.instance_for(&agent, &native, conn).await.unwrap_or((instance, is_new))
    } else {
        (instance, is_new)
    };
    let stored = row.view.opened_as().unwrap_or_default();
    let outcome = delete_at_agent(node, &instance, stored).await;
    if is_new {
        node.set_aside(instance, conn);
    }
    outcome?;
    entomb(node, &row).await
}

/// Cancels all work and unloads; waits until that is done.
async fn unload(node: &Arc<Node>, row: &Row) -> Result<(), WireError> {
    let Some(lane) = node.lane(row.key) else { return Ok(()) };
    lane.send(LaneMsg::Input(Input::Unload { why: CloseWhy::Delete })).await;
    let until = tokio::time::Instant::now() + node.unload_limit();
    loop {
        // The answer comes through the lane, so that it is behind the unload.
        let _ = lane.describe(until).await;
        let loaded =
            node.directory.get(row.key).is_some_and(|row| row.is_loaded() && !row.is_suspect());
        if !loaded {
            return Ok(());
        }
        if tokio::time::Instant::now() > until {
            return Err(WireError::new(Code::AgentTimeout, "the session could not be unloaded"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn delete_at_agent(
    node: &Node,
    instance: &Arc<crate::agent::instance::Instance>,
    native: &str,
) -> Result<(), WireError> {
    if !instance.abilities().delete {
        return Err(WireError::method_not_found("session/delete"));
    }
    let params = json!({ "sessionId": native }).to_string();
    let frame = instance.call("session/delete", &params, node.limits.agent_close_ms).await?;
    match frame.error() {
        None => Ok(()),
        Some(error) => {
            let value: Value = serde_json::from_str(error).unwrap_or_default();
            if value["code"].as_i64() == Some(Code::NotFound.number()) {
                return Ok(());
            }
            Err(WireError::new(Code::Internal, "the agent did not delete the session")
                .with_data(value))
        }
    }
}

/// What Frontdesk has of a session, and of its children, becomes tombstones.
async fn entomb(node: &Arc<Node>, row: &Row) -> Result<(), WireError> {
    let path = row.path.clone();
    let children = tokio::task::spawn_blocking(move || children_in(&path)).await;
    let children = match children {
        Ok(Ok(children)) => children,
        // A journal that cannot be read has to go all the same.
        Ok(Err(error)) => {
            tracing::warn!(session = %row.key, %error, "failed to look for the children of a deleted session");
            Vec::new()
        }
        Err(_) => Vec::new(),
    };
    for child in children.into_iter().filter_map(|key| node.directory.get(key)) {
        entomb_one(node, &child).await?;
    }
    entomb_one(node, row).await
}

async fn entomb_one(node: &Arc<Node>, row: &Row) -> Result<(), WireError> {
    let Some(lane) = node.lane(row.key) else { return Ok(()) };
    let (tx, rx) = oneshot::channel();
    lane.send(LaneMsg::Entomb(tx)).await;
    match rx.await {
        Ok(Ok(())) => node.index_forgets(row.key).await,
        Ok(Err(error)) => {
            tracing::error!(session = %row.key, error, "failed to delete a session");
            return Err(WireError::new(
                Code::Storage,
                "the session's journal could not be deleted",
            ));
        }
        Err(_) => return Err(WireError::new(Code::Internal, "the session's lane has ended")),
    }
    if let Err(error) = node.log.params().remove(row.key) {
        tracing::warn!(session = %row.key, %error, "failed to remove a session's parameters");
    }
    Ok(())
}
