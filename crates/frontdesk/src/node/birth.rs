//! New sessions: an agent makes one, a journal begins, a lane runs. Fresh ones and forks.

use std::sync::Arc;

use frontdesk_core::envelope::{Frame, Message};
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::fold::{ApprovalMode, ClientInfo, ForkedFrom, View};
use frontdesk_core::ids::Key;
use frontdesk_core::session::{AgentFacts, Born, By, First, Input};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::Node;
use super::directory::Row;
use crate::agent::instance::{Birth, Instance};
use crate::conn::Conn;
use crate::log::{Journal, check, in_words, redact};
use crate::session::{Copy, LaneHandle, Start};

/// A session that is to be made.
#[derive(Debug)]
pub struct Bearing {
    /// The request for the agent: a client's own, or one made here.
    pub frame: Frame,
    /// Who asks.
    pub by: By,
    /// How that client named itself, where it said both name and version.
    pub client_info: Option<ClientInfo>,
    /// The ACP client that is answered and takes part; `None` where nobody does yet.
    pub conn: Option<Arc<Conn>>,
    /// The policy for questions that was asked for.
    pub approval: Option<ApprovalMode>,
}

/// A session that is to be forked.
#[derive(Debug)]
pub struct Forking {
    /// The parent.
    pub parent: Arc<Row>,
    /// A client's own request; without one the parent's parameters are used.
    pub frame: Option<Frame>,
    /// Who asks.
    pub by: By,
    /// The ACP client that is answered and takes part; `None` where nobody does yet.
    pub conn: Option<Arc<Conn>>,
    /// The caller's id of the command; without one a fresh one is made.
    pub command_id: Option<String>,
}

/// A session that an agent has made, and whose lane is about to write what it begins with.
#[derive(Debug)]
pub struct Newborn {
    key: Key,
    /// The lane answers a client by itself, also with what went wrong.
    is_answered: bool,
    is_ready: oneshot::Receiver<()>,
}

impl Newborn {
    /// Waits until all that the session begins with is durable.
    ///
    /// # Errors
    /// `-31010` if it never will be and nobody else is told.
    pub async fn written(self) -> Result<Key, WireError> {
        match self.is_ready.await {
            Err(_) if !self.is_answered => Err(unwritten()),
            _ => Ok(self.key),
        }
    }
}

/// Where a fork comes from.
struct Origin {
    parent: Key,
    native: String,
    /// The id by which the agent is asked for it.
    asked_as: String,
    command_id: String,
    approval: Option<ApprovalMode>,
}

impl Node {
    /// Has an agent fork a session, in the instance that has it or in a fresh one. The parent's
    /// journal is only read. Returns the fork's key once its journal holds all it begins with; a
    /// client is answered by the fork's lane.
    ///
    /// # Errors
    /// `-32601` if the agent cannot fork, or the session is a subagent's; what the agent answered; an error of ours if the parent's
    /// journal is damaged or no journal can be made.
    pub async fn fork(self: &Arc<Self>, forking: Forking) -> Result<Key, WireError> {
        let Forking { parent, frame, by, conn, command_id } = forking;
        let agent = self.agent_or_error(&parent.view.agent)?;
        self.not_behind(None)?;
        self.can_fork(&parent)?;
        not_damaged(&parent).await?;
        let frame = match frame {
            Some(frame) => frame,
            None => self.fork_frame(&parent)?,
        };
        let owner = parent.live.as_ref().and_then(|live| live.owner.as_ref());
        let running = self.running_instances();
        let found = running.into_iter().find(|i| owner.is_some_and(|o| *o.instance == *i.id.0));
        let (instance, reserved) = match found {
            Some(instance) => (instance, false),
            None if !agent.urls.is_empty() => {
                let native = parent.view.native.as_deref().unwrap_or_default();
                (self.reserve_for(&agent, native).await?.0, true)
            }
            None => {
                let cwd = &parent.view.cwd;
                (self.reserve_instance(&agent, conn.as_deref(), cwd).await?, true)
            }
        };
        let origin = Origin {
            parent: parent.key,
            native: parent.view.native.clone().unwrap_or_default(),
            asked_as: parent.view.opened_as().unwrap_or_default().to_owned(),
            command_id: command_id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string()),
            // What nobody may do in the parent nobody may do in its fork.
            approval: parent.view.policy.as_ref().map(|policy| policy.mode),
        };
        let bearing = Bearing { frame, by, client_info: None, conn, approval: None };
        let conn = bearing.conn.clone();
        let born = if instance.abilities().fork {
            self.bear_as(&instance, bearing, Some(origin)).await
        } else {
            Err(WireError::method_not_found("session/fork"))
        };
        if reserved {
            instance.unreserve();
            match conn {
                _ if born.is_ok() => {}
                Some(conn) => self.set_aside(instance, &conn),
                None => self.retire(&instance),
            }
        }
        born?.written().await
    }

    /// Refuses to fork a session whose agent is known not to fork, and a subagent's: that is its
    /// parent's, and nobody may ask its agent for more than to cancel it.
    ///
    /// # Errors
    /// `-32601`; of a subagent with `data.parent`.
    pub fn can_fork(&self, session: &Row) -> Result<(), WireError> {
        if let Some(parent) = &session.view.parent {
            let text = format!("a subagent's session cannot be forked; its parent is {parent}");
            let data = json!({ "method": "session/fork", "parent": parent });
            return Err(WireError::new(Code::MethodNotFound, text).with_data(data));
        }
        let greeted = self.agent(&session.view.agent).and_then(|agent| self.greeted(&agent));
        if greeted.is_some_and(|greeted| !greeted.abilities.fork) {
            return Err(WireError::method_not_found("session/fork"));
        }
        Ok(())
    }

    /// A request to fork with the last accepted parameters of the parent.
    fn fork_frame(&self, parent: &Row) -> Result<Frame, WireError> {
        let native = parent.view.native.as_deref().unwrap_or_default();
        let mut params = self.kept_params(parent.key, &parent.view, native)?;
        params.entry("mcpServers").or_insert_with(|| json!([]));
        let text = Frame::call("session/fork", Some("0"), &Value::Object(params).to_string());
        match Message::parse(text) {
            Ok(Message::Request(frame)) => Ok(frame),
            _ => Err(WireError::new(Code::Internal, "the request to fork could not be made")),
        }
    }

    /// Has an instance make a session; a client is answered by the session's lane.
    ///
    /// # Errors
    /// What the agent answered; `-31010` if no journal could be made.
    pub async fn bear(
        self: &Arc<Self>,
        instance: &Arc<Instance>,
        bearing: Bearing,
    ) -> Result<Newborn, WireError> {
        self.bear_as(instance, bearing, None).await
    }

    async fn bear_as(
        self: &Arc<Self>,
        instance: &Arc<Instance>,
        bearing: Bearing,
        origin: Option<Origin>,
    ) -> Result<Newborn, WireError> {
        let key = self.fresh_key();
        let (lane, rx) = LaneHandle::new(key, self.limits.lane_messages);
        let native = origin.as_ref().map(|origin| origin.asked_as.as_str());
        let client = bearing.by.client.clone();
        let birth = instance.call_birth(&bearing.frame, native, &client, (lane.clone(), rx)).await;
        let birth = birth.inspect_err(|error| {
            if error.data.as_ref().is_some_and(|data| data["quirk"] == "ids_repeat") {
                self.learn(&instance.agent, "ids_repeat");
            }
        })?;
        let conn = bearing.conn.clone();
        match self.make(bearing, instance, &birth, key, origin) {
            Ok((journal, born, copy)) => {
                // Before the first record, so that a later daemon finds whatever there is; up to here
                // it reads the answer again.
                let enlisted = instance.enlist(&birth.native, key, journal.path()).await;
                instance.dealt_with(birth.number).await;
                instance.handled(&birth.done, birth.ack);
                if let Err(error) = enlisted {
                    self.directory.forget(key);
                    instance.unroute(&birth.native);
                    return Err(error);
                }
                let natives = [&*birth.native].into();
                let claimed = self.claim(instance, &natives, &key.to_string(), true).await;
                if let Err(error) = claimed {
                    if error.code == Code::HeldElsewhere {
                        self.learn(&instance.agent, "ids_repeat");
                    }
                    // The agent gave an id that is in use: its ids are not unique, which is no claim on ours.
                    tracing::warn!(instance = %instance.id, error = %error.message, "an agent's new id is claimed already; going on without a claim");
                }
                let is_answered = conn.is_some();
                if let Some(conn) = &conn {
                    conn.join(&lane);
                }
                let first = Box::new((conn, Input::Born(Box::new(born))));
                let (ready, is_ready) = oneshot::channel();
                let start = Start::Born { journal, instance: instance.clone(), first, copy, ready };
                self.start_born(lane, birth.rx, start);
                Ok(Newborn { key, is_answered, is_ready })
            }
            Err(error) => {
                instance.dealt_with(birth.number).await;
                instance.handled(&birth.done, birth.ack);
                instance.unroute(&birth.native);
                Err(error)
            }
        }
    }

    /// The journal, the row and the kept parameters of a session that an agent has just made.
    fn make(
        &self,
        bearing: Bearing,
        instance: &Instance,
        birth: &Birth,
        key: Key,
        origin: Option<Origin>,
    ) -> Result<(Journal, Born, Option<Copy>), WireError> {
        let storage = |error: crate::log::LogError| {
            tracing::error!(%error, "failed to make a journal");
            unwritten()
        };
        let Bearing { frame, by, client_info, conn, approval } = bearing;
        let raw = frame.params().unwrap_or("{}");
        let params: Value = serde_json::from_str(raw).unwrap_or_default();
        let journal = self.log.create(key, jiff::Timestamp::now()).map_err(storage)?;
        self.log.params().write(key, raw).map_err(storage)?;
        let view = View {
            agent: instance.agent.name.clone(),
            native: Some(birth.native.to_string()),
            ..View::default()
        };
        self.first_row(Row::cold(key, view, journal.path().to_path_buf(), 0));
        let (copy, forked_from) = match &origin {
            Some(origin) => {
                let (copy, from) = self.cut(origin, birth);
                (Some(copy), Some(from))
            }
            None => (None, None),
        };
        let first = conn.map(|conn| First {
            client: conn.client(),
            id: frame.id().unwrap_or("null").into(),
            spelling: key.to_string().into(),
        });
        let born = Born {
            by,
            client_info,
            first,
            answer: birth.frame.clone(),
            agent: instance.agent.name.clone(),
            facts: facts(instance, 1),
            cwd: params["cwd"].as_str().unwrap_or_default().to_owned(),
            additional_directories: strings(&params["additionalDirectories"]),
            parameters: redact(raw),
            forked_from,
            approval: approval.or_else(|| origin.and_then(|origin| origin.approval)),
        };
        Ok((journal, born, copy))
    }

    /// Where in its parent a fork was cut: behind the last record that is known when the agent has
    /// made it.
    fn cut(&self, origin: &Origin, birth: &Birth) -> (Copy, ForkedFrom) {
        let parent = self.directory.get(origin.parent);
        let upto = parent.as_ref().map_or(0, |row| row.view.seq);
        let copy = Copy {
            path: parent.map(|row| row.path.clone()).unwrap_or_default(),
            parent: origin.native.clone(),
            fork: birth.native.to_string(),
            upto,
        };
        let from = ForkedFrom {
            session_id: origin.parent.to_string(),
            cut_cursor: format!("v:{}:{upto}", origin.parent),
            cut_explicit: false,
            command_id: origin.command_id.clone(),
        };
        (copy, from)
    }
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

/// What a session machine has to know of the instance that has its session.
pub(super) fn facts(instance: &Instance, epoch: u64) -> AgentFacts {
    let agent = &instance.agent;
    AgentFacts {
        instance: instance.id.to_string(),
        place: instance.place(),
        epoch,
        can_return: instance.abilities().can_reopen(),
        idle_unload_ms: agent.idle_unload_s.saturating_mul(1000),
        loses_killed: instance.quirks().loses_killed_sessions,
        approval: agent.approval_mode,
    }
}

pub(super) fn unwritten() -> WireError {
    WireError::new(Code::Storage, "the session's journal could not be written")
}

fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
}
