//! Claims: a session is claimed under all its ids, so that nobody else opens it by any of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::agent::{effective_home, store_family};
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::ids::Key;
use serde_json::{Value, json};

use super::Node;
use super::directory::{Found, Row};
use super::elsewhere::Holder;
use crate::agent::instance::Instance;
use crate::agent::link::{self, ClaimOutcome};
use crate::config::AgentConfig;

impl Node {
    /// The name under which a session of an agent is claimed on this machine, whatever home claims.
    #[must_use]
    pub fn claim_name(&self, agent: &AgentConfig, native: &str) -> String {
        let env = |name: &str| agent.env.get(name).cloned().or_else(|| std::env::var(name).ok());
        let home = effective_home(agent.known, &env);
        if let Some(url) = agent.urls.iter().min() {
            // Whose folders they are nobody knows here; the same addresses are the same agent.
            return format!("urls\u{0}{url}\u{0}{native}");
        }
        let family = store_family(agent.known, &agent.command);
        format!("{family}\u{0}{home}\u{0}{native}")
    }

    /// Claims a session for an instance under all its ids, in one order, so that of two that want it
    /// under several at once none waits for the other: on the first refusal all are given back.
    ///
    /// # Errors
    /// If another holder has one of them: who, since when, and how to get in.
    pub async fn claim(
        &self,
        instance: &Instance,
        natives: &BTreeSet<&str>,
        key: &str,
        is_new: bool,
    ) -> Result<(), WireError> {
        for (at, native) in natives.iter().enumerate() {
            let Err(error) = self.claim_one(instance, native, key, is_new).await else { continue };
            let kept = natives.iter().any(|native| instance.keeps(native));
            for given_back in natives.iter().take(at).filter(|_| !kept) {
                self.release(instance, given_back).await;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Claims one id of a session. A new session (`is_new`) does not wait for a holder of ours:
    /// its id is held by another session then, which shows that the agent's ids are not unique.
    ///
    /// # Errors
    /// If another holder has it: who, since when, and how to get in.
    async fn claim_one(
        &self,
        instance: &Instance,
        native: &str,
        key: &str,
        is_new: bool,
    ) -> Result<(), WireError> {
        let info = json!({
            "pid": std::process::id(), "socket": self.paths.socket(), "key": key,
            "agent": instance.agent.name, "home": self.paths.data, "since": jiff::Timestamp::now(),
        });
        let name = self.claim_name(&instance.agent, native);
        match self.try_claim(instance, &name, &info.to_string(), is_new).await {
            Ok(ClaimOutcome::Claimed) => Ok(()),
            Ok(ClaimOutcome::Held(text)) => {
                let holder: Value = serde_json::from_str(&text).unwrap_or_default();
                let message = format!(
                    "another Frontdesk holds this session: pid {}, socket {}, since {}; join it there, close it there, or take it: `frontdesk take {key}`",
                    holder["pid"], holder["socket"], holder["since"]
                );
                Err(WireError::new(Code::HeldElsewhere, message)
                    .with_data(json!({ "sessionId": key, "holder": holder })))
            }
            Err(error) => {
                tracing::warn!(instance = %instance.id, %error, "failed to claim a session");
                Err(WireError::new(Code::AgentStart, "the session could not be claimed")
                    .with_data(json!({ "sessionId": key })))
            }
        }
    }

    /// Claims, and waits a moment where a holder of our own still has it: its agent is proven gone, and
    /// it is about to leave.
    async fn try_claim(
        &self,
        instance: &Instance,
        name: &str,
        info: &str,
        is_new: bool,
    ) -> Result<ClaimOutcome, link::LinkError> {
        let until = tokio::time::Instant::now() + Duration::from_millis(self.limits.own_holder_ms);
        loop {
            let outcome = instance.link.claim(name, info).await?;
            let own = match &outcome {
                ClaimOutcome::Claimed => return Ok(outcome),
                ClaimOutcome::Held(text) => {
                    let holder: Value = serde_json::from_str(text).unwrap_or_default();
                    // There is one daemon a home, so one that is not this one is dead.
                    holder["home"].as_str().map(Path::new) == Some(&*self.paths.data)
                }
            };
            if !own || is_new || tokio::time::Instant::now() > until {
                return Ok(outcome);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Gives the claim of one id back, unless it is that of another session of the instance.
    async fn release(&self, instance: &Instance, native: &str) {
        if !instance.has_route(native) && !instance.keeps(native) {
            let _ = instance.link.release(&self.claim_name(&instance.agent, native)).await;
        }
    }

    /// Gives all claims of a session back, which the instance's agent is proven not to have.
    pub async fn release_claims(&self, instance: &Instance, native: &str) {
        let mut natives = instance.names_of(native);
        if let Some(Found::Known(row)) = self.directory.find_native(&instance.agent.name, native) {
            natives.extend(row.view.natives().into_iter().map(ToOwned::to_owned));
        }
        instance.forget_names(native);
        natives.remove(native);
        let _ = instance.link.release(&self.claim_name(&instance.agent, native)).await;
        for native in &natives {
            self.release(instance, native).await;
        }
    }

    /// The agent is proven not to have a session any more: whoever wants it may claim it.
    pub async fn give_back(&self, instance: &Instance, native: &str) {
        instance.let_go(native).await;
        self.release_claims(instance, native).await;
    }

    /// A loaded session has further ids: they are claimed too, and rows that have them are its own.
    /// One that somebody else holds is only told: the owners stay as they are.
    pub async fn learned_names(
        self: Arc<Self>,
        instance: Arc<Instance>,
        native: String,
        key: Key,
        ids: Vec<String>,
    ) {
        for id in ids.iter().collect::<BTreeSet<_>>() {
            let claimed = self.claim_one(&instance, id, &key.to_string(), true).await;
            if let Err(error) = claimed {
                tracing::warn!(session = %key, alias = id, error = %error.message, "another id of this session is not claimed; going on");
            }
        }
        if !instance.has_route(&native) && !instance.keeps(&native) {
            for id in &ids {
                self.release(&instance, id).await;
            }
        }
        if !self.index_in_step().await {
            return;
        }
        let joined = tokio::task::spawn_blocking(move || self.join_known(key)).await;
        if let Ok(Err(error)) = joined {
            tracing::warn!(session = %key, %error, "failed to note that two sessions are one");
        }
    }

    /// Who else has a session that is loaded here, under another of its ids: `{id, heldBy}` each. Only
    /// looks.
    #[must_use]
    pub fn also_held(&self, row: &Row) -> Vec<Value> {
        let Some(agent) = self.agent(&row.view.agent).filter(|_| row.is_loaded()) else {
            return Vec::new();
        };
        let held = row.view.natives().into_iter().filter_map(|native| {
            let text = link::look_at_claim(&self.claims, &self.claim_name(&agent, native))?;
            let holder: Holder = serde_json::from_str(&text).unwrap_or_default();
            let is_other = holder.key != row.key.to_string() || holder.home != self.paths.data;
            is_other.then(|| json!({ "id": native, "heldBy": holder.to_json() }))
        });
        held.collect()
    }
}
