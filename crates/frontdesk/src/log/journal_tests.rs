use std::fs;
use std::sync::atomic::Ordering;

use frontdesk_core::limits::Limits;
use tokio::time::{Duration, timeout};

use super::super::testing::{Bench, Random, at, durable, key, line_of, record, seqs};
use super::super::{Reader, What};
use super::*;

fn limits() -> Limits {
    Limits { stream_sync_ms: 2, ..Limits::default() }
}

/// Whether a ticket is still open after a while in which a wrong one would have settled.
async fn is_open(
    ticket: &mut std::pin::Pin<Box<impl Future<Output = Result<(), LogError>>>>,
) -> bool {
    timeout(Duration::from_millis(50), ticket).await.is_err()
}

#[tokio::test]
async fn a_ticket_waits_for_the_sync() {
    let bench = Bench::new(&limits());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    bench.disk.close_gate(true);
    let ticket = journal.append(&[record(1), durable(2)]).unwrap();
    assert_eq!(seqs(journal.path()), [1, 2], "readers see the batch before it is synced");
    let mut synced = Box::pin(ticket.synced());
    assert!(is_open(&mut synced).await);
    assert_eq!(bench.disk.syncs(true), 0);
    assert!(journal.append(&[record(3)]).unwrap().is_settled(), "nothing durable, nothing to wait");
    bench.disk.close_gate(false);
    synced.await.unwrap();
    assert_eq!(bench.disk.syncs(true), 1);
    assert_eq!(bench.disk.journal_writes.load(Ordering::SeqCst), 2, "one write for each batch");
}

#[tokio::test]
async fn sixty_four_journals_share_one_sync() {
    let bench = Bench::new(&limits());
    let mut journals: Vec<_> =
        (0..64).map(|number| bench.log.create(key(number), at()).unwrap()).collect();
    bench.disk.close_gate(true);
    let mut tickets = vec![journals[0].append(&[durable(1)]).unwrap()];
    // The first round is in its sync now, or begins with some of what follows.
    let rounds = || bench.log.stats().waiting_bytes == 0;
    super::super::testing::eventually("the first round is taken", rounds);
    for journal in &mut journals {
        tickets.push(journal.append(&[durable(2), durable(3)]).unwrap());
    }
    bench.disk.close_gate(false);
    for ticket in tickets {
        ticket.synced().await.unwrap();
    }
    assert_eq!(bench.disk.syncs(true), 2);
    assert_eq!(bench.log.stats().rounds, 2);
    assert_eq!(bench.log.stats().detours, 0);
}

/// A delay that no test outlives.
fn patient() -> Limits {
    Limits { commit_delay_ms: 600_000, ..limits() }
}

#[tokio::test]
async fn what_nobody_waits_for_goes_with_what_somebody_waits_for() {
    let bench = Bench::new(&patient());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    let mut other = bench.log.create(key(2), at()).unwrap();
    drop(other.append(&[durable(1)]).unwrap());
    let started = journal.append(&[durable(1)]).unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(bench.disk.syncs(true), 0, "nobody waits");
    journal.append(&[durable(2)]).unwrap().synced().await.unwrap();
    assert_eq!((bench.disk.syncs(true), bench.log.stats().rounds), (1, 1));
    drop(journal.append(&[durable(3)]).unwrap());
    started.synced().await.unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(bench.disk.syncs(true), 1, "a round that is over hurries no other");
    // The commit log has all of the round that was waited for, and nothing of the next.
    let copy = super::super::tests::copy_of(bench.data.path());
    let (_log, played) = super::super::Log::open(copy.path(), &limits()).unwrap();
    assert_eq!(played.entries, 3);
}

#[tokio::test]
async fn a_wait_that_begins_during_a_sync_begins_the_next_at_its_end() {
    let bench = Bench::new(&patient());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    bench.disk.close_gate(true);
    let mut first = Box::pin(journal.append(&[durable(1)]).unwrap().synced());
    assert!(is_open(&mut first).await);
    let mut second = Box::pin(journal.append(&[durable(2)]).unwrap().synced());
    assert!(is_open(&mut second).await);
    assert_eq!(bench.disk.syncs(true), 0, "nothing is acknowledged before its sync");
    bench.disk.close_gate(false);
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(bench.disk.syncs(true), 2);
}

#[test]
fn what_nobody_waits_for_is_synced_within_the_delay() {
    let bench = Bench::new(&Limits { commit_delay_ms: 20, ..limits() });
    let mut journal = bench.log.create(key(1), at()).unwrap();
    drop(journal.append(&[durable(1)]).unwrap());
    super::super::testing::eventually("the delay is over", || bench.log.stats().rounds > 0);
    assert_eq!(bench.log.stats().waiting_bytes, 0);
    assert_eq!(bench.disk.syncs(true), 1);
}

#[test]
fn a_delay_of_zero_is_none() {
    let bench = Bench::new(&Limits { commit_delay_ms: 0, ..limits() });
    let mut journal = bench.log.create(key(1), at()).unwrap();
    drop(journal.append(&[durable(1)]).unwrap());
    super::super::testing::eventually("it is synced", || bench.disk.syncs(true) == 1);
}

#[test]
fn much_that_nobody_waits_for_is_synced_before_the_delay_is_over() {
    let bench = Bench::new(&patient());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    let long = |seq| Record { data: vec![b'1'; 600 << 10].into(), ..durable(seq) };
    drop(journal.append(&[long(1)]).unwrap());
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(bench.disk.syncs(true), 0);
    drop(journal.append(&[long(2)]).unwrap());
    super::super::testing::eventually("it is synced", || bench.disk.syncs(true) == 1);
}

#[test]
fn a_close_waits_for_no_delay() {
    let bench = Bench::new(&patient());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    drop(journal.append(&[durable(1)]).unwrap());
    assert_eq!(bench.disk.syncs(true), 0);
    bench.log.close().unwrap();
    assert_eq!((bench.disk.syncs(true), bench.disk.syncs(false)), (1, 1));
}

#[tokio::test]
async fn records_are_durable_though_the_commit_log_is_full() {
    let bench = Bench::new(&limits());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    journal.append(&[durable(1)]).unwrap().synced().await.unwrap();
    for room in [0, 1, 40] {
        bench.disk.commit_room.store(room, Ordering::SeqCst);
        let (before, seq) = (bench.disk.syncs(false), journal.last_seq() + 1);
        journal.append(&[durable(seq)]).unwrap().synced().await.unwrap();
        assert!(bench.disk.syncs(false) > before, "the journal itself was synced");
    }
    bench.disk.commit_room.store(-1, Ordering::SeqCst);
    journal.append(&[durable(5)]).unwrap().synced().await.unwrap();
    assert_eq!(bench.log.stats().detours, 3);
    super::super::testing::eventually("files that failed once are not used again", || {
        bench.commit_files() == ["005.log"]
    });
}

#[test]
fn numbers_go_up() {
    let bench = Bench::new(&limits());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    let _ = journal.append(&[record(3)]).unwrap();
    for bad in [vec![record(3)], vec![record(2)], vec![record(4), record(4)], vec![record(0)]] {
        let error = journal.append(&bad).unwrap_err();
        assert!(matches!(error, LogError::Order { .. }), "{error}");
        assert!(!error.is_retryable());
    }
    assert_eq!((journal.last_seq(), seqs(journal.path())), (3, vec![3]));
    assert!(journal.append(&[]).unwrap().is_settled());
}

#[tokio::test]
async fn what_waits_for_a_sync_is_bounded() {
    let bench = Bench::new(&Limits { commit_queue_bytes: 1, ..limits() });
    let mut journal = bench.log.create(key(1), at()).unwrap();
    bench.disk.close_gate(true);
    let first = journal.append(&[durable(1)]).unwrap();
    super::super::testing::eventually("the first round is taken", || {
        bench.log.stats().waiting_bytes == 0
    });
    let second = journal.append(&[durable(2)]).unwrap();
    let error = journal.append(&[durable(3)]).unwrap_err();
    assert!(matches!(error, LogError::Behind { .. }) && error.is_retryable(), "{error}");
    assert_eq!(seqs(journal.path()), [1, 2], "nothing of it was written");
    assert!(journal.append(&[record(3)]).is_ok(), "streamed records do not wait");
    bench.disk.close_gate(false);
    first.synced().await.unwrap();
    second.synced().await.unwrap();
    journal.append(&[durable(4)]).unwrap().synced().await.unwrap();
}

/// The raw numbers in a file, repeated ones too, and how many lines are bad.
fn raw(path: &std::path::Path) -> (Vec<Seq>, usize) {
    let text = fs::read(path).unwrap();
    let (mut seqs, mut bad) = (Vec::new(), 0);
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match Record::parse(&bytes::Bytes::copy_from_slice(line)) {
            Ok(record) => seqs.push(record.seq),
            Err(_) => bad += 1,
        }
    }
    (seqs, bad)
}

#[tokio::test]
async fn a_disk_that_fills_up_anywhere_loses_nothing_and_repeats_nothing() {
    let bench = Bench::new(&limits());
    let batch = [record(2), durable(3), record(4)];
    let size: usize = batch.iter().map(|record| line_of(record).len()).sum();
    for room in 0..size {
        let number = u128::try_from(room).unwrap();
        let mut journal = bench.log.create(key(number), at()).unwrap();
        let _ = journal.append(&[record(1)]).unwrap();
        bench.disk.journal_room.store(i64::try_from(room).unwrap(), Ordering::SeqCst);
        let error = journal.append(&batch).unwrap_err();
        assert!(matches!(error, LogError::Full { .. }) && error.is_retryable(), "{error}");
        assert_eq!(journal.last_seq(), 1, "nothing half-written counts");
        assert!(journal.append(&batch).is_err(), "still full");
        bench.disk.journal_room.store(-1, Ordering::SeqCst);
        if room % 3 == 0 {
            for record in &batch {
                journal.append(std::slice::from_ref(record)).unwrap().synced().await.unwrap();
            }
        } else if room % 3 == 1 {
            let more = [&batch[..], &[record(5)]].concat();
            journal.append(&more).unwrap().synced().await.unwrap();
        } else {
            journal.append(&batch).unwrap().synced().await.unwrap();
        }
        let (raw, bad) = raw(journal.path());
        let expected: Vec<_> = (1..=journal.last_seq()).collect();
        assert_eq!(raw, expected, "room {room}");
        assert!(bad <= 1, "room {room}: torn bytes are one bad line");
        assert_eq!(seqs(journal.path()), expected, "room {room}");
        assert_eq!(journal.bytes(), fs::metadata(journal.path()).unwrap().len());
    }
}

#[test]
fn numbers_that_a_failed_append_took_are_not_given_to_other_records() {
    let bench = Bench::new(&limits());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    let first = i64::try_from(line_of(&record(1)).len()).unwrap();
    bench.disk.journal_room.store(first + 5, Ordering::SeqCst);
    journal.append(&[record(1), record(2)]).unwrap_err();
    bench.disk.journal_room.store(-1, Ordering::SeqCst);
    let error = journal.append(&[durable(1)]).unwrap_err();
    assert!(matches!(error, LogError::Order { seq: 1, last: 1 }), "{error}");
    assert!(journal.append(&[record(1), durable(2)]).is_ok(), "the torn one's number is free");
    let mut reader = Reader::open(journal.path()).unwrap();
    assert_eq!(reader.read_batch(usize::MAX).unwrap(), [record(1), durable(2)]);
    assert_eq!(reader.damage().len(), 1);
    assert_eq!(reader.damage()[0].what, What::Unreadable);
}

#[test]
fn random_faults_kills_and_retries_lose_nothing() {
    let mut random = Random::seeded("random_faults_kills_and_retries_lose_nothing");
    for round in 0..60 {
        let bench = Bench::new(&limits());
        let mut journal = bench.log.create(key(1), at()).unwrap();
        let path = journal.path().to_path_buf();
        let mut follower = Reader::open(&path).unwrap();
        let mut followed = Vec::new();
        let mut next = 1;
        for _ in 0..30 {
            let count = 1 + random.below(4);
            let batch: Vec<_> = (next..next + count)
                .map(|seq| if seq % 3 == 0 { durable(seq) } else { record(seq) })
                .collect();
            if random.below(2) == 0 {
                let room = i64::try_from(random.below(700)).unwrap();
                bench.disk.journal_room.store(room, Ordering::SeqCst);
            }
            if journal.append(&batch).is_err() {
                if random.below(3) == 0 {
                    // Killed: a new writer finds out for itself how far the file got.
                    drop(journal);
                    journal = bench.log.open_journal(&path).unwrap();
                    assert!(journal.last_seq() + 1 >= next);
                }
                bench.disk.journal_room.store(-1, Ordering::SeqCst);
                let rest: Vec<_> =
                    batch.into_iter().filter(|record| record.seq > journal.last_seq()).collect();
                let _ = journal.append(&rest).unwrap();
            }
            bench.disk.journal_room.store(-1, Ordering::SeqCst);
            next += count;
            followed.extend(follower.read_batch(usize::MAX).unwrap());
        }
        let expected: Vec<_> = (1..next).collect();
        assert_eq!(seqs(&path), expected, "round {round}");
        assert_eq!(raw(&path).0, expected, "round {round}");
        // A line that was torn before its end only is served once it is closed.
        let followed: Vec<_> = followed.iter().map(|record| record.seq).collect();
        assert_eq!(followed, expected, "round {round}");
    }
}

#[test]
fn records_of_an_earlier_owner_are_refused() {
    let bench = Bench::new(&limits());
    let mut journal = bench.log.create(key(1), at()).unwrap();
    let under = |seq, epoch| Record { epoch, ..record(seq) };
    let _ = journal.append(&[under(1, 1), under(2, 2)]).unwrap();
    let refused = |journal: &mut Journal, record| match journal.append(&[record]) {
        Err(LogError::OldEpoch { seq, old, epoch }) => (seq, old, epoch),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&mut journal, under(3, 1)), (3, 1, 2));
    // What is nobody's claim is never refused.
    let _ = journal.append(&[under(3, 0)]).unwrap();
    journal.fence(5);
    assert_eq!(refused(&mut journal, under(4, 4)), (4, 4, 5));
    journal.fence(3);
    let _ = journal.append(&[under(4, 5)]).unwrap();
    let path = journal.path().to_path_buf();
    assert_eq!(seqs(&path), [1, 2, 3, 4]);
}
