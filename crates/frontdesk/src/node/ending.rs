//! How a daemon ends: asked to stop it drains, asked to restart it hands everything over.

use std::time::Duration;

use frontdesk_core::session::Input;
use tokio::sync::oneshot;

use super::Node;
use crate::lock::lock;
use crate::session::{LaneHandle, LaneMsg};

/// How long the last answers of a stopping daemon may take to be made and read.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Why the daemon stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopping {
    /// Also end holders that no daemon claims.
    pub all: bool,
    /// Nothing is ended: the next daemon goes on.
    pub hand_over: bool,
}

impl Node {
    /// Whether the daemon is stopping.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stop.borrow().is_some()
    }

    /// Asks the daemon to stop.
    pub fn request_stop(&self, all: bool) {
        self.stop.send_if_modified(|stop| {
            let is_new = stop.is_none();
            stop.get_or_insert(Stopping { all, hand_over: false });
            is_new
        });
    }

    /// Asks the daemon to end and leave everything to the next one.
    pub fn request_hand_over(&self) {
        self.stop.send_if_modified(|stop| {
            let is_new = stop.is_none();
            stop.get_or_insert(Stopping { all: false, hand_over: true });
            is_new
        });
    }

    /// How the daemon was asked to end, if it was.
    #[must_use]
    pub fn stopping(&self) -> Option<Stopping> {
        *self.stop.borrow()
    }

    /// Brings every session to a point from which the next daemon goes on: what was taken in is
    /// written, synced and shown, and nothing more is taken. No turn, question or agent is ended.
    pub async fn hand_over(&self) {
        let until = tokio::time::Instant::now() + LAST_ANSWERS;
        let lanes: Vec<LaneHandle> = lock(&self.lanes).values().cloned().collect();
        let mut told = Vec::new();
        for lane in lanes {
            let (tx, rx) = oneshot::channel();
            // A lane that is stuck on its disk is left as a crash would leave it.
            let sent = lane.send(LaneMsg::HandOver(tx));
            if tokio::time::timeout_at(until, sent).await.is_ok() {
                told.push(rx);
            }
        }
        for rx in told {
            let _ = tokio::time::timeout_at(until, rx).await;
        }
        let shown = || lock(&self.conns).values().all(|conn| conn.outbox.is_idle());
        while !shown() && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until somebody asks the daemon to stop.
    pub async fn stop_requested(&self) {
        let _ = self.stop.subscribe().wait_for(Option::is_some).await;
    }

    /// Every request gets its answer before the connections end, as long as clients take them.
    async fn answer_the_rest(&self) {
        let until = tokio::time::Instant::now() + LAST_ANSWERS;
        let owes =
            || lock(&self.conns).values().any(|c| c.open_requests() > 0 || !c.outbox.is_idle());
        while owes() && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends everything: running turns get `drain_s` and are closed as cancelled, agents and holders
    /// are ended.
    pub async fn drain(&self) {
        let grace_ms = self.limits.drain_s * 1000;
        let lanes: Vec<LaneHandle> = lock(&self.lanes).values().cloned().collect();
        for lane in &lanes {
            lane.send(LaneMsg::Input(Input::Stop { grace_ms })).await;
        }
        let limit = Duration::from_millis(
            grace_ms + self.limits.agent_close_ms + 4 * self.limits.stop_term_ms,
        );
        let until = tokio::time::Instant::now() + limit;
        while !self.directory.loaded(|row| !row.is_suspect()).is_empty()
            && tokio::time::Instant::now() < until
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let instances = self.running_instances();
        for instance in &instances {
            instance.stop();
        }
        for instance in &instances {
            if tokio::time::timeout_at(until + Duration::from_secs(5), instance.wait_gone())
                .await
                .is_err()
            {
                tracing::error!(instance = %instance.id, "an agent could not be ended");
            }
        }
        self.answer_the_rest().await;
        for conn in lock(&self.conns).values() {
            if conn.positions {
                // Else a shim would start the next daemon.
                conn.send(bytes::Bytes::from_static(frontdesk_core::shim::STOP));
            }
            conn.outbox.finish();
        }
    }
}
