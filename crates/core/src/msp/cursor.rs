//! Positions in a session's view: opaque to clients, strictly rising, never another session's.
//!
//! A cursor is the number of the record an event came from and the event's place among those of
//! that record, so it stays the same for ever and needs no table. Beside the cursors of events
//! there is one *behind* each record, for what has no event of its own (a status change).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{Key, Seq};

/// A position in one session's view. The order of cursors is the order of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ViewCursor {
    /// Number of the record.
    pub seq: Seq,
    /// Place among the events of the record, from 1; [`u32::MAX`] is behind all of them.
    pub place: u32,
}

impl ViewCursor {
    /// Behind everything that record `seq` shows; of 0, the very beginning.
    #[must_use]
    pub const fn behind(seq: Seq) -> Self {
        Self { seq, place: u32::MAX }
    }

    /// The text clients are given.
    #[must_use]
    pub fn text(self, key: Key) -> String {
        Spelled(self, key).to_string()
    }

    /// Reads a text that [`Self::text`] gave for this session; `None` for every other text.
    #[must_use]
    pub fn parse(text: &str, key: Key) -> Option<Self> {
        let rest = text.strip_prefix("v:")?;
        let (session, place) = rest.split_once(':')?;
        let cursor = match place.split_once('.') {
            Some((seq, place)) => Self { seq: seq.parse().ok()?, place: place.parse().ok()? },
            None => Self::behind(place.parse().ok()?),
        };
        // One spelling each: what we did not give out is not taken.
        (session.parse::<Key>().ok()? == key && cursor.text(key) == text).then_some(cursor)
    }
}

struct Spelled(ViewCursor, Key);

impl fmt::Display for Spelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(cursor, key) = self;
        write!(f, "v:{key}:{}", cursor.seq)?;
        if cursor.place == u32::MAX { Ok(()) } else { write!(f, ".{}", cursor.place) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";

    #[test]
    fn a_cursor_survives_its_text_and_only_its_own_session_takes_it() {
        let key: Key = KEY.parse().unwrap();
        let other: Key = "290280f8-c512-4019-b944-78cf31f5439e".parse().unwrap();
        for cursor in [ViewCursor { seq: 7, place: 2 }, ViewCursor::behind(0)] {
            let text = cursor.text(key);
            assert_eq!(ViewCursor::parse(&text, key), Some(cursor));
            assert_eq!(ViewCursor::parse(&text, other), None);
        }
    }

    #[test]
    fn what_was_not_given_out_is_no_cursor() {
        let key: Key = KEY.parse().unwrap();
        for text in ["", "v:", "7", &format!("v:{KEY}:07"), &format!("v:{KEY}:7.4294967295")] {
            assert_eq!(ViewCursor::parse(text, key), None, "{text}");
        }
        let loud = ViewCursor::behind(7).text(key).to_uppercase();
        assert_eq!(ViewCursor::parse(&loud, key), None);
    }

    #[test]
    fn behind_a_record_is_behind_its_events_and_before_the_next() {
        let event = ViewCursor { seq: 7, place: 3 };
        assert!(event < ViewCursor::behind(7));
        assert!(ViewCursor::behind(7) < ViewCursor { seq: 8, place: 1 });
    }
}
