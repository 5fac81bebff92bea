use std::collections::HashMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::record::RECORD_VERSION;

const KEY: &str = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";

fn key() -> Key {
    KEY.parse().unwrap()
}

fn record(seq: Seq, kind: Kind, data: &Value) -> Record {
    let at = Timestamp::from_second(1_796_000_000 + i64::try_from(seq).unwrap()).unwrap();
    let data = Bytes::from(data.to_string());
    Record { v: RECORD_VERSION, seq, epoch: 1, at, kind, src: None, data }
}

/// Records numbered from 1.
fn records(told: Vec<(Kind, Value)>) -> Vec<Record> {
    told.into_iter().zip(1..).map(|((kind, data), seq)| record(seq, kind, &data)).collect()
}

fn render(told: Vec<(Kind, Value)>) -> (Renderer, Vec<Event>) {
    let mut renderer = Renderer::new(key());
    let mut events = Vec::new();
    for record in records(told) {
        renderer.apply(&record, &mut events);
    }
    (renderer, events)
}

/// `method` and the members that matter of each event.
fn lines(events: &[Event]) -> Vec<String> {
    events
        .iter()
        .map(|event| {
            let mut params = event.params.clone();
            let params = params.as_object_mut().unwrap();
            for name in ["sessionId", "viewCursor", "sourceRange"] {
                params.remove(name);
            }
            if let Some(item) = params.get_mut("item").and_then(Value::as_object_mut) {
                item.remove("recordedAt");
            }
            format!("{} {}", event.method, Value::Object(params.clone()))
        })
        .collect()
}

fn update(update: Value) -> (Kind, Value) {
    (Kind::Update, json!({ "sessionId": "n", "update": update }))
}

fn chunk(kind: &str, text: &str) -> (Kind, Value) {
    update(json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } }))
}

fn started(turn: &str, text: &str) -> (Kind, Value) {
    let prompt = json!([{ "type": "text", "text": text }]);
    (Kind::TurnStarted, json!({ "turn": turn, "client": "k", "prompt": prompt }))
}

fn ended(turn: &str, outcome: &str, stop: &str) -> (Kind, Value) {
    (Kind::TurnEnded, json!({ "turn": turn, "outcome": outcome, "stopReason": stop }))
}

fn permission(id: &str, call: &str) -> (Kind, Value) {
    let params = json!({
        "sessionId": "n",
        "toolCall": { "toolCallId": call, "title": "rm -r x", "kind": "execute", "rawInput": { "command": "rm" } },
        "options": [
            { "optionId": "y", "name": "Yes", "kind": "allow_once" },
            { "optionId": "n", "name": "No", "kind": "reject_once" },
        ],
    });
    let method = "session/request_permission";
    (Kind::InteractionOpened, json!({ "interaction": id, "method": method, "params": params }))
}

fn settled(id: &str, option: &str) -> (Kind, Value) {
    let answer = json!({ "outcome": { "outcome": "selected", "optionId": option } });
    let by = json!({ "client": "k", "name": "cli" });
    let data = json!({ "interaction": id, "outcome": "answered", "answer": answer, "by": by });
    (Kind::InteractionSettled, data)
}

#[test]
fn a_turn_with_talk_a_tool_and_a_question() {
    let (renderer, events) = render(vec![
        (Kind::Created, json!({ "agent": "demo", "cwd": "/w", "nativeId": "n" })),
        started("turn_2", "hello"),
        chunk("user_message_chunk", "hello"),
        chunk("agent_thought_chunk", "hm"),
        chunk("agent_message_chunk", "I "),
        chunk("agent_message_chunk", "will."),
        update(
            json!({ "sessionUpdate": "tool_call", "toolCallId": "c1", "title": "rm", "status": "pending" }),
        ),
        permission("ask_8", "c1"),
        settled("ask_8", "y"),
        update(
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed",
            "content": [{ "type": "content", "content": { "type": "text", "text": "gone" } }] }),
        ),
        update(
            json!({ "sessionUpdate": "plan", "entries": [{ "content": "a", "status": "in_progress", "priority": "high" }] }),
        ),
        chunk("agent_message_chunk", "Done."),
        ended("turn_2", "completed", "end_turn"),
    ]);
    insta_lines("a_turn", &lines(&events));
    assert_eq!(renderer.head(), events.last().unwrap().cursor);
    assert_eq!(renderer.last_turn().unwrap().terminal, "completed");
}

/// Compares with the golden file; `FRONTDESK_GOLDEN=1` writes it.
fn insta_lines(name: &str, lines: &[String]) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/msp");
    let path = folder.join(format!("{name}.txt"));
    let text = lines.join("\n") + "\n";
    if std::env::var_os("FRONTDESK_GOLDEN").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, golden, "{} differs", path.display());
}

#[test]
fn no_turn_and_every_ending() {
    let failed = json!({ "turn": "t6", "outcome": "failed", "error": { "code": -32000, "message": "log in" } });
    let crash = json!({ "turn": "t7", "outcome": "failed", "reason": "crash_inferred" });
    let late = json!({ "sessionId": "n", "update": { "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "late" } } });
    let told = vec![
        started("t1", "a"),
        ended("t1", "completed", "max_turn_requests"),
        started("t2", "b"),
        ended("t2", "completed", "refusal"),
        started("t3", "c"),
        ended("t3", "cancelled", "cancelled"),
        (Kind::TurnLate, late),
        (Kind::TurnQueued, json!({ "turn": "t4" })),
        ended("t4", "cancelled", "cancelled"),
        (
            Kind::TurnEnded,
            json!({ "turn": "t5", "outcome": "failed", "error": { "code": 1, "message": "no" } }),
        ),
        started("t6", "d"),
        (Kind::TurnEnded, failed),
        started("t7", "e"),
        (Kind::TurnEnded, crash),
        started("t8", "f"),
        (Kind::Lost, json!({ "reason": "crash_inferred" })),
        (Kind::Note, json!({ "text": "earlier turns are elsewhere", "shown": true })),
        (Kind::Note, json!({ "text": "not for clients" })),
        (Kind::Damage, json!({ "missing": [3, 4], "text": "records are lost", "shown": true })),
        (Kind::Unknown("brand_new".into()), json!({})),
        update(json!({ "sessionUpdate": "brand_new" })),
    ];
    insta_lines("endings", &lines(&render(told).1));
}

#[test]
fn what_was_replayed_belongs_to_no_turn() {
    let import = |kind: &str, text: &str| {
        let (_, data) = chunk(kind, text);
        (Kind::Imported, data)
    };
    let told = vec![
        import("user_message_chunk", "hi"),
        import("agent_message_chunk", "he"),
        import("agent_message_chunk", "llo"),
        (Kind::Loaded, json!({ "agent": "demo", "instance": "i" })),
    ];
    insta_lines("imported", &lines(&render(told).1));
}

#[test]
fn a_call_that_was_denied_is_rejected_and_one_nobody_ended_is_unknown() {
    let call =
        |id: &str| update(json!({ "sessionUpdate": "tool_call", "toolCallId": id, "title": id }));
    let told = vec![
        started("t", "x"),
        call("a"),
        permission("q", "a"),
        settled("q", "n"),
        update(
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "a", "status": "failed" }),
        ),
        call("b"),
        update(
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "never told", "status": "completed" }),
        ),
        ended("t", "completed", "end_turn"),
        (
            Kind::TurnLate,
            json!({ "update": { "sessionUpdate": "tool_call_update", "toolCallId": "b", "status": "completed" } }),
        ),
    ];
    insta_lines("denied", &lines(&render(told).1));
}

#[test]
fn a_question_of_a_lost_instance_is_over_and_one_without_a_form_is_not_shown() {
    let form = |fields: Value| {
        json!({ "interaction": "q2", "method": "elicitation/create", "params": {
            "mode": "form", "message": "Which?", "requestedSchema": { "type": "object", "properties": fields } } })
    };
    let few = json!({ "colour": { "type": "string", "enum": ["red", "blue"] }, "sure": { "type": "boolean" } });
    let text = json!({ "name": { "type": "string" } });
    let accept = json!({ "interaction": "q2", "outcome": "answered",
        "answer": { "action": "accept", "content": { "colour": "red", "sure": true } } });
    let (renderer, events) = render(vec![
        started("t", "x"),
        permission("q1", "a"),
        (Kind::InteractionOpened, form(few)),
        (Kind::InteractionSettled, accept),
        (Kind::InteractionOpened, form(text)),
    ]);
    assert_eq!(renderer.pending().len(), 1);
    assert_eq!(renderer.approvals()[0]["approvalId"], "q1");
    assert!(renderer.user_inputs().is_empty());
    let mut after = renderer.clone();
    let mut more = Vec::new();
    after.apply(&record(9, Kind::Lost, &json!({ "reason": "gone" })), &mut more);
    assert!(after.pending().is_empty());
    insta_lines("questions", &lines(&[events, more].concat()));
}

#[test]
fn name_branch_and_model_are_told_when_they_change() {
    let options = |model: &str| {
        (
            Kind::Options,
            json!({ "configOptions": [{ "id": "model", "category": "model", "currentValue": model }] }),
        )
    };
    let told = vec![
        (Kind::Created, json!({ "agent": "demo", "cwd": "/w" })),
        (Kind::Renamed, json!({ "name": "fix-it", "origin": "automatic" })),
        (Kind::Renamed, json!({ "name": "fix-it", "origin": "automatic" })),
        update(json!({ "sessionUpdate": "session_info_update", "title": "Fix it" })),
        (Kind::Branch, json!({ "branch": "main", "vcs": "git", "worktree": null })),
        (Kind::Branch, json!({ "branch": null, "vcs": "git", "worktree": null })),
        options("big"),
        options("big"),
        options("small"),
    ];
    insta_lines("state", &lines(&render(told).1));
}

#[test]
fn a_long_message_goes_on_in_another_item_and_its_deltas_add_up() {
    let long = "ä".repeat(ITEM_TEXT_BYTES_MAX);
    let (_, events) = render(vec![
        started("t", "x"),
        chunk("agent_message_chunk", &long),
        ended("t", "completed", "end_turn"),
    ]);
    let done: Vec<&Event> = events.iter().filter(|e| e.method == "item/completed").collect();
    let texts: Vec<&str> =
        done[1..].iter().map(|e| e.params["item"]["text"].as_str().unwrap()).collect();
    assert_eq!(texts.concat(), long);
    assert_eq!(texts.len(), 2);
    assert!(texts.iter().all(|text| text.len() <= ITEM_TEXT_BYTES_MAX));
    check_events(&events);
}

#[test]
fn what_is_too_long_for_a_frame_is_cut_and_says_so() {
    let big = "\u{1}".repeat(TOOL_TEXT_BYTES_MAX * 2);
    let (_, events) = render(vec![
        started("t", &"\u{1}".repeat(ITEM_TEXT_BYTES_MAX + 1)),
        update(
            json!({ "sessionUpdate": "tool_call", "toolCallId": "c", "title": big, "rawInput": big, "rawOutput": big }),
        ),
    ]);
    for event in &events {
        assert!(event.params.to_string().len() < 10 << 20, "{}", event.method);
    }
    let items: Vec<&Value> =
        events.iter().map(|e| &e.params["item"]).filter(|i| i.is_object()).collect();
    assert!(items.iter().all(|item| item["truncated"] == true));
}

#[test]
fn open_calls_are_bounded_and_kept_states_share_what_did_not_change() {
    let call = |id: &str, status: &str| {
        update(json!({ "sessionUpdate": "tool_call", "toolCallId": id, "status": status }))
    };
    let (mut renderer, mut events) = render(vec![started("t", "x"), call("done", "completed")]);
    for at in 0..1025 {
        let before = renderer.clone();
        let (kind, data) = call(&format!("c{at}"), "pending");
        renderer.apply(&record(3 + at, kind, &data), &mut events);
        assert!(Arc::ptr_eq(&before.tools[0], &renderer.tools[0]));
        assert_eq!(renderer.tools.len() as u64, (at + 2).min(1025));
    }
    let told = lines(&events);
    let ended = told.iter().find(|line| line.contains("unknown")).unwrap();
    assert!(ended.starts_with("item/completed") && ended.contains(r#""callId":"c0""#), "{ended}");
}

/// What holds for the events of any records.
fn check_events(events: &[Event]) {
    let mut items: HashMap<String, (u64, String)> = HashMap::new();
    let mut deltas: HashMap<String, String> = HashMap::new();
    for pair in events.windows(2) {
        assert!(pair[0].cursor < pair[1].cursor, "{pair:?}");
    }
    for event in events {
        assert_eq!(event.params["sessionId"], KEY);
        assert_eq!(event.params["viewCursor"], event.cursor.text(key()));
        assert_eq!(event.durable, event.params["sourceRange"].is_object(), "{event:?}");
        if event.method == "item/delta" {
            let id = event.params["itemId"].as_str().unwrap().to_owned();
            assert_eq!(items[&id].1, "inProgress", "a delta for an item that is not open");
            deltas.entry(id).or_default().push_str(event.params["delta"].as_str().unwrap());
        }
        let item = &event.params["item"];
        let Some(id) = item["itemId"].as_str() else { continue };
        let revision = item["revision"].as_u64().unwrap();
        let status = item["status"].as_str().unwrap().to_owned();
        let before = items.insert(id.to_owned(), (revision, status.clone()));
        assert!(before.as_ref().is_none_or(|(old, _)| revision > *old), "{event:?}");
        assert_eq!(event.method == "item/started", before.is_none() && status == "inProgress");
        if status == "completed"
            && let Some(said) = deltas.get(id)
        {
            let text = item["text"].as_str().or(item["summary"][0].as_str());
            assert_eq!(text, Some(said.as_str()));
        }
    }
}

fn told() -> impl Strategy<Value = (Kind, Value)> {
    let text = prop_oneof![Just(String::new()), "[a-c\u{1}é]{1,3}", Just("hello".to_owned())];
    let id = prop_oneof![Just("a"), Just("b"), Just("")];
    let status = prop_oneof![
        Just("pending"),
        Just("in_progress"),
        Just("completed"),
        Just("failed"),
        Just("zzz")
    ];
    let voice = prop_oneof![
        Just("user_message_chunk"),
        Just("agent_message_chunk"),
        Just("agent_thought_chunk")
    ];
    let kind = prop_oneof![Just(Kind::Update), Just(Kind::Imported), Just(Kind::TurnLate)];
    let outcome = prop_oneof![Just("completed"), Just("cancelled"), Just("failed"), Just("?")];
    prop_oneof![
        6 => (kind.clone(), voice, text.clone()).prop_map(|(kind, voice, text)| (kind, chunk(voice, &text).1)),
        4 => (kind, id.clone(), status, text.clone()).prop_map(|(kind, id, status, text)| (kind, json!({ "update": {
            "sessionUpdate": if text.is_empty() { "tool_call" } else { "tool_call_update" },
            "toolCallId": id, "status": status, "title": text } }))),
        3 => (id.clone(), text.clone()).prop_map(|(id, text)| started(id, &text)),
        3 => (id.clone(), outcome).prop_map(|(id, outcome)| ended(id, outcome, "end_turn")),
        2 => (id.clone(), id.clone()).prop_map(|(id, call)| permission(id, call)),
        2 => (id.clone(), prop_oneof![Just("y"), Just("n"), Just("?")]).prop_map(|(id, option)| settled(id, option)),
        1 => text.clone().prop_map(|text| (Kind::Note, json!({ "text": text, "shown": true }))),
        1 => text.prop_map(|text| (Kind::Renamed, json!({ "name": text, "origin": "custom" }))),
        1 => Just((Kind::Lost, json!({}))),
        1 => Just((Kind::Loaded, json!(7))),
        1 => (0..Kind::KNOWN.len()).prop_map(|at| (Kind::KNOWN[at].clone(), json!([null, "x"]))),
    ]
}

/// Any small JSON.
fn leaf() -> impl Strategy<Value = Value> {
    let flat = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z_]{0,9}".prop_map(Value::from),
    ];
    flat.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{0,9}", inner, 0..3)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Puts a value into one of the places of another one; which, says `at`.
fn put(value: &mut Value, at: usize, new: Value) {
    let places = match value {
        Value::Array(items) => items.len(),
        Value::Object(members) => members.len(),
        _ => 0,
    };
    if places == 0 || at.is_multiple_of(7) {
        *value = new;
        return;
    }
    let inner = match value {
        Value::Array(items) => items.get_mut(at % places),
        Value::Object(members) => members.values_mut().nth(at % places),
        _ => None,
    };
    put(inner.unwrap(), at / places, new);
}

proptest! {
    /// Records are an agent's own JSON: whatever it says, nothing fails.
    #[test]
    fn any_payload_is_taken(
        told in prop::collection::vec((told(), any::<u32>(), leaf()), 0..30),
    ) {
        let told = told.into_iter().map(|((kind, mut data), at, new)| {
            put(&mut data, at as usize, new);
            (kind, data)
        });
        let (renderer, events) = render(told.collect());
        let mut items = crate::msp::history::Items::new(1 << 20);
        events.iter().for_each(|event| items.take(event));
        prop_assert!(events.windows(2).all(|pair| pair[0].cursor < pair[1].cursor));
        prop_assert!(renderer.approvals().iter().chain(&renderer.user_inputs()).all(Value::is_object));
        let history = items.into_history();
        prop_assert_eq!(history["mode"].as_str(), Some("inline"));
    }

    #[test]
    fn a_prefix_and_then_the_rest_show_what_all_show(
        told in prop::collection::vec(told(), 0..40),
        cut in 0usize..40,
    ) {
        let all = records(told);
        let mut whole = Renderer::new(key());
        let mut want = Vec::new();
        for record in &all {
            whole.apply(record, &mut want);
        }
        check_events(&want);
        let cut = cut.min(all.len());
        let mut first = Renderer::new(key());
        let mut got = Vec::new();
        for record in &all[..cut] {
            first.apply(record, &mut got);
        }
        // What is between may be kept as text; records that were seen are skipped.
        let kept = serde_json::to_string(&first).unwrap();
        let mut rest: Renderer = serde_json::from_str(&kept).unwrap();
        for record in &all {
            rest.apply(record, &mut got);
        }
        prop_assert_eq!(&got, &want);
        prop_assert_eq!(&rest, &whole);
        // Going past records leads to the same place.
        let mut past = Renderer::new(key());
        all.iter().for_each(|record| past.pass(record));
        prop_assert_eq!(&past, &whole);
    }
}
