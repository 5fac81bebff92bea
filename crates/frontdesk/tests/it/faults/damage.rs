//! Damage in what is stored: what `frontdesk doctor` finds, says and, where asked, repairs.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{
    SOON, begin_prompt, client, demo_desk, eventually, log, new_session, place, seen, told, turn,
};
use crate::desk::Desk;

fn doctor(desk: &Desk) -> Value {
    let said = desk.cli(&["doctor", "--json"]);
    serde_json::from_slice(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"))
}

/// The findings about one thing: verdict and words.
fn findings(document: &Value, about: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = document["findings"].as_array().expect("a list of findings");
    let ours = all.iter().filter(|finding| finding["about"] == about);
    ours.map(|finding| (text(&finding["verdict"]), text(&finding["says"]))).collect()
}

/// A stopped desk with two sessions of some turns: their keys and journals.
fn two_sessions() -> (Desk, Vec<(String, PathBuf)>) {
    let mut desk = demo_desk().open();
    let mut one = client(&desk);
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let session = new_session(&desk, &mut one);
        for number in 1..=4 {
            turn(&mut one, &session, &format!("say part {number}"));
        }
        let row = one.ok("_frontdesk/session", json!({ "sessionId": session }));
        sessions.push((session, row["path"].as_str().expect("a path").into()));
    }
    drop(one);
    assert!(desk.stop().success());
    (desk, sessions)
}

#[test]
fn doctor_says_what_is_damaged_and_repairs_only_where_asked() {
    let (mut desk, sessions) = two_sessions();
    let (key, journal) = &sessions[0];
    let whole = findings(&doctor(&desk), "journals");
    assert!(whole[0].0 == "good" && whole[0].1.contains("0 damaged"), "{whole:?}");

    let text = fs::read_to_string(journal).expect("a journal");
    let mut lines: Vec<&str> = text.lines().collect();
    let lost = lines[9].to_owned();
    lines[9] = &lost[..lost.len() / 2];
    let damaged = format!("{}\n{{\"v\":1,\"seq\"", lines.join("\n"));
    fs::write(journal, &damaged).expect("written");
    let other = fs::read(&sessions[1].1).expect("the other journal");

    let document = doctor(&desk);
    let found = &document["damaged"][0];
    assert_eq!(
        (&found["key"], document["damaged"].as_array().map(Vec::len)),
        (&json!(key), Some(1))
    );
    let places: Vec<(&Value, &Value)> = found["damage"]
        .as_array()
        .expect("places")
        .iter()
        .map(|place| (&place["what"], &place["line"]))
        .collect();
    let last = u64::try_from(lines.len()).expect("a number") + 1;
    let wanted = [("unreadable", 10), ("gap", 11), ("torn", last)];
    let wanted: Vec<(Value, Value)> =
        wanted.iter().map(|(what, line)| (json!(what), json!(line))).collect();
    assert_eq!(places, wanted.iter().map(|(a, b)| (a, b)).collect::<Vec<_>>());
    let said = &findings(&document, "journal")[0];
    for words in ["line 10: torn", "record 10 is missing", "a damaged tail", "--repair", key] {
        assert!(said.0 == "warning" && said.1.contains(words), "{words:?} is not in {said:?}");
    }
    assert_eq!(fs::read_to_string(journal).expect("a journal"), damaged, "looking changes nothing");

    // Not while a daemon runs.
    desk.start();
    let refused = desk.cli(&["doctor", "--repair"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("a daemon runs"), "{refused:?}");
    assert!(desk.stop().success());

    let repaired = desk.cli(&["doctor", "--repair", key, "--json"]);
    let document: Value = serde_json::from_slice(&repaired.stdout).expect("a document");
    let original = document["repaired"][0]["original"].as_str().expect("the original");
    assert_eq!(fs::read_to_string(original).expect("it is kept"), damaged);
    assert!(original.starts_with(&format!("{}.damaged-", journal.display())), "{original}");
    assert_eq!(fs::read(&sessions[1].1).expect("the other journal"), other, "left alone");
    let now = fs::read_to_string(journal).expect("a journal");
    let now: Vec<&str> = now.lines().collect();
    assert_eq!(now.len(), lines.len());
    for (at, (now, before)) in now.iter().zip(&lines).enumerate() {
        assert!(at == 9 || now == before, "line {}: whole lines stay as they are", at + 1);
    }
    let stand_in: Value = serde_json::from_str(now[9]).expect("a record");
    assert_eq!((&stand_in["kind"], &stand_in["seq"]), (&json!("damage"), &json!(10)));
    assert!(findings(&doctor(&desk), "journals")[0].1.contains("0 damaged"));
    let again = desk.cli(&["doctor", "--repair"]);
    assert!(String::from_utf8_lossy(&again.stdout).contains("nothing to repair"), "{again:?}");

    desk.start();
    let mut later = client(&desk);
    let from = later.mark();
    later.ok("session/load", place(&desk, Some(key)));
    let texts = seen(&later.updates(key, from));
    assert!(texts.iter().any(|text| text.contains("Record 10 is lost")), "{texts:?}");
    turn(&mut later, key, "say after");
}

#[test]
fn doctor_says_that_the_commit_log_is_ahead_and_the_next_start_plays_it() {
    let mut desk = demo_desk().limit("stream_sync_ms", 60_000).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say hello");
    let row = one.ok("_frontdesk/session", json!({ "sessionId": session }));
    let journal = PathBuf::from(row["path"].as_str().expect("a path"));
    let before = log(&mut one, &session);
    assert_eq!(before.last().expect("a record")["kind"], "turn_ended");
    drop(one);
    desk.kill_all();
    // As after a power cut: the journal lacks its end, which the commit log has.
    let text = fs::read_to_string(&journal).expect("a journal");
    let cut = text.trim_end().rfind('\n').expect("some lines") + 1;
    fs::write(&journal, &text[..cut]).expect("written");
    let found = findings(&doctor(&desk), "commit log");
    assert!(found[0].0 == "warning" && found[0].1.contains("1 record"), "{found:?}");
    desk.start();
    let mut later = client(&desk);
    let after = log(&mut later, &session);
    assert_eq!(after[..before.len()], before[..]);
    assert_eq!(told(&after), ["user:say hello", "agent:hello"]);
    drop(later);
    assert!(desk.stop().success());
    let found = findings(&doctor(&desk), "commit log");
    assert!(found[0].0 == "good", "{found:?}");
}

#[test]
fn a_snapshot_is_written_while_a_session_runs_and_used_after_a_kill() {
    let mut desk = demo_desk().limit("snapshot_every_bytes", 20_000).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let row = one.ok("_frontdesk/session", json!({ "sessionId": session }));
    let journal = PathBuf::from(row["path"].as_str().expect("a path"));
    let snapshot = || {
        let text = fs::read(journal.with_file_name("snapshot.json")).unwrap_or_default();
        serde_json::from_slice::<Value>(&text).ok().and_then(|it| it["journal_bytes"].as_u64())
    };
    assert_eq!(snapshot(), None);
    let begun = begin_prompt(&mut one, &session, "stream 400 every 2\nwait 60000");
    // More than one, while the turn runs.
    eventually("a second snapshot", SOON, || snapshot() > Some(60_000));
    assert!(!one.is_answered(begun));
    assert!(fs::metadata(&journal).expect("a journal").len() > 60_000);
    let shown = seen(&one.updates(&session, 0));
    desk.kill_all();
    desk.start();
    let mut later = client(&desk);
    let from = later.mark();
    later.ok("session/load", place(&desk, Some(&session)));
    let again = seen(&later.updates(&session, from));
    assert_eq!(again[1..=shown.len()], shown[..]);
    turn(&mut later, &session, "say after");
    let row = later.ok("_frontdesk/session", json!({ "sessionId": session }));
    assert_eq!(row["turnCount"], 2);
}

#[test]
fn a_snapshot_that_fits_nothing_and_broken_parameters_do_no_harm_and_are_named() {
    let (mut desk, sessions) = two_sessions();
    let (key, journal) = &sessions[0];
    fs::write(journal.with_file_name("snapshot.json"), "{\"journal_bytes\":7").expect("written");
    fs::write(desk.home().join(format!("data/params/{key}.json")), "{\0").expect("written");
    let document = doctor(&desk);
    assert!(findings(&document, "snapshots")[0].1.contains("1 snapshot"), "{document}");
    assert!(findings(&document, "params")[0].1.contains(key.as_str()), "{document}");
    desk.start();
    let mut later = client(&desk);
    let from = later.mark();
    later.ok("session/load", place(&desk, Some(key)));
    assert_eq!(seen(&later.updates(key, from)).len(), 8);
    turn(&mut later, key, "say after");
}
