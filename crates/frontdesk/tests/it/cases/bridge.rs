//! Puppets behind urls: a process of its own each, which outlives the connections to it. When it has
//! ended, its connection is closed and the next one starts it again, as a supervisor would.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// A url with a puppet behind it. Dropping it ends the puppet.
#[derive(Debug)]
pub(super) struct Bridge {
    /// The address.
    pub(super) url: String,
    over: Option<oneshot::Sender<()>>,
    worker: Option<thread::JoinHandle<()>>,
}

impl Bridge {
    /// Listens; the process that `command` makes runs from now on.
    pub(super) fn start(command: impl Fn() -> Command + Send + 'static) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("failed to listen: {error}");
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let url = format!("ws://{}/acp", listener.local_addr().map_err(failed)?);
        let (over, end) = oneshot::channel();
        let worker = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let mut puppet = Puppet::start(&command);
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    _ = end => {}
                    () = serve(&listener, &mut puppet, &command) => {}
                }
                let _ = puppet.child.kill();
                let _ = puppet.child.wait();
            });
        });
        Ok(Self { url, over: Some(over), worker: Some(worker) })
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

struct Puppet {
    child: Child,
    stdin: ChildStdin,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Puppet {
    fn start(command: &impl Fn() -> Command) -> Self {
        let mut child =
            command().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a puppet");
        let (stdin, stdout) =
            (child.stdin.take().expect("stdin"), child.stdout.take().expect("stdout"));
        let (tell, lines) = mpsc::unbounded_channel();
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            for line in lines {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, stdin, lines }
    }
}

async fn serve(
    listener: &tokio::net::TcpListener,
    puppet: &mut Puppet,
    command: &impl Fn() -> Command,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        if !matches!(puppet.child.try_wait(), Ok(None)) {
            *puppet = Puppet::start(command);
        }
        if let Ok(socket) = tokio_tungstenite::accept_async(stream).await {
            converse(socket, puppet).await;
        }
    }
}

async fn converse(mut socket: WebSocketStream<TcpStream>, puppet: &mut Puppet) {
    loop {
        tokio::select! {
            line = puppet.lines.recv() => match line {
                Some(line) => {
                    if socket.send(Message::text(line)).await.is_err() {
                        return;
                    }
                }
                None => {
                    let _ = puppet.child.kill();
                    let _ = puppet.child.wait();
                    let _ = socket.close(None).await;
                    return;
                }
            },
            message = socket.next() => match message {
                Some(Ok(Message::Text(text))) => {
                    let sent = puppet.stdin.write_all(text.as_bytes());
                    if sent.and_then(|()| puppet.stdin.write_all(b"\n")).is_err() {
                        return;
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return,
            },
        }
    }
}
