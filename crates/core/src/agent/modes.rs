//! Agents' own modes in which they act without asking.
//!
//! In such a mode a policy for questions settles nothing, so none is claimed ([`crate::policy`]). The
//! modes are told apart by their ids alone, because an agent may run under any name. A mode that
//! asks less but still asks is not here.

/// The ids, and whose they are.
const UNASKED: &[(&str, &[&str])] = &[
    ("bypassPermissions", &["claude"]),
    ("dontAsk", &["claude"]),
    ("full-access", &["codex"]),
    ("agent-full-access", &["codex"]),
    ("yolo", &["gemini", "qwen", "nanocoder", "isaac", "kimi"]),
    ("auto-approve", &["vibe"]),
    ("dont_ask", &["hermes"]),
    ("accept_everything", &["deepagents"]),
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
