//! Decisions about where a session is and how it is called back: facts in, decision out.

use jiff::{SignedDuration, Timestamp};

use crate::agent::Abilities;
use crate::fold::{Origin, View};
use crate::ids::Key;

/// How a cold session is called back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// `session/resume`: our history is complete.
    Resume,
    /// `session/resume` of a history that is not ours: the session begins with a note.
    ResumeWithNote,
    /// `session/load`, what it replays is swallowed: our history is complete.
    LoadSwallow,
    /// `session/load`, what it replays is matched and imported.
    LoadImport,
    /// The agent can do neither.
    CannotReturn,
}

/// An agent saves a little after its last word; only what is later than this went on elsewhere.
const SAVED_LATER: SignedDuration = SignedDuration::from_secs(2);

/// Chooses how to call a session back (DESIGN section 8, "History that is not ours").
///
/// `listed_at` is the agent's own `updatedAt` of the session, where its list told one.
#[must_use]
pub fn plan(abilities: &Abilities, view: &View, listed_at: Option<Timestamp>) -> Plan {
    let empty_of_ours = view.items == 0 && view.origin == Origin::Created;
    let foreign = view.items == 0 && view.origin == Origin::Adopted;
    let went_on = match (listed_at, view.last_agent_at) {
        (Some(theirs), Some(ours)) => theirs.duration_since(ours) > SAVED_LATER,
        _ => false,
    };
    let wants_history = foreign || (went_on && !empty_of_ours);
    match (abilities.load, abilities.resume) {
        (true, _) if wants_history => Plan::LoadImport,
        (_, true) if foreign => Plan::ResumeWithNote,
        (_, true) => Plan::Resume,
        (true, false) => Plan::LoadSwallow,
        (false, false) => Plan::CannotReturn,
    }
}

/// What one spelling of an id may mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Nobody knows it.
    Unknown,
    /// This session.
    One(Key),
    /// Several, and nothing tells which: their keys.
    Several(Vec<Key>),
}

/// A session that an id may mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its key.
    pub key: Key,
    /// Its agent.
    pub agent: &'a str,
    /// An instance has it, or is about to.
    pub loaded: bool,
}

/// Decides what an id means (DESIGN section 4): a key is one session; a native id is looked up under
/// the endpoint's agent first; where it names several it means the one that is loaded, else nothing
/// is guessed.
#[must_use]
pub fn meaning(by_key: Option<Key>, by_native: &[Candidate<'_>], bound: Option<&str>) -> Meaning {
    if let Some(key) = by_key {
        return Meaning::One(key);
    }
    let own: Vec<_> = by_native.iter().filter(|c| Some(c.agent) == bound).collect();
    let all = if own.is_empty() { by_native.iter().collect() } else { own };
    let loaded: Vec<_> = all.iter().filter(|c| c.loaded).collect();
    match (all.as_slice(), loaded.as_slice()) {
        ([], _) => Meaning::Unknown,
        ([one], _) => Meaning::One(one.key),
        (_, [one]) => Meaning::One(one.key),
        (several, _) => Meaning::Several(several.iter().map(|c| c.key).collect()),
    }
}

/// Whether two spellings name the same folder, as far as text tells: trailing slashes and doubled
/// ones do not count, `.` parts neither; `..` and links are for the file system.
#[must_use]
pub fn same_folder(left: &str, right: &str) -> bool {
    fn parts(path: &str) -> impl Iterator<Item = &str> {
        path.split('/').filter(|part| !part.is_empty() && *part != ".")
    }
    left.starts_with('/') == right.starts_with('/') && parts(left).eq(parts(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn abilities(load: bool, resume: bool) -> Abilities {
        Abilities { load, resume, ..Abilities::default() }
    }

    fn view(origin: Origin, items: u64, last: Option<i64>) -> View {
        let last_agent_at = last.map(|second| Timestamp::from_second(second).unwrap());
        View { origin, items, last_agent_at, ..View::default() }
    }

    #[test]
    fn each_kind_of_agent_and_history_has_its_plan() {
        let ours = view(Origin::Created, 4, Some(100));
        let empty = view(Origin::Created, 0, None);
        let found = view(Origin::Adopted, 0, None);
        let later = Timestamp::from_second(110).ok();
        let soon = Timestamp::from_second(101).ok();
        let table = [
            (abilities(true, true), &ours, None, Plan::Resume),
            (abilities(true, true), &ours, soon, Plan::Resume),
            (abilities(true, true), &ours, later, Plan::LoadImport),
            (abilities(true, false), &ours, None, Plan::LoadSwallow),
            (abilities(true, false), &ours, later, Plan::LoadImport),
            (abilities(false, true), &ours, later, Plan::Resume),
            (abilities(false, false), &ours, later, Plan::CannotReturn),
            (abilities(true, true), &empty, later, Plan::Resume),
            (abilities(true, true), &found, None, Plan::LoadImport),
            (abilities(false, true), &found, None, Plan::ResumeWithNote),
        ];
        for (abilities, view, listed_at, want) in table {
            assert_eq!(
                plan(&abilities, view, listed_at),
                want,
                "{abilities:?} {view:?} {listed_at:?}"
            );
        }
    }

    #[test]
    fn an_id_means_the_loaded_one_and_never_a_guess() {
        let key = |n: u128| Key::new(uuid::Uuid::from_u128(n));
        let candidate = |n, agent, loaded| Candidate { key: key(n), agent, loaded };
        let two = [candidate(1, "a", false), candidate(2, "a", true)];
        assert_eq!(meaning(Some(key(9)), &two, None), Meaning::One(key(9)));
        assert_eq!(meaning(None, &[], None), Meaning::Unknown);
        assert_eq!(meaning(None, &two, None), Meaning::One(key(2)));
        let cold = [candidate(1, "a", false), candidate(2, "b", false)];
        assert_eq!(meaning(None, &cold, None), Meaning::Several(vec![key(1), key(2)]));
        assert_eq!(meaning(None, &cold, Some("b")), Meaning::One(key(2)));
        let both = [candidate(1, "a", true), candidate(2, "b", true)];
        assert_eq!(meaning(None, &both, None), Meaning::Several(vec![key(1), key(2)]));
    }

    #[test]
    fn folders_are_compared_by_their_parts() {
        assert!(same_folder("/w/p", "/w/p/"));
        assert!(same_folder("/w//p", "/w/./p"));
        for (left, right) in [
            ("/w/hub-proxy", "/w/hub/proxy"),
            ("/a.b", "/a b"),
            ("/x_y", "/x-y"),
            ("/-rf", "/rf"),
            ("/w", "w"),
        ] {
            assert!(!same_folder(left, right), "{left} {right}");
        }
    }
}
