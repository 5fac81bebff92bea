//! `frontdesk demo-agent`: the scripted ACP v1 agent that needs no key.
//!
//! Owns everything of that process: its options, the script language, its store of sessions, the
//! turns. The command line calls [`main`] before any parser, logger or runtime exists, so that the
//! agent starts in milliseconds and stays small; it uses threads, one a turn, and a runtime only for
//! the sockets of `--listen`.
//!
//! It is also the reference agent for `session/status`: a probe is answered from memory or by one
//! look at the store, changes nothing, and never waits for a turn, a question or a load.
//!
//! It imports nothing from the rest of the crate: seen from the daemon it is a foreign agent.

mod acts;
mod door;
mod frames;
mod opening;
mod options;
mod page;
mod process;
mod questions;
mod script;
mod server;
mod session;
mod store;
mod subagent;
mod turn;
mod wire;

use std::process::ExitCode;

use options::Choice;

/// Longest line read from the client, in bytes, without its line end.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// Stack of a worker thread, in bytes: enough for JSON nested to the parser's limit.
const STACK_BYTES: usize = 1 << 20;

/// Runs the agent on stdin and stdout until stdin ends. `args` are the words behind
/// `frontdesk demo-agent`; the whole argument list of the process is taken, too.
#[must_use]
pub fn main(args: &[String]) -> ExitCode {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let choice = match options::parse(own_words(args), var) {
        Ok(choice) => choice,
        Err(error) => {
            eprintln!("frontdesk demo-agent: {error}");
            return ExitCode::from(2);
        }
    };
    match choice {
        Choice::Help => print(&options::help()),
        Choice::Version => print(concat!("frontdesk-demo ", env!("CARGO_PKG_VERSION"), "\n")),
        Choice::Sleep { seconds, own_session } => process::sleep(seconds, own_session),
        Choice::Serve(options) => server::serve(options),
    }
}

fn print(text: &str) -> ExitCode {
    use std::io::Write as _;
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Leaves out the program's name and the word that chose this agent, if they are there.
fn own_words(args: &[String]) -> &[String] {
    match args {
        [word, rest @ ..] if word == "demo-agent" => rest,
        [program, word, rest @ ..] if word == "demo-agent" && !program.starts_with('-') => rest,
        _ => args,
    }
}

/// Takes a lock whether or not a thread died with it: every value behind our locks is valid
/// between any two statements.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The longest start of `text` that has at most `max` bytes and ends between characters.
fn start_of(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_that_chose_the_agent_are_left_out() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(own_words(&words("demo-agent --stay")), ["--stay"]);
        assert_eq!(own_words(&words("/bin/frontdesk demo-agent --stay")), ["--stay"]);
        assert_eq!(own_words(&words("--stay")), ["--stay"]);
        assert_eq!(own_words(&words("--banner demo-agent")), ["--banner", "demo-agent"]);
        assert!(own_words(&[]).is_empty());
    }
}
