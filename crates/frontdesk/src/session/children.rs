//! Subagents of a session: what an agent sends for its children.
//!
//! It all goes through the parent's lane: there it is written first and shown, each under its own
//! id, to the parent's clients, who need not attach to a child. A child has a journal of its own
//! beside that, which gets what was sent under its id. Source: ACP `subagent_update`.

use bytes::Bytes;
use frontdesk_core::envelope::Message;
use frontdesk_core::lease::Phase;
use frontdesk_core::record::Kind;
use frontdesk_core::render::stored_update;
use frontdesk_core::session::{Ends, Input, Position, subagent_update};
use serde_json::{Map, Value, json};

use super::lane::Lane;
use super::{LaneHandle, LaneMsg};
use crate::node::children::Announced;

/// What a parent's agent said about its children and nobody has told them yet.
#[derive(Debug)]
pub(super) enum Heard {
    /// A `subagent_update`.
    Told(Value),
    /// An update under a child's id, as it is stored.
    Said(String, Bytes),
}

/// One child.
#[derive(Debug)]
pub(super) struct Child {
    /// The way to its lane; `None` if it was deleted or could not be made.
    lane: Option<LaneHandle>,
    /// Title and state as last told.
    told: Map<String, Value>,
}

impl Lane {
    /// Notes what a message of the agent says about children; what an earlier daemon recorded is not
    /// heard again.
    pub(super) fn hear_child(&mut self, message: &Message, at: &Position) {
        let Message::Notification(frame) = message else { return };
        if self.session.is_covered(Some(&at.source)) {
            return;
        }
        if &*frame.method != "session/update" || !matches!(self.session.phase(), Phase::Live) {
            return;
        }
        let Some(session) = frame.session_id() else { return };
        if *session != *self.session.native() {
            self.heard.push(Heard::Said(session.to_string(), stored_update(frame)));
        }
        let params = frame.params_bytes().unwrap_or_default();
        self.heard.extend(subagent_update(&params).map(Heard::Told));
    }

    /// Children that the session had before this daemon, by their journals' word. Their lanes are
    /// found when something is said about them.
    pub(super) fn recall_children(&mut self, ends: &Ends) {
        for (native, child) in ends.children() {
            if let Some(key) = child.key {
                self.recalled.insert(native.to_owned(), (key, child.told.clone()));
            }
        }
    }

    fn find_recalled(&mut self) {
        if self.recalled.is_empty() {
            return;
        }
        let names: Vec<String> = self
            .heard
            .iter()
            .filter_map(|heard| match heard {
                Heard::Told(update) => Some(update["sessionId"].as_str()?.to_owned()),
                Heard::Said(native, _) => Some(native.clone()),
            })
            .collect();
        for native in names {
            if let Some((key, told)) = self.recalled.remove(&native) {
                let lane = self.node.lane(key);
                self.children.insert(native, Child { lane, told });
            }
        }
    }

    /// Makes the sessions of children that are announced for the first time: a client that is shown
    /// one may name it at once.
    pub(super) async fn make_children(&mut self) {
        self.find_recalled();
        let updates: Vec<Value> = self
            .heard
            .iter()
            .filter_map(|heard| match heard {
                Heard::Told(update) => Some(update.clone()),
                Heard::Said(..) => None,
            })
            .collect();
        for update in updates {
            let Some(native) = update["sessionId"].as_str() else { continue };
            let is_new = !self.children.contains_key(native) && native != self.session.native();
            let known = self.children.len() + self.recalled.len();
            if is_new && known < self.node.limits.session_children as usize {
                let lane = self.child_lane(&update).await;
                self.children.insert(native.to_owned(), Child { lane, told: Map::new() });
            }
        }
    }

    /// Passes on to the children what is theirs, behind what the parent has written.
    pub(super) async fn tell_children(&mut self) {
        for heard in std::mem::take(&mut self.heard) {
            match heard {
                Heard::Told(update) => self.announce(&update).await,
                Heard::Said(native, data) => {
                    let lane = self.children.get(&native).and_then(|child| child.lane.clone());
                    if let Some(lane) = lane {
                        let input = Input::Record { kind: Kind::Update, data: text(&data) };
                        lane.send(LaneMsg::Input(input)).await;
                    }
                }
            }
        }
    }

    /// A child is announced, or what is known of it has changed.
    async fn announce(&mut self, update: &Value) {
        let Some(native) = update["sessionId"].as_str() else { return };
        let Some(child) = self.children.get_mut(native) else { return };
        let Some(lane) = &child.lane else { return };
        let before = child.told.clone();
        for name in ["title", "state"] {
            // Left out means unchanged, null means none.
            match update.get(name) {
                None => {}
                Some(Value::Null) => drop(child.told.remove(name)),
                Some(value) => drop(child.told.insert(name.to_owned(), value.clone())),
            }
        }
        if before.is_empty() || before != child.told {
            let lane = lane.clone();
            let with = |mut data: Value| {
                if let Some(data) = data.as_object_mut() {
                    data.extend(child.told.clone());
                }
                Input::Record { kind: Kind::Subagent, data: data.to_string() }
            };
            let own = with(json!({ "nativeId": native }));
            let parents = with(json!({ "child": lane.key(), "nativeId": native }));
            self.handle_now(parents).await;
            lane.send(LaneMsg::Input(own)).await;
        }
    }

    async fn child_lane(&self, update: &Value) -> Option<LaneHandle> {
        let view = self.session.view();
        let told = Announced {
            parent: self.handle.key(),
            agent: view.agent.clone(),
            cwd: view.cwd.clone(),
            update: update.clone(),
        };
        let node = self.node.clone();
        let key = match tokio::task::spawn_blocking(move || node.adopt_child(&told)).await {
            Ok(Ok(key)) => key?,
            Ok(Err(error)) => {
                tracing::error!(session = %self.handle.key(), %error, "failed to make the journal of a subagent");
                return None;
            }
            Err(_) => return None,
        };
        let lane = self.node.lane(key)?;
        self.node.claim_child(&lane, self.handle.key()).await;
        Some(lane)
    }
}

/// An agent's frame is UTF-8: it was parsed as JSON.
fn text(data: &Bytes) -> String {
    String::from_utf8_lossy(data).into_owned()
}
