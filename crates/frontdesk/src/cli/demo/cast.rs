//! The three sessions of the demo, what they are told, and the demo's own part in them: it
//! answers their questions after a while and writes the file that one of them wants written.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use frontdesk_core::envelope::{Frame, Message};
use serde_json::{Value, json};

use super::super::client::{self, CALL_AGENT, Client, ClientError};
use super::super::turn;
use super::super::wire::METHOD_NOT_FOUND;
use super::super::{Failure, text};
use super::act_json;

/// How long a question is left open, so that a person can see it.
const ANSWER_MS: u64 = 2_500;
/// Characters kept of an answer, to show its last line.
const TAIL_CHARS_MAX: usize = 400;

/// Titles and scripts. The demo agent takes one command a line.
const ACTS: &[(&str, &str)] = &[
    ("Draft the release notes", "think 4 every 150\nstream 40 every 140"),
    (
        "Run the tests",
        "say The tests have to run first.\nask Run the tests\nstream 16 every 120\nsay All tests passed.",
    ),
    (
        "Add a greeting",
        "wait 700\nplan Look around; Write the file; Check it\nwait 900\ntool Search the folder\nwait 900\nwrite greeting.txt Hello from the front desk\nsay The file is written.",
    ),
];

/// One session and its turn.
pub(super) struct Act {
    /// The session's id.
    pub(super) id: String,
    /// What it is about.
    pub(super) title: &'static str,
    request: String,
    tail: String,
    doing: String,
    outcome: Option<Result<String, String>>,
}

impl Act {
    /// The last thing it said or did.
    pub(super) fn last_line(&self) -> String {
        match &self.outcome {
            Some(Ok(reason)) if reason != "end_turn" => format!("ended: {}", text::line(reason)),
            Some(Err(reason)) => format!("failed: {}", text::line(reason)),
            _ if !self.doing.is_empty() => self.doing.clone(),
            _ => {
                let last = self.tail.lines().rev().find(|line| !line.trim().is_empty());
                text::line(last.unwrap_or(""))
            }
        }
    }

    /// How its turn ended; `None` while it runs or where it failed.
    pub(super) fn stop_reason(&self) -> Option<&str> {
        self.outcome.as_ref()?.as_ref().ok().map(String::as_str)
    }

    fn hear(&mut self, update: &Value) {
        match update["sessionUpdate"].as_str().unwrap_or("") {
            "agent_message_chunk" => {
                self.doing.clear();
                self.tail.push_str(&turn::content(&update["content"]));
                let extra = self.tail.chars().count().saturating_sub(TAIL_CHARS_MAX);
                if extra > 0 {
                    self.tail = self.tail.chars().skip(extra).collect();
                }
            }
            "agent_thought_chunk" => "(thinking)".clone_into(&mut self.doing),
            "tool_call" | "tool_call_update" => {
                let title = update["title"].as_str().map(text::line);
                let status = text::line(update["status"].as_str().unwrap_or("pending"));
                if let Some(title) = title {
                    self.doing = format!("tool: {title} [{status}]");
                }
            }
            "plan" => {
                let entries = update["entries"].as_array().map_or(&[][..], Vec::as_slice);
                let now = entries.iter().find(|entry| entry["status"] == "in_progress");
                if let Some(words) = now.and_then(|entry| entry["content"].as_str()) {
                    self.doing = format!("plan: {}", text::line(words));
                }
            }
            _ => {}
        }
    }
}

struct Due {
    at: Instant,
    id: String,
    answer: Value,
}

/// All sessions of the demo.
pub(super) struct Cast {
    acts: Vec<Act>,
    due: Vec<Due>,
    workspace: PathBuf,
}

impl Cast {
    /// Makes the sessions and sends each its prompt.
    pub(super) fn hire(client: &mut Client, workspace: PathBuf) -> Result<Self, Failure> {
        let mut cast = Self { acts: Vec::new(), due: Vec::new(), workspace };
        for (title, script) in ACTS {
            let params = json!({
                "cwd": cast.workspace,
                "mcpServers": [],
                "_meta": { "frontdesk": { "agent": "demo" } },
            });
            let made: Value = client.call("session/new", &params, CALL_AGENT)?.read()?;
            let id = made["sessionId"].as_str().unwrap_or_default().to_owned();
            let words = format!("title {title}\n{script}");
            let prompt = json!({ "sessionId": id, "prompt": [{ "type": "text", "text": words }] });
            let request = client.request("session/prompt", &prompt)?;
            let (tail, doing) = (String::new(), String::new());
            cast.acts.push(Act { id, title, request, tail, doing, outcome: None });
        }
        Ok(cast)
    }

    /// The sessions, in the order of the table.
    pub(super) fn acts(&self) -> &[Act] {
        &self.acts
    }

    /// Whether every turn has its ending.
    pub(super) fn all_ended(&self) -> bool {
        self.acts.iter().all(|act| act.outcome.is_some())
    }

    /// Whether every turn ended as it should.
    pub(super) fn all_ended_well(&self) -> bool {
        self.acts.iter().all(|act| act.stop_reason() == Some("end_turn"))
    }

    /// Titles and reasons of turns that did not end as they should.
    pub(super) fn failures(&self) -> Vec<(String, String)> {
        let failed = self.acts.iter().filter(|act| act.stop_reason() != Some("end_turn"));
        failed
            .map(|act| {
                let reason = match &act.outcome {
                    None => "left before its end".to_owned(),
                    Some(Ok(reason) | Err(reason)) => reason.clone(),
                };
                (act.title.to_owned(), reason)
            })
            .collect()
    }

    /// The document of `--json`.
    pub(super) fn to_json(&self) -> Value {
        json!({ "sessions": self.acts.iter().map(act_json).collect::<Vec<_>>() })
    }

    /// Takes one message of the daemon.
    pub(super) fn hear(&mut self, message: Message, client: &mut Client) -> Result<(), Failure> {
        match message {
            Message::Response(frame) => self.hear_response(frame)?,
            Message::Notification(frame) => {
                let params: Value =
                    serde_json::from_str(frame.params().unwrap_or("null")).unwrap_or(Value::Null);
                let session = params["sessionId"].as_str().unwrap_or("");
                if &*frame.method == "session/update"
                    && let Some(act) = self.acts.iter_mut().find(|act| act.id == session)
                {
                    act.hear(&params["update"]);
                }
            }
            Message::Request(frame) => self.hear_request(&frame, client)?,
        }
        Ok(())
    }

    fn hear_response(&mut self, frame: Frame) -> Result<(), Failure> {
        let id = frame.id().unwrap_or("").to_owned();
        let Some(act) = self.acts.iter_mut().find(|act| act.request == id) else { return Ok(()) };
        act.outcome = Some(match client::answer("session/prompt", frame) {
            Ok(answer) => {
                let result: Value = answer.read()?;
                Ok(result["stopReason"].as_str().unwrap_or("no reason given").to_owned())
            }
            Err(ClientError::Rpc(error)) => Err(error.message),
            Err(error) => return Err(error.into()),
        });
        Ok(())
    }

    fn hear_request(&mut self, frame: &Frame, client: &mut Client) -> Result<(), Failure> {
        let id = frame.id().unwrap_or("null");
        let params: Value =
            serde_json::from_str(frame.params().unwrap_or("null")).unwrap_or(Value::Null);
        match &*frame.method {
            "session/request_permission" => {
                let session = params["sessionId"].as_str().unwrap_or("");
                if let Some(act) = self.acts.iter_mut().find(|act| act.id == session) {
                    let title = params["toolCall"]["title"].as_str().unwrap_or("something");
                    act.doing = format!("asks: {} (the demo will allow it)", text::line(title));
                }
                let at = Instant::now() + Duration::from_millis(ANSWER_MS);
                self.due.push(Due { at, id: id.to_owned(), answer: allow(&params) });
            }
            "fs/write_text_file" => match write_file(&self.workspace, &params) {
                Ok(()) => client.answer(id, &json!({}))?,
                Err(error) => client.refuse(id, -32602, &format!("{error:#}"))?,
            },
            method => {
                let words = format!("the demo does not serve {method}");
                client.refuse(id, METHOD_NOT_FOUND, &words)?;
            }
        }
        Ok(())
    }

    /// Answers the questions that were open long enough to be seen.
    pub(super) fn answer_what_is_due(&mut self, client: &mut Client) -> Result<(), Failure> {
        let now = Instant::now();
        for due in self.due.extract_if(.., |due| due.at <= now) {
            client.answer(&due.id, &due.answer)?;
        }
        Ok(())
    }
}

/// The answer that allows something once; the first choice where that is not offered.
fn allow(params: &Value) -> Value {
    let options = params["options"].as_array().map_or(&[][..], Vec::as_slice);
    let once = options.iter().find(|option| option["kind"] == "allow_once");
    match once.or(options.first()) {
        Some(option) => {
            json!({ "outcome": { "outcome": "selected", "optionId": option["optionId"] } })
        }
        None => json!({ "outcome": { "outcome": "cancelled" } }),
    }
}

/// Writes a file for an agent, inside the workspace only, and never through a link.
fn write_file(workspace: &Path, params: &Value) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let path = Path::new(params["path"].as_str().context("failed to write: no path given")?);
    let content = params["content"].as_str().context("failed to write: no content given")?;
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    let inside = match (folder, workspace.canonicalize()) {
        (Some(folder), Ok(root)) => path.is_absolute() && folder.starts_with(root),
        _ => false,
    };
    anyhow::ensure!(inside, "failed to write {}: it is outside the workspace", path.display());
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(nix::fcntl::OFlag::O_NOFOLLOW.bits())
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_inside_the_workspace_only() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("w");
        std::fs::create_dir(&root).unwrap();
        let outside = folder.path().join("secret");
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        let write = |path: &Path| write_file(&root, &json!({ "path": path, "content": "hi" }));
        write(&root.join("a")).unwrap();
        assert_eq!(std::fs::read_to_string(root.join("a")).unwrap(), "hi");
        for bad in [root.join("../secret"), outside.clone(), root.join("link"), "a".into()] {
            assert!(write(&bad).is_err(), "{}", bad.display());
        }
        assert!(!outside.exists());
        assert!(write_file(&root, &json!({})).is_err());
    }

    #[test]
    fn allowing_once_is_preferred() {
        let options = json!([{ "optionId": "a", "kind": "allow_always" }, { "optionId": "b", "kind": "allow_once" }]);
        assert_eq!(allow(&json!({ "options": options }))["outcome"]["optionId"], "b");
        assert_eq!(allow(&json!({}))["outcome"]["outcome"], "cancelled");
    }

    #[test]
    fn an_act_shows_what_it_does_and_then_what_it_said() {
        let mut act = Act {
            id: "s".to_owned(),
            title: "t",
            request: "1".to_owned(),
            tail: String::new(),
            doing: String::new(),
            outcome: None,
        };
        act.hear(
            &json!({ "sessionUpdate": "tool_call", "title": "Look\u{1b}", "status": "pending" }),
        );
        assert_eq!(act.last_line(), "tool: Look [pending]");
        let chunk = |text: &str| json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
        act.hear(&chunk("one\ntw"));
        act.hear(&chunk("o\n"));
        assert_eq!(act.last_line(), "two");
        act.hear(&chunk(&"é".repeat(2 * TAIL_CHARS_MAX)));
        assert_eq!(act.tail.chars().count(), TAIL_CHARS_MAX);
        act.outcome = Some(Err("gone".to_owned()));
        assert_eq!(act.last_line(), "failed: gone");
    }
}
