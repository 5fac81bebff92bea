//! How known agents are told apart and where they keep their sessions.
//!
//! Read by the configuration (which agents are there without a file), by `doctor`, and by the
//! directory (which store an agent writes to). The agents themselves are in [`super::table`].

use super::quirks::Quirks;
use super::table::{BLANK, KNOWN};

/// One known agent, or one range of versions of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Known {
    /// Its name in a configuration that does not give one; entries for other versions share it.
    pub kind: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// File names of its program. A trailing `*` stands for any ending.
    pub programs: &'static [&'static str],
    /// Package or module names under which `npx`, `uvx`, `python -m` and the like start it.
    pub packages: &'static [&'static str],
    /// One of these arguments must be there, where the program does other things as well.
    pub needs: &'static [&'static str],
    /// The command that makes it speak ACP on stdio; empty where there is no plain one.
    pub command: &'static [&'static str],
    /// `agentInfo.name` as it says it in `initialize`.
    pub infos: &'static [&'static str],
    /// This entry holds from this version (major, minor) on.
    pub from: (u32, u32),
    /// And below this one.
    pub below: (u32, u32),
    /// Where it keeps its sessions.
    pub store: Store,
    /// How it differs from an honest agent.
    pub quirks: Quirks,
}

/// Where an agent keeps its sessions.
///
/// Two agents with one family and one home write to one store, so a session of it has one owner
/// among both. A variable is named here only where it is certain: a missing one makes two homes
/// look like one, which refuses too much; a wrong one would make one home look like two, which
/// gives a session two owners.
#[derive(Debug, PartialEq, Eq)]
pub struct Store {
    /// The store's name, the same for all programs that share it.
    pub family: &'static str,
    /// Environment variables that move it, first match wins, each with the folder below.
    pub vars: &'static [(&'static str, &'static str)],
    /// The folder below `HOME` without any of them; empty means `HOME` itself.
    pub below_home: &'static str,
}

/// The known agent that a command starts, if it can be told from the command alone.
///
/// Looks at the program's file name, and behind starters such as `npx`, `uvx`, `node`,
/// `python -m` and `env` at what they start. A shell's `-c` text is not read.
#[must_use]
pub fn recognise(command: &[String]) -> Option<&'static Known> {
    let (name, rest) = started(command)?;
    // A scoped package's last part may be the program name of another package.
    let program = if name.starts_with('@') { "" } else { file_name(name) };
    let of = |known: &&Known| {
        let named = known.programs.iter().any(|pattern| matches_program(pattern, program))
            || known.packages.contains(&unversioned(name));
        let asked = known.needs.is_empty()
            || rest.iter().any(|argument| known.needs.contains(&argument.as_str()));
        named && asked
    };
    KNOWN.iter().find(of)
}

/// The entry that fits what the agent said of itself in `initialize`; `known` where it said nothing
/// that helps.
#[must_use]
pub fn refine(
    known: Option<&'static Known>,
    info_name: &str,
    info_version: &str,
) -> Option<&'static Known> {
    let version = major_minor(info_version);
    let fits = |entry: &&Known| {
        entry.infos.contains(&info_name)
            && version.is_none_or(|version| entry.from <= version && version < entry.below)
    };
    KNOWN.iter().find(fits).or(known)
}

/// The folder an agent keeps its sessions in, as its own environment (read through `env`) says.
/// Text only: links and relative parts are not resolved.
#[must_use]
pub fn effective_home(known: Option<&Known>, env: &dyn Fn(&str) -> Option<String>) -> String {
    let store = known.map_or(&BLANK.store, |known| &known.store);
    let set = |name: &str| env(name).filter(|value| !value.is_empty());
    for (name, below) in store.vars {
        if let Some(folder) = set(name) {
            return join(&folder, below);
        }
    }
    join(&set("HOME").unwrap_or_default(), store.below_home)
}

/// The name of the store an agent writes to: the known one's, else its program's file name.
#[must_use]
pub fn store_family(known: Option<&Known>, command: &[String]) -> String {
    let own = || started(command).map_or("", |(name, _)| file_name(name)).to_owned();
    known.map_or_else(own, |known| known.store.family.to_owned())
}

/// What a command really starts, and the arguments behind it.
fn started(command: &[String]) -> Option<(&str, &[String])> {
    let (program, mut rest) = command.split_first()?;
    let starters = ["npx", "bunx", "uvx", "pnpx", "node", "bun", "env", "setpriv", "pipx"];
    let name = file_name(program);
    if !starters.contains(&name) && !name.starts_with("python") {
        return Some((program, rest));
    }
    while let Some((word, after)) = rest.split_first() {
        rest = after;
        let is_option = word.starts_with('-') || (name == "env" && word.contains('='));
        if !is_option && word != "run" {
            return Some((word, rest));
        }
    }
    Some((program, rest))
}

/// The last part of a path, without the endings that scripts and other systems add.
fn file_name(path: &str) -> &str {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    [".exe", ".cmd", ".js", ".mjs", ".py"]
        .iter()
        .find_map(|ending| name.strip_suffix(ending))
        .unwrap_or(name)
}

/// A package name without `@version`.
fn unversioned(package: &str) -> &str {
    match package.rfind('@') {
        Some(at) if at > 0 => &package[..at],
        _ => package,
    }
}

fn matches_program(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split(['.', '-', '+', ' ']);
    let major = parts.next()?.parse().ok()?;
    Some((major, parts.next().and_then(|minor| minor.parse().ok()).unwrap_or(0)))
}

fn join(folder: &str, below: &str) -> String {
    let folder = match folder.trim_end_matches('/') {
        "" if folder.starts_with('/') => "/",
        trimmed => trimmed,
    };
    match (folder, below) {
        (folder, "") => folder.to_owned(),
        ("", below) => below.to_owned(),
        ("/", below) => format!("/{below}"),
        (folder, below) => format!("{folder}/{below}"),
    }
}

#[cfg(test)]
#[path = "known_tests.rs"]
mod tests;
