//! `_frontdesk/pending` and `_frontdesk/answer`: questions that wait for people, and their answers by
//! somebody who takes no part. An answer goes through the session's machine as a client's own does.

use std::path::PathBuf;
use std::sync::Arc;

use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::fold::OPENED_AT;
use frontdesk_core::names;
use frontdesk_core::question::{Inquest, Named, result_of};
use frontdesk_core::session::{Decision, NoAnswer};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::ext::{described, row_of, word_by};
use super::keep::command_id;
use crate::conn::Conn;
use crate::index::Archived;
use crate::log::{LogError, Reader};
use crate::node::Node;
use crate::node::change::command;
use crate::node::directory::Row;
use crate::node::page::Query;

/// Bytes read from a journal at a time.
const BATCH_BYTES: usize = 1 << 20;

/// One open question, and where it stands among the others.
struct Open {
    since: Option<Timestamp>,
    /// The record that opened it.
    seq: u64,
    told: Value,
}

pub(super) async fn pending(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    frame: &Frame,
    params: &Value,
) -> Result<Value, WireError> {
    let interaction = interaction(params)?;
    let rows = match (&interaction, params.get("sessionId")) {
        (_, Some(_)) => vec![row_of(node, conn, frame)?],
        (Some(id), None) => vec![row_asking(node, id).await?],
        (None, None) => node.directory.loaded(Row::wants_attention),
    };
    let now = Timestamp::now();
    // Who is asked is a lane's to say: all together get as long as a probe.
    let until = word_by(node);
    let mut open = Vec::new();
    for row in rows.iter().filter(|row| row.wants_attention()) {
        let live = described(node, row, until).await;
        let live = live.map(Value::Object).unwrap_or_default();
        for (id, asked) in &row.view.open_interactions {
            if interaction.as_ref().is_none_or(|wanted| wanted == id) {
                open.push(told(node, row, id, asked, &live, now));
            }
        }
    }
    if let (Some(id), [row], true) = (&interaction, rows.as_slice(), open.is_empty()) {
        return Err(why_not(node, row, id).await);
    }
    // Those whose instant is not known are older than all others.
    open.sort_by_key(|one| (one.since, one.seq));
    let told: Vec<Value> = open.into_iter().map(|one| one.told).collect();
    Ok(json!({ "pending": told }))
}

/// An open question as it is shown.
fn told(node: &Node, row: &Row, id: &str, asked: &Value, live: &Value, now: Timestamp) -> Open {
    let since = asked[OPENED_AT].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    let age = since.map(|since| now.as_millisecond().saturating_sub(since.as_millisecond()).max(0));
    let method = asked["method"].as_str().unwrap_or_default();
    let mut params = asked["params"].clone();
    if let Some(params) = params.as_object_mut() {
        params.remove("sessionId");
    }
    let title = params["toolCall"]["title"].as_str().or(params["message"].as_str());
    let kind = if method == "elicitation/create" { "elicitation" } else { "permission" };
    let known = live["interactions"].as_array().into_iter().flatten().find(|it| it["id"] == id);
    let mut told = json!({
        "interaction": id,
        "sessionId": row.public_id(),
        "key": row.key,
        "agent": row.view.agent,
        "cwd": row.view.cwd,
        "session": names::shown(&row.view),
        "method": method,
        "kind": kind,
        "title": title,
        "params": params,
        "openedAt": since.map(|at| at.to_string()),
        "ageMs": age,
        "turn": row.view.open_turn.as_ref().map(|turn| turn.turn.clone()),
        "asked": known.map(|it| it["asked"].clone()),
        "behind": node.log.is_behind(row.key).then_some(true),
    });
    if let Some(told) = told.as_object_mut() {
        told.retain(|_, value| !value.is_null());
    }
    Open { since, seq: Named::read(id).map_or(0, |named| named.seq), told }
}

pub(super) async fn answer(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    frame: &Frame,
    params: &Value,
) -> Result<Value, WireError> {
    let id = interaction(params)?.ok_or_else(|| invalid("params.interaction must be a string"))?;
    let row = match params.get("sessionId") {
        Some(_) => row_of(node, conn, frame)?,
        None => row_asking(node, &id).await?,
    };
    let result = frame.params().and_then(result_of).ok_or_else(|| {
        invalid("params.outcome must be there for a permission, params.action for an elicitation")
    })?;
    let client = conn.client();
    let decision = Decision {
        interaction: id.clone(),
        by: json!({ "client": &*client.key, "name": &*client.name, "kind": conn.kind }),
        result: result.clone(),
    };
    let told: Value = serde_json::from_str(&result).unwrap_or_default();
    let ack = json!({ "sessionId": row.public_id(), "interaction": id, "answer": told });
    let none = serde_json::Map::new();
    let command = command_id(params)?.map(|command_id| {
        let members = params.as_object().unwrap_or(&none);
        command(&command_id, "_frontdesk/answer", members, ack.clone())
    });
    match node.decide(row.key, decision, command.clone()).await? {
        Ok(None) => Ok(ack),
        Ok(Some(before)) if command.is_some_and(|command| before.is_same(&command)) => {
            Ok(before.ack)
        }
        Ok(Some(before)) => {
            let text = format!("params.commandId was used for another {} before", before.method);
            Err(invalid(text))
        }
        Err(NoAnswer::NotOffered) => Err(not_offered(&row, &id)),
        Err(NoAnswer::NotOpen) => Err(why_not(node, &row, &id).await),
    }
}

fn interaction(params: &Value) -> Result<Option<String>, WireError> {
    match &params["interaction"] {
        Value::Null => Ok(None),
        Value::String(id) => Ok(Some(id.clone())),
        _ => Err(invalid("params.interaction must be a string")),
    }
}

fn invalid(text: impl Into<String>) -> WireError {
    WireError::new(Code::InvalidParams, text)
}

/// The session that a question is, or was, open in. Ids name their session; those of older versions
/// are looked for among the open ones.
async fn row_asking(node: &Arc<Node>, id: &str) -> Result<Arc<Row>, WireError> {
    let unknown = || invalid("there is no such question").with_data(json!({ "interaction": id }));
    let open = node.directory.loaded(|row| row.view.open_interactions.contains_key(id));
    match open.as_slice() {
        [one] => return Ok(one.clone()),
        [] => {}
        several => {
            let keys: Vec<_> = several.iter().map(|row| row.key).collect();
            let text = "several sessions have a question with this id; say params.sessionId too";
            return Err(invalid(text).with_data(json!({ "interaction": id, "candidates": keys })));
        }
    }
    let prefix = Named::read(id).and_then(|named| named.key_prefix).ok_or_else(unknown)?;
    let query =
        Query { prefix: Some(prefix), archived: Archived::Any, limit: 1, ..Query::default() };
    node.page(query).await.rows.first().cloned().ok_or_else(unknown)
}

fn not_offered(row: &Row, id: &str) -> WireError {
    let params = row.view.open_interactions.get(id).map(|asked| &asked["params"]);
    let options = params.map(|params| params["options"].clone()).unwrap_or_default();
    let text = "this is no answer that the agent offered; the question is still open";
    invalid(text).with_data(json!({ "interaction": id, "options": options }))
}

/// Why a question cannot be answered: its end, as the journal has it.
async fn why_not(node: &Arc<Node>, row: &Row, id: &str) -> WireError {
    let unknown =
        || invalid("the session has no such question").with_data(json!({ "interaction": id }));
    let prefix = Named::read(id).and_then(|named| Some((named.key_prefix?, named.seq)));
    let seq = match (prefix, Named::read(id)) {
        (Some((prefix, seq)), _) if row.key.to_string().starts_with(&prefix) => seq,
        (None, Some(named)) => named.seq,
        _ => return unknown(),
    };
    let (path, wanted) = (row.path.clone(), id.to_owned());
    let read = tokio::task::spawn_blocking(move || inquire(path, seq, &wanted)).await;
    let inquest = match read {
        Ok(Ok(inquest)) => inquest,
        Ok(Err(error)) => {
            tracing::error!(session = %row.key, %error, "failed to read a journal");
            return WireError::new(Code::Storage, "the session's journal could not be read");
        }
        Err(_) => return WireError::new(Code::Internal, "the journal's reader failed"),
    };
    match inquest.settlement() {
        Some(end) => WireError::new(Code::Settled, end.words())
            .with_data(json!({ "interaction": id, "settlement": end.to_json() })),
        // It is open by the journal, and the lane does not have it: the disk is behind.
        None if inquest.was_asked() => node
            .not_behind(Some(row.key))
            .err()
            .unwrap_or_else(|| invalid("the question cannot be answered at present")),
        None => unknown(),
    }
}

fn inquire(path: PathBuf, seq: u64, id: &str) -> Result<Inquest, LogError> {
    let mut inquest = Inquest::of(id);
    let mut reader = Reader::open_before(&path, seq)?;
    loop {
        let batch = reader.read_batch(BATCH_BYTES)?;
        if batch.is_empty() || !batch.iter().all(|record| inquest.take(record)) {
            return Ok(inquest);
        }
    }
}
