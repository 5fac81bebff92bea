//! What the daemon says, as far as commands read it. Unknown members are skipped.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// "Resource not found": nobody knows the session.
pub(crate) const NOT_FOUND: i64 = -32002;
/// Nobody serves the method.
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;
/// The request was withdrawn.
pub(crate) const CANCELLED: i64 = -32800;

/// One session as lists show it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Row {
    /// The id to use with every command.
    pub(crate) id: String,
    /// Frontdesk's own name for the session.
    pub(crate) key: String,
    /// The agent's name in the configuration.
    pub(crate) agent: String,
    /// The agent's own name for the session.
    pub(crate) native_id: Option<String>,
    /// The session's folder.
    pub(crate) cwd: String,
    /// A name for people.
    pub(crate) title: Option<String>,
    /// `active` or `inactive`.
    pub(crate) status: String,
    /// `idle`, `running`, `requires_action` or `unknown`; only where a session is loaded.
    pub(crate) state: Option<String>,
    /// RFC 3339.
    pub(crate) created_at: Option<String>,
    /// RFC 3339.
    pub(crate) updated_at: Option<String>,
    /// RFC 3339.
    pub(crate) last_activity_at: Option<String>,
    /// Turns so far.
    pub(crate) turn_count: Option<u64>,
    /// Prompts that wait behind the running turn.
    pub(crate) queued_turns: Option<u64>,
    /// Whether the agent can load it again.
    pub(crate) resumable: Option<bool>,
    /// The journal.
    pub(crate) path: Option<String>,
    /// Who has it loaded.
    pub(crate) owner: Option<Owner>,
    /// The name that was allocated or given here.
    pub(crate) name: Option<String>,
    /// What a search found.
    #[serde(rename = "match")]
    pub(crate) found: Option<Match>,
}

impl Row {
    /// When something happened last, as far as is known.
    pub(crate) fn last_instant(&self) -> Option<&str> {
        self.last_activity_at
            .as_deref()
            .or(self.updated_at.as_deref())
            .or(self.created_at.as_deref())
    }

    /// Status and state in one or two words.
    pub(crate) fn status_words(&self) -> String {
        match self.state.as_deref() {
            None => super::text::line(&self.status),
            Some("requires_action") => format!("{} asks", super::text::line(&self.status)),
            Some(state) => super::text::line(&format!("{} {state}", self.status)),
        }
    }
}

/// The instance that has a session loaded.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Owner {
    /// The instance.
    pub(crate) instance: Option<String>,
    /// Its first process.
    pub(crate) pid: Option<u64>,
    /// RFC 3339.
    pub(crate) since: Option<String>,
    /// The fencing number.
    pub(crate) epoch: Option<u64>,
}

impl Owner {
    /// The owner in a few words.
    pub(crate) fn describe(&self, now: jiff::Timestamp) -> String {
        let mut words = vec![format!("instance {}", self.instance.as_deref().unwrap_or("unknown"))];
        words.extend(self.pid.map(|pid| format!("pid {pid}")));
        words.extend(self.epoch.map(|epoch| format!("epoch {epoch}")));
        words.extend(
            self.since
                .as_deref()
                .map(|since| format!("since {}", super::time::ago(Some(since), now))),
        );
        super::text::line(&words.join(", "))
    }
}

/// One page of `_frontdesk/sessions`, rows still as text so that `--json` shows them as sent.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Page {
    /// The rows.
    pub(crate) sessions: Vec<Box<RawValue>>,
    /// Where the next page begins.
    pub(crate) next_cursor: Option<String>,
    /// Agents that could not be asked.
    pub(crate) unreachable: Vec<String>,
    /// A search found more.
    pub(crate) more: bool,
}

/// What a search found in a session.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Match {
    /// The text around it.
    pub(crate) snippet: String,
}

/// What `_frontdesk/info` says of the daemon.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Info {
    /// Its version.
    pub(crate) version: String,
    /// Its process.
    pub(crate) pid: u32,
    /// RFC 3339.
    pub(crate) since: Option<String>,
    /// Sessions known.
    pub(crate) sessions: u64,
    /// Sessions loaded.
    pub(crate) active: u64,
    /// Connections.
    pub(crate) clients: u64,
    /// Running agent processes.
    pub(crate) instances: u64,
}

/// The result of `session/status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    /// `active` or `inactive`; anything else means known, not loaded.
    pub(crate) status: String,
    #[serde(rename = "_meta")]
    meta: StatusMeta,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct StatusMeta {
    frontdesk: Evidence,
}

/// Where a status answer comes from.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Evidence {
    /// `owner`, `peer`, `agent`, `index` or `none`.
    pub(crate) source: Option<String>,
    /// How old the knowledge is.
    pub(crate) age_ms: Option<u64>,
    /// What the session is doing.
    pub(crate) state: Option<String>,
    /// How long ago a running turn's last sign of life was.
    pub(crate) quiet_ms: Option<u64>,
    /// The agent's name.
    pub(crate) agent: Option<String>,
    /// Who has it loaded.
    pub(crate) owner: Option<Owner>,
    /// False where the agent can no longer load it.
    pub(crate) resumable: Option<bool>,
    /// `suspect` where an agent may have it.
    pub(crate) lease: Option<String>,
    /// Who could not be asked.
    pub(crate) unreachable: Option<Value>,
    /// Who says that they have it in memory.
    pub(crate) loaded_at: Vec<String>,
}

impl Status {
    /// The evidence, empty where the answer has none.
    pub(crate) fn evidence(&self) -> &Evidence {
        &self.meta.frontdesk
    }

    /// Whether some instance has the session in memory.
    pub(crate) fn is_active(&self) -> bool {
        // The client asked for the RFD's words when it connected.
        self.status == "active"
    }
}

/// One agent of `_frontdesk/agents`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Agent {
    /// Its name in the configuration.
    pub(crate) name: String,
    /// The command line.
    pub(crate) command: Vec<String>,
    /// Whether new sessions go to it when nothing else is said.
    pub(crate) default: bool,
    /// Where it is reached, in place of a command.
    pub(crate) urls: Vec<Url>,
    /// Where the program was found.
    pub(crate) found: Option<String>,
    /// Running processes.
    pub(crate) instances: u64,
    /// Sessions known.
    pub(crate) sessions: u64,
    /// What it offered when last asked.
    pub(crate) abilities: Option<Value>,
    /// Name and version as it told.
    pub(crate) agent_info: Option<Value>,
}

/// An address of an agent that runs already.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Url {
    /// The address.
    pub(crate) url: String,
    /// Whether there is a connection.
    pub(crate) up: bool,
    /// Why there is none.
    pub(crate) error: Option<String>,
}

impl Url {
    /// The address, and in brackets what is wrong with it.
    pub(crate) fn describe(&self) -> String {
        match (self.up, self.error.as_deref()) {
            (true, _) => self.url.clone(),
            (false, Some(error)) => format!("{} (down: {error})", self.url),
            (false, None) => format!("{} (down)", self.url),
        }
    }
}

impl Agent {
    /// Whether it could be asked: its program is there, or one of its urls is up.
    pub(crate) fn is_there(&self) -> bool {
        self.found.is_some() || self.urls.iter().any(|url| url.up)
    }
}

/// The result of `_frontdesk/check`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Check {
    /// The agent's name.
    pub(crate) agent: String,
    /// Where it is reached, in place of a command.
    pub(crate) urls: Vec<Url>,
    /// Where the program was found.
    pub(crate) found: Option<String>,
    /// Its version, if it told.
    pub(crate) version: Option<String>,
    /// Whether it runs and answers `initialize`.
    pub(crate) starts: bool,
    /// Time until `initialize` was answered.
    pub(crate) initialize_ms: Option<f64>,
    /// Time until the process ran.
    pub(crate) start_ms: Option<f64>,
    /// What it offers.
    pub(crate) abilities: Option<Value>,
    /// Name and version as it told.
    pub(crate) agent_info: Option<Value>,
    /// What went wrong.
    pub(crate) error: Option<String>,
}

impl Check {
    /// Whether there is something to be asked: its program was found, or it has urls.
    pub(crate) fn can_be_asked(&self) -> bool {
        self.found.is_some() || !self.urls.is_empty()
    }
}

/// The session methods in an `abilities` object, by name: members that are `true` or objects.
pub(crate) fn ability_names(abilities: Option<&Value>) -> Vec<String> {
    let Some(Value::Object(members)) = abilities else { return Vec::new() };
    members
        .iter()
        .filter(|(_, value)| matches!(value, Value::Bool(true) | Value::Object(_)))
        .map(|(name, _)| super::text::line(name))
        .collect()
}

/// The version in an `agentInfo` object.
pub(crate) fn info_version(info: Option<&Value>) -> Option<String> {
    info?.get("version")?.as_str().map(super::text::line)
}
