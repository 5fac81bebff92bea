//! `holder.json`: what a later daemon must know of a holder and its agent. Written by the holder,
//! read by `agent::proc`.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use frontdesk_core::hold::ProcessId;
use serde::{Deserialize, Serialize};

/// Name of the file in an instance's folder below `run/instances`.
pub const RECORD_FILE: &str = "holder.json";
/// Name of the holder's socket in the same folder.
pub const SOCKET_FILE: &str = "sock";

/// The record. A later version may have more members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Protocol version of the holder.
    pub version: u32,
    /// The holder.
    pub holder: ProcessId,
    /// The boot both processes belong to.
    pub boot_id: String,
    /// The agent's first process, which leads the agent's group; absent before it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<ProcessId>,
    /// The agent's name in the configuration.
    pub agent_name: String,
    /// The program, without its arguments: those may be secret.
    pub program: String,
    /// Value of the environment variable that marks the agent and all it starts.
    pub mark: String,
    /// When the holder started, in seconds since the Unix epoch.
    pub since: u64,
}

impl Record {
    /// Replaces the record in `folder` in one step.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let next = folder.join("holder.json.new");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&next)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(next, folder.join(RECORD_FILE))
    }

    /// Reads the record in `folder`; `None` when there is none.
    ///
    /// # Errors
    /// If the file cannot be read or is no record.
    pub fn read(folder: &Path) -> io::Result<Option<Self>> {
        match fs::read(folder.join(RECORD_FILE)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes `folder` and the holder's files in it. Anything else in it is left, and then the
    /// folder stays.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn remove(folder: &Path) -> io::Result<()> {
        for name in [SOCKET_FILE, RECORD_FILE, "holder.json.new"] {
            ignore_missing(fs::remove_file(folder.join(name)))?;
        }
        ignore_missing(fs::remove_dir(folder))
    }
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
