//! What the steps of a script do, but for those that ask the client for something.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::process;
use super::script::{Step, WAIT_MS_MAX};
use super::session::{commands_update, is_mode, update_params};
use super::turn::{End, Prompt, Turn};
use super::wire::Failure;

/// Largest piece of text in one chunk of a plain answer, in bytes.
const PIECE_BYTES_MAX: usize = 4096;
/// Time a shown tool call or plan entry takes, in milliseconds.
const SHOW_MS: u64 = 40;

impl Turn {
    /// The answer to plain text.
    pub(super) fn reply(&mut self, prompt: &Prompt) -> Result<(), End> {
        let (thoughts, careful) = {
            let state = super::lock(&self.session.state);
            (state.thoughts == "on", state.model == "careful")
        };
        if thoughts {
            let thought = self.fresh("thought");
            let words = prompt.text.split_whitespace().count();
            self.chunk("agent_thought_chunk", &format!("That is {words} words. "), &thought);
            if careful {
                self.wait(Duration::from_millis(SHOW_MS))?;
                self.chunk("agent_thought_chunk", "I count them again. ", &thought);
            }
        }
        let message = self.fresh("message");
        let said = !prompt.text.trim().is_empty();
        let start = if said { "You said: " } else { "You said nothing." };
        self.chunk("agent_message_chunk", start, &message);
        for piece in pieces(&prompt.text, PIECE_BYTES_MAX).filter(|_| said) {
            self.check()?;
            self.chunk("agent_message_chunk", piece, &message);
        }
        if !prompt.others.is_empty() {
            let with = format!(" (with: {})", prompt.others.join(", "));
            self.chunk("agent_message_chunk", &with, &message);
        }
        Ok(())
    }

    /// Does one step.
    pub(super) fn act(&mut self, step: Step) -> Result<(), End> {
        match step {
            Step::Say(text) => self.say(&text),
            Step::Stream { count, every_ms, bytes } => {
                let message = self.fresh("message");
                for at in 1..=count {
                    let text = sized(&format!("chunk {at} of {count} "), bytes);
                    self.chunk("agent_message_chunk", &text, &message);
                    self.wait(Duration::from_millis(every_ms))?;
                }
            }
            Step::Think { count, every_ms } => {
                let thought = self.fresh("thought");
                for at in 1..=count {
                    self.chunk("agent_thought_chunk", &format!("thought {at} "), &thought);
                    self.wait(Duration::from_millis(every_ms))?;
                }
            }
            Step::Ask { title } => drop(self.ask(title)?),
            Step::Read { path } => self.read(&path)?,
            Step::Write { path, text } => self.write(&path, &text)?,
            Step::Run { command } => self.terminal(&command)?,
            Step::Plan { entries } => self.plan(&entries)?,
            Step::Tool { title } => self.tool(&title)?,
            Step::Title(title) => self.rename(&title),
            Step::Clear { quiet } => self.clear(quiet)?,
            Step::Subagent(title) => self.subagent(&title)?,
            Step::Mode(mode) => self.change_mode(&mode),
            Step::Commands => self.update(&commands_update()),
            Step::Usage => self.update(&json!({
                "sessionUpdate": "usage_update", "used": 1000 * self.number, "size": 200_000,
                "cost": { "amount": 0.0, "currency": "USD" },
            })),
            Step::Elicit(text) => self.elicit(&text)?,
            Step::Ext { method, params } => self.extension(&method, params.as_deref())?,
            Step::Wait { ms } => self.wait(Duration::from_millis(ms))?,
            Step::Update(update) => self.session.show(&self.agent.out, &update),
            Step::Raw(text) => self.agent.out.line(text.as_bytes()),
            Step::Unknown(line) => self.say(&format!("This is no command: {line}")),
            Step::Late { count, every_ms } => {
                return match self.wait(Duration::from_millis(WAIT_MS_MAX)) {
                    Err(End::Cancelled) => Err(End::Late { count, every_ms }),
                    other => other,
                };
            }
            Step::Refuse => return Err(End::Reason("refusal")),
            Step::MaxTokens => return Err(End::Reason("max_tokens")),
            Step::Fail { code, message } => {
                return Err(End::Failed(Failure::custom(code, &message)));
            }
            Step::Crash { .. }
            | Step::Kill
            | Step::Hang
            | Step::CloseStdout
            | Step::Garbage
            | Step::Huge { .. }
            | Step::Stderr { .. }
            | Step::Child { .. } => self.misbehave(step),
        }
        Ok(())
    }

    /// Files the conversation under a new id, as agents do whose context was cleared. It goes on under
    /// its old one as long as it is loaded.
    fn clear(&mut self, quiet: bool) -> Result<(), End> {
        let moved = self.session.move_to(&self.agent.store, &uuid::Uuid::now_v7().to_string());
        let moved = moved.map_err(|error| {
            eprintln!("frontdesk demo-agent: {error}");
            End::Failed(Failure::internal("the session store failed"))
        })?;
        if !quiet {
            self.update(&json!({
                "sessionUpdate": "session_info_update",
                "_meta": { frontdesk_core::agent::aliases::META: [moved] },
            }));
        }
        self.say(&format!("filed under {moved}"));
        Ok(())
    }

    /// The steps that do what agents should not.
    fn misbehave(&mut self, step: Step) {
        match step {
            Step::Crash { code } => {
                self.agent.out.settle(Duration::from_millis(SHOW_MS));
                std::process::exit(i32::from(code));
            }
            Step::Kill => {
                let killed = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
                eprintln!("frontdesk demo-agent: failed to die: {killed:?}");
            }
            Step::Hang => loop {
                std::thread::park();
            },
            Step::CloseStdout => {
                if let Err(error) = self.agent.out.close() {
                    eprintln!("frontdesk demo-agent: failed to close stdout: {error}");
                }
            }
            Step::Garbage => {
                for line in GARBAGE {
                    self.agent.out.line(line);
                }
            }
            Step::Huge { bytes } => self.huge(bytes),
            Step::Stderr { bytes } => flood_stderr(bytes),
            Step::Child { seconds, own_session, detached } => {
                match process::spawn(seconds, own_session, detached) {
                    Ok(pid) => self.say(&format!("child pid={pid}")),
                    Err(error) => self.say(&error),
                }
            }
            // `act` sends only the steps above here.
            _ => {}
        }
    }

    fn plan(&mut self, entries: &[String]) -> Result<(), End> {
        for done in 0..=entries.len() {
            let shown: Vec<Value> = entries
                .iter()
                .enumerate()
                .map(|(at, entry)| {
                    let status = match at.cmp(&done) {
                        std::cmp::Ordering::Less => "completed",
                        std::cmp::Ordering::Equal => "in_progress",
                        std::cmp::Ordering::Greater => "pending",
                    };
                    json!({ "content": entry, "priority": "medium", "status": status })
                })
                .collect();
            self.update(&json!({ "sessionUpdate": "plan", "entries": shown }));
            if done < entries.len() {
                self.wait(Duration::from_millis(SHOW_MS))?;
            }
        }
        Ok(())
    }

    fn tool(&mut self, title: &str) -> Result<(), End> {
        let tool = self.begin_tool(title, "other", json!({ "title": title }));
        self.wait(Duration::from_millis(SHOW_MS / 2))?;
        self.update(&json!({
            "sessionUpdate": "tool_call_update", "toolCallId": tool, "status": "in_progress",
        }));
        self.wait(Duration::from_millis(SHOW_MS / 2))?;
        self.end_tool(&tool, true, &format!("{title}: done"));
        Ok(())
    }

    /// Announces a tool call and returns its id.
    pub(super) fn begin_tool(&mut self, title: &str, kind: &str, input: Value) -> String {
        let name = self.fresh("tool");
        let tool = format!("t{}-{name}", self.number);
        self.open_tool = Some(tool.clone());
        self.update(&json!({
            "sessionUpdate": "tool_call", "toolCallId": tool, "title": title, "kind": kind,
            "status": "pending", "rawInput": input,
        }));
        tool
    }

    /// Ends a tool call with a text.
    pub(super) fn end_tool(&mut self, tool: &str, well: bool, text: &str) {
        self.open_tool = None;
        let status = if well { "completed" } else { "failed" };
        self.update(&json!({
            "sessionUpdate": "tool_call_update", "toolCallId": tool, "status": status,
            "content": [{ "type": "content", "content": { "type": "text", "text": text } }],
        }));
    }

    fn change_mode(&mut self, mode: &str) {
        if !is_mode(mode) {
            return self.say(&format!("There is no mode {mode}."));
        }
        super::lock(&self.session.state).mode = mode.to_owned();
        self.session.record("mode", &format!(r#""mode":{}"#, json!(mode)));
        self.update(&json!({ "sessionUpdate": "current_mode_update", "currentModeId": mode }));
    }

    /// Sends one update whose whole line, without its line end, has this many bytes.
    fn huge(&mut self, bytes: u64) {
        const START: &str =
            r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""#;
        let params = update_params(&self.session.id, &format!("{START}\"}}}}"));
        let bare = frontdesk_core::envelope::Frame::call("session/update", None, &params).len();
        let fill = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_sub(bare);
        let update = format!("{START}{}\"}}}}", "x".repeat(fill));
        self.session.show(&self.agent.out, &update);
    }
}

/// Lines that no client should choke on.
const GARBAGE: &[&[u8]] = &[
    b"Welcome! Checking for updates...",
    b"\x1b[33mWARN\x1b[0m something looks odd",
    b"",
    b"   \t ",
    b"\x00\x01\x02\x07\x08\x7f",
    b"\xff\xfe\xfd not utf-8 \xc3\x28",
    br#"{"jsonrpc":"2.0","method":"session/upd"#,
    br#"{"jsonrpc":"2.0"}"#,
    b"{}",
    b"[]",
    b"null",
    b"42",
    br#""a string""#,
    br#"{"jsonrpc":"2.0","error":{"code":-32601,"message":"nobody asked"}}"#,
    br#"{"jsonrpc":"2.0","method":"_demo/noise","params":{}}"#,
];

/// `start`, cut or filled to exactly this many bytes.
fn sized(start: &str, bytes: Option<u64>) -> String {
    let mut text = start.to_owned();
    if let Some(bytes) = bytes.and_then(|bytes| usize::try_from(bytes).ok()) {
        // Chunk texts are ASCII, so any cut is a whole character.
        text.truncate(bytes);
        text.extend(std::iter::repeat_n('.', bytes - text.len()));
    }
    text
}

/// Cuts a text between characters into pieces of at most `max` bytes.
fn pieces(text: &str, max: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = rest.split_at(super::start_of(rest, max.max(4)).len());
        rest = after;
        Some(piece)
    })
}

fn flood_stderr(bytes: u64) {
    let line = [b"noise on stderr ".repeat(8), vec![b'\n']].concat();
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut stderr = std::io::stderr().lock();
    while left > 0 {
        let part = &line[line.len().saturating_sub(left)..];
        if stderr.write_all(part).is_err() {
            return;
        }
        left -= part.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_have_exactly_the_asked_size() {
        assert_eq!(sized("chunk 1 ", None), "chunk 1 ");
        for bytes in [0, 1, 8, 9, 1000] {
            assert_eq!(sized("chunk 1 ", Some(bytes)).len() as u64, bytes);
        }
    }

    #[test]
    fn pieces_are_the_text_again() {
        for text in ["", "a", "äöü€😀", &"é".repeat(5000)] {
            for max in [0, 4, 5, 4096] {
                let cut: Vec<&str> = pieces(text, max).collect();
                assert_eq!(cut.concat(), text);
                assert!(cut.iter().all(|piece| piece.len() <= max.max(4) && !piece.is_empty()));
            }
        }
    }
}
