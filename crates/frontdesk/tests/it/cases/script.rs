//! The steps of a script.

use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::pattern::{Side, cut};
use super::run::{PATIENCE, Run};
use super::{checks, levers, special};

/// Runs one step; the error says what did not happen.
pub(super) fn step(run: &mut Run, step: &Value) -> Result<(), String> {
    let items = step.as_array().ok_or("a step is a list")?;
    let first = items.first().and_then(Value::as_str).ok_or("a step begins with a word")?;
    let item = |at: usize| items.get(at).unwrap_or(&Value::Null);
    let text = |at: usize| item(at).as_str().ok_or(format!("item {at} of {step} is no text"));
    run.world.note(&format!("== {}", cut(step)));
    match first {
        "wait" => {
            thread::sleep(duration(text(1)?)?);
            Ok(())
        }
        "do" => {
            let lever = run.world.lock().names.expand(item(1))?;
            let lever = lever.as_str().ok_or("do takes a lever")?.to_owned();
            levers::pull(run, &lever, &items[2..])
        }
        "check" => checks::check(run, text(1)?, &items[2..]),
        "call" => call(run, items),
        "run" => special::find(text(1)?)?(run, item(2)),
        "proves" => {
            let shown = items[1..].iter().filter_map(Value::as_u64);
            run.proved.extend(shown.filter_map(|number| usize::try_from(number).ok()));
            Ok(())
        }
        // Steps for some variants only: those whose value fits.
        "if" => {
            let names = run.world.lock().names.clone();
            let fits = names.fits(item(1), &names.variant, Side::Agent).is_ok();
            let branch = if fits { item(2) } else { item(3) };
            let steps = branch.as_array().cloned().unwrap_or_default();
            steps.iter().try_for_each(|inner| self::step(run, inner))
        }
        // The same steps for several values; each is the variant while they run.
        "each" => {
            let values = run.world.lock().names.expand(item(1))?;
            let steps = item(2).as_array().cloned().unwrap_or_default();
            for value in values.as_array().ok_or("each takes a list")? {
                run.world.lock().names.variant = value.clone();
                run.world.lock().names.captured.clear();
                for inner in &steps {
                    self::step(run, inner).map_err(|e| format!("for {}: {e}", cut(value)))?;
                }
            }
            Ok(())
        }
        edge => exchange(run, edge, items),
    }
}

/// `300ms` or `2s`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("not a time: {text}");
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s').ok_or_else(bad)?, 1_000),
    };
    let number: u64 = number.trim_start_matches('+').parse().map_err(|_| bad())?;
    Ok(Duration::from_millis(number * unit))
}

/// A bound on a wait among the options of a step, see [`bound`].
pub(super) fn patience(options: &Value, name: &str) -> Result<Option<Duration>, String> {
    Ok(options[name].as_str().map(duration).transpose()?.map(bound))
}

/// A stated bound times `CASE_PATIENCE`: it is a statement about a machine that has little else to do,
/// and the machine that runs the tests may have much.
pub(super) fn bound(stated: Duration) -> Duration {
    let times = std::env::var("CASE_PATIENCE").ok().and_then(|times| times.parse::<u32>().ok());
    stated * times.unwrap_or(10).max(1)
}

fn call(run: &mut Run, items: &[Value]) -> Result<(), String> {
    let text = |at: usize| items.get(at).and_then(Value::as_str);
    let (Some(name), Some(method)) = (text(1), text(2)) else {
        return Err("call takes a client and a method".to_owned());
    };
    let params = items.get(3).cloned().unwrap_or_default();
    let pattern = items.get(4).cloned().unwrap_or_default();
    let options = items.get(5).cloned().unwrap_or_default();
    let within = patience(&options, "within")?.unwrap_or(PATIENCE);
    let until = patience(&options, "until")?.unwrap_or_default();
    run.until(until, |run| {
        let answer = run.call(name, method, &params, within)?;
        let mut state = run.world.lock();
        let pattern = state.names.expand(&pattern)?;
        let found = state.names.fits(&pattern, &answer, Side::Client);
        let found =
            found.map_err(|e| format!("{method} was answered with {}: {e}", cut(&answer)))?;
        state.names.keep(found);
        Ok(())
    })
}

fn exchange(run: &mut Run, edge: &str, items: &[Value]) -> Result<(), String> {
    let (from, rest) = edge.split_once('>').ok_or(format!("no such step: {edge}"))?;
    let (to, raw) = match rest.split_once(' ') {
        Some((to, "raw")) => (to, true),
        None => (rest, false),
        Some(_) => return Err(format!("no such step: {edge}")),
    };
    let frame = items.get(1).unwrap_or(&Value::Null);
    let options = items.get(2).cloned().unwrap_or_default();
    if let Some(delay) = options.as_str() {
        thread::sleep(duration(delay)?);
    }
    let is_agent = |run: &Run, who: &str| run.world.lock().agents.contains_key(who);
    match (from, to) {
        ("R", who) => expect(run, who, frame, &options),
        (who, "R") if raw => {
            let bytes = super::raw::bytes(run, who, frame)?;
            super::raw::send(run, who, bytes, frame)
        }
        (who, "R") if is_agent(run, who) => agent_sends(run, who, frame, &options),
        (who, "R") => client_sends(run, who, frame),
        _ => Err(format!("no such step: {edge}")),
    }
}

/// Waits for a frame that the script has not had, and takes it.
pub(super) fn expect(
    run: &mut Run,
    who: &str,
    pattern: &Value,
    options: &Value,
) -> Result<(), String> {
    let within = patience(options, "within")?.unwrap_or(PATIENCE);
    let since = options["since"].as_str().and_then(|name| run.marks.get(name).copied());
    let since = since.unwrap_or(0);
    let mut near = String::new();
    let what = format!("desk > {who} {}", cut(pattern));
    let taken = run.world.wait(within, &what, |state| {
        let pattern = state.names.expand(pattern)?;
        let side = if state.agents.contains_key(who) { Side::Agent } else { Side::Client };
        let mut places: Vec<(u64, usize, usize)> = Vec::new();
        if side == Side::Agent {
            for (at, puppet) in state.puppets.iter().enumerate() {
                if puppet.agent == who {
                    let frames = puppet.frames.iter().enumerate();
                    places.extend(frames.filter(|(_, f)| !f.taken).map(|(n, f)| (f.order, at, n)));
                }
            }
        } else {
            let frames = state.client(who)?.frames.iter().enumerate();
            places.extend(frames.filter(|(_, f)| !f.taken).map(|(n, f)| (f.order, 0, n)));
        }
        places.retain(|(order, _, _)| *order > since);
        places.sort_unstable();
        for (_, at, n) in places {
            let frame = if side == Side::Agent {
                &state.puppets[at].frames[n]
            } else {
                &state.client(who)?.frames[n]
            };
            let Some(value) = frame.value.clone() else { continue };
            match state.names.fits(&pattern, &value, side) {
                Ok(found) => {
                    state.names.keep(found);
                    if side == Side::Agent {
                        state.puppets[at].frames[n].taken = true;
                    } else {
                        state.client(who)?.frames[n].taken = true;
                    }
                    return Ok(Some(at));
                }
                Err(error)
                    if value.get("method") == pattern.get("method")
                        && (value.get("id") == pattern.get("id")
                            || pattern.get("method").is_some()) =>
                {
                    near = format!("; near: {error}");
                }
                Err(_) => {}
            }
        }
        Ok(None)
    });
    let at = taken.map_err(|e| format!("{e}{near}"))?;
    if let Some(name) = pattern["id"].as_str().filter(|name| name.starts_with('@')) {
        run.origins.insert(name.to_owned(), at);
    }
    Ok(())
}

fn bind_open(run: &mut Run, who: &str, frame: &Value) -> Result<(), String> {
    match frame["id"].as_str().filter(|name| name.starts_with('@')) {
        Some(name) => bind_id(run, who, name),
        None => Ok(()),
    }
}

/// What a name that nothing was captured for stands for: the oldest open request.
pub(super) fn bind_id(run: &mut Run, who: &str, name: &str) -> Result<(), String> {
    if run.world.lock().names.captured.contains_key(name) {
        return Ok(());
    }
    let found = run.world.wait(PATIENCE, &format!("an open request at {who}"), |state| {
        if state.agents.contains_key(who) {
            let puppets = state.puppets.iter().enumerate();
            let mut ours = puppets.filter(|(_, p)| p.agent == who && !p.gone);
            let open = ours.find_map(|(at, p)| p.open.first().map(|open| (at, open.0.clone())));
            return Ok(open);
        }
        Ok(state.client(who)?.open.first().map(|open| (0, open.0.clone())))
    })?;
    run.world.lock().names.captured.insert(name.to_owned(), found.1);
    run.origins.insert(name.to_owned(), found.0);
    Ok(())
}

/// Lets an agent send a frame: from the process that the id came from, that `of` names a session of,
/// that `via` names a captured id of, or that holds the frame's session.
pub(super) fn agent_sends(
    run: &mut Run,
    who: &str,
    frame: &Value,
    options: &Value,
) -> Result<(), String> {
    bind_open(run, who, frame)?;
    let filled = run.world.lock().names.fill(frame, Side::Agent)?;
    let origin = options["via"].as_str().or(frame["id"].as_str());
    let origin = origin.and_then(|name| run.origins.get(name).copied());
    let session = options["of"].as_str().or(filled["params"]["sessionId"].as_str());
    let at = {
        let state = run.world.lock();
        let holder = session.and_then(|session| state.holder(who, session));
        origin.or(holder).or_else(|| state.youngest(who))
    };
    let at = at.ok_or(format!("no process of {who} lives"))?;
    run.puppet_says(at, &filled).map(|_| ())
}

fn client_sends(run: &mut Run, who: &str, frame: &Value) -> Result<(), String> {
    bind_open(run, who, frame)?;
    let filled = run.world.lock().names.fill(frame, Side::Client)?;
    run.send(who, &filled)
}
