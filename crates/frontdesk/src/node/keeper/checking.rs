//! Compares the index with all journals: their size, time and first line, journals that are gone,
//! and journals that no row speaks of.

use std::path::PathBuf;

use frontdesk_core::ids::Key;

use super::super::Node;
use super::super::recover::tidy;
use super::work::pass_over_unreadable;
use crate::index::{Disk, IndexError, Writer, catch_up};
use crate::log::{Found, LogError, scan};

/// Journals compared in one piece.
const SLICE_JOURNALS: u32 = 256;

/// Largest index whose pages are all looked at, in bytes; a broken page of a larger one is found
/// when it is used.
const PAGES_BYTES_MAX: u64 = 64 << 20;

/// A comparison that goes on in pieces.
pub(super) struct Check {
    phase: Phase,
}

enum Phase {
    /// Rows behind this number.
    Rows(i64),
    /// Journals on the disk.
    Journals(Box<dyn Iterator<Item = Found> + Send>),
    /// The index's own pages.
    Pages,
}

/// What is to be done about a journal.
enum Finding {
    Gone(Key),
    Changed(Key, PathBuf),
}

impl Check {
    pub(super) fn new() -> Self {
        Self { phase: Phase::Rows(0) }
    }

    /// Compares a piece; `false` at the end.
    ///
    /// # Errors
    /// If the index cannot be used.
    pub(super) fn go_on(&mut self, node: &Node, writer: &mut Writer) -> Result<bool, IndexError> {
        let findings = match &mut self.phase {
            Phase::Rows(after) => {
                let (rows, last) = writer.journals(*after, SLICE_JOURNALS)?;
                if rows.is_empty() {
                    self.phase = Phase::Journals(Box::new(scan(node.log.sessions_dir())));
                    return Ok(true);
                }
                *after = last;
                let cold = rows.into_iter().filter(|(key, ..)| !node.directory.is_hot(*key));
                cold.filter_map(|(key, path, was)| compare(key, path, was)).collect()
            }
            Phase::Journals(journals) => {
                let mut unknown = Vec::new();
                let mut any = false;
                for Found { path, key, .. } in journals.take(SLICE_JOURNALS as usize) {
                    any = true;
                    if !writer.has(key)? && !node.directory.is_hot(key) {
                        unknown.push(Finding::Changed(key, path));
                    }
                }
                if !any {
                    self.phase = Phase::Pages;
                    return Ok(true);
                }
                unknown
            }
            Phase::Pages => {
                if writer.file_bytes()? <= PAGES_BYTES_MAX {
                    writer.check_pages()?;
                }
                return Ok(false);
            }
        };
        mend(node, writer, findings)?;
        Ok(true)
    }
}

/// What a journal says that its row does not.
fn compare(key: Key, path: PathBuf, was: Disk) -> Option<Finding> {
    match Disk::of(&path) {
        Ok(now) if now == was => None,
        Ok(_) => Some(Finding::Changed(key, path)),
        Err(LogError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Some(Finding::Gone(key))
        }
        // It may be readable again: its row stays.
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "failed to compare a journal");
            None
        }
    }
}

fn mend(node: &Node, writer: &mut Writer, findings: Vec<Finding>) -> Result<(), IndexError> {
    if findings.is_empty() {
        return Ok(());
    }
    let mut turns = 0;
    let mut tidy = tidy(node, &mut turns);
    writer.batch(|writer| {
        for finding in findings {
            match finding {
                Finding::Gone(key) => {
                    tracing::warn!(session = %key, "a journal is gone; its session is not known any more");
                    writer.remove(key)?;
                }
                Finding::Changed(key, path) => {
                    let read = catch_up(writer, key, &path, false, &mut tidy);
                    pass_over_unreadable(&path, read)?;
                }
            }
        }
        Ok(())
    })
}
