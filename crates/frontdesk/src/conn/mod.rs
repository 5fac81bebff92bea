//! One client: what it is, what it was sent, what it takes part in.
//!
//! Made by `serve` for each connection; read by `dispatch` and the sessions' lanes.

pub mod outbox;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use frontdesk_core::agent::ClientAbilities;
use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::WireError;
use frontdesk_core::fold::ClientInfo;
use frontdesk_core::ids::{ConnId, Key};
use frontdesk_core::session::{Client, Mark};
use frontdesk_core::shim::{SESSIONS_MAX, answer_mark, mark_text};
use frontdesk_core::status::Words;
use serde::Deserialize;
use serde_json::Value;

use crate::agent::instance::Instance;
use crate::lock::lock;
use crate::session::LaneHandle;
use outbox::{Outbox, Pushed};

/// The first line on the unix socket: it names the face and who calls.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hello {
    /// Version of this line, 1.
    pub frontdesk: u32,
    /// `acp` or `msp`.
    pub face: String,
    /// The client's own key, kept over reconnects.
    pub client: Option<String>,
    /// What kind of program calls: `shim`, `cli`, …
    pub kind: Option<String>,
    /// Binds the connection to one agent.
    pub agent: Option<String>,
    /// Lines that show something of a session say how far that is, `frontdesk_core::shim`.
    pub positions: bool,
    /// The client was connected before, with the same key; what is left of that is cut off.
    pub again: bool,
    /// The words for `session/status`: `active` or `open`.
    pub status_words: Option<String>,
    /// The caller's working directory, for starting an agent before a session names one.
    pub cwd: Option<String>,
}

/// One client connection.
#[derive(Debug)]
pub struct Conn {
    /// Its number in this daemon.
    pub id: ConnId,
    /// Its own key.
    pub key: Arc<str>,
    /// What kind of program it is.
    pub kind: String,
    /// The agent it is bound to.
    pub bound: Option<String>,
    /// The words it is answered `session/status` with.
    pub words: Words,
    /// Its working directory.
    pub cwd: Option<String>,
    /// Its lines say how far they show a session.
    pub positions: bool,
    /// What waits for it.
    pub outbox: Outbox,
    /// A later connection of the same client has taken its place.
    is_replaced: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    greeting: Option<Arc<Greeting>>,
    /// The sessions it takes part in.
    lanes: HashMap<Key, LaneHandle>,
    /// Requests of agents that it was sent, by the id they were sent with.
    hops: HashMap<Box<str>, LaneHandle>,
    /// Ids of its own requests that are not answered yet.
    open: HashSet<Box<str>>,
    /// What it was shown of loads that were not answered, by the id it asks with.
    loads: HashMap<Box<str>, Mark>,
    /// An instance that was started for it and has no session yet.
    spare: Option<Arc<Instance>>,
}

/// What a client said in `initialize`.
#[derive(Debug)]
pub struct Greeting {
    /// Its params, as text: an instance started for it is told the same.
    pub params: String,
    /// Its name for people.
    pub name: Arc<str>,
    /// How it named itself, word for word; only where it said both name and version.
    pub info: Option<ClientInfo>,
    /// What agents may ask of it.
    pub abilities: ClientAbilities,
}

impl Greeting {
    /// Reads the params of `initialize`.
    #[must_use]
    pub fn read(params: &str) -> Self {
        let value: Value = serde_json::from_str(params).unwrap_or_default();
        let info =
            if value["clientInfo"].is_object() { &value["clientInfo"] } else { &value["info"] };
        let name = info["title"].as_str().or(info["name"].as_str()).unwrap_or("unnamed client");
        Self {
            params: params.to_owned(),
            name: name.chars().take(200).collect::<String>().into(),
            info: serde_json::from_value(info.clone()).ok(),
            abilities: ClientAbilities::from_params(&value),
        }
    }
}

impl Conn {
    /// A connection that said hello.
    #[must_use]
    pub fn new(id: ConnId, key: Arc<str>, hello: Hello, words: Words, outbox_bytes: u64) -> Self {
        Self {
            id,
            key,
            kind: hello.kind.unwrap_or_else(|| "client".into()),
            bound: hello.agent,
            words,
            cwd: hello.cwd,
            positions: hello.positions,
            is_replaced: AtomicBool::new(false),
            outbox: Outbox::new(outbox_bytes),
            state: Mutex::default(),
        }
    }

    /// Keeps what the client said in `initialize`.
    pub fn greet(&self, greeting: Greeting) {
        lock(&self.state).greeting = Some(Arc::new(greeting));
    }

    /// What the client said in `initialize`; `None` before it did.
    #[must_use]
    pub fn greeting(&self) -> Option<Arc<Greeting>> {
        lock(&self.state).greeting.clone()
    }

    /// The client as the session machine sees it.
    #[must_use]
    pub fn client(&self) -> Client {
        let greeting = self.greeting();
        Client {
            conn: self.id,
            key: self.key.clone(),
            name: greeting.as_ref().map_or_else(|| self.kind.as_str().into(), |g| g.name.clone()),
            can: greeting.map(|greeting| greeting.abilities).unwrap_or_default(),
        }
    }

    /// Sends a frame.
    pub fn send(&self, frame: Bytes) -> Pushed {
        self.outbox.push(frame)
    }

    /// Sends a frame that shows a session up to a mark.
    pub fn send_marked(&self, mark: Option<(Mark, &str)>, frame: Bytes) -> Pushed {
        match mark.filter(|_| self.positions) {
            Some((mark, session)) => self.outbox.push_marked(mark_text(mark, session), frame),
            None => self.outbox.push(frame),
        }
    }

    /// Cuts it off: its client is connected anew, and says there what it has to say.
    pub fn replace(&self) {
        self.is_replaced.store(true, Ordering::Release);
        self.outbox.close();
    }

    /// Whether a later connection has taken its place.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Acquire)
    }

    /// A load of this session goes on where an earlier daemon's ended; `false` if [`SESSIONS_MAX`]
    /// others are to do so already.
    #[must_use]
    pub fn begin_load_at(&self, session: &str, mark: Mark) -> bool {
        let loads = &mut lock(&self.state).loads;
        let fits = loads.len() < SESSIONS_MAX || loads.contains_key(session);
        if fits {
            loads.insert(session.into(), mark);
        }
        fits
    }

    /// From where on a load shows history.
    #[must_use]
    pub fn load_from(&self, session: &str) -> Mark {
        lock(&self.state).loads.remove(session).unwrap_or_default()
    }

    /// Answers a request, once: a request that was answered already stays so.
    pub fn answer(&self, id: &str, result: Result<&str, &WireError>) {
        self.answer_frame(
            id,
            match result {
                Ok(result) => Frame::success(id, result),
                Err(error) => Frame::failure(id, &error.to_json()),
            },
        );
    }

    /// Answers a request with an error object as text.
    pub fn answer_error_text(&self, id: &str, error: &str) {
        self.answer_frame(id, Frame::failure(id, error));
    }

    /// Answers a request with a whole frame.
    pub fn answer_frame(&self, id: &str, frame: Bytes) {
        self.answer_marked(id, None, frame);
    }

    /// The same, for an answer from which on a session is shown.
    pub fn answer_marked(&self, id: &str, mark: Option<(Mark, &str)>, frame: Bytes) {
        // In one step: whoever finds no request open finds its answer in the outbox, and a client
        // that has the answer may use the id again.
        let mut state = lock(&self.state);
        state.open.remove(id);
        match mark.filter(|_| self.positions) {
            Some((mark, session)) => self.outbox.push_marked(answer_mark(mark, session), frame),
            None => self.outbox.push(frame),
        };
    }

    /// Notes a request that must be answered; `false` if its id is in use already.
    pub fn opened(&self, id: &str) -> bool {
        lock(&self.state).open.insert(id.into())
    }

    /// How many requests are open.
    #[must_use]
    pub fn open_requests(&self) -> usize {
        lock(&self.state).open.len()
    }

    /// The client takes part in a session.
    pub fn join(&self, lane: &LaneHandle) {
        lock(&self.state).lanes.insert(lane.key(), lane.clone());
    }

    /// The client takes no more part in a session.
    pub fn leave(&self, key: Key) {
        let mut state = lock(&self.state);
        state.lanes.remove(&key);
        state.hops.retain(|_, lane| lane.key() != key);
    }

    /// The lane of a session the client takes part in.
    #[must_use]
    pub fn lane(&self, key: Key) -> Option<LaneHandle> {
        lock(&self.state).lanes.get(&key).cloned()
    }

    /// All lanes the client takes part in.
    #[must_use]
    pub fn lanes(&self) -> Vec<LaneHandle> {
        lock(&self.state).lanes.values().cloned().collect()
    }

    /// The client was sent a request that a session waits for.
    pub fn expect(&self, hop: &str, lane: &LaneHandle) {
        lock(&self.state).hops.insert(hop.into(), lane.clone());
    }

    /// Takes the session that waits for the answer to a request.
    #[must_use]
    pub fn answered(&self, hop: &str) -> Option<LaneHandle> {
        lock(&self.state).hops.remove(hop)
    }

    /// Puts an instance aside for this client's next session.
    pub fn set_spare(&self, instance: Arc<Instance>) {
        lock(&self.state).spare = Some(instance);
    }

    /// The instance that was put aside.
    #[must_use]
    pub fn spare(&self) -> Option<Arc<Instance>> {
        lock(&self.state).spare.clone()
    }

    /// Takes the instance that was put aside.
    #[must_use]
    pub fn take_spare(&self) -> Option<Arc<Instance>> {
        lock(&self.state).spare.take()
    }

    /// The connection is gone: everything it held is let go; its lanes are returned.
    #[must_use]
    pub fn end(&self) -> (Vec<LaneHandle>, Option<Arc<Instance>>) {
        self.outbox.close();
        let mut state = lock(&self.state);
        state.hops.clear();
        state.open.clear();
        let spare = state.spare.take();
        (state.lanes.drain().map(|(_, lane)| lane).collect(), spare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_loads_go_on_as_a_shim_remembers_sessions() {
        let conn = Conn::new(ConnId(1), "k".into(), Hello::default(), Words::default(), 1 << 20);
        for at in 0..SESSIONS_MAX {
            assert!(conn.begin_load_at(&format!("s{at}"), Mark::whole(1)));
        }
        assert!(!conn.begin_load_at("one more", Mark::whole(1)));
        assert!(conn.begin_load_at("s7", Mark::whole(2)), "it is one of them");
        assert_eq!(conn.load_from("s7"), Mark::whole(2));
        assert!(conn.begin_load_at("one more", Mark::whole(3)), "there is room again");
    }

    #[test]
    fn a_client_is_known_by_its_own_words_or_by_none() {
        let info = |text: &str| Greeting::read(text).info.map(|info| (info.name, info.version));
        let both = r#"{"clientInfo":{"name":"zed","title":"Zed","version":"1.2"}}"#;
        assert_eq!(info(both), Some(("zed".into(), "1.2".into())));
        assert_eq!(&*Greeting::read(both).name, "Zed");
        let second = r#"{"info":{"name":"a","version":"b"}}"#;
        assert_eq!(info(second), Some(("a".into(), "b".into())));
        for half in [
            "{}",
            "null",
            r#"{"clientInfo":{"name":"zed"}}"#,
            r#"{"clientInfo":{"name":"zed","version":1}}"#,
            r#"{"clientInfo":{"name":null,"version":"1"}}"#,
        ] {
            assert_eq!(info(half), None, "{half}");
        }
    }
}
