//! What stands between a desk and a real server, and servers that do what no good one does.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

/// A way to a server that can be cut: the server lives on and its connections are gone.
pub(super) struct Way {
    /// The address at this end.
    pub(super) url: String,
    open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    pub(super) fn to(address: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("ws://{}/acp", listener.local_addr().expect("its address"));
        let (open, streams) = (Arc::new(AtomicBool::new(true)), Arc::<Mutex<Vec<_>>>::default());
        let way = Self { url, open: open.clone(), streams: streams.clone() };
        let address = address.to_owned();
        thread::spawn(move || {
            for here in listener.incoming().flatten() {
                if !open.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(there) = TcpStream::connect(&address) else { continue };
                for stream in [&here, &there] {
                    streams.lock().expect("streams").push(stream.try_clone().expect("a handle"));
                }
                let back =
                    (there.try_clone().expect("a handle"), here.try_clone().expect("a handle"));
                thread::spawn(move || carry(here, there));
                thread::spawn(move || carry(back.0, back.1));
            }
        });
        way
    }

    /// Cuts what is there and lets nothing through until [`Way::mend`].
    pub(super) fn cut(&self) {
        self.open.store(false, Ordering::Relaxed);
        for stream in self.streams.lock().expect("streams").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn mend(&self) {
        self.open.store(true, Ordering::Relaxed);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 16 << 10];
    loop {
        match from.read(&mut bytes) {
            Ok(count) if count > 0 && to.write_all(&bytes[..count]).is_ok() => {}
            _ => break,
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// What a server of the test does with a message.
pub(super) enum Act {
    /// Sends this as one text frame.
    Say(String),
    /// Sends a binary frame.
    Binary,
    /// Sends these bytes below the protocol and closes.
    Break(Vec<u8>),
    /// Sends these bytes below the protocol, then blanks for ever, and reads nothing more.
    Drip(Vec<u8>),
    /// Reads nothing more and leaves the connection open.
    Hang,
    /// Waits.
    Wait(Duration),
}

/// An answer.
pub(super) fn answer(asked: &Value, result: &Value) -> Act {
    Act::Say(json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result }).to_string())
}

/// A server whose every message is decided by the test.
pub(super) struct Puppet {
    /// Its address.
    pub(super) url: String,
    /// The methods that it was asked, in order.
    pub(super) asked: Arc<Mutex<Vec<String>>>,
}

type Script = Arc<dyn Fn(&Value) -> Vec<Act> + Send + Sync>;

impl Puppet {
    /// `script` decides what happens with everything but `initialize`, which offers it all.
    pub(super) fn start(script: impl Fn(&Value) -> Vec<Act> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("ws://{}/acp", listener.local_addr().expect("its address"));
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let (script, list): (Script, _) = (Arc::new(script), asked.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (script, list) = (script.clone(), list.clone());
                thread::spawn(move || {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build();
                    runtime.expect("a runtime").block_on(converse(stream, &script, &list));
                });
            }
        });
        Self { url, asked }
    }

    pub(super) fn count(&self, method: &str) -> usize {
        self.asked.lock().expect("a list").iter().filter(|asked| *asked == method).count()
    }
}

async fn converse(stream: TcpStream, script: &Script, list: &Mutex<Vec<String>>) {
    stream.set_nonblocking(true).expect("a socket");
    let mut below = stream.try_clone().expect("a handle");
    let stream = tokio::net::TcpStream::from_std(stream).expect("a stream");
    let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await else { return };
    while let Some(Ok(message)) = socket.next().await {
        let Message::Text(text) = message else { continue };
        let asked: Value = serde_json::from_str(&text).expect("the desk speaks JSON");
        let method = asked["method"].as_str().unwrap_or_default().to_owned();
        list.lock().expect("a list").push(method.clone());
        let acts = if method == "initialize" { vec![greeting(&asked)] } else { script(&asked) };
        for act in acts {
            match act {
                Act::Say(text) => socket.send(Message::text(text)).await.expect("the desk reads"),
                Act::Binary => {
                    socket.send(Message::binary(vec![0, 1, 2])).await.expect("the desk reads");
                }
                Act::Break(bytes) => {
                    let _ = below.write_all(&bytes);
                    return;
                }
                Act::Drip(bytes) => {
                    let mut sent = below.write_all(&bytes);
                    while sent.is_ok() {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        sent = below.write_all(b" ");
                    }
                    return;
                }
                Act::Hang => std::future::pending::<()>().await,
                Act::Wait(time) => tokio::time::sleep(time).await,
            }
        }
    }
}

fn greeting(asked: &Value) -> Act {
    let session = json!({ "list": {}, "resume": {}, "close": {}, "status": {} });
    let result = json!({
        "protocolVersion": 1,
        "agentInfo": { "name": "puppet", "version": "1" },
        "agentCapabilities": { "loadSession": true, "sessionCapabilities": session },
    });
    answer(asked, &result)
}
