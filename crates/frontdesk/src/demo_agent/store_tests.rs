use super::*;

fn summary(id: &str) -> Summary {
    Summary {
        id: id.into(),
        cwd: "/w".into(),
        directories: vec!["/d".into()],
        ..Summary::default()
    }
}

fn prompt(text: &str) -> String {
    format!(r#""content":[{{"type":"text","text":{}}}]"#, quote(text))
}

fn history(store: &Store, id: &str) -> Vec<String> {
    let mut seen = Vec::new();
    store.replay(id, |update| seen.push(update.to_owned())).unwrap();
    seen
}

#[test]
fn what_was_appended_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("deep/er"));
    let mut file = store.create(&summary("a")).unwrap();
    file.append("prompt", &prompt("hello  \n world")).unwrap();
    file.append("update", r#""update":{"sessionUpdate":"agent_message_chunk","x":1.0e2}"#).unwrap();
    file.append("update", r#""update":{"sessionUpdate":"usage_update"}"#).unwrap();
    file.append("mode", r#""mode":"auto""#).unwrap();
    file.append("option", r#""option":["model","careful"]"#).unwrap();
    file.append("ended", r#""stopReason":"end_turn""#).unwrap();
    drop(file);

    let seen = history(&store, "a");
    assert_eq!(seen.len(), 2);
    assert!(seen[0].contains("user_message_chunk") && seen[0].contains("t1-user"));
    assert_eq!(seen[1], r#"{"sessionUpdate":"agent_message_chunk","x":1.0e2}"#);
    let row = store.summary("a").unwrap();
    assert_eq!(row.title.as_deref(), Some("hello world"));
    assert_eq!((row.cwd.as_str(), row.directories.len(), row.turns), ("/w", 1, 1));
    assert_eq!(row.mode.as_deref(), Some("auto"));
    assert_eq!(row.options, [("model".to_owned(), "careful".to_owned())]);
    assert!(row.updated_us > 0);
}

#[test]
fn a_torn_end_and_bad_lines_cost_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().to_path_buf());
    let mut file = store.create(&summary("a")).unwrap();
    file.append("prompt", &prompt("one")).unwrap();
    file.file.write_all(b"\0\0\n[1]\n\xff\n{\"event\":\"upd").unwrap();
    drop(file);
    store.open("a").unwrap().append("prompt", &prompt("two")).unwrap();
    let seen = history(&store, "a");
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[1].contains("two"));
}

#[test]
fn unknown_and_dangerous_ids_are_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("s"));
    store.create(&summary("a")).unwrap();
    for id in ["b", "", "..", "../s/a", "a/../a", "a\0", &"x".repeat(65)] {
        assert!(!store.has(id), "{id:?}");
        assert!(matches!(store.open(id), Err(StoreError::Unknown)), "{id:?}");
        assert!(matches!(store.summary(id), Err(StoreError::Unknown)), "{id:?}");
        store.delete(id).unwrap();
    }
    assert!(store.has("a"));
    assert!(matches!(store.create(&summary("a")), Err(StoreError::Io { .. })));
    store.delete("a").unwrap();
    assert!(!store.has("a"));
}

#[test]
fn the_list_is_newest_first_and_follows_changes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().to_path_buf());
    assert!(store.list().is_empty());
    let mut first = store.create(&summary("a")).unwrap();
    store.create(&summary("b")).unwrap();
    fs::write(dir.path().join("note.txt"), "x").unwrap();
    let ids = |rows: &[Summary]| rows.iter().map(|row| row.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&store.list()), ["b", "a"]);
    first.append("prompt", &prompt("again")).unwrap();
    let rows = store.list();
    assert_eq!(ids(&rows), ["a", "b"]);
    assert_eq!(rows[0].title.as_deref(), Some("again"));
    store.delete("a").unwrap();
    assert_eq!(ids(&store.list()), ["b"]);
}

#[test]
fn a_fork_has_the_history_and_its_own_first_line() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().to_path_buf());
    let mut file = store.create(&summary("a")).unwrap();
    file.append("opened", r#""how":"new","pid":1"#).unwrap();
    file.append("prompt", &prompt("one")).unwrap();
    let mut fork = store.create(&Summary { cwd: "/other".into(), ..summary("b") }).unwrap();
    store.copy_history("a", &mut fork).unwrap();
    assert_eq!(history(&store, "b"), history(&store, "a"));
    assert_eq!(store.summary("b").unwrap().cwd, "/other");
}

#[test]
fn titles_are_short_and_clean() {
    let title = |text: &str| {
        let block = format!(r#"{{"type":"text","text":{}}}"#, quote(text));
        title_from([r#"{"type":"image"}"#, block.as_str()].into_iter())
    };
    assert_eq!(title(" a\u{1b}[1m\n b "), Some("a [1m b".into()));
    assert_eq!(title("\u{7} \n"), None);
    assert_eq!(title(&"é".repeat(60)), Some("é".repeat(60)));
    let long = title(&"é".repeat(61)).unwrap();
    assert_eq!(long.chars().count(), 60);
    assert!(long.ends_with('…'));
    assert_eq!(title_from(["not json"].into_iter()), None);
}

#[test]
fn instants_have_microseconds() {
    assert_eq!(instant(1_000_000), "1970-01-01T00:00:01.000000Z");
    assert!(now().parse::<Timestamp>().is_ok());
}
