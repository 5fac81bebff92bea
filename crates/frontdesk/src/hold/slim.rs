//! Gives back what a holder has mapped of the program's own file and no longer needs.
//!
//! The holder is the same program as the daemon. Loading it and reading an order touch pages that
//! the loop never touches again, and the kernel maps the neighbours of each of them too. They are
//! clean copies of files: dropping one costs nothing but a page fault when it is needed again.
//! `run` keeps a [`Slim`], which drops them once in each silence.

use std::ffi::c_void;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::time::{Duration, Instant};

use nix::sys::mman::{MmapAdvise, madvise};

/// Silence before pages are dropped, in milliseconds. The next message pays for it with some dozens
/// of page faults.
const SILENCE_MS: u64 = 1_000;

/// When to drop pages: once, when nothing has happened for a while.
#[derive(Debug)]
pub(super) struct Slim {
    due: Option<Instant>,
}

impl Slim {
    /// The first silence begins now.
    pub(super) fn new(now: Instant) -> Self {
        Self { due: after_silence(now) }
    }

    /// Something has happened, so a new silence begins.
    pub(super) fn heard(&mut self, now: Instant) {
        self.due = after_silence(now);
    }

    /// When to come back, if nothing happens before.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Drops the pages if it is time. Gives whether it was.
    pub(super) fn be_on_time(&mut self, now: Instant, scratch: &mut [u8]) -> bool {
        let is_time = self.due.is_some_and(|due| now >= due);
        if is_time {
            self.due = None;
            drop_file_pages(scratch);
        }
        is_time
    }
}

fn after_silence(now: Instant) -> Option<Instant> {
    now.checked_add(Duration::from_millis(SILENCE_MS))
}

/// Drops every mapped page that is an unchanged copy of a file's. `scratch` takes the kernel's list
/// of mappings; what does not fit into it is left alone. Failing is no error: the pages stay.
fn drop_file_pages(scratch: &mut [u8]) {
    let length = read_list(scratch);
    let text = String::from_utf8_lossy(&scratch[..length]);
    // All of them first: choosing would bring pages back that were dropped already.
    let ranges: Vec<_> = unchanged(&text).collect();
    for range in ranges {
        let _ = drop_pages(range);
    }
}

/// Reads `/proc/self/smaps` as far as it fits; gives its length.
fn read_list(into: &mut [u8]) -> usize {
    let Ok(mut list) = File::open("/proc/self/smaps") else { return 0 };
    let mut length = 0;
    while length < into.len() {
        match list.read(&mut into[length..]) {
            Ok(count) if count > 0 => length += count,
            _ => break,
        }
    }
    length
}

/// The address ranges that no one can write and no one has written: private mappings of files that
/// are readable only, or executable, without a page of their own in memory or in swap. Tables
/// that the loader has filled in and then write-protected have such pages, so they are not
/// among them.
fn unchanged(list: &str) -> impl Iterator<Item = Range<usize>> {
    let mut lines = list.lines();
    let mut open: Option<Candidate> = None;
    std::iter::from_fn(move || {
        for line in lines.by_ref() {
            let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
            match (first, &mut open) {
                ("Anonymous:", Some(candidate)) => candidate.anonymous = kib(rest),
                ("Swap:", Some(candidate)) => candidate.swapped = kib(rest),
                // The last line of each mapping, so that none is judged by half of its lines.
                ("VmFlags:", _) => {
                    if let Some(range) = open.take().and_then(Candidate::judge) {
                        return Some(range);
                    }
                }
                _ if !first.ends_with(':') => open = Candidate::new(first, rest),
                _ => {}
            }
        }
        None
    })
}

/// A mapping by its first line, and what its other lines have said so far.
struct Candidate {
    range: Range<usize>,
    anonymous: Option<u64>,
    swapped: Option<u64>,
}

impl Candidate {
    /// From a first line: range, then permissions, offset, device, inode and path.
    fn new(range: &str, rest: &str) -> Option<Self> {
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let is_read_only = matches!(fields.next()?, "r--p" | "r-xp");
        let inode = fields.nth(2)?;
        (is_read_only && inode != "0" && start < end).then_some(Self {
            range: start..end,
            anonymous: None,
            swapped: None,
        })
    }

    fn judge(self) -> Option<Range<usize>> {
        (self.anonymous == Some(0) && self.swapped == Some(0)).then_some(self.range)
    }
}

fn kib(text: &str) -> Option<u64> {
    text.trim().strip_suffix(" kB")?.parse().ok()
}

#[expect(
    unsafe_code,
    reason = "only this call takes pages out of a mapping that stays, and it is unsafe since it can \
    lose what was written; nothing was written here"
)]
fn drop_pages(range: Range<usize>) -> nix::Result<()> {
    let Some(start) = NonNull::new(with_exposed_provenance_mut::<c_void>(range.start)) else {
        return Ok(());
    };
    // SAFETY: the mapping stays and is read-only, and no page of it differs from its file (see
    // `unchanged`); the holder has one thread, so that this is still so. Every later read faults
    // the same bytes in again.
    unsafe { madvise(start, range.len(), MmapAdvise::MADV_DONTNEED) }
}

#[cfg(test)]
#[path = "slim_tests.rs"]
mod tests;
