//! The desk may die: a daemon is killed, or hands over, and the next one goes on with what the agents
//! were doing.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{
    Chance, SOON, agent_lives, begin_prompt, client, client_of, demo, demo_desk, endings,
    eventually, holders, log, native, new_session, nothing_runs, of_kind, openings, place, rounds,
    same, seen, signal, status, store, stored, told, turn,
};
use crate::acp::{Acp, Ask, Reply};
use crate::desk::Desk;

/// Rounds of a test that kills at random.
const ROUNDS: u64 = 4;

/// A client that answers nothing by itself.
fn silent(desk: &Desk) -> Acp {
    client_of(desk, "demo", Arc::new(|_: &Ask| Reply::Silence))
}

/// Kills the daemon and waits for the client's end with it.
fn kill_daemon(desk: &mut Desk, clients: &mut [&mut Acp]) {
    desk.kill9();
    for client in clients {
        assert!(client.wait_exit(SOON).is_some(), "a shim outlives its daemon");
    }
}

/// Waits for the ending of the session's `count`th turn and gives the records.
fn wait_turns(client: &mut Acp, session: &str, count: usize) -> Vec<Value> {
    let mut records = Vec::new();
    eventually("the ending of a turn", SOON, || {
        records = log(client, session);
        of_kind(&records, "turn_ended").len() >= count
    });
    records
}

fn allow(client: &Acp, ask: &Ask) {
    let option = ask.params["options"][0]["optionId"].clone();
    let outcome = json!({ "outcome": "selected", "optionId": option });
    client.send(&json!({ "jsonrpc": "2.0", "id": ask.id, "result": { "outcome": outcome } }));
}

/// The only instance's folder below `run/instances`, or below `data/instances`.
fn only_instance(desk: &Desk, part: &str) -> PathBuf {
    let folder = desk.home().join(part).join("instances");
    let mut entries = fs::read_dir(folder).expect("there is a folder for instances");
    let entry = entries.next().expect("an instance runs").expect("it can be read");
    entry.path()
}

#[test]
fn a_question_outlives_a_killed_daemon_and_is_answered_once() {
    let mut desk = demo_desk().open();
    let mut one = silent(&desk);
    let session = new_session(&desk, &mut one);
    let id = native(&mut one, &session);
    let from = one.mark();
    begin_prompt(&mut one, &session, "say before\nask May I go on?\nsay after");
    let asked = one.wait_ask(from, "session/request_permission");
    kill_daemon(&mut desk, &mut [&mut one]);
    let agent = openings(&store(&desk), &id)[0].1;
    assert!(agent_lives(agent), "the agent outlives the daemon");

    desk.start();
    let mut two = silent(&desk);
    let (word, meta) = status(&mut two, &session);
    assert_eq!((word.as_str(), &meta["state"]), ("active", &json!("requires_action")), "{meta}");
    assert_eq!(meta["source"], "owner", "it is known at once");
    let from = two.mark();
    two.ok("session/load", place(&desk, Some(&session)));
    let again = two.wait_ask(from, "session/request_permission");
    assert_eq!(again.id, asked.id, "the same question has the same id");
    assert_eq!(again.params, asked.params);
    allow(&two, &again);
    let records = wait_turns(&mut two, &session, 1);
    assert_eq!(
        told(&records),
        [
            "user:say before\nask May I go on?\nsay after",
            "agent:before",
            "agent:Allowed (allow_once).",
            "agent:after"
        ]
    );
    assert_eq!(endings(&records)[0]["outcome"], "completed");
    assert_eq!(of_kind(&records, "interaction_opened").len(), 1);
    let settled = of_kind(&records, "interaction_settled");
    assert_eq!((settled.len(), &settled[0]["outcome"]), (1, &json!("answered")), "{settled:?}");
    assert_eq!(of_kind(&records, "loaded").len(), 1, "nothing was loaded again");
    // And the session works as if nothing had happened.
    turn(&mut two, &session, "say the end");
    assert_eq!(openings(&store(&desk), &id), [("new".to_owned(), agent)], "one process, all along");
}

/// What a turn of `words` tells when nothing is lost and nothing comes twice.
fn streamed(words: &str, count: usize) -> Vec<String> {
    let chunks = (1..=count).map(|at| format!("agent:chunk {at} of {count} "));
    std::iter::once(format!("user:{words}")).chain(chunks).collect()
}

#[test]
fn streams_are_told_once_and_in_order_whenever_the_daemon_dies() {
    let mut chance = Chance::new("streams_are_told_once");
    let mut desk =
        Desk::builder().agent(demo("demo", &[]).setting("sessions_per_instance = 2")).open();
    let mut maker = client(&desk);
    for round in 0..rounds(ROUNDS) {
        let sessions: Vec<String> = (0..3).map(|_| new_session(&desk, &mut maker)).collect();
        let words = [format!("# {round}\nstream 80 every 3"), format!("# {round} next\nstream 40")];
        for session in &sessions {
            for words in &words {
                begin_prompt(&mut maker, session, words);
            }
        }
        // What a daemon never read from a client's socket is nobody's to carry on.
        let mut looker = client(&desk);
        for session in &sessions {
            eventually("both prompts in the journal", SOON, || {
                let records = log(&mut looker, session);
                let taken = ["turn_started", "turn_queued"].map(|kind| of_kind(&records, kind));
                let turns: std::collections::BTreeSet<String> =
                    taken.iter().flatten().map(|record| record["turn"].to_string()).collect();
                turns.len() == 2
            });
        }
        drop(looker);
        // Twice or more in one turn: also a daemon that has just come up.
        for _ in 0..2 + chance.below(3) {
            chance.pause(120);
            kill_daemon(&mut desk, &mut [&mut maker]);
            desk.start();
            maker = client(&desk);
        }
        for session in &sessions {
            let records = wait_turns(&mut maker, session, 2);
            let wanted = [streamed(&words[0], 80), streamed(&words[1], 40)].concat();
            same(&told(&records), &wanted, &format!("round {round}, {session}"));
            for ending in endings(&records) {
                assert_eq!(ending["outcome"], "completed", "round {round}: {ending}");
            }
            let from = maker.mark();
            maker.ok("session/load", place(&desk, Some(session)));
            same(&seen(&maker.updates(session, from)), &wanted, "a load");
            assert_eq!(of_kind(&records, "loaded").len(), 1, "round {round}");
        }
        for session in &sessions {
            maker.ok(
                "session/close",
                json!({ "sessionId": session, "_meta": { "frontdesk": { "force": true } } }),
            );
        }
    }
}

/// A session whose holder is stopped, with a prompt that is written down and longer than what a
/// socket takes; the daemon is dead then.
fn prompt_that_never_arrived(desk: &mut Desk, text: &str) -> (String, String, i32) {
    let mut one = client(desk);
    let session = new_session(desk, &mut one);
    let id = native(&mut one, &session);
    turn(&mut one, &session, "say first");
    let holder = holders(desk)[0];
    signal(holder, Signal::SIGSTOP);
    begin_prompt(&mut one, &session, text);
    let mut looker = client(desk);
    eventually("the prompt's record", SOON, || {
        of_kind(&log(&mut looker, &session), "turn_started").len() == 2
    });
    let ledger = only_instance(desk, "data").join("ledger.jsonl");
    eventually("the prompt in the ledger", SOON, || {
        let text = fs::read_to_string(&ledger).expect("there is a ledger");
        text.lines().filter(|line| line.contains("session/prompt")).count() == 2
            && text.ends_with('\n')
    });
    kill_daemon(desk, &mut [&mut one, &mut looker]);
    (session, id, holder)
}

fn runs_once(desk: &mut Desk, session: &str, id: &str, text: &str) {
    desk.start();
    let mut two = client(desk);
    let records = wait_turns(&mut two, session, 2);
    assert_eq!(told(&records)[2..], [format!("user:{text}"), "agent:second".to_owned()]);
    assert_eq!(endings(&records)[1]["outcome"], "completed");
    let prompts = stored(&store(desk), id);
    let heard = prompts.iter().filter(|line| line.to_string().contains("say second")).count();
    assert_eq!(heard, 1, "the agent heard it once");
    two.ok("session/resume", place(desk, Some(session)));
    turn(&mut two, session, "say third");
    assert_eq!(openings(&store(desk), id).len(), 1);
}

#[test]
fn a_prompt_that_the_holder_never_had_is_sent_by_the_next_daemon_once() {
    let mut desk = demo_desk().open();
    let text = format!("# {}\nsay second", "x".repeat(3 << 20));
    let (session, id, holder) = prompt_that_never_arrived(&mut desk, &text);
    signal(holder, Signal::SIGCONT);
    runs_once(&mut desk, &session, &id, &text);
}

#[test]
fn a_prompt_that_is_recorded_and_not_in_the_ledger_is_sent_once() {
    let mut desk = demo_desk().open();
    let text = format!("# {}\nsay second", "x".repeat(3 << 20));
    let (session, id, holder) = prompt_that_never_arrived(&mut desk, &text);
    // As if the daemon had died between the record and the ledger.
    let ledger = only_instance(&desk, "data").join("ledger.jsonl");
    let lines = fs::read_to_string(&ledger).expect("there is a ledger");
    let kept: Vec<&str> =
        lines.split_inclusive('\n').filter(|line| !line.contains("say second")).collect();
    fs::write(&ledger, kept.concat()).expect("it can be written");
    signal(holder, Signal::SIGCONT);
    runs_once(&mut desk, &session, &id, &text);
}

/// A session with a question whose answer is recorded and was not sent, as if the daemon had died
/// between the record of the answer and its ledger. `more` is a text in the answer.
pub(super) fn answer_that_was_not_sent(desk: &mut Desk, more: &str) -> String {
    let mut one = silent(desk);
    let session = new_session(desk, &mut one);
    let from = one.mark();
    begin_prompt(&mut one, &session, "ask May I?\nsay after");
    let asked = one.wait_ask(from, "session/request_permission");
    let row = one.ok("_frontdesk/session", json!({ "sessionId": session }));
    kill_daemon(desk, &mut [&mut one]);
    let journal = PathBuf::from(row["path"].as_str().expect("a row has its journal"));
    let text = fs::read_to_string(&journal).expect("a journal is text");
    let last: Value =
        serde_json::from_str(text.lines().last().expect("it has records")).expect("a record");
    let option = asked.params["options"][0]["optionId"].clone();
    let opened: Value = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a record"))
        .find(|record: &Value| record["kind"] == "interaction_opened")
        .expect("it asked");
    let record = json!({
        "v": 1, "seq": last["seq"].as_u64().expect("a number") + 1, "epoch": last["epoch"],
        "at": last["at"], "kind": "interaction_settled",
        "data": {
            "interaction": opened["data"]["interaction"], "outcome": "answered",
            "by": { "client": "k", "name": "n" },
            "answer": { "outcome": { "outcome": "selected", "optionId": option }, "_meta": { "x": more } },
        },
    });
    fs::write(&journal, format!("{text}{record}\n")).expect("it can be written");
    session
}

#[test]
fn an_answer_that_is_recorded_and_was_not_sent_is_sent_by_the_next_daemon() {
    let mut desk = demo_desk().open();
    let session = answer_that_was_not_sent(&mut desk, "");
    desk.start();
    let mut two = silent(&desk);
    let records = wait_turns(&mut two, &session, 1);
    assert_eq!(told(&records)[1..], ["agent:Allowed (allow_once).", "agent:after"]);
    assert_eq!(endings(&records)[0]["outcome"], "completed");
    // A daemon that comes after that sends nothing again.
    kill_daemon(&mut desk, &mut [&mut two]);
    desk.start();
    let mut three = client(&desk);
    three.ok("session/resume", place(&desk, Some(&session)));
    turn(&mut three, &session, "say again");
}

/// A session whose turn runs on while its daemon is dead: its id, the agent's id of it, and the agent.
fn killed_in_a_turn(desk: &mut Desk) -> (String, String, i32) {
    let mut one = client(desk);
    let session = new_session(desk, &mut one);
    let id = native(&mut one, &session);
    let from = one.mark();
    begin_prompt(&mut one, &session, "say before\nwait 60000");
    one.wait_update(&session, from, "the turn", |it| it["content"]["text"] == "before");
    kill_daemon(desk, &mut [&mut one]);
    let agent = openings(&store(desk), &id)[0].1;
    (session, id, agent)
}

#[test]
fn an_agent_that_dies_with_its_daemon_or_behind_it_leaves_its_turn_failed() {
    for whole in [false, true] {
        let mut desk = demo_desk().open();
        let (session, id, agent) = killed_in_a_turn(&mut desk);
        // The agent alone, or its holder and so both.
        signal(if whole { holders(&desk)[0] } else { agent }, Signal::SIGKILL);
        eventually("the agent's end", SOON, || !agent_lives(agent));
        desk.start();
        let mut two = client(&desk);
        let records = wait_turns(&mut two, &session, 1);
        assert_eq!(endings(&records)[0]["outcome"], "failed", "holder too: {whole}");
        eventually("the loss", SOON, || status(&mut two, &session).0 == "inactive");
        let records = log(&mut two, &session);
        assert_eq!(of_kind(&records, "lost").len(), 1);
        let inferred = of_kind(&records, "lost")[0]["reason"] == "crash_inferred";
        assert_eq!(inferred, whole, "{records:?}");
        two.ok("session/load", place(&desk, Some(&session)));
        turn(&mut two, &session, "say after");
        assert_eq!(openings(&store(&desk), &id).len(), 2);
    }
}

#[test]
fn holders_of_another_boot_or_of_an_older_version_are_not_carried_on() {
    for file in ["run", "data", "ledger"] {
        let mut desk = demo_desk().open();
        let (session, _, agent) = killed_in_a_turn(&mut desk);
        match file {
            "run" => {
                let path = only_instance(&desk, "run").join("holder.json");
                let text = fs::read_to_string(&path).expect("there is a record");
                let mut record: Value = serde_json::from_str(&text).expect("it is JSON");
                record["boot_id"] = json!("another");
                fs::write(&path, record.to_string()).expect("it can be written");
                // What is of another boot is not looked for.
                signal(holders(&desk)[0], Signal::SIGKILL);
            }
            "data" => {
                let path = only_instance(&desk, "data").join("instance.json");
                fs::remove_file(path).expect("there are facts");
            }
            _ => {
                let path = only_instance(&desk, "data").join("ledger.jsonl");
                let old =
                    r#"{"client":"","id":"null","input":1,"method":"initialize","session":""}"#;
                fs::write(path, format!("{old}\n")).expect("it can be written");
            }
        }
        desk.start();
        assert!(file == "run" || !agent_lives(agent), "{file}: it is ended as before");
        let mut two = client(&desk);
        let records = log(&mut two, &session);
        let ending = &endings(&records)[0];
        assert_eq!(
            (&ending["outcome"], &ending["reason"]),
            (&json!("failed"), &json!("crash_inferred")),
            "{file}"
        );
        assert_eq!(of_kind(&records, "lost")[0]["reason"], "crash_inferred");
        eventually("the agent's end", SOON, || !agent_lives(agent));
        two.ok("session/load", place(&desk, Some(&session)));
        turn(&mut two, &session, "say after");
    }
}

#[test]
fn a_file_that_an_agent_reads_is_asked_again_with_the_same_id() {
    let mut desk = demo_desk().open();
    let reads = json!({ "fs": { "readTextFile": true } });
    let quiet = |desk: &Desk| {
        let mut client = desk.acp("demo", Arc::new(|_: &Ask| Reply::Silence));
        client.initialize(reads.clone());
        client
    };
    let mut one = quiet(&desk);
    let session = new_session(&desk, &mut one);
    let from = one.mark();
    begin_prompt(&mut one, &session, "read notes.txt");
    let asked = one.wait_ask(from, "fs/read_text_file");
    kill_daemon(&mut desk, &mut [&mut one]);
    desk.start();
    let mut two = quiet(&desk);
    let from = two.mark();
    two.ok("session/resume", place(&desk, Some(&session)));
    let again = two.wait_ask(from, "fs/read_text_file");
    assert_eq!((&again.id, &again.params), (&asked.id, &asked.params));
    two.send(&json!({ "jsonrpc": "2.0", "id": again.id, "result": { "content": "12345" } }));
    let records = wait_turns(&mut two, &session, 1);
    let said = told(&records);
    assert!(said.last().is_some_and(|text| text.contains("has 5 bytes")), "{said:?}");
}

#[test]
fn a_cancel_that_was_passed_on_runs_its_grace_in_the_next_daemon() {
    let mut desk = demo_desk().limit("cancel_grace_ms", 700).limit("cancel_kill_ms", 60_000).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let from = one.mark();
    begin_prompt(&mut one, &session, "say I hang\nhang");
    one.wait_update(&session, from, "the turn", |it| it["content"]["text"] == "I hang");
    one.notify("session/cancel", json!({ "sessionId": session }));
    let ledger = only_instance(&desk, "data").join("ledger.jsonl");
    eventually("the cancel in the ledger", SOON, || {
        fs::read_to_string(&ledger).is_ok_and(|text| text.contains("session/cancel"))
    });
    kill_daemon(&mut desk, &mut [&mut one]);
    desk.start();
    let mut two = client(&desk);
    let records = wait_turns(&mut two, &session, 1);
    assert_eq!(endings(&records)[0]["outcome"], "cancelled");
    // The agent still owes its answer; the next daemon knows that, too.
    kill_daemon(&mut desk, &mut [&mut two]);
    desk.start();
    let mut three = client(&desk);
    three.ok("session/resume", place(&desk, Some(&session)));
    let waiting = begin_prompt(&mut three, &session, "say next");
    eventually("a prompt that waits", SOON, || {
        of_kind(&log(&mut three, &session), "turn_queued").len() == 1
    });
    assert!(!three.is_answered(waiting));
}

#[test]
fn a_restart_interrupts_nothing_and_a_stop_of_all_leaves_nothing() {
    let mut desk = demo_desk().open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let id = native(&mut one, &session);
    let from = one.mark();
    let words = "stream 60 every 10";
    begin_prompt(&mut one, &session, words);
    one.wait_update(&session, from, "the turn", |it| it["sessionUpdate"] == "agent_message_chunk");
    let restarted = desk.cli(&["restart", "--json"]);
    assert!(restarted.status.success(), "{restarted:?}");
    let told_of: Value = serde_json::from_slice(&restarted.stdout).expect("one document");
    assert_eq!(told_of["restarted"]["sessions"], 1, "{told_of}");
    assert_ne!(told_of["restarted"]["pid"], told_of["restarted"]["from"]);
    assert!(one.wait_exit(SOON).is_some(), "a shim ends with its daemon");
    let mut two = client(&desk);
    let records = wait_turns(&mut two, &session, 1);
    same(&told(&records), &streamed(words, 60), "over a restart");
    assert_eq!(endings(&records)[0]["outcome"], "completed");
    let found = seen(&one.updates(&session, from));
    same(&found, &told(&records)[1..=found.len()], "what was shown before");
    assert_eq!(openings(&store(&desk), &id).len(), 1, "one process, all along");
    drop(two);
    assert!(desk.cli(&["stop", "--all"]).status.success());
    desk.kill9();
    nothing_runs(&desk);
}
