//! `frontdesk restart`: the next daemon goes on where this one leaves off; nothing is interrupted.

use std::time::Instant;

use serde_json::json;

use super::client::{CALL, ClientError};
use super::stop::wait_until_gone;
use super::wire::Info;
use super::{Exit, Failure, Shell, time};
use crate::agent::proc;
use crate::shim::daemon::connect_or_start;

/// Arguments of `restart`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Agents, running turns and open questions go on. The next daemon is this \
                        program, so an upgrade is: install it, then restart.\n\n\
                        Example:\n  frontdesk restart")]
pub(crate) struct Args {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Ends the daemon without ending anything else and starts the next one.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let mut client = shell.connect()?;
    let before: Info = client.call("_frontdesk/info", &json!({}), CALL)?.read()?;
    let process = i32::try_from(before.pid).ok().and_then(proc::identify);
    let started = Instant::now();
    match client.call("_frontdesk/restart", &json!({}), CALL) {
        Ok(_) | Err(ClientError::Closed) => {}
        Err(error) => return Err(error.into()),
    }
    drop(client);
    wait_until_gone(shell, process.as_ref())?;
    drop(connect_or_start(&shell.paths).map_err(Failure::Other)?);
    let mut client = shell.connect()?;
    let after: Info = client.call("_frontdesk/info", &json!({}), CALL)?.read()?;
    let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    if args.json {
        let done = json!({
            "restarted": {
                "from": before.pid,
                "pid": after.pid,
                "sessions": after.active,
                "instances": after.instances,
                "tookMs": took_ms,
            }
        });
        shell.out.json(&done.to_string())?;
    } else {
        let sessions =
            time::plural(i64::try_from(after.active).unwrap_or(i64::MAX), "loaded session");
        let line =
            format!("restarted pid {} as pid {}: {sessions} carried on", before.pid, after.pid);
        shell.out.line(&line)?;
    }
    Ok(Exit::Done)
}
