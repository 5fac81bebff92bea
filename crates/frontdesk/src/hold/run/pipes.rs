//! The agent's side of the loop: its output to the spool and on, its input, its end.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::super::input::Pumped;
use super::{Holder, is_passing};

/// Pause before a spool that could not be written is tried again, in milliseconds.
const DISK_RETRY_MS: u64 = 250;
/// Output taken from a pipe that outlives its agent, in bytes.
const LAST_OUTPUT_BYTES_MAX: usize = 4 << 20;

impl Holder {
    pub(super) fn read_stdout(&mut self, now: Instant) {
        let Some(stdout) = &mut self.agent.stdout else { return };
        match stdout.read(&mut self.from_agent) {
            Ok(0) => self.output_ended(now),
            Ok(count) => {
                self.life_at = now;
                self.spool_output(count, now);
            }
            Err(error) if is_passing(&error) => {}
            Err(_) => self.output_ended(now),
        }
    }

    /// Writes to the spool first and tells the daemon then.
    pub(super) fn spool_output(&mut self, count: usize, now: Instant) {
        let bytes = std::mem::take(&mut self.from_agent);
        let offset = self.out.end();
        match self.out.append(&bytes[..count]) {
            Ok(()) => self.pump_conns(Some((offset, &bytes[..count]))),
            // Most likely the disk is full. The agent's pipe fills up and it waits.
            Err(_) => {
                self.unspooled = bytes[..count].to_vec();
                self.retry_at = now + Duration::from_millis(DISK_RETRY_MS);
            }
        }
        self.from_agent = bytes;
    }

    pub(super) fn spool_again(&mut self, now: Instant) {
        let bytes = std::mem::take(&mut self.unspooled);
        if self.out.append(&bytes).is_err() {
            self.unspooled = bytes;
            self.retry_at = now + Duration::from_millis(DISK_RETRY_MS);
        }
    }

    pub(super) fn output_ended(&mut self, now: Instant) {
        self.agent.stdout = None;
        self.news.eof = Some(self.out.end());
        self.close_input();
        self.phase.output_ended(now);
        if self.agent.check_exit() {
            self.phase.agent_exited(now);
        }
    }

    pub(super) fn take_last_output(&mut self, now: Instant) {
        let mut taken = 0;
        while self.reads_output() {
            let Some(stdout) = &mut self.agent.stdout else { return };
            match stdout.read(&mut self.from_agent) {
                Ok(count) if count > 0 && taken < LAST_OUTPUT_BYTES_MAX => {
                    taken += count;
                    self.spool_output(count, now);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => self.output_ended(now),
            }
        }
    }

    pub(super) fn read_stderr(&mut self) {
        let Some(stderr) = &mut self.agent.stderr else { return };
        match stderr.read(&mut self.from_agent) {
            Ok(count) if count > 0 => self.stderr.push(&self.from_agent[..count]),
            Err(error) if is_passing(&error) => {}
            _ => self.agent.stderr = None,
        }
    }

    pub(super) fn pump_input(&mut self) {
        let Some(stdin) = &mut self.agent.stdin else { return };
        if self.input.pump(stdin, &mut self.scratch) == Pumped::Closed {
            self.close_input();
        }
    }

    pub(super) fn close_input(&mut self) {
        self.agent.stdin = None;
        self.input.drop_all();
        self.news.input_closed = true;
    }

    pub(super) fn read_signals(&mut self, now: Instant) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            match Signal::try_from(info.ssi_signo.cast_signed()) {
                Ok(Signal::SIGTERM | Signal::SIGINT) => self.dismiss(now, self.term()),
                Ok(Signal::SIGCHLD) if self.agent.check_exit() => {
                    self.life_at = now;
                    self.phase.agent_exited(now);
                }
                // A hang-up is for those who have a terminal.
                _ => {}
            }
        }
    }

    /// The agent is to end, and the holder to leave with it.
    pub(super) fn dismiss(&mut self, now: Instant, term: Duration) {
        self.is_dismissed = true;
        self.stop(now, term);
    }

    pub(super) fn stop(&mut self, now: Instant, term: Duration) {
        self.close_input();
        self.phase.stop(&self.agent, now, term);
    }

    pub(super) fn all_gone(&mut self, now: Instant) {
        if self.agent.stdout.is_some() {
            self.take_last_output(now);
        }
        self.agent.reap();
        self.news.gone = true;
        // Nothing of the agent is left that could use a session.
        self.claims.release_all();
    }
}
