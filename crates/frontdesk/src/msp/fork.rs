//! `session/fork`: the agent forks, the fork gets a journal that begins with its parent's history,
//! and the client follows it. Where the agent cannot fork the method is not served.

use std::sync::Arc;

use frontdesk_core::ids::{Key, Seq};
use frontdesk_core::msp::object::Carrier;
use frontdesk_core::msp::params::{Params, Read as _};
use frontdesk_core::msp::{ErrorKind, MspError, ViewCursor};
use serde_json::{Value, json};

use super::command::{Command, by};
use super::follow::Follower;
use super::peer::{Answer, Peer};
use super::{news, read};
use crate::node::birth::Forking;
use crate::node::directory::Row;

/// The answer, and the session that is followed from it on.
pub(super) type Forked = (Answer, Option<Key>);

pub(super) async fn fork(peer: &Arc<Peer>, params: &Params) -> Forked {
    match try_fork(peer, params).await {
        Ok((result, key)) => (Ok(result), Some(key)),
        Err(error) => (Err(error), None),
    }
}

async fn try_fork(peer: &Arc<Peer>, params: &Params) -> Result<(Value, Key), MspError> {
    let command = Command::read("session/fork", params)?;
    let parent = peer.row(params).await?;
    let exclude = params.flag("excludeItems")?.unwrap_or(false);
    let cut = params.object("cutPoint")?.map(|cut| cut.needed("lastTurnId")).transpose()?;
    peer.room_to_follow()?;
    // Where it is known that the agent cannot fork nothing is recorded.
    let able = peer.face.node.can_fork(&parent);
    able.map_err(|error| MspError::from_acp(&error, &parent.key.to_string()))?;
    // Taken in first, so that a fork whose answer was lost is not made twice.
    let running = peer.face.running(command.id());
    let Some(_running) = running else {
        let text = "this command is being carried out; ask again for its answer";
        return Err(MspError::new(ErrorKind::Overloaded, text));
    };
    let before = command.record(peer, &parent, Value::Null, Vec::new()).await?;
    // What was refused only for then is tried again.
    if let Some(before) = before.filter(|before| !may_be_repeated(before)) {
        return again(peer, &command, &before, exclude).await;
    }
    let made = match check_cut(peer, &parent, cut).await {
        Ok(()) => make(peer, &parent, &command, exclude).await,
        Err(error) => Err(error),
    };
    match made {
        Ok((result, key)) => {
            // The items are in the fork's journal; everything else is kept as it was said.
            let mut kept = result.clone();
            if kept["history"]["mode"] == "inline" {
                kept["history"]["items"] = Value::Null;
            }
            command.settle(peer, &parent, kept).await?;
            follow(peer, key, &result).await?;
            Ok((result, key))
        }
        Err(error) => {
            let kept = serde_json::from_str(&error.to_json()).unwrap_or(Value::Null);
            command.settle(peer, &parent, json!({ "error": kept })).await?;
            Err(error)
        }
    }
}

/// Agents fork at the end of what they have; another place cannot be asked for.
async fn check_cut(peer: &Arc<Peer>, parent: &Row, cut: Option<&str>) -> Result<(), MspError> {
    let Some(cut) = cut else { return Ok(()) };
    let state = super::track::head(&peer.face, parent).await.map_err(read::unreadable)?;
    let at_end = state.last_turn().is_some_and(|last| last.turn_id == cut);
    if at_end && state.view().open_turn.is_none() {
        return Ok(());
    }
    let text = "agents fork behind their last completed turn only";
    Err(MspError::new(ErrorKind::ForkBoundaryInvalid, text).with("lastTurnId", cut))
}

async fn make(
    peer: &Arc<Peer>,
    parent: &Arc<Row>,
    command: &Command,
    exclude: bool,
) -> Result<(Value, Key), MspError> {
    let forking = Forking {
        parent: parent.clone(),
        frame: None,
        by: by(peer),
        conn: None,
        command_id: Some(command.id().to_owned()),
    };
    let asked = parent.key.to_string();
    let made = peer.face.node.fork(forking).await;
    let key = made.map_err(|error| MspError::from_acp(&error, &asked))?;
    let gone = || MspError::session_not_found(&key.to_string());
    let row = peer.face.node.directory.get(key).ok_or_else(gone)?;
    news::started(peer, &row);
    let result = read::snapshot(peer, &row, exclude, Carrier::Ack).await?;
    Ok((result, key))
}

/// Whether the first time ended with an error that says so.
fn may_be_repeated(ack: &Value) -> bool {
    MspError::read(&ack["error"]).is_some_and(|error| error.kind.is_retryable())
}

/// The answer of the first time.
async fn again(
    peer: &Arc<Peer>,
    command: &Command,
    ack: &Value,
    exclude: bool,
) -> Result<(Value, Key), MspError> {
    if let Some(error) = MspError::read(&ack["error"]) {
        return Err(error);
    }
    let abandoned = || {
        let text = "the daemon ended while this command was carried out";
        MspError::rejected(command.id(), "abandoned", text)
    };
    let id = ack["session"]["sessionId"].as_str().ok_or_else(abandoned)?;
    let key: Key = id.parse().map_err(|_| abandoned())?;
    let mut result = ack.clone();
    if ack["history"]["mode"] == "inline" && !exclude {
        let row = peer.face.node.directory.get(key).ok_or_else(abandoned)?;
        let seq = cursor(key, ack).map_or(Seq::MAX, |cursor| cursor.seq);
        result["history"] = read::history(peer, &row, seq).await?;
    }
    follow(peer, key, &result).await?;
    Ok((result, key))
}

fn cursor(key: Key, result: &Value) -> Option<ViewCursor> {
    ViewCursor::parse(result["viewCursor"].as_str()?, key)
}

/// The client follows the fork from where the answer ends; what is there is sent behind it.
async fn follow(peer: &Arc<Peer>, key: Key, result: &Value) -> Result<(), MspError> {
    let Some(row) = peer.face.node.directory.get(key) else { return Ok(()) };
    let (follower, _) = Follower::begin(peer, &row, result["viewCursor"].as_str()).await?;
    peer.keep_follower(key, follower).await;
    Ok(())
}
