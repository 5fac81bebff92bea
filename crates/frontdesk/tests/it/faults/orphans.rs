//! What nobody has is found by record and mark and ended; what is not provably ours is left alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use frontdesk::agent::link::{self, HolderSpec};
use frontdesk::agent::proc;
use frontdesk_core::ids::InstanceId;
use frontdesk_core::limits::Limits;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{
    Chance, SOON, begin_prompt, client, demo, demo_desk, endings, eventually, holders,
    home_processes, log, native, new_session, nothing_runs, openings, place, rounds, signal, store,
    turn,
};
use crate::desk::{DESK_MARK, Desk, frontdesk};

/// Rounds of a test that kills at random.
const ROUNDS: u64 = 6;

/// The names of the folders below `run/instances` or `data/instances`.
fn folders(desk: &Desk, part: &str) -> Vec<String> {
    let entries = fs::read_dir(desk.home().join(part).join("instances"));
    let names = entries.into_iter().flatten().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Starts an instance in a desk's home behind its daemon's back, as one that was started and lost.
fn lost_instance(desk: &Desk, name: &str) -> HolderSpec {
    let spec = HolderSpec {
        instance: InstanceId(name.into()),
        agent: "demo".into(),
        // One child leaves group and session, and keeps the mark.
        command: ["sh", "-c", "setsid sleep 1000 & exec sleep 1000"].map(str::to_owned).to_vec(),
        cwd: desk.work(),
        env: BTreeMap::from([(DESK_MARK.to_owned(), root(desk).display().to_string())]),
        run_dir: desk.home().join("run/instances").join(name),
        data_dir: desk.home().join("data/instances").join(name),
        claims_dir: root(desk).join("c"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let started = runtime
        .expect("a runtime")
        .block_on(async { link::start(frontdesk(), &spec, &Limits::default()).await.map(drop) });
    started.expect("the holder starts");
    spec
}

fn root(desk: &Desk) -> PathBuf {
    desk.home().parent().expect("a home lies in a folder").to_path_buf()
}

/// Has the agent start a child that leaves the group and the process session; its pid.
fn far_child(desk: &Desk, session: &str, one: &mut crate::acp::Acp) -> i32 {
    let from = one.mark();
    turn(one, session, "daemon-child 600 detached");
    let said = super::seen(&one.updates(session, from)).concat();
    let digits: String = said.chars().filter(char::is_ascii_digit).collect();
    let pid = digits.parse().unwrap_or_else(|_| panic!("no pid in {said:?}"));
    eventually("it leads a session", SOON, || {
        proc::stat(pid).is_some_and(|stat| stat.session == pid)
    });
    assert!(desk.processes().iter().any(|it| it.pid == pid), "it carries the mark");
    pid
}

fn lives(pid: i32) -> bool {
    proc::stat(pid).is_some_and(|stat| !stat.is_dead())
}

#[test]
fn an_instance_that_no_daemon_has_is_swept_up_and_others_are_not() {
    let desk = demo_desk().limit("sweep_s", 1).limit("stop_term_ms", 500).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    let id = native(&mut one, &session);
    let running = begin_prompt(&mut one, &session, "say on\nwait 6000\nsay off");
    let lost = lost_instance(&desk, "demo-lost");
    let record = frontdesk::hold::record::Record::read(&lost.run_dir);
    let record = record.expect("readable").expect("there is a record");
    // A spool of which nothing else is left, and a folder that is no instance's.
    let spool = desk.home().join("data/instances/demo-gone");
    fs::create_dir(&spool).expect("a folder");
    fs::write(spool.join("out.spool"), "x").expect("a file");
    let strange = desk.home().join("run/instances/not an instance");
    fs::create_dir(&strange).expect("a folder");
    eventually("its end", SOON, || {
        !proc::alive(&record.holder) && !proc::alive(&record.agent.expect("it has an agent"))
    });
    eventually("its folders are gone", SOON, || {
        !lost.run_dir.exists() && !lost.data_dir.exists() && !spool.exists()
    });
    assert!(strange.exists());
    assert_eq!(one.wait(running, SOON).expect("the turn ends")["stopReason"], "end_turn");
    assert_eq!(openings(&store(&desk), &id).len(), 1, "the one that is known goes on");
    assert_eq!(folders(&desk, "data").len(), 1);
}

#[test]
fn a_daemon_that_dies_while_it_starts_an_instance_leaves_none_for_long() {
    let mut chance = Chance::new("a_daemon_that_dies_while_it_starts_an_instance");
    let mut desk = demo_desk().limit("sweep_s", 1).limit("stop_term_ms", 200).open();
    let mut lost = 0;
    for round in 0..rounds(ROUNDS) {
        let mut one = client(&desk);
        one.begin("session/new", place(&desk, None));
        std::thread::sleep(Duration::from_micros(chance.below(60_000)));
        desk.kill9();
        assert!(one.wait_exit(SOON).is_some());
        desk.start();
        let mut next = client(&desk);
        lost += usize::from(desk.instances() > 0);
        eventually("only what is known runs", SOON, || {
            let info = next.ok("_frontdesk/info", json!({}));
            let known = info["instances"].as_u64().expect("a number");
            let found = u64::try_from(desk.instances()).expect("few");
            let kept = u64::try_from(folders(&desk, "run").len()).expect("few");
            (known, known) == (found, kept)
        });
        for row in next.ok("session/list", json!({}))["sessions"].as_array().expect("a list") {
            let id = row["sessionId"].as_str().expect("an id").to_owned();
            let opened = next.request("session/resume", place(&desk, Some(&id)));
            assert!(opened.is_ok(), "round {round}: {row}: {opened:?}");
            let force = json!({ "frontdesk": { "force": true } });
            next.ok("session/delete", json!({ "sessionId": id, "_meta": force }));
        }
    }
    println!("{} rounds, {lost} with an instance that outlived its start", rounds(ROUNDS));
}

#[test]
fn a_child_that_left_its_group_ends_with_its_holder() {
    for daemon_too in [false, true] {
        let mut desk = demo_desk().limit("stop_term_ms", 200).open();
        let mut one = client(&desk);
        let session = new_session(&desk, &mut one);
        let far = far_child(&desk, &session, &mut one);
        if daemon_too {
            desk.kill9();
        }
        signal(holders(&desk)[0], Signal::SIGKILL);
        if daemon_too {
            eventually("the agent's end", SOON, || desk.instances() <= 1);
            assert!(lives(far), "no signal reaches it");
            desk.start();
            assert!(!lives(far), "gone before the daemon takes a connection");
        }
        eventually("its end", SOON, || !lives(far));
        let mut two = client(&desk);
        two.ok("session/load", place(&desk, Some(&session)));
        turn(&mut two, &session, "say again");
    }
}

#[test]
fn a_session_is_free_again_once_its_agent_can_be_proven_gone() {
    let desk = demo_desk().limit("stop_term_ms", 200).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say hello");
    // The end is not proven while the instance's folder cannot be removed.
    let folder = desk.home().join("run/instances").join(&folders(&desk, "run")[0]);
    let letter = folder.join("letter");
    fs::write(&letter, "").expect("it can be written");
    signal(holders(&desk)[0], Signal::SIGKILL);
    eventually("the loss", SOON, || super::status(&mut one, &session).0 == "inactive");
    eventually("the first try", SOON, || desk.daemon_log().contains("failed to prove"));
    let mut two = client(&desk);
    let loading = two.begin("session/load", place(&desk, Some(&session)));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!two.is_answered(loading), "nobody gets it before the proof");
    fs::remove_file(&letter).expect("it is there");
    two.wait(loading, SOON).expect("it is loaded");
    turn(&mut two, &session, "say again");
}

#[test]
fn what_threw_its_mark_away_and_left_is_not_taken_for_ours() {
    let mut desk = Desk::builder()
        .agent(demo("demo", &[]))
        .limit("sweep_s", 1)
        .limit("stop_term_ms", 200)
        .open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    turn(&mut one, &session, "say here");
    // As a double fork with an empty environment leaves it: no group, no session, no mark, no parent.
    let file = desk.work().join("pid");
    let script = format!("setsid sh -c 'echo $$ > {}; exec sleep 1000' &", file.display());
    let mark = desk.processes()[0].instance.clone();
    let started = desk
        .command("env")
        .args(["-i", "PATH=/usr/bin:/bin", "sh", "-c", &script])
        .env("FRONTDESK_INSTANCE", mark)
        .status();
    assert!(started.expect("env runs").success());
    let mut free = 0;
    eventually("it runs", SOON, || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        free = text.trim().parse().unwrap_or_default();
        free > 0
    });
    let stopped = desk.cli(&["stop", "--all", "--json"]);
    assert!(stopped.status.success(), "{stopped:?}");
    desk.kill9();
    nothing_runs(&desk);
    assert!(lives(free), "it is not provably ours");
    signal(free, Signal::SIGKILL);
}

/// Everything that runs of a desk: its daemon, its holders, its agents and what carries their marks.
fn of_desk(desk: &Desk) -> Vec<(i32, String)> {
    let mut found = home_processes(desk);
    found.extend(desk.processes().into_iter().map(|it| (it.pid, it.command)));
    found.sort();
    found.dedup();
    found
}

fn stop_all(desk: &Desk) -> Value {
    let stopped = desk.cli(&["stop", "--all", "--json"]);
    assert!(stopped.status.success(), "{stopped:?}");
    serde_json::from_slice(&stopped.stdout).expect("one document")
}

#[test]
fn after_a_stop_of_all_nothing_of_the_home_runs_with_or_without_its_daemon() {
    for daemon_dies in [false, true] {
        let mut desk = demo_desk().limit("stop_term_ms", 500).limit("drain_s", 0).open();
        let mut one = client(&desk);
        let sessions: Vec<String> = (0..2).map(|_| new_session(&desk, &mut one)).collect();
        let far = far_child(&desk, &sessions[0], &mut one);
        begin_prompt(&mut one, &sessions[1], "say on\nwait 600000");
        let lost = lost_instance(&desk, "demo-lost");
        let record = frontdesk::hold::record::Record::read(&lost.run_dir).expect("readable");
        let lost_holder = record.expect("a record").holder;
        // The record of a third one is gone, as when `run` was cleared; its mark is not.
        let wiped = lost_instance(&desk, "demo-wiped");
        let holder = frontdesk::hold::record::Record::read(&wiped.run_dir).expect("readable");
        signal(holder.expect("a record").holder.pid, Signal::SIGKILL);
        fs::remove_dir_all(&wiped.run_dir).expect("it is there");
        if daemon_dies {
            desk.kill9();
        }
        assert!(of_desk(&desk).len() >= 7, "{:?}", of_desk(&desk));
        let document = stop_all(&desk);
        assert_eq!(document["stopped"].is_null(), daemon_dies, "{document}");
        desk.kill9();
        drop(one);
        nothing_runs(&desk);
        assert_eq!(of_desk(&desk), []);
        assert!(!lives(far) && !proc::alive(&lost_holder) && !lost.run_dir.exists());
        assert!(!desk.socket().exists(), "its socket is gone");
        assert_eq!((folders(&desk, "run").len(), folders(&desk, "data").len()), (0, 0));
        // Again there is nothing to do; and the next start closes what was open.
        let again = stop_all(&desk);
        assert_eq!((&again["stopped"], &again["ended"]), (&Value::Null, &json!(0)), "{again}");
        desk.start();
        let mut two = client(&desk);
        let endings = endings(&log(&mut two, &sessions[1]));
        let wanted = if daemon_dies { "failed" } else { "cancelled" };
        assert_eq!(endings[0]["outcome"], wanted, "{endings:?}");
    }
}

#[test]
fn a_stop_of_all_ends_agents_also_where_the_runtime_folder_was_cleared() {
    let mut desk = demo_desk().limit("stop_term_ms", 500).open();
    let mut one = client(&desk);
    let session = new_session(&desk, &mut one);
    begin_prompt(&mut one, &session, "say on\nwait 600000");
    desk.kill9();
    // As a session manager does at a log-out.
    fs::remove_dir_all(desk.home().join("run")).expect("it is there");
    let document = stop_all(&desk);
    assert_eq!(document["ended"], 1, "{document}");
    drop(one);
    eventually("nothing of the home", SOON, || of_desk(&desk).is_empty());
    assert_eq!(folders(&desk, "data").len(), 0);
}

#[test]
fn a_stop_of_all_in_a_home_that_never_was_is_fine() {
    let desk = demo_desk().build();
    let document = stop_all(&desk);
    assert_eq!((&document["stopped"], &document["ended"]), (&Value::Null, &json!(0)));
    let plain = desk.cli(&["stop"]);
    assert_eq!(plain.status.code(), Some(6), "without --all there has to be a daemon");
    assert!(!Path::new(&desk.home().join("run")).exists(), "nothing is made");
}

#[test]
fn doctor_tells_of_instances_without_a_daemon_and_of_marks_that_nobody_accounts_for() {
    let mut desk = demo_desk().open();
    let mut one = client(&desk);
    new_session(&desk, &mut one);
    let left = |desk: &Desk| {
        let output = desk.cli(&["doctor", "--json"]);
        let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
        let findings = document["findings"].as_array().expect("findings").clone();
        let of_left = findings.into_iter().filter(|it| it["about"] == "left");
        of_left.map(|it| it["says"].to_string()).collect::<Vec<_>>().join("\n")
    };
    let mark = format!("x-{}", std::process::id());
    let mut stray = desk
        .command("setsid")
        .args(["sleep", "1000"])
        .env("FRONTDESK_INSTANCE", &mark)
        .spawn()
        .expect("it starts");
    let pid = stray.id();
    let found = left(&desk);
    let named = found.rsplit("pid ").next().unwrap_or_default();
    let pids = named.split(|c: char| !c.is_ascii_digit());
    assert!(pids.into_iter().any(|it| it == pid.to_string()), "{found}");
    assert!(!left(&desk).contains("without a daemon"));
    desk.kill9();
    // The one that doctor itself had started for its check may be on its way out.
    eventually("the instance that waits", SOON, || {
        left(&desk).contains("1 instance without a daemon")
    });
    let document = stop_all(&desk);
    // Other tests may have some of their own at this moment.
    let strays = document["strays"].as_array().expect("a list").clone();
    assert!(strays.contains(&json!({ "instance": mark, "pids": [pid] })), "{strays:?}");
    assert!(stray.try_wait().expect("it can be waited for").is_none(), "it is left alone");
    stray.kill().expect("it lives");
    stray.wait().expect("it ends");
}
