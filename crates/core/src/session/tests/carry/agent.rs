//! The agent and its holder in the world of these tests: a script a turn, and all output kept.

use std::collections::{BTreeSet, VecDeque};

use super::*;

/// What the agent does in a turn, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Chunk,
    /// Asks people and waits for the answer.
    Ask,
    /// Asks people and goes on; waits at the end of its turn.
    AskAndGoOn,
    /// Reads a file through a client.
    Read,
    /// Writes a file through a client.
    Write,
    /// Takes its last question back.
    Withdraw,
    /// Sends something that becomes no record.
    Other,
}

/// The agent and its holder: what outlives a daemon.
pub(super) struct Agent {
    pub(super) script: Vec<Vec<Act>>,
    /// Highest input number that was accepted.
    pub(super) last: u64,
    /// All output: offset behind each frame, and its text.
    pub(super) output: Vec<(u64, String)>,
    pub(super) prompt: Option<(String, VecDeque<Act>)>,
    pub(super) prompts: usize,
    pub(super) next_id: u64,
    pub(super) waits: BTreeSet<u64>,
    pub(super) stands_at: Option<u64>,
    pub(super) asked: Vec<u64>,
    /// How often it was asked to let the session go while it had it.
    pub(super) closed: usize,
}

impl Agent {
    pub(super) fn hear(&mut self, number: u64, frame: &Bytes) {
        if number <= self.last {
            return;
        }
        self.last = number;
        match Message::parse(frame.clone()).unwrap() {
            Message::Request(frame) if &*frame.method == "session/close" => {
                self.give_up();
                let id = frame.id().unwrap();
                if self.closed > 0 {
                    let error = r#"{"code":-32002,"message":"Resource not found"}"#;
                    return self.say(format!(r#"{{"id":{id},"error":{error}}}"#));
                }
                self.closed += 1;
                return self.say(format!(r#"{{"id":{id},"result":{{}}}}"#));
            }
            Message::Request(frame) => {
                assert!(self.prompt.is_none(), "two prompts at once");
                let acts = self.script[self.prompts].clone();
                self.prompts += 1;
                self.prompt = Some((frame.id().unwrap().to_owned(), acts.into()));
            }
            Message::Response(frame) => {
                let id: u64 = frame.id().unwrap().parse().unwrap();
                assert!(self.waits.remove(&id), "answered twice or never asked: {id}");
                self.asked.retain(|asked| *asked != id);
            }
            Message::Notification(frame) if &*frame.method == "session/cancel" => {
                return self.give_up();
            }
            Message::Notification(_) => {}
        }
        self.work();
    }

    /// Has a last word and ends its turn.
    pub(super) fn give_up(&mut self) {
        let Some((prompt, _)) = self.prompt.take() else { return };
        self.chunk();
        self.say(format!(r#"{{"id":{prompt},"result":{{"stopReason":"cancelled"}}}}"#));
    }

    pub(super) fn chunk(&mut self) {
        let at = self.output.len();
        self.say(format!(r#"{{"method":"session/update","params":{{"sessionId":"n","update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{at}"}}}}}}}}"#));
    }

    pub(super) fn say(&mut self, text: String) {
        let end = self.output.last().map_or(0, |(end, _)| *end) + text.len() as u64 + 1;
        self.output.push((end, text));
    }

    pub(super) fn ask(&mut self, method: &str, more: &str) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.waits.insert(id);
        self.say(format!(
            r#"{{"id":{id},"method":"{method}","params":{{"sessionId":"n"{more}}}}}"#
        ));
        id
    }

    pub(super) fn work(&mut self) {
        const CHOICES: &str = r#","options":[{"optionId":"yes"}]"#;
        while let Some((prompt, mut acts)) = self.prompt.take() {
            if self.stands_at.is_some_and(|id| self.waits.contains(&id)) {
                self.prompt = Some((prompt, acts));
                return;
            }
            let Some(act) = acts.pop_front() else {
                if self.waits.is_empty() {
                    self.say(format!(r#"{{"id":{prompt},"result":{{"stopReason":"end_turn"}}}}"#));
                } else {
                    self.prompt = Some((prompt, acts));
                }
                return;
            };
            self.prompt = Some((prompt, acts));
            match act {
                Act::Chunk => self.chunk(),
                Act::Ask => self.stands_at = Some(self.ask("session/request_permission", CHOICES)),
                Act::AskAndGoOn => {
                    let id = self.ask("session/request_permission", CHOICES);
                    self.asked.push(id);
                }
                Act::Read => {
                    self.stands_at = Some(self.ask("fs/read_text_file", r#","path":"/x""#))
                }
                Act::Write => {
                    self.stands_at =
                        Some(self.ask("fs/write_text_file", r#","path":"/x","content":"y""#));
                }
                Act::Withdraw => {
                    if let Some(id) = self.asked.pop() {
                        self.say(format!(r#"{{"method":"$/cancel_request","params":{{"sessionId":"n","requestId":{id}}}}}"#));
                    }
                }
                Act::Other => {
                    self.say(r#"{"method":"_x/note","params":{"sessionId":"n"}}"#.to_owned());
                }
            }
        }
    }
}
