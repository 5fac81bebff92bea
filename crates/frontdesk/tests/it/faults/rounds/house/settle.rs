//! Waiting for all answers, and for what has to succeed in the end.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{ANSWER, Asked, House, Kind, RpcError, TRIES, What, client, read};

impl House {
    /// Waits for all answers, and repeats what has to succeed.
    pub(super) fn settle(&mut self) {
        for at in 0..self.guests.len() {
            let asked = std::mem::take(&mut self.guests[at].asked);
            for asked in asked {
                self.answered(at, &asked);
            }
        }
    }

    pub(super) fn answered(&mut self, at: usize, asked: &Asked) {
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
    pub(super) fn tell_of(&mut self, at: usize, asked: &Asked) {
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
    pub(super) fn allow(&self, what: What, session: &str, error: &RpcError) {
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
    pub(super) fn close(&mut self, at: usize, session: &str) {
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

    /// Has a client load a session, however often that takes.
    pub(super) fn load(&mut self, guest: usize, session: &str) {
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
}
