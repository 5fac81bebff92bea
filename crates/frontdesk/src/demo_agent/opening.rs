//! Methods that open, close and list sessions: new, load, resume, fork, close, delete, list.
//!
//! All but new read or copy a session's whole file, or wait for a turn, and so run on a thread of
//! their own.

use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::envelope::quote;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::lock;
use super::page::{page, read_cursor};
use super::server::{Agent, session_id, string, thread};
use super::session::{Session, commands_update, update_params};
use super::store::{StoreError, Summary};
use super::wire::{Failure, Signal};

/// How long a close waits for the running turn, in milliseconds.
const CLOSE_MS: u64 = 2_000;

/// What a worker thread does when its work is done.
enum After {
    /// Answers with this.
    Answer(Value),
    /// Answers as `session/load` and `session/resume` do.
    Opened(Arc<Session>),
    /// Answers as `session/new` and `session/fork` do.
    Made(Arc<Session>),
}

/// The working directory and further roots of a request.
struct Place {
    cwd: String,
    directories: Vec<String>,
}

impl Place {
    fn read(params: &Map<String, Value>, servers_required: bool) -> Result<Self, Failure> {
        let cwd = string(params, "cwd")?;
        if !cwd.starts_with('/') {
            return Err(Failure::params("cwd must be an absolute path"));
        }
        match params.get("mcpServers") {
            Some(Value::Array(_)) => {}
            None if !servers_required => {}
            _ => return Err(Failure::params("mcpServers must be a list")),
        }
        let directories = match params.get("additionalDirectories") {
            None | Some(Value::Null) => Vec::new(),
            Some(value) => serde_json::from_value(value.clone())
                .map_err(|_| Failure::params("additionalDirectories must be a list of paths"))?,
        };
        Ok(Self { cwd: cwd.to_owned(), directories })
    }
}

impl Agent {
    pub(super) fn new_session(
        &self,
        request: &str,
        params: &Map<String, Value>,
    ) -> Result<Option<Value>, Failure> {
        let place = Place::read(params, true)?;
        let summary = Summary {
            id: self.options.one_id.clone().unwrap_or_else(|| Uuid::now_v7().to_string()),
            cwd: place.cwd,
            directories: place.directories,
            ..Summary::default()
        };
        if self.options.one_id.is_some() {
            // The one before is written over, as agents do whose ids repeat.
            let _ = self.store.delete(&summary.id);
        }
        let file = self.store.create(&summary).map_err(|error| store_failure(&error, ""))?;
        let session = Arc::new(Session::new(summary, file));
        self.enter(&session, "new", "");
        self.introduce(request, &session, true);
        Ok(None)
    }

    /// Makes a session findable in memory, and writes down which process has it.
    fn enter(&self, session: &Arc<Session>, how: &str, more: &str) {
        let (pid, alone) = (std::process::id(), session.is_alone());
        session.record("opened", &format!(r#""how":"{how}","pid":{pid},"alone":{alone}{more}"#));
        lock(&self.sessions).insert(session.id.clone(), session.clone());
    }

    /// Answers the request that opened a session, and sends its commands behind the answer.
    fn introduce(&self, request: &str, session: &Session, name: bool) {
        let mut result = {
            let state = lock(&session.state);
            json!({ "modes": state.modes(), "configOptions": state.options() })
        };
        let filed = session.filed_as();
        if filed != session.id {
            result["aliases"] = json!([filed]);
        }
        if name {
            result["sessionId"] = json!(session.id);
        }
        // The commands are not stored: they are sent again at each opening.
        let commands = update_params(&session.id, &commands_update().to_string());
        self.out.answer_and_notify(request, &result, "session/update", &commands);
    }

    /// `session/load` (with `replay`) and `session/resume`.
    pub(super) fn open(
        self: &Arc<Self>,
        request: &str,
        params: &Map<String, Value>,
        replay: bool,
    ) -> Result<Option<Value>, Failure> {
        let id = session_id(params)?.to_owned();
        if self.options.resume_replaces && !replay {
            return self.new_session(request, params);
        }
        let place = Place::read(params, replay)?;
        if let Some(session) = self.session(&id)
            && replay
            && lock(&session.state).running.is_some()
        {
            return Err(Failure::request("the session is busy with a turn"));
        }
        self.apart(request, Some(id.clone()), move |agent| {
            let session = agent.open_now(&id, place, replay)?;
            Ok(After::Opened(session))
        })
    }

    fn filed_as(&self, id: &str) -> String {
        if self.options.forgets_ids { id.to_owned() } else { self.store.filed_as(id) }
    }

    fn open_now(&self, id: &str, place: Place, replay: bool) -> Result<Arc<Session>, Failure> {
        let failed = |error: StoreError| store_failure(&error, id);
        let session = match self.session(id) {
            Some(session) => session,
            None => {
                let filed = self.filed_as(id);
                let mut summary = self.store.summary(&filed).map_err(failed)?;
                let file = self.store.open(&filed).map_err(failed)?;
                // It is spoken of by the id that was asked for.
                summary.id = id.to_owned();
                Arc::new(Session::new(summary, file))
            }
        };
        let moved = {
            let mut state = lock(&session.state);
            state.directories = place.directories;
            let moved = state.cwd != place.cwd;
            state.cwd = place.cwd;
            if moved { format!(r#","cwd":{}"#, quote(&state.cwd)) } else { String::new() }
        };
        self.enter(&session, if replay { "load" } else { "resume" }, &moved);
        if replay {
            self.store
                .replay(&self.filed_as(id), |update| {
                    self.out.notify("session/update", &update_params(id, update))
                })
                .map_err(failed)?;
        }
        Ok(session)
    }

    pub(super) fn fork(
        self: &Arc<Self>,
        request: &str,
        params: &Map<String, Value>,
    ) -> Result<Option<Value>, Failure> {
        let id = session_id(params)?.to_owned();
        let place = Place::read(params, false)?;
        self.apart(request, None, move |agent| {
            let failed = |error: StoreError| store_failure(&error, &id);
            let filed = agent.filed_as(&id);
            let mut summary = agent.store.summary(&filed).map_err(failed)?;
            summary.aliases.clear();
            summary.id = Uuid::now_v7().to_string();
            summary.cwd = place.cwd;
            summary.directories = place.directories;
            let mut file = agent.store.create(&summary).map_err(failed)?;
            agent.store.copy_history(&filed, &mut file).map_err(failed)?;
            let session = Arc::new(Session::new(summary, file));
            agent.enter(&session, "fork", &format!(r#","from":{}"#, quote(&id)));
            Ok(After::Made(session))
        })
    }

    pub(super) fn list(
        self: &Arc<Self>,
        request: &str,
        params: Map<String, Value>,
    ) -> Result<Option<Value>, Failure> {
        let text = |name: &str| match params.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(Failure::params(&format!("{name} must be a string"))),
        };
        let cwd = text("cwd")?;
        let after = match text("cursor")? {
            None => None,
            Some(cursor) => {
                Some(read_cursor(&cursor).ok_or_else(|| Failure::params("no such cursor"))?)
            }
        };
        self.apart(request, None, move |agent| {
            let rows = agent.store.list();
            let result = page(&rows, cwd.as_deref(), after.as_ref());
            Ok(After::Answer(result))
        })
    }

    /// `session/close` and, with `delete`, `session/delete`.
    pub(super) fn close(
        self: &Arc<Self>,
        request: &str,
        params: &Map<String, Value>,
        delete: bool,
    ) -> Result<Option<Value>, Failure> {
        let id = session_id(params)?.to_owned();
        let loaded = self.session(&id);
        match (&loaded, delete) {
            (None, true) => {
                self.store.delete(&id).map_err(|error| store_failure(&error, &id))?;
                return Ok(Some(json!({})));
            }
            (None, false) => return Err(Failure::not_found(&id)),
            (Some(session), _) => session.signal(Signal::Cancel),
        };
        self.apart(request, Some(id.clone()), move |agent| {
            if let Some(session) = loaded {
                session.wait_idle(Duration::from_millis(CLOSE_MS));
                session.silence();
                lock(&agent.sessions).remove(&id);
            }
            if delete {
                agent.store.delete(&id).map_err(|error| store_failure(&error, &id))?;
            }
            Ok(After::Answer(json!({})))
        })
    }

    /// Runs `work` on a thread of its own, which then answers. A session named in `moves` takes no
    /// other such work and no prompt meanwhile.
    fn apart(
        self: &Arc<Self>,
        request: &str,
        moves: Option<String>,
        work: impl FnOnce(&Self) -> Result<After, Failure> + Send + 'static,
    ) -> Result<Option<Value>, Failure> {
        if let Some(id) = &moves
            && !lock(&self.moving).insert(id.clone())
        {
            return Err(Failure::request("the session is being loaded or closed"));
        }
        let agent = self.clone();
        let request = request.to_owned();
        let moved = moves.clone();
        let started = thread("work", move || {
            let done = work(&agent);
            if let Some(id) = &moved {
                lock(&agent.moving).remove(id);
            }
            match done {
                Ok(After::Answer(result)) => agent.out.answer(&request, &Ok(result)),
                Ok(After::Opened(session)) => agent.introduce(&request, &session, false),
                Ok(After::Made(session)) => agent.introduce(&request, &session, true),
                Err(error) => agent.out.answer(&request, &Err(error)),
            }
        });
        if let (Err(_), Some(id)) = (&started, &moves) {
            lock(&self.moving).remove(id);
        }
        started.map(|()| None)
    }
}

fn store_failure(error: &StoreError, id: &str) -> Failure {
    match error {
        StoreError::Unknown => Failure::not_found(id),
        StoreError::Io { .. } => {
            eprintln!("frontdesk demo-agent: {error}");
            Failure::internal("the session store failed")
        }
    }
}
