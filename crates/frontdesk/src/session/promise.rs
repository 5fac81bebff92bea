//! What somebody waits for until it is durable and shown, or only written.

use frontdesk_core::fold::Done;
use frontdesk_core::lease::Phase;
use frontdesk_core::session::{By, Decision, Effect, Input};
use tokio::sync::oneshot;

use super::lane::Lane;
use super::{Decided, LaneMsg, Taken};

/// A word that is given once what came before it is durable, or written where that is enough.
pub(super) enum Promise {
    /// It is written, and outlives this daemon; what outlives the machine has no need of it.
    Written(oneshot::Sender<()>),
    /// It is done.
    Durable(oneshot::Sender<()>),
    /// It is done, or was done before.
    Command(oneshot::Sender<Option<Box<Done>>>, Option<Box<Done>>),
    /// A question was answered, or why it was not.
    Decided(oneshot::Sender<Decided>, Decided),
    /// The session was taken, or why not.
    Taken(oneshot::Sender<Taken>, Taken),
}

impl Promise {
    /// Whether what came before it has to be durable first.
    pub(super) fn is_of_the_disk(&self) -> bool {
        !matches!(self, Self::Written(_))
    }

    /// Gives the word; who waited may be gone.
    pub(super) fn keep(self) {
        match self {
            Self::Written(done) | Self::Durable(done) => drop(done.send(())),
            Self::Command(before, known) => drop(before.send(known)),
            Self::Decided(told, decided) => drop(told.send(decided)),
            Self::Taken(told, taken) => drop(told.send(taken)),
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
            LaneMsg::Opening { instance, input, written } => {
                self.instance = Some(instance);
                self.handle_all(vec![input], effects);
                Promise::Written(written)
            }
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
            LaneMsg::Decide { decision, command, told } => {
                let decided = self.decide(decision, command, effects);
                Promise::Decided(told, decided)
            }
            LaneMsg::Take { by, told } => {
                let taken = self.take_over(by, effects);
                Promise::Taken(told, taken)
            }
            other => return Some(other),
        });
        None
    }

    /// Of two takes at the same moment one makes the new epoch, and the other finds an unload.
    fn take_over(&mut self, by: By, effects: &mut Vec<Effect>) -> Taken {
        let phase = self.session.phase();
        if phase.is_starting() || phase == Phase::Draining {
            return Taken::NotYet;
        }
        let before = self.session.lease().epoch();
        self.handle_all(vec![Input::Take { by }], effects);
        if self.session.lease().epoch() > before { Taken::Took } else { Taken::Nobody }
    }

    /// Answers a question, once whoever repeats the command; what does not answer it changes nothing.
    fn decide(
        &mut self,
        decision: Box<Decision>,
        command: Option<Box<Done>>,
        effects: &mut Vec<Effect>,
    ) -> Decided {
        let id = command.as_ref().map(|done| done.command_id.as_str());
        if let Some(known) = id.and_then(|id| self.session.view().command(id)) {
            return Ok(Some(Box::new(known.clone())));
        }
        self.session.may_answer(&decision.interaction, &decision.result)?;
        let inputs = [Some(Input::Decide(decision)), command.map(Input::Command)];
        self.handle_all(inputs.into_iter().flatten().collect(), effects);
        Ok(None)
    }

    fn handle_all(&mut self, inputs: Vec<Input>, effects: &mut Vec<Effect>) {
        let now = self.node.now();
        for input in inputs {
            effects.extend(self.session.handle(input, now));
        }
    }
}
