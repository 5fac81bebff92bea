//! What becomes of a session of an instance that a later daemon finds, by its journal and by what the
//! instance's ledger says of it.

use super::ends::{Ends, Replaying};
use super::why::CloseWhy;
use crate::fold::View;

/// What an instance's ledger says of one session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    /// It was being unloaded, and for what reason.
    pub closing: Option<CloseWhy>,
    /// Number of the request to open it, where that is not answered.
    pub opening: Option<u64>,
    /// The agent was asked to open or to close it.
    pub asked: bool,
    /// The agent may have it: it could not be told to let it go.
    pub kept: bool,
    /// The agent does not have it any more.
    pub let_go: bool,
}

/// How a session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Going {
    /// As it was.
    Live,
    /// It was being unloaded, and is again.
    Closing(CloseWhy),
    /// The agent was asked to open it: the number of that request.
    Opening(u64),
}

/// What becomes of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on at this instance.
    Goes(Going),
    /// The agent may have it, and nobody can tell.
    Doubtful,
    /// The agent does not have it; its claims may not have been freed yet.
    LetGo,
    /// The agent has made it, and nobody was told: its journal is empty.
    Orphan,
}

/// Decides what becomes of the session that `instance` calls `native`. Source: DESIGN section 6,
/// "Holders".
#[must_use]
pub fn fate(instance: &str, native: &str, view: &View, ends: &Ends, told: Told) -> Fate {
    let Some(own) = view.native.as_deref() else { return Fate::Orphan };
    let is_own = own == native && view.loaded_by.as_deref() == Some(instance) && !view.deleted;
    if is_own && ends.is_loaded() {
        return Fate::Goes(told.closing.map_or(Going::Live, Going::Closing));
    }
    // Half an import is begun anew by whoever loads the session next.
    if let Some(number) = told.opening
        && is_own
        && ends.is_claimed()
        && ends.replays() != Replaying::Imported
    {
        return Fate::Goes(Going::Opening(number));
    }
    // Claimed, and its agent was not asked for it.
    let is_untouched = !ends.is_loaded() && !told.asked && !told.kept;
    if told.let_go || is_untouched {
        return Fate::LetGo;
    }
    // Whoever was being opened may be open by now, whatever its journal says.
    Fate::Doubtful
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bytes::Bytes;
    use jiff::Timestamp;

    use super::*;
    use crate::record::{Kind, RECORD_VERSION, Record};

    type Records<'a> = [(Kind, &'a str)];

    const CREATED: (Kind, &str) = (Kind::Created, r#"{"agent":"a","nativeId":"n","cwd":"/w"}"#);
    const LOADED: (Kind, &str) = (Kind::Loaded, r#"{"agent":"a","instance":"i","how":"new"}"#);

    fn claimed(more: &str) -> String {
        format!(r#"{{"agent":"a","instance":"i"{more}}}"#)
    }

    fn fate_of(records: &Records<'_>, told: Told) -> Fate {
        let records: Vec<Record> = (1..)
            .zip(records)
            .map(|(seq, (kind, data))| Record {
                v: RECORD_VERSION,
                seq,
                epoch: 1,
                at: Timestamp::UNIX_EPOCH,
                kind: kind.clone(),
                src: None,
                data: Bytes::copy_from_slice(data.as_bytes()),
            })
            .collect();
        let (mut view, mut ends) = (View::default(), Ends::new("i", BTreeSet::new(), 64));
        view.extend(&records);
        ends.extend(&records);
        fate("i", "n", &view, &ends, told)
    }

    #[test]
    fn each_journal_and_ledger_has_its_fate() {
        let (plain, import) = (claimed(""), claimed(r#","replay":"import""#));
        let claim = (Kind::Claimed, plain.as_str());
        let live = [claim.clone(), CREATED, LOADED];
        let cold = [CREATED, claim.clone()];
        let importing = [CREATED, (Kind::Claimed, import.as_str())];
        let closed = [claim, CREATED, LOADED, (Kind::Closed, r#"{"reason":"close"}"#)];
        let asked = Told { asked: true, ..Told::default() };
        let opening = Told { opening: Some(7), ..asked };
        let closing = Told { closing: Some(CloseWhy::Idle), ..asked };
        let let_go = Told { let_go: true, ..asked };
        let kept = Told { kept: true, ..Told::default() };
        let table: [(&Records<'_>, Told, Fate); 10] = [
            (&[], asked, Fate::Orphan),
            (&live, asked, Fate::Goes(Going::Live)),
            (&live, closing, Fate::Goes(Going::Closing(CloseWhy::Idle))),
            (&cold, opening, Fate::Goes(Going::Opening(7))),
            (&importing, opening, Fate::Doubtful),
            (&cold, Told::default(), Fate::LetGo),
            (&cold, asked, Fate::Doubtful),
            (&cold, kept, Fate::Doubtful),
            (&cold, let_go, Fate::LetGo),
            (&closed, kept, Fate::Doubtful),
        ];
        for (records, told, wanted) in table {
            assert_eq!(fate_of(records, told), wanted, "{records:?} {told:?}");
        }
        // Another instance's, and one that this instance calls by another id.
        let other = (Kind::Claimed, r#"{"agent":"a","instance":"j"}"#);
        assert_eq!(fate_of(&[CREATED, other], opening), Fate::Doubtful);
        let renamed = (Kind::Created, r#"{"agent":"a","nativeId":"m","cwd":"/w"}"#);
        assert_eq!(fate_of(&[live[0].clone(), renamed, LOADED], asked), Fate::Doubtful);
    }
}
