//! The thread that keeps the index in step with the journals.
//!
//! It is the one writer of the index: it takes what the directory has changed, compares journals
//! with rows behind a start, and makes the index anew where there is none, where it is broken, or
//! where somebody asks. None of that stops anyone who reads.

mod checking;
mod work;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use frontdesk_core::ids::Key;

use super::Node;
use super::recover::Recovered;
use super::standing::Standing;
use crate::index::Counts;
use crate::lock::lock;
use crate::log::Replayed;
use work::Work;

/// How long a start works on the index before it serves, where it is not in step.
const START_BUDGET: Duration = Duration::from_millis(25);

/// How often somebody who waits for the index looks again.
const FORGET_AGAIN: Duration = Duration::from_millis(5);

/// How long after its start the daemon's lists wait until the index is confirmed, in milliseconds. It
/// is in step then as far as the daemon before knew; what was changed by hand since is found
/// meanwhile, where the sessions are not very many.
const CONFIRMED_MS: u64 = 250;

/// The thread from outside.
#[derive(Debug, Default)]
pub struct Keeper {
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: AtomicBool,
    asked: AtomicBool,
    /// Somebody waits for what was changed last.
    urgent: AtomicBool,
    progress: Mutex<Progress>,
}

/// How far the index is being made anew.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// It is being made.
    pub running: bool,
    /// What was read so far, or the last time.
    pub counts: Counts,
    /// Sessions there probably are; `None` if nobody can tell.
    pub total: Option<u64>,
    /// How long it takes so far, or took, in milliseconds.
    pub ms: u64,
    /// How often it was made in this daemon's life.
    pub runs: u64,
    /// Why it could not be made the last time.
    pub error: Option<String>,
}

impl Keeper {
    /// How far the index is being made anew.
    #[must_use]
    pub fn progress(&self) -> Progress {
        // First: who sees that nothing is asked for any more sees what came of it.
        let asked = self.asked.load(Ordering::Acquire);
        let mut progress = lock(&self.progress).clone();
        progress.running |= asked;
        progress
    }

    fn tell(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut lock(&self.progress));
    }
}

impl Node {
    /// Asks for a new index; one that is being made is enough.
    pub fn ask_reindex(&self) {
        if !lock(&self.keeper.progress).running {
            self.keeper.asked.store(true, Ordering::Release);
            self.directory.bell.ring();
        }
    }

    /// Waits until the index is as far as the last daemon knew, at most `index_wait_ms`; says
    /// whether it is.
    pub async fn index_in_step(&self) -> bool {
        let limit = Duration::from_millis(self.limits.index_wait_ms);
        self.standings.wait(Standing::is_in_step, limit).await
    }

    /// Waits until lists can be answered, at most `index_wait_ms`; says whether they can. While the
    /// index is being made half a list would look like a whole one.
    pub async fn index_lists(&self) -> bool {
        if !self.index_in_step().await {
            return false;
        }
        let limit = Duration::from_millis(CONFIRMED_MS.saturating_sub(self.now().mono_ms));
        self.standings.wait(|standing| standing == Standing::Complete, limit).await;
        true
    }

    /// Waits until the index has every session, at most `index_wait_ms`; says whether it has.
    pub async fn index_complete(&self) -> bool {
        let limit = Duration::from_millis(self.limits.index_wait_ms);
        self.standings.wait(|standing| standing == Standing::Complete, limit).await
    }

    /// Waits until the index has what was told last of a session, at most `index_wait_ms`: what was
    /// deleted is gone there too when its client is told so.
    pub async fn index_forgets(&self, key: Key) {
        if self.standings.now() == Standing::Making {
            // There is nothing to forget; what is being made is told when it is there.
            return;
        }
        let limit = Duration::from_millis(self.limits.index_wait_ms);
        let until = tokio::time::Instant::now() + limit;
        self.keeper.urgent.store(true, Ordering::Release);
        self.directory.bell.ring();
        while self.directory.is_hot(key) && tokio::time::Instant::now() < until {
            tokio::time::sleep(FORGET_AGAIN).await;
        }
    }

    /// Opens the index, brings it in step with what the last daemon left, as far as that goes
    /// quickly, and starts its thread. Waits for the disk.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn open_index(self: &Arc<Self>, replayed: &Replayed) -> std::io::Result<Recovered> {
        let mut work = Work::new(self.clone());
        let mut recovered = work.start(replayed);
        // An index that is in step can be confirmed while the daemon serves.
        if !self.standings.now().is_in_step() {
            work.spend(START_BUDGET);
        }
        recovered.sessions = self.directory.count(None);
        let thread = std::thread::Builder::new().name("index".to_owned());
        *lock(&self.keeper.thread) = Some(thread.spawn(move || work.run())?);
        Ok(recovered)
    }

    /// Writes what the index lacks and ends its thread. Waits for the disk.
    pub fn close_index(&self) {
        self.keeper.stop.store(true, Ordering::Release);
        self.directory.bell.ring();
        let thread = lock(&self.keeper.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the index's thread failed");
        }
    }
}
