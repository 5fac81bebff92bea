//! A session's journal as its one writer sees it. Each `session` lane owns one.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use frontdesk_core::ids::{Epoch, Seq};
use frontdesk_core::record::Record;

use super::commit::{self, Waiter};
use super::slot::{Refused, Shared, Slot};
use super::{LogError, disk};

/// The right to append to one session's journal.
///
/// It holds no open file while it is idle for long, and no content: a few hundred bytes.
pub struct Journal {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    /// Number of the last record that counts.
    last: Seq,
    /// Records under an earlier one are refused.
    epoch: Epoch,
    /// Length of the file in bytes, torn bytes included.
    bytes: u64,
    /// The file does not end with a line end.
    torn: bool,
    /// Whole lines that a failed append left in the file: number and checksum. They are there, but
    /// do not count: the same records come again, and then only the rest is written.
    part: VecDeque<(Seq, u32)>,
}

/// Says when a batch is durable. Without anyone who waits that is soon, not at once.
#[must_use = "records that wait for a sync are not acknowledged before it"]
pub struct Ticket(Option<Waiter>);

impl Ticket {
    /// A ticket for a round.
    pub(super) fn of(waiter: Waiter) -> Self {
        Self(Some(waiter))
    }

    /// A ticket for nothing durable.
    pub(super) const DONE: Self = Self(None);

    /// Whether there is nothing to wait for.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.0.is_none()
    }

    /// Waits until the batch is on the disk: at once if nothing in it was durable, else after the
    /// commit log's sync, which begins now if it was still delayed. Dropping the ticket or the
    /// future loses the news, not the sync.
    ///
    /// # Errors
    /// If the sync failed. The records are in the journal all the same and survive everything but
    /// a power cut; appending them again would be wrong.
    pub async fn synced(self) -> Result<(), LogError> {
        match self.0 {
            None => Ok(()),
            Some(waiter) => match waiter.outcome().await {
                Some(outcome) => outcome.map_err(LogError::Sync),
                None => Err(LogError::Closed),
            },
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("settled", &self.is_settled()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Journal {
    pub(super) fn new(
        shared: Arc<Shared>,
        slot: Arc<Slot>,
        last: Seq,
        bytes: u64,
        torn: bool,
    ) -> Self {
        Self { shared, slot, last, epoch: 0, bytes, torn, part: VecDeque::new() }
    }

    /// Where the journal lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.slot.path
    }

    /// Number of the last record; 0 if there is none. The next one has a higher number.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        self.last
    }

    /// Length of the file in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// From here on records under an earlier epoch are refused; those under none (0), which are
    /// nobody's claim, never are.
    pub fn fence(&mut self, epoch: Epoch) {
        self.epoch = self.epoch.max(epoch);
    }

    /// Writes a batch with one write and queues its durable records to the commit log. Does not
    /// wait for the disk's sync, only for the page cache. The sync begins when somebody waits for
    /// the ticket, and within `commit_delay_ms` if nobody does. When it returns, readers see the batch,
    /// and it survives the death of the daemon.
    ///
    /// # Errors
    /// If the batch was not written as a whole: then none of it counts, and the same records can
    /// be appended again later. Bytes of a torn line stay in the file as one bad line.
    pub fn append(&mut self, records: &[Record]) -> Result<Ticket, LogError> {
        self.check_order(records)?;
        if records.is_empty() {
            return Ok(Ticket::DONE);
        }
        let durable = records.iter().any(|record| record.kind.is_durable());
        match self.shared.commit.has_room() {
            None => return Err(LogError::Closed),
            Some(false) if durable => {
                self.shared.space.set_stuck(self.slot.key, true);
                return Err(LogError::Behind { path: self.path().to_path_buf() });
            }
            Some(_) => {}
        }
        let batch = Batch::new(records);
        let written = self.write(&batch, records);
        self.shared.space.set_stuck(self.slot.key, written.is_err());
        written?;
        self.last = records.last().map_or(self.last, |record| record.seq);
        self.fence(records.iter().map(|record| record.epoch).max().unwrap_or_default());
        if !durable {
            return Ok(Ticket::DONE);
        }
        let entries = batch.durable_entries(records, &self.slot, &self.shared.sessions);
        Ok(Ticket::of(self.shared.commit.push(Arc::clone(&self.slot), entries)))
    }

    fn check_order(&self, records: &[Record]) -> Result<(), LogError> {
        let (mut last, mut epoch) = (self.last, self.epoch);
        for record in records {
            if record.epoch != 0 && record.epoch < epoch {
                return Err(LogError::OldEpoch { seq: record.seq, old: record.epoch, epoch });
            }
            epoch = epoch.max(record.epoch);
            if record.seq <= last {
                return Err(LogError::Order { seq: record.seq, last });
            }
            last = record.seq;
        }
        Ok(())
    }

    fn write(&mut self, batch: &Batch, records: &[Record]) -> Result<(), LogError> {
        let there = self.lines_there(batch, records)?;
        // Byte 0 of the text is a line end, and so is the byte before every line: starting one
        // byte earlier closes a torn line in the same write.
        let start = batch.line_start(there) - usize::from(self.torn);
        if start == batch.text.len() {
            self.part.drain(..there);
            return Ok(());
        }
        let streamed = records.iter().any(|record| !record.kind.is_durable());
        match self.slot.append(&self.shared, &batch.text[start..], streamed) {
            Ok(()) => {
                self.bytes += (batch.text.len() - start) as u64;
                self.torn = false;
                if there == records.len() {
                    self.part.drain(..there);
                } else {
                    self.part.clear();
                }
                Ok(())
            }
            Err(Refused::Dead) => Err(LogError::Entombed { path: self.path().to_path_buf() }),
            Err(Refused::Disk(taken, source)) => {
                self.note_part(batch, records, there, start, taken);
                let path = self.path().to_path_buf();
                Err(if disk::is_full(&source) {
                    LogError::Full { path, source }
                } else {
                    LogError::Io { what: "append to", path, source }
                })
            }
        }
    }

    /// How many lines of the batch an earlier, failed append left in the file.
    fn lines_there(&self, batch: &Batch, records: &[Record]) -> Result<usize, LogError> {
        let same = |(index, (seq, sum)): (usize, &(Seq, u32))| {
            records.get(index).is_some_and(|record| record.seq == *seq)
                && crc32fast::hash(batch.line(index)) == *sum
        };
        let there = self.part.iter().enumerate().take_while(|part| same(*part)).count();
        if let (Some((taken, _)), Some(next)) = (self.part.get(there), records.get(there))
            && next.seq <= self.part.back().map_or(*taken, |(last, _)| *last)
        {
            // Other records than those that failed. Their numbers are taken: readers would skip
            // them.
            return Err(LogError::Order { seq: next.seq, last: *taken });
        }
        Ok(there)
    }

    /// Notes what a failed append left behind.
    fn note_part(
        &mut self,
        batch: &Batch,
        records: &[Record],
        there: usize,
        start: usize,
        taken: usize,
    ) {
        if taken == 0 {
            return;
        }
        self.bytes += taken as u64;
        let reached = start + taken;
        // A line that lacks only its line end is whole: the next append closes it.
        let whole = batch.ends.partition_point(|end| *end <= reached + 1);
        self.torn = reached != batch.line_start(whole);
        for (index, record) in records.iter().enumerate().take(whole).skip(there) {
            self.part.push_back((record.seq, crc32fast::hash(batch.line(index))));
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.space.set_stuck(self.slot.key, false);
        self.slot.release();
    }
}

/// The text of a batch.
struct Batch {
    /// A line end, then the lines.
    text: Vec<u8>,
    /// The end of each line in `text`.
    ends: Vec<usize>,
}

impl Batch {
    fn new(records: &[Record]) -> Self {
        let size: usize = records.iter().map(|record| record.data.len() + 192).sum();
        let mut text = Vec::with_capacity(size + 1);
        text.push(b'\n');
        let mut ends = Vec::with_capacity(records.len());
        for record in records {
            record.write_line(&mut text);
            ends.push(text.len());
        }
        Self { text, ends }
    }

    /// Where a line begins in the text; for the line behind the last, the text's end.
    fn line_start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(1, |before| self.ends[before])
    }

    /// A line with its line end.
    fn line(&self, index: usize) -> &[u8] {
        &self.text[self.line_start(index)..self.ends[index]]
    }

    /// The commit log's entries for the durable records.
    fn durable_entries(&self, records: &[Record], slot: &Slot, sessions: &Path) -> Vec<u8> {
        let folder = disk::parent(&slot.path);
        // `Log` lets no journal in whose folder is elsewhere or not text.
        let folder = folder.strip_prefix(sessions).ok().and_then(Path::to_str).unwrap_or_default();
        let mut entries = Vec::new();
        for (index, record) in records.iter().enumerate() {
            if record.kind.is_durable() {
                commit::frame(&mut entries, slot.key, folder, record.seq, self.line(index));
            }
        }
        entries
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
