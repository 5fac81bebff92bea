//! A client for tests: ACP as lines of JSON over the pipes of one child process, or over a socket.
//!
//! The child may be `frontdesk acp` or an agent itself; the client cannot tell, which is the point:
//! the same checks run against both. Everything sent and received is kept in order, and a failed
//! wait prints it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longest wait for one answer or update, unless a test says otherwise.
pub(crate) const ANSWER: Duration = Duration::from_secs(60);
/// How many of the last messages a failed wait prints.
const TRANSCRIPT_LINES: usize = 60;
/// How much of each message a failed wait prints, in bytes.
const TRANSCRIPT_WIDTH: usize = 600;
/// Bytes of the child's stderr that are kept.
const STDERR_BYTES: usize = 256 << 10;

/// An error answer, as it came.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    pub(crate) message: String,
    /// `Value::Null` when there is none.
    pub(crate) data: Value,
}

/// One request that the agent side made of this client.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) id: Value,
    pub(crate) method: String,
    pub(crate) params: Value,
}

/// What this client answers.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Result(Value),
    Error {
        code: i64,
        message: String,
    },
    /// No answer, now or ever; the test may send one itself with [`Acp::send`].
    Silence,
}

/// Decides the answers. It runs on a thread of its own for every request, so it may wait.
pub(crate) type Answers = Arc<dyn Fn(&Ask) -> Reply + Send + Sync>;

/// Answers every request with method-not-found.
pub(crate) fn refuse_all() -> Answers {
    Arc::new(|_| Reply::Error { code: -32601, message: "Method not found".to_owned() })
}

/// One line of the transcript.
#[derive(Clone, Debug)]
pub(crate) enum Line {
    /// A message of the other side.
    In(Value),
    /// A message of ours.
    Out(Value),
    /// A line of the other side that is no JSON.
    Noise(String),
}

#[derive(Default)]
struct State {
    lines: Vec<Line>,
    answers: HashMap<i64, Value>,
    ended: bool,
    stderr: Vec<u8>,
    /// What the other side did that no peer may do; the next wait fails with it.
    fault: Option<String>,
}

struct Shared {
    name: String,
    state: Mutex<State>,
    changed: Condvar,
    stdin: Mutex<Option<Box<dyn Write + Send>>>,
    serve: Mutex<Answers>,
}

/// A request that was sent and whose answer may not be there yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending(i64);

impl Pending {
    /// The id it was sent with.
    pub(crate) fn id(self) -> i64 {
        self.0
    }
}

/// The other end of a client.
enum Far {
    Child(Child),
    Socket(UnixStream),
}

/// The client and its child. Dropping it kills the child, by pid, and waits for it.
pub(crate) struct Acp {
    shared: Arc<Shared>,
    far: Far,
    next_id: i64,
}

impl Acp {
    /// Starts `command` with pipes and a client named `name` (for messages only) on them.
    pub(crate) fn spawn(name: &str, command: &mut Command, answers: Answers) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("failed to start {command:?}: {error}"));
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let shared = Shared::new(name, Box::new(child.stdin.take().unwrap()), answers);
        let reader = Arc::clone(&shared);
        thread::spawn(move || reader.read(stdout));
        let drain = Arc::clone(&shared);
        thread::spawn(move || drain.drain(stderr));
        Self { shared, far: Far::Child(child), next_id: 0 }
    }

    /// A client on a socket, whose first line is `hello`.
    pub(crate) fn connect(
        name: &str,
        mut socket: UnixStream,
        hello: &Value,
        answers: Answers,
    ) -> Self {
        // A daemon that dies now is seen by the reader.
        let _ = writeln!(socket, "{hello}");
        let (near, far) = (socket.try_clone().unwrap(), socket.try_clone().unwrap());
        let shared = Shared::new(name, Box::new(near), answers);
        let reader = Arc::clone(&shared);
        thread::spawn(move || reader.read(socket));
        Self { shared, far: Far::Socket(far), next_id: 0 }
    }

    /// Sends `initialize` as version 1 with the given client capabilities; the result.
    pub(crate) fn initialize(&mut self, capabilities: Value) -> Value {
        self.request(
            "initialize",
            json!({
                "protocolVersion": 1,
                "clientCapabilities": capabilities,
                "clientInfo": { "name": self.shared.name, "version": "1" },
            }),
        )
        .unwrap_or_else(|error| self.fail(&format!("initialize failed: {error:?}")))
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn request(&mut self, method: &str, params: Value) -> Result<Value, RpcError> {
        let pending = self.begin(method, params);
        self.wait(pending, ANSWER)
    }

    /// Sends a request that must succeed.
    pub(crate) fn ok(&mut self, method: &str, params: Value) -> Value {
        self.request(method, params)
            .unwrap_or_else(|error| self.fail(&format!("{method} failed: {error:?}")))
    }

    /// Sends a request that must fail.
    pub(crate) fn err(&mut self, method: &str, params: Value) -> RpcError {
        match self.request(method, params) {
            Err(error) => error,
            Ok(result) => self.fail(&format!("{method} did not fail: {result}")),
        }
    }

    /// Sends a request and does not wait.
    pub(crate) fn begin(&mut self, method: &str, params: Value) -> Pending {
        self.next_id += 1;
        let id = self.next_id;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        Pending(id)
    }

    /// Waits for the answer of a request sent with [`Acp::begin`]; panics when it does not come.
    pub(crate) fn wait(&self, pending: Pending, limit: Duration) -> Result<Value, RpcError> {
        let answer = self.until(limit, &format!("the answer of request {}", pending.0), |state| {
            state.answers.get(&pending.0).cloned()
        });
        match answer.get("error") {
            None => Ok(answer.get("result").cloned().unwrap_or(Value::Null)),
            Some(error) => Err(RpcError {
                code: error["code"].as_i64().unwrap_or_default(),
                message: error["message"].as_str().unwrap_or_default().to_owned(),
                data: error["data"].clone(),
            }),
        }
    }

    /// Whether the answer is there already.
    pub(crate) fn is_answered(&self, pending: Pending) -> bool {
        self.shared.state().answers.contains_key(&pending.0)
    }

    /// Sends a notification.
    pub(crate) fn notify(&self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// Sends one message as it is.
    pub(crate) fn send(&self, message: &Value) {
        self.shared.send(message);
    }

    /// Sends bytes as they are; the caller adds the line end.
    pub(crate) fn send_raw(&self, bytes: &[u8]) {
        self.shared.write(bytes);
    }

    /// Replaces what this client answers from now on.
    pub(crate) fn answer_with(&self, answers: Answers) {
        *lock(&self.shared.serve) = answers;
    }

    /// Runs one turn to its end; the answer and where the transcript stood before it.
    pub(crate) fn turn(&mut self, session: &str, words: &str) -> (Result<Value, RpcError>, usize) {
        let from = self.mark();
        (self.request("session/prompt", prompt(session, words)), from)
    }

    /// Where the transcript stands: what comes later lies behind this position.
    pub(crate) fn mark(&self) -> usize {
        self.shared.state().lines.len()
    }

    /// The transcript from a position on.
    pub(crate) fn lines(&self, from: usize) -> Vec<Line> {
        self.shared.state().lines[from..].to_vec()
    }

    /// The `update` of every `session/update` of this session behind a position.
    pub(crate) fn updates(&self, session: &str, from: usize) -> Vec<Value> {
        updates_in(&self.shared.state(), session, from)
    }

    /// The requests that the other side made behind a position, in order.
    pub(crate) fn asked(&self, from: usize) -> Vec<Ask> {
        asks_in(&self.shared.state(), from)
    }

    /// The texts of all updates of one kind behind a position, joined.
    pub(crate) fn text(&self, session: &str, kind: &str, from: usize) -> String {
        text_of(&self.updates(session, from), kind)
    }

    /// Waits until an update of this session satisfies `wanted`; that update.
    pub(crate) fn wait_update(
        &self,
        session: &str,
        from: usize,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        self.until(ANSWER, what, |state| {
            updates_in(state, session, from).into_iter().find(|update| wanted(update))
        })
    }

    /// Waits until the other side has asked for `method`.
    pub(crate) fn wait_ask(&self, from: usize, method: &str) -> Ask {
        self.until(ANSWER, &format!("a {method} request"), |state| {
            asks_in(state, from).into_iter().find(|ask| ask.method == method)
        })
    }

    /// Waits until the other side has sent a message that satisfies `wanted`; that message.
    pub(crate) fn wait_frame(
        &self,
        from: usize,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        self.until(ANSWER, what, |state| {
            state.lines[from..].iter().find_map(|line| match line {
                Line::In(frame) if wanted(frame) => Some(frame.clone()),
                _ => None,
            })
        })
    }

    /// Waits until everything that the other side sent before its end is in the transcript.
    pub(crate) fn wait_end(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut state = self.shared.state();
        while !state.ended {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the stream did not end within {limit:?}");
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Closes the child's stdin, or the socket's way there.
    pub(crate) fn close_stdin(&self) {
        lock(&self.shared.stdin).take();
        if let Far::Socket(socket) = &self.far {
            let _ = socket.shutdown(Shutdown::Write);
        }
    }

    /// Whether the other side has said its last word.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.state().ended
    }

    /// Waits for the child's end; `None` when it still runs, and on a socket.
    pub(crate) fn wait_exit(&mut self, limit: Duration) -> Option<ExitStatus> {
        let Far::Child(child) = &mut self.far else { return None };
        let until = Instant::now() + limit;
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(status);
            }
            if Instant::now() > until {
                return None;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Closes stdin and, if the child has not ended by then, kills it. Dropping does the rest.
    pub(crate) fn finish(mut self, limit: Duration) -> Option<ExitStatus> {
        self.close_stdin();
        self.wait_exit(limit)
    }

    /// The child's process id.
    pub(crate) fn pid(&self) -> u32 {
        match &self.far {
            Far::Child(child) => child.id(),
            Far::Socket(_) => self.fail("a client on a socket has no process"),
        }
    }

    /// What the child wrote to stderr so far.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.shared.state().stderr).into_owned()
    }

    /// Waits until `find` finds something in the state, or panics with the transcript.
    fn until<T>(&self, limit: Duration, what: &str, find: impl Fn(&State) -> Option<T>) -> T {
        let until = Instant::now() + limit;
        let mut state = self.shared.state();
        loop {
            if let Some(fault) = state.fault.clone() {
                drop(state);
                self.fail(&fault);
            }
            if let Some(found) = find(&state) {
                return found;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.ended {
                let why = if state.ended { "the stream ended before" } else { "no sight of" };
                let why = format!("{why} {what} (waited {limit:?} at most)");
                drop(state);
                self.fail(&why);
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Ends the test with the last messages and the child's stderr.
    pub(crate) fn fail(&self, why: &str) -> ! {
        panic!("{}: {why}\n{}", self.shared.name, self.transcript())
    }

    /// The last messages and the child's stderr, for people.
    pub(crate) fn transcript(&self) -> String {
        let state = self.shared.state();
        let skipped = state.lines.len().saturating_sub(TRANSCRIPT_LINES);
        let mut out = format!("--- transcript ({skipped} earlier lines left out)\n");
        for line in &state.lines[skipped..] {
            let text = match line {
                Line::In(value) => format!("<- {value}"),
                Line::Out(value) => format!("-> {value}"),
                Line::Noise(text) => format!("<! {text}"),
            };
            out.extend(text.chars().take(TRANSCRIPT_WIDTH));
            out.push('\n');
        }
        let stderr = String::from_utf8_lossy(&state.stderr);
        let tail: Vec<&str> = stderr.lines().rev().take(20).collect();
        out.push_str("--- stderr\n");
        for line in tail.iter().rev() {
            out.push_str(line);
            out.push('\n');
        }
        out
    }
}

impl Drop for Acp {
    fn drop(&mut self) {
        self.close_stdin();
        match &mut self.far {
            Far::Child(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Far::Socket(socket) => {
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Shared {
    fn new(name: &str, out: Box<dyn Write + Send>, answers: Answers) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
            stdin: Mutex::new(Some(out)),
            serve: Mutex::new(answers),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn send(&self, message: &Value) {
        self.state().lines.push(Line::Out(message.clone()));
        self.write(format!("{message}\n").as_bytes());
    }

    /// A broken pipe is not an error here: the reader sees the end and says so.
    fn write(&self, bytes: &[u8]) {
        if let Some(stdin) = lock(&self.stdin).as_mut() {
            let _ = stdin.write_all(bytes).and_then(|()| stdin.flush());
        }
    }

    fn read(self: &Arc<Self>, stdout: impl Read) {
        let mut stdout = BufReader::with_capacity(64 << 10, stdout);
        let mut line = Vec::new();
        while matches!(stdout.read_until(b'\n', &mut line), Ok(bytes) if bytes > 0) {
            self.take(&line);
            line.clear();
        }
        self.state().ended = true;
        self.changed.notify_all();
    }

    fn take(self: &Arc<Self>, line: &[u8]) {
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            let text = String::from_utf8_lossy(line).trim_end().to_owned();
            self.state().lines.push(Line::Noise(text));
            return;
        };
        let method = message.get("method").and_then(Value::as_str).map(str::to_owned);
        let id = message.get("id").cloned();
        let mut state = self.state();
        if let (None, Some(id)) = (&method, id.as_ref().and_then(Value::as_i64))
            && state.answers.insert(id, message.clone()).is_some()
        {
            state.fault = Some(format!("request {id} was answered twice"));
        }
        let params = message.get("params").cloned().unwrap_or(Value::Null);
        state.lines.push(Line::In(message));
        drop(state);
        self.changed.notify_all();
        if let (Some(method), Some(id)) = (method, id) {
            let ask = Ask { id, method, params };
            let (this, serve) = (Arc::clone(self), Arc::clone(&lock(&self.serve)));
            thread::spawn(move || this.answer(&ask, serve(&ask)));
        }
    }

    fn answer(&self, ask: &Ask, reply: Reply) {
        let id = &ask.id;
        match reply {
            Reply::Result(result) => {
                self.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
            }
            Reply::Error { code, message } => {
                let error = json!({ "code": code, "message": message });
                self.send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
            }
            Reply::Silence => {}
        }
    }

    fn drain(&self, mut stderr: impl Read) {
        let mut piece = [0_u8; 4096];
        while let Ok(bytes @ 1..) = stderr.read(&mut piece) {
            let mut state = self.state();
            state.stderr.extend_from_slice(&piece[..bytes]);
            let over = state.stderr.len().saturating_sub(STDERR_BYTES);
            state.stderr.drain(..over);
        }
    }
}

/// A lock that outlives a panic of another test thread.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn updates_in(state: &State, session: &str, from: usize) -> Vec<Value> {
    let of_session = |line: &Line| match line {
        Line::In(message)
            if message["method"] == "session/update"
                && message["params"]["sessionId"] == session =>
        {
            Some(message["params"]["update"].clone())
        }
        _ => None,
    };
    state.lines[from..].iter().filter_map(of_session).collect()
}

fn asks_in(state: &State, from: usize) -> Vec<Ask> {
    let ask = |line: &Line| match line {
        Line::In(message) => Some(Ask {
            id: message.get("id")?.clone(),
            method: message.get("method")?.as_str()?.to_owned(),
            params: message["params"].clone(),
        }),
        _ => None,
    };
    state.lines[from..].iter().filter_map(ask).collect()
}

/// The texts of all updates of one kind, joined.
pub(crate) fn text_of(updates: &[Value], kind: &str) -> String {
    let of_kind = updates.iter().filter(|update| update["sessionUpdate"] == kind);
    of_kind.filter_map(|update| update["content"]["text"].as_str()).collect()
}

/// The parameters of a prompt with one text block.
pub(crate) fn prompt(session: &str, words: &str) -> Value {
    json!({ "sessionId": session, "prompt": [{ "type": "text", "text": words }] })
}
