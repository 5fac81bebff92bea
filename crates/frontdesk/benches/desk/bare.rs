//! What Frontdesk is compared with: the least that would do the same outwardly.
//!
//! An echo answers each line with a line as long as a real answer: a thread for each connection that
//! blocks, or a task of a runtime like the daemon's. A copy moves bytes from stdin to stdout. All are
//! processes of their own, as what they are compared with, and are this program.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use memchr::memchr_iter;

use crate::stage::{self, Ended};
use crate::wire::Wire;

/// Makes this program an echo: a socket's path and the length of its answers follow.
pub(crate) const ECHO: &str = "--be-echo";
/// The same on a runtime.
pub(crate) const ECHO_OF_RUNTIME: &str = "--be-echo-of-runtime";
/// Makes this program a copy.
pub(crate) const COPY: &str = "--be-copy";
/// Bytes moved at once, as everywhere in Frontdesk.
const PIECE_BYTES: usize = 64 << 10;

/// Threads of the daemon's runtime.
const WORKERS: usize = 2;

/// Where an echo listens and what it answers.
fn told(words: &[String]) -> Result<(&str, Vec<u8>)> {
    let (path, bytes) = (words.first().context("no path")?, words.get(1).context("no length")?);
    let mut answer = vec![b'x'; bytes.parse::<usize>()?.saturating_sub(1)];
    answer.push(b'\n');
    Ok((path, answer))
}

/// Serves an echo until it is killed: a task for each connection, one write for each read.
pub(crate) fn echo_of_runtime(words: &[String]) -> Result<()> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (path, answer) = told(words)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::UnixListener::bind(path)?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut piece = vec![0; PIECE_BYTES];
                while let Ok(read @ 1..) = stream.read(&mut piece).await {
                    let lines = memchr_iter(b'\n', &piece[..read]).count();
                    if stream.write_all(&answer.repeat(lines)).await.is_err() {
                        return;
                    }
                }
            });
        }
    })
}

/// Serves an echo until it is killed: a thread for each connection, one write for each read.
pub(crate) fn echo(words: &[String]) -> Result<()> {
    let (path, answer) = told(words)?;
    for stream in UnixListener::bind(path)?.incoming() {
        let (mut stream, answer) = (stream?, answer.clone());
        std::thread::spawn(move || -> std::io::Result<()> {
            let mut piece = vec![0; PIECE_BYTES];
            loop {
                let read = stream.read(&mut piece)?;
                if read == 0 {
                    return Ok(());
                }
                let lines = memchr_iter(b'\n', &piece[..read]).count();
                stream.write_all(&answer.repeat(lines))?;
            }
        });
    }
    Ok(())
}

/// Copies stdin to stdout until stdin ends.
pub(crate) fn copy() -> Result<()> {
    // Without the buffer that stdout has.
    let mut out = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = std::io::stdin().lock().read(&mut piece)?;
        if read == 0 {
            return Ok(());
        }
        out.write_all(&piece[..read])?;
    }
}

/// Starts an echo with answers of `bytes` bytes, [`ECHO`] or [`ECHO_OF_RUNTIME`], and connects to it.
pub(crate) fn start_echo(kind: &str, socket: &Path, bytes: usize) -> Result<(Ended, Wire)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(kind).arg(socket).arg(bytes.to_string()).stdin(Stdio::null());
    let echo = Ended::spawn(&mut command)?;
    let until = Instant::now() + Duration::from_secs(5);
    let stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > until => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    Ok((echo, stage::wire_on(stream)?))
}

/// A copy between `from` and whoever reads its stdout.
pub(crate) fn start_copy(from: impl Into<Stdio>) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(COPY).stdin(from).stdout(Stdio::piped());
    command.spawn().context("failed to start a copy")
}
