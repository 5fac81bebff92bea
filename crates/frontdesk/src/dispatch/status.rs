//! `session/status`: answered from the directory, in no lane, behind nothing. Only where our own
//! table does not know, running instances with the marker are asked, all at once.

use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::WireError;
use frontdesk_core::route::Meaning;
use frontdesk_core::status::{Facts, Heard, answer, hear};
use serde_json::json;

use super::session_id;
use crate::agent::instance::Instance;
use crate::conn::Conn;
use crate::node::Node;
use crate::node::directory::Row;
use crate::node::standing::Standing;

pub(super) fn status(node: &Arc<Node>, conn: &Arc<Conn>, frame: &Frame) {
    let id = frame.id().unwrap_or("null");
    let asked = match session_id(frame) {
        Ok(asked) => asked.into_owned(),
        Err(error) => {
            conn.send(Frame::failure(id, &error.to_json()));
            return;
        }
    };
    match own_facts(node, conn, &asked) {
        Own::Known(facts) => reply(conn, id, &asked, *facts),
        Own::Deleted => reply(conn, id, &asked, Facts::default()),
        Own::Unknown => {
            let incomplete = node.standings.now() != Standing::Complete;
            if askable(node).is_empty() && node.unread_lists().is_empty() {
                let facts = Facts { incomplete, ..Facts::default() };
                return reply(conn, id, &asked, facts);
            }
            let (node, conn, id) = (node.clone(), conn.clone(), id.to_owned());
            tokio::spawn(async move {
                let mut facts = ask_others(&node, &conn, &asked).await;
                facts.incomplete |= incomplete;
                reply(&conn, &id, &asked, facts);
            });
        }
    }
}

/// What others know: instances that answer for themselves, and lists that are being read just now.
async fn ask_others(node: &Node, conn: &Conn, asked: &str) -> Facts {
    let askable = askable(node);
    let names: Vec<String> = askable.iter().map(|instance| instance.agent.name.clone()).collect();
    let limit = Duration::from_millis(node.limits.probe_ms);
    let (mut facts, ()) = tokio::join!(ask(node, askable, asked), node.lists.settle(limit));
    if let Own::Known(own) = own_facts(node, conn, asked) {
        return *own;
    }
    // Who answers for itself needs no list.
    let unread = node.unread_lists().into_iter().filter(|name| !names.contains(name));
    facts.unreachable.extend(unread);
    facts
}

/// What our own table knows of an id.
enum Own {
    Known(Box<Facts>),
    Deleted,
    Unknown,
}

fn own_facts(node: &Node, conn: &Conn, asked: &str) -> Own {
    // A key means its session on every endpoint: one look-up, not one for the meaning as well.
    let by_key = asked.parse().ok().and_then(|key| node.directory.get(key));
    if let Some(row) = by_key {
        return Own::Known(Box::new(facts_of(node, row)));
    }
    let (meaning, deleted) = node.directory.look_up(asked, conn.bound.as_deref());
    let facts = match meaning {
        Meaning::One(key) => node.directory.get(key).map(|row| facts_of(node, row)),
        Meaning::Unknown if deleted => return Own::Deleted,
        Meaning::Unknown => None,
        Meaning::Several(keys) => {
            // Several sessions have this id and none is loaded, or more than one is.
            let rows: Vec<_> = keys.iter().filter_map(|key| node.directory.get(*key)).collect();
            let facts = rows.iter().map(|row| row.facts()).max_by_key(|f| f.loaded.is_some());
            let keys = keys.iter().map(ToString::to_string).collect();
            facts.map(|facts| Facts { keys, ..facts })
        }
    };
    facts.map_or(Own::Unknown, |facts| Own::Known(Box::new(facts)))
}

fn facts_of(node: &Node, row: Arc<Row>) -> Facts {
    let behind = node.log.is_behind(row.key);
    // A child is where its parent is.
    let row = node.parent_of(&row).unwrap_or(row);
    let facts = row.facts();
    let suspect = facts.suspect || (!row.is_loaded() && node.suspected(&row.view).is_some());
    Facts { held_by: node.held_by(&row), behind, suspect, ..facts }
}

/// A probe is answered at once or soon, so it is not kept among the open requests.
fn reply(conn: &Conn, id: &str, asked: &str, facts: Facts) {
    conn.send(match answer(asked, facts) {
        Ok(answer) => Frame::success(id, &answer.v1(conn.words)),
        Err(error) => Frame::failure(id, &error.to_json()),
    });
}

/// Running instances that offer the method: nothing is started to answer a probe.
fn askable(node: &Node) -> Vec<Arc<Instance>> {
    let running = node.running_instances();
    running.into_iter().filter(|i| i.abilities().status && i.has_ended().is_none()).collect()
}

/// Asks instances, all at once, each for at most `probe_ms`.
pub(super) async fn ask(node: &Node, instances: Vec<Arc<Instance>>, asked: &str) -> Facts {
    let limit = Duration::from_millis(node.limits.probe_ms);
    let params = json!({ "sessionId": asked }).to_string();
    let probes: Vec<_> = instances
        .into_iter()
        .map(|instance| {
            let params = params.clone();
            tokio::spawn(async move {
                let call = instance.call("session/status", &params, u64::MAX / 2);
                let heard = tokio::time::timeout(limit, call).await.ok().and_then(Result::ok);
                (instance.agent.name.clone(), heard)
            })
        })
        .collect();
    let mut facts = Facts::default();
    for probe in probes {
        let Ok((agent, heard)) = probe.await else { continue };
        match heard {
            Some(frame) => match (frame.result().map(hear), frame.error()) {
                (Some(Heard::Loaded), _) => {
                    facts.heard = Some(Heard::Loaded);
                    facts.agent = Some(agent);
                }
                (Some(Heard::Cold), _) if facts.heard != Some(Heard::Loaded) => {
                    facts.heard = Some(Heard::Cold);
                    facts.agent = Some(agent);
                }
                (Some(Heard::Cold), _) => {}
                (_, Some(error)) if is_not_found(error) => {}
                (Some(Heard::Malformed) | None, _) => facts.unreachable.push(agent),
            },
            None => facts.unreachable.push(agent),
        }
    }
    facts
}

fn is_not_found(error: &str) -> bool {
    let code = WireError::not_found("").code.number();
    let value: serde_json::Value = serde_json::from_str(error).unwrap_or_default();
    value.get("code").and_then(serde_json::Value::as_i64) == Some(code)
}
