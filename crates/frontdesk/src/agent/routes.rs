//! Which sessions are at an instance: where what it says goes, and how far that is dealt with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::instance::Instance;
use crate::lock::lock;
use crate::session::LaneHandle;

/// How long the ledger of an instance that is gone waits for the records of sessions that were closed
/// there.
const CLOSE_RECORDED: Duration = Duration::from_secs(10);

/// How often it is looked whether lanes have dealt with what they were given.
const LOOK: Duration = Duration::from_millis(2);

/// A session that an instance has.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) lane: LaneHandle,
    pub(super) handed: u64,
    pub(super) done: Arc<AtomicU64>,
}

impl Route {
    /// Whether its lane has something to deal with. One that has ended never will.
    fn is_busy(&self) -> bool {
        self.done.load(Ordering::Relaxed) < self.handed && !self.lane.is_closed()
    }
}

impl Instance {
    /// Sends the agent's messages for a session to its lane.
    pub fn route(&self, native: &str, lane: &LaneHandle) -> Arc<AtomicU64> {
        let done = Arc::new(AtomicU64::new(0));
        let route = Route { lane: lane.clone(), handed: 0, done: done.clone() };
        let mut shared = lock(&self.shared);
        shared.kept.remove(native);
        shared.routes.insert(native.into(), route);
        done
    }

    /// A message for a session is about to be given to its lane, which tells by the counter when it
    /// is dealt with.
    pub(super) fn hand(&self, native: &str, ack: u64) -> Option<(LaneHandle, Arc<AtomicU64>)> {
        let mut shared = lock(&self.shared);
        if let Some(late) = shared.kept.get_mut(native) {
            // Of an owner that is none any more.
            *late += 1;
            return None;
        }
        let parent = shared.children.get(native).cloned();
        let route = shared.routes.get_mut(parent.as_deref().unwrap_or(native))?;
        route.handed = ack.max(route.handed);
        Some((route.lane.clone(), route.done.clone()))
    }

    /// Child sessions that were named before this daemon.
    pub fn adopt_children<'a>(&self, parent: &str, children: impl Iterator<Item = &'a str>) {
        let parent: Arc<str> = parent.into();
        let mut shared = lock(&self.shared);
        shared.children.extend(children.map(|child| (child.into(), parent.clone())));
    }

    /// Whether a session is here.
    #[must_use]
    pub fn has_route(&self, native: &str) -> bool {
        lock(&self.shared).routes.contains_key(native)
    }

    /// A session is no longer here; how many are left. What its lane was given before is not
    /// acknowledged before the lane has dealt with it.
    pub fn unroute(&self, native: &str) -> usize {
        let mut shared = lock(&self.shared);
        let left = shared.routes.remove(native);
        shared.leaving.extend(left.filter(Route::is_busy));
        shared.children.retain(|_, parent| **parent != *native);
        shared.routes.len() + shared.reserved
    }

    /// Waits until the lanes of sessions that left have dealt with all that they were given, so that
    /// nothing of it is lost with the instance; at most `limit`: a disk may take nothing.
    pub async fn until_heard(&self, limit: Duration) {
        let until = tokio::time::Instant::now() + limit;
        while lock(&self.shared).leaving.iter().any(Route::is_busy) {
            if tokio::time::Instant::now() > until {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until every unloading that has begun is recorded: up to then a later daemon needs the
    /// ledger. Not for ever, since a disk may take nothing.
    pub async fn until_closed(&self) {
        let mut closing = self.closing.subscribe();
        let _ = tokio::time::timeout(CLOSE_RECORDED, closing.wait_for(|count| *count == 0)).await;
    }

    /// A session has handled everything up to `end`: what all sessions have handled is acknowledged.
    pub fn handled(&self, done: &AtomicU64, end: u64) {
        done.store(end, Ordering::Relaxed);
        let mut shared = lock(&self.shared);
        shared.leaving.retain(Route::is_busy);
        let busy = shared.routes.values().filter(|route| route.is_busy()).chain(&shared.leaving);
        let until = busy.map(|route| route.done.load(Ordering::Relaxed)).fold(end, u64::min);
        drop(shared);
        self.ack(until);
    }

    fn ack(&self, until: u64) {
        self.acked.fetch_max(until, Ordering::Relaxed);
        self.link.ack(until);
    }

    /// All messages up to `end` have been given out; where no session still works on one, they are
    /// acknowledged, so that what is for no session does not fill the spool.
    pub fn nothing_owed(&self, end: u64) {
        let mut shared = lock(&self.shared);
        shared.leaving.retain(Route::is_busy);
        let busy = !shared.leaving.is_empty() || shared.routes.values().any(Route::is_busy);
        drop(shared);
        if !busy && end > 0 {
            self.ack(end);
        }
    }
}
