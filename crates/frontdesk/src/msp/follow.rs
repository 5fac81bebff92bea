//! One subscription: a session's events behind a cursor, then as they are written.
//!
//! A follower reads the journal and nothing else, so nothing is shown that is not in it, and history
//! and live are one stream. A slow client is simply read for later.

use std::sync::Arc;

use frontdesk_core::ids::Seq;
use frontdesk_core::msp::{Event, ViewCursor};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::frames;
use super::page::missing;
use super::peer::Peer;
use super::read::unreadable;
use super::track::{Walk, blocking, upto};
use crate::conn::outbox::Pushed;
use crate::node::directory::Row;
use frontdesk_core::msp::MspError;

/// Events shown before the client's room is looked at.
const EVENTS_AT_ONCE: usize = 64;

/// A running subscription; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Follower {
    task: JoinHandle<()>,
    go: Option<oneshot::Sender<()>>,
}

impl Follower {
    /// Looks where the session stands now; the follower waits for [`Self::go`] before it sends.
    /// Gives the cursor of the last event there is.
    ///
    /// # Errors
    /// `-32011` for a cursor that was never given; `-32603` if the journal cannot be read.
    pub(super) async fn begin(
        peer: &Arc<Peer>,
        row: &Arc<Row>,
        after: Option<&str>,
    ) -> Result<(Self, ViewCursor), MspError> {
        let key = row.key;
        let after = match after {
            Some(text) => Some(ViewCursor::parse(text, key).ok_or_else(|| missing(key, text))?),
            None => None,
        };
        // Followed before the journal is read: what is written meanwhile is noticed.
        let written = peer.face.node.feed.follow(key);
        let path = row.path.clone();
        let now = peer.face.node.directory.get(key);
        let upto = upto(&peer.face, now.as_ref().unwrap_or(row));
        let (walk, head) = blocking(&peer.face, move |face| {
            let end = Walk::behind(&face.tracks, key, &path, upto)?;
            let head = (end.state().seq(), end.state().head());
            let walk = match after {
                Some(after) => Walk::to(&face.tracks, key, &path, after.seq)?,
                None => end,
            };
            Ok((walk, head))
        })
        .await
        .map_err(unreadable)?;
        let (seq, head) = head;
        if let Some(after) = after.filter(|after| after.seq > seq) {
            return Err(missing(key, &after.text(key)));
        }
        let (go, start) = oneshot::channel();
        let stream = Stream {
            peer: peer.clone(),
            walk: Some(walk),
            shown: after.unwrap_or(head),
            skipped: None,
            limit: seq,
        };
        let task = tokio::spawn(async move {
            if start.await.is_ok() {
                stream.run(written).await;
            }
        });
        Ok((Self { task, go: Some(go) }, head))
    }

    /// The client has its answer: what is behind it may be sent.
    pub(super) fn go(&mut self) {
        if let Some(go) = self.go.take() {
            let _ = go.send(());
        }
    }

    /// Ends it; nothing is sent any more when this is through.
    pub(super) async fn end(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Stream {
    peer: Arc<Peer>,
    walk: Option<Walk>,
    /// The cursor of the last event that was shown or passed over.
    shown: ViewCursor,
    /// The last record that may be shown.
    limit: Seq,
    /// Where a gap began: behind this cursor events did not fit a frame.
    skipped: Option<ViewCursor>,
}

impl Stream {
    async fn run(mut self, mut written: watch::Receiver<Seq>) {
        loop {
            // What is written from here on wakes the wait below.
            self.limit = self.limit.max(*written.borrow_and_update());
            loop {
                let events = match self.read().await {
                    Ok(events) => events,
                    Err(error) => {
                        tracing::error!(error, "failed to follow a session");
                        // The client must not take silence for the whole.
                        return self.peer.conn.outbox.close();
                    }
                };
                let Some(events) = events else { break };
                for event in events {
                    self.show(event);
                }
                if !self.peer.conn.outbox.room().await {
                    return;
                }
            }
            if written.changed().await.is_err() {
                return;
            }
        }
    }

    /// Some of the next events; `None` at the present end.
    async fn read(&mut self) -> Result<Option<Vec<Event>>, String> {
        let Some(mut walk) = self.walk.take() else { return Ok(None) };
        walk.limit(self.limit);
        let (walk, events, more) = blocking(&self.peer.face, move |face| {
            let mut events = Vec::new();
            let mut more = true;
            while more && events.len() < EVENTS_AT_ONCE {
                more = walk.step(&face.tracks, &mut events)?;
            }
            Ok((walk, events, more))
        })
        .await?;
        self.walk = Some(walk);
        Ok((more || !events.is_empty()).then_some(events))
    }

    fn show(&mut self, event: Event) {
        if event.cursor <= self.shown {
            return;
        }
        let frame = frames::notification(event.method, &event.params);
        if frame.len() > self.peer.face.frame_bytes() {
            self.skipped.get_or_insert(self.shown);
            self.shown = event.cursor;
            return;
        }
        if let Some(after) = self.skipped.take() {
            self.gap(&event, after);
        }
        self.shown = event.cursor;
        if self.peer.said().is_some_and(|said| said.wants(event.method)) {
            self.peer.send(frame);
        }
    }

    /// Something was left out between two cursors; both are told, and are not part of it.
    fn gap(&self, event: &Event, after: ViewCursor) -> Pushed {
        let session = &event.params["sessionId"];
        let Some(key) = session.as_str().and_then(|key| key.parse().ok()) else {
            return Pushed::Fits;
        };
        let params: Value = json!({ "sessionId": session, "after": after.text(key), "next": event.params["viewCursor"] });
        self.peer.notify("view/gap", &params)
    }
}
