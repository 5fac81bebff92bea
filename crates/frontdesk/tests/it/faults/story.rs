//! The story of `scripts/kill9-story`, told with the scripted agent.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::desk::frontdesk;

#[test]
fn the_kill_9_story_is_as_stated() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kill9-story");
    let mut command = Command::new(script);
    command.arg("--frontdesk").arg(frontdesk()).stdin(Stdio::null());
    let told = command.output().expect("it runs");
    let (text, errors) =
        (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(told.status.success(), "{text}\n{errors}");
    assert!(text.contains("all as stated, with agent demo"), "{text}");
}
