//! A session that another daemon had live before: the machine is put together again from its journal
//! and the ledger of its instance, and what was decided and not done is done (DESIGN section 6,
//! "Holders").
//!
//! Three rules make it exact. A record is written before its effect, so the journal has everything
//! that was decided. The ledger is written before its frame is sent, so what it lacks was never
//! sent. And output is acknowledged after record and effect, so what was not dealt with comes again;
//! of that, a session passes over what its own records cover.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::asks::{Ask, BY_AGENT, cancelled_answer};
use super::ends::{Ends, Replaying};
use super::life::Replay;
use super::passes::{Pass, Rule};
use super::turns::{Forward, Queued, Stuck, Turn};
use super::types::{Position, Tag};
use super::{AgentFacts, CloseWhy, Effect, Now, Session};
use crate::envelope::{Frame, Members, Message, quote};
use crate::errors::{Code, WireError};
use crate::fold::View;
use crate::ids::ConnId;
use crate::lease::Lease;
use crate::limits::Limits;
use crate::record::Source;

/// The connection of whoever was there before: nobody has this number.
pub(super) const NOBODY: ConnId = ConnId(0);

/// What the machine of a carried session is put together from, besides its view.
#[derive(Clone, Debug, Default)]
pub struct Carry {
    /// What the journal leaves open.
    pub ends: Ends,
    /// The instance that has the session.
    pub facts: AgentFacts,
    /// Requests for this session in the ledger that may still be answered, in order.
    pub requests: Vec<SentRequest>,
    /// Requests of the agent that are owed an answer, by hop; the frame where the journal has none.
    pub owed: Vec<(Box<str>, Option<Bytes>)>,
    /// Requests of the agent that were answered, by hop.
    pub answered: BTreeSet<Box<str>>,
    /// Input number of the last `session/cancel` for this session.
    pub cancelled: Option<u64>,
    /// It was being unloaded.
    pub closing: Option<CloseWhy>,
    /// The instance was asked to open it, and its answer is waited for ([`Input::Started`] or
    /// [`Input::StartFailed`]).
    ///
    /// [`Input::Started`]: super::Input::Started
    /// [`Input::StartFailed`]: super::Input::StartFailed
    pub opening: Option<Asked>,
}

/// A request to open the session that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The agent may have had the session before it was asked.
    pub may_have: bool,
}

/// A request that the ledger says was sent.
#[derive(Clone, Debug)]
pub struct SentRequest {
    /// Number of its input, which is its id at the agent.
    pub number: u64,
    /// The turn it began.
    pub turn: Option<Box<str>>,
    /// Its id at the client that asked, as text.
    pub id: Box<str>,
    /// Its method.
    pub method: Box<str>,
    /// Its parameters as text.
    pub params: Bytes,
}

/// A carried session.
#[derive(Debug)]
pub struct Carried {
    /// The machine: live, with nobody attached.
    pub session: Session,
    /// Requests whose answers it waits for: its tag and the number of the input.
    pub sent: Vec<(Tag, u64)>,
    /// What was decided and not done.
    pub effects: Vec<Effect>,
}

/// What was handled before and may come again.
#[derive(Debug)]
pub(super) struct Again {
    /// Records reach up to this place in the output.
    until: Option<(u64, u32)>,
    /// Requests of the agent that were answered, or are open, by hop.
    known: BTreeSet<Box<str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Prompted<'a> {
    #[serde(borrow)]
    turn: Cow<'a, str>,
    #[serde(borrow)]
    client: Cow<'a, str>,
    #[serde(borrow)]
    request_id: Cow<'a, str>,
    #[serde(borrow, default)]
    sender: Cow<'a, str>,
    #[serde(borrow)]
    prompt: &'a RawValue,
    #[serde(borrow, default)]
    rest: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    #[serde(borrow)]
    interaction: Cow<'a, str>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    request_id: Cow<'a, str>,
    #[serde(borrow)]
    hop: Cow<'a, str>,
    #[serde(borrow)]
    params: &'a RawValue,
}

#[derive(Deserialize)]
struct Settled<'a> {
    #[serde(borrow)]
    outcome: Cow<'a, str>,
    #[serde(borrow, default)]
    answer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reason: Option<Cow<'a, str>>,
}

impl Session {
    /// Takes up a session that an instance has had since before this daemon.
    #[must_use]
    pub fn carried(view: View, carry: Carry, limits: Arc<Limits>, now: Now) -> Carried {
        let Carry { ends, facts, requests, owed, answered, cancelled, closing, opening } = carry;
        let mut session = Self::cold(view, limits, now);
        let place = facts.place.clone();
        session.lease = match opening {
            Some(Asked { may_have }) => Lease::asked(facts.epoch, place, may_have),
            None => Lease::carried(facts.epoch, place),
        };
        if ends.replays() == Replaying::Swallowed {
            session.replay = Replay::Swallow;
        }
        session.facts = facts;
        // What is open now may be settled before it is read again.
        let mut known = answered;
        known.extend(owed.iter().map(|(hop, _)| hop.clone()));
        session.again = Some(Again { until: ends.last, known });
        session.answer_settled(&ends.settled);
        session.restore_asks(&ends.asks, &owed);
        // The policy may have been about to settle what is open.
        session.rule_open_asks();
        session.restore_passes(&ends, owed);
        let mut sent = Vec::new();
        session.restore_turn(&ends, &requests, cancelled, &mut sent);
        session.restore_forwards(&requests, &mut sent);
        session.restore_queue(ends.queued);
        match closing {
            // All work was ended before; the agent is told again to let go.
            Some(why) => session.unload(why),
            None => session.advance(),
        }
        let effects = std::mem::take(&mut session.out);
        Carried { session, sent, effects }
    }

    /// Whether a daemon before this one has dealt with a message that is read again.
    pub(super) fn was_handled(&self, message: &Message, at: &Position) -> bool {
        let Some(again) = &self.again else { return false };
        match message {
            // A record behind it does not tell that its own effect was carried out.
            Message::Request(_) => again.known.contains(&at.source.hop()),
            Message::Notification(_) => self.is_covered(Some(&at.source)),
            Message::Response(_) => false,
        }
    }

    /// Whether records from before this daemon reach beyond a place in the agent's output.
    #[must_use]
    pub fn is_covered(&self, src: Option<&Source>) -> bool {
        let until = self.again.as_ref().and_then(|again| again.until);
        src.is_some_and(|src| until.is_some_and(|until| src.place() <= until))
    }

    /// The journal has people's answers; the agent gets those it was not sent.
    fn answer_settled(&mut self, settled: &[(Bytes, Bytes)]) {
        for (opened, settled) in settled {
            let Ok(asked) = serde_json::from_slice::<Question<'_>>(opened) else { continue };
            let Ok(told) = serde_json::from_slice::<Settled<'_>>(settled) else { continue };
            let id = &asked.request_id;
            let frame = match (&*told.outcome, told.answer) {
                ("answered", Some(answer)) => Some(Frame::success(id, answer.get())),
                _ if told.reason.as_deref() == Some(BY_AGENT) => {
                    let error = WireError::new(Code::Cancelled, "Request cancelled");
                    Some(Frame::failure(id, &error.to_json()))
                }
                ("cancelled" | "withdrawn", _) => asked.frame().as_ref().map(cancelled_answer),
                _ => None,
            };
            self.out.push(Effect::Settle { hop: asked.hop.into(), frame });
        }
    }

    fn restore_asks(&mut self, asks: &[(String, Bytes)], owed: &[(Box<str>, Option<Bytes>)]) {
        for (_, opened) in asks {
            let Ok(asked) = serde_json::from_slice::<Question<'_>>(opened) else { continue };
            let Some(frame) = asked.frame() else { continue };
            let hop: Box<str> = asked.hop.into();
            if !owed.iter().any(|(other, _)| *other == hop) {
                self.out.push(Effect::Owe { hop: hop.clone(), frame: None });
                if let Some(again) = &mut self.again {
                    again.known.insert(hop.clone());
                }
            }
            let elicitation = &*frame.method == "elicitation/create";
            // A question about a client's own request is for that client, which is gone.
            let only = (elicitation && !frame.has_session_id()).then_some(NOBODY);
            let interaction = asked.interaction.into_owned();
            let asked = BTreeSet::new();
            let ask = Ask { interaction, frame, hop: hop.clone(), asked, elicitation, only };
            self.asks.insert(hop, ask);
        }
    }

    /// Files, terminals, extensions: what a client may have acted on is asked of nobody else.
    fn restore_passes(&mut self, ends: &Ends, owed: Vec<(Box<str>, Option<Bytes>)>) {
        let is_settled = |hop: &str| {
            let hop_of = |opened| serde_json::from_slice::<Question<'_>>(opened).map(|it| it.hop);
            ends.settled.iter().any(|(opened, _)| hop_of(opened).is_ok_and(|it| it == hop))
        };
        for (hop, frame) in owed {
            if self.asks.contains_key(&hop) || is_settled(&hop) {
                continue;
            }
            match frame.map(Message::parse) {
                Some(Ok(Message::Request(frame))) => self.restore_pass(hop, frame),
                _ => self.out.push(Effect::Settle { hop, frame: None }),
            }
        }
    }

    fn restore_pass(&mut self, hop: Box<str>, frame: Frame) {
        let rule = Rule::of(&frame.method);
        if matches!(rule, Rule::Once | Rule::Terminal) {
            return self.nobody_takes(&hop, &frame, rule);
        }
        let deadline_ms = Some(self.now.mono_ms + self.limits.ext_answer_ms);
        let next = VecDeque::new();
        self.passes.insert(hop, Pass { frame, current: NOBODY, next, rule, deadline_ms });
    }

    fn restore_turn(
        &mut self,
        ends: &Ends,
        requests: &[SentRequest],
        cancelled: Option<u64>,
        sent: &mut Vec<(Tag, u64)>,
    ) {
        let number_of = |turn: &str| {
            let found = requests.iter().rfind(|request| request.turn.as_deref() == Some(turn));
            found.map(|request| request.number)
        };
        if let Some(turn) = &ends.stuck
            && let Some(number) = number_of(turn)
        {
            let tag = self.tag();
            sent.push((tag, number));
            self.stuck = Some(Stuck { tag, turn: turn.clone(), since_ms: self.now.mono_ms });
        }
        let Some(record) = &ends.turn else { return };
        // What an agent repeats of the prompt is not shown again.
        self.renderer.acp_v1(record, "", &mut Vec::new());
        let Ok(prompted) = serde_json::from_slice::<Prompted<'_>>(&record.data) else {
            let turn = self.view.open_turn.as_ref().map(|open| open.turn.clone());
            return self.record_ending(
                &turn.unwrap_or_default(),
                "failed",
                Some(&WireError::new(Code::Internal, "the prompt cannot be read back")),
            );
        };
        let tag = self.tag();
        let number = number_of(&prompted.turn);
        let cancelled_ms =
            number.filter(|number| cancelled > Some(*number)).map(|_| self.now.mono_ms);
        self.turn = Some(Turn {
            turn: prompted.turn.clone().into_owned(),
            tag,
            conn: NOBODY,
            client: prompted.client.as_ref().into(),
            id: prompted.request_id.clone().into(),
            cancelled_ms,
        });
        match (number, prompted.queued(self.native())) {
            (Some(number), _) => sent.push((tag, number)),
            (None, Some(Queued { turn, client, frame, .. })) => {
                let earlier = self.view.first_user_prompt.clone().filter(|_| self.view.items > 1);
                self.allocate_name(earlier.as_deref(), prompted.prompt.get());
                self.out.push(Effect::Send { tag, frame, client, turn: Some(turn.into()) });
            }
            (None, None) => {
                let error = WireError::new(Code::Internal, "the prompt cannot be read back");
                self.close_turn("failed", Err(&error));
            }
        }
    }

    /// Requests that were only passed on: whoever asked is gone, what they change is still learned.
    fn restore_forwards(&mut self, requests: &[SentRequest], sent: &mut Vec<(Tag, u64)>) {
        for request in requests.iter().filter(|request| request.turn.is_none()) {
            let tag = self.tag();
            sent.push((tag, request.number));
            let SentRequest { id, method, params, .. } = request.clone();
            self.forwards.insert(tag, Forward { conn: NOBODY, id, method, params });
        }
    }

    fn restore_queue(&mut self, queued: Vec<(String, Bytes)>) {
        for (turn, data) in queued {
            let prompted = serde_json::from_slice::<Prompted<'_>>(&data).ok();
            match prompted.and_then(|prompted| prompted.queued(self.native())) {
                Some(queued) => self.queue.push_back(queued),
                None => {
                    let text = "an earlier version did not keep this prompt";
                    let error = WireError::new(Code::InstanceEnded, text);
                    self.record_ending(&turn, "failed", Some(&error));
                }
            }
        }
    }
}

impl Prompted<'_> {
    /// The prompt as a request of its client.
    fn queued(&self, native: &str) -> Option<Queued> {
        let mut params =
            format!(r#"{{"sessionId":{},"prompt":{}"#, quote(native), self.prompt.get());
        let rest = self.rest.map_or("", |rest| rest.get().trim());
        let rest = rest.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or("");
        if !rest.trim().is_empty() {
            params.push(',');
            params.push_str(rest);
        }
        params.push('}');
        let text = Frame::call("session/prompt", Some(&self.request_id), &params);
        let Ok(Message::Request(frame)) = Message::parse(text) else { return None };
        Some(Queued {
            turn: self.turn.clone().into_owned(),
            conn: NOBODY,
            client: self.client.as_ref().into(),
            name: self.sender.as_ref().into(),
            frame,
        })
    }
}

impl Question<'_> {
    /// The agent's request.
    fn frame(&self) -> Option<Frame> {
        let text = Frame::call(&self.method, Some(&self.request_id), self.params.get());
        match Message::parse(text) {
            Ok(Message::Request(frame)) => Some(frame),
            _ => None,
        }
    }
}

/// The members of a prompt's params besides session and prompt, as an object in their own spelling;
/// `None` if there are none.
pub(super) fn other_members(params: &str) -> Option<String> {
    let Members(members) = serde_json::from_str(params).ok()?;
    let mut rest = String::new();
    for (name, value) in members {
        if name != "sessionId" && name != "prompt" {
            rest.push(if rest.is_empty() { '{' } else { ',' });
            rest.push_str(&quote(&name));
            rest.push(':');
            rest.push_str(value.get());
        }
    }
    if rest.is_empty() {
        return None;
    }
    rest.push('}');
    Some(rest)
}
