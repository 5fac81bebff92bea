//! Files as the log needs them: append and sync behind a trait that tests can fail, and the few
//! whole-file operations that are atomic. Called by the rest of `log` only.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the log does to files whose content must outlive the machine.
pub(super) trait Disk: Send + Sync + 'static {
    /// Opens a file for appending; `create` makes it where it is missing.
    fn open_append(&self, path: &Path, create: bool) -> io::Result<Arc<dyn AppendFile>>;

    /// Writes a file's bytes from `from` on over themselves and syncs them. After a failed sync the
    /// kernel may take what it could not write for written, and a second sync would tell nothing.
    fn rewrite(&self, path: &Path, from: u64) -> io::Result<()> {
        rewrite(path, from)
    }

    /// Syncs a folder's names.
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        sync_folder(path)
    }

    /// Removes a file; it is no error if it is gone already.
    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// A file that grows at its end.
pub(super) trait AppendFile: Send + Sync {
    /// Writes at the end, as write(2): may take only a part.
    fn append(&self, bytes: &[u8]) -> io::Result<usize>;
    /// Waits until the content is on the disk, as fdatasync(2).
    fn sync(&self) -> io::Result<()>;
    /// Length in bytes.
    fn bytes(&self) -> io::Result<u64>;
}

/// The operating system's files.
pub(super) struct OsDisk;

impl Disk for OsDisk {
    fn open_append(&self, path: &Path, create: bool) -> io::Result<Arc<dyn AppendFile>> {
        let file = OpenOptions::new().append(true).create(create).mode(0o600).open(path)?;
        Ok(Arc::new(file))
    }
}

impl AppendFile for File {
    fn append(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self;
        file.write(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

/// Bytes copied at a time where a file is written over itself.
const PIECE_BYTES: u64 = 256 << 10;

fn rewrite(path: &Path, from: u64) -> io::Result<()> {
    // Not for appending: there every write goes to the end.
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let end = file.metadata()?.len();
    let mut piece = vec![0; usize::try_from(PIECE_BYTES).unwrap_or_default()];
    let mut at = from.min(end);
    while at < end {
        let bytes = usize::try_from((end - at).min(PIECE_BYTES)).unwrap_or_default();
        file.read_exact_at(&mut piece[..bytes], at)?;
        file.write_all_at(&piece[..bytes], at)?;
        at += bytes as u64;
    }
    file.sync_data()
}

/// Appends all of `bytes`; on failure also says how many were taken.
pub(super) fn append_all(file: &dyn AppendFile, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut done = 0;
    while done < bytes.len() {
        match file.append(&bytes[done..]) {
            Ok(0) => return Err((done, io::ErrorKind::WriteZero.into())),
            Ok(taken) => done += taken,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((done, error)),
        }
    }
    Ok(())
}

/// Whether an error says that there is no space, in any of its ways.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::WriteZero
    )
}

/// Whether an error says that nothing may be written there.
pub(super) fn is_refused(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

/// The folder a file is in.
pub(super) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// Makes a folder and those above it, for the user alone.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes an empty file that must not exist yet.
pub(super) fn make_file(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(drop)
}

/// Whether a replaced file is synced before it takes its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Care {
    /// Synced first: it cannot be had again.
    Truth,
    /// Not synced: it can be derived again.
    Derived,
}

/// Opens a new file beside `path` to write what will replace it, 0600. The caller renames it with
/// [`put_in_place`] or removes it.
pub(super) fn beside(path: &Path) -> io::Result<(std::path::PathBuf, File)> {
    // Unique in this process; the process number keeps two of them apart.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temp = path.with_file_name(format!(".{name}.{}-{number}.tmp", std::process::id()));
    let open = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp);
    let file = match open() {
        // Left by a dead process with our number.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(&temp)?;
            open()?
        }
        other => other?,
    };
    Ok((temp, file))
}

/// Gives a file made by [`beside`] its name, or removes it where that fails.
pub(super) fn put_in_place(temp: &Path, file: &File, path: &Path, care: Care) -> io::Result<()> {
    let synced = if care == Care::Truth { file.sync_all() } else { Ok(()) };
    synced.and_then(|()| fs::rename(temp, path)).inspect_err(|_| {
        let _ = fs::remove_file(temp);
    })
}

/// Replaces a file's content in one step, 0600.
pub(super) fn replace(path: &Path, content: &[u8], care: Care) -> io::Result<()> {
    let (temp, mut file) = beside(path)?;
    if let Err(error) = file.write_all(content) {
        let _ = fs::remove_file(&temp);
        return Err(error);
    }
    put_in_place(&temp, &file, path, care)
}

/// Syncs a folder's names.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Syncs the names in `folder` and in the folders above it up to and with `top`.
pub(super) fn sync_folders(folder: &Path, top: &Path) -> io::Result<()> {
    for folder in folder.ancestors() {
        sync_folder(folder)?;
        if folder == top {
            break;
        }
    }
    Ok(())
}
