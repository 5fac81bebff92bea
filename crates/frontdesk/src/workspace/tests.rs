//! With real repositories: what git does to them is what has to be noticed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::*;

/// Far above what anything here takes; a failure ends sooner than a hang.
const PATIENCE: Duration = Duration::from_secs(20);

fn git(folder: &Path, args: &[&str]) {
    let output = Command::new("git")
        .args(args)
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@b")])
        .envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@b")])
        .env_remove("GIT_DIR")
        .output()
        .unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A repository with one commit on `main`.
fn repository(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    git(folder, &["init", "-q", "-b", "main"]);
    git(folder, &["commit", "-q", "--allow-empty", "-m", "first"]);
}

fn workspaces(folders: u32) -> Workspaces {
    // The poll of a test that watches never comes in time to be taken for the watch.
    let poll = if folders == 0 { 20 } else { 3_600_000 };
    Workspaces::new(&Limits { watched_folders: folders, branch_poll_ms: poll, ..Limits::default() })
}

async fn next(follow: &mut Follow) -> Workspace {
    tokio::time::timeout(PATIENCE, follow.changed()).await.expect("nothing was noticed")
}

fn on(branch: &str) -> Workspace {
    Workspace { branch: Some(branch.into()), worktree: None }
}

fn branch_of(folder: &Path) -> Option<Workspace> {
    git::look(folder).map(|place| place.workspace)
}

#[test]
fn a_folder_is_on_the_branch_that_git_has_checked_out() {
    let home = tempfile::tempdir().unwrap();
    let repo = home.path().join("repo");
    fs::create_dir_all(&repo).unwrap();
    assert_eq!(branch_of(&repo), None);
    git(&repo, &["init", "-q", "-b", "unborn"]);
    assert_eq!(branch_of(&repo), Some(on("unborn")));
    git(&repo, &["commit", "-q", "--allow-empty", "-m", "first"]);
    git(&repo, &["checkout", "-q", "-b", "feat/one"]);
    let deep = repo.join("a/b");
    fs::create_dir_all(&deep).unwrap();
    assert_eq!(branch_of(&deep), Some(on("feat/one")));
    git(&repo, &["branch", "-m", "two"]);
    assert_eq!(branch_of(&repo), Some(on("two")));
    git(&repo, &["checkout", "-q", "--detach"]);
    assert_eq!(branch_of(&repo), Some(Workspace::default()));
    assert_eq!(branch_of(&home.path().join("nowhere")), None);
    assert_eq!(branch_of(Path::new("relative")), None);
}

#[test]
fn a_linked_working_tree_is_told_from_the_main_one_and_from_a_submodule() {
    let home = tempfile::tempdir().unwrap();
    let (main, linked) = (home.path().join("main"), home.path().join("linked"));
    repository(&main);
    git(&main, &["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    let deep = linked.join("x");
    fs::create_dir(&deep).unwrap();
    let worktree = Some(linked.to_str().unwrap().to_owned());
    assert_eq!(branch_of(&deep), Some(Workspace { branch: Some("side".into()), worktree }));
    assert_eq!(branch_of(&main), Some(on("main")));
    let module = home.path().join("outer/module");
    fs::create_dir_all(&module).unwrap();
    fs::rename(main.join(".git"), home.path().join("outer/kept")).unwrap();
    fs::write(module.join(".git"), "gitdir: ../kept\n").unwrap();
    assert_eq!(branch_of(&module), Some(on("main")));
}

#[test]
fn what_is_no_repository_is_passed_over() {
    let home = tempfile::tempdir().unwrap();
    repository(home.path());
    let inside = home.path().join("inside");
    fs::create_dir_all(inside.join(".git")).unwrap();
    assert_eq!(branch_of(&inside), Some(on("main")), "an empty .git is none");
    fs::remove_dir(inside.join(".git")).unwrap();
    fs::write(inside.join(".git"), "something else").unwrap();
    assert_eq!(branch_of(&inside), Some(on("main")));
    let head = home.path().join(".git/HEAD");
    fs::write(&head, "ref: refs/heads/.invalid\n").unwrap();
    assert_eq!(branch_of(home.path()), Some(Workspace::default()));
    fs::write(&head, vec![b'x'; 70 << 10]).unwrap();
    assert_eq!(branch_of(home.path()), None);
    fs::remove_file(&head).unwrap();
    std::os::unix::fs::symlink("refs/heads/old", &head).unwrap();
    assert_eq!(branch_of(home.path()), Some(on("old")));
    fs::remove_file(&head).unwrap();
    nix::unistd::mkfifo(&head, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(branch_of(home.path()), None, "a pipe is not waited for");
}

#[tokio::test]
async fn each_change_is_told_while_somebody_follows() {
    let home = tempfile::tempdir().unwrap();
    let repo = home.path().join("repo");
    repository(&repo);
    let workspaces = workspaces(8);
    let mut follow = workspaces.follow(&repo);
    assert_eq!(next(&mut follow).await, on("main"));
    git(&repo, &["checkout", "-q", "-b", "one"]);
    assert_eq!(next(&mut follow).await, on("one"));
    git(&repo, &["branch", "-m", "two"]);
    assert_eq!(next(&mut follow).await, on("two"));
    git(&repo, &["checkout", "-q", "--detach"]);
    assert_eq!(next(&mut follow).await, Workspace::default());
    // As git does it: a new file takes the old one's place.
    fs::write(repo.join(".git/HEAD.lock"), "ref: refs/heads/main\n").unwrap();
    fs::rename(repo.join(".git/HEAD.lock"), repo.join(".git/HEAD")).unwrap();
    assert_eq!(next(&mut follow).await, on("main"));
    // A second follower is told what is known, without a change.
    let mut second = workspaces.follow(&repo);
    assert_eq!(next(&mut second).await, on("main"));
    fs::remove_dir_all(repo.join(".git")).unwrap();
    assert_eq!(next(&mut follow).await, Workspace::default());
    assert_eq!(next(&mut second).await, Workspace::default());
}

#[tokio::test]
async fn a_repository_that_is_replaced_is_followed_on() {
    let home = tempfile::tempdir().unwrap();
    let (repo, other) = (home.path().join("repo"), home.path().join("other"));
    repository(&repo);
    repository(&other);
    git(&other, &["checkout", "-q", "-b", "elsewhere"]);
    let workspaces = workspaces(8);
    let mut follow = workspaces.follow(&repo);
    assert_eq!(next(&mut follow).await, on("main"));
    fs::rename(repo.join(".git"), home.path().join("aside")).unwrap();
    fs::rename(other.join(".git"), repo.join(".git")).unwrap();
    while next(&mut follow).await != on("elsewhere") {}
    git(&repo, &["checkout", "-q", "-b", "again"]);
    assert_eq!(next(&mut follow).await, on("again"));
}

#[tokio::test]
async fn a_linked_working_tree_is_watched_where_its_own_head_is() {
    let home = tempfile::tempdir().unwrap();
    let (main, linked) = (home.path().join("main"), home.path().join("linked"));
    repository(&main);
    git(&main, &["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    let worktree = Some(linked.to_str().unwrap().to_owned());
    let workspaces = workspaces(8);
    let mut follow = workspaces.follow(&linked);
    let side = Workspace { branch: Some("side".into()), worktree: worktree.clone() };
    assert_eq!(next(&mut follow).await, side);
    git(&linked, &["checkout", "-q", "-b", "more"]);
    let more = Workspace { branch: Some("more".into()), worktree };
    assert_eq!(next(&mut follow).await, more);
}

#[tokio::test]
async fn beyond_the_limit_and_without_a_repository_a_folder_is_looked_at_again() {
    let home = tempfile::tempdir().unwrap();
    let repo = home.path().join("repo");
    fs::create_dir(&repo).unwrap();
    let workspaces = workspaces(0);
    let mut follow = workspaces.follow(&repo);
    assert_eq!(next(&mut follow).await, Workspace::default());
    repository(&repo);
    while next(&mut follow).await != on("main") {}
    git(&repo, &["checkout", "-q", "-b", "polled"]);
    while next(&mut follow).await != on("polled") {}
    assert!(lock(&workspaces.shared.spots).watched.is_empty());
}

#[tokio::test]
async fn at_most_so_many_are_watched_and_none_without_a_follower() {
    let home = tempfile::tempdir().unwrap();
    let repos: Vec<PathBuf> = ["a", "b", "c"].map(|name| home.path().join(name)).into();
    let workspaces = workspaces(2);
    let mut follows = Vec::new();
    for repo in &repos {
        repository(repo);
        // Two folders of one repository share one watch.
        for folder in [repo.clone(), repo.join(".git")] {
            let mut follow = workspaces.follow(&folder);
            next(&mut follow).await;
            follows.push(follow);
        }
    }
    let watched = || lock(&workspaces.shared.spots).watched.clone();
    assert_eq!(watched().len(), 2);
    assert!(watched().values().all(|count| *count == 2), "{:?}", watched());
    drop(follows);
    let all_gone = async {
        while lock(&workspaces.shared.spots).runs {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all_gone).await.unwrap();
    assert!(watched().is_empty());
    assert!(lock(&workspaces.shared.news.watched).is_empty());
    let mut follow = workspaces.follow(&repos[2]);
    assert_eq!(next(&mut follow).await, on("main"), "it begins anew");
    assert_eq!(watched().len(), 1);
}
