//! `frontdesk acp` and `frontdesk msp`: a face on stdio, carried to the daemon, which it starts if
//! none runs.
//!
//! Plain threads. The editor of `frontdesk acp` is carried over to the next daemon (`lasting`); on the
//! other face, and where it was told so, frames are only copied, and the shim ends with the daemon, as
//! an agent would.

pub mod daemon;
mod lasting;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{SigSet, Signal};
use serde_json::{Value, json};

use crate::paths::Paths;
pub use daemon::connect_or_start;

/// What a shim was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShimOptions {
    /// Which face: `acp` or `msp`.
    pub face: &'static str,
    /// The agent to bind the connection to.
    pub agent: Option<String>,
    /// The spelling of status words: `active` or `open`.
    pub status_words: Option<String>,
    /// End with the daemon.
    pub once: bool,
    /// How long a daemon is looked for once one is gone, in seconds.
    pub wait_s: u64,
}

/// Bytes moved at once.
const PIECE_BYTES: usize = 64 << 10;

/// Which side ended first.
enum End {
    /// The editor closed stdin.
    Editor,
    /// The daemon closed the connection.
    Daemon,
}

/// Carries frames until the editor closes stdin or the daemon is gone.
///
/// # Errors
/// If no daemon can be reached or started.
pub fn run(options: ShimOptions) -> anyhow::Result<ExitCode> {
    let paths = Paths::from_env(|name| std::env::var_os(name))?;
    let mut up = connect_or_start(&paths)?;
    let hello = hello(&options);
    if options.face == "acp" && !options.once {
        daemon::tell_of_stops(paths.clone());
        return lasting::run(&paths, up, hello, Duration::from_secs(options.wait_s));
    }
    writeln!(up, "{hello}").context("failed to greet the daemon")?;
    let down = up.try_clone().context("failed to split the connection")?;
    let (ended, ends) = mpsc::channel();
    if options.face == "msp" {
        end_in_order(&up, ended.clone())?;
    }
    // A thread of its own, so behind what takes signals.
    daemon::tell_of_stops(paths);
    let to_daemon = ended.clone();
    thread::spawn(move || {
        let _ = copy(&mut io::stdin().lock(), &mut up);
        // Said first: a quick daemon closes its side before the next line is done.
        let _ = to_daemon.send(End::Editor);
        let _ = up.shutdown(Shutdown::Write);
    });
    thread::spawn(move || {
        let mut down = down;
        let _ = copy(&mut down, &mut io::stdout().lock());
        let _ = ended.send(End::Daemon);
    });
    // The editor's end is not the end: answers to what it asked still come.
    let mut editor_left = false;
    for end in ends {
        match end {
            End::Editor => editor_left = true,
            End::Daemon if editor_left => return Ok(ExitCode::SUCCESS),
            End::Daemon => break,
        }
    }
    anyhow::bail!("failed to go on: the daemon closed the connection (see `frontdesk doctor`)")
}

/// The first line on the socket.
fn hello(options: &ShimOptions) -> Value {
    json!({
        "frontdesk": 1,
        "face": options.face,
        "client": uuid::Uuid::new_v4(),
        "kind": "shim",
        "agent": options.agent,
        "statusWords": options.status_words,
        "cwd": std::env::current_dir().ok(),
    })
}

/// TERM and INT are what stdin's end is: what was asked is still answered, then the shim ends with
/// code 0, as clients of this face expect of their host. Before any other thread starts.
fn end_in_order(up: &UnixStream, ended: mpsc::Sender<End>) -> anyhow::Result<()> {
    let up = up.try_clone().context("failed to split the connection")?;
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().context("failed to take signals")?;
    thread::spawn(move || {
        if signals.wait().is_ok() {
            let _ = ended.send(End::Editor);
            let _ = up.shutdown(Shutdown::Write);
        }
    });
    Ok(())
}

/// Copies as bytes come; every piece is passed on at once.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&piece[..read])?;
        to.flush()?;
    }
}
