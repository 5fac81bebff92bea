//! The agent's methods: one reader, which answers at once whatever needs no waiting.
//!
//! Loads, lists, forks and closes (`opening`) run on threads of their own and prompts on one thread
//! a turn, so that `session/status` and `session/cancel` never queue behind them.

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

use super::frames::FrameLog;
use super::options::Options;
use super::session::{Running, Session, is_mode};
use super::store::Store;
use super::turn::{Prompt, SIGNALS_MAX, Turn};
use super::wire::{Failure, Out, Read, Signal, read_line};
use super::{FRAME_BYTES_MAX, STACK_BYTES, lock};

/// How long the end of stdin waits for running turns, in milliseconds.
const END_TURNS_MS: u64 = 60;
/// How long the end of stdin waits for a line being written, in milliseconds.
const END_LINE_MS: u64 = 20;

/// An answer, or `None` if a thread gives it later.
type Reply = Option<Result<Value, Failure>>;

/// What all connections of one process have in common.
pub(super) struct Shared {
    /// How it was started.
    pub(super) options: Options,
    /// The stored sessions.
    pub(super) store: Store,
    /// The loaded sessions.
    pub(super) sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// Sessions that a thread is loading, closing or deleting right now.
    pub(super) moving: Mutex<HashSet<String>>,
    /// All that is read and written, if somebody wants to know.
    pub(super) log: Arc<FrameLog>,
}

/// The whole agent, as one client sees it.
pub(super) struct Agent {
    shared: Arc<Shared>,
    /// The way to the client.
    pub(super) out: Out,
    /// What the client can do.
    pub(super) client: Mutex<ClientOffers>,
    /// Number of the connection; 0 for stdin.
    number: u64,
    ready: AtomicBool,
}

impl std::ops::Deref for Agent {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Shared {
    /// Nothing loaded.
    ///
    /// # Errors
    /// If the log cannot be opened.
    pub(super) fn new(options: Options) -> io::Result<Self> {
        let store = Store::new(options.store.clone());
        let log = Arc::new(FrameLog::open(options.log.as_deref())?);
        Ok(Self { options, store, sessions: Mutex::default(), moving: Mutex::default(), log })
    }
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

fn failed(error: &io::Error) -> ExitCode {
    eprintln!("frontdesk demo-agent: failed to open the log: {error}");
    ExitCode::FAILURE
}

/// Serves stdin and stdout until stdin ends.
pub(super) fn serve(options: Options) -> ExitCode {
    if let Some(address) = options.listen {
        return super::door::serve(options, address);
    }
    let slow_start = options.slow_start;
    let shared = match Shared::new(options) {
        Ok(shared) => Arc::new(shared),
        Err(error) => return failed(&error),
    };
    let out = Out::new(shared.log.clone());
    let agent = Arc::new(Agent::new(shared, out, 0));
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
    /// The agent towards one client.
    pub(super) fn new(shared: Arc<Shared>, out: Out, number: u64) -> Self {
        let client = Mutex::default();
        Self { shared, out, client, number, ready: AtomicBool::new(false) }
    }

    /// Takes one message of the client.
    pub(super) fn take(self: &Arc<Self>, line: Bytes) {
        self.out.note_read(&line);
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
                        .is_some_and(|running| self.asked_for(running, request.get()));
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
            | "session/set_config_option"
            // Answered at once and stored nowhere: what the benches send through a desk.
            | "_demo/echo" => true,
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
            "_demo/echo" => Ok(Some(json!({ "text": params.get("text") }))),
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
            let (request, signals) = (request.to_owned(), signals.clone());
            let running = Running { request, signals, connection: self.number };
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

    /// A loaded session.
    pub(super) fn session(&self, id: &str) -> Option<Arc<Session>> {
        lock(&self.sessions).get(id).cloned()
    }

    fn loaded(&self, id: &str) -> Result<Arc<Session>, Failure> {
        self.session(id).ok_or_else(|| Failure::not_found(id))
    }

    fn asked_for(&self, running: &Running, request: &str) -> bool {
        running.connection == self.number && running.request == request
    }

    /// The connection is gone: its turns are cancelled. Sessions stay in memory.
    pub(super) fn hang_up(&self) {
        let sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        for session in sessions {
            let own = |running: &Running| running.connection == self.number;
            if lock(&session.state).running.as_ref().is_some_and(own) {
                session.signal(Signal::Eof);
            }
        }
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

/// A string member of the params.
///
/// # Errors
/// `-32602` if it is missing or of another type.
pub(super) fn string<'a>(params: &'a Map<String, Value>, name: &str) -> Result<&'a str, Failure> {
    let text = params.get(name).and_then(Value::as_str);
    text.ok_or_else(|| Failure::params(&format!("{name} must be a string")))
}

/// The params' `sessionId`.
///
/// # Errors
/// `-32602` if it is missing or of another type.
pub(super) fn session_id(params: &Map<String, Value>) -> Result<&str, Failure> {
    string(params, "sessionId")
}

/// Starts a worker thread.
///
/// # Errors
/// `-32603` if the system has none to give.
pub(super) fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
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
