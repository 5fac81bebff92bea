//! `instance.json`: what a later daemon must know of an instance besides its ledger. Written when the
//! agent has answered `initialize`; without it an instance is not carried on.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the file in an instance's folder below `data/instances`.
pub const FACTS_FILE: &str = "instance.json";
/// Version of the file.
const VERSION: u32 = 1;

/// The facts. A later version may have more members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    version: u32,
    /// The agent's name in the configuration.
    pub agent: String,
    /// Hash of its command, whose arguments may be secret.
    pub command: String,
    /// The working directory it was started for.
    pub cwd: String,
    /// The client abilities it was told, as params text of `initialize`.
    pub greeting: String,
    /// What it answered to `initialize`.
    pub initialize: Value,
    /// When it was started.
    pub since: Timestamp,
}

impl Facts {
    /// The facts of an instance of this agent.
    #[must_use]
    pub fn new(
        agent: &str,
        command: &[String],
        cwd: &str,
        greeting: &str,
        initialize: Value,
        since: Timestamp,
    ) -> Self {
        Self {
            version: VERSION,
            agent: agent.to_owned(),
            command: hash_of(command),
            cwd: cwd.to_owned(),
            greeting: greeting.to_owned(),
            initialize,
            since,
        }
    }

    /// Whether it was started by this command.
    #[must_use]
    pub fn is_of(&self, command: &[String]) -> bool {
        self.command == hash_of(command)
    }

    /// Writes the file in one step.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, data_dir: &Path) -> io::Result<()> {
        let next = data_dir.join("instance.json.new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(next, data_dir.join(FACTS_FILE))
    }

    /// Reads the file; `None` if there is none, or it is of another version.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(data_dir: &Path) -> io::Result<Option<Self>> {
        match fs::read(data_dir.join(FACTS_FILE)) {
            Ok(text) => {
                let facts: Option<Self> = serde_json::from_slice(&text).ok();
                Ok(facts.filter(|facts| facts.version == VERSION))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// SHA-256 of the words, each with its end.
fn hash_of(command: &[String]) -> String {
    let mut hash = hmac_sha256::Hash::new();
    for word in command {
        hash.update(word.as_bytes());
        hash.update([0]);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let command = ["agent".to_owned(), "--key=secret".to_owned()];
        let initialize = serde_json::json!({ "protocolVersion": 1 });
        Facts::new("demo", &command, "/w", "{}", initialize, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn what_is_written_is_read_and_tells_no_arguments() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Facts::read(folder.path()).unwrap(), None);
        facts().write(folder.path()).unwrap();
        assert_eq!(Facts::read(folder.path()).unwrap(), Some(facts()));
        let text = fs::read_to_string(folder.path().join(FACTS_FILE)).unwrap();
        assert!(!text.contains("secret"), "{text}");
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(folder.path().join(FACTS_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn another_version_and_a_damaged_file_are_nothing() {
        let folder = tempfile::tempdir().unwrap();
        Facts { version: VERSION + 1, ..facts() }.write(folder.path()).unwrap();
        assert_eq!(Facts::read(folder.path()).unwrap(), None);
        fs::write(folder.path().join(FACTS_FILE), "{").unwrap();
        assert_eq!(Facts::read(folder.path()).unwrap(), None);
    }

    #[test]
    fn a_command_is_told_from_another_with_the_same_letters() {
        let words =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let facts = Facts { command: hash_of(&words(&["ab", "c"])), ..facts() };
        assert!(facts.is_of(&words(&["ab", "c"])));
        assert!(!facts.is_of(&words(&["a", "bc"])));
        assert!(!facts.is_of(&words(&["ab"])));
    }
}
