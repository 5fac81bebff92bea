//! `frontdesk doctor`: whether agents, home and daemon are fit for work, and what to do if not.

use std::path::Path;
use std::process::{Command, Stdio};

use frontdesk_core::sweep::Holder;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::agents::List;
use super::client::{CALL, CALL_AGENT, Client, ClientError};
use super::out::{BAD, BOLD, DIM, GOOD, WANTED};
use super::table::{fixed, flexible, lay_out};
use super::wire::{self, Agent, Check, Info};
use super::{Exit, Failure, Shell, damage, stop, text, time};
use crate::agent::proc;
use crate::config::{self, AgentConfig, Config};
use crate::paths::Paths;
use crate::serve;

/// Longest path a unix socket may have on Linux, in bytes. Instances' sockets lie deeper than the
/// daemon's and need the difference.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// What an instance's socket adds to the run folder: `instances/ID/sock` and its slash.
const INSTANCE_PATH_BYTES: usize = "/instances//sock".len() + 36;

/// Time for a helper program to answer.
const HELPER_MS_MAX: u64 = 2_000;

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without a daemon it says which agents' programs are on PATH and checks the rest.\n\n\
                  Example:\n  frontdesk doctor\n  frontdesk doctor --repair 01a22bb6-2da2-7132-b868-40a3a5d1f511"
)]
pub(crate) struct Args {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// Write damaged journals anew, all or the one of this key; the originals are kept. No daemon
    /// may run
    #[arg(long, value_name = "KEY", num_args = 0..=1, default_missing_value = "")]
    pub(crate) repair: Option<String>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(super) about: &'static str,
    pub(super) verdict: Verdict,
    pub(super) says: String,
}

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Good,
    Warning,
    Bad,
    Unknown,
}

pub(super) fn finding(about: &'static str, verdict: Verdict, says: impl Into<String>) -> Finding {
    Finding { about, verdict, says: says.into() }
}

/// Checks everything.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    if let Some(key) = &args.repair {
        return damage::repair(key, shell, args.json);
    }
    let mut findings = vec![home(&shell.paths.data), socket_length(&shell.paths.run)];
    let mut may_run = true;
    let (info, checks) = match shell.connect() {
        Ok(mut client) => {
            let info: Info = client.call("_frontdesk/info", &json!({}), CALL)?.read()?;
            let list: List = client.call("_frontdesk/agents", &json!({}), CALL)?.read()?;
            let checks = check_all(&mut client, &list.read(), shell)?;
            (Some(info), checks)
        }
        Err(Failure::Client(ClientError::NoDaemon(_))) => {
            may_run = false;
            (None, configured(shell, &mut findings)?)
        }
        Err(failure) => {
            findings.push(finding("daemon", Verdict::Bad, failure.to_string()));
            (None, configured(shell, &mut findings)?)
        }
    };
    findings.push(daemon(info.as_ref(), shell));
    if let Some(info) = &info {
        findings.extend(unit(info.pid));
    }
    findings.extend(lingering());
    findings.extend(leftovers(&shell.paths, info.is_none() && !may_run));
    let stored = damage::look(shell, may_run);
    findings.extend(stored.findings);
    if args.json {
        let raw: Vec<&RawValue> = checks.iter().map(|(raw, _)| raw.as_ref()).collect();
        let document = serde_json::to_string(
            &json!({ "agents": raw, "findings": findings, "damaged": stored.damaged }),
        );
        shell.out.json(&document.map_err(anyhow::Error::from)?)?;
    } else {
        show_checks(&checks, shell)?;
        shell.out.line("")?;
        for finding in &findings {
            show_finding(finding, shell)?;
        }
    }
    let bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    let broken =
        info.is_some() && checks.iter().any(|(_, check)| check.can_be_asked() && !check.starts);
    Ok(if bad || broken { Exit::Failed } else { Exit::Done })
}

/// Lets the daemon start each agent that was found, one after the other, so that the times told
/// are not each other's.
pub(crate) fn check_all(
    client: &mut Client,
    agents: &[Agent],
    shell: &mut Shell,
) -> Result<Vec<(Box<RawValue>, Check)>, Failure> {
    let mut checks = Vec::new();
    for (index, agent) in agents.iter().enumerate() {
        let name = text::line(&agent.name);
        let step = format!("checking {name} ({} of {})", index + 1, agents.len());
        shell.out.progress(&step);
        let answer = client.call("_frontdesk/check", &json!({ "agent": agent.name }), CALL_AGENT);
        checks.push(match answer {
            Ok(answer) => {
                let check: Check = answer.read()?;
                (
                    RawValue::from_string(answer.raw().to_owned()).map_err(anyhow::Error::from)?,
                    check,
                )
            }
            // One agent that cannot be checked must not hide the others.
            Err(error @ (ClientError::Rpc(_) | ClientError::Timeout { .. })) => {
                local_check(&agent.name, agent.found.clone(), Some(error.to_string()))?
            }
            Err(error) => {
                shell.out.progress("");
                return Err(error.into());
            }
        });
    }
    shell.out.progress("");
    Ok(checks)
}

fn local_check(
    name: &str,
    found: Option<String>,
    error: Option<String>,
) -> Result<(Box<RawValue>, Check), Failure> {
    let document = json!({ "agent": name, "found": found, "starts": false, "error": error });
    let raw = RawValue::from_string(document.to_string()).map_err(anyhow::Error::from)?;
    Ok((raw, Check { agent: name.to_owned(), found, error, ..Check::default() }))
}

/// Without a daemon: the agents of the configuration and where their programs are. Nothing is
/// started, because only a daemon's holders may start agents.
fn configured(
    shell: &Shell,
    findings: &mut Vec<Finding>,
) -> Result<Vec<(Box<RawValue>, Check)>, Failure> {
    let path = &shell.paths.config;
    let read = Config::load(path, config::find_program, &shell.program);
    let (config, warnings) = match read {
        Ok(read) => read,
        Err(error) => {
            findings.push(finding("config", Verdict::Bad, error.to_string()));
            return Ok(Vec::new());
        }
    };
    if warnings.is_empty() {
        let says = if path.exists() { "" } else { " (not there, and not needed)" };
        findings.push(finding("config", Verdict::Good, format!("{}{says}", path.display())));
    }
    for warning in warnings {
        findings.push(finding("config", Verdict::Warning, warning.to_string()));
    }
    let check = |agent: &AgentConfig| {
        let program = agent.command.first().and_then(|program| config::find_program(program));
        let found = program.map(|path| path.display().to_string());
        unasked(agent, found)
    };
    config.agents.iter().map(check).collect()
}

/// An agent that nobody started: whether it starts is not known, so nothing is said of it.
fn unasked(agent: &AgentConfig, found: Option<String>) -> Result<(Box<RawValue>, Check), Failure> {
    let urls: Vec<String> = agent.urls.iter().map(|url| config::without_secrets(url)).collect();
    let mut document = json!({ "agent": agent.name, "found": found });
    if !urls.is_empty() {
        document["urls"] = urls.iter().map(|url| json!({ "url": url })).collect();
    }
    let raw = RawValue::from_string(document.to_string()).map_err(anyhow::Error::from)?;
    let urls = urls.into_iter().map(|url| wire::Url { url, ..wire::Url::default() }).collect();
    Ok((raw, Check { agent: agent.name.clone(), found, urls, ..Check::default() }))
}

/// Shows checks of agents as a table, errors below it.
pub(crate) fn show_checks(
    checks: &[(Box<RawValue>, Check)],
    shell: &mut Shell,
) -> Result<(), Failure> {
    let columns = [
        fixed("AGENT"),
        fixed("FOUND"),
        fixed("VERSION"),
        fixed("STARTS"),
        fixed("INITIALIZE"),
        flexible("OFFERS"),
    ];
    let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0} ms"));
    let cells: Vec<Vec<String>> = checks
        .iter()
        .map(|(_, check)| {
            let version = check.version.as_deref().map(text::line);
            let started = match check.start_ms {
                Some(start) if check.starts => format!("yes, {start:.0} ms"),
                _ if check.starts => "yes".to_owned(),
                // Neither started nor refused: nobody asked.
                _ if check.error.is_none() => "-".to_owned(),
                _ => "no".to_owned(),
            };
            vec![
                text::line(&check.agent),
                found(check),
                version
                    .or_else(|| wire::info_version(check.agent_info.as_ref()))
                    .unwrap_or_else(|| "-".to_owned()),
                started,
                ms(check.initialize_ms),
                wire::ability_names(check.abilities.as_ref()).join(" "),
            ]
        })
        .collect();
    for (index, line) in lay_out(&columns, &cells, shell.out.width_columns).iter().enumerate() {
        let style = match index.checked_sub(1).and_then(|index| checks.get(index)) {
            None => BOLD,
            Some((_, check)) if check.starts => GOOD,
            Some((_, check)) if check.can_be_asked() && check.error.is_some() => BAD,
            Some(_) => DIM,
        };
        shell.out.styled(style, line)?;
    }
    for (_, check) in checks {
        if let Some(error) = check.error.as_deref().filter(|_| check.can_be_asked()) {
            let words = format!("{}: {}", text::line(&check.agent), text::line(error));
            shell.out.styled(WANTED, &words)?;
        }
        // Where none is up, the error above has them all.
        for url in check.urls.iter().filter(|url| !url.up && check.starts) {
            let words = format!("{}: {}", text::line(&check.agent), text::line(&url.describe()));
            shell.out.styled(WANTED, &words)?;
        }
    }
    Ok(())
}

/// Whether the program was found; of urls, how many are up.
fn found(check: &Check) -> String {
    if check.urls.is_empty() {
        return if check.found.is_some() { "yes" } else { "no" }.to_owned();
    }
    let (up, all) = (check.urls.iter().filter(|url| url.up).count(), check.urls.len());
    if check.starts || check.error.is_some() {
        format!("{up} of {all}")
    } else {
        // Without a daemon nobody has tried.
        format!("{all} url{}", if all == 1 { "" } else { "s" })
    }
}

fn show_finding(finding: &Finding, shell: &mut Shell) -> Result<(), Failure> {
    let (style, word) = match finding.verdict {
        Verdict::Good => (GOOD, "good"),
        Verdict::Warning => (WANTED, "warning"),
        Verdict::Bad => (BAD, "bad"),
        Verdict::Unknown => (DIM, "unknown"),
    };
    let says = text::line(&finding.says);
    Ok(shell.out.styled(style, &format!("{:<8} {:<9} {says}", word, finding.about))?)
}

/// Whether the home's folder exists and can be written.
fn home(data: &Path) -> Finding {
    use nix::unistd::{AccessFlags, access};
    let shown = data.display();
    if !data.exists() {
        return finding("home", Verdict::Good, format!("{shown} (made at the first start)"));
    }
    match access(data, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => finding("home", Verdict::Good, shown.to_string()),
        Err(error) => {
            finding("home", Verdict::Bad, format!("{shown} cannot be written: {}", error.desc()))
        }
    }
}

/// Whether sockets below the run folder have paths that a socket can have.
fn socket_length(run: &Path) -> Finding {
    let bytes = run.as_os_str().len() + INSTANCE_PATH_BYTES;
    let says = format!("{} ({bytes} of {SOCKET_PATH_BYTES_MAX} bytes)", run.display());
    if bytes > SOCKET_PATH_BYTES_MAX {
        let says = format!("{says}: too long for sockets; set FRONTDESK_HOME to a shorter path");
        return finding("sockets", Verdict::Bad, says);
    }
    finding("sockets", Verdict::Good, says)
}

fn daemon(info: Option<&Info>, shell: &Shell) -> Finding {
    let Some(info) = info else {
        let says = "none runs; start one with `frontdesk serve`";
        return finding("daemon", Verdict::Warning, says);
    };
    let now = (shell.now)();
    let says = format!(
        "version {}, pid {}, started {}; {} known sessions, {} loaded, {} agent processes, {} clients",
        info.version,
        info.pid,
        time::ago(info.since.as_deref(), now),
        info.sessions,
        info.active,
        info.instances,
        info.clients,
    );
    let own = env!("CARGO_PKG_VERSION");
    if info.version != own {
        let says = format!("{says}; this program is version {own}: restart the daemon");
        return finding("daemon", Verdict::Warning, says);
    }
    finding("daemon", Verdict::Good, says)
}

/// What runs and no daemon has. What a living daemon finds itself, it sweeps up itself.
fn leftovers(paths: &Paths, is_alone: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let names = proc::instance_names(&paths.instances(), &paths.spools()).unwrap_or_default();
    let waits = |name: &&String| {
        let traces = proc::traces(&paths.instances().join(name), name, false);
        traces.is_ok_and(|traces| traces.holder == Holder::Lives || traces.is_marked)
    };
    let waiting = if is_alone { names.iter().filter(waits).count() } else { 0 };
    if waiting > 0 {
        let says = format!(
            "{} without a daemon: a start goes on with what it can and ends the rest, `frontdesk stop --all` ends all",
            time::plural(i64::try_from(waiting).unwrap_or(i64::MAX), "instance")
        );
        findings.push(finding("left", Verdict::Warning, says));
    }
    if let Ok(strays) = serve::find_strays(paths)
        && let Some(says) = stop::stray_words(&strays)
    {
        findings.push(finding("left", Verdict::Warning, says));
    }
    findings
}

/// Whether systemd would kill the holders together with the daemon.
fn unit(pid: u32) -> Option<Finding> {
    let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let unit = unit_of_cgroup(&cgroup)?;
    let user = cgroup.contains("/user@");
    let mut command = Command::new("systemctl");
    if user {
        command.arg("--user");
    }
    command.args(["show", "--property=KillMode", "--value", "--", &unit]);
    let mode = short_output(&mut command).unwrap_or_default();
    Some(judge_kill_mode(&unit, &mode))
}

/// What a program prints, trimmed; `None` if it fails or takes too long. For a few words only:
/// they have to fit into a pipe.
fn short_output(command: &mut Command) -> Option<String> {
    let (stdin, stderr) = (Stdio::null(), Stdio::null());
    let mut child = command.stdin(stdin).stderr(stderr).stdout(Stdio::piped()).spawn().ok()?;
    if !stop::ends_within(&mut child, HELPER_MS_MAX) {
        let _ = child.kill();
    }
    let output = child.wait_with_output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The service that a process belongs to, if it is one; scopes belong to terminals.
fn unit_of_cgroup(cgroup: &str) -> Option<String> {
    let last = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?.rsplit('/').next()?;
    (last.ends_with(".service") && !last.starts_with("user@")).then(|| last.to_owned())
}

fn judge_kill_mode(unit: &str, mode: &str) -> Finding {
    match mode {
        "process" => finding("systemd", Verdict::Good, format!("{unit} has KillMode=process")),
        "" => finding("systemd", Verdict::Unknown, format!("{unit}: KillMode cannot be read")),
        other => finding(
            "systemd",
            Verdict::Warning,
            format!(
                "{unit} has KillMode={other}, so a restart kills running agents; set KillMode=process"
            ),
        ),
    }
}

/// Whether the user's processes outlive the last log-out.
fn lingering() -> Option<Finding> {
    if !Path::new("/run/systemd/system").is_dir() {
        return None;
    }
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten()?;
    if user.uid.is_root() {
        return None;
    }
    let lingers = Path::new("/var/lib/systemd/linger").join(&user.name).exists();
    Some(if lingers {
        finding("lingering", Verdict::Good, "on: sessions outlive a log-out")
    } else {
        let says = "off: a log-out may end the daemon; `loginctl enable-linger` keeps it";
        finding("lingering", Verdict::Warning, says)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_folder_that_is_too_deep_is_bad() {
        let fits = "x".repeat(SOCKET_PATH_BYTES_MAX - INSTANCE_PATH_BYTES - 1);
        assert_eq!(socket_length(Path::new(&format!("/{fits}"))).verdict, Verdict::Good);
        assert_eq!(socket_length(Path::new(&format!("/{fits}y"))).verdict, Verdict::Bad);
    }

    #[test]
    fn a_home_that_is_not_there_yet_is_good() {
        assert_eq!(home(Path::new("/nonexistent/x")).verdict, Verdict::Good);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(home(folder.path()).verdict, Verdict::Good);
    }

    #[test]
    fn a_helper_that_hangs_or_fails_says_nothing() {
        let run = |program: &str, arg: &str| short_output(Command::new(program).arg(arg));
        assert_eq!(run("echo", " a ").as_deref(), Some("a"));
        assert_eq!(run("sh", "-c"), None);
        assert_eq!(run("/nonexistent", ""), None);
        assert_eq!(run("sleep", "30"), None);
    }

    #[test]
    fn services_are_told_from_scopes() {
        let unit = |text| unit_of_cgroup(text);
        assert_eq!(
            unit("0::/user.slice/user-1.slice/user@1.service/app.slice/frontdesk.service\n"),
            Some("frontdesk.service".to_owned())
        );
        assert_eq!(unit("0::/user.slice/user-1.slice/session-3.scope\n"), None);
        assert_eq!(unit("0::/user.slice/user-1.slice/user@1.service\n"), None);
        assert_eq!(unit("0::/\n"), None);
        assert_eq!(unit("12:cpu:/x.service\n"), None);
    }

    #[test]
    fn only_kill_mode_process_is_good() {
        assert_eq!(judge_kill_mode("a.service", "process").verdict, Verdict::Good);
        assert_eq!(judge_kill_mode("a.service", "control-group").verdict, Verdict::Warning);
        assert_eq!(judge_kill_mode("a.service", "").verdict, Verdict::Unknown);
    }
}
