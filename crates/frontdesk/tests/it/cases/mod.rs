//! Cases: failures seen in the wild, replayed against the real binary.
//!
//! Each file of `testdata/cases` is a script of frames, levers and checks between clients, the
//! desk and puppet agents that the desk starts by itself; `README.md` there explains the format.

mod bridge;
mod checks;
mod clients;
mod desk;
mod journals;
mod levers;
mod pattern;
mod puppets;
mod raw;
mod run;
mod script;
mod special;
mod world;

use std::collections::BTreeSet;

use serde_json::Value;

use run::{Run, Shape};

fn load(id: &str) -> Result<Value, String> {
    let path = desk::data().join(format!("{id}.json"));
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|e| format!("failed to read {}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{} is no JSON: {e}", path.display()))
}

/// Plays a case with all its variants; the error has the transcript.
fn play(id: &str) -> Result<(), String> {
    play_as(id, Shape::Plain)
}

/// The same over several instances of each agent.
fn play_as(id: &str, shape: Shape) -> Result<(), String> {
    let case = load(id)?;
    let only = std::env::var("CASE_VARIANT").ok().and_then(|at| at.parse::<usize>().ok());
    let variants = case["variants"].as_array().cloned().unwrap_or_else(|| vec![Value::Null]);
    let mut proved = BTreeSet::new();
    for (at, variant) in variants.iter().enumerate() {
        if only.is_none_or(|only| only == at) {
            let shown = play_variant(&case, variant, shape);
            proved.extend(shown.map_err(|e| format!("{id}, variant {at} {variant}: {e}"))?);
        }
    }
    let expected: BTreeSet<usize> = expectations(&case).collect();
    if only.is_none() && proved != expected {
        return Err(format!("{id} showed {proved:?} and not {expected:?}"));
    }
    Ok(())
}

/// Plays one variant; returns the numbers of the expectations that were shown.
fn play_variant(case: &Value, variant: &Value, shape: Shape) -> Result<BTreeSet<usize>, String> {
    let no_mount = std::env::var_os("FRONTDESK_TEST_NO_MOUNT").is_some_and(|value| value == "1");
    if no_mount && case["boot"]["small_disk_mib"].is_u64() {
        eprintln!("LEFT OUT: {}, because FRONTDESK_TEST_NO_MOUNT=1", case["id"]);
        return Ok(expectations(case).collect());
    }
    let mut run = Run::new(&case["boot"], variant, shape)?;
    let played = play_steps(&mut run, case);
    if let Err(error) = played {
        return Err(format!("{error}\n{}", run.report()));
    }
    let proved = run.proved.clone();
    run.finish()?;
    Ok(proved)
}

fn play_steps(run: &mut Run, case: &Value) -> Result<(), String> {
    run.boot().map_err(|e| format!("boot: {e}"))?;
    for (number, step) in case["script"].as_array().into_iter().flatten().enumerate() {
        let done = script::step(run, step);
        done.map_err(|e| format!("step {}: {}: {e}", number + 1, pattern::cut(step)))?;
    }
    Ok(())
}

/// The expectations that the script has to show, from 1: all that are not excused.
fn expectations(case: &Value) -> impl Iterator<Item = usize> {
    let expect = case["expect"].as_array().cloned().unwrap_or_default();
    expect
        .into_iter()
        .enumerate()
        .filter(|(_, expected)| expected.get("not_here").is_none())
        .map(|(at, _)| at + 1)
}

macro_rules! cases {
    ($($name:ident = $id:literal,)*) => {
        /// The cases that run.
        const CASES: &[&str] = &[$($id,)*];
        $(#[test]
        fn $name() {
            if let Err(report) = play($id) {
                panic!("{report}");
            }
        })*
    };
}

cases! {
    ask1 = "ASK1",
    ask2 = "ASK2",
    c01 = "C01",
    c03 = "C03",
    c05 = "C05",
    c07 = "C07",
    c09 = "C09",
    c11 = "C11",
    c13 = "C13",
    c15 = "C15",
    c17 = "C17",
    c19 = "C19",
    c29 = "C29",
    c31 = "C31",
    c34 = "C34",
    c36 = "C36",
    c38 = "C38",
    c40 = "C40",
    c43 = "C43",
    c45 = "C45",
    c47 = "C47",
    c49 = "C49",
    c51 = "C51",
    c53 = "C53",
    c55 = "C55",
    c57 = "C57",
    c59 = "C59",
    c61 = "C61",
    c63 = "C63",
    c64 = "C64",
    c66 = "C66",
    c68 = "C68",
    c70 = "C70",
    c72 = "C72",
    c74 = "C74",
    c76 = "C76",
    c78 = "C78",
    c80 = "C80",
    c82 = "C82",
    c84 = "C84",
    c86 = "C86",
    c88 = "C88",
    c90 = "C90",
    c92 = "C92",
    c94 = "C94",
    c96 = "C96",
    c98 = "C98",
    c100 = "C100",
    c102 = "C102",
    c104 = "C104",
    c106 = "C106",
    c108 = "C108",
    c110 = "C110",
    c112 = "C112",
    c113 = "C113",
    c114 = "C114",
    sub1 = "SUB1",
    sub2 = "SUB2",
    self_plumbing = "SELF1",
    self_process = "SELF2",
}

macro_rules! again {
    ($($name:ident: $shape:ident $id:literal,)*) => {
        $(#[test]
        fn $name() {
            if let Err(report) = play_as($id, Shape::$shape) {
                panic!("{report}");
            }
        })*
    };
}

// Cases about status and routing, where an agent has two instances.
again! {
    beside_c01: Beside "C01",
    beside_c03: Beside "C03",
    beside_c05: Beside "C05",
    beside_c09: Beside "C09",
    beside_c11: Beside "C11",
    beside_c13: Beside "C13",
    beside_c17: Beside "C17",
    beside_c19: Beside "C19",
    beside_c100: Beside "C100",
    beside_c102: Beside "C102",
    urls_c01: Urls "C01",
    urls_c03: Urls "C03",
    urls_c05: Urls "C05",
    urls_c07: Urls "C07",
    urls_c13: Urls "C13",
    urls_c17: Urls "C17",
    urls_c19: Urls "C19",
    urls_c102: Urls "C102",
}

#[test]
fn every_case_file_runs_and_says_what_it_shows() {
    let files = std::fs::read_dir(desk::data()).expect("the folder of cases");
    let names = files.flatten().filter_map(|file| file.file_name().into_string().ok());
    let ids: BTreeSet<String> =
        names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned)).collect();
    let listed: BTreeSet<String> = CASES.iter().map(|id| (*id).to_owned()).collect();
    assert_eq!(ids, listed);
    for id in CASES {
        let case = load(id).expect("a case file");
        assert_eq!(case["id"], *id);
        let script = case["script"].to_string();
        for expected in case["expect"].as_array().expect("a list of expectations") {
            let stated = ["must", "never"].iter().any(|word| expected[*word].is_string());
            assert!(stated, "{id}: {expected}");
            if let Some(reason) = expected.get("not_here") {
                assert!(reason.as_str().is_some_and(|reason| !reason.is_empty()), "{id}");
            }
        }
        assert!(expectations(&case).count() == 0 || script.contains("\"proves\""), "{id}");
    }
}
