//! The index of sessions: lost, old, broken; lists page by page.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::super::levers;
use super::super::run::{PATIENCE, Run, stored_from};
use super::super::script::bound;
use super::{number, text};

/// Sessions that the old index knows, and all.
const OLD: usize = 58;
const ALL: usize = 129;

fn index_file(run: &Run) -> PathBuf {
    run.place.home().join("data/index.sqlite")
}

/// Pages of `session/list` to the end.
fn pages(run: &mut Run, client: &str, params: &Value) -> Result<Vec<Vec<Value>>, String> {
    let mut params = params.clone();
    let mut pages = Vec::new();
    loop {
        let answer = run.call(client, "session/list", &params, PATIENCE)?;
        let page = answer["result"]["sessions"].as_array();
        let page = page.ok_or(format!("session/list was answered with {answer}"))?.clone();
        let next = answer["result"]["nextCursor"].clone();
        if page.is_empty() && !next.is_null() {
            return Err("an empty page has a next one".to_owned());
        }
        pages.push(page);
        if next.is_null() {
            return Ok(pages);
        }
        params["cursor"] = next;
    }
}

fn keys(pages: &[Vec<Value>]) -> Vec<String> {
    let rows = pages.iter().flatten();
    rows.filter_map(|row| row["_meta"]["frontdesk"]["key"].as_str()).map(str::to_owned).collect()
}

fn once(keys: &[String]) -> Result<BTreeSet<String>, String> {
    let set: BTreeSet<String> = keys.iter().cloned().collect();
    if set.len() == keys.len() { Ok(set) } else { Err(format!("twice: {keys:?}")) }
}

/// An index of an earlier day, none, or a damaged one is put in the place of the right one; the
/// rows and the answers are those of the journals.
pub(super) fn frozen_index(run: &mut Run, about: &Value) -> Result<(), String> {
    let about = run.world.lock().names.expand(about)?;
    let kind = text(&about, "kind")?.to_owned();
    let held = ["ix-1", "ix-2", "ix-3"];
    for session in held {
        levers::pull(run, "hold", &[json!("cA"), json!(session)])?;
    }
    store_up_to(run, OLD - held.len())?;
    let before = once(&keys(&pages(run, "cA", &json!({}))?))?;
    if before.len() != OLD {
        return Err(format!("{} rows at first", before.len()));
    }
    levers::pull(run, "stop_desk", &[])?;
    let old = fs::read(index_file(run)).map_err(|e| format!("no index: {e}"))?;
    levers::pull(run, "start_desk", &[])?;
    for session in held {
        levers::pull(run, "attach", &[json!("cA"), json!(session)])?;
        levers::pull(run, "turn", &[json!("cA"), json!(session), json!("turn 2")])?;
    }
    let extra = if kind == "ghosts" { 20 } else { 0 };
    store_up_to(run, ALL - held.len() + extra)?;
    let rows = pages(run, "cA", &json!({}))?.concat();
    levers::pull(run, "stop_desk", &[])?;
    let rows = drop_ghosts(run, rows, ALL - held.len())?;
    put_index(run, &kind, &old)?;
    // The agent's own list is of no help from here on.
    run.world.lock().agent("a1")?.scripted.insert(
        "session/list".to_owned(),
        super::super::world::Scripted {
            answer: json!({ "result": { "sessions": [] } }),
            times: u64::MAX,
        },
    );
    levers::pull(run, "start_desk", &[])?;
    let wanted = once(&keys(&[rows]))?;
    for round in 0..3 {
        // Whatever the index is doing: the first answer has all or is an error, never a part.
        for key in wanted.iter().take(if round == 0 { ALL } else { 1 }) {
            let answer =
                run.call("cA", "session/status", &json!({ "sessionId": key }), bound(BOUNDED))?;
            if answer["result"]["status"] != "inactive" {
                return Err(format!("status of {key}: {answer}"));
            }
        }
        let found = once(&keys(&pages(run, "cA", &json!({}))?))?;
        if found != wanted {
            let lost: Vec<_> = wanted.difference(&found).collect();
            return Err(format!("{} rows and not {ALL}; lost {lost:?}", found.len()));
        }
    }
    for session in held {
        let row = run.row(session)?.ok_or(format!("no row of {session}"))?;
        if row["turnCount"] != 2 || row["updatedAt"].as_str() <= row["createdAt"].as_str() {
            return Err(format!("a stale row: {row}"));
        }
    }
    Ok(())
}

/// The case's bounded time.
const BOUNDED: std::time::Duration = std::time::Duration::from_secs(2);

/// Fills the agent's store with sessions it lists, up to a number.
fn store_up_to(run: &Run, count: usize) -> Result<(), String> {
    let place = &run.place;
    let mut state = run.world.lock();
    let agent = state.agent("a1")?;
    for n in 1..=count {
        let at = format!("2021-03-01T{:02}:{:02}:00Z", n / 60, n % 60);
        let stored =
            stored_from(&json!({ "updatedAt": at, "title": format!("stored {n}") }), place);
        agent.store.entry(format!("stored-{n:03}")).or_insert(stored);
    }
    Ok(())
}

/// Removes the journals of stored sessions beyond a number; the rows that are left.
fn drop_ghosts(run: &Run, rows: Vec<Value>, keep: usize) -> Result<Vec<Value>, String> {
    let sessions = run.place.home().join("data/sessions");
    let mut left = Vec::new();
    for row in rows {
        let native = row["sessionId"].as_str().unwrap_or_default();
        let ghost = native
            .strip_prefix("stored-")
            .and_then(|n| n.parse::<usize>().ok())
            .is_some_and(|n| n > keep);
        if !ghost {
            left.push(row);
            continue;
        }
        let key = row["_meta"]["frontdesk"]["key"].as_str().unwrap_or_default().to_owned();
        let files = super::super::checks::files_below(&sessions);
        let folder = files.iter().filter_map(|file| file.parent()).find(|f| f.ends_with(&key));
        let folder = folder.ok_or(format!("no folder of {key}"))?;
        fs::remove_dir_all(folder).map_err(|e| format!("failed to remove a journal: {e}"))?;
    }
    Ok(left)
}

fn put_index(run: &Run, kind: &str, old: &[u8]) -> Result<(), String> {
    let path = index_file(run);
    let failed = |e: std::io::Error| format!("failed to change the index: {e}");
    match kind {
        "old" => fs::write(&path, old).map_err(failed),
        "none" => fs::remove_file(&path).map_err(failed),
        "empty" => fs::write(&path, "").map_err(failed),
        "page" => {
            let mut bytes = fs::read(&path).map_err(failed)?;
            // Every second page but the first ones: rows, trees and words alike.
            for page in (3..bytes.len() / 4096).step_by(2) {
                bytes[page * 4096..(page + 1) * 4096].fill(0x5a);
            }
            fs::write(&path, bytes).map_err(failed)
        }
        "ghosts" => Ok(()),
        other => Err(format!("no such index: {other}")),
    }
}

/// A list has these sessions, named by the agent, in this order (or, with `any`, in any).
pub(super) fn list_is(run: &mut Run, about: &Value) -> Result<(), String> {
    let client = about["client"].as_str().unwrap_or("cA").to_owned();
    let params = run.world.lock().names.expand(&about["params"])?;
    let params = if params.is_null() { json!({}) } else { params };
    let found = pages(run, &client, &params)?.concat();
    let publics = {
        let state = run.world.lock();
        let wanted = about["is"].as_array().into_iter().flatten().filter_map(Value::as_str);
        wanted.map(|native| state.names.public(native).to_owned()).collect::<Vec<_>>()
    };
    let mut ids: Vec<String> =
        found.iter().filter_map(|row| row["sessionId"].as_str()).map(str::to_owned).collect();
    let mut wanted = publics;
    if about["any"] == true {
        ids.sort_unstable();
        wanted.sort_unstable();
    }
    if ids == wanted { Ok(()) } else { Err(format!("{ids:?} and not {wanted:?}")) }
}

/// Unbound and bound clients, and the operator, see so many rows in a folder, each once.
pub(super) fn same_rows(run: &mut Run, about: &Value) -> Result<(), String> {
    let wanted = number(about, "rows")?;
    let params = run.world.lock().names.expand(&json!({ "cwd": text(about, "cwd")? }))?;
    for client in about["clients"].as_array().cloned().unwrap_or_default() {
        let client = client.as_str().ok_or("a client is a text")?.to_owned();
        let pages = pages(run, &client, &params)?;
        let found = once(&keys(&pages))?;
        if found.len() != wanted {
            return Err(format!("{client} sees {} rows and not {wanted}", found.len()));
        }
        let elsewhere = pages.iter().flatten().find(|row| row["cwd"] != params["cwd"]);
        if let Some(row) = elsewhere {
            return Err(format!("from elsewhere: {row}"));
        }
    }
    Ok(())
}

/// Cursors that no list gave, or another list.
pub(super) fn bad_cursors(run: &mut Run, about: &Value) -> Result<(), String> {
    let (alpha, beta) = {
        let names = &run.world.lock().names;
        (names.expand(&json!("${WS}/alpha"))?, names.expand(&json!("${WS}/beta"))?)
    };
    let client = text(about, "client")?.to_owned();
    let first = run.call(&client, "session/list", &json!({ "cwd": alpha }), PATIENCE)?;
    let cursor = first["result"]["nextCursor"].as_str().ok_or("no second page")?.to_owned();
    let mut edited = cursor.clone().into_bytes();
    let middle = edited.len() / 2;
    edited[middle] = if edited[middle] == b'0' { b'1' } else { b'0' };
    let edited = String::from_utf8_lossy(&edited).into_owned();
    let foreign = {
        let params = json!({ "cwd": alpha, "limit": 1 });
        let answer = run.call(&client, "_frontdesk/sessions", &params, PATIENCE)?;
        answer["result"]["nextCursor"].clone()
    };
    let refused = [
        json!({ "cwd": alpha, "cursor": edited }),
        json!({ "cwd": alpha, "cursor": "" }),
        json!({ "cwd": alpha, "cursor": "20" }),
        json!({ "cwd": alpha, "cursor": 20 }),
        json!({ "cwd": alpha, "cursor": foreign }),
        json!({ "cwd": beta, "cursor": cursor }),
        json!({ "cursor": cursor }),
    ];
    for params in refused {
        let answer = run.call(&client, "session/list", &params, PATIENCE)?;
        if answer["error"]["code"] != -32602 {
            return Err(format!("{params} was answered with {answer}"));
        }
    }
    let good = json!({ "cwd": alpha, "cursor": cursor });
    let answer = run.call(&client, "session/list", &good, PATIENCE)?;
    if answer["result"]["sessions"].is_array() { Ok(()) } else { Err(format!("{answer}")) }
}

/// No file of the index has this text.
pub(super) fn index_lacks(run: &mut Run, about: &Value) -> Result<(), String> {
    let wanted = text(about, "text")?.as_bytes().to_vec();
    let data = run.place.home().join("data");
    for name in ["index.sqlite", "index.sqlite-wal"] {
        let bytes = fs::read(data.join(name)).unwrap_or_default();
        if name == "index.sqlite" && bytes.is_empty() {
            return Err("there is no index".to_owned());
        }
        if bytes.windows(wanted.len()).any(|window| window == wanted) {
            return Err(format!("{name} has it"));
        }
    }
    Ok(())
}

/// Reads a list page by page; between two pages one of the steps is taken.
pub(super) fn rows_while(run: &mut Run, about: &Value) -> Result<(), String> {
    let client = text(about, "client")?.to_owned();
    let steps = about["between"].as_array().cloned().unwrap_or_default();
    let mut params = json!({});
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut taken = 0;
    loop {
        let answer = run.call(&client, "session/list", &params, PATIENCE)?;
        let page = answer["result"]["sessions"].as_array();
        let page = page.ok_or(format!("session/list was answered with {answer}"))?;
        for row in page {
            let key = row["_meta"]["frontdesk"]["key"].as_str().unwrap_or_default();
            *counts.entry(key.to_owned()).or_default() += 1;
        }
        let next = answer["result"]["nextCursor"].clone();
        if next.is_null() {
            break;
        }
        params = json!({ "cursor": next });
        if let Some(step) = steps.get(taken) {
            super::super::script::step(run, step)?;
            taken += 1;
        }
    }
    if taken < steps.len() {
        return Err(format!("the list ended after {taken} steps"));
    }
    let wanted = number(about, "rows")?;
    if counts.len() == wanted && counts.values().all(|count| *count == 1) {
        Ok(())
    } else {
        Err(format!("{wanted} rows, each once, and not {counts:?}"))
    }
}

/// While the desk is stopped: the last turn of a session gets a stamp of another year, as if the
/// clock had been wrong when it was written.
pub(super) fn future_stamp(run: &mut Run, about: &Value) -> Result<(), String> {
    let key = run.world.lock().names.public(text(about, "session")?).to_owned();
    let year = text(about, "year")?;
    let files = super::super::checks::files_below(&run.place.home().join("data/sessions"));
    let journal = files.iter().find(|file| file.ends_with(format!("{key}/journal.jsonl")));
    let journal = journal.ok_or(format!("no journal of {key}"))?;
    let text = fs::read_to_string(journal).map_err(|e| format!("no journal: {e}"))?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let start = lines.iter().rposition(|line| line.contains(r#""kind":"turn_started""#));
    let start = start.ok_or("no turn")?;
    for line in &mut lines[start..] {
        if line.contains(r#""kind":"turn_ended""#) || line.contains(r#""kind":"turn_started""#) {
            let at = line.find(r#""at":""#).ok_or("no stamp")? + 6;
            line.replace_range(at..at + 4, year);
        }
    }
    fs::write(journal, lines.join("\n") + "\n").map_err(|e| format!("failed to write: {e}"))
}

/// The row of a session has an order of its times: nothing before it was made.
pub(super) fn order_of_stamps(run: &mut Run, about: &Value) -> Result<(), String> {
    for session in about["sessions"].as_array().cloned().unwrap_or_default() {
        let session = session.as_str().ok_or("a session is a text")?.to_owned();
        let row = run.row(&session)?.ok_or(format!("no row of {session}"))?;
        let at = |name: &str| -> Result<Option<jiff::Timestamp>, String> {
            let text = row[name].as_str();
            text.map(|text| text.parse().map_err(|e| format!("{name} of {row}: {e}"))).transpose()
        };
        let created = at("createdAt")?.ok_or(format!("no createdAt: {row}"))?;
        for name in ["updatedAt", "lastActivityAt"] {
            if at(name)?.is_some_and(|at| at < created) {
                return Err(format!("{name} is before createdAt: {row}"));
            }
        }
    }
    Ok(())
}
