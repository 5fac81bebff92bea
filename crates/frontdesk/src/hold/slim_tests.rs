use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// One mapping as the kernel tells of it; `left_out` is a line that is missing.
fn mapping(first: &str, anonymous: u64, swap: u64, left_out: &str) -> String {
    let lines = [
        first.to_owned(),
        "Size:                 64 kB".into(),
        "Rss:                  64 kB".into(),
        format!("Anonymous:      {anonymous:8} kB"),
        "AnonHugePages:         0 kB".into(),
        format!("Swap:           {swap:8} kB"),
        "SwapPss:               0 kB".into(),
        "VmFlags: rd ex mr mw me".into(),
    ];
    let kept = lines.iter().filter(|line| left_out.is_empty() || !line.starts_with(left_out));
    kept.map(|line| format!("{line}\n")).collect()
}

fn chosen(list: &str) -> Vec<Range<usize>> {
    unchanged(list).collect()
}

const NONE: [Range<usize>; 0] = [];
const TEXT: &str =
    "00010000-00020000 r-xp 00000000 fe:00 1234          /usr/bin/some program (deleted)";

#[test]
fn unchanged_copies_of_files_are_chosen() {
    let constants = "7f0000000000-7f0000001000 r--p 00001000 fe:00 1234     /usr/lib/libc.so";
    let list = mapping(TEXT, 0, 0, "") + &mapping(constants, 0, 0, "");
    assert_eq!(chosen(&list), [0x10000..0x20000, 0x7f00_0000_0000..0x7f00_0000_1000]);
}

#[test]
fn what_may_differ_from_its_file_is_not_chosen() {
    let list = |permissions, inode| {
        let first = TEXT.replace("r-xp", permissions).replace("1234", inode);
        mapping(&first, 0, 0, "")
    };
    assert_eq!(chosen(&list("r-xp", "1234")).len(), 1);
    for permissions in ["rw-p", "rwxp", "-w-p", "---p", "r--s", "r-xs", ""] {
        assert_eq!(chosen(&list(permissions, "1234")), NONE, "{permissions}");
    }
    assert_eq!(chosen(&list("r-xp", "0")), NONE, "no file behind it");
    assert_eq!(chosen(&mapping(TEXT, 4, 0, "")), NONE, "a page of its own in memory");
    assert_eq!(chosen(&mapping(TEXT, 0, 4, "")), NONE, "a page of its own in swap");
}

#[test]
fn what_is_not_told_in_full_is_not_chosen() {
    for left_out in ["Anonymous", "Swap:", "VmFlags"] {
        assert_eq!(chosen(&mapping(TEXT, 0, 0, left_out)), NONE, "{left_out}");
    }
    // What one mapping did not say is not taken from the next one.
    let next = TEXT.replace("r-xp", "rw-p");
    let list = mapping(TEXT, 0, 0, "VmFlags") + &mapping(&next, 0, 0, "");
    assert_eq!(chosen(&list), NONE);
    // Cut at any byte, a list never gives what the whole one would not.
    let whole = mapping(TEXT, 0, 0, "") + &mapping(TEXT, 4, 0, "") + &mapping(&next, 0, 0, "");
    for length in 0..whole.len() {
        assert!(chosen(&whole[..length]).len() <= 1, "{length}");
    }
    for first in ["", "-", "x-y r-xp 0 0 1", "2-1 r-xp 0 0 1", "1-2", "1-2 r-xp", "1-2 r-xp 0 0"] {
        assert_eq!(chosen(&mapping(first, 0, 0, "")), NONE, "{first}");
    }
}

static WRITTEN: AtomicUsize = AtomicUsize::new(1);
/// Holds addresses, so the loader has written it.
static RELOCATED: [fn(&str) -> Option<u64>; 2] = [kib, other];
static CONSTANT: [u8; 4096] = [7; 4096];

fn other(_: &str) -> Option<u64> {
    None
}

#[test]
fn of_this_program_code_and_constants_are_chosen_and_no_data() {
    let mut scratch = vec![0; 1 << 20];
    WRITTEN.store(2, Ordering::Relaxed);
    let length = read_list(&mut scratch);
    let ranges = chosen(std::str::from_utf8(&scratch[..length]).unwrap());
    let has = |address: usize| ranges.iter().any(|range| range.contains(&address));
    assert!(has(drop_file_pages as fn(&mut [u8]) as usize), "code");
    assert!(has(black_box(&CONSTANT).as_ptr().addr()), "constants");
    assert!(!has((&raw const WRITTEN).addr()), "a variable");
    assert!(!has(black_box(&RELOCATED).as_ptr().addr()), "what the loader wrote");
    assert!(!has(scratch.as_ptr().addr()), "heap");
    assert!(!has((&raw const scratch).addr()), "stack");
}

#[test]
fn everything_still_works_after_dropping() {
    let mut scratch = vec![0; 1 << 20];
    for round in 0..100 {
        WRITTEN.store(round, Ordering::Relaxed);
        drop_file_pages(&mut scratch);
        assert_eq!(WRITTEN.load(Ordering::Relaxed), round);
        assert_eq!(black_box(&RELOCATED)[0](" 12 kB"), Some(12));
        assert!(black_box(&CONSTANT).iter().all(|byte| *byte == 7));
    }
    // Too small for the list, or for anything: some or all is left as it is.
    drop_file_pages(&mut scratch[..1000]);
    drop_file_pages(&mut []);
}

#[test]
fn pages_are_dropped_once_in_each_silence() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut scratch = vec![0; 1 << 16];
    let mut slim = Slim::new(start);
    assert!(!slim.be_on_time(at(SILENCE_MS - 1), &mut scratch));
    slim.heard(at(SILENCE_MS - 1));
    assert!(!slim.be_on_time(at(SILENCE_MS), &mut scratch), "the silence began anew");
    assert_eq!(slim.due(), Some(at(2 * SILENCE_MS - 1)));
    assert!(slim.be_on_time(at(2 * SILENCE_MS), &mut scratch));
    assert_eq!(slim.due(), None, "no more waking up");
    assert!(!slim.be_on_time(at(9 * SILENCE_MS), &mut scratch));
    slim.heard(at(10 * SILENCE_MS));
    assert!(slim.be_on_time(at(11 * SILENCE_MS), &mut scratch));
}
