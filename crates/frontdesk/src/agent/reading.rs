//! The task that reads one instance: answers to whom they belong, everything else to the session
//! it names. Deliver only what the sender owns; count and drop the rest.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use frontdesk_core::envelope::{Frame, Malformed, Message, batch_elements, peek_id};
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::hold::Refusal;
use frontdesk_core::ids::InstanceId;
use frontdesk_core::record::Source;
use frontdesk_core::session::{Input, Position, subagent_update};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::instance::{Birth, Ended, Instance, Opened, Pending, Place};
use super::link::{LinkEvent, LinkReceiver};
use crate::lock::lock;
use crate::session::{LaneHandle, LaneMsg, Mailbox};

/// Pause before the end of an instance is looked for again.
const PROVE_AGAIN: std::time::Duration = std::time::Duration::from_secs(5);

/// Reads until the holder is gone.
pub async fn read(instance: Arc<Instance>, mut link: LinkReceiver) {
    let mut noise = Noise::default();
    let mut events = Vec::new();
    let mut queue = VecDeque::new();
    let mut exit = Value::Null;
    while link.next_batch(&mut events).await {
        queue.extend(events.drain(..));
        while let Some(event) = queue.pop_front() {
            match event {
                LinkEvent::Line { text, end } => {
                    instance.heard.store(instance.now_ms(), Ordering::Relaxed);
                    let start = std::mem::replace(&mut noise.last_end, end);
                    line(&instance, &mut noise, &text, start..end).await;
                }
                LinkEvent::TooLong { head, tail, bytes, end } => {
                    noise.last_end = end;
                    too_long(&instance, &head, &tail, bytes, end).await;
                }
                LinkEvent::Accepted(number) => {
                    instance.accepted.fetch_max(number, Ordering::Relaxed);
                }
                LinkEvent::Refused(number, Refusal::Disk) => {
                    tracing::warn!(instance = %instance.id, number, "a holder could not spool a frame: the disk takes nothing");
                    let text = "the disk is full or takes nothing; the agent did not get this";
                    let pending = lock(&instance.shared).pending.remove(&number);
                    fail(pending, WireError::new(Code::Behind, text)).await;
                    instance.dealt_with(number).await;
                }
                LinkEvent::Refused(number, why) => {
                    tracing::warn!(instance = %instance.id, number, ?why, "a holder did not take a frame");
                    // It gets nothing new; what it still says is read to the end.
                    instance.stop();
                    refused(&instance, number).await;
                }
                // It can be asked nothing more; what it still says is read to the end.
                LinkEvent::InputClosed => instance.stop(),
                LinkEvent::AgentExited(status) => {
                    instance.exit_told.store(true, Ordering::Release);
                    exit = json!(status);
                }
                LinkEvent::Eof { .. } => {
                    if exit.is_null() {
                        // The end of the output may come before the word of how the process ended.
                        let lives = || instance.first_process_lives();
                        exit = json!(link.exit_word(&mut queue, lives).await);
                    }
                    end(&instance, "it closed its output", &exit).await;
                    instance.kill();
                }
                LinkEvent::Gone => {
                    end(&instance, "its processes are gone", &exit).await;
                    instance.kill();
                    instance.gone.send_replace(true);
                }
                LinkEvent::Closed(why) => {
                    end(&instance, &why, &exit).await;
                    // Of the connection; what the agent has it has.
                    instance.gone.send_replace(true);
                }
                LinkEvent::HolderLost => {
                    end(&instance, "its holder is gone", &exit).await;
                    prove_gone(&instance).await;
                }
            }
        }
        instance.nothing_owed(noise.last_end);
    }
    end(&instance, "its holder is gone", &exit).await;
    if !*instance.gone.borrow() {
        prove_gone(&instance).await;
    }
}

/// Without a holder the agent is being killed by the kernel; that is proven before anybody else may
/// load its sessions. Where it cannot be proven now (a process that hangs in the kernel, a folder that
/// cannot be removed) it is tried again: a process that ends later must not keep its sessions for ever.
async fn prove_gone(instance: &Instance) {
    let term = std::time::Duration::from_millis(instance.limits.stop_term_ms);
    while let Err(error) = super::proc::end_recorded(&instance.run_dir, term).await {
        tracing::error!(instance = %instance.id, %error, "failed to prove that an agent is gone");
        tokio::time::sleep(PROVE_AGAIN).await;
    }
    instance.gone.send_replace(true);
}

/// A frame that the holder did not take: whoever waits for its answer is told.
async fn refused(instance: &Arc<Instance>, number: u64) {
    let text = format!(
        "the instance of agent {} has closed its input and takes no requests",
        instance.agent.name
    );
    let error = WireError::new(Code::InstanceEnded, text).with_data(
        json!({ "instance": instance.id, "agent": instance.agent.name, "state": "closed" }),
    );
    let pending = lock(&instance.shared).pending.remove(&number);
    fail(pending, error).await;
    instance.dealt_with(number).await;
}

async fn fail(pending: Option<Pending>, error: WireError) {
    match pending {
        Some(Pending::Lane(lane, tag, _)) => {
            lane.send(LaneMsg::Input(Input::AgentError { tag, error })).await;
        }
        Some(Pending::Call(tx)) => drop(tx.send(Err(error))),
        Some(Pending::Opening(tx, _)) => drop(tx.send(Err(error))),
        Some(Pending::Birth(tx, ..)) => drop(tx.send(Err(error))),
        None => {}
    }
}

/// Text on stdout that is no message: counted, and the first of it told in the debug log.
#[derive(Debug, Default)]
struct Noise {
    bytes: u64,
    last_end: u64,
}

async fn line(instance: &Arc<Instance>, noise: &mut Noise, text: &Bytes, range: Range<u64>) {
    let Range { start, end } = range;
    match Message::parse(text.clone()) {
        Ok(message) => deliver(instance, message, place(instance, end, 0, end)).await,
        Err(Malformed::Blank) => {}
        Err(Malformed::Batch) => {
            let elements = batch_elements(text);
            let last = elements.len().saturating_sub(1);
            for (index, (part, element)) in (0..).zip(elements).enumerate() {
                let ack = if index == last { end } else { start };
                match Message::parse(element.clone()) {
                    Ok(message) => {
                        deliver(instance, message, place(instance, end, part, ack)).await;
                    }
                    Err(_) => noisy(instance, noise, &element),
                }
            }
        }
        Err(Malformed::NotJson | Malformed::NotMessage) => {
            // Progress bars end in a carriage return; a frame may follow on the same line.
            let behind =
                text.iter().rposition(|byte| *byte == b'\r').map(|at| text.slice(at + 1..));
            match behind.map(Message::parse) {
                Some(Ok(message)) => {
                    deliver(instance, message, place(instance, end, 0, end)).await;
                }
                _ => noisy(instance, noise, text),
            }
        }
    }
}

fn noisy(instance: &Arc<Instance>, noise: &mut Noise, text: &[u8]) {
    instance.counters.noise_lines.fetch_add(1, Ordering::Relaxed);
    let before = noise.bytes;
    noise.bytes += text.len() as u64 + 1;
    let shown = String::from_utf8_lossy(&text[..text.len().min(200)]);
    if before < instance.limits.noise_bytes {
        tracing::debug!(instance = %instance.id, line = ?shown, "skipped a line of output that is no message");
    }
    if instance.initialized().is_none() && noise.bytes > instance.limits.noise_bytes {
        tracing::warn!(instance = %instance.id, "the agent prints text and no messages; ending it");
        instance.kill();
    }
}

fn place(instance: &Instance, end: u64, part: u32, ack: u64) -> Place {
    let source = Source { instance: instance.id.clone(), end, part };
    Place { at: Position { source }, ack }
}

async fn deliver(instance: &Arc<Instance>, message: Message, at: Place) {
    let message = match message {
        Message::Response(frame) => return answer(instance, frame, at).await,
        message => instance.in_own_name(message),
    };
    match message {
        Message::Response(_) => {}
        Message::Request(ref frame) | Message::Notification(ref frame) => {
            let session = frame.session_id().map(|id| id.into_owned());
            let owned = frame.has_session_id();
            match session {
                Some(session) => to_session(instance, &session, message, at).await,
                None if owned => drop_message(instance, &message, &at).await,
                None => to_nobody(instance, message, at).await,
            }
        }
    }
}

async fn answer(instance: &Arc<Instance>, frame: Frame, place: Place) {
    let number = frame.id().and_then(|id| id.trim_matches('"').parse::<u64>().ok());
    let pending = number.and_then(|number| {
        lock(&instance.shared).pending.remove(&number).map(|pending| (number, pending))
    });
    let Some((number, pending)) = pending else {
        // Some agents answer notifications, with an error that has no id.
        instance.counters.late_answers.fetch_add(1, Ordering::Relaxed);
        if let Some(number) = number {
            instance.answered_late(number).await;
        }
        return;
    };
    match pending {
        Pending::Call(tx) => {
            let _ = tx.send(Ok(frame));
        }
        Pending::Lane(lane, tag, native) => {
            let route = instance.hand(&native, place.ack);
            let done = route.map(|(_, done)| done).unwrap_or_default();
            let Place { at, ack } = place;
            let input = Input::AgentAnswer { tag, frame, at };
            instance.may_speak().await;
            return lane.send(LaneMsg::Answered { number, input, ack, done }).await;
        }
        Pending::Opening(tx, native) => {
            let done = instance.hand_opening(&native, number, place.ack);
            let Err(unheard) = tx.send(Ok(Opened { frame, number, ack: place.ack, done })) else {
                return;
            };
            if let Ok(Opened { ack, done, .. }) = unheard {
                instance.hold_no_more(number);
                instance.handled(&done, ack);
            }
        }
        Pending::Birth(tx, lane, rx) => {
            if birth(instance, tx, (lane, rx), frame, (number, place.ack)) {
                return;
            }
        }
    }
    instance.dealt_with(number).await;
}

/// A new session: its lane is known before anything else of the stream is looked at, and what came
/// for it early follows the answer. `false` if there is none, or nobody waits for it any more.
fn birth(
    instance: &Instance,
    tx: oneshot::Sender<Result<Birth, WireError>>,
    (lane, rx): (LaneHandle, Mailbox),
    frame: Frame,
    (number, ack): (u64, u64),
) -> bool {
    let native = match (frame.session_id(), frame.error()) {
        (_, Some(error)) => {
            let error = serde_json::from_str(error).unwrap_or_default();
            let refused = WireError::new(Code::AgentStart, "the agent refused").with_data(error);
            let _ = tx.send(Err(refused));
            return false;
        }
        (Some(native), None)
            if native.len() <= frontdesk_core::ids::SESSION_ID_BYTES_MAX && !native.is_empty() =>
        {
            native.into_owned()
        }
        _ => {
            let text = format!("agent {} answered without a usable sessionId", instance.agent.name);
            let _ = tx.send(Err(WireError::new(Code::AgentStart, text)));
            return false;
        }
    };
    let taken = lock(&instance.shared).routes.contains_key(native.as_str());
    if taken {
        let text =
            format!("agent {} gave one id to two sessions of one process", instance.agent.name);
        let shown =
            WireError::new(Code::AgentStart, text).with_data(json!({ "quirk": "ids_repeat" }));
        let _ = tx.send(Err(shown));
        return false;
    }
    let done = instance.route(&native, &lane);
    let _ = instance.hand(&native, ack);
    let mut shared = lock(&instance.shared);
    let early = std::mem::take(&mut shared.early);
    let (ours, others): (Vec<_>, Vec<_>) = early.into_iter().partition(|(id, ..)| **id == *native);
    shared.early = others.into();
    drop(shared);
    for (_, message, Place { at, ack }) in ours {
        let _ = instance.hand(&native, ack);
        lane.try_send(LaneMsg::Agent { message, at, ack, done: done.clone() });
    }
    let native: Arc<str> = native.into();
    let birth = Birth { frame, native: native.clone(), number, ack, done: done.clone(), rx };
    let is_heard = tx.send(Ok(birth)).is_ok();
    if !is_heard {
        instance.unroute(&native);
    }
    is_heard
}

async fn to_session(instance: &Arc<Instance>, session: &str, message: Message, place: Place) {
    let Some((lane, done)) = instance.hand(session, place.ack) else {
        return early(instance, session, message, place).await;
    };
    learn_child(instance, session, message.frame());
    instance.learn_names(message.frame());
    let Place { at, ack } = place;
    instance.may_speak().await;
    lane.send(LaneMsg::Agent { message, at, ack, done }).await;
}

/// A subagent is named on its parent before anything comes under its own id.
fn learn_child(instance: &Instance, parent: &str, frame: &Frame) {
    let update = frame.params_bytes().and_then(|params| subagent_update(&params));
    let child = update.as_ref().and_then(|update| update["sessionId"].as_str());
    let Some(child) = child else { return };
    let mut shared = lock(&instance.shared);
    let root = shared.children.get(parent).cloned().unwrap_or_else(|| parent.into());
    let is_known = shared.children.contains_key(child);
    let siblings = || shared.children.values().filter(|known| **known == root).count();
    let fits = is_known || siblings() < instance.limits.session_children as usize;
    if fits && !shared.routes.contains_key(child) {
        shared.children.insert(child.into(), root);
    }
}

/// A message for a session whose id no answer has introduced yet is held while one is awaited.
async fn early(instance: &Arc<Instance>, session: &str, message: Message, place: Place) {
    {
        let mut shared = lock(&instance.shared);
        let awaited = shared.pending.values().any(|pending| matches!(pending, Pending::Birth(..)));
        if awaited && shared.early.len() < instance.limits.early_frames as usize {
            shared.early.push_back((session.into(), message, place));
            return;
        }
    }
    drop_message(instance, &message, &place).await;
}

async fn drop_message(instance: &Instance, message: &Message, place: &Place) {
    instance.counters.dropped_updates.fetch_add(1, Ordering::Relaxed);
    if let Message::Request(frame) = message {
        let session = frame.session_id().unwrap_or_default();
        refuse(instance, frame, place, &WireError::not_found(&session)).await;
    }
}

/// Answers a request that is for no session; once, however often it is read.
async fn refuse(instance: &Instance, frame: &Frame, place: &Place, error: &WireError) {
    let hop = place.at.source.hop();
    if instance.has_answered(&hop) {
        return;
    }
    let answer = Frame::failure(frame.id().unwrap_or("null"), &error.to_json());
    // It fails where the agent has ended, or the disk is full: then the agent waits.
    let _ = instance.settle(&hop, Some(answer)).await;
}

/// What names no session: some of it is for every session here, requests nobody can place get
/// `-32601`.
async fn to_nobody(instance: &Arc<Instance>, message: Message, place: Place) {
    let natives: Vec<Arc<str>> = lock(&instance.shared).routes.keys().cloned().collect();
    match &message {
        Message::Request(frame) if &*frame.method == "elicitation/create" && natives.len() == 1 => {
        }
        Message::Request(frame) => {
            let error = WireError::method_not_found(&frame.method);
            return refuse(instance, frame, &place, &error).await;
        }
        Message::Notification(frame) if &*frame.method == "session/update" => {
            instance.counters.dropped_updates.fetch_add(1, Ordering::Relaxed);
            return;
        }
        Message::Notification(_) | Message::Response(_) => {}
    }
    let Place { at, ack } = place;
    for native in natives {
        let Some((lane, done)) = instance.hand(&native, ack) else { continue };
        lane.send(LaneMsg::Agent { message: message.clone(), at: at.clone(), ack, done }).await;
    }
}

/// A frame beyond the limit is skipped; if it was an answer, whoever waits is told why.
async fn too_long(instance: &Arc<Instance>, head: &[u8], tail: &[u8], bytes: u64, end: u64) {
    instance.counters.long_frames.fetch_add(1, Ordering::Relaxed);
    let limit = instance.limits.frame_bytes;
    tracing::warn!(instance = %instance.id, bytes, limit, end, "skipped a frame of the agent that is too long");
    let is_call = String::from_utf8_lossy(&head[..head.len().min(4096)]).contains("\"method\"");
    let Some(number) =
        peek_id(head, tail).filter(|_| !is_call).and_then(|id| id.parse::<u64>().ok())
    else {
        return;
    };
    let text = format!("the agent's answer was {bytes} bytes long; the limit is {limit}");
    let error = WireError::new(Code::FrameTooLarge, text)
        .with_data(json!({ "bytes": bytes, "limitBytes": limit }));
    let pending = lock(&instance.shared).pending.remove(&number);
    fail(pending, error).await;
    instance.dealt_with(number).await;
}

/// The instance has ended: whoever waits is told, once. Bytes that came first were handled first.
async fn end(instance: &Arc<Instance>, why: &str, exit: &Value) {
    if instance.has_ended().is_some() {
        return;
    }
    // A process is proven gone; whoever is behind a url may have its sessions all the same.
    let (proven, detail) = match instance.shown_url() {
        Some(url) => (false, json!({ "url": url })),
        None => (true, json!({ "exit": exit, "stderrTail": stderr_tail(instance) })),
    };
    let why = if exit.is_null() { why.to_owned() } else { format!("{why} ({exit})") };
    tracing::info!(instance = %instance.id, agent = %instance.agent.name, why, "an instance has ended");
    instance.ended.send_replace(Some(Ended { why: why.clone(), detail: detail.clone(), proven }));
    let (pending, routes) = {
        let mut shared = lock(&instance.shared);
        let routes = std::mem::take(&mut shared.routes);
        if instance.url.is_some() {
            // Whoever is behind the url may have them all the same.
            shared.kept.extend(routes.keys().map(|native| (native.clone(), 0)));
        }
        (std::mem::take(&mut shared.pending), routes)
    };
    let error = instance.ended_error();
    for pending in pending.into_values() {
        match pending {
            Pending::Call(tx) => drop(tx.send(Err(error.clone()))),
            Pending::Opening(tx, _) => drop(tx.send(Err(error.clone()))),
            Pending::Birth(tx, ..) => drop(tx.send(Err(error.clone()))),
            // The session hears of the end below and answers everybody itself.
            Pending::Lane(..) => {}
        }
    }
    for route in routes.into_values() {
        let ended = Input::Ended { why: why.clone(), detail: detail.clone(), proven };
        route.lane.send(LaneMsg::Ended { instance: instance.id.clone(), input: ended }).await;
    }
}

/// The last words on stderr.
#[must_use]
pub fn stderr_tail(instance: &Instance) -> String {
    const TAIL_BYTES: usize = 2048;
    let text = std::fs::read(instance.stderr_path()).unwrap_or_default();
    String::from_utf8_lossy(&text[text.len().saturating_sub(TAIL_BYTES)..]).into_owned()
}

/// Names an instance: its agent's name and a part of a fresh UUID.
#[must_use]
pub fn instance_id(agent: &str, fresh: uuid::Uuid) -> InstanceId {
    let hex = fresh.simple().to_string();
    InstanceId(format!("{}-{}", agent.chars().take(24).collect::<String>(), &hex[..16]).into())
}
