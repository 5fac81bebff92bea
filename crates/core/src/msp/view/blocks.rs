//! Content blocks of ACP as text and attachments. Source: ACP "Content".

use serde_json::{Value, json};

/// What one content block says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Piece {
    /// Its text; links and resources are named, not copied.
    pub(super) text: String,
    /// A picture or sound: that there is one, and of which type.
    pub(super) attachment: Option<Value>,
}

/// Reads a block; one of an unknown type says nothing.
pub(super) fn piece(block: &Value) -> Piece {
    let text = |name: &str| block[name].as_str().unwrap_or_default();
    match block["type"].as_str() {
        Some("text") => Piece { text: text("text").to_owned(), attachment: None },
        Some("resource_link") => {
            Piece { text: format!("[{}]({})", text("name"), text("uri")), attachment: None }
        }
        Some("resource") => {
            let uri = block["resource"]["uri"].as_str().unwrap_or_default();
            Piece { text: format!("[{uri}]({uri})"), attachment: None }
        }
        Some(kind @ ("image" | "audio")) => Piece {
            text: String::new(),
            attachment: Some(json!({ "type": kind, "mediaType": text("mimeType") })),
        },
        _ => Piece::default(),
    }
}

/// The text of a tool's content: what it said, and which files it shows changed.
pub(super) fn tool_text(content: &Value) -> String {
    let mut out = String::new();
    for entry in content.as_array().map(Vec::as_slice).unwrap_or_default() {
        let text = match entry["type"].as_str() {
            Some("content") => piece(&entry["content"]).text,
            Some("diff") => format!("diff {}", entry["path"].as_str().unwrap_or_default()),
            // A terminal's output is with whoever runs it.
            _ => continue,
        };
        if !out.is_empty() && !text.is_empty() {
            out.push('\n');
        }
        out.push_str(&text);
    }
    out
}
