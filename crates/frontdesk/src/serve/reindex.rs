//! `frontdesk reindex` on a home without a daemon.

use anyhow::Context as _;

use super::start;
use crate::index::{Counts, Index, Rebuild};
use crate::log::Touched;
use crate::paths::Paths;

/// Journals between two words on how far it is.
const STEP_JOURNALS: usize = 64;

/// Makes the index of a home anew while no daemon runs there, and none can start; `tell` hears how
/// far it is. Waits for the disk.
///
/// # Errors
/// If a daemon runs there, or the disk refuses.
pub fn reindex(paths: &Paths, mut tell: impl FnMut(Counts)) -> anyhow::Result<Counts> {
    start::make_folders(paths)?;
    let _lock = start::lock_home(paths)?;
    let index = Index::new(&paths.data, &paths.sessions());
    let (touched, left) = Touched::open(&paths.data);
    let mut rebuild = Rebuild::begin(&index).context("failed to begin a new index")?;
    // What a crash left open is for the daemon to close: it is proven there that nothing runs.
    while rebuild.step(STEP_JOURNALS, &mut |_, _, _| false)? {
        tell(rebuild.counts());
    }
    let counts = rebuild.counts();
    let mut made = rebuild.finish();
    let step = left.step.unwrap_or_default().saturating_add(1);
    made.set_step(step)?;
    let writer = index.replace(made, None).context("failed to put the new index in place")?;
    index.withdraw();
    writer.close()?;
    // The next start looks at the same journals as without this.
    touched.cut(step, |_| true).context("failed to write touched.log")?;
    Ok(counts)
}
