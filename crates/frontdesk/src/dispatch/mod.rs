//! What a client says, to whom it belongs: one file per family of methods; the default is forward.
//!
//! Called by `serve` for each frame of a client, in order. What must wait for an agent goes on in a
//! task of its own, so that a status probe never queues behind anything.

mod agents;
mod answer;
mod ext;
mod initialize;
mod keep;
mod list;
mod open;
mod rejoin;
mod remove;
mod sessions;
mod status;
mod take;

use std::borrow::Cow;
use std::sync::Arc;

use frontdesk_core::envelope::{Frame, Message};
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::ids::{Key, SESSION_ID_BYTES_MAX};
use frontdesk_core::methods::{Method, needs_session};
use frontdesk_core::route::Meaning;
use frontdesk_core::session::Input;
use serde_json::{Value, json};

use crate::conn::Conn;
use crate::node::Node;
use crate::session::LaneMsg;

/// Takes one message of a client.
pub async fn message(node: &Arc<Node>, conn: &Arc<Conn>, message: Message) {
    if conn.is_replaced() {
        return;
    }
    match message {
        Message::Request(frame) => request(node, conn, frame).await,
        Message::Notification(frame) => notification(node, conn, frame).await,
        Message::Response(frame) => response(node, conn, frame).await,
    }
}

async fn request(node: &Arc<Node>, conn: &Arc<Conn>, frame: Frame) {
    let method = Method::of(&frame.method);
    if method == Method::Status && conn.greeting().is_some() {
        return status::status(node, conn, &frame);
    }
    let id = frame.id().unwrap_or("null").to_owned();
    if !conn.opened(&id) {
        let text = "a request with this id is open already";
        conn.send(Frame::failure(&id, &WireError::new(Code::InvalidRequest, text).to_json()));
        return;
    }
    if conn.greeting().is_none() && method != Method::Initialize {
        let error = WireError::new(Code::InvalidRequest, "send initialize first");
        return conn.answer(&id, Err(&error));
    }
    if matches!(
        method,
        Method::Load | Method::Resume | Method::Fork | Method::Close | Method::Delete
    ) && let Some(asked) = frame.session_id()
    {
        // What was unknown a moment ago may be known from here on.
        node.probes.forget(&asked);
    }
    match method {
        // What a client sends behind it must find it done.
        Method::Initialize => {
            let answer = initialize::initialize(node, conn, &frame).await;
            conn.answer(&id, answer.as_deref());
        }
        // Answered above; before `initialize` it is refused.
        Method::Status => {}
        Method::List => in_task(node, conn, frame, list::list),
        Method::New => in_task(node, conn, frame, open::new),
        Method::Fork => in_task(node, conn, frame, open::fork),
        Method::Load | Method::Resume => open::load_or_resume(node, conn, frame).await,
        Method::Close => remove::close(node, conn, &frame).await,
        Method::Delete => in_task(node, conn, frame, remove::delete),
        Method::Prompt => prompt(node, conn, frame).await,
        // What the client sends behind it must find it done.
        Method::Frontdesk if &*frame.method == "_frontdesk/rejoin" => {
            rejoin::rejoin(node, conn, &frame).await;
        }
        Method::Frontdesk => in_task(node, conn, frame, ext::frontdesk),
        Method::Forward if frame.has_session_id() || needs_session(&frame.method) => {
            to_lane(node, conn, frame, |conn, frame| Input::Forward { conn, frame }).await;
        }
        Method::Forward => in_task(node, conn, frame, agents::to_agent),
    }
}

/// Answers a request from a task of its own.
fn in_task<F, R>(node: &Arc<Node>, conn: &Arc<Conn>, frame: Frame, work: F)
where
    F: FnOnce(Arc<Node>, Arc<Conn>, Frame) -> R,
    R: Future<Output = Option<Result<String, WireError>>> + Send + 'static,
{
    let id = frame.id().unwrap_or("null").to_owned();
    let answering = conn.clone();
    let work = work(node.clone(), conn.clone(), frame);
    tokio::spawn(async move {
        match work.await {
            Some(Ok(result)) => answering.answer(&id, Ok(&result)),
            Some(Err(error)) => answering.answer(&id, Err(&error)),
            // Somebody else answers.
            None => {}
        }
    });
}

/// The `sessionId` of a request, as sent.
fn session_id(frame: &Frame) -> Result<Cow<'_, str>, WireError> {
    match frame.session_id() {
        Some(id) if id.len() <= SESSION_ID_BYTES_MAX => Ok(id),
        Some(_) => {
            let text = format!("params.sessionId is longer than {SESSION_ID_BYTES_MAX} bytes");
            Err(WireError::new(Code::InvalidParams, text))
        }
        None => Err(WireError::new(Code::InvalidParams, "params.sessionId must be a string")),
    }
}

/// The session an id means on this connection.
fn resolve(node: &Node, conn: &Conn, id: &str) -> Result<Option<Key>, WireError> {
    match node.directory.resolve(id, conn.bound.as_deref()) {
        Meaning::One(key) => Ok(Some(key)),
        Meaning::Unknown => Ok(None),
        Meaning::Several(keys) => {
            let text = "several sessions have this id; use one of their keys";
            Err(WireError::new(Code::InvalidParams, text)
                .with_data(json!({ "sessionId": id, "candidates": keys })))
        }
    }
}

/// Hands a request to the lane of the session it names, if the client takes part in it.
async fn to_lane(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    frame: Frame,
    input: impl FnOnce(frontdesk_core::ids::ConnId, Frame) -> Input,
) {
    let id = frame.id().unwrap_or("null").to_owned();
    let lane = session_id(&frame).and_then(|asked| {
        let key = resolve(node, conn, &asked)?;
        let lane = key.and_then(|key| conn.lane(key));
        let lane = lane.ok_or_else(|| not_active(node, key, &asked))?;
        node.not_behind(key)?;
        Ok(lane)
    });
    match lane {
        Ok(lane) => lane.send(LaneMsg::Client(conn.clone(), input(conn.id, frame))).await,
        Err(error) => conn.answer(&id, Err(&error)),
    }
}

/// `session/prompt`. An unbound endpoint promises the default agent's kinds of content; what the
/// session's own agent lacks is refused here.
async fn prompt(node: &Arc<Node>, conn: &Arc<Conn>, frame: Frame) {
    let missing = conn.bound.is_none().then(|| {
        let key = resolve(node, conn, &frame.session_id()?).ok()??;
        let agent = node.agent(&node.directory.get(key)?.view.agent)?;
        let missing = node.greeted(&agent)?.abilities.prompt.missing(frame.params()?)?;
        Some(format!("agent {} takes no {missing} content in prompts", agent.name))
    });
    match missing.flatten() {
        Some(text) => {
            let error = WireError::new(Code::InvalidParams, text);
            conn.answer(frame.id().unwrap_or("null"), Err(&error));
        }
        None => to_lane(node, conn, frame, |conn, frame| Input::Prompt { conn, frame }).await,
    }
}

/// A session that is unknown, or known and not active on this connection: the same code, and for a
/// known one the way in.
fn not_active(node: &Node, key: Option<Key>, asked: &str) -> WireError {
    let mut error = WireError::not_found(asked);
    let Some(row) = key.and_then(|key| node.directory.get(key)) else { return error };
    error.message = if let Some(parent) = &row.view.parent {
        format!(
            "Resource not found: this is a subagent's session, which only its parent {parent} continues"
        )
    } else if row.view.resumable == Some(false) {
        format!(
            "Resource not found: agent {:?} cannot continue this session; its {} recorded turns can still be read with session/load",
            row.view.agent, row.view.turn_count
        )
    } else {
        "Resource not found: the session is not active on this connection; load or resume it first"
            .into()
    };
    error
}

async fn notification(node: &Arc<Node>, conn: &Arc<Conn>, frame: Frame) {
    match &*frame.method {
        "$/cancel_request" => {
            let params: Value =
                frame.params().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
            let Some(id) = params.get("requestId").map(Value::to_string) else { return };
            for lane in conn.lanes() {
                let input = Input::CancelRequest { conn: conn.id, id: id.clone().into() };
                lane.send(LaneMsg::Client(conn.clone(), input)).await;
            }
        }
        method => {
            let Ok(asked) = session_id(&frame) else { return };
            let Ok(Some(key)) = resolve(node, conn, &asked) else { return };
            let Some(lane) = conn.lane(key) else { return to_child(node, conn, key, &frame).await };
            let input = if method == "session/cancel" {
                Input::Cancel { conn: conn.id }
            } else {
                Input::Notify { conn: conn.id, frame: frame.clone() }
            };
            lane.send(LaneMsg::Client(conn.clone(), input)).await;
        }
    }
}

/// A notification for a subagent, of a client that takes part in its parent.
async fn to_child(node: &Arc<Node>, conn: &Arc<Conn>, key: Key, frame: &Frame) {
    let Some(row) = node.directory.get(key) else { return };
    let parent = node.parent_of(&row).and_then(|parent| conn.lane(parent.key));
    let (Some(lane), Some(native)) = (parent, &row.view.native) else { return };
    let own = frame.spliced(None, Some(&frontdesk_core::envelope::quote(native)));
    if let Ok(Message::Notification(frame)) = Message::parse(own) {
        let input = Input::ToChild { conn: conn.id, frame };
        lane.send(LaneMsg::Client(conn.clone(), input)).await;
    }
}

/// A client answers a request of an agent. Answers to nothing that is open are ignored.
async fn response(node: &Arc<Node>, conn: &Arc<Conn>, frame: Frame) {
    let hop = frame.id().and_then(|id| serde_json::from_str::<String>(id).ok());
    let waits = hop.and_then(|hop| conn.answered(&hop).map(|lane| (hop, lane)));
    let Some((hop, lane)) = waits else { return node.count_late_reply() };
    let input = Input::Answer { conn: conn.id, hop: hop.into(), frame };
    lane.send(LaneMsg::Client(conn.clone(), input)).await;
}

/// The params of a request as a value; an object, whatever was sent.
fn params(frame: &Frame) -> Value {
    let value: Value =
        frame.params().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    if value.is_object() { value } else { json!({}) }
}

/// The absolute working directory in params.
fn cwd_of(params: &Value) -> Result<String, WireError> {
    match params.get("cwd").and_then(Value::as_str) {
        Some(cwd) if std::path::Path::new(cwd).is_absolute() => Ok(cwd.to_owned()),
        Some(_) => Err(WireError::new(Code::InvalidParams, "params.cwd must be an absolute path")),
        None => Err(WireError::new(
            Code::InvalidParams,
            "params.cwd must be a string with an absolute path",
        )),
    }
}
