//! One turn: its signals, its calls to the client, its answer.
//!
//! A turn is a thread. Everything that may end it early arrives as a [`Signal`], so a wait for time
//! and a wait for an answer are the same wait, and a cancel is seen at once.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::lock;
use super::script::{self, Step};
use super::server::Agent;
use super::session::Session;
use super::store::{now, title_from};
use super::wire::{Failure, Signal};

/// Signals waiting for one turn.
pub(super) const SIGNALS_MAX: usize = 64;
/// How long a cancelled turn waits for the client's answer to an open call, in milliseconds.
const CANCEL_ANSWER_MS: u64 = 1_000;

/// A prompt as the turn sees it.
pub(super) struct Prompt {
    /// The content blocks' JSON texts, with commas between.
    pub(super) blocks: String,
    /// All text, one block a line.
    pub(super) text: String,
    /// The types of the blocks that are no text.
    pub(super) others: Vec<String>,
    /// A title made of it.
    pub(super) title: Option<String>,
}

impl Prompt {
    /// Reads content blocks; `None` if one has no type.
    pub(super) fn read<'a>(blocks: impl Iterator<Item = &'a str> + Clone) -> Option<Self> {
        #[derive(Deserialize)]
        struct Block {
            r#type: String,
            #[serde(default)]
            text: Option<String>,
        }
        let mut texts = Vec::new();
        let mut others = Vec::new();
        for block in blocks.clone() {
            let block: Block = serde_json::from_str(block).ok()?;
            match (block.r#type.as_str(), block.text) {
                ("text", Some(text)) => texts.push(text),
                ("text", None) => return None,
                _ => others.push(block.r#type),
            }
        }
        let title = title_from(blocks.clone());
        let blocks = blocks.collect::<Vec<_>>().join(",");
        Some(Self { blocks, text: texts.join("\n"), others, title })
    }
}

/// How a turn ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With this stop reason.
    Reason(&'static str),
    /// By `session/cancel`.
    Cancelled,
    /// By `$/cancel_request` for the prompt.
    RequestCancelled,
    /// With an error.
    Failed(Failure),
    /// By `session/cancel`, with chunks behind the answer.
    Late {
        /// How many.
        count: u64,
        /// Milliseconds between them.
        every_ms: u64,
    },
}

/// A running turn.
pub(super) struct Turn {
    /// The agent it runs in.
    pub(super) agent: Arc<Agent>,
    /// Its session.
    pub(super) session: Arc<Session>,
    /// Its number in the session, from 1.
    pub(super) number: u64,
    /// The tool call that is not over yet.
    pub(super) open_tool: Option<String>,
    request: String,
    sender: SyncSender<Signal>,
    signals: Receiver<Signal>,
    made: u64,
}

impl Turn {
    /// A turn that answers `request`.
    pub(super) fn new(
        agent: Arc<Agent>,
        session: Arc<Session>,
        request: String,
        number: u64,
        sender: SyncSender<Signal>,
        signals: Receiver<Signal>,
    ) -> Self {
        Self { agent, session, number, open_tool: None, request, sender, signals, made: 0 }
    }

    /// Runs the turn to its answer.
    pub(super) fn run(mut self, prompt: Prompt) {
        let end = self.play(&prompt).err().unwrap_or(End::Reason("end_turn"));
        self.finish(end, prompt.title);
    }

    fn play(&mut self, prompt: &Prompt) -> Result<(), End> {
        if self.agent.options.ask_always && !self.ask(None)? {
            return Ok(());
        }
        match script::parse(&prompt.text) {
            Some(steps) => steps.into_iter().try_for_each(|step| {
                // A cancel that came a moment early is still the one that `late` waits for, and
                // `hang` ignores.
                if !matches!(step, Step::Late { .. } | Step::Hang) {
                    self.check()?;
                }
                self.act(step)
            }),
            None => self.reply(prompt),
        }
    }

    fn finish(mut self, end: End, title: Option<String>) {
        if let Some(tool) = self.open_tool.take() {
            self.update(&json!({
                "sessionUpdate": "tool_call_update", "toolCallId": tool, "status": "failed",
            }));
        }
        let untitled = lock(&self.session.state).title.is_none();
        if let (true, Some(title)) = (untitled, title) {
            self.rename(&title);
        }
        let stopped = |reason: &str| Ok(json!({ "stopReason": reason }));
        let answer = match &end {
            End::Reason(reason) => stopped(reason),
            End::Cancelled | End::Late { .. } => stopped("cancelled"),
            End::RequestCancelled => Err(Failure::custom(-32800, "Request cancelled")),
            End::Failed(failure) => Err(failure.clone()),
        };
        let ending = match &answer {
            Ok(result) => format!(r#""stopReason":{}"#, result["stopReason"]),
            Err(Failure(error)) => format!(r#""error":{error}"#),
        };
        self.session.record("ended", &ending);
        self.session.finish(|| self.agent.out.answer(&self.request, &answer));
        if let End::Late { count, every_ms } = end {
            for at in 1..=count {
                std::thread::sleep(Duration::from_millis(every_ms));
                self.chunk("agent_message_chunk", &format!("late chunk {at} of {count} "), "late");
            }
        }
    }

    /// Sets the session's title and tells the client.
    pub(super) fn rename(&self, title: &str) {
        lock(&self.session.state).title = Some(title.to_owned());
        self.session.record("title", &format!(r#""title":{}"#, json!(title)));
        self.update(&json!({
            "sessionUpdate": "session_info_update", "title": title, "updatedAt": now(),
        }));
    }

    /// Stores and shows an update.
    pub(super) fn update(&self, update: &Value) {
        self.session.show(&self.agent.out, &update.to_string());
    }

    /// Stores and shows one chunk of a message.
    pub(super) fn chunk(&self, kind: &str, text: &str, message: &str) {
        self.update(&json!({
            "sessionUpdate": kind,
            "content": { "type": "text", "text": text },
            "messageId": format!("t{}-{message}", self.number),
        }));
    }

    /// Answers with one whole message.
    pub(super) fn say(&mut self, text: &str) {
        let message = self.fresh("message");
        self.chunk("agent_message_chunk", text, &message);
    }

    /// A name that no other thing of this turn has.
    pub(super) fn fresh(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("{kind}{}", self.made)
    }

    /// Sees whether the turn was stopped.
    pub(super) fn check(&mut self) -> Result<(), End> {
        self.wait(Duration::ZERO)
    }

    /// Waits, and stops waiting when the turn is stopped.
    pub(super) fn wait(&mut self, time: Duration) -> Result<(), End> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.signals.recv_timeout(left) {
                Ok(Signal::Cancel | Signal::Eof) => return Err(End::Cancelled),
                Ok(Signal::CancelRequest) => return Err(End::RequestCancelled),
                Ok(Signal::Answer { .. }) => {}
                // The sender lives in `self`, so the only error is the time-out.
                Err(_) => return Ok(()),
            }
        }
    }

    /// Calls the client and waits for its answer, for ever if need be: people take their time.
    ///
    /// When the turn is cancelled meanwhile, the client settles a permission question itself; any
    /// other call is withdrawn. Either way the turn ends when the answer is there, and at the
    /// latest after a second.
    pub(super) fn call(
        &mut self,
        method: &str,
        params: &Value,
    ) -> Result<Result<Value, Value>, End> {
        let sent = self.agent.out.call(method, &params.to_string(), Some(&self.sender));
        let end = loop {
            match self.signals.recv() {
                Ok(Signal::Answer { call, answer }) if call == sent => return Ok(answer),
                Ok(Signal::Answer { .. }) => {}
                Ok(Signal::Cancel) => break End::Cancelled,
                Ok(Signal::CancelRequest) => break End::RequestCancelled,
                Ok(Signal::Eof) | Err(_) => {
                    self.agent.out.forget(sent);
                    return Err(End::Cancelled);
                }
            }
        };
        let settled_by_client = method == "session/request_permission" && end == End::Cancelled;
        if !settled_by_client {
            self.withdraw(sent);
        }
        if !self.wait_for_late_answer(sent) && settled_by_client {
            self.withdraw(sent);
        }
        self.agent.out.forget(sent);
        Err(end)
    }

    fn withdraw(&self, call: u64) {
        self.agent.out.notify("$/cancel_request", &json!({ "requestId": call }).to_string());
    }

    fn wait_for_late_answer(&mut self, sent: u64) -> bool {
        let until = Instant::now() + Duration::from_millis(CANCEL_ANSWER_MS);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.signals.recv_timeout(left) {
                Ok(Signal::Answer { call, .. }) if call == sent => return true,
                Ok(Signal::Eof) | Err(_) => return false,
                Ok(Signal::Answer { .. } | Signal::Cancel | Signal::CancelRequest) => {}
            }
        }
    }
}
