//! Records: the versioned, durable events of a session, one JSON line each.
//!
//! The payload of a record that came from an agent is the agent's own JSON, unparsed. The match
//! over [`Kind`] is exhaustive wherever records are read, so a new kind cannot be forgotten;
//! kinds of a newer version are kept and skipped.

use std::fmt;

use bytes::Bytes;
use jiff::Timestamp;
use memchr::memchr2;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::ids::{Epoch, InstanceId, Seq};

/// Version of the record envelope, member `v`.
pub const RECORD_VERSION: u32 = 1;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal, durable: $durable:literal;)*) => {
        /// What a record tells.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
            /// A kind of a newer version: kept, and skipped by the fold.
            Unknown(Box<str>),
        }

        impl Kind {
            /// All kinds of this version.
            pub const KNOWN: &[Kind] = &[$(Kind::$name,)*];

            /// The word on disk.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self { $(Self::$name => $text,)* Self::Unknown(text) => text }
            }

            /// Reads the word on disk; never fails.
            #[must_use]
            pub fn from_text(text: &str) -> Self {
                match text { $($text => Self::$name,)* other => Self::Unknown(other.into()) }
            }

            /// Whether the record must be synced before what it tells is acknowledged.
            #[must_use]
            pub fn is_durable(&self) -> bool {
                match self { $(Self::$name => $durable,)* Self::Unknown(_) => false }
            }
        }
    };
}

kinds! {
    /// An owner and its epoch.
    Claimed = "claimed", durable: false;
    /// The session was made through Frontdesk.
    Created = "created", durable: true;
    /// The session was found in an agent's own list.
    Adopted = "adopted", durable: false;
    /// A piece of history that an agent replayed.
    Imported = "imported", durable: false;
    /// An instance has the session in memory.
    Loaded = "loaded", durable: true;
    /// The last accepted parameters, without secret values.
    Parameters = "parameters", durable: false;
    /// The session was unloaded on purpose.
    Closed = "closed", durable: true;
    /// The instance went away by itself.
    Lost = "lost", durable: true;
    /// The session was put aside, or taken back.
    Archived = "archived", durable: true;
    /// A tombstone: outlives the content.
    Deleted = "deleted", durable: true;
    /// Free facts about the session.
    Metadata = "metadata", durable: false;
    /// Modes, models and configuration options as last told.
    Options = "options", durable: false;
    /// Commands the agent offers.
    Commands = "commands", durable: false;
    /// A person gave the session a name.
    Renamed = "renamed", durable: true;
    /// The agent gave the session a title.
    Title = "title", durable: false;
    /// The branch of the workspace.
    Branch = "branch", durable: false;
    /// The policy for questions.
    Policy = "policy", durable: true;
    /// A prompt waits for its turn.
    TurnQueued = "turn_queued", durable: false;
    /// A prompt goes to the agent.
    TurnStarted = "turn_started", durable: true;
    /// A turn has its ending.
    TurnEnded = "turn_ended", durable: true;
    /// Something an agent sent for a turn that was closed before.
    TurnLate = "turn_late", durable: false;
    /// A `session/update` of the agent.
    Update = "update", durable: false;
    /// The agent asked people something.
    InteractionOpened = "interaction_opened", durable: true;
    /// The question has its one answer.
    InteractionSettled = "interaction_settled", durable: true;
    /// A command with an idempotency key.
    Command = "command", durable: true;
    /// A child session.
    Subagent = "subagent", durable: false;
    /// Something in the journal could not be read.
    Damage = "damage", durable: false;
    /// A remark for people.
    Note = "note", durable: false;
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Kind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<'de, str>::deserialize(deserializer).map(|text| Self::from_text(&text))
    }
}

/// Where in an instance's output a record came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The instance.
    pub instance: InstanceId,
    /// Byte offset of the end of the frame in the instance's output.
    pub end: u64,
    /// Which message of one line, for agents that batch.
    #[serde(default, skip_serializing_if = "is_first")]
    pub part: u32,
}

impl Source {
    /// Its place in the output, for comparing.
    #[must_use]
    pub const fn place(&self) -> (u64, u32) {
        (self.end, self.part)
    }

    /// The id under which clients are sent a request that an agent made there: the same one
    /// however often it is read.
    #[must_use]
    pub fn hop(&self) -> Box<str> {
        format!("{}:{}:{}", self.instance, self.end, self.part).into()
    }
}

// The signature is serde's.
#[allow(clippy::trivially_copy_pass_by_ref)]
const fn is_first(part: &u32) -> bool {
    *part == 0
}

/// One record, payload still text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Version of the envelope that wrote it.
    pub v: u32,
    /// Position in the journal.
    pub seq: Seq,
    /// Epoch of the owner that wrote it.
    pub epoch: Epoch,
    /// When it was written.
    pub at: Timestamp,
    /// What it tells.
    pub kind: Kind,
    /// Where it came from, for records made from an agent's frame.
    pub src: Option<Source>,
    /// The payload's JSON text.
    pub data: Bytes,
}

/// Why a line of a journal is not a record.
#[derive(Debug, thiserror::Error)]
#[error("failed to read a record: {0}")]
pub struct RecordError(#[from] serde_json::Error);

#[derive(Deserialize)]
struct Line<'a> {
    v: u32,
    seq: Seq,
    #[serde(default)]
    epoch: Epoch,
    at: Timestamp,
    kind: Kind,
    #[serde(default)]
    src: Option<Source>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

impl Record {
    /// Reads one line of a journal; the payload shares the line's memory.
    ///
    /// # Errors
    /// If the line is not JSON or lacks `v`, `seq`, `at` or `kind`.
    pub fn parse(line: &Bytes) -> Result<Self, RecordError> {
        let read: Line<'_> = serde_json::from_slice(line)?;
        let data = read.data.map_or_else(
            || Bytes::from_static(b"null"),
            |raw| line.slice_ref(raw.get().as_bytes()),
        );
        let Line { v, seq, epoch, at, kind, src, .. } = read;
        Ok(Self { v, seq, epoch, at, kind, src, data })
    }

    /// Appends the record's line, with its line end, to `out`.
    ///
    /// It is one line whatever the payload: an empty payload becomes `null`, and line ends inside
    /// a payload, which in JSON can only stand between tokens, become spaces.
    pub fn write_line(&self, out: &mut Vec<u8>) {
        use std::io::Write as _;
        let start = out.len();
        // Writing into a `Vec` cannot fail.
        let _ = write!(
            out,
            r#"{{"v":{},"seq":{},"epoch":{},"at":"{:.6}","kind":{}"#,
            self.v,
            self.seq,
            self.epoch,
            self.at,
            crate::envelope::quote(self.kind.as_str()),
        );
        if let Some(src) = &self.src {
            let _ = write!(
                out,
                r#","src":{{"instance":{},"end":{}"#,
                crate::envelope::quote(&src.instance.0),
                src.end
            );
            if src.part > 0 {
                let _ = write!(out, r#","part":{}"#, src.part);
            }
            out.push(b'}');
        }
        out.extend_from_slice(br#","data":"#);
        out.extend_from_slice(if self.data.is_empty() { b"null" } else { &self.data });
        out.push(b'}');
        let mut from = start;
        while let Some(at) = memchr2(b'\n', b'\r', &out[from..]) {
            out[from + at] = b' ';
            from += at + 1;
        }
        out.push(b'\n');
    }

    /// The payload as a typed value, or `None` where it has another shape.
    #[must_use]
    pub fn payload<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_slice(&self.data).ok()
    }
}

/// What could be read of a line that is not simply one record.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Salvage {
    /// The whole records on the line, in order.
    pub records: Vec<Record>,
    /// Whether NUL bytes stood on the line: a power cut leaves them where data was not written.
    pub nul: bool,
    /// Whether anything on the line is neither record, white space, byte order mark nor NUL.
    pub unreadable: bool,
}

/// Reads what can be read of a line on which [`Record::parse`] failed: byte order marks and runs
/// of NUL are stripped, records written without a line end between them are taken apart.
///
/// A record is only taken where one begins: at the start of the line, after a run of NUL, or right
/// behind another whole JSON value. Nothing is looked for inside a torn record, whose payload an
/// agent may have shaped like a record.
#[must_use]
pub fn salvage(line: &Bytes) -> Salvage {
    const MARK: &[u8] = b"\xEF\xBB\xBF";
    let mut out = Salvage { nul: line.contains(&0), ..Salvage::default() };
    for piece in line.split(|byte| *byte == 0) {
        let mut piece = piece.trim_ascii();
        while let Some(rest) = piece.strip_prefix(MARK) {
            piece = rest.trim_ascii_start();
        }
        for value in serde_json::Deserializer::from_slice(piece).into_iter::<&RawValue>() {
            // The iterator ends by itself after its first error.
            let record = value
                .ok()
                .and_then(|raw| Record::parse(&line.slice_ref(raw.get().as_bytes())).ok());
            match record {
                Some(record) => out.records.push(record),
                None => out.unreadable = true,
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(kind: Kind, src: Option<Source>) -> Record {
        Record {
            v: RECORD_VERSION,
            seq: 7,
            epoch: 2,
            at: "2026-11-30T12:00:00.000001Z".parse().unwrap(),
            kind,
            src,
            data: Bytes::from_static(br#"{"a":1e2,"b":"\u2028"}"#),
        }
    }

    #[test]
    fn every_kind_survives_a_round_trip() {
        for kind in Kind::KNOWN {
            for part in [0, 3] {
                let source = Source { instance: InstanceId("i-1".into()), end: 9, part };
                let record = sample(kind.clone(), Some(source));
                let mut line = Vec::new();
                record.write_line(&mut line);
                assert_eq!(line.pop(), Some(b'\n'));
                assert_eq!(Record::parse(&Bytes::from(line)).unwrap(), record);
            }
        }
    }

    #[test]
    fn the_line_is_what_the_documentation_shows() {
        let mut line = Vec::new();
        sample(Kind::Update, None).write_line(&mut line);
        assert_eq!(
            String::from_utf8(line).unwrap(),
            "{\"v\":1,\"seq\":7,\"epoch\":2,\"at\":\"2026-11-30T12:00:00.000001Z\",\"kind\":\"update\",\"data\":{\"a\":1e2,\"b\":\"\\u2028\"}}\n"
        );
    }

    #[test]
    fn a_kind_of_a_newer_version_is_kept() {
        let line = Bytes::from_static(br#"{"v":9,"seq":1,"at":"2026-11-30T12:00:00Z","kind":"brand_new","extra":1,"data":[1]}"#);
        let record = Record::parse(&line).unwrap();
        assert_eq!(record.kind, Kind::Unknown("brand_new".into()));
        assert_eq!(record.data, &b"[1]"[..]);
    }

    #[test]
    fn a_line_that_is_no_record_is_an_error() {
        for bad in ["", "{", "{}", "[]", "\0\0\0", r#"{"v":1,"seq":-1}"#] {
            assert!(Record::parse(&Bytes::copy_from_slice(bad.as_bytes())).is_err(), "{bad:?}");
        }
    }

    fn line_of(seq: Seq) -> Vec<u8> {
        let mut line = Vec::new();
        Record { seq, ..sample(Kind::Update, None) }.write_line(&mut line);
        line.pop();
        line
    }

    fn salvaged(line: Vec<u8>) -> (Vec<Seq>, bool, bool) {
        let read = salvage(&Bytes::from(line));
        (read.records.iter().map(|record| record.seq).collect(), read.nul, read.unreadable)
    }

    #[test]
    fn a_payload_never_breaks_its_line() {
        for (data, kept) in [("", "null"), ("{\n\r\n\"a\":1}", "{   \"a\":1}")] {
            let mut record = sample(Kind::Note, None);
            record.data = Bytes::from_static(data.as_bytes());
            let mut line = Vec::new();
            record.write_line(&mut line);
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            line.pop();
            assert_eq!(Record::parse(&Bytes::from(line)).unwrap().data, kept.as_bytes());
        }
    }

    #[test]
    fn what_is_whole_on_a_damaged_line_is_read() {
        let weld = [line_of(3), line_of(4)].concat();
        assert_eq!(salvaged(weld), (vec![3, 4], false, false));
        let torn = [line_of(3), line_of(4)[..20].to_vec()].concat();
        assert_eq!(salvaged(torn), (vec![3], false, true));
        let nul = [vec![0; 9], line_of(5), vec![0; 2]].concat();
        assert_eq!(salvaged(nul), (vec![5], true, false));
        let mark = [b"\xEF\xBB\xBF".to_vec(), line_of(6), b"\r".to_vec()].concat();
        assert_eq!(salvaged(mark), (vec![6], false, false));
        assert_eq!(salvaged(b"42".to_vec()), (vec![], false, true));
        assert_eq!(salvaged(b" \r".to_vec()), (vec![], false, false));
        assert_eq!(salvaged(b"\xff\xfe{".to_vec()), (vec![], false, true));
    }

    #[test]
    fn a_torn_payload_that_looks_like_a_record_is_none() {
        let inner = String::from_utf8(line_of(99)).unwrap();
        let torn = format!(
            r#"{{"v":1,"seq":7,"at":"2026-11-30T12:00:00Z","kind":"update","data":{inner}"#
        );
        assert_eq!(salvaged(torn.into_bytes()), (vec![], false, true));
    }

    #[test]
    fn lone_surrogates_and_line_separators_stay_as_they_are() {
        let mut record = sample(Kind::Update, None);
        record.data = Bytes::from("{\"t\":\"\\ud800 \u{2028}\u{2029}\u{85}\"}");
        let mut line = Vec::new();
        record.write_line(&mut line);
        line.pop();
        assert_eq!(Record::parse(&Bytes::from(line)).unwrap(), record);
    }
}
