//! A whole Frontdesk for one test: a home of its own, the real binary, its clients and agents.
//!
//! Everything a desk starts carries the mark `FRONTDESK_TEST_DESK` in its environment. Dropping the
//! desk ends what still carries it, by process id, after the mark was read again; so a failed test
//! leaves nothing behind, and nothing else on the machine is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::acp::{Acp, Answers};

/// Environment variable that marks every process of a desk.
pub(crate) const DESK_MARK: &str = "FRONTDESK_TEST_DESK";
/// Environment variable by which the daemon marks an agent's processes.
pub(crate) const INSTANCE_MARK: &str = "FRONTDESK_INSTANCE";
/// Longest wait for the daemon's ready line.
const READY: Duration = Duration::from_secs(60);
/// Longest wait for the daemon's end after a TERM: its own drain time and some more.
const STOPPED: Duration = Duration::from_secs(60);
/// How often a [`Watch`] looks at the processes.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// The binary under test.
pub(crate) fn frontdesk() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_frontdesk"))
}

/// One agent: what `config.toml` says of it, and enough to start it without Frontdesk.
#[derive(Clone, Debug)]
pub(crate) struct AgentSpec {
    pub(crate) name: String,
    pub(crate) command: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Further lines of its table in `config.toml`, as they are.
    pub(crate) extra: String,
}

impl AgentSpec {
    pub(crate) fn new(name: &str, command: impl IntoIterator<Item = impl AsRef<Path>>) -> Self {
        let command = command.into_iter().map(|part| part.as_ref().display().to_string());
        Self {
            name: name.to_owned(),
            command: command.collect(),
            env: BTreeMap::new(),
            extra: String::new(),
        }
    }

    #[must_use]
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        self.env.insert(name.to_owned(), value.as_ref().display().to_string());
        self
    }

    /// Adds a line such as `sessions_per_instance = 64` to the agent's table.
    #[must_use]
    pub(crate) fn setting(mut self, line: &str) -> Self {
        self.extra.push_str(line);
        self.extra.push('\n');
        self
    }

    /// One whose instances run already, at these addresses.
    pub(crate) fn behind(name: &str, urls: &[&str]) -> Self {
        let command: [&str; 0] = [];
        Self::new(name, command).setting(&format!("urls = {}", json!(urls)))
    }

    fn to_toml(&self, mark: &str) -> String {
        if self.command.is_empty() {
            return format!("[agents.{}]\n{}", self.name, self.extra);
        }
        // A JSON string is a TOML basic string for all that the tests put in one.
        let command = json!(self.command);
        let mut out =
            format!("[agents.{}]\ncommand = {command}\n{}env = {{ ", self.name, self.extra);
        for (name, value) in &self.env {
            let _ = write!(out, "{name} = {}, ", json!(value));
        }
        let _ = writeln!(out, "{DESK_MARK} = {} }}", json!(mark));
        out
    }
}

/// What a desk is made of, before it opens.
#[derive(Default)]
pub(crate) struct DeskBuilder {
    agents: Vec<AgentSpec>,
    top: String,
    limits: String,
    env: BTreeMap<String, String>,
    work: Option<PathBuf>,
}

impl DeskBuilder {
    /// Adds an agent; the first one is the default agent.
    #[must_use]
    pub(crate) fn agent(mut self, agent: AgentSpec) -> Self {
        self.agents.push(agent);
        self
    }

    /// Adds a line at the top of `config.toml`, such as `sessions_per_instance = 64`.
    #[must_use]
    pub(crate) fn setting(mut self, line: &str) -> Self {
        self.top.push_str(line);
        self.top.push('\n');
        self
    }

    /// Sets one limit; the names are those of `frontdesk_core::limits`.
    #[must_use]
    pub(crate) fn limit(mut self, name: &str, value: u64) -> Self {
        let _ = writeln!(self.limits, "{name} = {value}");
        self
    }

    /// Sets an environment variable for every process of the desk.
    #[must_use]
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        self.env.insert(name.to_owned(), value.as_ref().display().to_string());
        self
    }

    /// Lets the desk's programs run in this folder instead of one of its own.
    #[must_use]
    pub(crate) fn work(mut self, folder: impl Into<PathBuf>) -> Self {
        self.work = Some(folder.into());
        self
    }

    /// Makes the folders and writes `config.toml`; starts nothing.
    pub(crate) fn build(self) -> Desk {
        // Unix socket paths are limited to about 100 bytes, so the home lies directly below /tmp.
        let root = tempfile::Builder::new().prefix("fd").tempdir_in("/tmp").unwrap();
        let mark = root.path().display().to_string();
        for folder in ["d", "u", "w"] {
            std::fs::create_dir(root.path().join(folder)).unwrap();
        }
        let mut config = String::new();
        if let Some(first) = self.agents.first() {
            let _ = writeln!(config, "default_agent = {}", json!(first.name));
        }
        config.push_str(&self.top);
        if !self.limits.is_empty() {
            let _ = write!(config, "[limits]\n{}", self.limits);
        }
        for agent in &self.agents {
            config.push_str(&agent.to_toml(&mark));
        }
        std::fs::write(root.path().join("d/config.toml"), config).unwrap();
        let work = self.work.unwrap_or_else(|| root.path().join("w"));
        Desk { root, mark, env: self.env, agents: self.agents, work, daemon: None }
    }

    /// Makes the folders and starts the daemon; returns when it is ready.
    pub(crate) fn open(self) -> Desk {
        let mut desk = self.build();
        desk.start();
        desk
    }
}

/// A running `frontdesk serve`.
struct Daemon {
    child: Child,
    /// The words of the ready line: `socket`, `http`, `version`.
    ready: BTreeMap<String, String>,
    stderr: Arc<Mutex<String>>,
}

/// One process of a desk that an instance's mark was found on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentProcess {
    pub(crate) pid: i32,
    /// The value of the instance mark.
    pub(crate) instance: String,
    pub(crate) command: String,
}

/// A home, and perhaps a daemon that serves it.
pub(crate) struct Desk {
    root: TempDir,
    mark: String,
    env: BTreeMap<String, String>,
    agents: Vec<AgentSpec>,
    work: PathBuf,
    daemon: Option<Daemon>,
}

impl Desk {
    pub(crate) fn builder() -> DeskBuilder {
        DeskBuilder::default()
    }

    /// `FRONTDESK_HOME`.
    pub(crate) fn home(&self) -> PathBuf {
        self.root.path().join("d")
    }

    /// `HOME` of the daemon, its clients and, unless an agent says otherwise, its agents.
    pub(crate) fn user_home(&self) -> PathBuf {
        self.root.path().join("u")
    }

    /// The folder that the desk's programs run in; a work folder for sessions.
    pub(crate) fn work(&self) -> PathBuf {
        self.work.clone()
    }

    /// The daemon's socket, whether or not it is there.
    pub(crate) fn socket(&self) -> PathBuf {
        self.home().join("run/frontdesk.sock")
    }

    /// Gives a command the environment of this desk: its homes, its mark, nothing of the user's own
    /// folders.
    fn furnish<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        for name in ["XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
            command.env_remove(name);
        }
        command
            .env("FRONTDESK_HOME", self.home())
            .env("FRONTDESK_CLAIMS", self.root.path().join("c"))
            .env("HOME", self.user_home())
            .env(DESK_MARK, &self.mark)
            .envs(&self.env)
            .current_dir(self.work())
    }

    /// A command of any program in this desk's environment.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        self.furnish(&mut command);
        command
    }

    /// Runs `frontdesk ARGS` to its end.
    pub(crate) fn cli(&self, args: &[&str]) -> Output {
        self.command(frontdesk()).args(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Starts `frontdesk serve` and waits for its ready line.
    pub(crate) fn start(&mut self) {
        if let Err(why) = self.try_start() {
            panic!("{why}");
        }
    }

    /// Starts `frontdesk serve` where an editor's shim may do so in the same moment: that daemon is
    /// killed, and the next one started. How often that was needed.
    pub(crate) fn start_before_all_others(&mut self) -> u64 {
        let mut killed = 0;
        loop {
            let Err(why) = self.try_start() else { return killed };
            let quicker = why.split("runs on this home already, pid ").nth(1);
            let quicker = quicker.and_then(|rest| rest.split(';').next()?.parse().ok());
            let quicker = quicker.unwrap_or_else(|| panic!("{why}"));
            self.kill9();
            let _ = kill(Pid::from_raw(quicker), Signal::SIGKILL);
            killed += 1;
            assert!(killed < 10, "a daemon that is quicker each time\n{why}");
        }
    }

    fn try_start(&mut self) -> Result<(), String> {
        assert!(self.daemon.is_none(), "the daemon runs already");
        let mut child = self
            .command(frontdesk())
            .arg("serve")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = Arc::new(Mutex::new(String::new()));
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let log = Arc::clone(&stderr);
        thread::spawn(move || {
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                let mut log = log.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let (tell, told) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let mut out = BufReader::new(out);
            let mut line = String::new();
            let _ = out.read_line(&mut line);
            let _ = tell.send(line);
            // Later output must not fill the pipe.
            let _ = out.read_to_end(&mut Vec::new());
        });
        let line = told.recv_timeout(READY).unwrap_or_default();
        let words = line.trim().strip_prefix("ready ").map(ready_words);
        self.daemon = Some(Daemon { child, ready: words.clone().unwrap_or_default(), stderr });
        if words.is_none() {
            return Err(format!("no ready line, but {line:?}\n{}", self.daemon_log()));
        }
        Ok(())
    }

    /// One word of the daemon's ready line: `socket`, `http` or `version`.
    pub(crate) fn ready(&self, word: &str) -> Option<&str> {
        self.daemon.as_ref()?.ready.get(word).map(String::as_str)
    }

    /// The daemon's process id.
    pub(crate) fn daemon_pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(|daemon| daemon.child.id())
    }

    /// What the daemon logged so far.
    pub(crate) fn daemon_log(&self) -> String {
        let log = self.daemon.as_ref().map(|daemon| daemon.stderr.lock().unwrap().clone());
        log.unwrap_or_default()
    }

    /// Kills the daemon with SIGKILL and waits until it is gone. Agents and holders are left alone.
    pub(crate) fn kill9(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.child.kill();
            let _ = daemon.child.wait();
        }
    }

    /// Kills the daemon and all holders with SIGKILL: their agents end with them.
    pub(crate) fn kill_all(&mut self) {
        self.kill9();
        let is_holder = |pid: &i32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).nth(1) == Some(b"hold")
        };
        for holder in marked_processes(&self.mark).into_iter().filter(is_holder) {
            let _ = kill(Pid::from_raw(holder), Signal::SIGKILL);
        }
        self.wait_instances(0, STOPPED);
    }

    /// Sends SIGTERM and waits for the end; the exit status.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        let mut daemon = self.daemon.take().expect("no daemon runs");
        let _ = kill(pid(daemon.child.id()), Signal::SIGTERM);
        let until = Instant::now() + STOPPED;
        loop {
            if let Ok(Some(status)) = daemon.child.try_wait() {
                return status;
            }
            if Instant::now() > until {
                let _ = daemon.child.kill();
                let _ = daemon.child.wait();
                let log = daemon.stderr.lock().unwrap();
                panic!("the daemon did not end within {STOPPED:?} after SIGTERM\n{log}");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Stops the daemon if it runs and starts another one.
    pub(crate) fn restart(&mut self) {
        if self.daemon.is_some() {
            self.stop();
        }
        self.start();
    }

    /// `frontdesk acp --once --agent NAME` with a client on its pipes; not initialized yet.
    pub(crate) fn acp(&self, agent: &str, answers: Answers) -> Acp {
        let mut command = self.command(frontdesk());
        Acp::spawn(
            &format!("desk:{agent}"),
            command.args(["acp", "--once", "--agent", agent]),
            answers,
        )
    }

    /// The same, which goes on with the next daemon when one is gone.
    pub(crate) fn acp_lasting(&self, agent: &str, answers: Answers) -> Acp {
        let mut command = self.command(frontdesk());
        Acp::spawn(&format!("desk:{agent}"), command.args(["acp", "--agent", agent]), answers)
    }

    /// `frontdesk acp` without an agent.
    pub(crate) fn acp_unbound(&self, answers: Answers) -> Acp {
        Acp::spawn("desk", self.command(frontdesk()).arg("acp"), answers)
    }

    /// The agent itself, without Frontdesk, with a client on its pipes; not initialized yet.
    pub(crate) fn direct(&self, agent: &str, answers: Answers) -> Acp {
        let spec = self.agents.iter().find(|it| it.name == agent).expect("no such agent");
        let mut command = self.command(&spec.command[0]);
        command.args(&spec.command[1..]).envs(&spec.env);
        Acp::spawn(&format!("direct:{agent}"), &mut command, answers)
    }

    /// The live processes of this desk that carry an instance's mark.
    pub(crate) fn processes(&self) -> Vec<AgentProcess> {
        agent_processes(&self.mark)
    }

    /// How many agent instances live, counted by their marks; a wrapper and its child are one.
    pub(crate) fn instances(&self) -> usize {
        count_instances(&self.processes())
    }

    /// Waits until `wanted` agent instances live.
    pub(crate) fn wait_instances(&self, wanted: usize, limit: Duration) {
        let until = Instant::now() + limit;
        loop {
            let found = self.processes();
            if count_instances(&found) == wanted {
                return;
            }
            assert!(
                Instant::now() < until,
                "{} instances, not {wanted}, after {limit:?}: {found:#?}\n{}",
                count_instances(&found),
                self.daemon_log()
            );
            thread::sleep(WATCH_EVERY);
        }
    }

    /// Begins to watch how many instances live at once.
    pub(crate) fn watch(&self) -> Watch {
        let (mark, over) = (self.mark.clone(), Arc::new(AtomicBool::new(false)));
        let stop = Arc::clone(&over);
        let most = thread::spawn(move || {
            let mut most = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let found = agent_processes(&mark);
                if count_instances(&found) > count_instances(&most) {
                    most = found;
                }
                thread::sleep(WATCH_EVERY);
            }
            most
        });
        Watch { over, most: Some(most) }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- daemon's log\n{}", self.daemon_log());
        }
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.child.kill();
            let _ = daemon.child.wait();
        }
        // Holders end their agents when told to; what is left after that is killed.
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let marked = marked_processes(&self.mark);
            if marked.is_empty() {
                return;
            }
            for found in marked {
                let _ = kill(Pid::from_raw(found), signal);
            }
            let until = Instant::now() + Duration::from_secs(1);
            while Instant::now() < until && !marked_processes(&self.mark).is_empty() {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Watches a desk's agent processes until it is asked.
pub(crate) struct Watch {
    over: Arc<AtomicBool>,
    most: Option<JoinHandle<Vec<AgentProcess>>>,
}

impl Watch {
    /// Ends the watch; the processes at the moment when most instances lived.
    pub(crate) fn most(mut self) -> Vec<AgentProcess> {
        self.over.store(true, Ordering::Relaxed);
        self.most.take().map(|watch| watch.join().unwrap()).unwrap_or_default()
    }

    /// Ends the watch and fails if more than `allowed` instances were ever seen at once.
    pub(crate) fn at_most(self, allowed: usize) {
        let most = self.most();
        let seen = count_instances(&most);
        assert!(seen <= allowed, "{seen} instances at once, {allowed} allowed: {most:#?}");
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn ready_words(line: &str) -> BTreeMap<String, String> {
    let pair = |word: &str| word.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned()));
    line.split_whitespace().filter_map(pair).collect()
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap())
}

/// The environment of a live process, or nothing if it is gone, a zombie or not ours.
fn environment(pid: i32) -> Vec<String> {
    let text = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let entries = text.split(|byte| *byte == 0);
    entries.map(|entry| String::from_utf8_lossy(entry).into_owned()).collect()
}

fn all_pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn marked_processes(mark: &str) -> Vec<i32> {
    let wanted = format!("{DESK_MARK}={mark}");
    all_pids().filter(|pid| environment(*pid).contains(&wanted)).collect()
}

fn agent_processes(mark: &str) -> Vec<AgentProcess> {
    let wanted = format!("{DESK_MARK}={mark}");
    let instance_of = |entry: &String| {
        let (name, value) = entry.split_once('=')?;
        (name == INSTANCE_MARK).then(|| value.to_owned())
    };
    let look = |pid: i32| {
        let environment = environment(pid);
        let instance = environment.iter().find_map(instance_of)?;
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        environment.contains(&wanted).then_some(AgentProcess { pid, instance, command })
    };
    all_pids().filter_map(look).collect()
}

fn count_instances(found: &[AgentProcess]) -> usize {
    found.iter().map(|process| &process.instance).collect::<BTreeSet<_>>().len()
}

/// The one row of a `session/list` result with this id; fails if there is none or more than one.
pub(crate) fn row<'v>(list: &'v Value, session: &str) -> &'v Value {
    let rows = list["sessions"].as_array().expect("a list has sessions");
    let found: Vec<&Value> = rows.iter().filter(|row| row["sessionId"] == session).collect();
    assert_eq!(found.len(), 1, "rows of {session} in {list}");
    found[0]
}
