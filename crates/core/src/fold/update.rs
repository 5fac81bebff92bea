//! What a `session/update` is about, read shallowly.

use serde::Deserialize;
use serde_json::Value;

use super::View;
use crate::record::Record;

/// What a `session/update` is about, as far as the view cares.
#[derive(Clone, Debug, PartialEq)]
pub enum UpdateKind {
    /// Part of the conversation: messages, thoughts, tool calls, plans.
    Conversation,
    /// `session_info_update`.
    Info {
        /// The title, where one is told.
        title: Option<String>,
    },
    /// `current_mode_update`.
    Mode(String),
    /// `config_option_update`.
    Options(Value),
    /// `available_commands_update`.
    Commands,
    /// Anything else, unknown kinds included: passed on and kept.
    Other,
}

#[derive(Deserialize)]
struct UpdateParams<'a> {
    #[serde(borrow)]
    update: UpdateHead<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct UpdateHead<'a> {
    #[serde(borrow)]
    session_update: std::borrow::Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Whose<'a> {
    #[serde(borrow, default)]
    session_id: Option<std::borrow::Cow<'a, str>>,
}

/// The session that an update (its params) belongs to, as the agent names it.
fn session_of(params: &[u8]) -> Option<std::borrow::Cow<'_, str>> {
    serde_json::from_slice::<Whose<'_>>(params).ok()?.session_id
}

#[derive(Deserialize)]
struct UpdateFull {
    update: UpdateBody,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct UpdateBody {
    title: Option<String>,
    current_mode_id: Option<String>,
    config_options: Option<Value>,
}

impl UpdateKind {
    /// Reads the params of a `session/update`; `None` if they are not of that shape at all.
    #[must_use]
    pub fn of(params: &[u8]) -> Option<Self> {
        let head: UpdateParams<'_> = serde_json::from_slice(params).ok()?;
        let body = || serde_json::from_slice::<UpdateFull>(params).map(|full| full.update).ok();
        Some(match head.update.session_update.as_ref() {
            "user_message_chunk"
            | "agent_message_chunk"
            | "agent_thought_chunk"
            | "tool_call"
            | "tool_call_update"
            | "plan" => Self::Conversation,
            "session_info_update" => Self::Info { title: body().and_then(|body| body.title) },
            "current_mode_update" => {
                body().and_then(|body| body.current_mode_id).map_or(Self::Other, Self::Mode)
            }
            "config_option_update" => {
                body().and_then(|body| body.config_options).map_or(Self::Other, Self::Options)
            }
            "available_commands_update" => Self::Commands,
            _ => Self::Other,
        })
    }
}

/// How the params of most agents' updates begin.
const HEAD: &[u8] = br#"{"sessionId":""#;

impl View {
    /// Whether an update belongs to a child of the session: it is sent under another id.
    #[must_use]
    pub fn is_of_child(&self, record: &Record) -> bool {
        let Some(own) = self.native.as_deref() else { return false };
        // Nearly all are the session's own: looked at, not parsed.
        let rest =
            record.data.strip_prefix(HEAD).and_then(|rest| rest.strip_prefix(own.as_bytes()));
        if rest.is_some_and(|rest| rest.starts_with(b"\"")) {
            return false;
        }
        let params = crate::render::stored_params(&record.data);
        session_of(&params).is_some_and(|of| of != own)
    }
}
