//! A fold written down beside its journal, so that opening reads only what came after.
//!
//! Derived and never needed: it is not synced, and one that does not fit the journal is as good as
//! none. Written and read by `session`.

use std::fs;
use std::path::{Path, PathBuf};

use frontdesk_core::ids::Seq;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{LogError, Reader, disk, tail};

/// A fold of the first records of a journal.
#[derive(Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// Length of the part that is folded, in bytes; a line ends there. See [`Reader::offset`].
    pub journal_bytes: u64,
    /// Number of the last record that is folded.
    pub seq: Seq,
    /// The fold, as whoever folds writes it; its version is in there.
    pub fold: Box<RawValue>,
}

impl Snapshot {
    /// Where the snapshot of a journal lies.
    #[must_use]
    pub fn path(journal: &Path) -> PathBuf {
        journal.with_file_name("snapshot.json")
    }

    /// Writes the snapshot in one step.
    ///
    /// # Errors
    /// If the disk refuses; an earlier snapshot then stays.
    pub fn write(&self, journal: &Path) -> Result<(), LogError> {
        let path = Self::path(journal);
        serde_json::to_vec(self)
            .map_err(std::io::Error::from)
            .and_then(|text| disk::replace(&path, &text, disk::Care::Derived))
            .map_err(LogError::io("write", &path))
    }

    /// Reads the snapshot of a journal and a reader that stands behind it. `None` if there is none
    /// or it does not fit: the journal is shorter, no line ends there, or the record there has
    /// another number. Changes nothing.
    #[must_use]
    pub fn read(journal: &Path) -> Option<(Self, Reader)> {
        let text = fs::read(Self::path(journal)).ok()?;
        let snapshot: Self = serde_json::from_slice(&text).ok()?;
        let reader = Reader::open_at(journal, snapshot.journal_bytes, snapshot.seq).ok()?;
        let end = tail::read_end_of(journal, snapshot.journal_bytes).ok()?;
        (end.last == snapshot.seq).then_some((snapshot, reader))
    }

    /// Removes the snapshot of a journal, if there is one.
    pub fn remove(journal: &Path) {
        // Where it cannot be removed, `read` finds that it does not fit.
        let _ = fs::remove_file(Self::path(journal));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::testing::{lines, record};

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn reading_goes_on_behind_a_snapshot_that_fits() {
        let temp = tempfile::tempdir().unwrap();
        let journal = temp.path().join("journal.jsonl");
        let first = lines(1..=3);
        fs::write(&journal, [first.clone(), lines(4..=5)].concat()).unwrap();
        assert!(Snapshot::read(&journal).is_none());
        let fold = r#"{"any": [1e2]}"#;
        let snapshot = Snapshot { journal_bytes: first.len() as u64, seq: 3, fold: raw(fold) };
        snapshot.write(&journal).unwrap();
        let (read, mut reader) = Snapshot::read(&journal).unwrap();
        assert_eq!(read.fold.get(), fold);
        assert_eq!(reader.read_batch(usize::MAX).unwrap(), [record(4), record(5)]);
        assert!(reader.damage().is_empty());
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 2, "no file is left over");
        Snapshot::remove(&journal);
        assert!(Snapshot::read(&journal).is_none());
    }

    #[test]
    fn a_snapshot_that_does_not_fit_is_none() {
        let temp = tempfile::tempdir().unwrap();
        let journal = temp.path().join("journal.jsonl");
        fs::write(&journal, lines(1..=3)).unwrap();
        let all = lines(1..=3).len() as u64;
        for (journal_bytes, seq) in [(all + 1, 3), (all - 1, 3), (all, 2), (all, 4), (0, 3)] {
            Snapshot { journal_bytes, seq, fold: raw("1") }.write(&journal).unwrap();
            assert!(Snapshot::read(&journal).is_none(), "{journal_bytes} {seq}");
        }
        Snapshot { journal_bytes: all, seq: 3, fold: raw("1") }.write(&journal).unwrap();
        assert!(Snapshot::read(&journal).is_some());
        for text in ["", "{", "null", "\0\0\0"] {
            fs::write(Snapshot::path(&journal), text).unwrap();
            assert!(Snapshot::read(&journal).is_none(), "{text:?}");
        }
    }
}
