//! Changes of what is kept about a session, for every face: through its lane, as one, and answered
//! when they are durable. No session is loaded for one. A command is a change with an id of its
//! caller's: it is carried out once, whoever repeats it and whatever restarts in between.

use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::fold::Done;
use frontdesk_core::ids::Key;
use frontdesk_core::session::{Decision, Input};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use super::Node;
use crate::session::{Decided, LaneMsg};

/// Once nothing can be recorded at present, a record that is on its way is waited for this long: it
/// may still go into the reserve.
const BEHIND_WORD: Duration = Duration::from_secs(1);

/// A command of a client's, with what it is answered. Its payload is all of its params but the ids:
/// the session may be named in another spelling the next time.
#[must_use]
pub fn command(id: &str, method: &str, params: &Map<String, Value>, ack: Value) -> Done {
    let mut payload = params.clone();
    payload.retain(|name, _| !matches!(name.as_str(), "commandId" | "sessionId" | "_meta"));
    let text = in_order(&Value::Object(payload)).to_string();
    let hash = hmac_sha256::Hash::hash(text.as_bytes());
    Done {
        command_id: id.to_owned(),
        method: method.to_owned(),
        payload_hash: hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        ack,
    }
}

/// The same value with the members of every object in order.
fn in_order(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut names: Vec<&String> = members.keys().collect();
            names.sort();
            let sorted = names.into_iter().map(|name| (name.clone(), in_order(&members[name])));
            Value::Object(sorted.collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(in_order).collect()),
        other => other.clone(),
    }
}

impl Node {
    /// Gives a session's lane inputs that are carried out as one. With a `command` they are carried
    /// out once: whoever repeats it gets what was recorded under its id then, and nothing happens.
    /// Whether that was the same command, [`Done::is_same`] says.
    ///
    /// # Errors
    /// `-32002` if the session is unknown; [`Code::Behind`] while nothing can be recorded: what is on
    /// its way then is written as soon as there is room, and who repeats a command behind that gets
    /// its answer; `-31010` if the journal cannot be written.
    pub async fn change(
        self: &Arc<Self>,
        key: Key,
        inputs: Vec<Input>,
        command: Option<Done>,
    ) -> Result<Option<Done>, WireError> {
        self.not_behind(Some(key))?;
        let lane = self.lane(key).ok_or_else(|| WireError::not_found(&key.to_string()))?;
        let Some(command) = command else {
            let (done, is_done) = oneshot::channel();
            lane.send(LaneMsg::Durable { inputs, done }).await;
            return self.written(key, is_done).await.map(|()| None);
        };
        let (before, was) = oneshot::channel();
        lane.send(LaneMsg::Command { done: Box::new(command), inputs, before }).await;
        Ok(self.written(key, was).await?.map(|done| *done))
    }

    /// Gives a session's lane an answer to an open question. With a `command` it is given once, as with
    /// [`Node::change`]. What settles nothing is said and changes nothing.
    ///
    /// # Errors
    /// As of [`Node::change`].
    pub async fn decide(
        self: &Arc<Self>,
        key: Key,
        decision: Decision,
        command: Option<Done>,
    ) -> Result<Decided, WireError> {
        self.not_behind(Some(key))?;
        let lane = self.lane(key).ok_or_else(|| WireError::not_found(&key.to_string()))?;
        let (told, word) = oneshot::channel();
        let (decision, command) = (Box::new(decision), command.map(Box::new));
        lane.send(LaneMsg::Decide { decision, command, told }).await;
        self.written(key, word).await
    }

    /// The word that a record is durable, or that it cannot be told when it will be.
    ///
    /// # Errors
    /// [`Code::Behind`] while the disk takes nothing; `-31010` if the journal cannot be written.
    pub async fn written<T>(
        &self,
        key: Key,
        mut word: oneshot::Receiver<T>,
    ) -> Result<T, WireError> {
        let unwritten =
            |_| WireError::new(Code::Storage, "the session's journal could not be written");
        let mut health = self.log.follow_health();
        let behind = async {
            if health.wait_for(|health| health.is_behind()).await.is_err() {
                // The log is closing: so is the lane, which says so.
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(BEHIND_WORD).await;
        };
        tokio::select! {
            biased;
            word = &mut word => return word.map_err(unwritten),
            () = behind => {}
        }
        self.not_behind(Some(key))?;
        // There is room again.
        word.await.map_err(unwritten)
    }

    /// Refuses what needs a record while no record can be written. `key` is the session it is
    /// about, where there is one already.
    ///
    /// # Errors
    /// [`Code::Behind`] while the disk takes nothing.
    pub fn not_behind(&self, key: Option<Key>) -> Result<(), WireError> {
        let behind = match key {
            Some(key) => self.log.is_behind(key),
            None => self.log.health().is_behind(),
        };
        if !behind {
            return Ok(());
        }
        let health = self.log.health();
        let full = health.full;
        let why = if full {
            "the disk is full"
        } else if health.read_only {
            "the data folder cannot be written"
        } else {
            "the disk takes nothing at present"
        };
        let text = format!(
            "{why}: nothing is lost, and nothing new is begun until there is room; try again later"
        );
        Err(WireError::new(Code::Behind, text).with_data(json!({ "full": full })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_everything_but_the_ids_in_any_order() {
        let of = |params: Value| command("c", "m", params.as_object().unwrap(), Value::Null);
        let one = of(json!({ "commandId": "c", "a": { "x": 1, "y": [1, 2] }, "sessionId": "S" }));
        let two = of(json!({ "sessionId": "s", "a": { "y": [1, 2], "x": 1 }, "commandId": "c" }));
        let other = of(json!({ "commandId": "c", "a": { "x": 1, "y": [2, 1] }, "sessionId": "S" }));
        assert_eq!(one.payload_hash.len(), 64);
        assert!(one.is_same(&two) && !one.is_same(&other));
        assert!(!one.is_same(&Done { method: "n".into(), ..two }));
    }
}
