//! The agent as a process: its start, its pipes, its end. Used by `run` and `ending`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use frontdesk_core::hold::{Exit, MARK, ProcessId};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpid, getppid};

use super::{HoldError, HolderSpec, on_system};
use crate::agent::proc;

/// A started agent.
///
/// Its first process is not reaped before [`Agent::reap`]: until then the kernel gives its number,
/// which is also that of its group, to nobody else, so that the group can be signalled safely.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) id: ProcessId,
    pub(super) stdin: Option<File>,
    pub(super) stdout: Option<File>,
    pub(super) stderr: Option<File>,
    pub(super) exit: Option<Exit>,
}

impl Agent {
    pub(super) fn start(spec: &HolderSpec) -> Result<Self, HoldError> {
        let (program, arguments) = spec.command.split_first().ok_or(HoldError::NoCommand)?;
        // Asked first, because a missing folder and a missing program are one error to the kernel.
        if !spec.cwd.is_dir() {
            return Err(HoldError::Cwd { program: program.clone(), cwd: spec.cwd.clone() });
        }
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(&spec.cwd)
            .envs(&spec.env)
            .env(MARK, &*spec.instance.0)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        set_up_child(&mut command);
        let child = command.spawn().map_err(|source| HoldError::Spawn {
            program: program.clone(),
            what: match source.kind() {
                io::ErrorKind::NotFound => {
                    "there is no such program (or its interpreter is missing)"
                }
                io::ErrorKind::PermissionDenied => "it may not be executed",
                _ => "the system refused",
            },
            source,
        })?;
        Self::of(child)
    }

    fn of(mut child: Child) -> Result<Self, HoldError> {
        let pid = child.id().cast_signed();
        let id = proc::identify(pid).ok_or_else(|| HoldError::System {
            what: "read the birth time of the agent",
            source: io::ErrorKind::NotFound.into(),
        })?;
        let stdin = child.stdin.take().map(OwnedFd::from).map(pipe).transpose()?;
        let stdout = child.stdout.take().map(OwnedFd::from).map(pipe).transpose()?;
        let stderr = child.stderr.take().map(OwnedFd::from).map(pipe).transpose()?;
        Ok(Self { id, stdin, stdout, stderr, exit: None })
    }

    /// Looks whether the first process has ended; the news is told once.
    pub(super) fn check_exit(&mut self) -> bool {
        if self.exit.is_some() {
            return false;
        }
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        self.exit = match waitid(Id::Pid(self.pid()), flags) {
            Ok(WaitStatus::Exited(_, code)) => Some(Exit::Code(code)),
            Ok(WaitStatus::Signaled(_, signal, _)) => Some(Exit::Signal(signal as i32)),
            _ => None,
        };
        self.exit.is_some()
    }

    /// Signals the whole group.
    pub(super) fn signal_group(&self, signal: Signal) {
        // The only failure is a group without living members.
        let _ = killpg(self.pid(), signal);
    }

    /// Forgets the first process, once its group is proven empty.
    pub(super) fn reap(&mut self) {
        self.check_exit();
        let _ = waitid(Id::Pid(self.pid()), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
    }

    const fn pid(&self) -> Pid {
        Pid::from_raw(self.id.pid)
    }
}

/// The holder never waits on a pipe, only in `poll`. The agent's own ends stay as they are.
fn pipe(fd: OwnedFd) -> Result<File, HoldError> {
    fcntl(fd.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
        .map_err(on_system("set up a pipe of the agent"))?;
    Ok(fd.into())
}

#[expect(
    unsafe_code,
    reason = "the kernel takes this setting only from the child itself, and only \
    `pre_exec` runs there"
)]
fn set_up_child(command: &mut Command) {
    let holder = getpid();
    // SAFETY: the closure runs between fork and exec. It makes three system calls and
    // allocates nothing, so it is safe whatever state the fork has copied.
    unsafe {
        command.pre_exec(move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // The holder reads its signals from a descriptor and blocks them for that. The agent
            // must get its own.
            SigSet::empty().thread_set_mask()?;
            // A holder that died before the call above would never be noticed.
            if getppid() != holder {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
}
