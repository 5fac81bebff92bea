//! What changes, told to whoever listens: rows as lanes publish them, and how far journals are
//! written.
//!
//! Lanes tell here; the MSP face listens. Nothing is kept for a listener that is slow: it is told
//! that it missed something and reads what is true now. A follower of one session reads the journal
//! up to the number it is told, so that whatever is shown is in the journal first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use frontdesk_core::fold::ApprovalMode;
use frontdesk_core::ids::{Key, Seq};
use frontdesk_core::policy;
use frontdesk_core::record::{Kind, Record};
use serde::Deserialize;
use tokio::sync::{broadcast, watch};

use super::directory::Row;
use crate::lock::lock;

/// Changes that a listener may be behind before it is told that it missed some.
const NEWS_KEPT: usize = 1024;

/// Something that happened to a session.
#[derive(Clone, Debug)]
pub struct News {
    /// Which session.
    pub key: Key,
    /// Its row as it was published; `None` if it is gone.
    pub row: Option<Arc<Row>>,
    /// It was made just now.
    pub born: bool,
    /// It was unloaded in order, and the reason in the journal.
    pub closed: Option<Box<str>>,
    /// What it is doing, or what waits for people, is not what it was.
    pub status: bool,
    /// What decides over its questions is not what it was.
    pub ruling: bool,
}

/// What a session is doing, as far as listeners are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Doing {
    loaded: bool,
    turn: bool,
    approvals: bool,
    inputs: bool,
}

/// What decides over questions: the policy, and whether somebody is there to answer.
type Ruling = Option<(ApprovalMode, bool)>;

impl Doing {
    fn of(row: &Row) -> Self {
        if !row.is_live() {
            return Self::default();
        }
        let (approvals, inputs) = row.view.open_questions();
        Self {
            loaded: true,
            turn: row.view.open_turn.is_some(),
            approvals: approvals > 0,
            inputs: inputs > 0,
        }
    }
}

/// What may be claimed of it.
fn ruling(row: &Row, asks: bool) -> Ruling {
    let policy = policy::effective(&row.view, asks).filter(|_| row.is_live())?;
    Some((policy.mode, row.clients > 0))
}

#[derive(Debug, Default)]
struct Told {
    doing: Doing,
    ruling: Ruling,
    born: bool,
    closed: Option<Box<str>>,
}

/// Where lanes tell and faces listen.
#[derive(Debug)]
pub struct Feed {
    news: broadcast::Sender<News>,
    /// Sessions with a lane: what was told of them last.
    told: Mutex<HashMap<Key, Told>>,
    /// Sessions that somebody follows: number of the last record that was written.
    heads: Mutex<HashMap<Key, watch::Sender<Seq>>>,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            news: broadcast::Sender::new(NEWS_KEPT),
            told: Mutex::default(),
            heads: Mutex::default(),
        }
    }
}

impl Feed {
    /// Listens to changes of all sessions from now on.
    #[must_use]
    pub fn listen(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }

    /// Follows one session: the value changes with every batch that is written.
    #[must_use]
    pub fn follow(&self, key: Key) -> watch::Receiver<Seq> {
        let mut heads = lock(&self.heads);
        heads.retain(|_, head| head.receiver_count() > 0);
        heads.entry(key).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// A lane wrote records to its journal.
    pub fn written(&self, key: Key, records: &[Record]) {
        let Some(last) = records.last() else { return };
        for record in records {
            match record.kind {
                Kind::Created => lock(&self.told).entry(key).or_default().born = true,
                Kind::Closed => {
                    let reason = record.payload::<Reason>().map(|told| told.reason);
                    lock(&self.told).entry(key).or_default().closed = reason;
                }
                _ => {}
            }
        }
        if let Some(head) = lock(&self.heads).get(&key) {
            head.send_replace(last.seq);
        }
    }

    /// A lane published its row, or took it out; `asks`: its agent's entry says that it asks.
    pub fn publish(&self, key: Key, row: Option<Arc<Row>>, asks: bool) {
        let now = row.as_deref().map(Doing::of).unwrap_or_default();
        let mut told = lock(&self.told);
        let before = told.entry(key).or_default();
        // One that is being closed is told of when it is: behind the record that says so.
        let closing = before.doing.loaded && row.as_deref().is_some_and(|r| r.is_loaded());
        let now = if closing && !now.loaded { before.doing } else { now };
        let ruled = row.as_deref().and_then(|row| ruling(row, asks));
        let (status, ruling) = (before.doing != now, before.ruling != ruled);
        before.ruling = ruled;
        // Unloaded in order is told with the status that says so, else it was about an earlier time.
        let closed = before.closed.take().filter(|_| before.doing.loaded && !now.loaded);
        let born = std::mem::take(&mut before.born);
        before.doing = now;
        if now == Doing::default() && ruled.is_none() {
            told.remove(&key);
        }
        drop(told);
        if self.news.receiver_count() > 0 {
            // Nobody listening any more is no error.
            let _ = self.news.send(News { key, row, born, closed, status, ruling });
        }
    }
}

#[derive(Deserialize)]
struct Reason {
    reason: Box<str>,
}

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
