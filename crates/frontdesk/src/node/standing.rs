//! How far the index can be trusted, and the bell by which its thread is called.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use crate::lock::lock;

/// How the index stands to the journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is none: it is being made, and only sessions in memory are known.
    Making,
    /// There is one, which was not in step with the journals and is being compared.
    Behind,
    /// It was in step when the last daemon ended; that is being confirmed.
    Unconfirmed,
    /// It has every session.
    Complete,
}

impl Standing {
    /// Whether lists are right, as far as the daemon before tells.
    #[must_use]
    pub fn is_in_step(self) -> bool {
        matches!(self, Self::Unconfirmed | Self::Complete)
    }
}

/// Where it is told how the index stands.
#[derive(Debug)]
pub struct Standings(watch::Sender<Standing>);

impl Default for Standings {
    fn default() -> Self {
        Self(watch::Sender::new(Standing::Making))
    }
}

impl Standings {
    /// How the index stands now.
    #[must_use]
    pub fn now(&self) -> Standing {
        *self.0.borrow()
    }

    pub(super) fn set(&self, standing: Standing) {
        self.0.send_replace(standing);
    }

    /// Waits until the index stands as `wanted` asks, at most `limit`. Says whether it does.
    pub async fn wait(&self, wanted: impl Fn(Standing) -> bool, limit: Duration) -> bool {
        if wanted(self.now()) {
            return true;
        }
        let mut told = self.0.subscribe();
        let waited = tokio::time::timeout(limit, told.wait_for(|standing| wanted(*standing)));
        matches!(waited.await, Ok(Ok(_)))
    }
}

/// Called from many threads, waited for by one.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Mutex<u64>,
    waiting: Condvar,
}

impl Bell {
    /// Calls who waits.
    pub fn ring(&self) {
        let mut rung = lock(&self.rung);
        *rung = rung.wrapping_add(1);
        drop(rung);
        self.waiting.notify_all();
    }

    /// How often it has rung.
    #[must_use]
    pub fn count(&self) -> u64 {
        *lock(&self.rung)
    }

    /// Waits until it rings after it was counted as `since`, at most `limit`.
    pub fn wait(&self, since: u64, limit: Duration) {
        let rung = lock(&self.rung);
        // Who is woken early looks and waits again.
        drop(self.waiting.wait_timeout_while(rung, limit, |rung| *rung == since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_that_rang_before_somebody_waits_is_heard() {
        let bell = Bell::default();
        let since = bell.count();
        bell.ring();
        bell.wait(since, Duration::from_secs(3_600));
        assert_ne!(bell.count(), since);
    }

    #[tokio::test(start_paused = true)]
    async fn a_standing_is_waited_for_and_not_for_ever() {
        let standings = Standings::default();
        let complete = |standing| standing == Standing::Complete;
        assert!(!standings.wait(complete, Duration::from_secs(9)).await);
        standings.set(Standing::Unconfirmed);
        assert!(standings.wait(Standing::is_in_step, Duration::ZERO).await);
        let ((), waited) = tokio::join!(
            async { standings.set(Standing::Complete) },
            standings.wait(complete, Duration::from_secs(9))
        );
        assert!(waited);
    }
}
