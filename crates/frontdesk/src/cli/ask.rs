//! Questions of an agent, asked on the terminal with numbered choices.
//!
//! An answer is only ever what a person typed. A withdrawn question, a closed keyboard or no
//! terminal at all is not an answer: then the question stays open for others.

use std::io::BufRead;
use std::sync::mpsc::SyncSender;

use frontdesk_core::envelope::Frame;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::Event;
use super::out::{DIM, Out, WANTED};
use super::text;

/// Longest typed line that is looked at, in bytes.
const TYPED_BYTES_MAX: u64 = 4_096;

/// One open permission question.
#[derive(Debug)]
pub(crate) struct Question {
    /// The request's id, as JSON text.
    pub(crate) id: String,
    title: String,
    details: Vec<String>,
    choices: Vec<Choice>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Choice {
    option_id: String,
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params {
    #[serde(default)]
    tool_call: Value,
    options: Vec<Choice>,
}

impl Question {
    /// Reads a `session/request_permission` request; `None` where it offers nothing to choose.
    pub(crate) fn read(frame: &Frame) -> Option<Self> {
        let params: Params = serde_json::from_str(frame.params()?).ok()?;
        if params.options.is_empty() {
            return None;
        }
        let call = &params.tool_call;
        let title = call["title"].as_str().unwrap_or("the agent asks for permission");
        let paths = call["locations"].as_array().into_iter().flatten();
        let mut details: Vec<String> =
            paths.filter_map(|place| place["path"].as_str()).map(text::line).collect();
        details.extend(call["rawInput"]["command"].as_str().map(text::line));
        Some(Self {
            id: frame.id()?.to_owned(),
            title: text::line(title),
            details,
            choices: params.options,
        })
    }

    /// The question and its choices, as lines for a person.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("? {}", self.title)];
        lines.extend(self.details.iter().map(|detail| format!("    {detail}")));
        for (index, choice) in self.choices.iter().enumerate() {
            lines.push(format!("  {}) {}", index + 1, text::line(&choice.name)));
        }
        lines
    }

    /// Shows the question and asks for a number.
    pub(crate) fn show(&self, out: &mut Out) {
        for line in self.lines() {
            out.remark(WANTED, &line);
        }
        out.remark_piece(WANTED, &format!("choose 1-{}: ", self.choices.len()));
    }

    /// Says that nobody here can answer, and who can.
    pub(crate) fn show_unanswerable(&self, out: &mut Out) {
        for line in self.lines() {
            out.remark(WANTED, &line);
        }
        out.remark(
            DIM,
            "  there is no terminal to ask on; the question waits. Answer it with `frontdesk approve` \
             or `frontdesk deny` (`frontdesk pending` lists it), or in another client of this session",
        );
    }

    /// The answer for a typed line: a choice's number.
    pub(crate) fn choose(&self, typed: &str) -> Option<Value> {
        let number: usize = typed.trim().trim_end_matches(')').parse().ok()?;
        let choice = self.choices.get(number.checked_sub(1)?)?;
        Some(json!({ "outcome": { "outcome": "selected", "optionId": choice.option_id } }))
    }
}

/// The answer to a question whose turn is cancelled.
pub(crate) fn cancelled() -> Value {
    json!({ "outcome": { "outcome": "cancelled" } })
}

/// Reads lines from the keyboard into the queue until it ends.
pub(crate) fn listen(
    mut keyboard: Box<dyn BufRead + Send>,
    queue: SyncSender<Event>,
) -> std::io::Result<()> {
    std::thread::Builder::new().name("keyboard".to_owned()).spawn(move || {
        use std::io::Read as _;
        loop {
            let mut line = Vec::new();
            match keyboard.by_ref().take(TYPED_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => {
                    let _ = queue.send(Event::TypedEnd);
                    return;
                }
                Ok(_) => {
                    let typed = String::from_utf8_lossy(&line).trim().to_owned();
                    if queue.send(Event::Typed(typed)).is_err() {
                        return;
                    }
                }
            }
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use frontdesk_core::envelope::Message;

    fn question(params: &Value) -> Option<Question> {
        let line = json!({ "jsonrpc": "2.0", "id": "q-1", "method": "session/request_permission", "params": params });
        let Ok(Message::Request(frame)) = Message::parse(Bytes::from(line.to_string())) else {
            panic!("no request");
        };
        Question::read(&frame)
    }

    fn sample() -> Value {
        json!({
            "sessionId": "s",
            "toolCall": { "toolCallId": "t", "title": "Write \u{1b}[31mfile", "locations": [{ "path": "/a/b" }] },
            "options": [
                { "optionId": "once", "name": "Allow once", "kind": "allow_once" },
                { "optionId": "no", "name": "Reject", "kind": "reject_once", "new": 1 },
            ],
        })
    }

    #[test]
    fn a_question_is_shown_with_numbers() {
        let question = question(&sample()).unwrap();
        assert_eq!(question.id, "\"q-1\"");
        assert_eq!(
            question.lines(),
            ["? Write [31mfile", "    /a/b", "  1) Allow once", "  2) Reject"]
        );
    }

    #[test]
    fn only_a_number_that_was_offered_is_an_answer() {
        let question = question(&sample()).unwrap();
        assert_eq!(question.choose(" 2 ").unwrap()["outcome"]["optionId"], "no");
        assert_eq!(question.choose("1)").unwrap()["outcome"]["optionId"], "once");
        for bad in ["", "0", "3", "-1", "y", "allow", "1 2", "99999999999999999999999"] {
            assert!(question.choose(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_question_without_choices_is_none() {
        assert!(question(&json!({ "sessionId": "s", "options": [] })).is_none());
        assert!(question(&json!({ "sessionId": "s" })).is_none());
        assert!(question(&json!([1])).is_none());
    }
}
