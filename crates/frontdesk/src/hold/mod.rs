//! Stub: the holder is written elsewhere.

/// Runs the holder.
#[must_use]
pub fn main(_args: &[String]) -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
