//! Sessions that agents told of, taken in: each gets one row and a journal of one `adopted` record, in
//! batches, never by a status probe.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use frontdesk_core::agent::aliases::{Filed, filed};
use frontdesk_core::fold::{Origin, View};
use frontdesk_core::ids::{Key, uuid_v7_millis};
use frontdesk_core::record::{Kind, RECORD_VERSION, Record};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::Node;
use super::aliases::Known;
use super::directory::Row;
use crate::log::LogError;

/// An agent's list may be as much behind what the agent told us and still be of the same moment.
const LISTED_LATE: SignedDuration = SignedDuration::from_secs(2);

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
        let native = filed.id;
        let now = Timestamp::now();
        let text = |name: &str| row.get(name).and_then(Value::as_str);
        let (created, from) = began(native, text("updatedAt"), now);
        let mut data = json!({
            "agent": agent,
            "nativeId": native,
            "cwd": text("cwd").unwrap_or_default(),
            "additionalDirectories": row.get("additionalDirectories").filter(|dirs| dirs.is_array()).cloned().unwrap_or_else(|| json!([])),
            "title": text("title"),
            "updatedAt": text("updatedAt"),
            "createdAt": created,
            "createdAtFrom": from,
            "unproven": row.get("_unproven").is_some(),
        });
        if !filed.aliases.is_empty() {
            data["aliases"] = json!(filed.aliases);
        }
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
        let text = |name: &str| row.get(name).and_then(Value::as_str);
        let listed: Option<Timestamp> = text("updatedAt").and_then(|at| at.parse().ok());
        // A list that is behind what we have seen does not know the title of now.
        let stale = match (listed, known.view.updated_at) {
            (Some(listed), Some(ours)) => ours.duration_since(listed) > LISTED_LATE,
            _ => false,
        };
        let title = text("title").filter(|_| !stale);
        let title = title.filter(|title| known.view.title.as_deref() != Some(*title));
        let newer = listed > known.view.listed_at;
        let own = known.view.origin == Origin::Created;
        let is_news = known.view.updated_at < listed;
        let has_news = (newer && (is_news || !own)) || title.is_some();
        let news = has_news.then(|| json!({ "updatedAt": text("updatedAt"), "title": title }));
        self.note_listed(known, filed, news)
    }
}

/// When a session that an agent told of began, and by whose word: the instant in its id, else the
/// earliest one that the agent gave, else now.
pub(super) fn began(
    native: &str,
    listed: Option<&str>,
    now: Timestamp,
) -> (Timestamp, &'static str) {
    let minted = native.parse::<uuid::Uuid>().ok().and_then(uuid_v7_millis);
    let minted = minted.and_then(|ms| Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok());
    match (minted, listed.and_then(|at| at.parse().ok())) {
        (Some(at), _) => (at, "id"),
        (None, Some(at)) => (at, "list"),
        (None, None) => (now, "adoption"),
    }
}

pub(super) fn adopted_record(seq: u64, kind: Kind, at: Timestamp, data: &Value) -> Record {
    let data = bytes::Bytes::from(data.to_string());
    Record { v: RECORD_VERSION, seq, epoch: 0, at, kind, src: None, data }
}
