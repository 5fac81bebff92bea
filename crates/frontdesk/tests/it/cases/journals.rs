//! Journals as files: what a script changes in them while the desk is stopped, and what it checks of
//! them. Changes are told relative to the records that the desk wrote.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::pattern::cut;
use super::puppets::{text_update, update_frame};
use super::run::Run;

/// A character of three bytes, to be cut in.
const THREE_BYTES: &str = "\u{20ac}";

/// A journal that a script has looked at.
#[derive(Debug, Default)]
pub(super) struct Noted {
    path: PathBuf,
    bytes: Vec<u8>,
    /// Number of the first record that the script put there.
    grown_from: u64,
}

/// `["do", "journal", session, {…}]`: `note` looks at it; the others change it, and the desk must
/// not run.
pub(super) fn change(run: &mut Run, session: &str, about: &Value) -> Result<(), String> {
    if !run.journals.contains_key(session) || run.desk.is_some() {
        let row = run.row(session)?.ok_or(format!("no row for {session}"))?;
        let path = row["path"].as_str().ok_or(format!("row {row} has no path"))?;
        let noted = Noted { path: path.into(), ..Noted::default() };
        run.journals.entry(session.to_owned()).or_insert(noted);
    }
    let is_stopped = run.desk.is_none();
    let noted = run.journals.get_mut(session).ok_or("no such journal")?;
    let read = std::fs::read(&noted.path);
    let mut bytes = read.map_err(|e| format!("failed to read {}: {e}", noted.path.display()))?;
    if about["note"] != true {
        if !is_stopped {
            return Err("a journal is changed only while the desk is stopped".to_owned());
        }
        noted.grown_from = noted.grown_from.max(grow(&mut bytes, session, about)?);
        cut_last(&mut bytes, &about["cut_last_to"])?;
        replace(&mut bytes, about)?;
        respell(&mut bytes, about)?;
        let written = std::fs::write(&noted.path, &bytes);
        written.map_err(|e| format!("failed to write {}: {e}", noted.path.display()))?;
    }
    noted.bytes = bytes;
    Ok(())
}

fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// The stamp of a record that a script puts in: its number in seconds after a fixed instant.
fn stamp(seq: u64) -> String {
    format!("2030-01-01T{:02}:{:02}:{:02}.000000Z", seq / 3600, seq / 60 % 60, seq % 60)
}

/// Adds updates up to a number of records, the last one of so many bytes; their first number.
fn grow(bytes: &mut Vec<u8>, session: &str, about: &Value) -> Result<u64, String> {
    let Some(all) = about["grow_to"].as_u64() else { return Ok(0) };
    let last: Value = lines(bytes)
        .last()
        .and_then(|line| serde_json::from_slice(line).ok())
        .ok_or("the journal has no record")?;
    let first = last["seq"].as_u64().ok_or("a record has a number")? + 1;
    for seq in first..=all {
        let line = |pad: &str| {
            let text = format!("grown {seq}{THREE_BYTES}{pad}");
            let data = json!({ "sessionId": session, "update": text_update("agent_message_chunk", &text) });
            let record = json!({
                "v": 1, "seq": seq, "epoch": last["epoch"], "at": stamp(seq), "kind": "update", "data": data,
            });
            record.to_string()
        };
        let wanted = about["last_bytes"].as_u64().filter(|_| seq == all).unwrap_or(0);
        let room = usize::try_from(wanted).unwrap_or(0).saturating_sub(line("").len());
        bytes.extend_from_slice(line(&"p".repeat(room)).as_bytes());
        bytes.push(b'\n');
    }
    Ok(first)
}

/// Keeps so many bytes of the last line; `lf` takes only its line end, `utf8` cuts in a character.
fn cut_last(bytes: &mut Vec<u8>, to: &Value) -> Result<(), String> {
    let all = lines(bytes);
    let Some(last) = all.last().filter(|_| !to.is_null()) else { return Ok(()) };
    let start = bytes.len() - last.len();
    let keep = match to.as_str() {
        Some("lf") => last.len() - 1,
        Some("utf8") => {
            let mut at = last.windows(3).rposition(|window| window == THREE_BYTES.as_bytes());
            at.take().ok_or("the last record has no such character")? + 1
        }
        _ => usize::try_from(to.as_u64().ok_or(format!("not a place to cut: {to}"))?)
            .map_err(|e| e.to_string())?,
    };
    bytes.truncate(start + keep);
    Ok(())
}

/// Puts something else in the place of one record, counted from 1.
fn replace(bytes: &mut Vec<u8>, about: &Value) -> Result<(), String> {
    let Some(number) = about["replace"].as_u64() else { return Ok(()) };
    let mut all = lines(bytes);
    let at = usize::try_from(number).map_err(|e| e.to_string())? - 1;
    let line = all.get_mut(at).ok_or("no such record")?;
    match (&about["with"], about["with"].as_str()) {
        (_, Some("half")) => {
            line.truncate(line.len() / 2);
            line.push(b'\n');
        }
        (_, Some("weld")) => line.truncate(line.len() - 1),
        (_, Some("unknown kind")) => {
            let mut record: Value = serde_json::from_slice(line).map_err(|e| e.to_string())?;
            record["kind"] = json!("of_a_later_version");
            *line = format!("{record}\n").into_bytes();
        }
        (_, Some(text)) => *line = format!("{text}\n").into_bytes(),
        (other, None) => return Err(format!("nothing to put there: {other}")),
    }
    *bytes = all.concat();
    Ok(())
}

/// Other line ends for the records `crlf: [from, to]`, and a byte order mark.
fn respell(bytes: &mut Vec<u8>, about: &Value) -> Result<(), String> {
    let mut all = lines(bytes);
    if let [from, to] = about["crlf"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let bounds = from.as_u64().zip(to.as_u64()).ok_or("crlf takes two numbers")?;
        for (number, line) in (1u64..).zip(&mut all) {
            if (bounds.0..=bounds.1).contains(&number) && line.ends_with(b"\n") {
                line.truncate(line.len() - 1);
                line.extend_from_slice(b"\r\n");
            }
        }
    }
    *bytes = all.concat();
    if about["bom"] == true {
        bytes.splice(..0, *b"\xef\xbb\xbf");
    }
    Ok(())
}

/// `["check", "journal", session, {…}]`: `unchanged` since it was noted; `begins` as it was then;
/// `kept`: the bytes of then are all there.
pub(super) fn check(run: &Run, session: &str, about: &Value) -> Result<(), String> {
    let noted = run.journals.get(session).ok_or(format!("{session} was not noted"))?;
    let now = std::fs::read(&noted.path).map_err(|e| e.to_string())?;
    if about["unchanged"] == true && now != noted.bytes {
        return Err(format!("{} bytes were noted, {} are there", noted.bytes.len(), now.len()));
    }
    if about["begins"] == true && !now.starts_with(&noted.bytes) {
        return Err("what was there has changed".to_owned());
    }
    Ok(())
}

/// `["check", "told", client, {…}]`: texts that begin with `prefix` and a number, told to a client
/// since `since`, are those `from` (else the first grown one of `of`) up to `to`, but for `without`,
/// in order and each once.
pub(super) fn told(run: &Run, client: &str, about: &Value) -> Result<(), String> {
    let since = about["since"].as_str().map_or(Some(0), |name| run.marks.get(name).copied());
    let (_, frames) = run.frames(client, since.ok_or("no such mark")?)?;
    let prefix = about["prefix"].as_str().unwrap_or("grown ");
    let found: Vec<u64> = frames
        .iter()
        .filter_map(|frame| {
            let text = frame.value.as_ref()?["params"]["update"]["content"]["text"].as_str()?;
            let digits = text.strip_prefix(prefix)?;
            let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            digits[..end].parse().ok()
        })
        .collect();
    let from = about["of"].as_str().and_then(|of| Some(run.journals.get(of)?.grown_from));
    let from = about["from"].as_u64().or(from).unwrap_or(1);
    let to = about["to"].as_u64().ok_or("told needs `to`")?;
    let without: Vec<u64> =
        about["without"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    let wanted: Vec<u64> = (from..=to).filter(|number| !without.contains(number)).collect();
    if found == wanted {
        return Ok(());
    }
    let at = found.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
    Err(format!(
        "{client} was told {} of {}; they differ at {at}: {:?} and not {:?}",
        found.len(),
        wanted.len(),
        found.get(at),
        wanted.get(at)
    ))
}

/// `["do", "stream", agent, session, {count, every_ms}]`: the agent goes on saying `part N` while
/// the script does other things.
pub(super) fn stream(run: &Run, agent: &str, session: &str, about: &Value) -> Result<(), String> {
    let at = run.world.lock().holder(agent, session);
    let at = at.ok_or(format!("no process of {agent} holds {session}"))?;
    let count = about["count"].as_u64().ok_or(format!("no count in {}", cut(about)))?;
    let pause = Duration::from_millis(about["every_ms"].as_u64().unwrap_or(50));
    let (world, session) = (Arc::clone(&run.world), session.to_owned());
    thread::spawn(move || {
        for number in 1..=count {
            let update = text_update("agent_message_chunk", &format!("part {number}"));
            let frame = update_frame(&session, &update);
            if world.lock().say(world.begun, at, &frame).is_err() {
                return;
            }
            thread::sleep(pause);
        }
    });
    Ok(())
}
