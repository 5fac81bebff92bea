use std::collections::HashMap;

use proptest::prelude::*;

use super::super::directory::tests::{Home, key, row};
use super::*;

fn numbers(page: &Page) -> Vec<u128> {
    page.rows.iter().map(|row| row.key.uuid().as_u128() & 0xffff).collect()
}

fn query(limit: usize) -> Query {
    Query { limit, ..Query::default() }
}

#[derive(Clone, Debug)]
enum Change {
    Insert(i64),
    Touch(usize, i64),
    Flush,
    Page,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        2 => (0_i64..40).prop_map(Change::Insert),
        1 => (any::<usize>(), 40_i64..80).prop_map(|(which, at)| Change::Touch(which, at)),
        1 => Just(Change::Flush),
        3 => Just(Change::Page),
    ];
    prop::collection::vec(change, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// What was there when a list began and was left alone is in it exactly once, and nothing is in
    /// it twice, whatever comes in and whichever rows are in memory.
    #[test]
    fn a_list_has_each_session_once(
        before in prop::collection::vec((0_i64..40, any::<bool>()), 0..30),
        changes in changes(),
        limit in 1_usize..6,
    ) {
        let mut home = Home::new();
        let mut seconds = HashMap::new();
        for (number, (second, cold)) in (1_u128..).zip(&before) {
            home.insert(number, "a", *second);
            seconds.insert(number, *second);
            if *cold {
                home.flush();
            }
        }
        let first = seconds.clone();
        let mut seen: Vec<u128> = Vec::new();
        let mut touched = Vec::new();
        let mut after = None;
        let mut next_page = |home: &Home, seen: &mut Vec<u128>| {
            let page = home.directory.page(&Query { after, ..query(limit) });
            assert!(page.rows.len() <= limit);
            assert!(page.next.is_none() || page.rows.len() == limit, "an early end");
            seen.extend(numbers(&page));
            after = page.next;
            page.next.is_some()
        };
        let mut more = true;
        for change in changes {
            match change {
                Change::Insert(second) => {
                    let number = seconds.len() as u128 + 1;
                    home.insert(number, "a", second);
                    seconds.insert(number, second);
                }
                Change::Touch(which, second) if !first.is_empty() => {
                    let number = 1 + (which % first.len()) as u128;
                    home.insert(number, "a", second);
                    touched.push(number);
                }
                Change::Touch(..) => {}
                Change::Flush => home.flush(),
                Change::Page => more = more && next_page(&home, &mut seen),
            }
        }
        while more {
            more = next_page(&home, &mut seen);
        }
        for number in first.keys().filter(|number| !touched.contains(number)) {
            prop_assert_eq!(seen.iter().filter(|n| *n == number).count(), 1, "{} in {:?}", number, seen);
        }
        let mut unique = seen.clone();
        unique.sort_unstable();
        unique.dedup();
        prop_assert_eq!(unique.len(), seen.len(), "twice: {:?}", seen);
    }
}

/// Twelve sessions, the even ones not in memory.
fn twelve() -> Home {
    let mut home = Home::new();
    let sessions = home.directory.index.sessions().to_path_buf();
    for number in [2, 4, 6, 8, 10, 12, 1, 3, 5, 7, 9, 11] {
        if number == 1 {
            home.flush();
        }
        let agent = if number % 3 == 0 { "c" } else { "a" };
        let mut row = row(&sessions, number, agent, i64::try_from(number).unwrap());
        Arc::make_mut(&mut row.view).cwd = if number <= 4 { "/w/x/".into() } else { "/w/y".into() };
        Arc::make_mut(&mut row.view).archived = number == 5 || number == 6;
        Arc::make_mut(&mut row.view).branch = (number % 2 == 1).then(|| "main".to_owned());
        Arc::make_mut(&mut row.view).parent = (number > 10).then(|| "p".to_owned());
        Arc::make_mut(&mut row.view).unproven = number == 8;
        home.directory.insert(row);
    }
    home
}

#[test]
fn every_filter_is_applied_before_the_page_is_cut() {
    let home = twelve();
    let at = |second| Timestamp::from_second(second).ok();
    let folder = |path: &str| Some(Folder::new(path));
    let table: Vec<(Query, &[u128])> = vec![
        (query(99), &[12, 11, 10, 9, 7, 4, 3, 2, 1]),
        (Query { agent: Some("c".into()), ..query(2) }, &[12, 9]),
        (Query { folder: folder("/w/x"), ..query(3) }, &[4, 3, 2]),
        (Query { folder: folder("/w//x/."), agent: Some("c".into()), ..query(9) }, &[3]),
        (Query { active: Some(true), ..query(9) }, &[]),
        (Query { active: Some(false), ..query(2) }, &[12, 11]),
        (Query { attention: Some(true), ..query(9) }, &[]),
        (Query { archived: Archived::Only, ..query(9) }, &[6, 5]),
        (Query { archived: Archived::Any, ..query(7) }, &[12, 11, 10, 9, 7, 6, 5]),
        (Query { updated_after: at(9), ..query(9) }, &[12, 11, 10]),
        (Query { updated_before: at(4), ..query(9) }, &[3, 2, 1]),
        (Query { ids: Some(vec![key(3), key(10), key(8), key(99), key(3)]), ..query(9) }, &[10, 3]),
        (Query { branches: Some(vec![None]), ..query(3) }, &[12, 10, 4]),
        (Query { branches: Some(vec![Some("main".into())]), ..query(2) }, &[11, 9]),
        (Query { children: Some(true), ..query(9) }, &[12, 11]),
        (Query { children: Some(false), ..query(2) }, &[10, 9]),
        (Query { prefix: Some("n1".into()), ..query(9) }, &[12, 11, 10, 1]),
        (Query { prefix: Some(key(7).to_string().to_uppercase()), ..query(9) }, &[7]),
        (
            Query {
                wanted: Some(Arc::new(|row| row.view.native.as_deref() == Some("n2"))),
                ..query(1)
            },
            &[2],
        ),
    ];
    for (index, (query, want)) in table.iter().enumerate() {
        assert_eq!(numbers(&home.directory.page(query)), *want, "query {index}");
    }
}

#[test]
fn a_page_that_is_full_by_chance_has_no_next_one() {
    let home = twelve();
    assert!(home.directory.page(&query(8)).next.is_some());
    assert_eq!(home.directory.page(&query(9)).next, None);
    let after = home.directory.page(&query(8)).next;
    let last = home.directory.page(&Query { after, ..query(8) });
    assert_eq!((numbers(&last), last.next), (vec![1], None));
    assert_eq!(home.directory.page(&query(0)).rows.len(), 0);
}

#[test]
fn a_session_from_the_future_is_found_by_its_own_time_and_stays_behind_newer_ones() {
    let mut home = Home::new();
    let now = Timestamp::now().as_second();
    home.insert(1, "a", now + 1_000_000_000);
    home.insert(2, "a", now);
    home.flush();
    let hour = now - now.rem_euclid(3_600);
    if hour < now {
        assert_eq!(numbers(&home.directory.page(&query(9))), [2, 1]);
    }
    let after = Timestamp::from_second(now + 10).ok();
    assert_eq!(numbers(&home.directory.page(&Query { updated_after: after, ..query(9) })), [1]);
    let before = Timestamp::from_second(now + 10).ok();
    assert_eq!(numbers(&home.directory.page(&Query { updated_before: before, ..query(9) })), [2]);
}
