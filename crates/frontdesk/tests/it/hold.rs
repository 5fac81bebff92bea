//! Holders as processes: the real binary with small shell agents behind it.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests are tests, and measured numbers are printed"
)]

mod claims;
mod ending;
mod input;
mod output;
mod recorded;
mod starting;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use frontdesk::agent::link::{self, HolderSpec, Link, LinkError, LinkEvent};
use frontdesk::agent::proc::{self, ProcessId};
use frontdesk_core::ids::InstanceId;
use frontdesk_core::limits::Limits;
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::time::timeout;

/// No test waits longer than this for one thing.
const PATIENCE: Duration = Duration::from_secs(60);

fn exe() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_frontdesk"))
}

/// A place for one instance. What is left of it at the end of a test is killed.
struct Place {
    spec: HolderSpec,
    limits: Limits,
    _folder: TempDir,
}

impl Place {
    fn new(command: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let instance = format!("i-{}", uuid::Uuid::now_v7());
        let claims_dir = folder.path().join("claims");
        fs::create_dir(&claims_dir).unwrap();
        let spec = HolderSpec {
            agent: "test".into(),
            command: command.iter().map(ToString::to_string).collect(),
            cwd: folder.path().to_path_buf(),
            env: BTreeMap::new(),
            run_dir: folder.path().join("run").join(&instance),
            data_dir: folder.path().join("data").join(&instance),
            claims_dir,
            instance: InstanceId(instance.into()),
        };
        Self { spec, limits: Limits::default(), _folder: folder }
    }

    fn sh(script: &str) -> Self {
        Self::new(&["sh", "-c", script])
    }

    async fn start(&self) -> Desk {
        Desk::new(self.try_start().await.unwrap())
    }

    async fn try_start(&self) -> Result<Link, LinkError> {
        link::start(exe(), &self.spec, &self.limits).await
    }

    async fn reconnect(&self, from_offset: u64) -> Desk {
        Desk::new(link::reconnect(&self.spec.run_dir, from_offset, &self.limits).await.unwrap())
    }

    fn data(&self, name: &str) -> PathBuf {
        self.spec.data_dir.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(Some(record)) = frontdesk::hold::record::Record::read(&self.spec.run_dir) {
            let _ = proc::signal_process(&record.holder, Signal::SIGKILL);
            for process in record.agent.into_iter().chain(proc::marked(&record.mark).unwrap()) {
                let _ = proc::signal_process(&process, Signal::SIGKILL);
            }
        }
    }
}

/// A link and what has come over it.
struct Desk {
    link: Link,
    seen: Vec<LinkEvent>,
    /// How many of `seen` have been looked at.
    looked: usize,
}

impl Desk {
    const fn new(link: Link) -> Self {
        Self { link, seen: Vec::new(), looked: 0 }
    }

    const fn holder(&self) -> ProcessId {
        self.link.hello.holder
    }

    const fn agent(&self) -> ProcessId {
        self.link.hello.agent
    }

    async fn send(&self, number: u64, frame: impl Into<Bytes>) {
        timeout(PATIENCE, self.link.sender.send(number, frame.into())).await.unwrap().unwrap();
    }

    /// The next event.
    async fn next(&mut self) -> LinkEvent {
        while self.looked == self.seen.len() {
            let more = timeout(PATIENCE, self.link.receiver.next_batch(&mut self.seen));
            assert!(more.await.expect("nothing came"), "the link ended");
        }
        self.looked += 1;
        self.seen[self.looked - 1].clone()
    }

    /// Passes over events up to one that fits, and returns that.
    async fn until(&mut self, fits: impl Fn(&LinkEvent) -> bool) -> LinkEvent {
        loop {
            let event = self.next().await;
            if fits(&event) {
                return event;
            }
        }
    }

    /// The text of the next line.
    async fn line(&mut self) -> String {
        let event = self.until(|event| matches!(event, LinkEvent::Line { .. })).await;
        text(&event)
    }

    /// Reads to the end of the link. Gives everything that was not looked at before.
    async fn rest(&mut self) -> &[LinkEvent] {
        while timeout(PATIENCE, self.link.receiver.next_batch(&mut self.seen)).await.unwrap() {}
        let rest = &self.seen[self.looked..];
        self.looked = self.seen.len();
        rest
    }

    /// Stops the agent and reads to the end.
    async fn stop(&mut self, term_ms: u64) {
        self.link.sender.stop(term_ms);
        let rest = self.rest().await;
        assert_eq!(rest.last(), Some(&LinkEvent::Gone), "{rest:?}");
    }
}

fn text(event: &LinkEvent) -> String {
    match event {
        LinkEvent::Line { text, .. } => String::from_utf8_lossy(text).into_owned(),
        other => panic!("no line: {other:?}"),
    }
}

fn lines(events: &[LinkEvent]) -> Vec<String> {
    events.iter().filter(|event| matches!(event, LinkEvent::Line { .. })).map(text).collect()
}

/// A line of `/proc/PID/status`, in KiB.
fn memory_kib(pid: i32, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = tokio::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn has_left(place: &Place, desk: &Desk) {
    let (holder, agent) = (desk.holder(), desk.agent());
    eventually("holder and agent leave", || !proc::alive(&holder) && !proc::alive(&agent)).await;
    eventually("the run folder is removed", || !place.spec.run_dir.exists()).await;
}
