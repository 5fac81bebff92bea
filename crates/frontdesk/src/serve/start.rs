//! What a start does before the first connection, step by step.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use nix::fcntl::{Flock, FlockArg};
use tokio::net::UnixListener;

use super::{SOCKET_PATH_BYTES_MAX, left};
use crate::config::Config;
use crate::log::{Log, Replayed};
use crate::node::Node;
use crate::node::carry::{self, Candidate, Surveyed, TakenUp};
use crate::paths::Paths;

/// Leaves the process session, terminal and folder of whoever started this daemon.
pub(super) fn detach() {
    if let Err(error) = nix::unistd::setsid() {
        tracing::debug!(%error, "failed to leave the caller's process session");
    }
    if let Err(error) = std::env::set_current_dir("/") {
        tracing::debug!(%error, "failed to leave the caller's folder");
    }
}

/// Logs go to stderr; `FRONTDESK_LOG` chooses what.
pub(super) fn log_to_stderr() {
    use std::io::IsTerminal as _;
    let filter = tracing_subscriber::EnvFilter::try_from_env("FRONTDESK_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}

pub(super) fn load_config(paths: &Paths, named: Option<&Path>) -> anyhow::Result<Config> {
    let exe = std::env::current_exe().context("failed to find this program's own file")?;
    let find = crate::config::find_program;
    let (config, warnings) = match named {
        Some(file) => Config::load_named(file, find, &exe)?,
        None => Config::load(&paths.config, find, &exe)?,
    };
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    Ok(config)
}

/// Makes the home's folders, readable by their owner only.
pub(super) fn make_folders(paths: &Paths) -> anyhow::Result<()> {
    let socket = paths.socket();
    let bytes = socket.as_os_str().len();
    anyhow::ensure!(
        bytes <= SOCKET_PATH_BYTES_MAX,
        "failed to use {} as the socket: its path is {bytes} bytes long and systems take {SOCKET_PATH_BYTES_MAX}; \
         set FRONTDESK_HOME to a shorter folder",
        socket.display()
    );
    for folder in [&paths.data, &paths.run, &paths.instances(), &paths.spools(), &paths.sessions()]
    {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .with_context(|| format!("failed to make the folder {}", folder.display()))?;
    }
    for folder in [&paths.data, &paths.run] {
        let mode = std::fs::metadata(folder).map(|meta| meta.permissions().mode() & 0o777);
        if mode.is_ok_and(|mode| mode == 0o700) {
            // On a read-only disk even this would be refused, and what is there can be read.
            continue;
        }
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))
            .with_context(|| format!("failed to make {} private", folder.display()))?;
    }
    Ok(())
}

/// One daemon a home: the kernel frees the lock of a dead one, so a leftover file holds nobody up.
pub(super) fn lock_home(paths: &Paths) -> anyhow::Result<Flock<File>> {
    let path = paths.daemon_lock();
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("failed to open {}", path.display()))?;
    let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock,
        Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            anyhow::bail!(
                "failed to start: a daemon runs on this home already, pid {}; stop it with `frontdesk stop`",
                pid.trim()
            );
        }
        Err((_, error)) => {
            return Err(error).with_context(|| format!("failed to lock {}", path.display()));
        }
    };
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())?;
    Ok(lock)
}

/// Looks at the holders of a daemon that was here before. Those that cannot be carried on are ended
/// by record and proven empty before anything is loaded.
pub(super) async fn survey(paths: &Paths, config: &Config) -> anyhow::Result<Surveyed> {
    let folder = paths.instances();
    let found = carry::survey(paths, config)
        .await
        .with_context(|| format!("failed to read {}", folder.display()))?;
    let carried: Vec<String> = found.candidates.iter().map(Candidate::name).collect();
    left::end_holders(paths, &config.limits, &carried).await?;
    Ok(found)
}

/// Opens the log and plays what was committed.
pub(super) fn open(paths: Paths, config: Config) -> anyhow::Result<(Arc<Node>, Replayed)> {
    let exe = std::env::current_exe().context("failed to find this program's own file")?;
    let (log, replayed) = Log::open(&paths.data, &config.limits)?;
    let claims = crate::hold::claim::claims_dir(|name| std::env::var_os(name))?;
    Ok((Arc::new(Node::new(paths, exe, config, log, claims)), replayed))
}

/// Starts the index; carried sessions are in the directory already and are left alone.
pub(super) fn recover(
    node: &Arc<Node>,
    replayed: &Replayed,
    taken: &TakenUp,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let recovered = node.open_index(replayed).context("failed to start the index")?;
    node.wake_doubted();
    tracing::info!(
        sessions = recovered.sessions,
        carried = taken.sessions,
        instances = taken.unread.len(),
        turns_closed = recovered.turns,
        unreadable = recovered.unreadable,
        ?replayed,
        ms = began.elapsed().as_millis(),
        "recovered"
    );
    Ok(())
}

/// Binds the socket for this user only; a leftover one of a dead daemon is replaced (the lock is ours).
pub(super) fn bind(socket: &Path) -> anyhow::Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error).with_context(|| format!("failed to remove {}", socket.display()));
        }
    }
    let listener = UnixListener::bind(socket)
        .with_context(|| format!("failed to listen on {}", socket.display()))?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("failed to make {} private", socket.display()))?;
    Ok(listener)
}

/// The one line on stdout that says the daemon takes connections.
pub(super) fn say_ready(socket: &Path) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let line =
        format!("ready socket={} http=- version={}\n", socket.display(), env!("CARGO_PKG_VERSION"));
    // A caller that reads no output must not keep the daemon from serving.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    Ok(())
}
