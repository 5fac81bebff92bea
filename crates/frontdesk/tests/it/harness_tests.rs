//! The harness itself: a check that cannot fail is no check.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::acp::{Acp, Reply, refuse_all};
use crate::desk::{AgentSpec, Desk, INSTANCE_MARK};
use crate::editor::{Permission, editor};

/// A peer that is a shell script: it may read lines from its stdin and print some.
fn peer(script: &str) -> Acp {
    Acp::spawn("peer", Command::new("sh").args(["-c", script]), refuse_all())
}

/// Whether `action` panics with a message that contains `words`.
fn fails(words: &str, action: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    let Err(cause) = std::panic::catch_unwind(action) else { return false };
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| cause.downcast_ref::<&str>().copied()).is_some_and(|it| it.contains(words))
}

#[test]
fn an_answer_that_does_not_come_fails_the_test_at_once_when_the_stream_has_ended() {
    let since = Instant::now();
    assert!(fails("the stream ended", || {
        let _ = peer("read line").request("a", json!({}));
    }));
    assert!(since.elapsed() < Duration::from_secs(30), "it waited for the limit");
    assert!(fails("no sight of", || {
        let mut slow = peer("sleep 60");
        let pending = slow.begin("a", json!({}));
        let _ = slow.wait(pending, Duration::from_millis(50));
    }));
}

#[test]
fn a_second_answer_to_one_request_fails_the_next_wait() {
    let twice = r#"read line
        for i in 1 2; do echo '{"jsonrpc":"2.0","id":1,"result":{}}'; done
        read line; echo '{"jsonrpc":"2.0","id":2,"result":{}}'; read line"#;
    assert!(fails("answered twice", || {
        let mut client = peer(twice);
        let _ = client.request("a", json!({}));
        let _ = client.request("b", json!({}));
    }));
}

#[test]
fn updates_noise_and_requests_are_told_apart() {
    let script = r#"echo 'hello, I am no JSON'
        echo '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"one"}}}}'
        echo '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"t","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"two"}}}}'
        echo '{"jsonrpc":"2.0","id":"q","method":"fs/read_text_file","params":{"path":"/x"}}'
        read answer; echo "$answer" >&2; read line
        echo '{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"gone","data":{"sessionId":"s"}}}'
        read line"#;
    let mut client = peer(script);
    client.answer_with(Arc::new(|_| Reply::Result(json!({ "content": "text" }))));
    let ask = client.wait_ask(0, "fs/read_text_file");
    assert_eq!((ask.id, &ask.params["path"]), (json!("q"), &json!("/x")));
    // The script reads the answer first, whichever of the two lines that is.
    std::thread::sleep(Duration::from_millis(100));
    let error = client.err("a", json!({}));
    assert_eq!((error.code, error.data), (-32002, json!({ "sessionId": "s" })));
    assert_eq!(client.text("s", "agent_message_chunk", 0), "one");
    assert_eq!(client.updates("t", 0).len(), 1);
    assert!(client.transcript().contains("<! hello, I am no JSON"));
}

#[test]
fn instances_are_counted_by_their_marks_and_end_with_the_desk() {
    let desk = Desk::builder().build();
    let start = |instance: Option<&str>| {
        let mut command = desk.command("sh");
        command.args(["-c", "sleep 60 & sleep 60"]).stdin(Stdio::null());
        if let Some(instance) = instance {
            command.env(INSTANCE_MARK, instance);
        }
        command.spawn().unwrap()
    };
    let mut children = vec![start(None), start(Some("a")), start(Some("b"))];
    desk.wait_instances(2, Duration::from_secs(5));
    let watch = desk.watch();
    std::thread::sleep(Duration::from_millis(200));
    assert!(fails("2 instances at once", std::panic::AssertUnwindSafe(|| watch.at_most(1))));
    let marked = desk.processes();
    assert!(marked.len() > 2, "a shell and its children carry one mark: {marked:?}");
    drop(desk);
    for child in &mut children {
        child.wait().unwrap();
    }
    let left = marked.iter().filter(|it| Path::new(&format!("/proc/{}/exe", it.pid)).exists());
    assert_eq!(left.count(), 0, "processes were left behind");
}

#[test]
fn the_configuration_says_what_the_test_asked_for() {
    let agent = AgentSpec::new("a", ["/bin/cat", "with \"quotes\" and \\"])
        .env("KEY", "va\"lue")
        .setting("sessions_per_instance = 2");
    let desk =
        Desk::builder().agent(agent).setting("idle_unload_s = 5").limit("probe_ms", 2000).build();
    let text = std::fs::read_to_string(desk.home().join("config.toml")).unwrap();
    let table: toml::Table = toml::from_str(&text).unwrap();
    assert_eq!(table["default_agent"].as_str(), Some("a"));
    assert_eq!(table["limits"]["probe_ms"].as_integer(), Some(2000));
    let agent = &table["agents"]["a"];
    assert_eq!(agent["command"][1].as_str(), Some("with \"quotes\" and \\"));
    assert_eq!(agent["env"]["KEY"].as_str(), Some("va\"lue"));
    assert_eq!(agent["sessions_per_instance"].as_integer(), Some(2));
    assert!(desk.socket().as_os_str().len() < 60, "socket paths are limited");
}

#[test]
fn the_editor_serves_files_terminals_and_answers() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |permission, method: &str, params| {
        let ask = crate::acp::Ask { id: json!(1), method: method.to_owned(), params };
        match editor(folder.path(), permission)(&ask) {
            Reply::Result(value) => value,
            other => json!(format!("{other:?}")),
        }
    };
    let options = json!({ "options": [
        { "kind": "reject_once", "optionId": "no" }, { "kind": "allow_once", "optionId": "yes" }
    ]});
    for (permission, wanted) in [
        (Permission::Allow, json!({ "outcome": "selected", "optionId": "yes" })),
        (Permission::Reject, json!({ "outcome": "selected", "optionId": "no" })),
        (Permission::Cancel, json!({ "outcome": "cancelled" })),
    ] {
        let answer = serve(permission, "session/request_permission", options.clone());
        assert_eq!(answer["outcome"], wanted);
    }
    let path = folder.path().join("f");
    let allow = Permission::Allow;
    serve(allow, "fs/write_text_file", json!({ "path": path, "content": "text" }));
    let read = serve(allow, "fs/read_text_file", json!({ "path": path }));
    assert_eq!(read["content"], "text");
    let missing = serve(allow, "fs/read_text_file", json!({ "path": "/no/such/file" }));
    assert!(missing.as_str().is_some_and(|it| it.contains("-32603")), "{missing}");
    let unknown = serve(allow, "no/such_method", json!({}));
    assert!(unknown.as_str().is_some_and(|it| it.contains("-32601")), "{unknown}");
}
