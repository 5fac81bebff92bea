//! What a holder alone adds: the same agent on its own pipes and behind a holder, without a daemon.
//!
//! The daemon's end of the holder's socket is the daemon's own code, in this process.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use frontdesk::agent::link::{self, HolderSpec, Link, LinkEvent};
use frontdesk_core::ids::InstanceId;
use frontdesk_core::limits::Limits;
use memchr::memmem;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::Scale;
use crate::gauge::{Spread, cpu, micros, micros_at, number};
use crate::report::{Report, Row};
use crate::stage::{self, FRONTDESK, Place};
use crate::wire::{Wire, request};

/// Bytes of text in an update of a stream, so that its line has about 0.3 KB.
const UPDATE_BYTES: usize = 90;

/// An agent behind a holder.
struct Held {
    runtime: Runtime,
    link: Link,
    seen: Vec<LinkEvent>,
    number: u64,
    session: String,
}

/// What one way took.
#[derive(Default)]
struct Took {
    trips: Vec<f64>,
    rates: Vec<f64>,
    trip_cpu: Duration,
    stream_cpu: Duration,
}

/// Rows for round trips and streams.
pub(crate) fn added(scale: &Scale, report: &mut Report) -> Result<()> {
    let place = Place::new()?;
    let (_agent, mut wire) = place.agent()?;
    let session = stage::open(&place, &mut wire)?;
    let mut held = Held::start(&place)?;
    let holder = u32::try_from(held.link.hello.holder.pid)?;
    let (mut bare, mut ours) = (Took::default(), Took::default());
    for round in 0..=scale.rounds {
        let times = bare_trips(&mut wire, &session, scale.trips)?;
        let before = cpu(holder);
        let held_times = held.trips(scale.trips)?;
        let trips = cpu(holder).saturating_sub(before);
        let rate = bare_stream(&mut wire, &session, scale.small_updates / 5)?;
        let before = cpu(holder);
        let held_rate = held.stream(scale.small_updates / 5)?;
        let stream = cpu(holder).saturating_sub(before);
        if round > 0 {
            bare.trips.push(micros_at(&times, 0.5));
            ours.trips.push(micros_at(&held_times, 0.5));
            bare.rates.push(rate);
            ours.rates.push(held_rate);
            ours.trip_cpu += trips;
            ours.stream_cpu += stream;
        }
    }
    let rounds = number(scale.rounds);
    report.add(
        Row::new("holder", "round trip, median", "µs", Spread::of(ours.trips))
            .beside(Spread::of(bare.trips)),
    );
    let each = micros(ours.trip_cpu) / rounds / number(scale.trips);
    report.add(Row::new("holder", "… CPU of the holder", "µs", Spread::one(each)));
    report.add(
        Row::new("holder", "stream, 0.3 KB", "frames/s", Spread::of(ours.rates))
            .beside(Spread::of(bare.rates)),
    );
    let frames = number(scale.small_updates / 5);
    let each = ours.stream_cpu.as_secs_f64() / rounds / frames * 1e5;
    report.add(Row::new("holder", "… CPU of the holder", "s/100k", Spread::one(each)));
    held.end()
}

fn echo(session: &str) -> String {
    json!({ "sessionId": session, "text": "abc" }).to_string()
}

fn bare_trips(wire: &mut Wire, session: &str, count: usize) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let line = wire.request("_demo/echo", &echo(session));
        let began = Instant::now();
        wire.trip(&line)?;
        times.push(began.elapsed());
    }
    Ok(times)
}

fn stream_words(count: usize) -> String {
    format!("stream {count} bytes {UPDATE_BYTES}")
}

/// Frames a second.
fn bare_stream(wire: &mut Wire, session: &str, count: usize) -> Result<f64> {
    let line = wire.request("session/prompt", &stage::prompt(session, &stream_words(count)));
    let began = Instant::now();
    wire.send(&line)?;
    wire.count_to_answer()?;
    Ok(number(count) / began.elapsed().as_secs_f64())
}

impl Held {
    fn start(place: &Place) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let store = place.path("held-store").display().to_string();
        let spec = HolderSpec {
            agent: "demo".into(),
            command: [FRONTDESK, "demo-agent"].map(str::to_owned).into(),
            cwd: place.path("work"),
            env: BTreeMap::from([("FRONTDESK_DEMO_STORE".to_owned(), store)]),
            run_dir: place.path("home").join("run"),
            data_dir: place.path("home").join("data"),
            claims_dir: place.path("claims"),
            instance: InstanceId("bench".into()),
        };
        let limits = Limits::default();
        let link = runtime.block_on(link::start(Path::new(FRONTDESK), &spec, &limits))?;
        let session = String::new();
        let mut held = Self { runtime, link, seen: Vec::new(), number: 0, session };
        let hello = json!({ "protocolVersion": 1, "clientCapabilities": {} });
        held.ask("initialize", &hello.to_string())?;
        let made = held.ask("session/new", &place.new_session())?;
        held.session = made["sessionId"].as_str().context("no sessionId")?.to_owned();
        Ok(held)
    }

    /// Sends a request and reads up to its answer, which it gives.
    fn trip(&mut self, method: &str, params: &str) -> Result<Bytes> {
        self.number += 1;
        let mut line = request(self.number, method, params);
        line.pop();
        let frame = Bytes::from(line);
        self.runtime.block_on(async {
            self.link.sender.send(self.number, frame).await?;
            loop {
                self.seen.clear();
                let more = self.link.receiver.next_batch(&mut self.seen).await;
                ensure!(more, "failed to receive: the holder has left");
                let mut answer = None;
                for event in &self.seen {
                    let LinkEvent::Line { text, end } = event else { continue };
                    // As the daemon does for each line that it has dealt with.
                    self.link.sender.ack(*end);
                    if memmem::find(text, br#""method":"#).is_none() {
                        answer = Some(text.clone());
                    }
                }
                if let Some(answer) = answer {
                    return Ok(answer);
                }
            }
        })
    }

    fn ask(&mut self, method: &str, params: &str) -> Result<Value> {
        let answer: Value = serde_json::from_slice(&self.trip(method, params)?)?;
        if !answer["error"].is_null() {
            bail!("failed to call {method}: {}", answer["error"]);
        }
        Ok(answer["result"].clone())
    }

    fn trips(&mut self, count: usize) -> Result<Vec<Duration>> {
        let params = echo(&self.session);
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let began = Instant::now();
            self.trip("_demo/echo", &params)?;
            times.push(began.elapsed());
        }
        Ok(times)
    }

    fn stream(&mut self, count: usize) -> Result<f64> {
        let params = stage::prompt(&self.session, &stream_words(count));
        let began = Instant::now();
        self.trip("session/prompt", &params)?;
        Ok(number(count) / began.elapsed().as_secs_f64())
    }

    /// Ends agent and holder.
    fn end(mut self) -> Result<()> {
        self.link.sender.stop(200);
        self.runtime
            .block_on(async { while self.link.receiver.next_batch(&mut self.seen).await {} });
        ensure!(self.seen.contains(&LinkEvent::Gone), "failed to end the agent behind the holder");
        Ok(())
    }
}
