//! Processes kept on one core, so that the time of a message back and forth is that of the work on it,
//! and not of a core that is asleep and has to wake.

use anyhow::Result;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Threads on one core; where they were before is theirs again when this is dropped.
pub(crate) struct OneCore(Vec<(Pid, CpuSet)>);

impl OneCore {
    /// Keeps the calling thread and all threads of `processes` on the first core that is theirs.
    pub(crate) fn of(processes: &[u32]) -> Result<Self> {
        let before = sched_getaffinity(Pid::this())?;
        let first = (0..CpuSet::count()).find(|cpu| before.is_set(*cpu).unwrap_or(false));
        let mut one = CpuSet::new();
        one.set(first.unwrap_or(0))?;
        let mut kept = Self(vec![(Pid::from_raw(0), before)]);
        for process in processes {
            for thread in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
                let Ok(number) = thread.file_name().to_string_lossy().parse() else { continue };
                let thread = Pid::from_raw(number);
                kept.0.push((thread, sched_getaffinity(thread)?));
            }
        }
        for (thread, _) in &kept.0 {
            sched_setaffinity(*thread, &one)?;
        }
        Ok(kept)
    }
}

impl Drop for OneCore {
    fn drop(&mut self) {
        for (thread, before) in &self.0 {
            // One that has ended meanwhile needs nothing.
            let _ = sched_setaffinity(*thread, before);
        }
    }
}
