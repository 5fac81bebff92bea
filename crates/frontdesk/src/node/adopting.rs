//! Sessions that agents told of, taken in: each gets one row and a journal of one `adopted` record, in
//! batches, never by a status probe.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use frontdesk_core::agent::aliases::{Filed, filed};
use frontdesk_core::agent::listed::{adopted, news};
use frontdesk_core::fold::View;
use frontdesk_core::ids::Key;
use frontdesk_core::record::{Kind, RECORD_VERSION, Record};
use jiff::Timestamp;
use serde_json::Value;

use super::Node;
use super::aliases::Known;
use super::directory::Row;
use crate::log::LogError;

impl Node {
    /// Takes rows of an agent's list in. Blocking.
    ///
    /// # Errors
    /// If a journal cannot be written.
    pub fn adopt_all(&self, agent: &str, rows: &[Value]) -> Result<(), LogError> {
        let refs: Vec<&Value> = rows.iter().collect();
        let all = filed(&refs);
        let listed: HashSet<&str> = all.iter().flatten().map(|filed| filed.id).collect();
        for (row, filed) in rows.iter().zip(&all) {
            self.directory.wait_for_room(self.limits.index_rows as usize);
            let Some(filed) = filed else { continue };
            let _one = self.lists.taking_in();
            if filed.ids().any(|id| self.is_being_born(agent, id)) {
                continue;
            }
            match self.known_as(agent, filed, &listed) {
                Known::Deleted => {}
                Known::One(known, others) => {
                    if self.refresh_row(&known, row, filed)? && !others.is_empty() {
                        self.join_rows(known.key, &others)?;
                    }
                }
                Known::Nothing => self.adopt(agent, filed, row)?,
            }
        }
        Ok(())
    }

    /// Whether an instance has just told this id in an answer that is still being taken in.
    fn is_being_born(&self, agent: &str, native: &str) -> bool {
        let running = self.running_instances();
        running.iter().any(|i| i.agent.name == agent && i.has_route(native))
            && self.directory.find_native(agent, native).is_none()
    }

    /// The first row of a session that an agent has just made. One that was taken in from a list a
    /// moment before goes.
    pub(super) fn first_row(&self, row: Row) {
        let (agent, native) = (row.view.agent.clone(), row.view.native.clone().unwrap_or_default());
        let key = row.key;
        let _one = self.lists.taking_in();
        self.directory.insert(row);
        self.probes.forget(&native);
        for twin in self.directory.twins(&agent, &native, key) {
            if self.running_lane(twin.key).is_some() {
                continue;
            }
            self.directory.forget(twin.key);
            self.feed.publish(twin.key, None, false);
            let folder = twin.path.parent().map(Path::to_path_buf);
            if let Some(Err(error)) = folder.map(std::fs::remove_dir_all) {
                tracing::warn!(path = %twin.path.display(), %error, "failed to remove a journal");
            }
        }
    }

    fn adopt(&self, agent: &str, filed: &Filed<'_>, row: &Value) -> Result<(), LogError> {
        let now = Timestamp::now();
        let data = adopted(agent, filed, row, now);
        let key = self.take_in(now, &data)?;
        self.feed.publish(key, self.directory.get(key), false);
        Ok(())
    }

    /// Begins the journal and the row of a session that an agent told of, with `data` of an `adopted`
    /// record. Blocking.
    pub(super) fn take_in(&self, now: Timestamp, data: &Value) -> Result<Key, LogError> {
        let key = self.fresh_key();
        let record = adopted_record(1, Kind::Adopted, now, data);
        let mut journal = self.log.create(key, now)?;
        // Adoptions can be made again: nobody waits for their sync.
        let _unsynced = journal.append(std::slice::from_ref(&record))?;
        let mut view = View::default();
        view.apply(&record);
        self.directory.insert(Row::cold(key, view, journal.path().to_path_buf(), journal.bytes()));
        Ok(key)
    }

    /// A known session: a later `updatedAt` or another title is kept, if no lane writes there now, and
    /// ids that are new in any case. Says whether its row has all of them.
    fn refresh_row(
        &self,
        known: &Arc<Row>,
        row: &Value,
        filed: &Filed<'_>,
    ) -> Result<bool, LogError> {
        self.note_listed(known, filed, news(&known.view, row))
    }
}

pub(super) fn adopted_record(seq: u64, kind: Kind, at: Timestamp, data: &Value) -> Record {
    let data = bytes::Bytes::from(data.to_string());
    Record { v: RECORD_VERSION, seq, epoch: 0, at, kind, src: None, data }
}
