//! Names, provenance, policy, branch, putting aside.

use super::*;
use crate::fold::{ApprovalMode, ClientInfo, ForkedFrom, NameOrigin};
use crate::workspace::Workspace;

const ASK: &str = r#"{"id":5,"method":"session/request_permission","params":{"sessionId":"n","options":[{"optionId":"always","kind":"allow_always"},{"optionId":"yes","kind":"allow_once"},{"optionId":"no","kind":"reject_once"}]}}"#;
const ELICIT: &str =
    r#"{"id":6,"method":"elicitation/create","params":{"sessionId":"n","mode":"form"}}"#;
const TITLE: &str = r#"{"method":"session/update","params":{"sessionId":"n","update":{"sessionUpdate":"session_info_update","title":"agent's"}}}"#;
const CHUNK: &str = r#"{"method":"session/update","params":{"sessionId":"n","update":{"sessionUpdate":"agent_message_chunk"}}}"#;

fn payloads(effects: &[Effect], kind: &Kind) -> Vec<Value> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Append(record) if record.kind == *kind => record.payload(),
            _ => None,
        })
        .collect()
}

/// What the agent is answered.
fn replies(effects: &[Effect]) -> Vec<Value> {
    let frames = effects.iter().filter_map(|effect| match effect {
        Effect::Notify(frame) | Effect::Settle { frame: Some(frame), .. } => {
            Some(serde_json::from_slice(frame).unwrap())
        }
        _ => None,
    });
    frames.collect()
}

fn titles(effects: &[Effect]) -> Vec<(u64, String, String)> {
    let told = effects.iter().filter_map(|effect| match effect {
        Effect::Tell { conn, frame, .. } => {
            let frame: Value = serde_json::from_slice(frame).unwrap();
            let title = frame["params"]["update"]["title"].as_str()?.to_owned();
            Some((conn.0, frame["params"]["sessionId"].as_str()?.to_owned(), title))
        }
        _ => None,
    });
    told.collect()
}

fn end_turn(bench: &mut Bench, started: &[Effect]) {
    let tag = sent(started);
    let frame = frame(r#"{"id":9,"result":{"stopReason":"end_turn"}}"#);
    bench.answered(tag, frame);
}

fn rename(name: &str) -> Input {
    let by = Some(By { client: "k9".into(), name: "cli".into() });
    Input::Rename(Rename { name: name.into(), by, command_id: Some("c-1".into()) })
}

fn policy(mode: ApprovalMode) -> Input {
    Input::Policy { mode, command_id: None }
}

#[test]
fn the_first_prompt_with_words_names_the_session_once() {
    let mut bench = Bench::live();
    let picture = r#"{"id":3,"method":"session/prompt","params":{"sessionId":"key","prompt":[{"type":"image","data":"QUJD","mimeType":"image/png"}]}}"#;
    let effects = bench.run(Input::Prompt { conn: ConnId(1), frame: frame(picture) });
    assert_eq!(words(&effects), ["write turn_started", "send session/prompt"]);
    end_turn(&mut bench, &effects);
    let effects = bench.prompt(1, "4", "fix the bug");
    let named = payloads(&effects, &Kind::Renamed);
    assert_eq!(named, [json!({ "name": "fix the bug", "origin": "automatic" })]);
    assert!(titles(&effects).is_empty(), "an automatic name is no title for editors");
    end_turn(&mut bench, &effects);
    assert!(payloads(&bench.prompt(1, "5", "and more"), &Kind::Renamed).is_empty());
    assert_eq!(bench.session.view().name_origin, Some(NameOrigin::Automatic));
}

#[test]
fn a_name_that_is_there_is_never_replaced_by_a_prompt() {
    let mut bench = Bench::live();
    bench.run(rename("nightly"));
    assert!(payloads(&bench.prompt(1, "3", "fix the bug"), &Kind::Renamed).is_empty());
    assert_eq!(bench.session.view().name.as_deref(), Some("nightly"));
}

#[test]
fn a_session_with_a_history_is_named_after_its_own_first_prompt() {
    let view = View {
        native: Some("n".into()),
        first_user_prompt: Some("what it began with".into()),
        ..View::default()
    };
    let mut bench = Bench::cold(view);
    bench.attach(1, How::Resume);
    bench.run(Input::Opening { facts: facts(), mode: OpenMode::Resume });
    bench.run(Input::Started { result: "{}".into() });
    let effects = bench.prompt(1, "3", "go on");
    assert_eq!(payloads(&effects, &Kind::Renamed)[0]["name"], "what it began with");
}

#[test]
fn a_persons_name_is_durable_before_it_is_shown_in_each_spelling() {
    let mut bench = Bench::live();
    bench.join(2);
    let effects = bench.run(rename("nightly"));
    assert_eq!(
        words(&effects),
        ["write renamed", "sync", "tell c1 session/update", "tell c2 session/update"]
    );
    assert_eq!(
        payloads(&effects, &Kind::Renamed),
        [
            json!({ "name": "nightly", "origin": "custom", "by": { "client": "k9", "name": "cli" }, "commandId": "c-1" })
        ]
    );
    let told = [(1, "key".to_owned(), "nightly".to_owned()), (2, "n".into(), "nightly".into())];
    assert_eq!(titles(&effects), told);
    // Whoever comes later learns it too, and the agent's own title does not take its place.
    assert_eq!(titles(&bench.join(3)), [(3, "n".into(), "nightly".to_owned())]);
    let effects = bench.agent(TITLE);
    let shown: Vec<String> = titles(&effects).into_iter().map(|(_, _, title)| title).collect();
    assert_eq!(shown, ["agent's", "agent's", "agent's", "nightly", "nightly", "nightly"]);
    assert!(titles(&bench.agent(CHUNK)).is_empty());
}

#[test]
fn a_cold_session_is_renamed_without_being_loaded() {
    let mut bench = Bench::cold(View { native: Some("n".into()), ..View::default() });
    assert_eq!(words(&bench.run(rename("nightly"))), ["write renamed", "sync"]);
    assert!(bench.session.at_rest());
}

#[test]
fn the_client_is_kept_as_it_named_itself_but_not_for_forks() {
    let info = Some(ClientInfo { name: "zed".into(), version: "1.2".into() });
    let made = |forked_from| {
        let mut bench = Bench::cold(View::default());
        let born = Born { client_info: info.clone(), forked_from, ..born() };
        let effects = bench.run(Input::Born(Box::new(born)));
        (payloads(&effects, &Kind::Created)[0].clone(), words(&effects), bench)
    };
    let (created, ..) = made(None);
    assert_eq!(created["clientInfo"], json!({ "name": "zed", "version": "1.2" }));
    let from = ForkedFrom {
        session_id: "parent".into(),
        cut_cursor: "v:parent:9".into(),
        cut_explicit: false,
        command_id: "c".into(),
    };
    let (created, effects, mut bench) = made(Some(from.clone()));
    assert!(created.get("clientInfo").is_none());
    assert_eq!(created["forkedFrom"], json!(from));
    assert!(!effects.contains(&"answer c1 1 ok".to_owned()), "its history comes first");
    let piece = r#"{"sessionId":"n","update":{"sessionUpdate":"user_message_chunk","content":{"type":"text","text":"old"}}}"#;
    let items = vec![Bytes::from_static(piece.as_bytes())];
    bench.mono_ms += 1_000;
    assert_eq!(words(&bench.run(Input::Copied { items })), ["write imported"]);
    assert_eq!(words(&bench.run(Input::CopyEnded)), ["write note", "sync", "answer c1 1 ok"]);
    let view = bench.session.view();
    assert_eq!((view.turn_count, view.last_activity_at, view.items), (0, None, 1));
    assert_eq!((view.updated_at, view.forked_from.as_ref()), (view.created_at, Some(&from)));
}

#[test]
fn a_policy_settles_questions_before_anybody_is_asked() {
    for (mode, option) in [(ApprovalMode::AllowAll, "yes"), (ApprovalMode::DenyUnmatched, "no")] {
        let mut bench = Bench::cold(View::default());
        bench.run(Input::Born(Box::new(Born { approval: Some(mode), ..born() })));
        bench.prompt(1, "3", "x");
        let effects = bench.agent(ASK);
        assert_eq!(
            words(&effects),
            ["write interaction_opened", "sync", "write interaction_settled", "sync", "reply ok"]
        );
        let answer = json!({ "outcome": { "outcome": "selected", "optionId": option } });
        let settled = &payloads(&effects, &Kind::InteractionSettled)[0];
        assert_eq!(settled["by"], json!({ "policy": mode.as_str() }));
        assert_eq!(settled["answer"], answer);
        assert_eq!(replies(&effects)[0], json!({ "jsonrpc": "2.0", "id": 5, "result": answer }));
        assert_eq!(bench.session.state(), Some(State::Running));
        assert!(bench.session.view().has_asked);
    }
}

#[test]
fn where_people_decide_the_policy_is_silent() {
    for mode in [ApprovalMode::PromptUnmatched, ApprovalMode::OnRequest] {
        let mut bench = Bench::live();
        assert_eq!(words(&bench.run(policy(mode))), ["write policy", "sync"]);
        bench.prompt(1, "3", "x");
        let effects = words(&bench.agent(ASK));
        assert_eq!(effects.last().unwrap(), "ask c1 session/request_permission");
    }
}

#[test]
fn a_new_policy_settles_what_is_open_and_takes_it_back_from_people() {
    let mut bench = Bench::live();
    bench.prompt(1, "3", "x");
    bench.agent(ASK);
    // A form is no permission: no policy fills it in.
    let mut can = client(2);
    can.can = ClientAbilities { elicitation_form: true, ..can.can };
    bench.run(Input::Attach(Attach {
        client: can,
        id: "7".into(),
        how: How::Resume,
        spelling: "n".into(),
        params: Bytes::from_static(b"{}"),
        from: Mark::default(),
    }));
    bench.agent(ELICIT);
    let effects = bench.run(policy(ApprovalMode::DenyUnmatched));
    assert_eq!(
        words(&effects),
        [
            "write policy",
            "sync",
            "write interaction_settled",
            "sync",
            "reply ok",
            "forget c1",
            "tell c1 $/cancel_request",
            "forget c2",
            "tell c2 $/cancel_request",
        ]
    );
    assert_eq!(
        payloads(&effects, &Kind::Policy),
        [json!({ "mode": "denyUnmatched", "source": "approvalReconfigure", "commandId": null })]
    );
    assert_eq!(bench.session.open_questions().count(), 1);
}

#[test]
fn a_configured_policy_begins_with_the_session_and_a_told_one_stays() {
    let configured = AgentFacts { approval: Some(ApprovalMode::DenyUnmatched), ..facts() };
    let found = View { native: Some("n".into()), ..View::default() };
    let mut bench = Bench::cold(found);
    bench.attach(1, How::Resume);
    bench.run(Input::Opening { facts: configured.clone(), mode: OpenMode::Resume });
    let effects = bench.run(Input::Started { result: "{}".into() });
    assert_eq!(words(&effects)[..3], ["write loaded", "write policy", "sync"]);
    assert_eq!(payloads(&effects, &Kind::Policy)[0]["source"], "startup");
    let mut bench = Bench::cold(View::default());
    let asked = Some(ApprovalMode::AllowAll);
    bench.run(Input::Born(Box::new(Born { approval: asked, facts: configured, ..born() })));
    let told = bench.session.view().policy.clone().unwrap();
    assert_eq!((told.mode, told.source.as_str()), (ApprovalMode::AllowAll, "startup"));
}

#[test]
fn only_a_change_of_the_branch_is_written_and_it_is_no_activity() {
    let mut bench = Bench::live();
    let (updated, active) = {
        let view = bench.session.view();
        (view.updated_at, view.last_activity_at)
    };
    bench.mono_ms += 1_000;
    let on = |branch: Option<&str>, worktree: Option<&str>| {
        Input::Workspace(Workspace {
            branch: branch.map(str::to_owned),
            worktree: worktree.map(str::to_owned),
        })
    };
    let nothing: [&str; 0] = [];
    assert_eq!(words(&bench.run(on(None, None))), nothing, "no repository says nothing");
    assert_eq!(words(&bench.run(on(Some("main"), None))), ["write branch"]);
    assert_eq!(words(&bench.run(on(Some("main"), None))), nothing);
    assert_eq!(words(&bench.run(on(Some("main"), Some("/w")))), ["write branch"]);
    assert_eq!(words(&bench.run(on(None, Some("/w")))), ["write branch"]);
    let effects = bench.run(on(None, None));
    assert_eq!(
        payloads(&effects, &Kind::Branch),
        [json!({ "branch": null, "vcs": "git", "worktree": null })]
    );
    let view = bench.session.view();
    assert_eq!((view.updated_at, view.last_activity_at), (updated, active));
}

#[test]
fn a_session_that_was_put_aside_is_taken_back_by_a_prompt_alone() {
    let mut bench = Bench::live();
    let archive = |archived| Input::Archive { archived };
    assert_eq!(words(&bench.run(archive(true))), ["write archived", "sync"]);
    assert!(bench.run(archive(true)).is_empty());
    bench.join(2);
    assert!(bench.session.view().archived, "a load does not take it back");
    let effects = words(&bench.prompt(1, "3", "x"));
    assert_eq!(effects[..3], ["write archived", "sync", "write turn_started"]);
    assert!(!bench.session.view().archived);
    assert!(bench.run(archive(false)).is_empty());
}

const CHILD_ASK: &str = r#"{"id":8,"method":"session/request_permission","params":{"sessionId":"child","options":[{"optionId":"yes","kind":"allow_once"}]}}"#;
const CHILD_CHUNK: &str = r#"{"method":"session/update","params":{"sessionId":"child","update":{"sessionUpdate":"agent_message_chunk"}}}"#;
const CHILD_TITLE: &str = r#"{"method":"session/update","params":{"sessionId":"child","update":{"sessionUpdate":"session_info_update","title":"child's"}}}"#;

/// The session ids of what clients are told or asked.
fn told_in(effects: &[Effect]) -> Vec<String> {
    let ids = effects.iter().filter_map(|effect| match effect {
        Effect::Tell { frame, .. } => {
            let frame: Value = serde_json::from_slice(frame).unwrap();
            frame["params"]["sessionId"].as_str().map(str::to_owned)
        }
        _ => None,
    });
    ids.collect()
}

#[test]
fn what_a_child_says_and_asks_reaches_the_parents_clients_in_the_childs_id() {
    let mut bench = Bench::live();
    bench.join(2);
    bench.prompt(1, "3", "x");
    assert_eq!(told_in(&bench.agent(CHILD_CHUNK)), ["child", "child"]);
    let effects = bench.agent(CHILD_ASK);
    assert_eq!(told_in(&effects), ["child", "child"]);
    assert_eq!(bench.session.state(), Some(State::RequiresAction));
    bench.agent(CHILD_TITLE);
    let view = bench.session.view();
    assert_eq!((view.title.as_deref(), view.has_asked), (None, true));
}

#[test]
fn a_cancel_for_a_child_cancels_nothing_of_its_parent() {
    let mut bench = Bench::live();
    bench.prompt(1, "3", "x");
    bench.agent(ASK);
    let cancel = r#"{"method":"session/cancel","params":{"sessionId":"child"}}"#;
    let effects = bench.run(Input::ToChild { conn: ConnId(1), frame: frame(cancel) });
    assert_eq!(words(&effects), ["reply session/cancel"]);
    assert_eq!(replies(&effects)[0]["params"]["sessionId"], "child");
    assert_eq!(bench.session.open_questions().count(), 1);
    let stranger = Input::ToChild { conn: ConnId(9), frame: frame(cancel) };
    assert!(bench.run(stranger).is_empty());
}

#[test]
fn a_child_is_read_and_never_continued() {
    let view = View {
        native: Some("child".into()),
        parent: Some("the-parent".into()),
        items: 2,
        ..View::default()
    };
    let mut bench = Bench::cold(view.clone());
    assert_eq!(words(&bench.attach(1, How::Load)), ["catch-up c1 from 0"]);
    let effects = bench.run(Input::CaughtUp { conn: ConnId(1), seq: 0 });
    assert_eq!(words(&effects), ["answer c1 7 ok"]);
    assert_eq!(words(&bench.prompt(1, "3", "x")), ["answer c1 3 -32002"]);
    let effects = Bench::cold(view).attach(1, How::Resume);
    assert_eq!(words(&effects), ["answer c1 7 -32002", "left c1"]);
    let told = effects.iter().find_map(|effect| match effect {
        Effect::Answer { frame, .. } => Some(frame),
        _ => None,
    });
    let error: Value = serde_json::from_slice(told.unwrap()).unwrap();
    assert_eq!(error["error"]["data"]["parent"], "the-parent");
}
