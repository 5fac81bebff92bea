//! What the index's thread does, one piece after the other.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use frontdesk_core::ids::Key;

use super::super::Node;
use super::super::directory::Change;
use super::super::recover::{Recovered, tidy};
use super::super::standing::Standing;
use super::Progress;
use super::checking::Check;
use crate::index::{IndexError, Rebuild, Writer, catch_up, put_row};
use crate::log::Replayed;

/// Changes written in one step.
const BATCH_CHANGES: usize = 512;

/// Journals taken into a new index between looks at what else there is to do.
const SLICE_JOURNALS: usize = 256;

/// How long a start confirms an index that is in step before it serves.
const CONFIRM_BUDGET: Duration = Duration::from_millis(5);

/// Longest pause between slices of work that nobody waits for.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// How long a failed write of the index rests.
const RETRY: Duration = Duration::from_secs(2);

/// `touched.log` is cut no more often than this while sessions come to rest one by one.
const CUT_EVERY: Duration = Duration::from_secs(5);

/// Sessions in `touched.log` that need not be there any more, at which it is cut at once.
const CUT_KEYS: usize = 256;

/// What the thread works on.
pub(super) struct Work {
    node: Arc<Node>,
    writer: Option<Writer>,
    rebuild: Option<Making>,
    check: Option<Check>,
    step: u64,
    cut_at: Option<Instant>,
    purge: Option<Purge>,
    rest_until: Option<Instant>,
}

/// How far the words of deleted sessions are gone.
enum Purge {
    Begin,
    GoOn,
}

struct Making {
    rebuild: Rebuild,
    began: Instant,
    /// Sessions that were written to the old index meanwhile, and, without a journal, those that
    /// were removed from it.
    since: HashMap<Key, Option<PathBuf>>,
}

impl Work {
    pub(super) fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            writer: None,
            rebuild: None,
            check: None,
            step: 0,
            cut_at: None,
            purge: None,
            rest_until: None,
        }
    }

    /// What has to be done before anybody is served: journals that may be ahead are read.
    pub(super) fn start(&mut self, replayed: &Replayed) -> Recovered {
        let mut recovered = Recovered::default();
        let opened = self.node.directory.index.open();
        self.writer = opened.unwrap_or_else(|error| {
            tracing::error!(%error, "failed to open the index");
            None
        });
        let step = self.writer.as_ref().and_then(|writer| writer.step().ok().flatten());
        let Some(step) = step else {
            self.make("there is none");
            return recovered;
        };
        self.step = step;
        let noted = replayed.behind.step;
        // A cut writes the index first.
        let in_step =
            noted == Some(step) || noted.and_then(|noted| noted.checked_add(1)) == Some(step);
        let changed = replayed.changed.iter().map(|(key, path)| (*key, path.clone(), true));
        let sessions = self.node.log.sessions_dir().to_path_buf();
        let behind = replayed.behind.sessions.iter().map(|(key, folder)| {
            (*key, sessions.join(folder).join(crate::log::JOURNAL_NAME), false)
        });
        for (key, path, anew) in changed.chain(behind) {
            match self.catch_up(key, &path, anew, &mut recovered.turns) {
                Ok(()) => {}
                Err(IndexError::Log(error)) => {
                    recovered.unreadable += 1;
                    tracing::error!(path = %path.display(), %error, "failed to read a journal");
                }
                Err(error) => {
                    self.failed(&error);
                    return recovered;
                }
            }
        }
        self.check = Some(Check::new());
        self.node.standings.set(if in_step { Standing::Unconfirmed } else { Standing::Behind });
        if in_step {
            self.spend(CONFIRM_BUDGET);
        } else {
            tracing::warn!(
                "the index is not the one of the last daemon; comparing it with the journals"
            );
        }
        recovered
    }

    fn catch_up(
        &mut self,
        key: Key,
        path: &Path,
        anew: bool,
        turns: &mut usize,
    ) -> Result<(), IndexError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let mut tidy = tidy(&self.node, turns);
        writer.batch(|writer| {
            if !path.exists() {
                return writer.remove(key);
            }
            catch_up(writer, key, path, anew, &mut tidy).map(|_| ())
        })
    }

    /// Works for a while, or until nothing is left to do.
    pub(super) fn spend(&mut self, budget: Duration) {
        let until = Instant::now() + budget;
        while Instant::now() < until && self.slice().is_some() {}
    }

    pub(super) fn run(mut self) {
        let node = self.node.clone();
        loop {
            let rung = node.directory.bell.count();
            if node.keeper.stop.load(Ordering::Acquire) {
                return self.finish();
            }
            if let Some(until) = self.rest_until {
                match until.checked_duration_since(Instant::now()) {
                    Some(left) => {
                        node.directory.bell.wait(rung, left);
                        continue;
                    }
                    None => self.rest_until = None,
                }
            }
            if node.directory.index.is_damaged() {
                self.make("it is damaged");
            } else if node.keeper.asked.load(Ordering::Acquire) {
                self.make("it is asked for");
            }
            let pause = self.slice();
            node.keeper.urgent.store(false, Ordering::Release);
            self.flush(false);
            self.cut(false);
            match pause {
                Some(pause) if pause.is_zero() => {}
                Some(pause) => node.directory.bell.wait(rung, pause),
                None => {
                    node.directory.bell.wait(rung, CUT_EVERY);
                    self.gather();
                }
            }
        }
    }

    /// Waits a little, so that changes that come together are written together.
    fn gather(&self) {
        let until = Instant::now() + Duration::from_millis(self.node.limits.index_delay_ms);
        let bell = &self.node.directory.bell;
        let more = self.node.limits.index_rows as usize;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let keeper = &self.node.keeper;
            let now = keeper.stop.load(Ordering::Acquire) || keeper.urgent.load(Ordering::Acquire);
            if now || self.node.directory.dirty_count() >= more {
                return;
            }
            bell.wait(bell.count(), left);
        }
    }

    /// Does a piece of the work that is left; says how long to pause behind it, `None` if nothing
    /// is left.
    fn slice(&mut self) -> Option<Duration> {
        let began = Instant::now();
        if self.rebuild.is_some() {
            if let Err(error) = self.go_on_making() {
                self.failed(&error);
            }
            return Some(Duration::ZERO);
        }
        let writer = self.writer.as_mut()?;
        let Some(check) = &mut self.check else { return self.purge(began) };
        match check.go_on(&self.node, writer) {
            Ok(true) => {
                let nobody_waits = self.node.standings.now().is_in_step();
                let pause =
                    if nobody_waits { began.elapsed().min(PAUSE_MAX) } else { Duration::ZERO };
                Some(pause)
            }
            Ok(false) => {
                self.check = None;
                self.node.standings.set(Standing::Complete);
                self.cut(true);
                None
            }
            Err(error) => {
                self.failed(&error);
                Some(Duration::ZERO)
            }
        }
    }

    /// Drops the words of deleted sessions, a step at a time.
    fn purge(&mut self, began: Instant) -> Option<Duration> {
        let (writer, purge) = (self.writer.as_mut()?, self.purge.take()?);
        let step = writer.purge_step(matches!(purge, Purge::Begin)).and_then(|more| {
            if !more {
                writer.settle()?;
            }
            Ok(more)
        });
        match step {
            Ok(true) => self.purge = Some(Purge::GoOn),
            Ok(false) => {}
            Err(error) => self.failed(&error),
        }
        Some(began.elapsed().min(PAUSE_MAX))
    }

    /// Begins to make the index anew.
    fn make(&mut self, why: &str) {
        let (keeper, index) = (&self.node.keeper, &self.node.directory.index);
        if self.rebuild.is_some() && !index.is_damaged() {
            return keeper.asked.store(false, Ordering::Release);
        }
        tracing::info!(why, "making the index anew");
        let known = self.node.directory.count(None);
        keeper.tell(|progress| {
            let total = Some(known).filter(|known| *known > 0);
            let runs = progress.runs;
            *progress = Progress { running: true, total, runs, ..Progress::default() };
        });
        // Who asked sees it running, from now on until it is there or has failed.
        keeper.asked.store(false, Ordering::Release);
        if index.is_damaged() || self.writer.is_none() {
            self.node.standings.set(Standing::Making);
            index.withdraw();
            self.writer = None;
        }
        self.check = None;
        self.rebuild = None;
        match Rebuild::begin(index) {
            Ok(rebuild) => {
                let since = HashMap::new();
                self.rebuild = Some(Making { rebuild, began: Instant::now(), since });
            }
            Err(error) => self.failed(&error),
        }
    }

    fn go_on_making(&mut self) -> Result<(), IndexError> {
        let Some(making) = &mut self.rebuild else { return Ok(()) };
        let mut turns = 0;
        let more = making.rebuild.step(SLICE_JOURNALS, &mut tidy(&self.node, &mut turns))?;
        let (counts, ms) = (making.rebuild.counts(), millis(making.began));
        self.node.keeper.tell(|progress| {
            progress.counts = counts;
            progress.ms = ms;
        });
        if more {
            return Ok(());
        }
        let Some(Making { rebuild, since, .. }) = self.rebuild.take() else { return Ok(()) };
        let mut made = rebuild.finish();
        made.batch(|made| {
            for (key, path) in since {
                match path.filter(|path| path.exists()) {
                    Some(path) => pass_over_unreadable(
                        &path,
                        catch_up(made, key, &path, false, &mut |_, _, _| false),
                    )?,
                    None => made.remove(key)?,
                }
            }
            Ok(())
        })?;
        self.step += 1;
        made.set_step(self.step)?;
        let directory = &self.node.directory;
        // What the old index had and the new one may not, is in memory.
        directory.all_dirty();
        self.writer = Some(directory.index.replace(made, self.writer.take())?);
        directory.recount();
        self.node.standings.set(Standing::Complete);
        self.node.keeper.tell(|progress| {
            progress.running = false;
            progress.runs += 1;
        });
        tracing::info!(
            sessions = counts.sessions,
            passages = counts.passages,
            unreadable = counts.unreadable,
            ms,
            "made the index"
        );
        self.cut(true);
        Ok(())
    }

    /// Something could not be done. A broken index is made anew; anything else is tried again.
    fn failed(&mut self, error: &IndexError) {
        tracing::error!(%error, "failed to keep the index");
        self.rebuild = None;
        let mut making = false;
        self.node.keeper.tell(|progress| {
            making = std::mem::take(&mut progress.running);
            if making {
                progress.error = Some(error.to_string());
            }
        });
        if making || !error.is_damage() {
            self.rest_until = Some(Instant::now() + RETRY);
        }
        if error.is_damage() || self.writer.is_none() {
            self.writer = None;
            self.check = None;
            self.node.directory.index.withdraw();
            self.node.standings.set(Standing::Making);
            // The next round begins again.
            self.node.keeper.asked.store(true, Ordering::Release);
        }
    }

    /// Writes what the directory has changed.
    fn flush(&mut self, all: bool) {
        loop {
            let Some(writer) = &mut self.writer else { return };
            let directory = &self.node.directory;
            let changes = directory.take_dirty(BATCH_CHANGES, all);
            if changes.is_empty() {
                return;
            }
            let written = writer.batch(|writer| {
                for (key, change) in &changes {
                    match change {
                        Change::Put(row) | Change::Deleted(row) => put_row(writer, &row.entry())?,
                        Change::Forgotten => writer.remove(*key)?,
                    }
                }
                Ok(())
            });
            if let Err(error) = written {
                directory.give_back(&changes);
                return self.failed(&error);
            }
            if changes.iter().any(|(_, change)| matches!(change, Change::Deleted(_))) {
                self.purge = Some(Purge::Begin);
                if let Err(error) = writer.settle() {
                    return self.failed(&error);
                }
            }
            directory.settled(&changes);
            if let Some(making) = &mut self.rebuild {
                making.since.extend(changes.iter().map(|(key, change)| match change {
                    Change::Put(row) | Change::Deleted(row) => (*key, Some(row.path.clone())),
                    Change::Forgotten => (*key, None),
                }));
            }
        }
    }

    /// Cuts `touched.log` where that is worth it.
    fn cut(&mut self, now: bool) {
        if !self.node.standings.now().is_in_step() {
            return;
        }
        let Some(writer) = &mut self.writer else { return };
        let (log, directory) = (&self.node.log, &self.node.directory);
        let hot = |key| log.has_writer(key) || directory.is_dirty(key);
        let quiet = log.touched().quiet(hot);
        let often = self.cut_at.is_some_and(|at| at.elapsed() < CUT_EVERY);
        if !now && (quiet == 0 || (often && quiet < CUT_KEYS)) {
            return;
        }
        self.cut_at = Some(Instant::now());
        if let Err(error) = writer.set_step(self.step + 1) {
            return self.failed(&error);
        }
        self.step += 1;
        if let Err(error) = log.touched().cut(self.step, hot) {
            tracing::warn!(%error, "failed to write touched.log; the next start checks every journal");
        }
    }

    fn finish(mut self) {
        self.flush(true);
        self.cut(true);
        if let Some(writer) = self.writer.take() {
            self.node.directory.index.withdraw();
            if let Err(error) = writer.close() {
                tracing::warn!(%error, "failed to close the index");
            }
        }
    }
}

/// A journal that cannot be read is told of and keeps no other one out of the index.
pub(super) fn pass_over_unreadable<T>(
    path: &Path,
    read: Result<T, IndexError>,
) -> Result<(), IndexError> {
    match read {
        Ok(_) => Ok(()),
        Err(IndexError::Log(error)) => {
            tracing::error!(path = %path.display(), %error, "failed to read a journal");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
