//! The clients' end: editors over shims that last, and a plain client on the socket.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::{SOON, eventually, place, seen};
use crate::acp::{Acp, Answers, Ask, Pending, Reply, prompt};
use crate::desk::Desk;

/// How a client answers questions.
#[derive(Debug, Default)]
pub(super) struct Manner {
    /// Answers wait while this is set.
    pub(super) hold: AtomicBool,
    /// Questions that wait for an answer.
    pub(super) open: AtomicUsize,
    /// Answers so far: each takes another time, and some say no.
    count: AtomicU64,
}

impl Manner {
    fn answers(self: &Arc<Self>) -> Answers {
        let manner = Arc::clone(self);
        Arc::new(move |ask: &Ask| {
            if ask.method != "session/request_permission" {
                return Reply::Error { code: -32601, message: "Method not found".to_owned() };
            }
            let count = manner.count.fetch_add(1, Ordering::Relaxed);
            manner.open.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(count * 7 % 13));
            while manner.hold.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            manner.open.fetch_sub(1, Ordering::Relaxed);
            let option = if count % 5 == 4 { 2 } else { 0 };
            let option = ask.params["options"][option]["optionId"].clone();
            Reply::Result(json!({ "outcome": { "outcome": "selected", "optionId": option } }))
        })
    }
}

/// A session that a client takes part in.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    /// Where the client's transcript stood before it.
    pub(super) from: usize,
    /// How the client's own prompts begin: those that it sent in this seat.
    pub(super) own: String,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Prompt,
    Load,
    Close,
    New,
}

/// A request whose answer is awaited.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) what: What,
    pub(super) pending: Pending,
    pub(super) session: String,
}

/// One client over all its connections.
pub(super) struct Guest {
    pub(super) name: &'static str,
    /// Whether it comes through a shim that lasts.
    pub(super) lasts: bool,
    pub(super) acp: Acp,
    pub(super) manner: Arc<Manner>,
    pub(super) seats: BTreeMap<String, Seat>,
    pub(super) asked: Vec<Asked>,
    /// The questions of this connection or shim, and how far its transcript was looked at for them.
    questions: BTreeSet<String>,
    looked: usize,
    episode: u64,
    prompts: u64,
}

fn come(desk: &Desk, name: &str, lasts: bool, answers: Answers) -> Acp {
    let mut acp = if lasts {
        desk.acp_lasting("demo", answers)
    } else {
        let mut socket = None;
        eventually("the daemon's socket", SOON, || {
            socket = UnixStream::connect(desk.socket()).ok();
            socket.is_some()
        });
        let hello = json!({ "frontdesk": 1, "face": "acp", "kind": "test", "agent": "demo" });
        Acp::connect(name, socket.expect("it was reached"), &hello, answers)
    };
    acp.initialize(json!({}));
    acp
}

impl Guest {
    pub(super) fn new(desk: &Desk, name: &'static str, lasts: bool) -> Self {
        let manner = Arc::new(Manner::default());
        let acp = come(desk, name, lasts, manner.answers());
        Self {
            name,
            lasts,
            acp,
            manner,
            seats: BTreeMap::new(),
            asked: Vec::new(),
            questions: BTreeSet::new(),
            looked: 0,
            episode: 0,
            prompts: 0,
        }
    }

    /// Comes again after its connection or its shim has died; what was before.
    pub(super) fn come_again(&mut self, desk: &Desk) -> (Acp, BTreeMap<String, Seat>, Vec<Asked>) {
        let acp = come(desk, self.name, self.lasts, self.manner.answers());
        let acp = std::mem::replace(&mut self.acp, acp);
        (self.questions, self.looked) = (BTreeSet::new(), 0);
        (acp, std::mem::take(&mut self.seats), std::mem::take(&mut self.asked))
    }

    fn next_seat(&mut self) -> Seat {
        self.episode += 1;
        Seat { from: self.acp.mark(), own: format!("# {}{} ", self.name, self.episode) }
    }

    /// Makes a session; its id.
    pub(super) fn make(&mut self, desk: &Desk) -> String {
        let seat = self.next_seat();
        let made = self.acp.ok("session/new", place(desk, None));
        let session = made["sessionId"].as_str().expect("a session has an id").to_owned();
        self.seats.insert(session.clone(), seat);
        session
    }

    fn begin(&mut self, what: What, session: &str, method: &str, params: Value) {
        let pending = self.acp.begin(method, params);
        self.asked.push(Asked { what, pending, session: session.to_owned() });
    }

    pub(super) fn begin_new(&mut self, desk: &Desk) {
        self.begin(What::New, "", "session/new", place(desk, None));
    }

    /// Begins a load; the client's seat is there from now on.
    pub(super) fn begin_load(&mut self, desk: &Desk, session: &str) {
        let seat = self.next_seat();
        self.seats.insert(session.to_owned(), seat);
        self.begin(What::Load, session, "session/load", place(desk, Some(session)));
    }

    pub(super) fn begin_close(&mut self, session: &str) {
        let force = json!({ "frontdesk": { "force": true } });
        let params = json!({ "sessionId": session, "_meta": force });
        self.begin(What::Close, session, "session/close", params);
    }

    /// Sends a prompt; `words` makes a script of the prompt's own name.
    pub(super) fn begin_prompt(&mut self, session: &str, words: impl FnOnce(&str) -> String) {
        self.prompts += 1;
        let own = self.seats.get(session).expect("it takes part").own.clone();
        let name = format!("{own}{}", self.prompts);
        let words = words(name.trim_start_matches("# "));
        self.begin(
            What::Prompt,
            session,
            "session/prompt",
            prompt(session, &format!("{name}\n{words}")),
        );
    }

    /// The first question that it was asked a second time.
    pub(super) fn asked_twice(&mut self) -> Option<Ask> {
        let mark = self.acp.mark();
        let asked = self.acp.asked(std::mem::replace(&mut self.looked, mark));
        asked.into_iter().find(|ask| !self.questions.insert(ask.id.to_string()))
    }

    /// What it was shown in a seat.
    pub(super) fn shown(&self, session: &str) -> Vec<String> {
        shown(&self.acp, session, &self.seats[session])
    }
}

/// What a client was shown in a seat.
pub(super) fn shown(acp: &Acp, session: &str, seat: &Seat) -> Vec<String> {
    seen(&acp.updates(session, seat.from))
}
