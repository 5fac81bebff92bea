//! `view/page`: a session's durable events, forwards or backwards from a cursor.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use frontdesk_core::ids::{Key, Seq};
use frontdesk_core::msp::params::{Params, Read as _};
use frontdesk_core::msp::{ErrorKind, Event, MspError, ViewCursor};
use serde_json::{Value, json};

use super::peer::{Answer, Peer};
use super::read::unreadable;
use super::track::{Tracks, Walk, blocking, upto};
use crate::node::directory::Row;

/// Events of one page at most. Source: msp "Session lifecycle".
const EVENTS_MAX: u64 = 1000;
/// Room for what is not events in an answer, in bytes.
const MARGIN_BYTES: usize = 1 << 10;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    limit: usize,
    bytes: usize,
    cursor: Option<ViewCursor>,
    backward: bool,
    /// The last record that may be shown.
    upto: Seq,
}

/// Events with their size in the answer.
type Sized = (Event, usize);

/// What was found: the events, and whether more are there in the same direction.
struct Found {
    events: VecDeque<Sized>,
    more: bool,
}

pub(super) async fn page(peer: &Arc<Peer>, params: &Params) -> Answer {
    let row = peer.row(params).await?;
    let asked = read(peer, params, &row)?;
    let key = row.key;
    let head = row.view.seq;
    if let Some(cursor) = asked.cursor.filter(|cursor| cursor.seq > head) {
        return Err(missing(key, &cursor.text(key)));
    }
    let found = blocking(&peer.face, move |face| find(&face.tracks, key, &row.path, asked)).await;
    let Found { events, more } = found.map_err(unreadable)?;
    if let Some((event, bytes)) = events.front().filter(|(_, bytes)| *bytes > asked.bytes) {
        let text = format!("one event is {bytes} bytes long; the limit is {}", asked.bytes);
        return Err(MspError::new(ErrorKind::PageEventTooLarge, text)
            .with("sessionId", key.to_string())
            .with("viewCursor", event.cursor.text(key))
            .with("limitBytes", peer.face.frame_bytes()));
    }
    let edge = if asked.backward { events.front() } else { events.back() };
    let next = edge.filter(|_| more).map(|(event, _)| event.cursor.text(key));
    let shown = events.iter().map(|(event, _)| framed(event));
    Ok(json!({ "events": shown.collect::<Vec<_>>(), "nextCursor": next }))
}

fn framed(event: &Event) -> Value {
    json!({ "method": event.method, "params": event.params })
}

fn read(peer: &Peer, params: &Params, row: &Row) -> Result<Asked, MspError> {
    let key = row.key;
    let limit = params.number("limit", 1, EVENTS_MAX)?;
    let limit = limit.ok_or_else(|| MspError::invalid("params.limit is needed"))?;
    let cursor = params.text("cursor")?;
    let anchor = params.text("anchor")?;
    let backward = match params.text("direction")? {
        None | Some("forward") => false,
        Some("backward") => true,
        Some(other) => {
            let text = format!("params.direction must be forward or backward, not {other:?}");
            return Err(MspError::invalid(text));
        }
    };
    match (anchor, cursor) {
        (Some(_), Some(_)) => {
            return Err(MspError::invalid("params has both cursor and anchor; send one of them"));
        }
        (Some("latestCompaction"), None) => {
            let text = "no compaction is known: agents do not tell of theirs";
            return Err(MspError::new(ErrorKind::NoBoundary, text)
                .with("anchor", "latestCompaction")
                .with("latestBoundaryCursor", Value::Null));
        }
        (Some(other), None) => {
            let text = format!("params.anchor must be latestCompaction, not {other:?}");
            return Err(MspError::invalid(text));
        }
        (None, _) => {}
    }
    let cursor = match cursor {
        Some(text) => Some(ViewCursor::parse(text, key).ok_or_else(|| missing(key, text))?),
        None => None,
    };
    let room = peer.face.frame_bytes().saturating_sub(MARGIN_BYTES);
    let most = params.number("maxBytes", 1, u64::MAX)?.and_then(|n| usize::try_from(n).ok());
    Ok(Asked {
        limit: usize::try_from(limit).unwrap_or(usize::MAX),
        bytes: room.min(most.unwrap_or(room)),
        cursor,
        backward,
        upto: upto(&peer.face, row),
    })
}

/// A cursor that was never given for this session.
pub(super) fn missing(key: Key, cursor: &str) -> MspError {
    MspError::new(ErrorKind::NotFound, "the cursor is not one of this session's")
        .with("reason", "missingAnchor")
        .with("sessionId", key.to_string())
        .with("anchor", cursor)
}

fn find(tracks: &Tracks, key: Key, path: &Path, asked: Asked) -> Result<Found, String> {
    let look = if asked.backward { backward } else { forward };
    look(tracks, key, path, asked)
}

fn sized(event: Event) -> Sized {
    let bytes = framed(&event).to_string().len() + 1;
    (event, bytes)
}

fn forward(tracks: &Tracks, key: Key, path: &Path, asked: Asked) -> Result<Found, String> {
    let after = asked.cursor.unwrap_or_default();
    let mut walk = Walk::to(tracks, key, path, after.seq)?;
    walk.limit(asked.upto);
    let mut found = Found { events: VecDeque::new(), more: false };
    let (mut bytes, mut events) = (0, Vec::new());
    while walk.step(tracks, &mut events)? {
        for event in events.drain(..).filter(|event| event.durable && event.cursor > after) {
            let event = sized(event);
            bytes += event.1;
            let first = found.events.is_empty();
            if found.events.len() == asked.limit || (bytes > asked.bytes && !first) {
                found.more = true;
                return Ok(found);
            }
            found.events.push_back(event);
        }
    }
    Ok(found)
}

/// The last events before a cursor. Reads from one mark before it, and from earlier ones as long as
/// that does not give enough.
fn backward(tracks: &Tracks, key: Key, path: &Path, asked: Asked) -> Result<Found, String> {
    let before = asked.cursor.unwrap_or(ViewCursor::behind(u64::MAX));
    let mut from = before.seq.min(asked.upto.saturating_add(1));
    loop {
        let mut walk = Walk::to(tracks, key, path, from)?;
        walk.limit(asked.upto);
        let began = walk.state().seq();
        let mut found = Found { events: VecDeque::new(), more: false };
        let (mut bytes, mut events) = (0, Vec::new());
        'walk: while walk.step(tracks, &mut events)? {
            for event in events.drain(..) {
                if event.cursor >= before {
                    break 'walk;
                }
                if !event.durable {
                    continue;
                }
                let event = sized(event);
                bytes += event.1;
                found.events.push_back(event);
                while found.events.len() > asked.limit
                    || (bytes > asked.bytes && found.events.len() > 1)
                {
                    found.more = true;
                    bytes -= found.events.pop_front().map_or(0, |(_, bytes)| bytes);
                }
            }
        }
        // Enough, or the whole journal before the cursor was read.
        if found.more || began == 0 {
            return Ok(found);
        }
        from = began;
    }
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
