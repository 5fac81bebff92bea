//! Doubt about a session: an agent may have it, and nobody can tell. What a lane does until it is
//! proven: it watches the end of that instance, and asks those that answer for themselves.

use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::lease::{Phase, Place, Probe};
use frontdesk_core::place::Word;
use frontdesk_core::session::Input;
use tokio::time::Instant;

use super::lane::Lane;
use crate::agent::instance::Instance;
use crate::node::Node;
use crate::node::probes::Asked;

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
        let is_it = |instance: &Arc<Instance>| {
            let is_over = instance.url.is_some() && instance.has_ended().is_some();
            instance.place() == *place && !is_over
        };
        if self.doubted.as_ref().is_some_and(is_it) {
            return;
        }
        let previous = self.previous.clone().filter(is_it);
        self.doubted = previous.or_else(|| self.node.instance_at(place));
    }
}

/// When a place that may have a session is asked next.
pub(super) fn next_time(node: &Node) -> Instant {
    Instant::now() + Duration::from_millis(node.limits.doubt_probe_ms)
}

/// Waits until something is known of a session that somebody may have, which is asked for at the
/// instant in `doubt` and from time to time; for ever if nobody may.
pub(super) async fn settled(
    node: &Node,
    doubt: Option<(Place, Option<Arc<Instance>>, Instant)>,
    native: &str,
) -> Input {
    match doubt {
        // In a box: few sessions are in doubt, and every lane waits here.
        Some((at, instance, ask_at)) => Box::pin(known(node, at, instance, ask_at, native)).await,
        None => std::future::pending().await,
    }
}

async fn known(
    node: &Node,
    at: Place,
    instance: Option<Arc<Instance>>,
    mut ask_at: Instant,
    native: &str,
) -> Input {
    // The end of a connection to an address proves nothing.
    let instance = instance.filter(|_| matches!(at, Place::Instance(_)));
    let gone = async {
        match &instance {
            Some(instance) => instance.wait_gone().await,
            None => std::future::pending().await,
        }
    };
    let probed = async {
        loop {
            tokio::time::sleep_until(ask_at).await;
            ask_at = next_time(node);
            // One that does not answer for itself is not asked.
            let here = node.instance_at(&at).filter(|i| i.abilities().status);
            if let Some(instance) = here.filter(|instance| instance.has_ended().is_none()) {
                // Asked before: what is answered meanwhile may be behind its word.
                let owes = instance.owes_opening(native);
                let words = node.ask_all(&[Asked::running(instance)], native, false).await;
                let probe = match words.first() {
                    Some(Word::Cold | Word::Unknown) => Probe::Cold,
                    Some(Word::Loaded) => Probe::Loaded,
                    Some(Word::Nothing) | None => Probe::Nothing,
                };
                break (probe, owes);
            }
        }
    };
    tokio::select! {
        () = gone => Input::Gone { at: at.clone() },
        (probe, owes) = probed => Input::Probed { at: at.clone(), probe, owes },
    }
}
