//! `frontdesk demo`: three scripted sessions, live, in a home that is gone afterwards.
//!
//! [`stage`] has the home and the daemon, [`cast`] the sessions and what they do; this module
//! draws the table and tells what was seen.

mod cast;
mod stage;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{CALL, Client, ClientError, Event, Hello};
use super::interrupt::Interrupts;
use super::out::{BAD, BOLD, DIM, GOOD};
use super::table::{fixed, flexible, lay_out};
use super::wire::Row;
use super::{Exit, Failure, Shell, ls, rows, text, time};
use cast::Cast;
use stage::Stage;

/// Time between two looks at the sessions.
const LOOK_MS: u64 = 200;
/// Time between two tables where they cannot be drawn over each other.
const PRINT_MS: u64 = 1_000;
/// Longest time for all turns. They take about eight seconds.
const DEMO_MS_MAX: u64 = 60_000;

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "It uses a home in a temp folder, unless FRONTDESK_HOME is set, and needs no key.\n\n\
                  Example:\n  frontdesk demo"
)]
pub(crate) struct Args {
    /// Keep the daemon and the table until Ctrl-C
    #[arg(long)]
    stay: bool,
    /// Print one JSON document at the end
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs the demo.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let interrupts = shell.catch_interrupts.then(Interrupts::block).transpose()?;
    shell.out.remark(DIM, "starting a daemon for the demo");
    let stage = Stage::set(shell)?;
    let hello = Hello { writes_files: true, ..Hello::new(&shell.cwd) };
    let mut client = Client::connect(stage.paths(), &hello)?;
    if let Some(interrupts) = interrupts {
        interrupts.forward(client.sender())?;
    }
    let mut show = Show {
        cast: Cast::hire(&mut client, stage.workspace().to_path_buf())?,
        board: Board { drawn: 0, printed: None, last: Vec::new(), quiet: args.json },
        interrupted: false,
    };
    let seen = show.play(&mut client, shell).and_then(|()| {
        if args.stay && !show.interrupted { show.stay(&mut client, &stage, shell) } else { Ok(()) }
    });
    stage.strike(client);
    seen?;
    let all_well = show.cast.all_ended_well();
    if args.json {
        shell.out.json(&show.cast.to_json().to_string())?;
    } else if all_well {
        tell(shell)?;
    }
    for (title, reason) in show.cast.failures() {
        shell.out.remark(BAD, &format!("{}: {}", text::line(&title), text::line(&reason)));
    }
    Ok(if all_well { Exit::Done } else { Exit::Failed })
}

struct Show {
    cast: Cast,
    board: Board,
    interrupted: bool,
}

impl Show {
    /// Lets the turns run, until all have ended or somebody pressed Ctrl-C.
    fn play(&mut self, client: &mut Client, shell: &mut Shell) -> Result<(), Failure> {
        let deadline = Instant::now() + Duration::from_millis(DEMO_MS_MAX);
        while !self.cast.all_ended() && !self.interrupted {
            if Instant::now() >= deadline {
                let limit_s = DEMO_MS_MAX / 1_000;
                return Err(anyhow::anyhow!("failed to end the demo within {limit_s} s").into());
            }
            self.look(client, shell, false)?;
        }
        self.look(client, shell, true)
    }

    /// Keeps the table up until Ctrl-C.
    fn stay(
        &mut self,
        client: &mut Client,
        stage: &Stage,
        shell: &mut Shell,
    ) -> Result<(), Failure> {
        let home = stage.home().display();
        shell.out.remark(DIM, &format!("in another terminal: FRONTDESK_HOME={home} frontdesk ls"));
        shell.out.remark(DIM, "Ctrl-C ends the demo");
        self.board.drawn = 0;
        while !self.interrupted && !shell.out.is_closed() {
            self.look(client, shell, false)?;
        }
        Ok(())
    }

    /// Takes what comes for a moment, then draws the table.
    fn look(&mut self, client: &mut Client, shell: &mut Shell, last: bool) -> Result<(), Failure> {
        let until = Instant::now() + Duration::from_millis(if last { 0 } else { LOOK_MS });
        loop {
            let wait = until.saturating_duration_since(Instant::now());
            match client.next(Some(wait))? {
                Some(Event::Message(message)) => self.cast.hear(message, client)?,
                Some(Event::Interrupt) => self.interrupted = true,
                Some(Event::Ended(error)) => return Err(error.into()),
                Some(Event::Typed(_) | Event::TypedEnd) => {}
                None => break,
            }
            if self.interrupted || (self.cast.all_ended() && !last) {
                break;
            }
        }
        self.cast.answer_what_is_due(client)?;
        let mut looks = Vec::new();
        for act in self.cast.acts() {
            let params = rows::session_params(&act.id, false);
            let row = match client.call("_frontdesk/session", &params, CALL) {
                Ok(answer) => answer.read()?,
                Err(ClientError::Interrupted) => {
                    self.interrupted = true;
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            };
            looks.push((row, act.last_line()));
        }
        self.board.draw(&looks, shell, last)
    }
}

/// The live table.
struct Board {
    /// Lines on the terminal that the next table is drawn over.
    drawn: usize,
    printed: Option<Instant>,
    last: Vec<String>,
    quiet: bool,
}

impl Board {
    fn draw(
        &mut self,
        looks: &[(Row, String)],
        shell: &mut Shell,
        last: bool,
    ) -> Result<(), Failure> {
        let live = shell.out.results_terminal && shell.movable_cursor;
        let width = if live { shell.out.width_columns } else { None };
        let lines = lines(looks, shell, width);
        if self.quiet {
            return Ok(());
        }
        if live {
            let mut frame = String::new();
            if self.drawn > 0 {
                frame.push_str(&format!("\x1b[{}A", self.drawn));
            }
            for (index, line) in lines.iter().enumerate() {
                let row = index.checked_sub(1).and_then(|index| looks.get(index));
                let style = row.map_or(BOLD, |(row, _)| ls::style(row));
                frame.push_str(&format!("\r\x1b[2K{style}{line}{style:#}\n"));
            }
            self.drawn = lines.len();
            return Ok(shell.out.raw(frame.as_bytes())?);
        }
        let due = self.printed.is_none_or(|at| at.elapsed() >= Duration::from_millis(PRINT_MS));
        if last || (due && lines != self.last) {
            for line in &lines {
                shell.out.line(line)?;
            }
            shell.out.line("")?;
            self.printed = Some(Instant::now());
            self.last = lines;
        }
        Ok(())
    }
}

fn lines(looks: &[(Row, String)], shell: &Shell, width_columns: Option<usize>) -> Vec<String> {
    let columns = [
        fixed("STATUS"),
        fixed("AGE"),
        fixed("AGENT"),
        flexible("FOLDER"),
        fixed("TITLE"),
        flexible("LAST LINE"),
    ];
    let now = (shell.now)();
    let cells: Vec<Vec<String>> = looks
        .iter()
        .map(|(row, last_line)| {
            let title = row.title.as_deref().map(text::line).unwrap_or_default();
            vec![
                row.status_words(),
                time::ago(row.created_at.as_deref(), now),
                text::line(&row.agent),
                text::cut_front(&text::folder(&row.cwd, shell.user_home.as_deref()), 28),
                text::cut(&title, 26),
                text::cut(last_line, 60),
            ]
        })
        .collect();
    lay_out(&columns, &cells, width_columns)
}

fn tell(shell: &mut Shell) -> Result<(), Failure> {
    let out = &mut shell.out;
    out.styled(GOOD, "You saw three sessions of one agent at one desk, all at the same time:")?;
    out.line("  one streamed its answer,")?;
    out.line("  one asked for permission, got it from the demo, and went on,")?;
    out.line("  one kept a plan, used a tool and wrote a file after asking.")?;
    out.line("Every line was in a journal before it was shown. To go on by hand:")?;
    for (command, what) in [
        ("frontdesk serve", "the daemon, in a terminal of its own"),
        ("frontdesk new --agent demo", "make a session; prints its ID"),
        ("frontdesk prompt ID 'stream 20 every 100'", "talk to it"),
        ("frontdesk ls", "all sessions of all agents"),
        ("frontdesk log ID", "what happened, record by record"),
        ("frontdesk doctor", "which agents are there and what they offer"),
        ("frontdesk acp", "what an editor starts in place of an agent"),
    ] {
        out.line(&format!("  {command:<42} {what}"))?;
    }
    Ok(())
}

/// Whether a terminal of this kind can move its cursor.
pub(crate) fn can_move_cursor(term: Option<&str>) -> bool {
    !matches!(term, None | Some("" | "dumb"))
}

/// The result of a demo for `--json`.
fn act_json(act: &cast::Act) -> Value {
    json!({ "sessionId": act.id, "title": act.title, "stopReason": act.stop_reason() })
}
