//! Histories that are not ours: matching what an agent replays against what we have.
//!
//! The replay is cut into turns at user messages and matched turn by turn (user text, then order).
//! Only what is new at its end is taken; what cannot be matched is taken behind a note that says
//! so. DESIGN section 8, "History that is not ours".

use bytes::Bytes;
use serde::Deserialize;

use crate::fold::UpdateKind;

/// What to do with one replayed update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Kept back, or not wanted.
    Held,
    /// These belong into the journal now.
    Import(Vec<Bytes>),
    /// Not history but the present: mode, options, commands, title.
    State,
}

/// What is left when the replay has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// A remark that must stand before the items.
    pub note: Option<String>,
    /// What belongs into the journal, in order.
    pub items: Vec<Bytes>,
}

/// For a replay of which nothing is wanted.
#[must_use]
pub fn swallow(params: &[u8]) -> Taken {
    match UpdateKind::of(params) {
        Some(UpdateKind::Conversation) | None => Taken::Held,
        Some(_) => Taken::State,
    }
}

/// Matches one replay against the turns we have.
#[derive(Debug)]
pub struct Import {
    known: Vec<String>,
    /// Turns of ours that have been matched or passed over.
    at: usize,
    /// The user text of the turn that is being read.
    text: String,
    in_user: bool,
    /// Updates of the turn that is being read.
    turn: Vec<Bytes>,
    /// Turns that matched nothing so far.
    unmatched: Vec<Bytes>,
    /// Turns passed over without a match in the agent's history.
    skipped: bool,
    /// An unmatched turn was followed by a matched one.
    interleaved: bool,
}

impl Import {
    /// `known` are the user texts of our turns, in order; empty where we have no history.
    #[must_use]
    pub fn new(known: Vec<String>) -> Self {
        Self {
            known,
            at: 0,
            text: String::new(),
            in_user: false,
            turn: Vec::new(),
            unmatched: Vec::new(),
            skipped: false,
            interleaved: false,
        }
    }

    /// Takes one update: its params, and what would be stored of it.
    pub fn take(&mut self, params: &[u8], stored: &Bytes) -> Taken {
        match UpdateKind::of(params) {
            Some(UpdateKind::Conversation) => {}
            Some(_) => return Taken::State,
            None => return Taken::Held,
        }
        if self.known.is_empty() {
            return Taken::Import(vec![stored.clone()]);
        }
        match user_text(params) {
            Some(text) => {
                if !self.in_user {
                    self.end_turn();
                    self.in_user = true;
                }
                self.text.push_str(&text);
            }
            None => self.in_user = false,
        }
        self.turn.push(stored.clone());
        Taken::Held
    }

    /// The replay has ended.
    #[must_use]
    pub fn finish(mut self) -> Rest {
        self.end_turn();
        let complete = self.at == self.known.len() && !self.skipped && !self.interleaved;
        let note = (!self.unmatched.is_empty() && !complete).then(|| {
            "the agent's own history of this session differs from the one above; \
             what could not be matched follows as the agent has it"
                .to_owned()
        });
        Rest { note, items: self.unmatched }
    }

    /// The turn that was read is matched, or kept as unmatched.
    fn end_turn(&mut self) {
        let turn = std::mem::take(&mut self.turn);
        let text = std::mem::take(&mut self.text);
        if turn.is_empty() {
            return;
        }
        // What comes before the first user message belongs to no turn of ours.
        let found = if text.is_empty() {
            self.unmatched.is_empty().then_some(self.at)
        } else {
            (self.at..self.known.len()).find(|at| same(&self.known[*at], &text)).map(|at| at + 1)
        };
        match found {
            Some(next) => {
                self.skipped |= next > self.at + 1;
                self.interleaved |= !self.unmatched.is_empty();
                self.at = next;
            }
            None => self.unmatched.extend(turn),
        }
    }
}

/// Agents wrap what a user said in context of their own: standing at either end is enough, and
/// for longer texts standing anywhere.
fn same(ours: &str, theirs: &str) -> bool {
    const LONG_BYTES: usize = 16;
    let (ours, theirs) = (ours.trim(), theirs.trim());
    ours == theirs
        || (!ours.is_empty() && (theirs.ends_with(ours) || theirs.starts_with(ours)))
        || (ours.len() >= LONG_BYTES && theirs.contains(ours))
}

/// The text of a `user_message_chunk`; `None` for other updates.
#[must_use]
pub fn user_text(params: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Params {
        update: Update,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Update {
        session_update: String,
        #[serde(default)]
        content: serde_json::Value,
    }
    let params: Params = serde_json::from_slice(params).ok()?;
    (params.update.session_update == "user_message_chunk").then(|| {
        params.update.content.get("text").and_then(|t| t.as_str()).unwrap_or("\u{fffc}").to_owned()
    })
}

/// The text of a prompt's blocks, joined as an agent would replay them; non-text blocks count as
/// one object character each.
#[must_use]
pub fn prompt_text(prompt: &serde_json::Value) -> String {
    let blocks = prompt.as_array().map(Vec::as_slice).unwrap_or_default();
    blocks
        .iter()
        .map(|block| block.get("text").and_then(|text| text.as_str()).unwrap_or("\u{fffc}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Bytes {
        Bytes::from(format!(
            r#"{{"update":{{"sessionUpdate":"user_message_chunk","content":{{"type":"text","text":"{text}"}}}}}}"#
        ))
    }

    fn agent(text: &str) -> Bytes {
        Bytes::from(format!(
            r#"{{"update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{text}"}}}}}}"#
        ))
    }

    fn run(known: &[&str], replay: &[Bytes]) -> (Vec<Bytes>, Rest) {
        let mut import = Import::new(known.iter().map(|text| (*text).to_owned()).collect());
        let mut at_once = Vec::new();
        for item in replay {
            if let Taken::Import(items) = import.take(item, item) {
                at_once.extend(items);
            }
        }
        (at_once, import.finish())
    }

    #[test]
    fn without_a_history_everything_is_taken_as_it_comes() {
        let replay = [user("a"), agent("1"), user("b"), agent("2")];
        let (at_once, rest) = run(&[], &replay);
        assert_eq!(at_once, replay);
        assert_eq!(rest, Rest::default());
    }

    #[test]
    fn only_what_is_new_at_the_end_is_taken() {
        let replay = [user("a"), agent("1"), user("b"), agent("2"), user("c"), agent("3")];
        let (at_once, rest) = run(&["a", "b"], &replay);
        assert!(at_once.is_empty());
        assert_eq!(rest, Rest { note: None, items: replay[4..].to_vec() });
    }

    #[test]
    fn a_history_we_have_whole_gives_nothing() {
        let replay = [agent("hello"), user("a"), agent("1"), user("b"), agent("2")];
        assert_eq!(run(&["a", "b"], &replay).1, Rest::default());
    }

    #[test]
    fn the_same_words_twice_are_two_turns() {
        let replay = [user("go"), agent("1"), user("go"), agent("2"), user("go"), agent("3")];
        let rest = run(&["go", "go"], &replay).1;
        assert_eq!(rest, Rest { note: None, items: replay[4..].to_vec() });
    }

    #[test]
    fn chunks_of_one_message_and_wrapped_text_match() {
        let replay = [user("<ctx>"), user("hel"), user("lo"), agent("1"), user("new")];
        let rest = run(&["hello"], &replay).1;
        assert_eq!(rest, Rest { note: None, items: replay[4..].to_vec() });
    }

    #[test]
    fn what_cannot_be_matched_comes_behind_a_note() {
        let replay = [user("x"), agent("1"), user("b"), agent("2"), user("c")];
        let rest = run(&["a", "b"], &replay).1;
        assert!(rest.note.is_some());
        assert_eq!(rest.items, [&replay[..2], &replay[4..]].concat());
        let nothing = run(&["a"], &[user("z"), agent("1")]).1;
        assert!(nothing.note.is_some());
        assert_eq!(nothing.items.len(), 2);
    }

    #[test]
    fn state_is_the_present_and_passes() {
        let mode = Bytes::from_static(
            br#"{"update":{"sessionUpdate":"current_mode_update","currentModeId":"m"}}"#,
        );
        assert_eq!(Import::new(vec!["a".into()]).take(&mode, &mode), Taken::State);
        assert_eq!(swallow(&mode), Taken::State);
        assert_eq!(swallow(&user("a")), Taken::Held);
    }
}
