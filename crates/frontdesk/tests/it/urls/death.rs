//! What becomes of sessions when a connection, a server or the daemon dies.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::peer::{Puppet, Way, answer};
use super::{
    SOON, Server, Socket, client, native, new_session, openings, place, quick, status, turn,
    wait_up, world,
};
use crate::acp::{ANSWER, Acp, prompt};
use crate::desk::{AgentSpec, Desk};
use crate::faults::eventually;

fn begin_turn(client: &mut Acp, session: &str) -> crate::acp::Pending {
    let from = client.mark();
    let running = client.begin("session/prompt", prompt(session, "say on it\nwait 60000"));
    client.wait_update(session, from, "the turn", |it| it["content"]["text"] == "on it");
    running
}

/// Two servers over one store, the way to the first of which can be cut; a session is at it.
fn cut_world() -> (Desk, Way, Server, Server, tempfile::TempDir, Acp, String) {
    let store = tempfile::tempdir().unwrap();
    let (a, b) = (Server::start(store.path(), &[]), Server::start(store.path(), &[]));
    let way = Way::to(&a.address());
    let desk = quick(Desk::builder().agent(AgentSpec::behind("far", &[&way.url, &b.url])));
    let desk = desk.limit("url_connect_ms", 500).open();
    wait_up(&desk, 2);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    let at = openings(store.path(), &native(&mut client, &session));
    assert_eq!(at, [u64::from(a.pid())], "the first url gets the first session");
    (desk, way, a, b, store, client, session)
}

#[test]
fn a_cut_connection_ends_the_turn_and_only_that_url_may_go_on() {
    let (desk, way, a, _b, store, mut client, session) = cut_world();
    let running = begin_turn(&mut client, &session);
    way.cut();
    let error = client.wait(running, ANSWER).expect_err("its connection is gone");
    assert_eq!(error.code, -31002, "{error:?}");
    let native = native(&mut client, &session);
    let (word, meta) = status(&mut client, &session);
    assert_eq!((word.as_str(), &meta["lease"]), ("active", &json!("suspect")), "{meta}");
    // The other one is up, and would load it.
    let refused = client.err("session/load", place(&desk, Some(&session)));
    assert_eq!(refused.code, -31005, "{refused:?}");
    assert!(refused.message.contains(&way.url), "{refused:?}");
    assert_eq!(openings(store.path(), &native).len(), 1);
    way.mend();
    wait_up(&desk, 2);
    // It has it in memory, by its own word.
    assert_eq!(status(&mut client, &session).0, "active");
    client.ok("session/load", place(&desk, Some(&session)));
    turn(&mut client, &session, "say back");
    let opened = openings(store.path(), &native);
    assert!(opened.iter().all(|pid| *pid == u64::from(a.pid())), "{opened:?}");
}

#[test]
fn a_question_that_was_open_is_withdrawn_when_its_connection_goes() {
    let store = tempfile::tempdir().unwrap();
    let a = Server::start(store.path(), &[]);
    let way = Way::to(&a.address());
    let desk = quick(Desk::builder().agent(AgentSpec::behind("far", &[&way.url]))).open();
    wait_up(&desk, 1);
    let silent = std::sync::Arc::new(|_: &crate::acp::Ask| crate::acp::Reply::Silence);
    let mut client = desk.acp("far", silent);
    client.initialize(json!({}));
    let session = new_session(&desk, &mut client);
    let running = client.begin("session/prompt", prompt(&session, "ask May I"));
    let asks = || -> usize {
        let output = desk.cli(&["show", &session, "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        shown["interactions"].as_array().map_or(0, Vec::len)
    };
    eventually("the question", SOON, || asks() == 1);
    way.cut();
    client.wait(running, ANSWER).expect_err("its connection is gone");
    eventually("no question", SOON, || asks() == 0);
    let log = desk.cli(&["log", &session, "--json"]);
    assert!(String::from_utf8_lossy(&log.stdout).contains("interaction_settled"));
}

#[test]
fn a_server_that_was_started_again_has_nothing_and_any_url_may_go_on() {
    let mut world = world();
    let mut client = world.client();
    let session = new_session(&world.desk, &mut client);
    let native = native(&mut client, &session);
    let running = begin_turn(&mut client, &session);
    let first = openings(world.store.path(), &native);
    let at_a = first == [u64::from(world.a.pid())];
    let server = if at_a { &mut world.a } else { &mut world.b };
    server.kill();
    let error = client.wait(running, ANSWER).expect_err("it was killed");
    assert_eq!(error.code, -31002, "{error:?}");
    server.run();
    world.wait_up(2);
    let (word, meta) = status(&mut client, &session);
    assert_eq!((word.as_str(), &meta["source"]), ("inactive", &json!("index")), "{meta}");
    client.ok("session/load", place(&world.desk, Some(&session)));
    turn(&mut client, &session, "say on");
    assert_eq!(openings(world.store.path(), &native).len(), 2);
}

#[test]
fn a_daemon_that_is_killed_closes_the_turn_and_the_next_one_asks_the_same_url() {
    let (mut desk, way, a, _b, store, mut client, session) = cut_world();
    let native = native(&mut client, &session);
    begin_turn(&mut client, &session);
    drop(client);
    desk.kill9();
    way.cut();
    way.mend();
    desk.start();
    wait_up(&desk, 2);
    let mut client = super::client(&desk);
    // The server has it in memory, whatever became of the daemon.
    let (word, _) = status(&mut client, &session);
    assert_eq!(word, "active");
    let log = desk.cli(&["log", &session, "--json"]);
    let text = String::from_utf8_lossy(&log.stdout).into_owned();
    assert!(text.contains("crash_inferred"), "{text}");
    client.ok("session/load", place(&desk, Some(&session)));
    let opened = openings(store.path(), &native);
    assert!(opened.iter().all(|pid| *pid == u64::from(a.pid())), "{opened:?}");
    turn(&mut client, &session, "say on");
}

#[test]
fn a_stopped_desk_only_disconnects() {
    let mut world = world();
    let mut client = world.client();
    new_session(&world.desk, &mut client);
    drop(client);
    assert!(world.desk.stop().success());
    for server in [&world.a, &world.b] {
        let mut past = Socket::open(&server.url);
        let made = past.call("session/new", &place(&world.desk, None));
        assert!(made["result"]["sessionId"].is_string(), "{made}");
        assert!(kill(Pid::from_raw(i32::try_from(server.pid()).unwrap()), None::<Signal>).is_ok());
    }
}

#[test]
fn a_forced_close_of_a_stuck_turn_disconnects_and_the_server_lives() {
    let (desk, _way, a, _b, _store, mut client, session) = cut_world();
    let from = client.mark();
    client.begin("session/prompt", prompt(&session, "say I hang\nhang"));
    client.wait_update(&session, from, "the turn", |it| it["content"]["text"] == "I hang");
    let output = desk.cli(&["close", &session, "--force"]);
    assert!(output.status.success(), "{output:?}");
    wait_up(&desk, 2);
    assert!(kill(Pid::from_raw(i32::try_from(a.pid()).unwrap()), None::<Signal>).is_ok());
}

#[test]
fn a_prompt_that_waits_runs_when_its_url_is_back() {
    let store = tempfile::tempdir().unwrap();
    let server = Server::start(store.path(), &[]);
    let way = Way::to(&server.address());
    let agent = AgentSpec::behind("far", &[&way.url]);
    let desk = quick(Desk::builder().agent(agent)).limit("url_connect_ms", 30_000).open();
    wait_up(&desk, 1);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    let running = begin_turn(&mut client, &session);
    let waiting = client.begin("session/prompt", prompt(&session, "say at last"));
    eventually("the queue", SOON, || {
        let told = client.ok("_frontdesk/session", json!({ "sessionId": session }));
        told["queuedTurns"] == 1
    });
    way.cut();
    client.wait(running, ANSWER).expect_err("its connection is gone");
    way.mend();
    let answer = client.wait(waiting, ANSWER).expect("it runs at last");
    assert_eq!(answer["stopReason"], "end_turn");
    let at = native(&mut client, &session);
    assert!(openings(store.path(), &at).iter().all(|pid| *pid == u64::from(server.pid())));
}

#[test]
fn a_prompt_that_waits_gets_an_error_when_its_url_stays_away() {
    let (desk, way, _a, _b, store, mut client, session) = cut_world();
    let running = begin_turn(&mut client, &session);
    let waiting = client.begin("session/prompt", prompt(&session, "say never"));
    eventually("the queue", SOON, || {
        let told = client.ok("_frontdesk/session", json!({ "sessionId": session }));
        told["queuedTurns"] == 1
    });
    way.cut();
    client.wait(running, ANSWER).expect_err("its connection is gone");
    let error = client.wait(waiting, ANSWER).expect_err("nobody else may run it");
    assert!(error.message.contains("may have this session"), "{error:?}");
    let at = native(&mut client, &session);
    assert_eq!(openings(store.path(), &at).len(), 1);
    let (word, meta) = status(&mut client, &session);
    assert_eq!((word.as_str(), &meta["lease"]), ("active", &json!("suspect")), "{meta}");
    let log = desk.cli(&["log", &session, "--json"]);
    let ended = String::from_utf8_lossy(&log.stdout).matches("turn_ended").count();
    assert_eq!(ended, 2, "each turn has its ending");
}

#[test]
fn a_url_is_asked_for_a_session_when_it_is_written_where() {
    const ROUNDS: usize = 200;
    // What the journal has when the url is asked: there is no other trace of it behind a crash.
    let (journal, claims) =
        (Arc::new(Mutex::new(PathBuf::new())), Arc::new(Mutex::new(Vec::new())));
    let (path, found) = (journal.clone(), claims.clone());
    let puppet = Puppet::start(move |asked| match asked["method"].as_str() {
        Some("session/new") => vec![answer(asked, &json!({ "sessionId": "s1" }))],
        Some("session/list") => {
            let sessions = json!([{ "sessionId": "s1", "cwd": "/" }]);
            vec![answer(asked, &json!({ "sessions": sessions }))]
        }
        Some("session/resume" | "session/load") => {
            let text = fs::read_to_string(&*path.lock().unwrap()).expect("a journal");
            found.lock().unwrap().push(text.matches(r#""kind":"claimed""#).count());
            vec![answer(asked, &json!({}))]
        }
        Some("session/status") => vec![answer(asked, &json!({ "status": "inactive" }))],
        Some("session/close") => vec![answer(asked, &json!({}))],
        _ => Vec::new(),
    });
    let desk = quick(Desk::builder().agent(AgentSpec::behind("far", &[&puppet.url]))).open();
    wait_up(&desk, 1);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    let row = client.ok("_frontdesk/session", json!({ "sessionId": session }));
    *journal.lock().unwrap() = row["path"].as_str().expect("a path").into();
    for _ in 0..ROUNDS {
        client.ok("session/close", json!({ "sessionId": session }));
        client.ok("session/resume", place(&desk, Some(&session)));
    }
    let wanted: Vec<usize> = (2..ROUNDS + 2).collect();
    assert_eq!(*claims.lock().unwrap(), wanted);
}

#[test]
fn a_session_in_doubt_is_settled_however_often_it_is_looked_at() {
    let (_desk, way, mut a, _b, _store, mut client, session) = cut_world();
    let running = begin_turn(&mut client, &session);
    way.cut();
    client.wait(running, ANSWER).expect_err("its connection is gone");
    a.kill();
    a.run();
    way.mend();
    // Each look is a message to its lane.
    eventually("its server's word", SOON, || {
        let who = client.ok("_frontdesk/who", json!({ "sessionId": session }));
        who["lease"] == "cold"
    });
}
