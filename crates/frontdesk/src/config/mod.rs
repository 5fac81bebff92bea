//! The configuration: `config.toml` and what is there without it.
//!
//! Owns the file's keys, their defaults and the warnings about them; read once by the daemon and by
//! the commands that need no daemon. `docs/configuration.md` describes every key. An invalid file
//! is an error, never a reason to go on with something else.

mod build;
mod file;
mod reach;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use frontdesk_core::agent::{Known, Quirks};
use frontdesk_core::fold::ApprovalMode;
use frontdesk_core::limits::Limits;
use serde::Deserialize;

/// Longest configuration file, in bytes.
pub const CONFIG_BYTES: u64 = 1 << 20;

/// Most addresses of one agent: which of them have a session is kept as the bits of one number.
pub const URLS_MAX: usize = 64;

/// The name of the built-in scripted agent.
pub const DEMO: &str = "demo";

/// Everything the file and its defaults say.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The agent of sessions for which nobody named one: the file's `default_agent`, else the first
    /// of [`Config::agents`] that is not `demo`, else `demo`.
    pub default_agent: String,
    /// The file's agents in its order, then the known ones found on `PATH`, then `demo`.
    pub agents: Vec<AgentConfig>,
    /// Which words `session/status` speaks.
    pub status_words: StatusWords,
    /// The limits in force; `idle_unload_s` is the value for agents that have none of their own.
    pub limits: Limits,
    /// `[msp] fingerprint`: what MSP clients are shown, in place of what fits them.
    pub fingerprint: Option<String>,
    /// The policy for questions of sessions that were told none: `[policy] approval_mode`.
    pub approval_mode: Option<ApprovalMode>,
    /// The rest of `[policy]` as written; kept for a later version.
    pub policy: toml::Table,
    /// `[http]` as written; kept for a later version.
    pub http: toml::Table,
}

/// One agent.
#[derive(Clone, PartialEq)]
pub struct AgentConfig {
    /// Its name: `[A-Za-z0-9_-]{1,64}`.
    pub name: String,
    /// The program and its arguments; empty where `urls` are given.
    pub command: Vec<String>,
    /// Environment variables on top of the daemon's own. Never shown: values may be secrets.
    pub env: BTreeMap<String, String>,
    /// The folder it is started in; the session's own folder without it.
    pub cwd: Option<PathBuf>,
    /// WebSocket addresses of instances that already run.
    pub urls: Vec<String>,
    /// Headers of the request that opens a connection to one of `urls`. Never shown: values may be
    /// secrets.
    pub headers: BTreeMap<String, String>,
    /// The PEM file of the issuers whose certificates count at `wss://` addresses; without it the
    /// system's count.
    pub ca: Option<PathBuf>,
    /// Sessions that one instance of it may have loaded; 0, with `urls` only, is no limit.
    pub sessions_per_instance: u32,
    /// Seconds without activity after which a session of it is unloaded.
    pub idle_unload_s: u64,
    /// The policy for questions of its sessions that were told none; the top's without its own.
    pub approval_mode: Option<ApprovalMode>,
    /// What the file says about whether it asks before it acts.
    pub asks: Option<bool>,
    /// Which known agent it is, as far as the command or the name tells.
    pub known: Option<&'static Known>,
    /// The known agent's quirks with the file's changes.
    pub quirks: Quirks,
    /// The file's own changes to the quirks; they hold whatever `initialize` tells later.
    pub quirk_changes: Vec<(String, bool)>,
}

/// Which words `session/status` speaks towards clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatusWords {
    /// `active` and `inactive`.
    #[default]
    Active,
    /// `open` and `saved`.
    Open,
}

impl StatusWords {
    /// As the configuration spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Open => "open",
        }
    }
}

/// Something in the file that has no effect, or not the one that was meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1, where it is known.
    pub line: Option<usize>,
    /// One sentence.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Place(&self.file, self.line, None))?;
        write!(f, ": {}", self.text)
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("failed to read {file}: {source}", file = file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is longer than [`CONFIG_BYTES`].
    #[error("failed to read {file}: it is longer than {CONFIG_BYTES} bytes", file = .0.display())]
    TooLong(PathBuf),
    /// Not TOML, or a value of another type than the key has.
    #[error("failed to read {}: {text}", Place(file, Some(*line), Some(*column)))]
    Parse {
        /// The file.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1 in characters.
        column: usize,
        /// What is wrong.
        text: String,
    },
    /// The right type, but no possible value.
    #[error("failed to use {}: {text}", Place(file, *line, None))]
    Invalid {
        /// The file.
        file: PathBuf,
        /// The line, counted from 1, where it is known.
        line: Option<usize>,
        /// What is wrong.
        text: String,
    },
}

/// `file:line:column`, as far as known.
struct Place<'a>(&'a Path, Option<usize>, Option<usize>);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.display())?;
        for part in [self.1, self.2].into_iter().flatten() {
            write!(f, ":{part}")?;
        }
        Ok(())
    }
}

/// Looks a program up: a path as it stands, a name on PATH.
#[must_use]
pub fn find_program(program: &str) -> Option<PathBuf> {
    which::which(program).ok()
}

impl Config {
    /// Reads the file at `path`; one that is not there says nothing.
    ///
    /// `find` looks a program up as the shell would; `exe` is this program, for the agent `demo`.
    ///
    /// # Errors
    /// If the file is there and cannot be read, is not valid, or names what cannot be.
    pub fn load(
        path: &Path,
        find: impl Fn(&str) -> Option<PathBuf>,
        exe: &Path,
    ) -> Result<(Self, Vec<Warning>), ConfigError> {
        match file::read(path) {
            Err(ConfigError::Read { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Self::parse("", path, find, exe)
            }
            text => Self::parse(&text?, path, find, exe),
        }
    }

    /// Like [`Config::load`], for a file that somebody named: it has to be there.
    ///
    /// # Errors
    /// As [`Config::load`], and if there is no such file.
    pub fn load_named(
        path: &Path,
        find: impl Fn(&str) -> Option<PathBuf>,
        exe: &Path,
    ) -> Result<(Self, Vec<Warning>), ConfigError> {
        Self::parse(&file::read(path)?, path, find, exe)
    }

    /// Reads the text of a file; `path` is only its name in messages.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(
        text: &str,
        path: &Path,
        find: impl Fn(&str) -> Option<PathBuf>,
        exe: &Path,
    ) -> Result<(Self, Vec<Warning>), ConfigError> {
        let parsed = file::parse(text, path)?;
        build::build(parsed, &find, exe)
    }

    /// The agent of this name.
    #[must_use]
    pub fn agent(&self, name: &str) -> Option<&AgentConfig> {
        self.agents.iter().find(|agent| agent.name == name)
    }

    /// A commented file with every key, valid as it stands.
    #[must_use]
    pub const fn example() -> &'static str {
        include_str!("example.toml")
    }
}

impl AgentConfig {
    /// How many sessions one instance of it may have loaded.
    #[must_use]
    pub fn sessions_max(&self) -> usize {
        match self.sessions_per_instance {
            0 => usize::MAX,
            some => some as usize,
        }
    }

    /// The quirks once `initialize` has told which known agent it really is.
    #[must_use]
    pub fn quirks_of(&self, known: Option<&'static Known>) -> Quirks {
        build::quirks(known, &self.quirk_changes, self.asks)
    }

    /// The environment variable as an instance of this agent sees it; `inherited` reads the
    /// daemon's own.
    #[must_use]
    pub fn var(&self, name: &str, inherited: &dyn Fn(&str) -> Option<String>) -> Option<String> {
        self.env.get(name).cloned().or_else(|| inherited(name))
    }
}

impl fmt::Debug for AgentConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<_> = self.urls.iter().map(|url| without_secrets(url)).collect();
        f.debug_struct("AgentConfig")
            .field("name", &self.name)
            .field("command", &self.command)
            .field("env", &self.env.keys().map(|name| (name, "hidden")).collect::<Vec<_>>())
            .field("cwd", &self.cwd)
            .field("urls", &urls)
            .field("headers", &self.headers.keys().map(|name| (name, "hidden")).collect::<Vec<_>>())
            .field("ca", &self.ca)
            .field("sessions_per_instance", &self.sessions_per_instance)
            .field("idle_unload_s", &self.idle_unload_s)
            .field("approval_mode", &self.approval_mode)
            .field("asks", &self.asks)
            .field("known", &self.known.map(|known| known.kind))
            .field("quirks", &self.quirks.present())
            .finish()
    }
}

/// An address without user, password and query, for messages.
#[must_use]
pub fn without_secrets(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else {
        return "hidden".to_owned();
    };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests;
