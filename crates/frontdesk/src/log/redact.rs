//! Parameters as they may be journaled: the names of secrets in place of their values. Pure.
//!
//! Sources: ACP `session/new`, `mcpServers` (`env` and `headers` as lists of `{name, value}`), and
//! the object form of the same that many configuration files use.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// Levels of nesting that are walked; deeper parts are left out as if they were secret.
const DEPTH_MAX: usize = 64;

/// What stands for a part that cannot be looked through.
const REDACTED: &str = r#"{"redacted":true}"#;

/// The parameters with every value of `env` and `headers` inside `mcpServers` replaced by its name,
/// `{"name":"X","redacted":true}`. All else is kept as it is written, members that we do not know
/// too. Text that is not JSON comes back as one redacted value.
#[must_use]
pub fn redact(params: &str) -> String {
    serde_json::from_str(params)
        .ok()
        .and_then(|params: Box<RawValue>| walk(&params, Place::Outside, 0))
        .map_or_else(|| REDACTED.to_owned(), |redacted| redacted.get().to_owned())
}

/// What the walk is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    Servers,
    Secrets,
}

/// An object's members in order, duplicates too, their values still text.
struct Members(Vec<(String, Box<RawValue>)>);

/// `None` if a part cannot be read: the whole is then redacted.
fn walk(value: &RawValue, place: Place, depth: usize) -> Option<Box<RawValue>> {
    let text = value.get();
    if depth >= DEPTH_MAX {
        return raw(REDACTED.to_owned());
    }
    match (text.as_bytes().first()?, place) {
        (b'{', Place::Secrets) => {
            let mut members: Members = serde_json::from_str(text).ok()?;
            for (name, value) in &mut members.0 {
                *value = named(name)?;
            }
            raw(serde_json::to_string(&members).ok()?)
        }
        (b'{', place) => {
            let mut members: Members = serde_json::from_str(text).ok()?;
            for (name, value) in &mut members.0 {
                *value = walk(value, inside(name, place), depth + 1)?;
            }
            raw(serde_json::to_string(&members).ok()?)
        }
        (b'[', place) => {
            let mut values: Vec<Box<RawValue>> = serde_json::from_str(text).ok()?;
            for value in &mut values {
                *value = match place {
                    Place::Secrets => entry(value)?,
                    _ => walk(value, place, depth + 1)?,
                };
            }
            raw(serde_json::to_string(&values).ok()?)
        }
        (b'n', _) => Some(value.to_owned()),
        (_, Place::Secrets) => raw(REDACTED.to_owned()),
        (_, _) => Some(value.to_owned()),
    }
}

fn inside(name: &str, place: Place) -> Place {
    match place {
        Place::Outside if name == "mcpServers" => Place::Servers,
        Place::Servers
            if name.eq_ignore_ascii_case("env") || name.eq_ignore_ascii_case("headers") =>
        {
            Place::Secrets
        }
        place => place,
    }
}

/// One entry of a list of secrets: `{name, value}`, or text like `NAME=value`. Only the name stays.
fn entry(value: &RawValue) -> Option<Box<RawValue>> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    // Only from an object: serde would read a list of one text as a `Named`, too.
    if value.get().starts_with('{') {
        let found = serde_json::from_str(value.get());
        return found.map_or_else(|_| raw(REDACTED.to_owned()), |Named { name }| named(&name));
    }
    let text: Option<String> = serde_json::from_str(value.get()).ok();
    match text.as_deref().and_then(|text| text.split_once(['=', ':'])) {
        Some((name, _)) => named(name.trim()),
        None => raw(REDACTED.to_owned()),
    }
}

fn named(name: &str) -> Option<Box<RawValue>> {
    let name = serde_json::to_string(name).ok()?;
    raw(format!(r#"{{"name":{name},"redacted":true}}"#))
}

fn raw(text: String) -> Option<Box<RawValue>> {
    RawValue::from_string(text).ok()
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_for_the_values_of_secrets() {
        for (params, expected) in [
            (
                r#"{"mcpServers":[{"name":"s","command":"c","args":["--x"],"env":[{"name":"K","value":"secret"}]}]}"#,
                r#"{"mcpServers":[{"name":"s","command":"c","args":["--x"],"env":[{"name":"K","redacted":true}]}]}"#,
            ),
            (
                r#"{"mcpServers":[{"type":"http","url":"u","headers":[{"value":"secret","name":"Authorization","_meta":{"also":"secret"}}]}]}"#,
                r#"{"mcpServers":[{"type":"http","url":"u","headers":[{"name":"Authorization","redacted":true}]}]}"#,
            ),
            (
                r#"{"mcpServers":{"s":{"env":{"K":"secret","L":{"deep":"secret"}},"Headers":{"A":["secret"]}}}}"#,
                r#"{"mcpServers":{"s":{"env":{"K":{"name":"K","redacted":true},"L":{"name":"L","redacted":true}},"Headers":{"A":{"name":"A","redacted":true}}}}}"#,
            ),
            (
                r#"{"mcpServers":[{"env":["K=secret","secret"],"headers":"secret"},{"env":null,"headers":[]}]}"#,
                r#"{"mcpServers":[{"env":[{"name":"K","redacted":true},{"redacted":true}],"headers":{"redacted":true}},{"env":null,"headers":[]}]}"#,
            ),
            (
                r#"{"mcpServers":[{"env":[{"value":"secret"},[{"name":"n","value":"secret"}],["secret"]]}]}"#,
                r#"{"mcpServers":[{"env":[{"redacted":true},{"redacted":true},{"redacted":true}]}]}"#,
            ),
            (
                r#"{"_meta":{"x":{"mcpServers":[{"later":{"env":[{"name":"K","value":"secret"}]}}]}}}"#,
                r#"{"_meta":{"x":{"mcpServers":[{"later":{"env":[{"name":"K","redacted":true}]}}]}}}"#,
            ),
        ] {
            let redacted = redact(params);
            assert_eq!(redacted, expected);
            assert!(!redacted.contains("secret"));
        }
    }

    #[test]
    fn all_else_is_kept_as_it_is_written() {
        let params = r#"{"cwd":"/w","env":{"K":"kept"},"big":123456789012345678901234567890,"n":1e2,"dup":1,"dup":2,"t":"\u2028\ud800"}"#;
        assert_eq!(redact(params), params);
    }

    #[test]
    fn what_cannot_be_looked_through_is_left_out() {
        assert_eq!(redact(r#"{"mcpServers":[{"env":"secret"#), REDACTED);
        assert_eq!(redact(""), REDACTED);
        let deep = format!("{}\"secret\"{}", "[".repeat(5_000), "]".repeat(5_000));
        assert!(!redact(&deep).contains("secret"));
        let lone = r#"{"mcpServers":[{"env":{"\ud800":"secret"}}]}"#;
        assert!(!redact(lone).contains("secret"));
    }
}
