//! Who is killed, and how those who are left come again.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::Ordering;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{Ghost, Guest, House, Kind, SOON, Victim, What, agent_lives, eventually};

impl House {
    /// The instances of this home: name, pids of holder and agent.
    pub(super) fn instances(&self) -> BTreeMap<String, (i32, i32)> {
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

    pub(super) fn note_what_is_under_way(&mut self) {
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

    pub(super) fn strike(&mut self, before: &BTreeMap<String, (i32, i32)>) {
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
    pub(super) fn strike_instance(&mut self, before: &BTreeMap<String, (i32, i32)>) {
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
    pub(super) fn comes_again(&mut self, at: usize) {
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
    pub(super) fn is_dead(&self, at: usize) -> bool {
        self.kind == Kind::Daemon || self.guests[at].lasts
    }
}
