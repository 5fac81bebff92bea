//! The one binary.

fn main() -> std::process::ExitCode {
    frontdesk::cli::main()
}
