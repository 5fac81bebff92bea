//! The known agents: one entry each, or one a range of versions.
//!
//! A new agent is one entry here. What an entry says was seen on the version named beside it; a
//! version that was not seen gets the entry of the nearest one. Facts only: what a quirk means is
//! in [`super::quirks`].

use super::known::{Known, Store};
use super::quirks::{Asks, Busy, Quirks};

/// Any version.
const NEWEST: (u32, u32) = (u32::MAX, u32::MAX);

/// What an entry has unless it says otherwise.
pub(super) const BLANK: Known = Known {
    kind: "",
    title: "",
    programs: &[],
    packages: &[],
    needs: &[],
    command: &[],
    infos: &[],
    from: (0, 0),
    below: NEWEST,
    store: Store { family: "", vars: &[], below_home: "" },
    quirks: Quirks::HONEST,
};

const CODEX_STORE: Store =
    Store { family: "codex", vars: &[("CODEX_HOME", "")], below_home: ".codex" };
const CLAUDE_STORE: Store =
    Store { family: "claude", vars: &[("CLAUDE_CONFIG_DIR", "")], below_home: ".claude" };
const QWEN_STORE: Store = Store {
    family: "qwen",
    vars: &[("QWEN_RUNTIME_DIR", ""), ("QWEN_HOME", "")],
    below_home: ".qwen",
};

const CLAUDE: Quirks = Quirks {
    list_needs_turn: true,
    foreign_list: true,
    kill_group_needed: true,
    not_as_root: true,
    asks: Asks::Yes,
    ..Quirks::HONEST
};
const QWEN: Quirks = Quirks {
    list_needs_turn: true,
    kill_group_needed: true,
    asks: Asks::Yes,
    busy: Busy::EndsFirst,
    ..Quirks::HONEST
};

/// A store below `HOME` that no variable is known to move.
const fn home_store(family: &'static str) -> Store {
    Store { family, vars: &[], below_home: "" }
}

/// All known agents. The order is the order of preference where nobody named a default; the first
/// entry of a kind stands for it until `initialize` has told the version.
pub static KNOWN: &[Known] = &[
    Known {
        kind: "claude",
        title: "Claude Code",
        programs: &["claude-agent-acp", "claude-code-acp"],
        packages: &["@agentclientprotocol/claude-agent-acp"],
        command: &["claude-agent-acp"],
        infos: &["@agentclientprotocol/claude-agent-acp"],
        from: (0, 101),
        store: CLAUDE_STORE,
        quirks: Quirks { busy: Busy::CancelEndsBoth, ..CLAUDE },
        ..BLANK
    },
    // Seen: 0.49.0.
    Known {
        kind: "claude",
        title: "Claude Code",
        infos: &["@agentclientprotocol/claude-agent-acp"],
        below: (0, 101),
        store: CLAUDE_STORE,
        quirks: CLAUDE,
        ..BLANK
    },
    // The earlier name of the package; seen: 0.23.1.
    Known {
        kind: "claude",
        title: "Claude Code",
        packages: &["@zed-industries/claude-agent-acp", "@zed-industries/claude-code-acp"],
        infos: &["@zed-industries/claude-agent-acp"],
        store: CLAUDE_STORE,
        quirks: Quirks { no_exit_on_eof: true, fails_as_ended: true, not_as_root: false, ..CLAUDE },
        ..BLANK
    },
    // Seen: 2.6.0.
    Known {
        kind: "codex",
        title: "Codex",
        programs: &["codex-acp"],
        packages: &["@agentclientprotocol/codex-acp"],
        command: &["codex-acp"],
        infos: &["@agentclientprotocol/codex-acp"],
        store: CODEX_STORE,
        quirks: Quirks {
            list_needs_turn: true,
            foreign_list: true,
            fails_as_ended: true,
            kill_group_needed: true,
            asks: Asks::Yes,
            busy: Busy::Queues,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // The earlier package; its npm command wraps the program `codex-acp-PLATFORM`. Seen: 0.16.0.
    Known {
        kind: "codex",
        title: "Codex",
        programs: &["codex-acp-*"],
        packages: &["@zed-industries/codex-acp"],
        infos: &["codex-acp"],
        store: CODEX_STORE,
        quirks: Quirks {
            list_needs_turn: true,
            foreign_list: true,
            no_exit_on_eof: true,
            kill_group_needed: true,
            asks: Asks::Yes,
            busy: Busy::NeverAnswers,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Seen: 1.18.33.
    Known {
        kind: "opencode",
        title: "OpenCode",
        programs: &["opencode"],
        packages: &["opencode-ai"],
        needs: &["acp"],
        command: &["opencode", "acp"],
        infos: &["OpenCode"],
        store: Store {
            family: "opencode",
            vars: &[("XDG_DATA_HOME", "opencode")],
            below_home: ".local/share/opencode",
        },
        quirks: Quirks {
            foreign_list: true,
            asks: Asks::Yes,
            busy: Busy::CancelEndsBoth,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Seen: 0.61.0.
    Known {
        kind: "gemini",
        title: "Gemini CLI",
        programs: &["gemini"],
        packages: &["@google/gemini-cli"],
        needs: &["--acp", "--experimental-acp"],
        command: &["gemini", "--acp"],
        infos: &["gemini-cli"],
        store: Store {
            family: "gemini",
            vars: &[("GEMINI_CLI_HOME", ".gemini")],
            below_home: ".gemini",
        },
        quirks: Quirks {
            loses_killed_sessions: true,
            loses_short_sessions: true,
            no_exit_in_turn: true,
            kill_group_needed: true,
            asks: Asks::Yes,
            busy: Busy::RunsBeside,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Seen: 0.24.4.
    Known {
        kind: "qwen",
        title: "Qwen Code",
        programs: &["qwen"],
        packages: &["@qwen-code/qwen-code"],
        needs: &["--acp", "--experimental-acp"],
        command: &["qwen", "--acp"],
        infos: &["qwen-code"],
        from: (0, 24),
        store: QWEN_STORE,
        quirks: QWEN,
        ..BLANK
    },
    // Seen: 0.15.10.
    Known {
        kind: "qwen",
        title: "Qwen Code",
        infos: &["qwen-code"],
        below: (0, 24),
        store: QWEN_STORE,
        quirks: Quirks { loads_unknown: true, resume_mnf: true, busy: Busy::Unknown, ..QWEN },
        ..BLANK
    },
    // Seen: 2.1.0.
    Known {
        kind: "kimi",
        title: "Kimi Code",
        programs: &["kimi"],
        packages: &["@moonshot-ai/kimi-code"],
        needs: &["acp", "--acp"],
        command: &["kimi", "acp"],
        infos: &["Kimi Code CLI"],
        store: Store { family: "kimi", vars: &[("KIMI_CODE_HOME", "")], below_home: ".kimi-code" },
        quirks: Quirks {
            fails_as_ended: true,
            asks: Asks::Yes,
            busy: Busy::Refuses,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Seen: 1.0.102.
    Known {
        kind: "copilot",
        title: "GitHub Copilot",
        programs: &["copilot"],
        packages: &["@github/copilot"],
        needs: &["--acp"],
        command: &["copilot", "--acp"],
        infos: &["Copilot"],
        store: Store { family: "copilot", vars: &[("COPILOT_HOME", "")], below_home: ".copilot" },
        quirks: Quirks {
            list_needs_turn: true,
            fails_as_ended: true,
            kill_group_needed: true,
            asks: Asks::Yes,
            busy: Busy::AnswersAtOnce,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Seen: 3.0.2.
    Known {
        kind: "vibe",
        title: "Mistral Vibe",
        programs: &["vibe-acp"],
        packages: &["mistral-vibe"],
        command: &["vibe-acp"],
        infos: &["@mistralai/mistral-vibe"],
        store: Store { family: "vibe", vars: &[("VIBE_HOME", "")], below_home: ".vibe" },
        quirks: Quirks {
            resume_hidden: true,
            list_needs_turn: true,
            echoes_user: true,
            no_exit_in_turn: true,
            asks: Asks::Yes,
            busy: Busy::Refuses,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Seen: the adapter 0.0.34 with pi 1.6.0. It never asks, because pi does not.
    Known {
        kind: "pi",
        title: "pi",
        programs: &["pi-acp"],
        packages: &["pi-acp"],
        command: &["pi-acp"],
        infos: &["pi-acp"],
        store: Store {
            family: "pi",
            vars: &[("PI_CODING_AGENT_DIR", "")],
            below_home: ".pi/agent",
        },
        quirks: Quirks {
            list_needs_turn: true,
            prompt_revives: true,
            fails_as_ended: true,
            early_updates: true,
            asks: Asks::No,
            busy: Busy::CancelEndsBoth,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Seen: 1.30.0.
    Known {
        kind: "nanocoder",
        title: "Nanocoder",
        programs: &["nanocoder"],
        packages: &["@nanocollective/nanocoder"],
        needs: &["--acp"],
        command: &["nanocoder", "--acp"],
        infos: &["nanocoder"],
        store: home_store("nanocoder"),
        quirks: Quirks {
            loads_unknown: true,
            resume_replays: true,
            close_mnf: true,
            list_needs_turn: true,
            asks: Asks::Yes,
            busy: Busy::Refuses,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Seen: 0.5.17.
    Known {
        kind: "agentao",
        title: "Agentao",
        programs: &["agentao"],
        packages: &["agentao"],
        needs: &["--acp"],
        command: &["agentao", "--acp"],
        infos: &["agentao"],
        store: home_store("agentao"),
        quirks: Quirks {
            list_needs_turn: true,
            loses_killed_sessions: true,
            unknown_is_32600: true,
            asks: Asks::Yes,
            busy: Busy::Refuses,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Seen: 0.10.48.
    Known {
        kind: "fast-agent",
        title: "fast-agent",
        programs: &["fast-agent"],
        packages: &["fast-agent-mcp"],
        needs: &["acp"],
        command: &["fast-agent", "acp"],
        infos: &["fast-agent-acp"],
        store: home_store("fast-agent"),
        quirks: Quirks {
            resume_replays: true,
            list_needs_turn: true,
            prompt_unknown_result: true,
            version_echo: true,
            no_exit_in_turn: true,
            asks: Asks::Yes,
            busy: Busy::Queues,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Seen: 0.19.0.
    Known {
        kind: "hermes",
        title: "Hermes",
        programs: &["hermes-acp"],
        packages: &["hermes-agent"],
        command: &["hermes-acp"],
        infos: &["hermes-agent"],
        store: Store { family: "hermes", vars: &[("HERMES_HOME", "")], below_home: ".hermes" },
        quirks: Quirks {
            loads_unknown: true,
            resume_replays: true,
            resume_replaces: true,
            list_needs_turn: true,
            prompt_unknown_result: true,
            prompt_revives: true,
            fails_as_ended: true,
            no_exit_in_turn: true,
            busy: Busy::AnswersAtOnce,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Seen: 0.35.1.
    Known {
        kind: "gptme",
        title: "gptme",
        programs: &["gptme-acp"],
        packages: &["gptme-acp"],
        command: &["gptme-acp"],
        infos: &["gptme"],
        store: home_store("gptme"),
        quirks: Quirks {
            loads_unknown: true,
            load_silent: true,
            load_hidden: true,
            list_hidden: true,
            prompt_unknown_result: true,
            ids_repeat: true,
            version_echo: true,
            fails_as_ended: true,
            cancel_ignored: true,
            early_updates: true,
            no_exit_in_turn: true,
            busy: Busy::NeverAnswers,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Seen: 3.0.65, no turn.
    Known {
        kind: "cline",
        title: "Cline",
        programs: &["cline"],
        packages: &["cline"],
        needs: &["--acp"],
        command: &["cline", "--acp"],
        infos: &["cline"],
        store: home_store("cline"),
        ..BLANK
    },
    // Seen: 0.36.0, no turn. It wants a log-in and advertises no way to do it.
    Known {
        kind: "auggie",
        title: "Auggie",
        programs: &["auggie"],
        packages: &["@augmentcode/auggie"],
        needs: &["--acp"],
        command: &["auggie", "--acp"],
        infos: &["auggie"],
        store: home_store("auggie"),
        ..BLANK
    },
    // Seen: 1.1.52, no turn.
    Known {
        kind: "qoder",
        title: "Qoder CLI",
        programs: &["qodercli"],
        packages: &["@qoder-ai/qodercli"],
        needs: &["--acp"],
        command: &["qodercli", "--acp"],
        infos: &["qoder-cli"],
        store: home_store("qoder"),
        quirks: Quirks {
            list_needs_auth: true,
            no_exit_on_eof: true,
            ignores_term: true,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Seen: 1.16.0, no turn.
    Known {
        kind: "openhands",
        title: "OpenHands",
        programs: &["openhands"],
        packages: &["openhands"],
        needs: &["acp"],
        command: &["openhands", "acp"],
        infos: &["OpenHands CLI ACP Agent"],
        store: home_store("openhands"),
        quirks: Quirks { version_echo: true, no_exit_on_eof: true, ..Quirks::HONEST },
        ..BLANK
    },
    // Not seen.
    Known {
        kind: "goose",
        title: "goose",
        programs: &["goose"],
        needs: &["acp"],
        command: &["goose", "acp"],
        store: home_store("goose"),
        ..BLANK
    },
    // Seen: 0.4.0; its turns were not tried.
    Known {
        kind: "isaac",
        title: "Isaac",
        programs: &["isaac-acp"],
        packages: &["isaac-acp"],
        command: &["isaac-acp"],
        store: home_store("isaac"),
        quirks: Quirks { loads_unknown: true, prompt_unknown_runs: true, ..Quirks::HONEST },
        ..BLANK
    },
    // Seen: 0.0.13. It has no program of its own.
    Known {
        kind: "deepagents",
        title: "Deep Agents",
        packages: &["deepagents_acp", "deepagents-acp"],
        store: home_store("deepagents"),
        quirks: Quirks { list_null: true, version_echo: true, ..Quirks::HONEST },
        ..BLANK
    },
    // Seen: 12.0.0. It needs no model and remembers nothing.
    Known {
        kind: "elizacp",
        title: "Eliza",
        programs: &["elizacp"],
        needs: &["acp"],
        command: &["elizacp", "acp"],
        store: home_store("elizacp"),
        quirks: Quirks {
            loads_unknown: true,
            prompt_unknown_runs: true,
            version_echo: true,
            no_exit_on_eof: true,
            ..Quirks::HONEST
        },
        ..BLANK
    },
    // Frontdesk's own scripted agent. Its command is this very program, so it is not looked for.
    Known {
        kind: "demo",
        title: "Frontdesk demo agent",
        programs: &["frontdesk"],
        needs: &["demo-agent"],
        store: Store {
            family: "frontdesk-demo",
            vars: &[("FRONTDESK_DEMO_STORE", ""), ("XDG_STATE_HOME", "frontdesk-demo")],
            below_home: ".local/state/frontdesk-demo",
        },
        quirks: Quirks { asks: Asks::Yes, ..Quirks::HONEST },
        ..BLANK
    },
];
