//! A shim whose editor notices nothing but a pause when the daemon crashes, is restarted or upgraded.
//!
//! What it remembers is in core (`frontdesk_core::shim`). Here are two threads, one a direction: each
//! takes lines, has them looked at, and writes what may be written. Whoever writes to the daemon holds
//! `up`, and asks for the next line inside it, so that lines keep their order.

use std::io::{self, Read, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use frontdesk_core::lines::{Framed, Lines};
use frontdesk_core::shim::Shim;
use serde_json::{Value, json};

use super::{PIECE_BYTES, connect_or_start};
use crate::lock::lock;
use crate::paths::Paths;

/// Longest line either way, in bytes: the longest that a configuration may allow.
const LINE_BYTES_MAX: usize = 1 << 30;
/// Pause before a daemon is looked for again, at first; it doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(20);
/// Longest pause before a daemon is looked for again.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long `frontdesk restart` gets to start the next daemon before the shim does.
const COURTESY: Duration = Duration::from_millis(200);
/// The same for whoever started the daemon, where that was no shim: a service manager, as a rule.
const SERVICE_COURTESY: Duration = Duration::from_secs(3);

/// What both directions share.
#[derive(Debug)]
struct Link {
    shim: Mutex<Shim>,
    /// Told when the editor may be read on.
    room: Condvar,
    /// The way to the daemon; `None` while there is none.
    up: Mutex<Option<UnixStream>>,
    /// How far the editor is.
    editor: Mutex<Editor>,
}

/// What has become of the editor's own direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Editor {
    /// It may still say something.
    Here,
    /// It has said all; the daemon does not know yet.
    Left,
    /// It has said all, and the daemon knows.
    Told,
}

/// Carries frames until the editor has closed stdin and has its answers, or no daemon can be had.
/// A daemon that is gone is looked for, for at most `wait`.
pub(super) fn run(
    paths: &Paths,
    up: UnixStream,
    mut hello: Value,
    wait: Duration,
) -> anyhow::Result<ExitCode> {
    let link: &'static Link = Box::leak(Box::new(Link {
        shim: Mutex::default(),
        room: Condvar::new(),
        up: Mutex::new(None),
        editor: Mutex::new(Editor::Here),
    }));
    hello["positions"] = json!(true);
    let mut down = link.connected(up, &hello)?;
    let mut courtesy = courtesy(paths).unwrap_or(COURTESY);
    hello["again"] = json!(true);
    thread::spawn(|| link.read_editor());
    loop {
        link.read_daemon(&mut down)?;
        *lock(&link.up) = None;
        let has_stopped = {
            let mut shim = lock(&link.shim);
            shim.disconnected();
            shim.has_stopped()
        };
        if *lock(&link.editor) == Editor::Told {
            return Ok(ExitCode::SUCCESS);
        }
        let next = if has_stopped {
            Err(anyhow::anyhow!("failed to go on: the daemon was told to stop"))
        } else {
            link.reconnect(paths, &hello, wait, courtesy)
        };
        down = match next {
            Ok(down) => down,
            Err(error) => {
                let text = "the daemon is gone, and there is no other one";
                show(&lock(&link.shim).give_up(text))?;
                return Err(error);
            }
        };
        // One that was reached while it died says nothing.
        courtesy = self::courtesy(paths).unwrap_or(courtesy);
    }
}

impl Link {
    /// Greets a daemon; gives the direction that comes from it.
    fn connected(&self, mut up: UnixStream, hello: &Value) -> anyhow::Result<UnixStream> {
        writeln!(up, "{hello}").context("failed to greet the daemon")?;
        let down = up.try_clone().context("failed to split the connection")?;
        *lock(&self.up) = Some(up);
        Ok(down)
    }

    /// Finds the next daemon, or starts it, and tells it where the editor stands.
    fn reconnect(
        &self,
        paths: &Paths,
        hello: &Value,
        wait: Duration,
        courtesy: Duration,
    ) -> anyhow::Result<UnixStream> {
        let until = Instant::now().checked_add(wait);
        let starts = Instant::now() + courtesy;
        let mut pause = PAUSE;
        let down = loop {
            let up = match UnixStream::connect(paths.socket()) {
                Err(_) if Instant::now() >= starts => connect_or_start(paths),
                other => other.context("failed to reach the daemon"),
            };
            match up.and_then(|up| self.connected(up, hello)) {
                Ok(down) => break down,
                Err(error) if until.is_some_and(|until| Instant::now() >= until) => {
                    let s = wait.as_secs();
                    return Err(error.context(format!("failed to go on: no daemon for {s} s")));
                }
                Err(_) => {}
            }
            thread::sleep(pause);
            if Instant::now() >= starts {
                pause = (pause * 2).min(PAUSE_MAX);
            }
        };
        let mut shown = Vec::new();
        lock(&self.shim).reconnected(&mut shown);
        show(&shown)?;
        self.pump();
        Ok(down)
    }

    /// The editor's lines, until it says no more.
    fn read_editor(&self) {
        let mut stdin = io::stdin().lock();
        let mut lines = Lines::new(LINE_BYTES_MAX, 0);
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let mut shown = Vec::new();
            let mut take = |framed| {
                if let Framed::Line { text, .. } = framed {
                    shown.extend(lock(&self.shim).from_editor(text));
                } else {
                    tracing::warn!("left out a line of the editor that is longer than any may be");
                }
            };
            let read = read_some(&mut stdin, &mut piece);
            match read {
                0 => lines.finish(&mut take),
                read => lines.feed(&piece[..read], &mut take),
            }
            // The other direction finds out when the editor takes nothing.
            let _ = show(&shown);
            if read == 0 {
                *lock(&self.editor) = Editor::Left;
                return self.pump();
            }
            self.pump();
            self.wait_for_room();
        }
    }

    fn wait_for_room(&self) {
        let mut shim = lock(&self.shim);
        while shim.is_full() {
            shim = wait(&self.room, shim);
        }
    }

    /// The daemon's lines, until it is gone.
    ///
    /// # Errors
    /// If the editor takes nothing any more.
    fn read_daemon(&self, down: &mut UnixStream) -> io::Result<()> {
        let mut lines = Lines::new(LINE_BYTES_MAX, 0);
        let mut piece = vec![0; PIECE_BYTES];
        let mut shown = Vec::new();
        loop {
            let read = read_some(down, &mut piece);
            if read == 0 {
                // What is left is half a line; the next daemon has the whole one.
                return Ok(());
            }
            let mut shim = lock(&self.shim);
            lines.feed(&piece[..read], |framed| {
                if let Framed::Line { text, .. } = framed {
                    shim.from_daemon(&text, &mut shown);
                }
            });
            let is_pending = shim.has_out();
            drop(shim);
            show(&shown)?;
            shown.clear();
            if is_pending {
                self.pump();
            }
        }
    }

    /// Writes what may be written to the daemon. A daemon that does not take it is gone, which the
    /// other direction finds out.
    fn pump(&self) {
        let mut up = lock(&self.up);
        let Some(stream) = up.as_mut() else { return };
        let mut gathered = Vec::new();
        loop {
            gathered.clear();
            let mut shim = lock(&self.shim);
            while gathered.len() < PIECE_BYTES
                && let Some(frame) = shim.next_out()
            {
                gathered.extend_from_slice(&frame);
                gathered.push(b'\n');
            }
            let is_empty = shim.is_empty();
            drop(shim);
            self.room.notify_all();
            if gathered.is_empty() {
                let mut editor = lock(&self.editor);
                if is_empty && *editor == Editor::Left {
                    *editor = Editor::Told;
                    let _ = stream.shutdown(Shutdown::Write);
                }
                return;
            }
            if stream.write_all(&gathered).is_err() {
                let _ = stream.shutdown(Shutdown::Both);
                *up = None;
                return;
            }
        }
    }
}

/// How long others get to start the next daemon, by who started the one that runs.
fn courtesy(paths: &Paths) -> Option<Duration> {
    let pid = std::fs::read_to_string(paths.run.join("daemon.lock")).unwrap_or_default();
    let words = std::fs::read(format!("/proc/{}/cmdline", pid.trim())).ok()?;
    if words.is_empty() {
        return None;
    }
    let is_own = words.split(|byte| *byte == 0).any(|word| word == b"--detach");
    Some(if is_own { COURTESY } else { SERVICE_COURTESY })
}

/// What is there, or nothing at the end.
fn read_some(from: &mut impl Read, piece: &mut [u8]) -> usize {
    loop {
        match from.read(piece) {
            Ok(read) => return read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return 0,
        }
    }
}

/// Lines for the editor, in one write where they are short.
fn show(frames: &[Bytes]) -> io::Result<()> {
    if frames.is_empty() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    let mut gathered = Vec::new();
    for frame in frames {
        if frame.len() > PIECE_BYTES {
            out.write_all(&gathered)?;
            gathered.clear();
            out.write_all(frame)?;
        } else {
            gathered.extend_from_slice(frame);
        }
        gathered.push(b'\n');
    }
    out.write_all(&gathered)?;
    out.flush()
}

fn wait<'a>(room: &Condvar, guard: MutexGuard<'a, Shim>) -> MutexGuard<'a, Shim> {
    room.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
}
