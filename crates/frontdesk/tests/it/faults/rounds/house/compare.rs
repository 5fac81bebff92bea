//! What clients were shown, what journals hold and what agents said, compared.

use std::time::{Duration, Instant};

use super::{Check, House, Room, SOON, eventually, is_behind, is_quiet, items, read, shown, store};

impl House {
    /// Compares all ends of all sessions.
    pub(super) fn check(&mut self) {
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

    pub(super) fn check_room(&mut self, room: &Room) {
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
}
