//! From the file as written to a configuration that can be used: defaults, agents that are there
//! without an entry, and everything that the types alone do not rule out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use frontdesk_core::agent::{Asks, KNOWN, Known, Quirks, recognise};
use frontdesk_core::fold::ApprovalMode;
use frontdesk_core::limits::Limits;

use super::file::{Agent, File, Parsed, Places, nearest};
use super::{AgentConfig, Config, ConfigError, DEMO, Warning};

/// Sessions of one instance where the file does not say.
const SESSIONS_PER_INSTANCE: u32 = 1;
/// Longest time that can be configured, in seconds: one year.
const LONGEST_S: u64 = 366 * 24 * 3_600;
/// Longest frame that can be configured, in bytes; places in a frame are 32-bit numbers.
const LONGEST_FRAME_BYTES: u64 = 1 << 30;
/// Shortest longest frame, in bytes; below it not even a greeting fits.
const SHORTEST_FRAME_BYTES: u64 = 1 << 10;
/// Longest agent name, in characters.
const NAME_CHARS: usize = 64;
/// Set in an agent's environment by its holder.
const MARK: &str = "FRONTDESK_INSTANCE";

/// Limits for which zero has a meaning: no grace, nothing kept, nothing remembered, no queue.
const ZERO_IS_FINE: &[&str] = &[
    "queued_turns",
    "cancel_grace_ms",
    "cancel_kill_ms",
    "stop_eof_ms",
    "stop_term_ms",
    "silent_orphan_ms",
    "holder_orphan_s",
    "sweep_s",
    "drain_s",
    "spare_idle_s",
    "list_fresh_ms",
    "list_wait_ms",
    "early_frames",
    "noise_bytes",
    "stderr_bytes",
    "client_garbage_lines",
    "client_eof_ms",
    "stream_sync_ms",
    "commit_delay_ms",
    "index_delay_ms",
    "index_wait_ms",
    "msp_list_ms",
    "reserve_bytes",
    "watched_folders",
];

type Find<'a> = &'a dyn Fn(&str) -> Option<PathBuf>;

/// What the agents of a file have in common.
struct Common<'a> {
    places: &'a Places,
    find: Find<'a>,
    exe: Option<&'a str>,
    sessions_per_instance: u32,
    idle_unload_s: u64,
    approval_mode: Option<ApprovalMode>,
}

pub(super) fn build(
    parsed: Parsed,
    find: Find<'_>,
    exe: &Path,
) -> Result<(Config, Vec<Warning>), ConfigError> {
    let Parsed { file, places, mut warnings } = parsed;
    let limits = limits(&file, &places)?;
    let mut policy = file.policy;
    let approval_mode = match policy.remove("approval_mode") {
        None => None,
        Some(value) => Some(approval_mode(&value, &["policy", "approval_mode"], &places)?),
    };
    for name in policy.keys() {
        let text = format!("`{name}` in [policy] is read but not used by this version");
        warnings.push(places.warning(&["policy", name], text));
    }
    if !file.http.is_empty() {
        let text = "the table [http] is read but not used by this version".to_owned();
        warnings.push(places.warning(&["http"], text));
    }
    let common = Common {
        places: &places,
        find,
        exe: exe.to_str(),
        sessions_per_instance: file.sessions_per_instance.map_or(SESSIONS_PER_INSTANCE, Into::into),
        idle_unload_s: limits.idle_unload_s,
        approval_mode,
    };
    let agents = agents(file.agents, &common, &mut warnings)?;
    let default_agent = default_agent(file.default_agent, &agents, &places)?;
    let status_words = file.status_words;
    let fingerprint = fingerprint(file.msp.fingerprint, &places)?;
    let http = file.http;
    let config = Config {
        default_agent,
        agents,
        status_words,
        limits,
        fingerprint,
        approval_mode,
        policy,
        http,
    };
    Ok((config, warnings))
}

/// One of the four modes, or an error that names them.
fn approval_mode<S: AsRef<str>>(
    value: &toml::Value,
    key: &[S],
    places: &Places,
) -> Result<ApprovalMode, ConfigError> {
    value.as_str().and_then(ApprovalMode::from_text).ok_or_else(|| {
        let known = ApprovalMode::ALL.map(|mode| format!("\"{}\"", mode.as_str())).join(", ");
        places.invalid(key, format!("`approval_mode` is {value}; it has to be one of {known}"))
    })
}

/// `[msp] fingerprint`: the form that every release's has.
fn fingerprint(told: Option<String>, places: &Places) -> Result<Option<String>, ConfigError> {
    let Some(print) = told else { return Ok(None) };
    let hex = print.strip_prefix("sha256:").unwrap_or_default();
    if hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return Ok(Some(print));
    }
    let text = "`fingerprint` has to be \"sha256:\" and 64 small hexadecimal digits";
    Err(places.invalid(&["msp", "fingerprint"], text.to_owned()))
}

/// The limits, with `idle_unload_s` from whichever of its two places has it.
fn limits(file: &File, places: &Places) -> Result<Limits, ConfigError> {
    let mut limits = file.limits.clone();
    if let Some(top) = file.idle_unload_s {
        let inner = ["limits", "idle_unload_s"];
        if places.has(&inner) && limits.idle_unload_s != top.get() {
            let text = "`idle_unload_s` is set twice with two values; keep the one at the top";
            return Err(places.invalid(&inner, text.to_owned()));
        }
        limits.idle_unload_s = top.get();
    }
    let values = serde_json::to_value(&limits).unwrap_or_default();
    for name in Limits::NAMES {
        let value = values[*name].as_u64().unwrap_or(0);
        let (least, most) = bounds(name);
        if !(least..=most).contains(&value) {
            let text = format!("`{name}` is {value}; it has to be from {least} to {most}");
            let key: &[&str] = if *name == "idle_unload_s" && !places.has(&["limits", name]) {
                &[name]
            } else {
                &["limits", name]
            };
            return Err(places.invalid(key, text));
        }
    }
    Ok(limits)
}

/// The least and the greatest value of a limit.
pub(super) fn bounds(name: &str) -> (u64, u64) {
    let least = match name {
        "frame_bytes" | "msp_frame_bytes" => SHORTEST_FRAME_BYTES,
        name if ZERO_IS_FINE.contains(&name) => 0,
        _ => 1,
    };
    let most = match name {
        "frame_bytes" => LONGEST_FRAME_BYTES,
        // What the protocol allows; clients drop longer ones.
        "msp_frame_bytes" => Limits::default().msp_frame_bytes,
        name if name.ends_with("_ms") => LONGEST_S * 1_000,
        name if name.ends_with("_s") => LONGEST_S,
        _ => i64::MAX.unsigned_abs(),
    };
    (least, most)
}

/// The file's agents in its order, then the known ones on `PATH`, then `demo`.
fn agents(
    entries: BTreeMap<String, Agent>,
    common: &Common<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<AgentConfig>, ConfigError> {
    let mut entries: Vec<(String, Agent)> = entries.into_iter().collect();
    entries.sort_by_key(|(name, _)| common.places.line(&["agents", name.as_str()]));
    let mut agents = Vec::new();
    for (name, entry) in entries {
        agents.push(agent(name, entry, common, warnings)?);
    }
    for known in KNOWN.iter().filter(|known| !known.command.is_empty()) {
        let there = agents.iter().any(|agent| agent.name == known.kind);
        if !there && known.command.first().is_some_and(|name| (common.find)(name).is_some()) {
            let command = owned(known.command);
            agents.push(plain(known.kind, command, Some(known), common));
        }
    }
    if !agents.iter().any(|agent| agent.name == DEMO) {
        match demo_command(common) {
            Some(command) => {
                let known = recognise(&command).or_else(|| by_kind(DEMO));
                agents.push(plain(DEMO, command, known, common));
            }
            None => warnings.push(Warning {
                file: common.places.path().to_path_buf(),
                line: None,
                text: "the built-in agent `demo` is left out: this program's path is not UTF-8"
                    .to_owned(),
            }),
        }
    }
    Ok(agents)
}

fn demo_command(common: &Common<'_>) -> Option<Vec<String>> {
    Some(owned(&[common.exe?, "demo-agent"]))
}

/// An agent that is there without an entry.
fn plain(
    name: &str,
    command: Vec<String>,
    known: Option<&'static Known>,
    common: &Common<'_>,
) -> AgentConfig {
    AgentConfig {
        name: name.to_owned(),
        command,
        env: BTreeMap::new(),
        cwd: None,
        urls: Vec::new(),
        sessions_per_instance: common.sessions_per_instance,
        idle_unload_s: common.idle_unload_s,
        approval_mode: common.approval_mode,
        asks: None,
        known,
        quirks: quirks(known, &[], None),
        quirk_changes: Vec::new(),
    }
}

/// One entry of the file.
fn agent(
    name: String,
    entry: Agent,
    common: &Common<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<AgentConfig, ConfigError> {
    let places = common.places;
    let at = |key: &'static str| ["agents".to_owned(), name.clone(), key.to_owned()];
    if !is_name(&name) {
        let text = format!(
            "`{}` is no agent name: 1 to {NAME_CHARS} letters, digits, `_` and `-`",
            name.escape_debug()
        );
        return Err(places.invalid(&at(""), text));
    }
    let (command, urls) = way(&name, &entry, common)?;
    if let Some(program) = command.first() {
        check_program(&name, program, &entry, common, warnings)?;
    } else {
        check_urls(&name, &urls, &entry, places, warnings)?;
    }
    if command.iter().any(|word| word.contains('\0')) {
        return Err(places.invalid(&at("command"), format!("agent `{name}`: a zero byte")));
    }
    let env = environment(&name, entry.env, places)?;
    if entry.cwd.as_ref().is_some_and(|cwd| !cwd.is_absolute()) {
        return Err(places.invalid(&at("cwd"), format!("agent `{name}`: `cwd` is no full path")));
    }
    let quirk_changes = quirk_changes(&name, &entry.quirks, places, warnings);
    // A wrapper under a known name is taken for what it is called: a store that is named once too
    // often refuses too much, one that is named differently gives a session two owners.
    let known = if urls.is_empty() { recognise(&command).or_else(|| by_kind(&name)) } else { None };
    Ok(AgentConfig {
        quirks: quirks(known, &quirk_changes, entry.asks),
        command,
        env,
        cwd: entry.cwd,
        urls,
        sessions_per_instance: entry
            .sessions_per_instance
            .map_or(common.sessions_per_instance, Into::into),
        idle_unload_s: idle(entry.idle_unload_s.map(Into::into), &at("idle_unload_s"), common)?,
        approval_mode: match entry.approval_mode {
            Some(word) => {
                let value = toml::Value::String(word);
                Some(approval_mode(&value, &at("approval_mode"), places)?)
            }
            None => common.approval_mode,
        },
        asks: entry.asks,
        known,
        quirk_changes,
        name,
    })
}

/// How an entry reaches its agent: by command, by addresses, or as the known one of that name.
fn way(
    name: &str,
    entry: &Agent,
    common: &Common<'_>,
) -> Result<(Vec<String>, Vec<String>), ConfigError> {
    let invalid = |key: &str, text: &str| {
        common.places.invalid(&["agents", name, key], format!("agent `{name}`: {text}"))
    };
    match (&entry.command, &entry.urls) {
        (Some(_), Some(_)) => Err(invalid("urls", "it has both `command` and `urls`; keep one")),
        (Some(command), None) if command.first().is_none_or(String::is_empty) => {
            Err(invalid("command", "`command` has no program"))
        }
        (Some(command), None) => Ok((command.clone(), Vec::new())),
        (None, Some(urls)) if urls.is_empty() => Err(invalid("urls", "`urls` is empty")),
        (None, Some(urls)) => Ok((Vec::new(), urls.clone())),
        (None, None) => {
            let known = by_kind(name).map(|known| owned(known.command));
            let demo = if name == DEMO { demo_command(common) } else { None };
            let command = demo.or(known.filter(|command| !command.is_empty()));
            let text = "it needs `command` or `urls`, since it is no agent that Frontdesk knows";
            command.map(|command| (command, Vec::new())).ok_or_else(|| invalid("", text))
        }
    }
}

fn check_program(
    name: &str,
    program: &str,
    entry: &Agent,
    common: &Common<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<(), ConfigError> {
    let key = ["agents", name, "command"];
    if program.contains('/') && !Path::new(program).is_absolute() {
        let text = format!("agent `{name}`: `{program}` is neither a full path nor a plain name");
        return Err(common.places.invalid(&key, text));
    }
    if !entry.env.0.contains_key("PATH") && (common.find)(program).is_none() {
        let text = format!("agent `{name}`: failed to find the program `{program}`");
        warnings.push(common.places.warning(&key, text));
    }
    Ok(())
}

fn check_urls(
    name: &str,
    urls: &[String],
    entry: &Agent,
    places: &Places,
    warnings: &mut Vec<Warning>,
) -> Result<(), ConfigError> {
    for (index, url) in urls.iter().enumerate() {
        let rest = url.strip_prefix("ws://").or_else(|| url.strip_prefix("wss://"));
        let has_host = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', '?']));
        let is_clean = !url.chars().any(|c| c.is_whitespace() || c.is_control());
        let shown = super::without_secrets(url);
        let wrong = if !has_host || !is_clean {
            Some(format!("`{shown}` is no address like ws://HOST:PORT/PATH"))
        } else {
            urls[..index].contains(url).then(|| format!("`{shown}` is there twice"))
        };
        if let Some(text) = wrong {
            return Err(
                places.invalid(&["agents", name, "urls"], format!("agent `{name}`: {text}"))
            );
        }
    }
    for (key, set) in [("env", !entry.env.0.is_empty()), ("cwd", entry.cwd.is_some())] {
        if set {
            let text =
                format!("agent `{name}`: `{key}` has no effect, since `urls` starts nothing");
            warnings.push(places.warning(&["agents", name, key], text));
        }
    }
    Ok(())
}

fn environment(
    name: &str,
    env: super::file::Env,
    places: &Places,
) -> Result<BTreeMap<String, String>, ConfigError> {
    for (key, value) in &env.0 {
        let wrong = if key == MARK {
            Some("is set by Frontdesk itself")
        } else if key.is_empty() || key.contains(['=', '\0']) {
            Some("is no name of an environment variable")
        } else if value.contains('\0') {
            Some("holds a zero byte")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            let text = format!("agent `{name}`: `{}` {wrong}", key.escape_debug());
            return Err(places.invalid(&["agents", name, "env", key], text));
        }
    }
    Ok(env.0)
}

/// The named quirks; a `!` in front takes one away.
fn quirk_changes(
    name: &str,
    words: &[String],
    places: &Places,
    warnings: &mut Vec<Warning>,
) -> Vec<(String, bool)> {
    let mut changes = Vec::new();
    for word in words {
        let quirk = word.strip_prefix('!').unwrap_or(word);
        if Quirks::NAMES.contains(&quirk) {
            changes.push((quirk.to_owned(), !word.starts_with('!')));
            continue;
        }
        let meant = nearest(quirk, Quirks::NAMES)
            .map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
        let text = format!("agent `{name}`: there is no quirk `{}`{meant}", quirk.escape_debug());
        warnings.push(places.warning(&["agents", name, "quirks"], text));
    }
    changes
}

/// A known agent's quirks with changes on top.
pub(super) fn quirks(
    known: Option<&'static Known>,
    changes: &[(String, bool)],
    asks: Option<bool>,
) -> Quirks {
    let mut quirks = known.map_or(Quirks::HONEST, |known| known.quirks);
    for (name, value) in changes {
        quirks.set(name, *value);
    }
    match asks {
        Some(true) => quirks.asks = Asks::Yes,
        Some(false) => quirks.asks = Asks::No,
        None => {}
    }
    quirks
}

fn idle(own: Option<u64>, key: &[String], common: &Common<'_>) -> Result<u64, ConfigError> {
    let value = own.unwrap_or(common.idle_unload_s);
    if value > LONGEST_S {
        let text = format!("`idle_unload_s` is {value}; it has to be from 1 to {LONGEST_S}");
        return Err(common.places.invalid(key, text));
    }
    Ok(value)
}

fn default_agent(
    asked: Option<String>,
    agents: &[AgentConfig],
    places: &Places,
) -> Result<String, ConfigError> {
    let Some(asked) = asked else {
        let first = agents.iter().find(|agent| agent.name != DEMO).or(agents.first());
        return Ok(first.map_or_else(|| DEMO.to_owned(), |agent| agent.name.clone()));
    };
    if agents.iter().any(|agent| agent.name == asked) {
        return Ok(asked);
    }
    let names: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
    let meant = nearest(&asked, &names).map_or_else(
        || format!("the agents are: {}", names.join(", ")),
        |meant| format!("did you mean `{meant}`?"),
    );
    let text = format!("there is no agent `{}`; {meant}", asked.escape_debug());
    Err(places.invalid(&["default_agent"], text))
}

fn by_kind(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.kind == name)
}

fn is_name(name: &str) -> bool {
    (1..=NAME_CHARS).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
