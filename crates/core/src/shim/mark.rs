//! Marks: what stands before a line on a connection that asked for positions.
//!
//! `@SEQ[.PART] "SESSION"<tab>FRAME` shows something of record SEQ, `=SEQ "SESSION"<tab>FRAME` is the
//! answer behind which a session is shown from SEQ on, and `@stop` says that the daemon was told to
//! stop. The session is spelled as the client asked for it.

use bytes::Bytes;

use crate::envelope::quote;
use crate::session::Mark;

/// The daemon's last line where it was told to stop.
pub const STOP: &[u8] = b"@stop";

/// A line, read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Marked {
    Not,
    Stop,
    Shown { mark: Mark, session: Box<str>, frame: Bytes },
    Answer { mark: Mark, session: Box<str>, frame: Bytes },
}

/// What stands before a frame that shows something of a record.
#[must_use]
pub fn mark_text(mark: Mark, session: &str) -> Bytes {
    text('@', mark, session)
}

/// What stands before the answer with which a session begins to be shown.
#[must_use]
pub fn answer_mark(mark: Mark, session: &str) -> Bytes {
    text('=', mark, session)
}

fn text(sigil: char, mark: Mark, session: &str) -> Bytes {
    let Mark { seq, part } = mark;
    let session = quote(session);
    Bytes::from(match part {
        0 => format!("{sigil}{seq} {session}\t"),
        part => format!("{sigil}{seq}.{part} {session}\t"),
    })
}

pub(super) fn read_mark(line: &Bytes) -> Marked {
    let is_answer = match line.first() {
        Some(b'@') => false,
        Some(b'=') => true,
        _ => return Marked::Not,
    };
    if **line == *STOP {
        return Marked::Stop;
    }
    // A tab in a JSON string is escaped: the first one ends the mark.
    let Some(tab) = memchr::memchr(b'\t', line) else { return Marked::Not };
    let Some((mark, session)) = read(&line[1..tab]) else { return Marked::Not };
    let frame = line.slice(tab + 1..);
    if is_answer {
        Marked::Answer { mark, session, frame }
    } else {
        Marked::Shown { mark, session, frame }
    }
}

fn read(text: &[u8]) -> Option<(Mark, Box<str>)> {
    let (place, session) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    let (seq, part) = place.split_once('.').unwrap_or((place, "0"));
    let mark = Mark { seq: seq.parse().ok()?, part: part.parse().ok()? };
    Some((mark, serde_json::from_str(session).ok()?))
}
