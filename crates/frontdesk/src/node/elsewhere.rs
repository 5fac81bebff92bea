//! Another home of this user on this machine: who holds a session there, and asking its daemon to
//! let it go. Only ever over its socket, which its claim file names; no process there is signalled.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use frontdesk_core::errors::{Code, WireError};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::Node;
use super::directory::Row;
use crate::agent::link;
use crate::agent::proc;

/// Longest line of the other daemon, in bytes.
const LINE_BYTES: u64 = 1 << 20;

/// Who holds a session in another home, by its own claim file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// The daemon.
    pub pid: i32,
    /// Its socket.
    pub socket: PathBuf,
    /// Key of the session there.
    pub key: String,
    /// Its folder of data.
    pub home: PathBuf,
    /// Since when it holds the session.
    pub since: String,
}

impl Holder {
    /// Its daemon's state letter; `None` if there is no such process.
    fn state(&self) -> Option<u8> {
        proc::stat(self.pid).filter(|stat| !stat.is_dead()).map(|stat| stat.state)
    }

    /// A command for that home, where its name can be told from its folder.
    fn command(&self, words: &str) -> String {
        match (self.home.file_name(), self.home.parent().map(Path::display)) {
            (Some(name), Some(home)) if name == "data" => {
                format!("FRONTDESK_HOME={home} frontdesk {words}")
            }
            _ => format!("frontdesk {words} (in the home of {})", self.home.display()),
        }
    }

    /// For clients that may see the session.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "tool": "frontdesk", "pid": self.pid, "socket": self.socket, "since": self.since,
            "home": self.home, "key": self.key, "alive": self.state().is_some(),
        })
    }

    /// It holds the session and has not let go: why, and what a person may do about it.
    fn refusal(&self, asked: &str, why: &str, advice: &str) -> WireError {
        let text = format!("another home holds this session, and {why}. {advice}");
        WireError::new(Code::HeldElsewhere, text)
            .with_data(json!({ "sessionId": asked, "holder": self.to_json() }))
    }

    fn is_gone(&self, asked: &str) -> WireError {
        let why = format!(
            "its daemon (pid {}) is gone while a process that it left keeps the agent; nothing was changed",
            self.pid
        );
        let advice = format!(
            "Start a daemon there and take again: `{}`; or end what was left there: `{}`",
            self.command("serve"),
            self.command("stop --all")
        );
        self.refusal(asked, &why, &advice)
    }

    fn is_silent(&self, asked: &str) -> WireError {
        let (pid, stopped) = (self.pid, matches!(self.state(), Some(b'T' | b't')));
        let why = if stopped { "is stopped" } else { "does not answer" };
        let why = format!("its daemon (pid {pid}) {why}; nothing was changed");
        let advice = if stopped {
            format!("Let it go on and take again: `kill -CONT {pid}`")
        } else {
            format!(
                "Look at it, or end it (`kill {pid}`) and then what it leaves: `{}`",
                self.command("stop --all")
            )
        };
        self.refusal(asked, &why, &advice)
    }

    /// It has been told, and what comes of it nobody knows.
    fn has_not_answered(&self, asked: &str) -> WireError {
        let why = format!(
            "its daemon (pid {}) was asked and has not answered: it may let it go yet",
            self.pid
        );
        let advice = format!("See who has it, `frontdesk who {asked}`, and take again");
        self.refusal(asked, &why, &advice)
    }
}

impl Node {
    /// Who holds a session that is not loaded here: another Frontdesk of this user. Only looks.
    #[must_use]
    pub fn holder_of(&self, row: &Row) -> Option<Holder> {
        let agent = self.agent(&row.view.agent)?;
        if row.is_loaded() {
            return None;
        }
        row.view.natives().into_iter().find_map(|native| {
            let text = link::look_at_claim(&self.claims, &self.claim_name(&agent, native))?;
            // One that cannot be read holds it all the same.
            let holder: Holder = serde_json::from_str(&text).unwrap_or_default();
            let own = u32::try_from(holder.pid) == Ok(std::process::id());
            (!own).then_some(holder)
        })
    }

    /// Asks the daemon of another home to let a session go: its turn there is cancelled and answered,
    /// its agent told, its claim given back.
    ///
    /// # Errors
    /// `-31005` if that daemon is gone or silent, and nothing was changed; if it was asked and has not
    /// answered; or with its own reason.
    pub async fn ask_to_release(&self, holder: &Holder, asked: &str) -> Result<Value, WireError> {
        if holder.state().is_none() {
            return Err(holder.is_gone(asked));
        }
        let greeting = Duration::from_millis(self.limits.handshake_ms);
        let mut peer = match tokio::time::timeout(greeting, Peer::greet(&holder.socket)).await {
            Ok(Ok(peer)) => peer,
            Ok(Err(error)) => {
                tracing::warn!(pid = holder.pid, %error, "failed to reach the daemon of another home");
                // Where nobody listens any more its number is another process's by now.
                let is_refused = error.kind() == ErrorKind::ConnectionRefused;
                return Err(if is_refused || holder.state().is_none() {
                    holder.is_gone(asked)
                } else {
                    holder.is_silent(asked)
                });
            }
            Err(_) => return Err(holder.is_silent(asked)),
        };
        let params = json!({ "sessionId": holder.key });
        let call = peer.call(2, "_frontdesk/release", &params);
        let answer = match tokio::time::timeout(self.unload_limit() * 2, call).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::warn!(pid = holder.pid, %error, "failed to ask the daemon of another home");
                return Err(holder.has_not_answered(asked));
            }
            Err(_) => return Err(holder.has_not_answered(asked)),
        };
        if let Some(error) = answer.get("error") {
            let why = format!(
                "its daemon (pid {}) refused to let it go: {}",
                holder.pid, error["message"]
            );
            return Err(holder.refusal(asked, &why, "Close it there"));
        }
        Ok(answer["result"].clone())
    }

    /// How long an unload may take, whatever the agent does.
    #[must_use]
    pub fn unload_limit(&self) -> Duration {
        Duration::from_millis(2 * self.limits.agent_close_ms + 4 * self.limits.stop_term_ms)
    }
}

/// A connection to another daemon.
struct Peer {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Peer {
    async fn greet(socket: &Path) -> std::io::Result<Self> {
        let (reader, writer) = UnixStream::connect(socket).await?.into_split();
        let mut peer = Self { reader: BufReader::new(reader), writer };
        let hello = json!({ "frontdesk": 1, "face": "acp", "client": uuid::Uuid::now_v7(), "kind": "peer" });
        peer.write(&hello).await?;
        let params = json!({
            "protocolVersion": 1, "clientCapabilities": {},
            "clientInfo": { "name": "frontdesk", "version": env!("CARGO_PKG_VERSION") },
        });
        peer.call(1, "initialize", &params).await.map(|_| peer)
    }

    async fn write(&mut self, value: &Value) -> std::io::Result<()> {
        self.writer.write_all(format!("{value}\n").as_bytes()).await
    }

    /// The answer to a request; what else comes is not for us.
    async fn call(&mut self, id: u64, method: &str, params: &Value) -> std::io::Result<Value> {
        self.write(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .await?;
        loop {
            let mut line = Vec::new();
            let read = (&mut self.reader).take(LINE_BYTES).read_until(b'\n', &mut line).await?;
            if read == 0 || line.last() != Some(&b'\n') {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let value: Value = serde_json::from_slice(&line).unwrap_or_default();
            if value["id"] == json!(id) && value.get("method").is_none() {
                return Ok(value);
            }
        }
    }
}
