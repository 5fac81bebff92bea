//! The command line.

use std::process::ExitCode;

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|word| word == "demo-agent") {
        return crate::demo_agent::main(args.get(2..).unwrap_or_default());
    }
    ExitCode::SUCCESS
}
