//! One conversation under several ids: an agent moves it to a new one, which its list then has. Never two
//! processes, never two rows.

use std::path::Path;

use serde_json::{Value, json};

use super::homes::{store_of, two_homes};
use super::{
    SOON, agent_lives, client, demo, demo_desk, eventually, log, native, new_session, openings,
    place, seen, status, store, turn,
};
use crate::acp::Acp;
use crate::desk::Desk;

/// Has the conversation moved; its new id.
fn moved(client: &mut Acp, session: &str, words: &str) -> String {
    let from = client.mark();
    turn(client, session, words);
    let said = seen(&client.updates(session, from));
    let id = said.iter().find_map(|text| text.strip_prefix("agent:filed under "));
    id.unwrap_or_else(|| panic!("it tells its new id: {said:?}")).to_owned()
}

fn rows(client: &mut Acp) -> Vec<Value> {
    let rows = client.ok("_frontdesk/sessions", json!({}))["sessions"].clone();
    rows.as_array().expect("rows").clone()
}

/// The ids of the agent's own list and ours, as an ACP client sees them.
fn listed(client: &mut Acp) -> Vec<String> {
    let page = client.ok("session/list", json!({}));
    let rows = page["sessions"].as_array().expect("rows").clone();
    rows.iter().map(|row| row["sessionId"].as_str().expect("an id").to_owned()).collect()
}

/// The processes that have ever had a session, each once.
fn pids(store: &Path, native: &str) -> Vec<i32> {
    let mut pids: Vec<i32> = openings(store, native).into_iter().map(|(_, pid)| pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

fn is_aware(client: &mut Acp, session: &str, alias: &str) -> bool {
    let row = client.ok("_frontdesk/session", json!({ "sessionId": session }));
    row["aliases"].as_array().is_some_and(|all| all.contains(&json!(alias)))
}

#[test]
fn a_conversation_that_moved_is_one_session_under_both_ids() {
    let mut desk = demo_desk().open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let first = native(&mut one, &session);
    turn(&mut one, &session, "say hello");
    let second = moved(&mut one, &session, "clear");
    assert!(is_aware(&mut one, &session, &second), "known before the turn's answer");
    for id in [&session, &first, &second] {
        assert_eq!(status(&mut one, id).0, "active", "{id}");
    }
    assert_eq!(listed(&mut one), [&*session], "one row");

    // By its new id a client joins the same process, and is spoken to by that id.
    let mut two = client(&desk);
    two.ok("session/resume", place(&desk, Some(&second)));
    let from = two.mark();
    turn(&mut one, &session, "say both");
    two.wait_update(&second, from, "the other's turn", |it| it["content"]["text"] == "both");
    turn(&mut two, &second, "say from the new id");
    assert_eq!(pids(&store(&desk), &second).len(), 1);

    // A daemon that dies and comes back knows both.
    desk.kill9();
    desk.start();
    let mut three = client(&desk);
    for id in [&session, &first, &second] {
        assert_eq!(status(&mut three, id).0, "active", "{id}");
    }
    three.ok("session/load", place(&desk, Some(&second)));
    turn(&mut three, &second, "say after the crash");
    assert_eq!(pids(&store(&desk), &second).len(), 1);

    // And so does one that begins with nothing but what is on the disk.
    assert!(desk.stop().success());
    desk.start();
    let mut four = client(&desk);
    for id in [&session, &first, &second] {
        assert_eq!(status(&mut four, id).0, "inactive", "{id}");
    }
    assert_eq!(listed(&mut four), [&*session]);
    four.ok("session/resume", place(&desk, Some(&second)));
    let mut five = client(&desk);
    five.ok("session/resume", place(&desk, Some(&first)));
    turn(&mut five, &first, "say again");
    let alive = pids(&store(&desk), &second).into_iter().filter(|pid| agent_lives(*pid));
    assert_eq!(alive.count(), 1);
    let records = log(&mut five, &session);
    let ids = records.iter().filter(|record| record["kind"] == "update");
    assert!(ids.clone().all(|record| record["data"]["sessionId"] == json!(first)));
    assert!(ids.count() > 5);
}

#[test]
fn an_id_that_only_the_list_tells_joins_too() {
    let desk = demo_desk().open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let second = moved(&mut one, &session, "clear quiet");
    assert!(!is_aware(&mut one, &session, &second));
    let mut two = client(&desk);
    two.ok("session/load", place(&desk, Some(&second)));
    turn(&mut two, &second, "say joined");
    assert_eq!(pids(&store(&desk), &second).len(), 1);
    assert_eq!(listed(&mut two), [&*session]);
    assert!(is_aware(&mut one, &session, &second));
}

#[test]
fn rows_that_were_made_before_the_alias_was_known_become_one_and_no_journal_goes() {
    let mut desk = Desk::builder().agent(demo("demo", &["--no-list"])).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say hello");
    let second = moved(&mut one, &session, "clear quiet");
    one.ok("session/close", json!({ "sessionId": session }));
    // Without a list nothing tells that this id, which the agent knows, is the same conversation.
    let mut two = client(&desk);
    two.ok("session/load", place(&desk, Some(&second)));
    turn(&mut two, &second, "say by the new id");
    let other = rows(&mut two).into_iter().find(|row| row["id"] == json!(second));
    let other = other.expect("a row of its own")["key"].as_str().expect("a key").to_owned();
    assert!(desk.stop().success());

    // A later version of the agent has one. Nothing is deleted.
    let config = desk.home().join("config.toml");
    let text = std::fs::read_to_string(&config).expect("a configuration");
    std::fs::write(&config, text.replace("--no-list", "--ignore-capabilities")).expect("written");
    desk.start();
    let mut three = client(&desk);
    eventually("one row", SOON, || {
        listed(&mut three);
        let keys: Vec<Value> = rows(&mut three).iter().map(|row| row["key"].clone()).collect();
        keys == [json!(session)]
    });
    for restarted in [false, true] {
        if restarted {
            assert!(desk.stop().success());
            desk.start();
            three = client(&desk);
        }
        for id in [&session, &second, &other] {
            assert_eq!(status(&mut three, id).0, "inactive", "{id}");
        }
    }
    three.ok("session/resume", place(&desk, Some(&other)));
    turn(&mut three, &other, "say by the other key");
    assert_eq!(status(&mut three, &session).0, "active");
    assert!(log(&mut three, &other).iter().any(|record| record["kind"] == "created"));
    let journals = walk(&desk.home().join("data/sessions"));
    let kept = journals.iter().filter(|text| text.contains(&format!(r#""sameAs":"{session}""#)));
    assert_eq!((journals.len(), kept.count()), (2, 1), "the other one's journal is kept");
}

/// The journals below a folder.
fn walk(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        if entry.path().is_dir() {
            found.extend(walk(&entry.path()));
        } else if entry.file_name() == "journal.jsonl" {
            found.push(std::fs::read_to_string(entry.path()).expect("text"));
        }
    }
    found
}

#[test]
fn an_agent_that_forgets_old_ids_is_asked_by_the_one_it_files_under() {
    let mut desk = Desk::builder().agent(demo("demo", &["--forgets-ids"])).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let first = native(&mut one, &session);
    turn(&mut one, &session, "say hello");
    let second = moved(&mut one, &session, "clear quiet");
    one.ok("session/close", json!({ "sessionId": session }));
    // Nobody has read its list since: it is looked up before the agent is asked.
    one.ok("session/resume", place(&desk, Some(&session)));
    let from = one.mark();
    turn(&mut one, &session, "say under the new id");
    assert_eq!(seen(&one.updates(&session, from)), ["agent:under the new id"]);
    assert_eq!(native(&mut one, &session), first, "the journal's id stays");
    desk.kill9();
    desk.start();
    let mut two = client(&desk);
    assert_eq!(status(&mut two, &first).0, "active");
    two.ok("session/load", place(&desk, Some(&first)));
    let from = two.mark();
    turn(&mut two, &first, "say carried on");
    assert_eq!(seen(&two.updates(&first, from)), ["agent:carried on"]);
    // It moves again, is closed, and a fork and a deletion find it.
    let third = moved(&mut two, &first, "clear");
    two.ok("session/close", json!({ "sessionId": first }));
    assert_eq!(listed(&mut two), [&*session]);
    let mut place_of_fork = place(&desk, Some(&second));
    let fork = two.ok("session/fork", place_of_fork.take());
    assert!(fork["sessionId"].is_string(), "{fork}");
    two.ok("session/delete", json!({ "sessionId": third }));
    for id in [&session, &first, &second, &third] {
        assert_eq!(two.err("session/status", json!({ "sessionId": id })).code, -32002, "{id}");
    }
    assert_eq!(listed(&mut two).len(), 1, "the fork");
}

#[test]
fn two_homes_never_both_have_it_under_two_ids() {
    let shared = tempfile::tempdir().expect("a folder");
    let (first, second) = two_homes(shared.path());
    let store = store_of(shared.path());
    let mut one = client(&first);
    let session = new_session(&first, &mut one);
    let old = native(&mut one, &session);
    let mut two = client(&second);
    for words in ["clear quiet", "clear"] {
        let new = moved(&mut one, &session, words);
        for id in [&new, &old] {
            let error = two.err("session/resume", place(&first, Some(id)));
            assert_eq!(error.code, -31005, "{words} {id}: {error:?}");
            assert_eq!(error.data["holder"]["pid"], json!(first.daemon_pid()));
        }
        assert_eq!(pids(&store, &new).len(), 1);
    }
    // And the other way round: what the second home has under the new id is not opened by the old one.
    let new = moved(&mut one, &session, "clear quiet");
    one.ok("session/close", json!({ "sessionId": session }));
    two.ok("session/resume", place(&first, Some(&new)));
    let error = one.err("session/resume", place(&first, Some(&session)));
    assert_eq!(error.code, -31005, "{error:?}");
    assert_eq!(error.data["holder"]["pid"], json!(second.daemon_pid()));
    let alive = pids(&store, &new).into_iter().filter(|pid| agent_lives(*pid));
    assert_eq!(alive.count(), 1);
}

#[test]
fn an_alias_that_another_home_holds_is_told_and_nobody_is_ended() {
    let shared = tempfile::tempdir().expect("a folder");
    let (first, second) = two_homes(shared.path());
    let (mut one, mut two) = (client(&first), client(&second));
    let theirs = new_session(&second, &mut two);
    let held = native(&mut two, &theirs);
    let ours = new_session(&first, &mut one);
    turn(
        &mut one,
        &ours,
        &format!(r#"update {{"sessionUpdate":"session_info_update","aliases":["{held}"]}}"#),
    );
    let who = one.ok("_frontdesk/who", json!({ "sessionId": ours }));
    assert_eq!(who["aliases"], json!([held]));
    assert_eq!(who["alsoHeld"][0]["id"], json!(held), "{who}");
    assert_eq!(who["alsoHeld"][0]["heldBy"]["pid"], json!(second.daemon_pid()));
    assert_eq!(who["lease"], "live");
    turn(&mut one, &ours, "say here");
    turn(&mut two, &theirs, "say there");
}

#[test]
fn the_answer_that_opens_a_session_tells_its_other_id_too() {
    let desk = Desk::builder().agent(demo("demo", &["--no-list"])).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let second = moved(&mut one, &session, "clear quiet");
    one.ok("session/close", json!({ "sessionId": session }));
    one.ok("session/resume", place(&desk, Some(&session)));
    assert!(is_aware(&mut one, &session, &second));
    let mut two = client(&desk);
    two.ok("session/load", place(&desk, Some(&second)));
    turn(&mut two, &second, "say joined");
    let alive = pids(&store(&desk), &second).into_iter().filter(|pid| agent_lives(*pid));
    assert_eq!(alive.count(), 1);
}

#[test]
fn what_an_agent_says_of_another_sessions_id_takes_nothing_from_that_one() {
    let desk = demo_desk().open();
    let (mut one, mut two) = (client(&desk), client(&desk));
    let (ours, theirs) = (new_session(&desk, &mut one), new_session(&desk, &mut two));
    let held = native(&mut two, &theirs);
    turn(&mut two, &theirs, "say theirs");
    turn(
        &mut one,
        &ours,
        &format!(r#"update {{"sessionUpdate":"session_info_update","aliases":["{held}"]}}"#),
    );
    let who = one.ok("_frontdesk/who", json!({ "sessionId": ours }));
    assert_eq!(who["alsoHeld"][0]["heldBy"]["key"], json!(theirs), "{who}");
    // Both run, and the id means the one whose it is.
    let from = two.mark();
    let mut three = client(&desk);
    three.ok("session/resume", place(&desk, Some(&held)));
    turn(&mut three, &held, "say to theirs");
    two.wait_update(&theirs, from, "the turn", |it| it["content"]["text"] == "to theirs");
    // The agent's list has both: they stay two, whoever is asked for.
    for session in [&ours, &theirs] {
        let force = json!({ "sessionId": session, "_meta": { "frontdesk": { "force": true } } });
        one.ok("session/close", force);
    }
    let refresh = json!({ "refresh": true });
    for _ in 0..2 {
        std::thread::sleep(std::time::Duration::from_millis(2_100));
        let all = one.ok("_frontdesk/sessions", refresh.clone());
        assert_eq!(all["sessions"].as_array().map(Vec::len), Some(2), "{all}");
    }
    let moved = log(&mut one, &ours).iter().any(|it| it["data"]["storedId"].is_string());
    assert!(!moved, "nothing is taken for moved");
}
