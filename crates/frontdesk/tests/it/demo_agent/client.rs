//! A client for tests: it starts the binary, keeps every message, and checks those that the agent
//! sends by itself against the official types.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use agent_client_protocol_schema::v1;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Longest wait for anything, in seconds: generous, because machines are busy.
pub(super) const WAIT_S: u64 = 20;

/// A running agent.
pub(super) struct Agent {
    pub(super) child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    last: i64,
    /// Messages that were passed over while waiting for another, in order.
    pub(super) seen: Vec<Value>,
    /// Lines that were no JSON objects.
    pub(super) noise: Vec<Vec<u8>>,
}

impl Agent {
    /// Starts an agent without the handshake.
    pub(super) fn start(store: &Path, args: &[&str]) -> Self {
        Self::start_with(store, args, Stdio::inherit())
    }

    /// The same with another stderr.
    pub(super) fn start_with(store: &Path, args: &[&str], stderr: Stdio) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_frontdesk"))
            .arg("demo-agent")
            .arg("--store")
            .arg(store)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            loop {
                let mut line = Vec::new();
                match reader.read_until(b'\n', &mut line) {
                    Ok(1..) if sender.send(line).is_ok() => {}
                    _ => return,
                }
            }
        });
        Self { child, stdin, lines, last: 0, seen: Vec::new(), noise: Vec::new() }
    }

    /// Starts an agent and says hello with everything a client can offer.
    pub(super) fn ready(store: &Path, args: &[&str]) -> Self {
        let mut agent = Self::start(store, args);
        let offers = json!({
            "fs": { "readTextFile": true, "writeTextFile": true },
            "terminal": true,
            "elicitation": { "form": {} },
        });
        agent.hello(offers);
        agent
    }

    pub(super) fn hello(&mut self, offers: Value) -> Value {
        self.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": offers }))
            .unwrap()
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(bytes).unwrap();
        stdin.flush().unwrap();
    }

    pub(super) fn send(&mut self, message: &Value) {
        self.raw(format!("{message}\n").as_bytes());
    }

    pub(super) fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// Sends a request and returns its id.
    pub(super) fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let id = json!(self.last);
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    /// Sends a request and waits for its answer.
    pub(super) fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.ask(method, params);
        self.answer(&id)
    }

    /// Waits for the answer to a request.
    pub(super) fn answer(&mut self, id: &Value) -> Result<Value, Value> {
        let answer = self.until(|m| m.get("method").is_none() && m.get("id") == Some(id));
        match answer.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(answer["result"].clone()),
        }
    }

    /// Answers a request of the agent.
    pub(super) fn reply(&mut self, request: &Value, result: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
    }

    pub(super) fn reply_error(&mut self, request: &Value, code: i64) {
        let error = json!({ "code": code, "message": "no" });
        self.send(&json!({ "jsonrpc": "2.0", "id": request["id"], "error": error }));
    }

    /// Waits for a request of the agent with this method.
    pub(super) fn asked(&mut self, method: &str) -> Value {
        self.until(|m| m["method"] == method && m.get("id").is_some())
    }

    /// Waits for a message; those before it go to `seen`.
    pub(super) fn until(&mut self, want: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(WAIT_S);
        loop {
            let line = match self.line(deadline) {
                Ok(line) => line,
                Err(error) => panic!("{error:?}; seen so far: {:?}", self.seen),
            };
            match serde_json::from_slice::<Value>(&line) {
                Ok(message) if message.is_object() => {
                    check_types(&message);
                    if want(&message) {
                        return message;
                    }
                    self.seen.push(message);
                }
                _ => self.noise.push(line),
            }
        }
    }

    /// The next line as it stands, or why there is none.
    pub(super) fn line(&mut self, deadline: Instant) -> Result<Vec<u8>, RecvTimeoutError> {
        self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    }

    /// Whether stdout ends now, without another line.
    pub(super) fn stdout_ends(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(WAIT_S);
        matches!(self.line(deadline), Err(RecvTimeoutError::Disconnected))
    }

    pub(super) fn session(&mut self, cwd: &Path) -> String {
        let params = json!({ "cwd": cwd, "mcpServers": [] });
        let result = self.call("session/new", params).unwrap();
        self.until(|m| m["params"]["update"]["sessionUpdate"] == "available_commands_update");
        self.seen.clear();
        result["sessionId"].as_str().unwrap().to_owned()
    }

    pub(super) fn prompt(&mut self, session: &str, text: &str) -> Value {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.ask("session/prompt", json!({ "sessionId": session, "prompt": prompt }))
    }

    /// Runs one turn to its end; `seen` then holds what it showed.
    pub(super) fn turn(&mut self, session: &str, text: &str) -> Result<Value, Value> {
        self.seen.clear();
        let id = self.prompt(session, text);
        self.answer(&id)
    }

    pub(super) fn status(&mut self, session: &str) -> Result<Value, Value> {
        self.call("session/status", json!({ "sessionId": session }))
    }

    /// The updates among `seen`.
    pub(super) fn updates(&self) -> Vec<Value> {
        let updates = self.seen.iter().filter(|m| m["method"] == "session/update");
        updates.map(|m| m["params"]["update"].clone()).collect()
    }

    /// The kinds of the updates among `seen`.
    pub(super) fn kinds(&self) -> Vec<String> {
        let kind = |update: &Value| update["sessionUpdate"].as_str().unwrap().to_owned();
        self.updates().iter().map(kind).collect()
    }

    /// All text the agent said.
    pub(super) fn said(&self) -> String {
        let updates = self.updates();
        let said = updates.iter().filter(|u| u["sessionUpdate"] == "agent_message_chunk");
        said.filter_map(|u| u["content"]["text"].as_str()).collect()
    }

    /// Closes stdin.
    pub(super) fn hang_up(&mut self) {
        self.stdin = None;
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the process to end by itself.
    pub(super) fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(WAIT_S);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the agent does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parses what the agent sends with the official types.
fn check_types(message: &Value) {
    let params = &message["params"];
    match message["method"].as_str() {
        Some("session/update") => typed::<v1::SessionNotification>(params),
        Some("session/request_permission") => typed::<v1::RequestPermissionRequest>(params),
        Some("fs/read_text_file") => typed::<v1::ReadTextFileRequest>(params),
        Some("fs/write_text_file") => typed::<v1::WriteTextFileRequest>(params),
        Some("terminal/create") => typed::<v1::CreateTerminalRequest>(params),
        Some("terminal/wait_for_exit") => typed::<v1::WaitForTerminalExitRequest>(params),
        Some("terminal/output") => typed::<v1::TerminalOutputRequest>(params),
        Some("terminal/kill") => typed::<v1::KillTerminalRequest>(params),
        Some("terminal/release") => typed::<v1::ReleaseTerminalRequest>(params),
        Some("elicitation/create") => typed::<v1::CreateElicitationRequest>(params),
        _ => {}
    }
}

/// Fails unless the value is of the official type.
pub(super) fn typed<T: DeserializeOwned>(value: &Value) {
    if let Err(error) = serde_json::from_value::<T>(value.clone()) {
        panic!("{} refuses {value}: {error}", std::any::type_name::<T>());
    }
}

/// The error's code.
pub(super) fn code(answer: &Result<Value, Value>) -> i64 {
    answer.as_ref().expect_err("an error was expected")["code"].as_i64().unwrap()
}

/// Fails unless the answer is -32002 with the id as asked.
pub(super) fn not_found(answer: &Result<Value, Value>, session: &str) {
    assert_eq!(code(answer), -32002);
    let error = answer.as_ref().unwrap_err();
    assert_eq!(error["message"], "Resource not found");
    assert_eq!(error["data"], json!({ "sessionId": session }));
}
