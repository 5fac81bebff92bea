//! The steps that ask the client for something: permission, files, a terminal, forms, extensions.

use std::fs;
use std::path::{Component, Path, PathBuf};

use frontdesk_core::envelope::quote;
use serde_json::{Value, json};

use super::lock;
use super::server::ClientOffers;
use super::turn::{End, Turn};

/// Longest text of a file or of a terminal that is shown, in bytes.
const SHOWN_BYTES_MAX: usize = 8 << 10;
/// Largest file the agent reads itself, in bytes.
const OWN_READ_BYTES_MAX: u64 = 16 << 20;
/// Output the client should keep of a terminal, in bytes.
const TERMINAL_BYTES_MAX: u64 = 64 << 10;

/// How a permission question was settled.
pub(super) enum Verdict {
    Allowed { always: bool, option: String },
    Refused(String),
}

impl Turn {
    /// Asks for permission to go on, and says what came back. Returns whether it was given.
    pub(super) fn ask(&mut self, title: Option<String>) -> Result<bool, End> {
        let title = title.unwrap_or_else(|| "Go on?".to_owned());
        let tool = self.begin_tool(&title, "other", json!({ "question": title }));
        let verdict =
            self.permit(json!({ "toolCallId": tool, "title": title, "kind": "other" }))?;
        match verdict {
            Verdict::Allowed { option, .. } => {
                self.end_tool(&tool, true, &option);
                self.say(&format!("Allowed ({option})."));
                Ok(true)
            }
            Verdict::Refused(why) => {
                self.end_tool(&tool, false, &why);
                self.say(&format!("Not allowed ({why})."));
                Ok(false)
            }
        }
    }

    fn permit(&mut self, tool_call: Value) -> Result<Verdict, End> {
        let session = self.session.id.clone();
        self.permit_in(&session, &tool_call)
    }

    /// Asks in the name of this session or of a child of it.
    pub(super) fn permit_in(&mut self, session: &str, tool_call: &Value) -> Result<Verdict, End> {
        let params = json!({
            "sessionId": session,
            "toolCall": tool_call,
            "options": [
                { "optionId": "allow_once", "name": "Allow once", "kind": "allow_once" },
                { "optionId": "allow_always", "name": "Always allow", "kind": "allow_always" },
                { "optionId": "reject_once", "name": "Reject", "kind": "reject_once" },
            ],
        });
        let answer = match self.call("session/request_permission", &params)? {
            Ok(answer) => answer,
            // An error is never an approval.
            Err(error) => return Ok(Verdict::Refused(sentence(&error))),
        };
        let outcome = &answer["outcome"];
        match (outcome["outcome"].as_str(), outcome["optionId"].as_str()) {
            (Some("cancelled"), _) => Err(End::Cancelled),
            (Some("selected"), Some(option @ ("allow_once" | "allow_always"))) => {
                let always = option == "allow_always";
                Ok(Verdict::Allowed { always, option: option.to_owned() })
            }
            (Some("selected"), Some(option)) => Ok(Verdict::Refused(option.to_owned())),
            _ => Ok(Verdict::Refused(format!("unknown outcome {outcome}"))),
        }
    }

    pub(super) fn read(&mut self, path: &str) -> Result<(), End> {
        let path = self.absolute(path);
        let tool = self.begin_tool(&format!("Read {path}"), "read", json!({ "path": path }));
        let text = if self.offers().read {
            let params = json!({ "sessionId": self.session.id, "path": path });
            match self.call("fs/read_text_file", &params)? {
                Ok(result) => match result["content"].as_str() {
                    Some(text) => Ok(text.to_owned()),
                    None => Err("the client answered without content".to_owned()),
                },
                Err(error) => Err(sentence(&error)),
            }
        } else {
            self.within_roots(&path).and_then(|path| read_file(&path))
        };
        match text {
            Ok(text) => {
                self.end_tool(&tool, true, cut(&text));
                self.say(&format!("{path} has {} bytes.", text.len()));
            }
            Err(error) => {
                self.end_tool(&tool, false, &error);
                self.say(&format!("Reading {path} failed: {error}"));
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self, path: &str, text: &str) -> Result<(), End> {
        let path = self.absolute(path);
        let title = format!("Write {path}");
        let tool = self.begin_tool(&title, "edit", json!({ "path": path, "content": text }));
        let diff = json!([{ "type": "diff", "path": path, "oldText": null, "newText": text }]);
        let must_ask = {
            let state = lock(&self.session.state);
            state.mode == "ask" && !state.allowed.contains("write")
        };
        if must_ask {
            let verdict = self.permit(json!({
                "toolCallId": tool, "title": title, "kind": "edit", "status": "pending",
                "content": diff, "locations": [{ "path": path }],
            }))?;
            match verdict {
                Verdict::Allowed { always, .. } if always => {
                    lock(&self.session.state).allowed.insert("write");
                }
                Verdict::Allowed { .. } => {}
                Verdict::Refused(why) => {
                    self.end_tool(&tool, false, &why);
                    self.say(&format!("{path} was not written ({why})."));
                    return Ok(());
                }
            }
        }
        let written = if self.offers().write {
            let params = json!({ "sessionId": self.session.id, "path": path, "content": text });
            self.call("fs/write_text_file", &params)?.map(drop).map_err(|error| sentence(&error))
        } else {
            self.within_roots(&path).and_then(|path| {
                fs::write(path, text).map_err(|error| format!("failed to write the file: {error}"))
            })
        };
        match written {
            Ok(()) => {
                self.open_tool = None;
                self.update(&json!({
                    "sessionUpdate": "tool_call_update", "toolCallId": tool,
                    "status": "completed", "content": diff, "locations": [{ "path": path }],
                }));
                self.say(&format!("{path} is written."));
            }
            Err(error) => {
                self.end_tool(&tool, false, &error);
                self.say(&format!("Writing {path} failed: {error}"));
            }
        }
        Ok(())
    }

    pub(super) fn terminal(&mut self, command: &str) -> Result<(), End> {
        let tool = self.begin_tool(command, "execute", json!({ "command": command }));
        if !self.offers().terminal {
            self.end_tool(&tool, false, "the client offers no terminal");
            self.say("I cannot run that: the client offers no terminal.");
            return Ok(());
        }
        match self.run_in_terminal(&tool, command)? {
            Ok((code, output)) => {
                let status = if code == Some(0) { "completed" } else { "failed" };
                self.open_tool = None;
                self.update(&json!({
                    "sessionUpdate": "tool_call_update", "toolCallId": tool, "status": status,
                    "rawOutput": { "exitCode": code, "output": cut(&output) },
                }));
                let code = code.map_or_else(|| "no code".to_owned(), |code| code.to_string());
                self.say(&format!("`{command}` ended with {code}:\n{}", cut(&output)));
            }
            Err(error) => {
                self.end_tool(&tool, false, &error);
                self.say(&format!("Running `{command}` failed: {error}"));
            }
        }
        Ok(())
    }

    /// The whole life of a terminal; the inner result is exit code and output, or what went wrong.
    fn run_in_terminal(
        &mut self,
        tool: &str,
        command: &str,
    ) -> Result<Result<(Option<u64>, String), String>, End> {
        let session = self.session.id.clone();
        let cwd = lock(&self.session.state).cwd.clone();
        let made = self.call(
            "terminal/create",
            &json!({
                "sessionId": session, "command": "sh", "args": ["-c", command], "cwd": cwd,
                "outputByteLimit": TERMINAL_BYTES_MAX,
            }),
        )?;
        let terminal = match made {
            Ok(result) => match result["terminalId"].as_str() {
                Some(terminal) => terminal.to_owned(),
                None => return Ok(Err("the client named no terminal".to_owned())),
            },
            Err(error) => return Ok(Err(sentence(&error))),
        };
        self.update(&json!({
            "sessionUpdate": "tool_call_update", "toolCallId": tool, "status": "in_progress",
            "content": [{ "type": "terminal", "terminalId": terminal }],
        }));
        let params = json!({ "sessionId": session, "terminalId": terminal });
        let outcome = (|| {
            let exit = self.call("terminal/wait_for_exit", &params)?;
            Ok((exit, self.call("terminal/output", &params)?))
        })();
        let (exit, output) = match outcome {
            Ok(both) => both,
            Err(end) => {
                // The command must not outlive the turn; nobody waits for these answers.
                for method in ["terminal/kill", "terminal/release"] {
                    self.agent.out.call(method, &params.to_string(), None);
                }
                return Err(end);
            }
        };
        let released = self.call("terminal/release", &params)?;
        Ok((|| {
            let (exit, output) = (exit?, output?);
            released?;
            let text = output["output"].as_str().unwrap_or_default().to_owned();
            Ok((exit["exitCode"].as_u64(), text))
        })()
        .map_err(|error: Value| sentence(&error)))
    }

    pub(super) fn elicit(&mut self, text: &str) -> Result<(), End> {
        if !self.offers().forms {
            self.say("I cannot ask that: the client offers no forms.");
            return Ok(());
        }
        let answer = self.call(
            "elicitation/create",
            &json!({
                "sessionId": self.session.id,
                "mode": "form",
                "message": text,
                "requestedSchema": {
                    "type": "object",
                    "properties": { "answer": { "type": "string", "title": "Answer" } },
                    "required": ["answer"],
                },
            }),
        )?;
        self.tell("The form came back", answer);
        Ok(())
    }

    pub(super) fn extension(&mut self, method: &str, params: Option<&str>) -> Result<(), End> {
        let params = match params.map(serde_json::from_str::<Value>) {
            Some(Ok(params)) => params,
            _ => json!({ "sessionId": self.session.id }),
        };
        let answer = self.call(method, &params)?;
        self.tell(&format!("{method} came back"), answer);
        Ok(())
    }

    fn tell(&mut self, what: &str, answer: Result<Value, Value>) {
        match answer {
            Ok(result) => self.say(&format!("{what}: {result}")),
            Err(error) => self.say(&format!("{what} as an error: {error}")),
        }
    }

    fn offers(&self) -> ClientOffers {
        if self.agent.options.ignore_capabilities {
            return ClientOffers { read: true, write: true, terminal: true, forms: true };
        }
        *lock(&self.agent.client)
    }

    fn absolute(&self, path: &str) -> String {
        Path::new(&lock(&self.session.state).cwd).join(path).to_string_lossy().into_owned()
    }

    /// The path, if it lies in the session's roots: the rule for files we touch ourselves because
    /// the client offers no file access. Links are followed before they are judged.
    fn within_roots(&self, path: &str) -> Result<PathBuf, String> {
        let roots: Vec<String> = {
            let state = lock(&self.session.state);
            std::iter::once(&state.cwd).chain(&state.directories).cloned().collect()
        };
        let path = Path::new(path);
        let outside = || {
            format!(
                "the client offers no file access, and {} lies outside the session's folders",
                quote(&path.to_string_lossy())
            )
        };
        let real = match fs::canonicalize(path) {
            Ok(real) => real,
            Err(_) => {
                // A new file: its folder must be there, and the link it may be leads nowhere.
                let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
                    return Err(outside());
                };
                let fresh = fs::symlink_metadata(path).is_err();
                let plain = !path.components().any(|part| part == Component::ParentDir);
                match fs::canonicalize(folder) {
                    Ok(folder) if fresh && plain => folder.join(name),
                    _ => return Err(outside()),
                }
            }
        };
        let inside = roots
            .iter()
            .filter_map(|root| fs::canonicalize(root).ok())
            .any(|root| real.starts_with(root));
        if inside { Ok(real) } else { Err(outside()) }
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("failed to read the file: {error}");
    let about = fs::metadata(path).map_err(failed)?;
    if !about.is_file() || about.len() > OWN_READ_BYTES_MAX {
        return Err("it is no file, or too large".to_owned());
    }
    fs::read_to_string(path).map_err(failed)
}

/// An error object in one sentence.
fn sentence(error: &Value) -> String {
    match (error["message"].as_str(), error["code"].as_i64()) {
        (Some(message), Some(code)) => format!("{message} ({code})"),
        (Some(message), None) => message.to_owned(),
        _ => format!("error {error}"),
    }
}

fn cut(text: &str) -> &str {
    super::start_of(text, SHOWN_BYTES_MAX)
}
