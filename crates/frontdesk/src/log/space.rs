//! Room on the disk: a reserve that is set aside, and what everybody is told while the disk takes
//! nothing more.
//!
//! A full disk is a state to leave again. `data/reserve` holds `reserve_bytes` of room while
//! all is well. When an append finds none, the file is cut by as much as the append needs, and it
//! goes on: what was taken in already is written, and so are a cancel, a close and an ending. From
//! then on [`Health::full`] is told: agents are not read and prompts are refused by whoever hears of
//! it. A thread that runs only meanwhile tries to make the reserve whole again; once that succeeds,
//! with some room left beside it, there is space.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use frontdesk_core::ids::Key;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use tokio::sync::watch;

use super::disk;

/// Name of the reserve in the data folder.
pub(super) const RESERVE_NAME: &str = "reserve";
/// Pause before a disk that was full or failing is tried again.
pub(super) const RETRY: Duration = Duration::from_millis(250);
/// Given up from the reserve beyond what an append needs, in bytes: file systems take whole blocks
/// and room for their own books.
const LEND_EXTRA_BYTES: u64 = 16 << 10;

/// How the log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// There is no space: what is written comes out of the reserve.
    pub full: bool,
    /// The data folder cannot be written: it is read-only, or not ours.
    pub read_only: bool,
    /// What is written cannot be made durable at present, so nothing more is acknowledged.
    pub unsynced: bool,
}

impl Health {
    /// Whether new work has to wait.
    #[must_use]
    pub fn is_behind(self) -> bool {
        self.full || self.read_only || self.unsynced
    }
}

/// The reserve, and the news of it.
pub(super) struct Space {
    path: PathBuf,
    whole_bytes: u64,
    reserve: Mutex<Reserve>,
    told: watch::Sender<Health>,
    /// Whether agents are to wait with what they say.
    paused: watch::Sender<bool>,
    /// Journals whose last append failed.
    stuck: Mutex<HashSet<Key>>,
    stuck_count: AtomicUsize,
    closed: AtomicBool,
}

#[derive(Default)]
struct Reserve {
    file: Option<File>,
    bytes: u64,
    /// A thread looks after it.
    watched: bool,
}

impl Space {
    pub(super) fn new(data: &std::path::Path, whole_bytes: u64) -> Arc<Self> {
        let space = Arc::new(Self {
            path: data.join(RESERVE_NAME),
            whole_bytes,
            reserve: Mutex::default(),
            told: watch::Sender::new(Health::default()),
            paused: watch::Sender::new(false),
            stuck: Mutex::default(),
            stuck_count: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        let mut reserve = space.lock();
        // What an earlier process left of it is room in hand.
        reserve.bytes = std::fs::metadata(&space.path).map_or(0, |meta| meta.len());
        let made = space.grow(&mut reserve, whole_bytes);
        drop(reserve);
        match made {
            Ok(()) => {}
            Err(error) if disk::is_full(&error) => space.fill_up(),
            Err(error) if disk::is_refused(&error) => space.refused(),
            Err(error) => {
                tracing::warn!(path = %space.path.display(), %error, "failed to set the reserve aside");
            }
        }
        space
    }

    fn lock(&self) -> MutexGuard<'_, Reserve> {
        self.reserve.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows how the log is.
    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.told.subscribe()
    }

    /// Follows whether agents are to wait with what they say.
    pub(super) fn paused(&self) -> watch::Receiver<bool> {
        self.paused.subscribe()
    }

    pub(super) fn now(&self) -> Health {
        *self.told.borrow()
    }

    fn tell(&self, change: impl FnOnce(&mut Health)) {
        self.told.send_if_modified(|health| {
            let before = *health;
            change(health);
            *health != before
        });
        let behind = self.now().is_behind();
        self.paused.send_if_modified(|paused| std::mem::replace(paused, behind) != behind);
    }

    /// Says whether rounds of the commit log come through.
    pub(super) fn set_unsynced(&self, unsynced: bool) {
        self.tell(|health| health.unsynced = unsynced);
    }

    /// Notes whether a journal's last append failed.
    pub(super) fn set_stuck(&self, key: Key, is_stuck: bool) {
        if !is_stuck && self.stuck_count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        if is_stuck {
            stuck.insert(key);
        } else {
            stuck.remove(&key);
        }
        self.stuck_count.store(stuck.len(), Ordering::Release);
    }

    /// Whether a journal's last append failed.
    pub(super) fn is_stuck(&self, key: Key) -> bool {
        self.stuck_count.load(Ordering::Acquire) > 0
            && self.stuck.lock().unwrap_or_else(PoisonError::into_inner).contains(&key)
    }

    /// Gives up some of the reserve for an append of `bytes` that found no space. `false` when
    /// there is nothing left to give.
    pub(super) fn lend(self: &Arc<Self>, bytes: u64) -> bool {
        let mut reserve = self.lock();
        let before = reserve.bytes;
        let left = before.saturating_sub(bytes.saturating_add(LEND_EXTRA_BYTES));
        let cut = match &reserve.file {
            Some(file) if before > 0 => file.set_len(left).is_ok(),
            _ => false,
        };
        if cut {
            reserve.bytes = left;
        }
        drop(reserve);
        self.fill_up();
        cut
    }

    /// Tells that the folder cannot be written and has a thread look when it can be.
    pub(super) fn refused(self: &Arc<Self>) {
        if !self.now().read_only {
            tracing::error!(
                path = %self.path.display(),
                "the data folder cannot be written: agents are not read and no prompts are taken until it can"
            );
        }
        self.tell(|health| health.read_only = true);
        self.start_watch();
    }

    /// Tells that there is no space and has a thread look for some.
    fn fill_up(self: &Arc<Self>) {
        if !self.now().full {
            tracing::error!(
                path = %self.path.display(),
                "the disk is full: agents are not read and no prompts are taken until there is space"
            );
        }
        self.tell(|health| health.full = true);
        self.start_watch();
    }

    /// Looks whether there is space, where nothing was written that could have told: an agent's
    /// holder waits for space by itself, and then nothing comes.
    pub(super) fn look(self: &Arc<Self>) {
        if !self.now().full && !self.has_room(LEND_EXTRA_BYTES) {
            self.fill_up();
        }
    }

    /// Whether so many bytes may be free, as far as the file system says: a quota is found out by
    /// trying.
    fn has_room(&self, bytes: u64) -> bool {
        let Some(folder) = self.path.parent() else { return true };
        let found = nix::sys::statvfs::statvfs(folder);
        found.map_or(true, |found| {
            found.blocks_available().saturating_mul(found.fragment_size()) >= bytes
        })
    }

    fn start_watch(self: &Arc<Self>) {
        let mut reserve = self.lock();
        if reserve.watched {
            return;
        }
        let space = Arc::clone(self);
        let thread = std::thread::Builder::new().name("disk-space".to_owned());
        reserve.watched = thread.spawn(move || space.watch()).is_ok();
    }

    /// Tries until there is space again, or the log is closed.
    fn watch(&self) {
        loop {
            std::thread::sleep(RETRY);
            let mut reserve = self.lock();
            if self.closed.load(Ordering::Acquire) {
                reserve.watched = false;
                return;
            }
            // More than the reserve, so that the first bytes behind it do not fill the disk again.
            let wanted = self.whole_bytes + self.whole_bytes / 2 + LEND_EXTRA_BYTES;
            // Looked at first: a try that fails takes what is left away from others for a moment.
            let missing = wanted.saturating_sub(reserve.bytes);
            if !self.has_room(missing) || self.grow(&mut reserve, wanted).is_err() {
                continue;
            }
            let whole = reserve.file.as_ref().map_or(Ok(()), |file| file.set_len(self.whole_bytes));
            if whole.is_ok() {
                reserve.bytes = self.whole_bytes;
            }
            reserve.watched = false;
            drop(reserve);
            tracing::info!("there is space on the disk again");
            return self.tell(|health| {
                health.full = false;
                health.read_only = false;
            });
        }
    }

    /// Makes the reserve `bytes` long, all of it on the disk; else it stays as it was.
    fn grow(&self, reserve: &mut Reserve, bytes: u64) -> io::Result<()> {
        if reserve.file.is_none() {
            let mut open = OpenOptions::new();
            open.write(true).create(true).truncate(false).mode(0o600);
            reserve.file = Some(open.open(&self.path)?);
        }
        let Some(file) = &reserve.file else { return Ok(()) };
        let before = reserve.bytes;
        let made = if bytes == 0 { Ok(()) } else { allocate(file, before, bytes) };
        match made {
            Ok(()) => reserve.bytes = before.max(bytes),
            // A part may have been taken: the rest of the machine needs it more.
            Err(_) => file.set_len(before)?,
        }
        made
    }

    /// Ends the thread, where one runs.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

/// Takes room for a file up to `bytes`; it holds `before` bytes already.
fn allocate(file: &File, before: u64, bytes: u64) -> io::Result<()> {
    let length = i64::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    match fallocate(file, FallocateFlags::empty(), 0, length) {
        Ok(()) => Ok(()),
        // The file system cannot take room without writing.
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
            let piece = [0x5a; 64 << 10];
            let mut at = before;
            while at < bytes {
                let wanted = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(piece.len());
                file.write_all_at(&piece[..wanted], at)?;
                at += wanted as u64;
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{eventually, key};
    use super::*;

    #[test]
    fn the_reserve_is_lent_until_nothing_is_left_and_made_whole_again() {
        let temp = tempfile::tempdir().unwrap();
        let whole = 3 * LEND_EXTRA_BYTES;
        let space = Space::new(temp.path(), whole);
        let bytes = || std::fs::metadata(temp.path().join(RESERVE_NAME)).unwrap().len();
        assert_eq!((bytes(), space.now()), (whole, Health::default()));
        let mut health = space.health();
        assert!(space.lend(1));
        assert!(space.now().full && health.has_changed().unwrap());
        assert!(health.borrow_and_update().is_behind());
        // This disk has space, so the thread fills it up by itself.
        eventually("the reserve is whole", || !space.now().full && bytes() == whole);
        assert!(space.lend(u64::MAX), "all that is left is given");
        assert!(!space.lend(1) || space.lock().bytes > 0, "and then there is none");
        eventually("the reserve is whole again", || !space.now().full && bytes() == whole);
    }

    #[test]
    fn a_reserve_of_nothing_lends_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let space = Space::new(temp.path(), 0);
        assert!(!space.lend(1));
        assert!(space.now().full, "the disk is full all the same");
        eventually("there is space", || !space.now().full);
    }

    #[test]
    fn what_an_earlier_process_left_is_cut_to_the_limit() {
        let temp = tempfile::tempdir().unwrap();
        drop(Space::new(temp.path(), 64 << 10));
        let space = Space::new(temp.path(), 32 << 10);
        assert_eq!(space.lock().bytes, 64 << 10, "more is no harm");
        assert!(space.lend(1));
        eventually("there is space", || !space.now().full);
        assert_eq!(space.lock().bytes, 32 << 10);
    }

    #[test]
    fn journals_that_are_stuck_are_known_by_key() {
        let temp = tempfile::tempdir().unwrap();
        let space = Space::new(temp.path(), 0);
        space.set_stuck(key(1), true);
        assert!(space.is_stuck(key(1)) && !space.is_stuck(key(2)));
        space.set_stuck(key(2), false);
        space.set_stuck(key(1), false);
        assert!(!space.is_stuck(key(1)));
    }
}
