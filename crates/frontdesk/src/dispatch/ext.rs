//! `_frontdesk/…`: what the command line uses and any other program may use too.

use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::ids::Seq;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::sessions::{reindex, sessions};
use super::{params, resolve, session_id};
use crate::conn::Conn;
use crate::log::{LogError, Reader};
use crate::node::Node;
use crate::node::directory::Row;

/// Records in one answer of `_frontdesk/log`, at most.
const LOG_RECORDS_MAX: u64 = 1000;
/// Bytes read from a journal at a time.
const BATCH_BYTES: usize = 1 << 20;
/// How often a waiting `_frontdesk/log` looks again.
const LOG_AGAIN: Duration = Duration::from_millis(50);

pub(super) async fn frontdesk(
    node: Arc<Node>,
    conn: Arc<Conn>,
    frame: Frame,
) -> Option<Result<String, WireError>> {
    let params = params(&frame);
    let answer = match &*frame.method {
        "_frontdesk/info" => Ok(info(&node)),
        "_frontdesk/sessions" => sessions(&node, &conn, &params).await,
        "_frontdesk/reindex" => Ok(reindex(&node, &params)),
        "_frontdesk/session" => session(&node, &conn, &frame).await,
        "_frontdesk/pending" => super::answer::pending(&node, &conn, &frame, &params).await,
        "_frontdesk/answer" => super::answer::answer(&node, &conn, &frame, &params).await,
        "_frontdesk/log" => return Some(log(&node, &conn, &frame, &params).await),
        "_frontdesk/agents" => Ok(agents(&node)),
        "_frontdesk/check" => check(&node, &conn, &params).await,
        "_frontdesk/who" => match row_of(&node, &conn, &frame) {
            Ok(row) => Ok(super::take::who(&node, &row).await),
            Err(error) => Err(error),
        },
        "_frontdesk/take" => match row_of(&node, &conn, &frame) {
            Ok(row) => super::take::take(&node, &conn, row).await,
            Err(error) => Err(error),
        },
        "_frontdesk/release" => match row_of(&node, &conn, &frame) {
            Ok(row) => super::take::release(&node, &conn, row).await,
            Err(error) => Err(error),
        },
        "_frontdesk/rename" | "_frontdesk/archive" | "_frontdesk/policy" | "_frontdesk/fork" => {
            match row_of(&node, &conn, &frame) {
                Ok(row) => super::keep::call(&node, &conn, row, &frame.method, &params).await,
                Err(error) => Err(error),
            }
        }
        "_frontdesk/stop" => {
            node.request_stop(params["all"].as_bool().unwrap_or(false));
            Ok(json!({}))
        }
        "_frontdesk/restart" => {
            node.request_hand_over();
            Ok(json!({}))
        }
        method => Err(WireError::method_not_found(method)),
    };
    Some(answer.map(|value| value.to_string()))
}

fn info(node: &Node) -> Value {
    let health = node.log.health();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "data": node.paths.data,
        "home": node.paths.data.parent(),
        "socket": node.paths.socket(),
        "since": node.since,
        "sessions": node.directory.count(None),
        "active": node.directory.loaded(|_| true).len(),
        "clients": node.conn_count(),
        "instances": node.running_instances().len(),
        "defaultAgent": node.config.default_agent,
        "disk": { "full": health.full, "readOnly": health.read_only, "unsynced": health.unsynced },
        "counters": node.counters(),
    })
}

pub(super) fn row_of(node: &Node, conn: &Conn, frame: &Frame) -> Result<Arc<Row>, WireError> {
    let asked = session_id(frame)?;
    resolve(node, conn, &asked)?
        .and_then(|key| node.directory.get(key))
        .ok_or_else(|| WireError::not_found(&asked))
}

async fn session(node: &Arc<Node>, conn: &Arc<Conn>, frame: &Frame) -> Result<Value, WireError> {
    let row = row_of(node, conn, frame)?;
    let mut result = row_json(node, &row);
    result["additionalDirectories"] = json!(row.view.additional_directories);
    if !row.is_loaded() {
        // The index has no more of the options than which are in force.
        let path = row.path.clone();
        let read = move || crate::node::recover::read_view(&path);
        if let Ok(Ok(view)) = tokio::task::spawn_blocking(read).await {
            result["options"] = json!(view.options);
        }
    } else {
        result["options"] = json!(row.view.options);
    }
    if let (Some(result), Value::Object(facts)) = (result.as_object_mut(), kept_facts(node, &row)) {
        result.extend(facts);
    }
    result["clients"] = json!([]);
    result["interactions"] = json!([]);
    result["lateWrites"] = json!(node.late_writes(row.key));
    result["behind"] = json!(node.log.is_behind(row.key));
    if let Some(live) = described(node, &row, word_by(node)).await {
        for (name, value) in live {
            result[name] = value;
        }
    }
    let greeted = node.agent(&row.view.agent).and_then(|agent| node.greeted(&agent));
    if let Some(greeted) = greeted {
        result["agentInfo"] = greeted.result["agentInfo"].clone();
    }
    Ok(result)
}

/// What a session's lane says of it; `None` where it has none, or gives no word until then: one that
/// cannot write answers nobody.
pub(super) async fn described(
    node: &Arc<Node>,
    row: &Row,
    until: Instant,
) -> Option<serde_json::Map<String, Value>> {
    let lane = node.running_lane(row.key).filter(|_| !node.log.is_stuck(row.key))?;
    match lane.describe(until).await {
        Ok(Some(Value::Object(live))) => Some(live),
        _ => None,
    }
}

/// How long a lane may take to say what it knows: as long as an agent that is asked for a session.
pub(super) fn word_by(node: &Node) -> Instant {
    Instant::now() + Duration::from_millis(node.limits.probe_ms)
}

/// A row; a child is where its parent is.
pub(super) fn row_json(node: &Node, row: &Row) -> Value {
    let mut json = row.to_json();
    if let Some(parent) = node.parent_of(row) {
        let parent = parent.to_json();
        for name in ["status", "source", "ageMs", "owner"] {
            json[name] = parent[name].clone();
        }
        if let Some(json) = json.as_object_mut() {
            json.retain(|_, value| !value.is_null());
        }
    }
    json
}

/// What the journal has of a session besides its turns; what is unknown is left out.
fn kept_facts(node: &Node, row: &Row) -> Value {
    let view = &row.view;
    let mut facts = json!({
        "name": view.name,
        "nameOrigin": view.name_origin,
        "generatedName": view.generated_name,
        "firstUserPrompt": view.first_user_prompt,
        "branch": view.branch,
        "worktree": view.worktree,
        "modelId": view.model_id,
        "providerId": view.provider_id,
        "parent": view.parent,
        "forkedFrom": view.forked_from,
        "createdByClient": view.created_by_client,
    });
    if view.policy.is_some() {
        facts["policy"] = super::keep::policy_json(node, row);
    }
    if view.archived {
        facts["archived"] = json!(true);
    }
    if let Some(facts) = facts.as_object_mut() {
        facts.retain(|_, value| !value.is_null());
    }
    facts
}

async fn log(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    frame: &Frame,
    params: &Value,
) -> Result<String, WireError> {
    let row = row_of(node, conn, frame)?;
    let after = params["after"].as_u64().unwrap_or(0);
    let limit = params["limit"].as_u64().unwrap_or(LOG_RECORDS_MAX).clamp(1, LOG_RECORDS_MAX);
    let wait = Duration::from_millis(params["waitMs"].as_u64().unwrap_or(0).min(60_000));
    let until = Instant::now() + wait;
    loop {
        let path = row.path.clone();
        let is_cold = node.running_lane(row.key).is_none();
        let read = tokio::task::spawn_blocking(move || read_after(&path, after, limit, is_cold));
        let (records, last) = match read.await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => {
                tracing::error!(session = %row.key, %error, "failed to read a journal");
                return Err(WireError::new(
                    Code::Storage,
                    "the session's journal could not be read",
                ));
            }
            Err(_) => return Err(WireError::new(Code::Internal, "the journal's reader failed")),
        };
        if !records.is_empty() || Instant::now() >= until || node.is_stopping() {
            let records: Vec<Box<RawValue>> = records;
            let records = serde_json::to_string(&records).unwrap_or_default();
            return Ok(format!(r#"{{"records":{records},"last":{last}}}"#));
        }
        tokio::time::sleep(LOG_AGAIN).await;
    }
}

type Records = (Vec<Box<RawValue>>, Seq);

/// Records behind `after`. Of a session that nobody writes, a last record counts too that lacks only
/// its line end.
fn read_after(
    path: &std::path::Path,
    after: Seq,
    limit: u64,
    is_cold: bool,
) -> Result<Records, LogError> {
    let mut reader =
        if after == 0 { Reader::open(path)? } else { Reader::open_before(path, after + 1)? };
    let mut records = Vec::new();
    let mut last = after;
    while (records.len() as u64) < limit {
        let mut batch = reader.read_batch(BATCH_BYTES)?;
        if batch.is_empty() && is_cold {
            batch.extend(reader.finish());
        }
        if batch.is_empty() {
            break;
        }
        for record in batch {
            if records.len() as u64 >= limit {
                break;
            }
            let mut line = Vec::new();
            record.write_line(&mut line);
            last = record.seq;
            let text = String::from_utf8_lossy(&line);
            if let Ok(raw) = RawValue::from_string(text.trim_end().to_owned()) {
                records.push(raw);
            }
        }
    }
    Ok((records, last))
}

fn agents(node: &Node) -> Value {
    let running = node.running_instances();
    let list: Vec<Value> = node
        .agents
        .values()
        .map(|agent| {
            let instances = running.iter().filter(|i| i.agent.name == agent.name).count();
            let sessions = node.directory.count(Some(&agent.name));
            let greeted = node.greeted(agent);
            let program = agent.command.first().map(|program| crate::config::find_program(program));
            json!({
                "name": agent.name,
                "command": agent.command,
                "urls": node.urls_of(&agent.name).iter().map(|url| url.to_json()).collect::<Vec<_>>(),
                "default": agent.name == node.config.default_agent,
                "known": agent.known.map(|known| known.kind),
                "found": program.flatten(),
                "instances": instances,
                "sessions": sessions,
                "abilities": greeted.as_ref().map(|greeted| abilities_json(&greeted.abilities)),
                "agentInfo": greeted.as_ref().map(|greeted| greeted.result["agentInfo"].clone()),
                "learned": node.learned(agent),
                "checkedAt": greeted.as_ref().map(|greeted| greeted.at),
            })
        })
        .collect();
    json!({ "agents": list })
}

fn abilities_json(abilities: &frontdesk_core::agent::Abilities) -> Value {
    json!({
        "load": abilities.load, "resume": abilities.resume, "list": abilities.list,
        "close": abilities.close, "delete": abilities.delete, "fork": abilities.fork,
        "status": abilities.status,
    })
}

/// Starts an agent and says what it answers, for `doctor`.
async fn check(node: &Arc<Node>, conn: &Arc<Conn>, params: &Value) -> Result<Value, WireError> {
    let name = params["agent"]
        .as_str()
        .ok_or_else(|| WireError::new(Code::InvalidParams, "params.agent must be a string"))?;
    let agent = node.agent_or_error(name)?;
    let program = agent.command.first().and_then(|program| crate::config::find_program(program));
    let mut report = json!({ "agent": name, "found": program, "starts": false });
    if !agent.urls.is_empty() {
        let until = tokio::time::Instant::now() + Duration::from_millis(node.limits.probe_ms);
        for url in node.urls_of(name) {
            url.want();
            url.first_attempt(until).await;
        }
        let urls: Vec<Value> = node.urls_of(name).iter().map(|url| url.to_json()).collect();
        report["urls"] = json!(urls);
    } else if program.is_none() {
        report["error"] = json!("its program was not found");
        return Ok(report);
    }
    let began = Instant::now();
    let greeting = conn.greeting().map(|greeting| greeting.params.clone()).unwrap_or_default();
    let cwd = conn.cwd.clone().unwrap_or_default();
    match node.start_instance(&agent, &greeting, &cwd).await {
        Ok(instance) => {
            report["starts"] = json!(true);
            report["initializeMs"] =
                json!(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
            report["abilities"] = abilities_json(&instance.abilities());
            if let Some((result, _)) = instance.initialized() {
                report["agentInfo"] = result["agentInfo"].clone();
                report["version"] = result["agentInfo"]["version"].clone();
            }
            node.retire(&instance);
        }
        Err(error) => {
            report["error"] = json!(error.message);
            if let Some(data) = error.data {
                report["stderrTail"] = data["stderrTail"].clone();
            }
        }
    }
    Ok(report)
}
