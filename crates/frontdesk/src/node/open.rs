//! Calling a session back: one instance, one claim, and the agent's own word for it.
//!
//! The lane is single-flight: it asks for this once and everybody who wants the session waits for
//! the outcome. "Not found" and "could not load" stay different errors; nothing here ever makes a
//! new conversation in place of an old one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use frontdesk_core::agent::aliases::told;
use frontdesk_core::agent::open::{is_proven, verdict_of};
use frontdesk_core::agent::{Abilities, Listed, Verdict};
use frontdesk_core::envelope::{Frame, Message, quote};
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::fold::View;
use frontdesk_core::ids::Key;
use frontdesk_core::import::{prompt_text, user_text};
use frontdesk_core::lease::Place;
use frontdesk_core::record::Kind;
use frontdesk_core::render::stored_params;
use frontdesk_core::route::{Plan, plan};
use frontdesk_core::session::{AgentFacts, How, Input, OpenMode, StartFailure};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use super::Node;
use super::birth::{facts, unwritten};
use super::listed::Look;
use crate::agent::instance::{Instance, Opened};
use crate::config::AgentConfig;
use crate::conn::Conn;
use crate::log::{LogError, Reader};
use crate::session::{LaneHandle, LaneMsg};

/// Bytes read from a journal at a time.
const BATCH_BYTES: usize = 1 << 20;

/// A lane wants its session called back.
#[derive(Debug)]
pub struct OpenRequest {
    /// Whose.
    pub lane: LaneHandle,
    /// What its records add up to.
    pub view: Arc<View>,
    /// Its journal.
    pub journal: PathBuf,
    /// The instance that had it before: it must be gone first.
    pub previous: Option<Arc<Instance>>,
    /// The client that caused it.
    pub conn: Option<Arc<Conn>>,
    /// How the client asked.
    pub how: How,
    /// The client's own parameters, as text.
    pub params: Option<Bytes>,
    /// The only place that may be asked: it may have the session already.
    pub at: Option<Place>,
}

/// How an opening went.
pub(super) type Outcome = Result<String, Failed>;

/// How an opening went, with the agent's answer where there was one.
type Tried = (Outcome, Option<Opened>);

/// Why a session was not opened.
#[derive(Debug)]
pub(super) struct Failed {
    failure: StartFailure,
    /// The agent was asked, and may open it yet.
    doubt: bool,
}

/// Tells a lane how the opening of its session went. The agent's answer is dealt with when the lane
/// has recorded that.
pub(super) async fn tell(lane: &LaneHandle, outcome: Outcome, heard: Option<Opened>) {
    let input = match outcome {
        Ok(result) => Input::Started { result },
        Err(Failed { failure, doubt }) => Input::StartFailed { failure, doubt },
    };
    let message = match heard {
        Some(Opened { number, ack, done, .. }) => LaneMsg::Answered { number, input, ack, done },
        None => LaneMsg::Input(input),
    };
    lane.send(message).await;
}

impl Node {
    /// Has an instance load or resume the session and tells the lane how that went.
    pub async fn open_session(self: Arc<Self>, request: OpenRequest) {
        let lane = request.lane.clone();
        let (outcome, heard) = match self.try_open(&request).await {
            Ok(tried) => tried,
            Err(failure) => (Err(Failed { failure, doubt: false }), None),
        };
        tell(&lane, outcome, heard).await;
    }

    async fn try_open(self: &Arc<Self>, request: &OpenRequest) -> Result<Tried, StartFailure> {
        let view = &request.view;
        let native = view.native.clone().unwrap_or_default();
        let agent = self.agent(&view.agent).ok_or_else(|| {
            let text = format!(
                "agent {:?} of this session is not in the configuration any more",
                view.agent
            );
            StartFailure::Ours(WireError::new(Code::AgentStart, text))
        })?;
        if let Some(greeted) = self.greeted(&agent)
            && !greeted.abilities.can_reopen()
        {
            return Err(StartFailure::CannotReturn);
        }
        self.wait_for_previous(request).await?;
        self.not_under_one_id(request.lane.key(), view)?;
        let params = self.open_params(request, &native)?;
        let (instance, kept) = self.place_for(request, &agent, &native).await?;
        let (outcome, heard) = match self.open_at(request, &instance, &params, kept).await {
            Ok((opened, by_load)) => {
                (self.judged(&instance, &native, &opened.frame, by_load).await, Some(opened))
            }
            Err(failure) => (Err(failure), None),
        };
        instance.unreserve();
        let conn = request.conn.as_ref();
        Ok((self.settle_opening(&instance, &native, kept, conn, outcome).await, heard))
    }

    /// What an agent's answer to a request to open a session comes to.
    pub(super) async fn judged(
        &self,
        instance: &Arc<Instance>,
        native: &str,
        frame: &Frame,
        by_load: bool,
    ) -> Result<String, StartFailure> {
        match frame.error() {
            Some(error) => Err(self.refused(instance, native, error).await),
            // It has opened another session: this one it does not have.
            None if is_other(instance, frame, native) => Err(StartFailure::Gone),
            None => self.proven(instance, native, frame, by_load).await,
        }
    }

    /// What follows for the instance from how an opening went there; `kept` if its agent may have had
    /// the session before.
    pub(super) async fn settle_opening(
        self: &Arc<Self>,
        instance: &Arc<Instance>,
        native: &str,
        kept: bool,
        conn: Option<&Arc<Conn>>,
        outcome: Result<String, StartFailure>,
    ) -> Outcome {
        let ours = match &outcome {
            Err(StartFailure::Ours(error)) => Some(error.code),
            _ => None,
        };
        let silent = ours == Some(Code::AgentTimeout);
        // An answer that was too long came after all: it has it.
        let doubt = silent || ours == Some(Code::FrameTooLarge);
        if outcome.is_ok() {
            // Not before: it may have it all the while.
            instance.keep_no_more(native).await;
        } else {
            instance.unroute(native);
            let is_gone = matches!(outcome, Err(StartFailure::Gone));
            if doubt || (kept && (!is_gone || instance.owes_opening(native))) {
                // It may open it yet, or has it as before.
                instance.keep(native).await;
            } else {
                self.give_back(instance, native).await;
            }
            match conn {
                _ if silent => self.end_silent(instance),
                Some(conn) => self.set_aside(instance.clone(), conn),
                None => self.retire(instance),
            }
        }
        outcome.map_err(|failure| Failed { failure, doubt })
    }

    /// The instance that is asked, reserved, and whether its agent may have the session already.
    async fn place_for(
        self: &Arc<Self>,
        request: &OpenRequest,
        agent: &Arc<AgentConfig>,
        native: &str,
    ) -> Result<(Arc<Instance>, bool), StartFailure> {
        if let Some(suspect) = self.reserve_suspect(request, agent).await? {
            return Ok((suspect, true));
        }
        if !agent.urls.is_empty() {
            return self.reserve_for(agent, native).await.map_err(StartFailure::Ours);
        }
        let conn = request.conn.as_deref();
        let reserved = self.reserve_instance(agent, conn, &request.view.cwd).await;
        reserved.map(|instance| (instance, false)).map_err(StartFailure::Ours)
    }

    /// The only place that may have the session opens it again, or is gone before anybody else does.
    async fn reserve_suspect(
        &self,
        request: &OpenRequest,
        agent: &AgentConfig,
    ) -> Result<Option<Arc<Instance>>, StartFailure> {
        let Some(at) = &request.at else { return Ok(None) };
        if matches!(at, Place::Url(_)) {
            let Some(url) = self.url_at(agent, at) else {
                let text = "the url whose agent may have this session is not in the configuration any more";
                let error = WireError::new(Code::HeldElsewhere, text);
                return Err(StartFailure::Ours(error.with_data(json!({ "agent": agent.name }))));
            };
            return self.reserve_url(agent, &url).await.map(Some).map_err(StartFailure::Ours);
        }
        if let Some(suspect) = self.instance_at(at) {
            // Its place may be taken by now, but the agent has the session in any case.
            if suspect.reserve(usize::MAX) {
                return Ok(Some(suspect));
            }
            self.wait_gone(&suspect).await?;
        }
        request.lane.send(LaneMsg::Input(Input::Gone { at: at.clone() })).await;
        Ok(None)
    }

    /// The instance that had the session last is proven gone before anybody else gets it.
    async fn wait_for_previous(&self, request: &OpenRequest) -> Result<(), StartFailure> {
        let Some(previous) = &request.previous else { return Ok(()) };
        if previous.has_ended().is_none() {
            return Ok(());
        }
        self.wait_gone(previous).await
    }

    async fn wait_gone(&self, previous: &Instance) -> Result<(), StartFailure> {
        let limit = Duration::from_millis(self.limits.agent_open_ms);
        tokio::time::timeout(limit, previous.wait_gone()).await.map_err(|_| {
            let text = "processes of the instance that had this session are still there";
            StartFailure::Ours(WireError::new(Code::HeldElsewhere, text))
        })
    }

    async fn open_at(
        self: &Arc<Self>,
        request: &OpenRequest,
        instance: &Arc<Instance>,
        params: &str,
        kept: bool,
    ) -> Result<(Opened, bool), StartFailure> {
        let mut view = View::clone(&request.view);
        let native = request.view.native.as_deref().unwrap_or_default();
        let abilities = instance.abilities();
        if !abilities.can_reopen() {
            return Err(StartFailure::CannotReturn);
        }
        // Before its claim, so that a later daemon knows whose claims its holder may have.
        let enlisted = instance.enlist(native, request.lane.key(), &request.journal).await;
        enlisted.map_err(StartFailure::Ours)?;
        let key = request.lane.key().to_string();
        let claimed = self.claim(instance, &view.natives(), &key, false).await;
        claimed.map_err(StartFailure::Ours)?;
        let look = self.look_in_list(instance, native).await;
        self.take_names(&request.lane, instance, &mut view, look.filed().as_ref(), kept).await?;
        let quirks = self.quirks_of(instance);
        let honest = Abilities {
            // A resume that may make another session is not used where load will do.
            resume: abilities.resume && !(quirks.resume_replaces && abilities.load),
            ..abilities.clone()
        };
        let plan = plan(&honest, &view, look.at);
        let (method, mode) = self.mode(plan, request).await?;
        let mode = match mode {
            OpenMode::Resume if quirks.resume_replays => OpenMode::Swallow,
            OpenMode::Import { known, .. } if quirks.resume_replays => {
                OpenMode::Import { known, note: None }
            }
            mode => mode,
        };
        instance.route(native, &request.lane);
        let facts = AgentFacts { can_return: true, ..facts(instance, view.epoch + 1) };
        let opening = Input::Opening { facts, mode };
        let (written, is_written) = oneshot::channel();
        let opening = LaneMsg::Opening { instance: instance.clone(), input: opening, written };
        request.lane.send(opening).await;
        self.wait_told(is_written).await?;
        if instance.url.is_some() {
            self.wait_written(&request.lane).await?;
        }
        let opened = instance.call_opening(method, params, native).await;
        let opened = opened.map_err(StartFailure::Ours)?;
        let by_load = method == "session/load";
        if is_other(instance, &opened.frame, native) {
            let other = opened.frame.session_id().unwrap_or_default();
            self.let_go_of_other(instance, &other).await;
            // Its load may give what its resume did not; it is asked once more.
            if !by_load && abilities.load {
                instance.dealt_with(opened.number).await;
                return Box::pin(self.open_at(request, instance, params, kept)).await;
            }
        }
        Ok((opened, by_load))
    }

    /// Waits until what a lane was told is on the disk. Behind a url there is no ledger that outlives this
    /// daemon: a later one knows from the journal alone whom it has asked.
    pub(super) async fn wait_written(&self, lane: &LaneHandle) -> Result<(), StartFailure> {
        let (done, is_done) = oneshot::channel();
        lane.send(LaneMsg::Durable { inputs: Vec::new(), done }).await;
        self.wait_told(is_done).await
    }

    /// Waits for a lane's word that something is written.
    async fn wait_told(&self, is_told: oneshot::Receiver<()>) -> Result<(), StartFailure> {
        let limit = Duration::from_millis(self.limits.agent_open_ms);
        match tokio::time::timeout(limit, is_told).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(StartFailure::Ours(unwritten())),
        }
    }

    /// The agent refused: is the session gone, or could it only not be opened now?
    async fn refused(&self, instance: &Arc<Instance>, native: &str, error: &str) -> StartFailure {
        let code = serde_json::from_str::<Value>(error)
            .ok()
            .and_then(|error| error.get("code").and_then(Value::as_i64))
            .unwrap_or(-32603);
        let listed = if frontdesk_core::agent::open::needs_list(code) {
            self.look_in_list(instance, native).await.listed
        } else {
            Listed::Unknown
        };
        tracing::info!(instance = %instance.id, code, ?listed, "the agent did not open a session");
        match verdict_of(&instance.quirks(), code, listed) {
            Verdict::Gone => StartFailure::Gone,
            Verdict::Keep => StartFailure::Agent(error.to_owned()),
        }
    }

    /// Some agents say yes to any id: their word counts only with their list behind it.
    async fn proven(
        &self,
        instance: &Arc<Instance>,
        native: &str,
        frame: &Frame,
        by_load: bool,
    ) -> Result<String, StartFailure> {
        let quirks = instance.quirks();
        let doubtful = !is_proven(&quirks, by_load, Listed::Unknown, false);
        if doubtful && self.look_in_list(instance, native).await.listed == Listed::No {
            return Err(StartFailure::Gone);
        }
        let result = frame.result().unwrap_or("{}");
        Ok(if result.starts_with('{') { result.to_owned() } else { "{}".to_owned() })
    }

    async fn mode(
        &self,
        plan: Plan,
        request: &OpenRequest,
    ) -> Result<(&'static str, OpenMode), StartFailure> {
        Ok(match plan {
            Plan::Resume => ("session/resume", OpenMode::Resume),
            Plan::ResumeWithNote => {
                let note = "earlier turns of this session are in the agent's own store; the agent cannot show them".to_owned();
                ("session/resume", OpenMode::Import { known: Vec::new(), note: Some(note) })
            }
            Plan::LoadSwallow => ("session/load", OpenMode::Swallow),
            Plan::LoadImport => {
                let path = request.journal.clone();
                let known = tokio::task::spawn_blocking(move || known_turns(&path))
                    .await
                    .map_err(|_| {
                        StartFailure::Ours(WireError::new(
                            Code::Internal,
                            "failed to read the journal",
                        ))
                    })?
                    .map_err(|error| {
                        tracing::error!(%error, "failed to read a journal");
                        StartFailure::Ours(WireError::new(
                            Code::Storage,
                            "the session's journal could not be read",
                        ))
                    })?;
                ("session/load", OpenMode::Import { known, note: None })
            }
            Plan::CannotReturn => return Err(StartFailure::CannotReturn),
        })
    }

    /// What the agent's own list says of a session. Bounded: an agent that is slow, silent or has no
    /// list gives `Unknown`.
    async fn look_in_list(&self, instance: &Arc<Instance>, native: &str) -> Look {
        if !instance.abilities().list {
            return Look::default();
        }
        let limit = Duration::from_millis(self.limits.list_wait_ms);
        match tokio::time::timeout(limit, self.list_pages(instance, Some(native))).await {
            Ok(pages) => Look::new(&pages, native),
            Err(_) => Look::default(),
        }
    }

    /// What the agent is sent: the client's own parameters, else the last accepted ones.
    fn open_params(&self, request: &OpenRequest, native: &str) -> Result<String, StartFailure> {
        if let Some(params) = &request.params {
            let frame = Frame::call("session/load", Some("0"), &String::from_utf8_lossy(params));
            if let Ok(message) = Message::parse(frame) {
                let spliced = message.frame().spliced(None, Some(&quote(native)));
                if let Ok(Message::Request(frame)) = Message::parse(spliced) {
                    return Ok(frame.params().unwrap_or("{}").to_owned());
                }
            }
        }
        let params = self.kept_params(request.lane.key(), &request.view, native);
        params.map(|params| Value::Object(params).to_string()).map_err(StartFailure::Ours)
    }

    /// The last accepted parameters of a session, for its agent.
    pub(super) fn kept_params(
        &self,
        key: Key,
        view: &View,
        native: &str,
    ) -> Result<Map<String, Value>, WireError> {
        let kept = self.log.params().read(key).ok().flatten();
        let params: Value =
            kept.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_else(|| {
                json!({
                    "cwd": view.cwd,
                    "additionalDirectories": view.additional_directories,
                    "mcpServers": [],
                })
            });
        let Value::Object(mut members) = params else {
            return Err(WireError::new(Code::Internal, "the kept parameters are damaged"));
        };
        members.insert("sessionId".into(), native.into());
        members.remove("_meta");
        if members.get("additionalDirectories").and_then(Value::as_array).is_some_and(Vec::is_empty)
        {
            members.remove("additionalDirectories");
        }
        Ok(members)
    }
}

/// Whether an agent has said yes to opening a session and named another one. Where it says that both
/// are one conversation it has not.
fn is_other(instance: &Instance, frame: &Frame, native: &str) -> bool {
    let Some(named) = frame.session_id().filter(|_| frame.error().is_none()) else { return false };
    let known = instance.names_of(native);
    let result = frame.result().and_then(|text| serde_json::from_str(text).ok());
    let told = result.map(|result: Value| told(&result)).unwrap_or_default();
    !known.contains(&*named) && !told.iter().any(|id| known.contains(id))
}

/// The user texts of the turns in a journal, in order: prompts sent here and imported messages.
fn known_turns(path: &std::path::Path) -> Result<Vec<String>, LogError> {
    let mut reader = Reader::open(path)?;
    let mut known: Vec<String> = Vec::new();
    let mut in_user = false;
    loop {
        let batch = reader.read_batch(BATCH_BYTES)?;
        if batch.is_empty() {
            return Ok(known);
        }
        for record in batch {
            match record.kind {
                Kind::TurnStarted => {
                    let started: Value = record.payload().unwrap_or_default();
                    known.push(prompt_text(&started["prompt"]));
                    in_user = false;
                }
                Kind::Imported => match user_text(&stored_params(&record.data)) {
                    Some(text) if in_user => {
                        if let Some(last) = known.last_mut() {
                            last.push_str(&text);
                        }
                    }
                    Some(text) => {
                        known.push(text);
                        in_user = true;
                    }
                    None => in_user = false,
                },
                _ => in_user = false,
            }
        }
    }
}
