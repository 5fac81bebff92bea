//! What a daemon has to say to a holder, in order. Used by `link` and its receiver.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use frontdesk_core::hold::{PIECE_BYTES_MAX, ToHolder, input_header, input_piece_header};
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Semaphore, oneshot};

use super::{LinkError, Room};

/// Frames queued for one holder, in bytes. A longer frame is sent when it has the queue for itself.
const QUEUE_BYTES_MAX: u32 = 1 << 20;
/// A frame up to this size is copied behind its header; a longer one is not copied. In bytes.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// Buffers given to the kernel in one call.
const SLICES_MAX: usize = 16;
/// Output that may be handled and not acknowledged, in bytes: an acknowledgement alone costs both
/// sides as much as a frame, so small ones wait for the next frame or for each other.
pub(super) const UNACKED_BYTES_MAX: u64 = 64 << 10;

/// What both ends of a link share.
#[derive(Debug)]
pub(super) struct Shared {
    stream: OwnedWriteHalf,
    outbox: Mutex<Outbox>,
    /// One permit a byte of room in the queue.
    room: Semaphore,
    questions: Mutex<VecDeque<(String, oneshot::Sender<ClaimAnswer>)>>,
}

#[derive(Debug, Default)]
struct Outbox {
    /// Bytes in order, each with the permits to give back once they are sent.
    queue: VecDeque<(Bytes, u32)>,
    /// The latest acknowledgement that was not sent.
    ack: Option<u64>,
    /// The latest one that was.
    acked: u64,
    /// One is sent by itself when it is so much further than the last, in bytes.
    ack_step: u64,
    last_number: u64,
    /// Whether a task is waiting for the socket to take more.
    is_flushing: bool,
    is_lost: bool,
}

/// A holder's word about a claim.
#[derive(Debug)]
pub(super) enum ClaimAnswer {
    Claimed,
    Held(String),
    Failed(String),
    Released,
}

#[derive(PartialEq, Eq)]
enum Flushed {
    All,
    Blocked,
    Lost,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(stream: OwnedWriteHalf, ack_step: u64) -> Self {
        Self {
            stream,
            outbox: Mutex::new(Outbox { ack_step, ..Outbox::default() }),
            room: Semaphore::new(QUEUE_BYTES_MAX as usize),
            questions: Mutex::default(),
        }
    }

    pub(super) async fn room(&self, bytes: usize) -> Result<Room<'_>, LinkError> {
        Room::wait(&self.room, bytes, QUEUE_BYTES_MAX).await.ok_or(LinkError::HolderLost)
    }

    pub(super) fn put(
        self: &Arc<Self>,
        number: u64,
        frame: Bytes,
        room: Room<'_>,
    ) -> Result<(), LinkError> {
        let mut outbox = lock(&self.outbox);
        if outbox.is_lost {
            return Err(LinkError::HolderLost);
        }
        if number <= outbox.last_number {
            return Err(LinkError::OutOfOrder { number, last: outbox.last_number });
        }
        outbox.last_number = number;
        outbox.push_frame(number, frame, room.taken());
        self.flush_or_leave(outbox);
        Ok(())
    }

    pub(super) fn push(self: &Arc<Self>, message: &ToHolder<'_>) {
        let mut outbox = lock(&self.outbox);
        outbox.push(message);
        self.flush_or_leave(outbox);
    }

    pub(super) fn ack(self: &Arc<Self>, offset: u64) {
        let mut outbox = lock(&self.outbox);
        outbox.ack = outbox.ack.max(Some(offset));
        if outbox.ack_is_due() {
            self.flush_or_leave(outbox);
        }
    }

    /// The output has ended: from here on acknowledgements do not wait.
    pub(super) fn ack_at_once(self: &Arc<Self>) {
        let mut outbox = lock(&self.outbox);
        outbox.ack_step = 0;
        self.flush_or_leave(outbox);
    }

    pub(super) fn ask(
        self: &Arc<Self>,
        name: &str,
        answer: oneshot::Sender<ClaimAnswer>,
        question: &ToHolder<'_>,
    ) {
        // Both in one step, so that answers come in the order of the list.
        let mut outbox = lock(&self.outbox);
        if !outbox.is_lost {
            lock(&self.questions).push_back((name.to_owned(), answer));
            outbox.push(question);
            self.flush_or_leave(outbox);
        }
    }

    /// Hands an answer to the oldest question about that claim.
    pub(super) fn answer(&self, name: &str, answer: ClaimAnswer) {
        let mut questions = lock(&self.questions);
        if let Some(place) = questions.iter().position(|(asked, _)| asked == name)
            && let Some((_, asker)) = questions.remove(place)
        {
            // Whoever asked may have stopped waiting.
            let _ = asker.send(answer);
        }
    }

    /// The holder is gone: everybody who waits learns it.
    pub(super) fn lose(&self) {
        let mut outbox = lock(&self.outbox);
        outbox.is_lost = true;
        outbox.queue.clear();
        self.room.close();
        lock(&self.questions).clear();
    }

    /// Sends what the socket takes now and leaves the rest to a task.
    fn flush_or_leave(self: &Arc<Self>, mut outbox: MutexGuard<'_, Outbox>) {
        if outbox.is_flushing || outbox.is_lost {
            return;
        }
        if self.flush(&mut outbox) == Flushed::Blocked {
            outbox.is_flushing = true;
            drop(outbox);
            tokio::spawn(flush_rest(Arc::clone(self)));
        }
    }

    fn flush(&self, outbox: &mut Outbox) -> Flushed {
        if (outbox.ack_is_due() || !outbox.queue.is_empty())
            && let Some(offset) = outbox.ack.take()
        {
            outbox.acked = offset;
            outbox.push(&ToHolder::Ack { offset });
        }
        loop {
            if outbox.queue.is_empty() {
                return Flushed::All;
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = outbox.queue.len().min(SLICES_MAX);
            for (slice, (bytes, _)) in slices.iter_mut().zip(&outbox.queue) {
                *slice = IoSlice::new(bytes);
            }
            match self.stream.try_write_vectored(&slices[..count]) {
                Ok(sent) => self.room.add_permits(outbox.sent(sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Flushed::Blocked;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The receiver finds the same and tells.
                Err(_) => {
                    outbox.is_lost = true;
                    outbox.queue.clear();
                    self.room.close();
                    return Flushed::Lost;
                }
            }
        }
    }
}

async fn flush_rest(shared: Arc<Shared>) {
    loop {
        let writable = shared.stream.writable().await;
        let mut outbox = lock(&shared.outbox);
        if writable.is_err() || outbox.is_lost || shared.flush(&mut outbox) != Flushed::Blocked {
            outbox.is_flushing = false;
            return;
        }
    }
}

impl Outbox {
    fn ack_is_due(&self) -> bool {
        self.ack.is_some_and(|offset| offset.saturating_sub(self.acked) >= self.ack_step)
    }

    fn push(&mut self, message: &ToHolder<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.queue.push_back((bytes.into(), 0));
    }

    fn push_frame(&mut self, number: u64, frame: Bytes, cost: u32) {
        let total_bytes = frame.len() as u64;
        if frame.len() <= COPIED_BYTES_MAX {
            let header = input_header(number, total_bytes, frame.len());
            let mut message = BytesMut::with_capacity(header.len() + frame.len());
            message.put_slice(&header);
            message.put_slice(&frame);
            self.queue.push_back((message.freeze(), cost));
            return;
        }
        let mut rest = frame;
        let mut piece = rest.split_to(rest.len().min(PIECE_BYTES_MAX));
        let mut header = Bytes::copy_from_slice(&input_header(number, total_bytes, piece.len()));
        loop {
            self.queue.push_back((header, 0));
            self.queue.push_back((piece, if rest.is_empty() { cost } else { 0 }));
            if rest.is_empty() {
                return;
            }
            piece = rest.split_to(rest.len().min(PIECE_BYTES_MAX));
            header = Bytes::copy_from_slice(&input_piece_header(piece.len()));
        }
    }

    /// Takes what was sent off the queue and returns the room it gives.
    fn sent(&mut self, mut count: usize) -> usize {
        let mut permits = 0;
        while let Some((bytes, cost)) = self.queue.front_mut() {
            if count < bytes.len() {
                let _ = bytes.split_to(count);
                break;
            }
            count -= bytes.len();
            permits += *cost as usize;
            self.queue.pop_front();
        }
        permits
    }
}
