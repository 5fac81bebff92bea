//! The ids of an instance's sessions: here each has one for its life, its agent may use others.
//!
//! What an agent sends under another id of a session is that session's, and an agent that files it
//! under another id now is spoken to by that one. Both are spliced at this edge and nowhere else.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use frontdesk_core::agent::aliases::told_in_update;
use frontdesk_core::envelope::{Frame, Message, quote};
use frontdesk_core::ids::ALIASES_MAX;

use super::instance::Instance;
use crate::lock::lock;

impl Instance {
    /// What the agent sends under these ids is for the session that is called `native` here.
    pub fn also_known<'a>(&self, native: &str, ids: impl IntoIterator<Item = &'a str>) {
        let native: Arc<str> = native.into();
        let mut shared = lock(&self.shared);
        let mut count = shared.heard.values().filter(|own| **own == native).count();
        for id in ids {
            let is_free = *id != *native
                && !shared.heard.contains_key(id)
                && !shared.children.contains_key(id);
            // More than a session may have, since the oldest are forgotten elsewhere only.
            if is_free && count < 4 * ALIASES_MAX {
                shared.heard.insert(id.into(), native.clone());
                count += 1;
            }
        }
    }

    /// The agent is spoken to of a session by this id, from now on.
    pub fn speak_of(&self, native: &str, id: Option<&str>) {
        let mut shared = lock(&self.shared);
        match id.filter(|id| *id != native) {
            Some(id) => drop(shared.spoken.insert(native.into(), id.into())),
            None => drop(shared.spoken.remove(native)),
        }
    }

    /// All ids of a session that this instance knows.
    #[must_use]
    pub fn names_of(&self, native: &str) -> BTreeSet<String> {
        let shared = lock(&self.shared);
        let others = shared.heard.iter().filter(|(_, own)| ***own == *native);
        let others = others.map(|(id, _)| id.to_string());
        others.chain([native.to_owned()]).collect()
    }

    /// The agent has let a session go: its ids mean nothing here.
    pub fn forget_names(&self, native: &str) {
        let mut shared = lock(&self.shared);
        shared.heard.retain(|_, own| **own != *native);
        shared.spoken.remove(native);
    }

    /// A session is told its other ids: known before anything comes under them.
    pub(super) fn learn_names(&self, frame: &Frame) {
        let Some(params) = frame.params_bytes() else { return };
        let Some((session, ids)) = told_in_update(&params) else { return };
        if self.has_route(&session) {
            self.also_known(&session, ids.iter().map(String::as_str));
        }
    }

    /// A message of the agent as if it had come under the id that its session has here.
    pub(super) fn in_own_name(&self, message: Message) -> Message {
        let respelled = {
            let shared = lock(&self.shared);
            if shared.heard.is_empty() {
                return message;
            }
            let session = message.frame().session_id();
            let session = session.filter(|id| !shared.routes.contains_key(&**id));
            let own = session.and_then(|id| shared.heard.get(&*id).cloned());
            own.map(|own| message.frame().spliced(None, Some(&quote(&own))))
        };
        match respelled.map(Message::parse) {
            Some(Ok(own)) => own,
            _ => message,
        }
    }

    /// A frame for the agent, with the id by which the agent is spoken to of its session.
    pub(super) fn in_its_name(&self, frame: Bytes) -> Bytes {
        if lock(&self.shared).spoken.is_empty() {
            return frame;
        }
        let Ok(message) = Message::parse(frame.clone()) else { return frame };
        let session = message.frame().session_id();
        let id = session.and_then(|id| lock(&self.shared).spoken.get(&*id).cloned());
        id.map_or(frame, |id| message.frame().spliced(None, Some(&quote(&id))))
    }
}
