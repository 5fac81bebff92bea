//! Commands: methods that change something, each with an id that its caller minted.
//!
//! A command is recorded in the session's journal, durable before its answer. Who repeats it, also
//! after a restart, gets the answer of the first time; the same id with anything else is refused.

use std::sync::Arc;

use frontdesk_core::fold::Done;
use frontdesk_core::msp::MspError;
use frontdesk_core::msp::params::{Params, Read as _};
use frontdesk_core::names;
use frontdesk_core::session::{By, Decision, Input, NoAnswer, Rename};
use serde_json::{Value, json};

use super::peer::{Answer, Peer};
use crate::node::change;
use crate::node::directory::Row;

/// A command as it was sent: its record, without an answer so far.
#[derive(Clone, Debug)]
pub(super) struct Command(Done);

impl Command {
    /// Reads the id; the payload is everything else.
    pub(super) fn read(method: &'static str, params: &Params) -> Result<Self, MspError> {
        let id = params.needed("commandId")?;
        if uuid::Uuid::parse_str(id).is_err() || id.len() != 36 {
            return Err(MspError::invalid("params.commandId must be a UUID"));
        }
        Ok(Self(change::command(id, method, params, Value::Null)))
    }

    /// The id that its caller gave it.
    pub(super) fn id(&self) -> &str {
        &self.0.command_id
    }

    /// Its record with an answer.
    fn done(&self, ack: Value) -> Done {
        Done { ack, ..self.0.clone() }
    }

    /// Records it with what it does, unless it is recorded already; what was answered before.
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
    ) -> Result<Option<Value>, MspError> {
        let before = peer.face.node.change(row.key, inputs, Some(self.done(ack))).await;
        match before.map_err(|error| MspError::from_acp(&error, &row.key.to_string()))? {
            Some(before) if !before.is_same(&self.0) => Err(self.conflict()),
            before => Ok(before.map(|done| done.ack)),
        }
    }

    /// Records it with the answer to a question that it gives, unless it is recorded already; what
    /// was answered before, or why it answers nothing, which is not recorded.
    ///
    /// # Errors
    /// As of [`Command::record`].
    pub(super) async fn decide(
        &self,
        peer: &Peer,
        row: &Row,
        ack: Value,
        decision: Decision,
    ) -> Result<Result<Option<Value>, NoAnswer>, MspError> {
        let decided = peer.face.node.decide(row.key, decision, Some(self.done(ack))).await;
        match decided.map_err(|error| MspError::from_acp(&error, &row.key.to_string()))? {
            Ok(Some(before)) if !before.is_same(&self.0) => Err(self.conflict()),
            decided => Ok(decided.map(|before| before.map(|done| done.ack))),
        }
    }

    fn conflict(&self) -> MspError {
        let text = "this commandId was used for another command";
        MspError::rejected(self.id(), "command_id_conflict", text)
    }

    /// Records what came of it.
    pub(super) async fn settle(&self, peer: &Peer, row: &Row, ack: Value) -> Result<(), MspError> {
        let inputs = vec![Input::Command(Box::new(self.done(ack)))];
        let written = peer.face.node.change(row.key, inputs, None).await;
        written.map(drop).map_err(|error| MspError::from_acp(&error, &row.key.to_string()))
    }
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
    let ack = json!({ "commandId": command.id(), "status": "accepted", "name": name });
    let rename = Rename {
        name: name.to_owned(),
        by: Some(by(peer)),
        command_id: Some(command.id().to_owned()),
    };
    let before = command.record(peer, &row, ack.clone(), vec![Input::Rename(rename)]).await?;
    Ok(before.unwrap_or(ack))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(params: Value) -> Result<Command, MspError> {
        Command::read("session/rename", params.as_object().unwrap())
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
