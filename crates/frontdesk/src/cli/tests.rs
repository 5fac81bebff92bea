//! Every command against a scripted daemon: what it asks, what it prints, how it exits.

use clap::CommandFactory as _;
use serde_json::{Value, json};

use super::fake::{FakeDesk, Peer};
use super::{Cli, Exit};

pub(super) const KEY: &str = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";
const OTHER: &str = "01a22bb6-2da2-7132-c868-40a3a5d1f51f";

pub(super) fn row(id: &str, title: &str) -> Value {
    json!({
        "id": id, "key": id, "agent": "demo", "nativeId": format!("n-{id}"), "cwd": "/home/a/x",
        "title": title, "status": "active", "state": "running", "source": "owner", "ageMs": 0,
        "createdAt": "2026-11-30T11:00:00Z", "updatedAt": "2026-11-30T11:57:00Z", "turnCount": 2,
        "queuedTurns": 0, "clients": 1, "path": "/j", "future": 18446744073709551615_u64,
        "owner": { "instance": "i-1", "pid": 7, "since": "2026-11-30T11:00:00Z", "epoch": 3 },
    })
}

/// A daemon that knows one session and answers one method.
pub(super) fn desk(
    method: &'static str,
    mut answer: impl FnMut(&Value, &mut Peer) + Send + 'static,
) -> FakeDesk {
    FakeDesk::start(move |message, peer| {
        if message["method"] == method {
            answer(message, peer);
        } else if message["method"] == "_frontdesk/sessions" {
            let prefix = message["params"]["prefix"].as_str().unwrap_or("");
            let rows: Vec<Value> = [row(KEY, "One"), row(OTHER, "Two")]
                .into_iter()
                .filter(|row| row["id"].as_str().unwrap().starts_with(prefix))
                .collect();
            peer.reply(message, &json!({ "sessions": rows }));
        } else if message["method"] == "_frontdesk/session" {
            peer.reply(message, &row(KEY, "One"));
        } else {
            peer.reply(message, &json!({}));
        }
    })
}

#[test]
fn the_command_tree_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_has_an_example_and_only_the_contracts_names_exist() {
    let tree = Cli::command();
    let names: Vec<&str> = tree.get_subcommands().map(clap::Command::get_name).collect();
    let want = [
        "serve",
        "stop",
        "restart",
        "acp",
        "msp",
        "demo",
        "demo-agent",
        "new",
        "ls",
        "status",
        "show",
        "log",
        "prompt",
        "pending",
        "approve",
        "deny",
        "rename",
        "fork",
        "policy",
        "archive",
        "close",
        "who",
        "take",
        "delete",
        "agents",
        "doctor",
        "reindex",
        "completions",
    ];
    assert_eq!(names, want);
    for command in tree.get_subcommands().filter(|command| command.get_name() != "demo-agent") {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Example:\n  "), "{}", command.get_name());
        let json = command.get_arguments().any(|arg| arg.get_id() == "json");
        let plain = ["serve", "acp", "msp", "completions"].contains(&command.get_name());
        assert_eq!(json, !plain, "{}", command.get_name());
    }
}

#[test]
fn a_wrong_command_line_is_usage() {
    let desk = FakeDesk::absent();
    for args in [
        &["ls", "--status", "open"][..],
        &["status"],
        &["nonsense"],
        &["ls", "--limit", "-1"],
        &["ls", "--limit", "0"],
        &["new", "--cwd", "no-such-folder"],
        &["prompt", KEY, "  "],
        &["rename", KEY, " \n "],
        &["rename", KEY],
        &["policy", KEY, "yolo"],
        &["new", "--policy", "ask"],
    ] {
        assert_eq!(desk.run(args).exit, Exit::Usage, "{args:?}");
    }
}

#[test]
fn without_a_daemon_every_command_says_so() {
    let desk = FakeDesk::absent();
    for args in [
        &["ls"][..],
        &["new"],
        &["status", KEY],
        &["show", KEY],
        &["log", KEY],
        &["prompt", KEY, "hi"],
        &["rename", KEY, "x"],
        &["fork", KEY],
        &["policy", KEY, "onRequest"],
        &["archive", KEY],
        &["close", KEY],
        &["delete", KEY],
        &["agents"],
        &["stop"],
    ] {
        let ran = desk.run(args);
        assert_eq!(ran.exit, Exit::NoDaemon, "{args:?}");
        assert!(ran.err.contains("frontdesk serve"), "{}", ran.err);
        assert_eq!(ran.out, "");
        let ran = desk.run(&[args, &["--json"]].concat());
        assert!(ran.json()["error"]["message"].is_string(), "{args:?}");
    }
}

#[test]
fn a_socket_that_nobody_listens_on_is_no_daemon() {
    let desk = FakeDesk::absent();
    drop(std::os::unix::net::UnixListener::bind(desk.paths.socket()).unwrap());
    assert_eq!(desk.run(&["ls"]).exit, Exit::NoDaemon);
}

#[test]
fn the_client_introduces_itself() {
    let desk = desk("-", |_, _| {});
    desk.run(&["ls"]);
    let seen = desk.seen();
    assert_eq!(seen[0]["frontdesk"], 1);
    assert_eq!(seen[0]["face"], "acp");
    assert_eq!(seen[0]["kind"], "cli");
    assert_eq!(seen[0]["statusWords"], "active");
    assert!(seen[0]["client"].as_str().unwrap().len() == 36);
    assert_eq!(seen[1]["method"], "initialize");
    assert_eq!(seen[1]["params"]["clientInfo"]["name"], "frontdesk-cli");
    assert_eq!(seen[1]["params"]["clientCapabilities"], json!({}));
}

#[test]
fn ls_is_a_table() {
    let desk = desk("-", |_, _| {});
    let ran = desk.run(&["ls"]);
    assert_eq!(ran.exit, Exit::Done);
    insta::assert_snapshot!(ran.out, @r"
    ID                    STATUS          AGE        AGENT  FOLDER  TITLE
    01a22bb6-2da2-7132-b  active running  3 min ago  demo   ~/x     One
    01a22bb6-2da2-7132-c  active running  3 min ago  demo   ~/x     Two
    ");
}

#[test]
fn ls_json_keeps_rows_as_sent() {
    let desk = desk("-", |_, _| {});
    let ran = desk.run(&["ls", "--json"]);
    assert!(ran.out.contains(r#""future":18446744073709551615"#), "{}", ran.out);
    assert_eq!(ran.json()["sessions"][0]["title"], "One");
    assert_eq!(ran.json()["more"], false);
}

#[test]
fn ls_takes_page_after_page_up_to_its_limit() {
    let desk = desk("_frontdesk/sessions", |message, peer| {
        let at: usize = message["params"]["cursor"].as_str().unwrap_or("0").parse().unwrap();
        let rows: Vec<Value> = (at..at + 3).map(|n| row(&format!("s{n:04}"), "t")).collect();
        let cursor = (at + 3).to_string();
        peer.reply(
            message,
            &json!({ "sessions": rows, "nextCursor": cursor, "unreachable": ["x\u{1b}"] }),
        );
    });
    let ran =
        desk.run(&["ls", "--limit", "7", "--agent", "a", "--status", "inactive", "--refresh"]);
    assert_eq!(ran.out.lines().count(), 8);
    assert!(ran.err.contains("more with --limit") && ran.err.contains("lists: x\n"), "{}", ran.err);
    let calls = desk.calls("_frontdesk/sessions");
    assert_eq!(calls.len(), 3);
    assert_eq!(calls[0]["params"]["refresh"], true);
    assert!(calls[1]["params"].get("refresh").is_none());
    assert_eq!(calls[2]["params"]["limit"], 1);
    assert_eq!(calls[2]["params"]["agent"], "a");
}

#[test]
fn ls_filters_and_shows_what_a_search_found() {
    let desk = desk("_frontdesk/sessions", |message, peer| {
        let mut found = row("s1", "t");
        found["match"] = json!({ "in": "transcript", "snippet": "the\u{1b} flaky test" });
        peer.reply(message, &json!({ "sessions": [found], "more": true }));
    });
    let words = ["ls", "--search", "flaky", "--since", "2026-11-30T12:00:00Z", "--until", "1h"];
    let ran = desk.run(&[&words[..], &["--attention", "--archived", "--limit", "5"]].concat());
    assert!(ran.out.lines().nth(2).unwrap().contains("flaky test"), "{}", ran.out);
    assert!(!ran.out.contains('\u{1b}') && ran.err.contains("more with --limit"), "{}", ran.err);
    let params = desk.calls("_frontdesk/sessions")[0]["params"].clone();
    assert_eq!(params["search"], "flaky");
    assert_eq!(params["updatedAfter"], "2026-11-30T12:00:00Z");
    assert!(params["updatedBefore"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    assert_eq!((&params["attention"], &params["archived"]), (&json!(true), &json!(true)));
    for wrong in ["yesterday", "-3d", "3", ""] {
        assert_eq!(desk.run(&["ls", "--since", wrong]).exit, Exit::Usage, "{wrong:?}");
    }
    assert_eq!(desk.run(&["ls", "--since=2026-11-29"]).exit, Exit::Done);
}

#[test]
fn reindex_says_what_was_read() {
    let asked = std::sync::atomic::AtomicU32::new(0);
    let desk = desk("_frontdesk/reindex", move |message, peer| {
        let asked = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let running = asked < 3;
        let runs = if running { 4 } else { 5 };
        peer.reply(
            message,
            &json!({
                "running": running && asked > 0, "runs": runs, "sessions": 3, "passages": 1,
                "bytes": 12_345, "unreadable": 0, "ms": 40,
            }),
        );
    });
    let ran = desk.run(&["reindex"]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert_eq!(ran.out, "3 sessions, 1 passage of transcripts, 12 kB of journals in 40 ms\n");
    let calls = desk.calls("_frontdesk/reindex");
    assert_eq!(calls.iter().filter(|call| call["params"]["start"] == true).count(), 1);
}

#[test]
fn a_cursor_that_leads_nowhere_ends() {
    let desk = desk("_frontdesk/sessions", |message, peer| {
        peer.reply(message, &json!({ "sessions": [row("s1", "t")], "nextCursor": "" }));
    });
    assert_eq!(desk.run(&["ls"]).out.lines().count(), 3);
    assert_eq!(desk.calls("_frontdesk/sessions").len(), 2);
}

#[test]
fn a_hostile_row_cannot_command_the_terminal() {
    let desk = desk("_frontdesk/sessions", |message, peer| {
        let mut hostile = row("s\u{1b}[2J1", "\u{1b}]0;x\u{7}a\r\nb");
        hostile["agent"] = json!("d\u{9b}31m");
        hostile["cwd"] = json!("/a\u{202e}\n/b");
        hostile["status"] = json!("act\u{8}ive");
        peer.reply(message, &json!({ "sessions": [hostile] }));
    });
    let ran = desk.run(&["ls"]);
    assert_eq!(ran.out.lines().count(), 2);
    assert!(!ran.out.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'));
}

#[test]
fn status_exits_with_the_answer() {
    for (result, exit) in [
        (
            json!({ "status": "active", "_meta": { "frontdesk": { "source": "owner" } } }),
            Exit::Done,
        ),
        (json!({ "status": "active" }), Exit::Done),
        (
            json!({ "status": "inactive", "_meta": { "frontdesk": { "source": "index" } } }),
            Exit::Inactive,
        ),
        (json!({ "status": "something-new" }), Exit::Inactive),
        (
            json!({ "status": "inactive", "_meta": { "frontdesk": { "source": "none", "unreachable": ["x"] } } }),
            Exit::Unsure,
        ),
    ] {
        let answer = result.clone();
        let desk = desk("session/status", move |message, peer| peer.reply(message, &answer));
        let ran = desk.run(&["status", KEY]);
        assert_eq!(ran.exit, exit, "{result}");
        assert_eq!(ran.out.lines().next(), result["status"].as_str());
        assert_eq!(desk.run(&["status", KEY, "--json"]).json(), result);
        // A whole key needs no look-up.
        assert!(desk.calls("_frontdesk/sessions").is_empty());
    }
}

#[test]
fn a_quiet_turn_is_shown_as_quiet() {
    for (quiet, shown) in [
        (json!(9_999), "  state     running"),
        (json!(10_000), "  state     running, quiet for 10 s"),
        (Value::Null, "  state     running"),
    ] {
        let evidence = json!({ "source": "owner", "state": "running", "quietMs": quiet });
        let answer = json!({ "status": "active", "_meta": { "frontdesk": evidence } });
        let desk = desk("session/status", move |message, peer| peer.reply(message, &answer));
        let ran = desk.run(&["status", KEY]);
        assert!(ran.out.lines().any(|line| line == shown), "{}", ran.out);
    }
}

#[test]
fn an_unknown_session_is_exit_4() {
    let desk = desk("session/status", |message, peer| {
        peer.fail(message, -32002, "Resource not found");
    });
    let ran = desk.run(&["status", KEY, "--json"]);
    assert_eq!(ran.exit, Exit::Unknown);
    assert_eq!(ran.json()["error"]["code"], -32002);
    assert_eq!(ran.json()["error"]["data"]["sessionId"], KEY);
    assert_eq!(desk.run(&["status", "nobody"]).exit, Exit::Unknown);
}

#[test]
fn any_other_error_is_exit_1() {
    let desk = desk("session/status", |message, peer| peer.fail(message, -32603, "a\u{1b}[1mb"));
    let ran = desk.run(&["status", KEY]);
    assert_eq!(ran.exit, Exit::Failed);
    assert_eq!(ran.err, "error: a[1mb\n");
    let desk = desk_that_fails();
    let ran = desk.run(&["show", KEY]);
    assert!(
        ran.err.contains("error: held\n  holder: zed") && ran.err.contains("doctor"),
        "{}",
        ran.err
    );
}

fn desk_that_fails() -> FakeDesk {
    FakeDesk::start(|message, peer| {
        let data = json!({ "sessionId": "s", "holder": "zed\u{1b}" });
        let error = json!({ "code": -32601, "message": "held", "data": data });
        peer.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }));
    })
}

#[test]
fn a_beginning_is_resolved_and_an_ambiguous_one_is_usage() {
    let desk = desk("session/status", |message, peer| {
        peer.reply(message, &json!({ "status": "active" }));
    });
    assert_eq!(desk.run(&["status", "01a22bb6-2da2-7132-c"]).exit, Exit::Done);
    assert_eq!(desk.calls("session/status")[0]["params"]["sessionId"], OTHER);
    let ran = desk.run(&["status", "01a22bb6"]);
    assert_eq!(ran.exit, Exit::Usage);
    assert!(ran.err.contains(KEY) && ran.err.contains(OTHER), "{}", ran.err);
    // Too short to be looked up: the daemon hears it as typed.
    desk.run(&["status", "01a"]);
    assert_eq!(desk.calls("session/status")[1]["params"]["sessionId"], "01a");
}

#[test]
fn show_tells_what_is_known() {
    let desk = desk("_frontdesk/session", |message, peer| {
        let mut full = row(KEY, "One");
        full["clients"] = json!([{ "key": "k", "name": "zed", "role": "controller" }]);
        full["interactions"] = json!([{ "id": "q", "title": "Write \u{1b}a" }]);
        full["agentInfo"] = json!({ "name": "demo", "version": "1.2" });
        peer.reply(message, &full);
    });
    let ran = desk.run(&["show", KEY]);
    insta::assert_snapshot!(ran.out, @r"
    One
      status      active running
      id          01a22bb6-2da2-7132-b868-40a3a5d1f51f
      native id   n-01a22bb6-2da2-7132-b868-40a3a5d1f51f
      agent       demo 1.2
      owner       instance i-1, pid 7, epoch 3, since 1 h ago
      folder      /home/a/x
      created     1 h ago (2026-11-30T11:00:00Z)
      updated     3 min ago (2026-11-30T11:57:00Z)
      turns       2
      clients     zed (controller)
      journal     /j
      question    q: Write a
    ");
    assert_eq!(desk.run(&["show", KEY, "--json"]).json()["clients"][0]["name"], "zed");
}

#[test]
fn new_prints_the_id() {
    let desk =
        desk("session/new", |message, peer| peer.reply(message, &json!({ "sessionId": KEY })));
    let ran = desk.run(&["new", "--agent", "demo"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, format!("{KEY}\n").as_str()));
    let call = &desk.calls("session/new")[0]["params"];
    assert_eq!(call["cwd"], desk.home.path().to_str().unwrap());
    assert_eq!(call["_meta"]["frontdesk"]["agent"], "demo");
    assert_eq!(call["mcpServers"], json!([]));
    desk.run(&["new"]);
    assert!(desk.calls("session/new")[1]["params"].get("_meta").is_none());
}

#[test]
fn close_says_when_others_keep_the_session() {
    let desk = desk("session/close", |message, peer| {
        let forced = message["params"]["_meta"]["frontdesk"]["force"] == true;
        let outcome = json!({ "_meta": { "frontdesk": { "closed": false, "remaining": 2 } } });
        peer.reply(message, &if forced { json!({}) } else { outcome });
    });
    let ran = desk.run(&["close", KEY]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("2 other clients"), "{}", ran.err);
    let ran = desk.run(&["close", KEY, "--force"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, format!("closed {KEY}\n").as_str()));
}

/// Three records, then nothing.
fn journal(message: &Value, peer: &mut Peer) {
    let after = message["params"]["after"].as_u64().unwrap();
    let records: Vec<Value> = (after + 1..=3)
        .take(2)
        .map(|seq| {
            json!({ "v": 1, "seq": seq, "at": "2026-11-30T11:00:00.000001Z", "kind": "note", "data": { "text": "a\u{1b}\nb" } })
        })
        .collect();
    if records.is_empty() && message["params"].get("waitMs").is_some() {
        return peer.close();
    }
    peer.reply(message, &json!({ "records": records, "last": 3 }));
}

#[test]
fn log_prints_all_records_in_order() {
    let desk = desk("_frontdesk/log", journal);
    let ran = desk.run(&["log", KEY]);
    assert_eq!(ran.exit, Exit::Done);
    insta::assert_snapshot!(ran.out, @r"
         1  2026-11-30 11:00:00Z  note               text=a b
         2  2026-11-30 11:00:00Z  note               text=a b
         3  2026-11-30 11:00:00Z  note               text=a b
    ");
    let ran = desk.run(&["log", KEY, "--json", "--after", "2"]);
    assert_eq!(ran.json()["at"], "2026-11-30T11:00:00.000001Z");
}

#[test]
fn log_follow_ends_with_the_daemon() {
    let desk = desk("_frontdesk/log", journal);
    let ran = desk.run(&["log", KEY, "--follow"]);
    assert_eq!(ran.out.lines().count(), 3);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("closed the connection"), "{}", ran.err);
}

#[test]
fn records_without_a_position_do_not_come_for_ever() {
    let desk = desk("_frontdesk/log", |message, peer| {
        peer.reply(message, &json!({ "records": [{ "kind": "x" }], "last": 0 }));
    });
    assert_eq!(desk.run(&["log", KEY]).out.lines().count(), 1);
}

#[test]
fn agents_are_a_table_and_may_be_checked() {
    let desk = FakeDesk::start(|message, peer| {
        if message["method"] == "_frontdesk/agents" {
            let agents = json!([
                { "name": "demo", "command": ["frontdesk", "demo-agent"], "default": true, "found": "/f", "instances": 1, "sessions": 4 },
                { "name": "gone", "command": ["gone"], "default": false, "found": null, "instances": 0, "sessions": 0 },
            ]);
            peer.reply(message, &json!({ "agents": agents }));
        } else if message["params"]["agent"] == "demo" {
            peer.reply(message, &json!({
                "agent": "demo", "found": "/f", "starts": true, "startMs": 3, "initializeMs": 4.4,
                "agentInfo": { "version": "0.1" }, "abilities": { "load": true, "fork": false, "list": {} },
            }));
        } else {
            peer.fail(message, -31001, "no such program");
        }
    });
    insta::assert_snapshot!(desk.run(&["agents"]).out, @r"
    AGENT   VERSION  SESSIONS  RUNNING  COMMAND               OFFERS
    demo *  -        4         1        frontdesk demo-agent
    gone    -        0         0        gone (not found)
    ");
    let ran = desk.run(&["agents", "--check"]);
    assert_eq!(ran.exit, Exit::Done);
    insta::assert_snapshot!(ran.out, @r"
    AGENT  FOUND  VERSION  STARTS     INITIALIZE  OFFERS
    demo   yes    0.1      yes, 3 ms  4 ms        load list
    gone   no     -        no         -
    ");
    let ran = desk.run(&["agents", "--check", "--json"]);
    assert_eq!(ran.json()["agents"][1]["error"], "no such program");
}

#[test]
fn doctor_works_without_a_daemon() {
    let desk = FakeDesk::absent();
    let ran = desk.run(&["doctor"]);
    assert_eq!(ran.exit, Exit::Done, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("none runs") && ran.out.contains("demo"), "{}", ran.out);
    let document = desk.run(&["doctor", "--json"]).json();
    assert!(document["findings"].as_array().unwrap().len() >= 3);
}

#[test]
fn doctor_takes_a_daemon_that_cannot_be_asked_for_one_that_may_run() {
    let about = |desk: &FakeDesk| {
        let document = desk.run(&["doctor", "--json"]).json();
        let findings = document["findings"].as_array().unwrap().clone();
        findings.iter().map(|it| it["about"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let desk = FakeDesk::absent();
    std::fs::create_dir_all(&desk.paths.data).unwrap();
    assert!(about(&desk).contains(&"commit log".to_owned()));
    // Not the word that nobody listens: the socket cannot be reached at all.
    let _ = std::fs::remove_dir_all(&desk.paths.run);
    std::fs::write(&desk.paths.run, "").unwrap();
    let found = about(&desk);
    assert!(found.contains(&"daemon".to_owned()) && found.contains(&"journals".to_owned()));
    assert!(!found.contains(&"commit log".to_owned()), "a running one is ahead of its journals");
}

#[test]
fn doctor_without_a_daemon_reads_the_configuration() {
    let desk = FakeDesk::absent();
    std::fs::write(
        &desk.paths.config,
        "colour = 1\n[agents.mine]\ncommand = [\"/bin/sh\", \"-c\", \"exit 3\"]\n[agents.gone]\ncommand = [\"/nonexistent/x\"]\n",
    )
    .unwrap();
    let document = desk.run(&["doctor", "--json"]).json();
    let agents = document["agents"].as_array().unwrap();
    let agent = |name: &str| agents.iter().find(|agent| agent["agent"] == name).unwrap();
    assert_eq!(agent("mine"), &json!({ "agent": "mine", "found": "/bin/sh" }));
    assert!(agent("gone")["found"].is_null() && agent("gone").get("starts").is_none());
    let findings = document["findings"].to_string();
    assert!(findings.contains("colour") && findings.contains("warning"), "{findings}");
}

#[test]
fn doctor_without_a_daemon_fails_for_a_configuration_that_cannot_be_used() {
    let desk = FakeDesk::absent();
    std::fs::write(&desk.paths.config, "[agents.mine]\ncommand = 7\n").unwrap();
    let ran = desk.run(&["doctor"]);
    assert_eq!(ran.exit, Exit::Failed, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("bad      config") && ran.out.contains(":2"), "{}", ran.out);
}

#[test]
fn doctor_fails_for_an_agent_that_is_there_and_does_not_start() {
    let desk = FakeDesk::start(|message, peer| match message["method"].as_str().unwrap() {
        "_frontdesk/info" => {
            let info = json!({ "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(), "sessions": 1 });
            peer.reply(message, &info);
        }
        "_frontdesk/agents" => {
            peer.reply(message, &json!({ "agents": [{ "name": "bad", "found": "/bad" }] }));
        }
        _ => peer.reply(
            message,
            &json!({ "agent": "bad", "found": "/bad", "starts": false, "error": "exit\u{7} 1" }),
        ),
    });
    let ran = desk.run(&["doctor"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.out.contains("bad: exit 1") && ran.out.contains("1 known sessions"), "{}", ran.out);
}

#[test]
fn stop_waits_until_socket_and_process_are_gone() {
    let mut daemon =
        std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let pid = daemon.id();
    let mut stdin = daemon.stdin.take();
    let desk = FakeDesk::start(move |message, peer| {
        if message["method"] == "_frontdesk/info" {
            peer.reply(message, &json!({ "pid": pid, "active": 1, "instances": 2 }));
        } else {
            peer.reply(message, &json!({}));
            drop(stdin.take());
        }
    });
    let socket = desk.paths.socket();
    let remover = std::thread::spawn(move || {
        daemon.wait().unwrap();
        std::fs::remove_file(socket).unwrap();
    });
    let ran = desk.run(&["stop"]);
    remover.join().unwrap();
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert_eq!(ran.out, format!("stopped pid {pid}: 1 loaded session, 2 agent processes ended\n"));
}

#[test]
fn a_refused_connection_tells_why() {
    // An answer without an id: the daemon could not tie the error to a request.
    let desk = FakeDesk::start(|_, peer| {
        let error = json!({ "code": -31012, "message": "too many connections" });
        peer.send(&json!({ "jsonrpc": "2.0", "id": null, "error": error }));
    });
    let ran = desk.run(&["ls"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("too many connections"), "{}", ran.err);
}
