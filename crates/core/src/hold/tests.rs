use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::lines::{Framed, HEAD_BYTES_MAX, Lines, Open, TAIL_BYTES_MAX};

fn hello() -> Hello {
    Hello {
        version: VERSION,
        instance: "i-1".into(),
        holder: ProcessId { pid: 10, birth: 1000 },
        agent: ProcessId { pid: 11, birth: 1001 },
        boot_id: "b".into(),
        out_start: 4096,
        out_end: 5000,
        last_input: 7,
        state: AgentState::Running,
    }
}

/// Cuts `bytes` at the given places (taken modulo what is left) and calls `each` for each part.
fn cut(bytes: &[u8], places: &[usize], mut each: impl FnMut(&[u8])) {
    let mut rest = bytes;
    for place in places {
        let (part, more) = rest.split_at(place % (rest.len() + 1));
        each(part);
        rest = more;
    }
    each(rest);
}

/// What a daemon said, with pieces joined: text of the message, or (number, total, bytes) of input.
fn heard(bytes: &[u8], places: &[usize]) -> Vec<String> {
    let mut decoder = HolderDecoder::default();
    let mut heard = Vec::new();
    let mut open: Option<(u64, u64, Vec<u8>)> = None;
    cut(bytes, places, |part| {
        decoder
            .feed(part, |message| {
                match message {
                    ToHolder::Input { number, total_bytes, piece } => {
                        open = Some((number, total_bytes, piece.to_vec()));
                    }
                    ToHolder::InputPiece { piece } => {
                        open.as_mut().unwrap().2.extend_from_slice(piece);
                    }
                    other => heard.push(format!("{other:?}")),
                }
                if let Some((number, total, bytes)) = &open
                    && bytes.len() as u64 == *total
                {
                    heard.push(format!("{number} {bytes:?}"));
                    open = None;
                }
            })
            .unwrap();
    });
    heard
}

proptest! {
    #[test]
    fn a_daemons_words_come_whole_however_the_stream_is_cut(
        frame in vec(any::<u8>(), 0..300),
        piece_bytes in 1_usize..100,
        number in any::<u64>(),
        name in ".{0,40}",
        info in ".{0,40}",
        places in vec(any::<usize>(), 0..40),
    ) {
        let mut bytes = Vec::new();
        ToHolder::Attach { version: 3, from_offset: number }.encode(&mut bytes);
        let first = &frame[..frame.len().min(piece_bytes)];
        ToHolder::Input { number, total_bytes: frame.len() as u64, piece: first }.encode(&mut bytes);
        for piece in frame[first.len()..].chunks(piece_bytes) {
            bytes.extend_from_slice(&input_piece_header(piece.len()));
            bytes.extend_from_slice(piece);
        }
        ToHolder::Claim { name: &name, info: &info }.encode(&mut bytes);
        ToHolder::Release { name: &name }.encode(&mut bytes);
        ToHolder::Ack { offset: number }.encode(&mut bytes);
        ToHolder::CloseInput.encode(&mut bytes);
        ToHolder::Stop { term_ms: 17 }.encode(&mut bytes);
        let expected = vec![
            format!("{:?}", ToHolder::Attach { version: 3, from_offset: number }),
            format!("{number} {frame:?}"),
            format!("{:?}", ToHolder::Claim { name: &name, info: &info }),
            format!("{:?}", ToHolder::Release { name: &name }),
            format!("{:?}", ToHolder::Ack { offset: number }),
            format!("{:?}", ToHolder::CloseInput),
            format!("{:?}", ToHolder::Stop { term_ms: 17 }),
        ];
        prop_assert_eq!(heard(&bytes, &places), expected);
    }

    #[test]
    fn a_holders_words_come_whole_however_the_stream_is_cut(
        output in vec(any::<u8>(), 1..400),
        offset in 0..u64::MAX / 2,
        name in ".{0,40}",
        places in vec(any::<usize>(), 0..40),
    ) {
        let mut bytes = Vec::new();
        let rest = [
            ToDaemon::Accepted { number: offset },
            ToDaemon::Refused { number: offset, reason: Refusal::Disk },
            ToDaemon::InputClosed,
            ToDaemon::AgentExited(Exit::Code(-3)),
            ToDaemon::AgentExited(Exit::Signal(9)),
            ToDaemon::Claimed { name: &name },
            ToDaemon::Held { name: &name, info: "{}" },
            ToDaemon::ClaimFailed { name: &name, reason: "disk" },
            ToDaemon::Released { name: &name },
            ToDaemon::Eof { end: offset },
            ToDaemon::Gone,
        ];
        ToDaemon::Hello(Box::new(hello())).encode(&mut bytes);
        ToDaemon::Out { offset, bytes: &output }.encode(&mut bytes);
        for message in &rest {
            message.encode(&mut bytes);
        }
        let mut decoder = DaemonDecoder::default();
        let (mut got, mut others) = (Vec::new(), Vec::new());
        let mut greeted = false;
        cut(&bytes, &places, |part| {
            decoder.feed(part, |message| match message {
                ToDaemon::Hello(got) => greeted = *got == hello(),
                ToDaemon::Out { offset: at, bytes } => {
                    assert_eq!(at, offset + got.len() as u64, "pieces follow each other");
                    got.extend_from_slice(bytes);
                }
                other => others.push(format!("{other:?}")),
            }).unwrap();
        });
        prop_assert!(greeted);
        prop_assert_eq!(got, output);
        prop_assert_eq!(others, rest.iter().map(|message| format!("{message:?}")).collect::<Vec<_>>());
    }

    #[test]
    fn noise_gives_an_error_or_nothing_and_never_holds_much(bytes in vec(any::<u8>(), 0..600)) {
        let _ = HolderDecoder::default().feed(&bytes, |_| ());
        let _ = DaemonDecoder::default().feed(&bytes, |_| ());
    }

    #[test]
    fn lines_are_those_of_the_text_however_it_comes(
        text in "[ab\r\n]{0,200}",
        limit in 1_usize..12,
        places in vec(any::<usize>(), 0..30),
    ) {
        let mut lines = Lines::new(limit, 100);
        let mut got = Vec::new();
        cut(text.as_bytes(), &places, |part| lines.feed(part, |line| got.push(line)));
        lines.finish(|line| got.push(line));
        let mut expected = Vec::new();
        let mut end = 100;
        for line in text.as_bytes().split_inclusive(|byte| *byte == b'\n') {
            end += line.len() as u64;
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let text = line.strip_suffix(b"\r").unwrap_or(line);
            let copy = bytes::Bytes::copy_from_slice;
            expected.push(if text.len() <= limit {
                Framed::Line { text: copy(text), end }
            } else {
                Framed::TooLong { head: copy(line), tail: copy(line), bytes: line.len() as u64, end }
            });
        }
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn a_message_of_a_later_version_is_skipped() {
    let mut bytes = vec![0x70, 3, 0, 0, 0, 1, 2, 3];
    ToHolder::Ack { offset: 5 }.encode(&mut bytes);
    bytes.extend([0x71, 0, 0, 0, 0]);
    ToHolder::Stop { term_ms: 6 }.encode(&mut bytes);
    for places in [&[][..], &[1, 3, 2, 1]] {
        assert_eq!(heard(&bytes, places), ["Ack { offset: 5 }", "Stop { term_ms: 6 }"]);
    }
}

#[test]
fn a_body_that_grew_is_read_as_far_as_it_is_known() {
    let bytes = [0x04, 10, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 99, 99];
    assert_eq!(heard(&bytes, &[]), ["Ack { offset: 5 }"]);
}

#[test]
fn a_greeting_of_a_later_version_is_understood() {
    let mut document = serde_json::to_value(hello()).unwrap();
    document["news"] = 1.into();
    document["state"] = "resting".into();
    let read: Hello = serde_json::from_value(document).unwrap();
    assert_eq!(read, Hello { state: AgentState::Unknown, ..hello() });
}

#[test]
fn damage_is_an_error() {
    let feed = |bytes: &[u8]| HolderDecoder::default().feed(bytes, |_| ());
    let too_long = u32::try_from(BODY_BYTES_MAX + 1).unwrap().to_le_bytes();
    let mut message = vec![0x70];
    message.extend(too_long);
    assert!(matches!(feed(&message), Err(WireError::TooLong(_))), "unknown and too long");
    assert!(matches!(feed(&[0x04, 1, 0, 0, 0, 9]), Err(WireError::Damaged(0x04))), "short body");
    assert!(matches!(feed(&[0x02, 1, 0, 0, 0, 9]), Err(WireError::Damaged(0x02))), "short numbers");
    assert!(matches!(
        feed(&[0x06, 6, 0, 0, 0, 2, 0, 0, 0, 0xff, 0xff]),
        Err(WireError::Damaged(0x06))
    ));
    assert!(matches!(feed(&[0x06, 5, 0, 0, 0, 2, 0, 0, 0, b'x']), Err(WireError::Damaged(0x06))));
    assert!(matches!(
        DaemonDecoder::default().feed(&[0x81, 1, 0, 0, 0, b'x'], |_| ()),
        Err(WireError::Hello(_))
    ));
}

#[test]
fn the_longest_message_passes() {
    let piece = vec![7; PIECE_BYTES_MAX];
    let mut bytes = Vec::new();
    ToHolder::Input { number: 1, total_bytes: piece.len() as u64, piece: &piece }
        .encode(&mut bytes);
    assert_eq!(heard(&bytes, &[70, 60_000]).len(), 1);
}

#[test]
fn a_line_at_the_limit_passes_and_one_byte_more_does_not() {
    let frame = |text: &[u8]| {
        let (mut lines, mut got) = (Lines::new(100_000, 0), Vec::new());
        for part in text.chunks(64 << 10) {
            lines.feed(part, |line| got.push(line));
        }
        got
    };
    let mut text = vec![b'x'; 100_000];
    text.extend(b"\r\n");
    assert!(
        matches!(&frame(&text)[..], [Framed::Line { text, end: 100_002 }] if text.len() == 100_000)
    );
    text.splice(0..0, *b"y");
    let got = frame(&text);
    let [Framed::TooLong { head, tail, bytes: 100_002, end: 100_003 }] = &got[..] else {
        panic!("{got:?}")
    };
    assert_eq!((head.len(), tail.len()), (HEAD_BYTES_MAX, TAIL_BYTES_MAX));
    assert!(head.starts_with(b"yx") && tail.ends_with(b"x\r"));
}

#[test]
fn a_line_without_end_is_skipped_in_bounded_memory() {
    let (mut lines, mut got) = (Lines::new(1000, 0), Vec::new());
    for _ in 0..1000 {
        lines.feed(&[b'z'; 1000], |line| got.push(line));
    }
    let Open::Skipped { head, tail, .. } = &lines.open else { panic!("not skipping") };
    assert!(head.capacity() <= 2 * HEAD_BYTES_MAX && tail.capacity() <= 2 * TAIL_BYTES_MAX);
    lines.feed(b"\nok\n", |line| got.push(line));
    assert!(matches!(got[0], Framed::TooLong { bytes: 1_000_000, end: 1_000_001, .. }));
    assert!(matches!(&got[1], Framed::Line { text, .. } if text == "ok"));
}

/// Version 1 as bytes: what its holders say and hear for as long as any of them may run. A change that
/// makes this fail is another version, and has to go on speaking this one to those who say 1.
const VERSION_1_TO_HOLDER: &str = "010c0000000100000002010000000000000212000000030000000000000004000000000000006162\
    030200000063640408000000010200000000000008000000000504000000e8030000060600000001\
    0000006e690705000000010000006e";
const VERSION_1_TO_DAEMON: &str = "81ae0000007b2276657273696f6e223a312c22696e7374616e6365223a22692d31222c22686f6c64\
    6572223a7b22706964223a31302c226269727468223a313030307d2c226167656e74223a7b227069\
    64223a31312c226269727468223a313030317d2c22626f6f745f6964223a2262222c226f75745f73\
    74617274223a343039362c226f75745f656e64223a353030302c226c6173745f696e707574223a37\
    2c227374617465223a2272756e6e696e67227d820a00000002010000000000006162830800000003\
    00000000000000840900000004000000000000000285000000008605000000000300000086050000\
    0001090000008708000000010200000000000088000000008905000000010000006e8a0600000001\
    0000006e698b06000000010000006e728c05000000010000006e";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn version_1_is_spoken_as_it_was() {
    let mut bytes = Vec::new();
    for message in [
        ToHolder::Attach { version: 1, from_offset: 258 },
        ToHolder::Input { number: 3, total_bytes: 4, piece: b"ab" },
        ToHolder::InputPiece { piece: b"cd" },
        ToHolder::Ack { offset: 513 },
        ToHolder::CloseInput,
        ToHolder::Stop { term_ms: 1000 },
        ToHolder::Claim { name: "n", info: "i" },
        ToHolder::Release { name: "n" },
    ] {
        message.encode(&mut bytes);
    }
    assert_eq!(hex(&bytes), VERSION_1_TO_HOLDER);

    let old = Hello { version: 1, ..hello() };
    let mut bytes = Vec::new();
    for message in [
        ToDaemon::Hello(Box::new(old)),
        ToDaemon::Out { offset: 258, bytes: b"ab" },
        ToDaemon::Accepted { number: 3 },
        ToDaemon::Refused { number: 4, reason: Refusal::Disk },
        ToDaemon::InputClosed,
        ToDaemon::AgentExited(Exit::Code(3)),
        ToDaemon::AgentExited(Exit::Signal(9)),
        ToDaemon::Eof { end: 513 },
        ToDaemon::Gone,
        ToDaemon::Claimed { name: "n" },
        ToDaemon::Held { name: "n", info: "i" },
        ToDaemon::ClaimFailed { name: "n", reason: "r" },
        ToDaemon::Released { name: "n" },
    ] {
        message.encode(&mut bytes);
    }
    assert_eq!(hex(&bytes), VERSION_1_TO_DAEMON);
}
