//! The end of a holder that an earlier daemon left behind.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use frontdesk_core::hold::{DaemonDecoder, Hello, ProcessId, ToDaemon, ToHolder};
use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Kin, alive, boot_id, identify, signal_process, survey};
use crate::hold::record::{Record, SOCKET_FILE};

/// Time for a holder to greet, in milliseconds.
const GREET_MS: u64 = 1_000;
/// Time for a holder to end its agent, beyond what it was given between TERM and KILL, in
/// milliseconds.
const MARGIN_MS: u64 = 3_000;
/// Time for killed processes to be gone, in milliseconds.
const KILLED_MS: u64 = 5_000;
/// Pause between two looks at a process, in milliseconds.
const PAUSE_MS: u64 = 5;

/// How an instance's end came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The machine has been started anew since; nothing can be left.
    OtherBoot,
    /// Nothing of it was there any more.
    AlreadyGone,
    /// Its holder did it when asked.
    Asked,
    /// Processes had to be signalled from here.
    Signalled,
}

/// What was found of an instance, and what was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Name of the instance.
    pub instance: String,
    /// The agent's name in the configuration, if the record still tells.
    pub agent: Option<String>,
    /// How the end came about.
    pub how: How,
    /// The processes that were signalled from here.
    pub signalled: Vec<ProcessId>,
}

/// Why the end of an instance is not proven. Its sessions must not be loaded then.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The folder has no name that an instance may have.
    #[error("failed to end what {0} records: it is not the folder of an instance")]
    NoInstance(PathBuf),
    /// Processes cannot be looked at.
    #[error("failed to look for processes of the instance {instance}")]
    Look {
        /// Name of the instance.
        instance: String,
        /// Why.
        source: io::Error,
    },
    /// Processes are left that could not be killed.
    #[error("failed to end the instance {instance}: these processes are left: {left:?}")]
    Left {
        /// Name of the instance.
        instance: String,
        /// The processes.
        left: Vec<i32>,
    },
    /// The folder cannot be removed.
    #[error("failed to remove {path}")]
    Remove {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The holder that a folder below `run/instances` records, if it belongs to this boot.
///
/// # Errors
/// If the record cannot be read, or the kernel does not tell its boot.
pub fn recorded_holder(run_dir: &Path) -> io::Result<Option<ProcessId>> {
    let boot = boot_id()?;
    let record = Record::read(run_dir)?;
    Ok(record.filter(|record| record.boot_id == boot).map(|record| record.holder))
}

/// Ends the instance whose folder below `run/instances` is `run_dir`: asks its holder, else signals
/// holder and agent, proves that nothing is left, and removes the folder. `term` is the time
/// between TERM and KILL. Its spools stay.
///
/// A process is signalled only when its birth time is the recorded one, or when it carries the
/// instance's mark, or when it is in the recorded group and process session.
///
/// # Errors
/// If the end is not proven, or the folder cannot be removed.
pub async fn end_recorded(run_dir: &Path, term: Duration) -> Result<Ended, EndError> {
    let instance = run_dir
        .file_name()
        .and_then(|name| name.to_str())
        .filter(|name| frontdesk_core::ids::is_path_safe(name))
        .ok_or_else(|| EndError::NoInstance(run_dir.to_path_buf()))?
        .to_owned();
    let look = |source| EndError::Look { instance: instance.clone(), source };
    // A damaged record is as good as none: the mark is the folder's name.
    let record = Record::read(run_dir).ok().flatten();
    let agent = record.as_ref().map(|record| record.agent_name.clone());
    let ended = |how, signalled| Ended { instance: instance.clone(), agent, how, signalled };

    let boot = boot_id().map_err(look)?;
    if record.as_ref().is_some_and(|record| record.boot_id != boot) {
        remove(run_dir)?;
        return Ok(ended(How::OtherBoot, Vec::new()));
    }

    let hello = ask(run_dir, term).await;
    let holder = match (&record, &hello) {
        (Some(record), _) => Some(record.holder),
        (None, Some(hello)) => Some(hello.holder),
        (None, None) => None,
    };
    let first = match (&record, &hello) {
        (_, Some(hello)) => Some(hello.agent),
        (Some(record), None) => record.agent,
        (None, None) => None,
    };
    let mut signalled = Vec::new();
    if let Some(holder) = holder {
        end_holder(holder, hello.is_some(), term, &mut signalled).await;
    }
    let kin = Remains {
        first,
        holder,
        mark: instance.clone(),
        since: first.or(holder).map_or(0, |process| process.birth),
    };
    kill_rest(kin, &mut signalled).await?;
    remove(run_dir)?;
    let how = if !signalled.is_empty() {
        How::Signalled
    } else if hello.is_some() {
        How::Asked
    } else {
        How::AlreadyGone
    };
    Ok(ended(how, signalled))
}

fn remove(run_dir: &Path) -> Result<(), EndError> {
    Record::remove(run_dir)
        .map_err(|source| EndError::Remove { path: run_dir.to_path_buf(), source })
}

/// Asks a holder to end its agent and waits until it has, or until it had its time. Gives its
/// greeting, if there was one.
async fn ask(run_dir: &Path, term: Duration) -> Option<Hello> {
    let mut stream = UnixStream::connect(run_dir.join(SOCKET_FILE)).await.ok()?;
    let term_ms = u32::try_from(term.as_millis()).unwrap_or(u32::MAX);
    let mut stop = Vec::new();
    ToHolder::Stop { term_ms }.encode(&mut stop);
    timeout(Duration::from_millis(GREET_MS), stream.write_all(&stop)).await.ok()?.ok()?;
    let mut decoder = DaemonDecoder::default();
    let (mut hello, mut gone) = (None, false);
    let mut bytes = [0; 1024];
    let start = Instant::now();
    while !gone {
        let wait = match hello {
            None => Duration::from_millis(GREET_MS),
            Some(_) => term + Duration::from_millis(MARGIN_MS),
        };
        let Ok(Ok(count @ 1..)) = timeout_at(start + wait, stream.read(&mut bytes)).await else {
            break;
        };
        let decoded = decoder.feed(&bytes[..count], |message| match message {
            ToDaemon::Hello(greeting) => hello = Some(*greeting),
            ToDaemon::Gone => gone = true,
            ToDaemon::Out { .. }
            | ToDaemon::Accepted { .. }
            | ToDaemon::Refused { .. }
            | ToDaemon::InputClosed
            | ToDaemon::AgentExited(_)
            | ToDaemon::Eof { .. }
            | ToDaemon::Claimed { .. }
            | ToDaemon::Held { .. }
            | ToDaemon::ClaimFailed { .. }
            | ToDaemon::Released { .. } => {}
        });
        if decoded.is_err() {
            break;
        }
    }
    hello
}

/// Waits for an asked holder to leave; signals one that was not asked or does not leave.
async fn end_holder(
    holder: ProcessId,
    was_asked: bool,
    term: Duration,
    signalled: &mut Vec<ProcessId>,
) {
    let margin = Duration::from_millis(MARGIN_MS);
    if was_asked && has_left(&holder, Duration::from_millis(GREET_MS)).await {
        return;
    }
    if !was_asked {
        if !signal_process(&holder, Signal::SIGTERM) {
            return;
        }
        signalled.push(holder);
        if has_left(&holder, term + margin).await {
            return;
        }
    }
    if signal_process(&holder, Signal::SIGKILL) {
        signalled.push(holder);
        has_left(&holder, margin).await;
    }
}

async fn has_left(process: &ProcessId, wait: Duration) -> bool {
    let until = Instant::now() + wait;
    while alive(process) {
        if Instant::now() >= until {
            return false;
        }
        sleep(Duration::from_millis(PAUSE_MS)).await;
    }
    true
}

/// What makes a [`Kin`].
#[derive(Clone)]
struct Remains {
    first: Option<ProcessId>,
    holder: Option<ProcessId>,
    mark: String,
    since: u64,
}

impl Remains {
    fn survey(&self) -> io::Result<Vec<ProcessId>> {
        // The kernel gives a number anew only when no group and no session is named by it: then
        // nothing of ours is left in them, and what is there now is somebody else's.
        let is_reused = |it: &ProcessId| identify(it.pid).is_some_and(|now| now.birth != it.birth);
        let reused = self.first.iter().chain(&self.holder).any(is_reused);
        let group = self.first.filter(|_| !reused).map(|first| first.pid);
        let session = self.holder.map(|holder| holder.pid);
        survey(&Kin { group, session, mark: &self.mark, since: self.since })
    }
}

/// Kills what is left of an instance until two looks in a row find nothing.
async fn kill_rest(kin: Remains, signalled: &mut Vec<ProcessId>) -> Result<(), EndError> {
    let until = Instant::now() + Duration::from_millis(KILLED_MS);
    let mut clean_looks = 0;
    loop {
        let remains = kin.clone();
        let looked = tokio::task::spawn_blocking(move || remains.survey())
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        let left =
            looked.map_err(|source| EndError::Look { instance: kin.mark.clone(), source })?;
        if left.is_empty() {
            clean_looks += 1;
            if clean_looks == 2 {
                return Ok(());
            }
            continue;
        }
        clean_looks = 0;
        if Instant::now() >= until {
            let left = left.iter().map(|process| process.pid).collect();
            return Err(EndError::Left { instance: kin.mark, left });
        }
        for process in left {
            if signal_process(&process, Signal::SIGKILL) && !signalled.contains(&process) {
                signalled.push(process);
            }
        }
        sleep(Duration::from_millis(PAUSE_MS)).await;
    }
}
