//! Children of the demo agent: processes that outlive it, to test how a tree is ended.

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// Starts a child that sleeps, and returns its pid. It keeps our stdout and stderr unless it is
/// `detached`, as careless children do; with `own_session` it leads a process session of its own.
///
/// # Errors
/// A sentence that says what failed.
pub(super) fn spawn(seconds: u64, own_session: bool, detached: bool) -> Result<u32, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("failed to find this program: {error}"))?;
    let mut command = Command::new(program);
    command.args(["demo-agent", "--sleep", &seconds.to_string()]).stdin(Stdio::null());
    if own_session {
        command.arg("--own-session");
    }
    if detached {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    let mut child = command.spawn().map_err(|error| format!("failed to start a child: {error}"))?;
    let pid = child.id();
    // Nobody else waits for it, and a zombie would look alive to whoever counts processes.
    let waiter = std::thread::Builder::new().name("child".into()).spawn(move || child.wait());
    drop(waiter);
    Ok(pid)
}

/// What such a child does.
pub(super) fn sleep(seconds: u64, own_session: bool) -> ExitCode {
    if own_session && let Err(error) = nix::unistd::setsid() {
        eprintln!("failed to leave the process session: {error}");
    }
    std::thread::sleep(Duration::from_secs(seconds));
    ExitCode::SUCCESS
}
