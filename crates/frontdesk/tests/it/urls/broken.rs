//! Urls that are dead, slow or do not keep to the rules: bounded, told, and nobody else's problem.

use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::peer::{Act, Puppet, answer};
use super::{
    SOON, Server, client, new_session, place, quick, status, turn, urls_of, wait_up, world_with,
};
use crate::acp::{ANSWER, prompt};
use crate::desk::{AgentSpec, Desk};
use crate::faults::eventually;

pub(super) fn desk_at(urls: &[&str]) -> Desk {
    let desk = quick(Desk::builder().agent(AgentSpec::behind("far", urls)));
    desk.limit("url_connect_ms", 1_000).limit("agent_start_ms", 1_000).open()
}

pub(super) fn error_of(desk: &Desk, url: &str) -> String {
    let urls = urls_of(desk);
    let found = urls.iter().find(|told| told["url"] == *url).expect("the url");
    found["error"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn urls_that_nobody_listens_at_or_that_never_answer_cost_the_others_nothing() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("ws://{}/", free.local_addr().unwrap());
    drop(free);
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("ws://{}/", mute.local_addr().unwrap());
    let store = tempfile::tempdir().unwrap();
    let server = Server::start(store.path(), &[]);
    let desk = desk_at(&[&nobody, &silent, &server.url]);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    turn(&mut client, &session, "say fine");
    eventually("what is wrong with the two", SOON, || {
        error_of(&desk, &nobody).contains("failed to connect: ")
            && error_of(&desk, &silent).contains("failed to connect within 1000 ms")
    });
    // Whether they know an id nobody can tell.
    let (word, meta) = status(&mut client, "01900000-0000-7000-8000-000000000002");
    assert_eq!((word.as_str(), &meta["source"]), ("inactive", &json!("none")));
    assert_eq!(meta["unreachable"], json!([nobody, silent]));
}

#[test]
fn without_any_url_a_session_is_refused_with_what_is_wrong() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("ws://{}/", free.local_addr().unwrap());
    drop(free);
    let desk = desk_at(&[&nobody]);
    let mut client = desk.acp_unbound(crate::acp::refuse_all());
    client.initialize(json!({}));
    let error = client.err("session/new", place(&desk, None));
    assert_eq!(error.code, -31001, "{error:?}");
    assert!(error.message.contains(&nobody), "{error:?}");
    assert_eq!(error.data["urls"][0]["up"], false);
    let output = desk.cli(&["doctor"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && said.contains(&nobody), "{said}");
}

#[test]
fn one_that_hangs_makes_a_bounded_answer_that_names_it() {
    let world = world_with(&[], |builder| builder.limit("probe_ms", 300));
    let mut client = world.client();
    let session = new_session(&world.desk, &mut client);
    client.ok("session/close", json!({ "sessionId": session }));
    client.ok("session/list", json!({}));
    let pid = Pid::from_raw(i32::try_from(world.b.pid()).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    let unknown = "01900000-0000-7000-8000-000000000003";
    for id in [unknown, session.as_str()] {
        let (word, meta) = status(&mut client, id);
        assert_eq!((word.as_str(), &meta["source"]), ("inactive", &json!("none")), "{id}: {meta}");
        assert_eq!(meta["unreachable"], json!([world.b.url]));
    }
    let output = world.desk.cli(&["status", unknown]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains(&world.b.url));
    kill(pid, Signal::SIGCONT).unwrap();
    eventually("the answer of both", SOON, || {
        status(&mut client, &session).1["source"] == json!("index")
    });
    let error = client.err("session/status", json!({ "sessionId": unknown }));
    assert_eq!(error.code, -32002);
}

/// A server that makes sessions and does `act` with a prompt.
fn prompted(act: impl Fn() -> Vec<Act> + Send + Sync + 'static) -> Puppet {
    Puppet::start(move |asked| match asked["method"].as_str() {
        Some("session/new") => vec![answer(asked, &json!({ "sessionId": "s1" }))],
        Some("session/list") => vec![answer(asked, &json!({ "sessions": [] }))],
        Some("session/prompt") => act(),
        _ => Vec::new(),
    })
}

fn broken_turn(puppet: &Puppet, shape: impl FnOnce(Desk) -> Desk) -> (crate::acp::RpcError, Desk) {
    let desk = shape(desk_at(&[&puppet.url]));
    wait_up(&desk, 1);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    let error = client.err("session/prompt", prompt(&session, "go"));
    (error, desk)
}

#[test]
fn one_that_takes_nothing_more_is_connected_anew_though_it_keeps_sending() {
    // Its last word, and then a text frame of 65,535 bytes that never is complete.
    let puppet =
        prompted(|| vec![Act::Drip(vec![0x88, 2, 0x03, 0xe8, 0x81, 126, 0xff, 0xff, b'{'])]);
    let desk = desk_at(&[&puppet.url]);
    wait_up(&desk, 1);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    let running = client.begin("session/prompt", prompt(&session, "go"));
    eventually("the prompt", SOON, || puppet.count("session/prompt") == 1);
    // The first that is written behind its last word may still be on its way when that comes.
    eventually("another connection", SOON, || {
        let _ = client.begin("session/new", place(&desk, None));
        std::thread::sleep(Duration::from_millis(100));
        puppet.count("initialize") >= 2
    });
    let error = client.wait(running, ANSWER).expect_err("its connection is gone");
    assert!(error.message.contains("it closed the connection"), "{error:?}");
    wait_up(&desk, 1);
}

#[test]
fn a_connection_that_breaks_off_inside_a_frame_ends_the_turn_with_the_reason() {
    // The head of a text frame of 100 bytes, and two of them.
    let puppet = prompted(|| vec![Act::Break(vec![0x81, 100, b'{', b'"'])]);
    let (error, desk) = broken_turn(&puppet, |desk| desk);
    assert_eq!(error.code, -31002, "{error:?}");
    assert!(error.message.contains("the connection broke off"), "{error:?}");
    wait_up(&desk, 1);
    assert!(puppet.count("initialize") >= 2);
}

#[test]
fn what_is_no_websocket_frame_ends_the_connection_with_the_reason() {
    // A reserved operation.
    let puppet = prompted(|| vec![Act::Break(vec![0x83, 0])]);
    let (error, _desk) = broken_turn(&puppet, |desk| desk);
    assert!(error.message.contains("does not keep to the WebSocket protocol"), "{error:?}");
}

#[test]
fn a_frame_beyond_the_limit_ends_the_connection_and_is_counted() {
    let store = tempfile::tempdir().unwrap();
    let server = Server::start(store.path(), &[]);
    let agent = AgentSpec::behind("far", &[&server.url]);
    let desk = quick(Desk::builder().agent(agent)).limit("frame_bytes", 100_000).open();
    wait_up(&desk, 1);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    // At the limit all is well.
    turn(&mut client, &session, "huge 100000");
    let error = client.err("session/prompt", prompt(&session, "huge 100001"));
    assert_eq!(error.code, -31002, "{error:?}");
    assert!(error.message.contains("100001 bytes is longer than the limit of 100000"), "{error:?}");
    let info = client.ok("_frontdesk/info", json!({}));
    assert_eq!(info["counters"]["long_frames"], 1);
    wait_up(&desk, 1);
    client.ok("session/load", place(&desk, Some(&session)));
    turn(&mut client, &session, "say on");
}

#[test]
fn binary_frames_are_passed_over_and_line_ends_in_a_message_are_blanks() {
    let puppet = Puppet::start(|asked| match asked["method"].as_str() {
        Some("session/new") => vec![Act::Binary, answer(asked, &json!({ "sessionId": "s1" }))],
        Some("session/list") => vec![answer(asked, &json!({ "sessions": [] }))],
        Some("session/prompt") => {
            let update = json!({ "jsonrpc": "2.0", "method": "session/update", "params": {
                "sessionId": "s1",
                "update": { "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "a\nb" } },
            } });
            let pretty = serde_json::to_string_pretty(&update).unwrap().replace('\n', "\r\n");
            vec![
                Act::Say("no message".to_owned()),
                Act::Say(pretty),
                answer(asked, &json!({ "stopReason": "end_turn" })),
            ]
        }
        _ => Vec::new(),
    });
    let desk = desk_at(&[&puppet.url]);
    wait_up(&desk, 1);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    let from = client.mark();
    turn(&mut client, &session, "go");
    client.wait_update(&session, from, "the text", |it| it["content"]["text"] == "a\nb");
    // The journal is one record a line all the same.
    let log = desk.cli(&["log", &session, "--json"]);
    let lines = String::from_utf8(log.stdout).unwrap();
    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{lines}");
}

#[test]
fn a_peer_that_falls_silent_is_given_up_and_the_turn_ends() {
    let puppet = prompted(|| vec![Act::Hang]);
    let agent = AgentSpec::behind("far", &[&puppet.url]);
    let desk = quick(Desk::builder().agent(agent));
    let desk = desk.limit("url_ping_ms", 200).limit("url_pong_ms", 300).open();
    wait_up(&desk, 1);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    let error = client.err("session/prompt", prompt(&session, "go"));
    assert!(error.message.contains("it gave no sign of life within 300 ms"), "{error:?}");
}

#[test]
fn a_peer_that_answers_pings_may_be_quiet_for_long() {
    let world =
        world_with(&[], |builder| builder.limit("url_ping_ms", 100).limit("url_pong_ms", 1_000));
    let mut client = world.client();
    let session = new_session(&world.desk, &mut client);
    turn(&mut client, &session, "wait 4000");
    let log = world.desk.daemon_log();
    assert_eq!(log.matches("connected instance").count(), 2, "{log}");
}

#[test]
fn what_one_url_says_of_a_session_that_another_one_has_is_dropped_and_counted() {
    let owner = Puppet::start(|asked| match asked["method"].as_str() {
        Some("session/new") => vec![answer(asked, &json!({ "sessionId": "s1" }))],
        Some("session/list") => vec![answer(asked, &json!({ "sessions": [] }))],
        Some("session/prompt") => vec![answer(asked, &json!({ "stopReason": "end_turn" }))],
        _ => Vec::new(),
    });
    let intruder = Puppet::start(|asked| match asked["method"].as_str() {
        Some("session/list") => {
            let update = json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "mine" } });
            let params = json!({ "sessionId": "s1", "update": update });
            let said = json!({ "jsonrpc": "2.0", "method": "session/update", "params": params });
            vec![Act::Say(said.to_string()), answer(asked, &json!({ "sessions": [] }))]
        }
        _ => Vec::new(),
    });
    let agent = AgentSpec::behind("far", &[&owner.url, &intruder.url]);
    let desk = quick(Desk::builder().agent(agent)).open();
    wait_up(&desk, 2);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    let dropped = |client: &mut crate::acp::Acp| {
        let info = client.ok("_frontdesk/info", json!({}));
        info["counters"]["dropped_updates"].as_u64().unwrap_or_default()
    };
    let before = dropped(&mut client);
    client.ok("session/list", json!({}));
    assert!(dropped(&mut client) > before);
    turn(&mut client, &session, "go");
    let log = desk.cli(&["log", &session, "--json"]);
    assert!(!String::from_utf8_lossy(&log.stdout).contains("mine"));
}

#[test]
fn an_opening_that_is_answered_late_is_no_longer_owed() {
    let loads = AtomicUsize::new(0);
    let puppet = Puppet::start(move |asked| match asked["method"].as_str() {
        Some("session/new") => vec![answer(asked, &json!({ "sessionId": "s1" }))],
        Some("session/list") => vec![answer(asked, &json!({ "sessions": [] }))],
        Some("session/status") => vec![answer(asked, &json!({ "status": "saved" }))],
        Some("session/close") => vec![answer(asked, &json!({}))],
        Some("session/load" | "session/resume") => {
            let first = loads.fetch_add(1, Ordering::Relaxed) == 0;
            let late = first.then_some(Act::Wait(Duration::from_millis(5_000)));
            late.into_iter().chain([answer(asked, &json!({}))]).collect()
        }
        _ => Vec::new(),
    });
    let desk = quick(Desk::builder().agent(AgentSpec::behind("far", &[&puppet.url])));
    let desk = desk.limit("agent_open_ms", 500).limit("doubt_probe_ms", 100).open();
    wait_up(&desk, 1);
    let mut client = client(&desk);
    let session = new_session(&desk, &mut client);
    client.ok("session/close", json!({ "sessionId": session }));
    let error = client.err("session/load", place(&desk, Some(&session)));
    assert!(error.message.contains("did not answer session/"), "{error:?}");
    let lease = |client: &mut crate::acp::Acp| {
        client.ok("_frontdesk/who", json!({ "sessionId": session }))["lease"].clone()
    };
    assert_eq!(lease(&mut client), "suspect");
    eventually("its late answer", SOON, || {
        client.ok("_frontdesk/info", json!({}))["counters"]["late_answers"] == 1
    });
    client.ok("session/load", place(&desk, Some(&session)));
    client.ok("session/close", json!({ "sessionId": session }));
    eventually("the agent's own word", SOON, || lease(&mut client) == "cold");
}

#[test]
fn an_agent_that_does_not_read_while_it_speaks_is_heard() {
    let (made, held) = (AtomicUsize::new(0), Mutex::new(None));
    let puppet = Puppet::start(move |asked| match asked["method"].as_str() {
        Some("session/new") => {
            let id = format!("s{}", made.fetch_add(1, Ordering::Relaxed));
            vec![answer(asked, &json!({ "sessionId": id }))]
        }
        Some("session/list") => vec![answer(asked, &json!({ "sessions": [] }))],
        Some("session/status") => {
            *held.lock().unwrap() = Some(asked.clone());
            Vec::new()
        }
        Some("session/prompt") if asked["params"]["sessionId"] == "s0" => {
            let long = "x".repeat(32 << 20);
            let update = json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": long } });
            let params = json!({ "sessionId": "s0", "update": update });
            let said = json!({ "jsonrpc": "2.0", "method": "session/update", "params": params });
            let word = held.lock().unwrap().take();
            let word = word.map(|word| answer(&word, &json!({ "status": "saved" })));
            let rest =
                [Act::Say(said.to_string()), answer(asked, &json!({ "stopReason": "end_turn" }))];
            let pause = Act::Wait(Duration::from_millis(6_000));
            [pause].into_iter().chain(word).chain(rest).collect()
        }
        Some("session/prompt") => vec![answer(asked, &json!({ "stopReason": "end_turn" }))],
        _ => Vec::new(),
    });
    let desk = quick(Desk::builder().agent(AgentSpec::behind("far", &[&puppet.url])));
    let desk = desk.limit("probe_ms", 60_000).open();
    wait_up(&desk, 1);
    let mut client = client(&desk);
    client.ok("session/list", json!({}));
    let sessions: Vec<String> = (0..3).map(|_| new_session(&desk, &mut client)).collect();
    let word = client.begin("session/status", json!({ "sessionId": "somebody's" }));
    eventually("the question", SOON, || puppet.count("session/status") == 1);
    // It speaks, and takes nothing meanwhile: one long prompt fills the way there, one more waits.
    let first = client.begin("session/prompt", prompt(&sessions[0], "go"));
    eventually("the first prompt", SOON, || puppet.count("session/prompt") == 1);
    let long = "y".repeat(12 << 20);
    let others = [1, 2].map(|at| client.begin("session/prompt", prompt(&sessions[at], &long)));
    assert_eq!(client.wait(word, ANSWER).expect("its word")["status"], "inactive");
    for prompt in [first].into_iter().chain(others) {
        assert_eq!(client.wait(prompt, ANSWER).expect("a turn")["stopReason"], "end_turn");
    }
}
