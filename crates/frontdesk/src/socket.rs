//! The two halves of a unix socket of which the runtime is told only when it can be read.
//!
//! The runtime's own socket asks for both directions as long as it lives. Whenever the other side has
//! read something the kernel then tells of room that nobody waits for, and wakes a thread for it: once
//! for each frame, at the very moment at which the next one comes. Here room is asked for while
//! somebody waits for it, and no longer.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream as Plain;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

/// How long a writer waits where not even a descriptor is left to be told of room with.
const WITHOUT_DESCRIPTOR: Duration = Duration::from_millis(10);

/// Splits a socket into what reads it and what writes it.
///
/// # Errors
/// If the runtime cannot watch it.
pub fn split(stream: UnixStream) -> io::Result<(Reader, Writer)> {
    let plain = stream.into_std()?;
    let both = Arc::new(watch(plain, Interest::READABLE)?);
    Ok((Reader(Arc::clone(&both)), Writer { both, waits: None }))
}

/// The half that reads.
#[derive(Debug)]
pub struct Reader(Arc<AsyncFd<Plain>>);

impl AsyncRead for Reader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            let room = buf.initialize_unfilled();
            match self.0.get_ref().read(room) {
                Ok(count) => {
                    // It is empty now, and what comes later is told anew: no second look.
                    if count > 0 && count < room.len() {
                        guard.clear_ready();
                    }
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => guard.clear_ready(),
                    io::ErrorKind::Interrupted => {}
                    _ => return Poll::Ready(Err(error)),
                },
            }
        }
    }
}

type Waiting = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// The half that writes. The other side reads the end when it is dropped.
pub struct Writer {
    both: Arc<AsyncFd<Plain>>,
    /// Room that a write waits for.
    waits: Option<Waiting>,
}

impl Writer {
    /// Writes what the socket takes at once, of one buffer after the other.
    ///
    /// # Errors
    /// `WouldBlock` if it takes nothing, and the socket's own.
    pub fn try_write_vectored(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.both.get_ref().write_vectored(buffers)
    }

    /// Waits until the socket takes something, or never will.
    ///
    /// # Errors
    /// If the runtime cannot watch it.
    pub async fn writable(&self) -> io::Result<()> {
        has_room(Arc::clone(&self.both)).await
    }
}

#[expect(
    deprecated,
    reason = "it takes any type at its word that the descriptor stays the same; a standard socket keeps that word, and the constructor in its place is an unsafe one"
)]
fn watch(socket: Plain, interest: Interest) -> io::Result<AsyncFd<Plain>> {
    AsyncFd::with_interest(socket, interest)
}

/// A descriptor of its own is watched for room: one descriptor has one interest.
async fn has_room(both: Arc<AsyncFd<Plain>>) -> io::Result<()> {
    let Ok(own) = both.get_ref().try_clone() else {
        tokio::time::sleep(WITHOUT_DESCRIPTOR).await;
        return Ok(());
    };
    let watched = watch(own, Interest::WRITABLE)?;
    watched.writable().await?.retain_ready();
    Ok(())
}

impl AsyncWrite for Writer {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(waits) = &mut self.waits {
                ready!(waits.as_mut().poll(cx))?;
                self.waits = None;
            }
            match self.both.get_ref().write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.waits = Some(Box::pin(has_room(Arc::clone(&self.both))));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.both.get_ref().shutdown(Shutdown::Write))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Where it is gone already there is nothing to end.
        let _ = self.both.get_ref().shutdown(Shutdown::Write);
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("both", &self.both).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn pair() -> (Reader, Writer, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (reader, writer) = split(ours).unwrap();
        (reader, writer, theirs)
    }

    #[tokio::test]
    async fn more_than_the_socket_takes_comes_whole_in_both_directions() {
        let (mut reader, mut writer, theirs) = pair();
        let (mut from_us, mut to_us) = theirs.into_split();
        let sent: Vec<u8> = (0..8_u32 << 20).map(|at| (at / 7) as u8).collect();
        let (ours, other) = (sent.clone(), sent.clone());
        let writing = tokio::spawn(async move {
            writer.write_all(&ours).await.unwrap();
            writer.shutdown().await.unwrap();
            writer
        });
        let answering = tokio::spawn(async move { to_us.write_all(&other).await.unwrap() });
        let (mut got, mut back) = (Vec::new(), Vec::new());
        from_us.read_to_end(&mut got).await.unwrap();
        reader.read_to_end(&mut back).await.unwrap();
        assert!(got == sent && back == sent, "{} and {} bytes", got.len(), back.len());
        answering.await.unwrap();
        drop(writing.await.unwrap());
    }

    #[tokio::test]
    async fn the_end_is_read_behind_what_was_written_before_it() {
        let (mut reader, writer, mut theirs) = pair();
        theirs.write_all(b"last").await.unwrap();
        drop(theirs.into_split().1);
        let mut text = String::new();
        reader.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "last");
        let (mut reader, other, mut theirs) = pair();
        drop(other);
        let mut text = String::new();
        theirs.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "", "a writer that is gone is the end");
        theirs.write_all(b"heard").await.unwrap();
        drop(theirs);
        reader.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "heard", "the other half lives on");
        drop(writer);
    }

    #[tokio::test]
    async fn whoever_waits_for_room_hears_that_the_other_side_is_gone() {
        let (_reader, mut writer, theirs) = pair();
        let filled = loop {
            match writer.try_write_vectored(&[IoSlice::new(&[0; 4096])]) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(filled.kind(), io::ErrorKind::WouldBlock);
        let waiting = tokio::spawn(async move {
            writer.writable().await.unwrap();
            writer.write_all(b"more").await
        });
        drop(theirs);
        assert!(waiting.await.unwrap().is_err(), "nobody will read it");
    }
}
