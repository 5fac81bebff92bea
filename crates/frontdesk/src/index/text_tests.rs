use serde_json::{Value, json};

use super::*;

fn record(seq: Seq, kind: Kind, data: &Value) -> Record {
    let at = Timestamp::from_second(1_700_000_000 + i64::try_from(seq).unwrap()).unwrap();
    let data = Bytes::from(data.to_string());
    Record { v: 1, seq, epoch: 1, at, kind, src: None, data }
}

fn chunk(kind: &str, text: &str) -> Value {
    json!({ "update": { "sessionUpdate": kind, "content": { "type": "text", "text": text } } })
}

fn passages(records: &[(Kind, Value)]) -> (Vec<(Seq, String)>, Mark) {
    let mut passages = Passages::default();
    for (seq, (kind, data)) in (1..).zip(records) {
        let record = record(seq, kind.clone(), data);
        passages.take(&record, Mark { bytes: seq * 100, seq: seq - 1 });
    }
    let mark = passages.finish(Mark { bytes: 9_999, seq: 99 });
    let done = passages.take_done();
    (done.into_iter().map(|passage| (passage.from.seq + 1, passage.text)).collect(), mark)
}

#[test]
fn a_turn_is_one_passage_of_prompt_and_answer() {
    let image = "iVBORw0KGgo".repeat(20_000);
    let prompt = json!([
        { "type": "image", "mimeType": "image/png", "data": image },
        { "type": "text", "text": "what is\nthis" },
        { "type": "resource_link", "uri": "file:///x", "name": "x" },
    ]);
    let (found, mark) = passages(&[
        (Kind::TurnStarted, json!({ "turn": "t", "prompt": prompt })),
        (Kind::Update, chunk("user_message_chunk", "what is this")),
        (Kind::Update, chunk("agent_thought_chunk", "hm")),
        (Kind::Update, chunk("agent_message_chunk", "a c")),
        (Kind::Update, json!({ "update": { "sessionUpdate": "tool_call", "title": "x" } })),
        (Kind::Update, chunk("agent_message_chunk", "at.")),
        (Kind::TurnEnded, json!({ "turn": "t" })),
        (Kind::TurnLate, chunk("agent_message_chunk", "late")),
    ]);
    assert_eq!(found, [(1, "what is this a cat.".to_owned()), (8, "late".to_owned())]);
    // What came late may go on.
    assert_eq!(mark, Mark { bytes: 800, seq: 7 });
}

#[test]
fn encoded_data_in_a_text_is_no_text() {
    let text = format!("see data:image/png;base64,{} there", "QUJD".repeat(1_000));
    let (found, _) = passages(&[
        (Kind::TurnStarted, json!({ "prompt": [{ "type": "text", "text": text }] })),
        (Kind::TurnEnded, json!({})),
    ]);
    assert_eq!(found, [(1, "see there".to_owned())]);
    let word = |bytes: usize| {
        let text = "x".repeat(bytes);
        passages(&[
            (Kind::TurnStarted, json!({ "prompt": [{ "type": "text", "text": text }] })),
            (Kind::TurnEnded, json!({})),
        ])
        .0
        .len()
    };
    assert_eq!((word(WORD_BYTES_MAX), word(WORD_BYTES_MAX + 1)), (1, 0));
}

#[test]
fn a_replayed_history_is_parted_at_its_prompts() {
    let (found, _) = passages(&[
        (Kind::Imported, chunk("user_message_chunk", "one ")),
        (Kind::Imported, chunk("user_message_chunk", "more")),
        (Kind::Imported, chunk("agent_message_chunk", " answer")),
        (Kind::Imported, chunk("user_message_chunk", "two")),
    ]);
    assert_eq!(found, [(1, "one more answer".to_owned()), (4, "two".to_owned())]);
}

#[test]
fn a_turn_that_runs_is_there_and_read_again_from_its_beginning() {
    let start = (Kind::TurnStarted, json!({ "prompt": [{ "type": "text", "text": "begun" }] }));
    let (found, mark) = passages(&[
        start.clone(),
        (Kind::TurnEnded, json!({})),
        start,
        (Kind::Update, chunk("agent_message_chunk", "x")),
    ]);
    assert_eq!(found, [(1, "begun".to_owned()), (3, "begun x".to_owned())]);
    assert_eq!(mark, Mark { bytes: 300, seq: 2 });
}

#[test]
fn a_long_turn_is_several_passages() {
    let piece = "word ".repeat(1_000);
    let mut records = vec![(Kind::TurnStarted, json!({ "prompt": [] }))];
    records.extend((0..20).map(|_| (Kind::Update, chunk("agent_message_chunk", &piece))));
    records.push((Kind::TurnEnded, json!({})));
    let (found, _) = passages(&records);
    assert!(found.len() > 2 && found.iter().all(|(_, text)| text.len() <= PASSAGE_BYTES_MAX));
    let words: usize = found.iter().map(|(_, text)| text.split(' ').count()).sum();
    assert_eq!(words, 20_000);
    let huge = "é ".repeat(PASSAGE_BYTES_MAX);
    let (found, _) = passages(&[(Kind::Update, chunk("agent_message_chunk", &huge))]);
    assert!(found[0].1.len() <= PASSAGE_BYTES_MAX);
}

#[test]
fn what_makes_no_sense_is_passed_over() {
    let (found, _) = passages(&[
        (Kind::TurnStarted, json!({ "prompt": "text" })),
        (Kind::TurnStarted, json!([1])),
        (Kind::Update, json!({ "update": { "sessionUpdate": 7 } })),
        (Kind::Update, json!({ "update": { "sessionUpdate": "agent_message_chunk" } })),
        (
            Kind::Update,
            json!({ "update": { "sessionUpdate": "agent_message_chunk",
            "content": { "type": "audio", "text": "no" } } }),
        ),
        (Kind::Note, json!({ "text": "a remark" })),
    ]);
    assert_eq!(found, []);
}
