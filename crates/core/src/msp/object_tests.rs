//! Each of the 26 members: its value, its absence and its nullability, on each carrier.

use serde_json::json;

use super::*;
use crate::fold::{self, Worktree};

const KEY: &str = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";
const PATH: &str = "/home/x/data/sessions/2026/11/30/k/journal.jsonl";
/// The instant inside `KEY`.
const MINTED: &str = "2026-11-30T09:08:09.25Z";

/// How a member may be missing.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Presence {
    /// Always there, never null.
    Required,
    /// Always there, may be null.
    RequiredNullable,
    /// Left out where unknown, never null.
    Additive,
    /// `sideFrom`: not required by the schema, and always said here.
    AlwaysSaid,
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A session of which nothing is known but that it is there.
fn bare() -> View {
    View {
        created_at: Some(at("2026-11-30T12:00:00Z")),
        origin: Origin::Adopted,
        ..View::default()
    }
}

/// A session of which everything is known.
fn full() -> View {
    View {
        cwd: "/w".into(),
        title: Some("Title".into()),
        name: Some("name".into()),
        name_origin: Some(NameOrigin::Custom),
        generated_name: Some("Generated".into()),
        first_user_prompt: Some("do it ".into()),
        branch: Some("main".into()),
        worktree: Some(Worktree { path: "/w".into(), origin: "attached".into() }),
        created_by_client: Some(fold::ClientInfo { name: "zed".into(), version: "1".into() }),
        origin: Origin::Created,
        updated_at: Some(at("2026-11-30T13:00:00.5Z")),
        last_activity_at: Some(at("2026-11-30T12:30:00Z")),
        turn_count: 3,
        model_id: Some("m".into()),
        provider_id: Some("p".into()),
        policy: Some(Policy {
            mode: ApprovalMode::OnRequest,
            source: "startup".into(),
            command_id: None,
        }),
        open_interactions: [
            ("i".to_owned(), json!({ "method": "session/request_permission" })),
            ("j".to_owned(), json!({ "method": "elicitation/create" })),
        ]
        .into(),
        ..bare()
    }
}

fn running() -> Loaded<'static> {
    Loaded::Yes { turn: Some("t"), reviewer_attached: true }
}

fn object(view: &View, loaded: Loaded<'_>, carrier: Carrier) -> Value {
    let source = Source {
        key: KEY.parse().unwrap(),
        view,
        path: PATH,
        loaded,
        policy: view.policy.as_ref(),
        seen_at: at("2020-01-01T00:00:00Z"),
    };
    let object = serde_json::to_value(Session::of(&source, carrier)).unwrap();
    // Whatever is made can be read, and says the same again.
    let read: Session = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), object);
    object
}

/// Checks a member on all carriers: what it is where everything is known, what it is where nothing
/// is, and that a reader agrees about whether it may be missing or null.
fn member(name: &str, presence: Presence, value: &Value, unknown: Option<Value>) {
    for carrier in Carrier::ALL {
        let fold_only = matches!(name, "nameOrigin" | "generatedName");
        let known = object(&full(), running(), carrier);
        let wanted = (carrier.is_fold() || !fold_only).then_some(value);
        assert_eq!(known.get(name), wanted, "{name} known, {carrier:?}");
        let nothing = object(&bare(), Loaded::No, carrier);
        assert_eq!(nothing.get(name), unknown.as_ref(), "{name} unknown, {carrier:?}");
        let read = |change: &dyn Fn(&mut Map<String, Value>)| {
            let mut changed = object(&full(), running(), carrier);
            change(changed.as_object_mut().unwrap());
            serde_json::from_value::<Session>(changed).is_ok()
        };
        let required = matches!(presence, Presence::Required | Presence::RequiredNullable);
        assert_eq!(read(&|o| drop(o.remove(name))), !required, "{name} left out, {carrier:?}");
        let null = read(&|o| drop(o.insert(name.to_owned(), Value::Null)));
        assert_eq!(null, presence != Presence::Required, "{name} null, {carrier:?}");
    }
    match (&unknown, presence) {
        (Some(Value::Null), Presence::RequiredNullable | Presence::AlwaysSaid)
        | (None, Presence::Additive) => {}
        (Some(value), Presence::Required) => assert!(!value.is_null()),
        other => panic!("{name}: {other:?}"),
    }
}

macro_rules! members {
    ($($test:ident: $name:literal, $presence:ident, $value:expr, $unknown:expr;)*) => {
        $(
            #[test]
            fn $test() {
                member($name, Presence::$presence, &json!($value), $unknown);
            }
        )*

        const MEMBERS: &[(&str, Presence)] = &[$(($name, Presence::$presence)),*];
    };
}

members! {
    session_id: "sessionId", Required, KEY, Some(json!(KEY));
    path: "path", Required, PATH, Some(json!(PATH));
    status: "status", Required, "running", Some(json!("notLoaded"));
    active_turn_id: "activeTurnId", RequiredNullable, "t", Some(Value::Null);
    created_at_: "createdAt", Required, "2026-11-30T12:00:00Z", Some(json!("2026-11-30T12:00:00Z"));
    updated_at: "updatedAt", Required, "2026-11-30T13:00:00.5Z", Some(json!("2026-11-30T12:00:00Z"));
    workspace_root: "workspaceRoot", RequiredNullable, "/w", Some(Value::Null);
    provider_id: "providerId", RequiredNullable, "p", Some(Value::Null);
    model_id: "modelId", RequiredNullable, "m", Some(Value::Null);
    turn_count: "turnCount", Required, 3, Some(json!(0));
    side_from: "sideFrom", AlwaysSaid, Value::Null, Some(Value::Null);
    approval_mode_: "approvalMode", Additive, json!({ "mode": "onRequest", "source": "startup", "lastCommandId": null }), None;
    permission_state_: "permissionState", Additive, json!({ "profileId": null, "reviewerAuthority": "human", "reviewerAttached": true }), None;
    attention_: "attention", Additive, ["approvalPending", "inputPending"], None;
    last_activity_at: "lastActivityAt", Additive, "2026-11-30T12:30:00Z", None;
    name: "name", Additive, "name", None;
    name_origin_: "nameOrigin", Additive, "custom", None;
    generated_name: "generatedName", Additive, "Generated", None;
    title: "title", Additive, "Title", None;
    first_user_prompt: "firstUserPrompt", Additive, "do it", None;
    branch: "branch", Additive, "main", None;
    kind_: "kind", Additive, "root", None;
    created_by_client: "createdByClient", Additive, json!({ "name": "zed", "version": "1" }), None;
    worktree: "worktree", Additive, json!({ "path": "/w", "origin": "attached" }), None;
}

#[test]
fn forked_from() {
    let from = fold::ForkedFrom {
        session_id: "p".into(),
        cut_cursor: "v:p:9".into(),
        cut_explicit: false,
        command_id: "c".into(),
    };
    let fork = View { forked_from: Some(from), ..full() };
    for carrier in Carrier::ALL {
        let told = object(&fork, running(), carrier);
        assert_eq!(
            told["forkedFrom"],
            json!({ "sessionId": "p", "cutCursor": "v:p:9", "cutExplicit": false, "commandId": "c" })
        );
        // At most one of both; a fork is born at the instant in its id, and nobody's handshake is its own.
        assert_eq!(told["sideFrom"], Value::Null);
        assert_eq!(told["createdAt"], MINTED);
        assert!(told.get("createdByClient").is_none());
        assert_eq!(object(&full(), running(), carrier)["forkedFrom"], Value::Null);
        let mut without = told;
        without.as_object_mut().unwrap().remove("forkedFrom");
        assert!(serde_json::from_value::<Session>(without).is_err());
    }
}

#[test]
fn parent_session_id() {
    let child = View { parent: Some("top".into()), ..full() };
    for carrier in Carrier::ALL {
        let told = object(&child, running(), carrier);
        assert_eq!((&told["parentSessionId"], &told["kind"]), (&json!("top"), &json!("subagent")));
        assert!(told.get("createdByClient").is_none());
        assert!(object(&full(), running(), carrier).get("parentSessionId").is_none());
    }
}

#[test]
fn there_are_26_members_and_no_other() {
    let mut names: Vec<&str> = MEMBERS.iter().map(|(name, _)| *name).collect();
    names.extend(["forkedFrom", "parentSessionId"]);
    assert_eq!(names.len(), 26);
    let view = View { parent: Some("top".into()), ..full() };
    let view = View { created_by_client: full().created_by_client, ..view };
    let told = object(&view, running(), Carrier::Read);
    for name in told.as_object().unwrap().keys() {
        assert!(names.contains(&name.as_str()), "{name}");
    }
    let required = MEMBERS.iter().filter(|(_, presence)| {
        matches!(presence, Presence::Required | Presence::RequiredNullable)
    });
    // The schema requires eleven; `forkedFrom` has a test of its own.
    assert_eq!(required.count() + 1, 11);
}

#[test]
fn a_session_that_is_not_loaded_says_nothing_that_only_a_live_one_can_prove() {
    for carrier in Carrier::ALL {
        let told = object(&full(), Loaded::No, carrier);
        assert_eq!((&told["status"], &told["activeTurnId"]), (&json!("notLoaded"), &Value::Null));
        assert!(told.get("attention").is_none() && told.get("permissionState").is_none());
        assert!(told.get("approvalMode").is_some(), "the folded mode is no live fact");
    }
}

#[test]
fn an_idle_session_has_no_turn_and_may_need_attention() {
    let idle = Loaded::Yes { turn: None, reviewer_attached: false };
    let told = object(&full(), idle.clone(), Carrier::Row);
    assert_eq!((&told["status"], &told["activeTurnId"]), (&json!("idle"), &Value::Null));
    assert_eq!(told["attention"], json!(["approvalPending", "inputPending"]));
    let quiet = View { open_interactions: Default::default(), ..full() };
    assert!(object(&quiet, idle, Carrier::Row).get("attention").is_none());
}

#[test]
fn no_time_is_before_the_beginning() {
    let early = Some(at("2020-01-01T00:00:00Z"));
    let view = View { updated_at: early, last_activity_at: early, ..full() };
    let told = object(&view, Loaded::No, Carrier::Row);
    for name in ["updatedAt", "lastActivityAt"] {
        assert_eq!(told[name], "2026-11-30T12:00:00Z");
    }
}

#[test]
fn a_beginning_that_cannot_be_read_is_the_instant_in_the_id_or_when_it_was_seen() {
    let view = View { created_at: None, ..full() };
    assert_eq!(object(&view, Loaded::No, Carrier::Row)["createdAt"], MINTED);
    let source = Source {
        key: "290280f8-c512-4019-b944-78cf31f5439e".parse().unwrap(),
        view: &view,
        path: PATH,
        loaded: Loaded::No,
        policy: None,
        seen_at: at("2020-01-01T00:00:00Z"),
    };
    assert_eq!(Session::of(&source, Carrier::Row).created_at, "2020-01-01T00:00:00Z");
}

#[test]
fn who_reviews_follows_from_the_policy() {
    let state = |mode, reviewer_attached| {
        let policy = Some(Policy {
            mode,
            source: "approvalReconfigure".into(),
            command_id: Some("c".into()),
        });
        let loaded = Loaded::Yes { turn: None, reviewer_attached };
        let told = object(&View { policy, ..full() }, loaded, Carrier::Ack);
        assert_eq!(told["approvalMode"]["lastCommandId"], "c");
        (
            told["permissionState"]["reviewerAuthority"].clone(),
            told["permissionState"]["reviewerAttached"].clone(),
        )
    };
    for mode in [ApprovalMode::OnRequest, ApprovalMode::PromptUnmatched] {
        assert_eq!(state(mode, true), (json!("human"), json!(true)));
        assert_eq!(state(mode, false), (json!("human"), json!(false)));
    }
    for mode in [ApprovalMode::AllowAll, ApprovalMode::DenyUnmatched] {
        assert_eq!(state(mode, true), (json!("none"), json!(false)));
    }
}

#[test]
fn experimental_members_are_stripped_and_nothing_else() {
    let mut told: Session =
        serde_json::from_value(object(&full(), running(), Carrier::Read)).unwrap();
    told.attention = Some(vec![AttentionFlag::Other("admissionPending".into())]);
    let before = serde_json::to_value(&told).unwrap();
    told.strip_experimental();
    let after = serde_json::to_value(&told).unwrap();
    let gone: Vec<_> =
        before.as_object().unwrap().keys().filter(|name| after.get(name).is_none()).collect();
    assert_eq!(gone, ["permissionState", "attention", "worktree"]);
}

#[test]
fn words_and_members_of_newer_versions_are_kept() {
    let mut told = object(&full(), running(), Carrier::Read);
    told["status"] = json!("needsInput");
    told["kind"] = json!("brandNew");
    told["runningElsewhere"] = json!({ "a": [1] });
    let read: Session = serde_json::from_value(told.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), told);
    told["approvalMode"]["mode"] = json!("brandNew");
    assert!(serde_json::from_value::<Session>(told).is_err(), "approval modes are a closed set");
}
