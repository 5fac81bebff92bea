use std::time::Instant;

use super::*;

#[tokio::test]
async fn an_agent_that_obeys_term_is_gone_at_once() {
    // Not behind a shell: signals that a holder blocks for itself must reach the agent.
    let place = Place::new(&["sleep", "1000"]);
    let mut desk = place.start().await;
    let start = Instant::now();
    desk.stop(60_000).await;
    assert!(start.elapsed() < Duration::from_secs(10));
    has_left(&place, &desk).await;
}

#[tokio::test]
async fn an_agent_that_ignores_term_is_killed_after_its_time() {
    let place = Place::sh("trap '' TERM; echo up; while :; do sleep 0.1; done");
    let mut desk = place.start().await;
    assert_eq!(desk.line().await, "up");
    let start = Instant::now();
    desk.stop(300).await;
    assert!(start.elapsed() >= Duration::from_millis(300), "TERM comes first");
    has_left(&place, &desk).await;
}

#[tokio::test]
async fn a_stopped_agent_is_ended_too() {
    let place = Place::new(&["sleep", "1000"]);
    let mut desk = place.start().await;
    assert!(proc::signal_process(&desk.agent(), Signal::SIGSTOP));
    let start = Instant::now();
    desk.stop(60_000).await;
    assert!(start.elapsed() < Duration::from_secs(10));
}

async fn grandchild(desk: &mut Desk) -> ProcessId {
    let pid = desk.line().await.parse().unwrap();
    proc::identify(pid).unwrap()
}

#[tokio::test]
async fn a_grandchild_in_a_group_of_its_own_is_killed_at_stop() {
    let place = Place::sh("setsid sh -c 'echo $$; trap \"\" TERM; sleep 1000 & wait' & sleep 1000");
    let mut desk = place.start().await;
    let far = grandchild(&mut desk).await;
    assert_ne!(proc::stat(far.pid).unwrap().session, desk.holder().pid);
    desk.stop(100).await;
    assert!(!proc::alive(&far), "gone before it is said");
    assert_eq!(proc::marked(&place.spec.instance.0).unwrap(), []);
    has_left(&place, &desk).await;
}

#[tokio::test]
async fn a_process_without_the_mark_is_left_alone() {
    let place = Place::sh(
        "env -u FRONTDESK_INSTANCE setsid sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1' & sleep 1000",
    );
    let mut desk = place.start().await;
    let free = grandchild(&mut desk).await;
    eventually("it has closed its output", || {
        fs::read_link(format!("/proc/{}/fd/1", free.pid))
            .is_ok_and(|to| to == Path::new("/dev/null"))
    })
    .await;
    desk.stop(100).await;
    assert!(proc::signal_process(&free, Signal::SIGKILL), "it was alive");
}

#[tokio::test]
async fn a_stream_that_outlives_everything_of_the_agent_is_closed() {
    // It keeps the pipe and has neither group nor mark: it is not ours to kill, nor to wait for.
    let place =
        Place::sh("env -u FRONTDESK_INSTANCE setsid sh -c 'echo $$; exec sleep 1000' & sleep 1000");
    let mut desk = place.start().await;
    let free = grandchild(&mut desk).await;
    desk.stop(100).await;
    assert!(desk.seen.iter().any(|event| matches!(event, LinkEvent::Eof { .. })));
    assert!(proc::signal_process(&free, Signal::SIGKILL), "it was alive");
}

#[tokio::test]
async fn a_stream_that_outlives_the_first_process_goes_on_and_ends_after_silence() {
    let mut place = Place::sh(
        "exec 3<&0; (sleep 0.4; echo second; read x; echo got $x; sleep 1000) <&3 & exit 0",
    );
    place.limits.silent_orphan_ms = 1500;
    place.limits.stop_term_ms = 200;
    let mut desk = place.start().await;
    desk.until(|event| matches!(event, LinkEvent::AgentExited(_))).await;
    assert_eq!(desk.line().await, "second");
    desk.send(1, "word").await;
    assert_eq!(desk.line().await, "got word");
    let start = Instant::now();
    desk.until(|event| matches!(event, LinkEvent::Eof { .. })).await;
    desk.until(|event| *event == LinkEvent::Gone).await;
    assert!(start.elapsed() >= Duration::from_millis(1400), "{:?}", start.elapsed());
    assert_eq!(proc::marked(&place.spec.instance.0).unwrap(), []);
}

#[tokio::test]
async fn an_agent_that_only_closes_its_output_is_ended() {
    let mut place = Place::sh("trap '' TERM; echo x; exec 1>&-; while :; do sleep 0.1; done");
    place.limits.stop_term_ms = 200;
    let mut desk = place.start().await;
    desk.until(|event| *event == LinkEvent::Eof { end: 2 }).await;
    desk.until(|event| *event == LinkEvent::Gone).await;
    assert!(!proc::alive(&desk.agent()));
    desk.link.sender.ack(2);
    has_left(&place, &desk).await;
}

#[tokio::test]
async fn an_agent_that_leaves_by_itself_is_not_hurried() {
    // It closes its output and then works a little, as one that saves its sessions does.
    let place = Place::sh("trap 'exit 9' TERM; exec 1>&-; sleep 0.1; touch saved");
    let mut desk = place.start().await;
    desk.until(|event| *event == LinkEvent::Gone).await;
    assert!(place.spec.cwd.join("saved").exists());
}

#[tokio::test]
async fn a_holder_without_a_daemon_ends_its_agent_in_time() {
    let mut place = Place::sh("trap '' TERM; echo up; while :; do sleep 0.1; done");
    place.limits.holder_orphan_s = 1;
    place.limits.stop_term_ms = 100;
    let mut desk = place.start().await;
    assert_eq!(desk.line().await, "up");
    tokio::time::sleep(Duration::from_millis(1300)).await;
    assert!(proc::alive(&desk.agent()), "not while a daemon is there");
    let (sender, receiver) = desk.link.split();
    let (holder, agent) = {
        let record = frontdesk::hold::record::Record::read(&place.spec.run_dir).unwrap().unwrap();
        (record.holder, record.agent.unwrap())
    };
    let alone = std::time::Instant::now();
    drop((sender, receiver));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let lives = proc::alive(&agent);
    assert!(lives || alone.elapsed() >= Duration::from_secs(1), "not before its time");
    eventually("both leave", || !proc::alive(&holder) && !proc::alive(&agent)).await;
    eventually("the run folder is removed", || !place.spec.run_dir.exists()).await;
}

#[tokio::test]
async fn signals_to_the_holder() {
    let place = Place::new(&["cat"]);
    let mut desk = place.start().await;
    assert!(proc::signal_process(&desk.holder(), Signal::SIGHUP));
    desk.send(1, "still here").await;
    assert_eq!(desk.line().await, "still here");
    assert!(proc::signal_process(&desk.holder(), Signal::SIGTERM));
    let rest = desk.rest().await;
    assert_eq!(rest.last(), Some(&LinkEvent::Gone), "{rest:?}");
    has_left(&place, &desk).await;
}

#[tokio::test]
async fn a_killed_holder_takes_its_agent_along() {
    let place = Place::new(&["sleep", "1000"]);
    let mut desk = place.start().await;
    assert!(proc::signal_process(&desk.holder(), Signal::SIGKILL));
    assert_eq!(desk.rest().await, [LinkEvent::HolderLost]);
    let agent = desk.agent();
    eventually("the agent is killed", || !proc::alive(&agent)).await;
    let claim = desk.link.sender.claim("x", "").await;
    assert!(matches!(claim, Err(LinkError::HolderLost)), "{claim:?}");
}

#[tokio::test]
async fn last_words_that_a_full_disk_does_not_take_hold_up_no_stop() {
    let mut place =
        Place::sh("echo up; read x; while :; do echo some words that fill the pipe; done");
    let folder = place.spec.cwd.join("small");
    let Some(disk) = crate::small_disk::SmallDisk::lay(&folder, 4) else { return };
    place.spec.data_dir = folder.join(&*place.spec.instance.0);
    let mut desk = place.start().await;
    assert_eq!(desk.line().await, "up");
    disk.fill();
    // Within the room that is set aside for input.
    desk.send(1, "go").await;
    eventually("a pipe that is full", || {
        // It waits in a write: its state does not change any more, and neither does the spool.
        fs::metadata(place.data("out.spool")).is_ok_and(|spool| spool.len() > 3)
            || proc::stat(desk.agent().pid).is_some_and(|stat| stat.state == b'S')
    })
    .await;
    // Also when it cannot say its last words, the holder says that it is gone.
    desk.stop(100).await;
    has_left(&place, &desk).await;
    drop(disk);
}
