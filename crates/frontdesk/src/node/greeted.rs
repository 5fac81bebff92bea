//! What agents answered to `initialize`, kept over restarts in `agents.json`.

use std::path::{Path, PathBuf};

use frontdesk_core::agent::Abilities;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Node;
use crate::config::{AgentConfig, without_secrets};
use crate::lock::lock;

/// What an agent answered to `initialize` the last time it was started.
#[derive(Clone, Debug)]
pub struct Greeted {
    /// Its result.
    pub result: Value,
    /// What it can really do.
    pub abilities: Abilities,
    /// When.
    pub at: Timestamp,
}

impl Node {
    /// What an agent answered to `initialize`, from an earlier start.
    #[must_use]
    pub fn greeted(&self, agent: &AgentConfig) -> Option<Greeted> {
        lock(&self.greeted).get(&greeting_name(agent)).cloned()
    }

    /// Keeps what an agent answered to `initialize`.
    pub fn remember_initialize(&self, agent: &AgentConfig, result: &Value) {
        let abilities = Abilities::from_result(result).with_quirks(&agent.quirks);
        let at = Timestamp::now();
        let name = greeting_name(agent);
        let changed = lock(&self.greeted)
            .insert(name.clone(), Greeted { result: result.clone(), abilities, at })
            .is_none_or(|old| old.result != *result);
        if changed {
            let path = self.greetings_path();
            let mut all = read_json(&path);
            all[&name] = json!({ "result": result, "at": at });
            if let Err(error) = write_atomic(&path, all.to_string().as_bytes()) {
                tracing::warn!(path = %path.display(), %error, "failed to keep an agent's abilities");
            }
        }
    }

    fn greetings_path(&self) -> PathBuf {
        self.paths.data.join("agents.json")
    }

    pub(super) fn read_greetings(&self) {
        let all = read_json(&self.greetings_path());
        let mut greeted = lock(&self.greeted);
        for agent in self.agents.values() {
            let name = greeting_name(agent);
            let Some(result) = all.get(&name).and_then(|entry| entry.get("result")) else {
                continue;
            };
            let at = all[&name]["at"]
                .as_str()
                .and_then(|at| at.parse().ok())
                .unwrap_or(Timestamp::UNIX_EPOCH);
            let abilities = Abilities::from_result(result).with_quirks(&agent.quirks);
            greeted.insert(name, Greeted { result: result.clone(), abilities, at });
        }
    }
}

/// Agents of one name with another command are others.
pub(super) fn greeting_name(agent: &AgentConfig) -> String {
    let urls = agent.urls.iter().map(|url| without_secrets(url));
    let words: Vec<String> = agent.command.iter().cloned().chain(urls).collect();
    format!("{} {}", agent.name, words.join(" "))
}

pub(super) fn read_json(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_default();
    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
    if value.is_object() { value } else { json!({}) }
}

/// Writes a small derived file so that readers see the old or the new one.
pub(super) fn write_atomic(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let temp = path.with_extension("tmp");
    std::fs::write(&temp, bytes)?;
    std::fs::rename(&temp, path)
}
