//! Which sessions an instance may have although nobody is routed to it: those that its agent could not
//! be told to let go, and those that it was asked to open and has not answered for.

use std::collections::BTreeSet;
use std::path::Path;

use frontdesk_core::errors::WireError;
use frontdesk_core::ids::Key;
use frontdesk_core::lease::Place;
use frontdesk_core::session::CloseWhy;

use super::instance::{Instance, Pending};
use crate::lock::lock;

impl Instance {
    /// Where it is, for leases.
    #[must_use]
    pub fn place(&self) -> Place {
        let id = self.id.to_string();
        match id.rsplit_once('-').filter(|_| self.url.is_some()) {
            // Each connection is an instance; what its id begins with is the address's own name here.
            Some((address, _)) => Place::Url(address.to_owned()),
            None => Place::Instance(id),
        }
    }

    /// The agent could not be told to let this session go: only this instance may open it again
    /// while it lives, and its claim stays.
    pub async fn keep(&self, native: &str) {
        lock(&self.shared).kept.entry(native.into()).or_default();
        if let Err(error) = self.ledger.lock().await.keep(native, true) {
            tracing::warn!(instance = %self.id, %error, "failed to write the ledger");
        }
    }

    /// The agent has been told of this session again.
    pub async fn keep_no_more(&self, native: &str) {
        if let Err(error) = self.ledger.lock().await.keep(native, false) {
            tracing::warn!(instance = %self.id, %error, "failed to write the ledger");
        }
    }

    /// The outcome of an unloading is recorded, or never will be.
    pub fn note_closed(&self) {
        self.closing.send_modify(|count| *count = count.saturating_sub(1));
    }

    /// The agent is proven not to have this session.
    pub async fn let_go(&self, native: &str) {
        lock(&self.shared).kept.remove(native);
        self.keep_no_more(native).await;
        if let Err(error) = self.ledger.lock().await.let_go(native) {
            tracing::warn!(instance = %self.id, %error, "failed to write the ledger");
        }
    }

    /// This session is being unloaded: a later daemon goes on with that.
    pub async fn note_closing(&self, native: &str, why: CloseWhy) {
        self.closing.send_modify(|count| *count += 1);
        if let Err(error) = self.ledger.lock().await.close(native, why) {
            tracing::warn!(instance = %self.id, %error, "failed to write the ledger");
        }
    }

    /// Whether the agent may still have a session that is unloaded here.
    #[must_use]
    pub fn keeps(&self, native: &str) -> bool {
        lock(&self.shared).kept.contains_key(native)
    }

    /// The sessions that it may still have, by the agent's ids.
    #[must_use]
    pub fn kept(&self) -> BTreeSet<Box<str>> {
        lock(&self.shared).kept.keys().map(|native| Box::from(&**native)).collect()
    }

    /// What it has sent for a session that it may still have and that is not its own any more.
    #[must_use]
    pub fn late_for(&self, native: &str) -> u64 {
        lock(&self.shared).kept.get(native).copied().unwrap_or_default()
    }

    /// Nobody waits for the answer to a request to open a session any more. Where the agent was only
    /// `silent` it may open it whenever it likes.
    pub(super) fn give_up_opening(&self, number: u64, silent: bool) {
        let mut shared = lock(&self.shared);
        // Its answer may have come in this moment.
        if let Some(Pending::Opening(_, native)) = shared.pending.remove(&number)
            && silent
        {
            shared.unanswered.insert(number, native);
        }
    }

    /// An answer that nobody waits for any more. The agent has done what it was asked, or will not.
    pub(super) async fn answered_late(&self, number: u64) {
        lock(&self.shared).unanswered.remove(&number);
        self.dealt_with(number).await;
    }

    /// Whether it still has a request to open this session.
    #[must_use]
    pub fn owes_opening(&self, native: &str) -> bool {
        lock(&self.shared).unanswered.values().any(|owed| **owed == *native)
    }

    /// Notes that the agent is asked to open a session, or has made it, and where its journal is: a
    /// later daemon finds it by that.
    ///
    /// # Errors
    /// If the ledger cannot be written ([`Code::Storage`](frontdesk_core::errors::Code::Storage)).
    pub async fn enlist(&self, native: &str, key: Key, journal: &Path) -> Result<(), WireError> {
        let enlisted = self.ledger.lock().await.enlist(native, key, journal);
        enlisted.map_err(|error| self.unwritten(&error))
    }
}
