//! Status probes and pages of the list over the socket, beside an echo on the same kind of socket
//! whose answers are as long.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use memchr::memmem;
use serde_json::json;
use uuid::Uuid;

use crate::Scale;
use crate::bare;
use crate::gauge::{Spread, micros_at, number};
use crate::one_core::OneCore;
use crate::report::{Report, Row};
use crate::stage::{self, Desk, Place};
use crate::start;
use crate::wire::{Wire, request};

/// Probes sent at once where they are not sent one at a time.
const DEPTH: usize = 64;
/// Pages asked for in a round are fewer than probes by this factor.
const PAGES_SHARE: usize = 20;

/// One kind of probe.
pub(crate) struct Probe<'a> {
    name: &'static str,
    session: &'a str,
    /// Text that its answer must have.
    says: &'static str,
    /// How many times an echo's time it may take.
    times: Option<f64>,
    /// How many a second there should be.
    rate: Option<f64>,
}

/// Rows for probes and for a page of the list.
pub(crate) fn probes(scale: &Scale, report: &mut Report) -> Result<()> {
    let place = Place::new()?;
    let keys = start::know(&place, scale.known)?;
    let (desk, _) = place.desk(1)?;
    let mut wire = desk.connect()?;
    stage::greet(&mut wire)?;
    let cold = keys.last().context("no session")?.clone();
    let unknown = Uuid::new_v4().to_string();
    let mut other = desk.connect()?;
    let session = stage::open(&place, &mut other)?;
    // Until the index is compared with the journals no id can be called unknown.
    crate::known::complete(&mut wire)?;
    let asked = Probe::new("unknown, one agent is asked", &unknown, "-32002");
    compare(scale, report, &place, &desk, &mut wire, &asked)?;
    let loaded = Probe::new("loaded", &session, r#""active""#).within(1.2, 100_000.0);
    compare(scale, report, &place, &desk, &mut wire, &loaded)?;
    // From here on there is no agent to ask, and what they have is known.
    other.call("session/close", &json!({ "sessionId": session }).to_string())?;
    desk.wait_for_no_instance()?;
    let cold = Probe::new("cold", &cold, r#""inactive""#).within(2.0, 30_000.0);
    compare(scale, report, &place, &desk, &mut wire, &cold)?;
    let alone = Probe::new("unknown, no agent to ask", &unknown, "-32002").within(2.0, 30_000.0);
    compare(scale, report, &place, &desk, &mut wire, &alone)?;
    pages(scale, report, &mut wire)
}

impl<'a> Probe<'a> {
    pub(crate) fn new(name: &'static str, session: &'a str, says: &'static str) -> Self {
        Self { name, session, says, times: None, rate: None }
    }

    pub(crate) fn within(self, times: f64, rate: f64) -> Self {
        Self { times: Some(times), rate: Some(rate), ..self }
    }
}

/// Rows for one kind of probe beside an echo.
pub(crate) fn compare(
    scale: &Scale,
    report: &mut Report,
    place: &Place,
    desk: &Desk,
    wire: &mut Wire,
    probe: &Probe<'_>,
) -> Result<()> {
    let params = json!({ "sessionId": probe.session }).to_string();
    let line = request(1, "session/status", &params);
    wire.send(&line)?;
    let answer = wire.line()?;
    ensure!(
        memmem::find(answer, probe.says.as_bytes()).is_some(),
        "failed to probe: {}",
        String::from_utf8_lossy(answer)
    );
    let bytes = answer.len() + 1;
    let start = |kind| {
        let socket = place.path(&format!("echo-{}", Uuid::new_v4().simple()));
        bare::start_echo(kind, &socket, bytes)
    };
    let (blocking, mut echo) = start(bare::ECHO)?;
    let (on_runtime, mut like) = start(bare::ECHO_OF_RUNTIME)?;
    let all = [desk.pid(), blocking.pid(), on_runtime.pid()];
    let many: Vec<u8> =
        (1..=DEPTH as u64).flat_map(|id| request(id, "session/status", &params)).collect();
    let mut took: [Vec<f64>; 7] = Default::default();
    for round in 0..=scale.rounds {
        let spread = [
            one_by_one(wire, &line, scale.probes / 4)?,
            one_by_one(&mut echo, &line, scale.probes / 4)?,
        ];
        let one_core = OneCore::of(&all)?;
        let near = [
            one_by_one(wire, &line, scale.probes / 4)?,
            one_by_one(&mut echo, &line, scale.probes / 4)?,
            one_by_one(&mut like, &line, scale.probes / 4)?,
        ];
        drop(one_core);
        let rates =
            [in_batches(wire, &many, scale.probes)?, in_batches(&mut echo, &many, scale.probes)?];
        if round > 0 {
            let all = spread.into_iter().chain(near).chain(rates);
            took.iter_mut().zip(all).for_each(|(list, took)| list.push(took));
        }
    }
    add_rows(report, probe, took.map(Spread::of));
    Ok(())
}

/// The rows of one kind of probe, of what [`compare`] measured: one at a time and its echo; on one core,
/// its echo and that of a runtime; many at once and their echo.
fn add_rows(report: &mut Report, probe: &Probe<'_>, took: [Spread; 7]) {
    let [one, bare_one, near, bare_near, like_near, rate, bare_rate] = took;
    for (how, it, bare) in [
        ("one at a time", one, bare_one),
        ("one at a time, on one core", near, bare_near),
        ("… beside an echo on a runtime", near, like_near),
    ] {
        let row = Row::new("status", format!("{}, {how}", probe.name), "µs", it).beside(bare);
        report.add(match probe.times {
            Some(times) => row.target_ratio(times),
            None => row,
        });
    }
    let row = Row::new("status", format!("{}, {DEPTH} at once", probe.name), "/s", rate);
    let row = row.beside(bare_rate);
    report.add(match probe.rate {
        Some(rate) => row.target_at_least(rate),
        None => row,
    });
}

/// The median time of one probe, in microseconds.
fn one_by_one(wire: &mut Wire, line: &[u8], count: usize) -> Result<f64> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = Instant::now();
        wire.send(line)?;
        wire.line()?;
        times.push(began.elapsed());
    }
    Ok(micros_at(&times, 0.5))
}

/// Probes a second.
fn in_batches(wire: &mut Wire, many: &[u8], count: usize) -> Result<f64> {
    let batches = count.div_ceil(DEPTH);
    let began = Instant::now();
    for _ in 0..batches {
        wire.send(many)?;
        wire.skip(DEPTH)?;
    }
    Ok(number(batches * DEPTH) / began.elapsed().as_secs_f64())
}

fn pages(scale: &Scale, report: &mut Report, wire: &mut Wire) -> Result<()> {
    let first = wire.call("session/list", "{}")?;
    let rows = first["sessions"].as_array().map_or(0, Vec::len);
    let cursor = json!({ "cursor": first["nextCursor"] }).to_string();
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..scale.rounds {
        for (params, round) in ["{}", &cursor].into_iter().zip(&mut rounds) {
            let line = request(1, "session/list", params);
            let times: Result<Vec<Duration>> = (0..scale.probes / PAGES_SHARE)
                .map(|_| {
                    let began = Instant::now();
                    wire.trip(&line)?;
                    Ok(began.elapsed())
                })
                .collect();
            round.push(micros_at(&times?, 0.5) / 1e3);
        }
    }
    for (name, round) in ["first", "second"].into_iter().zip(rounds) {
        let name = format!("the {name} page: {rows} of {} sessions", scale.known);
        report.add(Row::new("list", name, "ms", Spread::of(round)).target(2.0));
    }
    Ok(())
}
