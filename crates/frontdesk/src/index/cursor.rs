//! Cursors: a position in the order of lists, sealed with the listing it belongs to.
//!
//! To a client a cursor is a word without meaning. It is checked, so that one that was changed,
//! made up, or given for another agent, folder, filter or face is refused and never taken for the
//! first page. It holds no more than a position, so that inserts and restarts leave it good.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use frontdesk_core::ids::Key;

use super::entry::Position;

/// The file with the key of the seals, in the data folder.
const KEY_NAME: &str = "cursor.key";

/// Bytes of a position.
const POSITION_BYTES: usize = 32;

/// Bytes of a seal.
const SEAL_BYTES: usize = 12;

/// A cursor that no list gave, or another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to go on with a list: the cursor is not one that this list gave")]
pub struct BadCursor;

/// Makes and reads cursors.
#[derive(Clone)]
pub struct Cursors {
    key: [u8; 32],
}

impl std::fmt::Debug for Cursors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursors").finish_non_exhaustive()
    }
}

impl Cursors {
    /// The key of this home, made where there is none. One that cannot be kept lasts as long as
    /// the daemon.
    #[must_use]
    pub fn open(data: &Path) -> Self {
        let path = data.join(KEY_NAME);
        if let Ok(key) = std::fs::read(&path).unwrap_or_default().try_into() {
            return Self { key };
        }
        let mut key = [0; 32];
        key[..16].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        key[16..].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        let kept = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(&key));
        if let Err(error) = kept {
            tracing::warn!(path = %path.display(), %error, "failed to keep the key of cursors; a restart ends lists that are being read");
        }
        Self { key }
    }

    /// The cursor of a position in a listing. `listing` says all that the rows depend on: the face,
    /// the agent, the folder, every filter.
    #[must_use]
    pub fn seal(&self, listing: &str, position: Position) -> String {
        let bytes = bytes_of(position);
        let mut text = String::with_capacity(2 * (POSITION_BYTES + SEAL_BYTES));
        for byte in bytes.iter().chain(&self.seal_of(listing, &bytes)) {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// The position that a cursor of this listing stands for.
    ///
    /// # Errors
    /// If it is none, or of another listing.
    pub fn open_sealed(&self, listing: &str, cursor: &str) -> Result<Position, BadCursor> {
        let bytes = unhex(cursor).ok_or(BadCursor)?;
        if bytes.len() != POSITION_BYTES + SEAL_BYTES {
            return Err(BadCursor);
        }
        let (position, seal) = bytes.split_at(POSITION_BYTES);
        if seal != self.seal_of(listing, position) {
            return Err(BadCursor);
        }
        position_of(position).ok_or(BadCursor)
    }

    fn seal_of(&self, listing: &str, position: &[u8]) -> [u8; SEAL_BYTES] {
        let mut mac = hmac_sha256::HMAC::new(self.key);
        mac.update((listing.len() as u64).to_be_bytes());
        mac.update(listing.as_bytes());
        mac.update(position);
        let mut seal = [0; SEAL_BYTES];
        seal.copy_from_slice(&mac.finalize()[..SEAL_BYTES]);
        seal
    }
}

fn bytes_of(position: Position) -> [u8; POSITION_BYTES] {
    let mut bytes = [0; POSITION_BYTES];
    bytes[..8].copy_from_slice(&position.ordered.to_be_bytes());
    bytes[8..16].copy_from_slice(&position.updated.to_be_bytes());
    bytes[16..].copy_from_slice(position.key.uuid().as_bytes());
    bytes
}

fn position_of(bytes: &[u8]) -> Option<Position> {
    Some(Position {
        ordered: i64::from_be_bytes(bytes.get(..8)?.try_into().ok()?),
        updated: i64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?),
        key: Key::new(uuid::Uuid::from_slice(bytes.get(16..)?).ok()?),
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let plain = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !plain || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_good_for_its_own_listing_and_as_it_was_given() {
        let temp = tempfile::tempdir().unwrap();
        let cursors = Cursors::open(temp.path());
        let key = Key::new(uuid::Uuid::from_u128(0x01a2_2bb6 << 96 | 7));
        let position = Position { ordered: -5, updated: i64::MAX, key };
        let cursor = cursors.seal("acp a /w", position);
        assert_eq!(cursors.open_sealed("acp a /w", &cursor), Ok(position));
        // A restart of the daemon leaves it good, another home does not.
        assert_eq!(Cursors::open(temp.path()).open_sealed("acp a /w", &cursor), Ok(position));
        let other = tempfile::tempdir().unwrap();
        assert_eq!(Cursors::open(other.path()).open_sealed("acp a /w", &cursor), Err(BadCursor));
        for listing in ["", "acp a /v", "msp a /w", "acp a /w "] {
            assert_eq!(cursors.open_sealed(listing, &cursor), Err(BadCursor), "{listing}");
        }
        for at in 0..cursor.len() {
            let mut edited = cursor.clone().into_bytes();
            edited[at] = if edited[at] == b'0' { b'1' } else { b'0' };
            let edited = String::from_utf8(edited).unwrap();
            assert_eq!(cursors.open_sealed("acp a /w", &edited), Err(BadCursor), "{edited}");
        }
        for bad in
            ["", "0", "1_x", &cursor[2..], &format!("{cursor}00"), &cursor.to_uppercase(), "é"]
        {
            assert_eq!(cursors.open_sealed("acp a /w", bad), Err(BadCursor), "{bad}");
        }
    }
}
