//! Walks over journals: from a place where the view's state is known, on.
//!
//! Events follow from records alone, but a record in the middle needs the state before it. Walks
//! leave marks behind (state and place in the file), so that the next one begins near where it
//! wants to be. Marks are a cache: bounded, and made again by reading.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};

use frontdesk_core::ids::{Key, Seq};
use frontdesk_core::msp::{Event, Renderer};
use frontdesk_core::record::Record;

use crate::lock::lock;
use crate::log::Reader;
use crate::node::directory::Row;

/// Bytes read from a journal at a time.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes of journal between two marks.
const MARK_BYTES: u64 = 4 << 20;
/// Marks of one session; beyond them every second one is dropped.
const MARKS_MAX: usize = 64;
/// Sessions with marks; beyond them the one that was not used longest is forgotten.
const SESSIONS_MAX: usize = 32;

/// Marks of the sessions that were read last.
#[derive(Debug)]
pub(super) struct Tracks {
    /// Last used at the back.
    sessions: Mutex<VecDeque<(Key, Vec<Mark>)>>,
    /// Bytes of journal between two marks.
    mark_bytes: u64,
    /// Bytes read at a time; marks stand only between such pieces.
    batch_bytes: usize,
}

impl Default for Tracks {
    fn default() -> Self {
        Self::new(MARK_BYTES, BATCH_BYTES)
    }
}

/// The state behind a record, and where the next one begins.
#[derive(Clone, Debug)]
struct Mark {
    seq: Seq,
    offset: u64,
    state: Arc<Renderer>,
}

impl Tracks {
    pub(super) fn new(mark_bytes: u64, batch_bytes: usize) -> Self {
        Self { sessions: Mutex::default(), mark_bytes, batch_bytes }
    }

    /// How many marks a session has.
    #[cfg(test)]
    pub(super) fn marks(&self, key: Key) -> usize {
        let sessions = lock(&self.sessions);
        sessions.iter().find(|(other, _)| *other == key).map_or(0, |(_, marks)| marks.len())
    }

    /// The mark nearest before `seq`: its state covers no record behind it.
    fn before(&self, key: Key, seq: Seq) -> Option<Mark> {
        let mut sessions = lock(&self.sessions);
        let at = sessions.iter().position(|(other, _)| *other == key)?;
        let entry = sessions.remove(at)?;
        let found = entry.1.iter().rev().find(|mark| mark.seq <= seq).cloned();
        sessions.push_back(entry);
        found
    }

    fn put(&self, key: Key, mark: Mark) {
        let mut sessions = lock(&self.sessions);
        let at = sessions.iter().position(|(other, _)| *other == key);
        let (_, mut marks) = at.and_then(|at| sessions.remove(at)).unwrap_or((key, Vec::new()));
        let place = marks.partition_point(|other| other.seq < mark.seq);
        match marks.get_mut(place) {
            Some(other) if other.seq == mark.seq => *other = mark,
            _ => marks.insert(place, mark),
        }
        // One mark stands at the end as it was seen last; the others are a walk's length apart.
        let end = |at: usize| marks.get(at).map_or(0, |mark| mark.offset);
        if let Some(last) = place.checked_sub(1)
            && end(last) - last.checked_sub(1).map_or(0, end) < self.mark_bytes
        {
            marks.remove(last);
        }
        if marks.len() > MARKS_MAX {
            let mut odd = false;
            marks.retain(|_| {
                odd = !odd;
                odd
            });
        }
        sessions.push_back((key, marks));
        if sessions.len() > SESSIONS_MAX {
            sessions.pop_front();
        }
    }
}

/// A walk over one journal. Waits for the disk: run it where that is allowed.
pub(super) struct Walk {
    reader: Reader,
    state: Renderer,
    /// Where the last mark was left.
    marked: u64,
    /// Records that were read and not walked over yet.
    ready: std::vec::IntoIter<Record>,
    /// Records behind this one are not walked over yet: nobody may be shown them.
    limit: Seq,
}

impl Walk {
    /// Stands before record `seq`, or before the nearest place from where that can be reached.
    pub(super) fn to(tracks: &Tracks, key: Key, path: &Path, seq: Seq) -> Result<Self, String> {
        let text = |error: crate::log::LogError| error.to_string();
        if let Some(mark) = tracks.before(key, seq.saturating_sub(1))
            && let Ok(reader) = Reader::open_at(path, mark.offset, mark.seq)
        {
            let state = (*mark.state).clone();
            return Ok(Self {
                reader,
                state,
                marked: mark.offset,
                ready: Vec::new().into_iter(),
                limit: Seq::MAX,
            });
        }
        let reader = Reader::open(path).map_err(text)?;
        let state = Renderer::new(key);
        Ok(Self { reader, state, marked: 0, ready: Vec::new().into_iter(), limit: Seq::MAX })
    }

    /// Goes no further than record `seq`.
    pub(super) fn limit(&mut self, seq: Seq) {
        self.limit = seq;
    }

    /// The state behind everything that was walked over.
    pub(super) fn state(&self) -> &Renderer {
        &self.state
    }

    /// Adds the events of the next record; `false` at the present end.
    pub(super) fn step(
        &mut self,
        tracks: &Tracks,
        events: &mut Vec<Event>,
    ) -> Result<bool, String> {
        let record = self.next(tracks)?;
        if let Some(record) = &record {
            self.state.apply(record, events);
        }
        Ok(record.is_some())
    }

    /// Stands behind record `upto`, or at the present end if that comes before it.
    pub(super) fn behind(
        tracks: &Tracks,
        key: Key,
        path: &Path,
        upto: Seq,
    ) -> Result<Self, String> {
        let mut walk = Self::to(tracks, key, path, upto.saturating_add(1))?;
        walk.limit(upto);
        walk.finish(tracks)?;
        Ok(walk)
    }

    /// Walks to the present end, past all events.
    pub(super) fn finish(&mut self, tracks: &Tracks) -> Result<(), String> {
        while let Some(record) = self.next(tracks)? {
            self.state.pass(&record);
        }
        self.mark(tracks);
        Ok(())
    }

    fn next(&mut self, tracks: &Tracks) -> Result<Option<Record>, String> {
        if !self.ready.as_slice().is_empty() {
            return Ok(self.ready_within());
        }
        // All that was read is walked over: the state and the reader stand at the same place.
        if self.reader.offset() >= self.marked + tracks.mark_bytes {
            self.mark(tracks);
        }
        let batch =
            self.reader.read_batch(tracks.batch_bytes).map_err(|error| error.to_string())?;
        self.ready = batch.into_iter();
        Ok(self.ready_within())
    }

    fn ready_within(&mut self) -> Option<Record> {
        let limit = self.limit;
        self.ready.as_slice().first().filter(|record| record.seq <= limit)?;
        self.ready.next()
    }

    fn mark(&mut self, tracks: &Tracks) {
        let seq = self.reader.last_seq();
        if seq == 0 || self.state.seq() != seq {
            return;
        }
        self.marked = self.reader.offset();
        let state = Arc::new(self.state.clone());
        tracks.put(self.state.key(), Mark { seq, offset: self.marked, state });
    }
}

/// The last record that may be shown beside a row. What a lane has written and not published yet is
/// nobody's to see: it may have to be synced first. Without a lane it is all there is.
pub(super) fn upto(face: &super::Face, row: &Row) -> Seq {
    face.node.running_lane(row.key).map_or(Seq::MAX, |_| row.view.seq)
}

/// The state behind the last record of a session's journal that may be shown.
pub(super) async fn head(face: &Arc<super::Face>, row: &Row) -> Result<Renderer, String> {
    let (key, path, upto) = (row.key, row.path.clone(), upto(face, row));
    blocking(face, move |face| Ok(Walk::behind(&face.tracks, key, &path, upto)?.state)).await
}

/// Does work that waits for the disk.
pub(super) async fn blocking<T: Send + 'static>(
    face: &Arc<super::Face>,
    work: impl FnOnce(&super::Face) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let face = face.clone();
    let done = tokio::task::spawn_blocking(move || work(&face)).await;
    done.map_err(|error| error.to_string())?
}
