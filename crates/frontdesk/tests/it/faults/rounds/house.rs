//! One home over all rounds: its sessions, its clients, and what they do.

mod compare;
mod settle;
mod strike;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

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
