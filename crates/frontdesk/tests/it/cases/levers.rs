//! Levers: what a script does to the desk, its agents and its clients besides sending frames.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::desk::Desk;
use super::pattern::Side;
use super::run::{PATIENCE, Run, stored_from};
use super::world::Scripted;

/// Pulls one lever.
pub(super) fn pull(run: &mut Run, lever: &str, arguments: &[Value]) -> Result<(), String> {
    let arguments: Vec<Value> = {
        let state = run.world.lock();
        arguments.iter().map(|a| state.names.expand(a)).collect::<Result<_, _>>()?
    };
    let item = |at: usize| arguments.get(at).unwrap_or(&Value::Null);
    let text = |at: usize| {
        let text = item(at).as_str();
        text.ok_or(format!("{lever}: argument {} is no text", at + 1))
    };
    match lever {
        "new" => new_session(run, text(0)?, text(1)?, item(2)),
        "hold" => {
            new_session(run, text(0)?, text(1)?, item(2))?;
            turn(run, text(0)?, text(1)?, "turn 1")
        }
        "turn" => turn(run, text(0)?, text(1)?, text(2)?),
        "turns" => (1..=item(2).as_u64().unwrap_or(0))
            .try_for_each(|n| turn(run, text(0)?, text(1)?, &format!("turn {n}"))),
        // The process that the next checks are about: that of a captured id, or of a session.
        "aim" => {
            let origin = run.origins.get(text(1)?).copied();
            let at = origin.or(run.world.lock().holder(text(0)?, text(1)?));
            run.hit = Some(at.ok_or(format!("no process to aim at: {}", item(1)))?);
            Ok(())
        }
        // A frame of an agent that may have been ended by now.
        "try_say" => {
            if run.world.lock().youngest(text(0)?).is_some() {
                super::script::agent_sends(run, text(0)?, item(1), item(2))?;
            }
            Ok(())
        }
        "attach" => attach(run, text(0)?, text(1)?, item(2)),
        "connect" => run.open(text(0)?),
        "disconnect" => {
            if let Some(far) = run.fars.remove(text(0)?) {
                far.end();
            }
            Ok(())
        }
        "settle" => run.settle(text(0)?),
        "mark" => {
            let order = run.world.lock().order;
            run.marks.insert(text(0)?.to_owned(), order);
            Ok(())
        }
        "forget_captures" => {
            run.world.lock().names.captured.clear();
            Ok(())
        }
        "client_answers" => {
            let mut state = run.world.lock();
            state.client(text(0)?)?.answers.insert(text(1)?.to_owned(), item(2).clone());
            Ok(())
        }
        "manual" | "auto" | "answer" | "store" | "forget" | "chatter" | "keeps" => {
            agent_lever(run, lever, text(0)?, &arguments[1..])
        }
        "kill" | "stop" | "continue" | "exit" | "close_stdout" | "close_stdin" | "stderr"
        | "stderr_text" => process_lever(run, lever, text(0)?, &arguments[1..]),
        "kill_desk" | "stop_desk" | "start_desk" | "restart_desk" => desk_lever(run, lever),
        "write" => {
            let path = std::path::PathBuf::from(text(0)?);
            let content = text(1)?;
            let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            let written = made.and_then(|()| std::fs::write(&path, content));
            written.map_err(|e| format!("failed to write {}: {e}", path.display()))
        }
        "remove" => std::fs::remove_file(text(0)?).map_err(|e| format!("failed to remove: {e}")),
        "fill" => fill(run, text(0)?, item(1)),
        "journal" => super::journals::change(run, text(0)?, item(1)),
        "stream" => super::journals::stream(run, text(0)?, text(1)?, item(2)),
        "fill_disk" | "free_disk" => {
            let disk = run.disk.as_ref().ok_or("the case has no small disk")?;
            if lever == "fill_disk" {
                disk.fill()
            } else {
                disk.free()
            }
            Ok(())
        }
        "mkdir" => std::fs::create_dir_all(text(0)?).map_err(|e| format!("failed to mkdir: {e}")),
        _ => Err(format!("no such lever: {lever}")),
    }
}

/// `session/new` through a client; the agent gives the session the id `native`.
pub(super) fn new_session(
    run: &mut Run,
    client: &str,
    native: &str,
    options: &Value,
) -> Result<(), String> {
    let agent = options["agent"].as_str().or(run.boot["clients"][client]["agent"].as_str());
    let agent = agent.unwrap_or("a1").to_owned();
    run.world.lock().agent(&agent)?.mint.push_back(native.to_owned());
    let cwd = options["cwd"].as_str().unwrap_or("${WS}/alpha");
    let mut params = json!({ "cwd": cwd, "mcpServers": [] });
    for (name, value) in options["params"].as_object().into_iter().flatten() {
        params[name] = value.clone();
    }
    if options["agent"].is_string() {
        params["_meta"] = json!({ "frontdesk": { "agent": agent } });
    }
    let answer = run.call(client, "session/new", &params, PATIENCE)?;
    let mut state = run.world.lock();
    let pattern = json!({ "result": { "sessionId": native } });
    let found = state.names.fits(&pattern, &answer, Side::Client);
    let found = found.map_err(|e| format!("session/new was answered with {answer}: {e}"))?;
    state.names.keep(found);
    Ok(())
}

/// One whole turn that the agent plays by itself.
fn turn(run: &mut Run, client: &str, native: &str, text: &str) -> Result<(), String> {
    let params = json!({ "sessionId": native, "prompt": [{ "type": "text", "text": text }] });
    let answer = run.call(client, "session/prompt", &params, PATIENCE)?;
    if answer["result"]["stopReason"] == "end_turn" {
        return Ok(());
    }
    Err(format!("the turn {text} was answered with {answer}"))
}

/// A client joins a session.
fn attach(run: &mut Run, client: &str, native: &str, options: &Value) -> Result<(), String> {
    let cwd = options["cwd"].as_str().unwrap_or("${WS}/alpha");
    let params = json!({ "sessionId": native, "cwd": cwd, "mcpServers": [] });
    let answer = run.call(client, "session/resume", &params, PATIENCE)?;
    if answer.get("result").is_some() {
        return Ok(());
    }
    Err(format!("{client} could not join: {answer}"))
}

fn agent_lever(run: &mut Run, lever: &str, agent: &str, rest: &[Value]) -> Result<(), String> {
    let item = |at: usize| rest.get(at).unwrap_or(&Value::Null);
    let words = |at: usize| -> Vec<String> {
        let list = item(at).as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let word = item(0).as_str().unwrap_or_default().to_owned();
    let stored = stored_from(item(1), &run.place);
    let mut state = run.world.lock();
    let agent = state.agent(agent)?;
    match lever {
        "manual" => agent.manual.extend(words(0)),
        "auto" => agent.manual.retain(|method| !words(0).contains(method)),
        "answer" => {
            let times = item(2).as_u64().unwrap_or(u64::MAX);
            agent.scripted.insert(word, Scripted { answer: item(1).clone(), times });
        }
        "store" => {
            agent.store.insert(word, stored);
        }
        "forget" => {
            agent.store.remove(&word);
        }
        "keeps" => agent.keeps = word,
        _ => agent.chatter = Some(word),
    }
    Ok(())
}

/// Gives an agent's store `count` sessions; those from a number on are in `alpha`, the others in
/// `beta`.
fn fill(run: &mut Run, agent: &str, about: &Value) -> Result<(), String> {
    let count = about["count"].as_u64().ok_or("fill takes a count")?;
    let from = about["in_alpha_from"].as_u64().unwrap_or(1);
    let folder = |name: &str| run.world.lock().names.expand(&json!(format!("${{WS}}/{name}")));
    let (alpha, beta) = (folder("alpha")?, folder("beta")?);
    for number in 1..=count {
        let cwd = if number >= from { &alpha } else { &beta };
        let at = format!("2021-03-01T{:02}:{:02}:00Z", number / 60, number % 60);
        let stored = stored_from(&json!({ "cwd": cwd, "updatedAt": at }), &run.place);
        let mut state = run.world.lock();
        state.agent(agent)?.store.insert(format!("{agent}-{number:02}"), stored);
    }
    Ok(())
}

/// Which process of an agent: the one that holds the session, else the youngest.
fn process(run: &Run, agent: &str, session: Option<&str>) -> Result<(usize, Pid), String> {
    let state = run.world.lock();
    let at = match session {
        Some(session) => state.holder(agent, session),
        None => state.youngest(agent),
    };
    let at = at.ok_or(format!("no process of {agent} holds {session:?}"))?;
    Ok((at, Pid::from_raw(state.puppets[at].pid)))
}

fn process_lever(run: &mut Run, lever: &str, agent: &str, rest: &[Value]) -> Result<(), String> {
    let item = |at: usize| rest.get(at).unwrap_or(&Value::Null);
    let (at, pid) = process(run, agent, item(0).as_str())?;
    let number = item(1).as_u64().unwrap_or(0);
    let signal = |signal: Signal| kill(pid, signal).map_err(|e| format!("failed to {lever}: {e}"));
    run.hit = Some(at);
    run.world.note(&format!("{lever} {agent}#{at}, pid {pid}"));
    let order = |kind: u8, payload: Vec<u8>| run.world.lock().order(at, kind, payload);
    match lever {
        "kill" => signal(Signal::SIGKILL),
        "stop" => signal(Signal::SIGSTOP),
        "continue" => signal(Signal::SIGCONT),
        "exit" => order(b'X', number.to_string().into_bytes()).map(|_| ()),
        "close_stdout" => {
            let number = order(b'C', Vec::new())?;
            run.done(at, number, PATIENCE)
        }
        "close_stdin" => {
            let number = order(b'N', Vec::new())?;
            run.done(at, number, PATIENCE)
        }
        "stderr_text" => {
            let said = item(1).as_str().unwrap_or_default().as_bytes().to_vec();
            let number = order(b'R', said)?;
            run.done(at, number, PATIENCE)
        }
        // Bytes without any line end; every fourth is no text.
        _ => {
            let size = usize::try_from(number).unwrap_or(0);
            let flood = b"so\xffn".iter().copied().cycle().take(size).collect();
            let number = order(b'R', flood)?;
            if item(2)["wait"] == true {
                run.done(at, number, Duration::from_secs(20))?;
            }
            Ok(())
        }
    }
}

/// Clients of a desk that ends are ended first, because a shim would start another desk by itself.
fn desk_lever(run: &mut Run, lever: &str) -> Result<(), String> {
    let names: Vec<String> = run.fars.keys().filter(|name| *name != "op").cloned().collect();
    if lever != "start_desk" {
        run.close_clients();
        let desk = run.desk.take().ok_or("no desk runs")?;
        match lever {
            "kill_desk" => desk.kill(),
            _ => desk.stop()?,
        }
        run.boot["reopen"] = json!(names);
    }
    if matches!(lever, "start_desk" | "restart_desk") {
        run.desk = Some(Desk::start(&run.place)?);
        let names = run.boot["reopen"].as_array().cloned().unwrap_or_default();
        for name in names.iter().filter_map(Value::as_str) {
            run.open(name)?;
        }
    }
    Ok(())
}
