//! The daemons' side of the loop: who comes and goes, and what they ask for.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use frontdesk_core::hold::{AgentState, Hello, ToDaemon, ToHolder};

use super::super::claim::ClaimOutcome;
use super::super::conn::{Conn, Fresh};
use super::super::ending::Phase;
use super::super::full_text;
use super::super::input::{Answer, OutOfOrder};
use super::{CONNS_MAX, Holder, is_passing};

impl Holder {
    pub(super) fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.welcome(stream),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Greets a new connection. With all places taken, one that is not attached must go, so that
    /// idle ones cannot keep a daemon out.
    pub(super) fn welcome(&mut self, stream: UnixStream) {
        let state = match self.phase {
            Phase::Gone { .. } => AgentState::Gone,
            _ if self.news.eof.is_some() => AgentState::Ended,
            _ if self.agent.exit.is_some() => AgentState::Orphaned,
            _ => AgentState::Running,
        };
        let hello = Hello {
            out_start: self.out.start(),
            out_end: self.out.end(),
            last_input: self.input.last,
            state,
            ..self.hello.clone()
        };
        let Ok(conn) = Conn::new(stream, &ToDaemon::Hello(Box::new(hello))) else { return };
        let free = self.conns.iter().position(Option::is_none);
        let idle =
            || self.conns.iter().position(|conn| conn.as_ref().is_some_and(|conn| !conn.attached));
        if let Some(place) = free.or_else(idle) {
            self.conns[place] = Some(conn);
            self.pump_conns(None);
        }
    }

    /// Sends what the sockets take, and drops the connections that are no more.
    pub(super) fn pump_conns(&mut self, fresh: Fresh<'_>) {
        for place in 0..CONNS_MAX {
            let Some(conn) = &mut self.conns[place] else { continue };
            if conn.pump(&self.out, fresh, &self.news, &mut self.scratch).is_err() {
                self.drop_conn(place);
            }
        }
    }

    pub(super) fn drop_conn(&mut self, place: usize) {
        if self.conns[place].take().is_some_and(|conn| conn.attached) {
            self.input.abandon();
            self.alone_since = Some(Instant::now());
        }
    }

    pub(super) fn read_conn(&mut self, place: usize, now: Instant) {
        let Some(conn) = &mut self.conns[place] else { return };
        let count = match conn.read(&mut self.from_daemon) {
            Ok(0) => return self.drop_conn(place),
            Ok(count) => count,
            Err(error) if is_passing(&error) => return,
            Err(_) => return self.drop_conn(place),
        };
        // Taken out, so that a message may change everything else.
        let Some(mut conn) = self.conns[place].take() else { return };
        let bytes = std::mem::take(&mut self.from_daemon);
        let mut decoder = std::mem::take(&mut conn.decoder);
        let mut heard = Ok(());
        let decoded = decoder.feed(&bytes[..count], |message| {
            if heard.is_ok() {
                heard = self.hear(&mut conn, &message, now);
            }
        });
        conn.decoder = decoder;
        self.from_daemon = bytes;
        self.conns[place] = Some(conn);
        if decoded.is_err() || heard.is_err() {
            return self.drop_conn(place);
        }
        self.pump_input();
        self.pump_conns(None);
    }

    pub(super) fn hear(
        &mut self,
        conn: &mut Conn,
        message: &ToHolder<'_>,
        now: Instant,
    ) -> Result<(), OutOfOrder> {
        match *message {
            ToHolder::Attach { version: _, from_offset } => {
                if conn.attach(from_offset.clamp(self.out.start(), self.out.end())) {
                    // The newest daemon is the right one.
                    for place in 0..CONNS_MAX {
                        if self.conns[place].as_ref().is_some_and(|other| other.attached) {
                            self.drop_conn(place);
                        }
                    }
                    self.alone_since = None;
                }
            }
            ToHolder::Input { .. } | ToHolder::InputPiece { .. } if !conn.attached => {
                return Err(OutOfOrder);
            }
            ToHolder::Input { number, total_bytes, piece } => {
                let closed = self.agent.stdin.is_none() || self.phase.is_ending();
                let scratch = &mut self.scratch;
                let fate = self.input.begin(number, total_bytes, piece, closed, scratch)?;
                answer(conn, fate, now);
            }
            ToHolder::InputPiece { piece } => answer(conn, self.input.piece(piece)?, now),
            ToHolder::Ack { offset } => self.out.trim(offset),
            ToHolder::CloseInput => {
                self.pump_input();
                self.close_input();
            }
            ToHolder::Stop { term_ms } => {
                conn.await_end();
                self.dismiss(now, Duration::from_millis(u64::from(term_ms)));
            }
            ToHolder::Claim { name, info } => match self.claims.claim(name, info) {
                Ok(ClaimOutcome::Claimed) => conn.push(&ToDaemon::Claimed { name }),
                Ok(ClaimOutcome::Held(info)) => conn.push(&ToDaemon::Held { name, info: &info }),
                Err(error) => {
                    conn.push(&ToDaemon::ClaimFailed { name, reason: &full_text(&error) });
                }
            },
            ToHolder::Release { name } => {
                self.claims.release(name);
                conn.push(&ToDaemon::Released { name });
            }
        }
        Ok(())
    }
}

fn answer(conn: &mut Conn, answer: Option<Answer>, now: Instant) {
    match answer {
        None => {}
        Some(Answer::Accepted(number)) => conn.push_late(&ToDaemon::Accepted { number }, now),
        Some(Answer::Refused(number, reason)) => {
            conn.push(&ToDaemon::Refused { number, reason });
        }
    }
}
