use std::os::unix::fs::PermissionsExt;

use frontdesk::agent::link::FailKind;

use super::*;

async fn failure(place: &Place) -> (FailKind, String) {
    match place.try_start().await {
        Err(LinkError::Start { kind, message }) => {
            assert!(!place.spec.run_dir.exists(), "a failed start leaves no run folder");
            (kind, message)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_keeps_an_agent_from_starting_is_said() {
    let (kind, message) = failure(&Place::new(&["no-such-program-anywhere"])).await;
    assert_eq!(kind, FailKind::ProgramMissing);
    assert!(message.contains("no-such-program-anywhere"), "{message}");

    let mut place = Place::new(&["cat"]);
    place.spec.cwd = "/no/such/folder".into();
    let (kind, message) = failure(&place).await;
    assert_eq!(kind, FailKind::CwdMissing);
    assert!(message.contains("/no/such/folder"), "{message}");

    let mut place = Place::new(&["cat"]);
    let script = place.spec.cwd.join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    place.spec.command = vec![script.to_str().unwrap().into()];
    assert_eq!(failure(&place).await.0, FailKind::Permission);
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(failure(&place).await.0, FailKind::ProgramMissing);

    assert_eq!(failure(&Place::new(&[])).await.0, FailKind::Other);
}

#[tokio::test]
async fn a_socket_path_that_is_too_long_is_refused_with_the_way_out() {
    let mut place = Place::new(&["cat"]);
    let parent = place.spec.cwd.join("x".repeat(100));
    place.spec.run_dir = parent.join(&*place.spec.instance.0);
    let (kind, message) = failure(&place).await;
    assert_eq!(kind, FailKind::SocketPath);
    assert!(message.contains("FRONTDESK_HOME"), "{message}");
    // The last length that fits works.
    let used = place.spec.cwd.as_os_str().len() + 1 + 1 + place.spec.instance.0.len() + 5;
    let parent = place.spec.cwd.join("y".repeat(100 - used));
    place.spec.run_dir = parent.join(&*place.spec.instance.0);
    assert_eq!(place.spec.run_dir.join("sock").as_os_str().len(), 100);
    place.start().await.stop(0).await;
}

#[tokio::test]
async fn bad_orders_are_refused() {
    let mut place = Place::new(&["cat"]);
    place.spec.data_dir = "relative".into();
    assert!(matches!(place.try_start().await, Err(LinkError::Relative(_))));

    let mut place = Place::new(&["cat"]);
    place.spec.instance = InstanceId("../up".into());
    assert_eq!(failure(&place).await.0, FailKind::Other);

    // What a person who tries it by hand gets.
    let output = std::process::Command::new(exe()).arg("hold").output().unwrap();
    assert!(!output.status.success());
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("is started by the daemon"), "{told}");

    let missing = Place::new(&["cat"]);
    let error = link::start(Path::new("/no/such/exe"), &missing.spec, &missing.limits).await;
    assert!(matches!(error, Err(LinkError::Spawn(_))));
    let error = link::start(Path::new("/bin/true"), &missing.spec, &missing.limits).await;
    assert!(matches!(error, Err(LinkError::Silent)));
    let error = link::reconnect(&missing.spec.run_dir, 0, &missing.limits).await;
    assert!(matches!(error, Err(LinkError::Connect { .. })));
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_nothing() {
    // Given up after each of some times, before and behind the start of the agent.
    for wait_ms in [0, 1, 2, 4, 8, 16] {
        let place = Place::new(&["sleep", "1000"]);
        let started = timeout(Duration::from_millis(wait_ms), place.try_start()).await;
        drop(started);
        let record = frontdesk::hold::record::Record::read(&place.spec.run_dir);
        if let Ok(Some(record)) = record {
            // A link that was made and dropped leaves a holder that waits for the next daemon.
            proc::end_recorded(&place.spec.run_dir, Duration::ZERO).await.unwrap();
            assert!(!proc::alive(&record.holder));
        }
        eventually("no agent is left", || proc::marked(&place.spec.instance.0).unwrap().is_empty())
            .await;
    }
}

#[tokio::test]
async fn processes_files_and_environment_are_as_promised() {
    let mut place = Place::sh("echo \"$SECRET $FRONTDESK_INSTANCE $(pwd)\"; cat");
    place.spec.env.insert("SECRET".into(), "hidden-value".into());
    let mut desk = place.start().await;
    let cwd = place.spec.cwd.canonicalize().unwrap();
    assert_eq!(
        desk.line().await,
        format!("hidden-value {} {}", place.spec.instance, cwd.display())
    );

    let (holder, agent) = (desk.holder(), desk.agent());
    let of_holder = proc::stat(holder.pid).unwrap();
    let of_agent = proc::stat(agent.pid).unwrap();
    assert_eq!((of_holder.session, of_holder.birth), (holder.pid, holder.birth), "own session");
    assert_eq!((of_agent.group, of_agent.session), (agent.pid, holder.pid), "own group below it");
    let arguments = fs::read_to_string(format!("/proc/{}/cmdline", holder.pid)).unwrap();
    assert!(!arguments.contains("hidden-value"), "{arguments}");
    assert_eq!(fs::read_link(format!("/proc/{}/cwd", holder.pid)).unwrap(), Path::new("/"));
    let status = fs::read_to_string(format!("/proc/{}/status", holder.pid)).unwrap();
    assert!(status.contains("Threads:\t1\n"), "one thread");

    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.spec.run_dir), 0o700);
    assert_eq!(mode(&place.spec.run_dir.join("sock")), 0o600);
    assert_eq!(mode(&place.spec.data_dir), 0o700);
    for name in ["out.spool", "in.spool", "stderr.log"] {
        assert_eq!(mode(&place.data(name)), 0o600, "{name}");
    }
    let record = fs::read_to_string(place.spec.run_dir.join("holder.json")).unwrap();
    assert!(!record.contains("hidden-value"), "{record}");
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["agent"]["pid"], agent.pid);
    assert_eq!(record["boot_id"], proc::boot_id().unwrap());
    assert_eq!((&record["program"], &record["agent_name"]), (&"sh".into(), &"test".into()));

    assert!(proc::marked(&place.spec.instance.0).unwrap().contains(&agent));
    desk.stop(1000).await;
    has_left(&place, &desk).await;
    assert!(place.data("out.spool").exists(), "spools are the daemon's to remove");
}

#[tokio::test]
async fn in_a_silence_what_is_mapped_is_given_back_and_comes_again_when_needed() {
    let place = Place::new(&["cat"]);
    let mut desk = place.start().await;
    let holder = desk.holder().pid;
    for round in 0..3 {
        for number in round * 20 + 1..=round * 20 + 20 {
            desk.send(number, format!("frame {number}")).await;
            assert_eq!(desk.line().await, format!("frame {number}"));
        }
        // An unoptimized program's code lies far apart, so that more of it comes back at once.
        let limit = if cfg!(debug_assertions) { memory_kib(holder, "VmHWM:") / 2 } else { 3 << 10 };
        let small = || memory_kib(holder, "VmRSS:") <= limit;
        eventually("pages are given back", small).await;
        let (peak, now) = (memory_kib(holder, "VmHWM:"), memory_kib(holder, "VmRSS:"));
        println!("holder: {peak} KiB at most, {now} KiB in silence {round}");
    }
    desk.stop(1000).await;
    has_left(&place, &desk).await;
}
