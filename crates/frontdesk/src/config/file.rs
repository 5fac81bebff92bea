//! The file as written: its keys and types, where they stand, and keys nobody knows.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};

use frontdesk_core::limits::Limits;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{CONFIG_BYTES, ConfigError, StatusWords, Warning};

/// The keys outside of tables.
pub(super) const TOP_KEYS: &[&str] = &[
    "default_agent",
    "sessions_per_instance",
    "idle_unload_s",
    "status_words",
    "agents",
    "limits",
    "policy",
    "http",
    "msp",
];

/// The keys of one agent's table.
pub(super) const AGENT_KEYS: &[&str] = &[
    "command",
    "env",
    "cwd",
    "urls",
    "headers",
    "ca",
    "sessions_per_instance",
    "idle_unload_s",
    "approval_mode",
    "asks",
    "quirks",
];

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct File {
    pub(super) default_agent: Option<String>,
    pub(super) sessions_per_instance: Option<NonZeroU32>,
    pub(super) idle_unload_s: Option<NonZeroU64>,
    pub(super) status_words: StatusWords,
    pub(super) agents: BTreeMap<String, Agent>,
    pub(super) limits: Limits,
    pub(super) policy: toml::Table,
    pub(super) http: toml::Table,
    pub(super) msp: Msp,
}

/// What the MSP face says of itself.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Msp {
    pub(super) fingerprint: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Agent {
    pub(super) command: Option<Vec<String>>,
    pub(super) env: Secrets,
    pub(super) cwd: Option<PathBuf>,
    pub(super) urls: Option<Vec<String>>,
    pub(super) headers: Secrets,
    pub(super) ca: Option<PathBuf>,
    pub(super) sessions_per_instance: Option<u32>,
    pub(super) idle_unload_s: Option<NonZeroU64>,
    pub(super) approval_mode: Option<String>,
    pub(super) asks: Option<bool>,
    pub(super) quirks: Vec<String>,
}

/// Texts by name: environment variables, or headers of a request. Errors about them do not repeat a
/// value: it may be a secret.
#[derive(Default)]
pub(super) struct Secrets(pub(super) BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Secrets {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Secrets;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of texts")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Secrets, A::Error> {
                let mut texts = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, toml::Value>()? {
                    let toml::Value::String(value) = value else {
                        let text = format!("the value of `{name}` is no text in quotes");
                        return Err(serde::de::Error::custom(text));
                    };
                    texts.insert(name, value);
                }
                Ok(Secrets(texts))
            }
            fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Secrets, E> {
                Err(E::custom("this is a table: { NAME = \"value\" }"))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// The file's content with the places of its keys.
pub(super) struct Parsed {
    pub(super) file: File,
    pub(super) places: Places,
    pub(super) warnings: Vec<Warning>,
}

/// Reads the file's text.
pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read { file: path.to_path_buf(), source };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(CONFIG_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > CONFIG_BYTES {
        return Err(ConfigError::TooLong(path.to_path_buf()));
    }
    Ok(text)
}

/// Reads the text and names the keys that nobody knows.
pub(super) fn parse(text: &str, path: &Path) -> Result<Parsed, ConfigError> {
    let failed = |error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let (line, column) = position(text, at);
        let text = error.message().trim().replace('\n', "; ");
        ConfigError::Parse { file: path.to_path_buf(), line, column, text }
    };
    let places = Places::new(text, path).map_err(failed)?;
    let mut unknown = Vec::new();
    let deserializer = toml::Deserializer::parse(text).map_err(failed)?;
    let file: File = serde_ignored::deserialize(deserializer, |key| unknown.push(parts(&key)))
        .map_err(failed)?;
    let warnings = unknown.iter().map(|key| unknown_key(key, &places)).collect();
    Ok(Parsed { file, places, warnings })
}

fn unknown_key(key: &[String], places: &Places) -> Warning {
    let (name, table) = match key.split_last() {
        Some((name, table)) => (name.as_str(), table),
        None => ("", key),
    };
    let meant = match table.first().map(String::as_str) {
        None if Limits::NAMES.contains(&name) => Some(format!("limits.{name}")),
        None => nearest(name, TOP_KEYS),
        Some("agents") if table.len() == 2 => nearest(name, AGENT_KEYS),
        Some("limits") if table.len() == 1 => nearest(name, Limits::NAMES),
        Some("msp") if table.len() == 1 => nearest(name, &["fingerprint"]),
        Some(_) => None,
    };
    let hint = meant.map_or_else(
        || "it has no effect".to_owned(),
        |meant| format!("it has no effect; did you mean `{meant}`?"),
    );
    places.warning(key, format!("unknown key `{}`: {hint}", key.join(".")))
}

/// The candidate that differs least from `name`, if any is near.
pub(super) fn nearest<T: AsRef<str>>(name: &str, candidates: &[T]) -> Option<String> {
    let allowed = (name.chars().count() / 3).max(2);
    candidates
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate.as_ref()), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.as_ref().to_owned())
}

/// The keys on the way to a place.
fn parts(path: &serde_ignored::Path<'_>) -> Vec<String> {
    use serde_ignored::Path as P;
    let (parent, own) = match path {
        P::Root => return Vec::new(),
        P::Seq { parent, index } => (parent, Some(index.to_string())),
        P::Map { parent, key } => (parent, Some(key.clone())),
        P::Some { parent } | P::NewtypeStruct { parent } | P::NewtypeVariant { parent } => {
            (parent, None)
        }
    };
    let mut all = parts(parent);
    all.extend(own);
    all
}

/// Line and column of a byte, counted from 1.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// On which line each key stands.
pub(super) struct Places {
    path: PathBuf,
    lines: BTreeMap<Vec<String>, usize>,
}

impl Places {
    fn new(text: &str, path: &Path) -> Result<Self, toml::de::Error> {
        let mut lines = BTreeMap::new();
        let table = DeTable::parse(text)?;
        collect(text, table.get_ref(), &mut Vec::new(), &mut lines);
        Ok(Self { path: path.to_path_buf(), lines })
    }

    /// The file these places are in.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The line of a key, or of the nearest table around it.
    pub(super) fn line<T: AsRef<str>>(&self, key: &[T]) -> Option<usize> {
        let mut key: Vec<String> = key.iter().map(|part| part.as_ref().to_owned()).collect();
        while !key.is_empty() {
            if let Some(line) = self.lines.get(&key) {
                return Some(*line);
            }
            key.pop();
        }
        None
    }

    /// Whether the file has this key.
    pub(super) fn has(&self, key: &[&str]) -> bool {
        let key: Vec<String> = key.iter().map(|part| (*part).to_owned()).collect();
        self.lines.contains_key(&key)
    }

    pub(super) fn warning<T: AsRef<str>>(&self, key: &[T], text: String) -> Warning {
        Warning { file: self.path.clone(), line: self.line(key), text }
    }

    pub(super) fn invalid<T: AsRef<str>>(&self, key: &[T], text: String) -> ConfigError {
        ConfigError::Invalid { file: self.path.clone(), line: self.line(key), text }
    }
}

fn collect(
    text: &str,
    table: &DeTable<'_>,
    prefix: &mut Vec<String>,
    lines: &mut BTreeMap<Vec<String>, usize>,
) {
    for (key, value) in table {
        prefix.push(key.get_ref().to_string());
        lines.insert(prefix.clone(), position(text, key.span().start).0);
        if let DeValue::Table(inner) = Spanned::get_ref(value) {
            collect(text, inner, prefix, lines);
        }
        prefix.pop();
    }
}
