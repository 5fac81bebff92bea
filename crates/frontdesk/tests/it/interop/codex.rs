//! codex-acp 0.16 behind Frontdesk: whole turns, a real permission, restarts, its own sessions.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::acp::{ANSWER, Acp, prompt, refuse_all};
use crate::desk::{Desk, row};
use crate::editor::{Permission, capabilities, editor};
use crate::interop::parts::{Rig, parts};

/// How long the session is left alone before it is continued outside: longer than the time within
/// which Frontdesk takes a later `updatedAt` for the agent's own late saving of the last turn.
const LEFT_ALONE: Duration = Duration::from_secs(4);
/// A cancelled turn ends long before its 100 chunks of 0.1 s would.
const CANCELLED_WITHIN: Duration = Duration::from_secs(8);

pub(super) fn new_session(client: &mut Acp, rig: &Rig) -> String {
    let made = client.ok("session/new", rig.new_params());
    assert_eq!(made["modes"]["currentModeId"], "auto", "{made}");
    made["sessionId"].as_str().unwrap().to_owned()
}

/// Hello, a tool with a question and a real file, a cancelled stream, a failing turn.
pub(super) fn four_turns(client: &mut Acp, rig: &Rig, session: &str) {
    let (answer, from) = client.turn(session, "hello codex");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    assert_said(client, session, from, "Fake model says: hello codex");
    tool_turn(client, rig, session);
    cancelled_turn(client, session);
    let error = client.turn(session, "fail").0.unwrap_err();
    assert_eq!(error.code, -32603);
    assert!(error.data["codex_error_info"] != Value::Null, "its data is gone: {error:?}");
}

/// What codex says at the head of every turn with a model that it does not know.
const WARNING: &str = "Model metadata for `fake-model` not found. Defaulting to fallback metadata; \
    this can degrade performance and cause issues.";

/// The agent's words since a position are these, said once.
fn assert_said(client: &Acp, session: &str, from: usize, words: &str) {
    let said = client.text(session, "agent_message_chunk", from);
    if said.replace(WARNING, "") != words {
        client.fail(&format!("the agent said {said:?}, not {words:?}"));
    }
}

/// The model asks for a command; codex asks the client; the command writes a file.
fn tool_turn(client: &mut Acp, rig: &Rig, session: &str) {
    let proof = rig.work().join("fake_tool_out.txt");
    let _ = std::fs::remove_file(&proof);
    let (answer, from) = client.turn(session, "please use tool now");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    let asked = client.asked(from);
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].method, "session/request_permission");
    assert_eq!(asked[0].params["sessionId"], session);
    let call = &asked[0].params["toolCall"]["toolCallId"];
    let updates = client.updates(session, from);
    assert!(updates.iter().any(|it| it["toolCallId"] == *call), "no update of {call}");
    assert_eq!(std::fs::read_to_string(proof).unwrap(), "fake-tool-ran\n");
}

fn cancelled_turn(client: &mut Acp, session: &str) {
    let from = client.mark();
    let turn = client.begin("session/prompt", prompt(session, "slow please"));
    client.wait_update(session, from, "the first chunk", |update| {
        update["sessionUpdate"] == "agent_message_chunk"
    });
    assert!(!client.is_answered(turn));
    client.notify("session/cancel", json!({ "sessionId": session }));
    let since = Instant::now();
    let answer = client.wait(turn, ANSWER).unwrap();
    assert_eq!(answer["stopReason"], "cancelled");
    assert!(since.elapsed() < CANCELLED_WITHIN, "{:?}", since.elapsed());
}

/// The `/proc` folders of the processes that have this session's file in codex's own store open:
/// who really runs it, whatever anybody says.
fn writers(rig: &Rig, native: &str) -> BTreeSet<PathBuf> {
    let store = rig.home().join(".codex/sessions");
    let has_open = |process: &PathBuf| {
        let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        descriptors
            .filter_map(|it| std::fs::read_link(it.path()).ok())
            .any(|file| file.starts_with(&store) && file.to_string_lossy().contains(native))
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|it| it.path());
    processes.filter(has_open).collect()
}

/// The id that codex itself knows a session by.
fn native_id(client: &mut Acp, session: &str) -> String {
    let about = client.ok("_frontdesk/session", json!({ "sessionId": session }));
    about["nativeId"].as_str().unwrap().to_owned()
}

/// A desk with codex, and an initialized client of it.
fn open(rig: &Rig, parts: &super::parts::Parts) -> Desk {
    Desk::builder().work(rig.work()).agent(parts.codex(rig)).open()
}

fn join(desk: &Desk, rig: &Rig) -> Acp {
    let mut client = desk.acp("codex", editor(rig.work(), Permission::Allow));
    client.initialize(capabilities());
    client
}

/// The user's and the agent's words that a `session/load` shows.
fn history(client: &mut Acp, rig: &Rig, session: &str) -> (String, String) {
    let from = client.mark();
    client.ok("session/load", rig.open_params(session));
    let user = client.text(session, "user_message_chunk", from);
    (user, client.text(session, "agent_message_chunk", from))
}

fn occurrences(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

#[test]
fn turns_permission_cancel_errors_list_and_status_pass_through() {
    let parts = parts!();
    let rig = Rig::new();
    let desk = open(&rig, parts);
    let mut client = desk.acp("codex", editor(rig.work(), Permission::Allow));
    let hello = client.initialize(capabilities());
    assert_eq!(hello["protocolVersion"], 1);
    assert_eq!(hello["agentInfo"]["name"], "codex-acp", "a bound endpoint names the agent");
    let abilities = &hello["agentCapabilities"];
    assert_eq!(abilities["auth"]["logout"], json!({}), "the agent's own members are kept");
    for ability in ["list", "resume", "close", "status"] {
        assert!(abilities["sessionCapabilities"][ability].is_object(), "{ability}: {abilities}");
    }
    assert!(abilities["sessionCapabilities"]["delete"].is_null(), "codex cannot delete");

    let session = new_session(&mut client, &rig);
    four_turns(&mut client, &rig, &session);
    let list = client.ok("session/list", json!({}));
    assert_eq!(row(&list, &session)["cwd"], rig.cwd().as_str());
    let status = client.ok("session/status", json!({ "sessionId": session }));
    assert_eq!(status["status"], "active");
    assert_eq!(status["_meta"]["frontdesk"]["source"], "owner");
    assert_eq!(status["_meta"]["frontdesk"]["owner"]["agent"], "codex");
    assert_eq!(desk.instances(), 1);
}

#[test]
fn an_unknown_session_is_minus_32002_with_its_id_everywhere() {
    let parts = parts!();
    let rig = Rig::new();
    let desk = open(&rig, parts);
    let mut client = join(&desk, &rig);
    for id in ["no-such-session", "01a22c8d-21c4-7cd0-90d9-5b7684c2a000"] {
        let only_id = json!({ "sessionId": id });
        for (method, params) in [
            ("session/status", only_id.clone()),
            ("session/load", rig.open_params(id)),
            ("session/resume", rig.open_params(id)),
            ("session/prompt", prompt(id, "hello")),
            ("session/close", only_id),
        ] {
            let error = client.err(method, params);
            assert_eq!((error.code, &error.data["sessionId"]), (-32002, &json!(id)), "{method}");
        }
    }
    assert!(rig.model.calls().is_empty(), "an unknown session ran a turn");
}

#[test]
fn the_whole_history_is_there_after_kill_9_and_there_are_never_two_agents() {
    let parts = parts!();
    let rig = Rig::new();
    let mut desk = open(&rig, parts);
    let watch = desk.watch();
    let mut first = join(&desk, &rig);
    let session = new_session(&mut first, &rig);
    for words in ["hello one", "hello two"] {
        first.turn(&session, words).0.unwrap();
    }
    desk.kill_all();
    drop(first);
    desk.start();

    let mut second = join(&desk, &rig);
    let list = second.ok("session/list", json!({}));
    row(&list, &session);
    let status = second.ok("session/status", json!({ "sessionId": session }));
    assert_eq!(status["status"], "inactive", "{status}");
    let (user, agent) = history(&mut second, &rig, &session);
    for words in ["hello one", "hello two"] {
        assert_eq!(occurrences(&user, words), 1, "{user}");
        assert_eq!(occurrences(&agent, &format!("Fake model says: {words}")), 1, "{agent}");
    }
    let (answer, from) = second.turn(&session, "hello three");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    assert_said(&second, &session, from, "Fake model says: hello three");
    let native = native_id(&mut second, &session);
    assert_eq!(writers(&rig, &native).len(), 1);
    watch.at_most(1);
    drop(second);
    assert!(desk.stop().success());
    desk.wait_instances(0, Duration::from_secs(5));
}

#[test]
fn a_second_client_joins_the_running_session_and_sees_each_item_once() {
    let parts = parts!();
    let rig = Rig::new();
    let desk = open(&rig, parts);
    let mut first = join(&desk, &rig);
    let session = new_session(&mut first, &rig);
    first.turn(&session, "hello one").0.unwrap();
    let from = first.mark();
    let turn = first.begin("session/prompt", prompt(&session, "slow 20"));
    first.wait_update(&session, from, "the third chunk", |update| {
        update["content"]["text"].as_str().is_some_and(|text| text.contains("slow 2"))
    });

    let mut second = join(&desk, &rig);
    let joined = second.mark();
    second.ok("session/load", rig.open_params(&session));
    let status = second.ok("session/status", json!({ "sessionId": session }));
    assert_eq!(status["status"], "active");
    first.wait(turn, ANSWER).unwrap();
    let all: String = (0..20).map(|number| format!("slow {number} ")).collect();
    let whole = format!("Fake model says: hello one{all}");
    second.wait_update(&session, joined, "the last chunk", |update| {
        update["content"]["text"].as_str().is_some_and(|text| text.contains("slow 19"))
    });
    assert_said(&second, &session, joined, &whole);
    assert_eq!(desk.instances(), 1, "{:?}", desk.processes());

    // A turn of the second client is shown to the first one, words and answer.
    let from = first.mark();
    second.turn(&session, "hello from the second").0.unwrap();
    first.wait_update(&session, from, "the foreign turn", |update| {
        update["sessionUpdate"] == "agent_message_chunk"
    });
    let words = first.text(&session, "user_message_chunk", from);
    assert_eq!(occurrences(&words, "hello from the second"), 1, "{words}");
}

#[test]
fn clients_that_load_a_cold_session_at_once_share_one_agent() {
    let parts = parts!();
    let rig = Rig::new();
    let mut desk = open(&rig, parts);
    let mut client = join(&desk, &rig);
    let session = new_session(&mut client, &rig);
    client.turn(&session, "hello one").0.unwrap();
    let native = native_id(&mut client, &session);
    drop(client);
    desk.restart();

    let watch = desk.watch();
    let mut clients: Vec<Acp> = (0..4).map(|_| join(&desk, &rig)).collect();
    let params = rig.open_params(&session);
    let loads: Vec<_> =
        clients.iter_mut().map(|client| client.begin("session/load", params.clone())).collect();
    for (client, load) in clients.iter().zip(&loads) {
        client.wait(*load, ANSWER).unwrap();
        let user = client.text(&session, "user_message_chunk", 0);
        assert_eq!(occurrences(&user, "hello one"), 1, "{user}");
    }
    // Each of them drives the session, one turn after the other, and sees the others' turns.
    let turns: Vec<_> = (0..)
        .zip(&mut clients)
        .map(|(number, client)| {
            client.begin("session/prompt", prompt(&session, &format!("hello from {number}")))
        })
        .collect();
    for (client, turn) in clients.iter().zip(turns) {
        assert_eq!(client.wait(turn, ANSWER).unwrap()["stopReason"], "end_turn");
    }
    assert_eq!(writers(&rig, &native).len(), 1);
    watch.at_most(1);
}

#[test]
fn a_session_begun_in_codex_is_listed_loaded_and_continued() {
    let parts = parts!();
    let rig = Rig::new();
    let agent = parts.codex(&rig);
    let mut desk = Desk::builder().work(rig.work()).agent(agent).build();
    let native = {
        let mut codex = desk.direct("codex", editor(rig.work(), Permission::Allow));
        codex.initialize(capabilities());
        let native = new_session(&mut codex, &rig);
        codex.turn(&native, "hello outside").0.unwrap();
        native
    };
    desk.start();
    let mut client = join(&desk, &rig);
    let list = client.ok("session/list", json!({}));
    assert_eq!(row(&list, &native)["cwd"], rig.cwd().as_str());
    let status = client.ok("session/status", json!({ "sessionId": native }));
    assert_eq!(status["status"], "inactive", "{status}");
    let (user, agent) = history(&mut client, &rig, &native);
    assert_eq!(occurrences(&user, "hello outside"), 1, "{user}");
    assert_eq!(occurrences(&agent, "Fake model says: hello outside"), 1, "{agent}");
    let (answer, from) = client.turn(&native, "hello inside");
    assert_eq!(answer.unwrap()["stopReason"], "end_turn");
    assert_said(&client, &native, from, "Fake model says: hello inside");
    row(&client.ok("session/list", json!({})), &native);
    assert_eq!(desk.instances(), 1);
}

#[test]
fn a_session_continued_outside_is_imported_once() {
    let parts = parts!();
    let rig = Rig::new();
    let mut desk = open(&rig, parts);
    let mut client = join(&desk, &rig);
    let session = new_session(&mut client, &rig);
    client.turn(&session, "hello inside").0.unwrap();
    let native = native_id(&mut client, &session);
    drop(client);
    assert!(desk.stop().success());
    {
        let mut codex = desk.direct("codex", editor(rig.work(), Permission::Allow));
        codex.initialize(capabilities());
        codex.ok("session/load", rig.open_params(&native));
        std::thread::sleep(LEFT_ALONE);
        codex.turn(&native, "hello outside").0.unwrap();
    }
    desk.start();
    let mut client = join(&desk, &rig);
    client.ok("session/list", json!({}));
    for _ in 0..2 {
        let (user, agent) = history(&mut client, &rig, &session);
        for words in ["hello inside", "hello outside"] {
            assert_eq!(occurrences(&user, words), 1, "{user}");
            assert_eq!(occurrences(&agent, &format!("says: {words}")), 1, "{agent}");
        }
        assert!(user.find("hello inside") < user.find("hello outside"), "{user}");
    }
    client.turn(&session, "hello again").0.unwrap();
    assert_eq!(desk.instances(), 1);
}

#[test]
fn an_instance_started_for_a_greeting_in_another_folder_does_not_stay() {
    let parts = parts!();
    let rig = Rig::new();
    // The client runs in the desk's own folder; the session is for another one.
    let desk = Desk::builder().agent(parts.codex(&rig)).open();
    let mut client = join(&desk, &rig);
    let session = new_session(&mut client, &rig);
    client.turn(&session, "hello").0.unwrap();
    desk.wait_instances(1, Duration::from_secs(10));
}

#[test]
fn the_whole_tree_is_gone_after_stop_though_codex_never_ends_on_a_closed_stdin() {
    let parts = parts!();
    let rig = Rig::new();
    let mut desk = open(&rig, parts);
    let mut client = join(&desk, &rig);
    let session = new_session(&mut client, &rig);
    client.turn(&session, "hello").0.unwrap();
    assert_eq!(desk.instances(), 1);
    assert!(desk.stop().success());
    desk.wait_instances(0, Duration::from_secs(5));
}

#[test]
fn a_question_that_no_client_can_take_does_not_hang() {
    let parts = parts!();
    let rig = Rig::new();
    let desk = open(&rig, parts);
    let mut client = desk.acp("codex", refuse_all());
    client.initialize(json!({}));
    let session = new_session(&mut client, &rig);
    let turn = client.begin("session/prompt", prompt(&session, "please use tool now"));
    // The refused question stays open; cancel ends the turn all the same.
    client.wait_ask(0, "session/request_permission");
    client.notify("session/cancel", json!({ "sessionId": session }));
    assert_eq!(client.wait(turn, ANSWER).unwrap()["stopReason"], "cancelled");
    assert!(!rig.work().join("fake_tool_out.txt").exists());
}
