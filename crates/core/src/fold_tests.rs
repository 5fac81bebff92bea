//! The fold: totals, prefixes, anomalies.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::ids::ALIASES_MAX;
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
    assert_eq!(view.anomaly_count, 0);
}

#[test]
fn commands_are_the_same_for_sessions_that_were_told_the_same() {
    let told = |session: &str| {
        let data = format!(
            r#"{{"sessionId":"{session}","_meta":{{"a":1.0}},"update":{{"sessionUpdate":"available_commands_update","availableCommands":[]}}}}"#
        );
        let native = format!(r#"{{"agent":"a","nativeId":"{session}","cwd":"/"}}"#);
        fold(&[record(1, Kind::Created, &native), record(2, Kind::Update, &data)]).commands
    };
    let commands = told("one").unwrap();
    assert_eq!(Some(&commands), told("two").as_ref());
    let frame = bytes::Bytes::copy_from_slice(commands.as_bytes());
    let frame = crate::render::respell(&frame, "", "mine");
    assert!(
        std::str::from_utf8(&frame).unwrap().ends_with(
            r#""params":{"sessionId":"mine","_meta":{"a":1.0},"update":{"sessionUpdate":"available_commands_update","availableCommands":[]}}}"#
        ),
        "{frame:?}"
    );
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
    assert_eq!(view.anomaly_count, 3);
    assert_eq!(view.anomalies.iter().map(|anomaly| anomaly.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(!view.deleted);
}

#[test]
fn names_titles_and_the_first_prompt_each_have_their_own_source() {
    let info = r#"{"update":{"sessionUpdate":"session_info_update","title":"Made up"}}"#;
    let mut records = vec![
        record(
            1,
            Kind::Created,
            r#"{"agent":"a","cwd":"/","clientInfo":{"name":"zed","version":"1"}}"#,
        ),
        record(
            2,
            Kind::TurnStarted,
            r#"{"turn":"t","client":"k","prompt":[{"type":"image","data":"AAAA"},{"type":"text","text":"fix\n the\u2028bug "}]}"#,
        ),
        record(3, Kind::Renamed, r#"{"name":"fix the bug","origin":"automatic"}"#),
        record(4, Kind::Update, info),
    ];
    let view = fold(&records);
    assert_eq!(view.first_user_prompt.as_deref(), Some("fix the bug"));
    assert_eq!(
        (view.title.as_deref(), view.generated_name.as_deref()),
        (Some("Made up"), Some("Made up"))
    );
    assert_eq!(
        (view.name.as_deref(), view.name_origin),
        (Some("fix the bug"), Some(NameOrigin::Automatic))
    );
    assert_eq!(
        view.created_by_client,
        Some(ClientInfo { name: "zed".into(), version: "1".into() })
    );
    records.push(record(5, Kind::Renamed, r#"{"name":"mine","origin":"custom"}"#));
    records.push(record(6, Kind::Metadata, r#"{"title":"From the list"}"#));
    records.push(record(
        7,
        Kind::TurnStarted,
        r#"{"turn":"u","prompt":[{"type":"text","text":"more"}]}"#,
    ));
    let view = fold(&records);
    assert_eq!((view.name.as_deref(), view.name_origin), (Some("mine"), Some(NameOrigin::Custom)));
    assert_eq!(
        (view.title.as_deref(), view.generated_name.as_deref()),
        (Some("From the list"), Some("Made up"))
    );
    assert_eq!(view.first_user_prompt.as_deref(), Some("fix the bug"));
}

#[test]
fn a_replayed_first_prompt_is_put_together_from_its_pieces() {
    let piece = |text: &str| {
        format!(
            r#"{{"update":{{"sessionUpdate":"user_message_chunk","content":{{"type":"text","text":"{text}"}}}}}}"#
        )
    };
    let view = fold(&[
        record(1, Kind::Adopted, r#"{"agent":"a","nativeId":"n","cwd":"/"}"#),
        record(2, Kind::Imported, &piece("what ")),
        record(3, Kind::Imported, &piece("is this")),
        record(4, Kind::Imported, r#"{"update":{"sessionUpdate":"agent_message_chunk"}}"#),
        record(5, Kind::Imported, &piece("second")),
    ]);
    assert_eq!(view.first_user_prompt.as_deref(), Some("what is this"));
    assert_eq!((view.turn_count, view.last_activity_at), (0, None));
}

#[test]
fn model_provider_and_mode_come_from_options_and_are_never_guessed() {
    let view = fold(&[record(
        1,
        Kind::Created,
        r#"{"agent":"a","cwd":"/","result":{"models":{"currentModelId":"old"},"modes":{"currentModeId":"ask"},"configOptions":[{"id":"m","category":"model","currentValue":"openai/gpt"}]}}"#,
    )]);
    assert_eq!(
        (view.model_id.as_deref(), view.provider_id.as_deref(), view.mode_id.as_deref()),
        (Some("openai/gpt"), None, Some("ask"))
    );
    let view = fold(&[record(1, Kind::Created, r#"{"agent":"a","cwd":"/"}"#)]);
    assert_eq!(
        (view.model_id.as_deref(), view.provider_id.as_deref(), view.mode_id.as_deref()),
        (None, None, None)
    );
}

#[test]
fn a_fork_knows_its_parent_in_both_spellings() {
    let old = fold(&[record(1, Kind::Created, r#"{"agent":"a","cwd":"/","forkedFrom":"p"}"#)]);
    assert_eq!(old.forked_from.unwrap().session_id, "p");
    let new = fold(&[record(
        1,
        Kind::Created,
        r#"{"agent":"a","cwd":"/","forkedFrom":{"sessionId":"p","cutCursor":"v:p:9","cutExplicit":false,"commandId":"c"}}"#,
    )]);
    assert_eq!(new.forked_from.unwrap().cut_cursor, "v:p:9");
}

#[test]
fn policy_branch_and_questions_are_folded() {
    let mut records = vec![
        record(1, Kind::Created, r#"{"agent":"a","cwd":"/"}"#),
        record(2, Kind::Policy, r#"{"mode":"denyUnmatched","source":"startup"}"#),
        record(
            3,
            Kind::Branch,
            r#"{"branch":"main","vcs":"git","worktree":{"path":"/w","origin":"attached"}}"#,
        ),
        record(
            4,
            Kind::InteractionOpened,
            r#"{"interaction":"i","method":"session/request_permission"}"#,
        ),
        record(5, Kind::InteractionOpened, r#"{"interaction":"j","method":"elicitation/create"}"#),
        record(6, Kind::Policy, r#"{"mode":"brandNew","source":"startup"}"#),
    ];
    let view = fold(&records);
    assert_eq!(view.policy.as_ref().unwrap().mode, ApprovalMode::DenyUnmatched);
    assert_eq!((view.branch.as_deref(), view.has_asked), (Some("main"), true));
    assert_eq!(view.open_questions(), (1, 1));
    assert_eq!(
        view.anomalies,
        [Anomaly { seq: 6, what: "has a policy of another version".into() }]
    );
    records.push(record(7, Kind::Branch, r#"{"branch":null,"vcs":"git"}"#));
    records.push(record(8, Kind::InteractionSettled, r#"{"interaction":"i"}"#));
    let view = fold(&records);
    assert_eq!((view.branch, view.worktree, view.updated_at), (None, None, view.created_at));
    assert_eq!(view.open_interactions.len(), 1);
}

#[test]
fn commands_and_anomalies_are_kept_up_to_their_limits() {
    let records: Vec<Record> = (1..=200)
        .map(|seq| match seq % 2 {
            0 => record(seq, Kind::Command, &format!(r#"{{"commandId":"{seq}","ack":{{}}}}"#)),
            _ => record(seq, Kind::Command, "7"),
        })
        .collect();
    let view = fold(&records);
    assert_eq!((view.commands_done.len(), view.anomalies.len()), (COMMANDS_MAX, ANOMALIES_MAX));
    assert_eq!((view.commands_done[0].command_id.as_str(), view.anomaly_count), ("74", 100));
}

#[test]
fn a_childs_title_and_mode_are_not_its_parents() {
    let update = |of: &str, update: &str| format!(r#"{{"sessionId":"{of}","update":{update}}}"#);
    let title = r#"{"sessionUpdate":"session_info_update","title":"T"}"#;
    let mode = r#"{"sessionUpdate":"current_mode_update","currentModeId":"m"}"#;
    let chunk = r#"{"sessionUpdate":"agent_message_chunk"}"#;
    let made =
        r#"{"agent":"a","nativeId":"n","cwd":"/","result":{"modes":{"currentModeId":"ask"}}}"#;
    let mut records = vec![record(1, Kind::Created, made)];
    for (seq, what) in (2..).zip([title, mode, chunk]) {
        records.push(record(seq, Kind::Update, &update("child", what)));
    }
    let view = fold(&records);
    assert_eq!((view.title, view.mode_id.as_deref(), view.items), (None, Some("ask"), 1));
    records.push(record(5, Kind::Update, &update("n", title)));
    assert_eq!(fold(&records).title.as_deref(), Some("T"));
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
        Just(r#"{"name":"n","origin":"custom","commandId":"c","mode":"allowAll","source":"s"}"#.to_owned()),
        Just(r#"{"branch":"b","worktree":{"path":"/","origin":"attached"},"method":"session/request_permission","interaction":"q"}"#.to_owned()),
        Just(r#"{"turn":"t1","prompt":[{"type":"text","text":" a  b "}],"clientInfo":{"name":"n","version":"v"},"forkedFrom":"p","parent":"k"}"#.to_owned()),
        Just(r#"{"update":{"sessionUpdate":"user_message_chunk","content":{"type":"text","text":" x "}}}"#.to_owned()),
        Just(r#"{"update":{"sessionUpdate":"session_info_update","title":"T"}}"#.to_owned()),
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

#[test]
fn aliases_are_learned_wherever_an_agent_tells_them() {
    let info = |ids: &str| {
        format!(
            r#"{{"sessionId":"n","update":{{"sessionUpdate":"session_info_update","aliases":{ids}}}}}"#
        )
    };
    let created = r#"{"agent":"a","nativeId":"n","cwd":"/","result":{"sessionId":"n","aliases":["n","made"]}}"#;
    let loaded = r#"{"result":{"_meta":{"agentclientprotocol.com/aliases":["loaded"]}}}"#;
    let records = [
        record(1, Kind::Created, created),
        record(2, Kind::Update, &info(r#"["told"]"#)),
        record(3, Kind::Imported, &info(r#"["of another"]"#)),
        record(4, Kind::Loaded, loaded),
        record(5, Kind::Metadata, r#"{"aliases":["listed"],"storedId":"moved"}"#),
        record(6, Kind::Metadata, r#"{"aliases":7}"#),
    ];
    let view = fold(&records);
    assert_eq!(view.aliases, ["made", "told", "loaded", "listed", "moved"]);
    assert_eq!((view.native.as_deref(), view.opened_as()), (Some("n"), Some("moved")));
    assert_eq!(view.natives().len(), 6);
    assert!(view.is_called("n") && view.is_called("told") && !view.is_called("of another"));
    // Back to its first id.
    let mut back = view;
    back.apply(&record(7, Kind::Metadata, r#"{"storedId":"n"}"#));
    assert_eq!((back.opened_as(), back.aliases.len()), (Some("n"), 5));
    back.apply(&record(8, Kind::Deleted, "{}"));
    assert_eq!(back.aliases.len(), 5, "a tombstone is known by all its names");
}

#[test]
fn the_oldest_aliases_make_room_and_what_is_told_again_is_nothing_new() {
    let ids = |range: std::ops::Range<usize>| range.map(|at| at.to_string()).collect::<Vec<_>>();
    let mut view = View { native: Some("n".into()), ..View::default() };
    assert!(view.learn_aliases(&ids(0..ALIASES_MAX)));
    assert_eq!(view.aliases, ids(0..ALIASES_MAX));
    assert!(view.learn_aliases(&["new".into(), "0".into()]));
    assert_eq!(view.aliases.len(), ALIASES_MAX);
    assert!(view.is_called("0") && view.is_called("new") && !view.is_called("1"));
    let many = ids(0..2 * ALIASES_MAX);
    assert!(view.learn_aliases(&many) && !view.learn_aliases(&many));
}

#[test]
fn a_session_that_turned_out_to_be_another_one_is_not_listed() {
    let mut view = fold(&[record(1, Kind::Adopted, r#"{"agent":"a","nativeId":"n","cwd":"/"}"#)]);
    assert!(view.is_listed());
    view.apply(&record(2, Kind::Metadata, r#"{"sameAs":"key"}"#));
    view.apply(&record(3, Kind::Metadata, r#"{"title":"t"}"#));
    assert!(!view.is_listed() && view.same_as.as_deref() == Some("key"));
}
