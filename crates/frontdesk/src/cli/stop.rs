//! `frontdesk stop`: ends the daemon and waits until it has ended.

use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::json;

use super::client::{CALL, Client, ClientError};
use super::wire::Info;
use super::{Exit, Failure, Shell, time};
use crate::agent::proc::{self, ProcessId};

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
    let process = i32::try_from(info.pid).ok().and_then(proc::identify);
    let started = Instant::now();
    request(&mut client, args.all)?;
    wait_until_gone(shell, process.as_ref())?;
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

/// `process` is the daemon with its birth time, so that another one with its number is not taken
/// for it; `None` if it is gone already.
pub(super) fn wait_until_gone(shell: &Shell, process: Option<&ProcessId>) -> Result<(), Failure> {
    let socket = shell.paths.socket();
    let deadline = Instant::now() + Duration::from_millis(STOP_MS_MAX);
    while socket.exists() || process.is_some_and(proc::alive) {
        if Instant::now() >= deadline {
            let whose =
                process.map_or_else(String::new, |it| format!("; its process is {}", it.pid));
            return Err(Failure::Other(anyhow::anyhow!(
                "failed to see the daemon end within {} s{whose}",
                STOP_MS_MAX / 1_000,
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
