//! `data/touched.log`: the sessions whose journals may be ahead of the index.
//!
//! A session's folder is written here before its journal takes the first record since the index
//! was last in step, so that a start after a crash looks at those journals alone. Nothing here is
//! synced: the file has to survive the death of the daemon, and after a power cut the commit log
//! and the full check of the index find what it does not name. Each journal asks once a cut.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use frontdesk_core::ids::Key;

/// The file's name in the data folder.
pub const TOUCHED_NAME: &str = "touched.log";

/// First word of the first line; the step of the index that the file belongs to follows.
const HEAD: &str = "step ";

/// Journals that were written since the index was last in step.
#[derive(Debug)]
pub struct Touched {
    path: PathBuf,
    /// Higher with each cut: who noted himself before it has to ask again.
    generation: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` where it could not be written: then there is no file, and a start checks everything.
    file: Option<File>,
    /// Each session's folder below the sessions folder.
    keys: HashMap<Key, String>,
}

/// What an earlier daemon left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The step of the index that the file belongs to; `None` without a file that says so.
    pub step: Option<u64>,
    /// The sessions, with their folders below the sessions folder.
    pub sessions: Vec<(Key, PathBuf)>,
}

impl Touched {
    /// Reads what is there and goes on behind it.
    #[must_use]
    pub fn open(data: &Path) -> (Self, Left) {
        let path = data.join(TOUCHED_NAME);
        let (left, keys, whole) = read(&path);
        let file = match left.step {
            Some(_) => File::options().append(true).open(&path).ok(),
            None => None,
        };
        let state = State { file, keys };
        if let (Some(mut file), false) = (state.file.as_ref(), whole) {
            // A line that was cut short must not take the next one along.
            let _ = file.write_all(b"\n");
        }
        let touched = Self { path, generation: AtomicU64::new(1), state: Mutex::new(state) };
        (touched, left)
    }

    /// The number of the present cut, from 1.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Notes a session, before its journal is written. `folder` is the session's own, below the
    /// sessions folder.
    pub(super) fn note(&self, key: Key, folder: &str) {
        let mut state = self.lock();
        if state.keys.contains_key(&key) {
            return;
        }
        state.keys.insert(key, folder.to_owned());
        let line = format!("{folder}\n");
        let Some(file) = &mut state.file else { return };
        if let Err(error) = file.write_all(line.as_bytes()) {
            tracing::warn!(path = %self.path.display(), %error, "failed to note a session as written; the next start checks all");
            state.file = None;
            self.remove();
        }
    }

    /// The index is in step with all sessions but those that are `hot`: only they stay. Writes the
    /// file anew for step `step`.
    ///
    /// # Errors
    /// If it cannot be written; there is no file then, and a start checks everything.
    pub fn cut(&self, step: u64, hot: impl Fn(Key) -> bool) -> io::Result<()> {
        let mut state = self.lock();
        let keys: HashMap<_, _> = state.keys.drain().filter(|(key, _)| hot(*key)).collect();
        state.keys = keys;
        let mut text = format!("{HEAD}{step}\n");
        for folder in state.keys.values() {
            text.push_str(folder);
            text.push('\n');
        }
        let temp = self.path.with_extension("log.tmp");
        let written = fs::write(&temp, &text)
            .and_then(|()| fs::rename(&temp, &self.path))
            .and_then(|()| File::options().append(true).open(&self.path));
        self.generation.fetch_add(1, Ordering::AcqRel);
        match written {
            Ok(file) => {
                state.file = Some(file);
                Ok(())
            }
            Err(error) => {
                state.file = None;
                self.remove();
                Err(error)
            }
        }
    }

    /// How many sessions a cut would drop.
    #[must_use]
    pub fn quiet(&self, hot: impl Fn(Key) -> bool) -> usize {
        self.lock().keys.keys().filter(|key| !hot(**key)).count()
    }

    fn remove(&self) {
        // Where even that fails the file has an old step, or lacks a session that the check finds.
        let _ = fs::remove_file(&self.path);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the file: what it says, and whether its last line is whole.
fn read(path: &Path) -> (Left, HashMap<Key, String>, bool) {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let step = lines.next().and_then(|head| head.strip_prefix(HEAD)?.parse().ok());
    let mut keys = HashMap::new();
    let mut sessions = Vec::new();
    for line in lines.filter(|_| step.is_some()) {
        let folder = Path::new(line);
        let name = folder.file_name().and_then(|name| name.to_str());
        let Some(key) = name.and_then(|name| name.parse().ok()) else { continue };
        let plain = folder.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if plain && keys.insert(key, line.to_owned()).is_none() {
            sessions.push((key, folder.to_path_buf()));
        }
    }
    (Left { step, sessions }, keys, text.ends_with('\n'))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn key(n: u128) -> Key {
        Key::new(Uuid::from_u128(n))
    }

    fn folder(n: u128) -> String {
        format!("2026/11/30/{}", key(n))
    }

    fn keys(left: &Left) -> Vec<Key> {
        let mut keys: Vec<_> = left.sessions.iter().map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn what_was_noted_is_found_again_until_it_is_cut() {
        let temp = tempfile::tempdir().unwrap();
        let (touched, left) = Touched::open(temp.path());
        assert_eq!(left, Left::default());
        touched.note(key(1), &folder(1));
        assert!(!temp.path().join(TOUCHED_NAME).exists(), "without a step nothing can be told");
        let before = touched.generation();
        touched.cut(7, |hot| hot == key(1)).unwrap();
        assert!(touched.generation() > before);
        touched.note(key(2), &folder(2));
        touched.note(key(2), &folder(2));
        assert_eq!((touched.quiet(|hot| hot == key(1)), touched.quiet(|_| false)), (1, 2));
        drop(touched);
        let (touched, left) = Touched::open(temp.path());
        assert_eq!((left.step, keys(&left)), (Some(7), vec![key(1), key(2)]));
        assert_eq!(left.sessions.iter().find(|s| s.0 == key(1)).unwrap().1, Path::new(&folder(1)));
        touched.cut(8, |_| false).unwrap();
        let (_, left) = Touched::open(temp.path());
        assert_eq!((left.step, left.sessions.len()), (Some(8), 0));
    }

    #[test]
    fn a_line_that_was_cut_short_takes_no_other_along() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join(TOUCHED_NAME);
        let text = format!("step 3\n{}\nnonsense\n../../{}\n2026/11/", folder(1), key(5));
        fs::write(&path, text).unwrap();
        let (touched, left) = Touched::open(temp.path());
        assert_eq!((left.step, keys(&left)), (Some(3), vec![key(1)]));
        touched.note(key(2), &folder(2));
        drop(touched);
        assert_eq!(keys(&Touched::open(temp.path()).1), [key(1), key(2)]);
        for text in ["", "step x\n", "stop 3\n", "\0\0"] {
            fs::write(&path, format!("{text}{}\n", folder(1))).unwrap();
            assert_eq!(Touched::open(temp.path()).1, Left::default(), "{text:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_none() {
        let temp = tempfile::tempdir().unwrap();
        let (touched, _) = Touched::open(temp.path());
        fs::create_dir(temp.path().join(TOUCHED_NAME)).unwrap();
        assert!(touched.cut(1, |_| true).is_err());
        touched.note(key(1), &folder(1));
        assert_eq!(touched.quiet(|_| false), 1);
    }
}
