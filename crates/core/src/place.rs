//! Decisions over several instances of one agent: which one gets a session, which one has it, what
//! their words add up to, and when one that is away is tried again.

use crate::status::Heard;

/// One instance of an agent as the choice sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// It can be asked: connected, and `initialize` is answered.
    pub up: bool,
    /// It owes an answer and says nothing.
    pub silent: bool,
    /// Sessions it has or is about to have.
    pub sessions: usize,
    /// How many it may have.
    pub sessions_max: usize,
}

impl Seat {
    const fn is_free(&self) -> bool {
        self.up && !self.silent && self.sessions < self.sessions_max
    }
}

/// The instance that gets another session: of those that have room and speak the one with the fewest
/// sessions, the earlier one of two equals.
#[must_use]
pub fn fewest(seats: &[Seat]) -> Option<usize> {
    let free = seats.iter().enumerate().filter(|(_, seat)| seat.is_free());
    free.min_by_key(|(_, seat)| seat.sessions).map(|(at, _)| at)
}

/// What one instance said about a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// It has it in memory.
    Loaded,
    /// It does not, and knows it.
    Cold,
    /// It does not know it.
    Unknown,
    /// It could not be asked, did not answer in time, or answers no such question.
    Nothing,
}

/// A word, and who said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said<'a> {
    /// Name of the agent.
    pub agent: &'a str,
    /// How the instance is named to people.
    pub name: &'a str,
    /// What it said.
    pub word: Word,
}

/// What many words add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// The strongest word.
    pub heard: Option<Heard>,
    /// Whose it is.
    pub agent: Option<String>,
    /// The instances that have the session in memory, by their own word.
    pub loaded_at: Vec<String>,
    /// Those that could not be asked and might have said more.
    pub unreachable: Vec<String>,
}

/// Adds words up: in memory anywhere is in memory. Where one says that it knows a session of its
/// agent, the other agents' silence is no matter; that of the same agent's instances is.
#[must_use]
pub fn gather(said: &[Said<'_>]) -> Gathered {
    let first = |word| said.iter().find(|said| said.word == word);
    let names = |word, agent: Option<&str>| {
        let those = said.iter().filter(|said| said.word == word);
        let those = those.filter(|said| agent.is_none_or(|agent| agent == said.agent));
        let mut names: Vec<String> = those.map(|said| said.name.to_owned()).collect();
        names.dedup();
        names
    };
    if let Some(loaded) = first(Word::Loaded) {
        return Gathered {
            heard: Some(Heard::Loaded),
            agent: Some(loaded.agent.to_owned()),
            loaded_at: names(Word::Loaded, None),
            unreachable: Vec::new(),
        };
    }
    let cold = first(Word::Cold).map(|cold| cold.agent);
    Gathered {
        heard: cold.map(|_| Heard::Cold),
        agent: cold.map(ToOwned::to_owned),
        loaded_at: Vec::new(),
        unreachable: names(Word::Nothing, cold),
    }
}

/// Where a session may be called back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    /// Only there: that instance has it, or may have it.
    At(usize),
    /// At any.
    Anywhere,
    /// Nowhere: these say that they have it, and nothing tells which one is right.
    Split(Vec<usize>),
}

/// Chooses where a session that is not loaded here is called back, by what all instances said.
///
/// `recorded` is the instance that had it last and never proved that it let go: it may still have it,
/// so nobody else gets it until it says that it does not.
#[must_use]
pub fn call_back_at(recorded: Option<usize>, words: &[Word]) -> Where {
    let loaded: Vec<usize> = (0..words.len()).filter(|at| words[*at] == Word::Loaded).collect();
    if let Some(at) = recorded.filter(|at| *at < words.len()) {
        match words[at] {
            Word::Loaded | Word::Nothing => return Where::At(at),
            Word::Cold | Word::Unknown => {}
        }
    }
    match loaded.as_slice() {
        [] => Where::Anywhere,
        [one] => Where::At(*one),
        _ => Where::Split(loaded),
    }
}

/// How long to wait before a connection is tried again, in milliseconds: twice as long with each
/// failure, and a part of it by chance, so that many daemons do not come back in one moment.
///
/// `failures` counts from 1, `chance` is any number.
#[must_use]
pub fn retry_ms(failures: u32, first_ms: u64, most_ms: u64, chance: u64) -> u64 {
    let doublings = failures.saturating_sub(1).min(32);
    let most = most_ms.max(1);
    let whole = first_ms.max(1).saturating_mul(1 << doublings).min(most);
    // From a half of it to all of it.
    let half = whole / 2;
    half + chance % (whole - half + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seat(sessions: usize) -> Seat {
        Seat { up: true, silent: false, sessions, sessions_max: 3 }
    }

    #[test]
    fn the_one_with_the_fewest_sessions_gets_the_next() {
        assert_eq!(fewest(&[seat(2), seat(1), seat(1)]), Some(1));
        assert_eq!(fewest(&[seat(3), seat(3)]), None);
        assert_eq!(fewest(&[Seat { up: false, ..seat(0) }, seat(2)]), Some(1));
        assert_eq!(fewest(&[Seat { silent: true, ..seat(0) }, seat(2)]), Some(1));
        assert_eq!(fewest(&[]), None);
    }

    #[test]
    fn a_session_goes_to_who_has_it_and_else_to_anybody() {
        use Word::{Cold, Loaded, Nothing, Unknown};
        let table: &[(Option<usize>, &[Word], Where)] = &[
            (None, &[Cold, Cold], Where::Anywhere),
            (None, &[Unknown, Nothing], Where::Anywhere),
            (None, &[Cold, Loaded], Where::At(1)),
            (None, &[Loaded, Loaded, Cold], Where::Split(vec![0, 1])),
            (Some(1), &[Loaded, Loaded, Cold], Where::At(1)),
            (Some(0), &[Nothing, Cold], Where::At(0)),
            (Some(0), &[Cold, Cold], Where::Anywhere),
            (Some(0), &[Cold, Loaded], Where::At(1)),
            (Some(0), &[Unknown, Nothing], Where::Anywhere),
            // It is not in the configuration any more.
            (Some(7), &[Cold, Cold], Where::Anywhere),
        ];
        for (recorded, words, want) in table {
            assert_eq!(call_back_at(*recorded, words), *want, "{recorded:?} {words:?}");
        }
    }

    #[test]
    fn words_add_up_to_the_strongest_and_silence_is_told_where_it_matters() {
        use Word::{Cold, Loaded, Nothing, Unknown};
        let said = |agent, name, word| Said { agent, name, word };
        let all = [said("a", "u1", Cold), said("a", "u2", Nothing), said("b", "b", Nothing)];
        let told = gather(&all);
        assert_eq!((told.heard, told.agent.as_deref()), (Some(Heard::Cold), Some("a")));
        assert_eq!(told.unreachable, ["u2"]);
        let told = gather(&[said("a", "u1", Nothing), said("a", "u2", Loaded)]);
        assert_eq!(told.heard, Some(Heard::Loaded));
        assert_eq!((told.loaded_at, told.unreachable), (vec!["u2".to_owned()], vec![]));
        let told = gather(&[said("a", "u1", Loaded), said("a", "u2", Loaded)]);
        assert_eq!(told.loaded_at, ["u1", "u2"]);
        let told = gather(&[said("a", "u1", Unknown), said("b", "b", Nothing)]);
        assert_eq!((told.heard, told.unreachable), (None, vec!["b".to_owned()]));
        assert_eq!(gather(&[said("a", "u1", Unknown)]), Gathered::default());
    }

    proptest! {
        #[test]
        fn waits_grow_and_stay_between_their_bounds(
            failures in 0..u32::MAX, first in 0..100_000u64, most in 0..1_000_000u64, chance: u64
        ) {
            let wait = retry_ms(failures, first, most, chance);
            prop_assert!(wait <= most.max(1));
            let next = retry_ms(failures.saturating_add(1), first, most, u64::MAX - 1);
            prop_assert!(next >= wait / 2);
        }
    }

    #[test]
    fn each_failure_doubles_the_wait() {
        let most = |failures| (0..2000).map(|chance| retry_ms(failures, 500, 30_000, chance)).max();
        let least =
            |failures| (0..2000).map(|chance| retry_ms(failures, 500, 30_000, chance)).min();
        assert_eq!((least(1), most(1)), (Some(250), Some(500)));
        assert_eq!((least(2), most(2)), (Some(500), Some(1000)));
        assert_eq!(retry_ms(40, 500, 30_000, 0), 15_000);
    }
}
