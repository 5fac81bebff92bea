//! ARCHITECTURE.md and the pages of docs/ against the source: maps rot unless something reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use frontdesk_core::errors::Code;
use frontdesk_core::record::Kind;

/// Both crates' sources, as ARCHITECTURE.md writes their folders.
const SOURCES: [&str; 2] = ["crates/core/src", "crates/frontdesk/src"];

/// What the pure crate must not name.
const IMPURE: [&str; 15] = [
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "std::thread",
    "std::io::std",
    "std::os",
    "std::time::SystemTime",
    "std::time::Instant",
    "SystemTime::now",
    "Instant::now",
    "Timestamp::now",
    "Zoned::now",
    "tokio",
    "rand::",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn page(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The section of a page below a heading, up to the next heading of its level or a higher one.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let start = text.find(&format!("\n{heading}")).unwrap_or_else(|| panic!("{heading}"));
    let body = text[start + 1..].split_once('\n').unwrap().1;
    let level = heading.split(' ').next().unwrap();
    let mut end = 0;
    for line in body.split_inclusive('\n') {
        let marks = line.chars().take_while(|c| *c == '#').count();
        if marks > 0 && marks <= level.len() {
            break;
        }
        end += line.len();
    }
    &body[..end]
}

/// The rows of all tables in a text, as cells; heads and rules are left out.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim().trim_matches('|').split(" | ").map(str::trim).collect())
        .collect()
}

/// What stands in backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// All files below a folder, as paths from the root.
fn files(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

fn is_test(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap();
    let beside = matches!(name, "tests.rs" | "testing.rs" | "fake.rs");
    beside || name.ends_with("_tests.rs") || path.contains("/tests/")
}

/// The Rust files below a folder that are no tests.
fn sources(folder: &str) -> Vec<String> {
    files(folder).into_iter().filter(|path| path.ends_with(".rs") && !is_test(path)).collect()
}

/// A file's code without its comments and its tests.
fn code(path: &str) -> String {
    let text = page(path);
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_path_in_the_documents_exists() {
    let mut missing = Vec::new();
    let pages = ["ARCHITECTURE.md", "README.md", "CHANGELOG.md"].map(str::to_owned);
    let docs = files("docs").into_iter().filter(|path| path.ends_with(".md"));
    for name in pages.into_iter().chain(docs) {
        let text = page(&name);
        let folders = ["crates/", "docs/", "packaging/", "testdata/"];
        let named = quoted(&text)
            .into_iter()
            .filter(|word| folders.iter().any(|folder| word.starts_with(folder)))
            .map(|word| root().join(word));
        let here = root().join(&name).parent().unwrap().to_path_buf();
        let linked = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', '#']).next())
            .filter(|link| !link.is_empty() && !link.contains("://"))
            .map(|link| here.join(link));
        missing
            .extend(named.chain(linked).filter(|path| !path.exists()).map(|p| (name.clone(), p)));
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The rooms of the map: path to the row's last cell.
fn map() -> BTreeMap<String, Vec<String>> {
    let text = page("ARCHITECTURE.md");
    ["## Map: the rules", "## Map: what happens"]
        .iter()
        .flat_map(|heading| rows(section(&text, heading)))
        .map(|row| {
            let inside = row.get(2).copied().unwrap_or_default();
            let inside = quoted(inside).into_iter().map(str::to_owned).collect();
            (quoted(row[0])[0].to_owned(), inside)
        })
        .collect()
}

#[test]
fn every_source_file_is_in_the_map_and_the_other_way_round() {
    let map = map();
    let mut wanted = BTreeSet::new();
    for crate_sources in SOURCES {
        for path in sources(crate_sources) {
            if path.ends_with("/src/lib.rs") {
                continue;
            }
            let inside = path.strip_prefix(&format!("{crate_sources}/")).unwrap();
            wanted.insert(match inside.split_once('/') {
                None => (path.clone(), String::new()),
                Some((room, file)) => {
                    let folder = format!("{crate_sources}/{room}/");
                    let one = format!("{crate_sources}/{room}.rs");
                    (if map.contains_key(&one) { one } else { folder }, file.to_owned())
                }
            });
        }
    }
    let drawn: BTreeSet<_> = map
        .iter()
        .flat_map(|(room, inside)| {
            let own = (!room.ends_with('/')).then(String::new);
            let files = inside.iter().filter(|word| word.ends_with(".rs")).cloned();
            own.into_iter().chain(files).map(|file| (room.clone(), file))
        })
        .collect();
    let lacking: Vec<_> = wanted.difference(&drawn).collect();
    let gone: Vec<_> = drawn.difference(&wanted).collect();
    assert!(lacking.is_empty(), "not in the map of ARCHITECTURE.md: {lacking:#?}");
    assert!(gone.is_empty(), "in the map of ARCHITECTURE.md only: {gone:#?}");
}

#[test]
fn the_core_names_nothing_that_waits() {
    let mut found = Vec::new();
    for path in sources("crates/core/src") {
        let code = code(&path);
        let words = IMPURE.iter().chain(&["now_v7", "new_v4", "async fn", ".await"]);
        found.extend(words.filter(|word| code.contains(**word)).map(|word| (path.clone(), *word)));
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The room a file of `crates/frontdesk` belongs to, as the arrows call it.
fn room_of(path: &str) -> String {
    let inside = path.strip_prefix("crates/frontdesk/src/").unwrap();
    let mut parts = inside.trim_end_matches(".rs").split('/');
    match (parts.next().unwrap(), parts.next()) {
        ("agent", Some(part)) => format!("agent::{part}"),
        (room, _) => room.to_owned(),
    }
}

/// The rooms that a file names with `crate::…`, and with `super::…` between the rooms of `agent`.
fn named_by(path: &str) -> BTreeSet<String> {
    let code = code(path);
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect()
    };
    let mut named = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let first = word(rest);
        let Some(behind) = rest[first.len()..].strip_prefix("::").filter(|_| first == "agent")
        else {
            named.insert(first);
            continue;
        };
        let list = behind.strip_prefix('{').map(|list| list.split('}').next().unwrap());
        let parts = list.map_or_else(
            || vec![word(behind)],
            |list| list.split(',').map(str::trim).map(word).collect(),
        );
        named.extend(
            parts.into_iter().filter(|part| !part.is_empty()).map(|part| format!("agent::{part}")),
        );
    }
    if Path::new(path).parent().unwrap().ends_with("src/agent") {
        let siblings = code.split("super::").skip(1).map(word).filter(|part| !part.is_empty());
        named.extend(siblings.map(|part| format!("agent::{part}")));
    }
    named.remove("");
    named.remove(&room_of(path));
    named
}

#[test]
fn the_arrows_are_those_of_the_document() {
    let text = page("ARCHITECTURE.md");
    let drawn: BTreeSet<(String, String)> = rows(section(&text, "## Arrows"))
        .iter()
        .flat_map(|row| {
            let to = row.get(1).map(|cell| quoted(cell)).unwrap_or_default();
            to.into_iter().map(|to| (quoted(row[0])[0].to_owned(), to.to_owned()))
        })
        .collect();
    let real: BTreeSet<(String, String)> = sources("crates/frontdesk/src")
        .iter()
        .filter(|path| !path.ends_with("src/main.rs") && !path.ends_with("src/lib.rs"))
        .flat_map(|path| named_by(path).into_iter().map(move |to| (room_of(path), to)))
        .collect();
    let new: Vec<_> = real.difference(&drawn).collect();
    let gone: Vec<_> = drawn.difference(&real).collect();
    assert!(new.is_empty(), "arrows that ARCHITECTURE.md does not allow: {new:#?}");
    assert!(gone.is_empty(), "arrows of ARCHITECTURE.md that are gone: {gone:#?}");
}

#[test]
fn lower_rooms_never_name_higher_ones() {
    // What no edit of the table may allow.
    let lower =
        ["lock", "paths", "config", "demo_agent", "log", "hold", "agent::link", "agent::proc"];
    let higher = ["node", "session", "dispatch", "serve", "cli", "conn", "shim"];
    for path in sources("crates/frontdesk/src") {
        let room = room_of(&path);
        let named = named_by(&path);
        if lower.contains(&room.as_str()) {
            let wrong: Vec<_> = higher.iter().filter(|room| named.contains(**room)).collect();
            assert!(wrong.is_empty(), "{path} names {wrong:?}");
        }
        assert!(room == "cli" || !named.contains("cli"), "{path} names cli");
        assert!(
            matches!(&*room, "cli" | "serve") || !named.contains("dispatch"),
            "{path} names dispatch"
        );
    }
}

#[test]
fn processes_are_started_where_the_document_says() {
    let text = page("ARCHITECTURE.md");
    let said: BTreeSet<String> = rows(section(&text, "## Who starts processes"))
        .iter()
        .map(|row| quoted(row[0])[0].to_owned())
        .collect();
    let real: BTreeSet<String> = sources("crates/frontdesk/src")
        .into_iter()
        .filter(|path| code(path).contains("Command::new("))
        .collect();
    assert_eq!(real, said);
}

#[test]
fn a_probe_names_nothing_that_starts_or_writes() {
    let probe = code("crates/frontdesk/src/dispatch/status.rs");
    let table = code("crates/frontdesk/src/node/directory.rs");
    let acts = [
        "start_instance",
        "reserve_instance",
        "any_instance",
        "open_session",
        "refresh_list",
        "adopt",
        ".lane(",
        "LaneMsg",
        "crate::log",
    ];
    for act in acts {
        assert!(!probe.contains(act), "dispatch/status.rs names {act}");
        assert!(!table.contains(&format!("{act}(")), "node/directory.rs names {act}");
    }
}

#[test]
fn every_record_kind_is_documented() {
    let text = page("docs/records.md");
    let said: Vec<&str> =
        rows(section(&text, "## Kinds")).iter().map(|row| quoted(row[0])[0]).collect();
    let kinds: Vec<&str> = Kind::KNOWN.iter().map(Kind::as_str).collect();
    assert_eq!(said, kinds);
    for (row, kind) in rows(section(&text, "## Kinds")).iter().zip(Kind::KNOWN) {
        let durable = if kind.is_durable() { "yes" } else { "no" };
        assert_eq!(row[1], durable, "{kind}: durable");
    }
}

#[test]
fn example_records_are_records() {
    let text = page("docs/records.md");
    let lines: Vec<&str> =
        text.lines().filter(|line| line.trim_start().starts_with("{\"v\":")).collect();
    assert!(lines.len() >= 10, "{} examples", lines.len());
    let mut kinds = BTreeSet::new();
    for line in lines {
        let bytes = line.trim().as_bytes().to_vec().into();
        let record = frontdesk_core::record::Record::parse(&bytes)
            .unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(!matches!(record.kind, Kind::Unknown(_)), "{line}");
        let mut again = Vec::new();
        record.write_line(&mut again);
        assert_eq!(String::from_utf8(again).unwrap().trim_end(), line.trim());
        kinds.insert(record.kind.to_string());
    }
    // Every kind that this version writes has an example.
    let starred = |row: &Vec<&str>| row[2].starts_with("* ");
    let text = section(&text, "## Kinds").to_owned();
    let written: BTreeSet<String> = rows(&text)
        .iter()
        .filter(|row| !starred(row))
        .map(|row| quoted(row[0])[0].to_owned())
        .collect();
    assert_eq!(kinds, written);
}

#[test]
fn every_error_code_is_documented() {
    let text = page("docs/protocol.md");
    let said: Vec<(i64, String, String)> = rows(section(&text, "## Errors"))
        .iter()
        .map(|row| {
            (quoted(row[0])[0].parse().unwrap(), quoted(row[1])[0].to_owned(), row[2].to_owned())
        })
        .collect();
    let real: Vec<(i64, String, String)> = Code::ALL
        .iter()
        .map(|code| {
            let retry = if code.is_retryable() { "yes" } else { "no" };
            (code.number(), format!("{code:?}"), retry.to_owned())
        })
        .collect();
    assert_eq!(said, real);
}

#[test]
fn every_extension_method_is_documented() {
    let mut real = BTreeSet::new();
    for path in sources("crates/frontdesk/src/dispatch") {
        let code = code(&path);
        real.extend(
            code.split('"')
                .filter(|text| {
                    text.strip_prefix("_frontdesk/").is_some_and(|name| !name.is_empty())
                })
                .map(str::to_owned),
        );
    }
    let text = page("docs/protocol.md");
    let said: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("### `_frontdesk/"))
        .map(|rest| format!("_frontdesk/{}", rest.trim_end_matches('`')))
        .collect();
    assert!(real.len() >= 5, "{real:?}");
    assert_eq!(said, real);
}

#[test]
fn the_documents_speak_of_this_project_only() {
    let docs = files("docs").into_iter().filter(|path| path.ends_with(".md"));
    let pages = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "packaging/frontdesk.service"];
    for name in pages.into_iter().map(str::to_owned).chain(docs) {
        let text = page(&name);
        for word in ["/root/", "/Users/"] {
            assert!(!text.contains(word), "{name} says {word}");
        }
    }
    assert!(page("README.md").lines().count() <= 200, "README.md is for one sitting");
}
