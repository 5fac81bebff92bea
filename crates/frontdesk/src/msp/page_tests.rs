use bytes::Bytes;
use frontdesk_core::ids::Seq;
use frontdesk_core::msp::Renderer;
use frontdesk_core::record::{Kind, RECORD_VERSION, Record};

use super::*;

const KEY: &str = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";

/// A journal of `turns` turns, and its records.
fn journal(turns: u64) -> (tempfile::TempDir, Vec<Record>) {
    let mut told = Vec::new();
    for turn in 0..turns {
        let text = json!([{ "type": "text", "text": "prompt" }]);
        told.push((Kind::TurnStarted, json!({ "turn": format!("t{turn}"), "prompt": text })));
        for chunk in 0..8 {
            let content = json!({ "type": "text", "text": format!("{turn} {chunk} ").repeat(9) });
            let update = json!({ "sessionUpdate": "agent_message_chunk", "content": content });
            told.push((Kind::Update, json!({ "update": update })));
        }
        told.push((Kind::TurnEnded, json!({ "turn": format!("t{turn}"), "outcome": "completed" })));
    }
    let records: Vec<Record> = (1..)
        .zip(told)
        .map(|(seq, (kind, data)): (Seq, _)| Record {
            v: RECORD_VERSION,
            seq,
            epoch: 1,
            at: jiff::Timestamp::UNIX_EPOCH,
            kind,
            src: None,
            data: Bytes::from(data.to_string()),
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let mut text = Vec::new();
    records.iter().for_each(|record| record.write_line(&mut text));
    std::fs::write(folder.path().join("journal.jsonl"), text).unwrap();
    (folder, records)
}

fn durable(records: &[Record]) -> Vec<Event> {
    let mut renderer = Renderer::new(KEY.parse().unwrap());
    let mut events = Vec::new();
    records.iter().for_each(|record| renderer.apply(record, &mut events));
    events.retain(|event| event.durable);
    events
}

/// All pages in one direction, in the order of the journal.
fn all(tracks: &Tracks, path: &Path, limit: usize, bytes: usize, backward: bool) -> Vec<Event> {
    let key = KEY.parse().unwrap();
    let mut all: VecDeque<Event> = VecDeque::new();
    let mut cursor = None;
    loop {
        let asked = Asked { limit, bytes, cursor, backward, upto: Seq::MAX };
        let found = find(tracks, key, path, asked).unwrap();
        assert!(found.events.len() <= limit);
        let size: usize = found.events.iter().map(|(_, bytes)| bytes).sum();
        assert!(size <= bytes || found.events.len() == 1);
        assert!(!found.more || !found.events.is_empty(), "an empty page that is not the last");
        let events = found.events.into_iter().map(|(event, _)| event);
        if backward {
            events.rev().for_each(|event| all.push_front(event));
        } else {
            all.extend(events);
        }
        if !found.more {
            return all.into();
        }
        cursor = if backward { all.front() } else { all.back() }.map(|event| event.cursor);
    }
}

#[test]
fn pages_in_both_directions_give_all_events_once_with_and_without_marks() {
    let (folder, records) = journal(12);
    let path = folder.path().join("journal.jsonl");
    let want = durable(&records);
    for (mark_bytes, batch_bytes) in [(u64::MAX, 1 << 20), (4 << 10, 512), (0, 100)] {
        let tracks = Tracks::new(mark_bytes, batch_bytes);
        for (limit, bytes) in [(7, usize::MAX), (1000, 3000), (50, 1)] {
            for backward in [true, false, true] {
                assert_eq!(all(&tracks, &path, limit, bytes, backward), want, "{limit} {backward}");
            }
        }
    }
}

#[test]
fn marks_are_left_behind_and_bounded() {
    let (folder, records) = journal(200);
    let path = folder.path().join("journal.jsonl");
    let key = KEY.parse().unwrap();
    let tracks = Tracks::new(4 << 10, 1 << 10);
    let mut walk = Walk::to(&tracks, key, &path, Seq::MAX).unwrap();
    walk.finish(&tracks).unwrap();
    let state = walk.state().clone();
    assert!((30..=64).contains(&tracks.marks(key)), "{}", tracks.marks(key));
    // The end is known now: nothing is walked over.
    let again = Walk::to(&tracks, key, &path, Seq::MAX).unwrap();
    assert_eq!(again.state().seq(), records.len() as u64);
    assert_eq!(*again.state(), state);
    // In the middle there is a mark near by.
    let middle = Walk::to(&tracks, key, &path, 1000).unwrap();
    assert!((900..1000).contains(&middle.state().seq()), "{}", middle.state().seq());
}

#[test]
fn an_end_that_moves_takes_its_mark_along() {
    let (folder, records) = journal(40);
    let path = folder.path().join("journal.jsonl");
    let key = KEY.parse().unwrap();
    let tracks = Tracks::new(1 << 20, 1 << 10);
    let whole = std::fs::read(&path).unwrap();
    let mut text = Vec::new();
    for record in &records {
        record.write_line(&mut text);
        std::fs::write(&path, &text).unwrap();
        let mut walk = Walk::to(&tracks, key, &path, Seq::MAX).unwrap();
        walk.finish(&tracks).unwrap();
        assert_eq!(walk.state().seq(), record.seq);
    }
    assert_eq!(text, whole);
    assert_eq!(tracks.marks(key), 1);
}

#[test]
fn nothing_behind_the_last_record_that_may_be_shown_is_seen() {
    let (folder, records) = journal(12);
    let path = folder.path().join("journal.jsonl");
    let key = KEY.parse().unwrap();
    let tracks = Tracks::new(1 << 10, 512);
    // Marks of a walk to the end are there, too.
    Walk::behind(&tracks, key, &path, Seq::MAX).unwrap();
    for upto in [1, 57, 60, records.len() as u64] {
        let end = Walk::behind(&tracks, key, &path, upto).unwrap();
        assert_eq!(end.state().seq(), upto);
        let want = durable(&records[..usize::try_from(upto).unwrap()]);
        for backward in [true, false] {
            let asked = Asked { limit: 1000, bytes: usize::MAX, cursor: None, backward, upto };
            let found = find(&tracks, key, &path, asked).unwrap();
            let events: Vec<Event> = found.events.into_iter().map(|(event, _)| event).collect();
            assert_eq!(events, want, "{upto} {backward}");
        }
    }
}
