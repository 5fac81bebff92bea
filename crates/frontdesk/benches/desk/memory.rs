//! Resident memory: a daemon that nobody uses, live sessions, holders, shims.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::Scale;
use crate::gauge::{Spread, memory, number};
use crate::report::{Report, Row};
use crate::stage::{self, Desk, Place};

/// How long things settle before they are weighed.
const SETTLE: Duration = Duration::from_millis(1500);
/// Instances whose holders are weighed.
const HOLDERS: usize = 4;

/// A daemon that is started first and weighed last.
pub(crate) struct Idle {
    desk: Desk,
    since: Instant,
    // Behind the daemon, which lives in it.
    _place: Place,
}

impl Idle {
    /// Starts it.
    pub(crate) fn start() -> Result<Self> {
        let place = Place::new()?;
        let (desk, _) = place.desk(1)?;
        Ok(Self { desk, since: Instant::now(), _place: place })
    }

    /// Weighs it.
    pub(crate) fn finish(self, report: &mut Report) -> Result<()> {
        let kib = memory(self.desk.pid())?;
        let idle = self.since.elapsed().as_secs();
        let name = format!("daemon, no sessions, idle for {idle} s");
        report.add(Row::new("memory", name, "MiB", mib(kib.resident)).target(15.0));
        report.add(Row::new("memory", "… of it its own", "MiB", mib(kib.own)));
        Ok(())
    }
}

fn mib(kib: f64) -> Spread {
    Spread::one(kib / 1024.0)
}

/// Rows for live sessions in one instance, and for holders, agents and the shim.
pub(crate) fn live_sessions(scale: &Scale, report: &mut Report) -> Result<()> {
    let place = Place::new()?;
    let (desk, _) = place.desk(scale.live + 1)?;
    let mut wire = desk.connect()?;
    let first = stage::open(&place, &mut wire)?;
    let line = wire.request("session/prompt", &stage::prompt(&first, "say ready"));
    wire.trip(&line)?;
    std::thread::sleep(SETTLE);
    let one = memory(desk.pid())?;
    for _ in 0..scale.live {
        stage::new_session(&place, &mut wire)?;
    }
    std::thread::sleep(SETTLE);
    let many = memory(desk.pid())?;
    let live = number(scale.live);
    report.add(Row::new("memory", "daemon, 1 live session", "MiB", mib(one.resident)));
    let name = format!("daemon, {} live sessions", scale.live + 1);
    report.add(Row::new("memory", name, "MiB", mib(many.resident)));
    let each = Spread::one((many.own - one.own) / live);
    report.add(Row::new("memory", "… its own memory for each", "KiB", each).target(16.0));
    holders(report)
}

fn holders(report: &mut Report) -> Result<()> {
    let place = Place::new()?;
    let (desk, _) = place.desk(1)?;
    let mut wire = desk.connect()?;
    stage::greet(&mut wire)?;
    for _ in 0..HOLDERS {
        let session = stage::new_session(&place, &mut wire)?;
        let line =
            wire.request("session/prompt", &stage::prompt(&session, "stream 1000 bytes 1000"));
        wire.trip(&line)?;
    }
    let (shim, mut editor) = place.shim()?;
    let session = stage::open(&place, &mut editor)?;
    let line = editor.request("session/prompt", &stage::prompt(&session, "stream 1000 bytes 1000"));
    editor.trip(&line)?;
    std::thread::sleep(SETTLE);
    let instances = desk.instances()?;
    let mut weighed = Vec::new();
    let mut agents = Vec::new();
    for pids in &instances {
        weighed.push(memory(pids.holder)?);
        agents.push(memory(pids.agent)?.resident / 1024.0);
    }
    let all = |of: fn(&crate::gauge::Memory) -> f64| Spread::of(weighed.iter().map(of).collect());
    report.add(Row::new("memory", "holder", "MiB", all(|m| m.resident / 1024.0)).target(3.0));
    report.add(Row::new("memory", "… of it its own", "MiB", all(|m| m.own / 1024.0)));
    let share = format!("… its share, {} of them running", instances.len());
    report.add(Row::new("memory", share, "MiB", all(|m| m.share / 1024.0)));
    report.add(Row::new("memory", "… the most it ever had", "MiB", all(|m| m.most / 1024.0)));
    report.add(Row::new("memory", "demo agent", "MiB", Spread::of(agents)));
    let shim = memory(shim.pid()).context("failed to weigh the shim")?;
    report.add(Row::new("memory", "shim", "MiB", mib(shim.resident)));
    report.add(Row::new("memory", "… of it its own", "MiB", mib(shim.own)));
    Ok(())
}
