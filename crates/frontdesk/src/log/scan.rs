//! Finds the journals below a folder. Used where the index is rebuilt.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use frontdesk_core::ids::Key;

use super::JOURNAL_NAME;

/// A journal that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where it lies.
    pub path: PathBuf,
    /// The session its folder names.
    pub key: Key,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Folders above a session's own: year, month, day.
const DATE_DEPTH: usize = 3;

/// All journals below `sessions`, newest day first, within a day newest key first. Reads one folder
/// at a time, and of a day keeps sixteen bytes a session. Whatever is not of the shape
/// `YYYY/MM/DD/KEY/journal.jsonl`, cannot be read, or is a symbolic link is passed over.
pub fn scan(sessions: &Path) -> impl Iterator<Item = Found> + use<> {
    // Folders still to be looked at, the next one last.
    let mut open = vec![(0, sessions.to_path_buf())];
    let mut day = Day::default();
    std::iter::from_fn(move || {
        loop {
            while let Some(key) = day.keys.pop() {
                if let Some(found) = look(&day.folder, key) {
                    return Some(found);
                }
            }
            let (depth, folder) = open.pop()?;
            if depth == DATE_DEPTH {
                day = Day::read(folder);
                continue;
            }
            for name in folders(&folder, depth) {
                open.push((depth + 1, folder.join(name)));
            }
        }
    })
}

/// The sessions of one day, the next one last.
#[derive(Default)]
struct Day {
    folder: PathBuf,
    keys: Vec<Key>,
}

impl Day {
    fn read(folder: PathBuf) -> Self {
        let mut keys: Vec<Key> = names(&folder)
            .filter_map(|name| {
                let name = name.to_str()?;
                // Spelled as Frontdesk spells it: the path is made from the key again.
                name.parse::<Key>().ok().filter(|key| key.to_string() == name)
            })
            .collect();
        keys.sort_unstable();
        Self { folder, keys }
    }
}

/// The names of the folders in a folder; a link is none.
fn names(folder: &Path) -> impl Iterator<Item = OsString> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.file_name())
}

/// The years, months or days in `folder`, in rising order.
fn folders(folder: &Path, depth: usize) -> Vec<OsString> {
    let digits = if depth == 0 { 4 } else { 2 };
    let fits = |name: &str| name.len() == digits && name.bytes().all(|byte| byte.is_ascii_digit());
    let mut names: Vec<_> = names(folder).filter(|name| name.to_str().is_some_and(fits)).collect();
    names.sort_unstable();
    names
}

fn look(day: &Path, key: Key) -> Option<Found> {
    let path = day.join(key.to_string()).join(JOURNAL_NAME);
    let meta = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?;
    Some(Found { path, key, bytes: meta.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 3] = [
        "01a22bb6-2da2-7132-b868-40a3a5d1f511",
        "01a22bb6-2da2-7132-b868-40a3a5d1f512",
        "01a22bb6-2da2-7132-b868-40a3a5d1f513",
    ];

    #[test]
    fn journals_are_found_among_whatever_else_lies_there() {
        let temp = tempfile::tempdir().unwrap();
        let put = |path: &str, content: &str| {
            let path = temp.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        put(&format!("2026/11/30/{}/journal.jsonl", KEYS[0]), "abc");
        put(&format!("2026/11/30/{}/journal.jsonl", KEYS[1]), "");
        put(&format!("2026/12/01/{}/journal.jsonl", KEYS[2]), "x\n");
        put("2026/11/30/notes.txt", "");
        put("2026/11/30/not-a-key/journal.jsonl", "");
        put(&format!("2026/nov/30/{}/journal.jsonl", KEYS[0]), "");
        put(&format!("2026/11/{}/journal.jsonl", KEYS[0]), "");
        put(&format!("2026/11/29/{}/snapshot.json", KEYS[0]), "");
        put("README", "");
        fs::create_dir_all(temp.path().join(format!("2026/11/28/{}/journal.jsonl", KEYS[0])))
            .unwrap();
        std::os::unix::fs::symlink(temp.path(), temp.path().join("2025")).unwrap();
        let found: Vec<_> = scan(temp.path()).collect();
        let keys: Vec<_> = found.iter().map(|found| found.key.to_string()).collect();
        assert_eq!(keys, [KEYS[2], KEYS[1], KEYS[0]]);
        assert_eq!(found[2].bytes, 3);
        assert!(found[2].path.ends_with(format!("2026/11/30/{}/journal.jsonl", KEYS[0])));
    }

    #[test]
    fn a_missing_folder_holds_no_journals() {
        assert_eq!(scan(Path::new("/nonexistent/sessions")).count(), 0);
    }
}
