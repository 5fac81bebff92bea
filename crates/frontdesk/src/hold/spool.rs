//! The holder's files: spools that are read by offset and given back to the disk as they are
//! used up, and the bounded tail of stderr.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

/// Used space is given back in steps of this size, in bytes.
const TRIM_STEP_BYTES: u64 = 1 << 20;
/// A used-up spool that may start over is cut when its file is longer than this, in bytes.
const KEEP_BYTES: u64 = 1 << 20;

/// A file whose offsets are those of the stream: its used front becomes a hole, so that it takes
/// the room of what is still needed only.
#[derive(Debug)]
pub(super) struct Spool {
    file: File,
    start: u64,
    end: u64,
    /// Everything before this offset has been given back.
    trimmed: u64,
    /// Whether the file system makes holes.
    holes: bool,
    /// Room at the front that is kept also where the disk is full, in bytes.
    aside_bytes: u64,
}

impl Spool {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        Ok(Self { file, start: 0, end: 0, trimmed: 0, holes: true, aside_bytes: 0 })
    }

    /// Takes room for so many bytes at the front, so that small things fit where the disk is full:
    /// a cancel has to reach the agent. Where that is not possible, there is none.
    pub(super) fn set_aside(&mut self, bytes: u64) {
        self.aside_bytes = bytes;
        if let Ok(length) = i64::try_from(bytes) {
            let _ = fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length);
        }
    }

    /// First offset that is still there.
    pub(super) const fn start(&self) -> u64 {
        self.start
    }

    /// Offset behind the last byte.
    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    /// Bytes that are still needed.
    pub(super) const fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Appends all of `bytes`, or none of them in effect: the end moves only when all are written.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_ahead(0, bytes)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Writes `bytes` beyond the end without moving it.
    pub(super) fn write_ahead(&mut self, distance: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.end + distance)
    }

    /// Moves the end over what was written ahead.
    pub(super) const fn advance(&mut self, bytes: u64) {
        self.end += bytes;
    }

    /// Reads from `offset` on, at most up to the end; returns how much.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_sub(offset);
        let wanted = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.file.read_exact_at(&mut bytes[..wanted], offset)?;
        Ok(wanted)
    }

    /// Forgets everything before `offset`.
    pub(super) fn trim(&mut self, offset: u64) {
        self.start = self.start.max(offset.min(self.end));
        let upto = self.start / 4096 * 4096;
        if upto < self.trimmed + TRIM_STEP_BYTES {
            return;
        }
        if self.holes {
            match punch(&self.file, self.trimmed, upto - self.trimmed) {
                Ok(()) => self.trimmed = upto,
                Err(Errno::EINTR) => {}
                Err(_) => self.holes = false,
            }
        } else if self.start == self.end {
            // Without holes the space comes back whenever nothing is needed: the file is cut to
            // nothing and then set to its old length, which takes no room.
            let emptied = self.file.set_len(0).and_then(|()| self.file.set_len(self.end));
            if emptied.is_ok() {
                self.trimmed = upto;
            }
        }
    }

    /// Starts over at offset 0 when nothing is needed any more.
    pub(super) fn reuse(&mut self) {
        if self.start == self.end && (self.end <= KEEP_BYTES || self.file.set_len(0).is_ok()) {
            let cut = self.end > KEEP_BYTES;
            (self.start, self.end, self.trimmed) = (0, 0, 0);
            if cut && self.aside_bytes > 0 {
                self.set_aside(self.aside_bytes);
            }
        }
    }
}

fn punch(file: &File, offset: u64, length: u64) -> Result<(), Errno> {
    let number = |value: u64| i64::try_from(value).map_err(|_| Errno::EFBIG);
    fallocate(
        file,
        FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE,
        number(offset)?,
        number(length)?,
    )
}

/// The last bytes of a stream in two files: the older half is dropped when the newer one is full.
#[derive(Debug)]
pub(super) struct Tail {
    path: PathBuf,
    file: Option<File>,
    length: u64,
    half_bytes: u64,
}

impl Tail {
    pub(super) fn create(path: PathBuf, limit_bytes: u64) -> io::Result<Self> {
        let file = Some(create(&path)?);
        Ok(Self { path, file, length: 0, half_bytes: (limit_bytes / 2).max(1) })
    }

    /// Keeps `bytes` as far as they belong to the tail. A full disk loses them: the agent must
    /// never wait for somebody to read its noise.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.length >= self.half_bytes {
                self.rotate();
            }
            let room = usize::try_from(self.half_bytes - self.length).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            if let Some(file) = &self.file {
                let _ = file.write_all_at(now, self.length);
            }
            self.length += now.len() as u64;
            bytes = later;
        }
    }

    fn rotate(&mut self) {
        let mut older = self.path.clone().into_os_string();
        older.push(".1");
        let _ = fs::rename(&self.path, older);
        self.file = create(&self.path).ok();
        self.length = 0;
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}
