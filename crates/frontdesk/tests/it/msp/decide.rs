//! Approvals are decided once, by whoever is first, on whatever face.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{client, desk, hear, kind, session};
use crate::acp::{ANSWER, Acp, Reply, prompt};

const ONE: &str = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";
const TWO: &str = "01a22bb6-2da2-7132-b868-40a3a5d1f520";

fn pending(client: &mut Acp, id: &str) -> Vec<Value> {
    let told = client.ok("approval/listPending", json!({ "sessionId": id }));
    told["approvals"].as_array().unwrap().clone()
}

#[test]
fn an_approval_is_decided_once_and_told_to_both_faces() {
    let mut desk = desk().open();
    let (mut acp, id) = session(&desk, Arc::new(|_| Reply::Silence));
    let mut one = client(&desk, json!({}));
    one.ok("view/subscribe", json!({ "sessionId": id }));
    let (from, from_one) = (acp.mark(), one.mark());
    let running = acp.begin("session/prompt", prompt(&id, "ask May I?"));
    acp.wait_ask(from, "session/request_permission");
    let asked = hear(&one, from_one, "approval/requested", |_| true);
    let open = pending(&mut one, &id);
    assert_eq!((open.len(), &open[0]["approvalId"]), (1, &asked["approvalId"]));
    // The command line means the same by the same id.
    let listed = acp.ok("_frontdesk/pending", json!({}));
    assert_eq!(listed["pending"][0]["interaction"], asked["approvalId"]);

    let decide = |command: &str, choice: &str| {
        json!({
            "sessionId": id, "commandId": command, "approvalId": asked["approvalId"],
            "requirementId": asked["currentRequirementId"], "choiceId": choice,
        })
    };
    assert_eq!(
        kind(&one.err("approval/decide", decide(ONE, "never"))),
        (-32052, "approvalChoiceInvalid")
    );
    // A kind or a name is no id of a choice here.
    assert_eq!(
        kind(&one.err("approval/decide", decide(ONE, "Allow once"))),
        (-32052, "approvalChoiceInvalid")
    );
    let mut stale = decide(ONE, "allow_once");
    stale["requirementId"]["sourceIndex"] = json!(1);
    assert_eq!(kind(&one.err("approval/decide", stale)), (-32053, "approvalRequirementStale"));
    let mut other = decide(ONE, "allow_once");
    other["approvalId"] = json!("ask_1");
    other["requirementId"] = json!({ "approvalId": "ask_1", "sourceIndex": 0 });
    assert_eq!(kind(&one.err("approval/decide", other)), (-32050, "approvalNotFound"));
    assert_eq!(pending(&mut one, &id).len(), 1, "nothing of that decided it");

    let ack = one.ok("approval/decide", decide(ONE, "allow_always"));
    let wanted = json!({
        "commandId": ONE, "status": "accepted", "approvalId": asked["approvalId"], "terminal": true,
    });
    assert_eq!(ack, wanted);
    assert_eq!(acp.wait(running, ANSWER).unwrap()["stopReason"], "end_turn");
    assert_eq!(acp.text(&id, "agent_message_chunk", from), "Allowed (allow_always).");
    acp.wait_frame(from, "the withdrawal", |frame| frame["method"] == "$/cancel_request");
    let told = hear(&one, from_one, "approval/resolved", |_| true);
    assert_eq!(
        (&told["decision"], &told["resolvedBy"], &told["decidedByCommandId"]),
        (&json!("approvedForSession"), &json!("user"), &json!(ONE))
    );
    assert_eq!(pending(&mut one, &id), Vec::<Value>::new());

    // The same command has the same answer, also behind a restart; another one is told who was first.
    assert_eq!(one.ok("approval/decide", decide(ONE, "allow_always")), ack);
    desk.kill_all();
    desk.start();
    let mut two = client(&desk, json!({}));
    assert_eq!(two.ok("approval/decide", decide(ONE, "allow_always")), ack);
    let conflict = two.err("approval/decide", decide(ONE, "reject_once"));
    assert_eq!(
        (kind(&conflict).0, &conflict.data["reason"]),
        (-32030, &json!("command_id_conflict"))
    );
    let late = two.err("approval/decide", decide(TWO, "reject_once"));
    assert_eq!(kind(&late), (-32051, "approvalAlreadyResolved"));
    let resolution = &late.data["resolution"];
    assert_eq!(resolution["decision"], "approvedForSession");
    assert_eq!(resolution["viewCursor"], told["viewCursor"]);
}
