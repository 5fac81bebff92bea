//! From start to ready, beside the start of a process that does nothing.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use frontdesk::log::{Log, Reader, scan};
use frontdesk_core::ids::Key;
use frontdesk_core::limits::Limits;
use frontdesk_core::record::Record;
use uuid::Uuid;

use crate::Scale;
use crate::gauge::{Spread, micros};
use crate::report::{Report, Row};
use crate::stage::{self, FRONTDESK, Place};

/// Bytes read of the pattern's journal.
const JOURNAL_BYTES_MAX: usize = 1 << 20;

/// Rows for an empty home and for one that knows many sessions.
pub(crate) fn starts(scale: &Scale, report: &mut Report) -> Result<()> {
    let empty = Place::new()?;
    let full = Place::new()?;
    know(&full, scale.known)?;
    let (mut bare, mut program, mut none, mut many) = (vec![], vec![], vec![], vec![]);
    for round in 0..=scale.starts {
        let took = [
            run("/bin/true", &[])?,
            run(FRONTDESK, &["--version"])?,
            micros(empty.desk(1)?.1) / 1e3,
            micros(full.desk(1)?.1) / 1e3,
        ];
        if round > 0 {
            let lists = [&mut bare, &mut program, &mut none, &mut many];
            lists.into_iter().zip(took).for_each(|(list, took)| list.push(took));
        }
    }
    let bare = Spread::of(bare);
    report.add(
        Row::new("start", "frontdesk --version, start to end", "ms", Spread::of(program))
            .beside(bare),
    );
    report.add(
        Row::new("start", "start to ready, 0 sessions", "ms", Spread::of(none))
            .beside(bare)
            .target(50.0),
    );
    let name = format!("start to ready, {} sessions", scale.known);
    report.add(Row::new("start", name, "ms", Spread::of(many)).beside(bare).target(50.0));
    Ok(())
}

/// Milliseconds from start to end of a program.
fn run(program: &str, words: &[&str]) -> Result<f64> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null());
    let began = Instant::now();
    command.status().with_context(|| format!("failed to run {program}"))?;
    Ok(micros(began.elapsed()) / 1e3)
}

/// Lets a home know `count` sessions: one is made by talking, the others are its copies, each
/// under a key and a native id of its own.
pub(crate) fn know(place: &Place, count: usize) -> Result<Vec<String>> {
    let pattern = {
        let (desk, _) = place.desk(1)?;
        let mut wire = desk.connect()?;
        let session = stage::open(place, &mut wire)?;
        let line = wire.request("session/prompt", &stage::prompt(&session, "say hello"));
        wire.trip(&line)?;
        wire.call("session/close", &format!(r#"{{"sessionId":"{session}"}}"#))?;
        session
    };
    let data = place.path("home").join("data");
    let (log, _) = Log::open(&data, &Limits::default())?;
    let found = scan(log.sessions_dir()).next().context("the pattern has no journal")?;
    let records = Reader::open(&found.path)?.read_batch(JOURNAL_BYTES_MAX)?;
    let native = native_of(&records).context("the pattern has no native id")?;
    let mut keys = vec![pattern];
    for _ in 1..count {
        let id = Uuid::now_v7();
        let at = records.first().context("the pattern is empty")?.at;
        let path = log.journal_path(Key::new(id), at);
        copy(&records, &native, &path)?;
        keys.push(id.to_string());
    }
    Ok(keys)
}

fn native_of(records: &[Record]) -> Option<String> {
    let mut values = records.iter().filter_map(Record::payload::<serde_json::Value>);
    values.find_map(|data| Some(data.get("nativeId")?.as_str()?.to_owned()))
}

/// Written by hand: a thousand syncs would take longer than everything measured.
fn copy(records: &[Record], native: &str, path: &Path) -> Result<()> {
    let other = Uuid::new_v4().to_string();
    let mut text = Vec::new();
    for record in records {
        let data = String::from_utf8_lossy(&record.data).replace(native, &other);
        Record { data: Bytes::from(data), ..record.clone() }.write_line(&mut text);
    }
    std::fs::create_dir_all(path.parent().context("no folder")?)?;
    std::fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))
}
