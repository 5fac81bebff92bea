//! The history that a fork begins with: its parent's records as pieces of the fork's own journal.
//!
//! What is copied is what a load of the parent would show, in the fork's id: an agent's echo of a
//! prompt is left out, and so are remarks of ours and what belongs to children of the parent.

use bytes::Bytes;

use crate::envelope::{Message, quote};
use crate::fold::UpdateKind;
use crate::record::{Kind, Record};
use crate::render::{Audience, Renderer, stored_params, stored_update};

/// Copies one parent's records, in order.
#[derive(Debug)]
pub struct Copier {
    renderer: Renderer,
    parent: String,
    fork: String,
}

impl Copier {
    /// From the agent's id of the parent to its id of the fork.
    #[must_use]
    pub fn new(parent: &str, fork: &str) -> Self {
        Self { renderer: Renderer::default(), parent: parent.to_owned(), fork: fork.to_owned() }
    }

    /// The payloads of `imported` records that one record of the parent gives.
    pub fn take(&mut self, record: &Record, out: &mut Vec<Bytes>) {
        if record.kind == Kind::Note {
            return;
        }
        let mut shown = Vec::new();
        self.renderer.acp_v1(record, &self.parent, &mut shown);
        for one in shown {
            if matches!(one.to, Audience::Sender(_)) {
                continue;
            }
            let Ok(message) = Message::parse(one.frame) else { continue };
            let frame = message.frame();
            if frame.session_id().as_deref() != Some(self.parent.as_str()) {
                continue;
            }
            let Ok(own) = Message::parse(frame.spliced(None, Some(&quote(&self.fork)))) else {
                continue;
            };
            let data = stored_update(own.frame());
            if UpdateKind::of(&stored_params(&data)) == Some(UpdateKind::Conversation) {
                out.push(data);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RECORD_VERSION;

    fn copied(records: &[(Kind, &str)]) -> Vec<String> {
        let mut copier = Copier::new("p", "f\"");
        let mut out = Vec::new();
        for (seq, (kind, data)) in records.iter().enumerate() {
            let record = Record {
                v: RECORD_VERSION,
                seq: seq as u64 + 1,
                epoch: 1,
                at: jiff::Timestamp::UNIX_EPOCH,
                kind: kind.clone(),
                src: None,
                data: Bytes::copy_from_slice(data.as_bytes()),
            };
            copier.take(&record, &mut out);
        }
        out.iter().map(|data| String::from_utf8(data.to_vec()).unwrap()).collect()
    }

    #[test]
    fn a_load_of_the_fork_shows_what_a_load_of_the_parent_would() {
        let echo = r#"{"sessionId":"p","update":{"sessionUpdate":"user_message_chunk","content":{"type":"text","text":"hi"}}}"#;
        let piece = r#"{"_meta":{"x":1e2},"sessionId":"p","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"p"}}}"#;
        let got = copied(&[
            (Kind::Created, "{}"),
            (
                Kind::TurnStarted,
                r#"{"turn":"t","client":"k","prompt":[{"type":"text","text":"hi","y":1e2}]}"#,
            ),
            (Kind::Update, echo),
            (Kind::Update, piece),
            (Kind::TurnEnded, r#"{"turn":"t"}"#),
            (Kind::Imported, echo),
        ]);
        let echoed = echo.replace(r#""p""#, r#""f\"""#);
        assert_eq!(
            got,
            [
                r#"{"sessionId":"f\"","update":{"sessionUpdate":"user_message_chunk","content":{"type":"text","text":"hi","y":1e2}}}"#.to_owned(),
                piece.replacen(r#""p""#, r#""f\"""#, 1),
                echoed,
            ]
        );
    }

    #[test]
    fn nothing_else_of_the_parent_is_taken() {
        let child = r#"{"sessionId":"child","update":{"sessionUpdate":"agent_message_chunk"}}"#;
        let mode = r#"{"sessionId":"p","update":{"sessionUpdate":"current_mode_update","currentModeId":"m"}}"#;
        let got = copied(&[
            (Kind::Note, r#"{"text":"x","shown":true}"#),
            (Kind::Update, child),
            (Kind::Update, mode),
            (Kind::Update, "[]"),
            (Kind::Renamed, r#"{"name":"n","origin":"custom"}"#),
            (Kind::Policy, r#"{"mode":"allowAll","source":"startup"}"#),
            (Kind::Options, r#"{"modes":{}}"#),
        ]);
        assert_eq!(got, Vec::<String>::new());
    }

    #[test]
    fn a_frame_that_was_kept_whole_is_copied_whole() {
        let whole = r#"{"frame":{"traceparent":"x","jsonrpc":"2.0","method":"session/update","params":{"sessionId":"p","update":{"sessionUpdate":"plan"}}}}"#;
        assert_eq!(copied(&[(Kind::Update, whole)]), [whole.replace(r#""p""#, r#""f\"""#)]);
    }
}
