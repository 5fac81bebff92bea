//! From the file as written to a configuration that can be used: defaults, agents that are there
//! without an entry, and everything that the types alone do not rule out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use frontdesk_core::agent::{Asks, KNOWN, Known, Quirks, recognise};
use frontdesk_core::fold::ApprovalMode;
use frontdesk_core::limits::Limits;

use super::file::{Agent, File, Parsed, Places, nearest};
use super::{AgentConfig, Config, ConfigError, DEMO, Warning, reach};

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

/// Limits for which zero has a meaning: no grace, nothing kept, nothing remembered, no queue.
const ZERO_IS_FINE: &[&str] = &[
    "queued_turns",
    "cancel_grace_ms",
    "cancel_kill_ms",
    "stop_eof_ms",
    "stop_term_ms",
    "silent_orphan_ms",
    "holder_orphan_s",
    "own_holder_ms",
    "sweep_s",
    "drain_s",
    "spare_idle_s",
    "probe_negative_ms",
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

pub(super) type Find<'a> = &'a dyn Fn(&str) -> Option<PathBuf>;

/// What the agents of a file have in common.
pub(super) struct Common<'a> {
    pub(super) places: &'a Places,
    pub(super) find: Find<'a>,
    exe: Option<&'a str>,
    /// The file's own, where it has one outside of tables.
    sessions_per_instance: Option<u32>,
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
        sessions_per_instance: file.sessions_per_instance.map(Into::into),
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

pub(super) fn demo_command(common: &Common<'_>) -> Option<Vec<String>> {
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
        headers: BTreeMap::new(),
        ca: None,
        sessions_per_instance: common.sessions_per_instance.unwrap_or(SESSIONS_PER_INSTANCE),
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
    let (command, urls) = reach::way(&name, &entry, common)?;
    if let Some(program) = command.first() {
        reach::check_program(&name, program, &entry, common, warnings)?;
    } else {
        reach::check_urls(&name, &urls, &entry, places, warnings)?;
    }
    if command.iter().any(|word| word.contains('\0')) {
        return Err(places.invalid(&at("command"), format!("agent `{name}`: a zero byte")));
    }
    let sessions_per_instance = sessions_max(&entry, !urls.is_empty(), common)
        .map_err(|text| places.invalid(&at("sessions_per_instance"), text))?;
    let env = reach::environment(&name, entry.env, places)?;
    let headers = reach::headers(&name, entry.headers, !urls.is_empty(), places, warnings)?;
    let ca = reach::issuers(&name, entry.ca, &urls, places, warnings)?;
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
        headers,
        ca,
        sessions_per_instance,
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

/// How many sessions one instance may have. Whoever runs an agent behind an address knows best, so
/// there is no limit there unless the file has one.
fn sessions_max(entry: &Agent, has_urls: bool, common: &Common<'_>) -> Result<u32, String> {
    match entry.sessions_per_instance.or(common.sessions_per_instance) {
        None if has_urls => Ok(0),
        None => Ok(SESSIONS_PER_INSTANCE),
        Some(0) if !has_urls => Err("`sessions_per_instance` is 0; it has to be from 1, since only with `urls` there may be no limit".to_owned()),
        Some(number) => Ok(number),
    }
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

pub(super) fn by_kind(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.kind == name)
}

fn is_name(name: &str) -> bool {
    (1..=NAME_CHARS).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

pub(super) fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
