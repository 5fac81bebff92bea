//! `who` and `take`: who has a session, and moving it from whoever that is.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::process::Output;
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::homes::{only_one_at_a_time, store_of, two_homes};
use super::{
    SOON, agent_lives, begin_prompt, client, demo, demo_desk, endings, eventually, home_processes,
    log, native, new_session, of_kind, openings, place, status, store, turn,
};
use crate::acp::ANSWER;
use crate::desk::Desk;

/// A command's exit code and the document it printed.
fn json_of(desk: &Desk, args: &[&str]) -> (Option<i32>, Value) {
    let Output { status, stdout, .. } = desk.cli(args);
    let text = String::from_utf8_lossy(&stdout).into_owned();
    let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    (status.code(), value)
}

fn who(desk: &Desk, session: &str) -> (Option<i32>, Value) {
    json_of(desk, &["who", session, "--json"])
}

fn take(desk: &Desk, session: &str) -> (Option<i32>, Value) {
    json_of(desk, &["take", session, "--json"])
}

#[test]
fn a_take_ends_the_turn_fences_the_owner_and_leaves_its_clients() {
    let desk = Desk::builder().agent(demo("demo", &["--no-close"])).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let native = native(&mut one, &session);
    let owner = openings(&store(&desk), &native)[0].1;
    let (code, before) = who(&desk, &session);
    assert_eq!((code, &before["lease"], &before["epoch"]), (Some(0), &json!("live"), &json!(1)));
    assert_eq!(before["owner"]["pid"], json!(owner));
    assert_eq!(before["clients"][0]["role"], "controller");
    assert!(before["clients"][0]["since"].is_string(), "{before}");
    assert!(before["takeOver"].as_str().is_some_and(|text| text.contains("frontdesk take")));

    let from = one.mark();
    let running = begin_prompt(&mut one, &session, "say working\nlate 5 0");
    one.wait_update(&session, from, "the turn", |it| it["content"]["text"] == "working");
    let (code, taken) = take(&desk, &session);
    assert_eq!((code, &taken["taken"]), (Some(0), &json!(true)), "{taken}");
    assert_eq!((&taken["epoch"], &taken["lease"]), (&json!(2), &json!("cold")), "{taken}");
    let answer = one.wait(running, ANSWER).expect("a take cancels");
    assert_eq!(answer["stopReason"], "cancelled");
    assert!(!agent_lives(owner), "an agent that cannot be told to let go is ended");
    assert_eq!(who(&desk, &session).0, Some(3));

    // Its clients are still there: their next prompt calls it back.
    turn(&mut one, &session, "say again");
    let records = log(&mut one, &session);
    let at = records.iter().position(|record| record["data"]["how"] == "take").expect("a take");
    assert_eq!((&records[at]["kind"], &records[at]["epoch"]), (&json!("claimed"), &json!(2)));
    let old = records[at..].iter().filter(|record| record["epoch"] == 1).count();
    assert_eq!(old, 0, "nothing of the old owner is behind the take");
    assert!(of_kind(&records, "turn_late").is_empty(), "{records:?}");
    assert_eq!(endings(&records).len(), 2);
    assert_eq!(who(&desk, &session).1["epoch"], 3);
    let pids: Vec<i32> = openings(&store(&desk), &native).into_iter().map(|it| it.1).collect();
    assert_eq!(pids.iter().filter(|pid| agent_lives(**pid)).count(), 1);
}

#[test]
fn of_takes_at_the_same_moment_one_takes() {
    let desk = Desk::builder().agent(demo("demo", &["--no-close"])).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say hello");
    let asked: Vec<_> =
        (0..8).map(|_| one.begin("_frontdesk/take", json!({ "sessionId": session }))).collect();
    let answers: Vec<Value> =
        asked.into_iter().map(|it| one.wait(it, ANSWER).expect("an answer")).collect();
    let took: Vec<&Value> = answers.iter().filter(|it| it["taken"] == true).collect();
    assert_eq!(took.len(), 1, "{answers:?}");
    assert_eq!(took[0]["epoch"], 2);
    assert!(answers.iter().all(|it| it["lease"] == "cold"), "{answers:?}");
    let records = log(&mut one, &session);
    let takes = records.iter().filter(|record| record["data"]["how"] == "take").count();
    assert_eq!(takes, 1);
}

#[test]
fn nobody_is_taken_from_where_nobody_has_it() {
    let desk = Desk::builder().agent(demo("demo", &[])).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say hello");
    one.ok("session/close", json!({ "sessionId": session }));
    let before = log(&mut one, &session).len();
    let (code, taken) = take(&desk, &session);
    assert_eq!((code, &taken["taken"], &taken["lease"]), (Some(3), &json!(false), &json!("cold")));
    assert_eq!(who(&desk, &session).0, Some(3));
    assert_eq!(log(&mut one, &session).len(), before, "nothing was written");
    for command in ["who", "take"] {
        let unknown = desk.cli(&[command, "01234567-89ab-7def-8123-456789abcdef"]);
        assert_eq!(unknown.status.code(), Some(4), "{unknown:?}");
    }
}

#[test]
fn a_session_of_another_home_is_let_go_there_and_claimed_here() {
    let shared = tempfile::tempdir().expect("a folder");
    let (first, second) = two_homes(shared.path());
    let store = store_of(shared.path());
    let mut one = client(&first);
    let session = new_session(&first, &mut one);
    let native = native(&mut one, &session);
    turn(&mut one, &session, "say first home");
    let mut two = client(&second);
    let error = two.err("session/resume", place(&first, Some(&native)));
    assert_eq!(error.code, -31005, "{error:?}");
    let (code, held) = who(&second, &native);
    assert_eq!((code, &held["heldBy"]["pid"]), (Some(0), &json!(first.daemon_pid())), "{held}");
    assert_eq!(held["heldBy"]["socket"], json!(first.socket()));
    let home = held["heldBy"]["home"].as_str().expect("its home");
    assert!(home.starts_with(&first.home().display().to_string()), "{held}");

    let from = one.mark();
    let running = begin_prompt(&mut one, &session, "say working\nwait 60000");
    one.wait_update(&session, from, "the turn", |it| it["content"]["text"] == "working");
    let (code, taken) = take(&second, &native);
    assert_eq!(
        (code, &taken["taken"], &taken["lease"]),
        (Some(0), &json!(true), &json!("live")),
        "{taken}"
    );
    let answer = one.wait(running, ANSWER).expect("a take cancels");
    assert_eq!(answer["stopReason"], "cancelled");
    only_one_at_a_time(&store, &native);
    assert_eq!(who(&second, &native).1["lease"], "live");
    assert_eq!(status(&mut two, &native).0, "active");
    // The first home's client is told who has it now.
    let error = one.err("session/resume", place(&first, Some(&session)));
    assert_eq!((error.code, &error.data["holder"]["pid"]), (-31005, &json!(second.daemon_pid())));
    let records = log(&mut one, &session);
    assert!(records.iter().any(|it| it["kind"] == "claimed" && it["data"]["how"] == "take"));
    assert_eq!(endings(&records).len(), 2);
    two.ok("session/resume", place(&first, Some(&native)));
    turn(&mut two, &native, "say second home");
}

#[test]
fn a_home_that_does_not_answer_keeps_its_session_and_is_named() {
    let shared = tempfile::tempdir().expect("a folder");
    let (mut first, second) = two_homes(shared.path());
    let store = store_of(shared.path());
    let mut one = client(&first);
    let session = new_session(&first, &mut one);
    let native = native(&mut one, &session);
    turn(&mut one, &session, "say hello");
    let mut two = client(&second);
    assert_eq!(two.err("session/resume", place(&first, Some(&native))).code, -31005);
    let records = log(&mut two, &native).len();
    let daemon = i32::try_from(first.daemon_pid().expect("it runs")).expect("a pid");

    kill(Pid::from_raw(daemon), Signal::SIGSTOP).expect("it runs");
    let (code, refused) = take(&second, &native);
    kill(Pid::from_raw(daemon), Signal::SIGCONT).expect("it runs");
    let text = refused["error"]["message"].to_string();
    assert_eq!((code, &refused["error"]["code"]), (Some(1), &json!(-31005)), "{refused}");
    assert!(text.contains(&format!("kill -CONT {daemon}")), "{text}");
    assert_eq!(refused["error"]["data"]["holder"]["pid"], daemon);
    assert_eq!(openings(&store, &native).len(), 1);
    assert_eq!(log(&mut two, &native).len(), records, "nothing was changed");
    turn(&mut one, &session, "say still here");

    // The same where the daemon is dead and its holder keeps the agent.
    first.kill9();
    let (code, refused) = take(&second, &native);
    let text = refused["error"]["message"].to_string();
    assert_eq!((code, &refused["error"]["code"]), (Some(1), &json!(-31005)), "{refused}");
    for words in ["is gone", "frontdesk serve", "frontdesk stop --all"] {
        assert!(text.contains(words), "{words:?} in {text}");
    }
    let holders = home_processes(&first).into_iter().filter(|(_, words)| words.contains(" hold "));
    assert_eq!(holders.count(), 1, "no process there was touched");
    first.start();
    let (code, taken) = take(&second, &native);
    assert_eq!((code, &taken["taken"]), (Some(0), &json!(true)), "{taken}");
    only_one_at_a_time(&store, &native);
}

#[test]
fn a_home_that_was_asked_may_let_go_yet_and_one_that_refuses_connections_is_gone() {
    let shared = tempfile::tempdir().expect("a folder");
    let claims = shared.path().join("claims");
    let desk = demo_desk().env("FRONTDESK_CLAIMS", &claims);
    let desk = desk.limit("agent_close_ms", 100).limit("stop_term_ms", 50).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say hello");
    let mut files = fs::read_dir(&claims).expect("it is claimed");
    let path = files.next().expect("a claim").expect("it can be read").path();
    let mut info: Value =
        serde_json::from_slice(&fs::read(&path).expect("it can be read")).expect("it is JSON");
    one.ok("session/close", json!({ "sessionId": session }));
    eventually("a claim that is given back", SOON, || !path.exists());

    // From here on this process has it, as another home's daemon would.
    let socket = shared.path().join("socket");
    let listener = UnixListener::bind(&socket).expect("a socket");
    info["pid"] = json!(std::process::id());
    info["socket"] = json!(socket);
    info["home"] = json!(shared.path().join("data"));
    let mut claim = File::create(&path).expect("a file");
    claim.lock().expect("nobody has it");
    writeln!(claim, "{info}").expect("it can be written");
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        let mut lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
        let mut next = || lines.next().map(|line| line.expect("it can be read"));
        next().expect("which face");
        let greeting: Value = serde_json::from_str(&next().expect("a greeting")).expect("JSON");
        let answer = json!({ "jsonrpc": "2.0", "id": greeting["id"], "result": {} });
        writeln!(stream, "{answer}").expect("somebody reads");
        let asked = next().expect("a request");
        assert_eq!(next(), None, "nothing else is asked");
        asked
    });
    let (code, refused) = take(&desk, &session);
    let asked = other.join().expect("it was asked");
    assert!(asked.contains("_frontdesk/release"), "{asked}");
    let text = refused["error"]["message"].to_string();
    assert_eq!((code, &refused["error"]["code"]), (Some(1), &json!(-31005)), "{refused}");
    assert!(text.contains("may let it go yet"), "{text}");
    assert!(!text.contains("nothing was changed"), "nobody can tell: {text}");

    // Nobody listens there any more, so that process is another one of the same number.
    let (code, refused) = take(&desk, &session);
    let text = refused["error"]["message"].to_string();
    assert_eq!((code, &refused["error"]["code"]), (Some(1), &json!(-31005)), "{refused}");
    assert!(text.contains("is gone") && !text.contains("kill"), "{text}");
    drop(claim);
}

#[test]
fn what_may_still_be_loaded_is_suspect_until_it_is_proven() {
    let agent = demo("demo", &["--no-close"]).setting("sessions_per_instance = 4");
    let mut desk = Desk::builder().agent(agent).open();
    let mut one = client(&desk);
    let (session, other) = (new_session(&desk, &mut one), new_session(&desk, &mut one));
    let native = native(&mut one, &session);
    turn(&mut one, &session, "say hello");
    let from = one.mark();
    let _running = begin_prompt(&mut one, &other, "say working\nwait 60000");
    one.wait_update(&other, from, "the turn", |it| it["content"]["text"] == "working");
    one.ok("session/close", json!({ "sessionId": session }));

    let suspect = |desk: &Desk| {
        let mut client = client(desk);
        let (word, meta) = status(&mut client, &session);
        (word, meta["lease"].clone(), meta.get("state").cloned())
    };
    assert_eq!(suspect(&desk), ("active".to_owned(), json!("suspect"), None));
    let (code, held) = who(&desk, &session);
    assert_eq!((code, &held["lease"]), (Some(0), &json!("suspect")), "{held}");
    assert!(held["place"]["instance"].is_string(), "{held}");
    let listed = json_of(&desk, &["ls", "--json"]).1;
    let row = listed["sessions"]
        .as_array()
        .and_then(|rows| rows.iter().find(|r| r["id"] == json!(session)).cloned());
    assert_eq!(row.expect("it is listed")["lease"], "suspect");

    // A later daemon knows it, too; and only that instance opens it again.
    let owner = openings(&store(&desk), &native)[0].1;
    desk.kill9();
    desk.start();
    assert_eq!(suspect(&desk), ("active".to_owned(), json!("suspect"), None));
    let mut two = client(&desk);
    two.ok("session/resume", place(&desk, Some(&session)));
    let pids: Vec<i32> = openings(&store(&desk), &native).into_iter().map(|it| it.1).collect();
    assert!(pids.iter().all(|pid| *pid == owner), "{pids:?} are not all {owner}");
    assert_eq!(who(&desk, &session).1["lease"], "live");

    // Taken while the other one works: in doubt again, and nobody else's turn is ended for it. What
    // the old owner says behind that is refused, counted and shown.
    let from = two.mark();
    let running = begin_prompt(&mut two, &session, "say working\nlate 5 20");
    two.wait_update(&session, from, "the turn", |it| it["content"]["text"] == "working");
    let (code, taken) = take(&desk, &session);
    assert_eq!((code, &taken["lease"]), (Some(0), &json!("suspect")), "{taken}");
    assert!(agent_lives(owner));
    let answer = two.wait(running, ANSWER).expect("a take cancels");
    assert_eq!(answer["stopReason"], "cancelled");
    eventually("the late words", SOON, || {
        who(&desk, &session).1["lateWrites"].as_u64().is_some_and(|late| late >= 5)
    });
    for command in ["who", "show"] {
        let shown = desk.cli(&[command, &session]);
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("late writes refused: "), "{command}: {shown}");
    }
    let records = log(&mut two, &session);
    let at = records.iter().rposition(|it| it["data"]["how"] == "take").expect("a take");
    assert!(records[at..].iter().all(|it| it["kind"] != "update" && it["kind"] != "turn_late"));
    // Its process gone, nothing is in doubt any more.
    kill(Pid::from_raw(owner), Signal::SIGKILL).expect("it runs");
    eventually("the proof", SOON, || who(&desk, &session).1["lease"] == "cold");
    assert_eq!(suspect(&desk), ("inactive".to_owned(), Value::Null, None));
    let records = log(&mut two, &session);
    assert_eq!(records.last().map(|it| &it["data"]["reason"]), Some(&json!("proven gone")));
    turn(&mut two, &session, "say again");
}

/// What the desk has learned of its agent.
fn learned(desk: &Desk) -> Value {
    let agents = json_of(desk, &["agents", "--json"]).1;
    let demo = agents["agents"].as_array().and_then(|all| all.iter().find(|a| a["name"] == "demo"));
    demo.expect("it is configured")["learned"].clone()
}

#[test]
fn an_agent_that_resumes_another_session_is_found_out_once_and_loaded_instead() {
    let mut desk = Desk::builder().agent(demo("demo", &["--resume-replaces"])).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let native = native(&mut one, &session);
    turn(&mut one, &session, "say hello");
    assert_eq!(learned(&desk), json!([]));
    one.ok("session/close", json!({ "sessionId": session }));
    one.ok("session/resume", place(&desk, Some(&session)));
    turn(&mut one, &session, "say again");
    let how: Vec<String> = openings(&store(&desk), &native).into_iter().map(|it| it.0).collect();
    assert_eq!(how, ["new", "load"], "the session itself, by its agent's load");
    assert_eq!(learned(&desk), json!(["resume_replaces"]));
    let stored = super::stored_count(&store(&desk));
    assert_eq!(stored, 2, "it and the other one, once");

    // A later daemon knows it: resume is not tried again.
    one.ok("session/close", json!({ "sessionId": session }));
    drop(one);
    desk.restart();
    assert_eq!(learned(&desk), json!(["resume_replaces"]));
    let mut two = client(&desk);
    two.ok("session/resume", place(&desk, Some(&session)));
    turn(&mut two, &session, "say once more");
    assert_eq!(super::stored_count(&store(&desk)), stored);
    let list = json_of(&desk, &["ls", "--json"]).1;
    let own = list["sessions"]
        .as_array()
        .map(|rows| rows.iter().filter(|r| r["id"] == json!(session)).count());
    assert_eq!(own, Some(1), "{list}");
}

#[test]
fn an_agent_that_gives_all_sessions_one_id_never_has_two_of_them_loaded_again() {
    let desk = Desk::builder().agent(demo("demo", &["--one-id", "0"])).open();
    let (mut one, mut two) = (client(&desk), client(&desk));
    let first = new_session(&desk, &mut one);
    assert_eq!(learned(&desk), json!([]));
    let second = new_session(&desk, &mut two);
    assert_ne!(first, second, "two conversations");
    assert_eq!(learned(&desk), json!(["ids_repeat"]));
    turn(&mut two, &second, "say two");
    // Whoever is closed is not opened under the id that the other one has loaded.
    one.ok("session/close", json!({ "sessionId": first }));
    let error = one.err("session/resume", place(&desk, Some(&first)));
    assert_eq!((error.code, &error.data["other"]), (-31005, &json!(second)), "{error:?}");
    let alive = openings(&store(&desk), "0").into_iter().filter(|it| agent_lives(it.1)).count();
    assert_eq!(alive, 1, "one process has the id");
    turn(&mut two, &second, "say still two");
}
