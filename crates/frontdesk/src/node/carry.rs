//! What a daemon takes over from the one before it: instances whose holders run, the sessions they
//! have loaded, and everything that was under way there (DESIGN section 6, "Holders").
//!
//! First each holder is looked at ([`survey`]); what cannot be carried on is ended and proven gone
//! before anything else. Then the log is opened, and each instance is taken up: the sessions its
//! ledger names are read, their lanes begin live, what was decided and not sent is sent, and only
//! then its output is read, from the first byte that was not acknowledged. What was being closed
//! is closed again; what was being opened waits for its answer (`opening`).

mod opening;
mod orphans;
mod sort;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use frontdesk_core::ids::{InstanceId, Key, is_path_safe};
use frontdesk_core::session::{Asked, Carry as Parts, CloseWhy, Going, SentRequest};
use tokio::sync::oneshot;

use super::Node;
use super::birth::facts;
use super::directory::Row;
use super::recover::close_unloaded;
use crate::agent::facts::Facts;
use crate::agent::instance::{Before, Instance, Parts as InstanceParts};
use crate::agent::ledger::{self, Balance, Here, Ledger};
use crate::agent::link::{self, LinkReceiver, Met};
use crate::agent::proc::{self, EndError};
use crate::config::{AgentConfig, Config};
use crate::paths::Paths;
use crate::session::{Carry, LaneHandle, Mailbox, Start};
use opening::Opening;
use orphans::Orphans;
use sort::{Found, Sorted, sort};

/// How long a start waits until the sessions of an agent that died with its daemon are seen as lost.
const END_SEEN: Duration = Duration::from_secs(2);

/// How long a start waits until sessions that go on have done what was decided: a disk that takes
/// nothing holds up only them.
const DECIDED_DONE: Duration = Duration::from_secs(2);

/// An instance of an earlier daemon that can be carried on, if it has a session.
#[derive(Debug)]
pub struct Candidate {
    id: InstanceId,
    run_dir: PathBuf,
    data_dir: PathBuf,
    facts: Facts,
    balance: Balance,
    met: Met,
}

impl Candidate {
    /// Name of its folders.
    #[must_use]
    pub fn name(&self) -> String {
        self.id.0.to_string()
    }
}

/// What was found of an earlier daemon.
#[derive(Debug, Default)]
pub struct Surveyed {
    /// Instances that can be carried on.
    pub candidates: Vec<Candidate>,
    /// Sessions that were being unloaded at instances that are gone, or will be before this is used.
    unloaded: Vec<Unloaded>,
}

/// A session that was being unloaded.
#[derive(Debug)]
struct Unloaded {
    instance: String,
    journal: PathBuf,
    why: CloseWhy,
}

/// What was taken up.
#[derive(Debug, Default)]
pub struct TakenUp {
    /// Sessions that are live as before.
    pub sessions: usize,
    /// Instances that go on, until they are read.
    pub unread: Vec<Unread>,
}

/// An instance that goes on and whose output nobody reads yet.
#[derive(Debug)]
pub struct Unread {
    instance: Arc<Instance>,
    receiver: LinkReceiver,
    claims: Vec<(Box<str>, Key)>,
    let_go: Vec<Box<str>>,
    openings: Vec<Opening>,
    orphans: Orphans,
}

/// Looks at each holder below `run/instances`, all at once. Changes nothing. Gives those that can be
/// carried on; all others have to be ended.
///
/// # Errors
/// If the folder cannot be read.
pub async fn survey(paths: &Paths, config: &Config) -> std::io::Result<Surveyed> {
    let config = Arc::new(config.clone());
    let mut looks = Vec::new();
    for entry in std::fs::read_dir(paths.instances())? {
        let run_dir = entry?.path();
        if run_dir.is_dir() {
            let data_dir = paths.spools().join(run_dir.file_name().unwrap_or_default());
            let (config, folder) = (config.clone(), run_dir.clone());
            let look = async move { look(&folder, data_dir, &config).await };
            looks.push((run_dir, tokio::spawn(look)));
        }
    }
    let mut candidates = Vec::new();
    for (run_dir, look) in looks {
        match look.await {
            Ok(Ok(candidate)) => candidates.push(candidate),
            Ok(Err(why)) => {
                tracing::info!(path = %run_dir.display(), why, "a holder of an earlier daemon cannot be carried on");
            }
            Err(error) => {
                tracing::error!(path = %run_dir.display(), %error, "failed to look at a holder");
            }
        }
    }
    let carried: BTreeSet<String> = candidates.iter().map(Candidate::name).collect();
    let unloaded = unloaded(paths, &carried)?;
    Ok(Surveyed { candidates, unloaded })
}

/// What ledgers of instances that are not carried on tell of unloading; those that cannot be read tell
/// nothing.
fn unloaded(paths: &Paths, carried: &BTreeSet<String>) -> std::io::Result<Vec<Unloaded>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(paths.spools())? {
        let data_dir = entry?.path();
        let name = data_dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(balance) =
            ledger::read(&data_dir, u64::MAX).ok().filter(|_| !carried.contains(name))
        else {
            continue;
        };
        for (native, why) in balance.closing {
            if let Some(Here { journal, .. }) = balance.here.get(&native) {
                let (instance, journal) = (name.to_owned(), journal.clone());
                all.push(Unloaded { instance, journal, why });
            }
        }
    }
    Ok(all)
}

/// Why a holder cannot be carried on is one plain sentence, for the log.
async fn look(run_dir: &Path, data_dir: PathBuf, config: &Config) -> Result<Candidate, String> {
    let name = run_dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !is_path_safe(name) {
        return Err("its folder is not that of an instance".to_owned());
    }
    let holder = proc::recorded_holder(run_dir)
        .map_err(|error| format!("its record cannot be read: {error}"))?
        .ok_or("the machine was started anew since, or it has no record")?;
    if !proc::alive(&holder) {
        return Err("it is gone".to_owned());
    }
    let facts = Facts::read(&data_dir)
        .map_err(|error| format!("what it was started for cannot be read: {error}"))?
        .ok_or("another version started it, or its agent never answered")?;
    let agent = config.agents.iter().find(|agent| agent.name == facts.agent);
    if !agent.is_some_and(|agent| facts.is_of(&agent.command)) {
        return Err(format!("the configuration has no agent {:?} with its command", facts.agent));
    }
    let met = link::meet(run_dir, &config.limits)
        .await
        .map_err(|error| format!("it is silent: {error}"))?;
    if met.hello.holder != holder || met.hello.instance != name {
        return Err("its socket is another holder's".to_owned());
    }
    let balance =
        ledger::read(&data_dir, met.hello.last_input).map_err(|error| error.to_string())?;
    let id = InstanceId(name.into());
    Ok(Candidate { id, run_dir: run_dir.to_path_buf(), data_dir, facts, balance, met })
}

impl Node {
    /// Takes up all that can be carried on; instances without a session are ended. When this is
    /// done, every carried session is in the directory, and live unless the disk takes nothing;
    /// [`Node::read_on`] does the rest.
    ///
    /// # Errors
    /// If the end of an instance that cannot be carried on is not proven.
    pub async fn take_up(self: &Arc<Self>, found: Surveyed) -> Result<TakenUp, EndError> {
        let Surveyed { candidates, unloaded } = found;
        let node = self.clone();
        let recorded = tokio::task::spawn_blocking(move || {
            for Unloaded { instance, journal, why } in unloaded {
                close_unloaded(&node.log, &journal, &instance, why);
            }
        });
        let tasks: Vec<_> = candidates
            .into_iter()
            .map(|candidate| {
                let (node, run_dir) = (self.clone(), candidate.run_dir.clone());
                (run_dir, tokio::spawn(async move { node.take_up_one(candidate).await }))
            })
            .collect();
        let mut taken = TakenUp::default();
        for (run_dir, task) in tasks {
            match task.await {
                Ok(unread) => {
                    if let Some(unread) = unread? {
                        taken.sessions += unread.claims.len();
                        taken.unread.push(unread);
                    }
                }
                Err(error) => {
                    // Half taken up is worse than ended.
                    tracing::error!(path = %run_dir.display(), %error, "failed to take an instance up");
                    self.end_instance(&run_dir).await?;
                }
            }
        }
        if let Err(error) = recorded.await {
            tracing::error!(%error, "failed to record what was being unloaded");
        }
        Ok(taken)
    }

    /// Reads what was taken up, from where it was not acknowledged. The index has begun: what is read
    /// may name other sessions. Waits for what is on its way from agents that are dead already.
    pub async fn read_on(self: &Arc<Self>, unread: Vec<Unread>) {
        let mut dead = Vec::new();
        for Unread { instance, receiver, claims, let_go, openings, orphans } in unread {
            self.read_instance(&instance, receiver);
            self.settle(&instance, openings, orphans);
            self.renew_claims(&instance, claims, let_go);
            if !instance.first_process_lives() {
                dead.push(instance);
            }
        }
        for instance in dead {
            self.settle_dead(&instance).await;
        }
    }

    /// An agent that died with its daemon: nobody is told that its sessions are active because the
    /// word of its end is still on its way.
    async fn settle_dead(&self, instance: &Instance) {
        if instance.ends_soon().await.is_none() {
            return;
        }
        let until = tokio::time::Instant::now() + END_SEEN;
        let has_it = |row: &Row| {
            let owner = row.live.as_ref().and_then(|live| live.owner.as_ref());
            owner.is_some_and(|owner| *owner.instance == *instance.id.0)
        };
        while !self.directory.loaded(has_it).is_empty() && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// `None` where no session goes on: the instance has been ended then.
    async fn take_up_one(
        self: &Arc<Self>,
        candidate: Candidate,
    ) -> Result<Option<Unread>, EndError> {
        let (run_dir, data_dir) = (candidate.run_dir.clone(), candidate.data_dir.clone());
        let agent = self.agent(&candidate.facts.agent);
        let sorted = sort(&candidate, self.limits.session_children as usize).await;
        let began = match agent {
            Some(agent) if !sorted.carried.is_empty() => self.go_on(candidate, agent, sorted).await,
            _ => None,
        };
        if began.is_some() {
            return Ok(began);
        }
        self.end_instance(&run_dir).await?;
        self.remove_spool(&data_dir);
        Ok(None)
    }

    async fn end_instance(&self, run_dir: &Path) -> Result<(), EndError> {
        let term = Duration::from_millis(self.limits.stop_term_ms);
        let ended = proc::end_recorded(run_dir, term).await?;
        tracing::info!(path = %run_dir.display(), ?ended, "ended an instance that is not carried on");
        Ok(())
    }

    /// The instance goes on with its sessions; `None` if its ledger cannot be written.
    async fn go_on(
        self: &Arc<Self>,
        candidate: Candidate,
        agent: Arc<AgentConfig>,
        sorted: Sorted,
    ) -> Option<Unread> {
        let Candidate { id, run_dir, data_dir, facts, mut balance, met } = candidate;
        let Sorted { carried, doubtful, let_go, orphans } = sorted;
        let wanted = wanted_requests(&balance, &carried);
        let births = orphans::births(&balance);
        let openings = carried.iter().filter_map(Found::opening);
        let close_asked =
            |found: &Found| Some((found.native.clone(), found.close_asked(&balance)?));
        let closes: Vec<(Box<str>, u64)> = carried.iter().filter_map(close_asked).collect();
        let awaited: BTreeSet<u64> = wanted
            .iter()
            .copied()
            .chain(openings)
            .chain(closes.iter().map(|(_, number)| *number))
            .chain(births.iter().map(|(number, _)| *number))
            .collect();
        let mut ledger = match Ledger::resume(&data_dir, &balance, met.hello.last_input) {
            Ok(ledger) => ledger,
            Err(error) => {
                tracing::error!(instance = %id, %error, "failed to go on with a ledger");
                return None;
            }
        };
        for request in balance.requests.iter().filter(|sent| !awaited.contains(&sent.number)) {
            // Whoever asked is gone, and nothing of it is to be learned.
            if let Err(error) = ledger.done(request.number) {
                tracing::warn!(instance = %id, %error, "failed to write the ledger");
            }
        }
        let unwanted: BTreeSet<u64> = balance
            .requests
            .iter()
            .map(|it| it.number)
            .filter(|it| !awaited.contains(it))
            .collect();
        balance.unaccepted.retain(|(number, _)| !unwanted.contains(number));
        balance.acknowledge(met.hello.out_start);
        let link = met.attach();
        let pid = u32::try_from(link.hello.agent.pid).ok();
        let before = Before {
            since: Some(facts.since),
            accepted: link.hello.last_input,
            acked: link.hello.out_start,
            answered: balance.settled.clone(),
            kept: balance.kept.clone(),
        };
        let (sender, receiver) = link.split();
        let instance = Arc::new(Instance::new(InstanceParts {
            id,
            agent,
            url: None,
            pid,
            cwd: facts.cwd,
            greeting: facts.greeting,
            link: sender,
            ledger,
            limits: self.limits.clone(),
            data_dir,
            run_dir,
            paused: self.log.follow_paused(),
            before,
        }));
        instance.set_initialized(facts.initialize);
        for (native, number) in closes {
            instance.await_close(native, number);
        }
        for native in doubtful {
            instance.keep(&native).await;
        }
        // In the order of their numbers, before anything that has a new one.
        if let Err(error) = instance.send_again(std::mem::take(&mut balance.unaccepted)).await {
            // Its end is read below, and its sessions hear of it.
            tracing::warn!(instance = %instance.id, error = %error.message, "an instance ended while it was taken up");
        }
        let claims: Vec<(Box<str>, Key)> =
            carried.iter().map(|found| (found.native.clone(), found.here.key)).collect();
        let orphans = Orphans::new(&instance, orphans, births);
        // All are known before one of them is unloaded: the last one to go ends the instance.
        let mut routed = Vec::new();
        let mut openings = Vec::new();
        for found in carried {
            let (lane, rx) = LaneHandle::new(found.here.key, self.limits.lane_messages);
            instance.route(&found.native, &lane);
            openings.extend(Opening::of(&instance, &found, &balance, &lane));
            routed.push((found, lane, rx));
        }
        let mut begun = Vec::new();
        for (found, lane, rx) in routed {
            begun.push(self.begin_lane(&instance, found, (lane, rx), &balance, &wanted));
        }
        let until = tokio::time::Instant::now() + DECIDED_DONE;
        for ready in begun {
            // A lane that cannot open its journal has said so, and ends.
            if tokio::time::timeout_at(until, ready).await.is_err() {
                tracing::warn!(instance = %instance.id, "a session that goes on is held up; its disk may take nothing");
            }
        }
        tracing::info!(instance = %instance.id, pid, sessions = claims.len(), "carries an instance on");
        Some(Unread { instance, receiver, claims, let_go, openings, orphans })
    }

    fn begin_lane(
        self: &Arc<Self>,
        instance: &Arc<Instance>,
        found: Found,
        (lane, rx): (LaneHandle, Mailbox),
        balance: &Balance,
        wanted: &BTreeSet<u64>,
    ) -> oneshot::Receiver<()> {
        let Found { native, here, view, bytes, ends, how } = found;
        let facts = facts(instance, view.epoch);
        let requests = balance
            .requests
            .iter()
            .filter(|sent| sent.session == native && wanted.contains(&sent.number))
            .map(|sent| SentRequest {
                number: sent.number,
                turn: sent.turn.clone(),
                id: sent.id.clone(),
                method: sent.method.clone(),
                params: sent.params.clone(),
            });
        let owed = balance.owed.iter().filter(|owed| owed.session == native);
        let requests = requests.collect();
        let owed = owed.map(|owed| (owed.hop.clone(), owed.frame.clone())).collect();
        instance.also_known(&native, view.aliases.iter().map(String::as_str));
        instance.speak_of(&native, view.opened_as());
        instance.adopt_children(&native, ends.children().map(|(child, _)| child));
        let parts = Parts {
            ends,
            facts,
            requests,
            owed,
            answered: balance.settled.clone(),
            cancelled: balance.cancelled.get(&native).copied(),
            closing: match how {
                Going::Closing(why) => Some(why),
                Going::Live | Going::Opening(_) => None,
            },
            opening: match how {
                Going::Opening(_) => Some(Asked { may_have: balance.kept.contains(&native) }),
                Going::Live | Going::Closing(_) => None,
            },
        };
        self.directory.insert(Row::cold(here.key, view.clone(), here.journal.clone(), bytes));
        let (ready, is_ready) = oneshot::channel();
        let instance = instance.clone();
        let carry = Carry { path: here.journal, view, parts, instance, ready };
        self.start_born(lane, rx, Start::Carried(Box::new(carry)));
        is_ready
    }

    /// The claim files are held by the holder; that this daemon is behind it now is new. Those that
    /// the one before had no time to free are freed.
    fn renew_claims(
        self: &Arc<Self>,
        instance: &Arc<Instance>,
        claims: Vec<(Box<str>, Key)>,
        let_go: Vec<Box<str>>,
    ) {
        let (node, instance) = (self.clone(), instance.clone());
        tokio::spawn(async move {
            for native in let_go {
                node.release_claims(&instance, &native).await;
            }
            for (native, key) in claims {
                // Its lane sees to its other ids.
                let natives = [&*native].into();
                let renewed = node.claim(&instance, &natives, &key.to_string(), true).await;
                if let Err(error) = renewed {
                    tracing::warn!(instance = %instance.id, error = %error.message, "failed to renew a claim");
                }
            }
        });
    }
}

/// Requests whose answers a carried session still makes something of.
fn wanted_requests(balance: &Balance, carried: &[Found]) -> BTreeSet<u64> {
    let is_carried = |native: &str| carried.iter().any(|found| *found.native == *native);
    let wanted = balance
        .requests
        .iter()
        .filter(|sent| !sent.client.is_empty() && is_carried(&sent.session))
        // A fork's answer names another session, see `orphans`.
        .filter(|sent| &*sent.method != "session/fork");
    wanted.map(|sent| sent.number).collect()
}
