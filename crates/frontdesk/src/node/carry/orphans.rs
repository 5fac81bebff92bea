//! Sessions that an agent made, or is about to make, and that nobody was told of: a `session/new` or
//! `session/fork` whose client got no answer before the daemon died. Nobody asks for them any more.
//! They are closed at the agent; where that cannot be they are taken in, as if its list had named them.

use std::sync::Arc;

use bytes::Bytes;
use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::WireError;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::super::Node;
use super::super::directory::Found;
use crate::agent::instance::Instance;
use crate::agent::ledger::Balance;

/// What an instance has, or may get, and nobody asks for.
#[derive(Debug)]
pub(super) struct Orphans {
    /// Those it has made.
    made: Vec<Box<str>>,
    /// Answers that may name one, with the folder that was asked for.
    births: Vec<(oneshot::Receiver<Result<Frame, WireError>>, String)>,
}

/// Requests for new sessions that an agent has got and not answered. What its holder has not is not
/// sent any more.
pub(super) fn births(balance: &Balance) -> Vec<(u64, Bytes)> {
    let is_sent = |number: u64| balance.unaccepted.iter().all(|(other, _)| *other != number);
    let all = balance.requests.iter().filter(|sent| is_sent(sent.number));
    let births = all.filter(|sent| matches!(&*sent.method, "session/new" | "session/fork"));
    births.map(|sent| (sent.number, sent.params.clone())).collect()
}

impl Orphans {
    /// Before anything of the instance is read.
    pub(super) fn new(instance: &Instance, made: Vec<Box<str>>, births: Vec<(u64, Bytes)>) -> Self {
        let folder = |params: &Bytes| {
            let params: Value = serde_json::from_slice(params).unwrap_or_default();
            params["cwd"].as_str().unwrap_or(&instance.cwd).to_owned()
        };
        let births = births.iter().map(|(number, params)| {
            let answer = instance.await_call(*number);
            (answer, folder(params))
        });
        Self { made, births: births.collect() }
    }
}

impl Node {
    /// Closes what nobody asks for, or takes it in.
    pub(super) fn find_homes(self: &Arc<Self>, instance: &Arc<Instance>, orphans: Orphans) {
        let Orphans { made, births } = orphans;
        for native in made {
            let (node, instance) = (self.clone(), instance.clone());
            tokio::spawn(async move {
                let cwd = instance.cwd.clone();
                node.find_home(&instance, &native, &cwd).await;
            });
        }
        for (answer, cwd) in births {
            let (node, instance) = (self.clone(), instance.clone());
            tokio::spawn(async move {
                // It comes, or the instance ends.
                let Ok(Ok(frame)) = answer.await else { return };
                let native = frame.session_id().filter(|_| frame.error().is_none());
                if let Some(native) = native.filter(|native| !native.is_empty()) {
                    node.find_home(&instance, &native, &cwd).await;
                }
            });
        }
    }

    async fn find_home(self: &Arc<Self>, instance: &Arc<Instance>, native: &str, cwd: &str) {
        if instance.has_route(native) {
            // An agent whose ids are not unique: somebody has this one.
            return;
        }
        instance.keep(native).await;
        if self.ask_to_close(instance, native).await {
            tracing::info!(instance = %instance.id, "closed a session that nobody was told of");
            return self.give_back(instance, native).await;
        }
        let (node, agent) = (self.clone(), instance.agent.name.clone());
        let row = json!({ "sessionId": native, "cwd": cwd });
        let adopted = tokio::task::spawn_blocking(move || node.adopt_all(&agent, &[row])).await;
        if !matches!(adopted, Ok(Ok(()))) {
            tracing::warn!(instance = %instance.id, "failed to take in a session that nobody was told of");
        }
        // Its lane finds out what becomes of it.
        if let Some(Found::Known(row)) = self.directory.find_native(&instance.agent.name, native) {
            let _lane = self.lane(row.key);
        }
    }
}
