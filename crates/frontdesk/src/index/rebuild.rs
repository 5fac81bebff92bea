//! From journals to the index: one after the other, or all of them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use frontdesk_core::fold::View;
use frontdesk_core::ids::Key;
use jiff::Timestamp;

use super::entry::{Entry, ordered};
use super::text::{Mark, Passage, Passages, read_on};
use super::write::{Disk, Writer};
use super::{Index, IndexError};
use crate::log::{Found, LogError, Reader, scan};

/// Journals that are read before readers of a new index could see them, at most.
const BATCH_JOURNALS: usize = 1_024;

/// Bytes of journals that are read before what was found is written, about.
const BATCH_BYTES: u64 = 32 << 20;

/// Text that waits to be written, in bytes.
const WAITING_BYTES_MAX: usize = 8 << 20;

/// Bytes of a journal's beginning by which it is known again.
const HEAD_BYTES: usize = 512;

/// Working directories whose real place is remembered while journals are read.
const FOLDERS_MAX: usize = 4_096;

/// Closes in a journal what a crash left open; `true` if it wrote something there.
pub type Tidy<'a> = dyn FnMut(Key, &Path, &View) -> bool + 'a;

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions that have a row.
    pub sessions: u64,
    /// Passages of their transcripts.
    pub passages: u64,
    /// Bytes of journals.
    pub bytes: u64,
    /// Journals that could not be read.
    pub unreadable: u64,
}

impl Disk {
    /// A journal as it lies there now. Waits for the disk.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of(path: &Path) -> Result<Self, LogError> {
        let error = |source| LogError::Io { what: "read", path: path.to_path_buf(), source };
        let file = File::open(path).map_err(error)?;
        let meta = file.metadata().map_err(error)?;
        let mut head = [0; HEAD_BYTES];
        let read = file.read_at(&mut head, 0).map_err(error)?;
        Ok(Self { head: sum_of(&head[..read]), ..Self::seen(&meta) })
    }

    /// Length and time, as the folder tells them.
    #[must_use]
    pub fn seen(meta: &fs::Metadata) -> Self {
        let micros = meta.mtime().saturating_mul(1_000_000);
        let modified = micros.saturating_add(meta.mtime_nsec() / 1_000);
        Self { bytes: meta.len(), modified, head: 0 }
    }

    /// When it was written last; now, if that is not known.
    fn modified_at(&self) -> Timestamp {
        Timestamp::from_microsecond(self.modified).unwrap_or_else(|_| Timestamp::now())
    }
}

/// Sum of a journal's first bytes up to its first line end: what is appended later leaves it alone.
fn sum_of(head: &[u8]) -> u32 {
    let end = memchr::memchr(b'\n', head).unwrap_or(head.len());
    crc32fast::hash(&head[..end])
}

/// Makes the index anew from all journals, in steps.
pub struct Rebuild {
    writer: Writer,
    journals: Box<dyn Iterator<Item = Found> + Send>,
    folders: Folders,
    counts: Counts,
}

impl std::fmt::Debug for Rebuild {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rebuild").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl Rebuild {
    /// Begins.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn begin(index: &Index) -> Result<Self, IndexError> {
        let journals = Box::new(scan(index.sessions()));
        let writer = index.make()?;
        Ok(Self { writer, journals, folders: Folders::default(), counts: Counts::default() })
    }

    /// Takes the next journals in, at most `count`; `false` if there are no more. A journal that
    /// cannot be read is counted and passed over.
    ///
    /// # Errors
    /// If the index cannot be written.
    pub fn step(&mut self, count: usize, tidy: &mut Tidy<'_>) -> Result<bool, IndexError> {
        let Self { writer, journals, folders, counts } = self;
        let mut ended = false;
        writer.batch(|writer| {
            let mut waiting = Waiting::default();
            let mut bytes = 0;
            for _ in 0..count.min(BATCH_JOURNALS) {
                let Some(found) = journals.next() else {
                    ended = true;
                    break;
                };
                bytes += found.bytes;
                match read_journal(writer, folders, &mut waiting, &found, None, tidy) {
                    Ok(there) => counts.sessions += u64::from(there),
                    Err(IndexError::Log(error)) => {
                        counts.unreadable += 1;
                        tracing::error!(path = %found.path.display(), %error, "failed to read a journal");
                    }
                    Err(error) => return Err(error),
                }
                counts.bytes += found.bytes;
                if bytes >= BATCH_BYTES {
                    break;
                }
            }
            counts.passages += waiting.write(writer)?;
            Ok(())
        })?;
        Ok(!ended)
    }

    /// What was read so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The finished index.
    #[must_use]
    pub fn finish(self) -> Writer {
        self.writer
    }
}

/// Reads a journal on from where its row ends, or from its beginning where that does not fit or
/// `anew` says so. Says whether the session has a row now.
///
/// # Errors
/// If the journal cannot be read or the index not be written.
pub fn catch_up(
    writer: &mut Writer,
    key: Key,
    path: &Path,
    anew: bool,
    tidy: &mut Tidy<'_>,
) -> Result<bool, IndexError> {
    let before = if anew { None } else { writer.get(key)? };
    if before.is_none() {
        writer.drop_text(key)?;
    }
    let found = Found { path: path.to_path_buf(), key, bytes: 0 };
    let mut waiting = Waiting::default();
    let there = read_journal(writer, &mut Folders::default(), &mut waiting, &found, before, tidy)?;
    waiting.write(writer)?;
    Ok(there)
}

/// Passages that wait to be written together.
#[derive(Default)]
struct Waiting {
    passages: Vec<(Key, Passage)>,
    bytes: usize,
    written: u64,
}

impl Waiting {
    fn take(&mut self, key: Key, passages: Vec<Passage>) {
        self.bytes += passages.iter().map(|passage| passage.text.len() + 64).sum::<usize>();
        self.passages.extend(passages.into_iter().map(|passage| (key, passage)));
    }

    /// Writes what waits; says how many passages went through here.
    fn write(&mut self, writer: &mut Writer) -> Result<u64, IndexError> {
        self.written += self.passages.len() as u64;
        self.bytes = 0;
        writer.add_passages(std::mem::take(&mut self.passages))?;
        Ok(self.written)
    }
}

fn read_journal(
    writer: &mut Writer,
    folders: &mut Folders,
    waiting: &mut Waiting,
    found: &Found,
    before: Option<(Entry, Disk)>,
    tidy: &mut Tidy<'_>,
) -> Result<bool, IndexError> {
    let Found { path, key, .. } = found;
    let disk = Disk::of(path)?;
    let (mut view, mut reader) = begin(writer, *key, path, before, &disk)?;
    let mut passages = Passages::default();
    let mut end;
    loop {
        let each = |said: Vec<Passage>| -> Result<(), IndexError> {
            waiting.take(*key, said);
            Ok(())
        };
        end = read_on(reader, Some(&mut view), &mut passages, each)?;
        let open = view.open_turn.is_some()
            || view.loaded_by.is_some()
            || !view.queued_turns.is_empty()
            || !view.open_interactions.is_empty();
        if !open || !tidy(*key, path, &view) {
            break;
        }
        reader = Reader::open_at(path, end.bytes, end.seq)?;
    }
    let goes_on = passages.finish(end);
    waiting.take(*key, passages.take_done());
    if view.seq == 0 && disk.bytes == 0 {
        // A journal without a record is a session that was never made.
        writer.remove(*key)?;
        return Ok(false);
    }
    let mut disk = Disk { bytes: end.bytes, ..Disk::of(path)? };
    if disk.head == 0 {
        disk.head = 1;
    }
    let entry = Entry {
        key: *key,
        ordered: ordered(&view, disk.modified_at()),
        real_cwd: folders.real(&view.cwd),
        path: path.clone(),
        bytes: end.bytes,
        view,
    };
    writer.put(&entry, disk)?;
    writer.set_text_mark(*key, goes_on)?;
    if waiting.bytes >= WAITING_BYTES_MAX {
        waiting.write(writer)?;
    }
    Ok(true)
}

/// Where reading goes on: behind the row where that fits, else at the beginning.
fn begin(
    writer: &mut Writer,
    key: Key,
    path: &Path,
    before: Option<(Entry, Disk)>,
    disk: &Disk,
) -> Result<(View, Reader), IndexError> {
    if let Some((entry, was)) = before {
        let text = writer.text_mark(key)?;
        let fits = !entry.view.deleted && was.head == disk.head && was.bytes <= disk.bytes;
        let from = Mark { bytes: was.bytes, seq: entry.view.seq };
        let from = if text.bytes < from.bytes { text } else { from };
        if fits && let Ok(reader) = Reader::open_at(path, from.bytes, from.seq) {
            writer.drop_text_behind(key, text)?;
            return Ok((entry.view, reader));
        }
        writer.drop_text(key)?;
    }
    Ok((View::default(), Reader::open(path)?))
}

/// Writes the row of a session whose fold is known, and reads on what was said there.
///
/// # Errors
/// If the index cannot be written. A journal that cannot be read has no text.
pub fn put_row(writer: &mut Writer, entry: &Entry) -> Result<(), IndexError> {
    let disk = match Disk::of(&entry.path) {
        // Written since: the next look reads it again.
        Ok(disk) if disk.bytes != entry.bytes => Disk { bytes: entry.bytes, modified: 0, ..disk },
        Ok(disk) => disk,
        Err(_) => Disk { bytes: entry.bytes, ..Disk::default() },
    };
    writer.put(entry, disk)?;
    let at_work = entry.view.open_turn.is_some();
    if entry.view.deleted || at_work || disk.head == 0 {
        return Ok(());
    }
    let mut mark = writer.text_mark(entry.key)?;
    if mark.bytes >= disk.bytes && mark.bytes > 0 {
        return Ok(());
    }
    let reader = match Reader::open_at(&entry.path, mark.bytes, mark.seq) {
        Ok(reader) => reader,
        Err(_) => {
            writer.drop_text(entry.key)?;
            mark = Mark::default();
            match Reader::open(&entry.path) {
                Ok(reader) => reader,
                Err(_) => return Ok(()),
            }
        }
    };
    writer.drop_text_behind(entry.key, mark)?;
    let mut said = Vec::new();
    let mut passages = Passages::default();
    let read = read_on(reader, None, &mut passages, |passages| {
        said.extend(passages.into_iter().map(|passage| (entry.key, passage)));
        if said.len() >= 1_024 {
            writer.add_passages(std::mem::take(&mut said))?;
        }
        Ok::<_, IndexError>(())
    });
    match read {
        Ok(end) => {
            mark = passages.finish(end);
            said.extend(passages.take_done().into_iter().map(|passage| (entry.key, passage)));
        }
        Err(IndexError::Log(error)) => {
            tracing::warn!(session = %entry.key, %error, "failed to read a transcript for the search");
        }
        Err(error) => return Err(error),
    }
    writer.add_passages(said)?;
    writer.set_text_mark(entry.key, mark)
}

/// Many sessions share few working directories.
#[derive(Debug, Default)]
struct Folders(HashMap<String, Option<PathBuf>>);

impl Folders {
    fn real(&mut self, cwd: &str) -> Option<PathBuf> {
        if let Some(real) = self.0.get(cwd) {
            return real.clone();
        }
        if self.0.len() >= FOLDERS_MAX {
            self.0.clear();
        }
        let real = fs::canonicalize(cwd).ok();
        self.0.insert(cwd.to_owned(), real.clone());
        real
    }
}
