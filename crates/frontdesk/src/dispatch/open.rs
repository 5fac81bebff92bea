//! `session/new`, `load`, `resume`, `fork`: how a client comes to take part in a session.

use std::sync::Arc;

use frontdesk_core::envelope::{Frame, quote};
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::fold::View;
use frontdesk_core::ids::Key;
use frontdesk_core::methods::Method;
use frontdesk_core::route::same_folder;
use frontdesk_core::session::{AgentFacts, Attach, Born, How, Input};
use serde_json::{Value, json};

use super::{cwd_of, not_behind, params, resolve, session_id};
use crate::agent::instance::{Birth, Instance};
use crate::config::AgentConfig;
use crate::conn::Conn;
use crate::log::{Journal, check, in_words, redact};
use crate::node::Node;
use crate::node::directory::{Found, Row};
use crate::session::{LaneHandle, LaneMsg, Start};

type Answer = Option<Result<String, WireError>>;

/// `session/new`: on a bound connection of its agent, else of the default agent or the one named in
/// `_meta.frontdesk.agent`.
pub(super) async fn new(node: Arc<Node>, conn: Arc<Conn>, frame: Frame) -> Answer {
    match try_new(&node, &conn, &frame).await {
        Ok(()) => None,
        Err(error) => fail(&conn, &frame, error),
    }
}

async fn try_new(node: &Arc<Node>, conn: &Arc<Conn>, frame: &Frame) -> Result<(), WireError> {
    let params = params(frame);
    let cwd = cwd_of(&params)?;
    let named = params["_meta"]["frontdesk"]["agent"].as_str();
    let name = match (&conn.bound, named) {
        (Some(bound), Some(named)) if bound != named => {
            let text = format!("this endpoint makes sessions of agent {bound:?} only");
            return Err(WireError::new(Code::InvalidParams, text));
        }
        (Some(bound), _) => bound.clone(),
        (None, Some(named)) => named.to_owned(),
        (None, None) => node.config.default_agent.clone(),
    };
    let agent = node.agent_or_error(&name)?;
    not_behind(node, None)?;
    let instance = node.reserve_instance(&agent, Some(conn), &cwd).await?;
    let born = bear(node, conn, frame, &instance, None).await;
    instance.unreserve();
    if let Err(error) = born {
        let silent = error.code == Code::AgentTimeout;
        if silent {
            node.end_silent(&instance)
        } else {
            node.set_aside(instance, conn)
        }
        return Err(error);
    }
    Ok(())
}

/// `session/fork`: passed on to the instance that has the session, or to a fresh one.
pub(super) async fn fork(node: Arc<Node>, conn: Arc<Conn>, frame: Frame) -> Answer {
    match try_fork(&node, &conn, &frame).await {
        Ok(()) => None,
        Err(error) => fail(&conn, &frame, error),
    }
}

async fn try_fork(node: &Arc<Node>, conn: &Arc<Conn>, frame: &Frame) -> Result<(), WireError> {
    let asked = session_id(frame)?.into_owned();
    let cwd = cwd_of(&params(frame)).unwrap_or_default();
    let row = known_row(node, conn, &asked, &cwd).await?;
    let agent = node.agent_or_error(&row.view.agent)?;
    not_behind(node, None)?;
    not_damaged(&row).await?;
    if node.greeted(&agent).is_some_and(|greeted| !greeted.abilities.fork) {
        return Err(WireError::method_not_found("session/fork"));
    }
    let owner =
        row.live.as_ref().and_then(|live| live.owner.as_ref()).map(|owner| owner.instance.clone());
    let running = node.running_instances();
    let found = running.into_iter().find(|i| owner.as_deref() == Some(&*i.id.0));
    let (instance, reserved) = match found {
        Some(instance) => (instance, false),
        None => (node.reserve_instance(&agent, Some(conn), &row.view.cwd).await?, true),
    };
    let native = row.view.native.clone().unwrap_or_default();
    let born = if instance.abilities().fork {
        bear(node, conn, frame, &instance, Some((&native, row.key))).await
    } else {
        Err(WireError::method_not_found("session/fork"))
    };
    if reserved {
        instance.unreserve();
        if born.is_err() {
            node.set_aside(instance, conn);
        }
    }
    born
}

/// A damaged history is read and gone on with; a second one is not made from it.
async fn not_damaged(row: &Row) -> Result<(), WireError> {
    let path = row.path.clone();
    let checked = tokio::task::spawn_blocking(move || check(&path)).await;
    let Ok(Ok(checked)) = checked else {
        return Err(WireError::new(Code::Storage, "the session's journal could not be read"));
    };
    let Some((_, text)) = in_words(&checked.damage) else { return Ok(()) };
    let places: Vec<Value> = checked
        .damage
        .iter()
        .map(|damage| json!({ "line": damage.line, "bytes": damage.bytes, "what": damage.what.word() }))
        .collect();
    let text = format!(
        "{text} A fork would copy it; repair it first with `frontdesk doctor --repair {}`",
        row.key
    );
    Err(WireError::new(Code::Damaged, text).with_data(json!({ "damage": places })))
}

/// Passes a request on whose answer names a new session, and starts that session's lane.
async fn bear(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    frame: &Frame,
    instance: &Arc<Instance>,
    source: Option<(&str, Key)>,
) -> Result<(), WireError> {
    let key = node.fresh_key();
    let (lane, rx) = LaneHandle::new(key, node.limits.lane_messages);
    let native = source.map(|(native, _)| native);
    let birth = instance.call_birth(frame, native, &conn.key, (lane.clone(), rx)).await?;
    let claimed = node.claim(instance, &birth.native, &key.to_string(), true).await;
    if let Err(error) = claimed {
        // The agent gave an id that is in use: its ids are not unique, which is no claim on ours.
        tracing::warn!(instance = %instance.id, error = %error.message, "an agent's new id is claimed already; going on without a claim");
    }
    let made = make(node, conn, frame, instance, &birth, key, source.map(|(_, key)| key));
    match made {
        Ok((journal, born)) => {
            // Before the first record, so that a later daemon finds whatever there is.
            if let Err(error) = instance.enlist(&birth.native, key, journal.path()).await {
                node.directory.forget(key);
                instance.unroute(&birth.native);
                return Err(error);
            }
            conn.join(&lane);
            let first = (conn.clone(), Input::Born(Box::new(born)));
            let start = Start::Born { journal, instance: instance.clone(), first: Box::new(first) };
            node.start_born(lane, birth.rx, start);
            Ok(())
        }
        Err(error) => {
            instance.unroute(&birth.native);
            Err(error)
        }
    }
}

/// The journal, the row and the kept parameters of a session that an agent has just made.
fn make(
    node: &Node,
    conn: &Conn,
    frame: &Frame,
    instance: &Instance,
    birth: &Birth,
    key: Key,
    forked_from: Option<Key>,
) -> Result<(Journal, Born), WireError> {
    let storage = |error: crate::log::LogError| {
        tracing::error!(%error, "failed to make a journal");
        WireError::new(Code::Storage, "the session's journal could not be written")
    };
    let raw = frame.params().unwrap_or("{}");
    let params = params(frame);
    let journal = node.log.create(key, jiff::Timestamp::now()).map_err(storage)?;
    node.log.params().write(key, raw).map_err(storage)?;
    let view = View {
        agent: instance.agent.name.clone(),
        native: Some(birth.native.to_string()),
        ..View::default()
    };
    node.directory.insert(Row::cold(key, view, journal.path().to_path_buf(), 0));
    node.absorb_twin(&instance.agent.name, &birth.native, key);
    let born = Born {
        client: conn.client(),
        id: frame.id().unwrap_or("null").into(),
        spelling: key.to_string().into(),
        answer: birth.frame.clone(),
        agent: instance.agent.name.clone(),
        facts: facts(&instance.agent, instance, 1),
        cwd: params["cwd"].as_str().unwrap_or_default().to_owned(),
        additional_directories: strings(&params["additionalDirectories"]),
        parameters: redact(raw),
        forked_from: forked_from.map(|key| key.to_string()),
    };
    Ok((journal, born))
}

fn facts(agent: &AgentConfig, instance: &Instance, epoch: u64) -> AgentFacts {
    AgentFacts {
        instance: instance.id.to_string(),
        epoch,
        can_return: instance.abilities().can_reopen(),
        idle_unload_ms: agent.idle_unload_s.saturating_mul(1000),
        loses_killed: instance.quirks().loses_killed_sessions,
    }
}

fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
}

/// `session/load` and `session/resume`: into the session's lane, in order with what the client sends
/// next. Only an id that our own table does not know takes a task of its own.
pub(super) async fn load_or_resume(node: &Arc<Node>, conn: &Arc<Conn>, frame: Frame) {
    let id = frame.id().unwrap_or("null").to_owned();
    let known =
        session_id(&frame).and_then(|asked| Ok((resolve(node, conn, &asked)?, asked.into_owned())));
    match known {
        Err(error) => conn.answer(&id, Err(&error)),
        Ok((Some(key), asked)) => {
            let Some(row) = node.directory.get(key) else {
                return conn.answer(&id, Err(&WireError::not_found(&asked)));
            };
            if let Err(error) = attach(node, conn, &frame, &row, &asked).await {
                conn.answer(&id, Err(&error));
            }
        }
        Ok((None, asked)) => {
            let (node, conn) = (node.clone(), conn.clone());
            tokio::spawn(async move {
                let found = match cwd_of(&params(&frame)) {
                    Ok(cwd) => known_row(&node, &conn, &asked, &cwd).await,
                    Err(error) => Err(error),
                };
                let attached = match found {
                    Ok(row) => attach(&node, &conn, &frame, &row, &asked).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = attached {
                    conn.answer(&id, Err(&error));
                }
            });
        }
    }
}

/// Hands a client to a session's lane.
async fn attach(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    frame: &Frame,
    row: &Row,
    asked: &str,
) -> Result<(), WireError> {
    if conn.bound.as_ref().is_some_and(|bound| *bound != row.view.agent) {
        let text = format!("this session belongs to agent {:?}; use its endpoint", row.view.agent);
        return Err(WireError::new(Code::InvalidParams, text)
            .with_data(json!({ "sessionId": asked, "agent": row.view.agent })));
    }
    let params = params(frame);
    let cwd = cwd_of(&params)?;
    check_folder(row, &cwd, asked)?;
    if !row.is_loaded() || node.log.is_stuck(row.key) {
        // To call a session back takes records; one that runs is joined without any.
        not_behind(node, Some(row.key))?;
    }
    let how = if Method::of(&frame.method) == Method::Load { How::Load } else { How::Resume };
    let raw = frame.params_bytes().unwrap_or_default();
    if let Err(error) = node.log.params().write(row.key, &String::from_utf8_lossy(&raw)) {
        tracing::warn!(session = %row.key, %error, "failed to keep a session's parameters");
    }
    let lane = node.lane(row.key).ok_or_else(|| WireError::not_found(asked))?;
    conn.join(&lane);
    let attach = Attach {
        client: conn.client(),
        id: frame.id().unwrap_or("null").into(),
        how,
        spelling: asked.into(),
        params: raw,
    };
    lane.send(LaneMsg::Client(conn.clone(), Input::Attach(attach))).await;
    Ok(())
}

/// A session belongs to its folder: another one is refused, and the right one named.
fn check_folder(row: &Row, cwd: &str, asked: &str) -> Result<(), WireError> {
    let own = &row.view.cwd;
    let same = own.is_empty()
        || same_folder(own, cwd)
        || (row.real_cwd.is_some() && std::fs::canonicalize(cwd).ok() == row.real_cwd);
    if same {
        return Ok(());
    }
    let text =
        format!("this session belongs to the folder {}; params.cwd names another one", quote(own));
    Err(WireError::new(Code::InvalidParams, text)
        .with_data(json!({ "sessionId": asked, "cwd": own })))
}

/// The row of a session; where our own table does not know the id, agents are asked: running
/// instances for its status, then the bound agent (or every running one) for its list.
async fn known_row(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    asked: &str,
    cwd: &str,
) -> Result<Arc<Row>, WireError> {
    let own = || -> Result<Option<Arc<Row>>, WireError> {
        Ok(resolve(node, conn, asked)?.and_then(|key| node.directory.get(key)))
    };
    if let Some(row) = own()? {
        return Ok(row);
    }
    let agents = match &conn.bound {
        Some(bound) => vec![node.agent_or_error(bound)?],
        None => node.agents_known_to_list(),
    };
    node.refresh_lists(agents.clone(), Some(conn.clone()), conn.bound.is_some()).await;
    if let Some(row) = own()? {
        return Ok(row);
    }
    for agent in agents {
        if let Some(row) = adopt_by_word(node, conn, &agent, asked, cwd).await {
            return Ok(row);
        }
    }
    Err(WireError::not_found(asked))
}

/// An agent that has no list of the session may still know it: one that answers `session/status`
/// with any word but "not found", or, on its own endpoint, one without any list at all, whose answer
/// to the client's own load will decide.
async fn adopt_by_word(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    agent: &Arc<AgentConfig>,
    asked: &str,
    cwd: &str,
) -> Option<Arc<Row>> {
    let (instance, is_new) = node.any_instance(agent, Some(conn), conn.bound.is_some()).await?;
    let abilities = instance.abilities();
    let knows = if abilities.status {
        let facts = super::status::ask(node, vec![instance.clone()], asked).await;
        facts.heard.is_some()
    } else {
        false
    };
    let only_load_tells = conn.bound.is_some()
        && !abilities.status
        && !abilities.list
        && abilities.can_reopen()
        && !instance.quirks().loads_unknown;
    if is_new {
        node.set_aside(instance, conn);
    }
    if !knows && !only_load_tells {
        return None;
    }
    let row = if knows {
        json!({ "sessionId": asked, "cwd": cwd })
    } else {
        json!({ "sessionId": asked, "cwd": cwd, "_unproven": true })
    };
    let (adopting, name) = (node.clone(), agent.name.clone());
    let adopted = tokio::task::spawn_blocking(move || adopting.adopt_all(&name, &[row])).await;
    if !matches!(adopted, Ok(Ok(()))) {
        return None;
    }
    match node.directory.find_native(&agent.name, asked) {
        Some(Found::Known(row)) => Some(row),
        Some(Found::Deleted) | None => None,
    }
}

/// Answers with an agent's own error as it is, where there is one.
fn fail(conn: &Conn, frame: &Frame, error: WireError) -> Answer {
    let own = error.code == Code::AgentStart && error.message == "the agent refused";
    match error.data {
        Some(data) if own => {
            conn.answer_error_text(frame.id().unwrap_or("null"), &data.to_string());
            None
        }
        data => Some(Err(WireError { data, ..error })),
    }
}
