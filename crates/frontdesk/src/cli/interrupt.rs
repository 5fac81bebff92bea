//! Ctrl-C as an event instead of an end.
//!
//! SIGINT is blocked in every thread and taken by one that waits for it, so no code runs inside a
//! signal handler. Child processes are not affected: the standard library starts them with an
//! empty signal mask.

use std::io;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

use super::client::Event;

/// How long a command may leave its queue full before Ctrl-C ends it at once.
const STUCK_MS_MAX: u64 = 2_000;

/// SIGINT, blocked in this thread and all it starts from now on.
pub(crate) struct Interrupts(SigSet);

impl Interrupts {
    /// Blocks SIGINT. To be called before any other thread starts.
    pub(crate) fn block() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.thread_block()?;
        Ok(Self(signals))
    }

    /// Puts an [`Event::Interrupt`] into the queue for each Ctrl-C.
    pub(crate) fn forward(self, queue: SyncSender<Event>) -> io::Result<()> {
        std::thread::Builder::new().name("interrupts".to_owned()).spawn(move || {
            while self.0.wait().is_ok() {
                if !offer(&queue) {
                    return;
                }
            }
        })?;
        Ok(())
    }
}

/// Offers one interrupt; false when nobody takes events any more.
fn offer(queue: &SyncSender<Event>) -> bool {
    let deadline = Instant::now() + Duration::from_millis(STUCK_MS_MAX);
    let mut event = Event::Interrupt;
    loop {
        match queue.try_send(event) {
            Ok(()) => return true,
            Err(TrySendError::Disconnected(_)) => return false,
            Err(TrySendError::Full(back)) if Instant::now() < deadline => {
                event = back;
                std::thread::sleep(Duration::from_millis(10));
            }
            // The command is stuck, most likely in a write that nobody reads. The person at the
            // keyboard wants it gone, and nothing here needs an orderly end.
            Err(TrySendError::Full(_)) => std::process::exit(super::Exit::Failed as i32),
        }
    }
}
