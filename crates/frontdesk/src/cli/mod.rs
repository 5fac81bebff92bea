//! The command line: one module a command, all of them clients of the daemon.
//!
//! This module owns the tree of commands, the exit codes and `main`. The contract (names, exit
//! codes, `--json`) is fixed in the design's section on the command line. Results go to stdout,
//! everything else to stderr. `main.rs` calls [`main`].

mod acp;
mod agents;
mod approve;
mod archive;
mod ask;
mod client;
mod close;
mod completions;
mod damage;
mod delete;
mod demo;
mod deny;
mod doctor;
mod fork;
mod interrupt;
mod log;
mod ls;
mod msp;
mod new;
mod out;
mod pending;
mod policy;
mod prompt;
mod reindex;
mod rename;
mod restart;
mod rows;
mod serve;
mod show;
mod status;
mod stop;
mod table;
mod take;
mod text;
mod time;
mod turn;
mod who;
mod wire;

#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod keep_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod turn_tests;

use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal as _, Read};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use crate::paths::{Paths, PathsError};
use client::{Client, ClientError, Hello};
use out::Out;

/// The program's command line.
#[derive(Debug, Parser)]
#[command(
    name = "frontdesk",
    version,
    about = "The front desk for coding agents: one address for every session of every agent",
    after_help = "Exit codes: 0 done (status: active), 1 failed, 2 usage, 3 inactive, \
                  4 unknown session, 5 could not tell, 6 no daemon.\n\
                  FRONTDESK_HOME names the folder for everything; without it the XDG folders serve."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon in the foreground
    Serve(serve::Args),
    /// Stop the daemon: turns get a grace time, agents are ended
    Stop(stop::Args),
    /// End the daemon and start the next one: agents, turns and questions go on
    Restart(restart::Args),
    /// Serve ACP on stdio, for editors; starts the daemon if none runs
    Acp(acp::Args),
    /// Serve MSP on stdio, for its SDKs; starts the daemon if none runs
    Msp(msp::Args),
    /// Show three scripted sessions live, in a home of their own
    Demo(demo::Args),
    /// Be the scripted agent, on stdio (`demo-agent --help` lists what it can do)
    #[command(disable_help_flag = true)]
    DemoAgent {
        /// Passed through.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Make a session and print its id
    New(new::Args),
    /// List sessions
    Ls(ls::Args),
    /// Say whether a session is loaded; asks without changing anything
    Status(status::Args),
    /// Show all that is known about a session
    Show(show::Args),
    /// Print a session's journal
    Log(log::Args),
    /// Send a prompt and stream the answer
    Prompt(prompt::Args),
    /// List questions that wait for somebody, of all sessions
    Pending(pending::Args),
    /// Say yes to a question, or choose an answer
    Approve(approve::Args),
    /// Say no to a question
    Deny(deny::Args),
    /// Give a session a name
    Rename(rename::Args),
    /// Make a session that begins with another one's history
    Fork(fork::Args),
    /// Say what becomes of a session's questions before people are asked
    Policy(policy::Args),
    /// Put a session aside, or take it back
    Archive(archive::Args),
    /// Close a session: unload it and keep its history
    Close(close::Args),
    /// Say who has a session, and how to get it
    Who(who::Args),
    /// Take a session from whoever has it: its turn is cancelled, its clients stay
    Take(take::Args),
    /// Delete a session and its history
    Delete(delete::Args),
    /// List the agents that are configured or were found
    Agents(agents::Args),
    /// Check the agents, the home and the daemon
    Doctor(doctor::Args),
    /// Make the index of sessions anew from their journals
    Reindex(reindex::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}

impl Command {
    /// Whether `--json` was given.
    fn json(&self) -> bool {
        match self {
            Self::Stop(args) => args.json,
            Self::Restart(args) => args.json,
            Self::Demo(args) => args.json,
            Self::New(args) => args.json,
            Self::Ls(args) => args.json,
            Self::Status(args) => args.one.json,
            Self::Show(args) => args.one.json,
            Self::Log(args) => args.json,
            Self::Prompt(args) => args.json,
            Self::Pending(args) => args.json,
            Self::Approve(args) => args.json,
            Self::Deny(args) => args.json,
            Self::Rename(args) => args.json,
            Self::Fork(args) => args.one.json,
            Self::Policy(args) => args.json,
            Self::Archive(args) => args.json,
            Self::Close(args) => args.json,
            Self::Delete(args) => args.json,
            Self::Who(args) => args.one.json,
            Self::Take(args) => args.one.json,
            Self::Agents(args) => args.json,
            Self::Doctor(args) => args.json,
            Self::Reindex(args) => args.json,
            Self::Serve(_)
            | Self::Acp(_)
            | Self::Msp(_)
            | Self::DemoAgent { .. }
            | Self::Completions(_) => false,
        }
    }
}

/// The exit codes of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done; for `status`: active.
    Done = 0,
    /// It did not work.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// `status`: known, not loaded.
    Inactive = 3,
    /// Nobody knows the session.
    Unknown = 4,
    /// `status`: somebody could not be asked.
    Unsure = 5,
    /// No daemon runs.
    NoDaemon = 6,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The arguments cannot be used.
    #[error("{0}")]
    Usage(String),
    /// The daemon could not be asked, or said no.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// There is no home folder.
    #[error(transparent)]
    Paths(#[from] PathsError),
    /// The result could not be written.
    #[error("failed to write the result: {0}")]
    Output(#[from] io::Error),
    /// Anything else.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

impl Failure {
    /// The exit code that tells a script.
    fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Client(ClientError::NoDaemon(_)) => Exit::NoDaemon,
            Self::Client(ClientError::Rpc(error)) if error.code == wire::NOT_FOUND => Exit::Unknown,
            Self::Client(_) | Self::Paths(_) | Self::Output(_) | Self::Other(_) => Exit::Failed,
        }
    }

    /// The document that `--json` prints in place of a result.
    fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Client(ClientError::Rpc(error)) => json!({ "error": error.to_json() }),
            other => json!({ "error": { "message": other.to_string() } }),
        }
    }
}

/// What a command works in: the home, the streams, the clock, the keyboard.
pub(crate) struct Shell {
    /// The home's folders.
    pub(crate) paths: Paths,
    /// Where words go.
    pub(crate) out: Out,
    /// The folder the command runs in.
    pub(crate) cwd: PathBuf,
    /// The user's home folder, shown as `~`.
    pub(crate) user_home: Option<PathBuf>,
    /// The clock.
    pub(crate) now: fn() -> Timestamp,
    /// Standard input, for a prompt's text.
    pub(crate) stdin: fn() -> Box<dyn Read>,
    /// Where a person types answers, if there is one.
    pub(crate) keyboard: Box<dyn Fn() -> Option<Box<dyn BufRead + Send>>>,
    /// Whether standard input is a terminal, with a person at it.
    pub(crate) at_terminal: bool,
    /// This program, which the demo starts once more as a daemon.
    pub(crate) program: PathBuf,
    /// Whether the person named a home with `FRONTDESK_HOME`.
    pub(crate) home_is_given: bool,
    /// Whether the terminal can draw over what it shows.
    pub(crate) movable_cursor: bool,
    /// Whether Ctrl-C is taken as a request to cancel.
    pub(crate) catch_interrupts: bool,
}

impl Shell {
    /// The process's own surroundings.
    fn standard() -> Result<Self, Failure> {
        Ok(Self {
            paths: Paths::from_env(|name| std::env::var_os(name))?,
            out: Out::standard(),
            cwd: std::env::current_dir()
                .map_err(|error| anyhow::anyhow!("failed to name the current folder: {error}"))?,
            user_home: std::env::var_os("HOME").map(PathBuf::from),
            now: Timestamp::now,
            stdin: || Box::new(io::stdin()),
            keyboard: Box::new(keyboard),
            at_terminal: io::stdin().is_terminal(),
            program: std::env::current_exe()
                .map_err(|error| anyhow::anyhow!("failed to name this program: {error}"))?,
            home_is_given: std::env::var_os("FRONTDESK_HOME").is_some_and(|home| !home.is_empty()),
            movable_cursor: demo::can_move_cursor(std::env::var("TERM").ok().as_deref()),
            catch_interrupts: true,
        })
    }

    /// A connection to the daemon.
    pub(crate) fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.paths, &Hello::new(&self.cwd))?)
    }

    /// A path of the command line, made absolute.
    /// Links are left alone: editors name folders as they were opened.
    pub(crate) fn absolute(&self, path: &Path) -> PathBuf {
        let mut out = PathBuf::new();
        for part in self.cwd.join(path).components() {
            match part {
                Component::ParentDir => {
                    out.pop();
                }
                Component::CurDir => {}
                other => out.push(other),
            }
        }
        out
    }
}

/// The terminal a person sits at: stdin, or `/dev/tty` where stdin is something else.
fn keyboard() -> Option<Box<dyn BufRead + Send>> {
    if io::stdin().is_terminal() {
        return Some(Box::new(io::BufReader::new(io::stdin())));
    }
    let terminal = std::fs::File::open("/dev/tty").ok()?;
    Some(Box::new(io::BufReader::new(terminal)))
}

/// Runs the program.
///
/// `hold` and `demo-agent` are chosen before any parser is set up: both are started often and
/// have to be small.
#[must_use]
pub fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if args.next().is_some_and(|name| msp::is_muse(&name)) {
        return msp::muse(args);
    }
    let first = args.next();
    match first.as_deref().and_then(|word| word.to_str()) {
        Some("hold") => crate::hold::main(),
        Some("demo-agent") => crate::demo_agent::main(&lossy(args)),
        _ => match Cli::try_parse() {
            Ok(cli) => run(cli.command),
            Err(error) => {
                let _ = error.print();
                ExitCode::from(if error.use_stderr() { Exit::Usage } else { Exit::Done })
            }
        },
    }
}

fn lossy(args: impl Iterator<Item = OsString>) -> Vec<String> {
    args.map(|arg| arg.to_string_lossy().into_owned()).collect()
}

/// Runs one command in the process's own surroundings.
fn run(command: Command) -> ExitCode {
    let served = match command {
        Command::Serve(args) => args.run(),
        Command::Acp(args) => args.run(),
        Command::Msp(args) => args.run(),
        Command::DemoAgent { args } => return crate::demo_agent::main(&args),
        Command::Completions(args) => args.run(&mut Out::standard()),
        command => {
            return match Shell::standard() {
                Ok(mut shell) => run_in(&command, &mut shell).into(),
                Err(failure) => tell(&failure, &mut Out::standard()).into(),
            };
        }
    };
    served.unwrap_or_else(|error| tell(&Failure::Other(error), &mut Out::standard()).into())
}

/// Runs one command, tells of its failure, and names the exit code.
fn run_in(command: &Command, shell: &mut Shell) -> Exit {
    let done = match command {
        Command::Stop(args) => stop::run(args, shell),
        Command::Restart(args) => restart::run(args, shell),
        Command::Demo(args) => demo::run(args, shell),
        Command::New(args) => new::run(args, shell),
        Command::Ls(args) => ls::run(args, shell),
        Command::Status(args) => status::run(args, shell),
        Command::Show(args) => show::run(args, shell),
        Command::Log(args) => log::run(args, shell),
        Command::Prompt(args) => prompt::run(args, shell),
        Command::Pending(args) => pending::run(args, shell),
        Command::Approve(args) => approve::run(args, shell),
        Command::Deny(args) => deny::run(args, shell),
        Command::Rename(args) => rename::run(args, shell),
        Command::Fork(args) => fork::run(args, shell),
        Command::Policy(args) => policy::run(args, shell),
        Command::Archive(args) => archive::run(args, shell),
        Command::Close(args) => close::run(args, shell),
        Command::Delete(args) => delete::run(args, shell),
        Command::Who(args) => who::run(args, shell),
        Command::Take(args) => take::run(args, shell),
        Command::Agents(args) => agents::run(args, shell),
        Command::Doctor(args) => doctor::run(args, shell),
        Command::Reindex(args) => reindex::run(args, shell),
        // These need no shell and were run before.
        Command::Serve(_)
        | Command::Acp(_)
        | Command::Msp(_)
        | Command::DemoAgent { .. }
        | Command::Completions(_) => Ok(Exit::Done),
    };
    done.unwrap_or_else(|failure| {
        let exit = tell(&failure, &mut shell.out);
        if command.json() && !shell.out.has_spoken() {
            // A script that asked for a document gets one, whatever happens.
            let _ = shell.out.json(&failure.to_json().to_string());
        }
        exit
    })
}

fn tell(failure: &Failure, out: &mut Out) -> Exit {
    out.remark(out::BAD, &format!("error: {failure}"));
    if let Failure::Client(ClientError::Rpc(error)) = failure {
        if let Some(more) = error.more() {
            out.remark(out::DIM, &format!("  {more}"));
        }
        if error.code == wire::METHOD_NOT_FOUND {
            out.remark(out::DIM, "  the daemon may be of another version; see `frontdesk doctor`");
        }
    }
    failure.exit()
}
