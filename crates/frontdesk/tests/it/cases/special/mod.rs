//! What cannot be said as data: named functions that a script runs.

mod crowd;
mod index;
mod large;
mod odd;
mod stored;
mod turns;

use std::time::Duration;

use serde_json::{Value, json};

use super::pattern::{Side, cut};
use super::run::{PATIENCE, Run};

/// A function that a script names.
type Special = fn(&mut Run, &Value) -> Result<(), String>;

/// Finds a function by the name that the case files use.
pub(super) fn find(name: &str) -> Result<Special, String> {
    Ok(match name {
        "frozen_index" => index::frozen_index,
        "list_is" => index::list_is,
        "same_rows" => index::same_rows,
        "bad_cursors" => index::bad_cursors,
        "index_lacks" => index::index_lacks,
        "rows_while" => index::rows_while,
        "future_stamp" => index::future_stamp,
        "order_of_stamps" => index::order_of_stamps,
        "exit_and_resume_race" => crowd::exit_and_resume_race,
        "resume_race" => crowd::resume_race,
        "fifty_clients" => crowd::fifty_clients,
        "big_frames" => large::big_frames,
        "frame_too_long" => large::frame_too_long,
        "talk_and_flood" => large::talk_and_flood,
        "early_flood" => odd::early_flood,
        "client_batches" => odd::client_batches,
        "agent_batch" => odd::agent_batch,
        "turns_are_seen" => turns::turns_are_seen,
        "weld_rounds" => stored::weld_rounds,
        "second_desk" => odd::second_desk,
        "short_names" => odd::short_names,
        "watch" => odd::watch,
        "unwatched" => odd::unwatched,
        "hostile_mint" => odd::hostile_mint,
        _ => return Err(format!("no such function: {name}")),
    })
}

/// A text argument.
fn text<'a>(about: &'a Value, name: &str) -> Result<&'a str, String> {
    about[name].as_str().ok_or(format!("{name} is missing in {about}"))
}

/// A number argument.
fn number(about: &Value, name: &str) -> Result<usize, String> {
    let found = about[name].as_u64().and_then(|number| usize::try_from(number).ok());
    found.ok_or(format!("{name} is missing in {about}"))
}

/// How many rounds of a race are played: `CASE_ROUNDS`, or what the case says, or a fifth of it
/// outside CI.
fn rounds(about: &Value) -> Result<usize, String> {
    let told = std::env::var("CASE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    match told {
        Some(rounds) => Ok(rounds),
        None if std::env::var_os("CI").is_some() => number(about, "rounds"),
        None => Ok(number(about, "rounds")?.div_ceil(5)),
    }
}

/// The process that holds a session.
fn holder(run: &Run, session: &str) -> Result<usize, String> {
    let found = run.world.lock().holder("a1", session);
    found.ok_or(format!("no process holds {session}"))
}

/// Waits for the answer of a request that a script sent with an id of its own.
fn answered(run: &Run, client: &str, id: &Value, patience: Duration) -> Result<Value, String> {
    run.answer(client, id, patience)
}

/// Sends a request with the id that is given.
fn request(
    run: &Run,
    client: &str,
    id: &Value,
    method: &str,
    params: &Value,
) -> Result<(), String> {
    let params = run.world.lock().names.fill(params, Side::Client)?;
    run.send(client, &json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
}

/// Learns the desk's spelling of a session from the answer of `session/new`.
fn learn(run: &Run, native: &str, answer: &Value) -> Result<(), String> {
    let mut state = run.world.lock();
    let pattern = json!({ "result": { "sessionId": native } });
    let found = state.names.fits(&pattern, answer, Side::Client);
    let found = found.map_err(|e| format!("session/new was answered with {}: {e}", cut(answer)))?;
    state.names.keep(found);
    Ok(())
}

/// The parameters of a prompt of one text.
fn prompt(session: &str, text: &str) -> Value {
    json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] })
}

/// How a session is now, in one word.
fn is_suspect(run: &mut Run, client: &str, session: &str) -> Result<bool, String> {
    let answer = run.call(client, "session/status", &json!({ "sessionId": session }), PATIENCE)?;
    Ok(answer["result"]["_meta"]["frontdesk"]["lease"] == "suspect")
}

fn status(run: &mut Run, client: &str, session: &str) -> Result<String, String> {
    let answer = run.call(client, "session/status", &json!({ "sessionId": session }), PATIENCE)?;
    let word = answer["result"]["status"].as_str().map(str::to_owned);
    word.ok_or(format!("session/status was answered with {}", cut(&answer)))
}
