//! What somebody waits for until it is durable and shown.

use frontdesk_core::fold::Done;
use frontdesk_core::session::{Effect, Input};
use tokio::sync::oneshot;

use super::LaneMsg;
use super::lane::Lane;

/// A word that is given once what came before it is durable.
pub(super) enum Promise {
    /// It is done.
    Durable(oneshot::Sender<()>),
    /// It is done, or was done before.
    Command(oneshot::Sender<Option<Box<Done>>>, Option<Box<Done>>),
}

impl Promise {
    /// Gives the word; who waited may be gone.
    pub(super) fn keep(self) {
        match self {
            Self::Durable(done) => drop(done.send(())),
            Self::Command(before, known) => drop(before.send(known)),
        }
    }
}

impl Lane {
    /// Takes a message that somebody waits for; every other one comes back.
    pub(super) fn promise(
        &mut self,
        message: LaneMsg,
        effects: &mut Vec<Effect>,
        promised: &mut Vec<Promise>,
    ) -> Option<LaneMsg> {
        promised.push(match message {
            LaneMsg::Durable { inputs, done } => {
                self.handle_all(inputs, effects);
                Promise::Durable(done)
            }
            LaneMsg::Command { done, mut inputs, before } => {
                let known = self.session.view().command(&done.command_id).cloned().map(Box::new);
                if known.is_none() {
                    inputs.push(Input::Command(done));
                    self.handle_all(inputs, effects);
                }
                Promise::Command(before, known)
            }
            other => return Some(other),
        });
        None
    }

    fn handle_all(&mut self, inputs: Vec<Input>, effects: &mut Vec<Effect>) {
        let now = self.node.now();
        for input in inputs {
            effects.extend(self.session.handle(input, now));
        }
    }
}
