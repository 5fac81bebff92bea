//! The command line.

use std::process::ExitCode;

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    // A holder stays tiny: it is chosen before any parser, logger or runtime is set up.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "hold") {
        return crate::hold::main();
    }
    ExitCode::SUCCESS
}
