//! Where words go: results to stdout, everything else to stderr.
//!
//! Both are shared by all commands. Colours are used on a terminal only and not with `NO_COLOR`;
//! `anstream` sees to that. A reader that went away (`frontdesk ls | head -1`) is no fault: what
//! is written after that is dropped.

use std::io::{self, IsTerminal as _, Write};

use anstyle::{AnsiColor, Style};

/// How a line looks.
pub(crate) const PLAIN: Style = Style::new();
/// Less important than the rest.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Headings.
pub(crate) const BOLD: Style = Style::new().bold();
/// Something runs, or is well.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Somebody is wanted.
pub(crate) const WANTED: Style = AnsiColor::Yellow.on_default();
/// Something failed.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();

/// The two streams of a command.
pub(crate) struct Out {
    results: Box<dyn Write>,
    remarks: Box<dyn Write>,
    /// Whether results go to a terminal.
    pub(crate) results_terminal: bool,
    /// Whether remarks go to a terminal.
    pub(crate) remarks_terminal: bool,
    /// Width of the terminal that results go to, in columns.
    pub(crate) width_columns: Option<usize>,
    result_open: bool,
    remark_open: bool,
    closed: bool,
    spoken: bool,
}

impl Out {
    /// The process's own stdout and stderr.
    pub(crate) fn standard() -> Self {
        let results_terminal = io::stdout().is_terminal();
        let width_columns = results_terminal
            .then(|| terminal_size::terminal_size_of(io::stdout()))
            .flatten()
            .map(|(width, _)| usize::from(width.0));
        Self {
            results: Box::new(anstream::stdout()),
            remarks: Box::new(anstream::stderr()),
            results_terminal,
            remarks_terminal: io::stderr().is_terminal(),
            width_columns,
            result_open: false,
            remark_open: false,
            closed: false,
            spoken: false,
        }
    }

    /// Streams of a test's own.
    #[cfg(test)]
    pub(crate) fn to(results: Box<dyn Write>, remarks: Box<dyn Write>) -> Self {
        Self {
            results: Box::new(anstream::StripStream::new(results)),
            remarks: Box::new(anstream::StripStream::new(remarks)),
            results_terminal: false,
            remarks_terminal: false,
            width_columns: None,
            result_open: false,
            remark_open: false,
            closed: false,
            spoken: false,
        }
    }

    /// Whether the reader of the results has gone away.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether any result was written.
    pub(crate) fn has_spoken(&self) -> bool {
        self.spoken
    }

    /// One line of the result.
    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        self.styled(PLAIN, text)
    }

    /// One line of the result, in a style.
    pub(crate) fn styled(&mut self, style: Style, text: &str) -> io::Result<()> {
        self.end_line()?;
        self.result(|out| writeln!(out, "{style}{text}{style:#}"))
    }

    /// One JSON document of the result, on one line: exactly as given, but that a terminal gets
    /// no control codes, which JSON lets through where they lie above ASCII.
    pub(crate) fn json(&mut self, document: &str) -> io::Result<()> {
        if self.results_terminal {
            let escaped = super::text::escape_json(document);
            return self.line(&escaped);
        }
        self.line(document)
    }

    /// A piece of the result, shown at once.
    pub(crate) fn piece(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.end_remark();
        self.result_open = !text.ends_with('\n');
        self.result(|out| out.write_all(text.as_bytes()).and_then(|()| out.flush()))
    }

    /// Raw bytes of the result, such as a completion script or cursor movements.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.end_line()?;
        self.result(|out| out.write_all(bytes).and_then(|()| out.flush()))
    }

    /// One line beside the result. Losing it is no fault.
    pub(crate) fn remark(&mut self, style: Style, text: &str) {
        self.leave_result();
        self.end_remark();
        let _ = writeln!(self.remarks, "{style}{text}{style:#}");
    }

    /// A piece of text beside the result.
    pub(crate) fn remark_piece(&mut self, style: Style, text: &str) {
        if text.is_empty() {
            return;
        }
        self.leave_result();
        self.remark_open = !text.ends_with('\n');
        let _ = write!(self.remarks, "{style}{text}{style:#}");
        let _ = self.remarks.flush();
    }

    /// A line of progress that the next one overwrites; only on a terminal.
    pub(crate) fn progress(&mut self, text: &str) {
        if self.remarks_terminal {
            let _ = write!(self.remarks, "\r\x1b[K{text}");
            let _ = self.remarks.flush();
        }
    }

    /// Ends the lines that were begun in pieces.
    pub(crate) fn end_line(&mut self) -> io::Result<()> {
        self.end_remark();
        if std::mem::take(&mut self.result_open) {
            self.result(|out| out.write_all(b"\n"))?;
        }
        Ok(())
    }

    /// Takes note that a person's Enter ended the open line on the terminal.
    pub(crate) fn line_was_ended(&mut self) {
        self.remark_open = false;
    }

    fn end_remark(&mut self) {
        if std::mem::take(&mut self.remark_open) {
            let _ = self.remarks.write_all(b"\n");
        }
    }

    /// On a terminal that shows both streams, a remark begins on a line of its own. In a file the
    /// answer is never broken up by remarks.
    fn leave_result(&mut self) {
        if self.result_open && self.results_terminal && self.remarks_terminal {
            self.result_open = false;
            let _ = self.result(|out| out.write_all(b"\n").and_then(|()| out.flush()));
        }
    }

    fn result(
        &mut self,
        write: impl FnOnce(&mut Box<dyn Write>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.spoken = true;
        if self.closed {
            return Ok(());
        }
        match write(&mut self.results) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// One terminal that shows both streams.
    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn speak(terminal: bool) -> String {
        let screen = Screen::default();
        let mut out = Out::to(Box::new(screen.clone()), Box::new(screen.clone()));
        (out.results_terminal, out.remarks_terminal) = (terminal, terminal);
        out.piece("an ").unwrap();
        out.remark(DIM, "remark");
        out.piece("answer").unwrap();
        out.remark_piece(DIM, "thought");
        out.piece("!").unwrap();
        out.end_line().unwrap();
        out.end_line().unwrap();
        let shown = screen.0.lock().unwrap().clone();
        String::from_utf8(shown).unwrap()
    }

    #[test]
    fn on_a_terminal_the_streams_do_not_run_into_each_other() {
        assert_eq!(speak(true), "an \nremark\nanswer\nthought\n!\n");
    }

    #[test]
    fn in_a_file_the_answer_is_not_broken_up() {
        // Here both streams share one buffer; what matters is that no line end was added to the
        // answer's own text.
        assert_eq!(speak(false), "an remark\nanswerthought\n!\n");
    }

    #[test]
    fn a_reader_that_left_is_noticed_and_no_error() {
        let mut out = Out::to(Box::new(Gone), Box::new(Gone));
        assert!(!out.is_closed() && !out.has_spoken());
        out.line("x").unwrap();
        assert!(out.is_closed() && out.has_spoken());
        out.piece("y").unwrap();
        out.remark(BAD, "z");
    }
}
