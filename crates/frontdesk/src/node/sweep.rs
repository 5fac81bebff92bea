//! Looks from time to time for what is left of instances that nobody has: started and lost by a daemon
//! that died, or not to be ended when it should have been. By record and mark only; what is decided is in
//! `frontdesk_core::sweep`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use frontdesk_core::ids::InstanceId;
use frontdesk_core::sweep::{CLAIM_AGE_S_MIN, Verdict, verdict};

use super::Node;
use crate::agent::{link, proc};
use crate::lock::lock;

/// How long something has to be nobody's before it is ended: an instance that has just ended leaves its
/// folders a moment later.
const SETTLE: Duration = Duration::from_secs(2);

/// Instances that are being started and are in no table yet.
#[derive(Debug, Default)]
pub(super) struct Nursery(Mutex<BTreeSet<InstanceId>>);

/// An instance that is being started, until this is dropped.
pub(super) struct Unborn<'a> {
    nursery: &'a Nursery,
    id: InstanceId,
}

impl Nursery {
    /// Before anything of the instance is on the disk.
    pub(super) fn begin(&self, id: &InstanceId) -> Unborn<'_> {
        lock(&self.0).insert(id.clone());
        Unborn { nursery: self, id: id.clone() }
    }

    fn has(&self, id: &InstanceId) -> bool {
        lock(&self.0).contains(id)
    }
}

impl Drop for Unborn<'_> {
    fn drop(&mut self) {
        lock(&self.nursery.0).remove(&self.id);
    }
}

/// What a sweep has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Instances that were ended and proven gone.
    pub ended: usize,
    /// Spools of which nothing else was left.
    pub spools: usize,
    /// Claim files that nobody had locked.
    pub claims: usize,
    /// Instances whose end is not proven. They are tried again.
    pub left: usize,
}

impl Node {
    /// Sweeps at once, then every `sweep_s`, until it is dropped. Not while the daemon ends: the next
    /// one may go on with what runs.
    pub async fn keep_sweeping(self: Arc<Self>) {
        loop {
            if self.is_stopping() {
                return;
            }
            let swept = self.sweep().await;
            if swept != Swept::default() {
                tracing::info!(?swept, "swept up what nobody had");
            }
            if self.limits.sweep_s == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_secs(self.limits.sweep_s)).await;
        }
    }

    /// Ends what is nobody's and removes what is left of it.
    pub async fn sweep(self: &Arc<Self>) -> Swept {
        let mut swept = Swept::default();
        let first = self.unknown_instances().await;
        if !first.is_empty() {
            tokio::time::sleep(SETTLE).await;
            let still: BTreeSet<String> = self.unknown_instances().await.into_iter().collect();
            for name in first.into_iter().filter(|name| still.contains(name)) {
                self.sweep_one(&name, &mut swept).await;
            }
        }
        let folder = self.claims.clone();
        let age = Duration::from_secs(CLAIM_AGE_S_MIN);
        let removed =
            tokio::task::spawn_blocking(move || link::remove_stale_claims(&folder, age)).await;
        swept.claims = removed.ok().and_then(Result::ok).unwrap_or_default();
        swept
    }

    /// The instances of which the home has a folder and this daemon knows nothing.
    async fn unknown_instances(self: &Arc<Self>) -> Vec<String> {
        let (runs, spools) = (self.paths.instances(), self.paths.spools());
        let listed = tokio::task::spawn_blocking(move || proc::instance_names(&runs, &spools));
        match listed.await {
            Ok(Ok(names)) => names.into_iter().filter(|name| !self.knows(name)).collect(),
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to list the folders of instances");
                Vec::new()
            }
            Err(_) => Vec::new(),
        }
    }

    /// Asked behind the look at the disk: an instance is known before its folders are made.
    fn knows(&self, name: &str) -> bool {
        let id = InstanceId(name.into());
        self.nursery.has(&id) || lock(&self.instances).contains_key(&id)
    }

    async fn sweep_one(&self, name: &str, swept: &mut Swept) {
        let run_dir = self.paths.instances().join(name);
        let traces = {
            let (run_dir, name, is_known) = (run_dir.clone(), name.to_owned(), self.knows(name));
            let look = move || proc::traces(&run_dir, &name, is_known);
            match tokio::task::spawn_blocking(look).await {
                Ok(Ok(traces)) => traces,
                // Without a look at the processes nothing is certain.
                _ => return,
            }
        };
        if self.is_stopping() {
            return;
        }
        match verdict(&traces) {
            Verdict::Leave => {}
            Verdict::Forget => {
                self.remove_spool(&self.spool_of(name));
                swept.spools += 1;
            }
            Verdict::End(why) => {
                let term = Duration::from_millis(self.limits.stop_term_ms);
                match proc::end_recorded(&run_dir, term).await {
                    Ok(ended) => {
                        tracing::warn!(
                            instance = name,
                            ?why,
                            ?ended,
                            "ended an instance that nobody had"
                        );
                        self.remove_spool(&self.spool_of(name));
                        swept.ended += 1;
                    }
                    Err(error) => {
                        tracing::error!(instance = name, ?why, %error, "failed to end an instance that nobody has");
                        swept.left += 1;
                    }
                }
            }
        }
    }

    fn spool_of(&self, name: &str) -> PathBuf {
        self.paths.spools().join(name)
    }
}
