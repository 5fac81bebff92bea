//! The lease on one session: the right to be its owner, from claim to rest (DESIGN section 6).
//!
//! `cold → claiming → starting → live → draining → cold`, and two more: `suspect`, where an agent
//! may have the session and nobody knows, and `lost`, where its agent has said that it is gone.
//! Events go in as methods; what follows is their result. Three rules hold it together:
//!
//! - One claim at a time, and each that reaches an instance has a higher epoch than all before.
//! - What is in doubt stays in doubt until it is proven: a probe of that very place says that the
//!   session is not loaded there, or the place's processes are proven gone. Until then only that
//!   place may be asked for the session. A probe proves nothing while that place still has a request
//!   to open the session.
//! - Only the owner's words count. Behind a [`take`](Lease::take) there is a new epoch and no owner;
//!   what the old one still says is late.

use serde::{Deserialize, Serialize};

use crate::ids::Epoch;

/// Where an agent may have a session in memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// An instance that Frontdesk started, by its id. Once its processes are gone so is whatever
    /// it had.
    Instance(String),
    /// An agent that runs by itself, by the name its address has here (an address may hold secrets).
    /// The end of a connection to it proves nothing.
    Url(String),
}

impl Default for Place {
    fn default() -> Self {
        Self::Instance(String::new())
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Instance(id) => write!(f, "instance {id}"),
            Self::Url(url) => f.write_str(url),
        }
    }
}

/// Where a lease is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// No instance has the session.
    #[default]
    Cold,
    /// It was claimed, and no instance has been told yet.
    Claiming,
    /// An instance has been asked to open it.
    Starting,
    /// An instance has it.
    Live,
    /// It is being unloaded.
    Draining,
    /// An agent may have it, and nobody can tell.
    Suspect,
    /// Its agent has said that it is gone, or that it cannot come back.
    Lost,
}

impl Phase {
    /// The word for it, in `_meta.frontdesk` and on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Claiming => "claiming",
            Self::Starting => "starting",
            Self::Live => "live",
            Self::Draining => "draining",
            Self::Suspect => "suspect",
            Self::Lost => "lost",
        }
    }

    /// Whether no instance has the session for certain, and none is about to.
    #[must_use]
    pub fn is_cold(self) -> bool {
        matches!(self, Self::Cold | Self::Lost)
    }

    /// Whether a claim is on its way: whoever wants the session waits for its outcome.
    #[must_use]
    pub fn is_starting(self) -> bool {
        matches!(self, Self::Claiming | Self::Starting)
    }
}

/// How a claim failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The agent says that it does not have the session, or cannot call it back.
    NotThere,
    /// It could not be opened now: somebody else holds it, or the agent refused.
    CouldNot,
    /// The agent was asked and did not answer in time: it may open it yet.
    NoAnswer,
}

/// What a place says of a session when it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Known and not in memory, or not known at all.
    Cold,
    /// In memory.
    Loaded,
    /// No answer, or one that says nothing.
    Nothing,
}

/// The lease on one session, as one daemon sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    phase: Phase,
    epoch: Epoch,
    /// The claim's own epoch, where there is an owner or one is being asked.
    own: Option<Epoch>,
    /// The owner, or who is being asked.
    owner: Option<Place>,
    /// Who may have it besides. Only that place is ever asked while this is so.
    doubt: Option<Place>,
    /// Who was asked to open it and has not answered: it may do so at any time, whatever it says
    /// meanwhile.
    asked: Option<Place>,
    /// The owner's processes are proven gone.
    is_gone: bool,
    late: u64,
}

impl Lease {
    /// The lease of a session that no instance has, behind `epoch`; `lost` if its agent cannot call
    /// it back.
    #[must_use]
    pub fn cold(epoch: Epoch, lost: bool) -> Self {
        let phase = if lost { Phase::Lost } else { Phase::Cold };
        Self { phase, epoch, ..Self::default() }
    }

    /// The lease of a session that `owner` has had since before this daemon.
    #[must_use]
    pub fn carried(epoch: Epoch, owner: Place) -> Self {
        let owner = Some(owner);
        Self { phase: Phase::Live, epoch, own: Some(epoch), owner, ..Self::default() }
    }

    /// The lease of a session that `owner` was asked to open before this daemon and has not answered
    /// for; where it `may_have` had it before that, a refusal proves nothing.
    #[must_use]
    pub fn asked(epoch: Epoch, owner: Place, may_have: bool) -> Self {
        let doubt = Some(owner.clone()).filter(|_| may_have);
        let asked = doubt.clone();
        Self { phase: Phase::Starting, doubt, asked, ..Self::carried(epoch, owner) }
    }

    /// Where it is in its life.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The highest epoch there was.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The owner, or who is being asked or told to let go.
    #[must_use]
    pub fn owner(&self) -> Option<&Place> {
        self.owner.as_ref()
    }

    /// Who may have the session, nobody knows.
    #[must_use]
    pub fn doubt(&self) -> Option<&Place> {
        self.doubt.as_ref()
    }

    /// Words of an owner that was none any more.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Somebody may have it: an earlier daemon has left it so. Whether an instance still has a
    /// request to open it nobody knows; with the connection to an address its requests are gone.
    pub fn suspect(&mut self, at: Place) {
        if matches!(self.phase, Phase::Cold | Phase::Lost | Phase::Suspect) {
            self.phase = Phase::Suspect;
            self.asked = Some(at.clone()).filter(|at| matches!(at, Place::Instance(_)));
            self.doubt = Some(at);
        }
    }

    /// Claims. `None` if there is no claim to be made: one is on its way, an instance has the
    /// session or is letting it go, or it is lost. Else the only place that may be asked, if it is not
    /// any.
    #[must_use]
    pub fn claim(&mut self) -> Option<Option<Place>> {
        if !matches!(self.phase, Phase::Cold | Phase::Suspect) {
            return None;
        }
        self.phase = Phase::Claiming;
        Some(self.doubt.clone())
    }

    /// A place is asked to open the session, under the epoch that comes back. `None` if it may not be:
    /// nobody has claimed, or another place may have it.
    #[must_use]
    pub fn ask(&mut self, place: Place) -> Option<Epoch> {
        let elsewhere = self.doubt.as_ref().is_some_and(|doubt| *doubt != place);
        // One that has answered with something else may be asked in another way.
        let again = self.phase == Phase::Starting && self.owner.as_ref() == Some(&place);
        if !(again || self.phase == Phase::Claiming) || elsewhere {
            return None;
        }
        self.begin(Phase::Starting, place)
    }

    /// A place has made the session.
    pub fn born(&mut self, place: Place) -> Option<Epoch> {
        if self.phase != Phase::Cold {
            return None;
        }
        self.begin(Phase::Live, place)
    }

    fn begin(&mut self, phase: Phase, owner: Place) -> Option<Epoch> {
        self.phase = phase;
        self.epoch += 1;
        self.own = Some(self.epoch);
        self.owner = Some(owner);
        self.is_gone = false;
        self.own
    }

    /// The place that was asked has opened it.
    pub fn opened(&mut self) {
        if self.phase == Phase::Starting {
            self.phase = Phase::Live;
            self.doubt = None;
        }
    }

    /// The claim has failed.
    pub fn refused(&mut self, why: Refusal) {
        if !self.phase.is_starting() {
            return;
        }
        let asked = self.owner.clone().filter(|_| self.phase == Phase::Starting && !self.is_gone);
        match (why, asked) {
            (Refusal::NotThere, Some(place)) if self.asked.as_ref() != Some(&place) => {
                self.doubt = None;
            }
            (Refusal::NoAnswer, Some(place)) => {
                self.asked = Some(place.clone());
                self.doubt = Some(place);
            }
            (Refusal::NotThere | Refusal::CouldNot | Refusal::NoAnswer, _) => {}
        }
        self.rest();
        if why == Refusal::NotThere && self.phase == Phase::Cold {
            self.phase = Phase::Lost;
        }
    }

    /// An instance has ended: the owner, or one that may have the session. Where that is `proven` it
    /// has nothing any more.
    pub fn ended(&mut self, place: &Place, proven: bool) {
        let owns = self.owner.as_ref() == Some(place);
        // What it was asked over its connection has ended with that.
        self.answered(place);
        if proven && self.doubt.as_ref() == Some(place) {
            self.doubt = None;
        }
        match self.phase {
            Phase::Live if owns => {
                if !proven {
                    self.doubt = Some(place.clone());
                }
                self.rest();
            }
            // Whoever waits for the outcome hears it from whoever asked.
            Phase::Starting | Phase::Draining if owns && proven => self.is_gone = true,
            Phase::Starting if owns => self.doubt = Some(place.clone()),
            Phase::Suspect => self.rest(),
            _ => {}
        }
    }

    /// The owner is told to let go; `false` if there is none that could be.
    pub fn drain(&mut self) -> bool {
        let may = self.phase == Phase::Live;
        if may {
            self.phase = Phase::Draining;
        }
        may
    }

    /// What came of telling the owner to let go: it has, or is proven gone; or nobody knows.
    pub fn closed(&mut self, let_go: bool) {
        if self.phase != Phase::Draining {
            return;
        }
        let may_open = self.asked.is_some() && self.asked == self.owner;
        self.doubt = self.owner.take().filter(|_| (!let_go || may_open) && !self.is_gone);
        self.rest();
    }

    /// A place has no request to open the session any more: what it was asked it has answered, late.
    pub fn answered(&mut self, place: &Place) {
        self.asked.take_if(|asked| asked == place);
    }

    /// A place was asked whether it has the session. Only its own word that it has not ends doubt.
    pub fn probed(&mut self, place: &Place, probe: Probe) {
        let answers = self.doubt() == Some(place) && self.asked.as_ref() != Some(place);
        if probe != Probe::Cold || !answers {
            return;
        }
        match self.phase {
            Phase::Suspect => {
                self.doubt = None;
                self.rest();
            }
            // Anybody may be asked now.
            Phase::Claiming => self.doubt = None,
            _ => {}
        }
    }

    /// Takes the lease from whoever has it, or may have it: a new epoch, and no owner under it. `None`
    /// if there is nobody, or a claim or an unloading is on its way: that has an outcome first.
    pub fn take(&mut self) -> Option<Epoch> {
        match self.phase {
            Phase::Live => {}
            Phase::Suspect => self.owner = self.doubt.clone(),
            Phase::Cold | Phase::Lost | Phase::Claiming | Phase::Starting | Phase::Draining => {
                return None;
            }
        }
        self.phase = Phase::Draining;
        self.epoch += 1;
        self.own = None;
        Some(self.epoch)
    }

    /// Whether a word of an instance under `epoch` counts: it is the owner's, and not of an earlier
    /// claim.
    #[must_use]
    pub fn accepts(&self, epoch: Epoch) -> bool {
        self.own == Some(epoch) && epoch == self.epoch
    }

    /// Counts a word that came too late.
    pub fn count_late(&mut self) {
        self.late += 1;
    }

    /// Nothing is on its way any more.
    fn rest(&mut self) {
        self.owner = None;
        self.own = None;
        self.is_gone = false;
        self.phase = if self.doubt.is_some() { Phase::Suspect } else { Phase::Cold };
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
