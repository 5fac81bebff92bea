use std::path::PathBuf;

use bytes::Bytes;
use frontdesk_core::fold::{OpenTurn, View};
use frontdesk_core::record::RECORD_VERSION;
use frontdesk_core::status::{Owner, State};
use serde_json::json;

use super::*;
use crate::node::directory::Live;

fn key() -> Key {
    "01a22bb6-2da2-7132-b868-40a3a5d1f51f".parse().unwrap()
}

fn row(live: Option<Option<State>>) -> Row {
    let mut row = Row::cold(key(), View::default(), PathBuf::from("/x"), 0);
    let owner = Owner {
        agent: "a".into(),
        instance: "i".into(),
        pid: None,
        since: String::new(),
        epoch: 1,
    };
    row.live = live.map(|state| Live {
        state,
        lease: frontdesk_core::lease::Phase::Live,
        owner: state.map(|_| Arc::new(owner.clone())),
    });
    row
}

fn record(kind: Kind, data: &serde_json::Value) -> Record {
    Record {
        v: RECORD_VERSION,
        seq: 5,
        epoch: 1,
        at: jiff::Timestamp::UNIX_EPOCH,
        kind,
        src: None,
        data: Bytes::from(data.to_string()),
    }
}

struct Bench {
    feed: Feed,
    news: broadcast::Receiver<News>,
}

impl Bench {
    fn new() -> Self {
        let feed = Feed::default();
        let news = feed.listen();
        Self { feed, news }
    }

    /// Publishes a row; born, closed, status, ruling as they are told.
    fn publish(&mut self, row: Row) -> (bool, Option<String>, bool, bool) {
        self.feed.publish(key(), Some(Arc::new(row)), true);
        let news = self.news.try_recv().unwrap();
        (news.born, news.closed.map(Into::into), news.status, news.ruling)
    }
}

#[test]
fn a_status_is_told_when_it_changes_and_a_birth_once() {
    let mut bench = Bench::new();
    bench.feed.written(key(), &[record(Kind::Created, &json!({}))]);
    assert_eq!(bench.publish(row(Some(Some(State::Idle)))), (true, None, true, false));
    assert_eq!(bench.publish(row(Some(Some(State::Idle)))), (false, None, false, false));
    let mut running = row(Some(Some(State::Running)));
    Arc::make_mut(&mut running.view).open_turn = Some(OpenTurn::default());
    assert_eq!(bench.publish(running), (false, None, true, false));
}

#[test]
fn a_close_is_told_behind_its_record_and_a_crash_is_no_close() {
    let mut bench = Bench::new();
    bench.publish(row(Some(Some(State::Idle))));
    // Being closed is not closed yet.
    assert_eq!(bench.publish(row(Some(None))), (false, None, false, false));
    bench.feed.written(key(), &[record(Kind::Closed, &json!({ "reason": "idle" }))]);
    assert_eq!(bench.publish(row(None)), (false, Some("idle".into()), true, false));
    // Starting is not loaded yet.
    assert_eq!(bench.publish(row(Some(None))), (false, None, false, false));
    assert_eq!(bench.publish(row(Some(Some(State::Idle)))), (false, None, true, false));
    bench.feed.written(key(), &[record(Kind::Lost, &json!({ "reason": "gone" }))]);
    assert_eq!(bench.publish(row(None)), (false, None, true, false));
    assert!(lock(&bench.feed.told).is_empty(), "nothing is kept of a cold session");
}

#[test]
fn a_policy_is_told_apart_from_the_status() {
    let mut bench = Bench::new();
    bench.publish(row(Some(Some(State::Idle))));
    let mut ruled = row(Some(Some(State::Idle)));
    let policy = json!({ "mode": "onRequest", "source": "startup" });
    Arc::make_mut(&mut ruled.view).policy = serde_json::from_value(policy).unwrap();
    assert_eq!(bench.publish(ruled.clone()), (false, None, false, true));
    ruled.clients = 1;
    assert_eq!(bench.publish(ruled), (false, None, false, true));
}

#[test]
fn a_follower_is_told_how_far_is_written_and_one_that_left_leaves_nothing() {
    let feed = Feed::default();
    let one = feed.follow(key());
    feed.shown(key(), record(Kind::Note, &json!({})).seq);
    assert_eq!(*one.borrow(), 5);
    drop(one);
    let other: Key = "290280f8-c512-4019-b944-78cf31f5439e".parse().unwrap();
    let _two = feed.follow(other);
    assert_eq!(lock(&feed.heads).len(), 1);
}

#[test]
fn a_listener_that_is_slow_is_told_that_it_missed_some() {
    let mut bench = Bench::new();
    for _ in 0..=NEWS_KEPT {
        bench.feed.publish(key(), None, true);
    }
    let missed = bench.news.try_recv();
    assert!(matches!(missed, Err(broadcast::error::TryRecvError::Lagged(1))), "{missed:?}");
}
