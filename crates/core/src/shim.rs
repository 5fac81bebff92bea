//! What `frontdesk acp` remembers, so that its editor notices nothing when the daemon is another one:
//! where each session stands, what was asked and not answered, both ways (DESIGN section 8, "The stdio
//! shim"). Frames are read shallowly and passed on byte for byte.
//!
//! Twin of `frontdesk::shim`: the rule here, the pipes there. What is said after a reconnection is in
//! `again`.

mod again;
mod mark;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use serde::Deserialize;

use crate::envelope::{Frame, Malformed, Message, quote};
use crate::errors::{Code, WireError};
use crate::ids::Seq;
use crate::session::Mark;
use again::Greeting;
use mark::{Marked, read_mark};
pub use mark::{STOP, answer_mark, mark_text};

/// Requests of an editor that wait for an answer, at most; one more is refused.
pub const REQUESTS_MAX: usize = 1024;
/// What is kept of such requests to be sent again, in bytes. Of one beyond it only the id is kept:
/// it is answered with an error where it would have to be sent again.
pub const REQUEST_BYTES_MAX: usize = 128 << 20;
/// Requests of agents whose place is remembered, answered or not.
pub const HOPS_MAX: usize = 1024;
/// What is kept of an editor's answers, in bytes; beyond it the oldest is forgotten.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Sessions that a shim remembers its place in.
pub const SESSIONS_MAX: usize = 1024;
/// What an editor may say while no daemon listens, in bytes, before its pipe is not read any more.
pub const HELD_BYTES_MAX: usize = 8 << 20;

/// Where an editor stands in one session.
#[derive(Debug, Default)]
struct Place {
    mark: Mark,
    /// It takes part: its load, resume or new was answered.
    is_in: bool,
}

/// Something the editor said that may have to be said again.
#[derive(Debug)]
struct Open {
    /// The request's id as text; `None` for a cancel.
    id: Option<Box<str>>,
    method: Box<str>,
    session: Option<Box<str>>,
    /// As it was sent, unless that was too much to keep.
    frame: Option<Bytes>,
    /// The session's last record that was shown when it was asked.
    after: Seq,
    /// A daemon may have read it.
    is_sent: bool,
    /// For a load: its history has begun to come.
    has_begun: bool,
    /// The daemon says that it never had it.
    is_unknown: bool,
}

/// A request of an agent that the editor was shown.
#[derive(Debug)]
struct Hop {
    /// The connection it came on last.
    run: u64,
    session: Option<Box<str>>,
    answer: Option<Bytes>,
}

#[derive(Debug)]
struct Held {
    frame: Bytes,
    id: Option<Box<str>>,
    /// The request of an agent that it answers.
    hop: Option<Box<str>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// No daemon.
    Away,
    /// The daemon is being told what was before.
    Greeting(Greeting),
    /// Everything passes.
    Live,
}

/// The memory of one shim.
#[derive(Debug)]
pub struct Shim {
    phase: Phase,
    /// Counts connections.
    run: u64,
    /// The editor's `initialize`.
    hello: Option<Frame>,
    is_greeted: bool,
    sessions: BTreeMap<Box<str>, Place>,
    open: Vec<Open>,
    open_bytes: usize,
    hops: BTreeMap<Box<str>, Hop>,
    /// Answered ones, oldest first.
    answered: VecDeque<Box<str>>,
    answer_bytes: usize,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// Goes out before everything else, also in `Greeting`.
    urgent: VecDeque<Bytes>,
    has_stopped: bool,
}

impl Default for Shim {
    fn default() -> Self {
        Self {
            phase: Phase::Live,
            run: 0,
            hello: None,
            is_greeted: false,
            sessions: BTreeMap::new(),
            open: Vec::new(),
            open_bytes: 0,
            hops: BTreeMap::new(),
            answered: VecDeque::new(),
            answer_bytes: 0,
            held: VecDeque::new(),
            held_bytes: 0,
            urgent: VecDeque::new(),
            has_stopped: false,
        }
    }
}

impl Shim {
    /// Takes a line of the editor; what is not for the daemon is shown to the editor at once.
    #[must_use]
    pub fn from_editor(&mut self, line: Bytes) -> Option<Bytes> {
        match Message::parse(line.clone()) {
            Ok(Message::Request(frame)) => return self.request(&frame, line),
            Ok(Message::Notification(frame)) => {
                self.remember_cancel(&frame);
                self.hold(line, None, None);
            }
            Ok(Message::Response(frame)) => self.answer(&frame, line),
            Err(Malformed::Blank) => {}
            // The daemon says what is wrong with it.
            Err(_) => self.hold(line, None, None),
        }
        None
    }

    fn request(&mut self, frame: &Frame, line: Bytes) -> Option<Bytes> {
        let id: Box<str> = frame.id().unwrap_or("null").into();
        if self.open.iter().any(|open| open.id.as_ref() == Some(&id)) {
            // Refused here: the daemon's refusal would be taken for the first one's answer.
            let error =
                WireError::new(Code::InvalidRequest, "a request with this id is open already");
            return Some(Frame::failure(&id, &error.to_json()));
        }
        if self.open.len() >= REQUESTS_MAX {
            let text = format!("{REQUESTS_MAX} requests wait for their answers already");
            let error = WireError::new(Code::QueueFull, text);
            return Some(Frame::failure(&id, &error.to_json()));
        }
        // A second one is refused, and the first holds.
        if &*frame.method == "initialize" && !self.is_greeted {
            self.hello = Some(frame.clone());
        }
        let session: Option<Box<str>> = frame.session_id().map(|id| id.into());
        if matches!(&*frame.method, "session/load" | "session/resume")
            && let Some(session) = &session
            && self.sessions.len() < SESSIONS_MAX
        {
            self.sessions.entry(session.clone()).or_default();
        }
        self.remember(Some(id.clone()), frame, session);
        self.hold(line, Some(id), None);
        None
    }

    fn remember(&mut self, id: Option<Box<str>>, frame: &Frame, session: Option<Box<str>>) {
        let fits = self.open_bytes + frame.text.len() <= REQUEST_BYTES_MAX;
        let kept = fits.then(|| frame.text.clone());
        self.open_bytes += kept.as_ref().map_or(0, Bytes::len);
        let place = session.as_ref().and_then(|session| self.sessions.get(session));
        self.open.push(Open {
            id,
            method: frame.method.clone(),
            after: place.map_or(0, |place| place.mark.seq),
            session,
            frame: kept,
            is_sent: false,
            has_begun: false,
            is_unknown: false,
        });
    }

    /// A cancel is no request, and must not get lost all the same: it is kept while what it is about
    /// is open.
    fn remember_cancel(&mut self, frame: &Frame) {
        let about = match &*frame.method {
            "session/cancel" => frame.session_id().map(|id| id.into()),
            "$/cancel_request" => cancelled_id(frame),
            _ => return,
        };
        if about.is_some() && self.open.len() < REQUESTS_MAX {
            self.remember(None, frame, about);
        }
    }

    /// Forgets cancels that are about nothing any more.
    fn forget_cancels(&mut self) {
        let is_open = |open: &[Open], cancel: &Open| {
            open.iter().any(|it| match &*cancel.method {
                "session/cancel" => &*it.method == "session/prompt" && it.session == cancel.session,
                _ => it.id.is_some() && it.id == cancel.session,
            })
        };
        let open = std::mem::take(&mut self.open);
        let keep: Vec<bool> = open.iter().map(|it| it.id.is_some() || is_open(&open, it)).collect();
        self.open =
            open.into_iter().zip(keep).filter(|(_, keep)| *keep).map(|(it, _)| it).collect();
        self.open_bytes = self.open.iter().map(|it| it.frame.as_ref().map_or(0, Bytes::len)).sum();
    }

    fn answer(&mut self, frame: &Frame, line: Bytes) {
        let id: Box<str> = frame.id().unwrap_or("null").into();
        let Some(hop) = self.hops.get_mut(&id) else { return self.hold(line, None, None) };
        let is_here = hop.run == self.run;
        if let Some(before) = hop.answer.replace(line.clone()) {
            self.answer_bytes -= before.len();
        } else {
            self.answered.push_back(id.clone());
        }
        self.answer_bytes += line.len();
        if is_here {
            self.hold(line, None, Some(id));
        }
        while self.answer_bytes > ANSWER_BYTES_MAX || self.answered.len() > HOPS_MAX {
            let Some(oldest) = self.answered.front().cloned() else { return };
            self.forget_hop(&oldest);
        }
    }

    fn forget_hop(&mut self, id: &str) {
        if let Some(hop) = self.hops.remove(id)
            && let Some(answer) = hop.answer
        {
            self.answer_bytes -= answer.len();
            self.answered.retain(|other| **other != *id);
        }
    }

    fn hold(&mut self, frame: Bytes, id: Option<Box<str>>, hop: Option<Box<str>>) {
        self.held_bytes += frame.len() + 1;
        self.held.push_back(Held { frame, id, hop });
    }

    /// Whether the editor should not be read at present.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.held_bytes > HELD_BYTES_MAX
    }

    /// Whether everything that the editor said has been handed out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.urgent.is_empty() && self.phase == Phase::Live
    }

    /// Whether something may go out now.
    #[must_use]
    pub fn has_out(&self) -> bool {
        match self.phase {
            Phase::Away => false,
            Phase::Greeting(_) => !self.urgent.is_empty(),
            Phase::Live => !self.urgent.is_empty() || !self.held.is_empty(),
        }
    }

    /// The next line for the daemon. What is handed out may have been read by it.
    #[must_use]
    pub fn next_out(&mut self) -> Option<Bytes> {
        if self.phase == Phase::Away {
            return None;
        }
        if let Some(frame) = self.urgent.pop_front() {
            return Some(frame);
        }
        if self.phase != Phase::Live {
            return None;
        }
        let Held { frame, id, .. } = self.held.pop_front()?;
        self.held_bytes -= frame.len() + 1;
        let open = self.open.iter_mut().find(|open| open.id.is_some() && open.id == id);
        if let Some(open) = open {
            open.is_sent = true;
        }
        Some(frame)
    }

    /// Takes a line of the daemon; what the editor is to be shown is put behind `show`.
    pub fn from_daemon(&mut self, line: &Bytes, show: &mut Vec<Bytes>) {
        match read_mark(line) {
            Marked::Not => self.unmarked(line.clone(), None, show),
            Marked::Stop => self.has_stopped = true,
            Marked::Shown { mark, session, frame } => {
                self.note(&session, mark);
                show.push(frame);
            }
            Marked::Answer { mark, session, frame } => {
                self.unmarked(frame, Some((session, mark)), show);
            }
        }
    }

    fn note(&mut self, session: &str, mark: Mark) {
        let Some(place) = self.sessions.get_mut(session) else { return };
        let before = (place.mark.seq, place.mark.part.wrapping_sub(1));
        let is_back = !place.is_in || (mark.seq, mark.part.wrapping_sub(1)) <= before;
        place.mark = mark;
        if is_back {
            let mut loads = self.open.iter_mut().filter(|it| &*it.method == "session/load");
            if let Some(load) = loads.find(|it| it.session.as_deref() == Some(session)) {
                load.has_begun = true;
            }
        }
    }

    fn unmarked(&mut self, line: Bytes, at: Option<(Box<str>, Mark)>, show: &mut Vec<Bytes>) {
        match Message::parse(line.clone()) {
            Ok(Message::Request(frame)) => self.ask(&frame, line, show),
            Ok(Message::Notification(frame)) => {
                if &*frame.method == "$/cancel_request"
                    && let Some(id) = cancelled_id(&frame)
                {
                    self.forget_hop(&id);
                }
                show.push(line);
            }
            Ok(Message::Response(frame)) => {
                let id = frame.id().unwrap_or("null");
                if self.is_own(id) {
                    let id = id.to_owned();
                    return self.greeted(&id, &frame, show);
                }
                self.close(id, &frame, at);
                show.push(line);
            }
            Err(_) => show.push(line),
        }
    }

    /// A request of an agent: shown once, however many daemons bring it.
    fn ask(&mut self, frame: &Frame, line: Bytes, show: &mut Vec<Bytes>) {
        let id: Box<str> = frame.id().unwrap_or("null").into();
        let run = self.run;
        match self.hops.get_mut(&id) {
            Some(hop) if hop.run != run => {
                hop.run = run;
                self.urgent.extend(hop.answer.clone());
            }
            // The same daemon asks again: it did not take the answer, or the editor has loaded anew.
            Some(_) => {
                self.forget_hop(&id);
                self.show_hop(id, frame);
                show.push(line);
            }
            None => {
                self.show_hop(id, frame);
                show.push(line);
            }
        }
    }

    fn show_hop(&mut self, id: Box<str>, frame: &Frame) {
        if self.hops.len() >= HOPS_MAX
            && let Some(oldest) = self.answered.front().cloned()
        {
            self.forget_hop(&oldest);
        }
        if self.hops.len() < 2 * HOPS_MAX {
            let session = frame.session_id().map(|id| id.into());
            self.hops.insert(id, Hop { run: self.run, session, answer: None });
        }
    }

    /// A request of the editor has its answer.
    fn close(&mut self, id: &str, frame: &Frame, at: Option<(Box<str>, Mark)>) {
        let Some(found) = self.open.iter().position(|it| it.id.as_deref() == Some(id)) else {
            return;
        };
        let open = self.open.remove(found);
        self.open_bytes -= open.frame.as_ref().map_or(0, Bytes::len);
        let is_success = frame.result().is_some();
        match &*open.method {
            "initialize" => self.is_greeted |= is_success,
            "session/prompt" => self.forget_answers(open.session.as_deref()),
            "session/close" | "session/delete" if is_success => {
                if let Some(session) = &open.session {
                    self.sessions.remove(session);
                }
            }
            "session/load" | "session/resume" if !is_success => {
                let key = open.session.unwrap_or_default();
                if self.sessions.get(&key).is_some_and(|place| !place.is_in) {
                    self.sessions.remove(&key);
                }
            }
            _ => {}
        }
        if let Some((session, mark)) = at
            && (self.sessions.contains_key(&session) || self.sessions.len() < SESSIONS_MAX)
        {
            self.sessions.insert(session, Place { mark, is_in: true });
        }
        self.forget_cancels();
    }

    /// Its turn has ended, and nobody asks its questions again.
    fn forget_answers(&mut self, session: Option<&str>) {
        let Some(session) = session else { return };
        let hops = self.hops.iter().filter(|(_, hop)| hop.answer.is_some());
        let over = hops.filter(|(_, hop)| hop.session.as_deref() == Some(session));
        let over: Vec<Box<str>> = over.map(|(id, _)| id.clone()).collect();
        over.iter().for_each(|id| self.forget_hop(id));
    }

    /// Whether the daemon said that it was told to stop: none is to be started in its place.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.has_stopped
    }

    /// The daemon is gone.
    pub fn disconnected(&mut self) {
        self.phase = Phase::Away;
        self.urgent.clear();
    }

    /// No daemon will come: an error for every request that is open.
    #[must_use]
    pub fn give_up(&mut self, text: &str) -> Vec<Bytes> {
        self.held.clear();
        self.held_bytes = 0;
        let error = WireError::new(Code::InstanceEnded, text).to_json();
        let open = std::mem::take(&mut self.open);
        open.iter().filter_map(|it| Some(Frame::failure(it.id.as_deref()?, &error))).collect()
    }
}

/// The request that a `$/cancel_request` is about, as text.
fn cancelled_id(frame: &Frame) -> Option<Box<str>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Cancel<'a> {
        #[serde(borrow)]
        request_id: &'a serde_json::value::RawValue,
    }
    let cancel: Cancel<'_> = serde_json::from_str(frame.params()?).ok()?;
    Some(cancel.request_id.get().into())
}

#[cfg(test)]
mod tests;
