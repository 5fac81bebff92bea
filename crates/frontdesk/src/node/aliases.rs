//! One conversation under several ids: what an agent's list says of them, and rows that turn out to be
//! one session.
//!
//! Only the agent's own word joins anything. Nothing is deleted: of two rows the one with our history
//! goes on, the other one's journal stays and says which session it is.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use frontdesk_core::agent::aliases::Filed;
use frontdesk_core::fold::{Origin, View};
use frontdesk_core::ids::Key;
use frontdesk_core::record::Kind;
use frontdesk_core::session::{Input, StartFailure};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Node;
use super::adopting::adopted_record;
use super::directory::Row;
use crate::agent::instance::Instance;
use crate::log::LogError;
use crate::session::LaneMsg;

/// What is known of the ids of one row of a list.
pub(super) enum Known {
    /// Nothing.
    Nothing,
    /// They are a deleted session's: it is not taken in again.
    Deleted,
    /// They are this session's, and of others that turned out to be it.
    One(Arc<Row>, Vec<Arc<Row>>),
}

impl Node {
    /// What is known of the ids of one row of an agent's list, which has rows with the ids `listed`: a
    /// session that has one of its own there is not this one, whatever was said before.
    pub(super) fn known_as(&self, agent: &str, filed: &Filed<'_>, listed: &HashSet<&str>) -> Known {
        let mut rows: Vec<Arc<Row>> = Vec::new();
        let mut is_deleted = false;
        for id in filed.ids() {
            let (found, deleted) = self.directory.all_with(agent, id);
            is_deleted |= deleted;
            let is_elsewhere = |row: &Row| {
                let own = row.view.native.as_deref();
                own.is_some_and(|own| own != filed.id && listed.contains(own))
            };
            for row in found.into_iter().filter(|row| !is_elsewhere(row)) {
                // Two sessions with one first id are what an agent makes whose ids repeat, and not one.
                if !rows.iter().any(|known| known.view.native == row.view.native) {
                    rows.push(row);
                }
            }
        }
        rows.sort_by_key(|row| {
            let has_history = row.view.items > 0;
            let own = row.view.origin == Origin::Created;
            (Reverse((row.is_loaded(), has_history, own)), row.key)
        });
        match rows.len() {
            // A list that still has what was deleted brings nothing back.
            _ if is_deleted && filed.aliases.is_empty() => Known::Deleted,
            0 if is_deleted => Known::Deleted,
            0 => Known::Nothing,
            _ => {
                let one = rows.remove(0);
                Known::One(one, rows)
            }
        }
    }

    /// Tells a session what a list says of its ids, where that is new; together with `news`, other
    /// facts for a session without a lane. Says whether its row has it all now. Blocking.
    pub(super) fn note_listed(
        &self,
        known: &Arc<Row>,
        filed: &Filed<'_>,
        news: Option<Value>,
    ) -> Result<bool, LogError> {
        let lane = self.running_lane(known.key);
        let is_cold = lane.is_none() && !known.is_loaded();
        let names = known.view.names_news(filed, is_cold);
        if let Some(lane) = lane {
            // A lane that has no room for it now is told the next time.
            if let Some(names) = names {
                let input = Input::Record { kind: Kind::Metadata, data: names.to_string() };
                if lane.try_send(LaneMsg::Input(input)) {
                    self.directory.also_named(known.key, filed.ids());
                }
                return Ok(false);
            }
            return Ok(true);
        }
        let mut data = news.unwrap_or_else(|| json!({}));
        if let (Some(data), Some(Value::Object(names))) = (data.as_object_mut(), names) {
            data.extend(names);
        }
        let is_empty = data.as_object().is_some_and(serde_json::Map::is_empty);
        if is_empty { Ok(true) } else { self.append_cold(known, &data) }
    }

    /// Appends a `metadata` record to a session without a lane. `false` if a lane has it by now.
    fn append_cold(&self, known: &Arc<Row>, data: &Value) -> Result<bool, LogError> {
        let mut journal = match self.log.open_journal(&known.path) {
            Ok(journal) => journal,
            // A lane has it by now.
            Err(LogError::InUse { .. }) => return Ok(false),
            // The rest of the list is taken in all the same.
            Err(error) => {
                tracing::warn!(session = %known.key, %error, "failed to open a journal for what a list told");
                return Ok(false);
            }
        };
        let record = adopted_record(journal.last_seq() + 1, Kind::Metadata, Timestamp::now(), data);
        // Adoptions can be made again: nobody waits for their sync.
        let _unsynced = journal.append(std::slice::from_ref(&record))?;
        let mut view = View::clone(&known.view);
        view.apply(&record);
        self.directory.update_view(known.key, view, journal.bytes());
        Ok(true)
    }

    /// Notes of other rows that they are this session. One that somebody has open stays as it is for
    /// now: nobody is ended, and nobody else can open either of them. Blocking.
    pub(super) fn join_rows(&self, one: Key, others: &[Arc<Row>]) -> Result<(), LogError> {
        let Some(one) = self.directory.get(one) else { return Ok(()) };
        for other in others.iter().filter(|other| other.key != one.key) {
            let ids = other.view.natives();
            // First it is found under all ids, then the other row is none any more.
            let is_found = ids.iter().all(|id| one.view.is_called(id));
            let is_open = other.is_loaded() || self.running_lane(other.key).is_some();
            if is_open || !is_found || other.view.agent != one.view.agent {
                tracing::info!(session = %one.key, other = %other.key, is_open, "two rows are one conversation, and are not joined now");
                continue;
            }
            tracing::info!(session = %one.key, other = %other.key, "two rows are one conversation; the second one's journal is kept");
            if self.append_cold(other, &json!({ "sameAs": one.key }))? {
                self.feed.publish(other.key, None, false);
            }
        }
        Ok(())
    }

    /// Rows that have an id of this session are this session.
    pub(super) fn join_known(&self, key: Key) -> Result<(), LogError> {
        let Some(row) = self.directory.get(key) else { return Ok(()) };
        let mut natives = row.view.natives().into_iter();
        let Some(id) = natives.next() else { return Ok(()) };
        let aliases = natives.map(ToOwned::to_owned).collect();
        match self.known_as(&row.view.agent, &Filed { id, aliases }, &HashSet::new()) {
            Known::One(one, others) if one.key == key => self.join_rows(key, &others),
            _ => Ok(()),
        }
    }

    /// A session that is about to be opened is listed under other ids than are known here: nobody else
    /// may have any of them, and its agent is asked by the one under which it is stored now, unless
    /// (`kept`) it may have it already.
    pub(super) async fn take_names(
        &self,
        lane: &crate::session::LaneHandle,
        instance: &Instance,
        view: &mut View,
        filed: Option<&Filed<'_>>,
        kept: bool,
    ) -> Result<(), StartFailure> {
        let news = filed.and_then(|filed| view.names_news(filed, !kept));
        if let Some(news) = news {
            let told: Vec<String> =
                filed.into_iter().flat_map(Filed::ids).map(Into::into).collect();
            view.learn_aliases(&told);
            if let Some(stored) = news["storedId"].as_str() {
                view.stored = Some(stored.to_owned()).filter(|id| view.native.as_ref() != Some(id));
            }
            if let Err(failure) = self.not_under_one_id(lane.key(), view) {
                let none = HashSet::new();
                // Whoever has it is told, so that the next one who asks for it by this id joins there.
                if let (Some(filed), Known::One(one, _)) = (
                    filed,
                    filed.map_or(Known::Nothing, |it| self.known_as(&view.agent, it, &none)),
                ) && one.is_loaded()
                {
                    let _ = self.note_listed(&one, filed, None);
                }
                return Err(failure);
            }
            let claimed =
                self.claim(instance, &view.natives(), &lane.key().to_string(), false).await;
            claimed.map_err(StartFailure::Ours)?;
            let input = Input::Record { kind: Kind::Metadata, data: news.to_string() };
            lane.send(LaneMsg::Input(input)).await;
            // A later daemon has to know by which id its agent was asked.
            self.wait_written(lane).await?;
        }
        let native = view.native.as_deref().unwrap_or_default();
        instance.also_known(native, view.aliases.iter().map(String::as_str));
        instance.speak_of(native, view.opened_as());
        Ok(())
    }
}
