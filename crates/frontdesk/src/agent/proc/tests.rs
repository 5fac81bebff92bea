use super::*;

#[test]
fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
    let line = b"77 (a) b) S 1 55 44 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2 3\n";
    assert_eq!(
        parse_stat(line),
        Some(Stat { state: b'S', group: 55, session: 44, birth: 987_654 })
    );
    assert_eq!(parse_stat(b"77 (x) S 1 55"), None);
    assert_eq!(parse_stat(b""), None);
}

#[test]
fn this_process_is_alive_and_its_double_with_another_birth_is_not() {
    let me = identify(std::process::id().cast_signed()).unwrap();
    assert!(alive(&me));
    let other = ProcessId { birth: me.birth + 1, ..me };
    assert!(!alive(&other));
    assert!(!signal_process(&other, Signal::SIGKILL), "a reused number is never signalled");
    assert!(!boot_id().unwrap().is_empty());
}

#[test]
fn a_mark_is_a_whole_entry() {
    let has = |block: &[u8]| environment_has(block, "M", "v1").unwrap();
    assert!(has(b"A=1\0M=v1\0B=2\0"));
    assert!(has(b"M=v1\0"));
    assert!(has(b"A=1\0M=v1"));
    for other in [&b""[..], b"M=v", b"M=v10\0", b"XM=v1\0", b"A=M=v1\0", b"M=v1x\0N=\0", b"\0\0"] {
        assert!(!has(other), "{other:?}");
    }
    let mut long = vec![b'x'; 4094];
    long.extend(b"\0M=v1\0");
    assert!(has(&long), "an entry across two reads");
}
