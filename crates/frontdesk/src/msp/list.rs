//! `session/list`: all known sessions, newest change first, filtered before they are paged.

use std::sync::Arc;

use frontdesk_core::msp::object::Carrier;
use frontdesk_core::msp::params::{Params, Read as _};
use frontdesk_core::msp::{ListFilter, MspError, RowFacts};
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
    let cursor = match params.text("cursor")? {
        Some(text) => Some(query.place(text)?),
        None => None,
    };
    if cursor.is_none() {
        // What agents that run have made meanwhile by themselves; none is started for it.
        let node = &peer.face.node;
        node.refresh_lists(node.agents_known_to_list(), None, false).await;
    }
    let query = Arc::new(query);
    let found = rows(&peer.face.node, &query, cursor, limit + 1).await;
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
    let next =
        last.filter(|_| found.len() > sessions.len()).map(|row| query.cursor(row.position()));
    let mut result = Map::new();
    result.insert("sessions".into(), json!(sessions));
    result.insert("nextCursor".into(), json!(next));
    if let Some(filter) = &query.filter {
        result.insert("appliedFilter".into(), filter.to_json());
    }
    Ok(Value::Object(result))
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

    /// A cursor is good for the listing it came from alone, so it has a mark of it.
    fn cursor(&self, at: Position) -> String {
        let Position { ordered, updated, key } = at;
        format!("l:{:016x}:{ordered}:{updated}:{key}", self.mark())
    }

    fn place(&self, cursor: &str) -> Result<Position, MspError> {
        let wrong = || MspError::invalid("params.cursor is not one that this listing gave");
        let mut parts = cursor.strip_prefix("l:").ok_or_else(wrong)?.splitn(4, ':');
        let mut part = || parts.next().ok_or_else(wrong);
        let mark = u64::from_str_radix(part()?, 16).map_err(|_| wrong())?;
        let ordered = part()?.parse().map_err(|_| wrong())?;
        let updated = part()?.parse().map_err(|_| wrong())?;
        let key = part()?.parse().map_err(|_| wrong())?;
        let at = Position { ordered, updated, key };
        if mark == self.mark() { Ok(at) } else { Err(wrong()) }
    }

    /// FNV-1a over what was asked.
    fn mark(&self) -> u64 {
        let filter = self.filter.as_ref().map(ListFilter::to_json);
        let text = json!([self.root, self.after, filter]).to_string();
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}
