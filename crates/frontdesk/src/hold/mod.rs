//! `frontdesk hold`: the small process that owns one agent's pipes and outlives the daemon.
//!
//! `cli::main` calls [`main`] before any parser, logger or runtime is set up, so that a holder
//! stays tiny: one thread, one `poll` loop, two buffers of 64 KiB. The one thread matters twice,
//! since the agent's parent-death signal is tied to the thread that started it.
//!
//! - `agent`: starts the agent, knows its group and how it ended.
//! - `run`: the loop; `ending`: from the first TERM to the proof that nothing is left.
//! - `conn`: one daemon connection; `input`: numbered frames on their way to the agent.
//! - `spool`: the files; `slim`: keeps the process small; [`claim`]: claim files; [`record`]: what a later daemon must know.
//!
//! The daemon's end is `agent::link`; the language is `frontdesk_core::hold`.

mod agent;
pub mod claim;
mod conn;
mod ending;
mod input;
pub mod record;
mod run;
mod slim;
mod spool;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use frontdesk_core::ids::{InstanceId, is_path_safe};
use frontdesk_core::limits::Limits;
use serde::{Deserialize, Serialize};

/// Longest path of a unix socket, in bytes. The kernel's own limit is 107.
pub const SOCKET_PATH_BYTES_MAX: usize = 100;
/// Longest order on stdin, in bytes.
const ORDER_BYTES_MAX: u64 = 4 << 20;

/// What a holder is to keep.
#[derive(Clone, Serialize, Deserialize)]
pub struct HolderSpec {
    /// Name of the instance; it is also the agent's mark.
    pub instance: InstanceId,
    /// The agent's name in the configuration.
    pub agent: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Folder the agent starts in.
    pub cwd: PathBuf,
    /// Variables set on top of the daemon's own environment.
    pub env: BTreeMap<String, String>,
    /// The instance's own folder below `run/instances`.
    pub run_dir: PathBuf,
    /// The instance's own folder below `data/instances`.
    pub data_dir: PathBuf,
    /// The folder for claim files; see [`claim::claims_dir`].
    pub claims_dir: PathBuf,
}

impl fmt::Debug for HolderSpec {
    /// Arguments and environment may hold secrets, so they are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HolderSpec")
            .field("instance", &self.instance)
            .field("agent", &self.agent)
            .field("program", &self.command.first())
            .field("cwd", &self.cwd)
            .field("run_dir", &self.run_dir)
            .field("data_dir", &self.data_dir)
            .finish_non_exhaustive()
    }
}

/// The one document on a holder's stdin.
#[derive(Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) spec: HolderSpec,
    pub(crate) limits: Limits,
}

/// The one line on a holder's stdout: how the start went.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// The socket listens and the agent runs.
    Ready,
    /// Nothing runs.
    Failed { kind: FailKind, message: String },
}

/// What kept a holder from starting its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailKind {
    /// There is no such program, or its interpreter is missing.
    ProgramMissing,
    /// The program or its folder may not be used.
    Permission,
    /// The folder to start in is not there.
    CwdMissing,
    /// The socket's path is too long.
    SocketPath,
    /// Anything else.
    #[serde(other)]
    Other,
}

/// Why a holder cannot do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HoldError {
    #[error("failed to read what to hold from stdin: `frontdesk hold` is started by the daemon")]
    Order(#[source] io::Error),
    #[error("failed to start an agent: its command is empty")]
    NoCommand,
    #[error("failed to name an instance {0:?}: its id cannot be a file name")]
    Instance(InstanceId),
    #[error(
        "failed to make the socket {path}: its path has {bytes} bytes, and {SOCKET_PATH_BYTES_MAX} is the limit; use a shorter FRONTDESK_HOME",
        bytes = path.as_os_str().len()
    )]
    SocketPath { path: PathBuf },
    #[error("failed to start {program} in {cwd}: there is no such folder")]
    Cwd { program: String, cwd: PathBuf },
    #[error("failed to start {program}: {what}")]
    Spawn { program: String, what: &'static str, source: io::Error },
    #[error("failed to {what} {path}")]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("failed to {what}")]
    System { what: &'static str, source: io::Error },
}

impl HoldError {
    pub(crate) fn kind(&self) -> FailKind {
        match self {
            Self::SocketPath { .. } => FailKind::SocketPath,
            Self::Cwd { .. } => FailKind::CwdMissing,
            Self::Spawn { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => FailKind::ProgramMissing,
                io::ErrorKind::PermissionDenied => FailKind::Permission,
                _ => FailKind::Other,
            },
            Self::Order(_)
            | Self::NoCommand
            | Self::Instance(_)
            | Self::File { .. }
            | Self::System { .. } => FailKind::Other,
        }
    }
}

/// Makes the error of a system call on a path.
fn on_path(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HoldError {
    let path = path.to_path_buf();
    move |source| HoldError::File { what, path, source }
}

/// Makes the error of any other system call.
fn on_system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> HoldError {
    move |source| HoldError::System { what, source: source.into() }
}

/// Whether a socket at this path can be made and reached.
pub(crate) fn check_socket_path(path: &Path) -> Result<(), HoldError> {
    if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        return Err(HoldError::SocketPath { path: path.to_path_buf() });
    }
    Ok(())
}

/// Runs a holder: what it is to do comes on stdin, how the start went goes to stdout.
#[must_use]
pub fn main() -> ExitCode {
    let started = read_order().and_then(|order| run::Holder::start(order.spec, order.limits));
    let report = match &started {
        Ok(_) => Report::Ready,
        Err(error) => Report::Failed { kind: error.kind(), message: full_text(error) },
    };
    tell(&report);
    match started.and_then(run::Holder::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Once started, stderr is the holder's own file.
            let _ = writeln!(io::stderr(), "{}", full_text(&error));
            ExitCode::FAILURE
        }
    }
}

fn read_order() -> Result<Order, HoldError> {
    // Its own process session first, so that no signal meant for the daemon's group arrives.
    nix::unistd::setsid().map_err(on_system("leave the process session"))?;
    let mut text = Vec::new();
    io::stdin().lock().take(ORDER_BYTES_MAX).read_to_end(&mut text).map_err(HoldError::Order)?;
    let order: Order = serde_json::from_slice(&text).map_err(|e| HoldError::Order(e.into()))?;
    let null = File::open("/dev/null").map_err(on_system("open /dev/null"))?;
    nix::unistd::dup2_stdin(null).map_err(on_system("put stdin away"))?;
    std::env::set_current_dir("/").map_err(on_system("leave the working folder"))?;
    check_order(&order.spec)?;
    Ok(order)
}

pub(crate) fn check_order(spec: &HolderSpec) -> Result<(), HoldError> {
    if spec.command.is_empty() {
        return Err(HoldError::NoCommand);
    }
    if !is_path_safe(&spec.instance.0) {
        return Err(HoldError::Instance(spec.instance.clone()));
    }
    check_socket_path(&spec.run_dir.join(record::SOCKET_FILE))
}

/// One line, then stdout is closed: the daemon reads up to the end.
fn tell(report: &Report) {
    let line = serde_json::to_string(report).unwrap_or_default();
    let mut stdout = io::stdout();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(null);
    }
}

/// An error with its causes, in one line.
fn full_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Makes the instance's two folders and takes stderr into the second one.
fn make_folders(spec: &HolderSpec) -> Result<(), HoldError> {
    for folder in [&spec.run_dir, &spec.data_dir] {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(on_path("make the folder", folder))?;
    }
    let path = spec.data_dir.join("holder.log");
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&path)
        .map_err(on_path("open", &path))?;
    nix::unistd::dup2_stderr(log).map_err(on_system("take stderr into a file"))
}
