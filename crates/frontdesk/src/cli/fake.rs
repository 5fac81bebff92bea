//! A scripted daemon for the tests of this folder: one socket in a temp home, one connection at a
//! time, and a function that says what to answer.

use std::io::{BufRead as _, BufReader, Cursor, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use clap::Parser as _;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::out::Out;
use super::{Cli, Exit, Shell, run_in};
use crate::paths::Paths;

/// The clock of all tests.
pub(crate) const NOW: &str = "2026-11-30T12:00:00Z";

/// What the fake daemon writes with.
pub(crate) struct Peer {
    stream: UnixStream,
}

impl Peer {
    pub(crate) fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string());
    }

    pub(crate) fn send_text(&mut self, text: &str) {
        // A client that has left is no fault of the daemon's.
        let _ = self.stream.write_all(format!("{text}\n").as_bytes());
    }

    pub(crate) fn reply(&mut self, request: &Value, result: &Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
    }

    pub(crate) fn fail(&mut self, request: &Value, code: i64, message: &str) {
        let error = json!({ "code": code, "message": message, "data": { "sessionId": request["params"]["sessionId"] } });
        self.send(&json!({ "jsonrpc": "2.0", "id": request["id"], "error": error }));
    }

    pub(crate) fn update(&mut self, update: &Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": "s", "update": update } }));
    }

    pub(crate) fn close(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// A running fake.
pub(crate) struct FakeDesk {
    pub(crate) paths: Paths,
    pub(crate) home: tempfile::TempDir,
    /// What the demo starts as the daemon; without it a program that does not exist.
    pub(crate) program: Option<PathBuf>,
    /// Whether commands believe that the person named this home.
    pub(crate) home_is_given: bool,
    seen: Arc<Mutex<Vec<Value>>>,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) exit: Exit,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// The result as one JSON document.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{}", self.out);
        serde_json::from_str(&self.out).unwrap()
    }
}

impl FakeDesk {
    /// A home without a daemon.
    pub(crate) fn absent() -> Self {
        let home = tempfile::tempdir().unwrap();
        let paths = Paths::in_home(home.path()).unwrap();
        std::fs::create_dir_all(&paths.run).unwrap();
        Self { paths, home, program: None, home_is_given: true, seen: Arc::default() }
    }

    /// A daemon that answers `initialize` itself and everything else by `script`.
    pub(crate) fn start(script: impl FnMut(&Value, &mut Peer) + Send + 'static) -> Self {
        let desk = Self::absent();
        desk.listen(&desk.paths.socket(), script);
        desk
    }

    /// Answers by `script` on this socket.
    pub(crate) fn listen(
        &self,
        socket: &Path,
        mut script: impl FnMut(&Value, &mut Peer) + Send + 'static,
    ) {
        let listener = UnixListener::bind(socket).unwrap();
        let seen = Arc::clone(&self.seen);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                serve(stream, &seen, &mut script);
            }
        });
    }

    /// Everything the client said, the first line too.
    pub(crate) fn seen(&self) -> Vec<Value> {
        self.seen.lock().unwrap().clone()
    }

    /// The requests and notifications of one method.
    pub(crate) fn calls(&self, method: &str) -> Vec<Value> {
        self.seen().into_iter().filter(|message| message["method"] == method).collect()
    }

    /// Runs a command against this home.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, None)
    }

    /// Runs a command with a person who types these lines.
    pub(crate) fn run_with(&self, args: &[&str], typed: Option<&'static str>) -> Ran {
        let (out, err) = (Tape::default(), Tape::default());
        let mut shell = Shell {
            paths: self.paths.clone(),
            out: Out::to(Box::new(out.clone()), Box::new(err.clone())),
            cwd: self.home.path().to_path_buf(),
            user_home: Some(Path::new("/home/a").to_path_buf()),
            now: || NOW.parse::<Timestamp>().unwrap(),
            stdin: || Box::new(Cursor::new(b"from stdin".to_vec())),
            keyboard: Box::new(move || {
                typed.map(|text| Box::new(Cursor::new(text.as_bytes())) as Box<_>)
            }),
            at_terminal: typed.is_some(),
            program: self.program.clone().unwrap_or_else(|| "/nonexistent/frontdesk".into()),
            home_is_given: self.home_is_given,
            movable_cursor: false,
            catch_interrupts: false,
        };
        let words = std::iter::once("frontdesk").chain(args.iter().copied());
        let exit = match Cli::try_parse_from(words) {
            Ok(cli) => run_in(&cli.command, &mut shell),
            Err(error) => {
                let _ = write!(err.clone(), "{error}");
                Exit::Usage
            }
        };
        Ran { exit, out: out.text(), err: err.text() }
    }
}

fn serve(stream: UnixStream, seen: &Mutex<Vec<Value>>, script: &mut impl FnMut(&Value, &mut Peer)) {
    let mut peer = Peer { stream: stream.try_clone().unwrap() };
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        let message: Value = serde_json::from_str(&line).unwrap();
        seen.lock().unwrap().push(message.clone());
        if message["method"] == "initialize" {
            peer.reply(&message, &json!({ "protocolVersion": 1, "agentCapabilities": {} }));
        } else if message.get("jsonrpc").is_some() {
            script(&message, &mut peer);
        }
    }
}

#[derive(Clone, Default)]
struct Tape(Arc<Mutex<Vec<u8>>>);

impl Tape {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
