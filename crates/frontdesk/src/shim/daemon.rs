//! Reaching the daemon: connect, or start exactly one however many ask at once.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::fcntl::{Flock, FlockArg};

use crate::agent::proc;
use crate::paths::Paths;

/// How long a daemon may take until it takes connections.
const START: Duration = Duration::from_secs(30);
/// How often a starting daemon is tried.
const AGAIN: Duration = Duration::from_millis(5);
/// The daemon's log starts anew beyond this size, in bytes.
const LOG_BYTES_MAX: u64 = 10 << 20;

/// How often a shim looks whether its daemon is stopped. It is told of at the second look in a row.
const LOOK: Duration = Duration::from_secs(4);

/// The process that has a home's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DaemonProcess {
    /// Its number.
    pub pid: i32,
    /// Whether a signal has stopped it: it runs on only when it is told to.
    pub is_stopped: bool,
}

/// The daemon of a home by its lock file, if that process is there.
#[must_use]
pub fn daemon_of(paths: &Paths) -> Option<DaemonProcess> {
    let pid = std::fs::read_to_string(paths.daemon_lock()).ok()?.trim().parse().ok()?;
    let stat = proc::stat(pid).filter(|stat| !stat.is_dead())?;
    Some(DaemonProcess { pid, is_stopped: stat.state.eq_ignore_ascii_case(&b't') })
}

/// Says on stderr, once each time, that the daemon is stopped. Nothing is lost by it, so no request is
/// answered for it.
pub(super) fn tell_of_stops(paths: Paths) {
    thread::spawn(move || {
        let mut looks = 0;
        loop {
            thread::sleep(LOOK);
            match daemon_of(&paths).filter(|daemon| daemon.is_stopped) {
                None => looks = 0,
                Some(DaemonProcess { pid, .. }) => {
                    looks += 1;
                    if looks == 2 {
                        let _ = writeln!(
                            std::io::stderr(),
                            "frontdesk: the daemon, pid {pid}, is stopped, so nothing is answered; `kill -CONT {pid}` lets it go on"
                        );
                    }
                }
            }
        }
    });
}

/// Connects to the daemon; starts it if none runs.
///
/// # Errors
/// If it cannot be started, or does not take connections in time.
pub fn connect_or_start(paths: &Paths) -> anyhow::Result<UnixStream> {
    let socket = paths.socket();
    if let Ok(stream) = UnixStream::connect(&socket) {
        return Ok(stream);
    }
    for folder in [&paths.run, &paths.data] {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .with_context(|| format!("failed to make the folder {}", folder.display()))?;
    }
    // One starter at a time; whoever waited finds the daemon of the first.
    let _turn = starters_turn(paths)?;
    if let Ok(stream) = UnixStream::connect(&socket) {
        return Ok(stream);
    }
    let mut daemon = spawn(paths)?;
    let until = Instant::now() + START;
    loop {
        if let Ok(stream) = UnixStream::connect(&socket) {
            // A daemon that ends before this process leaves nothing behind.
            thread::spawn(move || daemon.wait());
            return Ok(stream);
        }
        if let Some(status) = daemon.try_wait().context("failed to watch the daemon")? {
            anyhow::bail!(
                "failed to start the daemon: it ended ({status}); see {}",
                log_path(paths).display()
            );
        }
        anyhow::ensure!(
            Instant::now() < until,
            "failed to start the daemon: it took no connection within {} s; see {}",
            START.as_secs(),
            log_path(paths).display()
        );
        thread::sleep(AGAIN);
    }
}

fn starters_turn(paths: &Paths) -> anyhow::Result<Flock<File>> {
    let path = paths.run.join("start.lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("failed to open {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .with_context(|| format!("failed to lock {}", path.display()))
}

fn log_path(paths: &Paths) -> std::path::PathBuf {
    paths.data.join("daemon.log")
}

fn spawn(paths: &Paths) -> anyhow::Result<Child> {
    let exe = std::env::current_exe().context("failed to find this program's own file")?;
    let path = log_path(paths);
    let fresh = std::fs::metadata(&path).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX);
    let log = OpenOptions::new()
        .create(true)
        .append(!fresh)
        .write(true)
        .truncate(fresh)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("failed to open {}", path.display()))?;
    Command::new(exe)
        .args(["serve", "--detach"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("failed to start the daemon")
}
