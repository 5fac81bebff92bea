//! What the index has to be told, and what it was told.

use std::collections::HashSet;
use std::sync::Arc;

use frontdesk_core::ids::Key;

use super::{Change, Directory, Hot, Row};
use crate::lock::{read, write};

impl Directory {
    /// Every row in memory, and the keys for which the index does not count.
    pub(in crate::node) fn in_memory(&self) -> (Vec<Arc<Row>>, HashSet<Key>) {
        let tables = read(&self.tables);
        let rows = tables.rows.values().map(|hot| hot.row.clone()).collect();
        let keys = tables.rows.keys().chain(tables.gone.keys()).copied().collect();
        (rows, keys)
    }

    /// The row of what the index has.
    pub(in crate::node) fn cold(&self, entry: crate::index::Entry) -> Arc<Row> {
        Arc::new(Row::of(entry, self.since))
    }

    /// How many changes the index has not taken.
    #[must_use]
    pub fn dirty_count(&self) -> usize {
        read(&self.tables).dirty.len()
    }

    /// Waits while more changes than `limit` have not reached the index. Blocking.
    pub fn wait_for_room(&self, limit: usize) {
        loop {
            let rung = self.bell.count();
            if self.dirty_count() <= limit {
                return;
            }
            self.bell.wait(rung, std::time::Duration::from_secs(1));
        }
    }

    /// Takes changes for the index, at most `count`. A session at work is left for later, unless
    /// `all` says so: what it is doing is here, and its text is complete when the turn is.
    pub(in crate::node) fn take_dirty(&self, count: usize, all: bool) -> Vec<(Key, Change)> {
        let mut tables = write(&self.tables);
        let at_work = |hot: &Hot| hot.pins > 0 && hot.row.view.open_turn.is_some();
        let ready =
            tables.dirty.iter().filter(|key| all || !tables.rows.get(*key).is_some_and(at_work));
        let keys: Vec<Key> = ready.take(count).copied().collect();
        let mut changes = Vec::with_capacity(keys.len());
        for key in keys {
            tables.dirty.remove(&key);
            if let Some(hot) = tables.rows.get(&key) {
                changes.push((key, Change::Put(hot.row.clone())));
            } else if let Some(gone) = tables.gone.get(&key) {
                changes.push((key, gone.what.clone()));
            }
        }
        changes
    }

    /// The index could not take them: they are to be written again.
    pub(in crate::node) fn give_back(&self, changes: &[(Key, Change)]) {
        write(&self.tables).dirty.extend(changes.iter().map(|(key, _)| *key));
    }

    /// The index has what was taken; rows that nobody needs here leave memory.
    pub(in crate::node) fn settled(&self, changes: &[(Key, Change)]) {
        let mut tables = write(&self.tables);
        for (key, change) in changes {
            let again = tables.dirty.contains(key);
            let Change::Put(row) = change else {
                if !again {
                    tables.gone.remove(key);
                }
                continue;
            };
            let Some(hot) = tables.rows.get_mut(key) else { continue };
            hot.counted = row.is_listed().then(|| row.view.agent.as_str().into());
            if hot.pins == 0 && !again {
                tables.remove(*key);
            }
        }
        drop(tables);
        self.bell.ring();
    }

    /// The index has lost what it had: everything here is to be written again.
    pub(in crate::node) fn all_dirty(&self) {
        let mut tables = write(&self.tables);
        let keys: Vec<Key> = tables.rows.keys().chain(tables.gone.keys()).copied().collect();
        tables.dirty.extend(keys);
    }

    /// The index is another one: what it counts is asked again.
    pub(in crate::node) fn recount(&self) {
        let (rows, _) = self.in_memory();
        for row in rows {
            let counted = self.counted(row.key);
            if let Some(hot) = write(&self.tables).rows.get_mut(&row.key) {
                hot.counted = counted;
            }
        }
    }
}
