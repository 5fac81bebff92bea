//! The holder's loop: agent output to the spool and then to the daemon, daemon input to the spool
//! and then to the agent, and all deadlines. What the loop does with the agent's pipes is in
//! `pipes`, what with the daemons' connections in `daemons`.

mod daemons;
mod pipes;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use frontdesk_core::hold::{AgentState, Hello, PIECE_BYTES_MAX, ProcessId, VERSION};
use frontdesk_core::limits::Limits;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::agent::Agent;
use super::claim::Claims;
use super::conn::{Conn, News};
use super::ending::Phase;
use super::input::Input;
use super::record::{RECORD_FILE, Record, SOCKET_FILE};
use super::slim::Slim;
use super::spool::{Spool, Tail};
use super::{HoldError, HolderSpec, make_folders, on_path, on_system};
use crate::agent::proc;

/// Connections at once: the daemon, and others that come to stop.
const CONNS_MAX: usize = 4;
/// Room that is taken for input when the disk still has some, in bytes: cancels and answers.
const INPUT_ASIDE_BYTES: u64 = 64 << 10;
/// After an ordered stop, the wait for a daemon that does not take its last messages, in
/// milliseconds.
const FAREWELL_MS: u64 = 10_000;
/// How long a dismissed holder tries to spool the last words of an agent that is gone, in milliseconds.
/// Where the disk takes nothing they would be lost with the holder in any case.
const LAST_WORDS_MS: u64 = 1_000;

/// A holder with its agent.
#[derive(Debug)]
pub(super) struct Holder {
    spec: HolderSpec,
    limits: Limits,
    hello: Hello,
    listener: UnixListener,
    signals: SignalFd,
    conns: [Option<Conn>; CONNS_MAX],
    agent: Agent,
    out: Spool,
    /// Output that was read and could not be written to the spool yet.
    unspooled: Vec<u8>,
    retry_at: Instant,
    input: Input,
    stderr: Tail,
    claims: Claims,
    news: News,
    phase: Phase,
    /// Whether the holder is to leave with its agent, whoever has read what.
    is_dismissed: bool,
    /// Since when no daemon is attached.
    alone_since: Option<Instant>,
    /// The last sign of life: output, or the end of the first process.
    life_at: Instant,
    slim: Slim,
    /// For what the agent writes.
    from_agent: Vec<u8>,
    /// For what daemons write.
    from_daemon: Vec<u8>,
    /// For what is read back from spools.
    scratch: Vec<u8>,
}

/// What `poll` found.
struct Ready {
    /// Whether it found anything.
    any: bool,
    signals: bool,
    listener: bool,
    stdin: PollFlags,
    stdout: bool,
    stderr: bool,
    conns: [PollFlags; CONNS_MAX],
}

impl Holder {
    /// Makes folders, socket and record, and starts the agent. On an error nothing is left but
    /// the data folder.
    pub(super) fn start(spec: HolderSpec, limits: Limits) -> Result<Self, HoldError> {
        make_folders(&spec)?;
        let result = Self::start_in_folders(spec.clone(), limits);
        if result.is_err() {
            let _ = Record::remove(&spec.run_dir);
        }
        result
    }

    fn start_in_folders(spec: HolderSpec, limits: Limits) -> Result<Self, HoldError> {
        // Blocked before the agent starts, so that its end cannot be missed.
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD] {
            set.add(signal);
        }
        set.thread_block().map_err(on_system("block signals"))?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .map_err(on_system("receive signals"))?;

        let socket = spec.run_dir.join(SOCKET_FILE);
        let listener = UnixListener::bind(&socket).map_err(on_path("make the socket", &socket))?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))
            .map_err(on_path("protect the socket", &socket))?;
        listener.set_nonblocking(true).map_err(on_system("set up the socket"))?;

        let spool = |name| {
            let path = spec.data_dir.join(name);
            Spool::create(&path).map_err(on_path("make the spool", &path))
        };
        let (out, mut in_spool) = (spool("out.spool")?, spool("in.spool")?);
        in_spool.set_aside(INPUT_ASIDE_BYTES);
        let stderr = spec.data_dir.join("stderr.log");
        let stderr =
            Tail::create(stderr.clone(), limits.stderr_bytes).map_err(on_path("make", &stderr))?;

        let mut record = record(&spec)?;
        let write = |record: &Record| {
            record.write(&spec.run_dir).map_err(on_path("write", &spec.run_dir.join(RECORD_FILE)))
        };
        write(&record)?;
        let agent = Agent::start(&spec)?;
        record.agent = Some(agent.id);
        write(&record)?;

        let now = Instant::now();
        Ok(Self {
            hello: Hello {
                version: VERSION,
                instance: spec.instance.0.to_string(),
                holder: record.holder,
                agent: agent.id,
                boot_id: record.boot_id,
                out_start: 0,
                out_end: 0,
                last_input: 0,
                state: AgentState::Running,
            },
            listener,
            signals,
            conns: [const { None }; CONNS_MAX],
            agent,
            out,
            unspooled: Vec::new(),
            retry_at: now,
            input: Input::new(in_spool, limits.input_spool_bytes),
            stderr,
            claims: Claims::new(spec.claims_dir.clone()),
            news: News::default(),
            phase: Phase::Running,
            is_dismissed: false,
            alone_since: Some(now),
            life_at: now,
            slim: Slim::new(now),
            from_agent: vec![0; PIECE_BYTES_MAX],
            from_daemon: vec![0; PIECE_BYTES_MAX],
            scratch: vec![0; PIECE_BYTES_MAX + 1],
            spec,
            limits,
        })
    }

    /// Works until the agent has gone and everybody who should has been told.
    pub(super) fn run(mut self) -> Result<(), HoldError> {
        loop {
            let now = Instant::now();
            self.keep_time(now);
            self.pump_conns(None);
            if self.is_finished(now) {
                break;
            }
            let ready = self.wait(now)?;
            let now = Instant::now();
            if ready.any {
                self.slim.heard(now);
            }
            for (index, flags) in ready.conns.iter().enumerate() {
                if flags.contains(PollFlags::POLLOUT)
                    && let Some(conn) = &mut self.conns[index]
                {
                    conn.unblock();
                }
                if flags.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
                    self.read_conn(index, now);
                }
            }
            if ready.stdout {
                self.read_stdout(now);
            }
            if ready.stdin.contains(PollFlags::POLLERR) {
                self.close_input();
            } else if ready.stdin.contains(PollFlags::POLLOUT) {
                self.pump_input();
            }
            if ready.stderr {
                self.read_stderr();
            }
            if ready.signals {
                self.read_signals(now);
            }
            if ready.listener {
                self.accept();
            }
        }
        self.claims.release_all();
        Record::remove(&self.spec.run_dir).map_err(on_path("remove", &self.spec.run_dir))
    }

    fn term(&self) -> Duration {
        Duration::from_millis(self.limits.stop_term_ms)
    }

    fn keep_time(&mut self, now: Instant) {
        if self.orphan_due().is_some_and(|due| now >= due) {
            self.dismiss(now, self.term());
        }
        if self.silence_due().is_some_and(|due| now >= due) {
            self.stop(now, self.term());
        }
        if !self.unspooled.is_empty() && now >= self.retry_at {
            self.spool_again(now);
        }
        loop {
            let due = self.phase.due().is_some_and(|due| now >= due);
            if !due {
                break;
            }
            self.agent.check_exit();
            if self.phase.step(&self.agent, &self.spec.instance.0, now, self.term()) {
                self.all_gone(now);
            }
        }
        self.news.exit = self.agent.exit;
        self.conns.iter_mut().flatten().for_each(|conn| conn.be_on_time(now));
        // A pipe that outlives all of the agent belongs to nobody: what is in it is taken, then it
        // is closed.
        if matches!(self.phase, Phase::Gone { .. }) && self.agent.stdout.is_some() {
            self.take_last_output(now);
        }
        if self.last_words_due().is_some_and(|due| now >= due) {
            self.unspooled = Vec::new();
            self.output_ended(now);
        }
    }

    /// When the words of an agent that is gone are given up, if nobody is to read them later.
    fn last_words_due(&self) -> Option<Instant> {
        let Phase::Gone { since } = self.phase else { return None };
        let has_some = self.agent.stdout.is_some() || !self.unspooled.is_empty();
        (self.is_dismissed && has_some).then(|| since + Duration::from_millis(LAST_WORDS_MS))
    }

    fn orphan_due(&self) -> Option<Instant> {
        let since = self.alone_since.filter(|_| !self.is_dismissed)?;
        since.checked_add(Duration::from_secs(self.limits.holder_orphan_s))
    }

    fn silence_due(&self) -> Option<Instant> {
        let is_orphan = self.agent.exit.is_some() && matches!(self.phase, Phase::Running);
        let silence = Duration::from_millis(self.limits.silent_orphan_ms);
        self.life_at.checked_add(silence).filter(|_| is_orphan && self.reads_output())
    }

    /// Whether there is room for more output.
    fn reads_output(&self) -> bool {
        self.unspooled.is_empty() && self.out.len() < self.limits.output_spool_bytes
    }

    fn is_finished(&self, now: Instant) -> bool {
        let Phase::Gone { since } = self.phase else { return false };
        let is_alone = self.conns.iter().all(Option::is_none);
        if is_alone && !self.spec.run_dir.join(SOCKET_FILE).exists() {
            // Nobody can come any more.
            return true;
        }
        let all_told = self.conns.iter().flatten().all(Conn::has_told_all);
        if self.is_dismissed {
            return all_told || now >= since + Duration::from_millis(FAREWELL_MS);
        }
        all_told && self.news.eof.is_some_and(|end| self.out.start() >= end)
    }

    fn wait(&mut self, now: Instant) -> Result<Ready, HoldError> {
        // Last of all, since whatever runs behind it needs its pages again.
        self.slim.be_on_time(now, &mut self.scratch);
        let mut fds = Vec::with_capacity(5 + CONNS_MAX);
        let read = PollFlags::POLLIN;
        let signals = add(&mut fds, Some(self.signals.as_fd()), read);
        let listener = add(&mut fds, Some(self.listener.as_fd()), read);
        // Without input to write, the pipe is still watched for its closing.
        let write = if self.input.is_waiting() { PollFlags::POLLOUT } else { PollFlags::empty() };
        let stdin = add(&mut fds, self.agent.stdin.as_ref().map(File::as_fd), write);
        let stdout = self.agent.stdout.as_ref().filter(|_| self.reads_output());
        let stdout = add(&mut fds, stdout.map(File::as_fd), read);
        let stderr = add(&mut fds, self.agent.stderr.as_ref().map(File::as_fd), read);
        let conns = self.conns.each_ref().map(|conn| {
            let conn = conn.as_ref()?;
            let flags = if conn.is_behind { read | PollFlags::POLLOUT } else { read };
            add(&mut fds, Some(conn.fd()), flags)
        });
        let any = match poll(&mut fds, self.timeout(now)) {
            Ok(count) => count > 0,
            Err(nix::errno::Errno::EINTR) => false,
            Err(error) => return Err(on_system("wait for something to do")(error)),
        };
        let found = |index: Option<usize>| {
            let fd = index.and_then(|index| fds.get(index));
            fd.and_then(PollFd::revents).unwrap_or(PollFlags::empty())
        };
        Ok(Ready {
            any,
            signals: !found(signals).is_empty(),
            listener: !found(listener).is_empty(),
            stdin: found(stdin),
            stdout: !found(stdout).is_empty(),
            stderr: !found(stderr).is_empty(),
            conns: conns.map(found),
        })
    }

    fn timeout(&self, now: Instant) -> PollTimeout {
        let farewell = match self.phase {
            Phase::Gone { since } if self.is_dismissed => {
                Some(since + Duration::from_millis(FAREWELL_MS))
            }
            _ => None,
        };
        let retry = (!self.unspooled.is_empty()).then_some(self.retry_at);
        let late = self.conns.iter().flatten().filter_map(Conn::due).min();
        let slim = self.slim.due();
        let words = self.last_words_due();
        let ends = [self.phase.due(), self.orphan_due(), self.silence_due(), words, farewell];
        let dues = ends.into_iter().chain([retry, late, slim]);
        let Some(due) = dues.flatten().min() else { return PollTimeout::NONE };
        // Rounded up, so that the deadline has passed when `poll` returns.
        let wait = due.saturating_duration_since(now).as_micros().div_ceil(1000);
        PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)
    }
}

/// Adds a descriptor to a `poll` set and says at which place; nothing for none.
fn add<'fd>(
    fds: &mut Vec<PollFd<'fd>>,
    fd: Option<BorrowedFd<'fd>>,
    flags: PollFlags,
) -> Option<usize> {
    fds.push(PollFd::new(fd?, flags));
    Some(fds.len() - 1)
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn record(spec: &HolderSpec) -> Result<Record, HoldError> {
    let own = || -> io::Result<(ProcessId, String)> {
        let holder = proc::identify(std::process::id().cast_signed());
        Ok((holder.ok_or(io::ErrorKind::NotFound)?, proc::boot_id()?))
    };
    let (holder, boot_id) = own().map_err(on_system("read who this process is"))?;
    Ok(Record {
        version: VERSION,
        holder,
        boot_id,
        agent: None,
        agent_name: spec.agent.clone(),
        program: spec.command.first().cloned().unwrap_or_default(),
        mark: spec.instance.0.to_string(),
        since: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
    })
}
