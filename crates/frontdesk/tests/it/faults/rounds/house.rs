//! One home over all rounds: its sessions, its clients, and who is killed when.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::super::{Chance, SOON, agent_lives, client, demo, eventually, nothing_runs, store};
use super::agents::Agents;
use super::check::{Check, Room, Victim, is_behind, is_quiet, items, read};
use super::counts::Counts;
use super::guests::{Asked, Guest, Seat, What, shown};
use crate::acp::{Acp, RpcError};
use crate::desk::Desk;

/// Sessions that are in use at once.
const SESSIONS: usize = 3;
/// Closed sessions that may be called back.
const COLD: usize = 3;
/// Rounds after which a session is closed: long histories only make rounds slow.
const AGE: u64 = 6;
/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(60);
/// How often a load or a close that failed is tried again.
const TRIES: u64 = 50;

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Daemon,
    Shim,
    Holder,
    Agent,
}

/// What has to be under way when somebody is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amid {
    Prompts,
    Permission,
    Load,
    Close,
    New,
}

/// A client's connection that has ended, and what it took part in.
struct Ghost {
    name: &'static str,
    acp: Acp,
    seats: BTreeMap<String, Seat>,
}

/// A home in its rounds.
pub(super) struct House {
    kind: Kind,
    desk: Desk,
    guests: Vec<Guest>,
    ghosts: Vec<Ghost>,
    rooms: Vec<Room>,
    cold: Vec<Room>,
    agents: Agents,
    victims: BTreeMap<String, Victim>,
    chance: Chance,
    pub(super) counts: Counts,
    /// The session that is being closed in this round.
    closing: Option<String>,
}

impl House {
    pub(super) fn open(kind: Kind, chance: Chance) -> Self {
        let name = match kind {
            Kind::Daemon => "daemon",
            Kind::Shim => "shim",
            Kind::Holder => "holder",
            Kind::Agent => "agent",
        };
        // The log lies in the agent's home, which is the desk's own.
        let script = "exec \"$0\" demo-agent --log \"$HOME/frames\"";
        let mut spec = demo("demo", &[]);
        let program = spec.command[0].clone();
        spec.command = vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned(), program];
        let spec = spec.setting("sessions_per_instance = 2");
        let desk = Desk::builder().agent(spec).limit("stop_term_ms", 200).open();
        let guests = [("a", true), ("b", true), ("c", false)];
        let guests = guests.map(|(name, lasts)| Guest::new(&desk, name, lasts)).into();
        let agents = Agents::new(desk.user_home().join("frames"));
        let counts = Counts { kind: name, ..Counts::default() };
        Self {
            kind,
            desk,
            guests,
            ghosts: Vec::new(),
            rooms: Vec::new(),
            cold: Vec::new(),
            agents,
            victims: BTreeMap::new(),
            chance,
            counts,
            closing: None,
        }
    }

    fn pick(&mut self, bound: usize) -> usize {
        usize::try_from(self.chance.below(bound as u64)).expect("a small number")
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.chance.below(bound) == 0
    }

    /// One round, from a quiet house to a quiet house.
    pub(super) fn round(&mut self) {
        self.counts.rounds += 1;
        self.staff();
        let before = self.instances();
        self.talk();
        let amid = [Amid::Prompts, Amid::Permission, Amid::Load, Amid::Close, Amid::New];
        let amid = amid[self.pick(amid.len())];
        self.lead_up(amid);
        self.strike(&before);
        if self.kind == Kind::Daemon && self.one_in(4) {
            // One that has just come up.
            self.chance.pause(60);
            self.strike(&before);
        }
        self.settle();
        self.check();
        self.retire();
    }

    /// Enough sessions, each with somebody in it.
    fn staff(&mut self) {
        while self.rooms.len() < SESSIONS {
            let at = self.pick(self.guests.len());
            let id = self.guests[at].make(&self.desk);
            self.move_in(&id, at);
        }
        let rooms: Vec<String> = self.rooms.iter().map(|room| room.id.clone()).collect();
        for id in &rooms {
            for at in 0..self.guests.len() {
                let is_in = self.guests[at].seats.contains_key(id);
                let alone = self.guests.iter().all(|guest| !guest.seats.contains_key(id));
                if !is_in && (alone || self.one_in(2)) {
                    self.load(at, id);
                }
            }
        }
    }

    fn move_in(&mut self, id: &str, guest: usize) {
        let row = self.guests[guest].acp.ok("_frontdesk/session", json!({ "sessionId": id }));
        let text = |name: &str| row[name].as_str().expect("a row has it").to_owned();
        let journal = PathBuf::from(text("path"));
        self.rooms.push(Room { id: id.to_owned(), native: text("nativeId"), journal, age: 0 });
    }

    /// Has a client load a session, however often that takes.
    fn load(&mut self, guest: usize, session: &str) {
        for _ in 0..TRIES {
            let desk = &self.desk;
            self.guests[guest].begin_load(desk, session);
            let asked = self.guests[guest].asked.pop().expect("it was asked");
            self.counts.loads += 1;
            match self.guests[guest].acp.wait(asked.pending, ANSWER) {
                Ok(_) => return,
                Err(error) => self.allow(What::Load, session, &error),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{}: {session} cannot be loaded", self.place());
    }

    fn place(&self) -> String {
        format!("{:?}, round {}", self.kind, self.counts.rounds)
    }

    /// Everybody says something.
    fn talk(&mut self) {
        for at in 0..self.guests.len() {
            for _ in 0..=self.chance.below(2) {
                let ids: Vec<String> = self.guests[at].seats.keys().cloned().collect();
                if ids.is_empty() {
                    continue;
                }
                let id = ids[self.pick(ids.len())].clone();
                let chance = &mut self.chance;
                self.guests[at].begin_prompt(&id, |name| script(chance, name));
                self.counts.prompts += 1;
            }
        }
    }

    /// Waits for the moment.
    fn lead_up(&mut self, amid: Amid) {
        let at = self.pick(self.guests.len());
        match amid {
            Amid::Prompts => self.chance.pause(80),
            Amid::Permission => self.ask(at),
            Amid::Load => {
                self.load_cold(at);
                self.chance.pause(60);
            }
            Amid::Close => {
                let room = self.pick(self.rooms.len());
                let id = self.rooms[room].id.clone();
                if self.guests[at].seats.contains_key(&id) {
                    self.chance.pause(40);
                    self.begin_close(at, &id);
                }
                self.chance.pause(25);
            }
            Amid::New => {
                let desk = &self.desk;
                self.guests[at].begin_new(desk);
                self.chance.pause(40);
            }
        }
    }

    fn ask(&mut self, at: usize) {
        let Some(id) = self.guests[at].seats.keys().next().cloned() else { return };
        self.hold(true);
        self.guests[at].begin_prompt(&id, |name| format!("ask {name}?\nsay {name} end"));
        self.counts.prompts += 1;
        let open = |guest: &Guest| guest.manner.open.load(Ordering::Relaxed) > 0;
        eventually("a question", SOON, || self.guests.iter().any(open));
        self.chance.pause(15);
    }

    fn hold(&self, hold: bool) {
        for guest in &self.guests {
            guest.manner.hold.store(hold, Ordering::Relaxed);
        }
    }

    /// Begins the load of a session that nobody has, or else of one that the client is not in.
    fn load_cold(&mut self, at: usize) {
        let desk = &self.desk;
        if let Some(mut room) = self.cold.pop() {
            room.age = 0;
            self.guests[at].begin_load(desk, &room.id);
            self.rooms.push(room);
        } else if let Some(room) =
            self.rooms.iter().find(|room| !self.guests[at].seats.contains_key(&room.id))
        {
            self.guests[at].begin_load(desk, &room.id);
        } else {
            return;
        }
        self.counts.loads += 1;
    }

    fn begin_close(&mut self, at: usize, session: &str) {
        self.guests[at].begin_close(session);
        self.counts.closes += 1;
        self.closing = Some(session.to_owned());
    }

    /// The instances of this home: name, pids of holder and agent.
    fn instances(&self) -> BTreeMap<String, (i32, i32)> {
        let folder = self.desk.home().join("run/instances");
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let text = fs::read(entry.path().join("holder.json")).unwrap_or_default();
            let record: Value = serde_json::from_slice(&text).unwrap_or_default();
            let pid =
                |name: &str| record[name]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
            if let (Some(holder), Some(agent)) = (pid("holder"), pid("agent")) {
                let name = entry.file_name().to_string_lossy().into_owned();
                found.insert(name, (holder, agent));
            }
        }
        found
    }

    fn note_what_is_under_way(&mut self) {
        let mut amid = Vec::new();
        let waits = |guest: &Guest, what: What| {
            guest.asked.iter().any(|it| it.what == what && !guest.acp.is_answered(it.pending))
        };
        for (name, what) in [
            ("prompts", What::Prompt),
            ("a load", What::Load),
            ("a close", What::Close),
            ("a new session", What::New),
        ] {
            if self.guests.iter().any(|guest| waits(guest, what)) {
                amid.push(name);
            }
        }
        if self.guests.iter().any(|guest| guest.manner.open.load(Ordering::Relaxed) > 0) {
            amid.push("a permission");
        }
        if amid.is_empty() {
            amid.push("nothing");
        }
        for name in amid {
            *self.counts.amid.entry(name).or_default() += 1;
        }
        self.counts.kills += 1;
    }

    fn strike(&mut self, before: &BTreeMap<String, (i32, i32)>) {
        match self.kind {
            Kind::Daemon => {
                self.note_what_is_under_way();
                self.desk.kill9();
                // An editor's shim may have started the next one.
                self.counts.kills += self.desk.start_before_all_others();
                self.comes_again(2);
            }
            Kind::Shim => {
                let at = self.pick(self.guests.len());
                self.note_what_is_under_way();
                let guest = &self.guests[at];
                if guest.lasts {
                    let pid = i32::try_from(guest.acp.pid()).expect("a pid");
                    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("the shim is there");
                }
                self.comes_again(at);
            }
            Kind::Holder | Kind::Agent => self.strike_instance(before),
        }
        self.hold(false);
    }

    /// Kills one process of an instance, half the time of one that has just been started.
    fn strike_instance(&mut self, before: &BTreeMap<String, (i32, i32)>) {
        let all = self.instances();
        let fresh: Vec<_> = all.iter().filter(|(name, _)| !before.contains_key(*name)).collect();
        let any: Vec<_> = all.iter().collect();
        let from = if !fresh.is_empty() && self.one_in(2) { &fresh } else { &any };
        if from.is_empty() {
            return;
        }
        let (name, (holder, agent)) = from[self.pick(from.len())];
        self.note_what_is_under_way();
        let (pid, victim) = match self.kind {
            Kind::Holder => (*holder, Victim::Holder),
            _ => (*agent, Victim::Agent),
        };
        // It may have ended by itself.
        if kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok() {
            self.victims.insert(name.clone(), victim);
        }
        let agent = *agent;
        eventually("the agent's end", SOON, || !agent_lives(agent));
    }

    /// A client comes again; where it was, it comes again, too.
    fn comes_again(&mut self, at: usize) {
        let (acp, seats, asked) = self.guests[at].come_again(&self.desk);
        acp.close_stdin();
        eventually("the end of a dead connection", SOON, || acp.has_ended() || !self.is_dead(at));
        self.counts.prompts_left += asked
            .iter()
            .filter(|it| it.what == What::Prompt && !acp.is_answered(it.pending))
            .count() as u64;
        let closed = asked.iter().find(|it| it.what == What::Close).map(|it| it.session.clone());
        let ids: Vec<String> = seats.keys().cloned().collect();
        let name = self.guests[at].name;
        self.ghosts.push(Ghost { name, acp, seats });
        if let Some(id) = closed {
            // Whether it was closed is not known to it.
            self.begin_close(at, &id);
        }
        for id in ids {
            if self.closing.as_ref() != Some(&id) && self.rooms.iter().any(|room| room.id == id) {
                let desk = &self.desk;
                self.guests[at].begin_load(desk, &id);
                self.counts.loads += 1;
            }
        }
    }

    /// Whether the last connection of a client is known to be cut from the other side.
    fn is_dead(&self, at: usize) -> bool {
        self.kind == Kind::Daemon || self.guests[at].lasts
    }

    /// Waits for all answers, and repeats what has to succeed.
    fn settle(&mut self) {
        for at in 0..self.guests.len() {
            let asked = std::mem::take(&mut self.guests[at].asked);
            for asked in asked {
                self.answered(at, &asked);
            }
        }
    }

    fn answered(&mut self, at: usize, asked: &Asked) {
        let until = Instant::now() + ANSWER;
        while !self.guests[at].acp.is_answered(asked.pending) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        if !self.guests[at].acp.is_answered(asked.pending) {
            self.counts.unanswered += 1;
            self.tell_of(at, asked);
        }
        let answer = self.guests[at].acp.wait(asked.pending, Duration::ZERO);
        match (asked.what, answer) {
            (What::Prompt, Ok(result)) => {
                let reason = result["stopReason"].as_str().unwrap_or_default();
                let closed = self.closing.as_ref() == Some(&asked.session);
                let fits = reason == "end_turn" || (closed && reason == "cancelled");
                assert!(fits, "{}: {asked:?}: {result}", self.place());
            }
            (What::New, Ok(result)) => {
                let id = result["sessionId"].as_str().expect("a session has an id").to_owned();
                self.load(at, &id);
                self.move_in(&id, at);
            }
            (What::Load | What::Close, Ok(_)) => {}
            (what, Err(error)) => {
                self.allow(what, &asked.session, &error);
                match what {
                    What::Prompt => self.counts.prompts_failed += 1,
                    What::Load => self.load(at, &asked.session),
                    What::Close => self.close(at, &asked.session),
                    What::New => {}
                }
            }
        }
    }

    /// What there is to know of a request that nobody answers.
    fn tell_of(&mut self, at: usize, asked: &Asked) {
        let (name, place) = (self.guests[at].name, self.place());
        eprintln!("{place}: nobody answers {asked:?} of {name}; {}", self.counts);
        for room in self.rooms.iter().filter(|room| room.id == asked.session) {
            let mut looker = client(&self.desk);
            let row = looker.ok("_frontdesk/session", json!({ "sessionId": room.id }));
            eprintln!("{row}");
            let records = read(room);
            for record in &records[records.len().saturating_sub(60)..] {
                let text: String = record.to_string().chars().take(400).collect();
                eprintln!("{text}");
            }
        }
    }

    /// Which errors may come, and fails with any other.
    fn allow(&self, what: What, session: &str, error: &RpcError) {
        let closed = self.closing.as_deref() == Some(session);
        let fits = match (what, error.code) {
            (_, -31002 | -31001) => {
                matches!(self.kind, Kind::Agent | Kind::Holder) || what == What::New
            }
            (What::Prompt | What::Close, -32002) => closed,
            _ => false,
        };
        assert!(fits, "{}: {what:?} of {session}: {error:?}", self.place());
    }

    /// Closes a session, however often that takes.
    fn close(&mut self, at: usize, session: &str) {
        for _ in 0..TRIES {
            self.begin_close(at, session);
            let asked = self.guests[at].asked.pop().expect("it was asked");
            match self.guests[at].acp.wait(asked.pending, ANSWER) {
                Ok(_) => return,
                // It was closed the first time.
                Err(error) if error.code == -32002 => return,
                Err(error) => self.allow(What::Close, session, &error),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{}: {session} cannot be closed", self.place());
    }

    /// Compares all ends of all sessions.
    fn check(&mut self) {
        let rooms = self.rooms.clone();
        for room in &rooms {
            self.check_room(room);
        }
        self.counts.permissions = self.agents.questions();
        let place = self.place();
        for guest in &mut self.guests {
            if let Some(ask) = guest.asked_twice() {
                self.counts.repeated += 1;
                panic!("{place}: {} was asked twice: {ask:?}: {}", guest.name, self.counts);
            }
        }
        self.ghosts.clear();
        if let Some(id) = self.closing.take() {
            self.leave(&id);
        }
        assert!(self.counts.is_clean(), "{}", self.counts);
    }

    fn check_room(&mut self, room: &Room) {
        let mut records = Vec::new();
        eventually("the end of all turns and questions", SOON, || {
            records = read(room);
            is_quiet(&records)
        });
        self.agents.read_on();
        // An agent notes what it says before it says it: its last word may still be on its way.
        let until = Instant::now() + SOON;
        while is_behind(&records, &self.agents, &self.victims, room) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
            records = read(room);
        }
        for guest in &self.guests {
            let Some(seat) = guest.seats.get(&room.id) else { continue };
            let own = format!("user:{}", seat.own);
            let wanted = items(&records).into_iter().filter(|it| !it.starts_with(&own)).count();
            // What the others caused may still be on its way; a missing end is told below.
            let until = Instant::now() + SOON;
            while guest.shown(&room.id).len() < wanted && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let store = store(&self.desk);
        let what = format!("{}, {}", self.place(), room.id);
        let mut check = Check {
            what,
            counts: &mut self.counts,
            agents: &self.agents,
            victims: &self.victims,
            records,
        };
        check.session(room, &store);
        for guest in &self.guests {
            if let Some(seat) = guest.seats.get(&room.id) {
                check.shown(guest.name, &seat.own, &guest.shown(&room.id), true);
            }
        }
        for ghost in &self.ghosts {
            if let Some(seat) = ghost.seats.get(&room.id) {
                let found = shown(&ghost.acp, &room.id, seat);
                check.shown(ghost.name, &seat.own, &found, false);
            }
        }
    }

    /// Nobody is in a closed session any more; it may be called back.
    fn leave(&mut self, session: &str) {
        for guest in &mut self.guests {
            guest.seats.remove(session);
        }
        let at = self.rooms.iter().position(|room| room.id == session);
        let mut room = self.rooms.remove(at.expect("it was in use"));
        let is_short = fs::metadata(&room.journal).is_ok_and(|it| it.len() < 200 << 10);
        if self.cold.len() < COLD && is_short {
            room.age = 0;
            self.cold.insert(0, room);
        }
    }

    /// Closes sessions that are old.
    fn retire(&mut self) {
        for room in &mut self.rooms {
            room.age += 1;
        }
        let old =
            self.rooms.iter().filter(|room| room.age > AGE || self.rooms.len() > 2 * SESSIONS);
        let Some(id) = old.map(|room| room.id.clone()).next() else { return };
        let at = self.guests.iter().position(|guest| guest.seats.contains_key(&id));
        self.close(at.unwrap_or_default(), &id);
        self.closing = None;
        self.leave(&id);
    }

    /// Stops everything; nothing is left.
    pub(super) fn end(mut self) -> Counts {
        self.guests.clear();
        let done = self.desk.cli(&["stop", "--all"]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        self.desk.kill9();
        nothing_runs(&self.desk);
        self.counts
    }
}

/// A few things that a turn does, each with a text that no other one has.
fn script(chance: &mut Chance, name: &str) -> String {
    let mut lines = Vec::new();
    for piece in 0..=chance.below(3) {
        match chance.below(5) {
            0 | 1 => {
                for at in 0..4 + chance.below(8) {
                    lines.push(format!("say {name}.{piece}.{at}"));
                    if chance.below(3) == 0 {
                        lines.push(format!("wait {}", 1 + chance.below(4)));
                    }
                }
            }
            2 => lines.push(format!("stream {} every 1", 5 + chance.below(25))),
            3 => lines.push(format!("tool {name}.{piece}")),
            _ => lines.push(format!("ask {name}.{piece}?")),
        }
    }
    lines.join("\n")
}
