//! Agents that run already: a table of their addresses, and a task each that keeps a connection.
//!
//! An address is a place that stays; each connection to it is an instance of its own. What an agent
//! has in memory outlives a connection, so the claims on its sessions and what it may still have are
//! kept with the address. Nothing is ever started or ended there.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use frontdesk_core::agent::upstream_initialize;
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::ids::InstanceId;
use frontdesk_core::lease::Place;
use frontdesk_core::place::{Seat, fewest, retry_ms};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::Node;
use super::instances::{NO_CLIENT, SILENT_MS};
use crate::agent::instance::{Before, Instance, Parts};
use crate::agent::ledger::Ledger;
use crate::agent::link::{self, Address, UrlClaims};
use crate::config::{AgentConfig, without_secrets};
use crate::lock::lock;

/// Least time between two attempts, however much an address is wanted.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);

/// One address of an agent.
#[derive(Debug)]
pub struct Url {
    /// What the ids of all its instances begin with, and its name in leases.
    pub id: Box<str>,
    /// The address, as configured: it may hold secrets.
    pub address: Arc<str>,
    claims: UrlClaims,
    /// Sessions that the agent may still have, by its ids, while there is no connection.
    kept: Mutex<BTreeSet<Box<str>>>,
    seen: watch::Sender<Seen>,
    /// Counts the changes of all the agent's addresses.
    changes: Arc<watch::Sender<u64>>,
    wanted: Notify,
}

/// How an address was found.
#[derive(Clone, Debug)]
pub enum Seen {
    /// There is a connection, and the agent has answered `initialize`.
    Up(Arc<Instance>),
    /// The daemon has just begun.
    Untried,
    /// There is none.
    Away {
        /// Why, in one sentence.
        why: String,
        /// Since when.
        since: Timestamp,
    },
}

impl Url {
    fn new(agent: &str, address: &str, claims: &Path, changes: Arc<watch::Sender<u64>>) -> Self {
        let hash = hmac_sha256::Hash::hash(address.as_bytes());
        let hash: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let agent: String = agent.chars().take(24).collect();
        Self {
            id: format!("{agent}-{hash}").into(),
            address: address.into(),
            claims: link::claims_in(claims),
            kept: Mutex::default(),
            seen: watch::Sender::new(Seen::Untried),
            changes,
            wanted: Notify::new(),
        }
    }

    /// The addresses of an agent, none connected.
    pub(super) fn all_of(agent: &AgentConfig, claims: &Path) -> Vec<Arc<Self>> {
        let changes = Arc::new(watch::Sender::new(0));
        let new =
            |address: &String| Arc::new(Self::new(&agent.name, address, claims, changes.clone()));
        agent.urls.iter().map(new).collect()
    }

    fn set(&self, seen: Seen) {
        self.seen.send_replace(seen);
        self.changes.send_modify(|count| *count += 1);
    }

    /// The instance that is connected.
    #[must_use]
    pub fn instance(&self) -> Option<Arc<Instance>> {
        match &*self.seen.borrow() {
            Seen::Up(instance) if instance.is_usable() => Some(instance.clone()),
            Seen::Up(_) | Seen::Untried | Seen::Away { .. } => None,
        }
    }

    /// The address without what may be secret in it.
    #[must_use]
    pub fn shown(&self) -> String {
        without_secrets(&self.address)
    }

    /// Whether the agent there may have a session that is not loaded here: nobody could tell it to let
    /// go.
    #[must_use]
    pub fn may_have(&self, native: &str) -> bool {
        match self.instance() {
            Some(instance) => instance.keeps(native),
            None => lock(&self.kept).contains(native),
        }
    }

    /// For the command line: the address, whether it is up, and why not.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match (self.instance(), &*self.seen.borrow()) {
            (Some(instance), _) => json!({
                "url": self.shown(), "up": true, "since": instance.since,
                "instance": instance.id, "sessions": instance.sessions(),
            }),
            (None, Seen::Away { why, since }) => {
                json!({ "url": self.shown(), "up": false, "since": since, "error": why })
            }
            (None, Seen::Up(_) | Seen::Untried) => {
                let why = "the connection is being made";
                json!({ "url": self.shown(), "up": false, "error": why })
            }
        }
    }

    /// Asks for a connection soon; one that is there is left alone.
    pub fn want(&self) {
        if self.instance().is_none() {
            self.wanted.notify_one();
        }
    }

    /// Waits until the first attempt of this daemon is over, at most until `until`.
    pub async fn first_attempt(&self, until: Instant) {
        let mut seen = self.seen.subscribe();
        let tried = seen.wait_for(|seen| !matches!(seen, Seen::Untried));
        let _ = tokio::time::timeout_at(until, tried).await;
    }

    /// Waits until it is up, at most until `until`.
    async fn wait_up(&self, until: Instant) -> Option<Arc<Instance>> {
        self.want();
        let mut seen = self.seen.subscribe();
        let up = seen.wait_for(|seen| matches!(seen, Seen::Up(i) if i.is_usable()));
        let _ = tokio::time::timeout_at(until, up).await;
        self.instance()
    }
}

impl Node {
    /// The addresses of an agent; empty for one that is started by a command.
    #[must_use]
    pub fn urls_of(&self, agent: &str) -> &[Arc<Url>] {
        self.urls.get(agent).map(Vec::as_slice).unwrap_or_default()
    }

    /// The address that a lease names.
    #[must_use]
    pub fn url_at(&self, agent: &AgentConfig, place: &Place) -> Option<Arc<Url>> {
        let Place::Url(id) = place else { return None };
        self.urls_of(&agent.name).iter().find(|url| *url.id == **id).cloned()
    }

    /// Keeps a connection to each address, in tasks of their own, until the daemon stops.
    pub fn keep_urls(self: &Arc<Self>) {
        for (agent, urls) in &self.urls {
            let Some(agent) = self.agent(agent) else { continue };
            for url in urls {
                tokio::spawn(self.clone().keep_url(agent.clone(), url.clone()));
            }
        }
    }

    async fn keep_url(self: Arc<Self>, agent: Arc<AgentConfig>, url: Arc<Url>) {
        let limits = self.limits.clone();
        let mut failures = 0_u32;
        while !self.is_stopping() {
            let began = Instant::now();
            let why = match self.reach(&agent, &url).await {
                Ok(instance) => {
                    self.probes.forget_all();
                    url.set(Seen::Up(instance.clone()));
                    tracing::info!(instance = %instance.id, url = %url.shown(), "connected");
                    if instance.abilities().list && !self.lists.was_read(&agent.name) {
                        self.refresh_later(&agent);
                    }
                    instance.wait_gone().await;
                    *lock(&url.kept) = instance.kept();
                    instance.has_ended().map_or_else(String::new, |ended| ended.why)
                }
                Err(why) => {
                    if failures == 0 {
                        tracing::warn!(agent = %agent.name, url = %url.shown(), why, "a url cannot be reached; trying on");
                    }
                    why
                }
            };
            url.set(Seen::Away { why, since: Timestamp::now() });
            // One that comes and goes at once is not tried faster than one that does not come.
            let lasted = began.elapsed() > Duration::from_millis(limits.url_retry_max_ms);
            failures = if lasted { 1 } else { failures.saturating_add(1) };
            let chance = uuid::Uuid::new_v4().as_u64_pair().0;
            let wait = retry_ms(failures, limits.url_retry_ms, limits.url_retry_max_ms, chance);
            tokio::select! {
                () = self.stop_requested() => break,
                () = tokio::time::sleep(ATTEMPT_PAUSE) => {}
            }
            tokio::select! {
                () = self.stop_requested() => break,
                () = url.wanted.notified() => {}
                () = tokio::time::sleep(Duration::from_millis(wait)) => {}
            }
        }
    }

    /// One connection, greeted.
    async fn reach(
        self: &Arc<Self>,
        agent: &Arc<AgentConfig>,
        url: &Arc<Url>,
    ) -> Result<Arc<Instance>, String> {
        let address =
            Address { url: &url.address, headers: &agent.headers, ca: agent.ca.as_deref() };
        let reached = link::reach(address, url.claims.clone(), &self.limits).await;
        let (sender, receiver) = reached.map_err(|error| error.to_string())?;
        let fresh = uuid::Uuid::new_v4().simple().to_string();
        let id = InstanceId(format!("{}-{}", url.id, &fresh[..8]).into());
        let ledger = Ledger::unkept().map_err(|error| format!("failed to begin: {error}"))?;
        let instance = Arc::new(Instance::new(Parts {
            data_dir: self.paths.spools().join(&*id.0),
            run_dir: self.paths.instances().join(&*id.0),
            id,
            agent: agent.clone(),
            url: Some(url.address.clone()),
            pid: None,
            cwd: String::new(),
            greeting: NO_CLIENT.to_owned(),
            link: sender,
            ledger,
            limits: self.limits.clone(),
            paused: self.log.follow_paused(),
            before: Before { kept: lock(&url.kept).clone(), ..Before::default() },
        }));
        self.read_instance(&instance, receiver);
        let greeted = self.greet(&instance).await;
        if greeted.is_err() {
            instance.kill();
            instance.wait_gone().await;
        }
        greeted.map(|()| instance)
    }

    async fn greet(&self, instance: &Arc<Instance>) -> Result<(), String> {
        let limit_ms = self.limits.agent_start_ms;
        let params = upstream_initialize(NO_CLIENT);
        let call = instance.call("initialize", &params, limit_ms);
        let frame = match tokio::time::timeout(Duration::from_millis(limit_ms), call).await {
            Ok(answer) => answer.map_err(|error| error.message)?,
            Err(_) => return Err(format!("it did not answer initialize within {limit_ms} ms")),
        };
        let result = frame.result().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let result = result.ok_or_else(|| {
            format!("it answered initialize with {}", frame.error().unwrap_or("null"))
        })?;
        instance.set_initialized(result.clone());
        self.remember_initialize(&instance.agent, &result);
        Ok(())
    }

    /// A connected instance of an agent, the one with the fewest sessions; waits for one as long as
    /// a connection may take.
    ///
    /// # Errors
    /// If none of its urls is up by then; the error says what is wrong with each.
    pub async fn any_url(&self, agent: &AgentConfig) -> Result<Arc<Instance>, WireError> {
        let seat = |instance: &Arc<Instance>| Seat { sessions_max: usize::MAX, ..seat(instance) };
        self.pick_url(agent, seat, |_| true).await
    }

    /// The same, with a place for one session reserved.
    ///
    /// # Errors
    /// As [`Node::any_url`], and if all that are up are full.
    pub async fn reserve_any_url(&self, agent: &AgentConfig) -> Result<Arc<Instance>, WireError> {
        self.pick_url(agent, seat, |instance| instance.reserve(agent.sessions_max())).await
    }

    async fn pick_url(
        &self,
        agent: &AgentConfig,
        seat: impl Fn(&Arc<Instance>) -> Seat,
        take: impl Fn(&Arc<Instance>) -> bool,
    ) -> Result<Arc<Instance>, WireError> {
        let urls = self.urls_of(&agent.name);
        let until = Instant::now() + Duration::from_millis(self.limits.url_connect_ms);
        let changes = urls.first().map(|url| url.changes.subscribe());
        let Some(mut changes) = changes else { return Err(self.no_url(agent)) };
        urls.iter().for_each(|url| url.want());
        loop {
            changes.borrow_and_update();
            let up: Vec<_> = urls.iter().filter_map(|url| url.instance()).collect();
            let seats: Vec<_> = up.iter().map(&seat).collect();
            if let Some(at) = fewest(&seats) {
                if take(&up[at]) {
                    return Ok(up[at].clone());
                }
                // It has ended or filled up in this moment.
                continue;
            }
            if !up.is_empty() || self.is_stopping() {
                return Err(self.no_url(agent));
            }
            if tokio::time::timeout_at(until, changes.changed()).await.is_err() {
                return Err(self.no_url(agent));
            }
        }
    }

    /// A place for one session at this address and no other: its agent has the session, or may.
    ///
    /// # Errors
    /// If it is not up in the time that a connection may take.
    pub async fn reserve_url(
        &self,
        agent: &AgentConfig,
        url: &Url,
    ) -> Result<Arc<Instance>, WireError> {
        let until = Instant::now() + Duration::from_millis(self.limits.url_connect_ms);
        match url.wait_up(until).await {
            // Its place may be taken by now, but the agent has the session in any case.
            Some(instance) if instance.reserve(usize::MAX) => Ok(instance),
            _ => {
                let text = format!(
                    "the agent at {} may have this session, and it cannot be reached; nobody else may open it meanwhile",
                    url.shown()
                );
                let data = json!({ "agent": agent.name, "urls": [url.to_json()] });
                Err(WireError::new(Code::HeldElsewhere, text).with_data(data))
            }
        }
    }

    fn no_url(&self, agent: &AgentConfig) -> WireError {
        let urls: Vec<Value> = self.urls_of(&agent.name).iter().map(|url| url.to_json()).collect();
        let is_up = |url: &&Value| url["up"] == true;
        let text = if urls.iter().any(|url| is_up(&url)) {
            let up = urls.iter().filter(is_up).count();
            format!(
                "agent {} has no room: {up} of its urls are connected, and each has its sessions or is silent",
                agent.name
            )
        } else {
            let why = |url: &Value| {
                let text = |name: &str| url[name].as_str().unwrap_or_default().to_owned();
                format!("{}: {}", text("url"), text("error"))
            };
            let why: Vec<String> = urls.iter().map(why).collect();
            format!("agent {} cannot be reached: {}", agent.name, why.join("; "))
        };
        WireError::new(Code::AgentStart, text)
            .with_data(json!({ "agent": agent.name, "urls": urls }))
    }
}

/// An instance as the choice sees it.
pub(super) fn seat(instance: &Arc<Instance>) -> Seat {
    Seat {
        up: instance.initialized().is_some() && instance.is_usable(),
        silent: instance.is_silent(SILENT_MS),
        sessions: instance.sessions(),
        sessions_max: instance.agent.sessions_max(),
    }
}
