use frontdesk_core::hold::Exit;

use super::*;

#[tokio::test]
async fn lines_come_as_they_were_written() {
    let place = Place::sh(
        r#"printf 'one\r\n\n'; printf '\377\000x\n'; printf '{"a":1}\n'; printf 'last, no end'"#,
    );
    let mut desk = place.start().await;
    desk.until(|event| matches!(event, LinkEvent::Gone)).await;
    let end = 3 + 2 + 1 + 4 + 8 + 12;
    let wanted = [
        LinkEvent::Line { text: "one".into(), end: 5 },
        LinkEvent::Line { text: "".into(), end: 6 },
        LinkEvent::Line { text: Bytes::from_static(b"\xff\0x"), end: 10 },
        LinkEvent::Line { text: r#"{"a":1}"#.into(), end: 18 },
        LinkEvent::Line { text: "last, no end".into(), end },
        LinkEvent::Eof { end },
        LinkEvent::Gone,
    ];
    let order: Vec<_> = desk.seen.iter().filter(|event| wanted.contains(event)).cloned().collect();
    assert_eq!(order, wanted);
    assert!(desk.seen.contains(&LinkEvent::AgentExited(Exit::Code(0))));
    let spool = fs::read(place.data("out.spool")).unwrap();
    assert_eq!(spool.len() as u64, end, "unparsed");

    // The holder waits for the acknowledgement and leaves by itself then.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(proc::alive(&desk.holder()));
    desk.link.sender.ack(end);
    assert_eq!(desk.rest().await, [], "no HolderLost behind Gone");
    has_left(&place, &desk).await;
}

#[tokio::test]
async fn a_frame_beyond_the_limit_is_skipped_and_the_next_one_is_read() {
    let mut place = Place::sh(
        "head -c 100000 /dev/zero | tr '\\0' x; echo; head -c 100001 /dev/zero | tr '\\0' y; echo; echo ok; cat",
    );
    place.limits.frame_bytes = 100_000;
    let mut desk = place.start().await;
    assert_eq!(desk.line().await.len(), 100_000);
    let LinkEvent::TooLong { head, tail, bytes: 100_001, end: 200_003 } = desk.next().await else {
        panic!("{:?}", desk.seen.last())
    };
    assert!(head.starts_with(b"yyy") && tail.ends_with(b"yyy"));
    assert_eq!(desk.line().await, "ok");
    desk.stop(1000).await;
}

#[tokio::test]
async fn a_flood_on_stderr_delays_nothing_and_leaves_a_bounded_tail() {
    let place =
        Place::sh("head -c 1048576 /dev/zero >&2; echo ready; echo the end >&2; cat; exit 3");
    let mut desk = place.start().await;
    assert_eq!(desk.line().await, "ready");
    let tail = || {
        let mut bytes = fs::read(place.data("stderr.log.1")).unwrap_or_default();
        // It is missing for a moment while the halves change places.
        bytes.extend(fs::read(place.data("stderr.log")).unwrap_or_default());
        bytes
    };
    eventually("the last words are kept", || tail().ends_with(b"the end\n")).await;
    let length = tail().len() as u64;
    assert!(length <= place.limits.stderr_bytes, "{length}");
    assert!(length > place.limits.stderr_bytes / 2, "{length}");
    desk.stop(1000).await;
}

#[tokio::test]
async fn a_daemon_that_comes_back_gets_every_byte_once() {
    let place = Place::sh("seq 1 300000; read x; echo end");
    let mut desk = place.start().await;
    let mut seen = Vec::new();
    let mut offset = 0;
    // Dropped three times in the middle of the stream, at whatever byte the last read ended.
    for part in 1_u64..=3 {
        while seen.len() < 50_000 * usize::try_from(part).unwrap() {
            if let LinkEvent::Line { text, end } = desk.next().await {
                seen.push(String::from_utf8(text.to_vec()).unwrap());
                offset = end;
            }
        }
        if part == 2 {
            desk.link.sender.ack(offset);
            // The acknowledgement is read before the connection ends.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        drop(desk);
        desk = place.reconnect(offset).await;
        assert!(desk.link.hello.out_start <= offset);
    }
    desk.send(1, "go").await;
    while seen.last().unwrap() != "end" {
        seen.push(desk.line().await);
    }
    let wanted: Vec<_> = (1..=300_000).map(|n| n.to_string()).chain(["end".to_owned()]).collect();
    assert!(seen == wanted, "{} lines of {}", seen.len(), wanted.len());

    let too_early = link::reconnect(&place.spec.run_dir, 0, &place.limits).await;
    assert!(matches!(too_early, Err(LinkError::Trimmed { wanted: 0, .. })), "{too_early:?}");
}

#[tokio::test]
async fn acknowledged_output_gives_its_room_back() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::sh("head -c 50000000 /dev/zero | tr '\\0' x | fold -w 1000; read x");
    let mut desk = place.start().await;
    let mut count = 0;
    while count < 49_999 {
        if let LinkEvent::Line { end, .. } = desk.next().await {
            count += 1;
            desk.link.sender.ack(end);
        }
    }
    let blocks = || fs::metadata(place.data("out.spool")).unwrap().blocks() * 512;
    eventually("the room is given back", || blocks() <= 4 << 20).await;
    println!("room of 50 MB acknowledged output: {} bytes", blocks());
    desk.stop(1000).await;
}

#[tokio::test]
async fn output_waits_in_the_pipe_beyond_the_limit_of_the_spool() {
    let mut place = Place::sh("seq 1 200000");
    place.limits.output_spool_bytes = 100_000;
    let desk = place.start().await;
    drop(desk);
    let length = || fs::metadata(place.data("out.spool")).unwrap().len();
    eventually("the spool is full", || length() >= 100_000).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let length = length();
    assert!((100_000..=200_000).contains(&length), "{length}");
    let mut desk = place.reconnect(0).await;
    let mut count = 0;
    loop {
        match desk.next().await {
            LinkEvent::Line { end, .. } => {
                count += 1;
                desk.link.sender.ack(end);
            }
            LinkEvent::Gone => break,
            _ => {}
        }
    }
    assert_eq!(count, 200_000);
}

#[tokio::test]
async fn news_wait_for_a_daemon_that_was_away() {
    let place = Place::sh("read x; echo bye; exit 7");
    let mut desk = place.start().await;
    desk.send(1, "").await;
    desk.until(|event| *event == LinkEvent::Accepted(1)).await;
    let agent = desk.agent();
    drop(desk);
    eventually("the agent ends", || !proc::alive(&agent)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut desk = place.reconnect(0).await;
    desk.until(|event| *event == LinkEvent::Gone).await;
    assert_eq!(lines(&desk.seen), ["bye"]);
    assert!(desk.seen.contains(&LinkEvent::AgentExited(Exit::Code(7))));
    assert!(desk.seen.contains(&LinkEvent::Eof { end: 4 }));
    desk.link.sender.ack(4);
    has_left(&place, &desk).await;
}

#[tokio::test]
async fn the_newest_daemon_gets_the_output() {
    let place = Place::new(&["cat"]);
    let mut first = place.start().await;
    let mut second = place.reconnect(0).await;
    assert_eq!(first.rest().await, [LinkEvent::HolderLost]);
    second.send(1, "hello").await;
    assert_eq!(second.line().await, "hello");
    second.stop(1000).await;
}
