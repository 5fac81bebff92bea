//! One run of one case: the place, the desk, the actors, and what every step is made of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uuid::Uuid;

use super::bridge::Bridge;
use super::clients::{self, Far};
use super::desk::{self, Desk, Place};
use super::journals::Noted;
use super::pattern::{Side, cut};
use super::puppets;
use super::world::{Agent, Frame, State, Stored, World};
use crate::small_disk::SmallDisk;

/// How long a step waits for a frame if it does not say: nothing is said about time then, and a busy
/// machine has it.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Name of the client that checks use: over the socket, unbound, as the command line does.
pub(super) const OPERATOR: &str = "op";

/// A running case.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) world: Arc<World>,
    pub(super) place: Place,
    pub(super) desk: Option<Desk>,
    pub(super) fars: BTreeMap<String, Far>,
    pub(super) boot: Value,
    /// Names of moments: the order of the last frame before each.
    pub(super) marks: BTreeMap<String, u64>,
    /// Which puppet a captured id came from.
    pub(super) origins: BTreeMap<String, usize>,
    /// Expectations that checks have shown so far, from 1.
    pub(super) proved: BTreeSet<usize>,
    pub(super) calls: u64,
    /// The process that a lever was last aimed at.
    pub(super) hit: Option<usize>,
    /// Journals that the script has looked at, by session.
    pub(super) journals: BTreeMap<String, Noted>,
    /// The small disk that the desk's data lies on, if it does.
    pub(super) disk: Option<SmallDisk>,
    /// What watches a folder, if anything does.
    pub(super) watcher: Option<nix::sys::inotify::Inotify>,
    pub(super) shape: Shape,
    /// Urls of agents, in [`Shape::Urls`].
    bridges: BTreeMap<String, Vec<Bridge>>,
}

/// How many instances of each agent there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// As the case has it.
    Plain,
    /// Another session runs in an instance of its own, all the while.
    Beside,
    /// All instances of an agent are behind two urls.
    Urls,
}

/// The session that [`Shape::Beside`] has.
const BESIDE: &str = "beside-1";

impl Run {
    /// Lays out the place and tells the world who is in the case; starts nothing yet.
    pub(super) fn new(boot: &Value, variant: &Value, shape: Shape) -> Result<Self, String> {
        let place = Place::new()?;
        let world = World::new();
        {
            let mut state = world.lock();
            let root = place.root().to_string_lossy().into_owned();
            let words = [("WS", "ws"), ("OUT", "out"), ("STORE", "h/data"), ("HOME_DIR", "user")];
            for (word, folder) in words {
                state.names.words.insert(word.to_owned(), format!("{root}/{folder}"));
            }
            state.names.variant = state.names.expand(variant)?;
        }
        let mut run = Self {
            world,
            place,
            desk: None,
            fars: BTreeMap::new(),
            boot: boot.clone(),
            marks: BTreeMap::new(),
            origins: BTreeMap::new(),
            proved: BTreeSet::new(),
            calls: 0,
            hit: None,
            journals: BTreeMap::new(),
            disk: None,
            watcher: None,
            shape,
            bridges: BTreeMap::new(),
        };
        if let Some(mib) = boot["small_disk_mib"].as_u64() {
            let mib = u32::try_from(mib).map_err(|e| e.to_string())?;
            run.disk = SmallDisk::lay(&run.place.home().join("data"), mib);
        }
        run.boot = run.world.lock().names.expand(boot)?;
        if run.boot["agents"].is_null() {
            run.boot["agents"] = json!({ "a1": {} });
        }
        for (name, value) in run.boot["env"].as_object().into_iter().flatten() {
            let value = value.as_str().ok_or(format!("{name} in the environment is no text"))?;
            run.place.env.push((name.clone(), value.to_owned()));
        }
        run.agents()?;
        puppets::listen(&run.world, &run.place.puppets())?;
        if shape == Shape::Urls {
            run.bridge_agents()?;
        }
        Ok(run)
    }

    fn bridge_agents(&mut self) -> Result<(), String> {
        let names: Vec<String> = self.world.lock().agents.keys().cloned().collect();
        for name in names {
            for _ in 0..2 {
                let (socket, root) = (self.place.puppets(), self.place.root().to_path_buf());
                let agent = name.clone();
                let bridge = Bridge::start(move || desk::puppet(&socket, &agent, &root))?;
                self.bridges.entry(name.clone()).or_default().push(bridge);
            }
        }
        let all = 2 * self.bridges.len();
        self.world.wait(PATIENCE, "the puppets behind urls", |state| {
            Ok((state.puppets.len() == all).then_some(()))
        })
    }

    fn agents(&mut self) -> Result<(), String> {
        let described = self.boot["agents"].as_object().cloned().unwrap_or_default();
        for (name, about) in described {
            let mut agent = Agent {
                abilities: puppets::boot_abilities(),
                keeps: about["keeps"].as_str().unwrap_or("new").to_owned(),
                chatter: about["chatter"].as_str().map(str::to_owned),
                ..Agent::default()
            };
            merge(&mut agent.abilities, &about["abilities"]);
            let manual = about["manual"].as_array().into_iter().flatten();
            agent.manual = manual.filter_map(Value::as_str).map(str::to_owned).collect();
            for (id, stored) in about["store"].as_object().into_iter().flatten() {
                agent.store.insert(id.clone(), stored_from(stored, &self.place));
            }
            self.world.lock().agents.insert(name, agent);
        }
        Ok(())
    }

    /// BOOT: the desk, then every client that the case names, handshake done.
    pub(super) fn boot(&mut self) -> Result<(), String> {
        let text = desk::configuration(&self.place, &self.boot, &self.bridges);
        let path = self.place.home().join("config.toml");
        std::fs::write(path, text).map_err(|e| format!("failed to write the config: {e}"))?;
        if !self.is_direct() {
            self.desk = Some(Desk::start(&self.place)?);
        }
        let names: Vec<String> = match self.boot["clients"].as_object() {
            Some(clients) => clients.keys().cloned().collect(),
            None => vec!["cA".to_owned()],
        };
        for name in names {
            if self.boot["clients"][&name]["late"] != true {
                self.open(&name)?;
            }
        }
        if self.shape == Shape::Beside {
            super::levers::new_session(self, OPERATOR, BESIDE, &json!({ "agent": "a1" }))?;
        }
        Ok(())
    }

    /// Whether clients speak to puppets directly: the runner's own test.
    pub(super) fn is_direct(&self) -> bool {
        self.boot["direct"] == true
    }

    /// Connects a client and, unless its description says otherwise, initializes it.
    pub(super) fn open(&mut self, name: &str) -> Result<(), String> {
        if let Some(old) = self.fars.remove(name) {
            old.end();
        }
        let about = self.boot["clients"][name].clone();
        let agent = match &about["agent"] {
            Value::Null if about.get("agent").is_some() || name == OPERATOR => None,
            Value::String(agent) => Some(agent.clone()),
            _ => Some("a1".to_owned()),
        };
        let far = self.connect(name, &about, agent.as_deref())?;
        self.fars.insert(name.to_owned(), far);
        let answers = about["answers"].as_object().cloned().unwrap_or_default();
        self.world.lock().client(name)?.answers.extend(answers);
        if about["init"] != false {
            let abilities = if name == OPERATOR { json!({}) } else { client_abilities() };
            let abilities = about.get("abilities").cloned().unwrap_or(abilities);
            let params = json!({
                "protocolVersion": 1,
                "clientCapabilities": abilities,
                "clientInfo": { "name": name, "version": "1" },
            });
            let answer = self.call(name, "initialize", &params, PATIENCE)?;
            if answer["result"]["protocolVersion"] != 1 {
                return Err(format!("initialize of {name} was answered with {answer}"));
            }
        }
        Ok(())
    }

    fn connect(&self, name: &str, about: &Value, agent: Option<&str>) -> Result<Far, String> {
        let stderr = self.place.stderr(name)?;
        if self.is_direct() {
            let mut command =
                desk::puppet(&self.place.puppets(), agent.unwrap_or("a1"), self.place.root());
            return clients::spawn(&self.world, name, &mut command, stderr);
        }
        let door = about["door"].as_str().unwrap_or(if name == "cA" { "shim" } else { "socket" });
        if door == "shim" {
            let mut arguments = vec!["acp"];
            arguments.extend(agent.into_iter().flat_map(|agent| ["--agent", agent]));
            let mut command = self.place.command(&arguments);
            return clients::spawn(&self.world, name, &mut command, stderr);
        }
        let kind = if name == OPERATOR { "cli" } else { "test" };
        let key = Uuid::now_v7().to_string();
        let face = about["face"].as_str().unwrap_or("acp");
        let mut first = json!({ "frontdesk": 1, "face": face, "client": key, "kind": kind });
        if let Some(agent) = agent {
            first["agent"] = json!(agent);
        }
        clients::connect(&self.world, name, &self.place.socket(), &first)
    }

    /// Ends every client connection.
    pub(super) fn close_clients(&mut self) {
        for (_, far) in std::mem::take(&mut self.fars) {
            far.end();
        }
    }

    /// Sends one line for a client.
    pub(super) fn send_line(&self, name: &str, line: Vec<u8>) -> Result<(), String> {
        let mut state = self.world.lock();
        let client = state.client(name)?;
        client.lines.send(line).map_err(|_| format!("client {name} is gone"))
    }

    /// Sends a frame, already filled, for a client.
    pub(super) fn send(&self, name: &str, frame: &Value) -> Result<(), String> {
        let text = frame.to_string();
        {
            let mut state = self.world.lock();
            if frame.get("method").is_none()
                && let Some(id) = frame.get("id")
            {
                state.client(name)?.open.retain(|(open, _)| open != id);
            }
            let note = super::pattern::shorten(&text, 600);
            state.note(self.world.begun, &format!("{name} > desk  {note}"));
        }
        self.send_line(name, format!("{text}\n").into_bytes())
    }

    /// A request of a client with an id of the runner's own, and its answer.
    pub(super) fn call(
        &mut self,
        name: &str,
        method: &str,
        params: &Value,
        patience: Duration,
    ) -> Result<Value, String> {
        let id = self.ask(name, method, params)?;
        self.answer(name, &id, patience).map_err(|e| format!("{method}: {e}"))
    }

    /// A request of a client with an id of the runner's own; does not wait.
    pub(super) fn ask(
        &mut self,
        name: &str,
        method: &str,
        params: &Value,
    ) -> Result<Value, String> {
        if name == OPERATOR && !self.fars.contains_key(OPERATOR) {
            // The entry is made first, so that opening does not ask again.
            self.open(OPERATOR)?;
        }
        self.calls += 1;
        let id = json!(format!("call-{}", self.calls));
        let params = self.world.lock().names.fill(params, Side::Client)?;
        let frame = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(name, &frame)?;
        Ok(id)
    }

    /// Waits for the answer to a request of a client.
    pub(super) fn answer(
        &self,
        name: &str,
        id: &Value,
        patience: Duration,
    ) -> Result<Value, String> {
        self.world.wait(patience, &format!("answer to {id} of {name}"), |state| {
            let client = state.client(name)?;
            let closed = client.closed;
            let found = client
                .frames
                .iter_mut()
                .find(|frame| frame.member("id") == Some(id) && frame.method().is_none());
            match found {
                Some(frame) => {
                    frame.taken = true;
                    Ok(frame.value.clone())
                }
                None if closed => Err(format!("{name} was disconnected before answer {id}")),
                None => Ok(None),
            }
        })
    }

    /// Waits until all that the desk has sent to a client before now has arrived.
    pub(super) fn settle(&mut self, name: &str) -> Result<(), String> {
        self.call(name, "_frontdesk/info", &json!({}), PATIENCE).map(|_| ())
    }

    /// All rows of all sessions.
    pub(super) fn rows(&mut self, mut params: Value) -> Result<Vec<Value>, String> {
        let mut rows = Vec::new();
        loop {
            let answer = self.call(OPERATOR, "_frontdesk/sessions", &params, PATIENCE)?;
            let page = answer["result"]["sessions"].as_array();
            let page = page.ok_or(format!("_frontdesk/sessions was answered with {answer}"))?;
            rows.extend(page.iter().cloned());
            match answer["result"]["nextCursor"].as_str() {
                Some(cursor) => params["cursor"] = json!(cursor),
                None => return Ok(rows),
            }
        }
    }

    /// The row of the session that an agent calls `native`.
    pub(super) fn row(&mut self, native: &str) -> Result<Option<Value>, String> {
        let public = self.world.lock().names.public(native).to_owned();
        let rows = self.rows(json!({}))?;
        let mut fits = rows.into_iter().filter(|row| {
            row["nativeId"] == native || row["id"] == native || row["id"] == public.as_str()
        });
        let found = fits.next();
        match fits.next() {
            Some(second) => Err(format!("two rows for {native}: {found:?} and {second}")),
            None => Ok(found),
        }
    }

    /// All records of a session.
    pub(super) fn log(&mut self, native: &str) -> Result<Vec<Value>, String> {
        self.log_after(native, 0)
    }

    /// The records of a session behind number `seq`.
    pub(super) fn log_after(&mut self, native: &str, seq: u64) -> Result<Vec<Value>, String> {
        let mut records: Vec<Value> = Vec::new();
        loop {
            let after = records.last().map_or(json!(seq), |record| record["seq"].clone());
            let params = json!({ "sessionId": native, "after": after });
            let answer = self.call(OPERATOR, "_frontdesk/log", &params, PATIENCE)?;
            let page = answer["result"]["records"].as_array().cloned();
            let page = page.ok_or(format!("_frontdesk/log was answered with {}", cut(&answer)))?;
            let last = answer["result"]["last"].as_u64();
            let done = page.is_empty() || page.last().and_then(|r| r["seq"].as_u64()) >= last;
            records.extend(page);
            if done {
                return Ok(records);
            }
        }
    }

    /// Repeats a check until it holds, at most `patience`.
    pub(super) fn until(
        &mut self,
        patience: Duration,
        mut check: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let until = Instant::now() + patience;
        loop {
            match check(self) {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(25)),
            }
        }
    }

    /// Lets a puppet write a frame and follows what that means for its sessions.
    pub(super) fn puppet_says(&self, at: usize, frame: &Value) -> Result<u64, String> {
        let mut state = self.world.lock();
        let answers = frame.get("id").filter(|_| frame.get("method").is_none()).cloned();
        if let (Some(id), Some(result)) = (answers, frame.get("result")) {
            let open = state.puppet(at)?.open.iter().find(|(open, _, _)| *open == id).cloned();
            let session = match &open {
                Some((_, method, _)) if method == "session/new" || method == "session/fork" => {
                    let made = result["sessionId"].as_str().map(str::to_owned);
                    keep_new(&mut state, at, made.as_deref(), &id)?;
                    made
                }
                Some((_, method, session))
                    if matches!(method.as_str(), "session/resume" | "session/load") =>
                {
                    session.clone()
                }
                _ => None,
            };
            if let Some(session) = session {
                state.load(at, &session);
            }
            if let Some((_, method, Some(session))) = open
                && matches!(method.as_str(), "session/close" | "session/delete")
            {
                state.puppet(at)?.loaded.remove(&session);
            }
        }
        state.say(self.world.begun, at, frame)
    }

    /// Waits until a puppet has done an order.
    pub(super) fn done(&self, at: usize, number: u64, patience: Duration) -> Result<(), String> {
        self.world.wait(patience, &format!("order {number} of puppet {at}"), |state| {
            let puppet = state.puppet(at)?;
            Ok((puppet.done >= number || puppet.gone).then_some(()))
        })
    }

    /// Frames of a client, or of all processes of an agent, in order of arrival.
    pub(super) fn frames(&self, who: &str, since: u64) -> Result<(Side, Vec<Frame>), String> {
        let mut state = self.world.lock();
        let state = &mut *state;
        let (side, mut frames) = if state.agents.contains_key(who) {
            let ours = state.puppets.iter().filter(|puppet| puppet.agent == who);
            (Side::Agent, newer(ours.flat_map(|puppet| &puppet.frames), since))
        } else {
            (Side::Client, newer(&state.client(who)?.frames, since))
        };
        frames.sort_by_key(|frame| frame.order);
        Ok((side, frames))
    }

    /// Ends everything, and says what should not have been left.
    pub(super) fn finish(mut self) -> Result<(), String> {
        self.close_clients();
        let stopped = self.desk.take().map_or(Ok(()), Desk::stop);
        self.bridges.clear();
        let clean = stopped.and_then(|()| {
            self.until(PATIENCE, |run| {
                let left = run.place.processes();
                if left.is_empty() { Ok(()) } else { Err(format!("processes are left: {left:?}")) }
            })
        });
        self.place.sweep();
        let violations = self.world.lock().violations.join("; ");
        let clean = if violations.is_empty() { clean } else { Err(violations) };
        clean.map_err(|e| format!("at the end: {e}\n{}", self.report()))
    }

    /// The transcript and what the daemon said, for a failure.
    pub(super) fn report(&self) -> String {
        let transcript = self.world.lock().transcript.join("\n");
        let desk = self.place.said("desk");
        format!(
            "--- transcript\n{transcript}\n--- the daemon's stderr\n{}",
            super::pattern::shorten(&desk, 12_000)
        )
    }
}

fn newer<'a>(frames: impl IntoIterator<Item = &'a Frame>, since: u64) -> Vec<Frame> {
    frames.into_iter().filter(|frame| frame.order > since).cloned().collect()
}

impl Drop for Run {
    fn drop(&mut self) {
        self.close_clients();
        if let Some(desk) = self.desk.take() {
            desk.kill();
        }
        self.bridges.clear();
        self.place.sweep();
    }
}

fn keep_new(state: &mut State, at: usize, made: Option<&str>, id: &Value) -> Result<(), String> {
    let Some(made) = made else { return Ok(()) };
    let puppet = state.puppet(at)?;
    let asked = puppet.frames.iter().rev().find(|frame| frame.member("id") == Some(id));
    let cwd = asked.and_then(|frame| frame.value.as_ref()?["params"]["cwd"].as_str());
    let cwd = cwd.unwrap_or_default().to_owned();
    let agent = puppet.agent.clone();
    state.names.minted.push(made.to_owned());
    let agent = state.agent(&agent)?;
    if agent.keeps == "new" {
        agent.store.insert(made.to_owned(), Stored { cwd, ..Stored::default() });
    }
    Ok(())
}

/// What an ordinary editor can do.
fn client_abilities() -> Value {
    json!({ "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true })
}

/// A session of an agent's disk, as a case describes it.
pub(super) fn stored_from(about: &Value, place: &Place) -> Stored {
    let mut stored = Stored {
        cwd: about["cwd"]
            .as_str()
            .map_or_else(|| format!("{}/ws/alpha", place.root().display()), str::to_owned),
        title: about["title"].as_str().map(str::to_owned),
        updated_at: about["updatedAt"].as_str().map(str::to_owned),
        history: Vec::new(),
    };
    for turn in 1..=about["turns"].as_u64().unwrap_or(0) {
        let said = puppets::text_update("user_message_chunk", &format!("turn {turn}"));
        let done = puppets::text_update("agent_message_chunk", &format!("done-{turn}"));
        stored.history.extend([said, done]);
    }
    stored
}

/// Lays one JSON value over another; null takes a member away.
fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (_, Value::Null) => {}
        (Value::Object(base), Value::Object(over)) => {
            for (name, value) in over {
                if value.is_null() {
                    base.remove(name);
                } else {
                    merge(base.entry(name.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (base, over) => *base = over.clone(),
    }
}
