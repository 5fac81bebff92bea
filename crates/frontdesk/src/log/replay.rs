//! What a start does first: plays the commit log into journals that lack its records.
//!
//! After the daemon was killed the journals have everything, and nothing is written. After a power
//! cut a journal may lack its end, hold NUL bytes in its middle, or be missing with its folder;
//! then the commit log's lines are appended, put where they belong, or found a new journal.
//! Nothing that is in a journal is removed. Called by [`super::Log::open`].

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};

use frontdesk_core::ids::{Key, Seq};
use frontdesk_core::record::{Kind, Record};

use super::commit::{Entries, Entry, file_number};
use super::{JOURNAL_NAME, LogError, Snapshot, disk, tail};

/// What the start found in the commit log and did about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Files of the commit log.
    pub files: usize,
    /// Files whose last entry is cut short.
    pub torn_files: usize,
    /// Whole entries.
    pub entries: usize,
    /// Sessions they speak of.
    pub sessions: usize,
    /// Records that journals lacked and have now.
    pub written: usize,
    /// Records that were there, or belong to deleted sessions.
    pub skipped: usize,
    /// Journals that were missing and were made again.
    pub remade: usize,
    /// Journals that lacked records before others they have, so that these were put in between.
    pub mended: usize,
    /// Journals that could not take their records, and why. The commit log is kept for the next
    /// start.
    pub failed: Vec<(PathBuf, String)>,
    /// Journals that were written to.
    pub changed: Vec<(Key, PathBuf)>,
    /// What `touched.log` says of the daemon before.
    pub behind: super::TouchedLeft,
}

/// Where an entry's line lies.
struct Place {
    file: usize,
    offset: u64,
    len: u64,
}

/// The entries of one session by number; the first of a number counts.
type Wanted = BTreeMap<Seq, Place>;

/// What is left to do behind the start: the journals are not synced yet, so the commit log stays
/// until they are.
#[derive(Default)]
pub(super) struct Left {
    /// The files of the commit log, if they may go.
    pub(super) files: Vec<PathBuf>,
    /// The journals to sync before.
    pub(super) journals: Vec<(Key, PathBuf)>,
    /// The number of the next file.
    pub(super) next: u64,
}

/// Plays the commit log. Does not wait for syncs, but where a journal has to be written anew.
pub(super) fn replay(commit: &Path, sessions: &Path) -> Result<(Replayed, Left), LogError> {
    let mut done = Replayed::default();
    let mut left = Left::default();
    let files = list(commit)?;
    let mut wanted: HashMap<(String, Key), Wanted> = HashMap::new();
    let mut open = Vec::new();
    for (_, path) in &files {
        let mut entries = Entries::open(path).map_err(LogError::io("open", path))?;
        while let Some(entry) = entries.next().map_err(LogError::io("read", path))? {
            done.entries += 1;
            let Entry { key, folder, seq, offset, len } = entry;
            let place = Place { file: open.len(), offset, len };
            wanted.entry((folder, key)).or_default().entry(seq).or_insert(place);
        }
        done.torn_files += usize::from(entries.is_torn());
        open.push(File::open(path).map_err(LogError::io("open", path))?);
    }
    done.files = files.len();
    done.sessions = wanted.len();
    for ((folder, key), wanted) in wanted {
        let path = sessions.join(&folder).join(JOURNAL_NAME);
        let before = (done.written, done.remade);
        let played = if is_of(Path::new(&folder), key) {
            play(&path, &wanted, &open, &mut done)
        } else {
            Err(LogError::Foreign { path: path.clone() })
        };
        match played {
            Ok(()) => {
                if before != (done.written, done.remade) {
                    done.changed.push((key, path.clone()));
                }
                left.journals.push((key, path));
            }
            Err(error) => {
                tracing::warn!(%error, journal = %path.display(), "failed to play the commit log");
                done.failed.push((path, error.to_string()));
            }
        }
    }
    left.next = files.last().map_or(0, |(number, _)| *number) + 1;
    if done.failed.is_empty() {
        left.files = files.into_iter().map(|(_, path)| path).collect();
    }
    Ok((done, left))
}

/// Whether a folder is a session's, below the sessions folder.
fn is_of(folder: &Path, key: Key) -> bool {
    let named = folder.file_name().and_then(|name| name.to_str()).map(str::parse);
    folder.components().all(|part| matches!(part, Component::Normal(_))) && named == Some(Ok(key))
}

/// The files of the commit log in order.
fn list(commit: &Path) -> Result<Vec<(u64, PathBuf)>, LogError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(commit).map_err(LogError::io("read", commit))? {
        let entry = entry.map_err(LogError::io("read", commit))?;
        if let Some(number) = entry.file_name().to_str().and_then(file_number) {
            files.push((number, entry.path()));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// What lies in a commit log, for a daemon's start to come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Its files.
    pub files: usize,
    /// Files whose last entry is cut short: it was being written, and nobody was told of it.
    pub torn_files: usize,
    /// Whole entries.
    pub entries: usize,
    /// Journals that lack records which are here, and how many.
    pub lacking: Vec<(PathBuf, usize)>,
}

/// Looks into the commit log below `data` and changes nothing. Only while no daemon runs on it: a
/// running one is ahead of its journals as it should be.
///
/// # Errors
/// If it cannot be read.
pub fn committed(data: &Path) -> Result<Committed, LogError> {
    let mut found = Committed::default();
    let mut wanted: BTreeMap<PathBuf, Wanted> = BTreeMap::new();
    let folder = data.join("commit");
    if !folder.exists() {
        return Ok(found);
    }
    for (_, path) in list(&folder)? {
        let mut entries = Entries::open(&path).map_err(LogError::io("open", &path))?;
        while let Some(entry) = entries.next().map_err(LogError::io("read", &path))? {
            found.entries += 1;
            if is_of(Path::new(&entry.folder), entry.key) {
                let journal = data.join("sessions").join(&entry.folder).join(JOURNAL_NAME);
                let place = Place { file: 0, offset: entry.offset, len: entry.len };
                wanted.entry(journal).or_default().insert(entry.seq, place);
            }
        }
        found.files += 1;
        found.torn_files += usize::from(entries.is_torn());
    }
    for (journal, wanted) in wanted {
        let lacks = if journal.exists() {
            let lacks = Lacks::look(&journal, &wanted)?;
            lacks.before.values().map(Vec::len).sum::<usize>() + lacks.at_end.len()
        } else {
            wanted.len()
        };
        if lacks > 0 {
            found.lacking.push((journal, lacks));
        }
    }
    Ok(found)
}

/// Whether a file of the commit log has records that one of these journals lacks.
pub(super) fn lacks_any(file: &Path, journals: &HashMap<Key, &Path>) -> io::Result<bool> {
    let mut wanted: HashMap<Key, Wanted> = HashMap::new();
    let mut entries = Entries::open(file)?;
    while let Some(entry) = entries.next()? {
        if journals.contains_key(&entry.key) {
            let place = Place { file: 0, offset: entry.offset, len: entry.len };
            wanted.entry(entry.key).or_default().insert(entry.seq, place);
        }
    }
    for (key, wanted) in wanted {
        let path = journals[&key];
        if !path.exists() {
            // Removed by hand, as `sync` takes it.
            continue;
        }
        let lacks = Lacks::look(path, &wanted).map_err(io::Error::other)?;
        if !lacks.before.is_empty() || !lacks.at_end.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Gives one journal what it lacks.
fn play(path: &Path, wanted: &Wanted, files: &[File], done: &mut Replayed) -> Result<(), LogError> {
    let write = LogError::io("write", path);
    let missing = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(LogError::io("look at", path)(error)),
        Ok(_) => false,
    };
    if missing {
        disk::make_folder(disk::parent(path)).map_err(LogError::io("make", path))?;
        disk::make_file(path).map_err(LogError::io("make", path))?;
        done.remade += 1;
    }
    let lacks = Lacks::look(path, wanted)?;
    let count: usize = lacks.before.values().map(Vec::len).sum::<usize>() + lacks.at_end.len();
    let mended = !lacks.before.is_empty();
    let written = if mended {
        // Offsets move.
        Snapshot::remove(path);
        mend(path, &lacks, wanted, files)
    } else {
        append(path, &lacks, wanted, files)
    };
    written.map_err(write)?;
    done.written += count;
    done.skipped += wanted.len() - count;
    done.mended += usize::from(mended);
    Ok(())
}

/// What a journal lacks.
#[derive(Default)]
struct Lacks {
    /// Records that belong before what begins at an offset.
    before: BTreeMap<u64, Vec<Seq>>,
    /// Records that belong behind everything.
    at_end: Vec<Seq>,
    /// The journal does not end with a line end.
    torn: bool,
}

impl Lacks {
    fn look(path: &Path, wanted: &Wanted) -> Result<Self, LogError> {
        let mut lacks = Self::default();
        let Some(first) = wanted.keys().next() else { return Ok(lacks) };
        let mut reader = tail::open_before(path, *first)?;
        // Numbers of the journal that matter, and where the line of each begins.
        let mut there = BTreeMap::new();
        let mut entombed = false;
        reader.read_all(&mut |record: Record, offset| {
            entombed |= record.kind == Kind::Deleted;
            there.entry(record.seq).or_insert(offset);
        })?;
        lacks.torn = reader.is_torn()?;
        if entombed {
            // A deleted session stays deleted.
            return Ok(Self::default());
        }
        for seq in wanted.keys().filter(|seq| !there.contains_key(seq)) {
            match there.range(seq..).next() {
                Some((_, offset)) => lacks.before.entry(*offset).or_default().push(*seq),
                None => lacks.at_end.push(*seq),
            }
        }
        Ok(lacks)
    }
}

/// Copies an entry's line to `out`.
fn copy_line(place: &Place, files: &[File], out: &mut impl io::Write) -> io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    let (mut at, end) = (place.offset, place.offset + place.len);
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(piece.len());
        files[place.file].read_exact_at(&mut piece[..want], at)?;
        out.write_all(&piece[..want])?;
        at += want as u64;
    }
    Ok(())
}

fn append(path: &Path, lacks: &Lacks, wanted: &Wanted, files: &[File]) -> io::Result<()> {
    let file = File::options().append(true).open(path)?;
    let mut out = io::BufWriter::with_capacity(256 << 10, &file);
    if lacks.torn && !lacks.at_end.is_empty() {
        out.write_all(b"\n")?;
    }
    for seq in &lacks.at_end {
        copy_line(&wanted[seq], files, &mut out)?;
    }
    out.flush()
}

/// Writes the journal anew with every byte it has and the missing lines where they belong, and puts
/// it in the old one's place.
fn mend(path: &Path, lacks: &Lacks, wanted: &Wanted, files: &[File]) -> io::Result<()> {
    let old = File::open(path)?;
    let old_bytes = old.metadata()?.len();
    let (temp, file) = disk::beside(path)?;
    let mut out = io::BufWriter::with_capacity(256 << 10, &file);
    let copied = (|| {
        let mut at = 0;
        for (offset, seqs) in &lacks.before {
            io::copy(&mut io::Read::take(&old, offset - at), &mut out)?;
            at = *offset;
            for seq in seqs {
                copy_line(&wanted[seq], files, &mut out)?;
            }
        }
        io::copy(&mut io::Read::take(&old, old_bytes - at), &mut out)?;
        if lacks.torn && !lacks.at_end.is_empty() {
            out.write_all(b"\n")?;
        }
        for seq in &lacks.at_end {
            copy_line(&wanted[seq], files, &mut out)?;
        }
        out.flush()
    })();
    drop(out);
    if let Err(error) = copied {
        let _ = fs::remove_file(&temp);
        return Err(error);
    }
    disk::put_in_place(&temp, &file, path, disk::Care::Truth)
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
