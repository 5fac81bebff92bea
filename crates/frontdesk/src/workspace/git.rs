//! Finding a folder's repository and reading its `HEAD`. No program is run.
//!
//! Source: gitrepository-layout; git's own search goes from a folder upwards.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use frontdesk_core::workspace::{GIT_FILE_BYTES_MAX, Head, Workspace, gitdir};

/// A repository as a folder sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The folder that holds the `HEAD` of this working tree.
    pub(super) git_dir: PathBuf,
    /// What it says.
    pub(super) workspace: Workspace,
}

/// Looks at a folder; `None` where it is in no repository, or does not exist.
pub(super) fn look(folder: &Path) -> Option<Place> {
    if !folder.is_absolute() || !folder.is_dir() {
        return None;
    }
    folder.ancestors().find_map(|top| find(top)).and_then(|(top, git_dir)| {
        let head = read_head(&git_dir).ok()?;
        // A submodule has a `.git` file too, but no common folder.
        let is_linked = git_dir.join("commondir").is_file();
        let worktree = is_linked.then(|| top.to_string_lossy().into_owned());
        Some(Place { git_dir, workspace: Workspace { branch: head.into_branch(), worktree } })
    })
}

/// The repository whose working tree begins at this folder. As with git, a folder `.git` without a
/// `HEAD` is none, and the search goes on above it.
fn find(top: &Path) -> Option<(&Path, PathBuf)> {
    let dot_git = top.join(".git");
    let kind = fs::metadata(&dot_git).ok()?;
    let git_dir = if kind.is_dir() {
        dot_git
    } else {
        let text = read_bounded(&dot_git).ok()?;
        top.join(gitdir(&text)?)
    };
    let has_head = fs::symlink_metadata(git_dir.join("HEAD")).is_ok();
    has_head.then_some((top, git_dir))
}

fn read_head(git_dir: &Path) -> io::Result<Head> {
    let path = git_dir.join("HEAD");
    if fs::symlink_metadata(&path)?.is_symlink() {
        let target = fs::read_link(&path)?;
        return Ok(target.to_str().map_or(Head::Odd, Head::of_reference));
    }
    Ok(Head::read(&read_bounded(&path)?))
}

/// Reads a short plain file; a pipe or a device under its name would hold the reader up.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut text = Vec::new();
    File::open(path)?.take(GIT_FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > GIT_FILE_BYTES_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    Ok(text)
}
