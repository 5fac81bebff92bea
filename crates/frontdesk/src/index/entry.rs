//! One session as the index keeps it: the fold without what only a running session needs.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use frontdesk_core::fold::View;
use frontdesk_core::ids::Key;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

/// A stamp this much later than the moment it came in is one from the future.
const FUTURE: SignedDuration = SignedDuration::from_mins(1);

/// Where a stamp from the future counts from: the beginning of the hour in which it came in, so
/// that several that came together keep their own order.
const HOUR_MICROS: i64 = 3_600_000_000;

/// One session of the index.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its key.
    pub key: Key,
    /// What its records add up to, without `commands` and `commands_done`, and with no more of
    /// `options` than says which model, provider and mode are in force.
    pub view: View,
    /// Its journal.
    pub path: PathBuf,
    /// The working directory without links, where it existed here.
    pub real_cwd: Option<PathBuf>,
    /// Place in the order of lists.
    pub ordered: i64,
    /// Bytes of its journal that are folded.
    pub bytes: u64,
}

/// A place in the order of lists: newest change first, then key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// See [`ordered`].
    pub ordered: i64,
    /// The last change, in microseconds since the Unix epoch.
    pub updated: i64,
    /// The session.
    pub key: Key,
}

impl Entry {
    /// Where it stands in lists.
    #[must_use]
    pub fn position(&self) -> Position {
        Position { ordered: self.ordered, updated: changed_micros(&self.view), key: self.key }
    }
}

/// The last change that counts as one, in microseconds since the Unix epoch; else the beginning.
#[must_use]
pub fn changed_micros(view: &View) -> i64 {
    let at = view.updated_at.or(view.created_at).unwrap_or(Timestamp::UNIX_EPOCH);
    at.as_microsecond()
}

/// What lists are ordered by: the last change, or, where that lies in the future of the moment
/// `seen` at which it came in, the beginning of that hour. A clock that was wrong once, or an agent
/// whose clock is wrong, keeps nothing on top for ever.
#[must_use]
pub fn ordered(view: &View, seen: Timestamp) -> i64 {
    let changed = changed_micros(view);
    let latest = seen.checked_add(FUTURE).unwrap_or(Timestamp::MAX).as_microsecond();
    if changed <= latest {
        return changed;
    }
    let seen = seen.as_microsecond();
    seen - seen.rem_euclid(HOUR_MICROS)
}

/// A folder as it is compared: its parts joined, without doubled or trailing slashes and `.` parts.
/// Two spellings that `route::same_folder` finds equal are equal here.
#[must_use]
pub(super) fn folder_text(path: &str) -> String {
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
    let joined = parts.collect::<Vec<_>>().join("/");
    if path.starts_with('/') { format!("/{joined}") } else { joined }
}

/// The real folder where it is spelled otherwise than the one that was given.
#[must_use]
pub(super) fn real_text(given: &str, real: Option<&Path>) -> Option<String> {
    real.and_then(Path::to_str).map(folder_text).filter(|real| *real != folder_text(given))
}

/// The view as the index keeps it. Members that say what a view of nothing says are left out.
#[must_use]
pub(super) fn write_view(view: &View) -> String {
    let mut slim = view.clone();
    slim.commands = None;
    slim.commands_done.clear();
    slim.options = std::sync::Arc::new(slim_options(&view.options));
    let mut value = serde_json::to_value(&slim).unwrap_or_default();
    if let Value::Object(members) = &mut value {
        members.retain(|name, value| UNSAID.get(name) != Some(value));
    }
    value.to_string()
}

/// The members of a view of nothing, which are not written.
static UNSAID: LazyLock<Value> =
    LazyLock::new(|| serde_json::to_value(View::default()).unwrap_or_default());

/// What says which option is in force, without what else there is to choose.
fn slim_options(options: &Map<String, Value>) -> Map<String, Value> {
    let mut slim = Map::new();
    for (name, current) in [("models", "currentModelId"), ("modes", "currentModeId")] {
        if let Some(current_value) = options.get(name).and_then(|value| value.get(current)) {
            slim.insert(name.to_owned(), json!({ current: current_value }));
        }
    }
    if let Some(Value::Array(offered)) = options.get("configOptions") {
        let offered: Vec<Value> = offered
            .iter()
            .map(|option| {
                let mut slim = Map::new();
                for name in ["id", "category", "currentValue"] {
                    if let Some(value) = option.get(name) {
                        slim.insert(name.to_owned(), value.clone());
                    }
                }
                Value::Object(slim)
            })
            .collect();
        slim.insert("configOptions".to_owned(), Value::Array(offered));
    }
    slim
}

/// Titles and names of a session, as one text to search in.
#[must_use]
pub(super) fn titles(view: &View) -> String {
    let all = [&view.name, &view.generated_name, &view.title, &view.first_user_prompt];
    let mut texts: Vec<&str> = all.into_iter().flatten().map(String::as_str).collect();
    texts.dedup();
    texts.join("\n")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use frontdesk_core::route::same_folder;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_view_comes_back_as_it_was_but_for_what_only_a_running_session_needs() {
        let options = json!({
            "modes": { "currentModeId": "ask", "availableModes": [{ "id": "ask", "name": "Ask" }] },
            "models": { "currentModelId": "m-1", "availableModels": [] },
            "configOptions": [
                { "id": "m", "category": "model", "currentValue": "m-2", "options": [1, 2, 3] },
                { "id": "provider", "currentValue": "p", "options": [] },
            ],
        });
        let Value::Object(options) = options else { unreachable!() };
        let view = View {
            seq: 9,
            agent: "a".into(),
            native: Some(String::new()),
            cwd: "/w".into(),
            title: Some("t".into()),
            updated_at: Some(at("2026-11-30T10:00:00.000001Z")),
            open_interactions: [("ask_1".to_owned(), json!({ "method": null, "n": 0 }))].into(),
            options: Arc::new(options),
            commands: Some("{}".into()),
            archived: true,
            resumable: Some(false),
            ..View::default()
        };
        let read: View = serde_json::from_str(&write_view(&view)).unwrap();
        assert_eq!(
            read.options["configOptions"][0],
            json!({ "id": "m", "category": "model", "currentValue": "m-2" })
        );
        assert_eq!(read.options["modes"], json!({ "currentModeId": "ask" }));
        assert_eq!((read.options.len(), read.commands.clone()), (3, None));
        assert!(!write_view(&view).contains("availableModes"));
        let cut = |view: View| View { options: Arc::default(), commands: None, ..view };
        assert_eq!(cut(read), cut(view));
        assert_eq!(write_view(&View::default()), "{}");
    }

    #[test]
    fn a_stamp_from_the_future_counts_from_the_hour_in_which_it_came() {
        let seen = at("2026-11-30T10:20:30Z");
        let of = |updated: &str| {
            ordered(&View { updated_at: Some(at(updated)), ..View::default() }, seen)
        };
        assert_eq!(of("2026-11-30T10:20:30Z"), seen.as_microsecond());
        assert_eq!(of("2026-11-30T10:21:30Z"), at("2026-11-30T10:21:30Z").as_microsecond());
        let hour = at("2026-11-30T10:00:00Z").as_microsecond();
        assert_eq!(of("2026-11-30T10:21:31Z"), hour);
        assert_eq!(of("9999-01-01T00:00:00Z"), hour);
        assert_eq!(ordered(&View::default(), seen), 0);
    }

    #[test]
    fn folders_are_equal_as_text_where_their_parts_are() {
        let paths = ["/w/p", "/w/p/", "/w//p", "/w/./p", "w/p", "/", "", "/w", "/a b", "/w/p/.."];
        for left in paths {
            for right in paths {
                assert_eq!(
                    folder_text(left) == folder_text(right),
                    same_folder(left, right),
                    "{left} {right}"
                );
            }
        }
        assert_eq!(real_text("/w/p/", Some(Path::new("/w/p"))), None);
        assert_eq!(real_text("/l", Some(Path::new("/w/p"))), Some("/w/p".into()));
    }
}
