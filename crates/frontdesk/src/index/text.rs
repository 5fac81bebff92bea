//! The text of a transcript as search sees it: one passage a turn, prompt and answer.
//!
//! Only blocks of type `text` count; images, files and tool calls are passed over, and so are
//! words too long to be any: encoded data in a text block is no text.

use std::borrow::Cow;
use std::path::Path;

use bytes::Bytes;
use frontdesk_core::fold::View;
use frontdesk_core::ids::Seq;
use frontdesk_core::record::{Kind, Record};
use frontdesk_core::render::stored_params;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::log::{LogError, Reader};

/// Longest passage, in bytes of text; a longer turn is several passages.
pub(super) const PASSAGE_BYTES_MAX: usize = 32 << 10;

/// Longest run of characters without white space that counts as a word, in bytes.
const WORD_BYTES_MAX: usize = 128;

/// Bytes of a journal read to show a passage again.
const SHOWN_BYTES_MAX: u64 = 1 << 20;

/// A place in a journal: the byte where a line begins, and the number of the record before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The byte.
    pub bytes: u64,
    /// The number.
    pub seq: Seq,
}

/// What was said in one turn, or in a part of a long one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// When it began.
    pub at: Timestamp,
    /// Where its first record is.
    pub from: Mark,
    /// The words.
    pub text: String,
}

/// Makes passages out of records.
///
/// It knows nothing that it would not know again if it began at the open passage: so it does not
/// matter in how many parts a journal is read.
#[derive(Debug, Default)]
pub(super) struct Passages {
    open: Option<Passage>,
    /// The last text was the agent's.
    agent_spoke: bool,
    done: Vec<Passage>,
}

#[derive(Deserialize)]
struct Prompt<'a> {
    #[serde(borrow, default)]
    prompt: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    update: Update<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Update<'a> {
    #[serde(borrow)]
    session_update: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

impl Passages {
    /// Takes the next record; `from` is where its line begins.
    pub(super) fn take(&mut self, record: &Record, from: Mark) {
        match &record.kind {
            Kind::TurnStarted => {
                self.close();
                for text in prompt_texts(&record.data) {
                    self.add(&text, record.at, from);
                }
            }
            Kind::Update | Kind::Imported | Kind::TurnLate => {
                let params = stored_params(&record.data);
                let Some((by_agent, text)) = spoken(&params) else { return };
                // The echo of a prompt is in the prompt already.
                if !by_agent && record.kind == Kind::Update {
                    return;
                }
                if !by_agent && self.agent_spoke {
                    self.close();
                }
                self.agent_spoke = by_agent;
                self.add(&text, record.at, from);
            }
            Kind::TurnEnded => self.close(),
            _ => {}
        }
    }

    fn add(&mut self, text: &str, at: Timestamp, from: Mark) {
        let full = |open: &Passage| open.text.len() + text.len() > PASSAGE_BYTES_MAX;
        if self.open.as_ref().is_some_and(full) {
            self.close_open();
        }
        let open = self.open.get_or_insert_with(|| Passage { at, from, text: String::new() });
        // A single text that is longer than a passage: its beginning is what people search for.
        let mut end = text.len().min(PASSAGE_BYTES_MAX - open.text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        open.text.push_str(&text[..end]);
    }

    fn close(&mut self) {
        self.agent_spoke = false;
        self.close_open();
    }

    fn close_open(&mut self) {
        if let Some(mut passage) = self.open.take() {
            passage.text = words_of(&passage.text);
            if !passage.text.is_empty() {
                self.done.push(passage);
            }
        }
    }

    /// Passages that are complete.
    pub(super) fn take_done(&mut self) -> Vec<Passage> {
        std::mem::take(&mut self.done)
    }

    /// The end of what there is; returns where to go on. The last passage may go on, if its turn runs
    /// or nothing has ended it: it is handed out, and to be replaced by what is read from its beginning
    /// then.
    pub(super) fn finish(&mut self, end: Mark) -> Mark {
        let from = self.open.as_ref().map_or(end, |open| open.from);
        self.close();
        from
    }
}

/// The words of a text on one line, without those that are too long to be any.
fn words_of(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| word.len() <= WORD_BYTES_MAX);
    let mut line = String::with_capacity(text.len());
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}

fn block_text(block: &RawValue) -> Option<Cow<'_, str>> {
    let block: Block<'_> = serde_json::from_str(block.get()).ok()?;
    block.text.filter(|_| block.kind == "text")
}

fn prompt_texts(data: &Bytes) -> Vec<String> {
    let Ok(prompt) = serde_json::from_slice::<Prompt<'_>>(data) else { return Vec::new() };
    let texts = prompt.prompt.into_iter().filter_map(block_text);
    // Blocks are apart where people see them.
    texts.map(|text| format!("{text}\n")).collect()
}

/// What a `session/update` says, and whether the agent says it.
fn spoken(params: &Bytes) -> Option<(bool, Cow<'_, str>)> {
    let params: Params<'_> = serde_json::from_slice(params).ok()?;
    let by_agent = match params.update.session_update.as_ref() {
        "agent_message_chunk" => true,
        "user_message_chunk" => false,
        _ => return None,
    };
    block_text(params.update.content?).map(|text| (by_agent, text))
}

/// Reads a journal on from a mark: folds what is new into `view` and hands out passages, all but the
/// last one, which [`Passages::finish`] has. Returns the end of what was read.
///
/// `each` gets passages in portions and may fail.
///
/// # Errors
/// If the journal cannot be read, or `each` fails.
pub(super) fn read_on<E: From<LogError>>(
    mut reader: Reader,
    mut view: Option<&mut View>,
    passages: &mut Passages,
    mut each: impl FnMut(Vec<Passage>) -> Result<(), E>,
) -> Result<Mark, E> {
    loop {
        let from = Mark { bytes: reader.offset(), seq: reader.last_seq() };
        let mut batch = reader.read_batch(1)?;
        let last = batch.is_empty();
        if last {
            // A whole last line that lacks only its line end counts.
            batch.extend(reader.finish());
        }
        for record in &batch {
            // Text may go on from further back than the fold.
            if let Some(view) = view.as_deref_mut().filter(|view| record.seq > view.seq) {
                view.apply(record);
            }
            passages.take(record, from);
        }
        if passages.done.len() >= 64 || (last && !passages.done.is_empty()) {
            each(passages.take_done())?;
        }
        if last {
            return Ok(Mark { bytes: reader.offset(), seq: reader.last_seq() });
        }
    }
}

/// The passage that begins at a mark, read from its journal again.
#[must_use]
pub(super) fn passage_at(path: &Path, from: Mark) -> Option<String> {
    let mut reader = Reader::open_at(path, from.bytes, from.seq).ok()?;
    let mut passages = Passages::default();
    while reader.offset() < from.bytes + SHOWN_BYTES_MAX {
        let batch = reader.read_batch(1).ok()?;
        for record in &batch {
            passages.take(record, Mark::default());
        }
        if let Some(first) = passages.take_done().into_iter().next() {
            return Some(first.text);
        }
        if batch.is_empty() {
            break;
        }
    }
    passages.close();
    passages.take_done().into_iter().next().map(|passage| passage.text)
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
