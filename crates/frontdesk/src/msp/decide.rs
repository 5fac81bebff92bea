//! `approval/decide`: an answer to an open approval, on the way that every client's answer goes.

use std::sync::Arc;

use frontdesk_core::msp::params::{Params, Read as _};
use frontdesk_core::msp::{ErrorKind, MspError};
use frontdesk_core::question::{Named, Wish, permission_result};
use frontdesk_core::session::{Decision, NoAnswer};
use serde_json::{Value, json};

use super::Face;
use super::command::{Command, by};
use super::peer::{Answer, Peer};
use super::read::unreadable;
use super::track::{Walk, blocking};
use crate::node::directory::Row;

/// Decides an approval. The command is recorded with its decision and carried out once.
pub(super) async fn decide(peer: &Arc<Peer>, params: &Params) -> Answer {
    let command = Command::read("approval/decide", params)?;
    let row = peer.row(params).await?;
    let (id, choice) = (params.needed("approvalId")?, params.needed("choiceId")?);
    let by = by(peer);
    let decision = Decision {
        interaction: id.to_owned(),
        by: json!({
            "client": &*by.client,
            "name": &*by.name,
            "kind": peer.conn.kind,
            "commandId": command.id(),
        }),
        result: result(&row, params, id, choice)?,
    };
    let ack = json!({
        "commandId": command.id(), "status": "accepted", "approvalId": id, "terminal": true,
    });
    match command.decide(peer, &row, ack.clone(), decision).await? {
        Ok(before) => Ok(before.unwrap_or(ack)),
        Err(NoAnswer::NotOffered) => Err(not_offered(id, choice)),
        Err(NoAnswer::NotOpen) => Err(why_not(peer, &row, id).await),
    }
}

/// The result that a choice means, as JSON text. `null` where the approval is not open: then the
/// command may have been carried out before, which the session knows.
fn result(row: &Row, params: &Params, id: &str, choice: &str) -> Result<String, MspError> {
    let Some(asked) = row.view.open_interactions.get(id) else { return Ok("null".to_owned()) };
    let current = json!({ "approvalId": id, "sourceIndex": 0 });
    let named = params.object("requirementId")?;
    let is_current = |named: &Params| {
        ["approvalId", "sourceIndex"]
            .iter()
            .all(|name| named.get(*name).is_none_or(|value| current[*name] == *value))
    };
    if named.is_some_and(|named| !is_current(named)) {
        let text = "the approval asks for another requirement";
        let error = MspError::new(ErrorKind::ApprovalRequirementStale, text);
        return Err(error.with("approvalId", id).with("currentRequirementId", current));
    }
    let asked = &asked["params"];
    let options = asked["options"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !options.iter().any(|option| option["optionId"] == choice) {
        return Err(not_offered(id, choice));
    }
    permission_result(&asked.to_string(), Wish::Choice(choice)).map_err(|_| not_offered(id, choice))
}

fn not_offered(id: &str, choice: &str) -> MspError {
    let error = MspError::new(ErrorKind::ApprovalChoiceInvalid, "the choice was not offered");
    error.with("approvalId", id).with("choiceId", choice)
}

/// Why an approval is not open: how it was resolved, as followers were shown it.
async fn why_not(peer: &Arc<Peer>, row: &Arc<Row>, id: &str) -> MspError {
    let unknown = || {
        MspError::new(ErrorKind::ApprovalNotFound, "the session has no such approval")
            .with("approvalId", id)
    };
    let Some(named) = Named::read(id).filter(|named| named.seq <= row.view.seq) else {
        return unknown();
    };
    let (row, wanted) = (row.clone(), id.to_owned());
    let read = blocking(&peer.face, move |face| resolution(face, &row, named.seq, &wanted)).await;
    match read {
        Ok(Some(resolution)) => {
            let text = "the approval was resolved before";
            MspError::new(ErrorKind::ApprovalAlreadyResolved, text)
                .with("approvalId", id)
                .with("resolution", resolution)
        }
        Ok(None) => unknown(),
        Err(cause) => unreadable(cause),
    }
}

fn resolution(face: &Face, row: &Row, opened: u64, id: &str) -> Result<Option<Value>, String> {
    let mut walk = Walk::to(&face.tracks, row.key, &row.path, opened)?;
    let mut events = Vec::new();
    while walk.step(&face.tracks, &mut events)? {
        let mut told = events.drain(..);
        let found = told
            .find(|event| event.method == "approval/resolved" && event.params["approvalId"] == id);
        if let Some(event) = found {
            return Ok(Some(json!({
                "decision": event.params["decision"],
                "resolvedBy": event.params["resolvedBy"],
                "viewCursor": event.cursor.text(row.key),
            })));
        }
    }
    Ok(None)
}
