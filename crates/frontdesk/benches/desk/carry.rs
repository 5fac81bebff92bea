//! From `kill -9` of the daemon to the moment when every client is back in its session, with a turn
//! running in each: the next daemon's start, its look at every holder, and the clients' rejoins.
//!
//! Clients do what `frontdesk acp` does, and are there at once: its pauses between two tries to reach a
//! daemon are not in the time, and no process of theirs competes for the machine.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::Scale;
use crate::gauge::{Spread, cpu, memory, micros};
use crate::report::{Report, Row};
use crate::stage::{self, Desk, Place};
use crate::wire::Wire;

/// The greatest of these has the design's target.
const TARGET_MS: f64 = 1_000.0;

/// One client, and where it is.
struct Seat {
    key: String,
    session: String,
    seen: u64,
    wire: Wire,
}

/// One kill's numbers.
struct Took {
    ready: Duration,
    back: Duration,
    cpu: Duration,
    resident_mib: f64,
}

/// Rows for 1, 10 and more live sessions.
pub(crate) fn kills(scale: &Scale, report: &mut Report) -> Result<()> {
    let (_, empty) = Place::new()?.desk(1)?;
    let empty = Spread::one(micros(empty) / 1e3);
    let (one, many) = (scale.carried, scale.carried.div_ceil(10));
    for (live, each) in [(1, 1), (10, 1), (one, many), (one, 1)] {
        let took = of(scale, live, each)?;
        let ms = |of: fn(&Took) -> Duration| {
            Spread::of(took.iter().map(|it| micros(of(it)) / 1e3).collect())
        };
        let name =
            |what: &str| format!("{what}, sessions: {live}, instances: {}", live.div_ceil(each));
        report.add(Row::new("carry", name("kill to ready"), "ms", ms(|it| it.ready)).beside(empty));
        let back = Row::new("carry", name("kill to all reattached"), "ms", ms(|it| it.back));
        report.add(if live >= 100 { back.target(TARGET_MS) } else { back });
        report.add(Row::new("carry", "… CPU of the next daemon until then", "ms", ms(|it| it.cpu)));
        let resident = took.iter().map(|it| it.resident_mib).collect();
        report.add(Row::new("carry", "… its memory then", "MiB", Spread::of(resident)));
    }
    Ok(())
}

fn of(scale: &Scale, live: usize, each: usize) -> Result<Vec<Took>> {
    let place = Place::new()?;
    let (mut desk, _) = place.desk(each)?;
    let mut seats =
        (0..live).map(|at| Seat::take(&place, &desk, at)).collect::<Result<Vec<_>>>()?;
    let mut took = Vec::new();
    for _ in 0..scale.starts.min(5) {
        let (next, one) = kill(&place, desk, each, &mut seats)?;
        desk = next;
        took.push(one);
    }
    // Turns that run would hold the daemon's end up.
    for seat in &mut seats {
        let params = json!({ "sessionId": seat.session });
        let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params });
        seat.wire.send(format!("{cancel}\n").as_bytes())?;
    }
    for seat in &mut seats {
        // The prompt's client is this one, so its answer comes here.
        while memchr::memmem::find(seat.wire.line()?, b"stopReason").is_none() {}
    }
    drop(desk);
    Ok(took)
}

fn kill(place: &Place, desk: Desk, each: usize, seats: &mut [Seat]) -> Result<(Desk, Took)> {
    let began = Instant::now();
    desk.kill9()?;
    let (desk, _) = place.desk(each)?;
    let ready = began.elapsed();
    for seat in seats.iter_mut() {
        seat.come_again(&desk)?;
    }
    for seat in seats.iter_mut() {
        seat.is_back()?;
    }
    let back = began.elapsed();
    let resident_mib = memory(desk.pid())?.resident / 1024.0;
    let took = Took { ready, back, cpu: cpu(desk.pid()), resident_mib };
    Ok((desk, took))
}

impl Seat {
    /// A client with a session whose turn runs for as long as anything here takes.
    fn take(place: &Place, desk: &Desk, at: usize) -> Result<Self> {
        let key = format!("bench-{at}");
        let mut wire = desk.connect_as(&json!({
            "frontdesk": 1, "face": "acp", "kind": "bench", "client": key,
        }))?;
        let session = stage::open(place, &mut wire)?;
        let params = stage::prompt(&session, "say begun\nwait 3600000");
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":\"turn\",\"method\":\"session/prompt\",\"params\":{params}}}\n"
        );
        wire.send(line.as_bytes())?;
        while memchr::memmem::find(wire.line()?, b"\"begun\"").is_none() {}
        let log = wire.call("_frontdesk/log", &json!({ "sessionId": session }).to_string())?;
        let seen = log["last"].as_u64().context("a log says where it ends")?;
        Ok(Self { key, session, seen, wire })
    }

    /// Connects and says all that a shim says, in one piece.
    fn come_again(&mut self, desk: &Desk) -> Result<()> {
        self.wire = desk.connect_as(&json!({
            "frontdesk": 1, "face": "acp", "kind": "bench", "client": self.key, "again": true,
        }))?;
        let hello = json!({ "protocolVersion": 1, "clientCapabilities": {} });
        let mut text = self.wire.request("initialize", &hello.to_string());
        let params = json!({
            "sessionId": self.session,
            "seen": { "seq": self.seen, "part": 0 },
            "prompts": [{ "id": "turn", "after": 0 }],
        });
        text.extend(self.wire.request("_frontdesk/rejoin", &params.to_string()));
        self.wire.send(&text)
    }

    fn is_back(&mut self) -> Result<()> {
        loop {
            let line = self.wire.line()?;
            if memchr::memmem::find(line, b"\"unknown\":").is_some() {
                let is_known = memchr::memmem::find(line, b"\"unknown\":[]").is_some();
                ensure!(is_known, "failed to rejoin: {}", String::from_utf8_lossy(line));
                return Ok(());
            }
            let failed = memchr::memmem::find(line, b"\"error\":{").is_some();
            ensure!(!failed, "failed to rejoin: {}", String::from_utf8_lossy(line));
        }
    }
}
