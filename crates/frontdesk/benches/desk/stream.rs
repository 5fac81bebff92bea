//! A stream of updates through holder, daemon and shim, beside the same agent read directly and
//! beside a plain copy of its pipe.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::Scale;
use crate::gauge::{Spread, cpu, number};
use crate::report::{Report, Row};
use crate::stage::{self, Ended, Place};
use crate::wire::{Counted, Wire};

/// Sizes measured: name, bytes of text in an update, so that its line has about the named size.
const SIZES: [(&str, usize); 2] = [("0.3 KB", 90), ("15 KB", 14_800)];
/// Frames to which CPU time is brought.
const FRAMES: f64 = 100_000.0;

/// One way, with a session open on it.
struct Side {
    name: &'static str,
    wire: Wire,
    session: String,
    /// What carries the stream; the agent is not part of it.
    carriers: Vec<(&'static str, u32)>,
    agent: u32,
    _kept: Vec<Ended>,
}

/// One stream's numbers.
#[derive(Clone, Debug, Default)]
struct Took {
    counted: Counted,
    time: Duration,
    carriers: Vec<Duration>,
    agent: Duration,
}

impl Side {
    fn run(&mut self, count: usize, bytes: usize) -> Result<Took> {
        let text = format!("stream {count} bytes {bytes}");
        let line = self.wire.request("session/prompt", &stage::prompt(&self.session, &text));
        let now = |side: &Self| -> Vec<Duration> {
            side.carriers.iter().map(|(_, pid)| cpu(*pid)).collect()
        };
        let (before, agent) = (now(self), cpu(self.agent));
        let began = Instant::now();
        self.wire.send(&line)?;
        let counted = self.wire.count_to_answer()?;
        let time = began.elapsed();
        let after = now(self);
        let carriers =
            after.iter().zip(before).map(|(now, then)| now.saturating_sub(then)).collect();
        Ok(Took { counted, time, carriers, agent: cpu(self.agent).saturating_sub(agent) })
    }
}

impl Took {
    #[expect(clippy::cast_precision_loss, reason = "bytes of one stream")]
    fn mb_per_second(&self) -> f64 {
        self.counted.bytes as f64 / 1e6 / self.time.as_secs_f64()
    }

    #[expect(clippy::cast_precision_loss, reason = "lines of one stream")]
    fn frames_per_second(&self) -> f64 {
        self.counted.lines as f64 / self.time.as_secs_f64()
    }

    /// CPU seconds for 100,000 frames.
    #[expect(clippy::cast_precision_loss, reason = "lines of one stream")]
    fn cpu(&self, used: Duration) -> f64 {
        used.as_secs_f64() / self.counted.lines as f64 * FRAMES
    }
}

/// Rows for both sizes.
pub(crate) fn streams(scale: &Scale, report: &mut Report) -> Result<()> {
    let place = Place::new()?;
    let (agent, wire) = place.agent()?;
    let direct = side(&place, "direct", wire, Vec::new(), agent.pid(), vec![agent])?;
    let (agent, copy, wire) = place.copied_agent()?;
    let carriers = vec![("copy", copy.pid())];
    let copied = side(&place, "copy", wire, carriers, agent.pid(), vec![agent, copy])?;
    let (desk, _) = place.desk(1)?;
    let mut socket = side(&place, "socket", desk.connect()?, Vec::new(), 0, Vec::new())?;
    let first = *desk.instances()?.first().context("no instance")?;
    socket.carriers = vec![("holder", first.holder), ("daemon", desk.pid())];
    socket.agent = first.agent;
    let (shim, wire) = place.shim()?;
    let pid = shim.pid();
    let mut acp = side(&place, "acp", wire, Vec::new(), 0, vec![shim])?;
    let second =
        desk.instances()?.into_iter().find(|pids| *pids != first).context("no instance")?;
    acp.carriers = vec![("holder", second.holder), ("daemon", desk.pid()), ("shim", pid)];
    acp.agent = second.agent;
    let mut sides = [direct, copied, socket, acp];
    for (size, bytes) in SIZES {
        let count = if bytes < 1000 { scale.small_updates } else { scale.large_updates };
        let mut took: [Vec<Took>; 4] = Default::default();
        for round in 0..=scale.streams {
            for (side, took) in sides.iter_mut().zip(&mut took) {
                // The first one warms everything up.
                let count = if round == 0 { count / 10 } else { count };
                let one = side.run(count, bytes)?;
                took.extend((round > 0).then_some(one));
            }
        }
        add_rows(report, size, &sides, &took);
    }
    Ok(())
}

fn side(
    place: &Place,
    name: &'static str,
    mut wire: Wire,
    carriers: Vec<(&'static str, u32)>,
    agent: u32,
    kept: Vec<Ended>,
) -> Result<Side> {
    let session = stage::open(place, &mut wire)?;
    Ok(Side { name, wire, session, carriers, agent, _kept: kept })
}

fn add_rows(report: &mut Report, size: &str, sides: &[Side], took: &[Vec<Took>; 4]) {
    let all = |side: usize, of: fn(&Took) -> f64| Spread::of(took[side].iter().map(of).collect());
    let [direct, copied, ..] = [0, 1];
    for side in [2, 3] {
        let name = sides[side].name;
        let rate = all(side, Took::frames_per_second);
        let bytes = all(side, Took::mb_per_second);
        report.add(
            Row::new("stream", format!("{size}, {name}, against the agent"), "frames/s", rate)
                .beside(all(direct, Took::frames_per_second)),
        );
        report.add(
            Row::new("stream", format!("{size}, {name}, against a copy"), "MB/s", bytes)
                .beside(all(copied, Took::mb_per_second)),
        );
    }
    let per = "s/100k";
    for (side, took) in sides.iter().zip(took) {
        let agent = took.iter().map(|took| took.cpu(took.agent)).collect();
        let name = side.name;
        report.add(Row::new(
            "stream",
            format!("CPU, {size}, {name}: agent"),
            per,
            Spread::of(agent),
        ));
        for (at, (carrier, _)) in side.carriers.iter().enumerate() {
            let used = took.iter().map(|took| took.cpu(took.carriers[at])).collect();
            report.add(Row::new(
                "stream",
                format!("CPU, {size}, {name}: {carrier}"),
                per,
                Spread::of(used),
            ));
        }
    }
    let frame = all(direct, |took| {
        number(usize::try_from(took.counted.bytes / took.counted.lines.max(1)).unwrap_or_default())
    });
    report.add(Row::new("stream", format!("bytes of a frame, {size}"), "bytes", frame));
}
