//! What a lane does while its journal is behind: the disk is full, or takes nothing at present.
//!
//! What agents say is held and not shown; clients are told once, and once more when all of it has
//! caught up. What was taken in before is written as soon as that is possible, in order.

use std::time::Duration;

use frontdesk_core::errors::Code;
use frontdesk_core::render::remark;
use frontdesk_core::session::Input;
use frontdesk_core::status::State;
use tokio::time::Instant;

use super::LaneMsg;
use super::lane::Lane;

const BEGINS: &str = "The disk is full or takes nothing: what the agent says is held back until it can be \
     recorded, and no prompts are taken. Nothing is lost; cancel and close work.";
const CAUGHT_UP: &str =
    "There is room on the disk again: the record has caught up and everything goes on.";

/// After so long without a word of the agent in a running turn the disk is looked at.
const QUIET: Duration = Duration::from_secs(1);

/// How long the agent has said nothing. What clients ask meanwhile does not count.
pub(super) struct Quiet {
    due: Instant,
}

impl Quiet {
    pub(super) fn new() -> Self {
        Self { due: Instant::now() + QUIET }
    }

    /// Waits until it is long.
    pub(super) async fn is_long(&self) {
        tokio::time::sleep_until(self.due).await;
    }
}

impl Lane {
    /// Looks whether there is space where nothing is written that could tell: a turn that is quiet
    /// may be one whose agent finds no space to speak into, and a holder may have found none.
    pub(super) fn look_for_space(&self, batch: &[LaneMsg], quiet: &mut Quiet) {
        let speaks = |message: &LaneMsg| matches!(message, LaneMsg::Agent { .. });
        let refused = |message: &LaneMsg| {
            let LaneMsg::Input(Input::AgentError { error, .. }) = message else { return false };
            error.code == Code::Behind
        };
        let spoke = batch.iter().any(speaks);
        let is_long = !spoke && Instant::now() >= quiet.due;
        let is_running = self.session.state() == Some(State::Running);
        if (is_long && is_running) || batch.iter().any(refused) {
            self.node.log.look_for_space();
        }
        if spoke || is_long {
            *quiet = Quiet::new();
        }
    }

    /// Tells clients when the journal has fallen behind and when it has caught up. These remarks
    /// are in no journal: they are about it.
    pub(super) fn tell_behind(&mut self) {
        let behind = self.node.log.is_behind(self.handle.key());
        if std::mem::replace(&mut self.behind, behind) == behind {
            return;
        }
        let text = if behind { BEGINS } else { CAUGHT_UP };
        for (conn, spelling) in self.session.watchers() {
            if let Some(conn) = self.conns.get(&conn) {
                conn.send(remark(spelling, text, &format!(r#""behind":{behind}"#)));
            }
        }
    }

    /// Whether what agents say is held back at present. Instances do not read on meanwhile, but for
    /// one that is being ended; when so much is held that this is the only bound, all of it is
    /// handled, in its order, and written when and where there is room.
    pub(super) fn holds_back(&self) -> bool {
        self.node.log.health().is_behind()
            && self.held.len() < self.node.limits.lane_messages as usize
    }

    /// Whether a message has to wait until there is room: all that an agent says, in its order.
    /// What people say, a deadline and an end go on, out of the reserve.
    pub(super) fn has_to_wait(&self, message: &LaneMsg) -> bool {
        match message {
            // A branch is no hurry.
            LaneMsg::Agent { .. } | LaneMsg::Input(Input::Workspace(_)) => true,
            // Only behind what it comes after.
            LaneMsg::Ended { .. }
            | LaneMsg::Answered { .. }
            | LaneMsg::Input(
                Input::AgentError { .. } | Input::Started { .. } | Input::StartFailed { .. },
            ) => !self.held.is_empty(),
            _ => false,
        }
    }
}
