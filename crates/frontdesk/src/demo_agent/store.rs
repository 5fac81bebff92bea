//! The folder of stored sessions: one JSON Lines file a session.
//!
//! Each event is one line, written with one call before it is shown to the client, so that
//! everything shown is there after a `kill -9` (not after a power cut: nothing is synced). Lines
//! that cannot be read are skipped: a torn end is a line like any other. The `pid` in `opened`
//! lines tells a test which processes ever had a session, and `alone` that no other one had it then.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use frontdesk_core::envelope::quote;
use frontdesk_core::ids::is_path_safe;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::lock;

/// Longest line read back, in bytes; longer ones are skipped as damage.
const LINE_BYTES_MAX: usize = 512 << 20;
/// Longest title made from a prompt, in characters.
const TITLE_CHARS_MAX: usize = 60;

/// Why a session cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// The file system refused.
    #[error("failed to {action} {path}: {cause}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// No such session.
    #[error("failed to find the session")]
    Unknown,
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError + use<> {
    let path = path.to_owned();
    move |cause| StoreError::Io { action, path, cause }
}

/// What the store knows of a session without its history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// The session's id.
    pub(super) id: String,
    /// Its working directory.
    pub(super) cwd: String,
    /// Its further roots.
    pub(super) directories: Vec<String>,
    /// Its title, once it has one.
    pub(super) title: Option<String>,
    /// The last prompt, end of a turn or rename, in microseconds since the Unix epoch.
    pub(super) updated_us: i64,
    /// The mode it was left in.
    pub(super) mode: Option<String>,
    /// The options it was left with.
    pub(super) options: Vec<(String, String)>,
    /// How many prompts it got.
    pub(super) turns: u64,
    /// The ids it had before.
    pub(super) aliases: Vec<String>,
}

/// One line of a file, as far as we read it back.
#[derive(Deserialize)]
struct Line<'a> {
    event: String,
    #[serde(default)]
    at: Option<Timestamp>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    directories: Option<Vec<String>>,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    from: Option<String>,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    option: Option<(String, String)>,
    #[serde(default, borrow)]
    content: Option<Vec<&'a RawValue>>,
    #[serde(default, borrow)]
    update: Option<&'a RawValue>,
}

/// The folder.
pub(super) struct Store {
    folder: PathBuf,
    seen: Mutex<HashMap<String, (SystemTime, u64, Summary)>>,
}

/// One session's file, open for appending.
pub(super) struct SessionFile {
    file: File,
    path: PathBuf,
}

impl Store {
    /// Names the folder; it is made when the first session is.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, seen: Mutex::default() }
    }

    fn path(&self, id: &str) -> Option<PathBuf> {
        is_path_safe(id).then(|| self.folder.join(format!("{id}.jsonl")))
    }

    /// Whether the session is stored: one look at the folder, nothing is opened.
    pub(super) fn has(&self, id: &str) -> bool {
        self.path(id).is_some_and(|path| path.is_file())
    }

    /// Makes a session's file with its first line.
    ///
    /// # Errors
    /// If the folder or the file cannot be made.
    pub(super) fn create(&self, summary: &Summary) -> Result<SessionFile, StoreError> {
        let path = self.path(&summary.id).ok_or(StoreError::Unknown)?;
        let mut folder = DirBuilder::new();
        folder.recursive(true).mode(0o700);
        folder.create(&self.folder).map_err(io_error("make the folder", &self.folder))?;
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(io_error("make", &path))?;
        let mut file = SessionFile { file, path };
        let directories = serde_json::json!(summary.directories);
        file.append(
            "created",
            &format!(
                r#""sessionId":{},"cwd":{},"directories":{directories}"#,
                quote(&summary.id),
                quote(&summary.cwd),
            ),
        )?;
        Ok(file)
    }

    /// Opens a stored session for appending. A torn end becomes a line of its own.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such session.
    pub(super) fn open(&self, id: &str) -> Result<SessionFile, StoreError> {
        let path = self.path(id).ok_or(StoreError::Unknown)?;
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .open(&path)
            .map_err(|cause| missing(cause, "open", &path))?;
        let torn = (|| {
            let end = file.seek(SeekFrom::End(0))?;
            if end == 0 {
                return Ok(false);
            }
            file.seek(SeekFrom::Start(end - 1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            Ok(last != *b"\n")
        })()
        .map_err(io_error("read", &path))?;
        if torn {
            file.write_all(b"\n").map_err(io_error("append to", &path))?;
        }
        Ok(SessionFile { file, path })
    }

    /// Files an open session under another id.
    ///
    /// # Errors
    /// If the file cannot be moved.
    pub(super) fn rename(&self, file: &mut SessionFile, id: &str) -> Result<(), StoreError> {
        let path = self.path(id).ok_or(StoreError::Unknown)?;
        fs::rename(&file.path, &path).map_err(io_error("rename", &file.path))?;
        file.path = path;
        Ok(())
    }

    /// The id under which a session is filed now, by that one or one that it had before.
    pub(super) fn filed_as(&self, id: &str) -> String {
        if self.has(id) {
            return id.to_owned();
        }
        let found = self.list().into_iter().find(|row| row.aliases.iter().any(|alias| alias == id));
        found.map_or_else(|| id.to_owned(), |row| row.id)
    }

    /// Removes a session; an unknown one is no error.
    ///
    /// # Errors
    /// If the file is there and cannot be removed.
    pub(super) fn delete(&self, id: &str) -> Result<(), StoreError> {
        let Some(path) = self.path(id) else { return Ok(()) };
        match fs::remove_file(&path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                Err(io_error("delete", &path)(cause))
            }
            _ => Ok(()),
        }
    }

    /// Reads one session's summary.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such session.
    pub(super) fn summary(&self, id: &str) -> Result<Summary, StoreError> {
        let mut summary = Summary { id: id.to_owned(), ..Summary::default() };
        self.each_line(id, |bytes| {
            // Most lines are updates, and none of those says anything here.
            if !bytes.starts_with(br#"{"event":"update""#)
                && let Ok(line) = serde_json::from_slice::<Line<'_>>(bytes)
            {
                summary.take(line);
            }
        })?;
        Ok(summary)
    }

    /// Hands out a session's history as the texts of `session/update` updates, in order.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such session.
    pub(super) fn replay(&self, id: &str, mut show: impl FnMut(&str)) -> Result<(), StoreError> {
        let mut turn = 0;
        self.each_line(id, |bytes| {
            let Ok(line) = serde_json::from_slice::<Line<'_>>(bytes) else { return };
            match (line.event.as_str(), line.content, line.update) {
                ("prompt", Some(blocks), _) => {
                    turn += 1;
                    for block in blocks {
                        show(&format!(
                            r#"{{"sessionUpdate":"user_message_chunk","content":{},"messageId":"t{turn}-user"}}"#,
                            block.get()
                        ));
                    }
                }
                ("update", _, Some(update)) if is_history(update.get()) => show(update.get()),
                _ => {}
            }
        })
    }

    /// Copies the history of one session behind the first line of another.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such session.
    pub(super) fn copy_history(&self, from: &str, to: &mut SessionFile) -> Result<(), StoreError> {
        let mut result = Ok(());
        self.each_line(from, |bytes| {
            let Ok(line) = serde_json::from_slice::<Line<'_>>(bytes) else { return };
            if result.is_ok()
                && !matches!(line.event.as_str(), "created" | "opened" | "closed" | "moved")
            {
                let mut whole = bytes.to_vec();
                whole.push(b'\n');
                result = to.file.write_all(&whole).map_err(io_error("append to", &to.path));
            }
        })?;
        result
    }

    /// All stored sessions, newest first. Files that did not change are not read again; files that
    /// went away meanwhile are left out.
    pub(super) fn list(&self) -> Vec<Summary> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let mut rows = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".jsonl")) else {
                continue;
            };
            let Ok(about) = entry.metadata() else { continue };
            let (Ok(changed), bytes) = (about.modified(), about.len()) else { continue };
            let known = lock(&self.seen).get(id).cloned();
            match known {
                Some((at, len, row)) if at == changed && len == bytes => rows.push(row),
                _ => {
                    let Ok(row) = self.summary(id) else { continue };
                    lock(&self.seen).insert(id.to_owned(), (changed, bytes, row.clone()));
                    rows.push(row);
                }
            }
        }
        rows.sort_by(|a, b| (b.updated_us, &b.id).cmp(&(a.updated_us, &a.id)));
        rows
    }

    fn each_line(&self, id: &str, mut take: impl FnMut(&[u8])) -> Result<(), StoreError> {
        let path = self.path(id).ok_or(StoreError::Unknown)?;
        let file = File::open(&path).map_err(|cause| missing(cause, "open", &path))?;
        let mut reader = BufReader::with_capacity(64 << 10, file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut limited = (&mut reader).take(LINE_BYTES_MAX as u64);
            let read = limited.read_until(b'\n', &mut line).map_err(io_error("read", &path))?;
            if read == 0 {
                return Ok(());
            }
            take(line.trim_ascii_end());
        }
    }
}

impl Summary {
    fn take(&mut self, line: Line<'_>) {
        match line.event.as_str() {
            "created" => {
                self.cwd = line.cwd.unwrap_or_default();
                self.directories = line.directories.unwrap_or_default();
            }
            "opened" => {
                // Opening is no activity, but it may move the session to another folder.
                self.cwd = line.cwd.unwrap_or_else(|| std::mem::take(&mut self.cwd));
                return;
            }
            "prompt" => {
                self.turns += 1;
                if self.title.is_none()
                    && let Some(blocks) = &line.content
                {
                    self.title = title_from(blocks.iter().map(|block| block.get()));
                }
            }
            "title" => self.title = line.title,
            "moved" => self.aliases.extend(line.from),
            "ended" => {}
            "mode" => {
                self.mode = line.mode;
                return;
            }
            "option" => {
                if let Some((name, value)) = line.option {
                    self.options.retain(|(known, _)| *known != name);
                    self.options.push((name, value));
                }
                return;
            }
            _ => return,
        }
        if let Some(at) = line.at {
            self.updated_us = self.updated_us.max(at.as_microsecond());
        }
    }
}

impl SessionFile {
    /// The id under which it is filed.
    pub(super) fn id(&self) -> String {
        let name = self.path.file_stem().and_then(|name| name.to_str());
        name.unwrap_or_default().to_owned()
    }

    /// Whether no other process has the session open: the lock goes with its process. Nobody is
    /// kept out by it, as the stores of real agents keep nobody out.
    pub(super) fn is_alone(&self) -> bool {
        !matches!(self.file.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Leaves the session to other processes.
    pub(super) fn leave(&self) {
        let _ = self.file.unlock();
    }

    /// Appends one event; `members` is JSON text without braces, empty if there is none.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn append(&mut self, event: &str, members: &str) -> Result<(), StoreError> {
        let comma = if members.is_empty() { "" } else { "," };
        let line = format!("{{\"event\":\"{event}\",\"at\":\"{}\"{comma}{members}}}\n", now());
        self.file.write_all(line.as_bytes()).map_err(io_error("append to", &self.path))
    }
}

fn missing(cause: io::Error, action: &'static str, path: &Path) -> StoreError {
    if cause.kind() == io::ErrorKind::NotFound {
        return StoreError::Unknown;
    }
    io_error(action, path)(cause)
}

/// The time in microseconds, RFC 3339, UTC.
pub(super) fn now() -> String {
    instant(Timestamp::now().as_microsecond())
}

/// Writes an instant given in microseconds since the Unix epoch.
pub(super) fn instant(us: i64) -> String {
    Timestamp::from_microsecond(us).map_or_else(|_| String::new(), |at| format!("{at:.6}"))
}

/// Whether an update belongs to the conversation, and not to the session's surroundings.
fn is_history(update: &str) -> bool {
    #[derive(Deserialize)]
    struct Kind {
        #[serde(rename = "sessionUpdate", default)]
        kind: String,
    }
    let Ok(Kind { kind }) = serde_json::from_str(update) else { return false };
    !matches!(
        kind.as_str(),
        "available_commands_update"
            | "current_mode_update"
            | "config_option_update"
            | "session_info_update"
            | "usage_update"
    )
}

/// A title from a prompt's content blocks (JSON texts): the first text's first words.
pub(super) fn title_from<'a>(blocks: impl Iterator<Item = &'a str>) -> Option<String> {
    #[derive(Deserialize)]
    struct Block {
        #[serde(default)]
        text: Option<String>,
    }
    let text = blocks
        .filter_map(|block| serde_json::from_str::<Block>(block).ok()?.text)
        .find(|text| !text.trim().is_empty())?;
    // Only the start is looked at: a prompt may be megabytes.
    let clean: String =
        text.chars().take(4096).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let words = clean.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.is_empty() {
        return None;
    }
    if words.chars().count() <= TITLE_CHARS_MAX {
        return Some(words);
    }
    let cut: String = words.chars().take(TITLE_CHARS_MAX - 1).collect();
    Some(format!("{}…", cut.trim_end()))
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
