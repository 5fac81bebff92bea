//! `frontdesk prompt`: sends a prompt, streams the answer, asks the agent's questions.

use std::io::Read as _;

use frontdesk_core::envelope::{Frame, Message};
use frontdesk_core::limits::Limits;
use serde_json::{Value, json};

use super::ask::{self, Question};
use super::client::{self, CALL, CALL_AGENT, Client, ClientError, Event, Hello};
use super::interrupt::Interrupts;
use super::out::{BAD, DIM, WANTED};
use super::turn::TurnView;
use super::wire::{CANCELLED, METHOD_NOT_FOUND, Row};
use super::{Exit, Failure, Shell, rows, text};

/// Arguments of `prompt`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The answer's text goes to stdout, thoughts, tools and plans to stderr. Questions are asked\n\
                  on the terminal. Ctrl-C cancels the turn and waits for its end; twice leaves at once.\n\n\
                  Example:\n  frontdesk prompt 01a22bb6-2da2 'What does this project do?'\n  \
                  git diff | frontdesk prompt 01a22bb6-2da2 -"
)]
pub(crate) struct Args {
    /// The session: an id, or a unique beginning of one
    #[arg(value_name = "ID")]
    session: String,
    /// The prompt; - reads it from stdin
    #[arg(value_name = "TEXT")]
    text: String,
    /// Print updates, questions and the result, one JSON document a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Sends a prompt and waits for its turn to end.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let words = prompt_text(args, shell)?;
    let interrupts = shell.catch_interrupts.then(Interrupts::block).transpose()?;
    let hello = Hello::new(&shell.cwd);
    let mut client = Client::connect(&shell.paths, &hello)?;
    if let Some(interrupts) = interrupts {
        interrupts.forward(client.sender())?;
    }
    let id = attach(&mut client, &args.session, shell)?;
    let prompt = json!({ "sessionId": id, "prompt": [{ "type": "text", "text": words }] });
    let request = client.request("session/prompt", &prompt)?;
    let mut turn = Turn {
        session: id,
        request,
        view: TurnView::new(&hello.client_key),
        questions: Vec::new(),
        keyboard: Keyboard::Untouched,
        interrupts: 0,
        json: args.json,
    };
    let exit = turn.follow(&mut client, shell)?;
    shell.out.end_line()?;
    Ok(exit)
}

fn prompt_text(args: &Args, shell: &Shell) -> Result<String, Failure> {
    let words = if args.text == "-" {
        let limit_bytes = Limits::default().frame_bytes;
        let mut bytes = Vec::new();
        (shell.stdin)()
            .take(limit_bytes)
            .read_to_end(&mut bytes)
            .map_err(|error| anyhow::anyhow!("failed to read the prompt from stdin: {error}"))?;
        if bytes.len() as u64 >= limit_bytes {
            return Err(Failure::Usage(format!("the prompt is longer than {limit_bytes} bytes")));
        }
        String::from_utf8(bytes)
            .map_err(|_| Failure::Usage("the prompt is not UTF-8 text".to_owned()))?
    } else {
        args.text.clone()
    };
    if words.trim().is_empty() {
        return Err(Failure::Usage("the prompt is empty".to_owned()));
    }
    Ok(words)
}

/// Joins the session, loading it where it is not loaded.
fn attach(client: &mut Client, typed: &str, shell: &mut Shell) -> Result<String, Failure> {
    let id = rows::resolve(client, typed)?;
    let row: Row =
        client.call("_frontdesk/session", &rows::session_params(&id, false), CALL)?.read()?;
    client.call(
        "session/resume",
        &json!({ "sessionId": id, "cwd": row.cwd, "mcpServers": [] }),
        CALL_AGENT,
    )?;
    if matches!(row.state.as_deref(), Some("running" | "requires_action")) {
        shell.out.remark(DIM, "another turn is running; this prompt waits for its end");
    }
    Ok(id)
}

enum Keyboard {
    /// Nobody has been asked anything yet.
    Untouched,
    /// Typed lines come through the queue.
    Open,
    /// There is nobody to ask.
    Missing,
}

struct Turn {
    session: String,
    request: String,
    view: TurnView,
    questions: Vec<Question>,
    keyboard: Keyboard,
    interrupts: u32,
    json: bool,
}

impl Turn {
    fn follow(&mut self, client: &mut Client, shell: &mut Shell) -> Result<Exit, Failure> {
        loop {
            match client.next(None)? {
                Some(Event::Message(Message::Response(frame)))
                    if frame.id() == Some(self.request.as_str()) =>
                {
                    return self.end(frame, shell);
                }
                // The answer to a request that nobody waits for any more.
                Some(Event::Message(Message::Response(_))) => {}
                Some(Event::Message(Message::Notification(frame))) => {
                    self.notified(&frame, client, shell)?;
                }
                Some(Event::Message(Message::Request(frame))) => {
                    self.asked(&frame, client, shell)?;
                }
                Some(Event::Interrupt) => {
                    self.interrupts += 1;
                    if self.interrupts > 1 {
                        shell.out.remark(WANTED, "left; the agent may go on for a moment");
                        return Ok(Exit::Failed);
                    }
                    self.cancel(client, shell)?;
                }
                Some(Event::Typed(line)) => self.typed(&line, client, shell)?,
                Some(Event::TypedEnd) => {
                    self.keyboard = Keyboard::Missing;
                    if let Some(question) = self.questions.first() {
                        question.show_unanswerable(&mut shell.out);
                    }
                }
                Some(Event::Ended(error)) => return Err(error.into()),
                None => {}
            }
        }
    }

    fn notified(
        &mut self,
        frame: &Frame,
        client: &mut Client,
        shell: &mut Shell,
    ) -> Result<(), Failure> {
        let params = frame.params().unwrap_or("null");
        match &*frame.method {
            "session/update" if self.json => {
                shell.out.json(&format!(r#"{{"update":{params}}}"#))?;
            }
            "session/update" => {
                let params: Value = serde_json::from_str(params).unwrap_or(Value::Null);
                self.view.show(&params, &mut shell.out)?;
            }
            "$/cancel_request" => {
                let params: Value = serde_json::from_str(params).unwrap_or(Value::Null);
                let id = params["requestId"].to_string();
                self.withdraw(&id, client, shell)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn asked(
        &mut self,
        frame: &Frame,
        client: &mut Client,
        shell: &mut Shell,
    ) -> Result<(), Failure> {
        let id = frame.id().unwrap_or("null");
        if &*frame.method != "session/request_permission" {
            let words = format!("this client does not serve {}", frame.method);
            client.refuse(id, METHOD_NOT_FOUND, &words)?;
            return Ok(());
        }
        let Some(question) = Question::read(frame) else {
            client.refuse(id, -32602, "the question offers nothing to choose")?;
            return Ok(());
        };
        if self.interrupts > 0 {
            client.answer(id, &ask::cancelled())?;
            return Ok(());
        }
        if self.json {
            shell.out.json(&format!(r#"{{"question":{}}}"#, frame.params().unwrap_or("null")))?;
        }
        self.questions.push(question);
        if self.questions.len() == 1 {
            self.show_next_question(client, shell)?;
        }
        Ok(())
    }

    fn show_next_question(&mut self, client: &Client, shell: &mut Shell) -> Result<(), Failure> {
        let Some(question) = self.questions.first() else { return Ok(()) };
        if matches!(self.keyboard, Keyboard::Untouched) {
            self.keyboard = match (shell.keyboard)() {
                Some(keyboard) => {
                    ask::listen(keyboard, client.sender())?;
                    Keyboard::Open
                }
                None => Keyboard::Missing,
            };
        }
        match self.keyboard {
            Keyboard::Missing => question.show_unanswerable(&mut shell.out),
            Keyboard::Open | Keyboard::Untouched => question.show(&mut shell.out),
        }
        Ok(())
    }

    fn typed(&mut self, line: &str, client: &mut Client, shell: &mut Shell) -> Result<(), Failure> {
        // A line typed while no question is open answers nothing.
        let Some(question) = self.questions.first() else { return Ok(()) };
        // The person's own key ended the line on the terminal.
        shell.out.line_was_ended();
        let Some(answer) = question.choose(line) else {
            question.show(&mut shell.out);
            return Ok(());
        };
        let question = self.questions.remove(0);
        client.answer(&question.id, &answer)?;
        self.show_next_question(client, shell)
    }

    fn withdraw(
        &mut self,
        id: &str,
        client: &mut Client,
        shell: &mut Shell,
    ) -> Result<(), Failure> {
        let Some(at) = self.questions.iter().position(|question| question.id == id) else {
            return Ok(());
        };
        self.questions.remove(at);
        client.refuse(id, CANCELLED, "the question was withdrawn")?;
        shell.out.remark(DIM, "the question was answered elsewhere or withdrawn");
        if at == 0 {
            self.show_next_question(client, shell)?;
        }
        Ok(())
    }

    fn cancel(&mut self, client: &mut Client, shell: &mut Shell) -> Result<(), Failure> {
        shell.out.remark(DIM, "cancelling; Ctrl-C again leaves at once");
        client.notify("session/cancel", &json!({ "sessionId": self.session }))?;
        for question in self.questions.drain(..) {
            client.answer(&question.id, &ask::cancelled())?;
        }
        Ok(())
    }

    fn end(&self, frame: Frame, shell: &mut Shell) -> Result<Exit, Failure> {
        shell.out.end_line()?;
        let answer = match client::answer("session/prompt", frame) {
            Ok(answer) => answer,
            Err(ClientError::Rpc(error)) if self.json => {
                shell.out.json(&json!({ "error": error.to_json() }).to_string())?;
                return Err(ClientError::Rpc(error).into());
            }
            Err(error) => return Err(error.into()),
        };
        let result: Value = answer.read()?;
        if self.json {
            shell.out.json(&format!(r#"{{"result":{}}}"#, answer.raw()))?;
        }
        match result["stopReason"].as_str() {
            Some("end_turn") => Ok(Exit::Done),
            reason => {
                let reason = text::line(reason.unwrap_or("no reason given"));
                shell.out.remark(BAD, &format!("the turn ended early: {reason}"));
                Ok(Exit::Failed)
            }
        }
    }
}
