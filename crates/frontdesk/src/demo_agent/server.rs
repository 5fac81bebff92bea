//! The agent's methods: one reader, which answers at once whatever needs no waiting.
//!
//! Loads, lists, forks and closes run on threads of their own and prompts on one thread a turn, so
//! that `session/status` and `session/cancel` never queue behind them.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use frontdesk_core::envelope::{Frame, Malformed, Message, quote};
use frontdesk_core::errors::{Code, WireError};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::options::Options;
use super::session::{Running, Session, commands_update, is_mode, update_params};
use super::store::{Store, StoreError, Summary, instant};
use super::turn::{Prompt, SIGNALS_MAX, Turn};
use super::wire::{Failure, Out, Read, Signal, read_line};
use super::{FRAME_BYTES_MAX, STACK_BYTES, lock};

/// Rows in one page of `session/list`.
const PAGE_ROWS: usize = 50;
/// How long a close waits for the running turn, in milliseconds.
const CLOSE_MS: u64 = 2_000;
/// How long the end of stdin waits for running turns, in milliseconds.
const END_TURNS_MS: u64 = 60;
/// How long the end of stdin waits for a line being written, in milliseconds.
const END_LINE_MS: u64 = 20;

/// An answer, or `None` if a thread gives it later.
type Reply = Option<Result<Value, Failure>>;

/// The whole agent.
pub(super) struct Agent {
    /// How it was started.
    pub(super) options: Options,
    /// The way to the client.
    pub(super) out: Out,
    /// What the client can do.
    pub(super) client: Mutex<ClientOffers>,
    store: Store,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// Sessions that a thread is loading, closing or deleting right now.
    moving: Mutex<HashSet<String>>,
    ready: AtomicBool,
}

/// The client's abilities that scripts use.
#[derive(Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one capability of the protocol")]
pub(super) struct ClientOffers {
    /// `fs.readTextFile`.
    pub(super) read: bool,
    /// `fs.writeTextFile`.
    pub(super) write: bool,
    /// `terminal`.
    pub(super) terminal: bool,
    /// `elicitation.form`.
    pub(super) forms: bool,
}

/// Serves stdin and stdout until stdin ends.
pub(super) fn serve(options: Options) -> ExitCode {
    let slow_start = options.slow_start;
    let agent = Arc::new(Agent {
        out: Out::new(),
        client: Mutex::default(),
        store: Store::new(options.store.clone()),
        sessions: Mutex::default(),
        moving: Mutex::default(),
        ready: AtomicBool::new(false),
        options,
    });
    if let Some(banner) = &agent.options.banner {
        agent.out.line(banner.as_bytes());
    }
    std::thread::sleep(slow_start);
    let mut stdin = io::stdin().lock();
    loop {
        match read_line(&mut stdin, FRAME_BYTES_MAX) {
            Ok(Read::Line(line)) => agent.take(line),
            Ok(Read::TooLong) => {
                let error = WireError::new(Code::ParseError, "the line is longer than 64 MiB");
                agent.out.answer("null", &Err(error.into()));
            }
            Ok(Read::End) => break,
            Err(error) => {
                eprintln!("frontdesk demo-agent: failed to read stdin: {error}");
                break;
            }
        }
    }
    agent.end()
}

impl Agent {
    fn take(self: &Arc<Self>, line: Bytes) {
        match Message::parse(line) {
            Ok(Message::Request(frame)) => {
                let id = frame.id().unwrap_or("null").to_owned();
                if let Some(answer) = self.request(&frame, &id) {
                    self.out.answer(&id, &answer);
                }
            }
            Ok(Message::Notification(frame)) => self.notification(&frame),
            Ok(Message::Response(frame)) => self.out.answered(&frame),
            Err(Malformed::Blank) => {}
            Err(error @ Malformed::NotJson) => {
                let error = WireError::new(Code::ParseError, error.to_string());
                self.out.answer("null", &Err(error.into()));
            }
            Err(error @ (Malformed::NotMessage | Malformed::Batch)) => {
                self.out.answer("null", &Err(Failure::request(&error.to_string())));
            }
        }
    }

    fn notification(&self, frame: &Frame) {
        match frame.method.as_ref() {
            "session/cancel" => {
                let session = frame.session_id().and_then(|id| self.session(&id));
                session.map(|session| session.signal(Signal::Cancel));
            }
            "$/cancel_request" => {
                #[derive(Deserialize)]
                struct Params<'a> {
                    #[serde(borrow, rename = "requestId")]
                    request: &'a RawValue,
                }
                let params = frame.params().map(serde_json::from_str::<Params<'_>>);
                let Some(Ok(Params { request })) = params else { return };
                let sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
                for session in sessions {
                    let mine = lock(&session.state)
                        .running
                        .as_ref()
                        .is_some_and(|running| running.request == request.get());
                    if mine {
                        session.signal(Signal::CancelRequest);
                    }
                }
            }
            _ => {}
        }
    }

    fn request(self: &Arc<Self>, frame: &Frame, id: &str) -> Reply {
        let offers = &self.options;
        let method = frame.method.as_ref();
        let offered = match method {
            "initialize"
            | "authenticate"
            | "session/new"
            | "session/prompt"
            | "session/set_mode"
            | "session/set_config_option" => true,
            "session/load" => offers.load,
            "session/resume" => offers.resume,
            "session/list" => offers.list,
            "session/status" => offers.status,
            "session/close" => offers.close,
            "session/delete" => offers.delete,
            "session/fork" => offers.fork,
            _ => false,
        };
        if !offered {
            return Some(Err(WireError::method_not_found(method).into()));
        }
        if method != "initialize" && !self.ready.load(Ordering::Relaxed) {
            return Some(Err(Failure::request("send initialize first")));
        }
        let params = match frame.params().map(serde_json::from_str::<Value>) {
            Some(Ok(Value::Object(params))) => params,
            _ => return Some(Err(Failure::params("params must be an object"))),
        };
        let reply = match method {
            "initialize" => self.initialize(&params).map(Some),
            "authenticate" => Ok(Some(json!({}))),
            "session/new" => self.new_session(id, &params),
            "session/load" => self.open(id, &params, true),
            "session/resume" => self.open(id, &params, false),
            "session/list" => self.list(id, params),
            "session/status" => self.status(&params).map(Some),
            "session/close" => self.close(id, &params, false),
            "session/delete" => self.close(id, &params, true),
            "session/fork" => self.fork(id, &params),
            "session/set_mode" => self.set_mode(&params).map(Some),
            "session/set_config_option" => self.set_option(&params).map(Some),
            _ => self.prompt(id, frame),
        };
        match reply {
            Ok(None) => None,
            Ok(Some(result)) => Some(Ok(result)),
            Err(error) => Some(Err(error)),
        }
    }

    fn initialize(&self, params: &Map<String, Value>) -> Result<Value, Failure> {
        if !params.get("protocolVersion").is_some_and(Value::is_u64) {
            return Err(Failure::params("protocolVersion must be a number"));
        }
        let can = params.get("clientCapabilities").cloned().unwrap_or_default();
        let yes = |value: &Value| value.as_bool() == Some(true);
        *lock(&self.client) = ClientOffers {
            read: yes(&can["fs"]["readTextFile"]),
            write: yes(&can["fs"]["writeTextFile"]),
            terminal: yes(&can["terminal"]),
            forms: can["elicitation"]["form"].is_object(),
        };
        self.ready.store(true, Ordering::Relaxed);
        let mut session = Map::new();
        let offers = &self.options;
        for (name, offered) in [
            ("list", offers.list),
            ("resume", offers.resume),
            ("close", offers.close),
            ("delete", offers.delete),
            ("fork", offers.fork),
            ("status", offers.status),
        ] {
            if offered {
                session.insert(name.to_owned(), json!({}));
            }
        }
        Ok(json!({
            "protocolVersion": 1,
            "agentInfo": {
                "name": "frontdesk-demo",
                "title": "Frontdesk demo agent",
                "version": env!("CARGO_PKG_VERSION"),
            },
            "agentCapabilities": {
                "loadSession": offers.load,
                "promptCapabilities": { "image": true, "audio": false, "embeddedContext": true },
                "mcpCapabilities": { "http": false, "sse": false },
                "sessionCapabilities": session,
            },
            "authMethods": [],
        }))
    }

    /// The reference answer of the session-status RFD: no side effects, no waiting.
    fn status(&self, params: &Map<String, Value>) -> Result<Value, Failure> {
        let id = session_id(params)?;
        let [active, inactive] =
            if self.options.status_open { ["open", "saved"] } else { ["active", "inactive"] };
        if self.session(id).is_some() {
            Ok(json!({ "status": active }))
        } else if self.store.has(id) {
            Ok(json!({ "status": inactive }))
        } else {
            Err(Failure::not_found(id))
        }
    }

    fn new_session(
        &self,
        request: &str,
        params: &Map<String, Value>,
    ) -> Result<Option<Value>, Failure> {
        let place = Place::read(params, true)?;
        let summary = Summary {
            id: Uuid::now_v7().to_string(),
            cwd: place.cwd,
            directories: place.directories,
            ..Summary::default()
        };
        let file = self.store.create(&summary).map_err(|error| store_failure(&error, ""))?;
        let session = Arc::new(Session::new(summary, file));
        self.enter(&session, "new", "");
        self.introduce(request, &session, true);
        Ok(None)
    }

    /// Makes a session findable in memory, and writes down which process has it.
    fn enter(&self, session: &Arc<Session>, how: &str, more: &str) {
        session.record("opened", &format!(r#""how":"{how}","pid":{}{more}"#, std::process::id()));
        lock(&self.sessions).insert(session.id.clone(), session.clone());
    }

    /// Answers the request that opened a session, and sends its commands behind the answer.
    fn introduce(&self, request: &str, session: &Session, name: bool) {
        let mut result = {
            let state = lock(&session.state);
            json!({ "modes": state.modes(), "configOptions": state.options() })
        };
        if name {
            result["sessionId"] = json!(session.id);
        }
        self.out.answer(request, &Ok(result));
        // Not stored: it is the session's surroundings, and sent again at each opening.
        let commands = commands_update().to_string();
        self.out.notify("session/update", &update_params(&session.id, &commands));
    }

    /// `session/load` (with `replay`) and `session/resume`.
    fn open(
        self: &Arc<Self>,
        request: &str,
        params: &Map<String, Value>,
        replay: bool,
    ) -> Result<Option<Value>, Failure> {
        let id = session_id(params)?.to_owned();
        let place = Place::read(params, replay)?;
        if let Some(session) = self.session(&id)
            && replay
            && lock(&session.state).running.is_some()
        {
            return Err(Failure::request("the session is busy with a turn"));
        }
        self.apart(request, Some(id.clone()), move |agent, request| {
            let session = agent.open_now(&id, place, replay)?;
            Ok(After::Opened { request, session })
        })
    }

    fn open_now(&self, id: &str, place: Place, replay: bool) -> Result<Arc<Session>, Failure> {
        let failed = |error: StoreError| store_failure(&error, id);
        let session = match self.session(id) {
            Some(session) => session,
            None => {
                let summary = self.store.summary(id).map_err(failed)?;
                let file = self.store.open(id).map_err(failed)?;
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
                .replay(id, |update| self.out.notify("session/update", &update_params(id, update)))
                .map_err(failed)?;
        }
        Ok(session)
    }

    fn fork(
        self: &Arc<Self>,
        request: &str,
        params: &Map<String, Value>,
    ) -> Result<Option<Value>, Failure> {
        let id = session_id(params)?.to_owned();
        let place = Place::read(params, false)?;
        self.apart(request, None, move |agent, request| {
            let failed = |error: StoreError| store_failure(&error, &id);
            let mut summary = agent.store.summary(&id).map_err(failed)?;
            summary.id = Uuid::now_v7().to_string();
            summary.cwd = place.cwd;
            summary.directories = place.directories;
            let mut file = agent.store.create(&summary).map_err(failed)?;
            agent.store.copy_history(&id, &mut file).map_err(failed)?;
            let session = Arc::new(Session::new(summary, file));
            agent.enter(&session, "fork", &format!(r#","from":{}"#, quote(&id)));
            Ok(After::Forked { request, session })
        })
    }

    fn list(
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
        self.apart(request, None, move |agent, request| {
            let rows = agent.store.list();
            let result = page(&rows, cwd.as_deref(), after.as_ref());
            Ok(After::Answer { request, result })
        })
    }

    /// `session/close` and, with `delete`, `session/delete`.
    fn close(
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
        self.apart(request, Some(id.clone()), move |agent, request| {
            if let Some(session) = loaded {
                session.wait_idle(Duration::from_millis(CLOSE_MS));
                session.silence();
                lock(&agent.sessions).remove(&id);
            }
            if delete {
                agent.store.delete(&id).map_err(|error| store_failure(&error, &id))?;
            }
            Ok(After::Answer { request, result: json!({}) })
        })
    }

    fn set_mode(&self, params: &Map<String, Value>) -> Result<Value, Failure> {
        let session = self.loaded(session_id(params)?)?;
        let mode = string(params, "modeId")?;
        if !is_mode(mode) {
            return Err(Failure::params("there is no such mode"));
        }
        lock(&session.state).mode = mode.to_owned();
        session.record("mode", &format!(r#""mode":{}"#, quote(mode)));
        Ok(json!({}))
    }

    fn set_option(&self, params: &Map<String, Value>) -> Result<Value, Failure> {
        let session = self.loaded(session_id(params)?)?;
        let name = string(params, "configId")?;
        let value = params.get("value").ok_or_else(|| Failure::params("value is missing"))?;
        let mut state = lock(&session.state);
        let value = state.set_option(name, value)?;
        session.record("option", &format!(r#""option":{}"#, json!([name, value])));
        Ok(json!({ "configOptions": state.options() }))
    }

    fn prompt(self: &Arc<Self>, request: &str, frame: &Frame) -> Result<Option<Value>, Failure> {
        #[derive(Deserialize)]
        struct Params<'a> {
            #[serde(borrow, rename = "sessionId")]
            session: Cow<'a, str>,
            #[serde(borrow)]
            prompt: Vec<&'a RawValue>,
        }
        let params: Params<'_> = serde_json::from_str(frame.params().unwrap_or("{}"))
            .map_err(|_| Failure::params("sessionId must be a string and prompt a list"))?;
        let prompt = Prompt::read(params.prompt.iter().map(|block| block.get()))
            .ok_or_else(|| Failure::params("each part of a prompt needs a type"))?;
        let session = self.loaded(&params.session)?;
        let (signals, received) = std::sync::mpsc::sync_channel(SIGNALS_MAX);
        let number = {
            let mut state = lock(&session.state);
            if state.running.is_some() || lock(&self.moving).contains(&session.id) {
                return Err(Failure::request("the session is busy with a turn"));
            }
            let running = Running { request: request.to_owned(), signals: signals.clone() };
            state.running = Some(running);
            state.turns += 1;
            state.turns
        };
        session.record("prompt", &format!(r#""content":[{}]"#, prompt.blocks));
        let turn =
            Turn::new(self.clone(), session.clone(), request.to_owned(), number, signals, received);
        if let Err(error) = thread("turn", move || turn.run(prompt)) {
            session.finish(|| self.out.answer(request, &Err(error)));
        }
        Ok(None)
    }

    fn session(&self, id: &str) -> Option<Arc<Session>> {
        lock(&self.sessions).get(id).cloned()
    }

    fn loaded(&self, id: &str) -> Result<Arc<Session>, Failure> {
        self.session(id).ok_or_else(|| Failure::not_found(id))
    }

    /// Runs `work` on a thread of its own, which then answers. A session named in `moves` takes no
    /// other such work and no prompt meanwhile.
    fn apart(
        self: &Arc<Self>,
        request: &str,
        moves: Option<String>,
        work: impl FnOnce(&Agent, String) -> Result<After, Failure> + Send + 'static,
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
            let done = work(&agent, request.clone());
            if let Some(id) = &moved {
                lock(&agent.moving).remove(id);
            }
            match done {
                Ok(After::Answer { request, result }) => agent.out.answer(&request, &Ok(result)),
                Ok(After::Opened { request, session }) => {
                    agent.introduce(&request, &session, false);
                }
                Ok(After::Forked { request, session }) => agent.introduce(&request, &session, true),
                Err(error) => agent.out.answer(&request, &Err(error)),
            }
        });
        if let Err(error) = started {
            if let Some(id) = &moves {
                lock(&self.moving).remove(id);
            }
            return Err(error);
        }
        Ok(None)
    }

    /// Stdin has ended: cancels what runs and leaves, all within about 80 ms.
    fn end(&self) -> ExitCode {
        if self.options.stay {
            loop {
                std::thread::park();
            }
        }
        let until = Instant::now() + Duration::from_millis(END_TURNS_MS);
        let sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        for session in &sessions {
            session.signal(Signal::Eof);
        }
        for session in &sessions {
            session.wait_idle(until.saturating_duration_since(Instant::now()));
        }
        self.out.settle(Duration::from_millis(END_LINE_MS));
        ExitCode::SUCCESS
    }
}

/// What a worker thread does when its work is done.
enum After {
    Answer { request: String, result: Value },
    Opened { request: String, session: Arc<Session> },
    Forked { request: String, session: Arc<Session> },
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

fn string<'a>(params: &'a Map<String, Value>, name: &str) -> Result<&'a str, Failure> {
    let text = params.get(name).and_then(Value::as_str);
    text.ok_or_else(|| Failure::params(&format!("{name} must be a string")))
}

fn session_id(params: &Map<String, Value>) -> Result<&str, Failure> {
    string(params, "sessionId")
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

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES)
        .spawn(work)
        .map(drop)
        .map_err(|error| {
            eprintln!("frontdesk demo-agent: failed to start a thread: {error}");
            Failure::internal("no thread could be started")
        })
}

/// One page of a list that is sorted newest first.
fn page(rows: &[Summary], cwd: Option<&str>, after: Option<&(i64, String)>) -> Value {
    let same_folder =
        |row: &&Summary| cwd.is_none_or(|cwd| trim_slashes(cwd) == trim_slashes(&row.cwd));
    let behind = |row: &&Summary| {
        after.is_none_or(|(us, id)| (row.updated_us, row.id.as_str()) < (*us, id.as_str()))
    };
    let mut rest = rows.iter().filter(same_folder).filter(behind);
    let shown: Vec<&Summary> = rest.by_ref().take(PAGE_ROWS).collect();
    let sessions: Vec<Value> = shown
        .iter()
        .map(|row| {
            let mut info = json!({
                "sessionId": row.id, "cwd": row.cwd, "updatedAt": instant(row.updated_us),
            });
            if let Some(title) = &row.title {
                info["title"] = json!(title);
            }
            if !row.directories.is_empty() {
                info["additionalDirectories"] = json!(row.directories);
            }
            info
        })
        .collect();
    let mut result = json!({ "sessions": sessions });
    if let (Some(_), Some(last)) = (rest.next(), shown.last()) {
        result["nextCursor"] = json!(format!("{}~{}", last.updated_us, last.id));
    }
    result
}

fn read_cursor(cursor: &str) -> Option<(i64, String)> {
    let (us, id) = cursor.split_once('~')?;
    Some((us.parse().ok()?, id.to_owned()))
}

fn trim_slashes(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" => "/",
        trimmed => trimmed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: i64) -> Vec<Summary> {
        let row = |at: i64| Summary {
            id: format!("s{at:03}"),
            cwd: if at % 2 == 0 { "/even/" } else { "/odd" }.into(),
            // Pairs share an instant: the cursor must not lose or repeat one of them.
            updated_us: at / 2,
            ..Summary::default()
        };
        (0..count).rev().map(row).collect()
    }

    fn walk(rows: &[Summary], cwd: Option<&str>) -> Vec<usize> {
        let mut after = None;
        let mut pages = Vec::new();
        loop {
            let result = page(rows, cwd, after.as_ref());
            pages.push(result["sessions"].as_array().unwrap().len());
            match result["nextCursor"].as_str() {
                Some(cursor) => after = read_cursor(cursor),
                None => return pages,
            }
        }
    }

    #[test]
    fn pages_hold_every_row_once() {
        assert_eq!(walk(&rows(0), None), [0]);
        assert_eq!(walk(&rows(50), None), [50]);
        assert_eq!(walk(&rows(51), None), [50, 1]);
        assert_eq!(walk(&rows(130), None), [50, 50, 30]);
        assert_eq!(walk(&rows(130), Some("/even")), [50, 15]);
        assert_eq!(walk(&rows(130), Some("/odd//")), [50, 15]);
        assert_eq!(walk(&rows(130), Some("/")), [0]);
    }

    #[test]
    fn cursors_of_others_are_refused() {
        for bad in ["", "x", "1", "x~y", "99999999999999999999~a"] {
            assert_eq!(read_cursor(bad), None, "{bad:?}");
        }
    }
}
