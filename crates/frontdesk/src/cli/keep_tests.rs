//! The commands that change what is kept about a session, against a scripted daemon.

use serde_json::{Value, json};

use super::Exit;
use super::tests::{KEY, desk, row};

fn frontdesk(params: &Value) -> &Value {
    &params["params"]["_meta"]["frontdesk"]
}

#[test]
fn rename_sends_the_trimmed_name_and_prints_the_daemons() {
    let desk = desk("_frontdesk/rename", |message, peer| {
        peer.reply(message, &json!({ "name": message["params"]["name"] }));
    });
    let ran = desk.run(&["rename", KEY, "  nightly run "]);
    assert_eq!((ran.exit, ran.out), (Exit::Done, format!("renamed {KEY} to nightly run\n")));
    let params = &desk.calls("_frontdesk/rename")[0]["params"];
    assert_eq!(*params, json!({ "sessionId": KEY, "name": "nightly run" }));
    assert_eq!(desk.run(&["rename", KEY, "x", "--json"]).json(), json!({ "name": "x" }));
}

#[test]
fn fork_prints_the_new_id_alone() {
    let answer = json!({ "sessionId": "new-one", "forkedFrom": { "sessionId": KEY } });
    let sent = answer.clone();
    let desk = desk("_frontdesk/fork", move |message, peer| peer.reply(message, &sent));
    let ran = desk.run(&["fork", KEY]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "new-one\n"));
    assert_eq!(desk.run(&["fork", KEY, "--json"]).json(), answer);
    assert_eq!(desk.calls("_frontdesk/fork")[0]["params"], json!({ "sessionId": KEY }));
}

#[test]
fn an_agent_that_cannot_fork_fails_the_command() {
    let desk = desk("_frontdesk/fork", |message, peer| {
        peer.fail(message, -32601, "nobody serves session/fork");
    });
    let ran = desk.run(&["fork", KEY]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Failed, ""));
    assert!(ran.err.contains("session/fork"), "{}", ran.err);
}

#[test]
fn archive_puts_aside_and_takes_back() {
    let desk = desk("_frontdesk/archive", |message, peer| {
        peer.reply(message, &json!({ "archived": message["params"]["archived"] }));
    });
    assert_eq!(desk.run(&["archive", KEY]).out, format!("archived {KEY}\n"));
    assert_eq!(desk.run(&["archive", KEY, "--undo"]).out, format!("taken back {KEY}\n"));
    let told: Vec<Value> = desk.calls("_frontdesk/archive");
    assert_eq!(
        (&told[0]["params"]["archived"], &told[1]["params"]["archived"]),
        (&json!(true), &json!(false))
    );
}

#[test]
fn policy_says_where_it_may_decide_nothing() {
    let desk = desk("_frontdesk/policy", |message, peer| {
        let mode = &message["params"]["mode"];
        peer.reply(message, &json!({ "mode": mode, "decides": mode == "allowAll" }));
    });
    let ran = desk.run(&["policy", KEY, "denyUnmatched"]);
    assert_eq!((ran.exit, ran.out), (Exit::Done, format!("policy of {KEY} is denyUnmatched\n")));
    assert!(ran.err.contains("covers questions"), "{}", ran.err);
    assert_eq!(desk.run(&["policy", KEY, "allowAll"]).err, "");
}

#[test]
fn new_asks_for_a_policy_beside_the_agent() {
    let desk =
        desk("session/new", |message, peer| peer.reply(message, &json!({ "sessionId": KEY })));
    desk.run(&["new", "--agent", "demo", "--policy", "denyUnmatched"]);
    desk.run(&["new", "--policy", "allowAll"]);
    let calls = desk.calls("session/new");
    assert_eq!(*frontdesk(&calls[0]), json!({ "agent": "demo", "approvalMode": "denyUnmatched" }));
    assert_eq!(*frontdesk(&calls[1]), json!({ "approvalMode": "allowAll" }));
}

#[test]
fn delete_asks_a_person_and_takes_only_yes_for_one() {
    let desk = desk("session/delete", |message, peer| peer.reply(message, &json!({})));
    for (typed, exit) in [
        ("y\n", Exit::Done),
        ("yes\n", Exit::Done),
        ("\n", Exit::Failed),
        ("n\n", Exit::Failed),
        ("", Exit::Failed),
    ] {
        let before = desk.calls("session/delete").len();
        let ran = desk.run_with(&["delete", KEY], Some(typed));
        assert_eq!(ran.exit, exit, "{typed:?}");
        assert!(ran.err.contains("delete One in /home/a/x"), "{}", ran.err);
        let after = desk.calls("session/delete").len();
        assert_eq!(after - before, usize::from(exit == Exit::Done), "{typed:?}");
    }
    for args in [&["delete", KEY, "--yes"][..], &["delete", KEY, "--json"]] {
        let ran = desk.run_with(args, Some("n\n"));
        assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, ""), "{args:?}");
    }
    assert_eq!(desk.run(&["delete", KEY]).exit, Exit::Done, "nobody is there to be asked");
}

#[test]
fn delete_may_be_forced_and_local() {
    let desk = desk("session/delete", |message, peer| peer.reply(message, &json!({})));
    assert_eq!(desk.run(&["delete", KEY, "--force"]).exit, Exit::Done);
    assert_eq!(desk.run(&["delete", KEY, "--local", "--force"]).exit, Exit::Done);
    assert_eq!(desk.run(&["delete", KEY]).exit, Exit::Done);
    let calls = desk.calls("session/delete");
    assert_eq!(*frontdesk(&calls[0]), json!({ "force": true }));
    assert_eq!(*frontdesk(&calls[1]), json!({ "force": true, "local": true }));
    assert_eq!(*frontdesk(&calls[2]), Value::Null);
}

#[test]
fn show_tells_what_is_kept() {
    let mut told = row(KEY, "One");
    let kept = json!({
        "name": "fix the bug", "nameOrigin": "automatic", "branch": "feat/x",
        "worktree": { "path": "/home/a/x-side", "origin": "attached" },
        "modelId": "big/model", "providerId": "big",
        "policy": { "mode": "denyUnmatched", "source": "startup", "decides": false },
        "forkedFrom": { "sessionId": "the-parent" },
        "createdByClient": { "name": "zed", "version": "1.2" }, "archived": true,
    });
    told.as_object_mut().unwrap().extend(kept.as_object().unwrap().clone());
    let desk = super::fake::FakeDesk::start(move |message, peer| {
        if message["method"] == "_frontdesk/sessions" {
            peer.reply(message, &json!({ "sessions": [row(KEY, "One")] }));
        } else {
            peer.reply(message, &told);
        }
    });
    let out = desk.run(&["show", KEY]).out;
    for line in [
        "  name        fix the bug (automatic)",
        "  branch      feat/x",
        "  worktree    /home/a/x-side",
        "  model       big/model",
        "  provider    big",
        "  policy      denyUnmatched (it covers questions, and this agent is not known to ask in this mode)",
        "  forked from the-parent",
        "  created by  zed 1.2",
        "  archived    yes",
    ] {
        assert!(out.lines().any(|told| told == line), "{line}\n{out}");
    }
}
