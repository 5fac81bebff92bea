//! Frames waiting for one client: bounded in bytes, written in order by one task.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;

use crate::lock::lock;

/// Frames up to this size are gathered into one write.
const GATHER_BYTES: usize = 64 << 10;

/// What waits for a client.
#[derive(Debug)]
pub struct Outbox {
    state: Mutex<State>,
    ready: Notify,
    room: Notify,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct State {
    frames: VecDeque<Waiting>,
    bytes: usize,
    closed: bool,
}

/// A frame and the mark before it, which may be empty.
#[derive(Debug)]
struct Waiting {
    mark: Bytes,
    frame: Bytes,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It waits or is being written.
    Fits,
    /// It waits, and no more should be pushed before there is room.
    Full,
    /// The client is gone.
    Closed,
}

impl Outbox {
    /// An outbox that is full at `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self {
            state: Mutex::default(),
            ready: Notify::new(),
            room: Notify::new(),
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
        }
    }

    /// Adds a frame without its line end. It is kept even when the outbox is full: what must not be
    /// lost (answers, questions) may overshoot; what can be read from the journal stops at `Full`.
    pub fn push(&self, frame: Bytes) -> Pushed {
        self.push_marked(Bytes::new(), frame)
    }

    /// The same, with a mark before it on its line.
    pub fn push_marked(&self, mark: Bytes, frame: Bytes) -> Pushed {
        let mut state = lock(&self.state);
        if state.closed {
            return Pushed::Closed;
        }
        state.bytes += mark.len() + frame.len() + 1;
        state.frames.push_back(Waiting { mark, frame });
        let full = state.bytes > self.bytes_max;
        drop(state);
        self.ready.notify_one();
        if full { Pushed::Full } else { Pushed::Fits }
    }

    /// Waits until less than half of the limit waits; `false` if the client is gone.
    pub async fn room(&self) -> bool {
        loop {
            let notified = self.room.notified();
            {
                let state = lock(&self.state);
                if state.closed {
                    return false;
                }
                if state.bytes <= self.bytes_max / 2 {
                    return true;
                }
            }
            notified.await;
        }
    }

    /// Whether everything that was pushed has been written.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.closed || (state.frames.is_empty() && state.bytes == 0)
    }

    /// No more frames; what waits is dropped.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.frames.clear();
        state.bytes = 0;
        drop(state);
        self.ready.notify_one();
        self.room.notify_waiters();
    }

    /// No more frames are taken, but those that wait are still written.
    pub fn finish(&self) {
        lock(&self.state).closed = true;
        self.ready.notify_one();
        self.room.notify_waiters();
    }

    /// Writes frames until the outbox is closed or the client takes nothing for `stall`.
    pub async fn write_to(&self, mut out: impl AsyncWrite + Unpin, stall: Duration) {
        let mut gathered = Vec::new();
        loop {
            let (frames, closed) = self.take().await;
            if frames.is_empty() && closed {
                break;
            }
            let mut written = 0;
            gathered.clear();
            let done = async {
                for Waiting { mark, frame } in &frames {
                    written += mark.len() + frame.len() + 1;
                    gathered.extend_from_slice(mark);
                    if frame.len() > GATHER_BYTES {
                        out.write_all(&gathered).await?;
                        gathered.clear();
                        out.write_all(frame).await?;
                    } else {
                        gathered.extend_from_slice(frame);
                    }
                    gathered.push(b'\n');
                    if gathered.len() > GATHER_BYTES {
                        out.write_all(&gathered).await?;
                        gathered.clear();
                    }
                }
                out.write_all(&gathered).await?;
                out.flush().await
            };
            if !matches!(tokio::time::timeout(stall, done).await, Ok(Ok(()))) {
                self.close();
                break;
            }
            gathered.shrink_to(GATHER_BYTES / 16);
            self.written(written);
        }
        let _ = out.shutdown().await;
        self.close();
    }

    async fn take(&self) -> (VecDeque<Waiting>, bool) {
        loop {
            {
                let mut state = lock(&self.state);
                if !state.frames.is_empty() || state.closed {
                    return (std::mem::take(&mut state.frames), state.closed);
                }
            }
            self.ready.notified().await;
        }
    }

    fn written(&self, bytes: usize) {
        let mut state = lock(&self.state);
        state.bytes = state.bytes.saturating_sub(bytes);
        let room = state.bytes <= self.bytes_max / 2;
        drop(state);
        if room {
            self.room.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn frames_come_out_in_order_and_the_limit_is_told() {
        let outbox = Arc::new(Outbox::new(10));
        assert_eq!(outbox.push(Bytes::from_static(b"12345")), Pushed::Fits);
        assert_eq!(outbox.push(Bytes::from_static(b"678")), Pushed::Fits);
        assert_eq!(outbox.push(Bytes::from_static(b"9")), Pushed::Full);
        let (left, mut right) = tokio::io::duplex(64);
        let writer = tokio::spawn({
            let outbox = outbox.clone();
            async move { outbox.write_to(left, Duration::from_secs(5)).await }
        });
        assert!(outbox.room().await);
        outbox.finish();
        let mut text = String::new();
        right.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "12345\n678\n9\n");
        writer.await.unwrap();
        assert_eq!(outbox.push(Bytes::new()), Pushed::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up() {
        let outbox = Outbox::new(1 << 20);
        outbox.push(Bytes::from(vec![b'x'; 4096]));
        let (left, _right) = tokio::io::duplex(16);
        outbox.write_to(left, Duration::from_secs(60)).await;
        assert_eq!(outbox.push(Bytes::new()), Pushed::Closed);
        assert!(!outbox.room().await);
    }
}
