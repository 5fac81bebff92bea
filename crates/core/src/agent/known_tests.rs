use std::collections::BTreeSet;

use super::*;
use crate::agent::Asks;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(ToOwned::to_owned).collect()
}

#[test]
fn commands_are_recognised_through_paths_and_starters() {
    let table = [
        ("codex-acp", Some("codex")),
        ("/opt/x/node_modules/.bin/codex-acp-linux-x64", Some("codex")),
        ("npx -y @zed-industries/codex-acp@0.16.0", Some("codex")),
        ("claude-agent-acp", Some("claude")),
        ("npx @agentclientprotocol/claude-agent-acp", Some("claude")),
        ("setpriv --reuid=65534 --regid=65534 --clear-groups claude-agent-acp", Some("claude")),
        ("opencode acp", Some("opencode")),
        ("opencode serve", None),
        ("opencode", None),
        ("gemini --acp", Some("gemini")),
        ("gemini --experimental-acp --model x", Some("gemini")),
        ("gemini", None),
        ("env A=1 -u B gemini.cmd --acp", None),
        ("env A=1 B=2 gemini --acp", Some("gemini")),
        ("qwen --acp", Some("qwen")),
        ("kimi acp", Some("kimi")),
        ("pi-acp", Some("pi")),
        ("nanocoder --acp", Some("nanocoder")),
        ("copilot --acp", Some("copilot")),
        ("agentao --acp", Some("agentao")),
        ("python3 -m agentao --acp", Some("agentao")),
        ("fast-agent acp --model passthrough", Some("fast-agent")),
        ("vibe-acp", Some("vibe")),
        ("hermes-acp", Some("hermes")),
        ("gptme-acp", Some("gptme")),
        ("cline --acp", Some("cline")),
        ("auggie --acp", Some("auggie")),
        ("qodercli --acp", Some("qoder")),
        ("openhands acp", Some("openhands")),
        ("goose acp", Some("goose")),
        ("goose up", None),
        ("elizacp --deterministic acp", Some("elizacp")),
        ("python3.11 -m deepagents_acp", Some("deepagents")),
        ("node /w/node_modules/x/dist/gemini.js --acp", Some("gemini")),
        ("/usr/bin/frontdesk demo-agent --no-load", Some("demo")),
        ("/usr/bin/frontdesk serve", None),
        ("my-agent", None),
        ("npx", None),
        ("sh -c codex-acp", None),
        ("", None),
    ];
    for (command, kind) in table {
        assert_eq!(recognise(&words(command)).map(|known| known.kind), kind, "{command}");
    }
}

#[test]
fn the_two_packages_of_one_program_are_told_apart_by_package_then_by_initialize() {
    let old = recognise(&words("npx @zed-industries/codex-acp")).unwrap();
    assert!(old.quirks.no_exit_on_eof);
    let plain = recognise(&words("codex-acp")).unwrap();
    assert!(!plain.quirks.no_exit_on_eof);
    let refined = refine(Some(plain), "codex-acp", "0.16.0").unwrap();
    assert!(std::ptr::eq(refined, old));
    assert_eq!(refined.store.family, plain.store.family, "both write to one store");
}

#[test]
fn versions_choose_the_entry() {
    let qwen = |version| refine(None, "qwen-code", version).unwrap().quirks;
    assert!(qwen("0.15.10").loads_unknown && qwen("0.15.10").resume_mnf);
    assert!(!qwen("0.24.4").loads_unknown);
    assert!(!qwen("v1").loads_unknown, "newer ones are taken for the newest seen");
    assert!(qwen("0.23.9").loads_unknown);
    assert!(!qwen("no number").loads_unknown);
    assert!(refine(None, "nobody", "1.0").is_none());
    let demo = recognise(&words("frontdesk demo-agent"));
    assert!(std::ptr::eq(refine(demo, "nobody", "1.0").unwrap(), demo.unwrap()));
}

#[test]
fn the_table_is_sound() {
    let mut starts = BTreeSet::new();
    for known in KNOWN {
        assert!(!known.kind.is_empty() && known.kind.len() <= 64, "{}", known.kind);
        assert!(known.kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'));
        assert!(!known.title.is_empty() && !known.store.family.is_empty(), "{}", known.kind);
        assert!(known.from < known.below, "{}", known.kind);
        let leads = KNOWN.iter().find(|other| other.kind == known.kind).unwrap();
        assert_eq!(leads.store, known.store, "one kind, one store: {}", known.kind);
        if known.command.is_empty() {
            continue;
        }
        assert!(std::ptr::eq(leads, known), "{}: only the first entry is looked for", known.kind);
        assert!(starts.insert(known.command), "{}: the same command twice", known.kind);
        let command: Vec<String> = known.command.iter().map(|word| (*word).to_owned()).collect();
        assert!(std::ptr::eq(recognise(&command).unwrap(), known), "{}", known.kind);
    }
    assert_eq!(starts.len(), 21);
}

#[test]
fn every_quirk_of_the_list_is_some_agents() {
    for name in Quirks::NAMES {
        let has = KNOWN.iter().any(|known| known.quirks.present().contains(name));
        assert!(has, "{name} is nobody's quirk");
    }
}

#[test]
fn known_to_ask_means_seen_to_ask() {
    let asks: Vec<_> = KNOWN
        .iter()
        .filter(|known| known.quirks.asks == Asks::No)
        .map(|known| known.kind)
        .collect();
    assert_eq!(asks, ["pi"]);
    for kind in ["hermes", "gptme", "deepagents", "elizacp", "cline", "goose"] {
        let known = KNOWN.iter().find(|known| known.kind == kind).unwrap();
        assert_eq!(known.quirks.asks, Asks::Unknown, "{kind}");
    }
}

#[test]
fn the_home_follows_the_agents_own_environment() {
    let home = |command: &str, env: &[(&str, &str)]| {
        let env: Vec<(String, String)> =
            env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        effective_home(recognise(&words(command)), &|name| {
            env.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        })
    };
    type Env = &'static [(&'static str, &'static str)];
    let table: [(&str, Env, &str); 14] = [
        ("codex-acp", &[("HOME", "/h")], "/h/.codex"),
        ("codex-acp", &[("HOME", "/h"), ("CODEX_HOME", "/c/")], "/c"),
        ("codex-acp", &[("HOME", "/h"), ("CODEX_HOME", "/h/.codex")], "/h/.codex"),
        ("codex-acp", &[("HOME", "/h"), ("CODEX_HOME", "")], "/h/.codex"),
        ("claude-agent-acp", &[("HOME", "/h"), ("CODEX_HOME", "/c")], "/h/.claude"),
        ("gemini --acp", &[("HOME", "/h"), ("GEMINI_CLI_HOME", "/g")], "/g/.gemini"),
        ("opencode acp", &[("HOME", "/h")], "/h/.local/share/opencode"),
        ("opencode acp", &[("XDG_DATA_HOME", "/d")], "/d/opencode"),
        ("hermes-acp", &[("HOME", "/h"), ("HERMES_HOME", "/x")], "/x"),
        ("frontdesk demo-agent", &[("HOME", "/h"), ("XDG_STATE_HOME", "/s")], "/s/frontdesk-demo"),
        ("agentao --acp", &[("HOME", "/h")], "/h"),
        ("my-agent", &[("HOME", "/h/")], "/h"),
        ("my-agent", &[("HOME", "/")], "/"),
        ("codex-acp", &[], ".codex"),
    ];
    for (command, env, expected) in table {
        assert_eq!(home(command, env), expected, "{command} {env:?}");
    }
}

#[test]
fn agents_that_share_a_store_share_its_name() {
    let family = |command: &str| store_family(recognise(&words(command)), &words(command));
    assert_eq!(family("codex-acp"), family("npx @zed-industries/codex-acp"));
    assert_eq!(family("/a/b/my-agent --x"), "my-agent");
    assert_eq!(family("/c/my-agent --y"), "my-agent");
    assert_eq!(family(""), "");
}
