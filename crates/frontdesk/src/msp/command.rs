//! Commands: methods that change something, each with an id that its caller minted.
//!
//! A command is recorded in the session's journal, durable before its answer. Who repeats it, also
//! after a restart, gets the answer of the first time; the same id with anything else is refused.

use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::errors::WireError;
use frontdesk_core::fold::Done;
use frontdesk_core::msp::params::{Params, Read as _};
use frontdesk_core::msp::{ErrorKind, MspError};
use frontdesk_core::names;
use frontdesk_core::session::{By, Input, Rename};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use super::peer::{Answer, Peer};
use crate::node::directory::Row;
use crate::session::LaneMsg;

/// Once nothing can be recorded at present, a record that is on its way is waited for this long: it
/// may still go into the reserve.
const BEHIND_WORD: Duration = Duration::from_secs(1);

/// A command as it was sent.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) id: String,
    method: &'static str,
    hash: String,
}

impl Command {
    /// Reads the id; the payload is everything else.
    pub(super) fn read(method: &'static str, params: &Params) -> Result<Self, MspError> {
        let id = params.needed("commandId")?;
        if uuid::Uuid::parse_str(id).is_err() || id.len() != 36 {
            return Err(MspError::invalid("params.commandId must be a UUID"));
        }
        let mut payload = params.clone();
        payload.remove("commandId");
        let text = canonical(&Value::Object(payload)).to_string();
        let hash = hmac_sha256::Hash::hash(text.as_bytes());
        let hash = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { id: id.to_owned(), method, hash })
    }

    /// Its record with an answer.
    pub(super) fn done(&self, ack: Value) -> Done {
        Done {
            command_id: self.id.clone(),
            method: self.method.to_owned(),
            payload_hash: self.hash.clone(),
            ack,
        }
    }

    /// Records it with what it does, unless it is recorded already; what was recorded before.
    ///
    /// # Errors
    /// `-32030` if the id was used for something else; `-32031` while nothing can be recorded;
    /// `-32603` if the journal cannot be written.
    pub(super) async fn record(
        &self,
        peer: &Peer,
        row: &Row,
        ack: Value,
        inputs: Vec<Input>,
    ) -> Result<Option<Done>, MspError> {
        let unknown = || MspError::session_not_found(&row.key.to_string());
        let node = &peer.face.node;
        node.not_behind(Some(row.key)).map_err(|error| of_acp(&error, row))?;
        let lane = peer.face.node.lane(row.key).ok_or_else(unknown)?;
        let (before, was) = oneshot::channel();
        let done = Box::new(self.done(ack));
        lane.send(LaneMsg::Command { done, inputs, before }).await;
        match written(peer, row, was).await? {
            Some(before) if before.method != self.method || before.payload_hash != self.hash => {
                let text = "this commandId was used for another command";
                Err(MspError::rejected(&self.id, "command_id_conflict", text))
            }
            before => Ok(before.map(|done| *done)),
        }
    }

    /// Records what came of it.
    pub(super) async fn settle(&self, peer: &Peer, row: &Row, ack: Value) -> Result<(), MspError> {
        let lane = peer.face.node.lane(row.key).ok_or_else(unwritten)?;
        let (done, is_done) = oneshot::channel();
        let inputs = vec![Input::Command(Box::new(self.done(ack)))];
        lane.send(LaneMsg::Durable { inputs, done }).await;
        written(peer, row, is_done).await
    }
}

/// The word that a record is durable, or that it cannot be told when it will be. It is written then
/// as soon as there is room, and who repeats the command behind that gets its answer.
async fn written<T>(peer: &Peer, row: &Row, mut word: oneshot::Receiver<T>) -> Result<T, MspError> {
    let node = &peer.face.node;
    let mut health = node.log.follow_health();
    let behind = async {
        if health.wait_for(|health| health.is_behind()).await.is_err() {
            // The log is closing: so is the lane, which says so.
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(BEHIND_WORD).await;
    };
    tokio::select! {
        biased;
        word = &mut word => return word.map_err(|_| unwritten()),
        () = behind => {}
    }
    match node.not_behind(Some(row.key)) {
        Err(error) => Err(of_acp(&error, row)),
        // There is room again.
        Ok(()) => word.await.map_err(|_| unwritten()),
    }
}

fn of_acp(error: &WireError, row: &Row) -> MspError {
    MspError::from_acp(error, &row.key.to_string())
}

fn unwritten() -> MspError {
    MspError::new(ErrorKind::Internal, "the session's journal could not be written")
}

/// Who gives a command, as records name it.
pub(super) fn by(peer: &Peer) -> By {
    let client = peer.conn.client();
    By { client: client.key, name: client.name }
}

/// `session/rename`. A name is kept in our own journal, so the session need not be loaded.
pub(super) async fn rename(peer: &Arc<Peer>, params: &Params) -> Answer {
    let command = Command::read("session/rename", params)?;
    let row = peer.row(params).await?;
    let name = names::custom(params.needed("name")?)
        .map_err(|error| MspError::invalid(format!("params.name: {error}")))?;
    let ack = json!({ "commandId": command.id, "status": "accepted", "name": name });
    let rename =
        Rename { name: name.to_owned(), by: Some(by(peer)), command_id: Some(command.id.clone()) };
    let before = command.record(peer, &row, ack.clone(), vec![Input::Rename(rename)]).await?;
    Ok(before.map_or(ack, |done| done.ack))
}

/// The same value with the members of every object in order.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut names: Vec<&String> = members.keys().collect();
            names.sort();
            let sorted = names.into_iter().map(|name| (name.clone(), canonical(&members[name])));
            Value::Object(sorted.collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(params: Value) -> Result<Command, MspError> {
        Command::read("session/rename", params.as_object().unwrap())
    }

    #[test]
    fn the_payload_is_everything_but_the_id_in_any_order() {
        let id = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";
        let one = read(json!({ "commandId": id, "a": { "x": 1, "y": [1, 2] }, "b": 2 })).unwrap();
        let two = read(json!({ "b": 2, "a": { "y": [1, 2], "x": 1 }, "commandId": id })).unwrap();
        let other = read(json!({ "commandId": id, "a": { "x": 1, "y": [2, 1] }, "b": 2 })).unwrap();
        assert_eq!((one.hash.len(), &one.hash), (64, &two.hash));
        assert_ne!(one.hash, other.hash);
    }

    #[test]
    fn an_id_must_be_a_uuid() {
        for bad in [json!({}), json!({ "commandId": "x" }), json!({ "commandId": 7 })] {
            assert_eq!(read(bad).unwrap_err().kind.code(), -32602);
        }
        let bare = json!({ "commandId": "01a22bb62da27132b86840a3a5d1f51f" });
        assert!(read(bare).is_err());
    }
}
