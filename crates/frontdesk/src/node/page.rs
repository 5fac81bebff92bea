//! Pages of sessions: filtered first, then cut, in an order that inserts leave alone.

use std::sync::Arc;

use frontdesk_core::ids::Key;
use jiff::Timestamp;

use super::Node;
use super::directory::{Directory, Row};
use crate::index::{Archived, Columns, Folder, Hit, Position, Wanted, Words};

/// Which sessions a page is about. Everything that is not set takes all.
#[derive(Clone, Default)]
pub struct Query {
    /// Of this agent.
    pub agent: Option<String>,
    /// In this folder, as it was given or without links.
    pub folder: Option<Folder>,
    /// Loaded, or not.
    pub active: Option<bool>,
    /// With a question open to people, or without.
    pub attention: Option<bool>,
    /// Put aside or not; those that are not, if nothing is said.
    pub archived: Archived,
    /// Changed later than this.
    pub updated_after: Option<Timestamp>,
    /// Changed earlier than this.
    pub updated_before: Option<Timestamp>,
    /// One of these.
    pub ids: Option<Vec<Key>>,
    /// On one of these branches; `None` stands for no branch.
    pub branches: Option<Vec<Option<String>>>,
    /// Key or native id begins with this.
    pub prefix: Option<String>,
    /// Children of other sessions, or none.
    pub children: Option<bool>,
    /// Anything else.
    pub wanted: Option<Wanted<Row>>,
    /// Behind this position.
    pub after: Option<Position>,
    /// Rows of the page, at most.
    pub limit: usize,
}

impl std::fmt::Debug for Query {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Query").field("after", &self.after).field("limit", &self.limit).finish()
    }
}

/// One page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Its rows, newest change first.
    pub rows: Vec<Arc<Row>>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Position>,
}

impl Query {
    /// Whether a row is wanted.
    #[must_use]
    pub fn takes(&self, row: &Row) -> bool {
        let view = &row.view;
        let changed = row.position().updated;
        let key = |prefix: &str| {
            let native = view.native.as_deref().unwrap_or_default();
            native.starts_with(prefix)
                || row.key.to_string().starts_with(&prefix.to_ascii_lowercase())
        };
        row.is_listed()
            && self.agent.as_ref().is_none_or(|agent| view.agent == *agent)
            && self
                .folder
                .as_ref()
                .is_none_or(|folder| folder.is(&view.cwd, row.real_cwd.as_deref()))
            && self.active.is_none_or(|active| row.is_loaded() == active)
            && self.attention.is_none_or(|wants| row.wants_attention() == wants)
            && match self.archived {
                Archived::No => !view.archived,
                Archived::Only => view.archived,
                Archived::Any => true,
            }
            && self.updated_after.is_none_or(|after| changed > after.as_microsecond())
            && self.updated_before.is_none_or(|before| changed < before.as_microsecond())
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&row.key))
            && self.branches.as_ref().is_none_or(|branches| branches.contains(&view.branch))
            && self.prefix.as_deref().is_none_or(key)
            && self.children.is_none_or(|children| view.parent.is_some() == children)
            && self.wanted.as_ref().is_none_or(|wanted| wanted(row))
    }

    /// Whether only sessions in memory can be wanted.
    fn is_of_memory(&self) -> bool {
        self.active == Some(true) || self.attention == Some(true)
    }

    fn columns(&self) -> Columns {
        Columns {
            agent: self.agent.clone(),
            folder: self.folder.clone(),
            archived: self.archived,
            after: self.updated_after.map(Timestamp::as_microsecond),
            before: self.updated_before.map(Timestamp::as_microsecond),
            children: self.children,
            prefix: self.prefix.clone(),
        }
    }
}

impl Directory {
    /// One page of the sessions that are wanted. Waits for the disk.
    #[must_use]
    pub fn page(&self, query: &Query) -> Page {
        let (hot, keys) = self.in_memory();
        let behind = |row: &Row| query.after.is_none_or(|after| row.position() < after);
        let mut hot: Vec<_> =
            hot.into_iter().filter(|row| behind(row) && query.takes(row)).collect();
        hot.sort_by_key(|row| row.position());
        let mut rows: Vec<Arc<Row>> = Vec::new();
        // One more than the page tells whether there is another one.
        let enough = query.limit.saturating_add(1);
        let mut take = |row: Arc<Row>| {
            while hot.last().is_some_and(|hot| hot.position() > row.position()) {
                rows.extend(hot.pop());
            }
            if !keys.contains(&row.key) && query.takes(&row) {
                rows.push(row);
            }
            rows.len() < enough
        };
        if let Some(ids) = &query.ids {
            let mut named: Vec<_> = ids.iter().filter_map(|key| self.get(*key)).collect();
            named.retain(|row| behind(row));
            named.sort_by_key(|row| std::cmp::Reverse(row.position()));
            named.dedup_by_key(|row| row.key);
            let _ = named.into_iter().all(take);
        } else if !query.is_of_memory() {
            self.index.scan(&query.columns(), query.after, |entry| take(self.cold(entry)));
        }
        while rows.len() < enough {
            let Some(row) = hot.pop() else { break };
            rows.push(row);
        }
        let more = rows.len() > query.limit;
        rows.truncate(query.limit);
        let next = rows.last().filter(|_| more).map(|row| row.position());
        Page { rows, next }
    }
}

impl Directory {
    /// Sessions that a search finds, best first, until `each` says `None`. Says whether there is an
    /// index to search. Waits for the disk.
    pub fn search(
        &self,
        words: &Words,
        passages_max: usize,
        mut each: impl FnMut(&Hit, &Row) -> Option<()>,
    ) -> bool {
        self.index.search(words, passages_max, |hit| match self.get(hit.entry.key) {
            Some(row) => each(&hit, &row),
            None => Some(()),
        })
    }
}

impl Node {
    /// One page of the sessions that are wanted, off the threads that serve.
    pub async fn page(self: &Arc<Self>, query: Query) -> Page {
        let node = self.clone();
        let page = tokio::task::spawn_blocking(move || node.directory.page(&query));
        page.await.unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
