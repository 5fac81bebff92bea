//! The fold: totals, prefixes, anomalies.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::record::RECORD_VERSION;

fn record(seq: Seq, kind: Kind, data: &str) -> Record {
    Record {
        v: RECORD_VERSION,
        seq,
        epoch: 1,
        at: Timestamp::from_second(1_700_000_000 + i64::try_from(seq).unwrap()).unwrap(),
        kind,
        src: None,
        data: Bytes::copy_from_slice(data.as_bytes()),
    }
}

fn fold(records: &[Record]) -> View {
    let mut view = View::default();
    view.extend(records);
    view
}

#[test]
fn a_finished_turn_is_counted_and_an_open_one_is_named() {
    let mut records = vec![
        record(
            1,
            Kind::Created,
            r#"{"agent":"demo","nativeId":"n","cwd":"/w","result":{"modes":{"currentModeId":"ask"}}}"#,
        ),
        record(2, Kind::TurnStarted, r#"{"turn":"t1","client":"k","requestId":"5"}"#),
        record(
            3,
            Kind::Update,
            r#"{"sessionId":"n","update":{"sessionUpdate":"agent_message_chunk"}}"#,
        ),
    ];
    let view = fold(&records);
    assert_eq!(
        view.open_turn,
        Some(OpenTurn { turn: "t1".into(), client: "k".into(), request_id: "5".into() })
    );
    assert_eq!((view.turn_count, view.items), (0, 2));
    records.push(record(4, Kind::TurnEnded, r#"{"turn":"t1","stopReason":"end_turn"}"#));
    let view = fold(&records);
    assert_eq!((view.turn_count, view.open_turn), (1, None));
    assert_eq!(view.last_stop_reason.as_deref(), Some("end_turn"));
}

#[test]
fn state_updates_change_the_options_and_the_title() {
    let view = fold(&[
        record(
            1,
            Kind::Created,
            r#"{"agent":"a","cwd":"/","result":{"modes":{"currentModeId":"ask","availableModes":[]},"sessionId":"x"}}"#,
        ),
        record(
            2,
            Kind::Update,
            r#"{"update":{"sessionUpdate":"current_mode_update","currentModeId":"auto"}}"#,
        ),
        record(
            3,
            Kind::Update,
            r#"{"update":{"sessionUpdate":"session_info_update","title":"T"}}"#,
        ),
        record(
            4,
            Kind::Update,
            r#"{"update":{"sessionUpdate":"config_option_update","configOptions":[1]}}"#,
        ),
        record(5, Kind::Update, r#"{"update":{"sessionUpdate":"brand_new_kind","payload":{}}}"#),
    ]);
    assert_eq!(view.options["modes"]["currentModeId"], "auto");
    assert_eq!(view.options["configOptions"], serde_json::json!([1]));
    assert!(!view.options.contains_key("sessionId"));
    assert_eq!(view.title.as_deref(), Some("T"));
    assert_eq!(view.anomalies, 0);
}

#[test]
fn nothing_brings_a_deleted_session_back() {
    let view = fold(&[
        record(1, Kind::Created, r#"{"agent":"a","nativeId":"n","cwd":"/"}"#),
        record(2, Kind::Deleted, "{}"),
        record(
            3,
            Kind::Update,
            r#"{"update":{"sessionUpdate":"session_info_update","title":"T"}}"#,
        ),
        record(4, Kind::Created, r#"{"agent":"a","cwd":"/"}"#),
    ]);
    assert!(view.deleted);
    assert_eq!((view.title, view.native.as_deref()), (None, Some("n")));
}

#[test]
fn duplicates_and_nonsense_are_counted_and_skipped() {
    let view = fold(&[
        record(1, Kind::Created, r#"{"agent":"a","cwd":"/"}"#),
        record(1, Kind::Deleted, "{}"),
        record(2, Kind::Title, "7"),
        record(3, Kind::Update, "[]"),
        record(4, Kind::Unknown("new".into()), "{}"),
    ]);
    assert_eq!(view.anomalies, 3);
    assert!(!view.deleted);
}

fn any_record() -> impl Strategy<Value = (Kind, String)> {
    let kinds = proptest::sample::select(Kind::KNOWN);
    let data = prop_oneof![
        Just(r#"{"turn":"t1","client":"k","requestId":"1","stopReason":"end_turn"}"#.to_owned()),
        Just(r#"{"turn":"t2"}"#.to_owned()),
        Just(r#"{"interaction":"q","title":"x","agent":"a","nativeId":"n","cwd":"/c"}"#.to_owned()),
        Just(r#"{"update":{"sessionUpdate":"agent_message_chunk"}}"#.to_owned()),
        Just(
            r#"{"update":{"sessionUpdate":"current_mode_update","currentModeId":"m"}}"#.to_owned()
        ),
        Just(r#"{"modes":{"currentModeId":"x"},"instance":"i"}"#.to_owned()),
        Just("null".to_owned()),
        "[a-z0-9{}\":]{0,12}",
    ];
    (kinds, data)
}

proptest! {
    #[test]
    fn a_prefix_and_the_rest_equal_the_whole(parts in proptest::collection::vec(any_record(), 0..40), cut in 0usize..40) {
        let records: Vec<Record> = parts.iter().zip(1..).map(|((kind, data), seq)| record(seq, kind.clone(), data)).collect();
        let whole = fold(&records);
        let cut = cut.min(records.len());
        let mut halves = fold(&records[..cut]);
        let text = serde_json::to_string(&halves).unwrap();
        halves = serde_json::from_str(&text).unwrap();
        halves.extend(&records[cut..]);
        prop_assert_eq!(whole, halves);
    }
}
