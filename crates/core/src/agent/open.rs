//! What a failed or a suspiciously easy open means.
//!
//! Called when an agent answered `session/load` or `session/resume`. Real agents say "no such
//! session" with six codes and any words, and some say "not now" the same way. So the decision
//! rests on two things only: the code, and whether the agent's own list still has the session. The
//! words of an error are shown to people and never read here.

use serde_json::Value;

use super::aliases::is_row_of;
use super::quirks::Quirks;

/// What the code of a failed open says by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// `-32002`: the agent does not know the session.
    NotFound,
    /// `-32000`: somebody has to log in first. It says nothing about the session.
    AuthRequired,
    /// `-32601`: the agent lacks the method. Another method may work.
    NoMethod,
    /// `-32800`: the request was cancelled.
    Cancelled,
    /// Anything else: gone, busy, broken or over its limit, the code does not tell.
    Other,
}

/// Sorts the code of a failed open.
#[must_use]
pub const fn open_error(code: i64) -> OpenError {
    match code {
        -32002 => OpenError::NotFound,
        -32000 => OpenError::AuthRequired,
        -32601 => OpenError::NoMethod,
        -32800 => OpenError::Cancelled,
        _ => OpenError::Other,
    }
}

/// Whether the agent's own list has the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// It is there.
    Yes,
    /// The whole list was read and it is not there.
    No,
    /// The agent has no list, refused it, answered `null`, or was not asked to the end.
    Unknown,
}

impl Listed {
    /// Looks for `session_id`, also as an alias, in the results of `session/list`, first page first, asked without a
    /// filter. "No" takes a whole list: every page an object with `sessions`, the last one without
    /// a `nextCursor`.
    #[must_use]
    pub fn look(pages: &[Value], session_id: &str) -> Self {
        let rows = |page: &Value| page.get("sessions").and_then(Value::as_array).cloned();
        let has = |row: &Value| is_row_of(row, session_id);
        if pages.iter().filter_map(rows).flatten().any(|row| has(&row)) {
            return Self::Yes;
        }
        let whole = pages.iter().all(|page| rows(page).is_some())
            && pages.last().is_some_and(|page| page.get("nextCursor").is_none_or(Value::is_null));
        if whole { Self::No } else { Self::Unknown }
    }
}

/// What becomes of the session after a failed open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The agent no longer has it: callers get `-32002`, our history stays.
    Gone,
    /// It is still the agent's: callers get the agent's own error unchanged, the binding stays, and
    /// a later try may succeed.
    Keep,
}

/// Decides from the code and the list whether the agent still has a session it failed to open.
///
/// A list that has the session wins over any code. `-32002` needs no list. The codes that speak of
/// the caller or the method (`-32000`, `-32601`, `-32800`) never end a session. For all others only
/// a whole list without the session does.
#[must_use]
pub const fn verdict(code: i64, listed: Listed) -> Verdict {
    match (open_error(code), listed) {
        (_, Listed::Yes)
        | (OpenError::AuthRequired | OpenError::NoMethod | OpenError::Cancelled, _)
        | (OpenError::Other, Listed::Unknown) => Verdict::Keep,
        (OpenError::NotFound, Listed::No | Listed::Unknown) | (OpenError::Other, Listed::No) => {
            Verdict::Gone
        }
    }
}

/// The same for an agent whose quirks say which code it answers for an id it does not know.
#[must_use]
pub const fn verdict_of(quirks: &Quirks, code: i64, listed: Listed) -> Verdict {
    match listed {
        Listed::Yes => Verdict::Keep,
        Listed::No | Listed::Unknown if quirks.unknown_is_32600 && code == -32600 => Verdict::Gone,
        Listed::No | Listed::Unknown => verdict(code, listed),
    }
}

/// Whether the list has to be asked before [`verdict`] can tell.
#[must_use]
pub const fn needs_list(code: i64) -> bool {
    matches!(open_error(code), OpenError::NotFound | OpenError::Other)
}

/// Whether a successful open proves that the agent has the session. Some agents say yes to any id;
/// with them it takes their list or some replayed history.
#[must_use]
pub const fn is_proven(quirks: &Quirks, by_load: bool, listed: Listed, replayed: bool) -> bool {
    let doubtful = if by_load { quirks.loads_unknown } else { quirks.resume_replaces };
    !doubtful || replayed || matches!(listed, Listed::Yes)
}

#[cfg(test)]
#[path = "open_tests.rs"]
mod tests;
