//! Doubt about a session: an agent may have it, and nobody can tell. What a lane does until it is
//! proven: it watches the end of that instance, and asks those that answer for themselves.

use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::lease::{Phase, Place, Probe};
use frontdesk_core::session::Input;
use frontdesk_core::status::{Heard, hear};
use serde_json::json;

use super::lane::Lane;
use crate::agent::instance::Instance;

/// How often an instance that may have a session is asked whether it has.
const PROBE_EVERY: Duration = Duration::from_secs(5);

impl Lane {
    /// What an earlier lane, or an earlier daemon, has left in doubt.
    pub(super) async fn recall_doubt(&mut self) {
        let view = self.session.view();
        match (self.node.suspected(view), view.suspect.clone()) {
            (Some(place), _) => self.session.suspect(place),
            // An instance of before is proven gone before a daemon takes anything in.
            (None, Some(at)) => {
                let effects = self.session.handle(Input::Gone { at }, self.node.now());
                self.carry_out(effects).await;
            }
            (None, None) => return,
        }
        self.publish();
    }

    /// Keeps hold of the instance that may have the session, as long as that is in doubt.
    pub(super) fn follow_doubt(&mut self) {
        if self.session.phase() != Phase::Suspect {
            if !self.session.phase().is_starting() && self.session.phase() != Phase::Draining {
                self.doubted = None;
            }
            return;
        }
        let Some(place) = self.session.lease().doubt() else { return };
        if self.doubted.as_ref().is_some_and(|instance| instance.place() == *place) {
            return;
        }
        let previous = self.previous.clone().filter(|instance| instance.place() == *place);
        self.doubted = previous.or_else(|| self.node.instance_at(place));
    }
}

/// Waits until something is known of a session that an instance may have; for ever if there is none.
pub(super) async fn settled(doubted: Option<(Arc<Instance>, String)>) -> Input {
    let Some((instance, native)) = doubted else { return std::future::pending().await };
    let at = instance.place();
    tokio::select! {
        () = instance.wait_gone(), if matches!(at, Place::Instance(_)) => Input::Gone { at },
        probe = asked(&instance, &native) => Input::Probed { at: instance.place(), probe },
    }
}

/// Asks an instance that answers for itself, a moment from now; one that does not is never asked.
async fn asked(instance: &Instance, native: &str) -> Probe {
    tokio::time::sleep(PROBE_EVERY).await;
    if !instance.abilities().status || instance.has_ended().is_some() {
        return std::future::pending().await;
    }
    let params = json!({ "sessionId": native }).to_string();
    match instance.call("session/status", &params, instance.limits.probe_ms).await {
        Ok(frame) => match frame.result().map(hear) {
            Some(Heard::Loaded) => Probe::Loaded,
            Some(Heard::Cold) => Probe::Cold,
            Some(Heard::Malformed) => Probe::Nothing,
            None if frame.error().is_some_and(crate::node::names_no_session) => Probe::Cold,
            None => Probe::Nothing,
        },
        Err(_) => Probe::Nothing,
    }
}
