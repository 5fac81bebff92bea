use frontdesk::agent::link::ClaimOutcome;

use super::*;

/// Claims while the link is being read, as a lane does.
async fn claim(desk: &mut Desk, name: &str, info: &str) -> ClaimOutcome {
    let sender = desk.link.sender.clone();
    let mut events = Vec::new();
    tokio::select! {
        outcome = sender.claim(name, info) => outcome.unwrap(),
        () = async { while desk.link.receiver.next_batch(&mut events).await {} } => panic!("lost"),
    }
}

async fn release(desk: &mut Desk, name: &str) {
    let sender = desk.link.sender.clone();
    let mut events = Vec::new();
    tokio::select! {
        outcome = sender.release(name) => outcome.unwrap(),
        () = async { while desk.link.receiver.next_batch(&mut events).await {} } => panic!("lost"),
    }
}

/// Two instances with one folder for claim files.
async fn two() -> ((Place, Desk), (Place, Desk)) {
    let first = Place::new(&["cat"]);
    let mut second = Place::new(&["cat"]);
    second.spec.claims_dir.clone_from(&first.spec.claims_dir);
    let desks = (first.start().await, second.start().await);
    ((first, desks.0), (second, desks.1))
}

#[tokio::test]
async fn one_of_two_gets_a_claim_and_the_other_learns_who() {
    let ((place, mut first), (_second, mut second)) = two().await;
    let held = |info: &str| ClaimOutcome::Held(info.into());
    assert_eq!(claim(&mut first, "a/b", "{\"pid\":1}").await, ClaimOutcome::Claimed);
    assert_eq!(claim(&mut second, "a/b", "{\"pid\":2}").await, held("{\"pid\":1}"));
    assert_eq!(claim(&mut second, "a/c", "{\"pid\":2}").await, ClaimOutcome::Claimed);
    // Claimed again, it says the new text.
    assert_eq!(claim(&mut first, "a/b", "later").await, ClaimOutcome::Claimed);
    assert_eq!(claim(&mut second, "a/b", "").await, held("later"));
    // A foreign claim is not released.
    release(&mut second, "a/b").await;
    assert_eq!(claim(&mut second, "a/b", "").await, held("later"));
    release(&mut first, "a/b").await;
    assert_eq!(claim(&mut second, "a/b", "mine").await, ClaimOutcome::Claimed);
    release(&mut second, "a/b").await;
    release(&mut second, "a/c").await;
    let left = fs::read_dir(&place.spec.claims_dir).unwrap().count();
    assert_eq!(left, 0, "released claims leave no file");
    first.stop(0).await;
    second.stop(0).await;
}

#[tokio::test]
async fn a_killed_holder_frees_its_claims() {
    let ((_first, mut first), (_second, mut second)) = two().await;
    assert_eq!(claim(&mut first, "s", "first").await, ClaimOutcome::Claimed);
    assert!(proc::signal_process(&first.holder(), Signal::SIGKILL));
    let holder = first.holder();
    eventually("the holder is dead", || !proc::alive(&holder)).await;
    assert_eq!(claim(&mut second, "s", "second").await, ClaimOutcome::Claimed);
    second.stop(0).await;
}

#[tokio::test]
async fn a_claim_outlives_the_daemon_and_ends_with_the_agent() {
    let ((first_place, mut first), (_second, mut second)) = two().await;
    assert_eq!(claim(&mut first, "s", "first").await, ClaimOutcome::Claimed);
    drop(first);
    assert_eq!(claim(&mut second, "s", "").await, ClaimOutcome::Held("first".into()));
    let mut first = first_place.reconnect(0).await;
    assert_eq!(claim(&mut first, "s", "again").await, ClaimOutcome::Claimed);
    first.stop(0).await;
    assert_eq!(claim(&mut second, "s", "").await, ClaimOutcome::Claimed);
    second.stop(0).await;
}

#[tokio::test]
async fn claims_that_cannot_be_made_are_errors() {
    let place = Place::new(&["cat"]);
    let mut desk = place.start().await;
    let sender = desk.link.sender.clone();
    let long = sender.claim(&"n".repeat(20_000), "").await;
    assert!(matches!(long, Err(LinkError::ClaimTooLong(20_000))));
    // The longest that are allowed go over the wire.
    assert_eq!(
        claim(&mut desk, &"n".repeat(16 << 10), &"i".repeat(16 << 10)).await,
        ClaimOutcome::Claimed
    );
    fs::remove_dir_all(&place.spec.claims_dir).unwrap();
    let mut events = Vec::new();
    let failed = tokio::select! {
        outcome = sender.claim("s", "") => outcome,
        () = async { while desk.link.receiver.next_batch(&mut events).await {} } => panic!("lost"),
    };
    assert!(matches!(failed, Err(LinkError::Claim(_))), "{failed:?}");
    desk.stop(0).await;
}

#[tokio::test]
async fn only_claim_files_that_are_old_and_that_nobody_locks_are_removed() {
    use frontdesk::agent::link::remove_stale_claims;

    let ((place, mut first), (_second, mut second)) = two().await;
    assert_eq!(claim(&mut first, "kept", "").await, ClaimOutcome::Claimed);
    assert_eq!(claim(&mut second, "lost", "").await, ClaimOutcome::Claimed);
    let folder = place.spec.claims_dir.clone();
    let letter = folder.join("letter");
    fs::write(&letter, "no claim").unwrap();
    assert_eq!(remove_stale_claims(&folder, Duration::ZERO).unwrap(), 0, "both are locked");
    assert!(proc::signal_process(&second.holder(), Signal::SIGKILL));
    second.rest().await;
    let hour = Duration::from_secs(3_600);
    assert_eq!(remove_stale_claims(&folder, hour).unwrap(), 0, "it is young");
    assert_eq!(remove_stale_claims(&folder, Duration::ZERO).unwrap(), 1);
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.contains(&letter) && letter.exists());
    first.stop(0).await;
}

#[test]
fn a_claim_that_nobody_holds_is_had_while_stale_files_are_removed() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::SystemTime;

    use frontdesk::hold::claim::{Claims, file_name, remove_stale};

    let folder = tempfile::tempdir().unwrap();
    let hour = Duration::from_secs(3_600);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let remover = scope.spawn(|| {
            let mut removed = 0;
            while !over.load(Ordering::Relaxed) {
                removed += remove_stale(folder.path(), hour).unwrap();
            }
            removed
        });
        let mut outcomes = Vec::new();
        for _ in 0..400 {
            // As a killed holder leaves it: an old file that nobody has locked.
            let stale = fs::File::create(folder.path().join(file_name("s"))).unwrap();
            stale.set_modified(SystemTime::now() - 2 * hour).unwrap();
            let mut claims = Claims::new(folder.path().to_path_buf());
            outcomes.push(claims.claim("s", "mine").unwrap());
            let mut others = Claims::new(folder.path().to_path_buf());
            outcomes.push(others.claim("s", "").unwrap());
        }
        over.store(true, Ordering::Relaxed);
        let removed = remover.join().unwrap();
        println!("400 claims were had while {removed} stale files were removed");
        for pair in outcomes.chunks(2) {
            assert_eq!(pair, [ClaimOutcome::Claimed, ClaimOutcome::Held("mine".into())]);
        }
    });
}

#[test]
fn a_held_claim_is_seen_however_many_others_come_and_go() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use frontdesk::hold::claim::{Claims, look};

    let folder = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..200).map(|at| format!("kept {at}")).collect();
    let mut claims = Claims::new(folder.path().to_path_buf());
    for name in &names {
        assert_eq!(claims.claim(name, "mine").unwrap(), ClaimOutcome::Claimed);
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for of in 0..2 {
            let (over, folder) = (&over, folder.path());
            scope.spawn(move || {
                let mut others = Claims::new(folder.to_path_buf());
                for at in 0.. {
                    others.claim(&format!("{of} {}", at % 40), "").unwrap();
                    others.release(&format!("{of} {}", (at * 7) % 40));
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let unseen = |name: &&String| look(folder.path(), name).as_deref() != Some("mine");
        // One look reads all locks of the machine, which may be many.
        let until = Instant::now() + Duration::from_secs(20);
        let passes = (0..30).take_while(|pass| *pass == 0 || Instant::now() < until);
        let missed = passes.flat_map(|_| names.iter().filter(unseen)).count();
        over.store(true, Ordering::Relaxed);
        assert_eq!(missed, 0, "looks that did not see a lock");
    });
}
