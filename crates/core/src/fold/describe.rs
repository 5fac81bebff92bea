//! The fold of what describes a session: name, first prompt, provenance, model.

use serde_json::Value;

use super::facts::{Done, ForkedFrom, NameOrigin, PREVIEW_CHARS_MAX, one_line, option_value};
use super::{COMMANDS_MAX, Facts, View};
use crate::record::Record;

/// The method of a question for a permission.
pub(super) const PERMISSION: &str = "session/request_permission";

impl View {
    pub(super) fn rename(&mut self, record: &Record, facts: Facts) {
        let Some(name) = facts.name else {
            return self.note_anomaly(record, "names no name");
        };
        self.name = Some(name);
        self.name_origin = match facts.origin.as_deref() {
            Some("automatic") => Some(NameOrigin::Automatic),
            Some("custom") => Some(NameOrigin::Custom),
            // A word of a newer version: unknown, not guessed.
            _ => None,
        };
    }

    pub(super) fn take_command(&mut self, record: &Record) {
        let Some(done) = record.payload::<Done>() else {
            return self.note_anomaly(record, "names no command");
        };
        // Taken in, then answered: the later record says what came of it.
        self.commands_done.retain(|known| known.command_id != done.command_id);
        if self.commands_done.len() >= COMMANDS_MAX {
            self.commands_done.remove(0);
        }
        self.commands_done.push(done);
    }

    /// What is known of a command; `None` if it was never taken in, or long ago.
    #[must_use]
    pub fn command(&self, id: &str) -> Option<&Done> {
        self.commands_done.iter().find(|done| done.command_id == id)
    }

    /// Takes the text of the first prompt; other blocks, images above all, are passed over.
    pub(super) fn preview_prompt(&mut self, prompt: &Value) {
        self.first_prompt_goes_on = false;
        if self.first_user_prompt.is_some() {
            return;
        }
        let blocks = prompt.as_array().map(Vec::as_slice).unwrap_or_default();
        let texts = blocks
            .iter()
            .filter(|block| block.get("type").and_then(Value::as_str) == Some("text"))
            .filter_map(|block| block.get("text")?.as_str());
        // Enough to fill the preview even where much of it is white space.
        let text: String = texts.flat_map(str::chars).take(16 * PREVIEW_CHARS_MAX).collect();
        self.first_user_prompt =
            Some(one_line(&text, PREVIEW_CHARS_MAX, false)).filter(|line| !line.is_empty());
    }

    /// Takes a piece of a replayed first prompt.
    pub(super) fn preview_piece(&mut self, text: Option<&str>) {
        let Some(text) = text else {
            self.first_prompt_goes_on = false;
            return;
        };
        if self.first_user_prompt.is_none() {
            self.first_prompt_goes_on = true;
        }
        if self.first_prompt_goes_on {
            let mut line = self.first_user_prompt.take().unwrap_or_default();
            // Replayed images and files count as one object character each; they are no text.
            let chars = text.chars().filter(|ch| *ch != '\u{fffc}');
            line.extend(chars.take(16 * PREVIEW_CHARS_MAX));
            let line = one_line(&line, PREVIEW_CHARS_MAX, true);
            self.first_user_prompt = Some(line).filter(|line| !line.is_empty());
        }
    }

    /// Model, provider and mode out of the options: kept apart, so that a row without the options
    /// has them too. The provider is never guessed from the model.
    pub(super) fn read_options(&mut self) {
        let told = |name: &str, member: &str| {
            self.options.get(name).and_then(|told| told.get(member)).and_then(Value::as_str)
        };
        let options = self.options.get("configOptions").unwrap_or(&Value::Null);
        let model = option_value(options, &["model"]).or(told("models", "currentModelId"));
        let mode = option_value(options, &["mode"]).or(told("modes", "currentModeId"));
        let provider = option_value(options, &["model_provider", "provider"]);
        let owned = |text: Option<&str>| text.map(ToOwned::to_owned);
        (self.model_id, self.mode_id, self.provider_id) =
            (owned(model), owned(mode), owned(provider));
    }

    /// Open questions for a permission, and open questions of another kind.
    #[must_use]
    pub fn open_questions(&self) -> (usize, usize) {
        let asks = |asked: &&Value| asked.get("method").and_then(Value::as_str) == Some(PERMISSION);
        let permissions = self.open_interactions.values().filter(asks).count();
        (permissions, self.open_interactions.len() - permissions)
    }
}

/// Where a fork came from; journals of 0.1.0 have the parent's key alone.
pub(super) fn forked_from(told: &Value) -> Option<ForkedFrom> {
    match told {
        Value::String(parent) => {
            Some(ForkedFrom { session_id: parent.clone(), ..ForkedFrom::default() })
        }
        Value::Object(_) => serde_json::from_value(told.clone()).ok(),
        _ => None,
    }
}
