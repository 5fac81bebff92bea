//! The filter of `session/list`: its canonical form, and what it takes.
//!
//! Members are joined by AND, the values of an `anyOf` by OR. A text term is trimmed, put into small
//! letters and composed (NFC), and matches where a word begins; accents count. A filter that was
//! sent, even an empty one, is told back in canonical form as `appliedFilter`.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

use super::errors::MspError;
use super::params::{Params, Read as _};
use crate::ids::Key;

/// Ids in one filter.
pub const FILTER_IDS_MAX: usize = 200;
/// Branches in one filter.
pub const FILTER_BRANCHES_MAX: usize = 32;
/// Length of a branch in a filter, in bytes.
pub const FILTER_BRANCH_BYTES_MAX: usize = 256;
/// Text terms in one filter.
pub const FILTER_TERMS_MAX: usize = 16;
/// Length of a text term in canonical form, in bytes.
pub const FILTER_TERM_BYTES_MAX: usize = 128;

/// A filter in canonical form: sets without duplicates, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// Only these sessions.
    pub ids: Option<BTreeSet<Key>>,
    /// Only these branches; `None` among them is a session without one.
    pub branches: Option<BTreeSet<Option<String>>>,
    /// Only sessions whose words match.
    pub text: Option<TextFilter>,
}

/// The text part of a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextFilter {
    /// Whether the name is looked at.
    pub name: bool,
    /// Whether the title is looked at.
    pub title: bool,
    /// All of these must match.
    pub all: Option<BTreeSet<String>>,
    /// One of these must match.
    pub any: Option<BTreeSet<String>>,
}

/// What a filter looks at.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowFacts<'a> {
    /// The session's key.
    pub key: Option<Key>,
    /// Its branch, if it is known to have one.
    pub branch: Option<&'a str>,
    /// Its name.
    pub name: Option<&'a str>,
    /// Its title.
    pub title: Option<&'a str>,
}

impl ListFilter {
    /// Reads the member `filter` of the params; `None` if there is none.
    ///
    /// # Errors
    /// `-32602` for a wrong type, an empty or too long set, an id that is no UUID, an unknown field.
    pub fn read(params: &Params) -> Result<Option<Self>, MspError> {
        let Some(filter) = params.object("filter")? else { return Ok(None) };
        let ids = match filter.object("sessionId")? {
            Some(part) => Some(read_ids(part)?),
            None => None,
        };
        let branches = match filter.object("branch")? {
            Some(part) => Some(read_branches(part)?),
            None => None,
        };
        let text = filter.object("text")?.map(TextFilter::read).transpose()?;
        Ok(Some(Self { ids, branches, text }))
    }

    /// The canonical form, for `appliedFilter`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut out = Map::new();
        if let Some(ids) = &self.ids {
            out.insert("sessionId".into(), json!({ "anyOf": ids }));
        }
        if let Some(branches) = &self.branches {
            out.insert("branch".into(), json!({ "anyOf": branches }));
        }
        if let Some(text) = &self.text {
            out.insert("text".into(), text.to_json());
        }
        Value::Object(out)
    }

    /// Whether a session passes.
    #[must_use]
    pub fn takes(&self, row: RowFacts<'_>) -> bool {
        let id = self.ids.as_ref().is_none_or(|ids| row.key.is_some_and(|key| ids.contains(&key)));
        let branch = self
            .branches
            .as_ref()
            .is_none_or(|wanted| wanted.iter().any(|branch| branch.as_deref() == row.branch));
        id && branch && self.text.as_ref().is_none_or(|text| text.takes(row))
    }
}

impl TextFilter {
    fn read(part: &Params) -> Result<Self, MspError> {
        let mut text = Self::default();
        let fields = part.strings("fields")?;
        for field in &fields {
            let seen = match field.as_str() {
                "name" => &mut text.name,
                "title" => &mut text.title,
                other => {
                    let sentence =
                        format!("filter.text.fields has {other:?}; there are name and title");
                    return Err(MspError::invalid(sentence));
                }
            };
            if std::mem::replace(seen, true) {
                return Err(MspError::invalid(format!("filter.text.fields has {field:?} twice")));
            }
        }
        if fields.is_empty() {
            return Err(MspError::invalid("filter.text.fields must name name, title or both"));
        }
        let mut terms = 0;
        let mut read = |name: &str| -> Result<Option<BTreeSet<String>>, MspError> {
            if part.member(name).is_none() {
                return Ok(None);
            }
            let list = part.strings(name)?;
            terms += list.len();
            list.iter().map(|term| canonical_term(term)).collect::<Result<_, _>>().map(Some)
        };
        text.all = read("allOf")?;
        text.any = read("anyOf")?;
        if !(1..=FILTER_TERMS_MAX).contains(&terms) {
            let sentence = format!("filter.text must have 1 to {FILTER_TERMS_MAX} terms in all");
            return Err(MspError::invalid(sentence));
        }
        Ok(text)
    }

    fn to_json(&self) -> Value {
        let fields = [("name", self.name), ("title", self.title)];
        let fields: Vec<&str> =
            fields.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
        let mut out = json!({ "fields": fields });
        if let Some(all) = &self.all {
            out["allOf"] = json!(all);
        }
        if let Some(any) = &self.any {
            out["anyOf"] = json!(any);
        }
        out
    }

    fn takes(&self, row: RowFacts<'_>) -> bool {
        let fields = [row.name.filter(|_| self.name), row.title.filter(|_| self.title)];
        let words: Vec<String> = fields.into_iter().flatten().map(canonical).collect();
        let found = |term: &String| words.iter().any(|field| begins_a_word(field, term));
        self.all.as_ref().is_none_or(|all| all.iter().all(found))
            && self.any.as_ref().is_none_or(|any| any.is_empty() || any.iter().any(found))
    }
}

fn read_ids(part: &Params) -> Result<BTreeSet<Key>, MspError> {
    let ids = part.strings("anyOf")?;
    check_size("sessionId.anyOf", ids.len(), FILTER_IDS_MAX)?;
    let read = |id: &String| {
        let key = id.parse::<Key>();
        key.map_err(|_| MspError::invalid(format!("filter.sessionId.anyOf has {id:?}: no UUID")))
    };
    ids.iter().map(read).collect()
}

fn read_branches(part: &Params) -> Result<BTreeSet<Option<String>>, MspError> {
    let wrong = || MspError::invalid("filter.branch.anyOf must be a list of names or null");
    let list = part.member("anyOf").and_then(Value::as_array).ok_or_else(wrong)?;
    check_size("branch.anyOf", list.len(), FILTER_BRANCHES_MAX)?;
    let read = |branch: &Value| match branch {
        Value::Null => Ok(None),
        Value::String(name) if (1..=FILTER_BRANCH_BYTES_MAX).contains(&name.len()) => {
            Ok(Some(name.clone()))
        }
        Value::String(_) => Err(MspError::invalid(format!(
            "a branch in filter.branch.anyOf must have 1 to {FILTER_BRANCH_BYTES_MAX} bytes"
        ))),
        _ => Err(wrong()),
    };
    list.iter().map(read).collect()
}

fn check_size(name: &str, len: usize, max: usize) -> Result<(), MspError> {
    if (1..=max).contains(&len) {
        return Ok(());
    }
    Err(MspError::invalid(format!("filter.{name} must have 1 to {max} values, not {len}")))
}

fn canonical_term(term: &str) -> Result<String, MspError> {
    let term = canonical(term.trim());
    if (1..=FILTER_TERM_BYTES_MAX).contains(&term.len()) {
        return Ok(term);
    }
    let sentence = format!("a term of filter.text must have 1 to {FILTER_TERM_BYTES_MAX} bytes");
    Err(MspError::invalid(sentence))
}

/// Small letters, composed.
fn canonical(text: &str) -> String {
    text.to_lowercase().nfc().collect()
}

/// Whether `term` stands in `field` where a word begins. A mark that could not be composed belongs
/// to the letter before it.
fn begins_a_word(field: &str, term: &str) -> bool {
    let mut inside = false;
    for (at, char) in field.char_indices() {
        let letter = char.is_alphanumeric() || (inside && is_combining_mark(char));
        if letter && !inside && field[at..].starts_with(term) {
            return true;
        }
        inside = letter;
    }
    false
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
