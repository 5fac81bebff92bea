//! Time, CPU time and memory of processes.

use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

/// CPU time that a process has used, ended threads included; zero if it is gone.
pub(crate) fn cpu(pid: u32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()));
    clock.and_then(nix::time::ClockId::now).map(Duration::from).unwrap_or_default()
}

/// Memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    /// `VmRSS`: resident now, shared file pages included.
    pub(crate) resident: f64,
    /// `RssAnon`: of it what belongs to the process alone.
    pub(crate) own: f64,
    /// `Pss`: resident, each page divided by the processes that share it.
    pub(crate) share: f64,
    /// `VmHWM`: the most that was ever resident.
    pub(crate) most: f64,
}

/// Reads `/proc/PID/status` and `/proc/PID/smaps_rollup`.
pub(crate) fn memory(pid: u32) -> Result<Memory> {
    let read = |file: &str| {
        let path = format!("/proc/{pid}/{file}");
        std::fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))
    };
    let text = read("status")? + &read("smaps_rollup")?;
    let field = |name: &str| {
        let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = values.next()?.trim().trim_end_matches(" kB");
        value.parse::<f64>().ok()
    };
    let field = |name| field(name).with_context(|| format!("failed to find {name} of {pid}"));
    Ok(Memory {
        resident: field("VmRSS")?,
        own: field("RssAnon")?,
        share: field("Pss")?,
        most: field("VmHWM")?,
    })
}

/// Least, median and greatest of several rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    /// The least.
    pub(crate) min: f64,
    /// The median.
    pub(crate) median: f64,
    /// The greatest.
    pub(crate) max: f64,
}

impl Spread {
    /// Of one value.
    pub(crate) const fn one(value: f64) -> Self {
        Self { min: value, median: value, max: value }
    }

    /// Of at least one value.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| quantile(&values, share);
        Self { min: at(0.0), median: at(0.5), max: at(1.0) }
    }
}

/// The value at a share of sorted values; 0 without any.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a position in a list of a few thousand values"
    )]
    let at = (share * last as f64).round() as usize;
    sorted.get(at).copied().unwrap_or_default()
}

/// The value at a share of unsorted values, in microseconds.
pub(crate) fn micros_at(times: &[Duration], share: f64) -> f64 {
    let mut values: Vec<f64> = times.iter().map(|time| micros(*time)).collect();
    values.sort_by(f64::total_cmp);
    quantile(&values, share)
}

/// A time in microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A count as a number to divide by.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
pub(crate) const fn number(count: usize) -> f64 {
    count as f64
}
