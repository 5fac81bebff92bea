//! Odd frames, odd ids, odd neighbours.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde_json::{Value, json};

use super::super::checks::files_below;
use super::super::pattern::{cut, shorten};
use super::super::puppets::update_frame;
use super::super::run::{OPERATOR, PATIENCE, Run};
use super::super::world::Frame;
use super::{answered, learn, number, prompt, request, text};

/// More updates for an unknown id than may be held while the session is made.
pub(super) fn early_flood(run: &mut Run, about: &Value) -> Result<(), String> {
    let session = text(about, "session")?;
    let params = json!({ "cwd": "${WS}/alpha", "mcpServers": [] });
    request(run, "cA", &json!(312), "session/new", &params)?;
    let (at, id) = run.world.wait(PATIENCE, "session/new at the agent", |state| {
        let mut puppets = state.puppets.iter().enumerate();
        Ok(puppets.find_map(|(at, puppet)| {
            let open = puppet.open.iter().find(|(_, method, _)| method == "session/new")?;
            Some((at, open.0.clone()))
        }))
    })?;
    for frame in &mut run.world.lock().puppet(at)?.frames {
        frame.taken = true;
    }
    for n in 0..number(about, "frames")? {
        let update =
            json!({ "sessionUpdate": "session_info_update", "title": format!("flood {n}") });
        run.puppet_says(at, &update_frame(session, &update))?;
    }
    let told = json!({ "jsonrpc": "2.0", "id": id, "result": { "sessionId": session } });
    run.puppet_says(at, &told)?;
    let answer = answered(run, "cA", &json!(312), PATIENCE)?;
    learn(run, session, &answer)?;
    // What was held is shown behind the answer, some time, and before what is said now.
    let last = json!({ "sessionUpdate": "session_info_update", "title": "behind the flood" });
    run.puppet_says(at, &update_frame(session, &last))?;
    run.world.wait(PATIENCE, "what was said last", |state| {
        let shown = |frame: &Frame| title(frame) == Some("behind the flood");
        Ok(state.client("cA")?.frames.iter().any(shown).then_some(()))
    })?;
    let (_, frames) = run.frames("cA", 0)?;
    let flood = |frame: &&Frame| title(frame).is_some_and(|title| title.starts_with("flood "));
    let got = frames.iter().filter(flood).count();
    if (1..=number(about, "most")?).contains(&got) {
        Ok(())
    } else {
        Err(format!("{got} of the early updates were held"))
    }
}

/// The title that a frame gives a session.
fn title(frame: &Frame) -> Option<&str> {
    frame.value.as_ref()?["params"]["update"]["title"].as_str()
}

/// Frames that a client got since a moment, without answers to the runner's own requests.
fn fresh(run: &Run, client: &str, since: u64) -> Result<Vec<Value>, String> {
    let (_, frames) = run.frames(client, since)?;
    let values = frames.into_iter().map(|frame| frame.value.unwrap_or_default());
    let own = |value: &Value| value["id"].as_str().is_some_and(|id| id.starts_with("call-"));
    Ok(values.filter(|value| !own(value)).collect())
}

/// Batches of a client, one line after the other.
pub(super) fn client_batches(run: &mut Run, about: &Value) -> Result<(), String> {
    let session = run.world.lock().names.public(text(about, "session")?).to_owned();
    let client = run.world.lock().names.variant.as_str().unwrap_or("cA").to_owned();
    let status = |id: u64, session: &str| json!({ "jsonrpc": "2.0", "id": id, "method": "session/status", "params": { "sessionId": session } });
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } });
    let batch = json!([status(1, &session), cancel, status(2, "nope")]);
    let lines = [
        (batch.to_string(), Some(-32600)),
        ("[]".to_owned(), Some(-32600)),
        ("[1]".to_owned(), Some(-32600)),
        (r#"[{"jsonrpc":"2.0","method":"$/x"}]"#.to_owned(), None),
        (r#"[{"jsonrpc":"#.to_owned(), Some(-32700)),
    ];
    for (line, code) in lines {
        let since = run.world.lock().order;
        run.world.note(&format!("{client} > desk  {line}"));
        run.send_line(&client, format!("{line}\n").into_bytes())?;
        run.settle(&client)?;
        let got = fresh(run, &client, since)?;
        let fits = match (code, &got[..]) {
            (None, []) => true,
            (Some(code), [one]) => {
                one.get("id") == Some(&Value::Null) && one["error"]["code"] == code
            }
            _ => false,
        };
        if !fits {
            return Err(format!("{line} was answered with {got:?}"));
        }
    }
    Ok(())
}

/// A batch of an agent: handled part by part, or counted; the open request has an end either way.
pub(super) fn agent_batch(run: &mut Run, about: &Value) -> Result<(), String> {
    let session = text(about, "session")?;
    let name = text(about, "prompt")?;
    let upstream = run.world.lock().names.captured.get(name).cloned();
    let upstream = upstream.ok_or("no prompt was captured")?;
    let at = run.origins.get(name).copied().ok_or("the prompt has no origin")?;
    let update = |text: &str| {
        update_frame(session, &super::super::puppets::text_update("agent_message_chunk", text))
    };
    let answer =
        json!({ "jsonrpc": "2.0", "id": upstream, "result": { "stopReason": "end_turn" } });
    let batch = json!([update("part one"), update("part two"), answer]);
    run.world.note(&format!("puppet {at} > desk  {batch}"));
    run.world.lock().order(at, b'O', format!("{batch}\n").into_bytes())?;
    match answered(run, "cA", &about["id"], Duration::from_secs(3)) {
        Ok(answer) if answer["result"]["stopReason"] == "end_turn" => {
            let (_, frames) = run.frames("cA", 0)?;
            let texts = frames.iter().filter_map(|frame| {
                frame.value.as_ref()?["params"]["update"]["content"]["text"].as_str()
            });
            let parts: Vec<&str> = texts.filter(|text| text.starts_with("part ")).collect();
            if parts == ["part one", "part two"] {
                Ok(())
            } else {
                Err(format!("parts: {parts:?}"))
            }
        }
        Ok(answer) => Err(format!("the prompt was answered with {}", cut(&answer))),
        Err(_) => {
            let info = run.call(OPERATOR, "_frontdesk/info", &json!({}), PATIENCE)?;
            if info["result"]["counters"]["noise_lines"].as_u64() < Some(1) {
                return Err(format!("the batch was neither handled nor counted: {}", cut(&info)));
            }
            let params = run
                .world
                .lock()
                .names
                .fill(&json!({ "sessionId": session }), super::Side::Client)?;
            run.send(
                "cA",
                &json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params }),
            )?;
            answered(run, "cA", &about["id"], Duration::from_secs(5)).map(|_| ())
        }
    }
}

/// A second daemon on the same home refuses and names the first one, although all files are old.
pub(super) fn second_desk(run: &mut Run, _: &Value) -> Result<(), String> {
    let long_ago = SystemTime::now() - Duration::from_secs(10 * 24 * 3_600);
    for path in files_below(&run.place.home().join("run")) {
        if let Ok(file) = std::fs::File::options().write(true).open(&path) {
            let _ = file.set_modified(long_ago);
        }
    }
    let pid = run.desk.as_ref().ok_or("no desk runs")?.pid();
    let mut second = run
        .place
        .command(&["serve"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(run.place.stderr("second")?)
        .spawn()
        .map_err(|e| format!("failed to start a second daemon: {e}"))?;
    let until = Instant::now() + Duration::from_secs(10);
    let status = loop {
        match second.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(20)),
            _ => {
                let _ = second.kill();
                let _ = second.wait();
                return Err("a second daemon runs on the same home".to_owned());
            }
        }
    };
    let said = run.place.said("second");
    if status.success() || !said.contains(&pid.to_string()) {
        return Err(format!("the second daemon ended with {status}; it said {said:?}, not {pid}"));
    }
    Ok(())
}

/// No file or folder below has a longer name, in bytes.
pub(super) fn short_names(run: &mut Run, about: &Value) -> Result<(), String> {
    let below = run.world.lock().names.expand(&about["below"])?;
    let most = number(about, "most")?;
    let files = files_below(std::path::Path::new(below.as_str().unwrap_or_default()));
    let long = files.iter().flat_map(|path| path.iter()).find(|name| name.len() > most);
    match (long, files.is_empty()) {
        (None, false) => Ok(()),
        (Some(name), _) => {
            Err(format!("a name of {} bytes: {}", name.len(), name.to_string_lossy()))
        }
        (None, true) => Err("the store is empty".to_owned()),
    }
}

/// From now on, whatever happens to a folder and its files is noticed, reading included.
pub(super) fn watch(run: &mut Run, about: &Value) -> Result<(), String> {
    let folder = run.world.lock().names.expand(&about["folder"])?;
    let failed = |e: nix::errno::Errno| format!("failed to watch {folder}: {e}");
    let watcher = Inotify::init(InitFlags::IN_NONBLOCK).map_err(failed)?;
    let folder_path = folder.as_str().unwrap_or_default();
    watcher.add_watch(folder_path, AddWatchFlags::IN_ALL_EVENTS).map_err(failed)?;
    run.watcher = Some(watcher);
    Ok(())
}

/// Nothing has happened to the folder since it is watched.
pub(super) fn unwatched(run: &mut Run, about: &Value) -> Result<(), String> {
    let watcher = run.watcher.take().ok_or("nothing is watched")?;
    match watcher.read_events() {
        Err(nix::errno::Errno::EAGAIN) => Ok(()),
        Err(error) => Err(format!("failed to read what happened in {about}: {error}")),
        Ok(events) => Err(format!("something touched {about}: {events:?}")),
    }
}

/// An agent gives a session an id that is meant to hurt: served under a name of our own, or refused.
pub(super) fn hostile_mint(run: &mut Run, about: &Value) -> Result<(), String> {
    let id = run.world.lock().names.expand(&about["id"])?;
    let id = id.as_str().ok_or("an id is a text")?.to_owned();
    let name = shorten(&id, 40);
    run.world.lock().agent("a1")?.mint.push_back(id);
    let params = json!({ "cwd": "${WS}/alpha", "mcpServers": [] });
    let answer = run.call("cA", "session/new", &params, PATIENCE)?;
    run.world.lock().agent("a1")?.mint.clear();
    let Some(public) = answer["result"]["sessionId"].as_str().map(str::to_owned) else {
        let refused = answer["error"]["code"].is_i64();
        return if refused { Ok(()) } else { Err(format!("{name:?}: {}", cut(&answer))) };
    };
    let told = run.call("cA", "session/prompt", &prompt(&public, "turn 1"), PATIENCE)?;
    if told["result"]["stopReason"] != "end_turn" {
        return Err(format!("{name:?}: the prompt was answered with {}", cut(&told)));
    }
    let session = json!({ "sessionId": public });
    let closed = run.call("cA", "session/close", &session, PATIENCE)?;
    if closed.get("result").is_none() {
        return Err(format!("{name:?}: the close was answered with {}", cut(&closed)));
    }
    Ok(())
}
