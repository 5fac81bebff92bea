//! The daemon's end against a hand-written holder: what only a broken or later one says.

use std::collections::VecDeque;

use frontdesk_core::hold::{AgentState, Exit, HolderDecoder, ProcessId, ToDaemon, VERSION};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::outbox::UNACKED_BYTES_MAX;
use super::*;

struct Holder {
    stream: UnixStream,
    decoder: HolderDecoder,
}

fn hello() -> Hello {
    Hello {
        version: VERSION + 1,
        instance: "i".into(),
        holder: ProcessId { pid: 1, birth: 1 },
        agent: ProcessId { pid: 2, birth: 1 },
        boot_id: "b".into(),
        out_start: 0,
        out_end: 0,
        last_input: 0,
        state: AgentState::Running,
    }
}

async fn link() -> (Link, Holder) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (reader, writer) = ours.into_split();
    let shared = Arc::new(Shared::new(writer, UNACKED_BYTES_MAX));
    let mut receiver = HolderReceiver::new(reader, Arc::clone(&shared), 0, 1000);
    let mut holder = Holder { stream: theirs, decoder: HolderDecoder::default() };
    holder.say(&[ToDaemon::Hello(Box::new(hello()))]).await;
    assert_eq!(receiver.greeting().await.unwrap(), hello());
    (Link::holder(hello(), shared, receiver), holder)
}

impl Holder {
    async fn say(&mut self, messages: &[ToDaemon<'_>]) {
        let mut bytes = Vec::new();
        for message in messages {
            message.encode(&mut bytes);
        }
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// Reads until `count` input frames are complete; gives them, and the offsets acknowledged.
    async fn hear(&mut self, count: usize) -> (Vec<(u64, Vec<u8>)>, Vec<u64>) {
        let (mut frames, mut acks) = (Vec::<(u64, u64, Vec<u8>)>::new(), Vec::new());
        let mut bytes = vec![0; 1 << 16];
        while frames.len() < count
            || frames.last().is_some_and(|(_, total, frame)| (frame.len() as u64) < *total)
            || (count == 0 && acks.is_empty())
        {
            let read = self.stream.read(&mut bytes).await.unwrap();
            assert!(read > 0);
            self.decoder
                .feed(&bytes[..read], |message| match message {
                    ToHolder::Input { number, total_bytes, piece } => {
                        frames.push((number, total_bytes, piece.to_vec()));
                    }
                    ToHolder::InputPiece { piece } => {
                        frames.last_mut().unwrap().2.extend_from_slice(piece);
                    }
                    ToHolder::Ack { offset } => acks.push(offset),
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        (frames.into_iter().map(|(number, _, frame)| (number, frame)).collect(), acks)
    }
}

async fn all(link: &mut Link) -> Vec<LinkEvent> {
    let mut events = Vec::new();
    while link.receiver.next_batch(&mut events).await {}
    events
}

#[tokio::test]
async fn bytes_that_come_twice_are_read_once() {
    let (mut link, mut holder) = link().await;
    holder
        .say(&[
            ToDaemon::Out { offset: 0, bytes: b"one\ntw" },
            ToDaemon::Out { offset: 2, bytes: b"e\nt" },
            ToDaemon::Out { offset: 4, bytes: b"two\n" },
            ToDaemon::Eof { end: 8 },
            ToDaemon::Gone,
        ])
        .await;
    drop(holder);
    assert_eq!(
        all(&mut link).await,
        [
            LinkEvent::Line { text: "one".into(), end: 4 },
            LinkEvent::Line { text: "two".into(), end: 8 },
            LinkEvent::Eof { end: 8 },
            LinkEvent::Gone,
        ]
    );
}

#[tokio::test]
async fn missing_bytes_and_noise_lose_the_holder() {
    let gap =
        [ToDaemon::Out { offset: 0, bytes: b"a\n" }, ToDaemon::Out { offset: 3, bytes: b"b\n" }];
    let early_end = [ToDaemon::Eof { end: 9 }];
    for messages in [&gap[..], &early_end[..]] {
        let (mut link, mut holder) = link().await;
        holder.say(messages).await;
        assert_eq!(all(&mut link).await.last(), Some(&LinkEvent::HolderLost));
        let sent = link.sender.send(1, Bytes::new()).await;
        assert!(matches!(sent, Err(LinkError::HolderLost)));
    }
    let (mut link, mut holder) = link().await;
    holder.stream.write_all(&[0x82, 0xff, 0xff, 0xff, 0xff]).await.unwrap();
    assert_eq!(all(&mut link).await, [LinkEvent::HolderLost]);
}

#[tokio::test]
async fn words_of_a_later_holder_are_passed_over() {
    let (mut link, mut holder) = link().await;
    holder.stream.write_all(&[0xf0, 2, 0, 0, 0, 1, 2]).await.unwrap();
    holder
        .say(&[ToDaemon::Accepted { number: 3 }, ToDaemon::Claimed { name: "never asked" }])
        .await;
    let mut events = Vec::new();
    assert!(link.receiver.next_batch(&mut events).await);
    assert_eq!(events, [LinkEvent::Accepted(3)]);
}

#[tokio::test]
async fn small_acknowledgements_wait_for_a_frame_and_the_end_waits_for_nothing() {
    let (mut link, mut holder) = link().await;
    for offset in [10, 20, UNACKED_BYTES_MAX - 1] {
        link.sender.ack(offset);
    }
    link.sender.send(1, "x".into()).await.unwrap();
    let (frames, acks) = holder.hear(1).await;
    assert_eq!((frames.len(), &acks[..]), (1, &[UNACKED_BYTES_MAX - 1][..]), "with the frame");
    link.sender.ack(2 * UNACKED_BYTES_MAX - 2);
    link.sender.ack(2 * UNACKED_BYTES_MAX - 1);
    assert_eq!(holder.hear(0).await.1, [2 * UNACKED_BYTES_MAX - 1], "at the limit");
    link.sender.ack(2 * UNACKED_BYTES_MAX);
    holder.say(&[ToDaemon::Eof { end: 0 }]).await;
    assert!(link.receiver.next_batch(&mut Vec::new()).await);
    assert_eq!(holder.hear(0).await.1, [2 * UNACKED_BYTES_MAX], "at the end");
    link.sender.ack(2 * UNACKED_BYTES_MAX + 1);
    assert_eq!(holder.hear(0).await.1, [2 * UNACKED_BYTES_MAX + 1], "and behind it");
}

#[tokio::test]
async fn a_holder_that_does_not_read_holds_senders_back_and_loses_nothing() {
    let (link, mut holder) = link().await;
    let frame = |number: u64| vec![u8::try_from(number).unwrap(); 300_000];
    let mut number = 0;
    // Until a sender has to wait; its dropped future has sent nothing.
    loop {
        let sending = link.sender.send(number + 1, frame(number + 1).into());
        if timeout(Duration::from_millis(200), sending).await.is_err() {
            break;
        }
        number += 1;
        assert!(number < 50, "the queue has no limit");
    }
    assert!(number >= 3, "1 MiB may wait");
    link.sender.ack(7);
    link.sender.ack(9);
    let sender = link.sender.clone();
    let late = tokio::spawn(async move { sender.send(100, frame(100).into()).await });
    let (frames, acks) = holder.hear(usize::try_from(number).unwrap() + 1).await;
    late.await.unwrap().unwrap();
    let numbers: Vec<_> = frames.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=number).chain([100]).collect::<Vec<_>>());
    assert!(frames.iter().all(|(number, text)| *text == frame(*number)));
    let acks = if acks.is_empty() { holder.hear(0).await.1 } else { acks };
    assert_eq!(acks, [9], "only the last one counts");
}

#[tokio::test]
async fn everybody_who_waits_learns_that_the_holder_is_gone() {
    let (mut link, holder) = link().await;
    let sender = link.sender.clone();
    let claiming = tokio::spawn(async move { sender.claim("x", "").await });
    let sender = link.sender.clone();
    let sending = tokio::spawn(async move {
        for number in 1.. {
            sender.send(number, vec![0; 500_000].into()).await?;
        }
        Ok::<_, LinkError>(())
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(holder);
    assert_eq!(all(&mut link).await, [LinkEvent::HolderLost]);
    assert!(matches!(claiming.await.unwrap(), Err(LinkError::HolderLost)));
    assert!(matches!(sending.await.unwrap(), Err(LinkError::HolderLost)));
    link.sender.ack(1);
    link.sender.stop(0);
    assert!(!link.receiver.next_batch(&mut Vec::new()).await, "and nothing more");
}

/// Waits for the word of an exit; `say` is said once the wait has gone on at least once.
async fn exit_word(alive: bool, say: &[ToDaemon<'_>]) -> (Option<Exit>, usize) {
    let (link, mut holder) = link().await;
    let mut receiver = link.receiver;
    let looks = std::sync::atomic::AtomicUsize::new(0);
    let looked = tokio::sync::Notify::new();
    let lives = || {
        if looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0 {
            looked.notify_one();
        }
        alive
    };
    let mut queue = VecDeque::new();
    let saying = async {
        looked.notified().await;
        holder.say(say).await;
        // It stays there.
        std::future::pending::<()>().await;
    };
    let word = tokio::select! {
        word = receiver.exit_word(&mut queue, lives) => word,
        () = saying => None,
    };
    (word, queue.len())
}

#[tokio::test]
async fn the_word_of_an_exit_is_waited_for_while_the_process_is_dead() {
    let exited = ToDaemon::AgentExited(Exit::Signal(9));
    // Later than a process that is there would be waited for, behind something else.
    let said = [ToDaemon::InputClosed, exited];
    assert_eq!(exit_word(false, &said).await, (Some(Exit::Signal(9)), 2));
    assert_eq!(exit_word(false, &[ToDaemon::Gone]).await, (None, 1));
    // A process that has closed its output and goes on: nobody waits for long.
    assert_eq!(exit_word(true, &[]).await, (None, 0));
    let (link, holder) = link().await;
    let (mut receiver, mut queue) = (link.receiver, VecDeque::new());
    drop(holder);
    assert_eq!(receiver.exit_word(&mut queue, || false).await, None);
    assert_eq!(queue, [LinkEvent::HolderLost]);
    queue.push_front(LinkEvent::AgentExited(Exit::Code(3)));
    assert_eq!(receiver.exit_word(&mut queue, || false).await, Some(Exit::Code(3)));
}
