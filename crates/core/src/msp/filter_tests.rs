use super::*;

fn read(filter: Value) -> Result<ListFilter, MspError> {
    let params = json!({ "filter": filter });
    ListFilter::read(params.as_object().unwrap()).map(Option::unwrap)
}

fn name(text: &str) -> RowFacts<'_> {
    RowFacts { name: Some(text), ..RowFacts::default() }
}

fn terms(all: &[&str]) -> ListFilter {
    read(json!({ "text": { "fields": ["name"], "allOf": all } })).unwrap()
}

#[test]
fn no_filter_and_an_empty_one_are_told_apart() {
    assert_eq!(ListFilter::read(&Params::new()).unwrap(), None);
    let empty = read(json!({})).unwrap();
    assert_eq!(empty.to_json(), json!({}));
    assert!(empty.takes(RowFacts::default()));
}

#[test]
fn the_canonical_form_is_sorted_without_duplicates_and_in_small_letters() {
    let filter = read(json!({
        "text": { "fields": ["title", "name"], "anyOf": [" Zeta ", "ÉTÉ", "zeta"], "allOf": ["B", "a"] },
        "branch": { "anyOf": ["main", null, "dev", "main"] },
        "sessionId": { "anyOf": [
            "01A22BB6-2DA2-7132-B868-40A3A5D1F51F",
            "01a22bb6-2da2-7132-b868-40a3a5d1f51f",
            "00000000-0000-4000-8000-000000000000",
        ] },
    }));
    assert_eq!(
        filter.unwrap().to_json(),
        json!({
            "sessionId": { "anyOf": [
                "00000000-0000-4000-8000-000000000000",
                "01a22bb6-2da2-7132-b868-40a3a5d1f51f",
            ] },
            "branch": { "anyOf": [null, "dev", "main"] },
            "text": { "fields": ["name", "title"], "allOf": ["a", "b"], "anyOf": ["zeta", "été"] },
        })
    );
}

#[test]
fn the_canonical_form_is_its_own_canonical_form() {
    let first = read(json!({ "text": { "fields": ["name"], "anyOf": ["Ärger", "İx"] } })).unwrap();
    assert_eq!(read(first.to_json()).unwrap(), first);
}

#[test]
fn a_term_matches_where_a_word_begins() {
    for (field, term, wanted) in [
        ("Fix the parser", "pars", true),
        ("Fix the parser", "arser", false),
        ("fix-the_parser", "parser", true),
        ("snake2case", "2case", false),
        ("Fix the parser", "the pars", true),
        ("fix (parser)", "(parser", false),
        ("Résumé", "resume", false),
        ("re\u{301}sume\u{301}", "résumé", true),
        ("RÉSUMÉ", "rés", true),
        ("straße", "strasse", false),
        ("日本語 text", "日本", true),
        ("", "a", false),
    ] {
        assert_eq!(terms(&[term]).takes(name(field)), wanted, "{field:?} {term:?}");
    }
}

#[test]
fn a_mark_that_stays_alone_begins_no_word() {
    // No composed form exists for this pair.
    assert!(!terms(&["b"]).takes(name("x\u{332}b")));
}

#[test]
fn all_terms_must_match_in_any_field_and_one_of_the_others() {
    let filter = read(json!({
        "text": { "fields": ["name", "title"], "allOf": ["fix", "parser"], "anyOf": ["x", "old"] },
    }))
    .unwrap();
    let row =
        |name, title| RowFacts { name: Some(name), title: Some(title), ..RowFacts::default() };
    assert!(filter.takes(row("fix it", "the old parser")));
    assert!(!filter.takes(row("fix it", "the parser")));
    assert!(!filter.takes(row("fix it old", "nothing")));
}

#[test]
fn branches_and_ids_are_exact_and_null_means_no_branch() {
    let filter = read(json!({ "branch": { "anyOf": [null, "main"] } })).unwrap();
    let on = |branch| RowFacts { branch, ..RowFacts::default() };
    assert!(filter.takes(on(None)) && filter.takes(on(Some("main"))));
    assert!(!filter.takes(on(Some("Main"))));
    let id = "01a22bb6-2da2-7132-b868-40a3a5d1f51f";
    let filter = read(json!({ "sessionId": { "anyOf": [id] } })).unwrap();
    assert!(filter.takes(RowFacts { key: id.parse().ok(), ..RowFacts::default() }));
    assert!(!filter.takes(RowFacts::default()));
}

#[test]
fn limits_and_types_are_checked() {
    let ids = |n: usize| {
        let ids: Vec<String> = (0..n).map(|i| format!("00000000-0000-4000-8000-{i:012}")).collect();
        json!({ "sessionId": { "anyOf": ids } })
    };
    let branches = |n: usize| json!({ "branch": { "anyOf": vec!["b"; n] } });
    let words = |n: usize| json!({ "text": { "fields": ["name"], "allOf": vec!["w"; n] } });
    for (good, bad) in [
        (ids(FILTER_IDS_MAX), ids(FILTER_IDS_MAX + 1)),
        (branches(FILTER_BRANCHES_MAX), branches(FILTER_BRANCHES_MAX + 1)),
        (words(FILTER_TERMS_MAX), words(FILTER_TERMS_MAX + 1)),
        (ids(1), ids(0)),
        (branches(1), branches(0)),
        (words(1), words(0)),
    ] {
        assert!(read(good).is_ok());
        assert!(read(bad).is_err());
    }
    let long = |n: usize| json!({ "text": { "fields": ["name"], "anyOf": ["x".repeat(n)] } });
    assert!(read(long(FILTER_TERM_BYTES_MAX)).is_ok());
    assert!(read(long(FILTER_TERM_BYTES_MAX + 1)).is_err());
    let branch = |n: usize| json!({ "branch": { "anyOf": ["x".repeat(n)] } });
    assert!(read(branch(FILTER_BRANCH_BYTES_MAX)).is_ok());
    assert!(read(branch(FILTER_BRANCH_BYTES_MAX + 1)).is_err());
    for bad in [
        json!([]),
        json!({ "sessionId": { "anyOf": ["x"] } }),
        json!({ "branch": { "anyOf": [1] } }),
        json!({ "text": { "fields": [], "allOf": ["x"] } }),
        json!({ "text": { "fields": ["body"], "allOf": ["x"] } }),
        json!({ "text": { "fields": ["name", "name"], "allOf": ["x"] } }),
        json!({ "text": { "fields": ["name"], "allOf": ["  "] } }),
    ] {
        assert!(read(bad.clone()).is_err(), "{bad}");
    }
}
