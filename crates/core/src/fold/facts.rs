//! What the fold keeps of a session besides its turns: names, provenance, workspace, policy.
//!
//! Each of these becomes a member of the Session object (`msp::object`).

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest preview of a first prompt, in characters.
pub const PREVIEW_CHARS_MAX: usize = 200;

/// How a session came by its name. Source: MSP `SessionNameOrigin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NameOrigin {
    /// Allocated from the first prompt.
    Automatic,
    /// Given by a person.
    Custom,
}

/// A program that spoke to us, in its own words. Source: MSP `ClientInfo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientInfo {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// Where a fork came from. Source: MSP `ForkProvenance`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ForkedFrom {
    /// Key of the session it was forked from.
    pub session_id: String,
    /// Position in the parent, for display.
    pub cut_cursor: String,
    /// Whether whoever forked chose the position.
    pub cut_explicit: bool,
    /// The command that forked it.
    pub command_id: String,
}

/// A linked working tree. Source: MSP `SessionWorktree`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worktree {
    /// Its folder.
    pub path: String,
    /// `created` or `attached`; other words of newer versions are kept.
    pub origin: String,
}

/// How Frontdesk settles the questions of a session. Source: MSP `ApprovalMode`, a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ApprovalMode {
    /// Every question is answered with yes.
    AllowAll,
    /// People are asked what no rule answers.
    PromptUnmatched,
    /// People are asked whenever the agent asks.
    OnRequest,
    /// What no rule allows is answered with no.
    DenyUnmatched,
}

impl ApprovalMode {
    /// All modes.
    pub const ALL: [Self; 4] =
        [Self::AllowAll, Self::PromptUnmatched, Self::OnRequest, Self::DenyUnmatched];

    /// The word on the wire, in records and in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllowAll => "allowAll",
            Self::PromptUnmatched => "promptUnmatched",
            Self::OnRequest => "onRequest",
            Self::DenyUnmatched => "denyUnmatched",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }
}

/// The policy that Frontdesk was told for a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// What happens to a question.
    pub mode: ApprovalMode,
    /// `startup` (told when the session was made), `approvalReconfigure` (changed later); other
    /// words are kept.
    pub source: String,
    /// The command that changed it.
    #[serde(default)]
    pub command_id: Option<String>,
}

/// A command that was carried out, so that whoever repeats it gets the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Done {
    /// The caller's id of it.
    pub command_id: String,
    /// What was asked: method and hash of the payload.
    #[serde(default)]
    pub method: String,
    /// Hash of the payload.
    #[serde(default)]
    pub payload_hash: String,
    /// What was answered.
    #[serde(default)]
    pub ack: Value,
}

impl Done {
    /// Whether two commands with one id ask the same.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.method == other.method && self.payload_hash == other.payload_hash
    }
}

/// A record that made no sense to the fold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anomaly {
    /// Its position.
    pub seq: u64,
    /// What was wrong, as the end of a sentence that begins with the record.
    pub what: String,
}

/// One line out of a text that may have many: white space and control characters become single
/// spaces, and what is beyond `chars` is cut off. `open` keeps a space at the end, for a text that
/// goes on.
#[must_use]
pub(crate) fn one_line(text: &str, chars: usize, open: bool) -> String {
    let mut line = String::new();
    let mut count = 0;
    let mut space = false;
    for ch in text.chars() {
        if ch.is_whitespace() || ch.is_control() {
            space = true;
            continue;
        }
        if space && !line.is_empty() {
            line.push(' ');
            count += 1;
        }
        space = false;
        if count >= chars {
            break;
        }
        line.push(ch);
        count += 1;
    }
    if open && space && !line.is_empty() {
        line.push(' ');
    }
    if !open {
        line.truncate(line.trim_end().len());
    }
    line
}

/// The current value of the option that says which model, mode or provider is in force.
///
/// Source: ACP `configOptions[]` (`id`, `category`, `currentValue`).
pub(crate) fn option_value<'a>(options: &'a Value, words: &[&str]) -> Option<&'a str> {
    let options = options.as_array()?;
    let is = |option: &&Value, member: &str| {
        option.get(member).and_then(Value::as_str).is_some_and(|word| words.contains(&word))
    };
    // A category says what an option is for; an id may only happen to be that word.
    let found = options
        .iter()
        .find(|option| is(option, "category"))
        .or_else(|| options.iter().find(|option| is(option, "id")))?;
    found.get("currentValue").and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_many_lines_becomes_one() {
        assert_eq!(one_line("  a\n\u{2028}b\t\u{7}c \n", 9, false), "a b c");
        assert_eq!(one_line("ab cd", 3, false), "ab");
        assert_eq!(one_line("ab cd", 4, false), "ab c");
        assert_eq!(one_line("ab ", 9, true), "ab ");
        assert_eq!(one_line(" \n ", 9, true), "");
    }

    #[test]
    fn a_category_says_more_than_an_id() {
        let options = serde_json::json!([
            { "id": "model", "currentValue": "id" },
            { "id": "x", "category": "model", "currentValue": "category" },
            7,
        ]);
        assert_eq!(option_value(&options, &["model"]), Some("category"));
        assert_eq!(option_value(&options, &["mode"]), None);
        assert_eq!(option_value(&Value::Null, &["mode"]), None);
    }

    #[test]
    fn a_mode_is_read_back_from_its_word() {
        for mode in ApprovalMode::ALL {
            assert_eq!(ApprovalMode::from_text(mode.as_str()), Some(mode));
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.as_str());
        }
        assert_eq!(ApprovalMode::from_text("yolo"), None);
    }
}
