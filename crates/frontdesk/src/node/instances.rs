//! Starting, finding and ending instances.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::agent::upstream_initialize;
use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::fold::View;
use frontdesk_core::ids::Key;
use frontdesk_core::lease::Place;
use frontdesk_core::place::fewest;
use frontdesk_core::session::CloseWhy;
use frontdesk_core::status::State;
use serde_json::{Value, json};

use super::Node;
use super::directory::{Found, Row};
use super::urls::seat;
use crate::agent::facts::Facts;
use crate::agent::instance::{Before, Instance, Parts};
use crate::agent::ledger::Ledger;
use crate::agent::link::{self, HolderSpec, LinkReceiver};
use crate::agent::reading;
use crate::config::AgentConfig;
use crate::conn::Conn;
use crate::lock::lock;

/// What the daemon's own instances are told of a client: nothing can be asked of it.
pub const NO_CLIENT: &str = r#"{"protocolVersion":1,"clientCapabilities":{},"clientInfo":{"name":"frontdesk","title":"Frontdesk","version":"0.1.0"}}"#;

/// An instance that owes an answer for this long without a word gets no further sessions, in
/// milliseconds.
pub(super) const SILENT_MS: u64 = 500;

impl Node {
    /// An instance with a free place for one session, reserved: the client's own spare one, a
    /// running one with room, or a new one.
    ///
    /// # Errors
    /// If a new one cannot be started.
    pub async fn reserve_instance(
        self: &Arc<Self>,
        agent: &Arc<AgentConfig>,
        conn: Option<&Conn>,
        cwd: &str,
    ) -> Result<Arc<Instance>, WireError> {
        if !agent.urls.is_empty() {
            return self.reserve_any_url(agent).await;
        }
        let sessions_max = agent.sessions_max();
        let spare = conn.and_then(Conn::take_spare);
        if let Some(spare) = spare {
            // One process for one session runs in that session's folder.
            let folder_fits = sessions_max > 1 || agent.cwd.is_some() || spare.cwd == cwd;
            let fits = spare.agent.name == agent.name && folder_fits;
            if fits && spare.reserve(sessions_max) {
                return Ok(spare);
            }
            self.retire(&spare);
        }
        if sessions_max > 1 {
            // Ids are random: the oldest of equals is the same one each time.
            let mut pool = self.running_instances();
            pool.retain(|instance| instance.agent.name == agent.name);
            pool.sort_by_key(|instance| instance.since);
            while let Some(at) = fewest(&pool.iter().map(seat).collect::<Vec<_>>()) {
                if pool[at].reserve(sessions_max) {
                    return Ok(pool.swap_remove(at));
                }
                // Another caller was faster, or it has ended.
                pool.remove(at);
            }
        }
        let greeting =
            conn.and_then(Conn::greeting).map_or_else(|| NO_CLIENT.into(), |g| g.params.clone());
        let instance = self.start_instance(agent, &greeting, cwd).await?;
        instance.reserve(sessions_max);
        Ok(instance)
    }

    /// Starts an instance and waits for its answer to `initialize`.
    ///
    /// # Errors
    /// If it cannot be started, ends, or does not answer in time; it is ended then.
    pub async fn start_instance(
        self: &Arc<Self>,
        agent: &Arc<AgentConfig>,
        greeting: &str,
        cwd: &str,
    ) -> Result<Arc<Instance>, WireError> {
        if self.is_stopping() {
            return Err(WireError::new(
                Code::Stopping,
                "Frontdesk is stopping and starts no agents",
            ));
        }
        if !agent.urls.is_empty() {
            return self.any_url(agent).await;
        }
        let limit = Duration::from_millis(self.limits.agent_start_ms);
        let spawned = self.spawn_instance(agent, greeting, cwd);
        let instance = match tokio::time::timeout(limit, spawned).await {
            Ok(instance) => instance?,
            Err(_) => return Err(self.start_error(agent, "its holder did not start in time")),
        };
        let params = upstream_initialize(greeting);
        let call = instance.call("initialize", &params, self.limits.agent_start_ms);
        let answer = match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer,
            Err(_) => Err(self.start_error(agent, "it did not answer initialize in time")),
        };
        let frame = match answer {
            Ok(frame) => frame,
            Err(error) => {
                self.retire(&instance);
                let mut failed = self.start_error(agent, &error.message);
                let tail = crate::agent::reading::stderr_tail(&instance);
                failed.data = Some(
                    json!({ "agent": agent.name, "instance": instance.id, "stderrTail": tail }),
                );
                return Err(failed);
            }
        };
        let Some(result) = frame.result().and_then(|text| serde_json::from_str::<Value>(text).ok())
        else {
            self.retire(&instance);
            let text = frame.error().unwrap_or("null").to_owned();
            return Err(self.start_error(agent, &format!("it answered initialize with {text}")));
        };
        instance.set_initialized(result.clone());
        self.remember_initialize(agent, &result);
        let facts = Facts::new(&agent.name, &agent.command, cwd, greeting, result, instance.since);
        if let Err(error) = facts.write(&instance.data_dir) {
            tracing::warn!(instance = %instance.id, %error, "failed to write down an instance; a later daemon will end it");
        }
        if instance.abilities().list && !self.lists.was_read(&agent.name) {
            // Once in a daemon's life, so that an id nobody here knows can be told from an agent's own.
            self.refresh_later(agent);
        }
        Ok(instance)
    }

    pub(super) fn refresh_later(self: &Arc<Self>, agent: &Arc<AgentConfig>) {
        let (node, agents) = (self.clone(), vec![agent.clone()]);
        tokio::spawn(async move { node.refresh_lists(agents, None, false).await });
    }

    fn start_error(&self, agent: &AgentConfig, why: &str) -> WireError {
        WireError::new(Code::AgentStart, format!("failed to start agent {}: {why}", agent.name))
            .with_data(json!({ "agent": agent.name }))
    }

    async fn spawn_instance(
        self: &Arc<Self>,
        agent: &Arc<AgentConfig>,
        greeting: &str,
        cwd: &str,
    ) -> Result<Arc<Instance>, WireError> {
        if agent.command.is_empty() {
            return Err(self.start_error(agent, "its entry has no command"));
        }
        let id = reading::instance_id(&agent.name, uuid::Uuid::new_v4());
        // Up to its place in the table: what a sweep finds of it meanwhile is not lost.
        let _unborn = self.nursery.begin(&id);
        let folder = agent.cwd.clone().unwrap_or_else(|| self.start_folder(cwd));
        let data_dir = self.paths.spools().join(&*id.0);
        let spec = HolderSpec {
            instance: id.clone(),
            agent: agent.name.clone(),
            command: agent.command.clone(),
            cwd: folder,
            env: agent.env.clone(),
            run_dir: self.paths.instances().join(&*id.0),
            data_dir: data_dir.clone(),
            claims_dir: self.claims.clone(),
        };
        let run_dir = spec.run_dir.clone();
        let link = link::start(&self.exe, &spec, &self.limits).await.map_err(|error| {
            tracing::warn!(agent = %agent.name, %error, "failed to start an instance");
            self.start_error(agent, &error.to_string())
        })?;
        let ledger = match Ledger::create(&data_dir) {
            Ok(ledger) => ledger,
            Err(error) => {
                link.sender.stop(self.limits.stop_term_ms);
                return Err(self.start_error(agent, &format!("its ledger cannot be made: {error}")));
            }
        };
        let pid = u32::try_from(link.hello.agent.pid).ok();
        let (sender, receiver) = link.split();
        let instance = Arc::new(Instance::new(Parts {
            id: id.clone(),
            agent: agent.clone(),
            url: None,
            pid,
            cwd: cwd.to_owned(),
            greeting: greeting.to_owned(),
            link: sender,
            ledger,
            limits: self.limits.clone(),
            data_dir,
            run_dir,
            paused: self.log.follow_paused(),
            before: Before::default(),
        }));
        self.read_instance(&instance, receiver);
        tracing::info!(instance = %id, agent = %agent.name, pid, "started an instance");
        Ok(instance)
    }

    /// Reads an instance to its end, in a task of its own.
    pub(super) fn read_instance(
        self: &Arc<Self>,
        instance: &Arc<Instance>,
        receiver: LinkReceiver,
    ) {
        lock(&self.instances).insert(instance.id.clone(), instance.clone());
        let (node, instance) = (self.clone(), instance.clone());
        tokio::spawn(async move {
            reading::read(instance.clone(), receiver).await;
            if instance.is_gone() || instance.url.is_some() {
                // Else it is in the way of whoever wants one of its sessions.
                lock(&node.instances).remove(&instance.id);
            }
            node.count_dropped(&instance);
            instance.until_closed().await;
            node.remove_spool(&instance.data_dir);
        });
    }

    /// An agent is started in its session's folder, as an editor would; where that is no folder, in
    /// the user's home.
    fn start_folder(&self, cwd: &str) -> PathBuf {
        let folder = PathBuf::from(cwd);
        if folder.is_absolute() && folder.is_dir() {
            return folder;
        }
        std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from)
    }

    /// What an ended instance leaves on disk is not needed any more: every record is made.
    pub(super) fn remove_spool(&self, data_dir: &std::path::Path) {
        if let Err(error) = std::fs::remove_dir_all(data_dir)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %data_dir.display(), %error, "failed to remove an instance's spool");
        }
    }

    /// An instance did not answer in time: what it was asked may have been done, and nobody can tell.
    /// It is ended, unless a turn of another session runs there.
    pub fn end_silent(&self, instance: &Arc<Instance>) {
        // At a url nothing is ended; one that is silent gets nothing new.
        if instance.url.is_none() && !self.has_turn(instance, None) {
            tracing::warn!(instance = %instance.id, "ending an instance that does not answer");
            instance.kill();
        }
    }

    /// Whether a session of this instance, `besides` one, is at work.
    #[must_use]
    pub fn has_turn(&self, instance: &Instance, besides: Option<Key>) -> bool {
        let works = self.directory.loaded(|row| {
            let live = row.live.as_ref();
            besides != Some(row.key)
                && live
                    .and_then(|live| live.owner.as_ref())
                    .is_some_and(|owner| *owner.instance == *instance.id.0)
                && live.and_then(|live| live.state).is_some_and(|state| state != State::Idle)
        });
        !works.is_empty()
    }

    /// Ends an instance that has no session, unless it is a connection to a url: that one stays.
    pub fn retire(&self, instance: &Arc<Instance>) {
        if instance.sessions() == 0 && instance.url.is_none() {
            instance.stop();
        }
    }

    /// Puts an instance without a session aside for its client, or ends it after a while.
    pub fn set_aside(self: &Arc<Self>, instance: Arc<Instance>, conn: &Arc<Conn>) {
        if conn.bound.is_none() || instance.has_ended().is_some() || instance.url.is_some() {
            self.retire(&instance);
            return;
        }
        if let Some(old) = conn.take_spare() {
            self.retire(&old);
        }
        conn.set_spare(instance.clone());
        let conn = conn.clone();
        let node = self.clone();
        let wait = Duration::from_secs(self.limits.spare_idle_s);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            if conn.spare().is_some_and(|spare| Arc::ptr_eq(&spare, &instance)) {
                let _ = conn.take_spare();
                node.retire(&instance);
            }
        });
    }

    /// Who holds a session that is not loaded here, for a status. Only looks.
    #[must_use]
    pub fn held_by(&self, row: &Row) -> Option<Value> {
        let held = self.holder_of(row)?;
        Some(json!({
            "tool": "frontdesk", "pid": held.pid, "socket": held.socket, "since": held.since,
        }))
    }

    /// Closes a session at its agent; the instance is ended if it has no other, or if this one's turn
    /// never ended there. One that is taken and was not let go costs the instance too, unless another
    /// session's turn runs there. Whether the agent has let go, or is proven gone.
    pub async fn close_at_agent(
        &self,
        instance: &Arc<Instance>,
        native: &str,
        key: Key,
        why: CloseWhy,
    ) -> bool {
        let alone = instance.sessions() <= 1 && instance.url.is_none();
        let polite = !matches!(why, CloseWhy::Stuck);
        let mut let_go = false;
        if polite {
            // Before it is told: what it still has to open it may open behind that.
            let owes = instance.owes_opening(native);
            let_go = self.ask_to_close(instance, native).await && !owes;
        }
        instance.unroute(native);
        instance.until_heard(Duration::from_millis(self.limits.agent_close_ms)).await;
        let taken = why == CloseWhy::Take
            && !let_go
            && instance.url.is_none()
            && !self.has_turn(instance, Some(key));
        let stuck = why == CloseWhy::Stuck || taken;
        if stuck || (alone && instance.sessions() == 0) {
            if stuck {
                // A url may have it after all.
                instance.keep(native).await;
                instance.kill();
            } else {
                instance.stop();
            }
            let limit =
                Duration::from_millis(self.limits.stop_term_ms * 3 + self.limits.agent_close_ms);
            if tokio::time::timeout(limit, instance.wait_gone()).await.is_ok() {
                // Of a url only the connection is.
                return instance.url.is_none();
            }
            tracing::error!(instance = %instance.id, "an agent's processes are still there");
        } else if let_go {
            self.give_back(instance, native).await;
            return true;
        }
        instance.keep(native).await;
        false
    }

    /// Asks an agent that can to close a session. Whether it says that it does not have it any more.
    pub async fn ask_to_close(&self, instance: &Instance, native: &str) -> bool {
        if !instance.abilities().close || instance.has_ended().is_some() {
            return false;
        }
        let answer = instance.call_close(native).await;
        answer.is_ok_and(|frame| frame.error().is_none_or(names_no_session))
    }

    /// The instance at a place, unless it is proven gone; of an address the connection that is up.
    #[must_use]
    pub fn instance_at(&self, place: &Place) -> Option<Arc<Instance>> {
        self.running_instances().into_iter().find(|instance| {
            let is_over = instance.url.is_some() && instance.has_ended().is_some();
            instance.place() == *place && !is_over
        })
    }

    /// Sessions that instances of an earlier daemon may have get their lanes, which find out.
    pub fn wake_doubted(self: &Arc<Self>) {
        for instance in self.running_instances() {
            for native in instance.kept() {
                let found = self.directory.find_native(&instance.agent.name, &native);
                if let Some(Found::Known(row)) = found {
                    let _lane = self.lane(row.key);
                }
            }
        }
    }

    /// Where somebody may have a session that no lane here says anything of: what its journal says,
    /// or the ledger of an instance that an earlier daemon has left.
    #[must_use]
    pub fn suspected(&self, view: &View) -> Option<Place> {
        let native = view.native.as_deref()?;
        match &view.suspect {
            Some(place @ Place::Url(_)) => return Some(place.clone()),
            Some(place) if self.instance_at(place).is_some() => return Some(place.clone()),
            _ => {}
        }
        let running = self.running_instances();
        let keeps = |i: &Arc<Instance>| *i.agent.name == view.agent && i.keeps(native);
        running.into_iter().find(keeps).map(|instance| instance.place())
    }
}

/// Whether an agent's error (JSON text) says that it does not have the session.
fn names_no_session(error: &str) -> bool {
    let value: Value = serde_json::from_str(error).unwrap_or_default();
    value["code"].as_i64() == Some(Code::NotFound.number())
}
