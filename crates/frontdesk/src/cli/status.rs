//! `frontdesk status`: whether a session is loaded. The exit code is the answer.

use super::client::CALL;
use super::out::{DIM, GOOD};
use super::rows::One;
use super::wire::{Evidence, Status};
use super::{Exit, Failure, Shell, text, time};

/// A turn that has been without a sign of life for so long is called quiet, in milliseconds.
pub(super) const QUIET_SHOWN_MS: u64 = 10_000;

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 active, 3 inactive, 4 unknown session, 5 could not tell, 6 no daemon.\n\n\
                  Example:\n  frontdesk status 01a22bb6-2da2 && echo loaded"
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) one: One,
}

/// Asks for the status of one session.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let answer = args.one.ask("session/status", CALL, shell)?;
    let status: Status = answer.read()?;
    if args.one.json {
        shell.out.json(answer.raw())?;
    } else {
        show(&status, shell)?;
    }
    Ok(exit(&status))
}

/// The exit code for an answer.
fn exit(status: &Status) -> Exit {
    if status.is_active() {
        Exit::Done
    } else if status.evidence().source.as_deref() == Some("none") {
        Exit::Unsure
    } else {
        Exit::Inactive
    }
}

/// What it is doing. A quiet turn is shown as quiet, not taken for dead.
fn state(evidence: &Evidence) -> Option<String> {
    let state = evidence.state.as_deref()?.replace('_', " ");
    Some(match evidence.quiet_ms {
        Some(quiet) if quiet >= QUIET_SHOWN_MS => {
            format!("{state}, quiet for {}", time::span_ms(quiet))
        }
        _ => state,
    })
}

fn show(status: &Status, shell: &mut Shell) -> Result<(), Failure> {
    let now = (shell.now)();
    let evidence = status.evidence();
    let style = if status.is_active() { GOOD } else { DIM };
    shell.out.styled(style, &text::line(&status.status))?;
    let mut fact = |name: &str, value: Option<String>| match value {
        Some(value) => shell.out.line(&format!("  {name:<9} {}", text::line(&value))),
        None => Ok(()),
    };
    fact("state", state(evidence))?;
    fact("agent", evidence.agent.clone())?;
    fact("owner", evidence.owner.as_ref().map(|owner| owner.describe(now)))?;
    fact(
        "source",
        evidence.source.as_ref().map(|source| {
            let age = evidence.age_ms.map(|age| format!(", {} old", time::span_ms(age)));
            format!("{source}{}", age.unwrap_or_default())
        }),
    )?;
    fact("lease", evidence.lease.clone())?;
    let gone = (evidence.resumable == Some(false))
        .then(|| "no: the agent cannot load it again; `log` shows its history".to_owned());
    fact("resumable", gone)?;
    let at = evidence.loaded_at.join(", ");
    fact("loaded at", Some(at).filter(|at| !at.is_empty()))?;
    fact("unreached", evidence.unreachable.as_ref().map(ToString::to_string))?;
    Ok(())
}
