//! `frontdesk stop`: ends the daemon and waits until it has ended.

use std::collections::BTreeMap;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{CALL, Client, ClientError};
use super::out::WANTED;
use super::wire::Info;
use super::{Exit, Failure, Shell, time};
use crate::agent::proc::{self, ProcessId};
use crate::serve::{self, AllEnded};

/// How long the daemon may take: its drain time, the agents' end, and some more.
const STOP_MS_MAX: u64 = 60_000;
/// Time between two looks.
const LOOK_MS: u64 = 20;

/// Arguments of `stop`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "With --all nothing of this home runs afterwards, also where its daemon was killed; \
                        turns that ran are closed as failed by the next start.\n\n\
                        Example:\n  frontdesk stop --all"
)]
pub(crate) struct Args {
    /// End holders and agents too that no daemon has, also when none runs
    #[arg(long)]
    all: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Stops the daemon; with `--all` also what no daemon has.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let mut client = match shell.connect() {
        Ok(client) => client,
        Err(Failure::Client(ClientError::NoDaemon(_))) if args.all => {
            let ended = serve::end_all(&shell.paths)?;
            return told_all(args, shell, &ended, None);
        }
        Err(failure) => return Err(failure),
    };
    let info: Info = client.call("_frontdesk/info", &json!({}), CALL)?.read()?;
    let process = i32::try_from(info.pid).ok().and_then(proc::identify);
    let started = Instant::now();
    request(&mut client, args.all)?;
    wait_until_gone(shell, process.as_ref())?;
    let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let stopped = Stopped { info, took_ms };
    if args.all {
        // The daemon has done it; if it died over it, this does, and else it is the proof.
        let ended = serve::end_all(&shell.paths)?;
        return told_all(args, shell, &ended, Some(&stopped));
    }
    if args.json {
        shell.out.json(&json!({ "stopped": stopped.document() }).to_string())?;
    } else {
        shell.out.line(&stopped.words())?;
    }
    Ok(Exit::Done)
}

/// A daemon that was stopped.
struct Stopped {
    info: Info,
    took_ms: u64,
}

impl Stopped {
    fn document(&self) -> Value {
        json!({
            "pid": self.info.pid,
            "sessions": self.info.active,
            "instances": self.info.instances,
            "tookMs": self.took_ms,
        })
    }

    fn words(&self) -> String {
        let sessions = counted(self.info.active, "loaded session");
        let instances = processes(self.info.instances);
        format!("stopped pid {}: {sessions}, {instances} ended", self.info.pid)
    }
}

fn counted(number: u64, word: &str) -> String {
    time::plural(i64::try_from(number).unwrap_or(i64::MAX), word)
}

fn processes(number: u64) -> String {
    format!("{number} agent process{}", if number == 1 { "" } else { "es" })
}

/// Says what else was ended, and what was left alone and why.
fn told_all(
    args: &Args,
    shell: &mut Shell,
    ended: &AllEnded,
    stopped: Option<&Stopped>,
) -> Result<Exit, Failure> {
    if args.json {
        let strays: Vec<Value> = ended
            .strays
            .iter()
            .map(|(mark, of_mark)| {
                let pids: Vec<i32> = of_mark.iter().map(|process| process.pid).collect();
                json!({ "instance": mark, "pids": pids })
            })
            .collect();
        let document = json!({
            "stopped": stopped.map(Stopped::document), "ended": ended.instances, "strays": strays,
        });
        shell.out.json(&document.to_string())?;
        return Ok(Exit::Done);
    }
    let others = processes(u64::try_from(ended.instances).unwrap_or(u64::MAX));
    match stopped {
        Some(stopped) if ended.instances == 0 => shell.out.line(&stopped.words())?,
        Some(stopped) => {
            shell.out.line(&format!("{}; and {others} that no daemon had", stopped.words()))?;
        }
        None => shell.out.line(&format!("no daemon ran; {others} that no daemon had ended"))?,
    }
    if let Some(words) = stray_words(&ended.strays) {
        shell.out.remark(WANTED, &words);
    }
    Ok(Exit::Done)
}

/// What marked processes are that nothing here accounts for, and what to do; `None` for none.
pub(super) fn stray_words(strays: &BTreeMap<String, Vec<ProcessId>>) -> Option<String> {
    let pids: Vec<String> = strays.values().flatten().map(|it| it.pid.to_string()).collect();
    (!pids.is_empty()).then(|| {
        format!(
            "processes of agents that this home has no record of are left alone: pid {}; \
             if no other Frontdesk had them, end them with `kill {}`",
            pids.join(", "),
            pids.join(" ")
        )
    })
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
            let what = process.map_or_else(String::new, |it| {
                let pid = it.pid;
                format!(
                    ", pid {pid}; `kill -KILL {pid}` ends it, and then `frontdesk stop --all` what it leaves"
                )
            });
            return Err(Failure::Other(anyhow::anyhow!(
                "failed to see the daemon end within {} s{what}",
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
