//! Where the demo plays: a home, a workspace and a daemon, all removed afterwards.
//!
//! With `FRONTDESK_HOME` set the given home is used and kept, with the sessions and the files they
//! made, and a daemon that runs there already is used and left running.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context as _, anyhow};

use super::super::client::Client;
use super::super::stop::{self, ends_within};
use super::super::{Failure, Shell, text};
use crate::paths::Paths;

/// Time for the daemon to say that it is ready.
const READY_MS_MAX: u64 = 15_000;
/// Time for the daemon to end after it was asked to.
const END_MS_MAX: u64 = 20_000;
/// Time for the daemon to end after SIGTERM.
const TERM_MS_MAX: u64 = 3_000;
/// Longest temp folder below which sockets still have short enough paths, in bytes.
const TEMP_BYTES_MAX: usize = 24;
/// Bytes of the daemon's log told when it does not start.
const LOG_BYTES_MAX: usize = 2_000;

/// The demo's surroundings.
pub(super) struct Stage {
    paths: Paths,
    home: PathBuf,
    workspace: PathBuf,
    /// The demo agent's own sessions, where they are not to be kept.
    store: Option<PathBuf>,
    temp: PathBuf,
    daemon: Option<Child>,
}

impl Stage {
    /// Makes the folders and starts the daemon, unless one runs.
    pub(super) fn set(shell: &Shell) -> Result<Self, Failure> {
        let temp = temp_folder()?;
        let mut stage = if shell.home_is_given {
            let home = shell.paths.run.parent().unwrap_or(&shell.paths.run).to_path_buf();
            let workspace = home.join("demo-workspace");
            let paths = shell.paths.clone();
            Self { paths, home, workspace, store: None, temp, daemon: None }
        } else {
            let home = temp.join("home");
            let (workspace, store) = (temp.join("workspace"), Some(temp.join("store")));
            let paths = Paths::in_home(&home)?;
            Self { paths, home, workspace, store, temp, daemon: None }
        };
        std::fs::create_dir_all(&stage.home).context("failed to make the demo's home")?;
        std::fs::create_dir_all(&stage.workspace).context("failed to make the workspace")?;
        if std::os::unix::net::UnixStream::connect(stage.paths.socket()).is_err() {
            stage.start_daemon(&shell.program)?;
        }
        Ok(stage)
    }

    /// The home's folders.
    pub(super) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The home.
    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    /// The folder that the demo's agents work in.
    pub(super) fn workspace(&self) -> &Path {
        &self.workspace
    }

    fn start_daemon(&mut self, program: &Path) -> Result<(), Failure> {
        let log = self.temp.join("daemon.log");
        let stderr = std::fs::File::create(&log).context("failed to make the daemon's log")?;
        let mut command = Command::new(program);
        command.arg("serve").env("FRONTDESK_HOME", &self.home);
        if let Some(store) = &self.store {
            command.env("FRONTDESK_DEMO_STORE", store);
        }
        let mut daemon = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // Ctrl-C is for the demo, which then ends the daemon in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("failed to start {} serve", program.display()))?;
        let stdout = daemon.stdout.take();
        self.daemon = Some(daemon);
        let (sender, ready) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = stdout.map(|out| BufReader::new(out).read_line(&mut line));
            // The reader stays until the daemon ends, so that its stdout is never broken.
            let _ = sender.send(matches!(read, Some(Ok(1..))).then_some(line));
        });
        match ready.recv_timeout(Duration::from_millis(READY_MS_MAX)) {
            Ok(Some(line)) if line.starts_with("ready ") => Ok(()),
            Ok(_) => Err(anyhow!("failed to start the daemon: {}", log_tail(&log)).into()),
            Err(_) => {
                let limit_s = READY_MS_MAX / 1_000;
                let tail = log_tail(&log);
                Err(anyhow!("failed to see the daemon ready within {limit_s} s: {tail}").into())
            }
        }
    }

    /// Ends the daemon in order and removes what was made. A daemon that was here before stays.
    pub(super) fn strike(mut self, mut client: Client) {
        if let Some(mut daemon) = self.daemon.take() {
            let asked = stop::request(&mut client, false);
            drop(client);
            if asked.is_err() || !ends_within(&mut daemon, END_MS_MAX) {
                end(&mut daemon);
            }
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            end(&mut daemon);
        }
        // Only what `temp_folder` made; a given home lies elsewhere.
        let _ = std::fs::remove_dir_all(&self.temp);
    }
}

/// TERM, which lets the daemon end its agents, then KILL.
fn end(daemon: &mut Child) {
    if let Ok(pid) = i32::try_from(daemon.id()) {
        let pid = nix::unistd::Pid::from_raw(pid);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
    }
    if !ends_within(daemon, TERM_MS_MAX) {
        let _ = daemon.kill();
        let _ = daemon.wait();
    }
}

/// A fresh folder that only this user may enter.
fn temp_folder() -> Result<PathBuf, Failure> {
    let mut base = std::env::temp_dir();
    if base.as_os_str().len() > TEMP_BYTES_MAX {
        base = PathBuf::from("/tmp");
    }
    let name = uuid::Uuid::now_v7().simple().to_string();
    // The end of a version 7 UUID is its random part.
    let path = base.join(format!("frontdesk-demo-{}", &name[20..]));
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&path)
        .with_context(|| format!("failed to make {}", path.display()))?;
    Ok(path)
}

fn log_tail(log: &Path) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let tail = bytes.get(bytes.len().saturating_sub(LOG_BYTES_MAX)..).unwrap_or_default();
    let tail = text::line(&String::from_utf8_lossy(tail));
    if tail.is_empty() { "it said nothing".to_owned() } else { tail }
}
