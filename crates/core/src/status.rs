//! `session/status`: the answer from what is known, and the words it is said in.
//!
//! Source: the session-status RFD, revision 2026-10-26; DESIGN section 5 has the table. The words
//! live here and nowhere else: the RFD says `active` and `inactive`, published schema crates say
//! `open` and `saved`, an older draft said `live`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::errors::WireError;
use crate::lease::Phase;

/// Which words are spoken to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Words {
    /// The RFD's: `active`, `inactive`.
    #[default]
    Active,
    /// The published schema crates': `open`, `saved`.
    Open,
}

impl Words {
    /// Reads the configuration's word.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        match text {
            "active" => Some(Self::Active),
            "open" => Some(Self::Open),
            _ => None,
        }
    }

    /// In memory.
    #[must_use]
    pub fn loaded(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Open => "open",
        }
    }

    /// Known, not proven in memory.
    #[must_use]
    pub fn cold(self) -> &'static str {
        match self {
            Self::Active => "inactive",
            Self::Open => "saved",
        }
    }
}

/// What an agent's answer to `session/status` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// In memory, in any of the spellings.
    Loaded,
    /// Known and not in memory; any word we do not know means this too.
    Cold,
    /// No status at all: the probe failed.
    Malformed,
}

/// Reads the `result` of an agent's `session/status`.
#[must_use]
pub fn hear(result: &str) -> Heard {
    let value: Value = serde_json::from_str(result).unwrap_or_default();
    match value.get("status").and_then(Value::as_str) {
        Some("active" | "open" | "live") => Heard::Loaded,
        Some(_) => Heard::Cold,
        None => Heard::Malformed,
    }
}

/// Who knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Our own table of loaded sessions.
    Owner,
    /// Another daemon.
    Peer,
    /// An instance that was asked.
    Agent,
    /// Our journal or index, or an agent's list.
    Index,
    /// Nobody could be asked.
    None,
}

/// What a turn is doing, for `_meta` and the command line; v1 has no such field of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No turn runs.
    Idle,
    /// A turn runs.
    Running,
    /// A question is open.
    RequiresAction,
}

/// What a caller with the right may know of the owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// The configuration's agent.
    pub agent: String,
    /// The instance.
    pub instance: String,
    /// Its process, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Since when, RFC 3339.
    pub since: String,
    /// The claim's epoch.
    pub epoch: u64,
}

/// All that is known about one session at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Loaded here, with the owner.
    pub loaded: Option<(Option<State>, Arc<Owner>)>,
    /// Being started or closed.
    pub moving: bool,
    /// An agent may have it, and nobody can tell.
    pub suspect: bool,
    /// In our journal, index or an agent's list.
    pub recorded: bool,
    /// `false`: its agent said that it is gone or cannot load it.
    pub resumable: Option<bool>,
    /// The process that holds it, where that is none of ours.
    pub held_by: Option<Value>,
    /// What instances answered, if any had to be asked.
    pub heard: Option<Heard>,
    /// Instances that say they have it in memory, where that is all we know.
    pub loaded_at: Vec<String>,
    /// Instances that could not be asked and might know more.
    pub unreachable: Vec<String>,
    /// Our own table may lack sessions: the index is being made or compared with the journals.
    pub incomplete: bool,
    /// Name of the session's agent.
    pub agent: Option<String>,
    /// Age of what is said, in milliseconds.
    pub age_ms: u64,
    /// How long a running turn has been without a sign of life, in milliseconds.
    pub quiet_ms: Option<u64>,
    /// Keys, where the id names several sessions.
    pub keys: Vec<String>,
    /// Its journal cannot be written at present.
    pub behind: bool,
}

/// The answer to one probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Loaded or not.
    pub loaded: bool,
    /// What else is told.
    pub meta: Meta,
}

/// `_meta.frontdesk` of an answer: where it comes from and how old it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Meta {
    /// Who knew.
    pub source: Source,
    /// Age of what is said, in milliseconds.
    pub age_ms: u64,
    /// Name of the session's agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// What the session is doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// How long a running turn has been without a sign of life, in milliseconds: it is told, and no
    /// turn is taken for dead because of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_ms: Option<u64>,
    /// The owner.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "serialize_owner")]
    pub owner: Option<Arc<Owner>>,
    /// `suspect`: an agent may have it, and nobody can tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<&'static str>,
    /// `false`: its agent said that it is gone or cannot load it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumable: Option<bool>,
    /// The process that holds it, where that is none of ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<Value>,
    /// Keys, where the id names several sessions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// Its journal cannot be written at present.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub behind: bool,
    /// Instances that say they have it in memory, where that is all we know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loaded_at: Vec<String>,
    /// Instances that could not be asked and might know more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreachable: Vec<String>,
}

fn serialize_owner<S: serde::Serializer>(
    owner: &Option<Arc<Owner>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    owner.as_deref().serialize(serializer)
}

/// Answers a probe by DESIGN section 5.
///
/// # Errors
/// `-32002` with the id as asked, if all sources say no.
pub fn answer(asked: &str, facts: Facts) -> Result<Answer, WireError> {
    let Facts {
        loaded,
        moving,
        suspect,
        recorded,
        resumable,
        held_by,
        heard,
        loaded_at,
        unreachable,
        incomplete,
        agent,
        age_ms,
        quiet_ms,
        keys,
        behind,
    } = facts;
    let keys = if keys.len() > 1 { keys } else { Vec::new() };
    let mut meta = Meta {
        source: Source::Owner,
        age_ms,
        agent,
        state: None,
        quiet_ms,
        owner: None,
        lease: suspect.then_some(Phase::Suspect.word()),
        resumable: None,
        held_by: None,
        keys,
        behind,
        loaded_at: Vec::new(),
        unreachable: Vec::new(),
    };
    let is_loaded = if let Some((state, owner)) = loaded {
        meta.state = state;
        meta.owner = Some(owner);
        true
    } else if moving || suspect {
        true
    } else if heard == Some(Heard::Loaded) {
        meta.source = Source::Agent;
        meta.loaded_at = loaded_at;
        true
    } else if !unreachable.is_empty() {
        // One that could not be asked may have it in memory, also where we have its journal.
        meta.source = Source::None;
        meta.unreachable = unreachable;
        meta.resumable = resumable.filter(|resumable| recorded && !resumable);
        meta.held_by = held_by;
        false
    } else if recorded {
        meta.source = Source::Index;
        meta.resumable = resumable.filter(|resumable| !resumable);
        meta.held_by = held_by;
        false
    } else if heard == Some(Heard::Cold) {
        meta.source = Source::Agent;
        false
    } else if incomplete {
        meta.source = Source::None;
        false
    } else {
        return Err(WireError::not_found(asked));
    };
    Ok(Answer { loaded: is_loaded, meta })
}

impl Answer {
    /// JSON text of the v1 result.
    #[must_use]
    pub fn v1(&self, words: Words) -> String {
        let status = if self.loaded { words.loaded() } else { words.cold() };
        // Numbers, words and texts only: this cannot fail.
        let meta = serde_json::to_string(&self.meta).unwrap_or_default();
        format!(r#"{{"status":"{status}","_meta":{{"frontdesk":{meta}}}}}"#)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn owner() -> Arc<Owner> {
        Arc::new(Owner {
            agent: "a".into(),
            instance: "i".into(),
            pid: Some(7),
            since: "s".into(),
            epoch: 2,
        })
    }

    #[test]
    fn each_row_of_the_table_has_its_answer() {
        let loaded = Facts { loaded: Some((Some(State::Running), owner())), ..Facts::default() };
        let moving = Facts { moving: true, ..Facts::default() };
        let recorded = Facts { recorded: true, ..Facts::default() };
        let gone = Facts { recorded: true, resumable: Some(false), ..Facts::default() };
        let heard = |heard| Facts { heard: Some(heard), ..Facts::default() };
        let unreachable = Facts { unreachable: vec!["x".into()], ..Facts::default() };
        let incomplete = Facts { incomplete: true, ..Facts::default() };
        let table = [
            (loaded, true, Source::Owner),
            (moving, true, Source::Owner),
            (recorded, false, Source::Index),
            (gone, false, Source::Index),
            (heard(Heard::Loaded), true, Source::Agent),
            (heard(Heard::Cold), false, Source::Agent),
            (unreachable.clone(), false, Source::None),
            (Facts { recorded: true, ..unreachable.clone() }, false, Source::None),
            (Facts { heard: Some(Heard::Loaded), ..unreachable.clone() }, true, Source::Agent),
            (Facts { moving: true, ..unreachable }, true, Source::Owner),
            (incomplete, false, Source::None),
        ];
        for (facts, is_loaded, source) in table {
            let answer = answer("s", facts.clone()).unwrap();
            assert_eq!((answer.loaded, answer.meta.source), (is_loaded, source), "{facts:?}");
        }
        assert_eq!(answer("s\"", Facts::default()), Err(WireError::not_found("s\"")));
        assert_eq!(answer("s", heard(Heard::Malformed)), Err(WireError::not_found("s")));
    }

    #[test]
    fn a_session_that_cannot_be_called_back_says_so() {
        let gone = Facts { recorded: true, resumable: Some(false), ..Facts::default() };
        assert_eq!(answer("s", gone).unwrap().meta.resumable, Some(false));
    }

    #[test]
    fn a_session_that_another_process_holds_is_not_active_here() {
        let held_by = Some(json!({ "tool": "frontdesk", "pid": 7 }));
        let answer = answer("s", Facts { recorded: true, held_by, ..Facts::default() }).unwrap();
        assert!(!answer.loaded);
        assert!(answer.v1(Words::Active).contains(r#""heldBy":{"tool":"frontdesk","pid":7}"#));
    }

    #[test]
    fn a_journal_that_is_behind_is_told_of_and_else_nothing_is_said() {
        let facts = Facts { moving: true, ..Facts::default() };
        let text = |facts| answer("s", facts).unwrap().v1(Words::Active);
        assert!(!text(facts.clone()).contains("behind"));
        assert!(text(Facts { behind: true, ..facts }).contains(r#""behind":true"#));
    }

    #[test]
    fn both_spellings_are_spoken() {
        let answer = answer("s", Facts { moving: true, ..Facts::default() }).unwrap();
        assert!(answer.v1(Words::Active).starts_with(r#"{"status":"active""#));
        assert!(answer.v1(Words::Open).starts_with(r#"{"status":"open""#));
        assert_eq!((Words::Active.cold(), Words::Open.cold()), ("inactive", "saved"));
    }

    #[test]
    fn every_spelling_is_heard_and_an_unknown_word_means_not_loaded() {
        for word in ["active", "open", "live"] {
            assert_eq!(hear(&json!({ "status": word }).to_string()), Heard::Loaded);
        }
        for word in ["inactive", "saved", "hibernating", "ACTIVE", "failed", ""] {
            assert_eq!(hear(&json!({ "status": word }).to_string()), Heard::Cold);
        }
        for bad in [r#"{"status":null}"#, "{}", r#"{"status":7}"#, "[]", "null"] {
            assert_eq!(hear(bad), Heard::Malformed, "{bad}");
        }
    }
}
