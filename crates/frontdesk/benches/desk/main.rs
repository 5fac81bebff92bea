//! What Frontdesk adds: every number beside a bare equivalent, measured in the same run.
//!
//! `cargo bench -p frontdesk` prints one table in less than two minutes, with `-- --quick` in less
//! than 20 seconds, with `-- --json` as JSON, with `-- --only frames,stream` some of it. The client
//! code is the same on both sides of a comparison, rounds alternate between the sides, and of all
//! rounds the least, the median and the greatest are shown. Nothing here passes or fails: machines
//! are noisy, so targets stand beside the numbers. `docs/benchmarks.md` explains the rows.
//!
//! Rooms: [`wire`] the client; [`stage`] daemons, agents, shims; [`gauge`] time, CPU time and
//! memory; [`bare`] the programs compared with; [`frames`], [`stream`], [`holder`], [`memory`],
//! [`start`], [`carry`], [`probes`], [`journal`] the cases; [`report`] the table.
#![expect(clippy::print_stdout, reason = "a bench prints its table")]

mod bare;
mod carry;
mod frames;
mod gauge;
mod holder;
mod journal;
mod known;
mod memory;
mod one_core;
mod probes;
mod report;
mod stage;
mod start;
mod stream;
mod wire;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use report::Report;

/// The whole run ends after this long, whatever hangs.
const RUN_MAX: Duration = Duration::from_secs(300);

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Rounds of each comparison.
    pub(crate) rounds: usize,
    /// Round trips in a round, per side.
    pub(crate) trips: usize,
    /// Prompts in a round, per side.
    pub(crate) prompts: usize,
    /// Small updates in a stream.
    pub(crate) small_updates: usize,
    /// Large updates in a stream.
    pub(crate) large_updates: usize,
    /// Streams of each kind, per side.
    pub(crate) streams: usize,
    /// Sessions that a home knows where it knows many.
    pub(crate) known: usize,
    /// Sessions of a home that knows very many; `--sessions` sets it.
    pub(crate) indexed: usize,
    /// Journals that an index is made of.
    pub(crate) journals: usize,
    /// Sessions live at once.
    pub(crate) live: usize,
    /// Sessions that are carried over a daemon's end.
    pub(crate) carried: usize,
    /// Starts of each kind.
    pub(crate) starts: usize,
    /// Probes in a round.
    pub(crate) probes: usize,
    /// Length of the long journal, in bytes.
    pub(crate) journal_bytes: u64,
    /// Appends in a round.
    pub(crate) appends: usize,
    /// Durable records of one session in a round.
    pub(crate) durable: usize,
}

const FULL: Scale = Scale {
    rounds: 9,
    trips: 400,
    prompts: 30,
    small_updates: 50_000,
    large_updates: 5_000,
    streams: 3,
    known: 1_000,
    indexed: 100_000,
    journals: 20_000,
    live: 100,
    carried: 100,
    starts: 9,
    probes: 4_000,
    journal_bytes: 245_000_000,
    appends: 5_000,
    durable: 100,
};

const QUICK: Scale = Scale {
    rounds: 3,
    trips: 100,
    prompts: 8,
    small_updates: 5_000,
    large_updates: 500,
    streams: 1,
    known: 1_000,
    indexed: 10_000,
    journals: 1_000,
    live: 100,
    carried: 100,
    starts: 3,
    probes: 500,
    journal_bytes: 25_000_000,
    appends: 1_000,
    durable: 20,
};

/// One part of the run.
type Case = (&'static str, fn(&Scale, &mut Report) -> Result<()>);

const CASES: &[Case] = &[
    ("frames", frames::round_trips),
    ("prompts", frames::prompts),
    ("stream", stream::streams),
    ("holder", holder::added),
    ("start", start::starts),
    ("carry", carry::kills),
    ("probes", probes::probes),
    ("journal", journal::journals),
    ("known", known::known),
    ("memory", memory::live_sessions),
];

#[derive(Debug, Default)]
struct Args {
    bench: bool,
    quick: bool,
    json: bool,
    only: Option<String>,
    sessions: Option<usize>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.first().map(String::as_str) {
        Some(bare::ECHO) => bare::echo(&words[1..]),
        Some(bare::ECHO_OF_RUNTIME) => bare::echo_of_runtime(&words[1..]),
        Some(bare::COPY) => bare::copy(),
        _ => read(&words).and_then(|args| run(&args)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("failed to measure: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn read(words: &[String]) -> Result<Args> {
    let mut args = Args::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--bench" => args.bench = true,
            "--quick" => args.quick = true,
            "--json" => args.json = true,
            "--only" => args.only = words.next().cloned(),
            "--sessions" => args.sessions = words.next().and_then(|count| count.parse().ok()),
            // What `cargo bench` hands to every harness, such as a filter, is not for us.
            other if other.starts_with("--") => bail!("failed to understand {other}"),
            _ => {}
        }
    }
    Ok(args)
}

fn run(args: &Args) -> Result<()> {
    if !args.bench && !args.quick {
        println!("run this with `cargo bench -p frontdesk`");
        return Ok(());
    }
    // A home of a million sessions takes minutes to write and to remove.
    stage::watch(if args.sessions.is_some() { 4 * RUN_MAX } else { RUN_MAX });
    let began = Instant::now();
    let mut scale = if args.quick { QUICK } else { FULL };
    scale.indexed = args.sessions.unwrap_or(scale.indexed).max(1);
    let mut report = Report::new();
    let idle = memory::Idle::start()?;
    for (name, case) in CASES {
        let wanted = args.only.as_ref().is_none_or(|only| only.split(',').any(|w| w == *name));
        if wanted {
            let since = Instant::now();
            case(&scale, &mut report)?;
            eprintln!("{name}: {:.1} s", since.elapsed().as_secs_f64());
        }
    }
    idle.finish(&mut report)?;
    report.finish(began.elapsed());
    println!("{}", if args.json { report.json() } else { report.table() });
    Ok(())
}
