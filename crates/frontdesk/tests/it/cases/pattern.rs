//! What a frame has to look like, as data: placeholders, captures and matchers.
//!
//! Pure. A pattern is JSON that a frame has to hold at least. Strings: `"*"` fits anything, `"@k"` is
//! captured at first sight and has to be equal afterwards, `${WORD}` is replaced first. Objects with
//! one member that begins with `$` are matchers or generators; `docs` are in `testdata/cases/README.md`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Which edge a frame is on: ids of sessions are spelled differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Between a client and the desk.
    Client,
    /// Between the desk and an agent.
    Agent,
}

/// All that names stand for in one run of a case.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    /// An agent's id of a session → the desk's spelling towards clients.
    pub(super) publics: BTreeMap<String, String>,
    /// Ids that an agent made in this run, and that may still get another spelling.
    pub(super) minted: Vec<String>,
    /// `@name` → what it was at first sight.
    pub(super) captured: BTreeMap<String, Value>,
    /// `${WORD}` → text.
    pub(super) words: BTreeMap<String, String>,
    /// The variant that is running.
    pub(super) variant: Value,
}

/// What a comparison found out, to be kept only if the whole frame fits.
#[derive(Debug, Default)]
pub(super) struct Found {
    captured: BTreeMap<String, Value>,
    publics: BTreeMap<String, String>,
}

/// The single `$…` member of an object, if that is all the object is.
fn operator(value: &Value) -> Option<(&str, &Value)> {
    let members = value.as_object()?;
    let (name, argument) = members.iter().next()?;
    (members.len() == 1 && name.starts_with('$') && !name.starts_with("$/"))
        .then_some((name.as_str(), argument))
}

impl Names {
    /// The desk's spelling of an agent's id, which is the id itself unless another was seen.
    pub(super) fn public<'a>(&'a self, native: &'a str) -> &'a str {
        self.publics.get(native).map_or(native, String::as_str)
    }

    /// Keeps what a comparison found out.
    pub(super) fn keep(&mut self, found: Found) {
        self.captured.extend(found.captured);
        self.publics.extend(found.publics);
    }

    fn words_in(&self, text: &str) -> String {
        let mut out = text.to_owned();
        if out.contains("${") {
            for (word, value) in &self.words {
                out = out.replace(&format!("${{{word}}}"), value);
            }
            if let Some(text) = self.variant.as_str() {
                out = out.replace("${v}", text);
            }
        }
        out
    }

    fn list(&self, argument: &Value) -> Result<Vec<Value>, String> {
        let items = argument.as_array().ok_or(format!("not a list: {argument}"))?;
        items.iter().map(|item| self.expand(item)).collect()
    }

    /// Replaces words, variants and generators; leaves captures and matchers alone.
    pub(super) fn expand(&self, value: &Value) -> Result<Value, String> {
        if let Some((name, argument)) = operator(value) {
            match name {
                "$v" => {
                    let pointer = argument.as_str().ok_or("$v takes a JSON pointer")?;
                    let found = self.variant.pointer(pointer).cloned();
                    return found.ok_or(format!("variant {} has no {pointer}", self.variant));
                }
                "$repeat" => {
                    let [text, count] = &self.list(argument)?[..] else {
                        return Err(format!("$repeat takes [text, count]: {argument}"));
                    };
                    let count = count.as_u64().ok_or("$repeat takes a count")?;
                    let text = text.as_str().ok_or("$repeat takes a text")?;
                    return Ok(Value::String(text.repeat(usize::try_from(count).unwrap_or(0))));
                }
                "$cat" => {
                    let parts = self.list(argument)?;
                    let parts: Vec<&str> = parts.iter().filter_map(Value::as_str).collect();
                    return Ok(Value::String(parts.concat()));
                }
                "$public" => {
                    let native = self.expand(argument)?;
                    let native = native.as_str().ok_or("$public takes an id")?;
                    return Ok(json!({ "$lit": self.public(native) }));
                }
                _ => {}
            }
        }
        Ok(match value {
            Value::String(text) => Value::String(self.words_in(text)),
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.expand(item)).collect::<Result<_, _>>()?)
            }
            Value::Object(members) => {
                let mut out = Map::new();
                for (name, member) in members {
                    out.insert(self.words_in(name), self.expand(member)?);
                }
                Value::Object(out)
            }
            other => other.clone(),
        })
    }

    /// A frame to send: everything replaced; session ids in the spelling of `side`.
    pub(super) fn fill(&self, value: &Value, side: Side) -> Result<Value, String> {
        self.fill_member(None, &self.expand(value)?, side)
    }

    fn fill_member(&self, key: Option<&str>, value: &Value, side: Side) -> Result<Value, String> {
        if let Some(("$lit", literal)) = operator(value) {
            return Ok(literal.clone());
        }
        Ok(match value {
            Value::String(text) if text.starts_with('@') => {
                let known = self.captured.get(text).cloned();
                known.ok_or_else(|| format!("nothing was captured as {text}"))?
            }
            Value::String(text) if key == Some("sessionId") && side == Side::Client => {
                Value::String(self.public(text).to_owned())
            }
            Value::Array(items) => {
                let items = items.iter().map(|item| self.fill_member(None, item, side));
                Value::Array(items.collect::<Result<_, _>>()?)
            }
            Value::Object(members) => {
                let mut out = Map::new();
                for (name, member) in members {
                    out.insert(name.clone(), self.fill_member(Some(name), member, side)?);
                }
                Value::Object(out)
            }
            other => other.clone(),
        })
    }

    /// Whether `actual` holds at least what `pattern` (already expanded) says.
    pub(super) fn fits(
        &self,
        pattern: &Value,
        actual: &Value,
        side: Side,
    ) -> Result<Found, String> {
        let mut found = Found::default();
        self.compare("", pattern, Some(actual), side, &mut found)?;
        Ok(found)
    }

    fn compare(
        &self,
        path: &str,
        pattern: &Value,
        actual: Option<&Value>,
        side: Side,
        found: &mut Found,
    ) -> Result<(), String> {
        if let Some((name, argument)) = operator(pattern) {
            return self.operate(path, name, argument, actual, side, found);
        }
        let Some(actual) = actual else { return Err(format!("{path} is missing")) };
        let differs = || Err(format!("{path} is {}, not {}", cut(actual), cut(pattern)));
        match (pattern, actual) {
            (Value::String(text), _) if text == "*" => Ok(()),
            (Value::String(text), _) if text.starts_with('@') => {
                let known = found.captured.get(text).or_else(|| self.captured.get(text));
                match known {
                    Some(known) if known == actual => Ok(()),
                    Some(_) => differs(),
                    None => {
                        found.captured.insert(text.clone(), actual.clone());
                        Ok(())
                    }
                }
            }
            (Value::String(text), Value::String(seen)) => {
                if side == Side::Client && path.ends_with("/sessionId") {
                    let known = found.publics.get(text).map(String::as_str);
                    if known.unwrap_or_else(|| self.public(text)) == seen {
                        return Ok(());
                    }
                    let fresh = path == "/result/sessionId"
                        && self.minted.contains(text)
                        && !self.publics.contains_key(text)
                        && !self.publics.values().any(|public| public == seen);
                    if fresh {
                        found.publics.insert(text.clone(), seen.clone());
                        return Ok(());
                    }
                    return differs();
                }
                if text == seen { Ok(()) } else { differs() }
            }
            (Value::Object(wanted), Value::Object(members)) => {
                for (name, member) in wanted {
                    let inner = format!("{path}/{name}");
                    self.compare(&inner, member, members.get(name), side, found)?;
                }
                Ok(())
            }
            (Value::Array(wanted), Value::Array(items)) => {
                if wanted.len() != items.len() {
                    return Err(format!("{path} has {} items, not {}", items.len(), wanted.len()));
                }
                for (at, (wanted, item)) in wanted.iter().zip(items).enumerate() {
                    self.compare(&format!("{path}/{at}"), wanted, Some(item), side, found)?;
                }
                Ok(())
            }
            _ if pattern == actual => Ok(()),
            _ => differs(),
        }
    }

    fn operate(
        &self,
        path: &str,
        name: &str,
        argument: &Value,
        actual: Option<&Value>,
        side: Side,
        found: &mut Found,
    ) -> Result<(), String> {
        if name == "$absent" {
            return match actual {
                None => Ok(()),
                Some(actual) => Err(format!("{path} is there: {}", cut(actual))),
            };
        }
        if name == "$optional" {
            return match actual {
                None => Ok(()),
                Some(_) => self.compare(path, argument, actual, side, found),
            };
        }
        if name == "$not" {
            return match self.compare(path, argument, actual, side, &mut Found::default()) {
                Ok(()) => Err(format!("{path} must not be {}", cut(argument))),
                Err(_) => Ok(()),
            };
        }
        let Some(actual) = actual else { return Err(format!("{path} is missing")) };
        match name {
            "$lit" if argument == actual => Ok(()),
            "$lit" => Err(format!("{path} is {}, not exactly {}", cut(actual), cut(argument))),
            // The value, whole: no member more, no member less.
            "$exact" => {
                let wanted = self.fill(argument, side)?;
                if wanted == *actual {
                    Ok(())
                } else {
                    Err(format!("{path} is {}, not exactly {}", cut(actual), cut(&wanted)))
                }
            }
            "$any" => {
                let choices = argument.as_array().ok_or("$any takes a list")?;
                for choice in choices {
                    let mut inner = Found::default();
                    if self.compare(path, choice, Some(actual), side, &mut inner).is_ok() {
                        found.captured.extend(inner.captured);
                        found.publics.extend(inner.publics);
                        return Ok(());
                    }
                }
                Err(format!("{path} is {}, none of {}", cut(actual), cut(argument)))
            }
            "$all" => {
                for wanted in argument.as_array().ok_or("$all takes a list")? {
                    self.compare(path, wanted, Some(actual), side, found)?;
                }
                Ok(())
            }
            // Some value inside, at any depth, fits.
            "$deep" => {
                if self.deep(path, argument, actual, side, found) {
                    Ok(())
                } else {
                    Err(format!("nothing in {path} fits {}: {}", cut(argument), cut(actual)))
                }
            }
            // Some item of the list fits.
            "$some" => {
                let items = actual.as_array().ok_or(format!("{path} is no list"))?;
                for item in items {
                    let mut inner = Found::default();
                    if self.compare(path, argument, Some(item), side, &mut inner).is_ok() {
                        found.captured.extend(inner.captured);
                        return Ok(());
                    }
                }
                Err(format!("no item of {path} fits {}: {}", cut(argument), cut(actual)))
            }
            "$count" => {
                let items = actual.as_array().ok_or(format!("{path} is no list"))?;
                if argument.as_u64() == Some(items.len() as u64) {
                    Ok(())
                } else {
                    Err(format!("{path} has {} items, not {argument}", items.len()))
                }
            }
            "$least" => {
                if actual.as_f64() >= argument.as_f64() {
                    Ok(())
                } else {
                    Err(format!("{path} is {actual}, less than {argument}"))
                }
            }
            // The JSON text of the value has one of these words, in any case of letters.
            "$says" => {
                let text = actual.to_string().to_lowercase();
                let words = argument.as_array().ok_or("$says takes a list of words")?;
                let said = words.iter().filter_map(Value::as_str).any(|word| {
                    text.contains(&word.to_lowercase())
                        || (side == Side::Client && text.contains(self.public(word)))
                });
                if said {
                    Ok(())
                } else {
                    Err(format!("{path} says none of {argument}: {}", cut(actual)))
                }
            }
            "$type" => {
                let kind = match actual {
                    Value::Null => "null",
                    Value::Bool(_) => "boolean",
                    Value::Number(_) => "number",
                    Value::String(_) => "string",
                    Value::Array(_) => "list",
                    Value::Object(_) => "object",
                };
                if argument == kind { Ok(()) } else { Err(format!("{path} is a {kind}")) }
            }
            _ => Err(format!("{path}: no such matcher {name}")),
        }
    }

    fn deep(
        &self,
        path: &str,
        pattern: &Value,
        actual: &Value,
        side: Side,
        found: &mut Found,
    ) -> bool {
        let mut inner = Found::default();
        if self.compare(path, pattern, Some(actual), side, &mut inner).is_ok() {
            found.captured.extend(inner.captured);
            return true;
        }
        match actual {
            Value::Array(items) => {
                items.iter().any(|item| self.deep(path, pattern, item, side, found))
            }
            Value::Object(members) => {
                members.values().any(|item| self.deep(path, pattern, item, side, found))
            }
            _ => false,
        }
    }
}

/// A value's text, short enough for a message.
pub(super) fn cut(value: &Value) -> String {
    shorten(&value.to_string(), 400)
}

/// The first and last characters of a text that is longer than `limit` bytes.
pub(super) fn shorten(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let head: String = text.chars().take(limit / 2).collect();
    let tail: Vec<char> = text.chars().rev().take(limit / 4).collect();
    let tail: String = tail.into_iter().rev().collect();
    format!("{head}… {} bytes …{tail}", text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let mut names = Names::default();
        names.words.insert("WS".into(), "/ws".into());
        names.publics.insert("sess-a".into(), "key-a".into());
        names.minted.push("sess-b".into());
        names.variant = json!({"code": -1, "words": "x"});
        names
    }

    #[test]
    fn a_frame_is_filled_in_the_spelling_of_its_edge() {
        let frame = json!({"params": {"sessionId": "sess-a", "cwd": "${WS}/alpha", "c": {"$v": "/code"},
            "long": {"$repeat": ["ab", 3]}, "raw": {"$lit": "sess-a"}}});
        let client = names().fill(&frame, Side::Client).unwrap();
        assert_eq!(
            client,
            json!({"params": {"sessionId": "key-a", "cwd": "/ws/alpha", "c": -1, "long": "ababab", "raw": "sess-a"}})
        );
        let agent = names().fill(&frame, Side::Agent).unwrap();
        assert_eq!(agent["params"]["sessionId"], "sess-a");
    }

    #[test]
    fn a_capture_has_to_be_equal_afterwards() {
        let mut names = names();
        let found = names.fits(&json!({"id": "@k"}), &json!({"id": 7}), Side::Agent).unwrap();
        names.keep(found);
        assert!(names.fits(&json!({"id": "@k"}), &json!({"id": 7}), Side::Agent).is_ok());
        assert!(names.fits(&json!({"id": "@k"}), &json!({"id": "7"}), Side::Agent).is_err());
        assert_eq!(names.fill(&json!("@k"), Side::Agent).unwrap(), json!(7));
        assert!(names.fill(&json!("@other"), Side::Agent).is_err());
    }

    #[test]
    fn the_desks_spelling_is_learned_once() {
        let mut names = names();
        let answer = json!({"result": {"sessionId": "key-b"}});
        let pattern = json!({"result": {"sessionId": "sess-b"}});
        let found = names.fits(&pattern, &answer, Side::Client).unwrap();
        names.keep(found);
        assert_eq!(names.public("sess-b"), "key-b");
        let other = json!({"result": {"sessionId": "key-c"}});
        assert!(names.fits(&pattern, &other, Side::Client).is_err());
        // Nothing is learned anywhere else, and never for an id that no agent made.
        let update = json!({"params": {"sessionId": "key-d"}});
        assert!(
            names.fits(&json!({"params": {"sessionId": "sess-z"}}), &update, Side::Client).is_err()
        );
        let forged = json!({"result": {"sessionId": "key-d"}});
        assert!(
            names.fits(&json!({"result": {"sessionId": "sess-z"}}), &forged, Side::Client).is_err()
        );
    }

    #[test]
    fn matchers_can_fail() {
        let names = names();
        let ok =
            |pattern: Value, actual: Value| names.fits(&pattern, &actual, Side::Client).is_ok();
        assert!(ok(json!({"a": "*"}), json!({"a": null, "b": 1})));
        assert!(!ok(json!({"a": "*"}), json!({"b": 1})));
        assert!(!ok(json!([1]), json!([1, 2])));
        assert!(ok(json!({"x": {"$absent": true}}), json!({})));
        assert!(!ok(json!({"x": {"$absent": true}}), json!({"x": 1})));
        assert!(ok(json!({"$not": {"x": 1}}), json!({"x": 2})));
        assert!(!ok(json!({"$not": {"x": 1}}), json!({"x": 1})));
        assert!(ok(json!({"$any": [1, "a"]}), json!("a")));
        assert!(!ok(json!({"$any": [1, "a"]}), json!("b")));
        assert!(ok(json!({"$deep": {"t": 1}}), json!([{"a": {"t": 1, "u": 2}}])));
        assert!(!ok(json!({"$deep": {"t": 1}}), json!([{"a": {"t": 2}}])));
        assert!(!ok(json!({"$exact": {"t": 1}}), json!({"t": 1, "u": 2})));
        assert!(ok(json!({"$exact": {"sessionId": "sess-a"}}), json!({"sessionId": "key-a"})));
        assert!(ok(json!({"$says": ["ENDED"]}), json!({"m": "it ended"})));
        assert!(!ok(json!({"$says": ["ended"]}), json!({"m": "it runs"})));
        assert!(!ok(json!({"$count": 1}), json!([])));
        assert!(ok(json!({"$some": {"a": 1}}), json!([{"a": 2}, {"a": 1}])));
        assert!(!ok(json!({"$some": {"a": 1}}), json!([{"a": 2}])));
        assert!(!ok(json!({"$unheard": 1}), json!(1)));
    }
}
