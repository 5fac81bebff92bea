//! After a restart: agents that load, only resume, or neither; and what was deleted stays so.

use std::fs;
use std::path::PathBuf;

use serde_json::json;

use super::{
    client, client_of, demo, demo_desk, log, native, new_session, of_kind, openings, place,
    records_in, seen, status, store, stored_count, told, turn,
};
use crate::acp::{prompt, refuse_all};
use crate::desk::{Desk, row};

const HISTORY: [&str; 4] = ["user:say first", "agent:first", "user:say second", "agent:second"];

/// A desk with one session of two turns, restarted: by a stop or by a kill.
fn restarted(args: &[&str], kill: bool) -> (Desk, String, String) {
    let mut desk = Desk::builder().agent(demo("demo", args)).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let native = native(&mut one, &session);
    turn(&mut one, &session, "say first");
    turn(&mut one, &session, "say second");
    if kill {
        desk.kill_all();
        desk.start();
    } else {
        desk.restart();
    }
    (desk, session, native)
}

#[test]
fn load_and_resume_work_after_a_restart_with_agents_that_offer_one_of_them() {
    for (args, kill) in [
        (&[][..], false),
        (&["--no-resume"], false),
        (&["--no-load"], false),
        (&["--no-resume"], true),
        (&["--no-load"], true),
        (&["--no-list", "--no-status", "--no-close"], true),
    ] {
        let what = format!("{args:?}, killed: {kill}");
        let (desk, session, native) = restarted(args, kill);
        let (mut one, mut two) = (client(&desk), client(&desk));
        assert_eq!(status(&mut one, &session).0, "inactive", "{what}");
        let listed = one.ok("session/list", json!({}));
        assert!(row(&listed, &session)["cwd"].is_string(), "{what}");
        let from = one.mark();
        one.ok("session/load", place(&desk, Some(&session)));
        assert_eq!(seen(&one.updates(&session, from)), HISTORY, "{what}");
        let from = two.mark();
        two.ok("session/resume", place(&desk, Some(&native)));
        turn(&mut two, &native, "say third");
        assert_eq!(seen(&two.updates(&native, from)), ["agent:third"], "{what}");
        assert_eq!(status(&mut one, &session).0, "active", "{what}");
        assert_eq!(told(&log(&mut one, &session)).len(), 6, "{what}");
        assert_eq!(openings(&store(&desk), &native).len(), 2, "{what}");
        assert_eq!(stored_count(&store(&desk)), 1, "{what}: never a new one at the agent");
    }
}

#[test]
fn an_agent_that_can_do_neither_shows_its_history_and_says_what_is_lost() {
    for kill in [false, true] {
        let (desk, session, native) = restarted(&["--no-load", "--no-resume"], kill);
        let mut one = client(&desk);
        assert_eq!(status(&mut one, &session).0, "inactive");
        let from = one.mark();
        one.ok("session/load", place(&desk, Some(&session)));
        assert_eq!(seen(&one.updates(&session, from)), HISTORY);
        let (word, meta) = status(&mut one, &session);
        assert_eq!((word.as_str(), &meta["resumable"]), ("inactive", &json!(false)), "{meta}");
        for _ in 0..2 {
            let error = one.err("session/prompt", prompt(&session, "say third"));
            assert_eq!((error.code, &error.data["sessionId"]), (-32002, &json!(session)));
            assert!(error.message.contains("lost") && error.message.contains('2'), "{error:?}");
        }
        let error = client(&desk).err("session/resume", place(&desk, Some(&native)));
        assert_eq!((error.code, &error.data["sessionId"]), (-32002, &json!(native)));
        let mut two = client(&desk);
        let from = two.mark();
        two.ok("session/load", place(&desk, Some(&native)));
        assert_eq!(seen(&two.updates(&native, from)), HISTORY);
        assert_eq!(stored_count(&store(&desk)), 1, "never a new one at the agent");
        assert_eq!(openings(&store(&desk), &native).len(), 1);
        assert_eq!(desk.instances(), 0, "nothing was started for it");
        assert_eq!(of_kind(&log(&mut two, &session), "turn_started").len(), 2);
    }
}

#[test]
fn a_session_that_its_agent_has_lost_is_shown_and_not_made_anew() {
    let (desk, session, native) = restarted(&[], true);
    fs::remove_file(store(&desk).join(format!("{native}.jsonl"))).expect("the agent forgets it");
    let mut one = client(&desk);
    let error = one.err("session/resume", place(&desk, Some(&session)));
    assert_eq!((error.code, &error.data["sessionId"]), (-32002, &json!(session)), "{error:?}");
    let from = one.mark();
    one.ok("session/load", place(&desk, Some(&session)));
    assert_eq!(seen(&one.updates(&session, from)), HISTORY);
    assert_eq!(one.err("session/prompt", prompt(&session, "say third")).code, -32002);
    assert_eq!(stored_count(&store(&desk)), 0, "never a new one at the agent");
}

/// The one journal below a home's sessions, as a folder.
fn journal_folder(desk: &Desk) -> PathBuf {
    let mut open = vec![desk.home().join("data/sessions")];
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            if entry.path().is_dir() {
                open.push(entry.path());
            } else if entry.file_name() == "journal.jsonl" {
                found.push(folder.clone());
            }
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn what_was_deleted_stays_deleted() {
    let mut desk = demo_desk().limit("list_fresh_ms", 10).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let native = native(&mut one, &session);
    turn(&mut one, &session, "say a word that must go");
    // A snapshot beside the journal must go with it.
    one.ok("session/close", json!({ "sessionId": session }));
    one.ok("session/load", place(&desk, Some(&session)));
    let file = store(&desk).join(format!("{native}.jsonl"));
    let saved = fs::read(&file).expect("the agent has it");
    one.ok("session/delete", json!({ "sessionId": session }));
    assert!(!file.exists(), "it is deleted at the agent");

    for restart in [None, Some(false), Some(true)] {
        match restart {
            None => {}
            Some(false) => desk.restart(),
            Some(true) => {
                desk.kill9();
                desk.start();
            }
        }
        // The agent saves late, and lists it again.
        fs::write(&file, &saved).expect("a late save");
        std::thread::sleep(std::time::Duration::from_millis(30));
        let mut two = client(&desk);
        let listed = two.ok("session/list", json!({}));
        assert_eq!(listed["sessions"], json!([]), "{restart:?}");
        for id in [&session, &native] {
            for method in ["session/load", "session/resume"] {
                let error = two.err(method, place(&desk, Some(id)));
                let told = (error.code, error.data["sessionId"].as_str());
                assert_eq!(told, (-32002, Some(id.as_str())), "{method} {restart:?}");
            }
            let error = two.err("session/status", json!({ "sessionId": id }));
            assert_eq!(error.code, -32002, "{restart:?}: {error:?}");
            two.ok("session/delete", json!({ "sessionId": id }));
        }
        let folder = journal_folder(&desk);
        let files: Vec<_> = fs::read_dir(&folder).expect("a folder").flatten().collect();
        assert_eq!(files.len(), 1, "{files:?}");
        let records = records_in(&folder.join("journal.jsonl"));
        assert_eq!(records.len(), 1, "{records:?}");
        assert_eq!(records[0]["kind"], "deleted");
        let params = fs::read_dir(desk.home().join("data/params")).map_or(0, Iterator::count);
        assert_eq!(params, 0, "kept parameters are gone");
        leaves_no_trace(&desk, "a word that must go");
    }
}

/// No file of the home's data has this text, but for what running agents say now.
fn leaves_no_trace(desk: &Desk, text: &str) {
    let mut open = vec![desk.home().join("data")];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                if entry.file_name() != "instances" {
                    open.push(path);
                }
                continue;
            }
            let bytes = fs::read(&path).unwrap_or_default();
            let found = String::from_utf8_lossy(&bytes).contains(text);
            assert!(!found, "{} still has {text:?}", path.display());
        }
    }
}

#[test]
fn a_delete_that_others_are_in_the_way_of_needs_force() {
    let desk = demo_desk().open();
    let (mut one, mut two) = (client(&desk), client_of(&desk, "demo", refuse_all()));
    let session = new_session(&desk, &mut one);
    two.ok("session/resume", place(&desk, Some(&session)));
    assert_eq!(one.err("session/delete", json!({ "sessionId": session })).code, -31009);
    let native = native(&mut one, &session);
    let (_, owner) = openings(&store(&desk), &native)[0];
    let from = two.mark();
    let running = super::begin_prompt(&mut two, &session, "stream 100000 every 5");
    two.wait_update(&session, from, "the turn", |it| it["content"]["text"].is_string());
    let force = json!({ "sessionId": session, "_meta": { "frontdesk": { "force": true } } });
    one.ok("session/delete", force);
    let answer = two.wait(running, crate::acp::ANSWER).expect("a turn has its answer");
    assert_eq!(answer["stopReason"], "cancelled");
    assert_eq!(two.err("session/prompt", prompt(&session, "say x")).code, -32002);
    assert!(!super::agent_lives(owner), "the process that had it is gone");
    assert_eq!(stored_count(&store(&desk)), 0, "it is deleted at the agent");
}
