//! What is added to a small frame and to a prompt: the same client against the agent's own pipes,
//! against the daemon's socket, and against the shim's pipes.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::Scale;
use crate::gauge::{Spread, cpu, micros, micros_at, number};
use crate::report::{Report, Row};
use crate::stage::{self, Desk, Ended, Pids, Place};
use crate::wire::Wire;

/// Requests that are under way at once where round trips overlap.
const DEPTH: usize = 32;

/// One way to an agent, with a session open on it.
struct Side {
    wire: Wire,
    session: String,
    pids: Vec<(&'static str, u32)>,
    _shim: Option<Ended>,
}

/// The three ways, each to an agent of its own.
struct Sides {
    sides: [Side; 3],
    place: Place,
    _desk: Desk,
    _agent: Ended,
}

/// Names of the ways behind the first one, which is bare.
const VIA: [&str; 2] = ["socket", "acp"];

impl Sides {
    fn open() -> Result<Self> {
        let place = Place::new()?;
        let (desk, _) = place.desk(1)?;
        let (agent, wire) = place.agent()?;
        let direct = Side::open(&place, wire, vec![("agent", agent.pid())], None)?;
        let daemon = ("daemon", desk.pid());
        let wire = desk.connect()?;
        let mut socket = Side::open(&place, wire, vec![daemon], None)?;
        let first = new_instance(&desk, None)?;
        socket.pids.extend([("holder", first.holder), ("agent", first.agent)]);
        let (shim, wire) = place.shim()?;
        let pids = vec![daemon, ("shim", shim.pid())];
        let mut acp = Side::open(&place, wire, pids, Some(shim))?;
        let second = new_instance(&desk, Some(first))?;
        acp.pids.extend([("holder", second.holder), ("agent", second.agent)]);
        Ok(Self { sides: [direct, socket, acp], place, _desk: desk, _agent: agent })
    }
}

impl Side {
    fn open(
        place: &Place,
        mut wire: Wire,
        pids: Vec<(&'static str, u32)>,
        shim: Option<Ended>,
    ) -> Result<Self> {
        let session = stage::open(place, &mut wire)?;
        // What is done once, such as a title, is done.
        let line = wire.request("session/prompt", &stage::prompt(&session, "say ready"));
        wire.trip(&line)?;
        Ok(Self { wire, session, pids, _shim: shim })
    }

    fn cpu(&self) -> Vec<Duration> {
        self.pids.iter().map(|(_, pid)| cpu(*pid)).collect()
    }

    fn echo(&mut self) -> Vec<u8> {
        let params = format!(r#"{{"sessionId":"{}","text":"abc"}}"#, self.session);
        self.wire.request("_demo/echo", &params)
    }

    /// One at a time.
    fn trips(&mut self, count: usize) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let line = self.echo();
            let began = Instant::now();
            self.wire.trip(&line)?;
            times.push(began.elapsed());
        }
        Ok(times)
    }

    /// Many under way: the time for each.
    fn overlapping(&mut self, count: usize) -> Result<Duration> {
        let mut lines: Vec<Vec<u8>> = (0..count).map(|_| self.echo()).collect();
        lines.reverse();
        let began = Instant::now();
        for _ in 0..DEPTH.min(count) {
            self.wire.send(&lines.pop().unwrap_or_default())?;
        }
        for _ in 0..count {
            self.wire.skip(1)?;
            if let Some(line) = lines.pop() {
                self.wire.send(&line)?;
            }
        }
        Ok(began.elapsed() / u32::try_from(count.max(1))?)
    }

    fn prompts(&mut self, count: usize) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let line = self.wire.request("session/prompt", &stage::prompt(&self.session, "say x"));
            let began = Instant::now();
            self.wire.trip(&line)?;
            times.push(began.elapsed());
        }
        Ok(times)
    }
}

fn new_instance(desk: &Desk, known: Option<Pids>) -> Result<Pids> {
    let all = desk.instances()?;
    all.into_iter().find(|pids| Some(*pids) != known).context("no new instance")
}

/// The difference between each way and the bare one, round by round.
fn added(rounds: &[[f64; 3]], side: usize) -> Spread {
    Spread::of(rounds.iter().map(|round| round[side] - round[0]).collect())
}

fn of_side(rounds: &[[f64; 3]], side: usize) -> Spread {
    Spread::of(rounds.iter().map(|round| round[side]).collect())
}

/// Rows for a small request that needs no sync: there and back are two relayed frames.
pub(crate) fn round_trips(scale: &Scale, report: &mut Report) -> Result<()> {
    let mut all = Sides::open()?;
    let (mut medians, mut p99s, mut busy) = (Vec::new(), Vec::new(), Vec::new());
    let mut used: [Vec<Duration>; 3] =
        all.sides.each_ref().map(|side| vec![Duration::ZERO; side.pids.len()]);
    for side in &mut all.sides {
        side.trips(scale.trips / 4)?;
    }
    for _ in 0..scale.rounds {
        let (mut median, mut p99, mut each) = ([0.0; 3], [0.0; 3], [0.0; 3]);
        for (at, side) in all.sides.iter_mut().enumerate() {
            let before = side.cpu();
            let times = side.trips(scale.trips)?;
            for (sum, (after, before)) in used[at].iter_mut().zip(side.cpu().iter().zip(before)) {
                *sum += after.saturating_sub(before);
            }
            (median[at], p99[at]) = (micros_at(&times, 0.5), micros_at(&times, 0.99));
            each[at] = micros(side.overlapping(scale.trips)?);
        }
        medians.push(median);
        p99s.push(p99);
        busy.push(each);
    }
    let bare = of_side(&medians, 0);
    for (at, via) in VIA.iter().enumerate() {
        let side = at + 1;
        report.add(
            Row::new("frame", format!("round trip, {via}, median"), "µs", of_side(&medians, side))
                .beside(bare),
        );
        report.add(
            Row::new("frame", format!("round trip, {via}, p99"), "µs", of_side(&p99s, side))
                .beside(of_side(&p99s, 0)),
        );
        report.add(
            Row::new(
                "frame",
                format!("added to a frame, {via} (half a round trip)"),
                "µs",
                half(added(&medians, side)),
            )
            .target(50.0),
        );
        report.add(
            Row::new(
                "frame",
                format!("a round trip, {via}, {DEPTH} under way"),
                "µs",
                of_side(&busy, side),
            )
            .beside(of_side(&busy, 0)),
        );
    }
    let trips = number(scale.rounds * scale.trips);
    for (side, used) in all.sides.iter().zip(&used) {
        let way = ["agent alone", "socket", "acp"]
            [usize::from(side.pids.len() > 1) + usize::from(side.pids.len() > 3)];
        for ((name, _), used) in side.pids.iter().zip(used) {
            report.add(Row::new(
                "frame",
                format!("CPU of a round trip, {way}: {name}"),
                "µs",
                Spread::one(micros(*used) / trips),
            ));
        }
    }
    Ok(())
}

fn half(spread: Spread) -> Spread {
    Spread { min: spread.min / 2.0, median: spread.median / 2.0, max: spread.max / 2.0 }
}

/// Rows for a whole prompt, beside one bare sync of a file on the same disk.
pub(crate) fn prompts(scale: &Scale, report: &mut Report) -> Result<()> {
    let mut all = Sides::open()?;
    let path = all.place.path("sync");
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    let (mut medians, mut syncs) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        let mut median = [0.0; 3];
        for (at, side) in all.sides.iter_mut().enumerate() {
            median[at] = micros_at(&side.prompts(scale.prompts)?, 0.5);
        }
        medians.push(median);
        syncs.push(micros_at(&sync_times(&mut file, scale.prompts)?, 0.5));
    }
    let bare = of_side(&medians, 0);
    let sync = Spread::of(syncs.clone());
    report.add(Row::new("prompt", "one bare fdatasync of 512 bytes", "µs", sync));
    for (at, via) in VIA.iter().enumerate() {
        let side = at + 1;
        report.add(
            Row::new("prompt", format!("`say x`, {via}, median"), "µs", of_side(&medians, side))
                .beside(bare),
        );
        let rounds = medians.iter().zip(&syncs);
        let beyond = rounds.map(|(round, sync)| round[side] - round[0] - sync).collect();
        report.add(
            Row::new("prompt", format!("added beyond one sync, {via}"), "µs", Spread::of(beyond))
                .target(50.0),
        );
        let rounds = medians.iter().zip(&syncs);
        let in_syncs = rounds.map(|(round, sync)| (round[side] - round[0]) / sync).collect();
        report.add(Row::new(
            "prompt",
            format!("added, {via}, in syncs"),
            "×",
            Spread::of(in_syncs),
        ));
    }
    Ok(())
}

fn sync_times(file: &mut File, count: usize) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = Instant::now();
        file.write_all(&[b'x'; 512])?;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    Ok(times)
}
