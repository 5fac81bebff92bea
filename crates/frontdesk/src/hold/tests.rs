use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use frontdesk_core::hold::Refusal;

use super::claim::{CLAIMS_ENV, ClaimError, ClaimOutcome, Claims, claims_dir, file_name};
use super::input::{Answer, Input, Pumped};
use super::spool::{Spool, Tail};
use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_spool_is_read_by_the_streams_offsets_and_gives_its_front_back() {
    let folder = folder();
    let path = folder.path().join("spool");
    let mut spool = Spool::create(&path).unwrap();
    let piece: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    for _ in 0..8 {
        spool.append(&piece).unwrap();
    }
    spool.trim((5 << 20) + 17);
    assert_eq!((spool.start(), spool.end()), ((5 << 20) + 17, 8 << 20));
    assert!(fs::metadata(&path).unwrap().blocks() * 512 <= 4 << 20, "the front is a hole");
    let mut bytes = [0; 5];
    assert_eq!(spool.read((5 << 20) + 17, &mut bytes).unwrap(), 5);
    assert_eq!(bytes, [17, 18, 19, 20, 21]);
    assert_eq!(spool.read((8 << 20) - 2, &mut bytes).unwrap(), 2, "not beyond the end");
    // Neither backwards nor beyond the end.
    spool.trim(0);
    assert_eq!(spool.start(), (5 << 20) + 17);
    spool.trim(u64::MAX);
    assert_eq!((spool.start(), spool.len()), (8 << 20, 0));
    spool.append(b"more").unwrap();
    assert_eq!(spool.read(8 << 20, &mut bytes).unwrap(), 4);
    spool.reuse();
    assert_eq!(spool.len(), 4, "what is needed stays");
}

#[test]
fn a_used_up_spool_starts_over() {
    let folder = folder();
    let path = folder.path().join("spool");
    let mut spool = Spool::create(&path).unwrap();
    spool.append(&vec![1; 3 << 20]).unwrap();
    spool.trim(3 << 20);
    spool.reuse();
    assert_eq!((spool.start(), spool.end()), (0, 0));
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn a_tail_is_bounded_and_ends_with_the_last_bytes() {
    let folder = folder();
    let path = folder.path().join("log");
    let read = || {
        let mut bytes = fs::read(folder.path().join("log.1")).unwrap_or_default();
        bytes.extend(fs::read(&path).unwrap());
        bytes
    };
    let mut tail = Tail::create(path.clone(), 100).unwrap();
    let all: Vec<u8> = (0..=255).cycle().take(1000).collect();
    for (at, piece) in all.chunks(37).enumerate() {
        tail.push(piece);
        let upto = (at * 37 + piece.len()).min(1000);
        let kept = read();
        assert!(kept.len() <= 100);
        assert!(upto < 50 || kept.len() >= 50);
        assert!(all[..upto].ends_with(&kept));
    }
    // One piece longer than both halves, and a limit of nothing.
    tail.push(&all);
    assert!(all.ends_with(&read()) && read().len() <= 100);
    Tail::create(path, 0).unwrap().push(&all[..10]);
}

/// An agent's stdin that can be read here, and the input for it.
struct Agent {
    input: Input,
    stdin: File,
    reader: File,
    scratch: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl Agent {
    fn new(limit_bytes: u64) -> Self {
        let folder = folder();
        let input = Input::new(Spool::create(&folder.path().join("in")).unwrap(), limit_bytes);
        let (reader, stdin) = nix::unistd::pipe2(nix::fcntl::OFlag::O_NONBLOCK).unwrap();
        let file = |fd: OwnedFd| File::from(fd);
        let scratch = vec![0; (64 << 10) + 1];
        Self { input, stdin: file(stdin), reader: file(reader), scratch, _folder: folder }
    }

    fn begin(&mut self, number: u64, total_bytes: u64, piece: &[u8]) -> Option<Answer> {
        self.input.begin(number, total_bytes, piece, false, &mut self.scratch).unwrap()
    }

    fn pump(&mut self) -> Pumped {
        self.input.pump(&mut self.stdin, &mut self.scratch)
    }

    fn read(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let count = self.reader.read(&mut bytes).unwrap_or_default();
        bytes.truncate(count);
        bytes
    }
}

#[test]
fn a_frame_reaches_the_agent_when_it_is_complete_and_once() {
    let mut agent = Agent::new(1000);
    assert_eq!(agent.begin(5, 6, b"abc"), None);
    agent.pump();
    assert_eq!(agent.read(), b"", "not before it is complete");
    assert_eq!(agent.input.piece(b"def").unwrap(), Some(Answer::Accepted(5)));
    agent.pump();
    assert_eq!(agent.read(), b"abcdef\n");
    assert_eq!(agent.begin(5, 1, b"x"), Some(Answer::Accepted(5)));
    assert_eq!(agent.begin(4, 2, b"x"), None);
    assert_eq!(agent.input.piece(b"y").unwrap(), Some(Answer::Accepted(4)));
    assert_eq!(agent.begin(6, 0, b""), Some(Answer::Accepted(6)));
    agent.pump();
    assert_eq!(agent.read(), b"\n");
    assert_eq!(agent.input.last, 6);
}

#[test]
fn a_frame_that_is_not_read_back_is_the_right_one() {
    let mut agent = Agent::new(1000);
    // Alone, then behind another one, then with the scratch used by others in between.
    agent.begin(1, 3, b"one");
    agent.pump();
    agent.begin(2, 3, b"two");
    agent.begin(3, 5, b"three");
    agent.pump();
    assert_eq!(agent.read(), b"one\ntwo\nthree\n");
    agent.begin(4, 4, b"four");
    agent.input.abandon();
    agent.scratch.fill(b'?');
    agent.pump();
    assert_eq!(agent.read(), b"four\n");
    // One that was not taken leaves nothing behind.
    assert_eq!(agent.begin(5, 1000, &[b'5'; 1000]), Some(Answer::Refused(5, Refusal::Full)));
    assert_eq!(agent.begin(6, 6, b"si"), None);
    assert_eq!(agent.input.piece(b"x  x").unwrap(), Some(Answer::Accepted(6)));
    agent.pump();
    assert_eq!(agent.read(), b"six  x\n");
}

#[test]
fn a_frame_at_the_limit_passes_and_one_byte_more_does_not() {
    let mut agent = Agent::new(10);
    assert_eq!(agent.begin(1, 10, &[b'x'; 10]), Some(Answer::Refused(1, Refusal::Full)));
    assert_eq!(agent.begin(1, 9, &[b'x'; 9]), Some(Answer::Accepted(1)), "with its line feed");
    assert_eq!(agent.begin(2, 0, b""), Some(Answer::Refused(2, Refusal::Full)));
    agent.pump();
    assert_eq!(
        agent.begin(2, 0, b""),
        Some(Answer::Accepted(2)),
        "a refused number may come again"
    );
}

#[test]
fn pieces_out_of_order_are_errors() {
    let mut agent = Agent::new(1000);
    assert!(agent.input.piece(b"x").is_err(), "no frame is open");
    assert_eq!(agent.begin(1, 3, b"a"), None);
    assert!(agent.input.begin(2, 1, b"x", false, &mut agent.scratch).is_err(), "one is open");
    assert!(agent.input.piece(b"xyz").is_err(), "longer than it said");
    agent.input.abandon();
    let longer = agent.input.begin(2, 1, b"xx", false, &mut agent.scratch);
    assert!(longer.is_err(), "longer than it says");
}

#[test]
fn a_full_pipe_waits_and_a_closed_one_is_told() {
    let mut agent = Agent::new(10 << 20);
    let frame = vec![b'x'; 64 << 10];
    for number in 1..=10 {
        assert_eq!(agent.begin(number, 64 << 10, &frame), Some(Answer::Accepted(number)));
    }
    assert_eq!(agent.pump(), Pumped::Waiting);
    assert!(agent.input.is_waiting(), "a pipe takes 64 KiB");
    let mut got = Vec::new();
    while agent.input.is_waiting() {
        got.extend(agent.read());
        assert_eq!(agent.pump(), Pumped::Waiting);
    }
    got.extend(agent.read());
    let mut wanted = frame;
    wanted.push(b'\n');
    assert!(got == wanted.repeat(10));
    agent.begin(11, 1, b"x");
    let (reader, _writer) = std::io::pipe().unwrap();
    agent.reader = File::from(OwnedFd::from(reader));
    assert_eq!(agent.pump(), Pumped::Closed);
}

#[test]
fn claims_of_two_homes_exclude_each_other() {
    let folder = folder();
    let (mut one, mut two) =
        (Claims::new(folder.path().to_path_buf()), Claims::new(folder.path().to_path_buf()));
    assert_eq!(one.claim("x", "one").unwrap(), ClaimOutcome::Claimed);
    assert_eq!(two.claim("x", "two").unwrap(), ClaimOutcome::Held("one".into()));
    drop(one);
    // As after a crash: the file is there and says something, but nobody has it locked.
    assert_eq!(fs::read(folder.path().join(file_name("x"))).unwrap(), b"one\n");
    assert_eq!(two.claim("x", "2").unwrap(), ClaimOutcome::Claimed);
    assert_eq!(fs::read(folder.path().join(file_name("x"))).unwrap(), b"2\n", "no old text left");
    two.release_all();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let long = two.claim("x", &"i".repeat((16 << 10) + 1));
    assert!(matches!(long, Err(ClaimError::TooLong(_))));
}

#[test]
fn a_claims_file_name_is_the_sha_256_of_its_name() {
    let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(file_name("abc"), known);
    assert_eq!(file_name("../../etc/passwd").len(), 64);
}

#[test]
fn the_folder_for_claims_must_be_this_users_alone() {
    let folder = folder();
    let path = folder.path().join("a/b");
    let env = |name: &str| (name == CLAIMS_ENV).then(|| path.clone().into());
    assert_eq!(claims_dir(env).unwrap(), path);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(claims_dir(env), Err(ClaimError::Shared(_))));
    fs::remove_dir(&path).unwrap();
    std::os::unix::fs::symlink(folder.path(), &path).unwrap();
    assert!(matches!(claims_dir(env), Err(ClaimError::Shared(_))), "a link may lead anywhere");
}

#[test]
fn an_order_shows_no_secret_when_printed() {
    let spec = HolderSpec {
        instance: InstanceId("i".into()),
        agent: "a".into(),
        command: vec!["prog".into(), "--key=secret".into()],
        cwd: "/".into(),
        env: BTreeMap::from([("KEY".into(), "secret".into())]),
        run_dir: "/r".into(),
        data_dir: "/d".into(),
        claims_dir: "/c".into(),
    };
    let text = format!("{spec:?}");
    assert!(text.contains("prog") && !text.contains("secret"), "{text}");
}
