//! Old data stays readable: homes of earlier versions, checked in, are opened by every test run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use frontdesk::log::{Reader, check, in_words};
use frontdesk_core::render::{Renderer, Shown};
use serde_json::{Value, json};

use super::{client, demo_desk, log, of_kind, same, seen, status};
use crate::acp::Acp;
use crate::desk::Desk;

const TALKED: &str = "01a22dfa-1f67-71c4-a34c-5ec3dcd403e3";
const DELETED: &str = "01a22dfa-2703-7697-b18f-01949bf00227";
const ADOPTED: &str = "01a22dfb-0000-7000-8000-00000000000b";
const NAMED: &str = "01a22dfb-0000-7000-8000-00000000000c";
const FORKED: &str = "01a22dfb-0000-7000-8000-00000000000d";

/// What people said and were told in the session that was made by talking.
const SAID: &[&str] = &[
    "user:say first answer\nask remove the old build",
    "agent:first answer",
    "agent:Allowed (allow_once).",
    "user:title Cleaning up\nplan look; change\nsay second \u{2028} answer",
    "agent:second \u{2028} answer",
    "user:late 2 600",
    "agent:late chunk 1 of 2 ",
    "user:fail -32011 no credit left",
    "user:say before the kill\nask go on",
    "agent:before the kill",
    "user:say after the kill",
    "agent:after the kill",
];

fn old(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/old").join(version).join("data")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

/// The journals below a data folder, by key.
fn journals(data: &Path) -> BTreeMap<String, Vec<u8>> {
    let found = frontdesk::log::scan(&data.join("sessions"));
    found.map(|it| (it.key.to_string(), fs::read(it.path).expect("a journal"))).collect()
}

/// A desk whose home is a copy of an old one.
fn opened(version: &str, with_snapshots: bool) -> Desk {
    let mut desk = demo_desk().build();
    let data = desk.home().join("data");
    copy(&old(version), &data);
    if !with_snapshots {
        for found in frontdesk::log::scan(&data.join("sessions")) {
            frontdesk::log::Snapshot::remove(&found.path);
        }
    }
    desk.start();
    desk
}

fn row(client: &mut Acp, key: &str) -> Value {
    client.ok("_frontdesk/session", json!({ "sessionId": key }))
}

#[test]
fn a_home_of_0_1_0_is_served_as_it_was_and_no_byte_of_it_changes() {
    let before = journals(&old("0.1.0"));
    assert_eq!(before.len(), 5);
    for with_snapshots in [true, false] {
        let mut desk = opened("0.1.0", with_snapshots);
        let mut one = client(&desk);
        for key in [TALKED, ADOPTED, NAMED, FORKED] {
            assert_eq!(status(&mut one, key).0, "inactive");
            let records = one.ok("_frontdesk/log", json!({ "sessionId": key }));
            let records = records["records"].as_array().expect("records").clone();
            let lines = before[key].iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(records.len(), lines, "{key}");
            let seqs: Vec<u64> = records.iter().filter_map(|it| it["seq"].as_u64()).collect();
            assert!(seqs.is_sorted_by(|a, b| a < b), "by number, whatever the stamps say");
        }
        assert_eq!(one.err("session/status", json!({ "sessionId": DELETED })).code, -32002);

        let talked = row(&mut one, TALKED);
        assert_eq!((&talked["title"], &talked["turnCount"]), (&json!("Cleaning up"), &json!(6)));
        assert_eq!(talked["lastActivityAt"], "2026-11-30T19:41:38.476326Z");
        assert_eq!(talked["cwd"], "/home/me/app");
        let records = log(&mut one, TALKED);
        assert_eq!(of_kind(&records, "interaction_settled").len(), 2);

        let adopted = row(&mut one, ADOPTED);
        assert_eq!((&adopted["turnCount"], &adopted["resumable"]), (&json!(1), &json!(false)));
        assert_eq!(adopted["createdAt"], "2026-11-29T09:30:00Z");
        assert_eq!(adopted["additionalDirectories"], json!(["/home/me/lib"]));
        let from = one.mark();
        let place = json!({ "sessionId": ADOPTED, "cwd": "/home/me/app", "mcpServers": [] });
        one.ok("session/load", place);
        let wanted = [
            "user:what was asked before",
            "agent:what was answered before",
            "user:go on",
            "agent:too late",
            "agent:[frontdesk] earlier turns are in the agent's own store\n",
            "agent:[frontdesk] Records 11 to 12 are lost: the record of this session was damaged here.\n",
            "agent:kept whole",
        ];
        let wanted = wanted.map(str::to_owned);
        same(&seen(&one.updates(ADOPTED, from)), &wanted, "a load of an old history");

        let named = row(&mut one, NAMED);
        assert_eq!(named["turnCount"], 1);
        assert_eq!(row(&mut one, FORKED)["turnCount"], 0);
        drop(one);
        assert!(desk.stop().success());
        let after = journals(&desk.home().join("data"));
        for (key, bytes) in &before {
            assert_eq!(after.get(key), Some(bytes), "{key} has changed");
        }
    }
}

#[test]
fn an_old_history_is_replayed_as_it_was_told() {
    let found = frontdesk::log::scan(&old("0.1.0").join("sessions"));
    let talked = found.into_iter().find(|it| it.key.to_string() == TALKED).expect("it is there");
    assert!(in_words(&check(&talked.path).expect("readable").damage).is_none());
    let mut reader = Reader::open(&talked.path).expect("readable");
    let mut renderer = Renderer::default();
    let mut updates = Vec::new();
    for record in reader.read_batch(usize::MAX).expect("readable") {
        let mut shown: Vec<Shown> = Vec::new();
        renderer.acp_v1(&record, "native", &mut shown);
        for Shown { frame, .. } in shown {
            let frame: Value = serde_json::from_slice(&frame).expect("a frame");
            updates.push(frame["params"]["update"].clone());
        }
    }
    let wanted: Vec<String> = SAID.iter().map(|text| (*text).to_owned()).collect();
    same(&seen(&updates), &wanted, "what was told");
}
