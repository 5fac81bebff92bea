//! From an address to an open WebSocket: each step within one limit, each failure with its reason.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use frontdesk_core::limits::Limits;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::Socket;
use super::tls::{self, TlsError};
use super::wire::{Counted, Wire};

/// Bytes read from the socket at a time.
const READ_BYTES: usize = 64 << 10;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// The address or a header cannot be used.
    #[error("failed to use the address: {0}")]
    Address(String),
    /// Nobody listens there, or the way there is closed.
    #[error("failed to connect: {0}")]
    Connect(#[source] io::Error),
    /// Another answer than that of a WebSocket server.
    #[error("failed to open a WebSocket: the server answered with HTTP status {0}")]
    Status(u16),
    /// What came was no answer of a WebSocket server.
    #[error("failed to open a WebSocket: {0}")]
    Handshake(String),
    /// No TLS, or nobody who could prove to be the one that was meant.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No answer in time.
    #[error("failed to connect within {limit_ms} ms: {step}")]
    Slow {
        /// The time that there was.
        limit_ms: u64,
        /// What was waited for.
        step: &'static str,
    },
}

/// Where an agent is that runs already.
#[derive(Clone, Copy, Debug)]
pub struct Address<'a> {
    /// A `ws://` or `wss://` address.
    pub url: &'a str,
    /// Headers of the request that opens the connection; values may be secrets.
    pub headers: &'a BTreeMap<String, String>,
    /// The file of the issuers whose certificates count; the system's without it.
    pub ca: Option<&'a Path>,
}

/// Connects, speaks TLS where the address says so, and asks for a WebSocket; with the count of bytes
/// that come.
///
/// # Errors
/// If that does not succeed within `url_connect_ms`.
pub(super) async fn open(
    Address { url, headers, ca }: Address<'_>,
    limits: &Limits,
) -> Result<(Socket, Arc<AtomicU64>), UrlError> {
    let address = |error: &dyn std::fmt::Display| UrlError::Address(error.to_string());
    let mut request = url.into_client_request().map_err(|error| address(&error))?;
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| address(&error))?;
        let mut value = HeaderValue::from_str(value).map_err(|error| address(&error))?;
        value.set_sensitive(true);
        request.headers_mut().insert(name, value);
    }
    let host = request.uri().host().unwrap_or_default();
    let host = host.trim_matches(['[', ']']).to_owned();
    let is_tls = request.uri().scheme_str() == Some("wss");
    let port = request.uri().port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let time = Time::begin(limits.url_connect_ms);
    // Whom to trust is known before anybody is called.
    let trusted = match is_tls {
        true => {
            Some(time.within("its issuers' certificates are being read", tls::trust(ca)).await??)
        }
        false => None,
    };
    let stream = time.within("nobody answered", TcpStream::connect((&*host, port))).await?;
    let stream = stream.map_err(UrlError::Connect)?;
    let _ = stream.set_nodelay(true);
    let (stream, bytes) = Counted::new(stream);
    let wire = match trusted {
        None => Wire::Plain(stream),
        Some(trusted) => {
            let greeted = tls::greet(&trusted, &host, stream, ca);
            let step = "there is a connection, and no answer to the greeting of TLS";
            Wire::Tls(Box::new(time.within(step, greeted).await??))
        }
    };
    let longest = usize::try_from(limits.frame_bytes).unwrap_or(usize::MAX);
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .max_message_size(Some(longest))
        .max_frame_size(Some(longest));
    let opened = client_async_with_config(request, wire, Some(config));
    match time.within("there is a connection, and no answer to the request", opened).await? {
        Ok((socket, _)) => Ok((socket, bytes)),
        Err(Error::Http(answer)) => Err(UrlError::Status(answer.status().as_u16())),
        Err(Error::Io(error)) => Err(match tls::ending(&error) {
            Some(why) => TlsError::Handshake(why).into(),
            None => UrlError::Connect(error),
        }),
        Err(Error::Protocol(ProtocolError::HttparseError(_))) if !is_tls => {
            let text = "what answers is not HTTP; if it is TLS, its address begins with wss://";
            Err(UrlError::Handshake(text.to_owned()))
        }
        Err(error) => Err(UrlError::Handshake(error.to_string())),
    }
}

/// The one limit on all steps of a connection.
struct Time {
    until: Instant,
    limit_ms: u64,
}

impl Time {
    fn begin(limit_ms: u64) -> Self {
        Self { until: Instant::now() + Duration::from_millis(limit_ms), limit_ms }
    }

    async fn within<T>(
        &self,
        step: &'static str,
        work: impl Future<Output = T>,
    ) -> Result<T, UrlError> {
        let done = timeout_at(self.until, work).await;
        done.map_err(|_| UrlError::Slow { limit_ms: self.limit_ms, step })
    }
}
