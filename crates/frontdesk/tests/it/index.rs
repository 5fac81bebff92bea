//! The index from outside: starts, search, making it anew, and what is said while there is none.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::acp::{Acp, prompt, refuse_all};
use crate::desk::{AgentSpec, Desk, DeskBuilder, frontdesk};

const SOON: Duration = Duration::from_secs(60);

fn desk() -> DeskBuilder {
    let command = [frontdesk().to_path_buf(), "demo-agent".into()];
    Desk::builder().agent(AgentSpec::new("demo", command))
}

fn client(desk: &Desk) -> Acp {
    let mut client = desk.acp("demo", refuse_all());
    client.initialize(json!({}));
    client
}

fn place(desk: &Desk, session: Option<&str>) -> Value {
    let mut params = json!({ "cwd": desk.work(), "mcpServers": [] });
    if let Some(session) = session {
        params["sessionId"] = json!(session);
    }
    params
}

fn session_that_said(desk: &Desk, client: &mut Acp, words: &str) -> String {
    let made = client.ok("session/new", place(desk, None));
    let session = made["sessionId"].as_str().unwrap().to_owned();
    client.ok("session/prompt", prompt(&session, words));
    session
}

fn eventually(what: &str, mut wanted: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !wanted() {
        assert!(Instant::now() < until, "no sight of {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn json_of(desk: &Desk, args: &[&str]) -> Value {
    let ran = desk.cli(args);
    assert!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// Ids and snippets of what a search finds.
fn found(desk: &Desk, text: &str) -> Vec<(String, String)> {
    let rows = json_of(desk, &["ls", "--json", "--search", text]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = rows["sessions"].as_array().unwrap().iter();
    rows.map(|row| (text(&row["id"]), text(&row["match"]["snippet"]))).collect()
}

fn index_file(desk: &Desk) -> std::path::PathBuf {
    desk.home().join("data/index.sqlite")
}

fn touched(desk: &Desk) -> String {
    fs::read_to_string(desk.home().join("data/touched.log")).unwrap_or_default()
}

#[test]
fn a_crash_is_made_good_before_anybody_is_served() {
    let mut desk = desk().open();
    let mut one = client(&desk);
    let calm = session_that_said(&desk, &mut one, "say calm");
    one.ok("session/close", json!({ "sessionId": calm }));
    // What is at rest is not looked at again.
    eventually("the cut", || {
        touched(&desk).starts_with("step ") && !touched(&desk).contains(&calm)
    });
    let busy = session_that_said(&desk, &mut one, "say first");
    let from = one.mark();
    let _running = one.begin("session/prompt", prompt(&busy, "say second\nwait 20000"));
    one.wait_update(&busy, from, "the turn", |it| it["content"]["text"] == "second");
    assert!(touched(&desk).contains(&busy), "{}", touched(&desk));
    desk.kill_all();
    drop(one);
    desk.start();
    let mut two = client(&desk);
    let rows = two.ok("_frontdesk/sessions", json!({}));
    let row = |id: &str| {
        let rows = rows["sessions"].as_array().unwrap();
        rows.iter().find(|row| row["id"] == id).unwrap_or_else(|| panic!("{rows:?}")).clone()
    };
    assert_eq!((&row(&busy)["turnCount"], &row(&busy)["status"]), (&json!(2), &json!("inactive")));
    assert_eq!(row(&calm)["turnCount"], 1);
    let log = two.ok("_frontdesk/log", json!({ "sessionId": busy }));
    let records = log["records"].as_array().unwrap();
    let last = records.iter().rfind(|record| record["kind"] == "turn_ended").unwrap();
    assert_eq!(last["data"]["reason"], "crash_inferred");
    assert!(!desk.daemon_log().contains("comparing it with the journals"), "it was in step");
}

#[test]
fn search_finds_titles_and_what_was_said() {
    let desk = desk().open();
    let mut one = client(&desk);
    let first = session_that_said(&desk, &mut one, "say the quick brown fox");
    let second = session_that_said(&desk, &mut one, "say the quick red hen");
    eventually("both", || found(&desk, "quick").len() == 2);
    assert_eq!(found(&desk, "brown")[0].0, first);
    let (id, snippet) = found(&desk, "\"red hen\"").remove(0);
    assert_eq!(id, second);
    assert!(snippet.contains("red hen"), "{snippet}");
    assert!(found(&desk, "brown hen").is_empty() && found(&desk, "\"hen red\"").is_empty());
    let ran = desk.cli(&["ls", "--search", "QUI", "--since", "1h", "--limit", "1"]);
    assert!(String::from_utf8_lossy(&ran.stdout).contains("quick"), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("more"), "{ran:?}");
    assert!(found(&desk, "quick").len() == 2);
    let error = one.err("_frontdesk/sessions", json!({ "search": " \" " }));
    assert_eq!(error.code, -32602);
    for wrong in [
        json!({ "attention": 1 }),
        json!({ "archived": "yes" }),
        json!({ "updatedAfter": "yesterday" }),
        json!({ "status": "asleep" }),
        json!({ "search": 7 }),
    ] {
        assert_eq!(one.err("_frontdesk/sessions", wrong.clone()).code, -32602, "{wrong}");
    }
    one.ok("session/delete", json!({ "sessionId": first }));
    assert!(found(&desk, "brown").is_empty(), "what was deleted is not found");
}

#[test]
fn the_index_is_made_anew_with_a_daemon_and_without() {
    let mut desk = desk().open();
    let mut one = client(&desk);
    for words in ["say one needle", "say two needle"] {
        session_that_said(&desk, &mut one, words);
    }
    let made = json_of(&desk, &["reindex", "--json"]);
    assert_eq!((&made["sessions"], &made["unreadable"]), (&json!(2), &json!(0)));
    // Both are at work in their lanes all the while; nothing is lost and nothing twice.
    eventually("the words", || found(&desk, "needle").len() == 2);
    drop(one);
    assert!(desk.stop().success());
    fs::remove_file(index_file(&desk)).unwrap();
    let made = json_of(&desk, &["reindex", "--json"]);
    assert_eq!((&made["sessions"], &made["passages"]), (&json!(2), &json!(2)));
    assert!(index_file(&desk).is_file());
    desk.start();
    assert_eq!(found(&desk, "needle").len(), 2);
    assert!(!desk.daemon_log().contains("comparing it with the journals"), "it is in step");
}

#[test]
fn without_an_index_nothing_is_called_unknown_and_no_list_is_half() {
    let mut desk = desk().limit("index_wait_ms", 300).open();
    let mut one = client(&desk);
    let session = session_that_said(&desk, &mut one, "say here");
    drop(one);
    assert!(desk.stop().success());
    fs::remove_file(index_file(&desk)).unwrap();
    // Nothing can be made in the place of a folder.
    let blocked = desk.home().join("data/index.new.sqlite");
    fs::create_dir_all(blocked.join("x")).unwrap();
    desk.start();
    let mut two = client(&desk);
    for id in [session.as_str(), "nobody-knows-this"] {
        let status = two.ok("session/status", json!({ "sessionId": id }));
        let source = &status["_meta"]["frontdesk"]["source"];
        assert_eq!((&status["status"], source), (&json!("inactive"), &json!("none")), "{id}");
        for (method, params) in [
            ("session/load", place(&desk, Some(id))),
            ("session/delete", json!({ "sessionId": id })),
        ] {
            let error = two.err(method, params);
            let retry = error.data["retryable"].clone();
            assert_eq!((error.code, retry), (-31010, json!(true)), "{method} {id}");
        }
    }
    assert_eq!(two.err("session/list", json!({})).code, -31010);
    assert_eq!(two.err("_frontdesk/sessions", json!({ "search": "here" })).code, -31010);
    // New sessions work, and are known.
    let made = session_that_said(&desk, &mut two, "say new");
    assert_eq!(two.ok("session/status", json!({ "sessionId": made }))["status"], "active");
    fs::remove_dir_all(&blocked).unwrap();
    eventually("the index", || two.request("session/list", json!({})).is_ok());
    let rows = two.ok("session/list", json!({}));
    let rows = rows["sessions"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{rows:?}");
    let error = two.err("session/status", json!({ "sessionId": "nobody-knows-this" }));
    assert_eq!(error.code, -32002);
    two.ok("session/load", place(&desk, Some(&session)));
}

#[test]
fn changes_wait_in_memory_until_they_are_written_together() {
    let mut desk = desk().limit("index_delay_ms", 3_600_000).open();
    let mut one = client(&desk);
    let session = session_that_said(&desk, &mut one, "say needle");
    one.ok("session/close", json!({ "sessionId": session }));
    // Known by every name, and not in the index yet.
    let rows = one.ok("session/list", json!({}));
    assert_eq!(rows["sessions"].as_array().unwrap().len(), 1);
    assert!(found(&desk, "needle").is_empty());
    drop(one);
    assert!(desk.stop().success(), "a stop does not wait for the delay");
    desk.start();
    assert_eq!(found(&desk, "needle").len(), 1);
}

#[test]
fn a_search_looks_at_no_more_than_it_may() {
    let desk = desk().limit("search_rows", 1).open();
    let mut one = client(&desk);
    for words in ["say needle one", "say needle two"] {
        // The first prompt makes the name, which is looked for apart.
        let session = session_that_said(&desk, &mut one, "say hello");
        one.ok("session/prompt", prompt(&session, words));
    }
    let sessions = |words: &str| found(&desk, words).len();
    eventually("both", || sessions("two") == 1 && sessions("one") == 1);
    assert_eq!(sessions("needle"), 1);
}

#[test]
fn an_index_that_cannot_be_made_is_told_of_and_the_old_one_serves() {
    let desk = desk().open();
    let mut one = client(&desk);
    session_that_said(&desk, &mut one, "say needle");
    eventually("the words", || found(&desk, "needle").len() == 1);
    // Nothing can be made in the place of a folder.
    let blocked = desk.home().join("data/index.new.sqlite");
    fs::create_dir_all(blocked.join("x")).unwrap();
    let until = Instant::now() + SOON;
    let runs = one.ok("_frontdesk/reindex", json!({}))["runs"].clone();
    let asked = one.ok("_frontdesk/reindex", json!({ "start": true }));
    assert_eq!(asked["running"], true);
    let told = loop {
        let told = one.ok("_frontdesk/reindex", json!({}));
        if told["running"] == false {
            break told;
        }
        assert!(Instant::now() < until, "{told}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(told["error"].is_string() && told["runs"] == runs, "{told}");
    assert!(!desk.cli(&["reindex"]).status.success());
    assert_eq!(found(&desk, "needle").len(), 1);
    fs::remove_dir_all(&blocked).unwrap();
    assert_eq!(json_of(&desk, &["reindex", "--json"])["sessions"], 1);
}
