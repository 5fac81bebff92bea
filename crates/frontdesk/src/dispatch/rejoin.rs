//! `_frontdesk/rejoin`: a client that was connected before goes on in a session where it was. Nothing
//! is loaded and no agent is asked.

use std::sync::Arc;

use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::ids::Seq;
use frontdesk_core::session::{Input, Mark, Rejoin};
use frontdesk_core::shim::{REQUESTS_MAX, SESSIONS_MAX};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::{resolve, session_id};
use crate::conn::Conn;
use crate::node::Node;
use crate::session::LaneMsg;

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(default)]
    seen: Option<Seen>,
    #[serde(default)]
    load: Option<Seen>,
    #[serde(borrow, default)]
    prompts: Vec<Prompt<'a>>,
}

#[derive(Deserialize)]
struct Seen {
    seq: Seq,
    #[serde(default)]
    part: u32,
}

#[derive(Deserialize)]
struct Prompt<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(default)]
    after: Seq,
}

/// In order with what the client sends next. The lane answers, unless nothing is to be joined.
pub(super) async fn rejoin(node: &Arc<Node>, conn: &Arc<Conn>, frame: &Frame) {
    let id = frame.id().unwrap_or("null").to_owned();
    match try_rejoin(node, conn, frame).await {
        Ok(true) => {}
        Ok(false) => conn.answer(&id, Ok("{}")),
        Err(error) => conn.answer(&id, Err(&error)),
    }
}

async fn try_rejoin(node: &Arc<Node>, conn: &Arc<Conn>, frame: &Frame) -> Result<bool, WireError> {
    let asked = session_id(frame)?.into_owned();
    let text = frame.params().unwrap_or("null");
    let params: Params<'_> = serde_json::from_str(text).map_err(|error| {
        WireError::new(Code::InvalidParams, format!("params cannot be read: {error}"))
    })?;
    if params.prompts.len() > REQUESTS_MAX {
        let text = format!("params.prompts may have {REQUESTS_MAX} entries");
        return Err(WireError::new(Code::InvalidParams, text));
    }
    let mark = |seen: Seen| Mark { seq: seen.seq, part: seen.part };
    if let Some(load) = params.load {
        if !conn.begin_load_at(&asked, mark(load)) {
            let text = format!("{SESSIONS_MAX} loads are to go on already");
            return Err(WireError::new(Code::TooMany, text));
        }
        return Ok(false);
    }
    let mut key = resolve(node, conn, &asked)?;
    if key.is_none() {
        // It may be in a journal that the index does not have yet.
        let is_complete = node.index_complete().await;
        key = resolve(node, conn, &asked)?;
        if key.is_none() && !is_complete {
            return Err(super::open::index_is_behind());
        }
    }
    let row = key.and_then(|key| node.directory.get(key));
    let row = row.ok_or_else(|| WireError::not_found(&asked))?;
    if conn.bound.as_ref().is_some_and(|bound| *bound != row.view.agent) {
        let text = format!("this session belongs to agent {:?}; use its endpoint", row.view.agent);
        return Err(WireError::new(Code::InvalidParams, text)
            .with_data(json!({ "sessionId": asked, "agent": row.view.agent })));
    }
    let lane = node.lane(row.key).ok_or_else(|| WireError::not_found(&asked))?;
    conn.join(&lane);
    let prompts = params.prompts.iter().map(|it| (it.id.get().into(), it.after)).collect();
    let rejoin = Rejoin {
        client: conn.client(),
        id: frame.id().unwrap_or("null").into(),
        spelling: asked.into(),
        seen: params.seen.map(mark),
        prompts,
    };
    lane.send(LaneMsg::Client(conn.clone(), Input::Rejoin(Box::new(rejoin)))).await;
    Ok(true)
}
