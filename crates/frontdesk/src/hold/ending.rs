//! From the first TERM to the proof that nothing of the agent is left. Used by `run`.
//!
//! TERM goes to the agent's group, then KILL; then every process that carries the instance's mark
//! is killed wherever it is. The proof is two looks in a row at all processes of the machine that
//! find none of the group and none with the mark: one look can miss a process that was born while
//! it went on.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::agent::Agent;
use crate::agent::proc::{self, Kin};

/// Time an agent gets to leave by itself after it has closed its output, in milliseconds.
const EOF_GRACE_MS: u64 = 250;
/// First pause between two looks, in milliseconds; each one doubles it.
const PAUSE_FIRST_MS: u64 = 2;
/// Longest pause between two looks, in milliseconds.
const PAUSE_LONGEST_MS: u64 = 64;

/// How far the end has come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// The agent works.
    Running,
    /// It has closed its output and may leave by itself until then.
    Leaving { until: Instant },
    /// TERM was sent.
    Terming { kill_at: Instant, look_at: Instant, pause: Duration },
    /// KILL is sent until nothing is left.
    Killing { look_at: Instant, pause: Duration, clean_looks: u8 },
    /// Proven: nothing is left.
    Gone { since: Instant },
}

impl Phase {
    /// When something is to be done next.
    pub(super) const fn due(&self) -> Option<Instant> {
        match self {
            Self::Leaving { until } => Some(*until),
            Self::Terming { look_at, .. } | Self::Killing { look_at, .. } => Some(*look_at),
            Self::Running | Self::Gone { .. } => None,
        }
    }

    /// Whether the agent is being ended, or has ended.
    pub(super) const fn is_ending(&self) -> bool {
        !matches!(self, Self::Running)
    }

    /// The output has ended.
    pub(super) fn output_ended(&mut self, now: Instant) {
        if matches!(self, Self::Running) {
            *self = Self::Leaving { until: now + Duration::from_millis(EOF_GRACE_MS) };
        }
    }

    /// The agent is to end, with `term` between TERM and KILL. A second call may only hurry.
    pub(super) fn stop(&mut self, agent: &Agent, now: Instant, term: Duration) {
        match self {
            Self::Running | Self::Leaving { .. } => {
                agent.signal_group(Signal::SIGTERM);
                // A stopped process takes no TERM before it goes on.
                agent.signal_group(Signal::SIGCONT);
                let pause = Duration::from_millis(PAUSE_FIRST_MS);
                *self = Self::Terming { kill_at: now + term, look_at: now + pause, pause };
            }
            Self::Terming { kill_at, .. } => *kill_at = (*kill_at).min(now + term),
            Self::Killing { .. } | Self::Gone { .. } => {}
        }
    }

    /// The first process has ended: what waits for that is looked at now.
    pub(super) const fn agent_exited(&mut self, now: Instant) {
        match self {
            Self::Leaving { until: at } | Self::Terming { look_at: at, .. } => *at = now,
            Self::Running | Self::Killing { .. } | Self::Gone { .. } => {}
        }
    }

    /// Does what is due; the caller asks again until nothing is. Says whether the end was proven
    /// just now.
    pub(super) fn step(&mut self, agent: &Agent, mark: &str, now: Instant, term: Duration) -> bool {
        match *self {
            Self::Running | Self::Gone { .. } => {}
            Self::Leaving { until } => {
                if now >= until {
                    self.stop(agent, now, term);
                }
            }
            Self::Terming { kill_at, look_at, pause } => {
                let group_gone = || {
                    let members = proc::group_members(agent.id.pid);
                    agent.exit.is_some() && members.is_ok_and(|members| members.is_empty())
                };
                if now >= kill_at || (now >= look_at && group_gone()) {
                    let pause = Duration::from_millis(PAUSE_FIRST_MS);
                    *self = Self::Killing { look_at: now, pause, clean_looks: 0 };
                } else if now >= look_at {
                    let next = (now + pause).min(kill_at);
                    *self = Self::Terming { kill_at, look_at: next, pause: longer(pause) };
                }
            }
            Self::Killing { look_at, pause, clean_looks } => {
                if now >= look_at {
                    return self.look(agent, mark, now, (pause, clean_looks));
                }
            }
        }
        false
    }

    fn look(
        &mut self,
        agent: &Agent,
        mark: &str,
        now: Instant,
        (pause, clean_looks): (Duration, u8),
    ) -> bool {
        let kin = Kin { group: Some(agent.id.pid), session: None, mark, since: agent.id.birth };
        match proc::survey(&kin) {
            Ok(left) if left.is_empty() && clean_looks > 0 => {
                *self = Self::Gone { since: now };
                return true;
            }
            Ok(left) if left.is_empty() => {
                *self = Self::Killing { look_at: now, pause, clean_looks: 1 };
            }
            Ok(left) => {
                agent.signal_group(Signal::SIGKILL);
                for process in &left {
                    let _ = proc::signal_process(process, Signal::SIGKILL);
                }
                *self =
                    Self::Killing { look_at: now + pause, pause: longer(pause), clean_looks: 0 };
            }
            // Without a list nothing is proven.
            Err(_) => {
                agent.signal_group(Signal::SIGKILL);
                *self =
                    Self::Killing { look_at: now + pause, pause: longer(pause), clean_looks: 0 };
            }
        }
        false
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(Duration::from_millis(PAUSE_LONGEST_MS))
}
