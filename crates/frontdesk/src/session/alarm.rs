//! The one timer of a lane.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// A deadline that moves with every message, behind one timer that seldom does: a later deadline
/// leaves the timer as it is, and what rings too early is set again.
pub(super) struct Alarm {
    sleep: Pin<Box<Sleep>>,
    armed: Option<Instant>,
    due: Option<Instant>,
}

impl Alarm {
    pub(super) fn new() -> Self {
        let sleep = Box::pin(tokio::time::sleep(Duration::ZERO));
        Self { sleep, armed: None, due: None }
    }

    pub(super) fn set(&mut self, due: Option<Instant>) {
        self.due = due;
        if let Some(at) = due.filter(|at| self.armed.is_none_or(|armed| *at < armed)) {
            self.arm(at);
        }
    }

    fn arm(&mut self, at: Instant) {
        self.sleep.as_mut().reset(at);
        self.armed = Some(at);
    }

    /// Waits until the deadline is over; for ever if there is none.
    pub(super) async fn rings(&mut self) {
        loop {
            if self.armed.is_none() {
                std::future::pending::<()>().await;
            }
            self.sleep.as_mut().await;
            self.armed = None;
            match self.due {
                Some(due) if due <= Instant::now() => return,
                Some(due) => self.arm(due),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_alarm_rings_at_its_last_deadline_and_never_before() {
        let start = Instant::now();
        let at = |ms| Some(start + Duration::from_millis(ms));
        let mut alarm = Alarm::new();
        alarm.set(at(100));
        alarm.set(at(500));
        alarm.rings().await;
        assert_eq!(start.elapsed().as_millis(), 500);
        alarm.set(at(900));
        alarm.set(at(700));
        alarm.rings().await;
        assert_eq!(start.elapsed().as_millis(), 700);
        alarm.set(None);
        let silent = tokio::time::timeout(Duration::from_secs(9), alarm.rings()).await;
        assert!(silent.is_err(), "nothing was due");
    }
}
