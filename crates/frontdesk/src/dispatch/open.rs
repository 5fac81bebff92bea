//! `session/new`, `load`, `resume`, `fork`: how a client comes to take part in a session.

use std::sync::Arc;

use frontdesk_core::envelope::{Frame, quote};
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::methods::Method;
use frontdesk_core::place::Word;
use frontdesk_core::route::same_folder;
use frontdesk_core::session::{Attach, By, How, Input, Mark};
use serde_json::json;

use super::{cwd_of, params, resolve, session_id};
use crate::config::AgentConfig;
use crate::conn::Conn;
use crate::node::Node;
use crate::node::birth::{Bearing, Forking};
use crate::node::directory::{Found, Row};
use crate::node::probes::Asked;
use crate::session::LaneMsg;

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
    let approval = super::keep::approval_mode(&params["_meta"]["frontdesk"]["approvalMode"])?;
    node.not_behind(None)?;
    let instance = node.reserve_instance(&agent, Some(conn), &cwd).await?;
    let bearing = Bearing {
        frame: frame.clone(),
        by: by(conn),
        client_info: conn.greeting().and_then(|greeting| greeting.info.clone()),
        conn: Some(conn.clone()),
        approval,
    };
    let born = node.bear(&instance, bearing).await;
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

/// A client as records name it.
pub(super) fn by(conn: &Conn) -> By {
    let client = conn.client();
    By { client: client.key, name: client.name }
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
    let parent = known_row(node, conn, &asked, &cwd).await?;
    let forking = Forking {
        parent,
        frame: Some(frame.clone()),
        by: by(conn),
        conn: Some(conn.clone()),
        command_id: None,
    };
    node.fork(forking).await.map(|_| ())
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
        node.not_behind(Some(row.key))?;
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
        from: if how == How::Load { conn.load_from(asked) } else { Mark::default() },
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
    // It may be in a journal that the index does not have yet.
    let complete = node.index_complete().await;
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
    if !complete {
        return Err(index_is_behind());
    }
    Err(WireError::not_found(asked))
}

/// The index is being made or compared, so that nobody can say that a session is not there.
pub(super) fn index_is_behind() -> WireError {
    let text = "the index of sessions is being made; try again in a moment";
    WireError::new(Code::Storage, text)
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
        let asked_ones = if agent.urls.is_empty() {
            vec![Asked::running(instance.clone())]
        } else {
            node.askable_urls(agent)
        };
        let words = node.ask_all(&asked_ones, asked, false).await;
        words.iter().any(|word| matches!(word, Word::Loaded | Word::Cold))
    } else {
        false
    };
    let only_load_tells = conn.bound.is_some()
        && !abilities.status
        && !abilities.list
        && abilities.can_reopen()
        && !instance.quirks().loads_unknown;
    // What was read of its list is a moment old: it may be in there by now, under another id.
    let listed = if knows { node.listed_row(&instance, asked).await } else { None };
    if is_new {
        node.set_aside(instance, conn);
    }
    if !knows && !only_load_tells {
        return None;
    }
    let row = if let Some(row) = listed {
        row
    } else if knows {
        json!({ "sessionId": asked, "cwd": cwd })
    } else {
        json!({ "sessionId": asked, "cwd": cwd, "_unproven": true })
    };
    if !node.index_in_step().await {
        return None;
    }
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
