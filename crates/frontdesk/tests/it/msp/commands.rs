//! Commands are carried out once, whoever repeats them and whatever restarts in between.

use serde_json::{Value, json};

use super::{allow, client, desk, hear, kind, session};
use crate::acp::{Acp, refuse_all};
use crate::desk::{AgentSpec, Desk, frontdesk};

const ONE: &str = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";
const TWO: &str = "01a22bb6-2da2-7132-b868-40a3a5d1f520";

fn records(desk: &Desk, id: &str, kind: &str) -> usize {
    let out = desk.cli(&["log", id, "--json"]);
    let text = String::from_utf8(out.stdout).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|record| record["kind"] == kind).count()
}

fn list_names(client: &mut Acp) -> Vec<Value> {
    let list = client.ok("session/list", json!({}));
    list["sessions"].as_array().unwrap().iter().map(|row| row["name"].clone()).collect()
}

#[test]
fn a_rename_is_done_once_also_over_a_kill_and_of_a_cold_session() {
    let mut desk = desk().open();
    let mut one = client(&desk, json!({ "requestedCapabilities": ["sessionListStream"] }));
    let (mut acp, id) = session(&desk, refuse_all());
    acp.turn(&id, "say hello").0.unwrap();
    acp.ok("session/close", json!({ "sessionId": id }));
    let from = one.mark();
    let asked = json!({ "commandId": ONE, "sessionId": id, "name": "  Good name " });
    let ack = one.ok("session/rename", asked.clone());
    assert_eq!(ack, json!({ "commandId": ONE, "status": "accepted", "name": "Good name" }));
    let named = |params: &Value| params["session"]["name"] == "Good name";
    let row = hear(&one, from, "session/listChanged", named);
    assert_eq!(row["session"]["status"], "notLoaded");
    assert!(row["session"].get("nameOrigin").is_none());
    // Members may come in any order, and ids in any case of their own.
    let again = json!({ "name": "  Good name ", "sessionId": id, "commandId": ONE });
    assert_eq!(one.ok("session/rename", again), ack);
    desk.kill9();
    desk.start();
    let mut two = client(&desk, json!({}));
    assert_eq!(two.ok("session/rename", asked), ack);
    assert_eq!(list_names(&mut two), ["Good name"]);
    assert_eq!((records(&desk, &id, "renamed"), records(&desk, &id, "command")), (2, 1));
    let other = json!({ "commandId": ONE, "sessionId": id, "name": "Other" });
    let error = two.err("session/rename", other);
    assert_eq!(kind(&error), (-32030, "commandRejected"));
    assert_eq!(error.data["reason"], "command_id_conflict");
    assert_eq!(error.data["commandId"], ONE);
    for bad in [
        json!({ "sessionId": id, "name": "x" }),
        json!({ "commandId": "x", "sessionId": id, "name": "x" }),
        json!({ "commandId": TWO, "sessionId": id, "name": "" }),
        json!({ "commandId": TWO, "sessionId": id, "name": "a\nb" }),
        json!({ "commandId": TWO, "sessionId": id }),
    ] {
        assert_eq!(kind(&two.err("session/rename", bad)), (-32602, "invalidParams"));
    }
}

#[test]
fn a_fork_is_made_once_also_over_a_kill_and_is_followed() {
    let mut desk = desk().open();
    let mut one = client(&desk, json!({}));
    let (mut acp, id) = session(&desk, allow(&desk));
    acp.turn(&id, "say hello").0.unwrap();
    let asked = json!({ "commandId": ONE, "sessionId": id });
    let made = one.ok("session/fork", asked.clone());
    let fork = made["session"]["sessionId"].as_str().unwrap().to_owned();
    assert_ne!(fork, id);
    assert_eq!(made["session"]["forkedFrom"]["sessionId"], json!(id));
    assert_eq!(made["session"]["turnCount"], 0);
    let texts: Vec<&Value> =
        made["history"]["items"].as_array().unwrap().iter().map(|item| &item["text"]).collect();
    assert_eq!(texts, ["say hello", "hello"]);
    // The client follows the fork without asking.
    let from = one.mark();
    acp.ok("session/resume", json!({ "sessionId": fork, "cwd": desk.work(), "mcpServers": [] }));
    acp.turn(&fork, "say more").0.unwrap();
    hear(&one, from, "turn/completed", |params| params["sessionId"] == json!(fork));
    assert_eq!(one.ok("session/fork", asked.clone()), made);
    desk.kill9();
    desk.start();
    let mut two = client(&desk, json!({}));
    assert_eq!(two.ok("session/fork", asked), made, "what was said then, not what is true now");
    assert_eq!(two.ok("session/list", json!({}))["sessions"].as_array().unwrap().len(), 2);
    let other = json!({ "commandId": ONE, "sessionId": id, "excludeItems": true });
    assert_eq!(kind(&two.err("session/fork", other)), (-32030, "commandRejected"));
    let last = two.ok("session/read", json!({ "sessionId": id }))["lastTurn"]["turnId"].clone();
    let end = json!({ "commandId": TWO, "sessionId": id, "excludeItems": true,
        "cutPoint": { "lastTurnId": last } });
    assert_eq!(two.ok("session/fork", end)["history"]["noneReason"], "excluded");
}

#[test]
fn where_the_agent_cannot_fork_the_method_is_not_served() {
    let demo = AgentSpec::new("demo", [frontdesk().to_str().unwrap(), "demo-agent", "--no-fork"]);
    let desk = Desk::builder().agent(demo).open();
    let mut one = client(&desk, json!({}));
    let (_acp, id) = session(&desk, refuse_all());
    let error = one.err("session/fork", json!({ "commandId": ONE, "sessionId": id }));
    assert_eq!(kind(&error), (-32601, "methodNotFound"));
    assert_eq!(records(&desk, &id, "command"), 0);
}
