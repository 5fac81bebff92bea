//! A home that knows very many sessions: start, pages, search, probes, memory; and how fast the index
//! is made anew, beside plain reading of the same bytes.
//!
//! The index of the large home is written directly, by the code that writes it in the daemon; its
//! journals are real files in folders of their own, but links to a few: the daemon's comparison
//! behind a start finds them as the rows say. The journals of the second part are all different.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frontdesk::index::{Disk, Entry, Index, Mark, Passage, Rebuild, ordered};
use frontdesk::log::TOUCHED_NAME;
use frontdesk_core::fold::{Origin, View};
use frontdesk_core::ids::Key;
use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use crate::Scale;
use crate::gauge::{Spread, memory, micros, micros_at, number};
use crate::probes::{Probe, compare};
use crate::report::{Report, Row};
use crate::stage::{self, Desk, Place};
use crate::wire::{Wire, request};

/// Names that one file may have on every usual file system.
const LINKS: usize = 30_000;
/// Sessions written to the index in one step.
const BATCH: usize = 10_000;
/// Sessions in one working directory.
const PER_FOLDER: usize = 1_000;
/// Sessions in the folder of one day.
const PER_DAY: usize = 50_000;
/// Pages, and searches, in a round.
const TRIPS: usize = 100;
/// How long the daemon may compare the index with the journals.
const COMPARED: Duration = Duration::from_secs(300);
/// Bytes of text in the answer of each journal that is read to make an index.
const ANSWER_BYTES: usize = 8 << 10;

/// Rows for a home that knows `scale.indexed` sessions, and for making an index.
pub(crate) fn known(scale: &Scale, report: &mut Report) -> Result<()> {
    let place = Place::new()?;
    let keys = home(&place, scale.indexed)?;
    starts(scale, report, &place)?;
    let (desk, _) = place.desk(1)?;
    let mut wire = desk.connect()?;
    stage::greet(&mut wire)?;
    lists(scale, report, &mut wire)?;
    let began = Instant::now();
    complete(&mut wire)?;
    let name = format!("{} journals compared behind a start", scale.indexed);
    report.add(Row::new("index", name, "s", Spread::one(began.elapsed().as_secs_f64())));
    let mut other = desk.connect()?;
    let session = stage::open(&place, &mut other)?;
    let loaded = Probe::new("loaded, of very many", &session, r#""active""#).within(1.2, 100_000.0);
    compare(scale, report, &place, &desk, &mut wire, &loaded)?;
    other.call("session/close", &json!({ "sessionId": session }).to_string())?;
    desk.wait_for_no_instance()?;
    let cold = keys.get(keys.len() / 2).context("no session")?.to_string();
    let cold = Probe::new("cold, of very many", &cold, r#""inactive""#).within(2.0, 30_000.0);
    compare(scale, report, &place, &desk, &mut wire, &cold)?;
    let unknown = Uuid::new_v4().to_string();
    let unknown = Probe::new("unknown, of very many", &unknown, "-32002").within(2.0, 30_000.0);
    compare(scale, report, &place, &desk, &mut wire, &unknown)?;
    weigh(scale, report, &desk)?;
    drop((wire, desk));
    reindex(scale, report)
}

/// Writes the home: folders, journals, index. The keys of its sessions.
fn home(place: &Place, count: usize) -> Result<Vec<Key>> {
    let data = place.path("home").join("data");
    let sessions = data.join("sessions");
    fs::create_dir_all(&sessions)?;
    let index = Index::new(&data, &sessions);
    let mut writer = Rebuild::begin(&index)?.finish();
    let mut keys = Vec::with_capacity(count);
    let mut file = PathBuf::new();
    for first in (0..count).step_by(BATCH) {
        let mut made = Vec::with_capacity(BATCH);
        for n in first..(first + BATCH).min(count) {
            if n % LINKS == 0 {
                file = place.path(&format!("journal-{n}"));
                fs::write(&file, journal("shared", "the quick brown fox"))?;
            }
            let (key, path) = name(&sessions, n);
            fs::create_dir_all(path.parent().context("no folder")?)?;
            fs::hard_link(&file, &path)?;
            keys.push(key);
            made.push((entry(key, path, n)?, Disk::of(&file)?));
        }
        writer.batch(|writer| {
            let mut passages = Vec::with_capacity(made.len());
            for (entry, disk) in &made {
                writer.put(entry, *disk)?;
                let end = Mark { bytes: disk.bytes, seq: entry.view.seq };
                writer.set_text_mark(entry.key, end)?;
                let at = entry.view.updated_at.unwrap_or(Timestamp::UNIX_EPOCH);
                let number = entry.view.native.as_deref().unwrap_or_default();
                let text = format!("the quick brown fox says {number}");
                passages.push((entry.key, Passage { at, from: Mark::default(), text }));
            }
            writer.add_passages(passages)
        })?;
    }
    writer.set_step(1)?;
    index.replace(writer, None)?.close()?;
    fs::write(data.join(TOUCHED_NAME), "step 1\n")?;
    Ok(keys)
}

fn name(sessions: &Path, n: usize) -> (Key, PathBuf) {
    let key = Key::new(Uuid::from_u128(0x01a2_2bb6_2da2_7132_8868_0000_0000_0000 | n as u128));
    let day = sessions.join(format!("2026/10/{:02}", 1 + (n / PER_DAY) % 28));
    (key, day.join(key.to_string()).join("journal.jsonl"))
}

fn entry(key: Key, path: PathBuf, n: usize) -> Result<Entry> {
    let at = Timestamp::from_second(1_700_000_000 + i64::try_from(n)?)?;
    let view = View {
        seq: 4,
        agent: "demo".to_owned(),
        native: Some(format!("native-{n}")),
        cwd: format!("/home/me/project-{}", n % PER_FOLDER),
        title: Some(format!("Title of number {n}")),
        origin: Origin::Adopted,
        created_at: Some(at),
        updated_at: Some(at),
        turn_count: 1,
        ..View::default()
    };
    let bytes = fs::metadata(&path)?.len();
    Ok(Entry { key, ordered: ordered(&view, Timestamp::now()), view, path, real_cwd: None, bytes })
}

/// A journal of one turn.
fn journal(native: &str, answer: &str) -> Vec<u8> {
    let at = "2026-10-01T12:00:00.000000Z";
    let update = json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": answer } });
    let records = [
        ("adopted", json!({ "agent": "demo", "nativeId": native, "cwd": "/home/me" })),
        (
            "turn_started",
            json!({ "turn": "turn_2", "prompt": [{ "type": "text", "text": "say" }] }),
        ),
        ("update", json!({ "sessionId": native, "update": update })),
        (
            "turn_ended",
            json!({ "turn": "turn_2", "outcome": "completed", "stopReason": "end_turn" }),
        ),
    ];
    let mut text = String::new();
    for (seq, (kind, data)) in (1..).zip(records) {
        let line = json!({ "v": 1, "seq": seq, "epoch": 0, "at": at, "kind": kind, "data": data });
        text += &format!("{line}\n");
    }
    text.into_bytes()
}

fn starts(scale: &Scale, report: &mut Report, place: &Place) -> Result<()> {
    let mut took = Vec::new();
    for round in 0..=scale.starts.min(5) {
        let (_desk, start) = place.desk(1)?;
        if round > 0 {
            took.push(micros(start) / 1e3);
        }
    }
    let name = format!("start to ready, {} sessions", scale.indexed);
    report.add(Row::new("start", name, "ms", Spread::of(took)).target(50.0));
    Ok(())
}

fn lists(scale: &Scale, report: &mut Report, wire: &mut Wire) -> Result<()> {
    let of = |what: &str| format!("{what}, of {} sessions", scale.indexed);
    let folder = json!({ "cwd": format!("/home/me/project-{}", PER_FOLDER / 2) });
    let first = wire.call("session/list", &folder.to_string())?;
    let mut second = folder.clone();
    second["cursor"] = first["nextCursor"].clone();
    let search = |text: &str| json!({ "search": text, "limit": 20 });
    let asked = [
        ("first page of 50", "session/list", json!({}), Some(2.0)),
        ("page of 50 of a folder", "session/list", folder, Some(2.0)),
        ("its second page", "session/list", second, Some(2.0)),
        ("search for a rare word, 20 shown", "_frontdesk/sessions", search("native 77"), None),
        ("search for a word of all, 20 shown", "_frontdesk/sessions", search("quick fox"), None),
    ];
    for (what, method, params, target) in asked {
        let line = request(1, method, &params.to_string());
        let mut rounds = Vec::new();
        for _ in 0..scale.rounds.min(5) {
            let times: Result<Vec<Duration>> = (0..TRIPS)
                .map(|_| {
                    let began = Instant::now();
                    wire.trip(&line)?;
                    Ok(began.elapsed())
                })
                .collect();
            rounds.push(micros_at(&times?, 0.5) / 1e3);
        }
        let row = Row::new("list", of(what), "ms", Spread::of(rounds));
        report.add(match target {
            Some(target) => row.target(target),
            None => row,
        });
    }
    Ok(())
}

/// Waits until the daemon can say that an id is unknown.
pub(crate) fn complete(wire: &mut Wire) -> Result<()> {
    let until = Instant::now() + COMPARED;
    let line = request(1, "session/status", r#"{"sessionId":"nobody"}"#);
    loop {
        wire.send(&line)?;
        if memchr::memmem::find(wire.line()?, b"-32002").is_some() {
            return Ok(());
        }
        ensure!(Instant::now() < until, "failed to wait for the comparison");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn weigh(scale: &Scale, report: &mut Report, desk: &Desk) -> Result<()> {
    std::thread::sleep(Duration::from_secs(2));
    let kib = memory(desk.pid())?;
    let name = format!("daemon that knows {} sessions, after all this", scale.indexed);
    report.add(Row::new("memory", name, "MiB", Spread::one(kib.resident / 1024.0)).target(15.0));
    report.add(Row::new("memory", "… of it its own", "MiB", Spread::one(kib.own / 1024.0)));
    Ok(())
}

/// Making an index, beside reading the same bytes.
fn reindex(scale: &Scale, report: &mut Report) -> Result<()> {
    let place = Place::new()?;
    let data = place.path("home").join("data");
    let sessions = data.join("sessions");
    let mut bytes = 0;
    let mut paths = Vec::new();
    for n in 0..scale.journals {
        let (_, path) = name(&sessions, n);
        fs::create_dir_all(path.parent().context("no folder")?)?;
        let words: String = (0..)
            .map(|w| format!("word{} ", (n * 31 + w * w) % 50_000))
            .take(ANSWER_BYTES / 10)
            .collect();
        let text = journal(&format!("native-{n}"), &words);
        bytes += text.len();
        fs::write(&path, text)?;
        paths.push(path);
    }
    let mib = number(bytes) / f64::from(1 << 20);
    let (mut made, mut read) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let began = Instant::now();
        let mut buffer = Vec::new();
        for path in &paths {
            buffer.clear();
            fs::File::open(path)?.read_to_end(&mut buffer)?;
        }
        read.push(mib / began.elapsed().as_secs_f64());
        let began = Instant::now();
        let index = Index::new(&data, &sessions);
        let mut rebuild = Rebuild::begin(&index)?;
        while rebuild.step(256, &mut |_, _, _| false)? {}
        ensure!(rebuild.counts().sessions == scale.journals as u64, "sessions are missing");
        index.replace(rebuild.finish(), None)?.close()?;
        made.push(mib / began.elapsed().as_secs_f64());
    }
    let name = format!("making it of {} journals, beside reading them", scale.journals);
    report.add(Row::new("index", name, "MiB/s", Spread::of(made)).beside(Spread::of(read)));
    Ok(())
}
