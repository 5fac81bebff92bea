//! Names of things: sessions, clients, instances, epochs and positions.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A session's own name: a UUID, version 7 where Frontdesk made it.
///
/// It is the public id of sessions made here and never changes. An agent's name for the same
/// conversation is its *native id*, a plain string.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(Uuid);

impl Key {
    /// Wraps a UUID that the caller made (version 7) or was told.
    #[must_use]
    pub const fn new(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// The UUID.
    #[must_use]
    pub const fn uuid(self) -> Uuid {
        self.0
    }

    /// The instant a version 7 key carries, in milliseconds since the Unix epoch; `None` for other
    /// versions.
    #[must_use]
    pub fn unix_millis(self) -> Option<u64> {
        uuid_v7_millis(self.0)
    }
}

/// The instant inside a version 7 UUID in milliseconds since the Unix epoch.
#[must_use]
pub fn uuid_v7_millis(uuid: Uuid) -> Option<u64> {
    if uuid.get_version_num() != 7 {
        return None;
    }
    let bytes = uuid.as_bytes();
    Some(bytes[..6].iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte)))
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.as_hyphenated(), f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Key {
    type Err = uuid::Error;

    /// Reads the hyphenated form in any letter case, and no other spelling: `urn:uuid:…`, braces
    /// and bare hex are other strings, which an agent may well have minted as its own ids.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() == 36 {
            Uuid::parse_str(text).map(Self)
        } else {
            Uuid::parse_str("").map(Self)
        }
    }
}

/// Position of a record in its session's journal, counted from 1.
pub type Seq = u64;

/// Fencing number of an ownership claim: higher with each claim of the same session.
pub type Epoch = u64;

/// One client connection of this daemon. Never reused while the daemon lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnId(pub u64);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.0)
    }
}

/// One running agent process (or upstream connection). Unique over restarts of the daemon.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(pub Arc<str>);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Longest session id taken from a client or an agent, in bytes.
pub const SESSION_ID_BYTES_MAX: usize = 4096;

/// Other ids of one conversation that are kept; the oldest are forgotten.
pub const ALIASES_MAX: usize = 16;

/// Whether an id may serve as a file name as it stands: `[A-Za-z0-9_-]{1,64}`.
#[must_use]
pub fn is_path_safe(id: &str) -> bool {
    (1..=64).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_in_any_case_and_only_in_its_hyphenated_form() {
        let lower: Key = "01a22bb6-2da2-7132-b868-40a3a5d1f51f".parse().unwrap();
        let upper: Key = "01A22BB6-2DA2-7132-B868-40A3A5D1F51F".parse().unwrap();
        assert_eq!(lower, upper);
        assert_eq!(lower.to_string(), "01a22bb6-2da2-7132-b868-40a3a5d1f51f");
        assert!("01a22bb62da27132b86840a3a5d1f51f".parse::<Key>().is_err());
        assert!("{01a22bb6-2da2-7132-b868-40a3a5d1f51f}".parse::<Key>().is_err());
        assert!("".parse::<Key>().is_err());
    }

    #[test]
    fn only_version_7_carries_an_instant() {
        let v7: Key = "01a22bb6-2da2-7132-b868-40a3a5d1f51f".parse().unwrap();
        assert_eq!(v7.unix_millis(), Some(0x01a2_2bb6_2da2));
        let v4: Key = "290280f8-c512-4019-b944-78cf31f5439e".parse().unwrap();
        assert_eq!(v4.unix_millis(), None);
    }

    #[test]
    fn path_safety_is_a_short_alphabet() {
        assert!(is_path_safe("01a22bb6-2da2-7132-b868-40a3a5d1f51f"));
        for bad in ["", ".", "..", "a/b", "a\\b", "x\0y", "-é", &"a".repeat(65)] {
            assert!(!is_path_safe(bad), "{bad:?}");
        }
    }
}
