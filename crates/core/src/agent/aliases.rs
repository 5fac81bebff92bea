//! The other ids of a conversation, as an agent tells them.
//!
//! Agents move a conversation to a new id (a cleared context), or file it under another id than they
//! gave; then their list has it under an id that nobody here knows. Source: the draft about session
//! aliases, `aliases` on a session; until it is in the protocol, the same in
//! `_meta["agentclientprotocol.com/aliases"]`.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::Value;

use crate::ids::{ALIASES_MAX, SESSION_ID_BYTES_MAX};

/// The member of `_meta` that holds them as long as the draft is one.
pub const META: &str = "agentclientprotocol.com/aliases";

/// Reads the aliases on a session: a row of a list, the result that opened it, or a
/// `session_info_update`. Both places are read; what is no usable id is left out, and so is whatever
/// is beyond [`ALIASES_MAX`].
#[must_use]
pub fn told(session: &Value) -> Vec<String> {
    let places = [session.get("aliases"), session.get("_meta").and_then(|meta| meta.get(META))];
    let mut ids: Vec<String> = Vec::new();
    for id in places.into_iter().flatten().filter_map(Value::as_array).flatten() {
        let usable = id.as_str().filter(|id| is_usable(id));
        if let Some(id) =
            usable.filter(|id| ids.len() < ALIASES_MAX && !ids.iter().any(|o| o == id))
        {
            ids.push(id.to_owned());
        }
    }
    ids
}

fn is_usable(id: &str) -> bool {
    !id.is_empty() && id.len() <= SESSION_ID_BYTES_MAX
}

/// Whether a row of an agent's list is the conversation with this id, by its own id or an alias.
#[must_use]
pub fn is_row_of(row: &Value, id: &str) -> bool {
    row.get("sessionId").and_then(Value::as_str) == Some(id)
        || told(row).iter().any(|alias| alias == id)
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow, default, rename = "sessionId")]
    session_id: Cow<'a, str>,
    update: Value,
}

/// The session that a `session_info_update` (its params, JSON text) is about, and the aliases that it
/// tells. `None` for everything else.
#[must_use]
pub fn told_in_update(params: &[u8]) -> Option<(Cow<'_, str>, Vec<String>)> {
    // Few updates are about the session itself: the bytes are looked through once and not read.
    memchr::memmem::find(params, b"session_info_update")?;
    let Params { session_id, update } = serde_json::from_slice(params).ok()?;
    let ids = (update.get("sessionUpdate")? == "session_info_update").then(|| told(&update))?;
    (!ids.is_empty()).then_some((session_id, ids))
}

/// What a list says under which id each conversation is stored now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filed<'a> {
    /// Its own id in the list.
    pub id: &'a str,
    /// Its other ids.
    pub aliases: Vec<String>,
}

impl Filed<'_> {
    /// All its ids, its own first.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.id).chain(self.aliases.iter().map(String::as_str))
    }
}

/// Reads the rows of one agent's list, each with the ids that are its alone: an alias that several
/// rows have names none of them, and one of a row that is itself named as an alias neither. A row
/// whose own id is an alias of another one is that other one's (`None`), and so is what is no row.
#[must_use]
pub fn filed<'a>(rows: &[&'a Value]) -> Vec<Option<Filed<'a>>> {
    let told: Vec<(Option<&'a str>, Vec<String>)> = rows
        .iter()
        .map(|row| {
            let id = row.get("sessionId").and_then(Value::as_str).filter(|id| is_usable(id));
            let mut aliases = id.map(|_| told(row)).unwrap_or_default();
            aliases.retain(|alias| Some(alias.as_str()) != id);
            (id, aliases)
        })
        .collect();
    let named: HashSet<&str> =
        told.iter().flat_map(|(_, aliases)| aliases).map(String::as_str).collect();
    let first = |id: Option<&str>| id.is_some_and(|id| !named.contains(id));
    let mut times: HashMap<&str, u32> = HashMap::new();
    for alias in told.iter().filter(|(id, _)| first(*id)).flat_map(|(_, aliases)| aliases) {
        *times.entry(alias).or_default() += 1;
    }
    let filed = told.iter().map(|(id, aliases)| {
        let id = (*id).filter(|id| times.get(id) != Some(&1))?;
        let own =
            aliases.iter().filter(|alias| first(Some(id)) && times.get(alias.as_str()) == Some(&1));
        Some(Filed { id, aliases: own.cloned().collect() })
    });
    filed.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_places_are_read_and_what_is_no_id_is_left_out() {
        let read = |value: Value| told(&value);
        assert_eq!(read(json!({ "aliases": ["a", "b"] })), ["a", "b"]);
        let both = json!({ "aliases": ["a"], "_meta": { META: ["b", "a"] } });
        assert_eq!(read(both), ["a", "b"]);
        assert_eq!(read(json!({ "aliases": ["", 7, null, "x", ["y"]] })), ["x"]);
        let long = "x".repeat(SESSION_ID_BYTES_MAX + 1);
        for odd in [json!("a"), json!({ "a": 1 }), json!(null), json!([long])] {
            assert!(read(json!({ "aliases": odd, "_meta": odd })).is_empty(), "{odd}");
            assert!(read(json!({ "_meta": { META: odd } })).is_empty(), "{odd}");
        }
        assert!(read(json!(null)).is_empty() && read(json!([])).is_empty());
    }

    #[test]
    fn no_more_than_the_limit_are_read() {
        let many: Vec<String> = (0..=ALIASES_MAX).map(|at| at.to_string()).collect();
        assert_eq!(told(&json!({ "aliases": many[..ALIASES_MAX] })).len(), ALIASES_MAX);
        assert_eq!(told(&json!({ "aliases": many })), many[..ALIASES_MAX]);
    }

    #[test]
    fn an_update_about_the_session_tells_them_and_no_other_does() {
        let params = |kind: &str, more: &str| {
            format!(r#"{{"sessionId":"s","update":{{"sessionUpdate":"{kind}"{more}}}}}"#)
        };
        let read =
            |text: &str| told_in_update(text.as_bytes()).map(|(id, ids)| (id.into_owned(), ids));
        let told = read(&params("session_info_update", r#","aliases":["a"]"#));
        assert_eq!(told, Some(("s".to_owned(), vec!["a".to_owned()])));
        assert_eq!(read(&params("session_info_update", r#","title":"t""#)), None);
        let quoted = r#","aliases":["a"],"content":"session_info_update""#;
        assert_eq!(read(&params("agent_message_chunk", quoted)), None);
        assert_eq!(read("session_info_update"), None);
    }

    #[test]
    fn a_list_says_where_each_conversation_is_filed() {
        let rows = [
            json!({ "sessionId": "new", "aliases": ["old", "new"] }),
            json!({ "sessionId": "old" }),
            json!({ "sessionId": "one", "aliases": ["both"] }),
            json!({ "sessionId": "two", "aliases": ["both", "second"] }),
            json!({ "aliases": ["lost"] }),
            json!({ "sessionId": "" }),
            json!(null),
        ];
        let filed = filed(&rows.iter().collect::<Vec<_>>());
        let short = |at: usize| filed[at].as_ref().map(|it| (it.id, it.aliases.join(" ")));
        assert_eq!(short(0), Some(("new", "old".into())));
        assert_eq!(short(1), None, "it is the first row's");
        assert_eq!(short(2), Some(("one", String::new())), "nobody's alias is no alias");
        assert_eq!(short(3), Some(("two", "second".into())));
        assert_eq!((short(4), short(5), short(6)), (None, None, None));
    }

    #[test]
    fn two_rows_that_are_each_others_alias_stay_two() {
        let rows = [
            json!({ "sessionId": "a", "aliases": ["b"] }),
            json!({ "sessionId": "b", "aliases": ["a"] }),
        ];
        let filed = filed(&rows.iter().collect::<Vec<_>>());
        let alone = |id| Some(Filed { id, aliases: Vec::new() });
        assert_eq!(filed, [alone("a"), alone("b")]);
    }

    #[test]
    fn a_row_is_found_by_any_of_its_ids() {
        let row = json!({ "sessionId": "new", "_meta": { META: ["old"] } });
        assert!(is_row_of(&row, "new") && is_row_of(&row, "old") && !is_row_of(&row, "x"));
    }
}
