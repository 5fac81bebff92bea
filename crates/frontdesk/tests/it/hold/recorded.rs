//! What a daemon's start does with holders it finds.

use frontdesk::agent::proc::{EndError, How, end_recorded};
use frontdesk::hold::record::Record;

use super::*;

const TERM: Duration = Duration::from_millis(200);

async fn end(place: &Place) -> proc::Ended {
    let ended = timeout(PATIENCE, end_recorded(&place.spec.run_dir, TERM)).await.unwrap().unwrap();
    assert!(!place.spec.run_dir.exists(), "the run folder is removed");
    assert_eq!(proc::marked(&place.spec.instance.0).unwrap(), [], "nothing is left");
    assert_eq!(ended.instance, *place.spec.instance.0);
    ended
}

#[tokio::test]
async fn a_holder_that_was_left_behind_is_asked() {
    let place = Place::sh("trap '' TERM; echo up; while :; do sleep 0.1; done");
    let mut desk = place.start().await;
    assert_eq!(desk.line().await, "up");
    let (holder, agent) = (desk.holder(), desk.agent());
    drop(desk);
    let ended = end(&place).await;
    assert_eq!((ended.how, ended.signalled), (How::Asked, vec![]));
    assert_eq!(ended.agent.as_deref(), Some("test"));
    assert!(!proc::alive(&holder) && !proc::alive(&agent));
}

#[tokio::test]
async fn a_dead_holders_far_grandchild_is_found_by_its_mark() {
    let place = Place::sh("setsid sh -c 'echo $$; trap \"\" TERM HUP; exec sleep 1000' & cat");
    let mut desk = place.start().await;
    let far = proc::identify(desk.line().await.parse().unwrap()).unwrap();
    assert!(proc::signal_process(&desk.holder(), Signal::SIGKILL));
    desk.rest().await;
    assert!(proc::alive(&far), "no signal reaches it");
    let ended = end(&place).await;
    assert_eq!(ended.how, How::Signalled);
    assert!(ended.signalled.contains(&far));
}

#[tokio::test]
async fn a_dead_holders_group_is_found_without_marks() {
    // The group's second process has thrown its mark away; group and process session tell.
    let place = Place::sh("env -u FRONTDESK_INSTANCE sh -c 'echo $$; exec sleep 1000' & cat");
    let mut desk = place.start().await;
    let member = proc::identify(desk.line().await.parse().unwrap()).unwrap();
    assert!(proc::signal_process(&desk.holder(), Signal::SIGKILL));
    desk.rest().await;
    assert!(proc::alive(&member));
    assert!(end(&place).await.signalled.contains(&member));
    assert!(!proc::alive(&member));
}

#[tokio::test]
async fn a_holder_that_does_not_answer_is_killed() {
    let place = Place::new(&["sleep", "1000"]);
    let desk = place.start().await;
    let (holder, agent) = (desk.holder(), desk.agent());
    drop(desk);
    assert!(proc::signal_process(&holder, Signal::SIGSTOP));
    let ended = end(&place).await;
    assert_eq!(ended.how, How::Signalled);
    assert!(!proc::alive(&holder) && !proc::alive(&agent));
}

#[tokio::test]
async fn a_holder_without_record_or_socket_is_found() {
    let place = Place::new(&["sleep", "1000"]);
    let desk = place.start().await;
    fs::write(place.spec.run_dir.join("holder.json"), "{").unwrap();
    let (holder, agent) = (desk.holder(), desk.agent());
    drop(desk);
    assert_eq!(end(&place).await.how, How::Asked);
    assert!(!proc::alive(&holder) && !proc::alive(&agent));

    let place = Place::new(&["sleep", "1000"]);
    let desk = place.start().await;
    fs::remove_file(place.spec.run_dir.join("sock")).unwrap();
    let (holder, agent) = (desk.holder(), desk.agent());
    drop(desk);
    let ended = end(&place).await;
    assert_eq!((ended.how, ended.signalled), (How::Signalled, vec![holder]));
    assert!(!proc::alive(&holder) && !proc::alive(&agent));
}

#[tokio::test]
async fn a_process_that_only_has_the_recorded_number_is_left_alone() {
    let innocent = std::process::Command::new("sleep").arg("1000").spawn();
    let mut innocent = innocent.unwrap();
    let id = proc::identify(innocent.id().cast_signed()).unwrap();
    let other = ProcessId { birth: id.birth - 1, ..id };
    let place = Place::new(&["cat"]);
    let record = |boot_id: String| Record {
        version: 1,
        holder: other,
        boot_id,
        agent: Some(other),
        agent_name: "test".into(),
        program: "cat".into(),
        mark: place.spec.instance.0.to_string(),
        since: 0,
    };
    for (boot, how) in
        [(proc::boot_id().unwrap(), How::AlreadyGone), ("another".to_owned(), How::OtherBoot)]
    {
        fs::create_dir_all(&place.spec.run_dir).unwrap();
        record(boot).write(&place.spec.run_dir).unwrap();
        let ended = end(&place).await;
        assert_eq!((ended.how, ended.signalled), (how, vec![]));
        assert!(proc::alive(&id));
    }
    innocent.kill().unwrap();
    innocent.wait().unwrap();
}

#[tokio::test]
async fn a_number_given_anew_to_the_leader_of_a_session_and_group_is_left_alone() {
    // All that the record says of numbers fits, but for the time of birth.
    let innocent = std::process::Command::new("setsid").args(["sleep", "1000"]).spawn();
    let mut innocent = innocent.unwrap();
    let pid = innocent.id().cast_signed();
    eventually("it leads", || proc::stat(pid).is_some_and(|it| it.session == pid)).await;
    let id = proc::identify(pid).unwrap();
    let earlier = ProcessId { birth: id.birth - 1, ..id };
    let place = Place::new(&["cat"]);
    fs::create_dir_all(&place.spec.run_dir).unwrap();
    let record = Record {
        version: 1,
        holder: earlier,
        boot_id: proc::boot_id().unwrap(),
        agent: Some(earlier),
        agent_name: "test".into(),
        program: "cat".into(),
        mark: place.spec.instance.0.to_string(),
        since: 0,
    };
    record.write(&place.spec.run_dir).unwrap();
    let ended = end(&place).await;
    assert_eq!((ended.how, ended.signalled), (How::AlreadyGone, vec![]));
    assert!(proc::alive(&id));
    innocent.kill().unwrap();
    innocent.wait().unwrap();
}

#[tokio::test]
async fn an_empty_folder_is_removed_and_a_strange_one_is_not() {
    let place = Place::new(&["cat"]);
    fs::create_dir_all(&place.spec.run_dir).unwrap();
    assert_eq!(end(&place).await.how, How::AlreadyGone);

    fs::create_dir_all(&place.spec.run_dir).unwrap();
    fs::write(place.spec.run_dir.join("letter"), "").unwrap();
    let error = end_recorded(&place.spec.run_dir, TERM).await.unwrap_err();
    assert!(matches!(error, EndError::Remove { .. }), "{error:?}");
    let error = end_recorded(Path::new("/"), TERM).await.unwrap_err();
    assert!(matches!(error, EndError::NoInstance(_)), "{error:?}");
}
