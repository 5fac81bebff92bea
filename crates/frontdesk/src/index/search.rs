//! Search: words in titles, names and what was said.

use std::collections::HashSet;
use std::path::Path;

use rusqlite::Connection;

use super::entry::{Entry, Position};
use super::text::{Mark, passage_at};
use super::{IndexError, read};

/// Characters of a snippet.
const SNIPPET_CHARS: usize = 160;

/// Characters before the first word that was found.
const LEAD_CHARS: usize = 40;

/// Words of one search, at most; more are not looked for.
const WORDS_MAX: usize = 32;

/// What is searched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// In the language of the full-text tables.
    expression: String,
    /// The words and phrases, in lower case, for snippets.
    words: Vec<String>,
}

impl Words {
    /// Reads a text of words; `"…"` is a phrase, and the last word may go on. `None` if there is no
    /// word in it.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        // The tables' language ends at one, in the middle of a word.
        let text = text.replace('\0', " ");
        let mut terms: Vec<(String, bool)> = Vec::new();
        for (index, part) in text.split('"').enumerate() {
            if index % 2 == 1 {
                terms.push((part.trim().to_owned(), true));
            } else {
                terms.extend(part.split_whitespace().map(|word| (word.to_owned(), false)));
            }
        }
        // What the tables see as a word has a letter or a digit.
        terms.retain(|(term, _)| term.chars().any(char::is_alphanumeric));
        terms.truncate(WORDS_MAX);
        let last = terms.len().checked_sub(1)?;
        let mut expression = String::new();
        for (index, (term, phrase)) in terms.iter().enumerate() {
            if index > 0 {
                expression.push(' ');
            }
            expression.push('"');
            expression.push_str(term);
            expression.push('"');
            if index == last && !phrase && !text.ends_with(char::is_whitespace) {
                expression.push('*');
            }
        }
        let words = terms.into_iter().map(|(term, _)| term.to_lowercase()).collect();
        Some(Self { expression, words })
    }

    /// The part of a text that shows what was found, on one line.
    #[must_use]
    pub fn snippet(&self, text: &str) -> String {
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let lower = line.to_lowercase();
        let found = self.words.iter().filter_map(|word| lower.find(word.as_str())).min();
        // Lower case may be longer or shorter: count characters, which is near enough.
        let found = found.map_or(0, |at| lower[..at].chars().count());
        let start = found.saturating_sub(LEAD_CHARS);
        let mut snippet: String = line.chars().skip(start).take(SNIPPET_CHARS).collect();
        if start > 0 {
            // Not in the middle of a word.
            if let Some((_, rest)) = snippet.split_once(' ') {
                snippet = rest.to_owned();
            }
            snippet.insert(0, '…');
        }
        if line.chars().count() > start + SNIPPET_CHARS {
            snippet.push('…');
        }
        snippet
    }
}

/// A session that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// The session.
    pub entry: Entry,
    /// Where the words were said; `None` if they are in its title or name.
    pub said: Option<Mark>,
}

impl Hit {
    /// The text around what was found; empty if it cannot be read any more. Waits for the disk.
    #[must_use]
    pub fn snippet(&self, words: &Words) -> String {
        let text = match self.said {
            None => Some(super::entry::titles(&self.entry.view)),
            Some(from) => passage_at(&self.entry.path, from),
        };
        text.map(|text| words.snippet(&text)).unwrap_or_default()
    }
}

/// Titles first, then transcripts, each newest first, a session once; until `each` says `None`.
pub(super) fn search(
    conn: &Connection,
    sessions: &Path,
    words: &Words,
    passages_max: usize,
    each: &mut impl FnMut(Hit) -> Option<()>,
) -> Result<(), IndexError> {
    let limit = i64::try_from(passages_max).unwrap_or(i64::MAX);
    let mut seen = HashSet::new();
    let mut titled = Vec::new();
    // Their places alone: most of very many are never asked for.
    let sql = "SELECT session.id, session.ordered, session.updated, session.key FROM titled
        JOIN session ON session.id = titled.rowid
        WHERE titled MATCH ? ORDER BY titled.rowid DESC LIMIT ?";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query((&words.expression, limit))?;
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        let key = row.get_ref(3)?.as_blob().map_err(|_| IndexError::Damaged("a key"))?;
        let key = read::key_of(key)?;
        seen.insert(id);
        titled.push((Position { ordered: row.get(1)?, updated: row.get(2)?, key }, id));
    }
    titled.sort_unstable_by_key(|(position, _)| std::cmp::Reverse(*position));
    for (_, id) in titled {
        let Some(entry) = by_id(conn, sessions, id)? else { continue };
        if each(Hit { entry, said: None }).is_none() {
            return Ok(());
        }
    }
    let sql = "SELECT passage.session, passage.place, passage.seq FROM spoken
        JOIN passage ON passage.id = spoken.rowid
        WHERE spoken MATCH ? ORDER BY spoken.rowid DESC LIMIT ?";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query((&words.expression, limit))?;
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        if !seen.insert(id) {
            continue;
        }
        let Some(entry) = by_id(conn, sessions, id)? else { continue };
        let said = Mark {
            bytes: u64::try_from(row.get::<_, i64>(1)?).unwrap_or_default(),
            seq: u64::try_from(row.get::<_, i64>(2)?).unwrap_or_default(),
        };
        if each(Hit { entry, said: Some(said) }).is_none() {
            return Ok(());
        }
    }
    Ok(())
}

fn by_id(conn: &Connection, sessions: &Path, id: i64) -> Result<Option<Entry>, IndexError> {
    let sql = format!("SELECT {} FROM session WHERE id = ? AND listed = 1", read::COLUMNS);
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([id])?;
    rows.next()?.map(|row| read::entry(row, sessions)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expression(text: &str) -> Option<String> {
        Words::read(text).map(|words| words.expression)
    }

    #[test]
    fn words_are_words_whatever_signs_they_hold() {
        assert_eq!(expression("flaky tests").unwrap(), r#""flaky" "tests"*"#);
        assert_eq!(expression("flaky tests ").unwrap(), r#""flaky" "tests""#);
        assert_eq!(expression(r#"a "b c" d-e"#).unwrap(), r#""a" "b c" "d-e"*"#);
        assert_eq!(expression(r#"AND "x OR y"#).unwrap(), r#""AND" "x OR y""#);
        assert_eq!(expression("NEAR(a) col:b ^c *").unwrap(), r#""NEAR(a)" "col:b" "^c"*"#);
        assert_eq!(expression("a\0b \"c\0d\"").unwrap(), r#""a" "b" "c d""#);
        for none in ["", "  ", "\"", "* -", "\"\" '", "\0"] {
            assert_eq!(expression(none), None, "{none:?}");
        }
        let many = "word ".repeat(200);
        assert_eq!(Words::read(&many).unwrap().words.len(), WORDS_MAX);
    }

    #[test]
    fn a_snippet_is_the_text_around_the_first_word() {
        let words = Words::read("Needle").unwrap();
        assert_eq!(words.snippet("a\n needle  here"), "a needle here");
        let long = format!("{} İNEEDLE {}", "before ".repeat(30), "after ".repeat(60));
        let snippet = words.snippet(&long);
        assert!(snippet.starts_with('…') && snippet.ends_with('…'), "{snippet}");
        assert!(snippet.contains("NEEDLE"), "{snippet}");
        assert!(snippet.chars().count() <= SNIPPET_CHARS + 2, "{snippet}");
        assert_eq!(words.snippet(""), "");
    }
}
