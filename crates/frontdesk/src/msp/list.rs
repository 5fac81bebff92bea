//! `session/list`: all known sessions, newest change first, filtered before they are paged.

use std::sync::Arc;

use frontdesk_core::msp::object::Carrier;
use frontdesk_core::msp::params::{Params, Read as _};
use frontdesk_core::msp::{ErrorKind, ListFilter, MspError, RowFacts};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::peer::{Answer, Peer};
use super::session;
use crate::index::{Archived, Folder, Position};
use crate::node::directory::Row;
use crate::node::{Node, page};

/// Rows of a page that does not say how many. Source: msp "Session lifecycle".
const ROWS: u64 = 50;
/// Rows of a page at most.
const ROWS_MAX: u64 = 200;
/// A page ends before its frame is this close to the limit, in bytes.
const MARGIN_BYTES: usize = 64 << 10;

/// What a list is about.
#[derive(Debug, Default)]
struct Query {
    root: Option<String>,
    after: Option<Timestamp>,
    filter: Option<ListFilter>,
}

pub(super) async fn list(peer: &Arc<Peer>, params: &Params) -> Answer {
    let query = Query::read(params)?;
    let limit = params.number("limit", 1, ROWS_MAX)?.unwrap_or(ROWS);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (node, listing) = (&peer.face.node, query.listing());
    let wrong = |_| MspError::invalid("params.cursor is not one that this listing gave");
    let cursor = params.text("cursor")?;
    let cursor = cursor.map(|text| node.cursors.open_sealed(&listing, text).map_err(wrong));
    let cursor = cursor.transpose()?;
    if cursor.is_none() {
        // What agents that run have made meanwhile by themselves; none is started for it.
        node.refresh_lists(node.agents_known_to_list(), None, false).await;
    }
    if !node.index_lists().await {
        return Err(index_is_behind());
    }
    let query = Arc::new(query);
    let found = rows(node, &query, cursor, limit + 1).await;
    let budget = peer.face.frame_bytes().saturating_sub(MARGIN_BYTES);
    let mut sessions: Vec<Value> = Vec::new();
    let mut bytes = 0;
    for row in found.iter().take(limit) {
        let row = session::json(peer, row, Carrier::Row);
        bytes += row.to_string().len() + 1;
        if bytes > budget && !sessions.is_empty() {
            break;
        }
        sessions.push(row);
    }
    let last = sessions.len().checked_sub(1).and_then(|at| found.get(at));
    let more = last.filter(|_| found.len() > sessions.len());
    let next = more.map(|row| node.cursors.seal(&listing, row.position()));
    let mut result = Map::new();
    result.insert("sessions".into(), json!(sessions));
    result.insert("nextCursor".into(), json!(next));
    if let Some(filter) = &query.filter {
        result.insert("appliedFilter".into(), filter.to_json());
    }
    Ok(Value::Object(result))
}

/// The index is being made or compared, so that nobody can say what is not there.
pub(super) fn index_is_behind() -> MspError {
    let text = "the index of sessions is being made; try again in a moment";
    MspError::new(ErrorKind::Overloaded, text)
}

/// The rows that pass, behind the cursor, in the order of the list.
async fn rows(
    node: &Arc<Node>,
    query: &Arc<Query>,
    after: Option<Position>,
    limit: usize,
) -> Vec<Arc<Row>> {
    let wanted = query.clone();
    let filter = query.filter.as_ref();
    let ids =
        filter.and_then(|filter| filter.ids.as_ref()).map(|ids| ids.iter().copied().collect());
    let branches = filter.and_then(|filter| filter.branches.as_ref());
    let asked = page::Query {
        // Narrows down to the folder, however it is spelled; `takes` wants this very spelling.
        folder: query.root.as_deref().map(Folder::new),
        updated_after: query.after,
        branches: branches.map(|branches| branches.iter().cloned().collect()),
        // What was put aside is not listed, and is there for whoever names it.
        archived: if ids.is_some() { Archived::Any } else { Archived::No },
        ids,
        wanted: Some(Arc::new(move |row: &Row| wanted.takes(row))),
        after,
        limit,
        ..page::Query::default()
    };
    node.page(asked).await.rows
}

impl Query {
    fn read(params: &Params) -> Result<Self, MspError> {
        let instant = |text: &str| {
            text.parse::<Timestamp>()
                .map_err(|_| MspError::invalid("params.updatedAfter must be an RFC 3339 instant"))
        };
        Ok(Self {
            root: params.text("workspaceRoot")?.map(ToOwned::to_owned),
            after: params.text("updatedAfter")?.map(instant).transpose()?,
            filter: ListFilter::read(params)?,
        })
    }

    fn takes(&self, row: &Row) -> bool {
        let view = &row.view;
        self.root.as_ref().is_none_or(|root| view.cwd == *root)
            && self.filter.as_ref().is_none_or(|filter| {
                filter.takes(RowFacts {
                    key: Some(row.key),
                    branch: view.branch.as_deref(),
                    name: view.name.as_deref(),
                    title: view.title.as_deref().or(view.name.as_deref()),
                })
            })
    }

    /// What a cursor is bound to: all that was asked.
    fn listing(&self) -> String {
        let filter = self.filter.as_ref().map(ListFilter::to_json);
        json!({ "face": "msp", "root": self.root, "after": self.after, "filter": filter })
            .to_string()
    }
}
