//! `_frontdesk/who`, `take` and `release`: who has a session, and moving it.

use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::lease::Phase;
use frontdesk_core::session::{By, Input};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::open::by;
use crate::conn::Conn;
use crate::node::Node;
use crate::node::directory::Row;
use crate::session::{LaneHandle, LaneMsg, Taken};

/// How often a lease that is about to change is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Who has a session, and how to get it. Asks no agent and changes nothing; its lane gets as long as a
/// probe.
pub(super) async fn who(node: &Arc<Node>, row: &Row) -> Value {
    let asked = row.public_id();
    let row = node.parent_of(row).unwrap_or_else(|| Arc::new(row.clone()));
    let mut who = super::ext::row_json(node, &row);
    if let Some(who) = who.as_object_mut() {
        who.retain(|name, _| {
            let kept = [
                "key", "agent", "nativeId", "status", "state", "source", "ageMs", "owner",
                "aliases",
            ];
            kept.contains(&name.as_str())
        });
    }
    who["sessionId"] = json!(asked);
    who["node"] = json!({
        "host": std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim(),
        "pid": std::process::id(),
        "socket": node.paths.socket(),
    });
    who["lateWrites"] = json!(node.late_writes(row.key));
    who["clients"] = json!([]);
    who["epoch"] = json!(row.view.epoch);
    let suspected = node.suspected(&row.view).filter(|_| !row.is_loaded());
    let lease = match (&row.live, &suspected) {
        (Some(live), _) => live.lease,
        (None, Some(_)) => Phase::Suspect,
        (None, None) if row.view.resumable == Some(false) => Phase::Lost,
        (None, None) => Phase::Cold,
    };
    who["lease"] = json!(lease.word());
    if let Some(place) = suspected {
        who["place"] = json!(place);
        who["status"] = json!("active");
    }
    if let Some(holder) = node.holder_of(&row) {
        who["heldBy"] = holder.to_json();
    }
    let also = node.also_held(&row);
    if !also.is_empty() {
        who["alsoHeld"] = json!(also);
    }
    match super::ext::described(node, &row, super::ext::word_by(node)).await {
        Some(live) => {
            for name in ["clients", "epoch", "lateWrites", "place"] {
                who[name] = live[name].clone();
            }
        }
        None if node.running_lane(row.key).is_none() => {}
        // It gives no word, most often since it cannot write: who takes part is not known.
        None => {
            who["clients"] = Value::Null;
            who["behind"] = json!(node.log.is_behind(row.key).then_some(true));
        }
    }
    if let Some(words) = way_in(&who) {
        who["takeOver"] = json!(words);
    }
    if let Some(who) = who.as_object_mut() {
        who.retain(|_, value| !value.is_null());
    }
    who
}

/// How to get a session that somebody has.
fn way_in(who: &Value) -> Option<String> {
    let id = who["sessionId"].as_str()?;
    let held = &who["heldBy"];
    if held.is_object() {
        let there = if held["alive"] == true { "asks" } else { "needs" };
        return Some(format!("frontdesk take {id} ({there} the daemon that holds it)"));
    }
    let is_held = !matches!(who["lease"].as_str(), Some("cold" | "lost"));
    is_held.then(|| format!("load or resume it to join; frontdesk take {id} ends it where it is"))
}

/// Takes a session from whoever has it.
///
/// # Errors
/// `-32601` of a subagent's session, `-31005` if another home has it and does not let go, `-31003` if
/// nothing came of it in time.
pub(super) async fn take(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    row: Arc<Row>,
) -> Result<Value, WireError> {
    not_a_child(&row)?;
    node.not_behind(Some(row.key))?;
    let asked = row.public_id();
    if let Some(holder) = node.holder_of(&row) {
        let there = node.ask_to_release(&holder, &asked).await?;
        let owner = load(node, &row).await?;
        return Ok(json!({
            "sessionId": asked, "key": row.key, "taken": true, "from": holder.to_json(),
            "there": there, "lease": "live", "epoch": owner["epoch"], "owner": owner,
        }));
    }
    let until = outcome_by(node);
    let before = in_time(until, who(node, &row)).await?;
    let Some(lane) = take_here(node, &row, by(conn), until).await? else {
        // Somebody else may have taken it meanwhile.
        let lease = match node.running_lane(row.key) {
            Some(lane) => described(&lane, until).await?["lease"].clone(),
            None => before["lease"].clone(),
        };
        return Ok(json!({
            "sessionId": asked, "key": row.key, "taken": false, "lease": lease,
        }));
    };
    let after = described(&lane, until).await?;
    Ok(json!({
        "sessionId": asked,
        "key": row.key,
        "taken": true,
        "from": before.get("owner").or(before.get("place")),
        "lease": after["lease"],
        "place": after["place"],
        "epoch": after["epoch"],
        "clients": after["clients"],
        "lateWrites": after["lateWrites"],
    }))
}

/// Lets a session go that another home of this user wants.
///
/// # Errors
/// As [`take`]; and `-31005` if its agent could not be told, so that it may still have it.
pub(super) async fn release(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    row: Arc<Row>,
) -> Result<Value, WireError> {
    not_a_child(&row)?;
    node.not_behind(Some(row.key))?;
    let until = outcome_by(node);
    let Some(lane) = take_here(node, &row, by(conn), until).await? else {
        return Ok(json!({ "released": true, "key": row.key }));
    };
    let after = described(&lane, until).await?;
    if after["lease"] != "cold" && after["lease"] != "lost" {
        let text =
            "its agent could not be told to let it go, and cannot be ended: it has other work";
        return Err(WireError::new(Code::HeldElsewhere, text)
            .with_data(json!({ "key": row.key, "lease": after["lease"] })));
    }
    Ok(json!({ "released": true, "key": row.key, "epoch": after["epoch"] }))
}

/// A subagent's session is where its parent is.
fn not_a_child(row: &Row) -> Result<(), WireError> {
    let Some(parent) = &row.view.parent else { return Ok(()) };
    let text = format!("a subagent's session cannot be taken; its parent is {parent}");
    Err(WireError::new(Code::MethodNotFound, text).with_data(json!({ "parent": parent })))
}

/// When a take has to have an outcome: a start or an unload that is on its way has one first.
fn outcome_by(node: &Node) -> Instant {
    let start = Duration::from_millis(node.limits.agent_start_ms + node.limits.agent_open_ms);
    Instant::now() + node.unload_limit() + start
}

/// Takes a session that this daemon has, or that an agent of its may have. `None` if nobody has it,
/// also where somebody else has just taken it.
async fn take_here(
    node: &Arc<Node>,
    row: &Row,
    by: By,
    until: Instant,
) -> Result<Option<LaneHandle>, WireError> {
    if !row.is_loaded() && node.suspected(&row.view).is_none() {
        return Ok(None);
    }
    let lane = node.lane(row.key).ok_or_else(|| WireError::not_found(&row.public_id()))?;
    loop {
        settle(node, &lane, until).await?;
        let (told, taken) = oneshot::channel();
        let taken = in_time(until, async {
            lane.send(LaneMsg::Take { by: by.clone(), told }).await;
            node.written(row.key, taken).await
        });
        match taken.await?? {
            Taken::Took => break,
            Taken::Nobody => return Ok(None),
            // Another one was quicker.
            Taken::NotYet => {}
        }
    }
    settle(node, &lane, until).await?;
    Ok(Some(lane))
}

/// Waits until nothing about a lease is on its way.
async fn settle(node: &Node, lane: &LaneHandle, until: Instant) -> Result<(), WireError> {
    loop {
        // Through the lane, so that it is behind what came before.
        let lease = described(lane, until).await?["lease"].clone();
        if !matches!(lease.as_str(), Some("claiming" | "starting" | "draining")) {
            // The lane answers before it writes and publishes what it took in together with this: a
            // second answer is behind that.
            described(lane, until).await?;
            return Ok(());
        }
        if Instant::now() > until || node.is_stopping() {
            let text = format!("the session is still {lease}; try again in a moment");
            return Err(WireError::new(Code::AgentTimeout, text));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What a lane says of itself; nothing if it has ended.
async fn described(lane: &LaneHandle, until: Instant) -> Result<Value, WireError> {
    let live = lane.describe(until).await.map_err(|_| no_answer())?;
    Ok(live.unwrap_or_default())
}

/// A lane that cannot write answers nobody, and whoever takes is not to wait for ever.
async fn in_time<T>(until: Instant, answer: impl Future<Output = T>) -> Result<T, WireError> {
    timeout_at(until, answer).await.map_err(|_| no_answer())
}

fn no_answer() -> WireError {
    let text = "the session does not answer, its journal may not be written; ask `_frontdesk/who` what became of it";
    WireError::new(Code::AgentTimeout, text)
}

/// Loads a session here that another home has let go. Its owner.
async fn load(node: &Arc<Node>, row: &Row) -> Result<Value, WireError> {
    let failed = |why: &str| {
        let text = format!(
            "the other home has let the session go, but {why}; load it here, or there again"
        );
        WireError::new(Code::AgentStart, text).with_data(json!({ "key": row.key }))
    };
    let lane = node.lane(row.key).ok_or_else(|| failed("it is not known here any more"))?;
    let until = Instant::now()
        + Duration::from_millis(node.limits.agent_start_ms + node.limits.agent_open_ms);
    let (done, is_done) = oneshot::channel();
    let woken = in_time(until, async {
        lane.send(LaneMsg::Durable { inputs: vec![Input::Wake], done }).await;
        node.written(row.key, is_done).await
    });
    if let Err(error) = woken.await.flatten() {
        return Err(failed(&error.message));
    }
    settle(node, &lane, until).await?;
    let row = node.directory.get(row.key).filter(|row| row.is_live());
    let owner = row.and_then(|row| row.live.as_ref()?.owner.clone());
    owner.map(|owner| json!(*owner)).ok_or_else(|| failed("its agent did not open it here"))
}
