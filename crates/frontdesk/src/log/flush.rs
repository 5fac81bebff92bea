//! The journals' own syncs, behind everyone's back: streamed lines soon, the rest when the commit
//! log file that speaks of them has to go.
//!
//! One thread for each daemon. `slot` hands it journals with streamed lines, `commit` hands it
//! files of the commit log that are full.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::commit::Retiring;
use super::slot::{Shared, Slot, sync_all};

/// What waits for the thread. Bounded by the live journals and by the files of the commit log.
pub(super) struct Queue {
    pending: Mutex<Pending>,
    wake: Condvar,
    period: Duration,
}

#[derive(Default)]
struct Pending {
    dirty: Vec<Arc<Slot>>,
    /// When the oldest of `dirty` came.
    since: Option<Instant>,
    retire: Vec<Retiring>,
    stopping: bool,
    failure: Option<Arc<str>>,
}

/// What the thread takes in one turn.
struct Work {
    dirty: Vec<Arc<Slot>>,
    retire: Vec<Retiring>,
    last: bool,
}

impl Queue {
    /// `stream_sync_ms` is the promise; half of it is waited, half is left for the syncs.
    pub(super) fn new(stream_sync_ms: u64) -> Self {
        Self {
            pending: Mutex::default(),
            wake: Condvar::new(),
            period: Duration::from_millis(stream_sync_ms) / 2,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a journal that has streamed lines to sync.
    pub(super) fn dirty(&self, slot: Arc<Slot>) {
        let mut pending = self.lock();
        pending.dirty.push(slot);
        if pending.since.is_none() {
            pending.since = Some(Instant::now());
            self.wake.notify_one();
        }
    }

    /// Takes a full file of the commit log: it is deleted once its journals are synced.
    pub(super) fn retire(&self, file: Retiring) {
        self.lock().retire.push(file);
        self.wake.notify_one();
    }

    /// Lets the thread do what is there, once, and end.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_one();
    }

    /// What the thread could not sync before it ended.
    pub(super) fn failure(&self) -> Option<Arc<str>> {
        self.lock().failure.clone()
    }

    fn wait(&self) -> Work {
        let mut pending = self.lock();
        loop {
            let left = pending.since.map(|since| self.period.saturating_sub(since.elapsed()));
            let due = left.is_some_and(|left| left.is_zero());
            if pending.stopping || due || (left.is_none() && !pending.retire.is_empty()) {
                pending.since = None;
                return Work {
                    dirty: std::mem::take(&mut pending.dirty),
                    retire: std::mem::take(&mut pending.retire),
                    last: pending.stopping,
                };
            }
            pending = match left {
                Some(left) => {
                    let woken = self.wake.wait_timeout(pending, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(pending).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// The thread: ends after [`Queue::stop`].
pub(super) fn run(shared: &Shared) {
    // Files whose journals could not be synced; tried again with the next work.
    let mut kept = Vec::new();
    // Said once for each time it begins to fail, not each period.
    let mut failing = false;
    loop {
        let Work { dirty, retire, last } = shared.flush.wait();
        kept.extend(retire);
        let mut failure = None;
        let mut again = Vec::new();
        if let Err((slots, error)) = sync_all(shared, &dirty) {
            failure = Some(error.to_string());
            again = slots;
        }
        kept.retain_mut(|file: &mut Retiring| match file.retire(shared) {
            Ok(()) => false,
            Err(error) => {
                failure = Some(error.to_string());
                true
            }
        });
        if let Some(failure) = &failure
            && !failing
        {
            tracing::warn!(%failure, "failed to sync journals; it will be tried again");
        }
        failing = failure.is_some();
        if last {
            shared.flush.lock().failure = failure.map(Into::into);
            return;
        }
        for slot in again {
            if slot.queue_again() {
                shared.flush.dirty(slot);
            }
        }
    }
}
