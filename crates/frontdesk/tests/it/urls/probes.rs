//! What urls are asked for sessions: once for all who ask, bounded, and only while somebody waits.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use super::peer::{Act, Puppet, answer};
use super::{SOON, client, new_session, place, quick, status, turn, wait_up, world_with};
use crate::acp::ANSWER;
use crate::desk::{AgentSpec, Desk};
use crate::faults::eventually;

/// Sessions that are made while lists are read; fewer than a page has.
const BIRTHS: usize = 15;

#[test]
fn many_who_ask_about_one_id_are_one_question() {
    let puppet = Puppet::start(|asked| match asked["method"].as_str() {
        Some("session/status") => {
            let error = json!({ "code": -32002, "message": "Resource not found" });
            let text = json!({ "jsonrpc": "2.0", "id": asked["id"], "error": error }).to_string();
            vec![Act::Wait(Duration::from_millis(500)), Act::Say(text)]
        }
        Some("session/list") => vec![answer(asked, &json!({ "sessions": [] }))],
        _ => Vec::new(),
    });
    let desk = quick(Desk::builder().agent(AgentSpec::behind("far", &[&puppet.url])));
    // Those who come behind the answer are told what it was, however late they are.
    let desk = desk.limit("probe_ms", 30_000).limit("probe_negative_ms", 600_000).open();
    wait_up(&desk, 1);
    let mut client = client(&desk);
    client.ok("session/list", json!({}));
    let id = json!({ "sessionId": "01900000-0000-7000-8000-000000000004" });
    let all: Vec<_> = (0..200).map(|_| client.begin("session/status", id.clone())).collect();
    for pending in all {
        assert_eq!(client.wait(pending, ANSWER).expect_err("unknown").code, -32002);
    }
    assert_eq!(puppet.count("session/status"), 1);
    // And for its time it is not asked again.
    client.err("session/status", id);
    assert_eq!(puppet.count("session/status"), 1);
}

#[test]
fn ten_thousand_probes_start_nothing_and_write_nothing() {
    let world = world_with(&[], |builder| builder.limit("probe_negative_ms", 0));
    let mut client = world.client();
    let session = new_session(&world.desk, &mut client);
    turn(&mut client, &session, "say there");
    client.ok("session/close", json!({ "sessionId": session }));
    client.ok("session/list", json!({}));
    let native = super::native(&mut client, &session);
    let before = (journal_bytes(&world.desk), super::openings(world.store.path(), &native));
    let unknown = |n: usize| format!("01900000-0000-7000-8000-{n:012}");
    for hundred in 0..100 {
        let ids =
            (0..100).map(|n| if n % 2 == 0 { session.clone() } else { unknown(hundred * 100 + n) });
        let asked: Vec<_> =
            ids.map(|id| client.begin("session/status", json!({ "sessionId": id }))).collect();
        for (n, pending) in asked.into_iter().enumerate() {
            match client.wait(pending, ANSWER) {
                Ok(result) => assert!(n % 2 == 0 && result["status"] == "inactive", "{result}"),
                Err(error) => assert!(n % 2 == 1 && error.code == -32002, "{error:?}"),
            }
        }
    }
    assert_eq!(before, (journal_bytes(&world.desk), super::openings(world.store.path(), &native)));
    assert_eq!(world.desk.instances(), 0);
}

fn journal_bytes(desk: &Desk) -> u64 {
    let mut folders = vec![desk.home().join("data/sessions"), desk.home().join("data/commit")];
    let mut bytes = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let meta = entry.metadata().expect("a file");
            if meta.is_dir() { folders.push(entry.path()) } else { bytes += meta.len() }
        }
    }
    bytes
}

#[test]
fn questions_about_different_ids_are_bounded_at_each_instance() {
    let puppet = Puppet::start(|asked| match asked["method"].as_str() {
        Some("session/list") => vec![answer(asked, &json!({ "sessions": [] }))],
        _ => Vec::new(),
    });
    let agent = AgentSpec::behind("far", &[&puppet.url]);
    let desk = quick(Desk::builder().agent(agent));
    let desk = desk.limit("probe_requests", 4).limit("probe_ms", 1_000).open();
    wait_up(&desk, 1);
    let mut client = client(&desk);
    client.ok("session/list", json!({}));
    let id = |n: usize| json!({ "sessionId": format!("01900000-0000-7000-8000-{n:012}") });
    let asked: Vec<_> = (0..20).map(|n| client.begin("session/status", id(n))).collect();
    for pending in asked {
        let told = client.wait(pending, ANSWER).expect("bounded, not unknown");
        assert_eq!(told["_meta"]["frontdesk"]["unreachable"], json!([puppet.url]), "{told}");
    }
    assert_eq!(puppet.count("session/status"), 4);
}

#[test]
fn what_was_called_unknown_is_asked_again_once_somebody_does_something_with_the_id() {
    let is_there = Arc::new(AtomicBool::new(false));
    let there = is_there.clone();
    let puppet = Puppet::start(move |asked| match asked["method"].as_str() {
        Some("session/status") if there.load(Ordering::Relaxed) => {
            vec![answer(asked, &json!({ "status": "saved" }))]
        }
        Some("session/status") => {
            let error = json!({ "code": -32002, "message": "Resource not found" });
            vec![Act::Say(
                json!({ "jsonrpc": "2.0", "id": asked["id"], "error": error }).to_string(),
            )]
        }
        Some("session/list") => vec![answer(asked, &json!({ "sessions": [] }))],
        _ => Vec::new(),
    });
    let agent = AgentSpec::behind("far", &[&puppet.url]);
    let desk = quick(Desk::builder().agent(agent)).limit("probe_negative_ms", 600_000).open();
    wait_up(&desk, 1);
    let mut client = client(&desk);
    client.ok("session/list", json!({}));
    let id = "01900000-0000-7000-8000-000000000005";
    let asked = json!({ "sessionId": id });
    for _ in 0..3 {
        assert_eq!(client.err("session/status", asked.clone()).code, -32002);
    }
    assert_eq!(puppet.count("session/status"), 1);
    is_there.store(true, Ordering::Relaxed);
    assert_eq!(client.err("session/status", asked.clone()).code, -32002);
    client.err("session/close", asked);
    let (word, meta) = status(&mut client, id);
    assert_eq!((word.as_str(), &meta["source"]), ("inactive", &json!("agent")));
    assert_eq!(puppet.count("session/status"), 2);
}

#[test]
fn a_list_that_is_read_meanwhile_does_not_hide_what_an_agent_says() {
    // Its list is held back until it is asked for the session, and comes before that answer.
    let held = Mutex::new(None);
    let puppet = Puppet::start(move |asked| match asked["method"].as_str() {
        Some("session/list") => {
            *held.lock().unwrap() = Some(asked.clone());
            Vec::new()
        }
        Some("session/status") => {
            let row = json!({ "sessionId": asked["params"]["sessionId"], "cwd": "/w" });
            let list = held.lock().unwrap().take();
            let list = list.map(|list| answer(&list, &json!({ "sessions": [row] })));
            let word = answer(asked, &json!({ "status": "active" }));
            list.into_iter().chain([Act::Wait(Duration::from_millis(500)), word]).collect()
        }
        _ => Vec::new(),
    });
    let desk = quick(Desk::builder().agent(AgentSpec::behind("far", &[&puppet.url])));
    let desk = desk.limit("probe_ms", 30_000).limit("list_wait_ms", 30_000).open();
    wait_up(&desk, 1);
    eventually("the question for its list", SOON, || puppet.count("session/list") == 1);
    let mut client = client(&desk);
    let (word, meta) = status(&mut client, "s1");
    assert_eq!((word.as_str(), &meta["source"]), ("active", &json!("agent")), "{meta}");
    assert_eq!(meta["loadedAt"], json!([puppet.url]));
}

#[test]
fn a_question_that_nobody_waits_for_any_more_is_not_asked() {
    // The first one is answered after the second one's time.
    let puppet = Puppet::start(|asked| match asked["method"].as_str() {
        Some("session/status") => {
            let word = answer(asked, &json!({ "status": "saved" }));
            vec![Act::Wait(Duration::from_millis(6_000)), word]
        }
        Some("session/list") => vec![answer(asked, &json!({ "sessions": [] }))],
        _ => Vec::new(),
    });
    let agent = AgentSpec::behind("far", &[&puppet.url]);
    let desk = quick(Desk::builder().agent(agent));
    let desk = desk.limit("probe_requests", 1).limit("probe_ms", 500);
    let desk = desk.limit("list_wait_ms", 30_000).open();
    wait_up(&desk, 1);
    let mut client = client(&desk);
    client.ok("session/list", json!({}));
    for n in 1..4 {
        let (word, meta) = status(&mut client, &format!("01900000-0000-7000-8000-{n:012}"));
        assert_eq!((word.as_str(), &meta["source"]), ("inactive", &json!("none")), "{n}: {meta}");
    }
    // Its list comes behind the answer to the first, and makes room for the next.
    client.ok("session/list", json!({}));
    client.ok("session/list", json!({}));
    assert_eq!(puppet.count("session/status"), 1);
    assert_eq!(status(&mut client, "s4").1["source"], json!("none"));
    eventually("the next question", SOON, || puppet.count("session/status") == 2);
}

#[test]
fn a_session_that_a_list_has_before_its_making_is_answered_is_one_session() {
    // The answer that makes it comes right behind a list that has it already, with a title that takes
    // its time to be written.
    let (made, held) = (AtomicUsize::new(0), Mutex::new(None));
    let puppet = Puppet::start(move |asked| match asked["method"].as_str() {
        Some("session/new") => {
            made.fetch_add(1, Ordering::Relaxed);
            *held.lock().unwrap() = Some(asked.clone());
            Vec::new()
        }
        Some("session/list") => {
            let made = made.load(Ordering::Relaxed);
            let row = |n: usize| {
                let title = if n == made { "t".repeat(512 << 10) } else { String::new() };
                json!({ "sessionId": format!("s{n}"), "cwd": "/w", "title": title })
            };
            let rows: Vec<_> = (1..=made).rev().map(row).collect();
            let list = answer(asked, &json!({ "sessions": rows }));
            let id = json!({ "sessionId": format!("s{made}") });
            let birth = held.lock().unwrap().take().map(|birth| answer(&birth, &id));
            let pause = Act::Wait(Duration::from_millis(4 * made as u64));
            [list, pause].into_iter().chain(birth).collect()
        }
        _ => Vec::new(),
    });
    let desk = quick(Desk::builder().agent(AgentSpec::behind("far", &[&puppet.url]))).open();
    wait_up(&desk, 1);
    let mut client = client(&desk);
    for _ in 0..BIRTHS {
        let before = puppet.count("session/new");
        let birth = client.begin("session/new", place(&desk, None));
        eventually("the request", SOON, || puppet.count("session/new") > before);
        while !client.is_answered(birth) {
            client.ok("session/list", json!({}));
        }
        client.wait(birth, ANSWER).expect("it is made");
    }
    let list = client.ok("session/list", json!({}));
    assert_eq!(list["sessions"].as_array().expect("rows").len(), BIRTHS);
}
