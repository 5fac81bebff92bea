//! The options of `frontdesk demo-agent` and its help text.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::script;

/// Longest `--slow-start`, in milliseconds.
const SLOW_START_MS_MAX: u64 = 600_000;

/// What the agent was started with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one switch of the command line")]
pub(super) struct Options {
    /// The folder of stored sessions.
    pub(super) store: PathBuf,
    /// Whether `session/load` is offered.
    pub(super) load: bool,
    /// Whether `session/resume` is offered.
    pub(super) resume: bool,
    /// Whether `session/list` is offered.
    pub(super) list: bool,
    /// Whether `session/status` is offered.
    pub(super) status: bool,
    /// Whether `session/close` is offered.
    pub(super) close: bool,
    /// Whether `session/delete` is offered.
    pub(super) delete: bool,
    /// Whether `session/fork` is offered.
    pub(super) fork: bool,
    /// The published schema's words `open` and `saved` instead of `active` and `inactive`.
    pub(super) status_open: bool,
    /// The id that every new session gets.
    pub(super) one_id: Option<String>,
    /// Sessions are opened by their newest id only.
    pub(super) forgets_ids: bool,
    /// A resume makes another session and answers with its id.
    pub(super) resume_replaces: bool,
    /// Wait this long before the first line is read.
    pub(super) slow_start: Duration,
    /// A line for stdout before anything else.
    pub(super) banner: Option<String>,
    /// Ask for permission at the start of every turn, in mode `auto` too.
    pub(super) ask_always: bool,
    /// Call `fs/*` and `terminal/*` even if the client did not offer them.
    pub(super) ignore_capabilities: bool,
    /// Do not end when stdin ends.
    pub(super) stay: bool,
    /// A folder for a file of all that is read and written.
    pub(super) log: Option<PathBuf>,
    /// Serve WebSocket connections here instead of stdin.
    pub(super) listen: Option<SocketAddr>,
    /// What such a connection has to send as its bearer token.
    pub(super) token: Option<String>,
}

impl Options {
    /// Offers everything and does nothing odd.
    fn everything() -> Self {
        Self {
            store: PathBuf::new(),
            load: true,
            resume: true,
            list: true,
            status: true,
            close: true,
            delete: true,
            fork: true,
            status_open: false,
            one_id: None,
            forgets_ids: false,
            resume_replaces: false,
            slow_start: Duration::ZERO,
            banner: None,
            ask_always: false,
            ignore_capabilities: false,
            stay: false,
            log: None,
            listen: None,
            token: None,
        }
    }
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Be the agent.
    Serve(Options),
    /// Print the help text.
    Help,
    /// Print the version.
    Version,
    /// Be a child process that only sleeps.
    Sleep {
        /// How long, in seconds.
        seconds: u64,
        /// Whether to lead a process session of its own.
        own_session: bool,
    },
}

/// Why the command line is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum OptionsError {
    /// An option nobody knows.
    #[error("failed to understand `{0}`; `--help` lists the options")]
    Unknown(String),
    /// An option without its value.
    #[error("failed to read `{0}`: it needs a value")]
    NoValue(String),
    /// A value that is no number, or too large.
    #[error("failed to read `{0}`: `{1}` is not a number in range")]
    NotANumber(String, String),
    /// No address of this machine.
    #[error(
        "failed to listen on `{0}`: it is no address like 127.0.0.1:7000 of this machine alone"
    )]
    NoLoopback(String),
    /// No folder to store sessions in.
    #[error("failed to find a folder for sessions: use --store, or set HOME")]
    NoStore,
}

/// Reads the options. The environment comes through `var`.
///
/// # Errors
/// [`OptionsError`] names the word that is wrong.
pub(super) fn parse(
    args: &[String],
    var: impl Fn(&str) -> Option<OsString>,
) -> Result<Choice, OptionsError> {
    let mut options = Options::everything();
    let mut store = None;
    let mut sleep = None;
    let mut own_session = false;
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (word.as_str(), None),
        };
        let mut value = || {
            inline
                .clone()
                .or_else(|| words.next().cloned())
                .ok_or_else(|| OptionsError::NoValue(name.to_owned()))
        };
        match name {
            "-h" | "--help" | "help" => return Ok(Choice::Help),
            "-V" | "--version" => return Ok(Choice::Version),
            "--store" => store = Some(PathBuf::from(value()?)),
            "--no-load" => options.load = false,
            "--no-resume" => options.resume = false,
            "--no-list" => options.list = false,
            "--no-status" => options.status = false,
            "--no-close" => options.close = false,
            "--no-delete" => options.delete = false,
            "--no-fork" => options.fork = false,
            "--status-open" => options.status_open = true,
            "--ask-always" => options.ask_always = true,
            "--ignore-capabilities" => options.ignore_capabilities = true,
            "--stay" => options.stay = true,
            "--one-id" => options.one_id = Some(value()?),
            "--forgets-ids" => options.forgets_ids = true,
            "--resume-replaces" => options.resume_replaces = true,
            "--log" => options.log = Some(PathBuf::from(value()?)),
            "--listen" => options.listen = Some(loopback(&value()?)?),
            "--token" => options.token = Some(value()?),
            "--banner" => options.banner = Some(value()?),
            "--slow-start" => {
                options.slow_start =
                    Duration::from_millis(number(name, &value()?, SLOW_START_MS_MAX)?);
            }
            "--sleep" => sleep = Some(number(name, &value()?, script::SECONDS_MAX)?),
            "--own-session" => own_session = true,
            _ => return Err(OptionsError::Unknown(word.clone())),
        }
    }
    if let Some(seconds) = sleep {
        return Ok(Choice::Sleep { seconds, own_session });
    }
    options.store = store.or_else(|| default_store(var)).ok_or(OptionsError::NoStore)?;
    Ok(Choice::Serve(options))
}

/// An address of this machine alone: there is no TLS here.
fn loopback(text: &str) -> Result<SocketAddr, OptionsError> {
    let address: Option<SocketAddr> = text.parse().ok();
    let address = address.filter(|address| address.ip().is_loopback());
    address.ok_or_else(|| OptionsError::NoLoopback(text.to_owned()))
}

fn number(name: &str, text: &str, max: u64) -> Result<u64, OptionsError> {
    let bad = || OptionsError::NotANumber(name.to_owned(), text.to_owned());
    let number = text.parse().map_err(|_| bad())?;
    if number <= max { Ok(number) } else { Err(bad()) }
}

fn default_store(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| var(name).map(PathBuf::from);
    path("FRONTDESK_DEMO_STORE").or_else(|| {
        let state = path("XDG_STATE_HOME")
            .filter(|state| state.is_absolute())
            .or_else(|| path("HOME").map(|home| home.join(".local/state")))?;
        Some(state.join("frontdesk-demo"))
    })
}

/// The help text: options and script language.
pub(super) fn help() -> String {
    let mut text = String::from(OPTIONS_HELP);
    for word in script::WORDS {
        text.push_str(&format!("  {:<31} {}\n", word.usage, word.what));
    }
    text.push_str(SCRIPT_HELP);
    text
}

const OPTIONS_HELP: &str = "\
A scripted coding agent for tests and demonstrations. It speaks ACP version 1 on stdin and stdout,
or over WebSocket, and needs no key. What a turn does is chosen by the text of the prompt.

Usage: frontdesk demo-agent [OPTIONS]

Options:
  --store DIR             folder of sessions [FRONTDESK_DEMO_STORE, else
                          $XDG_STATE_HOME/frontdesk-demo, else ~/.local/state/frontdesk-demo]
  --no-load               offer no session/load       --no-resume   offer no session/resume
  --no-list               offer no session/list       --no-status   offer no session/status
  --no-close              offer no session/close      --no-delete   offer no session/delete
  --no-fork               offer no session/fork
  --status-open           answer session/status with `open` and `saved`
  --slow-start MS         wait before the first line is read
  --banner TEXT           greet on stdout, as some agents do
  --ask-always            ask for permission at the start of every turn, in mode `auto` too
  --ignore-capabilities   call fs/* and terminal/* even if the client did not offer them
  --one-id ID             give every new session this id, as some agents do
  --forgets-ids           open a session by its newest id only, once `clear` has moved it
  --resume-replaces       answer session/resume with another, new session
  --stay                  do not end when stdin ends, as some agents do
  --log DIR               keep all that is read and written in a file of this folder
  --listen HOST:PORT      serve ACP over WebSocket on this machine instead of stdin, and print the
                          address; all connections share the loaded sessions. Port 0 takes a free one
  --token TEXT            what each connection has to send: `Authorization: Bearer TEXT`
  -h, --help              print this text
  -V, --version           print the version

Modes: `ask` asks for permission before a file is written, `auto` does not.
Options of a session: `model` is `swift` or `careful` (thinks twice), `thoughts` is `on` or `off`.

Script, one command a line (a leading `/` is allowed, lines with `#` are comments):
";

const SCRIPT_HELP: &str = "
`\\n`, `\\t` and `\\\\` in TEXT are a line end, a tab and a backslash. A prompt whose first line is no
command is answered with a short thought and `You said: ...`.

Example:
  plan look; change; check
  write notes.txt hello
  stream 20 every 50
";

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn options(text: &str) -> Options {
        match parse(&words(text), |_| Some("/h".into())) {
            Ok(Choice::Serve(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn everything_is_offered_unless_removed() {
        let all = options("");
        assert!(all.load && all.resume && all.list && all.status && all.close && all.delete);
        let less = options("--no-load --no-status --slow-start=5 --banner hi --log /l");
        assert_eq!((all.log, less.log), (None, Some("/l".into())));
        assert!(!less.load && !less.status && less.resume);
        assert_eq!(less.slow_start, Duration::from_millis(5));
        assert_eq!(less.banner.as_deref(), Some("hi"));
    }

    #[test]
    fn the_store_is_named_by_option_then_environment_then_home() {
        let store = |args: &str, known: &[&str]| {
            let var = |name: &str| known.contains(&name).then(|| format!("/{name}").into());
            parse(&words(args), var).map(|choice| match choice {
                Choice::Serve(options) => options.store,
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(store("--store /s", &["HOME"]), Ok("/s".into()));
        let both = ["HOME", "FRONTDESK_DEMO_STORE"];
        assert_eq!(store("", &both), Ok("/FRONTDESK_DEMO_STORE".into()));
        let xdg = store("", &["HOME", "XDG_STATE_HOME"]);
        assert_eq!(xdg, Ok("/XDG_STATE_HOME/frontdesk-demo".into()));
        assert_eq!(store("", &["HOME"]), Ok("/HOME/.local/state/frontdesk-demo".into()));
        assert_eq!(store("", &[]), Err(OptionsError::NoStore));
    }

    #[test]
    fn wrong_words_are_named() {
        let error = |text: &str| parse(&words(text), |_| Some("/h".into())).unwrap_err();
        assert_eq!(error("--nope"), OptionsError::Unknown("--nope".into()));
        assert_eq!(error("--store"), OptionsError::NoValue("--store".into()));
        assert_eq!(error("--listen 0.0.0.0:1"), OptionsError::NoLoopback("0.0.0.0:1".into()));
        assert_eq!(error("--listen here"), OptionsError::NoLoopback("here".into()));
        assert!(matches!(error("--slow-start x"), OptionsError::NotANumber(..)));
        assert!(matches!(error("--slow-start 600001"), OptionsError::NotANumber(..)));
    }

    #[test]
    fn the_help_lists_every_command_of_the_script() {
        let help = help();
        for word in script::WORDS {
            assert!(help.contains(word.usage), "{}", word.usage);
        }
    }
}
