//! Who has the session: calling it back, taking it, and what is proven of an agent that may have it.
//! The rules are the lease's (`crate::lease`); here is what follows for records and clients.

use bytes::Bytes;
use serde_json::{Value, json};

use super::made::By;
use super::{CloseWhy, Effect, How, Input, Session};
use crate::errors::{Code, WireError};
use crate::ids::ConnId;
use crate::lease::{Lease, Phase, Place, Probe};
use crate::record::Kind;

impl Session {
    /// Has the session called back, once, whoever waits; by a place that may have it, if there is one.
    pub(super) fn call_back(&mut self, conn: Option<ConnId>, how: How, params: Option<Bytes>) {
        if self.phase() == Phase::Lost && !self.is_history() {
            // Somebody knows better by now.
            self.lease = Lease::cold(self.lease.epoch(), false);
        }
        if let Some(at) = self.lease.claim() {
            self.out.push(Effect::Open { conn, how, params, at });
        }
    }

    /// An instance that may have the session is gone, and with it whatever it had.
    pub(super) fn gone(&mut self, at: &Place) {
        self.lease.ended(at, true);
        self.note_certainty();
    }

    /// A place that may have the session was asked; `owes` if it had a request to open it by then.
    pub(super) fn probed(&mut self, at: &Place, probe: Probe, owes: bool) {
        let was = self.phase();
        if !owes {
            self.lease.answered(at);
        }
        self.lease.probed(at, probe);
        if was == Phase::Suspect && self.phase() == Phase::Cold {
            self.out.push(Effect::LetGo { at: at.clone() });
        }
        self.note_certainty();
    }

    /// Where the journal says that somebody may have the session, and nobody has, it is told.
    fn note_certainty(&mut self) {
        if self.phase() == Phase::Cold && self.view.suspect.is_some() {
            self.append_json(Kind::Closed, &json!({ "reason": "proven gone" }));
        }
    }

    /// Takes the session from whoever has it, or may have it: in one record there is a new epoch and
    /// no owner. Then all work is ended and the old owner is told to let go. Clients stay; their next
    /// prompt calls the session back.
    pub(super) fn taken(&mut self, by: By) {
        if self.phase().is_starting() {
            return self.parked.push_back(Input::Take { by });
        }
        if self.lease.take().is_none() {
            return;
        }
        let owner = match self.lease.owner() {
            Some(Place::Instance(id) | Place::Url(id)) => id.clone(),
            None => String::new(),
        };
        self.append_json(
            Kind::Claimed,
            &json!({
                "agent": self.view.agent,
                "instance": owner,
                "how": "take",
                "by": { "client": &*by.client, "name": &*by.name },
            }),
        );
        self.out.push(Effect::Sync);
        self.end_work();
        self.unloading = CloseWhy::Take;
        self.out.push(Effect::Shut { why: CloseWhy::Take });
    }

    /// Ends all that goes on in the session: everybody who waits is answered.
    pub(super) fn end_work(&mut self) {
        self.drop_queue(None, Ok(()));
        self.cancel_turn();
        self.close_turn("cancelled", Ok(()));
        self.cancel_asks();
        self.withdraw_passes(true);
        self.stuck = None;
        self.fail_forwards(&WireError::new(
            Code::InstanceEnded,
            "the session was closed before the agent answered",
        ));
    }

    /// The payload of a record that says that no instance has the session for certain any more.
    pub(super) fn ending(&self, reason: &str) -> Value {
        let mut data = json!({ "reason": reason });
        if let Some(place) = self.lease.doubt() {
            data["kept"] = json!(place);
        }
        data
    }
}
