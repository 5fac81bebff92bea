//! All that a running case has seen: frames in one order, puppets, clients, and the transcript.
//!
//! Reader threads write here, the script reads; one lock, one condition.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::pattern::{Names, shorten};

/// One line that somebody sent.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// Position among all frames of the case.
    pub(super) order: u64,
    /// The line, without its end.
    pub(super) raw: Arc<[u8]>,
    /// The line as JSON, if it is JSON.
    pub(super) value: Option<Value>,
    /// A step of the script has had it.
    pub(super) taken: bool,
}

impl Frame {
    pub(super) fn member(&self, name: &str) -> Option<&Value> {
        self.value.as_ref()?.get(name)
    }

    pub(super) fn method(&self) -> Option<&str> {
        self.member("method")?.as_str()
    }
}

/// A session as an agent keeps it on its disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Stored {
    pub(super) cwd: String,
    pub(super) title: Option<String>,
    pub(super) updated_at: Option<String>,
    /// Updates that a load replays.
    pub(super) history: Vec<Value>,
}

/// What an agent answers when the script says so: `result` or `error`, and how often.
#[derive(Clone, Debug)]
pub(super) struct Scripted {
    pub(super) answer: Value,
    pub(super) times: u64,
}

/// One configured agent: what all its processes share.
#[derive(Debug, Default)]
pub(super) struct Agent {
    /// The answer to `initialize`.
    pub(super) abilities: Value,
    pub(super) store: BTreeMap<String, Stored>,
    /// When a new session is kept: `new`, `turn` or `never`.
    pub(super) keeps: String,
    /// Methods that the script answers itself.
    pub(super) manual: BTreeSet<String>,
    pub(super) scripted: BTreeMap<String, Scripted>,
    /// Ids for the next `session/new`.
    pub(super) mint: VecDeque<String>,
    pub(super) minted: u64,
    /// Each line read is answered by this text on stdout.
    pub(super) chatter: Option<String>,
}

/// One process of an agent.
#[derive(Debug)]
pub(super) struct Puppet {
    pub(super) agent: String,
    pub(super) pid: i32,
    pub(super) frames: Vec<Frame>,
    pub(super) loaded: BTreeSet<String>,
    /// Requests of the desk that nobody has answered: (id, method, session).
    pub(super) open: Vec<(Value, String, Option<String>)>,
    pub(super) orders: Sender<Order>,
    pub(super) ordered: u64,
    pub(super) done: u64,
    /// Its stdin is at the end.
    pub(super) eof: bool,
    /// Its connection is gone.
    pub(super) gone: bool,
}

/// One order to a puppet, in the words of `puppet.py`.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) kind: u8,
    pub(super) payload: Vec<u8>,
}

/// One client connection.
#[derive(Debug)]
pub(super) struct Client {
    /// Tells this connection from earlier ones of the same name.
    pub(super) serial: u64,
    pub(super) frames: Vec<Frame>,
    /// Requests of the desk that nobody has answered.
    pub(super) open: Vec<(Value, String)>,
    /// Answers given by themselves, by method.
    pub(super) answers: BTreeMap<String, Value>,
    pub(super) lines: Sender<Vec<u8>>,
    pub(super) closed: bool,
}

/// Everything, behind the lock.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) order: u64,
    pub(super) connections: u64,
    pub(super) transcript: Vec<String>,
    pub(super) agents: BTreeMap<String, Agent>,
    pub(super) puppets: Vec<Puppet>,
    pub(super) clients: BTreeMap<String, Client>,
    pub(super) names: Names,
    /// Sessions that two living processes had at once.
    pub(super) violations: Vec<String>,
}

impl State {
    /// Numbers a line, parsed already if it is JSON, and writes it down.
    pub(super) fn frame(
        &mut self,
        begun: Instant,
        edge: &str,
        raw: Arc<[u8]>,
        value: Option<Value>,
    ) -> Frame {
        self.order += 1;
        self.note(begun, &format!("{edge} {}", shorten_bytes(&raw)));
        Frame { order: self.order, raw, value, taken: false }
    }

    pub(super) fn note(&mut self, begun: Instant, text: &str) {
        let at = begun.elapsed().as_millis();
        self.transcript.push(format!("{at:>6} ms  {text}"));
    }

    pub(super) fn puppet(&mut self, at: usize) -> Result<&mut Puppet, String> {
        self.puppets.get_mut(at).ok_or_else(|| format!("no puppet {at}"))
    }

    pub(super) fn agent(&mut self, name: &str) -> Result<&mut Agent, String> {
        self.agents.get_mut(name).ok_or_else(|| format!("no agent {name}"))
    }

    pub(super) fn client(&mut self, name: &str) -> Result<&mut Client, String> {
        self.clients.get_mut(name).ok_or_else(|| format!("no client {name}"))
    }

    /// The living process of `agent` that has `session` loaded, the youngest first.
    pub(super) fn holder(&self, agent: &str, session: &str) -> Option<usize> {
        (0..self.puppets.len()).rev().find(|&at| {
            let puppet = &self.puppets[at];
            puppet.agent == agent && !puppet.gone && puppet.loaded.contains(session)
        })
    }

    /// Notes that a process has a session now; two living ones at once are a violation of one owner.
    pub(super) fn load(&mut self, at: usize, session: &str) {
        let agent = self.puppets[at].agent.clone();
        let mut others = self.puppets.iter().enumerate();
        let second = others.find(|(other, puppet)| {
            *other != at
                && puppet.agent == agent
                && puppet.loaded.contains(session)
                && lives(puppet.pid)
        });
        if let Some((other, puppet)) = second {
            let pid = puppet.pid;
            self.violations.push(format!(
                "{agent}#{at} was given {session} while {agent}#{other} (pid {pid}) had it"
            ));
        }
        self.puppets[at].loaded.insert(session.to_owned());
    }

    /// The youngest living process of `agent`.
    pub(super) fn youngest(&self, agent: &str) -> Option<usize> {
        (0..self.puppets.len())
            .rev()
            .find(|&at| self.puppets[at].agent == agent && !self.puppets[at].gone)
    }

    /// Orders a puppet to do something; returns the order's number.
    pub(super) fn order(&mut self, at: usize, kind: u8, payload: Vec<u8>) -> Result<u64, String> {
        let puppet = self.puppet(at)?;
        puppet.ordered += 1;
        let number = puppet.ordered;
        puppet.orders.send(Order { kind, payload }).map_err(|_| format!("puppet {at} is gone"))?;
        Ok(number)
    }

    /// Lets a puppet write one frame.
    pub(super) fn say(&mut self, begun: Instant, at: usize, frame: &Value) -> Result<u64, String> {
        let text = frame.to_string();
        let agent = self.puppet(at)?.agent.clone();
        self.note(begun, &format!("{agent}#{at} > desk  {}", shorten(&text, 600)));
        if frame.get("method").is_none()
            && let Some(id) = frame.get("id")
        {
            self.puppet(at)?.open.retain(|(open, _, _)| open != id);
        }
        let mut bytes = text.into_bytes();
        bytes.push(b'\n');
        self.order(at, b'O', bytes)
    }
}

/// A line's text, short enough for the transcript.
fn shorten_bytes(raw: &[u8]) -> String {
    if raw.len() <= 600 {
        return String::from_utf8_lossy(raw).into_owned();
    }
    let (head, tail) = (&raw[..300], &raw[raw.len() - 150..]);
    let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
    format!("{head}… {} bytes …{tail}", raw.len())
}

/// Whether a process exists and is more than a zombie.
fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// The state with its lock and its condition.
#[derive(Debug)]
pub(super) struct World {
    state: Mutex<State>,
    changed: Condvar,
    pub(super) begun: Instant,
}

impl World {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            begun: Instant::now(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self) {
        self.changed.notify_all();
    }

    /// Writes a remark into the transcript.
    pub(super) fn note(&self, text: &str) {
        self.lock().note(self.begun, text);
    }

    /// Waits until `look` finds something, at most `patience`.
    pub(super) fn wait<T>(
        &self,
        patience: Duration,
        what: &str,
        mut look: impl FnMut(&mut State) -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state)? {
                return Ok(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("{what}: not within {} ms", patience.as_millis()));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
