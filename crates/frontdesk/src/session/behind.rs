//! What a lane does while its journal is behind: the disk is full, or takes nothing at present.
//!
//! What agents say is held and not shown; clients are told once, and once more when all of it has
//! caught up. What was taken in before is written as soon as that is possible, in order.

use frontdesk_core::render::remark;
use frontdesk_core::session::Input;

use super::LaneMsg;
use super::lane::Lane;

const BEGINS: &str = "The disk is full or takes nothing: what the agent says is held back until it can be \
     recorded, and no prompts are taken. Nothing is lost; cancel and close work.";
const CAUGHT_UP: &str =
    "There is room on the disk again: the record has caught up and everything goes on.";

impl Lane {
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

    /// Whether a message has to wait until there is room: all that an agent says, in its order.
    /// What people say, a deadline and an end go on, out of the reserve. Bounded: instances hold
    /// the rest back.
    pub(super) fn has_to_wait(&self, message: &LaneMsg) -> bool {
        if self.held.len() >= self.node.limits.lane_messages as usize {
            return false;
        }
        match message {
            // A branch is no hurry.
            LaneMsg::Agent { .. } | LaneMsg::Input(Input::Workspace(_)) => true,
            // Only behind what it comes after.
            LaneMsg::Ended { .. }
            | LaneMsg::Answered { .. }
            | LaneMsg::Input(
                Input::AgentError { .. } | Input::Started { .. } | Input::StartFailed(_),
            ) => !self.held.is_empty(),
            _ => false,
        }
    }
}
