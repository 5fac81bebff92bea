//! What is kept about a session, as the Session object shows it.

use serde_json::{Value, json};

use super::{allow, client, desk, kind, session};
use crate::acp::Acp;

fn read(one: &mut Acp, id: &str) -> Value {
    one.ok("session/read", json!({ "sessionId": id }))["session"].clone()
}

#[test]
fn a_policy_is_served_once_the_agent_is_known_to_ask_and_not_in_a_mode_that_does_not() {
    let desk = desk().open();
    let mut one = client(&desk, json!({}));
    let (mut acp, id) = session(&desk, allow(&desk));
    acp.ok("_frontdesk/policy", json!({ "sessionId": id, "mode": "onRequest" }));
    acp.turn(&id, "say x").0.unwrap();
    assert!(read(&mut one, &id).get("approvalMode").is_none(), "nobody knows whether it asks");
    acp.turn(&id, "ask May I?").0.unwrap();
    let mode =
        json!({ "mode": "onRequest", "source": "approvalReconfigure", "lastCommandId": null });
    assert_eq!(read(&mut one, &id)["approvalMode"], mode);
    let bypass = r#"update {"sessionUpdate":"config_option_update","configOptions":[{"id":"mode","category":"mode","currentValue":"yolo"}]}"#;
    acp.turn(&id, bypass).0.unwrap();
    assert!(read(&mut one, &id).get("approvalMode").is_none(), "it does not ask in this mode");
}

#[test]
fn a_subagent_is_a_session_of_its_own_and_no_part_of_its_parents_view() {
    let desk = desk().open();
    let mut one = client(&desk, json!({}));
    let (mut acp, id) = session(&desk, allow(&desk));
    acp.turn(&id, "say mine\nsubagent look around").0.unwrap();
    let listed = one.ok("session/list", json!({}));
    let rows = listed["sessions"].as_array().unwrap();
    let child = rows.iter().find(|row| row["kind"] == "subagent").expect("a row for the child");
    assert_eq!(child["parentSessionId"], id);
    assert!(child.get("createdByClient").is_none(), "{child}");
    assert_eq!(child["status"], "idle", "it is where its parent is");
    let child = child["sessionId"].as_str().unwrap().to_owned();
    let parents = read_all(&mut one, &id);
    assert!(parents.contains("mine"), "{parents}");
    assert!(!parents.contains("Working on look around"), "{parents}");
    let childs = read_all(&mut one, &child);
    assert!(childs.contains("Working on look around"), "{childs}");
    // It is its parent's: nobody else has it go on, also not as a fork.
    let command = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";
    let error = one.err("session/fork", json!({ "commandId": command, "sessionId": child }));
    assert_eq!(kind(&error), (-32601, "methodNotFound"));
    let error = acp.err("_frontdesk/fork", json!({ "sessionId": child }));
    assert_eq!((error.code, &error.data["parent"]), (-32601, &json!(id)));
}

/// All events of a session, page by page, as text.
fn read_all(one: &mut Acp, id: &str) -> String {
    let page = one
        .ok("view/page", json!({ "sessionId": id, "limit": 1000, "cursor": format!("v:{id}:0") }));
    page.to_string()
}
