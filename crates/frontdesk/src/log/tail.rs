//! Finds places in a journal from its end, in growing pieces, however long it is.
//!
//! Used where a journal is opened for writing, where a snapshot is checked, and by `replay`.

use std::fs::File;
use std::path::Path;

use frontdesk_core::ids::Seq;
use frontdesk_core::record::{Kind, Record};

use super::{LogError, Reader, len_of};

/// The end of a journal.
pub(super) struct End {
    /// Number of the last record; 0 if there is none.
    pub(super) last: Seq,
    /// Length of the file in bytes.
    pub(super) bytes: u64,
    /// The file does not end with a line end.
    pub(super) torn: bool,
    /// There is a tombstone.
    pub(super) entombed: bool,
}

/// First distance from the end at which records are looked for, in bytes.
const END_BYTES: u64 = 64 << 10;

/// Finds the last record, from the end in growing pieces.
pub(super) fn read_end(path: &Path) -> Result<End, LogError> {
    read_end_of(path, u64::MAX)
}

/// Finds the last record of the first `limit` bytes.
pub(super) fn read_end_of(path: &Path, limit: u64) -> Result<End, LogError> {
    let file = File::open(path).map_err(LogError::io("open", path))?;
    let bytes = len_of(&file, path)?.min(limit);
    let mut distance = END_BYTES;
    loop {
        let start = bytes.saturating_sub(distance);
        let mut reader = Reader::open_near(path, start)?;
        reader.limit = bytes;
        let mut end = End { last: 0, bytes, torn: false, entombed: false };
        reader.read_all(&mut |record: Record, _| {
            end.last = record.seq;
            end.entombed |= record.kind == Kind::Deleted;
        })?;
        end.torn = reader.is_torn()?;
        if end.last > 0 || start == 0 {
            return Ok(end);
        }
        distance = distance.saturating_mul(4);
    }
}

/// A reader that stands before the first record numbered `seq` or higher, found from the end.
pub(super) fn open_before(path: &Path, seq: Seq) -> Result<Reader, LogError> {
    let file = File::open(path).map_err(LogError::io("open", path))?;
    let bytes = len_of(&file, path)?;
    let mut distance = END_BYTES;
    loop {
        let start = bytes.saturating_sub(distance);
        if start == 0 {
            return Reader::open(path);
        }
        let first = Reader::open_near(path, start)?.read_batch(1)?.first().map(|record| record.seq);
        if first.is_some_and(|first| first < seq) {
            return Reader::open_near(path, start);
        }
        distance = distance.saturating_mul(4);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::testing::lines;
    use super::*;

    #[test]
    fn the_end_is_found_from_the_end() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("journal.jsonl");
        let check = |content: &[u8], last: Seq, torn: bool| {
            fs::write(&path, content).unwrap();
            let end = read_end(&path).unwrap();
            assert_eq!((end.last, end.torn, end.bytes), (last, torn, content.len() as u64));
        };
        let many = lines(1..=5_000);
        check(b"", 0, false);
        check(&many, 5_000, false);
        check(&many[..many.len() - 1], 5_000, true);
        check(&many[..many.len() - 2], 4_999, true);
        check(&[&many[..], &b"bad\n".repeat(100_000)].concat(), 5_000, false);
        check(&[&many[..], &vec![0; 500_000]].concat(), 5_000, true);
        check(b"bad\n", 0, false);
        check(b"bad", 0, true);
        let until = lines(1..=3_000).len() as u64;
        fs::write(&path, &many).unwrap();
        assert_eq!(read_end_of(&path, until).unwrap().last, 3_000);
    }

    #[test]
    fn a_place_before_a_number_is_found_from_the_end() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("journal.jsonl");
        fs::write(&path, lines(1..=3_000)).unwrap();
        for seq in [1, 2, 1_500, 3_000, 3_001] {
            let mut before = open_before(&path, seq).unwrap();
            let read = before.read_batch(usize::MAX).unwrap();
            let (first, last) = (read.first().unwrap().seq, read.last().unwrap().seq);
            assert!(first <= seq && last == 3_000, "{seq}: {first}..={last}");
        }
    }
}
