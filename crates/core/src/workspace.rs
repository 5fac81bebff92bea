//! What the files of a git repository say about the branch a folder is on: text in, facts out.
//!
//! Twin of `frontdesk::workspace`, which finds and watches the files. Sources: gitrepository-layout
//! ("HEAD", "gitdir", "commondir"), git-worktree "DETAILS".

use serde::{Deserialize, Serialize};

/// Longest part of such a file that is looked at, in bytes; a longer one is no such file.
pub const GIT_FILE_BYTES_MAX: u64 = 64 << 10;

/// What a repository that keeps its references elsewhere writes into `HEAD` to keep readers off.
const ELSEWHERE: &str = ".invalid";

/// What `HEAD` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// A branch is checked out; it may have no commit yet.
    Branch(String),
    /// A commit is checked out without a branch.
    Detached,
    /// Nothing that this version can tell a branch from.
    Odd,
}

impl Head {
    /// Reads the text of `HEAD`; never fails.
    #[must_use]
    pub fn read(text: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(text) else { return Self::Odd };
        let text = text.trim();
        match text.strip_prefix("ref:") {
            Some(reference) => Self::of_reference(reference.trim()),
            None if is_hash(text) => Self::Detached,
            None => Self::Odd,
        }
    }

    /// Reads the name of a reference, as `HEAD` has it where it is a symbolic link.
    #[must_use]
    pub fn of_reference(reference: &str) -> Self {
        match reference.strip_prefix("refs/heads/") {
            None | Some("" | ELSEWHERE) => Self::Odd,
            Some(branch) if branch.chars().any(char::is_control) => Self::Odd,
            Some(branch) => Self::Branch(branch.to_owned()),
        }
    }

    /// The branch, where one is checked out.
    #[must_use]
    pub fn into_branch(self) -> Option<String> {
        match self {
            Self::Branch(branch) => Some(branch),
            Self::Detached | Self::Odd => None,
        }
    }
}

/// Object names are 40 (SHA-1) or 64 (SHA-256) hex digits.
fn is_hash(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The folder that a `.git` file names, as written: a full path, or one from the file's own folder.
#[must_use]
pub fn gitdir(text: &[u8]) -> Option<&str> {
    let named = std::str::from_utf8(text).ok()?.strip_prefix("gitdir:")?;
    // Only the line end is git's: a folder's name may begin or end with a space.
    let named = named.strip_prefix(' ').unwrap_or(named).trim_end_matches(['\n', '\r']);
    (!named.is_empty() && !named.contains(['\n', '\0'])).then_some(named)
}

/// Where a session works, as far as git tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workspace {
    /// The branch that is checked out.
    pub branch: Option<String>,
    /// The folder of the linked working tree it is in, if it is in one.
    pub worktree: Option<String>,
}

/// The payload of a `branch` record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    /// The branch; `None` where none is checked out or none can be told.
    pub branch: Option<String>,
    /// The version control that was asked.
    pub vcs: String,
    /// The linked working tree.
    pub worktree: Option<Linked>,
}

/// A linked working tree in a `branch` record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Linked {
    /// Its folder.
    pub path: String,
    /// `attached`: it was there already.
    pub origin: String,
}

impl Workspace {
    /// The payload of a `branch` record.
    #[must_use]
    pub fn to_record(&self) -> Branch {
        let linked = |path: &String| Linked { path: path.clone(), origin: "attached".into() };
        Branch {
            branch: self.branch.clone(),
            vcs: "git".into(),
            worktree: self.worktree.as_ref().map(linked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_names_its_branch() {
        for (text, branch) in [
            ("ref: refs/heads/main\n", "main"),
            ("ref: refs/heads/feat/a b\n", "feat/a b"),
            ("ref:refs/heads/x", "x"),
            ("ref:\trefs/heads/ü\r\n", "ü"),
        ] {
            assert_eq!(Head::read(text.as_bytes()), Head::Branch(branch.into()), "{text:?}");
        }
        assert_eq!(Head::of_reference("refs/heads/main"), Head::Branch("main".into()));
    }

    #[test]
    fn a_commit_is_no_branch() {
        for digits in [40, 64] {
            let text = format!("{}\n", "a1".repeat(digits / 2));
            assert_eq!(Head::read(text.as_bytes()), Head::Detached);
        }
        assert_eq!(Head::Detached.into_branch(), None);
    }

    #[test]
    fn what_cannot_be_told_is_odd_and_never_a_guess() {
        for text in [
            &b""[..],
            b"ref:",
            b"ref: refs/heads/",
            b"ref: refs/heads/.invalid\n",
            b"ref: refs/remotes/origin/main\n",
            b"ref: refs/heads/a\x07b\n",
            b"main",
            b"\xff\xfe",
            b"0123456789",
        ] {
            assert_eq!(Head::read(text), Head::Odd, "{text:?}");
        }
    }

    #[test]
    fn a_git_file_names_a_folder() {
        assert_eq!(gitdir(b"gitdir: /a/.git/worktrees/b\n"), Some("/a/.git/worktrees/b"));
        assert_eq!(gitdir(b"gitdir: ../.git/modules/ b \r\n"), Some("../.git/modules/ b "));
        for text in [&b""[..], b"gitdir: \n", b"gitdir: a\nb", b"/a/.git", b"gitdir: \xff"] {
            assert_eq!(gitdir(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_record_says_what_is_known() {
        let payload = |workspace: Workspace| serde_json::to_string(&workspace.to_record()).unwrap();
        assert_eq!(payload(Workspace::default()), r#"{"branch":null,"vcs":"git","worktree":null}"#);
        assert_eq!(
            payload(Workspace { branch: Some("b".into()), worktree: Some("/w".into()) }),
            r#"{"branch":"b","vcs":"git","worktree":{"path":"/w","origin":"attached"}}"#
        );
    }
}
