//! What branch the sessions' folders are on, watched while somebody follows them.
//!
//! One task and one watcher for all: each followed folder's git folder is watched, because git
//! replaces `HEAD` by a rename; beyond `watched_folders`, where watching fails and where there is no
//! repository yet, the folder is looked at every `branch_poll_ms`. Rules: `frontdesk_core::workspace`.

mod git;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use frontdesk_core::limits::Limits;
use frontdesk_core::workspace::Workspace;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::{Notify, watch};

use crate::lock::lock;

/// All folders that are followed.
#[derive(Debug)]
pub struct Workspaces {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    spots: Mutex<Spots>,
    /// Held by nobody who holds another lock: a watcher waits for its own thread, which comes here
    /// with what happened.
    watcher: Mutex<Option<RecommendedWatcher>>,
    news: Arc<News>,
    folders_max: usize,
    poll: Duration,
}

/// What the watcher saw and nobody has looked at yet.
#[derive(Debug, Default)]
struct News {
    /// Git folders whose `HEAD` may have changed.
    changed: Mutex<BTreeSet<PathBuf>>,
    /// Git folders that went away themselves: their watch is gone with them.
    lost: Mutex<BTreeSet<PathBuf>>,
    /// Git folders that are watched: of all that happens beside a `HEAD` only their own end counts.
    watched: Mutex<BTreeSet<PathBuf>>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Spots {
    by_folder: HashMap<PathBuf, Spot>,
    /// Watched git folders and how many spots they serve.
    watched: HashMap<PathBuf, usize>,
    /// Whether the task runs.
    runs: bool,
}

#[derive(Debug)]
struct Spot {
    /// `None` until somebody has looked.
    tx: watch::Sender<Option<Workspace>>,
    followers: usize,
    /// The git folder that is watched for it.
    watched: Option<PathBuf>,
}

/// One follower of a folder; the folder is watched as long as one exists.
#[derive(Debug)]
pub struct Follow {
    rx: watch::Receiver<Option<Workspace>>,
    folder: PathBuf,
    shared: Arc<Shared>,
}

impl Follow {
    /// Waits until there is something new, from the first look on. For ever if there is never.
    pub async fn changed(&mut self) -> Workspace {
        loop {
            if self.rx.changed().await.is_err() {
                // The sender goes only with its last follower.
                std::future::pending::<()>().await;
            }
            if let Some(workspace) = self.rx.borrow_and_update().clone() {
                return workspace;
            }
        }
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        let mut spots = lock(&self.shared.spots);
        if let Some(spot) = spots.by_folder.get_mut(&self.folder) {
            spot.followers -= 1;
            if spot.followers == 0 {
                // The task lets the watch go, and ends itself if this was the last one.
                self.shared.news.wake.notify_one();
            }
        }
    }
}

impl Workspaces {
    /// Nothing is followed yet.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Self {
            shared: Arc::new(Shared {
                spots: Mutex::default(),
                watcher: Mutex::default(),
                news: Arc::default(),
                folders_max: usize::try_from(limits.watched_folders).unwrap_or(usize::MAX),
                poll: Duration::from_millis(limits.branch_poll_ms),
            }),
        }
    }

    /// Follows the branch of a folder. Nothing is read here: the first news comes by itself.
    #[must_use]
    pub fn follow(&self, folder: &Path) -> Follow {
        let mut spots = lock(&self.shared.spots);
        let spot = spots.by_folder.entry(folder.to_path_buf()).or_insert_with(|| Spot {
            tx: watch::Sender::new(None),
            followers: 0,
            watched: None,
        });
        spot.followers += 1;
        let mut rx = spot.tx.subscribe();
        // What is known already is news to this follower.
        rx.mark_changed();
        if !std::mem::replace(&mut spots.runs, true) {
            tokio::spawn(self.shared.clone().run());
        }
        self.shared.news.wake.notify_one();
        Follow { rx, folder: folder.to_path_buf(), shared: self.shared.clone() }
    }
}

impl Shared {
    /// Looks whenever there is news, and from time to time at what cannot be watched; ends with the
    /// last follower.
    async fn run(self: Arc<Self>) {
        let mut due = Due::News;
        loop {
            let shared = self.clone();
            let looked = tokio::task::spawn_blocking(move || shared.look(due)).await;
            match looked {
                Ok(Some(polls)) => {
                    due = tokio::select! {
                        () = self.news.wake.notified() => Due::News,
                        () = tokio::time::sleep(self.poll), if polls => Due::Unwatched,
                    };
                }
                // Nobody follows any more, or the runtime ends. The watcher stays, without watches.
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// One round. Says whether some folder has to be polled; `None` when nobody follows any more.
    fn look(&self, due: Due) -> Option<bool> {
        let changed = std::mem::take(&mut *lock(&self.news.changed));
        let lost = std::mem::take(&mut *lock(&self.news.lost));
        for git_dir in &lost {
            self.unwatch(git_dir);
        }
        let (folders, gone) = self.folders_due(due, &changed, &lost);
        for git_dir in gone {
            self.unwatch(&git_dir);
        }
        for folder in folders {
            self.look_at(&folder);
        }
        let mut spots = lock(&self.spots);
        if spots.by_folder.is_empty() {
            // Under the lock, so that the next follower starts a task of its own.
            spots.runs = false;
            return None;
        }
        Some(spots.by_folder.values().any(|spot| spot.watched.is_none()))
    }

    /// The folders to look at, and the git folders that nobody needs to watch any more.
    fn folders_due(
        &self,
        due: Due,
        changed: &BTreeSet<PathBuf>,
        lost: &BTreeSet<PathBuf>,
    ) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let mut spots = lock(&self.spots);
        let mut gone = Vec::new();
        let deserted: Vec<PathBuf> = spots
            .by_folder
            .iter()
            .filter(|(_, spot)| spot.followers == 0)
            .map(|(folder, _)| folder.clone())
            .collect();
        for folder in deserted {
            let spot = spots.by_folder.remove(&folder);
            gone.extend(spot.and_then(|spot| spot.watched).and_then(|dir| spots.release(dir)));
        }
        for git_dir in lost {
            spots.watched.remove(git_dir);
        }
        let mut folders = Vec::new();
        for (folder, spot) in &mut spots.by_folder {
            let is_lost = spot.watched.as_ref().is_some_and(|dir| lost.contains(dir));
            if is_lost {
                spot.watched = None;
            }
            let is_new = spot.tx.borrow().is_none();
            let unwatched = spot.watched.is_none() && matches!(due, Due::Unwatched);
            let told = spot.watched.as_ref().is_some_and(|dir| changed.contains(dir));
            if is_new || is_lost || unwatched || told {
                folders.push(folder.clone());
            }
        }
        (folders, gone)
    }

    fn look_at(&self, folder: &Path) {
        let mut place = git::look(folder);
        if self.watch_for(folder, place.as_ref().map(|place| &place.git_dir)) {
            // It may have changed between the look and the watch.
            place = git::look(folder);
        }
        let workspace = place.map(|place| place.workspace).unwrap_or_default();
        let spots = lock(&self.spots);
        let Some(spot) = spots.by_folder.get(folder) else { return };
        spot.tx.send_if_modified(|known| {
            let is_new = known.as_ref() != Some(&workspace);
            if is_new {
                *known = Some(workspace);
            }
            is_new
        });
    }

    /// Has the git folder of a followed folder watched; says whether a new watch began.
    fn watch_for(&self, folder: &Path, git_dir: Option<&PathBuf>) -> bool {
        let mut spots = lock(&self.spots);
        let Some(spot) = spots.by_folder.get_mut(folder) else { return false };
        if spot.watched.as_ref() == git_dir {
            return false;
        }
        let before = spot.watched.take();
        let gone = before.and_then(|dir| spots.release(dir));
        let wanted = git_dir.filter(|dir| {
            spots.watched.contains_key(*dir) || spots.watched.len() < self.folders_max
        });
        let is_shared = wanted.is_some_and(|dir| spots.watched.contains_key(dir));
        drop(spots);
        if let Some(gone) = gone {
            self.unwatch(&gone);
        }
        let Some(git_dir) = wanted else { return false };
        if !is_shared && !self.watch(git_dir) {
            return false;
        }
        let mut spots = lock(&self.spots);
        *spots.watched.entry(git_dir.clone()).or_default() += 1;
        if let Some(spot) = spots.by_folder.get_mut(folder) {
            spot.watched = Some(git_dir.clone());
        }
        !is_shared
    }

    /// Begins a watch; `false` where that is not possible.
    fn watch(&self, git_dir: &Path) -> bool {
        let mut watcher = lock(&self.watcher);
        if watcher.is_none() {
            let news = self.news.clone();
            match notify::recommended_watcher(move |event| news.take(event)) {
                Ok(made) => *watcher = Some(made),
                Err(error) => {
                    tracing::debug!(%error, "failed to make a watcher; branches are polled");
                    return false;
                }
            }
        }
        lock(&self.news.watched).insert(git_dir.to_path_buf());
        let watched = watcher.as_mut().map(|it| it.watch(git_dir, RecursiveMode::NonRecursive));
        if let Some(Err(error)) = &watched {
            tracing::debug!(path = %git_dir.display(), %error, "failed to watch a repository; it is polled");
            lock(&self.news.watched).remove(git_dir);
        }
        matches!(watched, Some(Ok(())))
    }

    fn unwatch(&self, git_dir: &Path) {
        lock(&self.news.watched).remove(git_dir);
        if let Some(watcher) = lock(&self.watcher).as_mut()
            && let Err(error) = watcher.unwatch(git_dir)
        {
            tracing::debug!(path = %git_dir.display(), %error, "a watch was gone already");
        }
    }
}

impl Spots {
    /// One spot less needs a git folder; given back if it was the last one.
    fn release(&mut self, git_dir: PathBuf) -> Option<PathBuf> {
        let count = self.watched.get_mut(&git_dir)?;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        self.watched.remove(&git_dir);
        Some(git_dir)
    }
}

/// Why a round is made.
#[derive(Clone, Copy, Debug)]
enum Due {
    /// A follower came or went, or the watcher saw something.
    News,
    /// The folders that cannot be watched are looked at.
    Unwatched,
}

impl News {
    /// Takes an event of the watcher, on the watcher's own thread. Reading is no change: a look of
    /// our own must not cause the next one.
    fn take(&self, event: notify::Result<Event>) {
        let Ok(event) = event else { return };
        if matches!(event.kind, EventKind::Access(_)) {
            return;
        }
        let is_removal = matches!(
            event.kind,
            EventKind::Remove(_) | EventKind::Modify(notify::event::ModifyKind::Name(_))
        );
        let mut seen = false;
        for path in &event.paths {
            if path.file_name().is_some_and(|name| name == "HEAD") {
                seen |= path.parent().is_some_and(|dir| lock(&self.changed).insert(dir.to_owned()));
            } else if is_removal {
                let is_own = lock(&self.watched).contains(path);
                seen |= is_own && lock(&self.lost).insert(path.clone());
            }
        }
        if seen {
            self.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
