//! What a shim tells a daemon that is not the one before: who its editor is, where it stands, and
//! what waits for an answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::{Frame, Held, Open, Phase, Shim, quote};
use crate::errors::{Code, WireError};

/// Ids of the shim's own requests begin so; an editor's do not.
const OWN: &str = "\"frontdesk-shim-";

/// What the daemon has not answered yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Greeting {
    /// The shim's own requests, with the session each is about.
    waits: BTreeMap<Box<str>, Option<Box<str>>>,
    /// Requests of agents that are open.
    hops: BTreeSet<Box<str>>,
    /// Sessions in which prompts were looked up.
    joined: BTreeSet<Box<str>>,
}

#[derive(Deserialize)]
struct Rejoined<'a> {
    #[serde(borrow, default)]
    open: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    unknown: Vec<&'a RawValue>,
}

/// Whether a request may be made twice: it reads, or says how something is to be.
fn is_repeatable(method: &str) -> bool {
    matches!(
        method,
        "initialize"
            | "authenticate"
            | "session/list"
            | "session/status"
            | "session/load"
            | "session/resume"
            | "session/close"
            | "session/delete"
            | "session/set_mode"
            | "session/set_model"
            | "session/set_config_option"
            | "_frontdesk/info"
            | "_frontdesk/sessions"
            | "_frontdesk/session"
            | "_frontdesk/log"
            | "_frontdesk/agents"
            | "_frontdesk/archive"
            | "_frontdesk/rename"
    )
}

impl Shim {
    /// A daemon listens again. What it is told first goes out through [`Shim::next_out`]; what the
    /// editor is to be shown is put behind `show`.
    pub fn reconnected(&mut self, show: &mut Vec<Bytes>) {
        self.run += 1;
        self.urgent.clear();
        // Each goes out when it is asked for.
        let hops = &self.hops;
        self.held.retain(|held| held.hop.as_ref().is_none_or(|hop| !hops.contains_key(hop)));
        self.held_bytes = self.held.iter().map(|held| held.frame.len() + 1).sum();
        self.open.iter_mut().for_each(|open| open.is_unknown = false);
        let mut greeting = Greeting::default();
        if let Some(hello) = self.hello.clone().filter(|_| self.is_greeted) {
            let id = self.own_id(&greeting);
            self.urgent.push_back(hello.spliced(Some(&id), None));
            greeting.waits.insert(id.into(), None);
            let sessions: Vec<Box<str>> = self.sessions.keys().cloned().collect();
            for session in sessions {
                self.rejoin(&session, &mut greeting);
            }
        }
        self.phase = Phase::Greeting(greeting);
        self.go_on_when_greeted(show);
    }

    fn own_id(&self, greeting: &Greeting) -> String {
        format!("{OWN}{}-{}\"", self.run, greeting.waits.len())
    }

    pub(super) fn is_own(&self, id: &str) -> bool {
        id.starts_with(OWN)
    }

    fn rejoin(&mut self, session: &str, greeting: &mut Greeting) {
        let Some(place) = self.sessions.get(session) else { return };
        let of_session = |open: &&Open| open.session.as_deref() == Some(session) && open.is_sent;
        let mut loads =
            self.open.iter().filter(of_session).filter(|it| &*it.method == "session/load");
        let load = loads.next().map(|load| load.has_begun);
        let prompts: Vec<String> = self
            .open
            .iter()
            .filter(of_session)
            .filter(|it| &*it.method == "session/prompt")
            .filter_map(|it| {
                Some(format!(r#"{{"id":{},"after":{}}}"#, it.id.as_deref()?, it.after))
            })
            .collect();
        let seen = json!({ "seq": place.mark.seq, "part": place.mark.part });
        if place.is_in || !prompts.is_empty() {
            let seen = if load.is_none() { format!(r#","seen":{seen}"#) } else { String::new() };
            let params = format!(
                r#"{{"sessionId":{}{seen},"prompts":[{}]}}"#,
                quote(session),
                prompts.join(","),
            );
            self.tell(&params, session, greeting);
            greeting.joined.insert(session.into());
        }
        if load == Some(true) {
            // It is sent again, and goes on where it was.
            let params = format!(r#"{{"sessionId":{},"load":{seen}}}"#, quote(session));
            self.tell(&params, session, greeting);
        }
    }

    fn tell(&mut self, params: &str, session: &str, greeting: &mut Greeting) {
        let id = self.own_id(greeting);
        self.urgent.push_back(Frame::call("_frontdesk/rejoin", Some(&id), params));
        greeting.waits.insert(id.into(), Some(session.into()));
    }

    /// One of the shim's own requests has its answer.
    pub(super) fn greeted(&mut self, id: &str, frame: &Frame, show: &mut Vec<Bytes>) {
        let Phase::Greeting(greeting) = &mut self.phase else { return };
        let Some(session) = greeting.waits.remove(id) else { return };
        match (session, frame.result()) {
            (Some(_), Some(result)) => {
                let told: Rejoined<'_> = serde_json::from_str(result)
                    .unwrap_or(Rejoined { open: Vec::new(), unknown: Vec::new() });
                greeting.hops.extend(told.open.iter().map(|id| Box::from(id.get())));
                for id in told.unknown {
                    let mut all = self.open.iter_mut();
                    if let Some(open) = all.find(|it| it.id.as_deref() == Some(id.get())) {
                        open.is_unknown = true;
                    }
                }
            }
            (Some(session), None) => {
                let error = frame.error().unwrap_or("null").to_owned();
                self.lose(&session, &error, show);
            }
            (None, _) => {}
        }
        self.go_on_when_greeted(show);
    }

    /// The editor is not in a session any more: the daemon's word for it answers what waits there.
    fn lose(&mut self, session: &str, error: &str, show: &mut Vec<Bytes>) {
        if self.sessions.get(session).is_some_and(|place| place.is_in) {
            self.sessions.remove(session);
        }
        let is_lost = |open: &Open| {
            &*open.method == "session/prompt"
                && open.is_sent
                && open.session.as_deref() == Some(session)
        };
        let lost = self.open.iter().filter(|open| is_lost(open));
        show.extend(lost.filter_map(|open| Some(Frame::failure(open.id.as_deref()?, error))));
        self.open.retain(|open| !is_lost(open));
        self.forget_cancels();
    }

    fn go_on_when_greeted(&mut self, show: &mut Vec<Bytes>) {
        let Phase::Greeting(greeting) = &mut self.phase else { return };
        if !greeting.waits.is_empty() {
            return;
        }
        let greeting = std::mem::take(greeting);
        self.phase = Phase::Live;
        self.withdraw_hops(&greeting.hops, show);
        let mut again = VecDeque::new();
        let mut lost = Vec::new();
        for at in 0..self.open.len() {
            match self.fate(at, &greeting.joined) {
                Fate::Waits => {}
                Fate::Again(frame) => {
                    let open = &mut self.open[at];
                    open.is_sent = false;
                    again.push_back(Held { frame, id: open.id.clone(), hop: None });
                }
                Fate::Lost => lost.extend(self.open[at].id.clone()),
            }
        }
        for id in lost {
            let text = "the daemon has been restarted, and nobody can tell whether this was done";
            let error = WireError::new(Code::InstanceEnded, text);
            show.push(Frame::failure(&id, &error.to_json()));
            self.open.retain(|open| open.id.as_ref() != Some(&id));
        }
        self.forget_cancels();
        again.append(&mut self.held);
        self.held = again;
        self.held_bytes = self.held.iter().map(|held| held.frame.len() + 1).sum();
    }

    /// What becomes of something that the editor said before.
    fn fate(&self, at: usize, joined: &BTreeSet<Box<str>>) -> Fate {
        let Some(open) = self.open.get(at) else { return Fate::Waits };
        let waits_for_daemon = match (&open.id, &*open.method) {
            // Still held: it goes out in its turn.
            (Some(_), _) if !open.is_sent => return Fate::Waits,
            (Some(_), "session/prompt") => {
                let session = open.session.as_ref();
                !open.is_unknown && session.is_some_and(|session| joined.contains(session))
            }
            (Some(_), method) if is_repeatable(method) => false,
            (Some(_), _) => return Fate::Lost,
            // A cancel is for what was asked before it, not for a prompt behind it.
            (None, "session/cancel") => self.open[at..]
                .iter()
                .any(|it| &*it.method == "session/prompt" && it.session == open.session),
            (None, _) => false,
        };
        match &open.frame {
            _ if waits_for_daemon => Fate::Waits,
            Some(frame) => Fate::Again(frame.clone()),
            None => Fate::Lost,
        }
    }

    /// What the editor is still asked and nobody waits for is taken back.
    fn withdraw_hops(&mut self, open: &BTreeSet<Box<str>>, show: &mut Vec<Bytes>) {
        let gone = self.hops.iter().filter(|(id, hop)| hop.run != self.run && !open.contains(*id));
        let gone: Vec<(Box<str>, bool)> =
            gone.map(|(id, hop)| (id.clone(), hop.answer.is_none())).collect();
        for (id, is_asked) in gone {
            if is_asked {
                let params = format!(r#"{{"requestId":{id}}}"#);
                show.push(Frame::call("$/cancel_request", None, &params));
            }
            self.forget_hop(&id);
        }
    }
}

enum Fate {
    /// Its answer comes, or it is held still.
    Waits,
    /// It is sent again.
    Again(Bytes),
    /// Nobody can tell what became of it.
    Lost,
}
