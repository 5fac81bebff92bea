//! The names of a conversation: the agent's own ids of it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Facts, View};
use crate::agent::aliases::{self, Filed};
use crate::ids::ALIASES_MAX;

impl View {
    /// All of the agent's own ids of it, in the order in which they are claimed.
    #[must_use]
    pub fn natives(&self) -> BTreeSet<&str> {
        self.native.iter().chain(&self.aliases).map(String::as_str).collect()
    }

    /// Whether the agent calls it this.
    #[must_use]
    pub fn is_called(&self, id: &str) -> bool {
        self.native.as_deref() == Some(id) || self.aliases.iter().any(|alias| alias == id)
    }

    /// Whether it is a session that people are told of.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        !self.unproven && !self.deleted && self.same_as.is_none()
    }

    /// The id by which the agent is asked to open it.
    #[must_use]
    pub fn opened_as(&self) -> Option<&str> {
        self.stored.as_deref().or(self.native.as_deref())
    }

    /// Takes further ids of the conversation in; the oldest known ones make room. Says whether any
    /// was new.
    pub fn learn_aliases(&mut self, told: &[String]) -> bool {
        let own = self.native.as_deref();
        let told: Vec<&String> =
            told.iter().filter(|id| Some(id.as_str()) != own).take(ALIASES_MAX).collect();
        if told.iter().all(|id| self.aliases.contains(id)) {
            return false;
        }
        // What is told now is kept whatever else is known.
        let mut known: Vec<String> =
            self.aliases.drain(..).filter(|known| !told.contains(&known)).collect();
        known.extend(told.into_iter().cloned());
        known.drain(..known.len().saturating_sub(ALIASES_MAX));
        self.aliases = known;
        true
    }

    /// What a list says of its ids that is not known here, as the payload of a `metadata` record. The
    /// id under which it is stored now counts where nobody has it loaded (`is_cold`).
    #[must_use]
    pub fn names_news(&self, filed: &Filed<'_>, is_cold: bool) -> Option<Value> {
        let own = self.native.as_deref();
        let told: Vec<&str> = filed.ids().filter(|id| Some(*id) != own).take(ALIASES_MAX).collect();
        let is_new = |id: &&str| !self.aliases.iter().any(|alias| alias == id);
        let moved = is_cold && self.opened_as() != Some(filed.id);
        if !moved && !told.iter().any(is_new) {
            return None;
        }
        let mut news = json!({ "aliases": told });
        if moved {
            news["storedId"] = json!(filed.id);
        }
        Some(news)
    }

    /// Takes in what says which session it is, and where.
    pub(super) fn identify(&mut self, facts: Facts) {
        if let Some(agent) = facts.agent {
            self.agent = agent;
        }
        if facts.native_id.is_some() {
            self.native = facts.native_id;
        }
        self.name_again(&facts.aliases, facts.stored_id);
        if let Some(cwd) = facts.cwd {
            self.cwd = cwd;
        }
        if let Some(directories) = facts.additional_directories {
            self.additional_directories = directories;
        }
        if facts.title.is_some() {
            self.title = facts.title;
        }
        if facts.parent.is_some() {
            self.parent = facts.parent;
        }
    }

    /// Takes in the ids of a record: `aliases`, and `storedId`, which is one of them or the first id.
    fn name_again(&mut self, told: &Value, stored: Option<String>) {
        self.learn_aliases(&aliases::told(&json!({ "aliases": told })));
        if let Some(stored) = stored {
            self.learn_aliases(std::slice::from_ref(&stored));
            self.stored = Some(stored).filter(|id| self.native.as_ref() != Some(id));
        }
    }
}
