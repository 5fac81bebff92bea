//! Processes as the kernel tells of them: who is who, who belongs to an instance, and the end of
//! what an earlier daemon left behind.
//!
//! The holder uses the first half (synchronous, a few system calls each); a daemon's start uses
//! [`end_recorded`]. Nothing here ever signals a process by name, or one whose birth time is not
//! the recorded one.

mod ended;
mod left;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use nix::sys::signal::{self, Signal};
use nix::unistd::{Pid, getuid};

pub use ended::{EndError, Ended, How, end_recorded, recorded_holder};
pub use frontdesk_core::hold::{MARK, ProcessId};
pub use left::{all_marked, instance_names, traces};

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// State letter; `Z` and `X` are the dead.
    pub state: u8,
    /// Process group.
    pub group: i32,
    /// Process session.
    pub session: i32,
    /// Start time, in the kernel's clock ticks since boot.
    pub birth: u64,
}

impl Stat {
    /// Whether the process is over, if not yet forgotten.
    #[must_use]
    pub const fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// Reads `/proc/PID/stat`; `None` when there is no such process.
#[must_use]
pub fn stat(pid: i32) -> Option<Stat> {
    // The line is shorter than this: its name has at most 64 bytes, its numbers at most 20 each.
    let mut bytes = [0; 1536];
    let length = read_some(&format!("/proc/{pid}/stat"), &mut bytes).ok()?;
    parse_stat(&bytes[..length])
}

/// The name may hold anything, also spaces and `)`, so the fields begin behind the last `)`.
fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let name_end = bytes.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(&bytes[name_end + 1..]).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let group = fields.nth(1)?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let birth = fields.nth(15)?.parse().ok()?;
    Some(Stat { state, group, session, birth })
}

fn read_some(path: &str, bytes: &mut [u8]) -> io::Result<usize> {
    let mut file = File::open(path)?;
    let mut length = 0;
    while length < bytes.len() {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// When a living process started, in clock ticks since boot.
#[must_use]
pub fn birth_of(pid: i32) -> Option<u64> {
    stat(pid).filter(|stat| !stat.is_dead()).map(|stat| stat.birth)
}

/// The process as it is now, dead or alive, with its birth time.
#[must_use]
pub fn identify(pid: i32) -> Option<ProcessId> {
    stat(pid).map(|stat| ProcessId { pid, birth: stat.birth })
}

/// Whether that very process still runs.
#[must_use]
pub fn alive(process: &ProcessId) -> bool {
    birth_of(process.pid) == Some(process.birth)
}

/// The kernel's name for this boot. Process numbers of another boot mean nothing.
///
/// # Errors
/// If the kernel does not tell.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Signals that very process; `false` when it is not there any more.
#[must_use]
pub fn signal_process(process: &ProcessId, what: Signal) -> bool {
    alive(process) && signal::kill(Pid::from_raw(process.pid), what).is_ok()
}

/// Processes of this user that carry `mark` (an instance id) in their environment.
///
/// # Errors
/// If the list of processes cannot be read.
pub fn marked(mark: &str) -> io::Result<Vec<ProcessId>> {
    survey(&Kin { group: None, session: None, mark, since: 0 })
}

/// Living processes in a process group.
///
/// # Errors
/// If the list of processes cannot be read.
pub fn group_members(group: i32) -> io::Result<Vec<ProcessId>> {
    let mut members = Vec::new();
    each_process(|pid| {
        if let Some(stat) = stat(pid).filter(|stat| stat.group == group && !stat.is_dead()) {
            members.push(ProcessId { pid, birth: stat.birth });
        }
    })?;
    Ok(members)
}

/// What makes a process one of an instance.
#[derive(Clone, Copy, Debug)]
pub struct Kin<'a> {
    /// Its process group, if that is known.
    pub group: Option<i32>,
    /// The process session that group must be in, if that is known.
    pub session: Option<i32>,
    /// The mark, as the value of [`MARK`].
    pub mark: &'a str,
    /// Birth time of the first process: nothing older can belong to it.
    pub since: u64,
}

/// Living processes of an instance: those of its group, and those of this user with its mark.
///
/// The calling process is never among them.
///
/// # Errors
/// If the list of processes cannot be read.
pub fn survey(kin: &Kin<'_>) -> io::Result<Vec<ProcessId>> {
    let (own_pid, own_uid) = (std::process::id().cast_signed(), getuid().as_raw());
    let mut found = Vec::new();
    each_process(|pid| {
        let Some(stat) = stat(pid).filter(|stat| !stat.is_dead() && stat.birth >= kin.since) else {
            return;
        };
        if pid == own_pid {
            return;
        }
        let in_group = kin.group == Some(stat.group)
            && kin.session.is_none_or(|session| session == stat.session);
        let ours = || fs::metadata(format!("/proc/{pid}")).is_ok_and(|it| it.uid() == own_uid);
        if in_group || (ours() && has_mark(pid, kin.mark)) {
            found.push(ProcessId { pid, birth: stat.birth });
        }
    })?;
    Ok(found)
}

fn each_process(mut each: impl FnMut(i32)) -> io::Result<()> {
    for entry in fs::read_dir("/proc")? {
        // An entry that cannot be read is a process that has just ended.
        if let Ok(entry) = entry
            && let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok())
        {
            each(pid);
        }
    }
    Ok(())
}

fn has_mark(pid: i32, mark: &str) -> bool {
    File::open(format!("/proc/{pid}/environ"))
        .is_ok_and(|file| environment_has(file, MARK, mark).unwrap_or(false))
}

/// Looks for `name=value` in an environment block, in pieces: some hold megabytes.
fn environment_has(mut block: impl Read, name: &str, value: &str) -> io::Result<bool> {
    let wanted = || name.bytes().chain([b'=']).chain(value.bytes()).chain([0]);
    let mut bytes = [0; 4096];
    // What is still wanted of the current entry; `None` once the entry differs.
    let mut left = Some(wanted());
    loop {
        let count = match block.read(&mut bytes) {
            // The last entry may lack its NUL.
            Ok(0) => return Ok(left.is_some_and(|mut left| left.next() == Some(0))),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        for byte in &bytes[..count] {
            let fits = left.as_mut().is_some_and(|left| left.next() == Some(*byte));
            match (*byte, fits) {
                (0, true) => return Ok(true),
                (0, false) => left = Some(wanted()),
                (_, true) => {}
                (_, false) => left = None,
            }
        }
    }
}
