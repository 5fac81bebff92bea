//! A turn as it streams by: the answer's text to stdout, everything else dimmed to stderr.

use std::collections::HashMap;
use std::io;

use serde_json::Value;

use super::out::{DIM, Out};
use super::text;

/// Tool calls whose titles are remembered.
const TOOLS_MAX: usize = 1_024;

/// What a person sees of a turn.
pub(crate) struct TurnView {
    client_key: String,
    tools: HashMap<String, Tool>,
    /// Whether the running turn is known to be another client's.
    foreign: bool,
}

#[derive(Default, PartialEq, Clone)]
struct Tool {
    title: String,
    status: String,
}

impl TurnView {
    /// A view for the client with this key.
    pub(crate) fn new(client_key: &str) -> Self {
        Self { client_key: client_key.to_owned(), tools: HashMap::new(), foreign: false }
    }

    /// Shows one `session/update`.
    ///
    /// # Errors
    /// If the answer cannot be written.
    pub(crate) fn show(&mut self, params: &Value, out: &mut Out) -> io::Result<()> {
        let update = &params["update"];
        self.note_whose_turn(update);
        match update["sessionUpdate"].as_str().unwrap_or("") {
            "agent_message_chunk" => {
                let words = content(&update["content"]);
                if self.foreign {
                    out.remark_piece(DIM, &words);
                } else if update["content"]["type"] == "text" {
                    out.piece(&words)?;
                } else {
                    out.remark(DIM, &words);
                }
            }
            "agent_thought_chunk" => out.remark_piece(DIM, &content(&update["content"])),
            "user_message_chunk" => {
                let words = text::line(&content(&update["content"]));
                out.remark(DIM, &format!("another client asks: {words}"));
            }
            "tool_call" | "tool_call_update" => self.show_tool(update, out),
            "plan" => show_plan(update, out),
            "current_mode_update" => {
                let mode = update["currentModeId"].as_str().unwrap_or("?");
                out.remark(DIM, &format!("mode: {}", text::line(mode)));
            }
            "session_info_update" => {
                if let Some(title) = update["title"].as_str() {
                    out.remark(DIM, &format!("title: {}", text::line(title)));
                }
            }
            // Of use to programs only.
            "available_commands_update" | "usage_update" | "config_option_update" | "" => {}
            other => out.remark(DIM, &format!("[{}]", text::line(other))),
        }
        Ok(())
    }

    /// The daemon marks the begin of a turn with the key of the client that sent its prompt, so
    /// that an answer to somebody else does not end up in this one.
    fn note_whose_turn(&mut self, update: &Value) {
        let turn = &update["_meta"]["frontdesk"]["turn"];
        if let Some(client) = turn["client"].as_str() {
            self.foreign = turn["state"] == "running" && client != self.client_key;
        }
    }

    fn show_tool(&mut self, update: &Value, out: &mut Out) {
        let id = update["toolCallId"].as_str().unwrap_or("").to_owned();
        if self.tools.len() >= TOOLS_MAX && !self.tools.contains_key(&id) {
            self.tools.clear();
        }
        let tool = self.tools.entry(id).or_default();
        let before = tool.clone();
        if let Some(title) = update["title"].as_str() {
            tool.title = text::line(title);
        }
        if let Some(status) = update["status"].as_str() {
            tool.status = text::line(status);
        }
        if *tool != before {
            let title = if tool.title.is_empty() { "(no title)" } else { &tool.title };
            let status = if tool.status.is_empty() { "pending" } else { &tool.status };
            out.remark(DIM, &format!("tool: {title} [{status}]"));
        }
    }
}

fn show_plan(update: &Value, out: &mut Out) {
    for entry in update["entries"].as_array().into_iter().flatten() {
        let mark = match entry["status"].as_str() {
            Some("completed") => 'x',
            Some("in_progress") => '>',
            _ => ' ',
        };
        let words = text::line(entry["content"].as_str().unwrap_or(""));
        out.remark(DIM, &format!("plan: [{mark}] {words}"));
    }
}

/// A content block as text; kinds that are not text by their name.
pub(crate) fn content(block: &Value) -> String {
    match block["type"].as_str() {
        Some("text") => text::stream(block["text"].as_str().unwrap_or("")),
        Some(kind) => {
            let place = block["uri"].as_str().or(block["resource"]["uri"].as_str());
            let place = place.map(|uri| format!(" {}", text::line(uri))).unwrap_or_default();
            format!("[{}{place}]", text::line(kind))
        }
        None => String::new(),
    }
}
