//! How an entry reaches its agent: a program with its environment, or addresses with their headers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tokio_tungstenite::tungstenite;
use tungstenite::http::{HeaderName, HeaderValue};

use super::build::{Common, by_kind, demo_command, owned};
use super::file::{Agent, Places, Secrets};
use super::{ConfigError, DEMO, URLS_MAX, Warning};

/// Set in an agent's environment by its holder.
const MARK: &str = "FRONTDESK_INSTANCE";
/// Headers that a connection makes by itself.
const OWN_HEADERS: &[&str] = &["host", "connection", "upgrade"];

/// How an entry reaches its agent: by command, by addresses, or as the known one of that name.
pub(super) fn way(
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
        (None, Some(urls)) if urls.len() > URLS_MAX => {
            let text = format!("`urls` has {} addresses; {URLS_MAX} are the most", urls.len());
            Err(invalid("urls", &text))
        }
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

pub(super) fn check_program(
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

pub(super) fn check_urls(
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
        let host = rest.and_then(|rest| rest.split(['/', '?']).next()).unwrap_or_default();
        let wrong = if !has_host || !is_clean || !has_port_or_none(url) {
            Some(format!(
                "`{shown}` is no address like ws://HOST:PORT/PATH or wss://HOST:PORT/PATH"
            ))
        } else if host.contains('@') {
            Some(format!("`{shown}` has a user name in it; put what it is for into `headers`"))
        } else if url.contains('#') {
            Some(format!("`{shown}` has a `#` part, which no server gets"))
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

pub(super) fn environment(
    name: &str,
    env: super::file::Secrets,
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

/// Whether what stands behind the host, if anything does, is a port.
fn has_port_or_none(url: &str) -> bool {
    let uri = url.parse::<tungstenite::http::Uri>().ok();
    let authority = uri.as_ref().and_then(|uri| uri.authority());
    authority.is_some_and(|all| all.as_str().ends_with(all.host()) || all.port_u16().is_some())
}

/// The file of issuers of an entry. What is in it is read with each connection.
pub(super) fn issuers(
    name: &str,
    ca: Option<PathBuf>,
    urls: &[String],
    places: &Places,
    warnings: &mut Vec<Warning>,
) -> Result<Option<PathBuf>, ConfigError> {
    let key = ["agents", name, "ca"];
    let Some(path) = ca else { return Ok(None) };
    if !path.is_absolute() {
        return Err(places.invalid(&key, format!("agent `{name}`: `ca` is no full path")));
    }
    if !urls.iter().any(|url| url.starts_with("wss://")) {
        let text = format!("agent `{name}`: `ca` has no effect without a wss:// address");
        warnings.push(places.warning(&key, text));
    } else if !path.is_file() {
        let text = format!("agent `{name}`: failed to find the file `{}`", path.display());
        warnings.push(places.warning(&key, text));
    }
    Ok(Some(path))
}

/// The headers of the request that opens a connection.
pub(super) fn headers(
    name: &str,
    headers: Secrets,
    has_urls: bool,
    places: &Places,
    warnings: &mut Vec<Warning>,
) -> Result<BTreeMap<String, String>, ConfigError> {
    if !has_urls && !headers.0.is_empty() {
        let text = format!("agent `{name}`: `headers` has no effect without `urls`");
        warnings.push(places.warning(&["agents", name, "headers"], text));
    }
    for (key, value) in &headers.0 {
        let small = key.to_ascii_lowercase();
        let is_own = OWN_HEADERS.contains(&small.as_str()) || small.starts_with("sec-websocket-");
        let wrong = if HeaderName::from_bytes(key.as_bytes()).is_err() {
            Some("is no name of a header")
        } else if is_own {
            Some("is set by the connection itself")
        } else if HeaderValue::from_str(value).is_err() {
            Some("has a value that no header can have")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            let text = format!("agent `{name}`: `{}` {wrong}", key.escape_debug());
            return Err(places.invalid(&["agents", name, "headers", key], text));
        }
    }
    Ok(headers.0)
}
