//! Looks through a journal for damage, says in words what it is, and writes a damaged one anew where
//! somebody asked for that. Used for the note that a client is shown, by what must not touch a damaged
//! history, and by `frontdesk doctor`.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use frontdesk_core::ids::Seq;
use frontdesk_core::record::{Kind, RECORD_VERSION, Record};
use serde_json::json;

use super::{Damage, LogError, Reader, Snapshot, What, disk};

/// Damaged places named one by one in a text; the rest is counted.
const NAMED_MAX: usize = 5;

/// What a journal is like.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Its length in bytes.
    pub bytes: u64,
    /// Records served.
    pub records: u64,
    /// Number of the last one.
    pub last_seq: Seq,
    /// The damage, in order; at most a thousand places.
    pub damage: Vec<Damage>,
    /// How many there are.
    pub damage_count: u64,
}

impl Checked {
    /// Whether some of what was written is not served.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.damage.iter().any(|damage| damage.what.loses())
    }
}

/// Reads a journal from end to end. Waits for the disk; changes nothing.
///
/// # Errors
/// If it cannot be opened or read. Damage is no error.
pub fn check(path: &Path) -> Result<Checked, LogError> {
    let mut reader = Reader::open(path)?;
    let mut records = 0;
    reader.read_all(&mut |_: Record, _: u64| records += 1)?;
    Ok(Checked {
        bytes: reader.offset() + reader.tail_bytes(),
        records,
        last_seq: reader.last_seq(),
        damage: reader.damage().to_vec(),
        damage_count: reader.damage_count(),
    })
}

impl What {
    /// Whether something of it is not served; what is only oddly spelled is served whole.
    #[must_use]
    pub fn loses(self) -> bool {
        match self {
            Self::Unreadable
            | Self::TooLong
            | Self::Torn
            | Self::Repeated { .. }
            | Self::Misnumbered { .. }
            | Self::Gap { .. } => true,
            Self::Nul | Self::Welded => false,
        }
    }

    /// The kind as one word, for programs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Nul => "nul",
            Self::Welded => "welded",
            Self::TooLong => "tooLong",
            Self::Torn => "torn",
            Self::Repeated { .. } => "repeated",
            Self::Misnumbered { .. } => "misnumbered",
            Self::Gap { .. } => "gap",
        }
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: ")?,
            None => write!(f, "byte {}: ", self.offset)?,
        }
        let bytes = self.bytes;
        match self.what {
            What::Unreadable => {
                write!(f, "torn or unreadable ({bytes} bytes); what is whole in it is served")
            }
            What::Nul => write!(f, "NUL bytes; all records beside them are served"),
            What::Welded => {
                write!(f, "several records without a line end between them; all are served")
            }
            What::TooLong => write!(f, "too long to be a record ({bytes} bytes); skipped"),
            What::Torn => write!(
                f,
                "a damaged tail: the last record is cut short ({bytes} bytes); not served"
            ),
            What::Repeated { seq } => {
                write!(f, "number {seq} came before; the first one is served")
            }
            What::Misnumbered { seq } => write!(f, "number {seq} fits neither side; skipped"),
            What::Gap { after, next } if next == after + 2 => {
                write!(f, "record {} is missing before it", after + 1)
            }
            What::Gap { after, next } => {
                write!(f, "records {} to {} are missing before it", after + 1, next - 1)
            }
        }
    }
}

/// What a person is told of damage by which something is lost: how many places, and a sentence that
/// names them. `None` if all that was written is served.
#[must_use]
pub fn in_words(damage: &[Damage]) -> Option<(usize, String)> {
    let lost: Vec<&Damage> = damage.iter().filter(|damage| damage.what.loses()).collect();
    if lost.is_empty() {
        return None;
    }
    let named: Vec<String> = lost.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = match lost.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let places = if lost.len() == 1 { "place" } else { "places" };
    let text = format!(
        "The record of this session is damaged in {} {places}: {}{more}. All whole records are served, and nothing was changed; \
         `frontdesk doctor` explains it.",
        lost.len(),
        named.join("; "),
    );
    Some((lost.len(), text))
}

/// Writes a journal anew with its whole records only; the original stays beside it, and its new
/// path is returned. `stamp` becomes part of that name. Only for a journal that nobody writes.
///
/// # Errors
/// If the disk refuses: the journal is then as it was.
pub fn repair(path: &Path, stamp: &str) -> Result<PathBuf, LogError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let kept = path.with_file_name(format!("{name}.damaged-{stamp}"));
    let write = LogError::io("repair", path);
    let (temp, file) = disk::beside(path).map_err(LogError::io("repair", path))?;
    let original = kept.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let written = write_good(path, &file, &original).and_then(|()| {
        // The original has two names before it loses one.
        fs::hard_link(path, &kept).map_err(LogError::io("keep the original of", path))
    });
    if let Err(error) = written {
        let _ = fs::remove_file(&temp);
        return Err(error);
    }
    // Its offsets are those of the original.
    Snapshot::remove(path);
    let placed = disk::put_in_place(&temp, &file, path, disk::Care::Truth);
    placed.and_then(|()| disk::sync_folder(disk::parent(path))).map_err(write)?;
    Ok(kept)
}

fn write_good(path: &Path, file: &File, original: &str) -> Result<(), LogError> {
    let mut out = io::BufWriter::with_capacity(256 << 10, file);
    let mut lines = BufReader::new(File::open(path).map_err(LogError::io("open", path))?);
    let mut reader = Reader::open(path)?;
    let mut failed = None;
    let mut last = 0;
    reader.read_all(&mut |record: Record, offset: u64| {
        let lost = record.seq > last + 1
            && record.kind != Kind::Damage
            && (last > 0 || record.kind != Kind::Deleted);
        if failed.is_none() && lost {
            let mut line = Vec::new();
            in_place_of_lost(&record, last + 1, original).write_line(&mut line);
            failed = out.write_all(&line).err();
        }
        if failed.is_none() {
            failed = copy_or_print(&record, offset, &mut lines, &mut out).err();
        }
        last = record.seq;
    })?;
    let done = failed.map_or_else(|| out.flush(), Err);
    done.map_err(LogError::io("write beside", path))
}

/// What stands where records from number `first` on are lost, up to the one that follows.
fn in_place_of_lost(next: &Record, first: Seq, original: &str) -> Record {
    let last = next.seq - 1;
    let what = if first == last {
        format!("Record {first} is lost")
    } else {
        format!("Records {first} to {last} are lost")
    };
    let data = json!({
        "missing": [first, last],
        "original": original,
        "text": format!("{what}: the record of this session was damaged here."),
        "shown": true,
    });
    Record {
        v: RECORD_VERSION,
        seq: last,
        epoch: next.epoch,
        at: next.at,
        kind: Kind::Damage,
        src: None,
        data: Bytes::from(data.to_string()),
    }
}

/// The record's own line where that is nothing else, byte for byte; else the record.
fn copy_or_print(
    record: &Record,
    offset: u64,
    lines: &mut BufReader<File>,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let mut line = Vec::new();
    let at = lines.stream_position()?;
    // Staying in the buffer where possible: records come in the order of the file.
    match i64::try_from(offset).ok().zip(i64::try_from(at).ok()) {
        Some((offset, at)) => lines.seek_relative(offset - at)?,
        None => drop(lines.seek(SeekFrom::Start(offset))?),
    }
    lines.read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        line.push(b'\n');
    }
    let text = Bytes::from(line);
    let own = Record::parse(&text.slice(..text.len() - 1));
    if text.starts_with(b"{") && text.ends_with(b"}\n") && own.is_ok_and(|own| own == *record) {
        return out.write_all(&text);
    }
    let mut line = Vec::new();
    record.write_line(&mut line);
    out.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{line_of, lines, record, seqs};
    use super::*;

    fn journal(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("journal.jsonl");
        fs::write(&path, content).unwrap();
        (temp, path)
    }

    #[test]
    fn what_is_whole_is_told_to_be_whole() {
        let content = lines(1..=9);
        let (_temp, path) = journal(&content);
        let checked = check(&path).unwrap();
        assert_eq!((checked.records, checked.last_seq), (9, 9));
        assert_eq!(checked.bytes, content.len() as u64);
        assert!(!checked.is_damaged() && in_words(&checked.damage).is_none());
        assert!(check(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn damage_is_named_by_its_line_and_what_is_served_is_said() {
        let content =
            [lines(1..=2), b"{\"v\":1,\"se\n".to_vec(), lines(4..=4), lines(8..=9)].concat();
        let (_temp, path) = journal(&[&content[..], b"{\"v\""].concat());
        let checked = check(&path).unwrap();
        assert!(checked.is_damaged());
        assert_eq!(checked.records, 5);
        let (count, text) = in_words(&checked.damage).unwrap();
        assert_eq!(count, 4, "{text}");
        for words in [
            "line 3: torn",
            "record 3 is missing",
            "records 5 to 7 are missing",
            "line 7: a damaged tail",
        ] {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
    }

    #[test]
    fn many_places_are_counted_and_a_few_named() {
        let content: Vec<u8> =
            (1..=30).flat_map(|seq| [line_of(&record(seq)), b"x\n".to_vec()].concat()).collect();
        let (_temp, path) = journal(&content);
        let (count, text) = in_words(&check(&path).unwrap().damage).unwrap();
        assert_eq!(count, 30);
        assert!(text.contains("and 25 more") && text.contains("line 10:"), "{text}");
        assert!(!text.contains("line 12:"), "{text}");
    }

    #[test]
    fn odd_spelling_is_no_loss() {
        let welded = [&lines(1..=1)[..], &lines(2..=2)[..]].concat();
        let welded = welded.iter().copied().filter(|byte| *byte != b'\n').collect::<Vec<_>>();
        let (_temp, path) = journal(&[&welded[..], b"\n\0\0\0", &lines(3..=3)].concat());
        let checked = check(&path).unwrap();
        assert_eq!((checked.records, checked.damage_count), (3, 2));
        assert!(!checked.is_damaged());
    }

    #[test]
    fn a_repair_keeps_whole_lines_byte_for_byte_and_the_original_beside_them() {
        // A member that this version does not know, and one that is spelled in its own way.
        let own = line_of(&record(3));
        let newer =
            String::from_utf8(own).unwrap().replacen("{\"v\":1,", "{\"v\":1, \"newer\":1e2,", 1);
        let welded = [lines(4..=4), lines(5..=5)].concat();
        let welded: Vec<u8> = welded.into_iter().filter(|byte| *byte != b'\n').collect();
        let content =
            [&lines(1..=1)[..], b"bad\n", newer.as_bytes(), &welded, b"\r\n", b"{\"v\""].concat();
        let (temp, path) = journal(&content);
        fs::write(Snapshot::path(&path), "{}").unwrap();
        let kept = repair(&path, "20261130T120000Z").unwrap();
        assert_eq!(kept.file_name().unwrap(), "journal.jsonl.damaged-20261130T120000Z");
        assert_eq!(fs::read(&kept).unwrap(), content);
        let text = fs::read_to_string(&path).unwrap();
        let repaired: Vec<&str> = text.split_inclusive('\n').collect();
        assert!(repaired[1].contains(r#""seq":2"#) && repaired[1].contains(r#""missing":[2,2]"#));
        let expected = [&lines(1..=1)[..], repaired[1].as_bytes(), newer.as_bytes(), &lines(4..=5)];
        let expected = expected.concat();
        assert_eq!(text.as_bytes(), expected);
        assert_eq!(seqs(&path), [1, 2, 3, 4, 5]);
        assert!(!check(&path).unwrap().is_damaged(), "and then it is whole");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 2, "and nothing else");
        // What it was already is not taken twice.
        assert!(repair(&path, "20261130T120000Z").is_err(), "the first original is not replaced");
        assert_eq!(fs::read(&path).unwrap(), expected);
    }
}
