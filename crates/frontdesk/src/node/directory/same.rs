//! Sessions that turned out to be one conversation: all that names the other one means this one.

use std::sync::Arc;

use frontdesk_core::ids::Key;

use super::{Change, Directory, Row};
use crate::index;
use crate::lock::{read, write};

/// How often one session may turn out to be another one before a key is followed no further.
const SAME_MAX: usize = 8;

/// What a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The session of this key: its own, or the one that it turned out to be.
    Own(Key),
    /// A deleted session.
    Deleted,
}

impl Directory {
    /// The sessions of an agent that are found under a native id, and whether one of them was deleted.
    #[must_use]
    pub(in crate::node) fn all_with(&self, agent: &str, native: &str) -> (Vec<Arc<Row>>, bool) {
        let known = self.natives(native).into_iter().filter(|(known, _)| known.agent == agent);
        let (deleted, known): (Vec<_>, Vec<_>) = known.partition(|(known, _)| known.deleted);
        let rows = known.into_iter().filter_map(|(known, row)| row.or_else(|| self.get(known.key)));
        (rows.collect(), !deleted.is_empty())
    }

    /// A row in memory is found under further native ids from now on; its lane is about to write them
    /// down.
    pub(in crate::node) fn also_named<'a>(&self, key: Key, ids: impl IntoIterator<Item = &'a str>) {
        let mut tables = write(&self.tables);
        let Some(mut aliases) = tables.rows.get(&key).map(|hot| hot.aliases.clone()) else {
            return;
        };
        tables.find_under(key, &mut aliases, ids);
        if let Some(hot) = tables.rows.get_mut(&key) {
            hot.aliases = aliases;
        }
    }

    /// What a key means; `None` if it is no session's.
    pub(super) fn standing(&self, key: Key) -> Option<Standing> {
        let mut key = key;
        for _ in 0..SAME_MAX {
            match self.standing_of(key)? {
                index::Standing::Own => return Some(Standing::Own(key)),
                index::Standing::Deleted => return Some(Standing::Deleted),
                index::Standing::SameAs(other) => key = other,
            }
        }
        None
    }

    fn standing_of(&self, key: Key) -> Option<index::Standing> {
        {
            let tables = read(&self.tables);
            if let Some(hot) = tables.rows.get(&key) {
                let same = hot.row.view.same_as.as_ref().and_then(|key| key.parse().ok());
                return Some(same.map_or(index::Standing::Own, index::Standing::SameAs));
            }
            match tables.gone.get(&key).map(|gone| &gone.what) {
                Some(Change::Deleted(_)) => return Some(index::Standing::Deleted),
                Some(_) => return None,
                None => {}
            }
        }
        self.index.standing(key)
    }
}
