//! Text from agents and clients, made safe to show on a terminal.
//!
//! Titles, paths and answers are other people's bytes: a terminal must never obey them. Every
//! command passes them through here before they reach a table or a stream. `--json` needs none of
//! this, because JSON escapes control codes itself.

use std::path::Path;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Longest text put into one cell or one line, in characters.
const LINE_CHARS_MAX: usize = 2_000;

/// Marks that take no room of their own, allowed in a row before the rest is dropped.
const ZERO_WIDTH_RUN_MAX: usize = 4;

/// One line of text: no control codes, no reordering marks, white space runs as one space.
pub(crate) fn line(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(LINE_CHARS_MAX));
    let mut space = false;
    let mut marks = 0;
    let mut chars = 0;
    for c in text.chars() {
        if c.is_whitespace() {
            space = !out.is_empty();
            continue;
        }
        if is_hostile(c) {
            continue;
        }
        marks = if c.width() == Some(0) { marks + 1 } else { 0 };
        if marks > ZERO_WIDTH_RUN_MAX {
            continue;
        }
        if chars == LINE_CHARS_MAX {
            out.push('…');
            break;
        }
        if std::mem::take(&mut space) {
            out.push(' ');
        }
        out.push(c);
        chars += 1;
    }
    out
}

/// Streamed text: line ends and tabs stay, control codes and reordering overrides go.
pub(crate) fn stream(text: &str) -> String {
    text.chars().filter(|&c| matches!(c, '\n' | '\t') || !is_hostile(c)).collect()
}

/// Cuts a line to a display width, with `…` where something is missing.
pub(crate) fn cut(text: &str, width_columns: usize) -> String {
    if text.width() <= width_columns {
        return text.to_owned();
    }
    let room = width_columns.saturating_sub(1);
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let width = c.width().unwrap_or(0);
        if used + width > room {
            break;
        }
        used += width;
        out.push(c);
    }
    if width_columns > 0 {
        out.push('…');
    }
    out
}

/// Cuts a line to a display width at its beginning: of a path, the end tells most.
pub(crate) fn cut_front(text: &str, width_columns: usize) -> String {
    if text.width() <= width_columns {
        return text.to_owned();
    }
    let room = width_columns.saturating_sub(1);
    let mut used = 0;
    let mut from = text.len();
    for (at, c) in text.char_indices().rev() {
        let width = c.width().unwrap_or(0);
        if used + width > room {
            break;
        }
        used += width;
        from = at;
    }
    if width_columns == 0 { String::new() } else { format!("…{}", &text[from..]) }
}

/// A folder for a table: `~` for the home folder.
pub(crate) fn folder(path: &str, home: Option<&Path>) -> String {
    if let Some(rest) = home.and_then(|home| Path::new(path).strip_prefix(home).ok()) {
        if rest.as_os_str().is_empty() {
            return "~".to_owned();
        }
        return line(&format!("~/{}", rest.display()));
    }
    line(path)
}

/// The same JSON document with every character that could command a terminal as an escape.
/// Such characters can only lie inside strings.
pub(crate) fn escape_json(document: &str) -> String {
    let mut out = String::with_capacity(document.len());
    for c in document.chars() {
        if is_hostile(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Control codes (C0, DEL, C1), line separators, and marks that reorder or hide text.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{061c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_hostile_title_becomes_one_harmless_line() {
        assert_eq!(
            line("\u{1b}]0;pwned\u{7}Fix\r\n\tthe \u{9b}31m\u{202e}bug\u{0}"),
            "]0;pwnedFix the 31mbug"
        );
        assert_eq!(line("   \n "), "");
        assert_eq!(line("a\u{2028}b"), "a b");
        assert_eq!(line(&"x".repeat(5_000)).chars().count(), LINE_CHARS_MAX + 1);
        let stacked = format!("z{}", "\u{301}".repeat(500));
        assert_eq!(line(&stacked).chars().count(), 1 + ZERO_WIDTH_RUN_MAX);
    }

    #[test]
    fn streamed_text_keeps_its_lines_and_loses_its_codes() {
        assert_eq!(stream("a\n\tb\u{1b}[2J\u{7}\rc\u{9d}"), "a\n\tb[2Jc");
    }

    #[test]
    fn cutting_counts_columns_not_characters() {
        assert_eq!(cut("hello", 5), "hello");
        assert_eq!(cut("hello!", 5), "hell…");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("x", 0), "");
        assert_eq!(cut_front("/a/long/path", 6), "…/path");
        assert_eq!(cut_front("日本語", 3), "…語");
    }

    #[test]
    fn the_home_folder_is_a_tilde() {
        let home = Some(Path::new("/home/a"));
        assert_eq!(folder("/home/a", home), "~");
        assert_eq!(folder("/home/a/x\u{1b}y", home), "~/xy");
        assert_eq!(folder("/home/ab", home), "/home/ab");
        assert_eq!(folder("/", None), "/");
    }

    #[test]
    fn json_on_a_terminal_means_the_same_and_commands_nothing() {
        let value = serde_json::json!({ "a\u{9b}": ["\u{7f}\u{202e}\u{e0041}é\u{1b}"] });
        let escaped = escape_json(&value.to_string());
        assert!(!escaped.chars().any(is_hostile), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }

    proptest! {
        #[test]
        fn no_text_carries_a_control_code_through(text in any::<String>()) {
            prop_assert!(!line(&text).chars().any(|c| c.is_control()));
            prop_assert!(!stream(&text).chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
        }

        #[test]
        fn a_cut_line_fits(text in "\\PC{0,40}", width in 0_usize..20) {
            let text = line(&text);
            let columns = |cut: &str| cut.chars().map(|c| c.width().unwrap_or(0)).sum::<usize>();
            let fits = text.width() <= width;
            prop_assert!(fits || columns(&cut(&text, width)) <= width);
            prop_assert!(fits || columns(&cut_front(&text, width)) <= width);
        }
    }
}
