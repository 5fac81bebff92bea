//! Quirks that an agent has shown: kept beside what it answered to `initialize`, and used from then
//! on as if its entry named them. Where the entry says that it has not got one, that stands.

use std::sync::Arc;

use frontdesk_core::agent::Quirks;
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::fold::View;
use frontdesk_core::ids::Key;
use frontdesk_core::lease::Phase;
use frontdesk_core::session::StartFailure;
use serde_json::json;

use super::Node;
use super::greeted::{greeting_name, read_json, write_atomic};
use crate::agent::instance::Instance;
use crate::config::AgentConfig;
use crate::lock::lock;

impl Node {
    /// An agent has shown a quirk.
    pub fn learn(&self, agent: &AgentConfig, quirk: &'static str) {
        let is_denied = agent.quirk_changes.iter().any(|(name, has)| name == quirk && !has);
        let name = greeting_name(agent);
        // Held until it is written, so that of two agents that show one at once neither is forgotten.
        let mut learned = lock(&self.learned);
        if is_denied || !learned.entry(name.clone()).or_default().insert(quirk.into()) {
            return;
        }
        tracing::warn!(agent = %agent.name, quirk, "an agent has shown a quirk; it is kept in mind");
        let path = self.paths.data.join("learned.json");
        let mut all = read_json(&path);
        all[&name] = json!(learned.get(&name));
        if let Err(error) = write_atomic(&path, all.to_string().as_bytes()) {
            tracing::warn!(path = %path.display(), %error, "failed to keep what was learned of an agent");
        }
    }

    /// The quirks that an agent has shown, in the order of their names.
    #[must_use]
    pub fn learned(&self, agent: &AgentConfig) -> Vec<Box<str>> {
        let learned = lock(&self.learned);
        learned.get(&greeting_name(agent)).into_iter().flatten().cloned().collect()
    }

    /// How an instance's agent differs from an honest one, by all that is known.
    #[must_use]
    pub fn quirks_of(&self, instance: &Instance) -> Quirks {
        let mut quirks = instance.quirks();
        for name in self.learned(&instance.agent) {
            quirks.set(&name, true);
        }
        quirks
    }

    /// An agent answered a load or resume with another session than it was asked for, which nobody
    /// claims: it is closed there, as far as the agent can be told, and nobody is ever routed to it.
    pub(super) async fn let_go_of_other(&self, instance: &Arc<Instance>, other: &str) {
        tracing::warn!(instance = %instance.id, "the agent answered with another session than it was asked for");
        self.learn(&instance.agent, "resume_replaces");
        if instance.abilities().close {
            let params = json!({ "sessionId": other }).to_string();
            let closed = instance.call("session/close", &params, self.limits.agent_close_ms).await;
            if let Err(error) = closed {
                tracing::warn!(instance = %instance.id, error = %error.message, "failed to close a session that nobody asked for");
            }
        }
    }

    /// Of two sessions that an agent gave one id only one may be loaded: nothing tells which of them
    /// the agent would open.
    pub(super) fn not_under_one_id(&self, key: Key, view: &View) -> Result<(), StartFailure> {
        let agent = &view.agent;
        let others = self.directory.loaded(|row| {
            let is_it = row.key != key && row.view.agent == *agent;
            let has_it = row.live.as_ref().is_some_and(|live| live.lease != Phase::Claiming);
            is_it && has_it && row.view.natives().into_iter().any(|id| view.is_called(id))
        });
        let Some(other) = others.first() else { return Ok(()) };
        let text = format!(
            "agent {agent} has this session and session {} under one id, and that one is loaded; join that one, or close it first",
            other.key
        );
        let data = json!({ "sessionId": key, "other": other.key });
        Err(StartFailure::Ours(WireError::new(Code::HeldElsewhere, text).with_data(data)))
    }

    /// Reads what was learned before; what is no quirk of this version is left out.
    pub(super) fn read_learned(&self) {
        let all = read_json(&self.paths.data.join("learned.json"));
        let mut learned = lock(&self.learned);
        for agent in self.agents.values() {
            let name = greeting_name(agent);
            let names = all.get(&name).and_then(|names| names.as_array());
            let known = names.into_iter().flatten().filter_map(|quirk| quirk.as_str());
            let known =
                known.filter(|quirk| Quirks::NAMES.contains(quirk)).map(Box::from).collect();
            learned.insert(name, known);
        }
    }
}
