//! Large frames and floods.

use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::desk::memory_kib;
use super::super::pattern::Side;
use super::super::puppets::{text_update, update_frame};
use super::super::raw;
use super::super::run::Run;
use super::{holder, number, text};

/// Time for the largest frame on a busy machine.
const LARGE_WAIT: Duration = Duration::from_secs(150);

/// A chunk frame whose line has so many bytes, and the length of its text.
fn chunk(run: &Run, session: &str, bytes: usize) -> Result<(String, usize), String> {
    let frame = update_frame(session, &text_update("agent_message_chunk", "%PAD%"));
    let line = raw::padded(run, &frame, bytes, Side::Agent)?;
    let rest = frame.to_string().len() - "%PAD%".len();
    Ok((line, bytes - rest))
}

/// Lets the holder of a session write a line, the first bytes one by one; returns the last order.
fn write(run: &Run, session: &str, line: String, single: usize) -> Result<(usize, u64), String> {
    let at = holder(run, session)?;
    let mut bytes = line.into_bytes();
    bytes.push(b'\n');
    run.world.note(&format!("puppet {at} writes a line of {} bytes", bytes.len()));
    let mut state = run.world.lock();
    let rest = bytes.split_off(single.min(bytes.len()));
    for byte in bytes {
        state.order(at, b'O', vec![byte])?;
    }
    let last = state.order(at, b'O', rest)?;
    Ok((at, last))
}

/// Frames of these sizes reach every client unchanged, in time, and stand in the journal.
pub(super) fn big_frames(run: &mut Run, about: &Value) -> Result<(), String> {
    let session = text(about, "session")?;
    let clients: Vec<String> = about["clients"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect();
    let single = number(about, "one_by_one")?;
    let mut lengths = Vec::new();
    let mut times: Vec<(usize, Duration)> = Vec::new();
    for size in about["sizes"].as_array().into_iter().flatten().filter_map(Value::as_u64) {
        let size = usize::try_from(size).map_err(|e| e.to_string())?;
        let slow_start = if size == (1 << 20) + 1 { single } else { 0 };
        let mut took = deliver(run, session, &clients, size, slow_start, &mut lengths)?;
        // One slow try may be the machine's fault; three are ours. It is the daemon's own time on a
        // processor, since what else runs says nothing of it.
        for _ in 0..2 {
            if size == 10 << 20 && took > Duration::from_secs(2) {
                took = took.min(deliver(run, session, &clients, size, 0, &mut lengths)?);
            }
        }
        run.world.note(&format!("{size} bytes took {} ms", took.as_millis()));
        times.push((size, took));
    }
    let of = |size: usize| times.iter().find(|(known, _)| *known == size).map(|(_, took)| *took);
    if let Some(took) = of(10 << 20)
        && took > Duration::from_secs(2)
    {
        return Err(format!("10 MiB took {} ms", took.as_millis()));
    }
    if let (Some(ten), Some(all)) = (of(10 << 20), of(64 << 20)) {
        let fair = ten.max(Duration::from_millis(250)) * 20;
        if all > fair {
            let (ten, all) = (ten.as_millis(), all.as_millis());
            return Err(format!("10 MiB took {ten} ms, and 64 MiB {all} ms"));
        }
    }
    in_journal(run, session, &lengths)
}

/// How long a process has run on processors, in steps of a hundredth of a second.
fn worked(pid: u32) -> Result<Duration, String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|e| e.to_string())?;
    // The name, in brackets, may have blanks.
    let (_, rest) = text.rsplit_once(") ").ok_or("no such process")?;
    let ticks = rest.split(' ').skip(11).take(2).map(|it| it.parse::<u64>().unwrap_or_default());
    Ok(Duration::from_millis(10 * ticks.sum::<u64>()))
}

/// Sends one frame to all clients; how long the daemon worked for that.
fn deliver(
    run: &Run,
    session: &str,
    clients: &[String],
    size: usize,
    single: usize,
    lengths: &mut Vec<usize>,
) -> Result<Duration, String> {
    let (line, length) = chunk(run, session, size)?;
    let mut expected: Value = serde_json::from_str(&line).map_err(|e| e.to_string())?;
    let public = run.world.lock().names.public(session).to_owned();
    expected["params"]["sessionId"] = json!(public);
    let pid = run.desk.as_ref().ok_or("no desk runs")?.pid();
    let before = worked(pid)?;
    write(run, session, line, single)?;
    for client in clients {
        run.world.wait(LARGE_WAIT, &format!("{size} bytes at {client}"), |state| {
            let frames = state.client(client)?.frames.iter_mut();
            let mut fresh = frames.filter(|frame| !frame.taken);
            let found = fresh.find(|frame| frame.value.as_ref() == Some(&expected));
            Ok(found.map(|frame| {
                frame.taken = true;
                // The text is not needed any more.
                frame.value = None;
                frame.raw = (*b"").into();
            }))
        })?;
    }
    lengths.push(length);
    Ok(worked(pid)?.saturating_sub(before))
}

/// Each text stands in the session's journal, whole.
fn in_journal(run: &mut Run, session: &str, lengths: &[usize]) -> Result<(), String> {
    let row = run.row(session)?.ok_or("no row")?;
    let path = row["path"].as_str().ok_or("the row has no path")?;
    let file = std::fs::File::open(path).map_err(|e| format!("failed to open {path}: {e}"))?;
    let mut runs = Vec::new();
    for line in BufReader::with_capacity(1 << 20, file).split(b'\n') {
        let line = line.map_err(|e| format!("failed to read {path}: {e}"))?;
        let longest = line.split(|byte| *byte != b'x').map(<[u8]>::len).max();
        runs.extend(longest);
    }
    match lengths.iter().find(|length| !runs.contains(length)) {
        Some(length) => Err(format!("the journal lacks the text of {length} bytes")),
        None => Ok(()),
    }
}

/// A frame over the limit: nobody gets it, and memory stays bounded.
pub(super) fn frame_too_long(run: &mut Run, about: &Value) -> Result<(), String> {
    let session = text(about, "session")?;
    let bytes = number(about, "bytes")?;
    let pid = run.desk.as_ref().ok_or("no desk runs")?.pid();
    let peak = |pid: u32| memory_kib(pid, "VmHWM").ok_or("failed to read a peak of memory");
    let before = peak(pid)?;
    let (line, _) = chunk(run, session, bytes)?;
    let (at, last) = write(run, session, line, 0)?;
    run.done(at, last, LARGE_WAIT)?;
    std::thread::sleep(Duration::from_millis(500));
    let grown = peak(pid)?.saturating_sub(before);
    let most = number(about, "most_kib")? as u64;
    run.world.note(&format!("the daemon's peak grew by {grown} KiB"));
    if grown > most {
        return Err(format!("the daemon's peak grew by {grown} KiB"));
    }
    for (pid, line) in run.place.processes().iter().filter(|(_, line)| line.contains(" hold")) {
        let peak = peak(u32::try_from(*pid).map_err(|e| e.to_string())?)?;
        run.world.note(&format!("peak of the holder {pid}: {peak} KiB"));
        if peak > 32 << 10 {
            return Err(format!("the holder {line} ({pid}) took {peak} KiB"));
        }
    }
    let (_, frames) = run.frames("cA", 0)?;
    match frames.iter().find(|frame| frame.raw.len() > bytes / 2) {
        Some(frame) => Err(format!("a client got {} bytes of it", frame.raw.len())),
        None => Ok(()),
    }
}

/// Updates with much stderr between them.
pub(super) fn talk_and_flood(run: &mut Run, about: &Value) -> Result<(), String> {
    let session = text(about, "session")?;
    let at = holder(run, session)?;
    let flood: Vec<u8> = b"so\xffn".iter().copied().cycle().take(number(about, "bytes")?).collect();
    for n in 0..number(about, "updates")? {
        let update = text_update("agent_message_chunk", &format!("word {n}"));
        run.puppet_says(at, &update_frame(session, &update))?;
        run.world.lock().order(at, b'R', flood.clone())?;
    }
    Ok(())
}
