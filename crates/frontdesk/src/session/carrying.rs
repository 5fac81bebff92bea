//! What makes a lane go on over a daemon's end: how it begins where another one left off, what of a
//! batch is told to be dealt with, and how it leaves off itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use frontdesk_core::fold::View;
use frontdesk_core::ids::InstanceId;
use frontdesk_core::session::{Carried, Session};
use tokio::sync::oneshot;

use super::lane::Lane;
use super::{LaneHandle, Mailbox};
use crate::agent::instance::Instance;
use crate::log::LogError;
use crate::node::Node;

/// What the lane of a carried session begins with.
#[derive(Debug)]
pub struct Carry {
    /// Its journal.
    pub path: PathBuf,
    /// What its records add up to.
    pub view: View,
    /// What the machine is put together from.
    pub parts: frontdesk_core::session::Carry,
    /// The instance that has it.
    pub instance: Arc<Instance>,
    /// Told when everything that was decided before is done.
    pub ready: oneshot::Sender<()>,
}

/// A session that was live before this daemon goes on: what was decided is done before anybody comes.
pub(super) async fn carry_on(
    node: &Arc<Node>,
    handle: LaneHandle,
    mailbox: &mut Option<Mailbox>,
    carry: Carry,
) -> Result<Box<Lane>, LogError> {
    let Carry { path, view, parts, instance, ready } = carry;
    let log = node.log.clone();
    let opened = tokio::task::spawn_blocking(move || log.open_journal(&path));
    let mut journal = opened.await.map_err(|_| LogError::Closed)??;
    journal.fence(view.epoch);
    let rx = mailbox.take().ok_or(LogError::Closed)?;
    let ends = parts.ends.clone();
    let carried = Session::carried(view, parts, node.limits.clone(), node.now());
    let Carried { session, sent, effects } = carried;
    let session = session.with_key(handle.key());
    for (tag, number) in &sent {
        instance.await_answer(*number, &handle, *tag, session.native());
    }
    let mut lane = Lane::new(node, handle, rx, session, journal, Some(instance));
    lane.sent.extend(sent);
    lane.recall_children(&ends);
    lane.carry_out(effects).await;
    lane.publish();
    let _ = ready.send(());
    Ok(lane)
}

/// What a batch of messages has dealt with: told to the instance when its effects are carried out.
#[derive(Default)]
pub(super) struct Handled {
    /// Requests that were answered.
    pub(super) answers: Vec<u64>,
    /// How far each session's output is dealt with.
    places: Vec<Dealt>,
}

/// Output up to here is dealt with.
struct Dealt {
    done: Arc<AtomicU64>,
    end: u64,
    /// Whose it is; `None` for the session's own instance.
    of: Option<InstanceId>,
}

impl Handled {
    pub(super) fn note(&mut self, done: Arc<AtomicU64>, end: u64, of: Option<InstanceId>) {
        self.places.retain(|other| !Arc::ptr_eq(&other.done, &done));
        self.places.push(Dealt { done, end, of });
    }
}

impl Lane {
    /// Tells the instance what is dealt with. What is not recorded is not: a later daemon reads it
    /// again.
    pub(super) async fn tell_handled(&self, handled: Handled) {
        if self.is_undone {
            return;
        }
        let own = self.instance.as_ref();
        if let Some(instance) = own {
            for number in handled.answers {
                instance.dealt_with(number).await;
            }
        }
        for Dealt { done, end, of } in handled.places {
            match own.filter(|own| of.as_ref().is_none_or(|of| *of == own.id)) {
                Some(instance) => instance.handled(&done, end),
                // A late word: it holds up nothing, and offsets of one instance are not another's.
                None => drop(done.fetch_max(end, Ordering::Relaxed)),
            }
        }
    }

    /// Leaves the session to the next daemon, where that was asked: it never comes back then.
    pub(super) async fn hand_over(&mut self) {
        if let Some(done) = self.handed_over.take() {
            self.sync().await;
            let _ = done.send(());
            // Whoever sends anything waits, until the daemon has ended.
            std::future::pending::<()>().await;
        }
    }
}
