//! Checks: statements about what was seen, each of which can fail.

use std::time::Duration;

use serde_json::{Value, json};

use super::desk::memory_kib;
use super::pattern::{Side, cut};
use super::run::{OPERATOR, PATIENCE, Run};
use super::script::patience;

/// How long a check that waits does so, if it does not say.
const UNTIL: Duration = Duration::from_secs(60);

/// Runs one check.
pub(super) fn check(run: &mut Run, name: &str, arguments: &[Value]) -> Result<(), String> {
    let arguments: Vec<Value> = {
        let state = run.world.lock();
        arguments.iter().map(|a| state.names.expand(a)).collect::<Result<_, _>>()?
    };
    let item = |at: usize| arguments.get(at).cloned().unwrap_or_default();
    let text = |at: usize| {
        let text = arguments.get(at).and_then(Value::as_str).map(str::to_owned);
        text.ok_or(format!("check {name}: argument {} is no text", at + 1))
    };
    match name {
        "count" => {
            let until = patience(&item(3), "until")?.unwrap_or_default();
            let who = text(0)?;
            run.until(until, |run| count(run, &who, &item(1), &item(2), &item(3)))
        }
        "order" => order(run, &text(0)?, &item(1), &item(2)),
        "desk_env" => desk_env(run, &text(0)?, &text(1)?),
        "row" => {
            let until = patience(&item(2), "until")?.unwrap_or(UNTIL);
            let session = text(0)?;
            run.until(until, |run| row(run, &session, &item(1)))
        }
        "log" => {
            let until = patience(&item(2), "until")?.unwrap_or(UNTIL);
            let session = text(0)?;
            run.until(until, |run| log(run, &session, &item(1)))
        }
        "journal" => super::journals::check(run, &text(0)?, &item(1)),
        "told" => {
            let until = patience(&item(1), "until")?.unwrap_or(UNTIL);
            let who = text(0)?;
            run.until(until, |run| super::journals::told(run, &who, &item(1)))
        }
        "info" => {
            let until = patience(&item(1), "until")?.unwrap_or(UNTIL);
            run.until(until, |run| {
                let answer = run.call(OPERATOR, "_frontdesk/info", &json!({}), PATIENCE)?;
                fits(run, &item(0), &answer["result"], Side::Client)
            })
        }
        // Processes of an agent: alive now, or started in all.
        "alive" | "started" => {
            let until = patience(&item(2), "until")?.unwrap_or_default();
            let agent = text(0)?;
            run.until(until, |run| {
                let state = run.world.lock();
                let ours = state.puppets.iter().filter(|puppet| puppet.agent == agent);
                let found = ours.filter(|puppet| name == "started" || !puppet.gone).count();
                within(found, &item(1), &format!("processes of {agent} {name}"))
            })
        }
        // The process that a lever was last aimed at is gone.
        "ended" => {
            let hit = run.hit.ok_or("no lever was aimed at a process")?;
            let until = patience(&item(0), "until")?.unwrap_or(UNTIL);
            run.world.wait(until, "the end of the process", |state| {
                Ok(state.puppet(hit)?.gone.then_some(()))
            })
        }
        // Frames that this very process has read.
        "count_hit" => {
            let hit = run.hit.ok_or("no lever was aimed at a process")?;
            let since = item(2)["since"].as_str().and_then(|name| run.marks.get(name).copied());
            let mut state = run.world.lock();
            let names = state.names.clone();
            let frames = state.puppet(hit)?.frames.iter();
            let frames = frames.filter(|frame| frame.order > since.unwrap_or(0));
            let values = frames.filter_map(|frame| frame.value.as_ref());
            let found = values.filter(|v| names.fits(&item(0), v, Side::Agent).is_ok()).count();
            within(found, &item(1), &format!("frames to the process like {}", cut(&item(0))))
        }
        "sequence" => sequence(run, &item(0), &item(1)),
        // Every line that the client got is a JSON-RPC frame.
        "all_frames" => {
            let (_, frames) = run.frames(&text(0)?, 0)?;
            let bad = frames.iter().find(|frame| frame.member("jsonrpc") != Some(&json!("2.0")));
            bad.map_or(Ok(()), |frame| Err(format!("{frame:?} is no frame")))
        }
        // A text stands, or does not stand, in some file below a folder.
        "grep" | "file_names" => {
            let (folder, wanted) = (expanded(run, &item(0))?, expanded(run, &item(1))?);
            let files = files_below(std::path::Path::new(&folder));
            let found = files.iter().find(|path| {
                if name == "grep" {
                    let bytes = std::fs::read(path).unwrap_or_default();
                    return bytes.windows(wanted.len()).any(|window| window == wanted.as_bytes());
                }
                path.to_string_lossy().contains(&wanted)
            });
            if json!(found.is_some()) == item(2) {
                Ok(())
            } else {
                Err(format!("{wanted:?} below {folder}: {found:?}"))
            }
        }
        // Bytes of the files below a folder whose names begin so.
        "bytes_below" => {
            let (folder, begin) = (expanded(run, &item(0))?, expanded(run, &item(1))?);
            let files = files_below(std::path::Path::new(&folder)).into_iter();
            let files = files.filter(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&begin))
            });
            let bytes: u64 = files.filter_map(|path| Some(path.metadata().ok()?.len())).sum();
            within(usize::try_from(bytes).unwrap_or(usize::MAX), &item(2), "bytes")
        }
        // The row's path is a file that exists.
        "row_file" => {
            let row = run.row(&expanded(run, &item(0))?)?.ok_or("no row")?;
            let path = row["path"].as_str().ok_or(format!("row {row} has no path"))?;
            let there = std::path::Path::new(path).is_file();
            if there { Ok(()) } else { Err(format!("{path} is no file")) }
        }
        "desk_silent" => {
            let words = item(0).as_array().cloned().unwrap_or_default();
            let said = run.place.said("desk");
            let words = {
                let state = run.world.lock();
                words.iter().map(|w| state.names.expand(w)).collect::<Result<Vec<_>, _>>()?
            };
            match words.iter().filter_map(Value::as_str).find(|word| said.contains(*word)) {
                Some(word) => Err(format!("the daemon's stderr has {word:?}")),
                None => Ok(()),
            }
        }
        "desk_memory_kib" => {
            let pid = run.desk.as_ref().ok_or("no desk runs")?.pid();
            let peak = memory_kib(pid, "VmHWM").ok_or("failed to read the daemon's memory")?;
            run.world.note(&format!("the daemon's peak is {peak} KiB"));
            within(usize::try_from(peak).unwrap_or(usize::MAX), &item(0), "KiB of the daemon")
        }
        "connected" => {
            let client = text(0)?;
            let closed = run.world.lock().client(&client)?.closed;
            if closed { Err(format!("{client} was disconnected")) } else { Ok(()) }
        }
        "disconnected" => {
            let client = text(0)?;
            run.world.wait(UNTIL, &format!("the end of {client}"), |state| {
                Ok(state.client(&client)?.closed.then_some(()))
            })
        }
        // A text stands in some frame, byte for byte.
        "raw_has" => {
            let wanted = text(1)?.into_bytes();
            let (_, frames) = run.frames(&text(0)?, 0)?;
            let mut raws = frames.iter().map(|frame| &frame.raw);
            if raws.any(|raw| raw.windows(wanted.len()).any(|window| window == wanted)) {
                Ok(())
            } else {
                Err(format!("no frame has {}", item(1)))
            }
        }
        "file" => {
            let path = text(0)?;
            let path = run.world.lock().names.expand(&json!(path))?;
            let there = path.as_str().is_some_and(|path| std::path::Path::new(path).is_file());
            if json!(there) == item(1) { Ok(()) } else { Err(format!("{path}: there: {there}")) }
        }
        _ => Err(format!("no such check: {name}")),
    }
}

/// A number, or `{least, most}`.
fn within(found: usize, wanted: &Value, what: &str) -> Result<(), String> {
    let found = found as u64;
    let least = wanted.as_u64().or(wanted["least"].as_u64()).unwrap_or(0);
    let most = wanted.as_u64().or(wanted["most"].as_u64()).unwrap_or(u64::MAX);
    if (least..=most).contains(&found) {
        Ok(())
    } else {
        Err(format!("{what}: {found}, not {wanted}"))
    }
}

/// Whether a value fits a pattern; captures are kept.
pub(super) fn fits(run: &Run, pattern: &Value, value: &Value, side: Side) -> Result<(), String> {
    let mut state = run.world.lock();
    let pattern = state.names.expand(pattern)?;
    let found = state.names.fits(&pattern, value, side)?;
    state.names.keep(found);
    Ok(())
}

fn count(
    run: &Run,
    who: &str,
    pattern: &Value,
    wanted: &Value,
    options: &Value,
) -> Result<(), String> {
    let since = options["since"].as_str().map_or(Some(0), |name| run.marks.get(name).copied());
    let (side, frames) = run.frames(who, since.ok_or("no such mark")?)?;
    let names = run.world.lock().names.clone();
    let pattern = names.expand(pattern)?;
    let values = frames.iter().filter_map(|frame| frame.value.as_ref());
    let found = values.filter(|value| names.fits(&pattern, value, side).is_ok()).count();
    within(found, wanted, &format!("frames to {who} like {}", cut(&pattern)))
}

/// The running daemon has this in its environment.
fn desk_env(run: &Run, name: &str, value: &str) -> Result<(), String> {
    let pid = run.desk.as_ref().ok_or("no desk runs")?.pid();
    let environment = std::fs::read(format!("/proc/{pid}/environ"));
    let environment = environment.map_err(|e| format!("failed to read the environment: {e}"))?;
    let wanted = format!("{name}={value}");
    if environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes()) {
        return Ok(());
    }
    Err(format!("the daemon runs without {wanted}"))
}

/// The first frames that fit each pattern came in the order of the patterns.
fn order(run: &Run, who: &str, patterns: &Value, options: &Value) -> Result<(), String> {
    let since = options["since"].as_str().map_or(Some(0), |name| run.marks.get(name).copied());
    let (side, frames) = run.frames(who, since.ok_or("no such mark")?)?;
    let names = run.world.lock().names.clone();
    let mut last = 0;
    for pattern in patterns.as_array().ok_or("order takes a list")? {
        let pattern = names.expand(pattern)?;
        let first = frames.iter().find(|frame| {
            frame.value.as_ref().is_some_and(|value| names.fits(&pattern, value, side).is_ok())
        });
        let first = first.ok_or(format!("{who} never got {}", cut(&pattern)))?.order;
        if first <= last {
            return Err(format!("{who} got {} too early", cut(&pattern)));
        }
        last = first;
    }
    Ok(())
}

/// First frames of different actors, in this order.
fn sequence(run: &Run, list: &Value, options: &Value) -> Result<(), String> {
    let since = options["since"].as_str().map_or(Some(0), |name| run.marks.get(name).copied());
    let since = since.ok_or("no such mark")?;
    let names = run.world.lock().names.clone();
    let mut last = 0;
    for pair in list.as_array().ok_or("sequence takes a list")? {
        let who = pair[0].as_str().ok_or("sequence takes [who, pattern]")?;
        let pattern = names.expand(&pair[1])?;
        let (side, frames) = run.frames(who, since)?;
        let first = frames.iter().find(|frame| {
            frame.value.as_ref().is_some_and(|value| names.fits(&pattern, value, side).is_ok())
        });
        let first = first.ok_or(format!("{who} never got {}", cut(&pattern)))?.order;
        if first <= last {
            return Err(format!("{who} got {} too early", cut(&pattern)));
        }
        last = first;
    }
    Ok(())
}

fn expanded(run: &Run, text: &Value) -> Result<String, String> {
    let value = run.world.lock().names.expand(text)?;
    value.as_str().map(str::to_owned).ok_or(format!("not a text: {value}"))
}

/// All files below a folder; links are not followed.
pub(super) fn files_below(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}

/// The row of a session fits, or, with null, there is none.
fn row(run: &mut Run, session: &str, pattern: &Value) -> Result<(), String> {
    match (run.row(session)?, pattern) {
        (None, Value::Null) => Ok(()),
        (Some(row), Value::Null) => Err(format!("there is a row: {}", cut(&row))),
        (None, _) => Err(format!("no row for {session}")),
        (Some(row), pattern) => {
            fits(run, pattern, &row, Side::Client).map_err(|e| format!("row {}: {e}", cut(&row)))
        }
    }
}

/// The log has these records in this order (others may lie between), and none of those.
fn log(run: &mut Run, session: &str, wanted: &Value) -> Result<(), String> {
    let records = run.log(session)?;
    let names = run.world.lock().names.clone();
    let like = |pattern: &Value, record: &Value| -> bool {
        names.fits(pattern, record, Side::Agent).is_ok()
    };
    let mut rest = records.iter();
    for pattern in wanted["has"].as_array().into_iter().flatten() {
        let pattern = names.expand(pattern)?;
        if !rest.any(|record| like(&pattern, record)) {
            let kinds: Vec<String> = records.iter().map(cut).collect();
            return Err(format!("the log lacks {}; it has\n{}", cut(&pattern), kinds.join("\n")));
        }
    }
    for pattern in wanted["lacks"].as_array().into_iter().flatten() {
        let pattern = names.expand(pattern)?;
        if let Some(record) = records.iter().find(|record| like(&pattern, record)) {
            return Err(format!("the log has {}", cut(record)));
        }
    }
    for counted in wanted["counts"].as_array().into_iter().flatten() {
        let pattern = names.expand(&counted[0])?;
        let found = records.iter().filter(|record| like(&pattern, record)).count();
        within(found, &counted[1], &format!("records like {}", cut(&pattern)))?;
    }
    Ok(())
}
