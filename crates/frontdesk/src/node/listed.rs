//! What an agent's own list says of one session.

use frontdesk_core::agent::Listed;
use frontdesk_core::agent::aliases::{Filed, filed};
use jiff::Timestamp;
use serde_json::Value;

/// What an agent's own list says of one session.
#[derive(Debug)]
pub(super) struct Look {
    /// Whether it is there.
    pub(super) listed: Listed,
    /// Its `updatedAt` there.
    pub(super) at: Option<Timestamp>,
    /// Its id there, and its other ids.
    ids: Option<(String, Vec<String>)>,
}

impl Default for Look {
    fn default() -> Self {
        Self { listed: Listed::Unknown, at: None, ids: None }
    }
}

impl Look {
    /// Looks for a session, under any of its ids, in the results of `session/list`.
    pub(super) fn new(pages: &[Value], native: &str) -> Self {
        let rows: Vec<&Value> =
            pages.iter().filter_map(|page| page.get("sessions")?.as_array()).flatten().collect();
        let all = filed(&rows);
        let is_it = |filed: &&Filed<'_>| filed.ids().any(|id| id == native);
        let found = all.iter().position(|filed| filed.as_ref().is_some_and(|it| is_it(&it)));
        let at = found.and_then(|at| rows.get(at)?.get("updatedAt")?.as_str()?.parse().ok());
        let ids = found.and_then(|at| all.get(at)?.as_ref());
        let ids = ids.map(|filed| (filed.id.to_owned(), filed.aliases.clone()));
        Self { listed: Listed::look(pages, native), at, ids }
    }

    /// Its ids there.
    pub(super) fn filed(&self) -> Option<Filed<'_>> {
        let (id, aliases) = self.ids.as_ref()?;
        Some(Filed { id, aliases: aliases.clone() })
    }
}
