//! What an agent sends by itself: updates, questions, other requests, other notifications.

use serde_json::Value;

use super::Session;
use super::asks::cancelled_answer;
use super::life::Replay;
use super::types::{Position, Tag};
use crate::envelope::{Frame, Message, quote};
use crate::errors::{Code, WireError};
use crate::import::Taken;
use crate::lease::Phase;
use crate::record::Kind;
use crate::render::{Audience, stored_params, stored_update};

impl Session {
    pub(super) fn agent_message(&mut self, message: Message, at: Position, about: Option<Tag>) {
        if !self.lease.accepts(self.facts.epoch) {
            // Of an owner that is none any more. What it asks is answered, so that it can end.
            self.lease.count_late();
            if let Message::Request(frame) = message {
                self.refuse_agent(&frame, &at);
            }
            return;
        }
        self.active();
        if self.was_handled(&message, &at) {
            return;
        }
        if self.phase() == Phase::Starting {
            self.replayed = Some(at.source.clone());
        }
        match message {
            Message::Notification(frame) => match &*frame.method {
                "session/update" => self.update(&frame, &at),
                "$/cancel_request" => {
                    if let Some(id) = cancelled_id(&frame)
                        && !self.agent_withdraws(&id)
                    {
                        self.agent_withdraws_pass(&id);
                    }
                }
                _ => self.show(&Audience::All, &frame.text),
            },
            Message::Request(frame) if self.phase() != Phase::Live => {
                self.refuse_agent(&frame, &at);
            }
            Message::Request(frame) => match &*frame.method {
                "elicitation/create" if about.is_some() => self.open_ask_about(&frame, &at, about),
                "session/request_permission" | "elicitation/create" => {
                    self.open_ask(frame, &at, None);
                }
                _ => self.open_pass(frame, &at),
            },
            // Answers come as `AgentAnswer`, by what was asked.
            Message::Response(_) => {}
        }
    }

    /// A request of an agent whose session is not live here any more, or not yet.
    fn refuse_agent(&mut self, frame: &Frame, at: &Position) {
        let id = frame.id().unwrap_or("null");
        let answer = if &*frame.method == "session/request_permission" {
            cancelled_answer(frame)
        } else {
            let error =
                WireError::new(Code::NoCapableClient, "the session is not open for requests now");
            Frame::failure(id, &error.to_json())
        };
        self.settle_owed(&at.source.hop(), answer);
    }

    fn update(&mut self, frame: &Frame, at: &Position) {
        let data = stored_update(frame);
        if self.phase() == Phase::Starting {
            let taken = match &mut self.replay {
                Replay::Import(import) => import.take(&stored_params(&data), &data),
                Replay::Swallow => crate::import::swallow(&stored_params(&data)),
                Replay::None => Taken::State,
            };
            match taken {
                Taken::Held => return,
                Taken::Import(items) => {
                    let source = &at.source;
                    return items.into_iter().for_each(|data| {
                        self.append(Kind::Imported, Some(source.clone()), data);
                    });
                }
                Taken::State => {}
            }
        }
        let late = self.stuck.is_some() && self.turn.is_none();
        let kind = if late { Kind::TurnLate } else { Kind::Update };
        let titles = self.is_named() && crate::names::is_title(&stored_params(&data));
        self.append_update(kind, at.source.clone(), data, frame);
        if titles {
            // The agent's own title went through as it came; the name that a person gave stands.
            self.show_name();
        }
    }
}

/// The id in a `$/cancel_request`, as JSON text.
fn cancelled_id(frame: &Frame) -> Option<String> {
    let params: Value = serde_json::from_str(frame.params()?).ok()?;
    match params.get("requestId")? {
        Value::String(text) => Some(quote(text)),
        other => Some(other.to_string()),
    }
}
