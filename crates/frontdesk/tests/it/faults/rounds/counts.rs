//! What all rounds of one kind add up to.

use std::collections::BTreeMap;
use std::fmt;

/// The counts of one kind of kill.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) kind: &'static str,
    pub(super) rounds: u64,
    pub(super) kills: u64,
    /// Kills by what was under way; one kill may be in several.
    pub(super) amid: BTreeMap<&'static str, u64>,
    pub(super) prompts: u64,
    /// Prompts whose client had gone, and which the journal alone answers.
    pub(super) prompts_left: u64,
    pub(super) prompts_failed: u64,
    pub(super) permissions: u64,
    pub(super) loads: u64,
    pub(super) closes: u64,
    /// What clients were shown, each compared with the journal.
    pub(super) compared: u64,
    /// What agents said, each compared with the journal.
    pub(super) said: u64,
    /// Shown or said, and not in the journal.
    pub(super) lost: u64,
    /// Shown, said or told more than once.
    pub(super) repeated: u64,
    /// Sessions that two processes had at once, or two instances wrote.
    pub(super) double_owners: u64,
    /// Requests without an answer, and turns and questions without an ending.
    pub(super) unanswered: u64,
    /// Questions with two answers, or an answer the agent was not given.
    pub(super) misanswered: u64,
}

impl Counts {
    pub(super) fn is_clean(&self) -> bool {
        let owned = self.double_owners;
        let bad = [self.lost, self.repeated, owned, self.unanswered, self.misanswered];
        bad.iter().all(|count| *count == 0)
    }

    /// Counts what is wrong between a list and what the journal has, unless it `fits`.
    pub(super) fn compare(&mut self, found: &[String], kept: &[String], fits: bool) {
        if fits {
            return;
        }
        let tally = |list: &[String]| {
            let mut counts: BTreeMap<String, u64> = BTreeMap::new();
            list.iter().for_each(|text| *counts.entry(text.clone()).or_default() += 1);
            counts
        };
        let (found, kept) = (tally(found), tally(kept));
        let before = (self.lost, self.repeated);
        for (text, times) in &found {
            let there = kept.get(text).copied().unwrap_or_default();
            self.lost += if there == 0 { *times } else { 0 };
            self.repeated += if there > 0 { times.saturating_sub(there) } else { 0 };
        }
        for (text, times) in &kept {
            let there = found.get(text).copied().unwrap_or_default();
            self.lost += if there == 0 { *times } else { 0 };
            self.repeated += if there > 0 { times.saturating_sub(there) } else { 0 };
        }
        // Another order is a loss, too: of what should have been there.
        self.lost += u64::from(before == (self.lost, self.repeated));
    }
}

/// What may be under way when somebody is killed.
pub(super) const AMID: [&str; 6] =
    ["prompts", "a permission", "a load", "a close", "a new session", "nothing"];

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faults | {} | rounds {} | kills {}", self.kind, self.rounds, self.kills)?;
        for what in AMID {
            let count = self.amid.get(what).copied().unwrap_or_default();
            write!(f, " | amid {what} {count}")?;
        }
        for (name, count) in [
            ("prompts", self.prompts),
            ("- failed", self.prompts_failed),
            ("- left", self.prompts_left),
            ("permissions", self.permissions),
            ("loads", self.loads),
            ("closes", self.closes),
            ("shown, compared", self.compared),
            ("said, compared", self.said),
            ("lost", self.lost),
            ("repeated", self.repeated),
            ("double owners", self.double_owners),
            ("unanswered", self.unanswered),
            ("misanswered", self.misanswered),
        ] {
            write!(f, " | {name} {count}")?;
        }
        Ok(())
    }
}
