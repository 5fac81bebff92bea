//! What an agent's list says of a session that is taken in or known already.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::aliases::Filed;
use crate::fold::{Origin, View};
use crate::ids::uuid_v7_millis;

/// An agent's list may be as much behind what the agent told us and still be of the same moment.
pub const LISTED_LATE: SignedDuration = SignedDuration::from_secs(2);

/// The data of the `adopted` record of a session that nobody here knew, of its row in the list (ACP v1
/// `SessionInfo`).
#[must_use]
pub fn adopted(agent: &str, filed: &Filed<'_>, row: &Value, now: Timestamp) -> Value {
    let text = |name: &str| row.get(name).and_then(Value::as_str);
    let (created, from) = began(filed.id, text("updatedAt"), now);
    let mut data = json!({
        "agent": agent,
        "nativeId": filed.id,
        "cwd": text("cwd").unwrap_or_default(),
        "additionalDirectories": directories(row),
        "title": text("title"),
        "updatedAt": text("updatedAt"),
        "createdAt": created,
        "createdAtFrom": from,
        "unproven": row.get("_unproven").is_some(),
    });
    if !filed.aliases.is_empty() {
        data["aliases"] = json!(filed.aliases);
    }
    data
}

/// The further folders that a row or an update names.
#[must_use]
pub fn directories(told: &Value) -> Value {
    let named = told.get("additionalDirectories").filter(|named| named.is_array());
    named.cloned().unwrap_or_else(|| json!([]))
}

/// What a row tells of a known session that its view lacks: a later `updatedAt`, another title. `None`
/// if nothing. A list that is behind what was seen here does not know the title of now.
#[must_use]
pub fn news(view: &View, row: &Value) -> Option<Value> {
    let text = |name: &str| row.get(name).and_then(Value::as_str);
    let listed: Option<Timestamp> = text("updatedAt").and_then(|at| at.parse().ok());
    let is_stale = match (listed, view.updated_at) {
        (Some(listed), Some(ours)) => ours.duration_since(listed) > LISTED_LATE,
        _ => false,
    };
    let title = text("title").filter(|title| !is_stale && view.title.as_deref() != Some(*title));
    let is_newer = listed > view.listed_at;
    let is_own = view.origin == Origin::Created;
    let is_later = view.updated_at < listed;
    let has_news = (is_newer && (is_later || !is_own)) || title.is_some();
    has_news.then(|| json!({ "updatedAt": text("updatedAt"), "title": title }))
}

/// When a session that an agent told of began, and by whose word: the instant in its id, else the
/// earliest one that the agent gave, else now.
#[must_use]
pub fn began(native: &str, listed: Option<&str>, now: Timestamp) -> (Timestamp, &'static str) {
    let minted = native.parse::<uuid::Uuid>().ok().and_then(uuid_v7_millis);
    let minted = minted.and_then(|ms| Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok());
    match (minted, listed.and_then(|at| at.parse().ok())) {
        (Some(at), _) => (at, "id"),
        (None, Some(at)) => (at, "list"),
        (None, None) => (now, "adoption"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-30T12:00:00Z";

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    #[test]
    fn a_session_began_at_the_instant_in_its_id_if_there_is_one() {
        let (at, from) = began("01a22bb6-2da2-7132-b868-40a3a5d1f51f", None, now());
        assert_eq!((at.as_millisecond(), from), (0x01a2_2bb6_2da2, "id"));
        assert_eq!(began("child-1", None, now()), (now(), "adoption"));
        let listed = Timestamp::UNIX_EPOCH.to_string();
        assert_eq!(began("c", Some(&listed), now()), (Timestamp::UNIX_EPOCH, "list"));
    }

    #[test]
    fn a_row_is_taken_in_as_it_is_told() {
        let row = json!({ "sessionId": "n", "cwd": "/w", "title": "t", "updatedAt": NOW, "additionalDirectories": 3 });
        let filed = Filed { id: "n", aliases: vec!["m".to_owned()] };
        let wanted = json!({
            "agent": "a", "nativeId": "n", "cwd": "/w", "additionalDirectories": [], "title": "t",
            "updatedAt": NOW, "createdAt": NOW, "createdAtFrom": "list", "unproven": false,
            "aliases": ["m"],
        });
        assert_eq!(adopted("a", &filed, &row, Timestamp::UNIX_EPOCH), wanted);
    }

    #[test]
    fn a_row_has_news_of_a_known_session_or_none() {
        let known = |seconds: i64, origin: Origin| View {
            title: Some("ours".into()),
            updated_at: Some(now() + SignedDuration::from_secs(seconds)),
            origin,
            ..View::default()
        };
        let row = |title: &str| json!({ "updatedAt": NOW, "title": title });
        let told = |title: Option<&str>| Some(json!({ "updatedAt": NOW, "title": title }));
        // The list is later than what is known here, of the same moment, and behind it.
        assert_eq!(news(&known(-9, Origin::Created), &row("theirs")), told(Some("theirs")));
        assert_eq!(news(&known(-9, Origin::Created), &row("ours")), told(None));
        assert_eq!(news(&known(2, Origin::Created), &row("theirs")), told(Some("theirs")));
        assert_eq!(news(&known(2, Origin::Created), &row("ours")), None);
        assert_eq!(news(&known(3, Origin::Created), &row("theirs")), None);
        // Of a session of the agent's own its list is the word; one that was heard is no news again.
        assert_eq!(news(&known(3, Origin::Adopted), &row("theirs")), told(None));
        let heard = View { listed_at: Some(now()), ..known(3, Origin::Adopted) };
        assert_eq!(news(&heard, &row("theirs")), None);
        assert_eq!(news(&heard, &json!({})), None);
    }
}
