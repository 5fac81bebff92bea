//! The published MSP SDKs as clients of `muse serve`, in front of the demo agent.
//!
//! The Python script checks every frame against the SDK's generated models and most of what they
//! say; the Rust client reads every result into its SDK's types. Their reports are looked at here.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::acp::refuse_all;
use crate::desk::{AgentSpec, Desk, frontdesk};
use crate::interop::parts::{parts, scripts};

/// A desk with the demo agent, and this program under the name that MSP SDKs look for.
fn muse_desk() -> (Desk, PathBuf) {
    let demo = AgentSpec::new("demo", [frontdesk(), Path::new("demo-agent")]);
    let desk = Desk::builder().agent(demo).open();
    let muse = desk.home().join("muse");
    symlink(frontdesk(), &muse).unwrap();
    (desk, muse)
}

/// Runs a client to its end; its report.
fn report(command: &mut Command) -> Value {
    let out = command.stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "the client failed: {stderr}");
    serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|error| panic!("no report ({error}): {stderr}"))
}

#[test]
fn the_python_msp_sdk_accepts_every_frame_on_both_surfaces() {
    let parts = parts!();
    let (desk, muse) = muse_desk();
    let mut command = desk.command(parts.msp_python());
    command.arg(scripts().join("python/msp_client.py")).arg(muse).arg(frontdesk()).arg(desk.work());
    let report = report(command.env("PYTHONDONTWRITEBYTECODE", "1"));

    assert_eq!(report["exits"], json!([0, 0]));
    assert!(report["live"]["text"].as_str().unwrap().contains("chunk 5 of 5"), "{report}");
    for (which, decision, result, tool) in
        [("allowed", "approved", "allow", "completed"), ("denied", "denied", "deny", "rejected")]
    {
        let want = json!({ "decision": decision, "result": result, "by": "user", "tool": tool });
        assert_eq!(report[which], want, "{which}");
    }
    let ack = json!({ "status": "accepted", "name": "Fix the parser" });
    assert_eq!(report["rename"]["ack"], ack);
    let refused = &report["rename"]["refused"];
    assert_eq!(
        (&refused["code"], &refused["reason"]),
        (&json!(-32030), &json!("command_id_conflict"))
    );
    assert_eq!(report["fork"]["history"], "inline");
    assert_eq!(report["fork"]["cut"]["kind"], "forkBoundaryInvalid");
    assert_eq!(report["pages"]["history"], "inline");
    assert_eq!(report["closed"], json!({ "reason": "leave", "cursor": true }));
    let kinds: Vec<(&str, i64, &str)> = [
        ("unknown", -32020, "sessionNotFound"),
        ("method", -32601, "methodNotFound"),
        ("params", -32602, "invalidParams"),
        ("limit", -32602, "invalidParams"),
        ("cursor", -32602, "invalidParams"),
        ("filter", -32602, "invalidParams"),
        ("again", -32600, "alreadyInitialized"),
        ("anchor", -32011, "notFound"),
        ("ahead", -32011, "notFound"),
        ("both", -32602, "invalidParams"),
        ("compaction", -32042, "noBoundary"),
        ("experimental", -32601, "experimentalRequired"),
        ("experimentalParam", -32602, "experimentalRequired"),
    ]
    .to_vec();
    for (name, code, kind) in kinds {
        let error = &report["errors"][name];
        assert_eq!((&error["code"], &error["kind"]), (&json!(code), &json!(kind)), "{name}");
    }
    for (surface, least) in [("stable", 14), ("experimental", 14)] {
        let checked = report["checked"][surface].as_object().unwrap();
        assert!(checked.len() >= least, "{surface}: {checked:?}");
    }
}

#[test]
fn the_rust_msp_sdk_connects_and_reads_every_result_into_its_types() {
    let parts = parts!();
    let (desk, muse) = muse_desk();
    let mut acp = desk.acp("demo", refuse_all());
    acp.initialize(json!({}));
    let made = acp.ok("session/new", json!({ "cwd": desk.work(), "mcpServers": [] }));
    let id = made["sessionId"].as_str().unwrap();
    acp.turn(id, "stream 3").0.unwrap();
    let report = report(desk.command(parts.msp_rust()).arg(muse).arg(id));

    assert_eq!(report["warned"], false, "its own release's fingerprint is shown");
    assert_eq!(report["server"], "frontdesk");
    assert_eq!(report["turnStart"], "MethodNotFound");
    assert_eq!((&report["wrong"], &report["exit"]), (&json!(false), &json!(0)));
    assert_eq!(report["read"]["sessionId"], id);
    assert_eq!(report["read"]["turnCount"], 1);
    assert_eq!(report["history"], 2);
    let replayed: Vec<&str> =
        report["replayed"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(replayed.iter().filter(|method| **method == "item/delta").count(), 3);
    assert_eq!(replayed.last(), Some(&"turn/completed"));
}
