//! The real binary: a temporary home, its configuration, `frontdesk serve`, and the end of it all.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::bridge::Bridge;

/// Time for the daemon to say that it is ready, or to end.
const DESK_WAIT: Duration = Duration::from_secs(60);

/// The folders of one run of a case; everything that the run starts has `root` in its environment.
#[derive(Debug)]
pub(super) struct Place {
    folder: tempfile::TempDir,
    /// What else is in the environment of the binary.
    pub(super) env: Vec<(String, String)>,
}

impl Place {
    /// Makes the folders. Short, because sockets lie below.
    pub(super) fn new() -> Result<Self, String> {
        let made = tempfile::Builder::new().prefix("fd").tempdir_in("/tmp");
        let folder = made.map_err(|e| format!("failed to make a folder: {e}"))?;
        let place = Self { folder, env: Vec::new() };
        for name in ["h", "ws/alpha", "ws/beta", "out", "err", "user"] {
            let path = place.root().join(name);
            fs::create_dir_all(&path).map_err(|e| format!("failed to make a folder: {e}"))?;
        }
        Ok(place)
    }

    pub(super) fn root(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn home(&self) -> PathBuf {
        self.root().join("h")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.home().join("run/frontdesk.sock")
    }

    pub(super) fn puppets(&self) -> PathBuf {
        self.root().join("p.sock")
    }

    /// A command of the binary under test, in this place; `CASE_BINARY` names another build.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let binary = std::env::var_os("CASE_BINARY");
        let mut command =
            Command::new(binary.unwrap_or_else(|| env!("CARGO_BIN_EXE_frontdesk").into()));
        command
            .args(arguments)
            .env("FRONTDESK_HOME", self.home())
            .env("FRONTDESK_CLAIMS", self.root().join("claims"))
            .env("HOME", self.root().join("user"))
            .env("CASE_ROOT", self.root())
            .env_remove("XDG_RUNTIME_DIR")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.root());
        command
    }

    /// A file that takes what `name` writes to stderr.
    pub(super) fn stderr(&self, name: &str) -> Result<File, String> {
        let path = self.root().join("err").join(name);
        let opened = File::options().create(true).append(true).open(path);
        opened.map_err(|e| format!("failed to open a file for stderr: {e}"))
    }

    /// What was written to stderr by `name`.
    pub(super) fn said(&self, name: &str) -> String {
        let bytes = fs::read(self.root().join("err").join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Processes that were started in this place and live, other than zombies.
    pub(super) fn processes(&self) -> Vec<(i32, String)> {
        let mark = self.root().as_os_str().as_encoded_bytes().to_vec();
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|&pid: &i32| pid != i32::try_from(std::process::id()).unwrap_or(0))
            .filter_map(|pid| {
                let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
                let ours = environment.windows(mark.len()).any(|window| window == mark);
                let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                ours.then_some((pid, line))
            })
            .collect()
    }

    /// Kills what is left, each by its pid; returns what that was.
    pub(super) fn sweep(&self) -> Vec<(i32, String)> {
        let left = self.processes();
        for (pid, _) in &left {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        left
    }
}

/// The interpreter for puppets: the system's own starts fastest.
pub(super) fn python() -> String {
    let own = "/usr/bin/python3";
    if Path::new(own).exists() { own.to_owned() } else { "python3".to_owned() }
}

/// Where the case files and `puppet.py` are.
pub(super) fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/cases")
}

/// The text of a configuration file.
pub(super) fn configuration(
    place: &Place,
    boot: &Value,
    bridges: &BTreeMap<String, Vec<Bridge>>,
) -> String {
    let mut out = String::new();
    let quote = |text: &str| Value::from(text).to_string();
    let top = [("sessions_per_instance", 0), ("idle_unload_s", 0)];
    let default = boot["default_agent"].as_str().unwrap_or("a1");
    let _ = writeln!(out, "default_agent = {}", quote(default));
    for (name, _) in top {
        if let Some(value) = boot[name].as_u64() {
            let _ = writeln!(out, "{name} = {value}");
        }
    }
    let _ = writeln!(out, "[limits]");
    let mut limits = vec![("agent_start_ms".to_owned(), 20_000), ("drain_s".to_owned(), 1)];
    for name in [
        "agent_open_ms",
        "agent_close_ms",
        "probe_ms",
        "ext_answer_ms",
        "cancel_grace_ms",
        "list_wait_ms",
    ] {
        limits.push((name.to_owned(), 2_000));
    }
    limits.push(("list_fresh_ms".to_owned(), 0));
    if !bridges.is_empty() {
        limits.extend([("url_retry_ms".to_owned(), 20), ("url_retry_max_ms".to_owned(), 100)]);
    }
    for (name, value) in boot["limits"].as_object().into_iter().flatten() {
        limits.retain(|(known, _)| known != name);
        limits.push((name.clone(), value.as_u64().unwrap_or(0)));
    }
    for (name, value) in limits {
        let _ = writeln!(out, "{name} = {value}");
    }
    for (name, agent) in boot["agents"].as_object().into_iter().flatten() {
        if let Some(bridges) = bridges.get(name) {
            let urls: Vec<String> = bridges.iter().map(|bridge| quote(&bridge.url)).collect();
            let _ = writeln!(out, "[agents.{name}]\nurls = [{}]", urls.join(", "));
            continue;
        }
        let script = data().join("puppet.py");
        let script = script.to_string_lossy();
        let python = python();
        let command = [python.as_str(), "-I", "-S", &script].map(quote).join(", ");
        let start = agent["start"].as_str().unwrap_or("");
        let socket = place.puppets();
        let root = place.root();
        let _ = writeln!(out, "[agents.{name}]\ncommand = [{command}]");
        let _ = writeln!(
            out,
            "env = {{ PUPPET_SOCKET = {}, PUPPET_AGENT = {}, PUPPET_START = {}, CASE_ROOT = {} }}",
            quote(&socket.to_string_lossy()),
            quote(name),
            quote(start),
            quote(&root.to_string_lossy())
        );
    }
    out
}

/// A command of an agent's puppet that the daemon does not start.
pub(super) fn puppet(socket: &Path, name: &str, root: &Path) -> Command {
    let mut command = Command::new(python());
    command
        .args(["-I", "-S"])
        .arg(data().join("puppet.py"))
        .env("PUPPET_SOCKET", socket)
        .env("PUPPET_AGENT", name)
        .env("CASE_ROOT", root);
    command
}

/// A running daemon.
#[derive(Debug)]
pub(super) struct Desk {
    child: Child,
}

impl Desk {
    /// Starts `frontdesk serve` and waits for its ready line.
    pub(super) fn start(place: &Place) -> Result<Self, String> {
        let mut child = place
            .command(&["serve"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(place.stderr("desk")?)
            .spawn()
            .map_err(|e| format!("failed to start the daemon: {e}"))?;
        let output = child.stdout.take().ok_or("the daemon has no stdout")?;
        let (ready, waiting) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = ready.send(line);
            }
        });
        let first = waiting.recv_timeout(DESK_WAIT);
        match first {
            Ok(line) if line.starts_with("ready socket=") => Ok(Self { child }),
            other => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("the daemon is not ready: {other:?}: {}", place.said("desk")))
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the daemon as `kill -9` does.
    pub(super) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks the daemon to stop; an error if it does not end, or not with 0.
    pub(super) fn stop(mut self) -> Result<(), String> {
        let pid = i32::try_from(self.child.id()).map_err(|e| e.to_string())?;
        kill(Pid::from_raw(pid), Signal::SIGTERM).map_err(|e| format!("failed to stop: {e}"))?;
        let until = Instant::now() + DESK_WAIT;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("the daemon ended with {status}")),
                Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(10)),
                other => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    return Err(format!("the daemon did not stop: {other:?}"));
                }
            }
        }
    }
}

/// One line of `/proc/PID/status` in KiB, such as `VmHWM`.
pub(super) fn memory_kib(pid: u32, line: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let found = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'))?;
    found.trim().strip_suffix(" kB")?.trim().parse().ok()
}
