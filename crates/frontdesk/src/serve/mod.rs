//! The daemon from start to end: folders, lock, recovery, socket, drain.
//!
//! `run` is the whole life of `frontdesk serve`. What a connection says is read in `client`.

mod client;
mod left;
mod reindex;
mod start;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::msp::Face;
use crate::node::Node;
use crate::paths::Paths;
pub use left::{AllEnded, end_all, find_strays};
pub use reindex::reindex;

/// What `frontdesk serve` was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServeOptions {
    /// `HOST:PORT` to listen on.
    pub listen: Option<String>,
    /// The configuration file, if not the home's own.
    pub config: Option<PathBuf>,
    /// Leave the caller's process session and folder: set by a shim that starts a daemon.
    pub detach: bool,
}

/// Longest path of a unix socket that every system takes, in bytes.
pub const SOCKET_PATH_BYTES_MAX: usize = 100;

/// Threads of the runtime: the work is short and mostly waits.
const WORKERS: usize = 2;

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// If it cannot start: a wrong configuration, another daemon on this home, folders or a socket that
/// cannot be made.
pub fn run(options: ServeOptions) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        options.listen.is_none(),
        "failed to listen on {}: this version serves the unix socket only; leave --listen out",
        options.listen.as_deref().unwrap_or_default()
    );
    if options.detach {
        start::detach();
    }
    start::log_to_stderr();
    let paths = Paths::from_env(|name| std::env::var_os(name))?;
    let config = start::load_config(&paths, options.config.as_deref())?;
    start::make_folders(&paths)?;
    let _lock = start::lock_home(&paths)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_stack_size(1 << 20)
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    let code = runtime.block_on(serve(paths, config));
    // A write that hangs on a dead disk must not keep the daemon from ending.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    code
}

async fn serve(paths: Paths, config: crate::config::Config) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for signals")?;
    let found = start::survey(&paths, &config).await?;
    let (node, replayed) = tokio::task::spawn_blocking({
        let paths = paths.clone();
        move || start::open(paths, config)
    })
    .await
    .context("failed to open the log")??;
    let taken =
        node.take_up(found).await.context("failed to end the agent of an earlier daemon")?;
    let taken = tokio::task::spawn_blocking({
        let node = node.clone();
        move || start::recover(&node, &replayed, &taken).map(|()| taken)
    })
    .await
    .context("failed to recover")??;
    node.read_on(taken.unread).await;
    node.keep_urls();
    let msp = Arc::new(Face::new(node.clone()));
    let socket = paths.socket();
    let listener = start::bind(&socket)?;
    start::say_ready(&socket)?;
    let sweeping = tokio::spawn(node.clone().keep_sweeping());
    tokio::select! {
        () = accept(&node, &msp, &listener) => {}
        _ = terminate.recv() => tracing::info!("stopping: asked by a signal"),
        _ = interrupt.recv() => tracing::info!("stopping: interrupted"),
        () = node.stop_requested() => tracing::info!("stopping: asked by a client"),
    }
    node.request_stop(false);
    // What ends from here on is not lost.
    sweeping.abort();
    let _ = sweeping.await;
    if node.stopping().is_some_and(|stopping| stopping.hand_over) {
        node.hand_over().await;
        return end(node, listener, &socket).await;
    }
    // Clients that are attached may still cancel and answer while running turns get their grace.
    tokio::select! {
        () = node.drain() => {}
        () = accept(&node, &msp, &listener) => {}
        _ = terminate.recv() => tracing::warn!("told to stop again: not waiting any longer"),
    }
    if node.stopping().is_some_and(|stopping| stopping.all) {
        left::end_holders(&paths, &node.limits, &[]).await?;
    }
    end(node, listener, &socket).await
}

/// The last steps: no more connections, and everything that was written is synced.
async fn end(node: Arc<Node>, listener: UnixListener, socket: &Path) -> anyhow::Result<ExitCode> {
    drop(listener);
    if let Err(error) = std::fs::remove_file(socket) {
        tracing::warn!(path = %socket.display(), %error, "failed to remove the socket");
    }
    let closing = move || {
        node.close_index();
        node.log.close()
    };
    tokio::task::spawn_blocking(closing).await.context("failed to close the log")??;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Takes connections for ever.
async fn accept(node: &Arc<Node>, msp: &Arc<Face>, listener: &UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(client::serve(node.clone(), msp.clone(), stream));
            }
            Err(error) => {
                // Out of file descriptors: connections end, so this passes.
                tracing::warn!(%error, "failed to take a connection");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}
