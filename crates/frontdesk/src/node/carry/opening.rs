//! Sessions that an agent was asked to open when the daemon died: the answer is still to come, or waits
//! in the spool, and decides as if nothing had happened.

use std::sync::Arc;

use frontdesk_core::errors::WireError;
use frontdesk_core::session::StartFailure;
use tokio::sync::oneshot;

use super::super::Node;
use super::super::open::tell;
use super::orphans::Orphans;
use super::sort::Found;
use crate::agent::instance::{Instance, Opened};
use crate::agent::ledger::Balance;
use crate::session::LaneHandle;

/// A request to open a session whose answer is awaited.
#[derive(Debug)]
pub(super) struct Opening {
    lane: LaneHandle,
    native: Box<str>,
    number: u64,
    method: Box<str>,
    /// The agent may have had it before that.
    is_kept: bool,
    answer: oneshot::Receiver<Result<Opened, WireError>>,
}

impl Opening {
    /// What a session waits for; before anything of its instance is read.
    pub(super) fn of(
        instance: &Instance,
        found: &Found,
        balance: &Balance,
        lane: &LaneHandle,
    ) -> Option<Self> {
        let number = found.opening()?;
        let sent = balance.requests.iter().find(|sent| sent.number == number)?;
        Some(Self {
            lane: lane.clone(),
            native: found.native.clone(),
            number,
            method: sent.method.clone(),
            is_kept: balance.kept.contains(&found.native),
            answer: instance.await_opening(number, &found.native),
        })
    }
}

impl Node {
    /// Settles what was under way at an instance and whose outcome its output tells.
    pub(super) fn settle(
        self: &Arc<Self>,
        instance: &Arc<Instance>,
        openings: Vec<Opening>,
        orphans: Orphans,
    ) {
        for opening in openings {
            let (node, instance) = (self.clone(), instance.clone());
            tokio::spawn(async move { node.finish_opening(&instance, opening).await });
        }
        self.find_homes(instance, orphans);
    }

    async fn finish_opening(self: &Arc<Self>, instance: &Arc<Instance>, opening: Opening) {
        let Opening { lane, native, number, method, is_kept, answer } = opening;
        let (outcome, heard) = match instance.opened(answer, number, &method).await {
            Ok(opened) => {
                let by_load = &*method == "session/load";
                (self.judged(instance, &native, &opened.frame, by_load).await, Some(opened))
            }
            Err(error) => (Err(StartFailure::Ours(error)), None),
        };
        let outcome = self.settle_opening(instance, &native, is_kept, None, outcome).await;
        tell(&lane, outcome, heard).await;
    }
}
