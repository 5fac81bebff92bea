//! Other requests of the agent: files, terminals, extensions. Each goes to one client that can
//! take it, the prompting one first, and gets one answer in bounded time.

use std::collections::VecDeque;

use serde_json::Value;

use super::asks::{cancel_frame, hop_id};
use super::carried::NOBODY;
use super::types::Position;
use super::{Effect, Session};
use crate::envelope::{Frame, quote};
use crate::errors::{Code, WireError};
use crate::ids::ConnId;

/// Makes a terminal; its result names it.
const CREATE: &str = "terminal/create";

/// One request of the agent at one client.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) frame: Frame,
    pub(super) current: ConnId,
    /// Who is asked next if the current client cannot take it.
    pub(super) next: VecDeque<ConnId>,
    pub(super) rule: Rule,
    /// When the wait for the current client ends, on the monotonic clock in milliseconds.
    pub(super) deadline_ms: Option<u64>,
}

/// How a kind of request is brokered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Reading changes nothing: another client may be asked.
    Read,
    /// The client may have acted: never ask a second one.
    Once,
    /// A terminal belongs to the client that made it.
    Terminal,
    /// Nobody may know the method: ask one after the other, each for a bounded time.
    Extension,
}

impl Rule {
    pub(super) fn of(method: &str) -> Self {
        match method {
            "fs/read_text_file" => Self::Read,
            "fs/write_text_file" | "terminal/create" => Self::Once,
            _ if method.starts_with("terminal/") => Self::Terminal,
            _ => Self::Extension,
        }
    }
}

impl Session {
    pub(super) fn open_pass(&mut self, frame: Frame, at: &Position) {
        let agent_id: Box<str> = frame.id().unwrap_or("null").into();
        let rule = Rule::of(&frame.method);
        let mut next = self.candidates(&frame, rule);
        let Some(current) = next.pop_front() else {
            let error = nobody(&frame.method, rule);
            return self.settle_owed(&hop_id(at), Frame::failure(&agent_id, &error.to_json()));
        };
        let limit = self.limits.open_passes as usize;
        if self.passes.len() >= limit {
            let text = format!("{limit} requests of this session wait for clients already");
            let error = WireError::new(Code::QueueFull, text);
            return self.settle_owed(&hop_id(at), Frame::failure(&agent_id, &error.to_json()));
        }
        if &*frame.method == CREATE && self.has_all_terminals() {
            let limit = self.limits.terminals;
            let text = format!(
                "this session has made {limit} terminals that are not released, which is the most; \
                 release those that are done with (terminal/release)"
            );
            let error = WireError::new(Code::QueueFull, text);
            return self.settle_owed(&hop_id(at), Frame::failure(&agent_id, &error.to_json()));
        }
        if rule != Rule::Read && rule != Rule::Extension {
            next.clear();
        }
        let hop = hop_id(at);
        self.out.push(Effect::Owe { hop: hop.clone(), frame: Some(frame.text.clone()) });
        self.passes.insert(hop.clone(), Pass { frame, current, next, rule, deadline_ms: None });
        self.send_pass(&hop);
    }

    /// Whether no further terminal may be made, those counted that are being made.
    fn has_all_terminals(&self) -> bool {
        let making = self.passes.values().filter(|pass| &*pass.frame.method == CREATE).count();
        self.terminals.len() + making >= self.limits.terminals as usize
    }

    /// Who may take a request, best first.
    fn candidates(&self, frame: &Frame, rule: Rule) -> VecDeque<ConnId> {
        if rule == Rule::Terminal {
            let owner = terminal_id(frame.params()).and_then(|id| self.terminals.get(&id));
            return owner.copied().into_iter().collect();
        }
        let prompting = self.turn.as_ref().map(|turn| turn.conn);
        let able = |conn: &ConnId| {
            self.clients.get(conn).is_some_and(|a| a.client.can.can_take(&frame.method))
        };
        let first = prompting.into_iter().filter(able);
        let rest =
            self.clients.keys().copied().filter(|conn| Some(*conn) != prompting).filter(able);
        first.chain(rest).collect()
    }

    fn send_pass(&mut self, hop: &str) {
        let until = self.now.mono_ms + self.limits.ext_answer_ms;
        let Some(pass) = self.passes.get_mut(hop) else { return };
        pass.deadline_ms = (pass.rule == Rule::Extension).then_some(until);
        let conn = pass.current;
        let frame = pass.frame.clone();
        let spelling = quote(&self.spelling(conn));
        let own = frame.session_id().as_deref() == Some(self.native());
        let frame = frame.spliced(Some(&quote(hop)), own.then_some(&*spelling));
        self.out.push(Effect::Tell { conn, frame, hop: Some(hop.into()), mark: None });
    }

    pub(super) fn pass_answer(&mut self, conn: ConnId, hop: &str, frame: &Frame) {
        let Some(pass) = self.passes.get(hop).filter(|pass| pass.current == conn) else { return };
        let refused =
            pass.rule == Rule::Extension && frame.error().is_some_and(is_method_not_found);
        if refused {
            return self.next_pass(hop);
        }
        let Some(pass) = self.passes.remove(hop) else { return };
        if let Some(result) = frame.result() {
            self.follow_terminal(conn, &pass.frame, result);
        }
        self.settle_owed(hop, frame.spliced(pass.frame.id(), None));
    }

    /// Who has which terminal: from its making until the client has released it, behind which its id
    /// names nothing (ACP v1, "Terminals").
    fn follow_terminal(&mut self, conn: ConnId, asked: &Frame, result: &str) {
        match &*asked.method {
            CREATE => {
                if let Some(id) = terminal_id(Some(result)) {
                    self.terminals.insert(id, conn);
                }
            }
            "terminal/release" => {
                if let Some(id) = terminal_id(asked.params()) {
                    self.terminals.remove(&id);
                }
            }
            _ => {}
        }
    }

    /// Asks the next client, or answers the agent that nobody can.
    fn next_pass(&mut self, hop: &str) {
        let Some(pass) = self.passes.get_mut(hop) else { return };
        let clients = &self.clients;
        let next =
            std::iter::from_fn(|| pass.next.pop_front()).find(|conn| clients.contains_key(conn));
        if let Some(conn) = next {
            pass.current = conn;
            return self.send_pass(hop);
        }
        if let Some(pass) = self.passes.remove(hop) {
            self.nobody_takes(hop, &pass.frame, pass.rule);
        }
    }

    pub(super) fn nobody_takes(&mut self, hop: &str, frame: &Frame, rule: Rule) {
        let error = nobody(&frame.method, rule);
        let id = frame.id().unwrap_or("null");
        self.settle_owed(hop, Frame::failure(id, &error.to_json()));
    }

    /// Hands a client that has just come what waits for one since another daemon.
    pub(super) fn offer_waiting_passes(&mut self, conn: ConnId) {
        let Some(can) = self.clients.get(&conn).map(|attachment| attachment.client.can) else {
            return;
        };
        let waiting = |pass: &Pass| pass.current == NOBODY && can.can_take(&pass.frame.method);
        let hops = self.passes.iter().filter(|(_, pass)| waiting(pass));
        let hops: Vec<Box<str>> = hops.map(|(hop, _)| hop.clone()).collect();
        for hop in hops {
            if let Some(pass) = self.passes.get_mut(&hop) {
                pass.current = conn;
            }
            self.send_pass(&hop);
        }
    }

    pub(super) fn passes_lost_client(&mut self, conn: ConnId) {
        let lost: Vec<Box<str>> = self
            .passes
            .iter()
            .filter(|(_, pass)| pass.current == conn)
            .map(|(hop, _)| hop.clone())
            .collect();
        for hop in lost {
            self.next_pass(&hop);
        }
    }

    pub(super) fn tick_passes(&mut self) {
        let now = self.now.mono_ms;
        let late: Vec<Box<str>> = self
            .passes
            .iter()
            .filter(|(_, pass)| pass.deadline_ms.is_some_and(|at| now >= at))
            .map(|(hop, _)| hop.clone())
            .collect();
        for hop in late {
            if let Some(conn) = self.passes.get(&hop).map(|pass| pass.current) {
                self.out.push(Effect::Forget { conn, hop: hop.clone() });
                self.tell(conn, cancel_frame(&hop));
            }
            self.next_pass(&hop);
        }
    }

    pub(super) fn withdraw_passes(&mut self, agent_is_there: bool) {
        for (hop, pass) in std::mem::take(&mut self.passes) {
            let id = pass.frame.id().unwrap_or("null");
            let error = WireError::new(Code::Cancelled, "Request cancelled");
            let frame = agent_is_there.then(|| Frame::failure(id, &error.to_json()));
            self.out.push(Effect::Settle { hop: hop.clone(), frame });
            self.out.push(Effect::Forget { conn: pass.current, hop: hop.clone() });
            self.tell(pass.current, cancel_frame(&hop));
        }
    }

    /// The agent took a request back; it still gets its one answer.
    pub(super) fn agent_withdraws_pass(&mut self, agent_id: &str) {
        let found = self.passes.iter().find(|(_, pass)| pass.frame.id() == Some(agent_id));
        let Some((hop, conn)) = found.map(|(hop, pass)| (hop.clone(), pass.current)) else {
            return;
        };
        self.passes.remove(&hop);
        let error = WireError::new(Code::Cancelled, "Request cancelled");
        self.settle_owed(&hop, Frame::failure(agent_id, &error.to_json()));
        self.out.push(Effect::Forget { conn, hop: hop.clone() });
        self.tell(conn, cancel_frame(&hop));
    }
}

/// The terminal that params or a result name.
fn terminal_id(text: Option<&str>) -> Option<String> {
    let value: Value = serde_json::from_str(text?).ok()?;
    value.get("terminalId").and_then(Value::as_str).map(str::to_owned)
}

fn nobody(method: &str, rule: Rule) -> WireError {
    match rule {
        Rule::Extension => WireError::method_not_found(method),
        Rule::Terminal => WireError::new(
            Code::InvalidParams,
            "the client that made this terminal is gone, or there is no such terminal",
        ),
        Rule::Once => WireError::new(
            Code::NoCapableClient,
            format!(
                "no attached client can take {method}; a client that left may have acted on it"
            ),
        ),
        Rule::Read => {
            WireError::new(Code::NoCapableClient, format!("no attached client can take {method}"))
        }
    }
}

fn is_method_not_found(error: &str) -> bool {
    let value: Value = serde_json::from_str(error).unwrap_or_default();
    value.get("code").and_then(Value::as_i64) == Some(Code::MethodNotFound.number())
}
