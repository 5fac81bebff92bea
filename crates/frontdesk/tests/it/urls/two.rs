//! Two servers that run: placing, status, lists, and who gets a session.

use serde_json::json;

use super::{
    Server, client, native, new_session, openings, place, quick, status, turn, wait_up, world,
    world_with,
};
use crate::desk::{AgentSpec, Desk};

#[test]
fn sessions_are_made_prompted_closed_and_called_back_at_urls() {
    let world = world();
    let mut client = world.client();
    let session = new_session(&world.desk, &mut client);
    turn(&mut client, &session, "say hello");
    let (word, meta) = status(&mut client, &session);
    assert_eq!((word.as_str(), &meta["source"]), ("active", &json!("owner")));
    assert!(meta["owner"].get("pid").is_none(), "{meta}");
    client.ok("session/close", json!({ "sessionId": session }));
    let (word, meta) = status(&mut client, &session);
    assert_eq!((word.as_str(), &meta["source"]), ("inactive", &json!("index")));
    client.ok("session/load", place(&world.desk, Some(&session)));
    turn(&mut client, &session, "say again");
    assert_eq!(world.desk.instances(), 0, "nothing is started");
}

#[test]
fn a_new_session_goes_to_the_url_with_the_fewest() {
    let world = world();
    let mut client = world.client();
    let sessions: Vec<String> = (0..6).map(|_| new_session(&world.desk, &mut client)).collect();
    let mut at = [0, 0];
    for session in &sessions {
        let native = native(&mut client, session);
        let pids = openings(world.store.path(), &native);
        at[usize::from(pids == [u64::from(world.b.pid())])] += 1;
    }
    assert_eq!(at, [3, 3]);
}

#[test]
fn a_limit_of_sessions_at_a_url_is_kept() {
    let store = tempfile::tempdir().unwrap();
    let server = Server::start(store.path(), &[]);
    let agent = AgentSpec::behind("far", &[&server.url]).setting("sessions_per_instance = 2");
    let desk = quick(Desk::builder().agent(agent)).open();
    wait_up(&desk, 1);
    let mut client = client(&desk);
    let first = new_session(&desk, &mut client);
    new_session(&desk, &mut client);
    let error = client.err("session/new", place(&desk, None));
    assert!(error.message.contains("has no room"), "{error:?}");
    client.ok("session/close", json!({ "sessionId": first }));
    new_session(&desk, &mut client);
}

#[test]
fn a_session_that_another_client_loaded_at_b_is_active_and_resume_goes_there() {
    let world = world();
    let mut client = world.client();
    let session = new_session(&world.desk, &mut client);
    let native = native(&mut client, &session);
    let first = openings(world.store.path(), &native);
    client.ok("session/close", json!({ "sessionId": session }));
    // Somebody else loads it where it was not.
    let other = if first == [u64::from(world.a.pid())] { &world.b } else { &world.a };
    let mut past = world.past(other);
    let loaded = past.call("session/load", &place(&world.desk, Some(&native)));
    assert!(loaded["result"].is_object(), "{loaded}");
    let (word, meta) = status(&mut client, &session);
    assert_eq!((word.as_str(), &meta["source"]), ("active", &json!("agent")), "{meta}");
    assert_eq!(meta["loadedAt"], json!([other.url]));
    let output = world.desk.cli(&["status", &session]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && shown.contains(&other.url), "{shown}");
    client.ok("session/resume", place(&world.desk, Some(&session)));
    let last = openings(world.store.path(), &native);
    assert_eq!(last.last(), Some(&u64::from(other.pid())), "{last:?}");
    turn(&mut client, &session, "say here");
}

#[test]
fn a_session_loaded_at_two_is_opened_by_nobody() {
    let world = world();
    let mut client = world.client();
    let session = new_session(&world.desk, &mut client);
    let native = native(&mut client, &session);
    client.ok("session/close", json!({ "sessionId": session }));
    let (mut a, mut b) = (world.past(&world.a), world.past(&world.b));
    for past in [&mut a, &mut b] {
        past.call("session/resume", &place(&world.desk, Some(&native)));
    }
    let (word, meta) = status(&mut client, &session);
    assert_eq!((word.as_str(), &meta["loadedAt"]), ("active", &json!([world.a.url, world.b.url])));
    let error = client.err("session/resume", place(&world.desk, Some(&session)));
    assert_eq!(error.code, -31005, "{error:?}");
    assert!(world.desk.daemon_log().contains("say that they have one session"));
    // Once only one has it, it goes there.
    a.call("session/close", &json!({ "sessionId": native }));
    client.ok("session/resume", place(&world.desk, Some(&session)));
    assert_eq!(openings(world.store.path(), &native).last(), Some(&u64::from(world.b.pid())));
}

#[test]
fn the_recorded_owner_wins_where_another_loads_its_session_too() {
    let world = world();
    let mut client = world.client();
    let session = new_session(&world.desk, &mut client);
    let native = native(&mut client, &session);
    let owner = openings(world.store.path(), &native)[0];
    let other = if owner == u64::from(world.a.pid()) { &world.b } else { &world.a };
    let mut past = world.past(other);
    past.call("session/resume", &place(&world.desk, Some(&native)));
    let (word, meta) = status(&mut client, &session);
    assert_eq!((word.as_str(), &meta["source"]), ("active", &json!("owner")));
    turn(&mut client, &session, "say mine");
    client.ok("session/load", place(&world.desk, Some(&session)));
    assert_eq!(openings(world.store.path(), &native).len(), 2, "joined, not opened again");
}

#[test]
fn every_spelling_of_an_agents_answer_is_understood() {
    let world = world_with(&["--status-open"], |builder| builder);
    let mut client = world.client();
    let mut past = world.past(&world.b);
    let made = past.call("session/new", &place(&world.desk, None));
    let native = made["result"]["sessionId"].as_str().unwrap().to_owned();
    let (word, meta) = status(&mut client, &native);
    assert_eq!((word.as_str(), &meta["source"]), ("active", &json!("agent")), "{meta}");
    past.call("session/close", &json!({ "sessionId": native }));
    assert_eq!(status(&mut client, &native).0, "inactive");
}

#[test]
fn an_id_that_all_call_unknown_is_unknown() {
    let world = world_with(&[], |builder| builder.limit("probe_negative_ms", 600_000));
    let mut client = world.client();
    // So that no list is being waited for.
    client.ok("session/list", json!({}));
    let id = "01900000-0000-7000-8000-000000000001";
    for _ in 0..3 {
        let error = client.err("session/status", json!({ "sessionId": id }));
        assert_eq!((error.code, &error.data["sessionId"]), (-32002, &json!(id)));
    }
    assert_eq!(world.desk.cli(&["status", id]).status.code(), Some(4));
}

#[test]
fn a_list_has_each_session_of_both_once_and_says_who_is_missing() {
    let mut world = world();
    let mut client = world.client();
    let (mut a, mut b) = (world.past(&world.a), world.past(&world.b));
    for past in [&mut a, &mut b] {
        past.call("session/new", &place(&world.desk, None));
    }
    let list = client.ok("session/list", json!({}));
    let ids: Vec<&str> = list["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["sessionId"].as_str())
        .collect();
    assert_eq!(ids.len(), 2, "{list}");
    assert!(list.get("_meta").is_none(), "{list}");
    drop((a, b));
    world.b.kill();
    wait_up(&world.desk, 1);
    let gone = json!({ "frontdesk": { "unreachable": [world.b.url] } });
    crate::faults::eventually("the list that is no longer fresh", super::SOON, || {
        let list = client.ok("session/list", json!({}));
        assert_eq!(list["sessions"].as_array().map(Vec::len), Some(2));
        list["_meta"] == gone
    });
    let output = world.desk.cli(&["ls", "--refresh"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains(&world.b.url), "{said}");
}

#[test]
fn stores_that_are_not_shared_keep_their_sessions() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Without status, only the lists tell where a session is.
    for args in [&[][..], &["--no-status"]] {
        let a = Server::start(one.path(), args);
        let b = Server::start(two.path(), args);
        let agent = AgentSpec::behind("far", &[&a.url, &b.url]);
        let desk = quick(Desk::builder().agent(agent)).open();
        wait_up(&desk, 2);
        let mut client = client(&desk);
        let mut natives = Vec::new();
        for server in [&a, &b, &b] {
            let mut past = super::Socket::open(&server.url);
            let made = past.call("session/new", &place(&desk, None));
            let id = made["result"]["sessionId"].as_str().unwrap().to_owned();
            past.call("session/close", &json!({ "sessionId": id }));
            natives.push(id);
        }
        for native in natives {
            client.ok("session/load", place(&desk, Some(&native)));
            turn(&mut client, &native, "say hi");
        }
    }
}

#[test]
fn a_token_goes_with_the_connection_and_a_wrong_one_is_told() {
    let store = tempfile::tempdir().unwrap();
    let server = Server::start(store.path(), &["--token", "sesame"]);
    let agent = AgentSpec::behind("far", &[&server.url]);
    let right = agent.clone().setting("headers = { Authorization = \"Bearer sesame\" }");
    let desk = quick(Desk::builder().agent(right)).open();
    wait_up(&desk, 1);
    let mut client = client(&desk);
    new_session(&desk, &mut client);
    let wrong = agent.setting("headers = { Authorization = \"Bearer simsim\" }");
    let desk = quick(Desk::builder().agent(wrong).limit("url_connect_ms", 500)).open();
    let mut client = desk.acp_unbound(crate::acp::refuse_all());
    client.initialize(json!({}));
    let error = client.err("session/new", place(&desk, None));
    assert!(error.message.contains("HTTP status 401"), "{error:?}");
    assert!(!desk.daemon_log().contains("simsim"));
}

#[test]
fn agents_and_doctor_show_which_urls_are_up() {
    let mut world = world();
    world.a.kill();
    wait_up(&world.desk, 1);
    let output = world.desk.cli(&["agents"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains(&format!("{} (down", world.a.url)) && text.contains(&world.b.url),
        "{text}"
    );
    let output = world.desk.cli(&["agents", "--check"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("1 of 2") && text.contains(&world.a.url), "{text}");
}

#[test]
fn without_a_daemon_doctor_names_urls_and_tries_nothing() {
    let agent = AgentSpec::behind("far", &["ws://127.0.0.1:1/acp?token=sesame"]);
    let desk = Desk::builder().agent(agent).build();
    let output = desk.cli(&["doctor", "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let far = told["agents"].as_array().unwrap().iter().find(|agent| agent["agent"] == "far");
    assert_eq!(far.unwrap()["urls"], json!([{ "url": "ws://127.0.0.1:1/acp" }]), "{told}");
    let output = desk.cli(&["doctor"]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("1 url ") && !shown.contains("sesame"), "{shown}");
}
