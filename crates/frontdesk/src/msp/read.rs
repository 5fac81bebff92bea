//! `session/read` and `approval/listPending`: what is known of one session. Neither loads, follows
//! or writes anything.

use std::sync::Arc;

use frontdesk_core::ids::Seq;
use frontdesk_core::msp::history::{self, Items};
use frontdesk_core::msp::object::Carrier;
use frontdesk_core::msp::params::{Params, Read as _};
use frontdesk_core::msp::{ErrorKind, MspError, Renderer};
use serde_json::{Value, json};

use super::peer::{Answer, Peer};
use super::track::{Walk, blocking, head, upto};
use super::{Face, session};
use crate::node::directory::Row;

/// Room for everything in an answer that is not history, in bytes.
const MARGIN_BYTES: usize = 1 << 20;

pub(super) async fn read(peer: &Arc<Peer>, params: &Params) -> Answer {
    let exclude = params.flag("excludeItems")?.unwrap_or(true);
    let row = peer.row(params).await?;
    snapshot(peer, &row, exclude, Carrier::Read).await
}

/// The session, its history as far as it is wanted and fits, and what is open.
pub(super) async fn snapshot(
    peer: &Arc<Peer>,
    row: &Arc<Row>,
    exclude: bool,
    carrier: Carrier,
) -> Answer {
    let (state, history) = if exclude {
        let state = head(&peer.face, row).await.map_err(unreadable)?;
        (state, history::none("excluded"))
    } else {
        let (row, upto) = (row.clone(), upto(&peer.face, row));
        let read = blocking(&peer.face, move |face| items(face, &row, upto));
        read.await.map_err(unreadable)?
    };
    let mut result = json!({
        "session": session::json(peer, row, carrier),
        "viewCursor": state.head().text(row.key),
        "history": history,
        "pendingRequests": state.pending(),
    });
    if let Some(last) = state.last_turn() {
        result["lastTurn"] = json!(last);
    }
    Ok(result)
}

/// The items up to a record, as an answer had them.
pub(super) async fn history(peer: &Arc<Peer>, row: &Arc<Row>, seq: Seq) -> Answer {
    let row = row.clone();
    let read = blocking(&peer.face, move |face| items(face, &row, seq)).await;
    read.map(|(_, history)| history).map_err(unreadable)
}

/// All items of a session up to a record, as far as a frame has room for them.
fn items(face: &Face, row: &Row, upto: Seq) -> Result<(Renderer, Value), String> {
    let mut walk = Walk::to(&face.tracks, row.key, &row.path, 0)?;
    walk.limit(upto);
    let mut items = Items::new(face.frame_bytes().saturating_sub(MARGIN_BYTES));
    let mut events = Vec::new();
    while walk.step(&face.tracks, &mut events)? {
        events.drain(..).for_each(|event| items.take(&event));
    }
    Ok((walk.state().clone(), items.into_history()))
}

pub(super) async fn pending(peer: &Arc<Peer>, params: &Params) -> Answer {
    let row = peer.row(params).await?;
    let state = head(&peer.face, &row).await.map_err(unreadable)?;
    Ok(json!({ "approvals": state.approvals(), "userInputs": state.user_inputs() }))
}

/// The journal could not be read: the cause goes to the log.
pub(super) fn unreadable(cause: String) -> MspError {
    tracing::error!(cause, "failed to read a journal");
    MspError::new(ErrorKind::Internal, "the session's journal could not be read")
}
