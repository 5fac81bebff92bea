//! What is kept about a session besides its turns: name, policy, branch, forks, archive, delete.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    SOON, begin_prompt, client, client_of, demo, demo_desk, eventually, log, native, new_session,
    of_kind, place, seen, status, store, stored_count, turn,
};
use crate::acp::{Acp, Reply, refuse_all};
use crate::desk::{Desk, row};

fn told(client: &mut Acp, session: &str) -> Value {
    client.ok("_frontdesk/session", json!({ "sessionId": session }))
}

fn rename(client: &mut Acp, session: &str, name: &str) -> Value {
    client.ok("_frontdesk/rename", json!({ "sessionId": session, "name": name }))
}

#[test]
fn a_session_is_named_by_its_first_prompt_until_a_person_names_it() {
    let mut desk = demo_desk().open();
    let (mut one, mut two) = (client(&desk), client(&desk));
    let session = new_session(&desk, &mut one);
    assert!(told(&mut one, &session).get("name").is_none());
    turn(&mut one, &session, "say   first words\n# and more");
    let kept = told(&mut one, &session);
    assert_eq!(
        (&kept["name"], &kept["nameOrigin"]),
        (&json!("say first words"), &json!("automatic"))
    );
    let listed = |acp: &mut Acp| row(&acp.ok("session/list", json!({})), &session)["title"].clone();
    assert_eq!(listed(&mut one), "say first words # and more", "the agent's own title");
    two.ok("session/load", place(&desk, Some(&session)));
    let (from, from_two) = (one.mark(), two.mark());
    assert_eq!(rename(&mut two, &session, " nightly "), json!({ "name": "nightly" }));
    for (acp, from) in [(&one, from), (&two, from_two)] {
        acp.wait_update(&session, from, "the name", |it| it["title"] == "nightly");
    }
    assert_eq!(listed(&mut one), "nightly");
    turn(&mut one, &session, "title The agent's own");
    assert_eq!(listed(&mut one), "nightly");
    let kept = told(&mut one, &session);
    assert_eq!(
        (&kept["name"], &kept["generatedName"]),
        (&json!("nightly"), &json!("The agent's own"))
    );
    one.wait_update(&session, from, "both titles", |it| it["title"] == "The agent's own");
    let titles = one.updates(&session, from);
    let last = titles.iter().rev().find_map(|it| it["title"].as_str());
    assert_eq!(last, Some("nightly"), "the given name stands");
    for name in [json!(" \n "), json!("a\nb"), json!("x".repeat(201)), json!(7), Value::Null] {
        let params = json!({ "sessionId": session, "name": name });
        assert_eq!(one.err("_frontdesk/rename", params).code, -32602, "{name}");
    }
    desk.kill_all();
    desk.start();
    // A cold one is renamed without being loaded, and tells its name behind the answer of a load.
    let mut three = client(&desk);
    assert_eq!(told(&mut three, &session)["name"], "nightly");
    rename(&mut three, &session, "x".repeat(200).as_str());
    rename(&mut three, &session, "weekly");
    assert_eq!(status(&mut three, &session).0, "inactive");
    assert_eq!(desk.instances(), 0);
    let from = three.mark();
    three.ok("session/load", place(&desk, Some(&session)));
    three.wait_update(&session, from, "the name", |it| it["title"] == "weekly");
    assert_eq!(
        three.err("_frontdesk/rename", json!({ "sessionId": "nobody", "name": "x" })).code,
        -32002
    );
}

#[test]
fn who_made_a_session_is_kept_word_for_word() {
    let desk = demo_desk().open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    assert_eq!(
        told(&mut one, &session)["createdByClient"],
        json!({ "name": "desk:demo", "version": "1" })
    );
    let mut half = desk.acp("demo", refuse_all());
    half.ok("initialize", json!({ "protocolVersion": 1, "clientInfo": { "name": "half" } }));
    let session = new_session(&desk, &mut half);
    assert!(told(&mut half, &session).get("createdByClient").is_none());
}

/// What a load of a session shows, and nothing else of its ids.
fn loaded(desk: &Desk, session: &str, strangers: &[&str]) -> Vec<String> {
    let mut other = client(desk);
    let from = other.mark();
    other.ok("session/load", place(desk, Some(session)));
    for stranger in strangers {
        assert!(other.updates(stranger, from).is_empty(), "updates of {stranger}");
    }
    let history = seen(&other.updates(session, from));
    other.close_stdin();
    history
}

#[test]
fn a_fork_has_its_parents_history_and_leaves_the_parent_alone() {
    let mut desk = demo_desk().open();
    let mut one = client(&desk);
    let parent = new_session(&desk, &mut one);
    turn(&mut one, &parent, "say first");
    turn(&mut one, &parent, "say second");
    let (before, row_before) = (log(&mut one, &parent), told(&mut one, &parent));
    let fork = one.ok("session/fork", place(&desk, Some(&parent)))["sessionId"].clone();
    let fork = fork.as_str().unwrap().to_owned();
    let kept = told(&mut one, &fork);
    let from = &kept["forkedFrom"];
    assert_eq!((&from["sessionId"], &from["cutExplicit"]), (&row_before["key"], &json!(false)));
    assert_eq!(from["cutCursor"], format!("v:{}:{}", parent, before.len()));
    assert!(from["commandId"].as_str().is_some_and(|id| id.len() == 36), "{from}");
    assert!(
        kept.get("createdByClient").is_none() && kept.get("lastActivityAt").is_none(),
        "{kept}"
    );
    assert_eq!((&kept["turnCount"], &kept["createdAt"]), (&json!(0), &kept["updatedAt"]));
    let history = ["user:say first", "agent:first", "user:say second", "agent:second"];
    assert_eq!(loaded(&desk, &fork, &[&parent]), history);
    turn(&mut one, &fork, "say only here");
    // A fork of a fork, by the command line: nobody takes part in it.
    let output = desk.cli(&["fork", &fork]);
    assert!(output.status.success(), "{output:?}");
    let grand = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let kept = told(&mut one, &grand);
    assert_eq!((&kept["forkedFrom"]["sessionId"], &kept["clients"]), (&json!(fork), &json!([])));
    let more = [&history[..], &["user:say only here", "agent:only here"]].concat();
    assert_eq!(loaded(&desk, &grand, &[&parent, &fork]), more);
    assert_eq!(log(&mut one, &parent), before, "the parent's journal is untouched");
    for name in ["turnCount", "updatedAt", "lastActivityAt", "bytes"] {
        assert_eq!(told(&mut one, &parent)[name], row_before[name], "{name}");
    }
    // What it has is its own: it outlives the parent and a crash.
    one.ok("session/delete", json!({ "sessionId": parent }));
    desk.kill9();
    desk.start();
    assert_eq!(loaded(&desk, &grand, &[&parent, &fork]), more);
    let mut two = client(&desk);
    two.ok("session/resume", place(&desk, Some(&grand)));
    turn(&mut two, &grand, "say further");
    assert_eq!(told(&mut two, &grand)["turnCount"], 1);
}

#[test]
fn a_cold_session_is_forked_without_being_loaded() {
    let mut desk =
        Desk::builder().agent(demo("demo", &[])).agent(demo("plain", &["--no-fork"])).open();
    let mut one = client(&desk);
    let parent = new_session(&desk, &mut one);
    turn(&mut one, &parent, "say first");
    let mut other = client_of(&desk, "plain", refuse_all());
    let plain = new_session(&desk, &mut other);
    desk.restart();
    let mut one = client(&desk);
    let before = log(&mut one, &parent);
    let fork = one.ok("_frontdesk/fork", json!({ "sessionId": parent }))["sessionId"].clone();
    let fork = fork.as_str().unwrap();
    assert_eq!(status(&mut one, &parent).0, "inactive");
    assert_eq!(log(&mut one, &parent), before);
    assert_eq!(loaded(&desk, fork, &[&parent]), ["user:say first", "agent:first"]);
    let mut other = client_of(&desk, "plain", refuse_all());
    for method in ["session/fork", "_frontdesk/fork"] {
        let error = other.err(method, place(&desk, Some(&plain)));
        assert_eq!((error.code, &error.data["method"]), (-32601, &json!("session/fork")));
    }
    let output = desk.cli(&["fork", &plain]);
    assert_eq!(output.status.code(), Some(1));
}

/// A client that answers no question, ever.
fn silent(desk: &Desk) -> Acp {
    client_of(desk, "demo", Arc::new(|_| Reply::Silence))
}

#[test]
fn a_policy_answers_before_anybody_is_asked() {
    for (mode, option, said) in [
        ("allowAll", "allow_once", "Allowed (allow_once)."),
        ("denyUnmatched", "reject_once", "Not allowed"),
    ] {
        let desk = demo_desk().open();
        let mut one = silent(&desk);
        let mut params = place(&desk, None);
        params["_meta"] = json!({ "frontdesk": { "approvalMode": mode } });
        let session = one.ok("session/new", params)["sessionId"].as_str().unwrap().to_owned();
        let policy = told(&mut one, &session)["policy"].clone();
        assert_eq!((&policy["mode"], &policy["source"]), (&json!(mode), &json!("startup")));
        assert_eq!(policy["decides"], false, "it has asked nothing yet");
        let from = one.mark();
        turn(&mut one, &session, "ask May I?");
        assert!(one.text(&session, "agent_message_chunk", from).contains(said));
        assert!(one.asked(from).is_empty(), "nobody was asked");
        let records = log(&mut one, &session);
        let settled = of_kind(&records, "interaction_settled")[0];
        assert_eq!(settled["by"], json!({ "policy": mode }));
        assert_eq!(settled["answer"]["outcome"]["optionId"], option);
        assert_eq!(told(&mut one, &session)["policy"]["decides"], true);
    }
}

#[test]
fn a_question_that_is_open_is_settled_by_the_new_policy() {
    let desk = demo_desk().open();
    let mut one = silent(&desk);
    let session = new_session(&desk, &mut one);
    let from = one.mark();
    let running = begin_prompt(&mut one, &session, "ask May I?");
    one.wait_ask(from, "session/request_permission");
    let output = desk.cli(&["policy", &session, "denyUnmatched"]);
    assert!(output.status.success(), "{output:?}");
    one.wait(running, crate::acp::ANSWER).expect("the turn goes on");
    assert!(one.text(&session, "agent_message_chunk", from).contains("Not allowed"));
    let refused = one.err("_frontdesk/policy", json!({ "sessionId": session, "mode": "yolo" }));
    assert_eq!(refused.code, -32602);
    assert!(refused.message.contains("promptUnmatched"), "{refused:?}");
    let mut params = place(&desk, None);
    params["_meta"] = json!({ "frontdesk": { "approvalMode": "maybe" } });
    assert_eq!(one.err("session/new", params).code, -32602);
    let shown = String::from_utf8(desk.cli(&["show", &session]).stdout).unwrap();
    assert!(shown.contains("policy      denyUnmatched\n"), "{shown}");
}

#[test]
fn a_configured_policy_holds_for_found_sessions_too() {
    let agent = demo("demo", &[]).setting("approval_mode = 'denyUnmatched'").setting("asks = true");
    let mut desk = Desk::builder().agent(agent).open();
    let mut one = silent(&desk);
    let session = new_session(&desk, &mut one);
    let native = native(&mut one, &session);
    let policy = told(&mut one, &session)["policy"].clone();
    assert_eq!((&policy["mode"], &policy["decides"]), (&json!("denyUnmatched"), &json!(true)));
    turn(&mut one, &session, "say x");
    // Another home knows nothing of it but what the agent's list says.
    desk.stop();
    fs::remove_dir_all(desk.home().join("data")).unwrap();
    desk.start();
    let mut two = silent(&desk);
    two.ok("session/load", place(&desk, Some(&native)));
    let policy = told(&mut two, &native)["policy"].clone();
    assert_eq!((&policy["mode"], &policy["source"]), (&json!("denyUnmatched"), &json!("startup")));
    let from = two.mark();
    turn(&mut two, &native, "ask May I?");
    assert!(two.asked(from).is_empty());
}

#[test]
fn a_session_that_was_put_aside_stays_loadable() {
    let mut desk = demo_desk().open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say first");
    assert!(desk.cli(&["archive", &session]).status.success());
    assert_eq!(told(&mut one, &session)["archived"], true);
    desk.restart();
    let mut one = client(&desk);
    one.ok("session/load", place(&desk, Some(&session)));
    assert_eq!(told(&mut one, &session)["archived"], true, "a load does not take it back");
    turn(&mut one, &session, "say second");
    assert!(told(&mut one, &session).get("archived").is_none());
    for (archived, times) in [(true, 3), (true, 3), (false, 4)] {
        let params = json!({ "sessionId": session, "archived": archived });
        assert_eq!(one.ok("_frontdesk/archive", params), json!({ "archived": archived }));
        assert_eq!(of_kind(&log(&mut one, &session), "archived").len(), times);
    }
    let params = json!({ "sessionId": session, "archived": "yes" });
    assert_eq!(one.err("_frontdesk/archive", params).code, -32602);
}

#[test]
fn a_local_delete_leaves_the_agent_its_own_and_no_list_brings_it_back() {
    let mut desk =
        Desk::builder().agent(demo("demo", &["--no-delete"])).limit("list_fresh_ms", 10).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let native = native(&mut one, &session);
    turn(&mut one, &session, "say a word");
    let plain = one.err("session/delete", json!({ "sessionId": session }));
    assert_eq!(plain.code, -32601, "{plain:?}");
    let output = desk.cli(&["delete", &session, "--local"]);
    assert_eq!(output.status.code(), Some(1), "others take part: {output:?}");
    let output = desk.cli(&["delete", &session, "--local", "--force"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stored_count(&store(&desk)), 1, "the agent keeps its own");
    for restart in [false, true] {
        if restart {
            desk.restart();
        }
        // A late save: the agent lists it as changed just now.
        let file = store(&desk).join(format!("{native}.jsonl"));
        let saved = fs::read(&file).unwrap();
        fs::write(&file, saved).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(30));
        let mut two = client(&desk);
        assert_eq!(two.ok("session/list", json!({}))["sessions"], json!([]), "{restart}");
        for id in [&session, &native] {
            let error = two.err("session/load", place(&desk, Some(id)));
            assert_eq!(error.code, -32002, "{restart}: {error:?}");
        }
    }
}

fn git(folder: &Path, args: &[&str]) {
    let output = Command::new("git")
        .args(args)
        .current_dir(folder)
        .envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")])
        .envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@b")])
        .envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@b")])
        .output()
        .unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_branch_of_a_loaded_sessions_folder_is_followed() {
    let mut desk = demo_desk().limit("branch_poll_ms", 50).open();
    let mut one = client(&desk);
    let plain = new_session(&desk, &mut one);
    turn(&mut one, &plain, "say x");
    git(&desk.work(), &["init", "-q", "-b", "main"]);
    git(&desk.work(), &["commit", "-q", "--allow-empty", "-m", "first"]);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say x");
    let is_on = |one: &mut Acp, session: &str, branch: Option<&str>| {
        eventually(&format!("{branch:?}"), SOON, || {
            told(one, session)["branch"].as_str() == branch
        });
    };
    is_on(&mut one, &session, Some("main"));
    // The folder had no repository when this one began: it is looked at from time to time.
    is_on(&mut one, &plain, Some("main"));
    let before = told(&mut one, &session);
    git(&desk.work(), &["checkout", "-q", "-b", "feat/one"]);
    is_on(&mut one, &session, Some("feat/one"));
    git(&desk.work(), &["checkout", "-q", "--detach"]);
    is_on(&mut one, &session, None);
    let after = told(&mut one, &session);
    for name in ["updatedAt", "lastActivityAt"] {
        assert_eq!(after[name], before[name], "{name}: a branch is no activity");
    }
    let branches: Vec<Value> = of_kind(&log(&mut one, &session), "branch")
        .into_iter()
        .map(|data| data["branch"].clone())
        .collect();
    assert_eq!(branches, [json!("main"), json!("feat/one"), Value::Null], "each once");
    // While nobody has it loaded nothing is written; the next load learns it.
    desk.restart();
    git(&desk.work(), &["checkout", "-q", "main"]);
    let mut one = client(&desk);
    assert!(told(&mut one, &session).get("branch").is_none());
    one.ok("session/resume", place(&desk, Some(&session)));
    is_on(&mut one, &session, Some("main"));
}

#[test]
fn a_linked_working_tree_is_told() {
    let root = tempfile::tempdir().unwrap();
    let (main, linked) = (root.path().join("main"), root.path().join("linked"));
    fs::create_dir(&main).unwrap();
    git(&main, &["init", "-q", "-b", "main"]);
    git(&main, &["commit", "-q", "--allow-empty", "-m", "first"]);
    git(&main, &["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    let desk = demo_desk().work(&linked).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say x");
    eventually("the branch", SOON, || told(&mut one, &session)["branch"] == "side");
    let kept = told(&mut one, &session);
    assert_eq!(kept["worktree"], json!({ "path": linked, "origin": "attached" }));
    let shown = String::from_utf8(desk.cli(&["show", &session]).stdout).unwrap();
    for line in ["branch      side", "name        say x (automatic)", "created by  desk:demo 1"] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    let listed = one.ok("session/list", json!({}));
    assert_eq!(row(&listed, &session)["sessionId"], json!(session));
}

#[test]
fn a_subagent_has_a_journal_of_its_own_and_asks_its_parents_clients() {
    let mut desk = demo_desk().limit("list_fresh_ms", 10).open();
    let mut one = client_of(
        &desk,
        "demo",
        crate::editor::editor(desk.work(), crate::editor::Permission::Allow),
    );
    let session = new_session(&desk, &mut one);
    let from = one.mark();
    turn(&mut one, &session, "subagent look around");
    let asked = &one.asked(from)[0];
    let child = asked.params["sessionId"].as_str().unwrap().to_owned();
    assert_ne!(child, session, "asked in the child's own id");
    let said = ["agent:Working on look around.", "agent:Allowed (allow_once)."];
    assert_eq!(seen(&one.updates(&child, from)), said, "shown without an attach");

    let kept = told(&mut one, &child);
    assert_eq!((&kept["parent"], &kept["nativeId"]), (&json!(session), &json!(child)));
    assert_eq!((&kept["title"], &kept["turnCount"]), (&json!("look around"), &json!(0)));
    assert_eq!(
        (&kept["status"], status(&mut one, &child).0.as_str()),
        (&json!("active"), "active")
    );
    let key = kept["key"].as_str().unwrap().to_owned();
    let records = log(&mut one, &key);
    assert_eq!(super::told(&records), said);
    assert_eq!(of_kind(&records, "adopted")[0]["parent"], session);
    let parents = log(&mut one, &session);
    let states: Vec<&str> = of_kind(&parents, "subagent")
        .into_iter()
        .filter(|data| {
            data["child"] == key && data["nativeId"] == child && data["title"] == "look around"
        })
        .filter_map(|data| data["state"]["state"].as_str())
        .collect();
    assert_eq!(states, ["running", "idle"]);

    // It is no conversation of its own: not in an editor's list, not to be prompted or resumed.
    let listed = one.ok("session/list", json!({}));
    assert_eq!(listed["sessions"].as_array().map(Vec::len), Some(1), "{listed}");
    for (method, params) in [
        ("session/prompt", crate::acp::prompt(&child, "say x")),
        ("session/resume", place(&desk, Some(&child))),
    ] {
        let error = one.err(method, params);
        assert_eq!(error.code, -32002, "{method}");
        assert!(error.message.contains(&session), "{method}: {error:?}");
    }
    let shown = String::from_utf8(desk.cli(&["show", &child]).stdout).unwrap();
    assert!(shown.contains(&format!("child of    {session}\n")), "{shown}");

    desk.kill_all();
    desk.start();
    let mut two = client(&desk);
    assert_eq!(status(&mut two, &child).0, "inactive");
    assert_eq!(loaded(&desk, &child, &[&session]), said, "its history is ours");
    // What is deleted with the parent does not stay in the child.
    two.ok("session/delete", json!({ "sessionId": session }));
    let error = two.err("session/status", json!({ "sessionId": child }));
    assert_eq!(error.code, -32002);
    assert_eq!(two.err("_frontdesk/log", json!({ "sessionId": key })).code, -32002);
}

#[test]
fn a_command_with_an_id_is_carried_out_once_whatever_restarts() {
    let mut desk = demo_desk().open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say x");
    let nightly = json!({ "sessionId": session, "name": "nightly", "commandId": "c-1" });
    assert_eq!(one.ok("_frontdesk/rename", nightly.clone()), json!({ "name": "nightly" }));
    rename(&mut one, &session, "weekly");
    for restart in [false, true] {
        if restart {
            desk.kill9();
            desk.start();
            one = client(&desk);
        }
        // Repeated, it is answered as before and does nothing: the later name stands.
        assert_eq!(one.ok("_frontdesk/rename", nightly.clone()), json!({ "name": "nightly" }));
        assert_eq!(told(&mut one, &session)["name"], "weekly", "{restart}");
        let records = log(&mut one, &session);
        let named = of_kind(&records, "renamed");
        assert_eq!(named.len(), 3, "automatic, nightly, weekly");
        assert_eq!(
            (&named[1]["commandId"], of_kind(&records, "command").len()),
            (&json!("c-1"), 1)
        );
        let other = json!({ "sessionId": session, "name": "else", "commandId": "c-1" });
        assert_eq!(
            one.err("_frontdesk/rename", other).code,
            -32602,
            "the same id for something else"
        );
        let other = json!({ "sessionId": session, "archived": true, "commandId": "c-1" });
        assert_eq!(one.err("_frontdesk/archive", other).code, -32602);
    }
    for id in [json!(""), json!("x".repeat(256)), json!(7)] {
        let params = json!({ "sessionId": session, "mode": "onRequest", "commandId": id });
        assert_eq!(one.err("_frontdesk/policy", params).code, -32602, "{id}");
    }
    let longest = "x".repeat(255);
    let params = json!({ "sessionId": session, "mode": "onRequest", "commandId": longest });
    assert_eq!(one.ok("_frontdesk/policy", params)["commandId"], json!(longest));
}
