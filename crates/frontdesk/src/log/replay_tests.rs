use std::collections::BTreeMap as Map;

use frontdesk_core::limits::Limits;

use super::super::testing::{
    Bench, Random, at, durable, key, line_of, lines, record, record_of, seqs,
};
use super::super::tests::copy_of;
use super::super::{Log, commit};
use super::*;

/// A data folder with one journal and a commit log, written by hand.
struct Data {
    temp: tempfile::TempDir,
    path: PathBuf,
    log: PathBuf,
}

impl Data {
    fn new(journal: Option<&[u8]>, entries: &[Record]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let folder = format!("2026/11/30/{}", key(1));
        let path = temp.path().join("sessions").join(&folder).join(JOURNAL_NAME);
        let mut text = Vec::new();
        for entry in entries {
            commit::frame(&mut text, key(1), &folder, entry.seq, &line_of(entry));
        }
        fs::create_dir_all(temp.path().join("commit")).unwrap();
        let log = temp.path().join("commit/001.log");
        fs::write(&log, text).unwrap();
        if let Some(journal) = journal {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, journal).unwrap();
        }
        Self { temp, path, log }
    }

    /// Plays the commit log as a start does, but without taking it away.
    fn play(&self) -> Replayed {
        let sessions = self.temp.path().join("sessions");
        replay(&self.temp.path().join("commit"), &sessions).unwrap().0
    }

    /// Plays it twice and expects these records in the journal, in order.
    #[track_caller]
    fn check(&self, expected: &[Seq], written: usize) -> Replayed {
        let first = self.play();
        assert_eq!(first.failed, []);
        assert_eq!(seqs(&self.path), expected);
        assert_eq!(first.written, written);
        let content = fs::read(&self.path).unwrap();
        let second = self.play();
        assert_eq!((second.written, second.remade, second.mended), (0, 0, 0));
        assert_eq!(fs::read(&self.path).unwrap(), content, "playing twice changes nothing");
        let left: Vec<_> = fs::read_dir(self.path.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "no file is left over");
        first
    }
}

#[test]
fn a_journal_that_has_everything_is_left_alone() {
    let all = [line_of(&durable(1)), lines(2..=2), line_of(&durable(3)), lines(4..=9)].concat();
    let data = Data::new(Some(&all), &[durable(1), durable(3)]);
    let done = data.check(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 0);
    assert_eq!(fs::read(&data.path).unwrap(), all);
    assert_eq!((done.files, done.entries, done.sessions, done.skipped), (1, 2, 1, 2));
}

#[test]
fn a_journal_gets_the_end_it_lacks() {
    let all = [line_of(&durable(1)), lines(2..=2), line_of(&durable(3))].concat();
    let start = all.len() - line_of(&durable(3)).len();
    for cut in start..=all.len() {
        let data = Data::new(Some(&all[..cut]), &[durable(1), durable(3), durable(4)]);
        // A last record that lacks only its line end is there.
        let lacks = if cut + 1 >= all.len() { 1 } else { 2 };
        data.check(&[1, 2, 3, 4], lacks);
        assert!(fs::read(&data.path).unwrap().starts_with(&all[..cut]), "nothing is taken away");
    }
}

#[test]
fn a_missing_journal_is_made_again() {
    let data = Data::new(None, &[durable(1), durable(4)]);
    let done = data.check(&[1, 4], 2);
    assert_eq!(done.remade, 1);
}

#[test]
fn records_missing_in_the_middle_are_put_there() {
    // A power cut can leave later blocks and NUL bytes where earlier ones were.
    let mut all = [lines(1..=1), line_of(&durable(2)), line_of(&durable(3)), lines(4..=5)].concat();
    let hole = lines(1..=1).len() + 9;
    all[hole..hole + line_of(&durable(2)).len()].fill(0);
    let data = Data::new(Some(&all), &[durable(2), durable(3), durable(6)]);
    let done = data.check(&[1, 2, 3, 4, 5, 6], 3);
    assert_eq!(done.mended, 1);
    let text = fs::read(&data.path).unwrap();
    assert!(text.len() > all.len() && text.windows(9).any(|bytes| bytes == [0; 9]), "all is kept");

    // Behind a gap, where the record before the missing one had its number guessed.
    let gappy = [lines(1..=1), lines(5..=5), lines(7..=8)].concat();
    Data::new(Some(&gappy), &[durable(6)]).check(&[1, 5, 6, 7, 8], 1);
    // Into a journal whose last line lacks its end.
    let tail = [lines(1..=1), lines(3..=3)].concat();
    Data::new(Some(&tail[..tail.len() - 1]), &[durable(2), durable(4)]).check(&[1, 2, 3, 4], 2);
}

#[test]
fn a_long_journal_is_mended_near_its_end() {
    let all = [lines(1..=4_000), lines(4_002..=6_000)].concat();
    let data = Data::new(Some(&all), &[durable(4_001), durable(6_001)]);
    data.check(&(1..=6_001).collect::<Vec<_>>(), 2);
}

#[test]
fn a_deleted_session_stays_deleted() {
    let tombstone = line_of(&record_of(Kind::Deleted, 9));
    let data = Data::new(Some(&tombstone), &[durable(2), durable(8)]);
    data.check(&[9], 0);
    assert_eq!(fs::read(&data.path).unwrap(), tombstone);
}

#[test]
fn a_cut_commit_log_is_played_up_to_its_last_whole_entry() {
    let entries = [durable(1), durable(2), durable(3)];
    let whole = fs::read(Data::new(None, &entries).log).unwrap();
    let second = whole.len() / 3;
    for cut in second * 2 - 2..whole.len() {
        let data = Data::new(Some(b""), &entries);
        fs::write(&data.log, &whole[..cut]).unwrap();
        let entries = cut / second;
        let expected: Vec<_> = (1..=entries as u64).collect();
        let done = data.check(&expected, entries);
        assert_eq!(done.torn_files, usize::from(cut % second != 0), "cut at {cut}");
    }
}

#[test]
fn a_journal_that_cannot_take_its_records_keeps_the_commit_log() {
    let data = Data::new(None, &[durable(1)]);
    fs::create_dir_all(&data.path).unwrap();
    let (log, done) = Log::open(data.temp.path(), &Limits::default()).unwrap();
    assert_eq!(done.failed.len(), 1);
    assert_eq!(done.failed[0].0, data.path);
    // Others can be used meanwhile, in a file of their own.
    let mut other = log.create(key(2), at()).unwrap();
    let _ = other.append(&[durable(1)]).unwrap();
    log.close().unwrap();
    drop((other, log));
    assert!(data.log.exists());
    fs::remove_dir(&data.path).unwrap();
    let (log, done) = Log::open(data.temp.path(), &Limits::default()).unwrap();
    assert_eq!((done.failed.len(), done.remade, done.written), (0, 1, 1));
    log.close().unwrap();
    assert!(!data.log.exists());
    assert_eq!(seqs(&data.path), [1]);
}

#[test]
fn an_entry_for_a_folder_elsewhere_is_refused() {
    let own = key(1).to_string();
    let other = key(2).to_string();
    for folder in
        [&format!("../{own}"), &format!("/tmp/{own}"), "", &format!("a/../../{own}"), &other]
    {
        let data = Data::new(None, &[]);
        let mut text = Vec::new();
        commit::frame(&mut text, key(1), folder, 1, &line_of(&durable(1)));
        fs::write(&data.log, text).unwrap();
        let done = data.play();
        assert_eq!((done.failed.len(), done.remade), (1, 0), "{folder:?}");
        assert!(!data.temp.path().join(&own).exists());
    }
}

#[test]
fn other_files_in_the_folder_are_left_alone() {
    let data = Data::new(None, &[durable(1)]);
    for name in ["notes.txt", "1.log", "001.log.bak"] {
        fs::write(data.log.with_file_name(name), "mine").unwrap();
    }
    assert_eq!(data.play().files, 1);
    Log::open(data.temp.path(), &Limits::default()).unwrap().0.close().unwrap();
    assert_eq!(fs::read_dir(data.log.parent().unwrap()).unwrap().count(), 3);
}

/// Machines that stop at random: journals lose bytes that no sync covered, or have NUL bytes in
/// their place; the commit log has a torn end. What was acknowledged is there again, in order, once.
#[tokio::test]
async fn what_was_acknowledged_survives_a_machine_that_stops() {
    let mut random = Random::seeded("what_was_acknowledged_survives_a_machine_that_stops");
    let (mut written, mut mended) = (0, 0);
    for round in 0..20 {
        let commit_log_bytes = if round % 2 == 0 { 1 << 20 } else { 500 + random.below(5_000) };
        // Streamed lines are not synced within this test.
        let limits = Limits { commit_log_bytes, stream_sync_ms: 60_000, ..Limits::default() };
        let bench = Bench::new(&limits);
        let mut journals: Vec<_> =
            (0..4).map(|number| bench.log.create(key(number), at()).unwrap()).collect();
        let mut acknowledged: Map<PathBuf, Vec<Seq>> = Map::new();
        for _ in 0..40 {
            let journal = &mut journals[usize::try_from(random.below(4)).unwrap()];
            let seq = journal.last_seq() + 1;
            let batch = [record(seq), durable(seq + 1)];
            journal.append(&batch).unwrap().synced().await.unwrap();
            let path = journal.path().strip_prefix(bench.data.path()).unwrap();
            acknowledged.entry(path.to_path_buf()).or_default().push(seq + 1);
        }
        let copy = copy_of(bench.data.path());
        let synced = bench.disk.synced_bytes.lock().unwrap().clone();
        for path in acknowledged.keys() {
            let safe = synced.get(&bench.data.path().join(path)).copied().unwrap_or_default();
            lose_some(&copy.path().join(path), safe, &mut random);
        }
        if let Some((_, newest)) = list(&copy.path().join("commit")).unwrap().pop() {
            let mut file = fs::File::options().append(true).open(newest).unwrap();
            io::Write::write_all(&mut file, b"0bad torn entry").unwrap();
        }
        let (log, done) = Log::open(copy.path(), &limits).unwrap();
        assert_eq!(done.failed, [], "round {round}");
        written += done.written;
        mended += done.mended;
        for (path, wanted) in &acknowledged {
            let there = seqs(&copy.path().join(path));
            assert!(there.is_sorted_by(|a, b| a < b), "round {round}");
            for seq in wanted {
                assert!(there.contains(seq), "round {round}: {seq} is missing in {there:?}");
            }
            let journal = log.open_journal(&copy.path().join(path)).unwrap();
            assert_eq!(Some(journal.last_seq()), there.last().copied());
        }
    }
    assert!(written > 100 && mended > 5, "the test tests: {written} written, {mended} mended");
}

/// What a power cut does to the bytes of a file from `safe` on.
fn lose_some(path: &Path, safe: u64, random: &mut Random) {
    let len = fs::metadata(path).unwrap().len();
    let file = fs::File::options().write(true).open(path).unwrap();
    let from = safe + random.below(len - safe + 1);
    if random.below(2) == 0 {
        file.set_len(from).unwrap();
    } else {
        let count = usize::try_from(random.below(len - from + 1)).unwrap();
        file.write_all_at(&vec![0; count], from).unwrap();
    }
}
