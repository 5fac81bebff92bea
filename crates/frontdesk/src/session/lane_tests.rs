use super::*;

/// Bytes of the future that an `async fn` of four arguments makes.
fn future_bytes<A, B, C, D, F>(_: fn(A, B, C, D) -> F) -> usize {
    size_of::<F>()
}

/// A session that nothing happens in costs what its lane waits with, and there are many of them: what
/// is large and seldom needed goes into a box, so that it has its room while it is needed. DESIGN
/// allows 16 KiB for a live session; these are its largest parts.
#[test]
fn a_lane_that_waits_is_small() {
    assert!(future_bytes(live) <= 1536, "the task of a lane has {} bytes", future_bytes(live));
    assert!(size_of::<Lane>() <= 2048, "a lane has {} bytes", size_of::<Lane>());
    // Each mailbox has room for 32 of these from its first message on.
    assert_eq!(size_of::<<Mailbox as Mail>::Item>(), size_of::<usize>());
    // One for each message, as soon as it is sent, and kept while it waits.
    assert!(size_of::<LaneMsg>() <= 192, "a message has {} bytes", size_of::<LaneMsg>());
}

trait Mail {
    type Item;
}

impl<T> Mail for tokio::sync::mpsc::Receiver<T> {
    type Item = T;
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_gives_no_word_is_waited_for_until_the_time_is_up() {
    let (lane, mailbox) = LaneHandle::new(Key::new(uuid::Uuid::from_u128(1)), 1);
    let (began, limit) = (tokio::time::Instant::now(), std::time::Duration::from_secs(2));
    // With room in its mailbox, and without.
    for times in 1..=2 {
        assert!(lane.describe(began + times * limit).await.is_err());
        assert_eq!(began.elapsed(), times * limit);
    }
    drop(mailbox);
    assert_eq!(lane.describe(began + 3 * limit).await, Ok(None), "it has ended");
    assert_eq!(began.elapsed(), 2 * limit);
}
