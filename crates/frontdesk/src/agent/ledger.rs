//! An instance's ledger: all input is written here before it goes to the holder, and all that the
//! agent is owed, so that a later daemon sends what was not sent, sends nothing twice, and answers
//! what was asked.
//!
//! `ledger.jsonl` is JSON Lines, one write a line, never synced: it has to outlive the daemon, not
//! the machine, since agents do not outlive that either. A last line that is torn was never acted on.
//!
//! | line | what it tells |
//! | --- | --- |
//! | `{"ledger":1,"last":N}` | first line: version, highest input number so far |
//! | `{"input":N,"method":…,"session":…,"frame":…}` | a frame for the agent; a request has `client` and `id` too, and `turn` where it begins one |
//! | `{"done":N}` | the request was answered, and that was dealt with |
//! | `{"owed":HOP,"session":…,"frame":…}` | the agent asked; `frame` where the journal does not have it |
//! | `{"settled":HOP,"input":N,"frame":…}` | its answer; without `frame` it waits for none any more |
//! | `{"here":KEY,"session":NATIVE,"journal":PATH}` | the agent was asked to make or open this session |
//! | `{"kept":NATIVE}`, `{"freed":NATIVE}` | unloaded here, and the agent could not be told; and no more |
//! | `{"closing":NATIVE,"why":…,"last":N}` | it is being unloaded, decided behind input N; whatever is sent for that follows |
//! | `{"let_go":NATIVE,"last":N}` | behind input N the agent is proven not to have it |

mod balance;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use frontdesk_core::envelope::quote;
use frontdesk_core::ids::Key;
use frontdesk_core::session::CloseWhy;

use balance::Line;
pub use balance::{Balance, Here, LedgerError, Owed, Sent, read};

/// Name of the file in an instance's folder below `data/instances`.
pub const LEDGER_FILE: &str = "ledger.jsonl";
/// Version of the format.
const VERSION: u64 = 1;
/// A ledger is cut to what is open when it is longer than this, in bytes, and twice as long as after
/// the last cut.
pub const LEDGER_BYTES_MAX: u64 = 8 << 20;
/// Openings and closings of sessions that a cut keeps: newer than any journal may be behind.
const TURNS_OF_SESSIONS_MAX: usize = 256;

/// A ledger that is being written.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    bytes: u64,
    cut_at: u64,
    /// A write failed and could not be taken back: nothing may be added.
    is_broken: bool,
    /// Highest input number.
    last: u64,
    /// Requests that are not answered.
    open: BTreeSet<u64>,
    /// Requests of the agent that are not answered.
    owed: BTreeSet<Box<str>>,
    kept: BTreeSet<Box<str>>,
    /// Sessions that were here, by their native id.
    here: BTreeMap<Box<str>, Here>,
}

/// A frame for the agent.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// A request.
    Request {
        /// Key of the client that asked; empty for the daemon's own.
        client: &'a str,
        /// The client's id, as text.
        id: &'a str,
        /// The method.
        method: &'a str,
        /// The agent's id of the session.
        session: &'a str,
        /// The turn it begins.
        turn: Option<&'a str>,
    },
    /// A notification.
    Notification {
        /// The method.
        method: &'a str,
        /// The agent's id of the session.
        session: &'a str,
    },
    /// The answer to a request of the agent.
    Answer {
        /// The request's hop id.
        hop: &'a str,
    },
}

impl Ledger {
    /// Begins the ledger of a new instance in its folder.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn create(data_dir: &Path) -> io::Result<Self> {
        let path = data_dir.join(LEDGER_FILE);
        let file = open(&path, true)?;
        let mut ledger = Self::over(path, file, 0);
        ledger.write(header(0))?;
        Ok(ledger)
    }

    /// A ledger that no later daemon will read: that of an instance behind a url, whose connection
    /// ends with this one.
    ///
    /// # Errors
    /// If the null device cannot be opened.
    pub fn unkept() -> io::Result<Self> {
        let path = PathBuf::from("/dev/null");
        let file = open(&path, false)?;
        Ok(Self { cut_at: u64::MAX, ..Self::over(path, file, 0) })
    }

    /// Goes on with the ledger of a carried instance; `accepted` is the last input its holder has.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn resume(data_dir: &Path, balance: &Balance, accepted: u64) -> io::Result<Self> {
        let path = data_dir.join(LEDGER_FILE);
        let file = open(&path, false)?;
        let text = fs::read(&path)?;
        // What is torn was never acted on.
        let whole = memchr::memrchr(b'\n', &text).map_or(0, |at| at as u64 + 1);
        file.set_len(whole)?;
        let mut ledger = Self::over(path, file, whole);
        ledger.last = balance.last.max(accepted);
        ledger.open = balance.requests.iter().map(|sent| sent.number).collect();
        ledger.owed = balance.owed.iter().map(|owed| owed.hop.clone()).collect();
        ledger.kept.clone_from(&balance.kept);
        ledger.here.clone_from(&balance.here);
        Ok(ledger)
    }

    fn over(path: PathBuf, file: File, bytes: u64) -> Self {
        Self {
            path,
            file,
            bytes,
            cut_at: LEDGER_BYTES_MAX,
            is_broken: false,
            last: 0,
            open: BTreeSet::new(),
            owed: BTreeSet::new(),
            kept: BTreeSet::new(),
            here: BTreeMap::new(),
        }
    }

    /// Number for the next input.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.last + 1
    }

    /// Writes a frame down before it is sent.
    ///
    /// # Errors
    /// If it cannot be written: the frame must not be sent then, and its number is free.
    pub fn input(&mut self, number: u64, entry: Entry<'_>, frame: &[u8]) -> io::Result<()> {
        let mut line = format!(r#"{{"input":{number}"#);
        match entry {
            Entry::Request { client, id, method, session, turn } => {
                member(&mut line, "client", client);
                member(&mut line, "id", id);
                member(&mut line, "method", method);
                member(&mut line, "session", session);
                if let Some(turn) = turn {
                    member(&mut line, "turn", turn);
                }
            }
            Entry::Notification { method, session } => {
                member(&mut line, "method", method);
                member(&mut line, "session", session);
            }
            Entry::Answer { hop } => member(&mut line, "settled", hop),
        }
        self.write(with_frame(line, Some(frame)))?;
        self.last = self.last.max(number);
        match entry {
            Entry::Request { .. } => drop(self.open.insert(number)),
            Entry::Answer { hop } => drop(self.owed.remove(hop)),
            Entry::Notification { .. } => {}
        }
        Ok(())
    }

    /// A number for a frame that is sent though it could not be written down.
    pub fn skip(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The answer to a request has been dealt with.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn done(&mut self, number: u64) -> io::Result<()> {
        if self.open.contains(&number) {
            self.write(format!("{{\"done\":{number}}}\n").into_bytes())?;
            self.open.remove(&number);
        }
        Ok(())
    }

    /// The agent asked something that needs an answer; `frame` where the journal does not have it.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn owe(&mut self, hop: &str, session: &str, frame: Option<&[u8]>) -> io::Result<()> {
        let mut line = String::from("{\"owed\":");
        line.push_str(&quote(hop));
        member(&mut line, "session", session);
        self.write(with_frame(line, frame))?;
        self.owed.insert(hop.into());
        Ok(())
    }

    /// The agent waits for no answer to this request any more.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn waive(&mut self, hop: &str) -> io::Result<()> {
        if self.owed.contains(hop) {
            self.write(format!("{{\"settled\":{}}}\n", quote(hop)).into_bytes())?;
            self.owed.remove(hop);
        }
        Ok(())
    }

    /// A session is unloaded here and the agent may still have it; or that is over.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn keep(&mut self, native: &str, is_kept: bool) -> io::Result<()> {
        if self.kept.contains(native) == is_kept {
            return Ok(());
        }
        let word = if is_kept { "kept" } else { "freed" };
        self.write(format!("{{\"{word}\":{}}}\n", quote(native)).into_bytes())?;
        if is_kept {
            self.kept.insert(native.into());
        } else {
            self.kept.remove(native);
        }
        Ok(())
    }

    /// A session is being unloaded: a later daemon goes on with that.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn close(&mut self, native: &str, why: CloseWhy) -> io::Result<()> {
        let mut line = format!("{{\"closing\":{}", quote(native));
        member(&mut line, "why", why.as_str());
        line.push_str(&format!(",\"last\":{}", self.last));
        self.write(with_frame(line, None))
    }

    /// The agent is proven not to have a session that it was asked to open or to close.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn let_go(&mut self, native: &str) -> io::Result<()> {
        let line = format!("{{\"let_go\":{},\"last\":{}", quote(native), self.last);
        self.write(with_frame(line, None))
    }

    /// The agent is asked to open a session, or has made it.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn enlist(&mut self, native: &str, key: Key, journal: &Path) -> io::Result<()> {
        let here = Here { key, journal: journal.to_path_buf() };
        if self.here.get(native) == Some(&here) {
            return Ok(());
        }
        let mut line = format!("{{\"here\":\"{key}\"");
        member(&mut line, "session", native);
        member(&mut line, "journal", &journal.to_string_lossy());
        self.write(with_frame(line, None))?;
        self.here.insert(native.into(), here);
        Ok(())
    }

    fn write(&mut self, line: Vec<u8>) -> io::Result<()> {
        if self.is_broken {
            return Err(io::Error::other("an earlier write was not taken back"));
        }
        if let Err(error) = self.file.write_all(&line) {
            // A torn line in the middle would spoil the one behind it.
            self.is_broken = self.file.set_len(self.bytes).is_err();
            return Err(error);
        }
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// Whether it is long enough to be cut.
    #[must_use]
    pub const fn is_long(&self) -> bool {
        self.bytes > self.cut_at
    }

    /// Writes it anew without what nobody needs: input before and with number `accepted` that owes
    /// no answer, and answers to requests that ended before offset `acked` of the output.
    ///
    /// # Errors
    /// If the new file cannot be written; the old one goes on then.
    pub fn cut(&mut self, accepted: u64, acked: u64) -> io::Result<()> {
        // Also where it fails: not again with each line.
        self.cut_at = self.bytes.saturating_mul(2);
        let text = fs::read(&self.path)?;
        let mut kept = header(self.last);
        let mut moves: Vec<(Option<u64>, &[u8])> = Vec::new();
        let mut cancels: BTreeMap<Box<str>, &[u8]> = BTreeMap::new();
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let Ok(read) = serde_json::from_slice::<Line<'_>>(line) else { continue };
            let is_open = match (&read, read.input) {
                (Line { settled: Some(hop), .. }, number) => {
                    end_of(hop) > acked || number > Some(accepted)
                }
                (Line { owed: Some(hop), .. }, _) => self.owed.contains(hop),
                (_, Some(number)) => number > accepted || self.open.contains(&number),
                // Its frame was refused, and is kept above: it is not sent again.
                (Line { done: Some(number), .. }, _) => *number > accepted,
                (Line { here: Some(key), session, .. }, _) => {
                    self.here.get(session).is_some_and(|here| here.key == *key)
                }
                (Line { kept: Some(native), .. }, _) => self.kept.contains(native),
                _ => false,
            };
            if is_open {
                kept.extend_from_slice(line);
            } else if read.moves_session() {
                moves.push((read.input, line));
            } else if &*read.method == "session/cancel" {
                cancels.insert(read.session.clone(), line);
            }
        }
        let late = moves.len().saturating_sub(TURNS_OF_SESSIONS_MAX);
        for (number, line) in moves.into_iter().skip(late) {
            kept.extend_from_slice(line);
            // A request that is kept for its order only.
            if let Some(number) = number {
                kept.extend_from_slice(format!("{{\"done\":{number}}}\n").as_bytes());
            }
        }
        cancels.into_values().for_each(|line| kept.extend_from_slice(line));
        self.replace(&kept)
    }

    fn replace(&mut self, text: &[u8]) -> io::Result<()> {
        let next = self.path.with_extension("new");
        let mut file = open(&next, true)?;
        file.write_all(text)?;
        fs::rename(&next, &self.path)?;
        self.file = file;
        self.bytes = text.len() as u64;
        self.cut_at = LEDGER_BYTES_MAX.max(self.bytes.saturating_mul(2));
        Ok(())
    }
}

/// Where a request of the agent's ended in its output, by its hop id.
fn end_of(hop: &str) -> u64 {
    hop.rsplit(':').nth(1).and_then(|end| end.parse().ok()).unwrap_or(u64::MAX)
}

fn header(last: u64) -> Vec<u8> {
    format!("{{\"ledger\":{VERSION},\"last\":{last}}}\n").into_bytes()
}

fn member(line: &mut String, name: &str, value: &str) {
    line.push_str(",\"");
    line.push_str(name);
    line.push_str("\":");
    line.push_str(&quote(value));
}

fn with_frame(line: String, frame: Option<&[u8]>) -> Vec<u8> {
    let mut line = line.into_bytes();
    if let Some(frame) = frame {
        line.extend_from_slice(b",\"frame\":");
        line.extend_from_slice(frame);
    }
    line.extend_from_slice(b"}\n");
    line
}

fn open(path: &Path, fresh: bool) -> io::Result<File> {
    if fresh {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    OpenOptions::new().create(fresh).append(true).read(true).mode(0o600).open(path)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
