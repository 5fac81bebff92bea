use frontdesk_core::hold::Refusal;

use super::*;

#[tokio::test]
async fn frames_go_through_and_are_accepted_in_order() {
    let place = Place::new(&["cat"]);
    let mut desk = place.start().await;
    for number in 1..=100 {
        desk.send(number, format!("frame {number}")).await;
    }
    for number in 1..=100 {
        assert_eq!(desk.line().await, format!("frame {number}"));
    }
    let accepted: Vec<_> = desk
        .seen
        .iter()
        .filter_map(|event| match event {
            LinkEvent::Accepted(number) => Some(*number),
            _ => None,
        })
        .collect();
    assert_eq!(accepted, (1..=100).collect::<Vec<_>>());
    let late = desk.link.sender.send(100, "again".into()).await;
    assert!(matches!(late, Err(LinkError::OutOfOrder { number: 100, last: 100 })));
    desk.stop(1000).await;
    let after = desk.link.sender.send(101, "late".into()).await;
    assert!(matches!(after, Err(LinkError::HolderLost)), "{after:?}");
}

#[tokio::test]
async fn a_frame_of_64_mib_goes_both_ways_through_a_small_holder() {
    let place = Place::new(&["cat"]);
    let mut desk = place.start().await;
    // What the program itself takes is large in an unoptimized build; what a frame adds is not.
    let before = memory_kib(desk.holder().pid, "VmRSS:");
    let mut frame = vec![b'x'; 64 << 20];
    for (at, byte) in frame.iter_mut().enumerate().step_by(1013) {
        *byte = b'a' + u8::try_from(at % 26).unwrap();
    }
    let frame = Bytes::from(frame);
    let sender = desk.link.sender.clone();
    let sent = frame.clone();
    let sending = tokio::spawn(async move { sender.send(1, sent).await });
    let LinkEvent::Line { text, .. } =
        desk.until(|event| matches!(event, LinkEvent::Line { .. })).await
    else {
        unreachable!()
    };
    sending.await.unwrap().unwrap();
    assert!(text == frame, "the frame came back changed");
    let high = memory_kib(desk.holder().pid, "VmHWM:");
    println!("holder: {before} KiB at start, {high} KiB at most with a frame of 64 MiB both ways");
    assert!(high - before < 4 << 10, "{before} KiB, then {high} KiB");
    desk.stop(1000).await;
}

#[tokio::test]
async fn a_number_seen_before_is_answered_and_not_written_again() {
    let place = Place::new(&["cat"]);
    let mut desk = place.start().await;
    desk.send(1, "one").await;
    desk.send(2, "two").await;
    assert_eq!((desk.line().await, desk.line().await), ("one".into(), "two".into()));
    drop(desk);
    let mut desk = place.reconnect(8).await;
    assert_eq!(desk.link.hello.last_input, 2);
    desk.send(1, "one").await;
    // Of another length and in pieces: the number decides.
    desk.send(2, vec![b'2'; 100_000]).await;
    desk.send(3, "three").await;
    assert_eq!(desk.line().await, "three");
    for number in 1..=3 {
        assert!(desk.seen.contains(&LinkEvent::Accepted(number)), "{number}");
    }
    desk.stop(1000).await;
}

#[tokio::test]
async fn an_agent_that_does_not_read_blocks_nobody() {
    let place = Place::sh("echo up; sleep 1000");
    let mut desk = place.start().await;
    assert_eq!(desk.line().await, "up");
    for number in 1..=20 {
        desk.send(number, vec![b'x'; 1 << 20]).await;
    }
    desk.until(|event| *event == LinkEvent::Accepted(20)).await;
    let waiting = fs::metadata(place.data("in.spool")).unwrap().len();
    assert!(waiting >= 19 << 20, "{waiting}");
    desk.stop(0).await;
}

#[tokio::test]
async fn input_beyond_the_limit_is_refused_and_later_input_is_taken() {
    let mut place = Place::sh("echo up; sleep 1; cat >/dev/null");
    place.limits.input_spool_bytes = 1 << 20;
    let mut desk = place.start().await;
    assert_eq!(desk.line().await, "up");
    desk.send(1, vec![b'x'; 900_000]).await;
    desk.send(2, vec![b'y'; 900_000]).await;
    desk.send(3, "small").await;
    desk.until(|event| *event == LinkEvent::Accepted(3)).await;
    assert!(desk.seen.contains(&LinkEvent::Accepted(1)));
    assert!(desk.seen.contains(&LinkEvent::Refused(2, Refusal::Full)));
    // Once the agent reads there is room again, whenever that is.
    for number in 4.. {
        tokio::time::sleep(Duration::from_millis(100)).await;
        desk.send(number, vec![b'y'; 900_000]).await;
        let answer = |event: &LinkEvent| {
            [LinkEvent::Accepted(number), LinkEvent::Refused(number, Refusal::Full)].contains(event)
        };
        if desk.until(answer).await == LinkEvent::Accepted(number) {
            break;
        }
    }
    desk.stop(0).await;
}

#[tokio::test]
async fn an_agent_that_closes_its_input_is_reported_and_goes_on() {
    let place = Place::sh("exec 0<&-; echo deaf; sleep 0.3; echo still here; sleep 1000");
    let mut desk = place.start().await;
    desk.until(|event| *event == LinkEvent::InputClosed).await;
    desk.send(1, "anybody?").await;
    desk.until(|event| *event == LinkEvent::Refused(1, Refusal::Closed)).await;
    desk.until(|event| matches!(event, LinkEvent::Line { text, .. } if text == "still here")).await;
    assert!(proc::alive(&desk.agent()));
    desk.stop(0).await;
}

#[tokio::test]
async fn a_frame_cut_off_by_a_lost_connection_never_was() {
    use std::io::Write;

    use frontdesk_core::hold::ToHolder;
    let place = Place::new(&["cat"]);
    let desk = place.start().await;
    drop(desk);
    let mut stream =
        std::os::unix::net::UnixStream::connect(place.spec.run_dir.join("sock")).unwrap();
    let mut bytes = Vec::new();
    ToHolder::Attach { version: 1, from_offset: 0 }.encode(&mut bytes);
    ToHolder::Input { number: 1, total_bytes: 100, piece: b"half" }.encode(&mut bytes);
    stream.write_all(&bytes).unwrap();
    drop(stream);
    let mut desk = place.reconnect(0).await;
    desk.send(1, "whole").await;
    assert_eq!(desk.line().await, "whole");
    desk.stop(1000).await;
}

#[tokio::test]
async fn noise_on_the_socket_ends_that_connection_only() {
    use std::io::{Read, Write};
    let place = Place::new(&["cat"]);
    let mut desk = place.start().await;
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x03, 1, 0, 0, 0, 9], &[0xff; 64]] {
        let mut stream =
            std::os::unix::net::UnixStream::connect(place.spec.run_dir.join("sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(noise).unwrap();
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        assert_eq!(heard.first(), Some(&0x81), "greeted, then cut off");
    }
    // More idle connections than places: the attached daemon keeps its own.
    let idle: Vec<_> = (0..10)
        .map(|_| std::os::unix::net::UnixStream::connect(place.spec.run_dir.join("sock")).unwrap())
        .collect();
    desk.send(1, "fine").await;
    assert_eq!(desk.line().await, "fine");
    desk.stop(1000).await;
    drop(idle);
}
