//! What the threads of the log share: one slot for each journal that is live or not yet synced,
//! and the bound on open files.
//!
//! A slot outlives its [`super::Journal`] while the commit log still speaks of it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use frontdesk_core::ids::Key;
use frontdesk_core::limits::Limits;

use super::disk::{AppendFile, Disk};
use super::space::Space;
use super::{LogError, Touched, commit, disk, flush, replay};

/// What all parts of one log share.
pub(super) struct Shared {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) sessions: PathBuf,
    pub(super) slots: Slots,
    pub(super) commit: Arc<commit::Queue>,
    pub(super) flush: flush::Queue,
    pub(super) touched: Touched,
    pub(super) rounds: AtomicU64,
    pub(super) detours: AtomicU64,
    pub(super) space: Arc<Space>,
}

impl Shared {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        sessions: PathBuf,
        space: Arc<Space>,
        limits: &Limits,
        touched: Touched,
    ) -> Self {
        Self {
            disk,
            sessions,
            space,
            slots: Slots::new(limits.journal_files),
            commit: Arc::new(commit::Queue::new(limits)),
            flush: flush::Queue::new(limits.stream_sync_ms),
            touched,
            rounds: AtomicU64::new(0),
            detours: AtomicU64::new(0),
        }
    }

    /// Notes before a write that the journal may be ahead of the index, once a cut. Called by who
    /// has the right to write: a cut keeps sessions that have a writer.
    pub(super) fn note_written(&self, slot: &Slot) {
        let generation = self.touched.generation();
        if slot.noted.swap(generation, Ordering::AcqRel) == generation {
            return;
        }
        let folder = disk::parent(&slot.path);
        let folder = folder.strip_prefix(&self.sessions).ok().and_then(Path::to_str);
        if let Some(folder) = folder {
            self.touched.note(slot.key, folder);
        }
    }

    /// Appends all of `bytes`, out of the reserve where the disk is full; on failure also says how
    /// many were taken.
    pub(super) fn append_all(
        &self,
        file: &dyn AppendFile,
        bytes: &[u8],
    ) -> Result<(), (usize, io::Error)> {
        let mut done = 0;
        loop {
            let rest = &bytes[done..];
            match disk::append_all(file, rest) {
                Ok(()) => return Ok(()),
                // Each loan makes the reserve smaller, so this ends.
                Err((taken, error)) if disk::is_full(&error) => {
                    done += taken;
                    if !self.space.lend((rest.len() - taken) as u64) {
                        return Err((done, error));
                    }
                }
                Err((taken, error)) => return Err((done + taken, error)),
            }
        }
    }

    /// Takes over what a start left to do: the journals of an earlier process are synced behind
    /// it, and then the files of the commit log go.
    pub(super) fn take_over(&self, left: &replay::Left) {
        let slots: Vec<_> = left
            .journals
            .iter()
            .map(|(key, path)| {
                let slot = self.slots.slot(*key, path);
                slot.mark_fresh();
                slot.mark_unsynced();
                slot
            })
            .collect();
        for path in &left.files {
            self.flush.retire(commit::Retiring { path: path.clone(), slots: slots.clone() });
        }
    }
}

/// One journal as the log's threads see it.
pub(super) struct Slot {
    pub(super) key: Key,
    pub(super) path: PathBuf,
    /// The cut of `touched.log` in which it was noted there.
    noted: AtomicU64,
    state: Mutex<State>,
    /// Held while syncing: who finds the journal synced knows that the sync is over.
    syncing: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Open while it is in use; closed by the bound on open files and opened again on demand.
    file: Option<Arc<dyn AppendFile>>,
    /// Has a [`super::Journal`].
    writer: bool,
    /// The session was deleted: never written again.
    dead: bool,
    /// Holds bytes that no sync has covered.
    unsynced: bool,
    /// Waits in the flush queue.
    queued: bool,
    /// Its folders' names were not synced yet.
    fresh: bool,
    /// Written since the bound on open files last looked.
    used: bool,
    /// Bytes that a sync has covered for certain.
    good: u64,
    /// A sync failed: what lies behind `good` may be gone from the disk though the file shows it.
    doubtful: bool,
    /// A sync has failed at some time: what the commit log has is compared before it goes.
    suspect: bool,
}

/// Why a slot did not take bytes.
pub(super) enum Refused {
    /// The session was deleted.
    Dead,
    /// The disk took only so many bytes.
    Disk(usize, io::Error),
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up the right to write. The file is closed; what is unsynced stays known.
    pub(super) fn release(&self) {
        let mut state = self.lock();
        state.writer = false;
        state.file = None;
    }

    /// Says that the journal's folders need a sync, too: it was just made, or by a process of
    /// which we do not know.
    pub(super) fn mark_fresh(&self) {
        self.lock().fresh = true;
    }

    /// Says that the journal has bytes which no sync of ours covers.
    pub(super) fn mark_unsynced(&self) {
        self.lock().unsynced = true;
    }

    /// Appends `bytes`; `streamed` has them synced soon. The lock is held while writing, so that a
    /// deletion falls before or after and never into it.
    pub(super) fn append(
        self: &Arc<Self>,
        shared: &Shared,
        bytes: &[u8],
        streamed: bool,
    ) -> Result<(), Refused> {
        shared.note_written(self);
        let mut state = self.lock();
        if state.dead {
            return Err(Refused::Dead);
        }
        let (file, opened) = match &state.file {
            Some(file) => (Arc::clone(file), false),
            None => {
                let open = shared.disk.open_append(&self.path, false);
                if open
                    .as_ref()
                    .is_err_and(|error| error.kind() == io::ErrorKind::ReadOnlyFilesystem)
                {
                    shared.space.refused();
                }
                (open.map_err(|error| Refused::Disk(0, error))?, true)
            }
        };
        state.file = Some(Arc::clone(&file));
        state.used = true;
        let written = shared.append_all(&*file, bytes);
        let any = !matches!(written, Err((0, _)));
        state.unsynced |= any;
        let queue = streamed && any && !state.queued;
        state.queued |= queue;
        drop(state);
        if queue {
            shared.flush.dirty(Arc::clone(self));
        }
        if opened {
            shared.slots.opened(self);
        }
        written.map_err(|(taken, error)| Refused::Disk(taken, error))
    }

    /// Syncs what is unsynced. Names of folders that need a sync, too, are added to `folders`; after
    /// that the caller calls [`Self::names_synced`].
    fn sync(&self, shared: &Shared, folders: &mut BTreeSet<PathBuf>) -> io::Result<()> {
        let _turn = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        state.queued = false;
        if state.dead {
            return Ok(());
        }
        if state.fresh {
            // Also where the bytes are synced: whoever did that may still be at the names.
            let above = disk::parent(&self.path).ancestors();
            folders.extend(above.map(Path::to_path_buf).take_while(|at| {
                // With the sessions folder itself, and nothing above it.
                at.starts_with(&shared.sessions)
            }));
        }
        if !state.unsynced {
            return Ok(());
        }
        let file = match &state.file {
            Some(file) => Arc::clone(file),
            None => match shared.disk.open_append(&self.path, false) {
                // Removed by hand: there is nothing left to sync, and the commit log may not
                // grow for ever because of it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    state.unsynced = false;
                    return Ok(());
                }
                other => other?,
            },
        };
        state.unsynced = false;
        let (doubtful, good) = (state.doubtful, state.good);
        drop(state);
        let bytes = file.bytes();
        let synced = if doubtful { shared.disk.rewrite(&self.path, good) } else { file.sync() };
        let mut state = self.lock();
        match (synced, bytes) {
            (Ok(()), Ok(bytes)) => {
                state.good = bytes;
                state.doubtful = false;
                Ok(())
            }
            (Ok(()), Err(error)) | (Err(error), _) => {
                state.unsynced = true;
                state.doubtful = true;
                state.suspect = true;
                Err(error)
            }
        }
    }

    /// Whether a sync of this journal has ever failed.
    pub(super) fn is_suspect(&self) -> bool {
        self.lock().suspect
    }

    fn names_synced(&self, synced: bool) {
        let mut state = self.lock();
        // Without their names the journal's bytes may not be found again.
        state.unsynced |= state.fresh && !synced;
        state.fresh &= !synced;
    }

    /// Says that a sync failed and is to be tried again; `false` if someone queued it meanwhile.
    pub(super) fn queue_again(&self) -> bool {
        !std::mem::replace(&mut self.lock().queued, true)
    }

    /// Replaces the journal by its tombstone through `write`; no append falls into it.
    pub(super) fn entomb(&self, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.lock();
        write()?;
        state.dead = true;
        state.file = None;
        state.unsynced = false;
        Ok(())
    }

    /// Closes the file if it was not written to since the last look; says whether it is closed.
    fn close_if_unused(&self) -> bool {
        // A slot that is locked is in use.
        let Ok(mut state) = self.state.try_lock() else { return false };
        if state.file.is_some() && std::mem::take(&mut state.used) {
            return false;
        }
        state.file = None;
        true
    }
}

/// Slots that could not be synced, and the last cause.
pub(super) type Unsynced = (Vec<Arc<Slot>>, io::Error);

/// Syncs journals and, each once, the folders whose names need it. Waits for the disk.
pub(super) fn sync_all<'a>(
    shared: &Shared,
    slots: impl IntoIterator<Item = &'a Arc<Slot>>,
) -> Result<(), Unsynced> {
    let mut folders = BTreeSet::new();
    let mut synced = Vec::new();
    let mut failed: Option<Unsynced> = None;
    let mut fail = |slot: &Arc<Slot>, error: io::Error| {
        let (slots, last) = failed.get_or_insert_with(|| (Vec::new(), io::ErrorKind::Other.into()));
        slots.push(Arc::clone(slot));
        *last = error;
    };
    for slot in slots {
        match slot.sync(shared, &mut folders) {
            Ok(()) => synced.push(slot),
            Err(error) => fail(slot, error),
        }
    }
    // A folder that was removed with its journal has no names left to sync.
    let names = folders.iter().try_for_each(|folder| match shared.disk.sync_folder(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    });
    for slot in synced.into_iter().filter(|_| !folders.is_empty()) {
        slot.names_synced(names.is_ok());
        if let Err(error) = &names {
            fail(slot, error.kind().into());
        }
    }
    failed.map_or(Ok(()), Err)
}

/// The slots by key, and the order in which their files were opened.
pub(super) struct Slots {
    known: Mutex<Known>,
    open: Mutex<VecDeque<Weak<Slot>>>,
    open_max: usize,
}

struct Known {
    slots: HashMap<Key, Weak<Slot>>,
    /// Entries whose slot is gone are dropped when this many are known.
    prune_at: usize,
}

/// Known slots at which those that are gone are dropped for the first time.
const PRUNE_AT: usize = 64;

impl Slots {
    fn new(open_max: u32) -> Self {
        Self {
            known: Mutex::new(Known { slots: HashMap::new(), prune_at: PRUNE_AT }),
            open: Mutex::new(VecDeque::new()),
            open_max: usize::try_from(open_max.max(1)).unwrap_or(usize::MAX),
        }
    }

    /// Takes the right to write one journal.
    ///
    /// # Errors
    /// If someone has it, or the session was deleted.
    pub(super) fn take(&self, key: Key, path: &Path) -> Result<Arc<Slot>, LogError> {
        let slot = self.slot(key, path);
        let mut state = slot.lock();
        if state.dead {
            return Err(LogError::Entombed { path: path.to_path_buf() });
        }
        if state.writer {
            return Err(LogError::InUse { path: path.to_path_buf() });
        }
        state.writer = true;
        drop(state);
        Ok(slot)
    }

    /// The slot of a journal, made where there is none.
    pub(super) fn slot(&self, key: Key, path: &Path) -> Arc<Slot> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let there = known.slots.get(&key).and_then(Weak::upgrade);
        // The same key in another folder is a copy made by hand. It gets a slot of its own.
        if let Some(slot) = there.filter(|slot| slot.path == path) {
            return slot;
        }
        if known.slots.len() >= known.prune_at {
            known.slots.retain(|_, slot| slot.strong_count() > 0);
            known.prune_at = PRUNE_AT.max(known.slots.len() * 2);
        }
        let slot = Arc::new(Slot {
            key,
            path: path.to_path_buf(),
            noted: AtomicU64::new(0),
            state: Mutex::default(),
            syncing: Mutex::default(),
        });
        known.slots.insert(key, Arc::downgrade(&slot));
        slot
    }

    /// Notes that a slot opened its file; closes others where there are too many.
    fn opened(&self, slot: &Arc<Slot>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.push_back(Arc::downgrade(slot));
        // A file in use gets a second chance, once: the walk ends after one round.
        let mut looks = open.len() * 2;
        while open.len() > self.open_max && looks > 0 {
            looks -= 1;
            let Some(oldest) = open.pop_front() else { break };
            if oldest.upgrade().is_some_and(|slot| !slot.close_if_unused()) {
                open.push_back(oldest);
            }
        }
    }

    /// Whether a session's journal has a writer.
    pub(super) fn has_writer(&self, key: Key) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = known.slots.get(&key).and_then(Weak::upgrade);
        drop(known);
        slot.is_some_and(|slot| slot.lock().writer)
    }

    /// Files open at this moment.
    pub(super) fn open_files(&self) -> usize {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter()
            .filter(|slot| slot.upgrade().is_some_and(|slot| slot.lock().file.is_some()))
            .count()
    }
}

/// Adds one to a counter that only people read.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
