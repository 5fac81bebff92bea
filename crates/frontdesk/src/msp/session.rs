//! The Session object of a row, as one client may see it.

use frontdesk_core::msp::object::{Carrier, Loaded, Session, Source};
use frontdesk_core::policy;
use serde_json::Value;

use super::peer::Peer;
use crate::node::directory::Row;

/// The object for a carrier.
fn object(peer: &Peer, row: &Row, carrier: Carrier) -> Session {
    let node = &peer.face.node;
    // A child is where its parent is.
    let is_live = node.parent_of(row).map_or_else(|| row.is_live(), |parent| parent.is_live());
    let loaded = if is_live {
        Loaded::Yes {
            turn: row.view.open_turn.as_ref().map(|turn| turn.turn.as_str()),
            reviewer_attached: row.clients > 0,
        }
    } else {
        Loaded::No
    };
    let source = Source {
        key: row.key,
        view: &row.view,
        path: &row.path.to_string_lossy(),
        loaded,
        policy: policy::effective(&row.view, node.asks(&row.view.agent)),
        seen_at: node.since,
    };
    let mut session = Session::of(&source, carrier);
    if !peer.said().is_some_and(|said| said.experimental) {
        session.strip_experimental();
    }
    session
}

/// The object as JSON.
pub(super) fn json(peer: &Peer, row: &Row, carrier: Carrier) -> Value {
    // The object has string keys and no maps of others, so this does not fail.
    serde_json::to_value(object(peer, row, carrier)).unwrap_or_default()
}
