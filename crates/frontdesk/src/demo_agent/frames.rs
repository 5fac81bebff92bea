//! What this process read and wrote, as a file (`--log`): a test compares it with the other end.
//!
//! One line a frame, noted before it is written and before it is acted on, so that everything the
//! agent said or was told is there after a `kill -9` (not after a power cut: nothing is synced). The
//! first line names the process and the instance that it was started as.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use frontdesk_core::envelope::quote;

use super::store::now;

/// The environment variable that names an instance.
const INSTANCE: &str = "FRONTDESK_INSTANCE";

/// The file, if there is one.
pub(super) struct FrameLog {
    file: Option<File>,
}

impl FrameLog {
    /// A new file in this folder; without a folder nothing is noted.
    ///
    /// # Errors
    /// If the folder or the file cannot be made.
    pub(super) fn open(folder: Option<&Path>) -> io::Result<Self> {
        let Some(folder) = folder else { return Ok(Self { file: None }) };
        fs::create_dir_all(folder)?;
        let pid = std::process::id();
        let path = folder.join(format!("{}-{pid}.jsonl", now()));
        let mut file = OpenOptions::new().append(true).create_new(true).open(path)?;
        let instance = std::env::var(INSTANCE).unwrap_or_default();
        let start =
            format!("{{\"at\":\"{}\",\"pid\":{pid},\"instance\":{}}}\n", now(), quote(&instance));
        file.write_all(start.as_bytes())?;
        Ok(Self { file: Some(file) })
    }

    /// Notes the frames of `bytes`, each on a line of its own. A full disk does not stop the agent.
    pub(super) fn note(&self, way: &str, bytes: &[u8]) {
        let Some(mut file) = self.file.as_ref() else { return };
        let at = now();
        let frames = String::from_utf8_lossy(bytes);
        let lines: String = frames
            .lines()
            .map(|frame| format!("{{\"at\":\"{at}\",\"{way}\":{}}}\n", quote(frame)))
            .collect();
        if let Err(error) = file.write_all(lines.as_bytes()) {
            eprintln!("frontdesk demo-agent: failed to write the log: {error}");
        }
    }
}
