//! Agents' own modes in which they act without asking.
//!
//! In such a mode a policy for questions settles nothing, so none is claimed ([`crate::policy`]). The
//! modes are told apart by their ids alone, because an agent may run under any name. A mode that
//! asks less but still asks is not here.
//!
//! `auto` is not here. Codex (0.16) calls so the mode it begins in, and was seen to ask in it before it
//! leaves its sandbox. Claude Code calls so a mode in which a model looks at a question first; by its
//! documentation people are asked where that model refuses too often. Both ask less, and both ask.
//!
//! An id that is here and should not be costs a claim that would have been true; one that is missing
//! makes a claim that is false. So ids stay that only an agent's own words name.

/// The ids, and whose they are.
const UNASKED: &[(&str, &[&str])] = &[
    // Offered by nanocoder 1.30 and isaac 0.4 in the answer to an open, as it was recorded. The others
    // of this id, and all ids below, are from the agents' published documentation and sources; what
    // was recorded of these agents does not show all their modes.
    ("yolo", &["nanocoder", "isaac", "gemini", "qwen", "kimi"]),
    ("bypassPermissions", &["claude"]),
    // Refuses what no rule allows, and asks nobody.
    ("dontAsk", &["claude"]),
    // Of the adapter up to 0.16, and of its successor.
    ("full-access", &["codex"]),
    ("agent-full-access", &["codex"]),
    ("auto-approve", &["vibe"]),
    ("dont_ask", &["hermes"]),
    ("accept_everything", &["deepagents"]),
    // The end of an address.
    ("autopilot", &["copilot"]),
];

/// Whether a mode of this id skips questions, of whichever known agent it is.
#[must_use]
pub fn skips_questions(mode: &str) -> bool {
    // Some agents make a mode's id a whole address; what tells it apart is its end.
    let word = mode.rsplit(['#', '/']).next().unwrap_or(mode);
    UNASKED.iter().any(|(id, _)| *id == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::KNOWN;

    #[test]
    fn modes_that_skip_questions_are_told_by_their_ids() {
        for mode in
            ["bypassPermissions", "full-access", "yolo", "https://a.example/modes#autopilot"]
        {
            assert!(skips_questions(mode), "{mode}");
        }
        for mode in ["", "default", "auto", "ask", "plan", "acceptEdits", "read-only", "YOLO"] {
            assert!(!skips_questions(mode), "{mode}");
        }
    }

    #[test]
    fn the_modes_are_those_of_known_agents() {
        for kind in UNASKED.iter().flat_map(|(_, kinds)| *kinds) {
            assert!(KNOWN.iter().any(|known| known.kind == *kind), "{kind}");
        }
    }
}
