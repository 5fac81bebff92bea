//! Daemons, agents and shims in folders of their own, all ended afterwards.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bare;
use crate::wire::Wire;

/// The program under test.
pub(crate) const FRONTDESK: &str = env!("CARGO_BIN_EXE_frontdesk");
/// Time for a child to end after it was asked to.
const END: Duration = Duration::from_secs(20);

/// Children that run, for the watchdog.
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn running() -> std::sync::MutexGuard<'static, BTreeSet<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends this program and its children after `limit`: reads here wait for ever.
pub(crate) fn watch(limit: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        eprintln!("failed to measure: not done within {} s", limit.as_secs());
        for pid in running().iter() {
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM);
        }
        std::thread::sleep(Duration::from_secs(2));
        std::process::exit(1);
    });
}

/// A child that is ended with this value: TERM, then KILL.
pub(crate) struct Ended {
    child: Child,
}

impl Ended {
    /// Starts it.
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        let child = command
            .spawn()
            .with_context(|| format!("failed to start {}", command.get_program().display()))?;
        running().insert(child.id());
        Ok(Self { child })
    }

    /// Its process number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let until = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        running().remove(&self.child.id());
    }
}

/// A client on a socket.
pub(crate) fn wire_on(stream: UnixStream) -> Result<Wire> {
    let out = OwnedFd::from(stream.try_clone().context("failed to split a connection")?);
    Ok(Wire::new(out, stream.into()))
}

/// A folder for one home, its agent's store and its workspace. Its path is short enough for a
/// socket below it.
pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    /// Makes the folders.
    pub(crate) fn new() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("fd-bench-").tempdir()?;
        for name in ["home", "store", "work", "claims"] {
            // Claims are taken only in a folder that nobody else can write to.
            DirBuilder::new().mode(0o700).create(dir.path().join(name))?;
        }
        Ok(Self { dir })
    }

    /// A path below the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program under test, with this place as its surroundings.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(FRONTDESK);
        command
            .args(words)
            .env("FRONTDESK_HOME", self.path("home"))
            .env("FRONTDESK_DEMO_STORE", self.path("store"))
            .env("FRONTDESK_CLAIMS", self.path("claims"))
            .stderr(Stdio::null());
        command
    }

    /// Starts an agent without anything between.
    pub(crate) fn agent(&self) -> Result<(Ended, Wire)> {
        self.piped(&["demo-agent"])
    }

    /// Starts the shim.
    pub(crate) fn shim(&self) -> Result<(Ended, Wire)> {
        self.piped(&["acp"])
    }

    fn piped(&self, words: &[&str]) -> Result<(Ended, Wire)> {
        let mut command = self.command(words);
        let mut ended = Ended::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let out = ended.child.stdin.take().context("no stdin")?;
        let input = ended.child.stdout.take().context("no stdout")?;
        Ok((ended, Wire::new(out.into(), input.into())))
    }

    /// Starts an agent whose output goes through a plain copy.
    pub(crate) fn copied_agent(&self) -> Result<(Ended, Ended, Wire)> {
        let mut command = self.command(&["demo-agent"]);
        let mut agent = Ended::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let out = agent.child.stdin.take().context("no stdin")?;
        let between = agent.child.stdout.take().context("no stdout")?;
        let mut copy = bare::start_copy(between)?;
        let input = copy.stdout.take().context("no stdout")?;
        Ok((agent, Ended { child: copy }, Wire::new(out.into(), input.into())))
    }

    /// Starts a daemon with `sessions` sessions in one instance and says how long it took to be
    /// ready.
    pub(crate) fn desk(&self, sessions: usize) -> Result<(Desk, Duration)> {
        let config = format!("sessions_per_instance = {sessions}\n");
        std::fs::write(self.path("home").join("config.toml"), config)?;
        let mut command = self.command(&["serve"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let began = Instant::now();
        let mut daemon = Ended::spawn(&mut command)?;
        let stdout = daemon.child.stdout.take().context("no stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let took = began.elapsed();
        ensure!(line.starts_with("ready "), "failed to start the daemon: it said {line:?}");
        Ok((Desk { daemon, run: self.path("home").join("run") }, took))
    }

    /// The parameters of `session/new` in this place.
    pub(crate) fn new_session(&self) -> String {
        json!({ "cwd": self.path("work"), "mcpServers": [] }).to_string()
    }
}

/// A running daemon.
pub(crate) struct Desk {
    daemon: Ended,
    run: PathBuf,
}

/// A running instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pids {
    /// The holder's process.
    pub(crate) holder: u32,
    /// The agent's process.
    pub(crate) agent: u32,
}

impl Desk {
    /// The daemon's process.
    pub(crate) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Connects a client that has said hello and not yet `initialize`.
    pub(crate) fn connect(&self) -> Result<Wire> {
        self.connect_as(&json!({ "frontdesk": 1, "face": "acp", "kind": "bench" }))
    }

    /// Connects a client whose first line is `hello`.
    pub(crate) fn connect_as(&self, hello: &Value) -> Result<Wire> {
        let socket = self.run.join("frontdesk.sock");
        let mut stream = UnixStream::connect(socket).context("failed to reach the daemon")?;
        stream.write_all(format!("{hello}\n").as_bytes())?;
        wire_on(stream)
    }

    /// Kills it with SIGKILL and waits for its end; holders and agents stay.
    pub(crate) fn kill9(mut self) -> Result<()> {
        self.daemon.child.kill()?;
        self.daemon.child.wait()?;
        Ok(())
    }

    /// Waits until no instance runs.
    pub(crate) fn wait_for_no_instance(&self) -> Result<()> {
        let until = Instant::now() + END;
        while !self.instances()?.is_empty() {
            ensure!(Instant::now() < until, "failed to wait for the end of an instance");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The instances that run.
    pub(crate) fn instances(&self) -> Result<Vec<Pids>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.run.join("instances"))? {
            found.extend(read_record(&entry?.path().join("holder.json")));
        }
        Ok(found)
    }
}

fn read_record(path: &Path) -> Option<Pids> {
    let record: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let pid = |name: &str| record[name]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    Some(Pids { holder: pid("holder")?, agent: pid("agent")? })
}

/// Says `initialize`.
pub(crate) fn greet(wire: &mut Wire) -> Result<()> {
    let params = json!({
        "protocolVersion": 1,
        "clientCapabilities": {},
        "clientInfo": { "name": "bench", "title": "Bench", "version": "0" },
    });
    wire.call("initialize", &params.to_string()).map(drop)
}

/// Says `initialize`, makes a session and returns its id.
pub(crate) fn open(place: &Place, wire: &mut Wire) -> Result<String> {
    greet(wire)?;
    new_session(place, wire)
}

/// Makes a session and returns its id.
pub(crate) fn new_session(place: &Place, wire: &mut Wire) -> Result<String> {
    let made = wire.call("session/new", &place.new_session())?;
    Ok(made["sessionId"].as_str().context("no sessionId")?.to_owned())
}

/// A prompt's parameters.
pub(crate) fn prompt(session: &str, text: &str) -> String {
    json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] }).to_string()
}
