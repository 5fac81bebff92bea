//! `--listen`: the same agent as a server, ACP over WebSocket. Many connections, one process, and one
//! set of loaded sessions: who loads a session on one connection is told of it on all.
//!
//! Sockets are read and written by one small runtime on the main thread; each connection has a thread
//! of its own for its messages, as stdin has. A turn belongs to the connection that asked for it and is
//! cancelled when that is gone; the session stays in memory.

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::accept_hdr_async_with_config;
use tokio_tungstenite::tungstenite::handshake::server::{
    Callback, ErrorResponse, Request, Response,
};
use tokio_tungstenite::tungstenite::http::{StatusCode, header};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::FRAME_BYTES_MAX;
use super::options::Options;
use super::server::{Agent, Shared, thread};
use super::wire::Out;

/// Connections at once; one more is closed.
const CONNECTIONS_MAX: usize = 256;
/// Messages between a connection and its threads, each way.
const MESSAGES_MAX: usize = 256;
/// Bytes read from a socket at a time.
const READ_BYTES: usize = 16 << 10;
/// Time for a connection to become a WebSocket, in milliseconds; one that has not is closed.
const HANDSHAKE_MS: u64 = 10_000;

/// The connections that are open, counted.
static OPEN: AtomicUsize = AtomicUsize::new(0);
/// Number of the last connection.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Serves connections until the process is ended.
pub(super) fn serve(options: Options, address: SocketAddr) -> ExitCode {
    std::thread::sleep(options.slow_start);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.and_then(|runtime| runtime.block_on(listen(options, address)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("frontdesk demo-agent: failed to listen on {address}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn listen(options: Options, address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let token = options.token.clone().map(|token| format!("Bearer {token}"));
    let shared = Arc::new(Shared::new(options)?);
    super::print(&format!("ws://{}/acp\n", listener.local_addr()?));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (shared, token) = (shared.clone(), token.clone());
                tokio::spawn(async move {
                    if OPEN.fetch_add(1, Ordering::Relaxed) < CONNECTIONS_MAX {
                        connection(&shared, stream, token).await;
                    }
                    OPEN.fetch_sub(1, Ordering::Relaxed);
                });
            }
            // Out of file descriptors: connections end, so this passes.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Lets in who has the token.
struct Admit(Option<String>);

impl Callback for Admit {
    fn on_request(self, request: &Request, response: Response) -> Result<Response, ErrorResponse> {
        let given = request.headers().get(header::AUTHORIZATION);
        let given = given.and_then(|told| told.to_str().ok());
        if self.0.is_none() || given == self.0.as_deref() {
            return Ok(response);
        }
        let mut refused = ErrorResponse::new(Some("a token is missing or wrong".to_owned()));
        *refused.status_mut() = StatusCode::UNAUTHORIZED;
        Err(refused)
    }
}

async fn connection(shared: &Arc<Shared>, stream: TcpStream, token: Option<String>) {
    let _ = stream.set_nodelay(true);
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .max_message_size(Some(FRAME_BYTES_MAX))
        .max_frame_size(Some(FRAME_BYTES_MAX));
    let accepted = accept_hdr_async_with_config(stream, Admit(token), Some(config));
    let accepted = timeout(Duration::from_millis(HANDSHAKE_MS), accepted).await;
    let Ok(Ok(socket)) = accepted else {
        return;
    };
    let (mut sink, mut stream) = socket.split();
    let (said, mut saying) = mpsc::channel::<Bytes>(MESSAGES_MAX);
    let (heard, hearing) = mpsc::channel::<Bytes>(MESSAGES_MAX);
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let agent = Arc::new(Agent::new(shared.clone(), Out::to(said, shared.log.clone()), number));
    if thread("connection", move || converse(&agent, hearing)).is_err() {
        return;
    }
    let reading = async {
        while let Some(Ok(message)) = stream.next().await {
            if let Message::Text(text) = message
                && heard.send(text.into()).await.is_err()
            {
                return;
            }
        }
    };
    let writing = async {
        while let Some(line) = saying.recv().await {
            let Ok(text) = Utf8Bytes::try_from(line) else { continue };
            if sink.send(Message::Text(text)).await.is_err() {
                return;
            }
        }
        let _ = sink.send(Message::Close(None)).await;
    };
    // Whichever ends first ends both: the other's queue closes, and its thread sees that.
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
}

/// The messages of one connection, in order.
fn converse(agent: &Arc<Agent>, mut hearing: mpsc::Receiver<Bytes>) {
    while let Some(text) = hearing.blocking_recv() {
        agent.take(text);
    }
    agent.hang_up();
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::super::options::{Choice, parse};
    use super::*;

    /// How long a connection is kept on which only this is said.
    async fn kept(said: &[u8]) -> Duration {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().display().to_string();
        let Ok(Choice::Serve(options)) = parse(&["--store".to_owned(), store], |_| None) else {
            panic!("no options");
        };
        let shared = Arc::new(Shared::new(options).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        client.write_all(said).await.unwrap();
        let began = Instant::now();
        connection(&shared, stream, None).await;
        let kept = began.elapsed();
        assert_eq!(client.read(&mut [0; 8]).await.unwrap_or(0), 0, "it is closed");
        kept
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_becomes_no_websocket_is_closed_in_time() {
        for said in [&b""[..], b"GET /acp HTTP/1.1\r\nHost: h\r\n"] {
            let kept = kept(said).await.as_millis();
            assert!((10_000..10_100).contains(&kept), "{kept} ms");
        }
    }
}
