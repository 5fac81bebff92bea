//! From no holder to a link with one: starting it, or finding one that runs.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::hold::{Hello, MARK, ToHolder, VERSION};
use frontdesk_core::limits::Limits;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::outbox::{Shared, UNACKED_BYTES_MAX};
use super::receiver::HolderReceiver;
use super::{ANSWER_MS, Link, LinkError};
use crate::hold::record::SOCKET_FILE;
use crate::hold::{HolderSpec, Order, Report};

/// Longest report of a starting holder, in bytes.
const REPORT_BYTES_MAX: u64 = 64 << 10;

/// Starts a holder, `exe hold`, and through it the agent.
///
/// The holder gets this process's environment; the agent gets the same with `spec.env` on top.
/// When the future is dropped before it is done, the holder and its agent are ended.
///
/// # Errors
/// If the agent cannot be started, each with its reason; nothing runs then.
pub async fn start(exe: &Path, spec: &HolderSpec, limits: &Limits) -> Result<Link, LinkError> {
    for path in [&spec.run_dir, &spec.data_dir, &spec.claims_dir, &spec.cwd] {
        if !path.is_absolute() {
            return Err(LinkError::Relative(path.clone()));
        }
    }
    crate::hold::check_order(spec)
        .map_err(|error| LinkError::Start { kind: error.kind(), message: error.to_string() })?;
    let order = Order { spec: spec.clone(), limits: limits.clone() };
    let order = serde_json::to_vec(&order).map_err(LinkError::Order)?;
    let child = Command::new(exe)
        .arg("hold")
        // Not read by the holder; it tells a person who looks at the processes.
        .arg(&*spec.instance.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .env_remove(MARK)
        .spawn()
        .map_err(LinkError::Spawn)?;
    let mut starting = Starting { child, is_done: false };
    let wait = Duration::from_millis(limits.agent_start_ms);
    let report = match timeout(wait, hear_report(&mut starting.child, &order)).await {
        Ok(report) => report?,
        Err(_) => {
            let _ = starting.child.start_kill();
            return Err(LinkError::Slow(limits.agent_start_ms));
        }
    };
    match report {
        Report::Ready => {
            let link = reconnect(&spec.run_dir, 0, limits).await?;
            starting.is_done = true;
            Ok(link)
        }
        Report::Failed { kind, message } => Err(LinkError::Start { kind, message }),
    }
}

/// A holder that nobody can reach yet: when its start is given up, it must not stay.
struct Starting {
    child: Child,
    is_done: bool,
}

impl Drop for Starting {
    fn drop(&mut self) {
        // The number is there only while the child has not been reaped, so it is the holder's.
        if let Some(pid) = self.child.id().filter(|_| !self.is_done) {
            let _ = signal::kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM);
        }
    }
}

async fn hear_report(child: &mut Child, order: &[u8]) -> Result<Report, LinkError> {
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(LinkError::Silent);
    };
    // A holder that stops reading has something to report.
    let _ = stdin.write_all(order).await;
    drop(stdin);
    let mut report = Vec::new();
    stdout.take(REPORT_BYTES_MAX).read_to_end(&mut report).await.map_err(LinkError::Spawn)?;
    serde_json::from_slice(&report).map_err(|_| LinkError::Silent)
}

/// Connects to the holder whose folder below `run/instances` is `run_dir`. Output comes from
/// `from_offset` on, where a line must begin.
///
/// # Errors
/// If the holder cannot be reached, or does not have that output any more.
pub async fn reconnect(
    run_dir: &Path,
    from_offset: u64,
    limits: &Limits,
) -> Result<Link, LinkError> {
    let (shared, mut receiver) = connect(run_dir, from_offset, limits).await?;
    shared.push(&ToHolder::Attach { version: VERSION, from_offset });
    let hello = hear_greeting(&mut receiver).await?;
    if hello.out_start > from_offset {
        return Err(LinkError::Trimmed { wanted: from_offset, start: hello.out_start });
    }
    Ok(Link::holder(hello, shared, receiver))
}

/// A holder that has said where it stands and sends no output yet.
#[derive(Debug)]
pub struct Met {
    /// Its greeting.
    pub hello: Hello,
    shared: Arc<Shared>,
    receiver: HolderReceiver,
}

/// Connects to a holder of an earlier daemon and hears its greeting.
///
/// # Errors
/// If the holder cannot be reached.
pub async fn meet(run_dir: &Path, limits: &Limits) -> Result<Met, LinkError> {
    let (shared, mut receiver) = connect(run_dir, 0, limits).await?;
    let hello = hear_greeting(&mut receiver).await?;
    Ok(Met { hello, shared, receiver })
}

impl Met {
    /// Output comes from the first byte on that was not acknowledged. Acknowledgements of the
    /// earlier daemon may still be on their way: it has dealt with what they cover.
    #[must_use]
    pub fn attach(self) -> Link {
        let Self { hello, shared, mut receiver } = self;
        let from_offset = hello.out_start;
        receiver.begin_at(from_offset);
        shared.push(&ToHolder::Attach { version: VERSION, from_offset });
        Link::holder(hello, shared, receiver)
    }
}

async fn connect(
    run_dir: &Path,
    from_offset: u64,
    limits: &Limits,
) -> Result<(Arc<Shared>, HolderReceiver), LinkError> {
    let path = run_dir.join(SOCKET_FILE);
    let stream = UnixStream::connect(&path)
        .await
        .map_err(|source| LinkError::Connect { path: path.clone(), source })?;
    let (reader, writer) = stream.into_split();
    // A spool that is full of handled output would never be read on.
    let ack_step = UNACKED_BYTES_MAX.min(limits.output_spool_bytes / 2);
    let shared = Arc::new(Shared::new(writer, ack_step));
    let receiver =
        HolderReceiver::new(reader, Arc::clone(&shared), from_offset, limits.frame_bytes);
    Ok((shared, receiver))
}

async fn hear_greeting(receiver: &mut HolderReceiver) -> Result<Hello, LinkError> {
    timeout(Duration::from_millis(ANSWER_MS), receiver.greeting())
        .await
        .map_err(|_| LinkError::NoAnswer)?
}
