//! `session/status`: answered from the directory, in no lane, behind nothing. Only where our own
//! table does not know, or an agent's urls may know more, are instances with the marker asked, all at once.

use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::envelope::Frame;
use frontdesk_core::place::{Gathered, Word, gather};
use frontdesk_core::route::Meaning;
use frontdesk_core::status::{Facts, answer};

use super::session_id;
use crate::conn::Conn;
use crate::node::Node;
use crate::node::directory::{Probed, Row};
use crate::node::probes::{Asked, said};
use crate::node::standing::Standing;

pub(super) fn status(node: &Arc<Node>, conn: &Arc<Conn>, frame: &Frame) {
    let id = frame.id().unwrap_or("null");
    let asked = match session_id(frame) {
        Ok(asked) => asked.into_owned(),
        Err(error) => {
            conn.send(Frame::failure(id, &error.to_json()));
            return;
        }
    };
    match own_facts(node, conn, &asked) {
        Own::Known(facts, others) if others.asked.is_empty() => reply(conn, id, &asked, *facts),
        Own::Known(..) => {
            let (node, conn, id) = (node.clone(), conn.clone(), id.to_owned());
            tokio::spawn(async move {
                let facts = ask_again(&node, &conn, &asked).await;
                reply(&conn, &id, &asked, facts);
            });
        }
        Own::Deleted => reply(conn, id, &asked, Facts::default()),
        Own::Unknown => {
            let incomplete = node.standings.now() != Standing::Complete;
            if node.askable().is_empty() && node.unread_lists().is_empty() {
                let facts = Facts { incomplete, ..Facts::default() };
                return reply(conn, id, &asked, facts);
            }
            let (node, conn, id) = (node.clone(), conn.clone(), id.to_owned());
            tokio::spawn(async move {
                let mut facts = ask_others(&node, &conn, &asked).await;
                facts.incomplete |= incomplete;
                reply(&conn, &id, &asked, facts);
            });
        }
    }
}

/// What others know: instances that answer for themselves, and lists that are being read just now.
async fn ask_others(node: &Node, conn: &Conn, asked: &str) -> Facts {
    let askable = node.askable();
    let limit = Duration::from_millis(node.limits.probe_ms);
    let (words, ()) = tokio::join!(node.ask_all(&askable, asked, true), node.lists.settle(limit));
    if let Own::Known(own, others) = own_facts(node, conn, asked) {
        // A list has told of it meanwhile, or it was opened here. Where its agent's urls may know more,
        // what they have just said counts all the same.
        if *others.native != *asked {
            return *own;
        }
        let mut said = said(&askable, &words);
        said.retain(|said| own.agent.as_deref() == Some(said.agent));
        return with_words(*own, gather(&said));
    }
    let mut facts = with_words(Facts::default(), gather(&said(&askable, &words)));
    if facts.heard.is_none() {
        // Who answers for itself needs no list.
        let names = |name: &String| askable.iter().any(|asked| asked.agent == *name);
        let unread = node.unread_lists().into_iter().filter(|name| !names(name));
        facts.unreachable.extend(unread);
    }
    facts
}

/// A session that nobody here has loaded, of an agent behind urls: another one may have. They are
/// asked by the agent's own id.
async fn ask_again(node: &Node, conn: &Conn, asked: &str) -> Facts {
    let Own::Known(own, others) = own_facts(node, conn, asked) else { return Facts::default() };
    let Others { native, asked: askable, doubted } = others;
    let words = node.ask_all(&askable, &native, false).await;
    // It may have been opened or closed here meanwhile.
    let own = match own_facts(node, conn, asked) {
        Own::Known(now, _) => now,
        Own::Deleted | Own::Unknown => own,
    };
    let mut own = own;
    let doubted = askable.iter().position(|asked| Some(&asked.name) == doubted.as_ref());
    if own.suspect && doubted.is_some_and(|at| matches!(words[at], Word::Cold | Word::Unknown)) {
        // Its own word: it does not have it.
        own.suspect = false;
        own.moving = false;
    }
    let gathered = gather(&said(&askable, &words));
    if gathered.loaded_at.len() > 1 && own.loaded.is_none() {
        tracing::error!(session = asked, at = ?gathered.loaded_at, "several urls say that they have one session");
    }
    with_words(*own, gathered)
}

fn with_words(facts: Facts, gathered: Gathered) -> Facts {
    let Gathered { heard, agent, loaded_at, unreachable } = gathered;
    Facts { heard, agent: facts.agent.or(agent), loaded_at, unreachable, ..facts }
}

/// The urls of a session's agent, where one of them may have it.
#[derive(Default)]
struct Others {
    /// The agent's own id of it.
    native: String,
    asked: Vec<Asked>,
    /// The one that may have it, since nobody could tell it to let go.
    doubted: Option<String>,
}

/// What our own table knows of an id.
enum Own {
    /// What is known, and whom else to ask.
    Known(Box<Facts>, Others),
    Deleted,
    Unknown,
}

fn own_facts(node: &Node, conn: &Conn, asked: &str) -> Own {
    let (meaning, deleted) = match node.directory.probe(asked, conn.bound.as_deref()) {
        Probed::Row(row) => return known(node, row),
        Probed::Means(meaning) => meaning,
    };
    let facts = match meaning {
        Meaning::One(key) => {
            return node.directory.get(key).map_or(Own::Unknown, |row| known(node, row));
        }
        Meaning::Unknown if deleted => return Own::Deleted,
        Meaning::Unknown => None,
        Meaning::Several(keys) => {
            // Several sessions have this id and none is loaded, or more than one is.
            let rows: Vec<_> = keys.iter().filter_map(|key| node.directory.get(*key)).collect();
            let facts = rows.iter().map(|row| row.facts()).max_by_key(|f| f.loaded.is_some());
            let keys = keys.iter().map(ToString::to_string).collect();
            facts.map(|facts| Facts { keys, ..facts })
        }
    };
    facts.map_or(Own::Unknown, |facts| Own::Known(Box::new(facts), Others::default()))
}

fn known(node: &Node, row: Arc<Row>) -> Own {
    let agent = node.agent(&row.view.agent).filter(|agent| !agent.urls.is_empty());
    let facts = facts_of(node, row.clone());
    let is_open = facts.loaded.is_none() && (!facts.moving || facts.suspect);
    let Some(agent) = agent.filter(|_| is_open) else {
        return Own::Known(Box::new(facts), Others::default());
    };
    let doubted = node.suspected(&row.view).and_then(|place| node.url_at(&agent, &place));
    let others = Others {
        native: row.view.native.clone().unwrap_or_default(),
        asked: node.askable_urls(&agent),
        doubted: doubted.map(|url| url.shown()),
    };
    Own::Known(Box::new(facts), others)
}

fn facts_of(node: &Node, row: Arc<Row>) -> Facts {
    let behind = node.log.is_behind(row.key);
    // A child is where its parent is.
    let row = node.parent_of(&row).unwrap_or(row);
    let facts = row.facts();
    let suspect = facts.suspect || (!row.is_loaded() && node.suspected(&row.view).is_some());
    Facts { held_by: node.held_by(&row), behind, suspect, ..facts }
}

/// A probe is answered at once or soon, so it is not kept among the open requests.
fn reply(conn: &Conn, id: &str, asked: &str, facts: Facts) {
    conn.send(match answer(asked, facts) {
        Ok(answer) => Frame::success(id, &answer.v1(conn.words)),
        Err(error) => Frame::failure(id, &error.to_json()),
    });
}
