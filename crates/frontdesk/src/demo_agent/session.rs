//! A loaded session: its settings, its file, its running turn.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use frontdesk_core::envelope::quote;
use serde_json::{Value, json};

use super::lock;
use super::script;
use super::store::{SessionFile, Store, StoreError, Summary};
use super::wire::{Failure, Out, Signal};

/// A session in memory.
pub(super) struct Session {
    /// Its id.
    pub(super) id: String,
    /// What may change.
    pub(super) state: Mutex<State>,
    /// The history on disk. Held while an update is written and shown, so that both are in the
    /// same order.
    file: Mutex<SessionFile>,
    /// Set when the session was closed: nothing more is shown.
    silent: AtomicBool,
    idle: Condvar,
}

/// What may change in a session.
pub(super) struct State {
    /// The working directory.
    pub(super) cwd: String,
    /// Further roots.
    pub(super) directories: Vec<String>,
    /// The current mode: one of [`MODES`].
    pub(super) mode: String,
    /// `model`: `swift` or `careful`.
    pub(super) model: String,
    /// `thoughts`: `on` or `off`.
    pub(super) thoughts: String,
    /// The title, once there is one.
    pub(super) title: Option<String>,
    /// Prompts so far.
    pub(super) turns: u64,
    /// What was allowed for as long as the session is loaded.
    pub(super) allowed: BTreeSet<&'static str>,
    /// The running turn.
    pub(super) running: Option<Running>,
}

/// The running turn as others see it.
pub(super) struct Running {
    /// The prompt's request id, as JSON text.
    pub(super) request: String,
    /// Where its signals go.
    pub(super) signals: SyncSender<Signal>,
    /// Number of the connection that asked for it.
    pub(super) connection: u64,
}

/// The modes: id, name, description.
pub(super) const MODES: [(&str, &str, &str); 2] = [
    ("ask", "Ask", "Asks before it writes a file"),
    ("auto", "Auto", "Writes files without asking"),
];
const MODELS: [(&str, &str); 2] = [("swift", "Swift"), ("careful", "Careful")];
const THOUGHTS: [(&str, &str); 2] = [("on", "On"), ("off", "Off")];

fn one_of(table: &[(&str, &str)], value: Option<&str>, default: &str) -> String {
    value.filter(|value| table.iter().any(|(id, _)| id == value)).unwrap_or(default).to_owned()
}

impl Session {
    /// A session as the store knows it.
    pub(super) fn new(summary: Summary, file: SessionFile) -> Self {
        let option = |name: &str| {
            let found = summary.options.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.as_str())
        };
        let mode = summary.mode.as_deref().filter(|mode| is_mode(mode)).unwrap_or("ask");
        let state = State {
            mode: mode.to_owned(),
            model: one_of(&MODELS, option("model"), "swift"),
            thoughts: one_of(&THOUGHTS, option("thoughts"), "on"),
            cwd: summary.cwd,
            directories: summary.directories,
            title: summary.title,
            turns: summary.turns,
            allowed: BTreeSet::new(),
            running: None,
        };
        Self {
            id: summary.id,
            state: Mutex::new(state),
            file: Mutex::new(file),
            silent: AtomicBool::new(false),
            idle: Condvar::new(),
        }
    }

    /// Writes an event to the file. A full disk does not stop the agent; stderr says so.
    pub(super) fn record(&self, event: &str, members: &str) {
        complain(lock(&self.file).append(event, members));
    }

    /// The id under which its history is filed.
    pub(super) fn filed_as(&self) -> String {
        lock(&self.file).id()
    }

    /// Files the history under a new id, which is returned; what the session had before stays known.
    ///
    /// # Errors
    /// If the file cannot be moved.
    pub(super) fn move_to(&self, store: &Store, id: &str) -> Result<String, StoreError> {
        let mut file = lock(&self.file);
        let from = file.id();
        store.rename(&mut file, id)?;
        file.append("moved", &format!(r#""from":{}"#, quote(&from)))?;
        Ok(id.to_owned())
    }

    /// Stores an update and shows it, in that order. `update` is JSON text on one line.
    pub(super) fn show(&self, out: &Out, update: &str) {
        let mut file = lock(&self.file);
        if self.silent.load(Ordering::Relaxed) {
            return;
        }
        complain(file.append("update", &format!(r#""update":{update}"#)));
        out.notify("session/update", &update_params(&self.id, update));
    }

    /// Whether no other process has the session.
    pub(super) fn is_alone(&self) -> bool {
        lock(&self.file).is_alone()
    }

    /// Lets the session fall silent: nothing is stored or shown from here on.
    pub(super) fn silence(&self) {
        let mut file = lock(&self.file);
        complain(file.append("closed", &format!(r#""pid":{}"#, std::process::id())));
        file.leave();
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Tells the running turn something; says whether there was one.
    pub(super) fn signal(&self, signal: Signal) -> bool {
        match &lock(&self.state).running {
            // A full queue holds a cancel already.
            Some(running) => running.signals.try_send(signal).is_ok(),
            None => false,
        }
    }

    /// Marks the turn as over and runs `answer` before anyone can see that, so that the turn's
    /// answer leaves before the next turn's first word.
    pub(super) fn finish(&self, answer: impl FnOnce()) {
        let mut state = lock(&self.state);
        state.running = None;
        answer();
        drop(state);
        self.idle.notify_all();
    }

    /// Waits until no turn runs, at most `limit`.
    pub(super) fn wait_idle(&self, limit: Duration) {
        let state = lock(&self.state);
        let waited = self.idle.wait_timeout_while(state, limit, |state| state.running.is_some());
        drop(waited);
    }
}

fn complain(result: Result<(), StoreError>) {
    if let Err(error) = result {
        eprintln!("frontdesk demo-agent: {error}");
    }
}

/// The params of a `session/update`.
pub(super) fn update_params(session: &str, update: &str) -> String {
    format!(r#"{{"sessionId":{},"update":{update}}}"#, quote(session))
}

/// Whether this is the id of a mode.
pub(super) fn is_mode(id: &str) -> bool {
    MODES.iter().any(|(known, ..)| *known == id)
}

/// The update that lists the commands: the words of the script language.
pub(super) fn commands_update() -> Value {
    let commands: Vec<Value> = script::WORDS
        .iter()
        .map(|word| {
            let mut command = json!({ "name": word.name(), "description": word.what });
            if let Some((_, hint)) = word.usage.split_once(' ') {
                command["input"] = json!({ "hint": hint });
            }
            command
        })
        .collect();
    json!({ "sessionUpdate": "available_commands_update", "availableCommands": commands })
}

impl State {
    /// The `modes` member of an answer.
    pub(super) fn modes(&self) -> Value {
        let all: Vec<Value> = MODES
            .iter()
            .map(|(id, name, about)| json!({ "id": id, "name": name, "description": about }))
            .collect();
        json!({ "currentModeId": self.mode, "availableModes": all })
    }

    /// The `configOptions` member of an answer.
    pub(super) fn options(&self) -> Value {
        let select = |id: &str, name: &str, about: &str, now: &str, all: &[(&str, &str)]| {
            let all: Vec<Value> =
                all.iter().map(|(value, name)| json!({ "value": value, "name": name })).collect();
            json!({
                "id": id, "name": name, "description": about, "type": "select",
                "currentValue": now, "options": all,
            })
        };
        let mut model = select("model", "Model", "How long it thinks", &self.model, &MODELS);
        model["category"] = json!("model");
        let thoughts = select(
            "thoughts",
            "Thoughts",
            "Whether it shows its thoughts",
            &self.thoughts,
            &THOUGHTS,
        );
        json!([model, thoughts])
    }

    /// Sets an option; a boolean means `on` or `off`. Returns the value in words.
    ///
    /// # Errors
    /// `-32602` if there is no such option or value.
    pub(super) fn set_option(&mut self, id: &str, value: &Value) -> Result<String, Failure> {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Bool(true) => "on".to_owned(),
            Value::Bool(false) => "off".to_owned(),
            _ => return Err(Failure::params("value must be a string or a boolean")),
        };
        let (slot, table) = match id {
            "model" => (&mut self.model, &MODELS),
            "thoughts" => (&mut self.thoughts, &THOUGHTS),
            _ => return Err(Failure::params("there is no such option")),
        };
        if !table.iter().any(|(known, _)| *known == text) {
            return Err(Failure::params("the option has no such value"));
        }
        slot.clone_from(&text);
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            cwd: "/w".into(),
            directories: Vec::new(),
            mode: "ask".into(),
            model: "swift".into(),
            thoughts: "on".into(),
            title: None,
            turns: 0,
            allowed: BTreeSet::new(),
            running: None,
        }
    }

    #[test]
    fn options_take_their_values_and_no_others() {
        let mut state = state();
        assert_eq!(state.set_option("model", &json!("careful")), Ok("careful".into()));
        assert_eq!(state.set_option("thoughts", &json!(false)), Ok("off".into()));
        assert_eq!(state.options()[0]["currentValue"], "careful");
        assert_eq!(state.options()[1]["currentValue"], "off");
        for (id, value) in [
            ("model", json!("huge")),
            ("model", json!(true)),
            ("x", json!("on")),
            ("model", json!(1)),
        ] {
            assert!(state.set_option(id, &value).is_err(), "{id} {value}");
        }
        assert_eq!(state.options()[0]["currentValue"], "careful");
    }
}
