//! The script language: a prompt's text to the steps of a turn. Pure.
//!
//! A line is a command only if its words fit exactly, so that most plain sentences stay plain.

use serde_json::value::RawValue;

/// Longest wait in a script, in milliseconds.
pub(super) const WAIT_MS_MAX: u64 = 3_600_000;
/// Longest life of a child process, in seconds.
pub(super) const SECONDS_MAX: u64 = 86_400;
/// Most chunks of one command.
pub(super) const CHUNKS_MAX: u64 = 10_000_000;
/// Largest text of one command in bytes: four times the largest frame a client need take.
pub(super) const BYTES_MAX: u64 = 256 << 20;
/// Most lines of one script.
pub(super) const LINES_MAX: usize = 10_000;
/// A child's life where none is given, in seconds.
const CHILD_SECONDS: u64 = 600;

/// One command as the help and the client's command list show it.
pub(super) struct Word {
    /// The command and its arguments.
    pub(super) usage: &'static str,
    /// What it does.
    pub(super) what: &'static str,
}

impl Word {
    /// The command's name.
    pub(super) fn name(&self) -> &'static str {
        self.usage.split(' ').next().unwrap_or(self.usage)
    }
}

const fn word(usage: &'static str, what: &'static str) -> Word {
    Word { usage, what }
}

/// All commands.
pub(super) const WORDS: &[Word] = &[
    word("say TEXT", "answer with TEXT"),
    word("stream N [every MS] [bytes B]", "answer in N chunks"),
    word("think N [every MS]", "think in N chunks"),
    word("ask [TITLE]", "ask for permission"),
    word("read PATH", "read a file through the client"),
    word("write PATH TEXT", "write a file through the client, after a question"),
    word("run COMMAND", "run a shell command in the client's terminal"),
    word("plan A; B; C", "show a plan and walk through it"),
    word("tool TITLE", "show a tool call from start to end"),
    word("title TEXT", "rename the session"),
    word("clear [quiet]", "move the conversation to a new id, and tell both"),
    word("subagent TITLE", "have a child session work, ask for permission and end"),
    word("mode ID", "change the mode (ask, auto)"),
    word("commands", "send the list of commands again"),
    word("usage", "report how full the context is"),
    word("elicit TEXT", "ask the user to fill in a form"),
    word("ext _METHOD [JSON]", "call an extension method of the client"),
    word("wait MS", "think quietly"),
    word("late N MS", "wait for a cancel, then send N chunks after the answer"),
    word("refuse", "end the turn as refused"),
    word("max-tokens", "end the turn as too long"),
    word("fail CODE MESSAGE", "answer the prompt with an error"),
    word("crash [CODE]", "exit at once, in the middle of the turn"),
    word("kill", "die by SIGKILL"),
    word("hang", "never answer, ignore cancel"),
    word("close-stdout", "close stdout and go on"),
    word("garbage", "write noise to stdout"),
    word("huge BYTES", "send one update of exactly BYTES bytes"),
    word("stderr BYTES", "write BYTES bytes to stderr"),
    word("child [SECS] [detached]", "start a child that outlives this agent, tell its pid"),
    word("daemon-child SECS [detached]", "the same in a process session of its own"),
    word("update JSON", "send this update as it stands"),
    word("raw TEXT", "write this line to stdout as it stands"),
];

/// One step of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Say(String),
    Stream {
        count: u64,
        every_ms: u64,
        bytes: Option<u64>,
    },
    Think {
        count: u64,
        every_ms: u64,
    },
    Ask {
        title: Option<String>,
    },
    Read {
        path: String,
    },
    Write {
        path: String,
        text: String,
    },
    Run {
        command: String,
    },
    Plan {
        entries: Vec<String>,
    },
    Tool {
        title: String,
    },
    Title(String),
    /// Moves the conversation to a new id.
    Clear {
        quiet: bool,
    },
    /// Has a subagent say and ask something.
    Subagent(String),
    Mode(String),
    Commands,
    Usage,
    Elicit(String),
    Ext {
        method: String,
        params: Option<String>,
    },
    Wait {
        ms: u64,
    },
    Late {
        count: u64,
        every_ms: u64,
    },
    Refuse,
    MaxTokens,
    Fail {
        code: i64,
        message: String,
    },
    Crash {
        code: u8,
    },
    Kill,
    Hang,
    CloseStdout,
    Garbage,
    Huge {
        bytes: u64,
    },
    Stderr {
        bytes: u64,
    },
    Child {
        seconds: u64,
        own_session: bool,
        detached: bool,
    },
    Update(String),
    Raw(String),
    /// A line that is no command, behind one that is.
    Unknown(String),
}

/// Reads a prompt: the steps, or `None` if it is plain text.
pub(super) fn parse(prompt: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let lines = prompt.lines().map(str::trim).filter(|line| !line.is_empty());
    for line in lines.filter(|line| !line.starts_with('#')).take(LINES_MAX) {
        match step(line) {
            Some(step) => steps.push(step),
            None if steps.is_empty() => return None,
            None => steps.push(Step::Unknown(line.to_owned())),
        }
    }
    (!steps.is_empty()).then_some(steps)
}

fn step(line: &str) -> Option<Step> {
    let line = line.strip_prefix('/').unwrap_or(line);
    let (name, rest) = match line.split_once(char::is_whitespace) {
        Some((name, rest)) => (name, rest.trim()),
        None => (line, ""),
    };
    let text = || (!rest.is_empty()).then(|| rest.to_owned());
    let bare = |step: Step| rest.is_empty().then_some(step);
    match name {
        "say" => Some(Step::Say(unescape(&text()?))),
        "stream" => paced(rest, true).map(|(count, every_ms, bytes)| Step::Stream {
            count,
            every_ms,
            bytes,
        }),
        "think" => paced(rest, false).map(|(count, every_ms, _)| Step::Think { count, every_ms }),
        "ask" => Some(Step::Ask { title: text() }),
        "read" => Some(Step::Read { path: text()? }),
        "write" => {
            let (path, body) = rest.split_once(char::is_whitespace)?;
            Some(Step::Write { path: path.to_owned(), text: unescape(body) })
        }
        "run" => Some(Step::Run { command: text()? }),
        "plan" => {
            let entries: Vec<String> = rest
                .split(';')
                .map(str::trim)
                .filter(|entry| !entry.is_empty())
                .map(str::to_owned)
                .collect();
            (!entries.is_empty()).then_some(Step::Plan { entries })
        }
        "tool" => Some(Step::Tool { title: text()? }),
        "title" => Some(Step::Title(text()?)),
        "clear" if rest.is_empty() || rest == "quiet" => {
            Some(Step::Clear { quiet: rest == "quiet" })
        }
        "subagent" => Some(Step::Subagent(text()?)),
        "mode" => one_word(rest).map(|id| Step::Mode(id.to_owned())),
        "commands" => bare(Step::Commands),
        "usage" => bare(Step::Usage),
        "elicit" => Some(Step::Elicit(text()?)),
        "ext" => extension(rest),
        "update" => serde_json::from_str::<&RawValue>(rest)
            .ok()
            .filter(|raw| raw.get().starts_with('{'))
            .map(|raw| Step::Update(raw.get().to_owned())),
        "raw" => Some(Step::Raw(text()?)),
        _ => ending(name, rest).or_else(|| fault(name, rest)),
    }
}

/// The commands that decide how the turn ends.
fn ending(name: &str, rest: &str) -> Option<Step> {
    let bare = |step: Step| rest.is_empty().then_some(step);
    match name {
        "wait" => Some(Step::Wait { ms: number(one_word(rest)?, WAIT_MS_MAX)? }),
        "late" => {
            let (count, every) = rest.split_once(char::is_whitespace)?;
            let every_ms = number(one_word(every.trim())?, WAIT_MS_MAX)?;
            Some(Step::Late { count: number(count, CHUNKS_MAX)?, every_ms })
        }
        "refuse" => bare(Step::Refuse),
        "max-tokens" => bare(Step::MaxTokens),
        "fail" => {
            let (code, message) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            let message = if message.is_empty() { "failed as asked" } else { message.trim() };
            Some(Step::Fail { code: code.parse().ok()?, message: message.to_owned() })
        }
        _ => None,
    }
}

/// The commands that do what agents should not.
fn fault(name: &str, rest: &str) -> Option<Step> {
    let bare = |step: Step| rest.is_empty().then_some(step);
    match name {
        "crash" if rest.is_empty() => Some(Step::Crash { code: 1 }),
        "crash" => Some(Step::Crash { code: rest.parse().ok()? }),
        "kill" => bare(Step::Kill),
        "hang" => bare(Step::Hang),
        "close-stdout" => bare(Step::CloseStdout),
        "garbage" => bare(Step::Garbage),
        "huge" => Some(Step::Huge { bytes: number(one_word(rest)?, BYTES_MAX)? }),
        "stderr" => Some(Step::Stderr { bytes: number(one_word(rest)?, BYTES_MAX)? }),
        "child" => child(rest, false),
        "daemon-child" if rest.is_empty() => None,
        "daemon-child" => child(rest, true),
        _ => None,
    }
}

fn child(rest: &str, own_session: bool) -> Option<Step> {
    let mut seconds = CHILD_SECONDS;
    let mut detached = false;
    for (at, word) in rest.split_whitespace().enumerate() {
        match word {
            "detached" if !detached => detached = true,
            _ if at == 0 => seconds = number(word, SECONDS_MAX)?,
            _ => return None,
        }
    }
    Some(Step::Child { seconds, own_session, detached })
}

fn extension(rest: &str) -> Option<Step> {
    let (method, params) = match rest.split_once(char::is_whitespace) {
        Some((method, params)) => (method, Some(params.trim())),
        None => (rest, None),
    };
    let params = match params {
        None => None,
        Some(text) => {
            let raw: &RawValue = serde_json::from_str(text).ok()?;
            raw.get().starts_with('{').then(|| Some(raw.get().to_owned()))?
        }
    };
    (method.len() > 1 && method.starts_with('_'))
        .then(|| Step::Ext { method: method.to_owned(), params })
}

/// `N [every MS] [bytes B]`.
fn paced(rest: &str, sized: bool) -> Option<(u64, u64, Option<u64>)> {
    let mut words = rest.split_whitespace();
    let count = number(words.next()?, CHUNKS_MAX)?;
    let mut every_ms = 0;
    let mut bytes = None;
    while let Some(name) = words.next() {
        match name {
            "every" => every_ms = number(words.next()?, WAIT_MS_MAX)?,
            "bytes" if sized => bytes = Some(number(words.next()?, BYTES_MAX)?),
            _ => return None,
        }
    }
    Some((count, every_ms, bytes))
}

fn one_word(rest: &str) -> Option<&str> {
    (!rest.is_empty() && !rest.contains(char::is_whitespace)).then_some(rest)
}

fn number(word: &str, max: u64) -> Option<u64> {
    let digits = word.strip_suffix("ms").unwrap_or(word);
    digits.parse().ok().filter(|number| *number <= max)
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let plain = match (c, chars.peek()) {
            ('\\', Some('n')) => '\n',
            ('\\', Some('t')) => '\t',
            ('\\', Some('\\')) => '\\',
            _ => {
                out.push(c);
                continue;
            }
        };
        out.push(plain);
        chars.next();
    }
    out
}

#[cfg(test)]
#[path = "script_tests.rs"]
mod tests;
