//! Ending all that is left of instances in a home, whoever started them: what a start cannot carry on,
//! and what `stop --all` is for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use frontdesk_core::hold::ProcessId;
use frontdesk_core::limits::Limits;
use frontdesk_core::sweep::{Holder, Traces, Verdict, strays, verdict};

use super::start;
use crate::agent::proc::{self, How};
use crate::paths::Paths;

/// What was ended, and what was left.
#[derive(Clone, Debug, Default)]
pub struct AllEnded {
    /// Instances of which something still ran.
    pub instances: usize,
    /// Marked processes that nothing in this home accounts for, by mark. They are not ended.
    pub strays: BTreeMap<String, Vec<ProcessId>>,
}

/// Ends all instances of a home that has no daemon, and removes its socket. While it runs no daemon
/// can start there.
///
/// # Errors
/// If a daemon runs, or the end of an instance is not proven.
pub fn end_all(paths: &Paths) -> anyhow::Result<AllEnded> {
    if !paths.run.is_dir() && !paths.spools().is_dir() {
        return Ok(AllEnded { strays: find_strays(paths)?, ..AllEnded::default() });
    }
    // `run` is cleared at a log-out, and what ran may run on: the spools name it.
    start::make_folders(paths)?;
    let mut home = start::lock_home(paths)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    let instances = runtime.block_on(end_holders(paths, &Limits::default(), &[]))?;
    match fs::remove_file(paths.socket()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error)
                .with_context(|| format!("failed to remove {}", paths.socket().display()));
        }
        _ => {}
    }
    // Nobody shall take this process for a daemon.
    let _ = home.set_len(0).and_then(|()| home.flush());
    Ok(AllEnded { instances, strays: find_strays(paths)? })
}

/// Marked processes that nothing in this home accounts for.
///
/// # Errors
/// If folders or processes cannot be listed.
pub fn find_strays(paths: &Paths) -> anyhow::Result<BTreeMap<String, Vec<ProcessId>>> {
    let names = names(paths)?;
    let marked = proc::all_marked().context("failed to look for processes of instances")?;
    Ok(strays(marked, &names))
}

fn names(paths: &Paths) -> anyhow::Result<BTreeSet<String>> {
    proc::instance_names(&paths.instances(), &paths.spools())
        .with_context(|| format!("failed to read {}", paths.instances().display()))
}

/// Ends every instance of which the home has a folder, but for the `carried` ones, and removes what it
/// leaves. Gives of how many something still ran.
///
/// # Errors
/// If the end of one is not proven.
pub(super) async fn end_holders(
    paths: &Paths,
    limits: &Limits,
    carried: &[String],
) -> anyhow::Result<usize> {
    let term = Duration::from_millis(limits.stop_term_ms);
    let mut ends = Vec::new();
    for name in to_end(paths, carried)? {
        let run_dir = paths.instances().join(&name);
        let spool = paths.spools().join(&name);
        ends.push(tokio::spawn(async move {
            (proc::end_recorded(&run_dir, term).await, run_dir, spool)
        }));
    }
    let mut ended = 0;
    let mut failed = None;
    for end in ends {
        match end.await.context("failed to end a holder")? {
            (Ok(end), run_dir, spool) => {
                tracing::info!(path = %run_dir.display(), ?end, "ended a holder of an earlier daemon");
                ended += usize::from(matches!(end.how, How::Asked | How::Signalled));
                remove_spool(&spool);
            }
            // The others are ended all the same.
            (Err(error), run_dir, _) => failed = failed.or(Some((error, run_dir))),
        }
    }
    match failed {
        None => Ok(ended),
        Some((error, run_dir)) => Err(unproven(&error, &run_dir)),
    }
}

/// The instances that are not carried and of which more than a spool is left; such spools are removed.
fn to_end(paths: &Paths, carried: &[String]) -> anyhow::Result<Vec<String>> {
    let names = names(paths)?.into_iter().filter(|name| !carried.contains(name));
    let (with_run, alone): (Vec<_>, Vec<_>) =
        names.partition(|name| paths.instances().join(name).is_dir());
    if alone.is_empty() {
        return Ok(with_run);
    }
    // One look at all processes, however many spools a long life of crashes has left.
    let marked = proc::all_marked().context("failed to look for processes of instances")?;
    let marked: BTreeSet<String> = marked.into_iter().map(|it| it.mark).collect();
    let mut all = with_run;
    for name in alone {
        let is_marked = marked.contains(&name);
        let (is_known, has_run, holder) = (false, false, Holder::Unrecorded);
        match verdict(&Traces { is_known, has_run, holder, is_marked }) {
            Verdict::Leave => {}
            Verdict::Forget => remove_spool(&paths.spools().join(&name)),
            Verdict::End(_) => all.push(name),
        }
    }
    Ok(all)
}

fn unproven(error: &proc::EndError, run_dir: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "failed to end the agent of an earlier daemon ({}): {error}; end it by hand and start again",
        run_dir.display()
    )
}

/// Of a dead instance nothing is read any more: what it said and no daemon took is not known to be
/// whole.
fn remove_spool(spool: &PathBuf) {
    if let Err(error) = fs::remove_dir_all(spool)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %spool.display(), %error, "failed to remove an instance's spool");
    }
}
