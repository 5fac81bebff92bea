//! The other end of every puppet: the socket they call, and what an agent answers by itself.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use serde_json::{Value, json};

use super::world::{Agent, Order, Puppet, State, Stored, World};

/// What a BOOT agent answers to `initialize`.
pub(super) fn boot_abilities() -> Value {
    json!({
        "protocolVersion": 1,
        "agentInfo": { "name": "puppet", "version": "1" },
        "agentCapabilities": {
            "loadSession": true,
            "sessionCapabilities": { "list": {}, "resume": {}, "close": {}, "delete": {}, "status": {} },
        },
        "authMethods": [],
    })
}

/// Listens for puppets until the case's folder is gone.
pub(super) fn listen(world: &Arc<World>, socket: &Path) -> Result<(), String> {
    let listener = UnixListener::bind(socket).map_err(|e| format!("failed to listen: {e}"))?;
    let world = Arc::clone(world);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let world = Arc::clone(&world);
            thread::spawn(move || serve(&world, stream));
        }
    });
    Ok(())
}

fn take(stream: &mut UnixStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head).ok()?;
    let size = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    let mut payload = vec![0; size as usize];
    stream.read_exact(&mut payload).ok()?;
    Some((head[0], payload))
}

fn serve(world: &Arc<World>, mut stream: UnixStream) {
    let Some((b'H', hello)) = take(&mut stream) else { return };
    let Ok(hello) = serde_json::from_slice::<Value>(&hello) else { return };
    let Ok(mut writer) = stream.try_clone() else { return };
    let (orders, waiting) = mpsc::channel::<Order>();
    thread::spawn(move || {
        while let Ok(Order { kind, payload }) = waiting.recv() {
            let size = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes();
            let head = [kind, size[0], size[1], size[2], size[3]];
            if writer.write_all(&head).and_then(|()| writer.write_all(&payload)).is_err() {
                return;
            }
        }
    });
    let agent = hello["agent"].as_str().unwrap_or_default().to_owned();
    let pid = hello["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
    let at = {
        let mut state = world.lock();
        let at = state.puppets.len();
        state.note(world.begun, &format!("{agent}#{at} started, pid {pid}"));
        state.puppets.push(Puppet {
            agent,
            pid,
            frames: Vec::new(),
            loaded: BTreeSet::new(),
            open: Vec::new(),
            orders,
            ordered: 0,
            done: 0,
            eof: false,
            gone: false,
        });
        at
    };
    world.tell();
    let mut line = Vec::new();
    while let Some((kind, payload)) = take(&mut stream) {
        let mut state = world.lock();
        match kind {
            b'I' => {
                let mut rest = &payload[..];
                while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                    line.extend_from_slice(&rest[..end]);
                    rest = &rest[end + 1..];
                    heard(world, &mut state, at, &line);
                    line.clear();
                }
                line.extend_from_slice(rest);
            }
            b'E' => {
                state.note(world.begun, &format!("puppet {at}: end of its stdin"));
                state.puppets[at].eof = true;
                // A well-behaved agent leaves when nobody talks to it any more.
                let _ = state.order(at, b'X', b"0".to_vec());
            }
            b'A' => state.puppets[at].done += 1,
            _ => {}
        }
        drop(state);
        world.tell();
    }
    let mut state = world.lock();
    state.note(world.begun, &format!("puppet {at} is gone"));
    state.puppets[at].gone = true;
    drop(state);
    world.tell();
}

/// Keeps a line that the desk wrote to a puppet, and answers it if the script does not.
fn heard(world: &World, state: &mut State, at: usize, line: &[u8]) {
    let name = state.puppets[at].agent.clone();
    let parsed = serde_json::from_slice(line).ok();
    let mut frame = state.frame(world.begun, &format!("desk > {name}#{at} "), line.into(), parsed);
    if let Some(text) = state.agents.get(&name).and_then(|agent| agent.chatter.clone()) {
        let _ = state.order(at, b'O', text.into_bytes());
    }
    let value = frame.value.clone().unwrap_or_default();
    let (id, method) = (value.get("id").cloned(), value["method"].as_str());
    if let (Some(id), Some(method)) = (id, method) {
        let session = value["params"]["sessionId"].as_str().map(str::to_owned);
        state.puppets[at].open.push((id.clone(), method.to_owned(), session));
        let answered = answer(state, at, &name, method, &value["params"]);
        if let Some((before, mut answer)) = answered {
            frame.taken = true;
            for update in before {
                let _ = state.say(world.begun, at, &update);
            }
            answer["jsonrpc"] = json!("2.0");
            answer["id"] = id;
            let _ = state.say(world.begun, at, &answer);
        }
    }
    state.puppets[at].frames.push(frame);
}

/// What the agent says by itself: frames to send first, then the answer.
fn answer(
    state: &mut State,
    at: usize,
    name: &str,
    method: &str,
    params: &Value,
) -> Option<(Vec<Value>, Value)> {
    let mut gets = None;
    let answered = decide(state, at, name, method, params, &mut gets);
    if let Some(session) = gets {
        state.load(at, &session);
    }
    answered
}

/// The answer; `gets` is the session that the process has afterwards.
fn decide(
    state: &mut State,
    at: usize,
    name: &str,
    method: &str,
    params: &Value,
    gets: &mut Option<String>,
) -> Option<(Vec<Value>, Value)> {
    let agent = state.agents.get_mut(name)?;
    if agent.manual.contains(method) {
        return None;
    }
    if let Some(scripted) = agent.scripted.get_mut(method).filter(|scripted| scripted.times > 0) {
        scripted.times -= 1;
        return Some((Vec::new(), scripted.answer.clone()));
    }
    let id = params["sessionId"].as_str().unwrap_or_default().to_owned();
    let cwd = params["cwd"].as_str().unwrap_or_default();
    let loaded = &mut state.puppets[at].loaded;
    let unknown = json!({ "error": { "code": -32002, "message": "Resource not found", "data": { "sessionId": id } } });
    let fine = json!({ "result": {} });
    let answer = match method {
        "initialize" => json!({ "result": agent.abilities }),
        "session/new" => {
            let id = mint(agent, name);
            *gets = Some(id.clone());
            if agent.keeps == "new" {
                let stored = Stored { cwd: cwd.to_owned(), ..Stored::default() };
                agent.store.insert(id.clone(), stored);
            }
            state.names.minted.push(id.clone());
            json!({ "result": { "sessionId": id } })
        }
        "session/list" => json!({ "result": { "sessions": rows(agent, params["cwd"].as_str()) } }),
        "session/status" if loaded.contains(&id) => json!({ "result": { "status": "active" } }),
        "session/status" if agent.store.contains_key(&id) => {
            json!({ "result": { "status": "inactive" } })
        }
        "session/resume" if agent.store.contains_key(&id) => {
            *gets = Some(id);
            fine
        }
        "session/load" => match agent.store.get(&id) {
            Some(stored) => {
                *gets = Some(id.clone());
                let replay = stored.history.iter().map(|update| update_frame(&id, update));
                return Some((replay.collect(), fine));
            }
            None => unknown,
        },
        "session/close" => {
            loaded.remove(&id);
            fine
        }
        "session/delete" => {
            loaded.remove(&id);
            agent.store.remove(&id);
            fine
        }
        "session/prompt" => {
            let text = params["prompt"][0]["text"].as_str()?;
            let number = text.strip_prefix("turn ")?.to_owned();
            let said = text_update("user_message_chunk", text);
            let chunk = text_update("agent_message_chunk", &format!("done-{number}"));
            if agent.keeps == "turn" {
                agent.store.entry(id.clone()).or_default();
            }
            if let Some(stored) = agent.store.get_mut(&id) {
                stored.history.extend([said, chunk.clone()]);
            }
            let before = vec![update_frame(&id, &chunk)];
            return Some((before, json!({ "result": { "stopReason": "end_turn" } })));
        }
        "session/set_mode" | "session/set_config_option" | "authenticate" | "logout" => fine,
        "session/resume" | "session/status" => unknown,
        _ => return None,
    };
    Some((Vec::new(), answer))
}

/// The next id that an agent gives to a new session.
pub(super) fn mint(agent: &mut Agent, name: &str) -> String {
    agent.minted += 1;
    agent.mint.pop_front().unwrap_or_else(|| format!("sess-{name}-auto-{}", agent.minted))
}

/// What an agent's list shows.
pub(super) fn rows(agent: &Agent, cwd: Option<&str>) -> Vec<Value> {
    let stored = agent.store.iter().filter(|(_, stored)| cwd.is_none_or(|cwd| stored.cwd == cwd));
    stored
        .map(|(id, stored)| {
            let mut row = json!({ "sessionId": id, "cwd": stored.cwd });
            if let Some(title) = &stored.title {
                row["title"] = json!(title);
            }
            if let Some(at) = &stored.updated_at {
                row["updatedAt"] = json!(at);
            }
            row
        })
        .collect()
}

/// An update of one kind with one text.
pub(super) fn text_update(kind: &str, text: &str) -> Value {
    json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } })
}

/// A `session/update` frame.
pub(super) fn update_frame(session: &str, update: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": session, "update": update } })
}
