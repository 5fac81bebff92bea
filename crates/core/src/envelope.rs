//! JSON-RPC 2.0 envelopes over the original bytes.
//!
//! A frame is read shallowly: the members Frontdesk routes by are located, everything else stays
//! text. Ids and session ids are replaced by splicing bytes, so what we do not know passes
//! unchanged (promise P7). Sources: JSON-RPC 2.0; ACP "Transports" (one message a line).

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

/// What one line holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request: it must be answered once.
    Request(Frame),
    /// A notification: never answered.
    Notification(Frame),
    /// A result or an error for a request that the other side was sent.
    Response(Frame),
}

/// The original text of one message and where its parts lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The whole line without its line end.
    pub text: Bytes,
    /// The method; empty in a response.
    pub method: Box<str>,
    id: Option<Range<u32>>,
    params: Option<Range<u32>>,
    result: Option<Range<u32>>,
    error: Option<Range<u32>>,
    session: Option<Range<u32>>,
    extras: bool,
}

/// Why a line is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not JSON at all: `-32700`.
    #[error("the line is not valid JSON")]
    NotJson,
    /// JSON, but no JSON-RPC message: `-32600`.
    #[error("the line is JSON but not a JSON-RPC message")]
    NotMessage,
    /// An array: `-32600` from clients, taken apart from agents.
    #[error("batches are not supported; send one message a line")]
    Batch,
    /// Nothing but white space: ignored.
    #[error("the line is blank")]
    Blank,
}

/// The outermost members, each as text. Later duplicates win, as in `serde_json::Value`.
#[derive(Default)]
struct Shallow<'a> {
    id: Option<&'a RawValue>,
    method: Option<Cow<'a, str>>,
    params: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
    extras: bool,
}

impl<'de> Deserialize<'de> for Shallow<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Shallow<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON-RPC message")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut shallow = Shallow::default();
                while let Some(Borrowed(name)) = map.next_key()? {
                    match name.as_ref() {
                        "jsonrpc" => drop(map.next_value::<serde::de::IgnoredAny>()?),
                        "id" => shallow.id = Some(map.next_value()?),
                        "method" => shallow.method = Some(map.next_value::<Borrowed<'de>>()?.0),
                        "params" => shallow.params = Some(map.next_value()?),
                        "result" => shallow.result = Some(map.next_value()?),
                        "error" => shallow.error = Some(map.next_value()?),
                        _ => {
                            map.next_value::<serde::de::IgnoredAny>()?;
                            shallow.extras = true;
                        }
                    }
                }
                Ok(shallow)
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

#[derive(Deserialize)]
struct SessionPeek<'a> {
    #[serde(borrow, default, rename = "sessionId", deserialize_with = "present")]
    session_id: Option<&'a RawValue>,
}

/// Keeps `null` apart from an absent member, which `Option` alone does not.
fn present<'de: 'a, 'a, D>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl Message {
    /// Reads one line.
    ///
    /// # Errors
    /// [`Malformed`] says which kind of wrong it is.
    pub fn parse(line: Bytes) -> Result<Self, Malformed> {
        let trimmed = trim(&line);
        let first = *line.get(trimmed.start).ok_or(Malformed::Blank)?;
        let text = if trimmed.len() == line.len() { line } else { line.slice(trimmed) };
        match first {
            b'{' => Self::parse_object(text),
            b'[' => match serde_json::from_slice::<serde::de::IgnoredAny>(&text) {
                Ok(_) => Err(Malformed::Batch),
                Err(_) => Err(Malformed::NotJson),
            },
            _ => match serde_json::from_slice::<serde::de::IgnoredAny>(&text) {
                Ok(_) => Err(Malformed::NotMessage),
                Err(_) => Err(Malformed::NotJson),
            },
        }
    }

    fn parse_object(text: Bytes) -> Result<Self, Malformed> {
        let shallow: Shallow<'_> = serde_json::from_slice(&text).map_err(|error| {
            if error.is_data() { Malformed::NotMessage } else { Malformed::NotJson }
        })?;
        let at = |raw: &RawValue| locate(&text, raw.get());
        let id = shallow.id.map(at);
        let params = shallow.params.map(at);
        let result = shallow.result.map(at);
        let error = shallow.error.map(at);
        let scope = shallow.params.or(shallow.result);
        let session = scope.and_then(|raw| peek_session(raw.get())).map(|raw| locate(&text, raw));
        let method: Box<str> = shallow.method.as_deref().unwrap_or("").into();
        let is_call = shallow.method.is_some();
        let answered = result.is_some() || error.is_some();
        let valid_id = shallow.id.is_none_or(|raw| is_id(raw.get()));
        let extras = shallow.extras;
        let frame = Frame { text, method, id, params, result, error, session, extras };
        match (is_call, frame.id.is_some(), answered) {
            (true, true, false) if valid_id => Ok(Self::Request(frame)),
            (true, false, false) => Ok(Self::Notification(frame)),
            (false, _, true) if valid_id => Ok(Self::Response(frame)),
            _ => Err(Malformed::NotMessage),
        }
    }

    /// The frame whatever its kind.
    #[must_use]
    pub fn frame(&self) -> &Frame {
        match self {
            Self::Request(frame) | Self::Notification(frame) | Self::Response(frame) => frame,
        }
    }
}

/// Splits an array line into the texts of its elements, for agents that batch.
#[must_use]
pub fn batch_elements(line: &Bytes) -> Vec<Bytes> {
    let Ok(parts) = serde_json::from_slice::<Vec<&RawValue>>(line) else { return Vec::new() };
    parts
        .into_iter()
        .map(|raw| {
            let range = locate(line, raw.get());
            line.slice(range.start as usize..range.end as usize)
        })
        .collect()
}

impl Frame {
    /// A notification or request that Frontdesk writes itself; `params` is JSON text.
    #[must_use]
    pub fn call(method: &str, id: Option<&str>, params: &str) -> Bytes {
        let mut out = String::with_capacity(params.len() + method.len() + 64);
        out.push_str(r#"{"jsonrpc":"2.0","#);
        if let Some(id) = id {
            out.push_str(r#""id":"#);
            out.push_str(id);
            out.push(',');
        }
        out.push_str(r#""method":"#);
        out.push_str(&quote(method));
        out.push_str(r#","params":"#);
        out.push_str(params);
        out.push('}');
        Bytes::from(out)
    }

    /// A successful answer that Frontdesk writes itself; `id` and `result` are JSON text.
    #[must_use]
    pub fn success(id: &str, result: &str) -> Bytes {
        Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
    }

    /// An error answer; `id` and `error` are JSON text.
    #[must_use]
    pub fn failure(id: &str, error: &str) -> Bytes {
        Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#))
    }

    /// The id's JSON text exactly as sent: `1`, `"1"`, `9223372036854775808`, `null`.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.part(self.id.as_ref())
    }

    /// The params' JSON text.
    #[must_use]
    pub fn params(&self) -> Option<&str> {
        self.part(self.params.as_ref())
    }

    /// The result's JSON text.
    #[must_use]
    pub fn result(&self) -> Option<&str> {
        self.part(self.result.as_ref())
    }

    /// The error's JSON text.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.part(self.error.as_ref())
    }

    /// `sessionId` directly in the params or the result, decoded; `None` if absent or no string.
    #[must_use]
    pub fn session_id(&self) -> Option<Cow<'_, str>> {
        let raw = self.part(self.session.as_ref())?;
        serde_json::from_str::<Borrowed<'_>>(raw).ok().map(|value| value.0)
    }

    /// Whether params or result have a `sessionId` member, of whatever type.
    #[must_use]
    pub fn has_session_id(&self) -> bool {
        self.session.is_some()
    }

    /// Whether the envelope has members beyond the ones JSON-RPC names.
    #[must_use]
    pub fn has_extras(&self) -> bool {
        self.extras
    }

    /// The same text with another id and, where given, another `sessionId` (both JSON text).
    /// A part that the frame does not have is not added.
    #[must_use]
    pub fn spliced(&self, id: Option<&str>, session: Option<&str>) -> Bytes {
        let mut cuts: Vec<(&Range<u32>, &str)> = Vec::with_capacity(2);
        if let (Some(range), Some(new)) = (&self.id, id) {
            cuts.push((range, new));
        }
        if let (Some(range), Some(new)) = (&self.session, session) {
            cuts.push((range, new));
        }
        if cuts.iter().all(|(range, new)| self.part(Some(range)) == Some(*new)) {
            return self.text.clone();
        }
        cuts.sort_by_key(|(range, _)| range.start);
        let grown: usize = cuts.iter().map(|(_, new)| new.len()).sum();
        let mut out = Vec::with_capacity(self.text.len() + grown);
        let mut from = 0;
        for (range, new) in cuts {
            out.extend_from_slice(&self.text[from..range.start as usize]);
            out.extend_from_slice(new.as_bytes());
            from = range.end as usize;
        }
        out.extend_from_slice(&self.text[from..]);
        Bytes::from(out)
    }

    /// The params' bytes, sharing the frame's memory.
    #[must_use]
    pub fn params_bytes(&self) -> Option<Bytes> {
        self.params.as_ref().map(|range| self.text.slice(range.start as usize..range.end as usize))
    }

    fn part(&self, range: Option<&Range<u32>>) -> Option<&str> {
        let range = range?;
        self.text
            .get(range.start as usize..range.end as usize)
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
    }
}

/// A string that borrows where the JSON has no escapes.
#[derive(Deserialize)]
struct Borrowed<'a>(#[serde(borrow)] Cow<'a, str>);

/// The members of an object in order, doubles included, each value in its own spelling.
pub(crate) struct Members<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Borrowed(name)) = map.next_key()? {
                    members.push((name, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// JSON text of a string.
#[must_use]
pub fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Finds the id of a message whose line was too long to keep, from its first and last bytes.
///
/// Members may come in any order, so both ends are searched for an `"id":` member whose value is
/// complete. It is a best effort: nested ids are avoided by looking at the outermost level only at
/// the front, and only behind the last closing bracket at the back.
#[must_use]
pub fn peek_id(head: &[u8], tail: &[u8]) -> Option<String> {
    let head = String::from_utf8_lossy(head);
    let front = head.find(['{']).and_then(|open| {
        let rest = &head[open + 1..];
        let stop = rest.find(['{', '[']).unwrap_or(rest.len());
        id_member(&rest[..stop])
    });
    front.or_else(|| {
        let tail = String::from_utf8_lossy(tail);
        let body = tail.trim_end().strip_suffix('}')?.to_owned();
        let start = body.rfind(['}', ']']).map_or(0, |at| at + 1);
        id_member(&body[start..])
    })
}

fn id_member(text: &str) -> Option<String> {
    let at = text.find(r#""id""#)?;
    let rest = text[at + 4..].trim_start().strip_prefix(':')?.trim_start();
    let end = if let Some(inner) = rest.strip_prefix('"') {
        inner.find('"')? + 2
    } else {
        rest.find(|c: char| c == ',' || c == '}' || c.is_whitespace()).unwrap_or(rest.len())
    };
    let id = rest.get(..end)?;
    is_id(id).then(|| id.to_owned())
}

fn is_id(raw: &str) -> bool {
    raw == "null"
        || raw.starts_with('"')
        || raw.starts_with(|c: char| c == '-' || c.is_ascii_digit())
}

fn trim(line: &[u8]) -> Range<usize> {
    let start = line.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(line.len());
    let end = line.iter().rposition(|byte| !byte.is_ascii_whitespace()).map_or(start, |at| at + 1);
    start..end
}

/// Where a slice of `text` lies in it, by address: `RawValue` borrows from the input.
fn locate(text: &[u8], part: &str) -> Range<u32> {
    let start = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    let start = u32::try_from(start).unwrap_or(u32::MAX);
    start..start.saturating_add(u32::try_from(part.len()).unwrap_or(u32::MAX))
}

fn peek_session(params: &str) -> Option<&str> {
    if !params.starts_with('{') {
        return None;
    }
    serde_json::from_str::<SessionPeek<'_>>(params).ok()?.session_id.map(RawValue::get)
}

#[cfg(test)]
#[path = "envelope_tests.rs"]
mod tests;
