//! Journals: opening and replaying a long one, with and without its snapshot; what an append costs
//! beside a bare write; durable work of many sessions beside the disk's serial rate.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use frontdesk::log::{Log, Snapshot, scan};
use frontdesk_core::ids::{Key, Seq};
use frontdesk_core::limits::Limits;
use frontdesk_core::record::{Kind, RECORD_VERSION, Record};
use memchr::memmem;
use serde_json::json;
use uuid::Uuid;

use crate::Scale;
use crate::gauge::{Spread, micros, number};
use crate::report::{Report, Row};
use crate::stage::{self, Desk, Place};

/// Sessions that have durable work at the same time.
const SESSIONS: usize = 64;
/// Bytes of text in one update of the long journal.
const UPDATE_BYTES: usize = 400;
/// Rounds of what takes long.
const LONG_ROUNDS: usize = 3;
/// Bytes read at a time where a file is only read.
const READ_BYTES: usize = 1 << 20;

/// All rows about journals.
pub(crate) fn journals(scale: &Scale, report: &mut Report) -> Result<()> {
    long(scale, report)?;
    appends(scale, report)?;
    records(scale, report)?;
    prompts(scale, report)
}

fn megabytes(bytes: u64) -> f64 {
    number(usize::try_from(bytes).unwrap_or(usize::MAX)) / 1e6
}

/// A home whose one session has a journal of so many bytes; its id and the journal.
fn grown(place: &Place, bytes: u64) -> Result<(String, PathBuf)> {
    let (session, path) = {
        let (desk, _) = place.desk(1)?;
        let mut wire = desk.connect()?;
        let session = stage::open(place, &mut wire)?;
        let line = wire.request("session/prompt", &stage::prompt(&session, "say hello"));
        wire.trip(&line)?;
        let found = scan(&place.path("home").join("data/sessions")).next();
        wire.call("session/close", &json!({ "sessionId": session }).to_string())?;
        (session, found.context("the session has no journal")?.path)
    };
    let (log, _) = Log::open(&place.path("home").join("data"), &Limits::default())?;
    let mut journal = log.open_journal(&path)?;
    while journal.bytes() < bytes {
        let first = journal.last_seq() + 1;
        let batch: Vec<Record> = (first..first + 1_000).map(|seq| update(&session, seq)).collect();
        drop(journal.append(&batch)?);
    }
    drop(journal);
    log.close()?;
    Ok((session, path))
}

fn update(session: &str, seq: Seq) -> Record {
    let text = format!("{seq} {}", "lorem ipsum ".repeat(UPDATE_BYTES / 12));
    let update = json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
    record(Kind::Update, seq, &json!({ "sessionId": session, "update": update }).to_string())
}

fn record(kind: Kind, seq: Seq, data: &str) -> Record {
    let data = Bytes::copy_from_slice(data.as_bytes());
    Record { v: RECORD_VERSION, seq, epoch: 1, at: jiff::Timestamp::now(), kind, src: None, data }
}

fn long(scale: &Scale, report: &mut Report) -> Result<()> {
    let place = Place::new()?;
    let (session, path) = grown(&place, scale.journal_bytes)?;
    let bytes = fs::metadata(&path)?.len();
    let name = format!("{:.0} MB", megabytes(bytes));
    // The first start folds the journal; closing the session writes its snapshot.
    load(&place, &session, &path, true)?;
    let (mut ready, mut first, mut rate) = ([vec![], vec![]], [vec![], vec![]], [vec![], vec![]]);
    let (mut short, mut bare) = (vec![], vec![]);
    for _ in 0..LONG_ROUNDS {
        for (at, with) in [false, true].into_iter().enumerate() {
            let took = load(&place, &session, &path, with)?;
            ready[at].push(micros(took.ready) / 1e3);
            first[at].push(micros(took.first) / 1e3);
            short.push(micros(took.short) / 1e3);
            rate[at].push(megabytes(bytes) / took.all.as_secs_f64());
        }
        bare.push(megabytes(bytes) / read(&path)?.as_secs_f64());
    }
    let (bare, short) = (Spread::of(bare), Spread::of(short));
    for (with, ((ready, first), rate)) in
        ["without", "with"].into_iter().zip(ready.into_iter().zip(first).zip(rate))
    {
        let what = format!("start to ready, a journal of {name} {with} its snapshot");
        report.add(Row::new("journal", what, "ms", Spread::of(ready)));
        let what = format!("load to the first item, {name} {with} its snapshot, beside 1 KB");
        report.add(Row::new("journal", what, "ms", Spread::of(first)).beside(short).target(50.0));
        let what = format!("load of {name} {with} its snapshot, beside reading the file");
        let row = Row::new("journal", what, "MB/s", Spread::of(rate)).beside(bare);
        report.add(row.target_at_least(300.0));
    }
    Ok(())
}

struct Took {
    ready: Duration,
    /// To the first item of a short journal: its agent, too, has to be started.
    short: Duration,
    first: Duration,
    all: Duration,
}

/// Starts a daemon and loads the session, with its snapshot or without. Afterwards there is one.
fn load(place: &Place, session: &str, path: &Path, with_snapshot: bool) -> Result<Took> {
    if !with_snapshot {
        Snapshot::remove(path);
    }
    let (desk, ready) = place.desk(1)?;
    let mut wire = desk.connect()?;
    stage::greet(&mut wire)?;
    let short = load_short(place, &desk)?;
    if !with_snapshot {
        Snapshot::remove(path);
    }
    let params = json!({ "sessionId": session, "cwd": place.path("work"), "mcpServers": [] });
    let line = wire.request("session/load", &params.to_string());
    let began = Instant::now();
    wire.send(&line)?;
    wire.line()?;
    let first = began.elapsed();
    while memmem::find(wire.line()?, br#""result":"#).is_none() {}
    let all = began.elapsed();
    wire.call("session/close", &json!({ "sessionId": session }).to_string())?;
    drop(wire);
    wait_for(&Snapshot::path(path))?;
    Ok(Took { ready, short, first, all })
}

/// Makes a session of one turn and loads it: the time to its first item.
fn load_short(place: &Place, desk: &Desk) -> Result<Duration> {
    let mut wire = desk.connect()?;
    let session = stage::open(place, &mut wire)?;
    let line = wire.request("session/prompt", &stage::prompt(&session, "say hello"));
    wire.trip(&line)?;
    let close = json!({ "sessionId": session }).to_string();
    wire.call("session/close", &close)?;
    desk.wait_for_no_instance()?;
    let params = json!({ "sessionId": session, "cwd": place.path("work"), "mcpServers": [] });
    let line = wire.request("session/load", &params.to_string());
    let began = Instant::now();
    wire.send(&line)?;
    wire.line()?;
    let short = began.elapsed();
    wire.call("session/close", &close)?;
    desk.wait_for_no_instance()?;
    Ok(short)
}

fn wait_for(path: &Path) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(10);
    while !path.exists() {
        ensure!(Instant::now() < until, "failed to wait for {}", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The time to read a file.
fn read(path: &Path) -> Result<Duration> {
    let mut file = File::open(path)?;
    let mut piece = vec![0; READ_BYTES];
    let began = Instant::now();
    while file.read(&mut piece)? > 0 {}
    Ok(began.elapsed())
}

/// A log on the disk that is measured.
fn log(place: &Place) -> Result<Log> {
    Ok(Log::open(&place.path("home").join("data"), &Limits::default())?.0)
}

fn appends(scale: &Scale, report: &mut Report) -> Result<()> {
    let place = Place::new()?;
    let log = log(&place)?;
    let mut journal = log.create(Key::new(Uuid::now_v7()), jiff::Timestamp::now())?;
    let mut bare = File::create(place.path("bare"))?;
    let (mut ours, mut bares) = (vec![], vec![]);
    for _ in 0..scale.rounds {
        let first = journal.last_seq() + 1;
        let last = first + scale.appends as u64;
        let records: Vec<Record> = (first..last).map(|seq| update("s", seq)).collect();
        let lines: Vec<Vec<u8>> = records
            .iter()
            .map(|record| {
                let mut line = Vec::new();
                record.write_line(&mut line);
                line
            })
            .collect();
        let began = Instant::now();
        for record in &records {
            drop(journal.append(std::slice::from_ref(record))?);
        }
        ours.push(micros(began.elapsed()) / number(scale.appends));
        let began = Instant::now();
        for line in &lines {
            bare.write_all(line)?;
        }
        bares.push(micros(began.elapsed()) / number(scale.appends));
    }
    let what = "append of one record of 0.5 KB, beside write(2) of its line";
    report.add(Row::new("journal", what, "µs", Spread::of(ours)).beside(Spread::of(bares)));
    Ok(())
}

/// How many times a second the disk takes a line and syncs it.
fn serial(place: &Place, count: usize) -> Result<f64> {
    let mut file = File::create(place.path("serial"))?;
    let line = [b'x'; 512];
    let began = Instant::now();
    for _ in 0..count {
        file.write_all(&line)?;
        file.sync_data()?;
    }
    Ok(number(count) / began.elapsed().as_secs_f64())
}

/// Durable records of many sessions, each waiting for its own.
fn records(scale: &Scale, report: &mut Report) -> Result<()> {
    let place = Place::new()?;
    let log = log(&place)?;
    let journals: Result<Vec<_>, _> = (0..SESSIONS)
        .map(|_| log.create(Key::new(Uuid::now_v7()), jiff::Timestamp::now()))
        .collect();
    let mut journals = journals?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    let (mut ours, mut bare) = (vec![], vec![]);
    for round in 0..=scale.rounds {
        let began = Instant::now();
        let tasks: Vec<_> = journals
            .drain(..)
            .map(|mut journal| {
                let count = scale.durable as u64;
                runtime.spawn(async move {
                    for _ in 0..count {
                        let seq = journal.last_seq() + 1;
                        let ended =
                            record(Kind::TurnEnded, seq, r#"{"turn":"t","outcome":"completed"}"#);
                        journal.append(&[ended])?.synced().await?;
                    }
                    Ok::<_, frontdesk::log::LogError>(journal)
                })
            })
            .collect();
        for task in tasks {
            journals.push(runtime.block_on(task)??);
        }
        let rate = number(SESSIONS * scale.durable) / began.elapsed().as_secs_f64();
        let serial = serial(&place, scale.durable)?;
        if round > 0 {
            ours.push(rate);
            bare.push(serial);
        }
    }
    let bare = Spread::of(bare);
    let what = format!("durable records, {SESSIONS} sessions at once, beside serial fdatasync");
    let row = Row::new("journal", what, "/s", Spread::of(ours)).beside(bare);
    report.add(row.target_at_least(10.0 * bare.median));
    Ok(())
}

/// Whole turns of many sessions, each client waiting for its answer.
fn prompts(scale: &Scale, report: &mut Report) -> Result<()> {
    let place = Place::new()?;
    let (desk, _) = place.desk(SESSIONS)?;
    let mut clients = Vec::new();
    for _ in 0..SESSIONS {
        let mut wire = desk.connect()?;
        let session = stage::open(&place, &mut wire)?;
        clients.push((wire, stage::prompt(&session, "say x")));
    }
    let (mut ours, mut bare) = (vec![], vec![]);
    for round in 0..=LONG_ROUNDS {
        let began = Instant::now();
        let done: Result<()> = std::thread::scope(|scope| {
            let threads: Vec<_> = clients
                .iter_mut()
                .map(|(wire, prompt)| {
                    scope.spawn(move || {
                        for _ in 0..scale.prompts {
                            let line = wire.request("session/prompt", prompt);
                            wire.trip(&line)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(done) => done,
                Err(_) => Err(anyhow::anyhow!("failed to prompt: a client panicked")),
            })
        });
        done?;
        let rate = number(SESSIONS * scale.prompts) / began.elapsed().as_secs_f64();
        let serial = serial(&place, scale.durable)?;
        if round > 0 {
            ours.push(rate);
            bare.push(serial);
        }
    }
    let bare = Spread::of(bare);
    let what = format!("durable prompts, {SESSIONS} sessions at once, beside serial fdatasync");
    let row = Row::new("journal", what, "/s", Spread::of(ours)).beside(bare);
    report.add(row.target_at_least(10.0 * bare.median));
    Ok(())
}
