//! Changes of what is kept about a session, for every face: through its lane, as one, and answered
//! when they are durable. No session is loaded for one.

use std::sync::Arc;

use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::fold::Done;
use frontdesk_core::ids::Key;
use frontdesk_core::session::Input;
use serde_json::json;
use tokio::sync::oneshot;

use super::Node;
use crate::session::LaneMsg;

impl Node {
    /// Gives a session's lane inputs that are carried out as one. With a `command` they are carried
    /// out once: whoever repeats it gets what was recorded of it then, and nothing happens.
    ///
    /// # Errors
    /// `-32002` if the session is unknown; [`Code::Behind`] while nothing can be recorded; `-31010` if
    /// the journal cannot be written.
    pub async fn change(
        self: &Arc<Self>,
        key: Key,
        inputs: Vec<Input>,
        command: Option<Done>,
    ) -> Result<Option<Done>, WireError> {
        self.not_behind(Some(key))?;
        let lane = self.lane(key).ok_or_else(|| WireError::not_found(&key.to_string()))?;
        let unwritten =
            |_| WireError::new(Code::Storage, "the session's journal could not be written");
        let Some(command) = command else {
            let (done, is_done) = oneshot::channel();
            lane.send(LaneMsg::Durable { inputs, done }).await;
            return is_done.await.map(|()| None).map_err(unwritten);
        };
        let (before, was) = oneshot::channel();
        lane.send(LaneMsg::Command { done: Box::new(command), inputs, before }).await;
        let before = was.await.map_err(unwritten)?;
        Ok(before.map(|done| *done))
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
