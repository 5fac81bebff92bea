//! Agents that run already, reached by their urls: real servers on this machine, the real daemon.
//!
//! Two servers of the demo agent share one store, as two hosts behind one file system do. What a
//! process ever had is read from that store, not from Frontdesk's own word.

mod broken;
mod death;
mod peer;
mod probes;
mod tls;
mod two;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::acp::{Acp, refuse_all};
use crate::desk::{AgentSpec, Desk, DeskBuilder, frontdesk};
use crate::faults::{native, new_session, place, status, turn};

/// Longest wait for something that happens by itself.
const SOON: Duration = Duration::from_secs(60);

/// A demo agent that serves connections.
struct Server {
    child: Option<Child>,
    args: Vec<String>,
    store: PathBuf,
    /// Its address.
    url: String,
}

impl Server {
    fn start(store: &Path, args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let url = "ws://127.0.0.1:0/acp".to_owned();
        let mut server = Self { child: None, args, store: store.to_path_buf(), url };
        server.run();
        server
    }

    fn address(&self) -> String {
        let rest = self.url.strip_prefix("ws://").unwrap_or_default();
        rest.split('/').next().unwrap_or_default().to_owned()
    }

    /// Starts it again, at the address that it had.
    fn run(&mut self) {
        let mut child = Command::new(frontdesk())
            .args(["demo-agent", "--listen", &self.address(), "--store"])
            .arg(&self.store)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the demo agent starts");
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("its stdout"));
        out.read_line(&mut line).expect("its address");
        self.child = Some(child);
        assert!(line.starts_with("ws://127.0.0.1:"), "{line:?}");
        self.url = line.trim().to_owned();
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Kills it and waits until it is gone.
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Two servers over one store, and a desk that reaches them as `far`.
struct World {
    desk: Desk,
    a: Server,
    b: Server,
    store: TempDir,
}

/// Short waits, so that tests do not stand around.
fn quick(builder: DeskBuilder) -> DeskBuilder {
    let builder = builder.limit("url_retry_ms", 50).limit("url_retry_max_ms", 200);
    // What was made a moment ago is looked for.
    builder.limit("list_fresh_ms", 0)
}

fn world_with(args: &[&str], shape: impl FnOnce(DeskBuilder) -> DeskBuilder) -> World {
    let store = tempfile::tempdir().expect("a folder");
    let (a, b) = (Server::start(store.path(), args), Server::start(store.path(), args));
    let agent = AgentSpec::behind("far", &[&a.url, &b.url]);
    let desk = shape(quick(Desk::builder().agent(agent))).open();
    let world = World { desk, a, b, store };
    world.wait_up(2);
    world
}

fn world() -> World {
    world_with(&[], |builder| builder)
}

impl World {
    fn client(&self) -> Acp {
        client(&self.desk)
    }

    /// Waits until so many urls are connected.
    fn wait_up(&self, wanted: usize) {
        wait_up(&self.desk, wanted);
    }

    /// A client on a server itself, past the desk.
    fn past(&self, server: &Server) -> Socket {
        let _ = self;
        Socket::open(&server.url)
    }
}

fn client(desk: &Desk) -> Acp {
    let mut client = desk.acp("far", refuse_all());
    client.initialize(json!({}));
    client
}

fn urls_of(desk: &Desk) -> Vec<Value> {
    let output = desk.cli(&["agents", "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).expect("a list of agents");
    let agents = list["agents"].as_array().expect("agents").clone();
    let far = agents.into_iter().find(|agent| agent["name"] == "far").expect("the agent");
    far["urls"].as_array().expect("its urls").clone()
}

fn wait_up(desk: &Desk, wanted: usize) {
    crate::faults::eventually("connected urls", SOON, || {
        urls_of(desk).iter().filter(|url| url["up"] == true).count() == wanted
    });
}

/// A WebSocket client of the test's own.
struct Socket {
    runtime: tokio::runtime::Runtime,
    stream: tokio_tungstenite::WebSocketStream<tokio::net::TcpStream>,
    last: u64,
}

impl Socket {
    fn open(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let address = url.strip_prefix("ws://").unwrap().split('/').next().unwrap().to_owned();
        let stream = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            tokio_tungstenite::client_async(url, stream).await.unwrap().0
        });
        let mut socket = Self { runtime, stream, last: 0 };
        let greeting = json!({ "protocolVersion": 1, "clientCapabilities": {} });
        socket.call("initialize", &greeting);
        socket
    }

    /// Calls a method and waits for its answer; the whole message.
    fn call(&mut self, method: &str, params: &Value) -> Value {
        use futures_util::{SinkExt as _, StreamExt as _};
        use tokio_tungstenite::tungstenite::Message;
        self.last += 1;
        let id = self.last;
        let frame = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.runtime.block_on(async {
            self.stream.send(Message::text(frame.to_string())).await.unwrap();
            loop {
                let message = tokio::time::timeout(SOON, self.stream.next());
                let message = message.await.expect("an answer in time").unwrap().unwrap();
                let Message::Text(text) = message else { continue };
                let value: Value = serde_json::from_str(&text).unwrap();
                if value["id"] == id && value.get("method").is_none() {
                    return value;
                }
            }
        })
    }
}

/// Which processes opened a session, in order, by the agent's own store.
fn openings(store: &Path, native: &str) -> Vec<u64> {
    let folder = std::fs::read_dir(store).expect("the store");
    let mut files = folder.flatten().map(|entry| entry.path());
    let file = files.find(|path| path.to_string_lossy().contains(native)).expect("its file");
    let text = std::fs::read_to_string(file).expect("its text");
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let opened = events.filter(|event| event["event"] == "opened");
    opened.filter_map(|event| event["pid"].as_u64()).collect()
}
