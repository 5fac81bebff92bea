//! Stub: the demo agent is written elsewhere.

/// Runs the demo agent.
#[must_use]
pub fn main(_args: &[String]) -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
