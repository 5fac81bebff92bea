//! Quirks: how an agent differs from one that does what the protocol says.
//!
//! Owns their names and meaning. [`super::known`] says which agent has which; an entry of the
//! configuration may add or take away single ones by name. Each comment says what was seen, where,
//! and what follows for Frontdesk. What every agent may do at any time is no quirk but a rule of
//! the rooms; `docs/tolerance.md` has both lists.

/// What is known about an agent's questions before it acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asks {
    /// A permission request was seen from it. It may have modes of its own that skip questions.
    Yes,
    /// It has no way to ask.
    No,
    /// Nothing was seen either way.
    #[default]
    Unknown,
}

/// What an agent does with a second prompt while a turn of the same session runs.
///
/// Frontdesk sends one prompt at a time, so this matters only for turns that someone else started
/// or that were closed here and still run there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Busy {
    /// Not seen.
    #[default]
    Unknown,
    /// It answers with an error.
    Refuses,
    /// The second one waits and runs when the first has ended or was cancelled.
    Queues,
    /// The second one waits, and one cancel ends both.
    CancelEndsBoth,
    /// The second one ends the first with an error.
    EndsFirst,
    /// Both run side by side.
    RunsBeside,
    /// The second one is answered at once without a turn; the first goes on.
    AnswersAtOnce,
    /// The second one is never answered.
    NeverAnswers,
}

macro_rules! quirks {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// How one agent differs from an honest one. The default is honest.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Quirks {
            $($(#[$doc])* pub $name: bool,)*
            /// Whether it is known to ask before it acts.
            pub asks: Asks,
            /// What it does with a second prompt.
            pub busy: Busy,
        }

        impl Quirks {
            /// An agent that does what the protocol says.
            pub const HONEST: Self = Self {
                $($name: false,)*
                asks: Asks::Unknown,
                busy: Busy::Unknown,
            };

            /// The names of the quirks that are either there or not, as the configuration spells
            /// them.
            pub const NAMES: &[&str] = &[$(stringify!($name),)*];

            /// Sets one quirk by name; false if there is none of that name.
            pub fn set(&mut self, name: &str, value: bool) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => return false,
                }
                true
            }

            /// The names of those that are there, in the order of [`Quirks::NAMES`].
            #[must_use]
            pub fn present(&self) -> Vec<&'static str> {
                let all = [$((stringify!($name), self.$name),)*];
                all.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect()
            }
        }
    };
}

quirks! {
    /// `session/load` of an id it never had succeeds, so a success proves nothing until its list or
    /// a turn shows the session. Seen: qwen-code 0.15, nanocoder, gptme, hermes, isaac, elizacp.
    loads_unknown;
    /// `session/load` replays nothing. The history begins with our own journal or with a note.
    /// Seen: gptme.
    load_silent;
    /// `session/load` works although `loadSession` is missing or false. Seen: gptme.
    load_hidden;
    /// `session/resume` sends the history, as load does: it is swallowed or matched like one.
    /// Seen: nanocoder, fast-agent, hermes.
    resume_replays;
    /// `session/resume` of an id it never had succeeds and makes another session, named only in
    /// `_meta`. Resume is not used where load will do. Seen: hermes.
    resume_replaces;
    /// `session/resume` is advertised and answers "method not found": load is used. Seen:
    /// qwen-code 0.15.
    resume_mnf;
    /// `session/resume` works although it is not advertised. Seen: mistral-vibe.
    resume_hidden;
    /// `session/close` is advertised and answers "method not found": unloading ends the instance.
    /// Seen: nanocoder.
    close_mnf;
    /// `session/list` works although it is not advertised. Seen: gptme.
    list_hidden;
    /// `session/list` answers `null`, which says nothing about any session. Seen: deepagents, and
    /// the Python SDK's agents that do not write one.
    list_null;
    /// `session/list` wants authentication first; its refusal is not an empty list. Seen: qodercli.
    list_needs_auth;
    /// A session without a finished turn is not saved: it is in no list and cannot be loaded after
    /// a restart, so its absence there proves nothing while it is loaded. Seen: codex-acp,
    /// claude-agent-acp, qwen-code, copilot, pi, nanocoder, fast-agent, mistral-vibe, hermes,
    /// agentao.
    list_needs_turn;
    /// Its list shows sessions of other programs that share its store, which may run there now.
    /// Seen: codex, claude, opencode.
    foreign_list;
    /// A prompt for an id that was never opened runs. Seen: elizacp, isaac, and the Python SDK's
    /// examples.
    prompt_unknown_runs;
    /// A prompt for an unknown session is answered with a result (`refusal` or `cancelled`), not
    /// with an error. Seen: fast-agent, hermes, gptme.
    prompt_unknown_result;
    /// A bare `session/prompt` revives a saved session without load or resume; so a prompt is never
    /// sent to an instance that does not own the session. Seen: pi, hermes.
    prompt_revives;
    /// Two sessions may get one id, even in one process: no claim is made by the id. Seen: gptme,
    /// whose id is a function of the folder, and SDK examples.
    ids_repeat;
    /// A session whose process is killed may be gone, so its process is ended by closing stdin and
    /// given time. Seen: gemini, agentao.
    loses_killed_sessions;
    /// A session that ended cleanly right away may be gone as well. Seen: gemini.
    loses_short_sessions;
    /// The user's text comes back as `user_message_chunk` in a live turn: it is not shown twice.
    /// Seen: mistral-vibe.
    echoes_user;
    /// `initialize` answers the asked version number in v1's shape. Seen: fast-agent, gptme,
    /// deepagents, openhands, elizacp, and an example of the Python SDK.
    version_echo;
    /// A turn that failed ends as `end_turn` (or `cancelled`), at times without any text. Seen:
    /// codex-acp 2.6, claude-agent-acp 0.23, kimi, pi, copilot, hermes, gptme.
    fails_as_ended;
    /// `session/cancel` has no effect; the turn runs to its end. Seen: gptme.
    cancel_ignored;
    /// Updates come before the first prompt (a banner): they open no turn. Seen: gptme, pi.
    early_updates;
    /// It does not end when its stdin is closed: TERM follows at once. Seen: codex-acp 0.16,
    /// claude-agent-acp 0.23, elizacp, openhands, qodercli.
    no_exit_on_eof;
    /// It does not end, or not before its turn does, when its stdin is closed in a turn. Seen:
    /// fast-agent, mistral-vibe, gptme; gemini and hermes wait for the end.
    no_exit_in_turn;
    /// It does not end on TERM: KILL follows. Seen: qodercli.
    ignores_term;
    /// The program that is started is not the agent but its parent, so only its process group ends
    /// it. Seen: gemini, qwen-code, copilot, claude-agent-acp, both codex-acp.
    kill_group_needed;
    /// For a session it does not have `session/load` answers `-32600` and nothing else does. It has
    /// no list that could tell. Seen: agentao.
    unknown_is_32600;
    /// It refuses to work as root, which explains a start that failed. Seen: claude-agent-acp 0.49 and newer.
    not_as_root;
}

impl Default for Quirks {
    fn default() -> Self {
        Self::HONEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_an_honest_agent() {
        let quirks = Quirks::default();
        assert_eq!(quirks.present(), Vec::<&str>::new());
        assert_eq!((quirks.asks, quirks.busy), (Asks::Unknown, Busy::Unknown));
    }

    #[test]
    fn every_name_can_be_set_and_taken_back() {
        for name in Quirks::NAMES {
            let mut quirks = Quirks::HONEST;
            assert!(quirks.set(name, true), "{name}");
            assert_eq!(quirks.present(), [*name]);
            assert!(quirks.set(name, false));
            assert_eq!(quirks, Quirks::HONEST);
        }
    }

    #[test]
    fn an_unknown_name_changes_nothing() {
        let mut quirks = Quirks::HONEST;
        for name in ["", "asks", "busy", "LOADS_UNKNOWN", "loads_unknown "] {
            assert!(!quirks.set(name, true), "{name:?}");
        }
        assert_eq!(quirks, Quirks::HONEST);
    }
}
