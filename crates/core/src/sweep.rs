//! What is to be done with what is left of instances: by record and mark, never by name.
//!
//! A daemon looks at its home from time to time, and `stop --all` at the end. What cannot be proven to
//! be this home's is left alone and told.

use std::collections::{BTreeMap, BTreeSet};

use crate::hold::ProcessId;

/// What an instance's record says of its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// There is no record, or none that can be read.
    Unrecorded,
    /// The record is of another boot: nothing of it can run.
    OtherBoot,
    /// That very process (number and birth time) is gone.
    Gone,
    /// That very process runs.
    Lives,
}

/// What there is of one instance in a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traces {
    /// The daemon has it in its table, or is starting it.
    pub is_known: bool,
    /// Its folder of socket and record is there.
    pub has_run: bool,
    /// Its holder, by the record.
    pub holder: Holder,
    /// Living processes carry its mark.
    pub is_marked: bool,
}

/// Why an instance is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its holder lives, and no daemon has it: it was started and lost.
    Nobodys,
    /// Its holder is gone.
    HolderGone,
    /// It is of another boot; only files are left.
    OtherBoot,
    /// Its record is gone, and processes carry its mark.
    Unrecorded,
}

/// What is to be done with an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is somebody's.
    Leave,
    /// It is to be ended and proven gone; then its files go.
    End(Why),
    /// Nothing of it runs, and only its spool is left.
    Forget,
}

/// Decides about one instance of which a home has a folder.
#[must_use]
pub const fn verdict(traces: &Traces) -> Verdict {
    if traces.is_known {
        return Verdict::Leave;
    }
    match (traces.has_run, traces.holder) {
        (true, Holder::Lives) => Verdict::End(Why::Nobodys),
        (true, Holder::OtherBoot) => Verdict::End(Why::OtherBoot),
        (true, Holder::Gone | Holder::Unrecorded) => Verdict::End(Why::HolderGone),
        // Without its folder the record is gone too; the mark is the folder's name.
        (false, _) if traces.is_marked => Verdict::End(Why::Unrecorded),
        (false, _) => Verdict::Forget,
    }
}

/// A living process that carries some instance's mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    /// The process.
    pub process: ProcessId,
    /// The mark: an instance's id.
    pub mark: String,
    /// Whether the leader of its process session lives and carries no mark, as a holder does.
    pub is_held: bool,
}

/// Marked processes that no holder and no record of this home accounts for, by mark. Another home may
/// have lost them, so they are not ended.
#[must_use]
pub fn strays(found: Vec<Marked>, recorded: &BTreeSet<String>) -> BTreeMap<String, Vec<ProcessId>> {
    let held: BTreeSet<String> =
        found.iter().filter(|it| it.is_held).map(|it| it.mark.clone()).collect();
    let mut strays: BTreeMap<String, Vec<ProcessId>> = BTreeMap::new();
    for Marked { process, mark, .. } in found {
        if !held.contains(&mark) && !recorded.contains(&mark) {
            strays.entry(mark).or_default().push(process);
        }
    }
    strays
}

/// Age from which a claim file that nobody locks is removed, in seconds: a younger one may be about to
/// be locked by who has just made it.
pub const CLAIM_AGE_S_MIN: u64 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Traces =
        Traces { is_known: false, has_run: false, holder: Holder::Unrecorded, is_marked: false };

    #[test]
    fn what_a_daemon_knows_is_left_whatever_else_is_seen() {
        for has_run in [false, true] {
            for is_marked in [false, true] {
                for holder in [Holder::Unrecorded, Holder::OtherBoot, Holder::Gone, Holder::Lives] {
                    let traces = Traces { is_known: true, has_run, holder, is_marked };
                    assert_eq!(verdict(&traces), Verdict::Leave, "{traces:?}");
                    let unknown = Traces { is_known: false, ..traces };
                    assert_ne!(verdict(&unknown), Verdict::Leave, "{unknown:?}");
                }
            }
        }
    }

    #[test]
    fn an_instance_that_nobody_knows_is_ended_by_what_its_record_says() {
        let with = |holder| verdict(&Traces { has_run: true, holder, ..NOTHING });
        assert_eq!(with(Holder::Lives), Verdict::End(Why::Nobodys));
        assert_eq!(with(Holder::Gone), Verdict::End(Why::HolderGone));
        assert_eq!(with(Holder::Unrecorded), Verdict::End(Why::HolderGone));
        assert_eq!(with(Holder::OtherBoot), Verdict::End(Why::OtherBoot));
    }

    #[test]
    fn a_spool_alone_is_removed_unless_processes_carry_its_mark() {
        assert_eq!(verdict(&NOTHING), Verdict::Forget);
        let marked = Traces { is_marked: true, ..NOTHING };
        assert_eq!(verdict(&marked), Verdict::End(Why::Unrecorded));
    }

    #[test]
    fn a_process_of_a_living_holder_or_of_this_home_is_no_stray() {
        let marked = |pid, mark: &str, is_held| Marked {
            process: ProcessId { pid, birth: 1 },
            mark: mark.to_owned(),
            is_held,
        };
        let found = vec![
            marked(1, "held", true),
            // A child of it that has left the holder's process session.
            marked(2, "held", false),
            marked(3, "ours", false),
            marked(4, "lost", false),
            marked(5, "lost", false),
        ];
        let strays = strays(found, &BTreeSet::from(["ours".to_owned()]));
        assert_eq!(strays.keys().collect::<Vec<_>>(), ["lost"]);
        let pids: Vec<i32> = strays["lost"].iter().map(|process| process.pid).collect();
        assert_eq!(pids, [4, 5]);
    }
}
