//! `frontdesk acp` outlives the daemon: its editor is shown everything once and in order, is asked
//! everything once, and gets one answer to each request, whenever the daemon dies.

use std::fs;
use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{
    Chance, SOON, begin_prompt, client, demo_desk, endings, eventually, log, native, new_session,
    of_kind, openings, place, rounds, same, seen, signal, store, told,
};
use crate::acp::{Acp, Answers, Ask, Line, Pending, Reply, refuse_all};
use crate::desk::{Desk, frontdesk};

/// Rounds of a test that kills at random.
const ROUNDS: u64 = 4;

/// A greeted editor on a shim that lasts.
fn editor(desk: &Desk, answers: Answers) -> Acp {
    let mut editor = desk.acp_lasting("demo", answers);
    editor.initialize(json!({}));
    editor
}

fn silent() -> Answers {
    Arc::new(|_: &Ask| Reply::Silence)
}

fn allowed(ask: &Ask) -> Value {
    json!({ "outcome": { "outcome": "selected", "optionId": ask.params["options"][0]["optionId"] } })
}

fn allow(editor: &Acp, ask: &Ask) {
    editor.send(&json!({ "jsonrpc": "2.0", "id": ask.id, "result": allowed(ask) }));
}

/// The pid of whichever daemon has the home, if one does.
fn daemon(desk: &Desk) -> Option<i32> {
    let text = fs::read_to_string(desk.home().join("run/daemon.lock")).ok()?;
    let pid: i32 = text.trim().parse().ok()?;
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    words.split(|byte| *byte == 0).any(|word| word == b"serve").then_some(pid)
}

/// Kills whichever daemon has the home: one that a shim has started.
fn kill_daemon(desk: &Desk) {
    let mut found = None;
    eventually("the daemon that the shim starts", SOON, || {
        found = daemon(desk);
        found.is_some()
    });
    let pid = found.expect("it was found");
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    eventually("its end", SOON, || daemon(desk) != Some(pid));
}

/// The answers that came to one request.
fn answers(editor: &Acp, pending: Pending) -> usize {
    let id = pending.id();
    let lines = editor.lines(0);
    let is_answer = |frame: &Value| frame.get("method").is_none() && frame["id"] == id;
    lines.iter().filter(|line| matches!(line, Line::In(frame) if is_answer(frame))).count()
}

fn ends_once(editor: &Acp, pending: Pending) {
    let result = editor.wait(pending, SOON).expect("the prompt succeeds");
    assert_eq!(result["stopReason"], "end_turn");
    assert_eq!(answers(editor, pending), 1, "one answer");
}

fn chunks(count: usize) -> Vec<String> {
    (1..=count).map(|at| format!("agent:chunk {at} of {count} ")).collect()
}

#[test]
fn a_stream_goes_on_at_the_editor_when_the_daemon_is_killed() {
    let desk = demo_desk().build();
    let mut editor = editor(&desk, refuse_all());
    let session = new_session(&desk, &mut editor);
    let id = native(&mut editor, &session);
    let from = editor.mark();
    let first = begin_prompt(&mut editor, &session, "stream 120 every 4");
    let second = begin_prompt(&mut editor, &session, "say the end");
    editor.wait_update(&session, from, "a chunk", |it| {
        it["content"]["text"].as_str().is_some_and(|text| text.starts_with("chunk 20 "))
    });
    kill_daemon(&desk);
    ends_once(&editor, first);
    ends_once(&editor, second);
    let mut wanted = chunks(120);
    wanted.push("agent:the end".to_owned());
    same(&seen(&editor.updates(&session, from)), &wanted, "what the editor was shown");
    // And it works as if nothing had happened, in the same process of the agent.
    ends_once_more(&mut editor, &session);
    assert_eq!(openings(&store(&desk), &id).len(), 1);
    assert_eq!(endings(&log(&mut editor, &session)).len(), 3);
}

fn ends_once_more(editor: &mut Acp, session: &str) {
    let more = begin_prompt(editor, session, "say more");
    ends_once(editor, more);
}

#[test]
fn a_question_is_asked_once_and_answered_before_while_or_after_the_daemon_is_away() {
    for when in ["before", "while", "after"] {
        let desk = demo_desk().build();
        let mut editor = editor(&desk, silent());
        let session = new_session(&desk, &mut editor);
        let from = editor.mark();
        let turn = begin_prompt(&mut editor, &session, "say before\nask May I?\nsay after");
        let asked = editor.wait_ask(from, "session/request_permission");
        if when == "before" {
            allow(&editor, &asked);
        }
        kill_daemon(&desk);
        if when == "while" {
            allow(&editor, &asked);
        }
        if when == "after" {
            eventually("the next daemon", SOON, || daemon(&desk).is_some());
            // Answered by it, so it has been told everything.
            editor.ok("_frontdesk/info", json!({}));
            allow(&editor, &asked);
        }
        ends_once(&editor, turn);
        assert_eq!(editor.asked(from).len(), 1, "asked once, answered {when}");
        let wanted = ["agent:before", "agent:Allowed (allow_once).", "agent:after"];
        let wanted = wanted.map(str::to_owned);
        same(&seen(&editor.updates(&session, from)), &wanted, when);
        let records = log(&mut editor, &session);
        assert_eq!(of_kind(&records, "interaction_settled").len(), 1, "{when}");
        ends_once_more(&mut editor, &session);
    }
}

#[test]
fn a_restart_is_only_a_pause_and_a_stop_ends_the_shim() {
    let desk = demo_desk().build();
    // Started by the shim, so that the restart has nobody to tell.
    let mut editor = editor(&desk, refuse_all());
    let session = new_session(&desk, &mut editor);
    let from = editor.mark();
    let turn = begin_prompt(&mut editor, &session, "stream 100 every 4");
    editor.wait_update(&session, from, "a chunk", |it| !it["content"]["text"].is_null());
    let before = daemon(&desk);
    let done = desk.cli(&["restart"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(daemon(&desk).is_some() && daemon(&desk) != before, "another daemon");
    ends_once(&editor, turn);
    same(&seen(&editor.updates(&session, from)), &chunks(100), "over a restart");
    assert!(desk.cli(&["stop"]).status.success());
    let status = editor.wait_exit(SOON).expect("a shim ends when its daemon was told to stop");
    assert!(!status.success());
    assert_eq!(daemon(&desk), None, "and starts no other one");
}

#[test]
fn whoever_runs_the_daemon_is_given_time_to_start_the_next_one() {
    let mut desk = demo_desk().open();
    let mut editor = editor(&desk, refuse_all());
    let session = new_session(&desk, &mut editor);
    let from = editor.mark();
    let turn = begin_prompt(&mut editor, &session, "stream 100 every 4");
    editor.wait_update(&session, from, "a chunk", |it| !it["content"]["text"].is_null());
    desk.kill9();
    // As a service manager does. It would fail if the shim had started one.
    desk.start();
    ends_once(&editor, turn);
    same(&seen(&editor.updates(&session, from)), &chunks(100), "over two services");
    assert_eq!(daemon(&desk), desk.daemon_pid().and_then(|pid| i32::try_from(pid).ok()));
}

#[test]
fn a_question_that_nobody_asks_any_more_is_taken_back_at_the_editor() {
    let desk = demo_desk().build();
    let mut editor = editor(&desk, silent());
    let session = new_session(&desk, &mut editor);
    let id = native(&mut editor, &session);
    let from = editor.mark();
    let turn = begin_prompt(&mut editor, &session, "ask May I?");
    let asked = editor.wait_ask(from, "session/request_permission");
    let agent = openings(&store(&desk), &id)[0].1;
    kill_daemon(&desk);
    // The agent dies before anybody can look: the turn ends as failed.
    let _ = kill(Pid::from_raw(agent), Signal::SIGKILL);
    let error = editor.wait(turn, SOON).expect_err("its agent is gone");
    assert!(matches!(error.code, -31002 | -31001), "{error:?}");
    assert_eq!(answers(&editor, turn), 1);
    editor.wait_frame(from, "the question is taken back", |frame| {
        frame["method"] == "$/cancel_request" && frame["params"]["requestId"] == asked.id
    });
    // The session is loaded again for the next prompt.
    ends_once_more(&mut editor, &session);
}

#[test]
fn without_a_daemon_every_request_gets_an_error_and_the_shim_ends() {
    let desk = demo_desk().build();
    let mut command = desk.command(frontdesk());
    command.args(["acp", "--agent", "demo", "--wait-s", "1"]);
    let mut editor = Acp::spawn("desk:demo", &mut command, refuse_all());
    editor.initialize(json!({}));
    let session = new_session(&desk, &mut editor);
    let turn = begin_prompt(&mut editor, &session, "wait 60000");
    // No other daemon may be started: its configuration cannot be read.
    let config = desk.home().join("config.toml");
    let text = fs::read_to_string(&config).expect("there is a configuration");
    fs::write(&config, "this is = = no configuration").expect("it can be written");
    kill_daemon(&desk);
    let error = editor.wait(turn, SOON).expect_err("nobody is there");
    assert_eq!(error.code, -31002);
    let status = editor.wait_exit(SOON).expect("the shim ends");
    assert_eq!(status.code(), Some(1), "{}", editor.stderr());
    assert!(editor.stderr().contains("failed to go on"), "{}", editor.stderr());
    fs::write(&config, text).expect("it can be written");
}

#[test]
fn a_load_goes_on_where_it_was() {
    let desk = demo_desk().build();
    let mut maker = client(&desk);
    let session = new_session(&desk, &mut maker);
    let made = begin_prompt(&mut maker, &session, "stream 3000");
    maker.wait(made, SOON).expect("it streams");
    drop(maker);
    let mut chance = Chance::new("a_load_goes_on_where_it_was");
    let mut wanted = vec!["user:stream 3000".to_owned()];
    wanted.extend(chunks(3000));
    let (mut amid, mut round) = (0, 0);
    while amid < rounds(ROUNDS) {
        round += 1;
        assert!(round < 50 * rounds(ROUNDS), "{round} loads, and only {amid} were cut");
        let mut editor = editor(&desk, refuse_all());
        let from = editor.mark();
        let load = editor.begin("session/load", place(&desk, Some(&session)));
        let upto = format!("chunk {} of 3000 ", 1 + chance.below(1_500));
        editor.wait_update(&session, from, &upto, |it| it["content"]["text"] == *upto);
        // Nothing more passes the shim, so that the daemon cannot come to the end before its own.
        let shim = i32::try_from(editor.pid()).expect("a pid");
        signal(shim, Signal::SIGSTOP);
        kill_daemon(&desk);
        amid += u64::from(!editor.is_answered(load));
        signal(shim, Signal::SIGCONT);
        editor.wait(load, SOON).expect("the load succeeds");
        assert_eq!(answers(&editor, load), 1);
        let found = seen(&editor.updates(&session, from));
        same(&found, &wanted, "a load over two daemons");
        ends_once_more(&mut editor, &session);
        wanted.push("user:say more".to_owned());
        wanted.push("agent:more".to_owned());
    }
}

#[test]
fn nothing_is_lost_or_repeated_whenever_the_daemon_dies() {
    let mut chance = Chance::new("nothing_is_lost_or_repeated");
    let desk = demo_desk().build();
    let slow = |ask: &Ask| {
        std::thread::sleep(std::time::Duration::from_millis(30));
        Reply::Result(allowed(ask))
    };
    let mut editor = editor(&desk, Arc::new(slow));
    let (mut lines, mut kills, mut prompts) = (0, 0, 0);
    for round in 0..rounds(ROUNDS) {
        let session = new_session(&desk, &mut editor);
        let from = editor.mark();
        let mut asked = Vec::new();
        let words = "stream 40 every 3\nask One?\nstream 20 every 3\nask Two?\nsay done";
        for _ in 0..3 {
            asked.push(begin_prompt(&mut editor, &session, words));
        }
        for _ in 0..2 + chance.below(3) {
            chance.pause(250);
            kill_daemon(&desk);
            kills += 1;
        }
        for pending in &asked {
            ends_once(&editor, *pending);
        }
        let one = [
            chunks(40),
            vec!["agent:Allowed (allow_once).".to_owned()],
            chunks(20),
            vec!["agent:Allowed (allow_once).".to_owned(), "agent:done".to_owned()],
        ];
        let wanted = vec![one.concat(); asked.len()].concat();
        let found = seen(&editor.updates(&session, from));
        same(&found, &wanted, &format!("round {round}"));
        assert_eq!(editor.asked(from).len(), 2 * asked.len(), "round {round}: asked once each");
        let records = log(&mut editor, &session);
        let agents: Vec<String> =
            told(&records).into_iter().filter(|it| it.starts_with("agent:")).collect();
        same(&agents, &wanted, &format!("round {round}, the journal"));
        assert_eq!(endings(&records).len(), asked.len());
        assert_eq!(of_kind(&records, "loaded").len(), 1, "round {round}: never loaded again");
        editor.ok("session/close", json!({ "sessionId": session }));
        lines += found.len();
        prompts += asked.len();
    }
    println!(
        "{} rounds: {kills} kills, {prompts} prompts, {lines} lines: all once",
        rounds(ROUNDS)
    );
}

/// A prompt of two blocks, which others are shown as two updates of one record.
fn begin_two(editor: &mut Acp, session: &str, name: &str, words: &str) -> Pending {
    let blocks = json!([{ "type": "text", "text": format!("# {name}") },
        { "type": "text", "text": words }]);
    editor.begin("session/prompt", json!({ "sessionId": session, "prompt": blocks }))
}

#[test]
fn two_editors_see_each_others_prompts_once_over_daemons_that_die() {
    let mut chance = Chance::new("two_editors_see_each_others_prompts");
    let desk = demo_desk().build();
    let mut one = editor(&desk, refuse_all());
    let mut two = editor(&desk, refuse_all());
    for round in 0..rounds(ROUNDS) {
        let session = new_session(&desk, &mut one);
        let marks = [one.mark(), two.mark()];
        two.ok("session/load", place(&desk, Some(&session)));
        let mut asked = Vec::new();
        for at in 0..3 {
            asked.push((
                true,
                begin_two(&mut one, &session, &format!("one {at}"), "stream 12 every 3"),
            ));
            asked.push((
                false,
                begin_two(&mut two, &session, &format!("two {at}"), "stream 12 every 3"),
            ));
        }
        for _ in 0..2 + chance.below(2) {
            chance.pause(120);
            kill_daemon(&desk);
        }
        for (is_one, pending) in asked {
            ends_once(if is_one { &one } else { &two }, pending);
        }
        let records = log(&mut one, &session);
        assert_eq!(endings(&records).len(), 6, "round {round}");
        for (at, name) in ["one", "two"].into_iter().enumerate() {
            let editor = if at == 0 { &one } else { &two };
            let mut wanted = Vec::new();
            for record in &records {
                let own = record["data"]["prompt"][0]["text"].as_str();
                let is_own = own.is_some_and(|text| text.starts_with(&format!("# {name} ")));
                if !is_own {
                    wanted.extend(told(std::slice::from_ref(record)));
                }
            }
            let what = format!("round {round}, editor {name}");
            // What the last turn told the other one may still be on its way.
            eventually(&what, SOON, || {
                seen(&editor.updates(&session, marks[at])).len() >= wanted.len()
            });
            same(&seen(&editor.updates(&session, marks[at])), &wanted, &what);
        }
        let force = json!({ "frontdesk": { "force": true } });
        one.ok("session/close", json!({ "sessionId": session, "_meta": force }));
    }
}
