//! Record to face: what an ACP v1 client is shown of a session's records.
//!
//! The same function serves history and live frames, so that a replay is what was shown. Prompts
//! become `user_message_chunk`s, because most agents do not echo them; an agent's own echo of a
//! prompt (some do) goes to its sender alone. Source: ACP v1 "Prompt turn", "Session setup".

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::envelope::{Frame, Message, quote};
use crate::record::{Kind, Record};

/// The kind of an update stands near its front: an echo is looked for in this many bytes.
const ECHO_BYTES: usize = 4096;

/// Who is shown a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Every attached client.
    All,
    /// All but the client with this key.
    Others(Box<str>),
    /// Only the client with this key.
    Sender(Box<str>),
}

/// One frame for clients, before the session id is respelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Who gets it.
    pub to: Audience,
    /// A whole `session/update` frame.
    pub frame: Bytes,
}

/// Renders one session's records in order.
#[derive(Clone, Debug, Default)]
pub struct Renderer {
    sender: Option<Box<str>>,
    prompt: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Prompt<'a> {
    #[serde(default)]
    client: Box<str>,
    #[serde(borrow, default)]
    prompt: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Chunk {
    update: ChunkUpdate,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChunkUpdate {
    session_update: String,
    #[serde(default)]
    content: Option<TextBlock>,
}

/// A content block as far as its text.
#[derive(Deserialize)]
struct TextBlock {
    #[serde(default)]
    text: String,
}

impl Renderer {
    /// The frames for one record; `native` is the id put into frames that Frontdesk makes.
    pub fn acp_v1(&mut self, record: &Record, native: &str, out: &mut Vec<Shown>) {
        match record.kind {
            Kind::TurnStarted => self.prompt(record, native, out),
            Kind::TurnEnded | Kind::Closed | Kind::Lost => {
                self.sender = None;
                self.prompt.clear();
            }
            Kind::Update | Kind::Imported | Kind::TurnLate => {
                out.push(Shown { to: self.audience(record), frame: update_frame(&record.data) });
            }
            Kind::Note | Kind::Damage => {
                if let Some(frame) = note_frame(record, native) {
                    out.push(Shown { to: Audience::All, frame });
                }
            }
            Kind::Claimed
            | Kind::Created
            | Kind::Adopted
            | Kind::Loaded
            | Kind::Parameters
            | Kind::Archived
            | Kind::Deleted
            | Kind::Metadata
            | Kind::Options
            | Kind::Commands
            | Kind::Renamed
            | Kind::Title
            | Kind::Branch
            | Kind::Policy
            | Kind::TurnQueued
            | Kind::InteractionOpened
            | Kind::InteractionSettled
            | Kind::Command
            | Kind::Subagent
            | Kind::Unknown(_) => {}
        }
    }

    fn prompt(&mut self, record: &Record, native: &str, out: &mut Vec<Shown>) {
        let Some(prompt) = record.payload::<Prompt<'_>>() else { return };
        self.prompt = prompt
            .prompt
            .iter()
            .filter_map(|block| serde_json::from_str::<TextBlock>(block.get()).ok())
            .map(|block| block.text)
            .collect();
        for block in &prompt.prompt {
            let params = format!(
                r#"{{"sessionId":{},"update":{{"sessionUpdate":"user_message_chunk","content":{}}}}}"#,
                quote(native),
                block.get()
            );
            let frame = Frame::call("session/update", None, &params);
            out.push(Shown { to: Audience::Others(prompt.client.clone()), frame });
        }
        self.sender = Some(prompt.client);
    }

    /// Whom an update is for: an echo of the running prompt is only for its sender.
    #[must_use]
    pub fn audience(&self, record: &Record) -> Audience {
        let Some(sender) = self.sender.as_ref().filter(|_| record.kind == Kind::Update) else {
            return Audience::All;
        };
        let head = &record.data[..record.data.len().min(ECHO_BYTES)];
        let looks_like_it = memchr::memmem::find(head, b"user_message_chunk").is_some();
        let is_echo = looks_like_it
            && serde_json::from_slice::<Chunk>(&stored_params(&record.data)).is_ok_and(|chunk| {
                chunk.update.session_update == "user_message_chunk"
                    && chunk.update.content.is_some_and(|block| self.prompt.contains(&block.text))
            });
        if is_echo { Audience::Sender(sender.clone()) } else { Audience::All }
    }
}

/// How a whole frame is kept where its params alone would lose something.
const WHOLE: &[u8] = br#"{"frame":"#;

/// What a record keeps of an agent's `session/update`: its params, or the whole frame where the
/// envelope has members that JSON-RPC does not name.
#[must_use]
pub fn stored_update(frame: &Frame) -> Bytes {
    let params = frame.params_bytes().unwrap_or_else(|| Bytes::from_static(b"null"));
    if !frame.has_extras() && !params.starts_with(WHOLE) {
        return params;
    }
    let mut whole = Vec::with_capacity(WHOLE.len() + frame.text.len() + 1);
    whole.extend_from_slice(WHOLE);
    whole.extend_from_slice(&frame.text);
    whole.push(b'}');
    Bytes::from(whole)
}

/// The params of a stored `session/update`.
#[must_use]
pub fn stored_params(data: &Bytes) -> Bytes {
    let Some(frame) = whole_frame(data) else { return data.clone() };
    match Message::parse(frame) {
        Ok(message) => message.frame().params_bytes().unwrap_or_default(),
        Err(_) => data.clone(),
    }
}

/// The `session/update` frame that a record keeps, as the agent sent it.
#[must_use]
pub fn update_frame(data: &Bytes) -> Bytes {
    whole_frame(data).unwrap_or_else(|| {
        let mut frame = Vec::with_capacity(UPDATE.len() + data.len() + 1);
        frame.extend_from_slice(UPDATE);
        frame.extend_from_slice(data);
        frame.push(b'}');
        Bytes::from(frame)
    })
}

/// What stands before the params in an update that Frontdesk puts together.
const UPDATE: &[u8] = br#"{"jsonrpc":"2.0","method":"session/update","params":"#;

fn whole_frame(data: &Bytes) -> Option<Bytes> {
    data.starts_with(WHOLE).then(|| data.slice(WHOLE.len()..data.len().saturating_sub(1)))
}

/// A remark of Frontdesk's in the history, as an agent message that says whose it is.
fn note_frame(record: &Record, native: &str) -> Option<Bytes> {
    #[derive(Deserialize)]
    struct Note {
        text: String,
        #[serde(default)]
        shown: bool,
    }
    let note = record.payload::<Note>().filter(|note| note.shown)?;
    let params = format!(
        r#"{{"sessionId":{},"update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":{}}},"_meta":{{"frontdesk":{{"note":true}}}}}}}}"#,
        quote(native),
        quote(&format!("[frontdesk] {}\n", note.text)),
    );
    Some(Frame::call("session/update", None, &params))
}

/// A remark of Frontdesk's own that is in no journal, as a client sees it. `meta` is what else
/// `_meta.frontdesk` says: the inside of a JSON object, not empty.
#[must_use]
pub fn remark(session_id: &str, text: &str, meta: &str) -> Bytes {
    let params = format!(
        r#"{{"sessionId":{},"update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":{}}},"_meta":{{"frontdesk":{{"note":true,{meta}}}}}}}}}"#,
        quote(session_id),
        quote(&format!("[frontdesk] {text}\n")),
    );
    Frame::call("session/update", None, &params)
}

/// The frame in the spelling of one client: the native id is respelled where it is the
/// session's own; ids of child sessions stay.
#[must_use]
pub fn respell(frame: &Bytes, native: &str, spelling: &str) -> Bytes {
    if native == spelling {
        return frame.clone();
    }
    match Message::parse(frame.clone()) {
        Ok(message) if message.frame().session_id().as_deref() == Some(native) => {
            message.frame().spliced(None, Some(&quote(spelling)))
        }
        _ => frame.clone(),
    }
}

/// The frame of an update as text, with an empty session id whichever its params have, so that it is
/// the same for many sessions. [`respell`] puts an id in.
pub(crate) fn unspelled(params: &Bytes) -> Option<Arc<str>> {
    let message = Message::parse(update_frame(params)).ok()?;
    let frame = message.frame().spliced(None, Some(&quote("")));
    std::str::from_utf8(&frame).ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RECORD_VERSION;

    fn record(kind: Kind, data: &str) -> Record {
        Record {
            v: RECORD_VERSION,
            seq: 1,
            epoch: 1,
            at: jiff::Timestamp::UNIX_EPOCH,
            kind,
            src: None,
            data: Bytes::copy_from_slice(data.as_bytes()),
        }
    }

    fn render(renderer: &mut Renderer, kind: Kind, data: &str) -> Vec<Shown> {
        let mut out = Vec::new();
        renderer.acp_v1(&record(kind, data), "n", &mut out);
        out
    }

    const PROMPT: &str =
        r#"{"turn":"t","client":"k","prompt":[{"type":"text","text":"hi","x":1e2}]}"#;

    #[test]
    fn a_prompt_is_shown_to_the_others_with_its_own_bytes() {
        let shown = render(&mut Renderer::default(), Kind::TurnStarted, PROMPT);
        assert_eq!(shown.len(), 1);
        assert_eq!(shown[0].to, Audience::Others("k".into()));
        let text = String::from_utf8(shown[0].frame.to_vec()).unwrap();
        assert!(text.contains(r#""content":{"type":"text","text":"hi","x":1e2}"#), "{text}");
    }

    #[test]
    fn an_echo_goes_to_its_sender_only_and_only_while_the_turn_runs() {
        let echo = r#"{"sessionId":"n","update":{"sessionUpdate":"user_message_chunk","content":{"type":"text","text":"hi"}}}"#;
        let other = echo.replace("hi", "something else");
        let mut renderer = Renderer::default();
        render(&mut renderer, Kind::TurnStarted, PROMPT);
        assert_eq!(render(&mut renderer, Kind::Update, echo)[0].to, Audience::Sender("k".into()));
        assert_eq!(render(&mut renderer, Kind::Update, &other)[0].to, Audience::All);
        render(&mut renderer, Kind::TurnEnded, "{}");
        assert_eq!(render(&mut renderer, Kind::Update, echo)[0].to, Audience::All);
    }

    #[test]
    fn an_update_keeps_its_bytes_and_only_its_own_id_is_respelled() {
        let params = r#"{"_meta":{"a":1e2},"sessionId":"n","update":{"sessionUpdate":"zzz"}}"#;
        let shown = render(&mut Renderer::default(), Kind::Update, params);
        let want = format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{params}}}"#);
        assert_eq!(shown[0].frame, want.as_bytes());
        assert_eq!(
            respell(&shown[0].frame, "n", "key"),
            want.replace("\"n\"", "\"key\"").as_bytes()
        );
        let child = want.replace("\"n\"", "\"child\"");
        assert_eq!(respell(&Bytes::from(child.clone()), "n", "key"), child.as_bytes());
    }

    #[test]
    fn a_frame_that_was_kept_whole_is_shown_whole() {
        let whole = r#"{"traceparent":"x","jsonrpc":"2.0","method":"session/update","params":{"sessionId":"n"}}"#;
        let message = Message::parse(Bytes::from_static(whole.as_bytes())).unwrap();
        let data = stored_update(message.frame());
        assert_eq!(stored_params(&data), &br#"{"sessionId":"n"}"#[..]);
        let shown =
            render(&mut Renderer::default(), Kind::Update, std::str::from_utf8(&data).unwrap());
        assert_eq!(shown[0].frame, whole.as_bytes());
    }

    #[test]
    fn a_note_is_shown_only_where_it_says_so() {
        assert!(render(&mut Renderer::default(), Kind::Note, r#"{"text":"x"}"#).is_empty());
        assert_eq!(
            render(&mut Renderer::default(), Kind::Note, r#"{"text":"x","shown":true}"#).len(),
            1
        );
    }
}
