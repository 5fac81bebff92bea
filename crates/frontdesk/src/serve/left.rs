//! Ending all that is left of instances in a home, whoever started them: what a start cannot carry on,
//! and what `stop --all` is for.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use frontdesk_core::hold::ProcessId;
use frontdesk_core::limits::Limits;
use frontdesk_core::sweep::strays;

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
    if !paths.run.is_dir() {
        return Ok(AllEnded { strays: find_strays(paths)?, ..AllEnded::default() });
    }
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

fn names(paths: &Paths) -> anyhow::Result<std::collections::BTreeSet<String>> {
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
    let names = names(paths)?;
    let ends: Vec<_> = names
        .into_iter()
        .filter(|name| !carried.contains(name))
        .map(|name| {
            let run_dir = paths.instances().join(&name);
            let spool = paths.spools().join(&name);
            tokio::spawn(async move { (proc::end_recorded(&run_dir, term).await, run_dir, spool) })
        })
        .collect();
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
