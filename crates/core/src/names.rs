//! Names of sessions: the one a first prompt gives, the one a person gives, and which one is shown.

use serde_json::Value;

use crate::fold::{NameOrigin, UpdateKind, View};

/// Longest name that is made from a prompt, in characters.
pub const AUTOMATIC_CHARS_MAX: usize = 60;
/// Longest name that a person may give, in characters.
pub const CUSTOM_CHARS_MAX: usize = 200;

/// Why a name cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing but white space.
    #[error("a name must not be empty")]
    Empty,
    /// Longer than [`CUSTOM_CHARS_MAX`].
    #[error("a name may be {CUSTOM_CHARS_MAX} characters long")]
    TooLong,
    /// More than one line, or something that is no text.
    #[error("a name must be one line without control characters")]
    Lines,
}

/// Checks a name that a person gives; white space at its ends is taken off.
///
/// # Errors
/// If it is empty, longer than [`CUSTOM_CHARS_MAX`] characters, or not one line.
pub fn custom(text: &str) -> Result<&str, NameError> {
    let name = text.trim();
    let breaks = |ch: char| ch.is_control() || matches!(ch, '\u{2028}' | '\u{2029}');
    if name.is_empty() {
        Err(NameError::Empty)
    } else if name.contains(breaks) {
        Err(NameError::Lines)
    } else if name.chars().count() > CUSTOM_CHARS_MAX {
        Err(NameError::TooLong)
    } else {
        Ok(name)
    }
}

/// A name out of a prompt's content blocks (JSON text): the first line of its text blocks that says
/// something, cut at a word. `None` if there is none: a picture gives no name.
#[must_use]
pub fn of_prompt(prompt: &str) -> Option<String> {
    let blocks: Vec<Value> = serde_json::from_str(prompt).ok()?;
    let texts = blocks.iter().filter_map(|block| {
        let is_text = block.get("type").and_then(Value::as_str) == Some("text");
        is_text.then(|| block.get("text")?.as_str()).flatten()
    });
    texts.flat_map(|text| text.split(['\n', '\r', '\u{2028}', '\u{2029}'])).find_map(of_line)
}

/// A name out of one line: its words up to [`AUTOMATIC_CHARS_MAX`] characters. What is longer than
/// that without a space is no word but data, and left out.
#[must_use]
pub fn of_line(line: &str) -> Option<String> {
    let mut name = String::new();
    let mut chars = 0;
    for word in line.split(|ch: char| ch.is_whitespace() || ch.is_control()) {
        let length = word.chars().take(AUTOMATIC_CHARS_MAX + 1).count();
        if length == 0 || length > AUTOMATIC_CHARS_MAX {
            continue;
        }
        let space = usize::from(!name.is_empty());
        if chars + space + length > AUTOMATIC_CHARS_MAX {
            break;
        }
        if space == 1 {
            name.push(' ');
        }
        name.push_str(word);
        chars += space + length;
    }
    (!name.is_empty()).then_some(name)
}

/// The title that ACP clients are shown: a name that a person gave, else the agent's title, else the
/// automatic name.
#[must_use]
pub fn shown(view: &View) -> Option<&str> {
    given(view).or(view.title.as_deref()).or(view.name.as_deref())
}

/// The name that a person gave, if one did.
#[must_use]
pub fn given(view: &View) -> Option<&str> {
    view.name.as_deref().filter(|_| view.name_origin == Some(NameOrigin::Custom))
}

/// Whether an agent's update (its params) gives the session a title.
#[must_use]
pub fn is_title(params: &[u8]) -> bool {
    matches!(UpdateKind::of(params), Some(UpdateKind::Info { title: Some(_) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_gives_its_first_words() {
        let long = format!("{} tail", "word ".repeat(20));
        let cut = "word ".repeat(12);
        for (text, name) in [
            ("fix the bug", Some("fix the bug")),
            ("\n  \t\n  fix\tthe   bug \nand more", Some("fix the bug")),
            ("one\u{2028}two", Some("one")),
            (&long, Some(cut.trim_end())),
            (" \n ", None),
            ("", None),
        ] {
            let prompt = serde_json::json!([{ "type": "text", "text": text }]).to_string();
            assert_eq!(of_prompt(&prompt).as_deref(), name, "{text:?}");
        }
    }

    #[test]
    fn sixty_characters_fit_and_no_word_is_cut() {
        let sixty = format!("{} {}", "ä".repeat(30), "b".repeat(29));
        assert_eq!(of_line(&sixty).as_deref(), Some(sixty.as_str()));
        let more = format!("{} {}", "ä".repeat(30), "b".repeat(30));
        assert_eq!(of_line(&more), Some("ä".repeat(30)));
    }

    #[test]
    fn pictures_and_data_give_no_name() {
        let data = "A".repeat(61);
        let prompt = serde_json::json!([
            { "type": "image", "data": "QUJD", "mimeType": "image/png" },
            { "type": "text", "text": format!("data:image/png;base64,{data}") },
            { "type": "text", "text": format!("look at {data} here") },
            7,
        ]);
        assert_eq!(of_prompt(&prompt.to_string()).as_deref(), Some("look at here"));
        assert_eq!(of_prompt(r#"[{"type":"image","data":"QUJD"}]"#), None);
        assert_eq!(of_prompt("not json"), None);
    }

    #[test]
    fn a_persons_name_is_one_line_up_to_its_limit() {
        assert_eq!(custom("  nightly run "), Ok("nightly run"));
        let longest = "é".repeat(CUSTOM_CHARS_MAX);
        assert_eq!(custom(&longest), Ok(longest.as_str()));
        assert_eq!(custom(&format!("{longest}x")), Err(NameError::TooLong));
        assert_eq!(custom(" \n "), Err(NameError::Empty));
        assert_eq!(custom("a\nb"), Err(NameError::Lines));
        assert_eq!(custom("a\u{1b}[31m"), Err(NameError::Lines));
    }

    #[test]
    fn a_given_name_is_shown_before_the_agents_title_and_that_before_an_automatic_one() {
        let mut view = View { name: Some("auto".into()), ..View::default() };
        view.name_origin = Some(NameOrigin::Automatic);
        assert_eq!((shown(&view), given(&view)), (Some("auto"), None));
        view.title = Some("agent's".into());
        assert_eq!(shown(&view), Some("agent's"));
        view.name_origin = Some(NameOrigin::Custom);
        assert_eq!((shown(&view), given(&view)), (Some("auto"), Some("auto")));
        assert_eq!(shown(&View::default()), None);
    }
}
