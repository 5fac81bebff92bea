//! `frontdesk stop`: ends the daemon and waits until it has ended.

use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::json;

use super::client::{CALL, Client, ClientError};
use super::wire::Info;
use super::{Exit, Failure, Shell, time};

/// How long the daemon may take: its drain time, the agents' end, and some more.
const STOP_MS_MAX: u64 = 60_000;
/// Time between two looks.
const LOOK_MS: u64 = 20;

/// Arguments of `stop`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk stop --all")]
pub(crate) struct Args {
    /// End holders too that no daemon claims
    #[arg(long)]
    all: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Stops the daemon.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let mut client = shell.connect()?;
    let info: Info = client.call("_frontdesk/info", &json!({}), CALL)?.read()?;
    let process = Process::of(info.pid);
    let started = Instant::now();
    request(&mut client, args.all)?;
    wait_until_gone(shell, &process)?;
    let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    if args.json {
        let ended = json!({
            "stopped": {
                "pid": info.pid,
                "sessions": info.active,
                "instances": info.instances,
                "tookMs": took_ms,
            }
        });
        shell.out.json(&ended.to_string())?;
    } else {
        let count =
            |number: u64, word| time::plural(i64::try_from(number).unwrap_or(i64::MAX), word);
        let sessions = count(info.active, "loaded session");
        let instances = count(info.instances, "agent process").replace("processs", "processes");
        let ended = format!("stopped pid {}: {sessions}, {instances} ended", info.pid);
        shell.out.line(&ended)?;
    }
    Ok(Exit::Done)
}

/// Asks the daemon to stop. A daemon that is gone before it answered has stopped as well.
pub(crate) fn request(client: &mut Client, all: bool) -> Result<(), Failure> {
    let params = if all { json!({ "all": true }) } else { json!({}) };
    match client.call("_frontdesk/stop", &params, CALL) {
        Ok(_) | Err(ClientError::Closed) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn wait_until_gone(shell: &Shell, process: &Process) -> Result<(), Failure> {
    let socket = shell.paths.socket();
    let deadline = Instant::now() + Duration::from_millis(STOP_MS_MAX);
    while socket.exists() || process.runs() {
        if Instant::now() >= deadline {
            return Err(Failure::Other(anyhow::anyhow!(
                "failed to see the daemon end within {} s; its process is {}",
                STOP_MS_MAX / 1_000,
                process.pid
            )));
        }
        std::thread::sleep(Duration::from_millis(LOOK_MS));
    }
    Ok(())
}

/// Waits for a child's end, at most this long; whether it has ended.
pub(crate) fn ends_within(child: &mut Child, limit_ms: u64) -> bool {
    let deadline = Instant::now() + Duration::from_millis(limit_ms);
    loop {
        match child.try_wait() {
            Ok(Some(_)) | Err(_) => return true,
            Ok(None) if Instant::now() >= deadline => return false,
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// A process and when it was born, so that another one with its number is not taken for it.
pub(crate) struct Process {
    pid: u32,
    birth: Option<String>,
}

impl Process {
    /// The process that has this number now.
    pub(crate) fn of(pid: u32) -> Self {
        Self { pid, birth: look(pid).map(|(_, birth)| birth) }
    }

    /// Whether it still runs. A process that waits to be reaped does not.
    pub(crate) fn runs(&self) -> bool {
        look(self.pid).is_some_and(|(state, birth)| {
            self.birth.as_ref() == Some(&birth) && !matches!(state, 'Z' | 'X')
        })
    }
}

/// State and start time of a process, from `/proc/PID/stat`.
fn look(pid: u32) -> Option<(char, String)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold spaces and parentheses itself.
    let mut rest = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = rest.next()?.chars().next()?;
    // Field 22 of the line; the state is field 3.
    Some((state, rest.nth(18)?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_until_it_has_ended() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = Process::of(child.id());
        assert!(process.runs());
        drop(child.stdin.take());
        while process.runs() {
            std::thread::sleep(Duration::from_millis(5));
        }
        child.wait().unwrap();
        assert!(!process.runs());
    }

    #[test]
    fn another_process_with_the_number_is_not_the_same() {
        let own = std::process::id();
        assert!(Process::of(own).runs());
        let stranger = Process { pid: own, birth: Some("0".to_owned()) };
        assert!(!stranger.runs());
    }
}
