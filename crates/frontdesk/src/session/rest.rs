//! What a lane keeps beside its journal, and how it comes to rest: snapshots while it runs, one
//! when it ends.

use frontdesk_core::ids::Key;

use super::lane::Lane;
use crate::log::Snapshot;

impl Lane {
    /// Writes a snapshot when the journal has grown by enough since the last one; off the lane, one
    /// at a time. It is derived: while the disk is full there is none.
    pub(super) fn snapshot(&mut self) {
        let bytes = self.journal.bytes();
        let due = self.snapshot_bytes.saturating_add(self.node.limits.snapshot_every_bytes);
        let is_whole =
            self.unwritten.is_empty() && self.session.view().seq == self.journal.last_seq();
        if bytes < due || !is_whole || self.behind {
            return;
        }
        if self.saving.as_ref().is_some_and(|saving| !saving.is_finished()) {
            return;
        }
        self.snapshot_bytes = bytes;
        let path = self.journal.path().to_path_buf();
        let view = self.session.view().clone();
        self.saving = Some(tokio::task::spawn_blocking(move || {
            if let Err(error) = crate::node::recover::save_view(&path, bytes, &view) {
                tracing::warn!(path = %path.display(), %error, "failed to write a snapshot");
            }
        }));
    }

    /// Whether the lane may end: nothing in memory is needed and nobody holds a handle.
    pub(super) fn may_rest(&mut self) -> bool {
        if !self.session.at_rest() || !self.rx.is_empty() || !self.held.is_empty() {
            return false;
        }
        for conn in std::mem::take(&mut self.conns).into_values() {
            conn.leave(self.handle.key());
        }
        self.node.release_lane(&self.handle, &self.rx)
    }

    /// Taken in on a client's word, and its agent has not loaded it: nothing was ever here.
    pub(super) fn is_nothing(&self) -> bool {
        let view = self.session.view();
        self.session.phase().is_cold() && view.unproven && view.items == 0
    }

    /// Writes the last words and the last snapshot.
    pub(super) async fn finish(mut self: Box<Self>) {
        self.write().await;
        self.sync().await;
        if let Some(saving) = self.saving.take() {
            // Behind it, so that nothing appears beside a tombstone or in a folder that is removed.
            let _ = saving.await;
        }
        if self.entombed {
            Snapshot::remove(self.journal.path());
            return;
        }
        if self.is_nothing() {
            let folder = self.journal.path().parent().map(std::path::Path::to_path_buf);
            if let Some(folder) = folder
                && let Err(error) = std::fs::remove_dir_all(&folder)
            {
                tracing::warn!(path = %folder.display(), %error, "failed to remove a journal");
            }
            return;
        }
        let path = self.journal.path().to_path_buf();
        let bytes = self.journal.bytes();
        let view = self.session.view().clone();
        let saved = tokio::task::spawn_blocking(move || {
            crate::node::recover::save_view(&path, bytes, &view)
        });
        if let Ok(Err(error)) = saved.await {
            tracing::warn!(session = %self.handle.key(), %error, "failed to write a snapshot");
        }
        let key: Key = self.handle.key();
        tracing::debug!(session = %key, "a lane has ended");
    }
}
