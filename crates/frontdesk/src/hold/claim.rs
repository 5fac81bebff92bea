//! Claim files: one locked file per loaded session, in a folder per user and machine.
//!
//! The lock is the kernel's (`flock`), so it is free as soon as its holder is dead, whatever the
//! file says. Holders lock for their agents; a daemon locks for agents it reaches by address.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use frontdesk_core::hold::{CLAIM_INFO_BYTES_MAX, CLAIM_NAME_BYTES_MAX};
use nix::unistd::{User, getuid};

/// Names another folder for claim files. For tests and odd setups only: two daemons that use
/// different folders do not see each other's sessions.
pub const CLAIMS_ENV: &str = "FRONTDESK_CLAIMS";

/// How often a locked file that says nothing yet is read again.
const READ_TRIES: u32 = 5;
/// Pause between two such readings, in milliseconds.
const READ_PAUSE_MS: u64 = 2;
/// How often a lock that is taken is tried: who removes stale files holds one for a moment.
const LOCK_TRIES: u32 = 3;
/// The same where the file says nothing: it is most likely about to be removed.
const SILENT_TRIES: u32 = 12;

/// How often the kernel's list of locks is read before a lock counts as not there.
const LIST_LOOKS: u32 = 4;

/// How a claim ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// It is ours until released, or until the process that holds the lock ends.
    Claimed,
    /// Someone else has it; this is what they wrote about themselves.
    Held(String),
}

/// Why a claim could neither be made nor be found held.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The folder for claim files cannot be used.
    #[error("failed to use {path} as the folder for claim files")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The folder belongs to someone else, or is open to others.
    #[error(
        "failed to use {0} as the folder for claim files: it is not a folder of this user alone"
    )]
    Shared(PathBuf),
    /// A claim file cannot be used.
    #[error("failed to lock the claim file {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The name or the text is too long.
    #[error("failed to claim: a name or text of {0} bytes is too long")]
    TooLong(usize),
}

/// The folder for claim files of this user on this machine. It is made when it is not there.
///
/// It is `$FRONTDESK_CLAIMS` if that is set; else `.local/state/frontdesk/claims/MACHINE` in the
/// home that the user database names (not `$HOME`, which sandboxes move); else
/// `/tmp/frontdesk-UID/claims`, for users without a home that can be written.
///
/// # Errors
/// If none of them can be used.
pub fn claims_dir(var: impl Fn(&str) -> Option<std::ffi::OsString>) -> Result<PathBuf, ClaimError> {
    if let Some(path) = var(CLAIMS_ENV).filter(|value| !value.is_empty()).map(PathBuf::from) {
        return own_folder(&path).map(|()| path);
    }
    let uid = getuid();
    if let Ok(Some(user)) = User::from_uid(uid)
        && user.dir.is_absolute()
        && user.dir.is_dir()
    {
        let path = user.dir.join(".local/state/frontdesk/claims").join(machine());
        if own_folder(&path).is_ok() {
            return Ok(path);
        }
    }
    let base = PathBuf::from(format!("/tmp/frontdesk-{uid}"));
    own_folder(&base)?;
    let path = base.join("claims");
    own_folder(&path).map(|()| path)
}

/// The machine's name for itself: homes may be shared between machines, locks are not.
fn machine() -> String {
    let known = ["/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/hostname"];
    let name = known.iter().find_map(|path| {
        let name = fs::read_to_string(path).ok()?.trim().to_owned();
        frontdesk_core::ids::is_path_safe(&name).then_some(name)
    });
    name.unwrap_or_else(|| "machine".to_owned())
}

fn own_folder(path: &Path) -> Result<(), ClaimError> {
    let failed = |source| ClaimError::Folder { path: path.to_path_buf(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let found = fs::symlink_metadata(path).map_err(failed)?;
    if found.is_dir() && found.uid() == getuid().as_raw() && found.mode() & 0o077 == 0 {
        Ok(())
    } else {
        Err(ClaimError::Shared(path.to_path_buf()))
    }
}

/// The claims one process holds.
#[derive(Debug)]
pub struct Claims {
    folder: PathBuf,
    held: BTreeMap<String, File>,
}

impl Claims {
    /// No claims yet, in a folder that [`claims_dir`] named.
    #[must_use]
    pub const fn new(folder: PathBuf) -> Self {
        Self { folder, held: BTreeMap::new() }
    }

    /// Locks the claim `name` and writes `info` into its file. A claim that is ours already is
    /// claimed again, with the new text.
    ///
    /// # Errors
    /// If the file cannot be made, locked or written.
    pub fn claim(&mut self, name: &str, info: &str) -> Result<ClaimOutcome, ClaimError> {
        if name.len() > CLAIM_NAME_BYTES_MAX || info.len() > CLAIM_INFO_BYTES_MAX {
            return Err(ClaimError::TooLong(name.len().max(info.len())));
        }
        let path = self.path(name);
        let failed = |source| ClaimError::File { path: path.clone(), source };
        if let Some(file) = self.held.get(name) {
            write_info(file, info).map_err(failed)?;
            return Ok(ClaimOutcome::Claimed);
        }
        let mut tries = 0;
        loop {
            let file = open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let info = read_info(&file).map_err(failed)?;
                    tries += 1;
                    if tries >= if info.is_empty() { SILENT_TRIES } else { LOCK_TRIES } {
                        return Ok(ClaimOutcome::Held(info));
                    }
                    std::thread::sleep(Duration::from_millis(READ_PAUSE_MS));
                    continue;
                }
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {
                    continue;
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // Between opening and locking the file may have been released, which removes it. Then
            // this lock is on a file that nobody else will ever open.
            if !is_at(&file, &path).map_err(failed)? {
                continue;
            }
            write_info(&file, info).map_err(failed)?;
            self.held.insert(name.to_owned(), file);
            return Ok(ClaimOutcome::Claimed);
        }
    }

    /// Gives a claim back. One that is not ours is left alone.
    pub fn release(&mut self, name: &str) {
        if let Some(file) = self.held.remove(name) {
            // Removed while still locked, so that no other claim can be removed by mistake.
            let _ = fs::remove_file(self.path(name));
            drop(file);
        }
    }

    /// Gives all claims back.
    pub fn release_all(&mut self) {
        while let Some(name) = self.held.keys().next().cloned() {
            self.release(&name);
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(file_name(name))
    }
}

/// What the holder of a claim wrote, if somebody holds it. Nothing is locked to find out: a lock taken
/// for a look could turn a claimer away.
#[must_use]
pub fn look(folder: &Path, name: &str) -> Option<String> {
    let path = folder.join(file_name(name));
    let inode = fs::symlink_metadata(&path).ok()?.ino();
    let file = is_locked(inode).then(|| File::open(&path).ok())??;
    read_info(&file).ok()
}

/// The files that somebody has locked, by inode.
#[must_use]
pub fn locked_inodes() -> BTreeSet<u64> {
    (0..LIST_LOOKS).flat_map(|_| listed_inodes()).collect()
}

fn is_locked(inode: u64) -> bool {
    (0..LIST_LOOKS).any(|_| listed_inodes().contains(&inode))
}

/// What the kernel lists: trying the locks would get in the way of who wants one. It gives its list a
/// page at a time, and where others unlock meanwhile it skips some of what is there; so one look that
/// does not find a lock proves nothing.
fn listed_inodes() -> BTreeSet<u64> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let inode = |line: &str| {
        // NUMBER: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END
        let mut fields = line.split_ascii_whitespace().skip(1);
        (fields.next() == Some("FLOCK")).then_some(())?;
        fields.nth(3)?.rsplit(':').next()?.parse().ok()
    };
    locks.lines().filter_map(inode).collect()
}

/// Removes the claim files of `folder` that nobody has locked and that have not been written for
/// `age`: holders that were killed left them. Each is locked first, so one that somebody claims at this
/// moment stays. Gives how many are gone.
///
/// # Errors
/// If the folder cannot be read.
pub fn remove_stale(folder: &Path, age: Duration) -> io::Result<usize> {
    let locked = locked_inodes();
    let mut removed = 0;
    for entry in fs::read_dir(folder)?.flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        // A file from the future has no age: it is left until the clock has caught up.
        let is_old = meta.modified().is_ok_and(|at| at.elapsed().is_ok_and(|it| it >= age));
        let is_claim = meta.is_file() && is_file_name(&entry.file_name().to_string_lossy());
        if is_claim && is_old && !locked.contains(&meta.ino()) && remove_unlocked(&entry.path()) {
            removed += 1;
        }
    }
    Ok(removed)
}

fn remove_unlocked(path: &Path) -> bool {
    // Not made where it is gone by now.
    let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else { return false };
    // Locked, it can be claimed by nobody. Emptied, it names nobody to who wants it at this moment, and
    // who tries again makes a new one.
    let is_ours = file.try_lock().is_ok() && is_at(&file, path).unwrap_or(false);
    is_ours && file.set_len(0).is_ok() && fs::remove_file(path).is_ok()
}

fn is_file_name(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// File name of a claim: SHA-256 of its name, in hex, since names hold ids of any shape.
#[must_use]
pub fn file_name(name: &str) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(64);
    for byte in hmac_sha256::Hash::hash(name.as_bytes()) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The text ends with a line feed, which shows a reader that it is complete.
fn write_info(file: &File, info: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(format!("{info}\n").as_bytes(), 0)
}

/// What the owner of a locked file wrote; empty when it is quicker to lock than to write, or broken.
fn read_info(file: &File) -> io::Result<String> {
    let mut bytes = vec![0; CLAIM_INFO_BYTES_MAX + 1];
    for attempt in 1.. {
        let mut length = 0;
        while length < bytes.len() {
            match file.read_at(&mut bytes[length..], length as u64)? {
                0 => break,
                count => length += count,
            }
        }
        if let Some(info) = bytes[..length].strip_suffix(b"\n") {
            return Ok(String::from_utf8_lossy(info).into_owned());
        }
        if attempt >= READ_TRIES {
            break;
        }
        std::thread::sleep(Duration::from_millis(READ_PAUSE_MS));
    }
    Ok(String::new())
}
