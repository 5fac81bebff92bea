//! What a client is told of all sessions: births, unloads, what they are doing, and, where it asked
//! for it, changed rows.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::ids::Key;
use frontdesk_core::msp::ViewCursor;
use frontdesk_core::msp::object::Carrier;
use serde_json::{Map, Value, json};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::peer::Peer;
use super::session;
use crate::node::directory::Row;
use crate::node::feed::News;

/// Tells a client what happens until its connection ends.
pub(super) async fn tell(peer: Arc<Peer>, mut listener: broadcast::Receiver<News>) {
    let said = peer.said();
    let mut teller = Teller {
        stream: said.as_ref().is_some_and(|said| said.has("sessionListStream")),
        experimental: said.is_some_and(|said| said.experimental),
        changed: Changed::new(Duration::from_millis(peer.face.node.limits.msp_list_ms)),
        loaded: Loaded::default(),
        peer,
    };
    teller.loaded.replace(teller.loaded_now().iter().map(|row| row.key));
    loop {
        let due = teller.changed.due;
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => teller.rows(),
            news = listener.recv() => match news {
                Ok(news) => teller.take(&news),
                // The client was slow: what it missed is replaced by what is true now.
                Err(RecvError::Lagged(_)) => teller.all_over(),
                Err(RecvError::Closed) => return,
            },
        }
        if !teller.peer.conn.outbox.room().await {
            return;
        }
    }
}

struct Teller {
    peer: Arc<Peer>,
    /// Whether the client asked for changed rows.
    stream: bool,
    experimental: bool,
    changed: Changed,
    loaded: Loaded,
}

/// Sessions that are loaded as far as the client knows.
#[derive(Debug, Default)]
struct Loaded(HashSet<Key>);

impl Loaded {
    fn note(&mut self, key: Key, loaded: bool) {
        if loaded {
            self.0.insert(key);
        } else {
            self.0.remove(&key);
        }
    }

    /// Takes what is loaded now; gives what was and is not any more.
    fn replace(&mut self, now: impl Iterator<Item = Key>) -> Vec<Key> {
        let before = std::mem::replace(&mut self.0, now.collect());
        before.into_iter().filter(|key| !self.0.contains(key)).collect()
    }
}

/// Sessions whose rows have changed, gathered for a while: each is told once, as it is then.
#[derive(Debug)]
struct Changed {
    keys: HashSet<Key>,
    pause: Duration,
    /// When they are to be told; `None` if there are none.
    due: Option<Instant>,
}

impl Changed {
    fn new(pause: Duration) -> Self {
        Self { keys: HashSet::new(), pause, due: None }
    }

    /// One more; the first one begins the pause, and no later one makes it longer.
    fn note(&mut self, key: Key, now: Instant) {
        self.keys.insert(key);
        self.due.get_or_insert(now + self.pause);
    }

    fn take(&mut self) -> HashSet<Key> {
        self.due = None;
        std::mem::take(&mut self.keys)
    }
}

impl Teller {
    fn take(&mut self, news: &News) {
        let row = news.row.as_deref().filter(|row| row.is_listed());
        if news.born
            && let Some(row) = row
        {
            started(&self.peer, row);
        }
        let cursor = row.map(|row| ViewCursor::behind(row.view.seq).text(row.key));
        if let Some(why) = &news.closed {
            let params = json!({
                "sessionId": news.key,
                "reason": reason(why),
                "viewCursor": cursor,
            });
            self.peer.notify("session/closed", &params);
        }
        self.loaded.note(news.key, row.is_some_and(Row::is_loaded));
        // The permission state is experimental: others are not told of its changes alone.
        if (news.status || (news.ruling && self.experimental)) && !news.born {
            self.status(news.key, row, cursor);
        }
        if self.stream && row.is_some() && !news.born {
            self.changed.note(news.key, Instant::now());
        }
    }

    /// What a session is doing now.
    fn status(&self, key: Key, row: Option<&Row>, cursor: Option<String>) {
        let mut params = Map::new();
        params.insert("sessionId".into(), json!(key));
        params.insert("viewCursor".into(), json!(cursor));
        params.insert("status".into(), json!("notLoaded"));
        if let Some(row) = row
            && let Value::Object(object) = session::json(&self.peer, row, Carrier::Row)
        {
            for (name, value) in object {
                if matches!(name.as_str(), "status" | "attention" | "permissionState") {
                    params.insert(name, value);
                }
            }
        }
        self.peer.notify("session/statusChanged", &Value::Object(params));
    }

    /// The rows that changed, as they are now.
    fn rows(&mut self) {
        for key in self.changed.take() {
            let Some(row) = self.peer.face.node.directory.get(key) else { continue };
            let row = session::json(&self.peer, &row, Carrier::ListChanged);
            self.peer.notify("session/listChanged", &json!({ "session": row }));
        }
    }

    /// What is true now of all sessions that are loaded, or were when the client was told last.
    fn all_over(&mut self) {
        let now = self.loaded_now();
        let gone = self.loaded.replace(now.iter().map(|row| row.key));
        let directory = &self.peer.face.node.directory;
        let gone: Vec<_> = gone.into_iter().map(|key| (key, directory.get(key))).collect();
        let now = now.into_iter().map(|row| (row.key, Some(row)));
        for (key, row) in now.chain(gone) {
            let cursor = row.as_ref().map(|row| ViewCursor::behind(row.view.seq).text(key));
            self.status(key, row.as_deref(), cursor);
            if self.stream && row.is_some() {
                self.changed.note(key, Instant::now());
            }
        }
    }

    fn loaded_now(&self) -> Vec<Arc<Row>> {
        self.peer.face.node.directory.loaded(|_| true)
    }
}

/// A session was made: told once to each client.
pub(super) fn started(peer: &Peer, row: &Row) {
    if peer.first_told(row.key) {
        let session = session::json(peer, row, Carrier::Started);
        peer.notify("session/started", &json!({ "session": session }));
    }
}

/// The protocol's word for a reason in the journal.
fn reason(why: &str) -> &'static str {
    match why {
        "idle" => "idle",
        "stop" => "hostShutdown",
        // Somebody closed or deleted it, or its agent was ended for it.
        _ => "leave",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u128) -> Key {
        Key::new(uuid::Uuid::from_u128(number))
    }

    #[tokio::test(start_paused = true)]
    async fn changed_rows_wait_as_long_as_the_limit_says_and_not_longer() {
        let pause = Duration::from_millis(100);
        let mut changed = Changed::new(pause);
        assert_eq!(changed.due, None);
        let first = Instant::now();
        changed.note(key(1), first);
        // A row that goes on changing is told in time, too, and once.
        for ms in [1, 99, 100] {
            changed.note(key(1), first + Duration::from_millis(ms));
        }
        changed.note(key(2), first + Duration::from_millis(50));
        assert_eq!(changed.due, Some(first + pause));
        tokio::time::sleep_until(first + pause).await;
        assert_eq!(changed.take(), [key(1), key(2)].into());
        assert_eq!((changed.due, changed.take().len()), (None, 0));
        changed.note(key(1), Instant::now());
        assert_eq!(changed.due, Some(first + pause + pause), "the next ones wait anew");
    }

    #[test]
    fn who_fell_behind_is_told_what_is_loaded_no_more() {
        let mut loaded = Loaded::default();
        assert_eq!(loaded.replace([key(1), key(2)].into_iter()), []);
        loaded.note(key(3), true);
        loaded.note(key(1), false);
        assert_eq!(loaded.replace([key(2), key(4)].into_iter()), [key(3)]);
        assert_eq!(loaded.replace([].into_iter()).len(), 2);
    }
}
