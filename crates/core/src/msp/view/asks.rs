//! Questions to people: permissions become approvals, forms with few choices become user input.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{LABEL_BYTES_MAX, Out, Renderer, cut, object};
use crate::msp::cursor::ViewCursor;
use crate::record::Record;

/// Choices of one approval that are offered; the same number of questions is open at most.
const CHOICES_MAX: usize = 64;
/// Questions that one user input may have, and choices of each. Source: msp "Approvals".
const QUESTIONS: std::ops::RangeInclusive<usize> = 1..=3;
const OPTIONS: std::ops::RangeInclusive<usize> = 2..=3;

/// An open question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ask {
    /// The params of its opening, as they were shown.
    params: Value,
    cursor: ViewCursor,
    /// An approval, else a user input.
    approval: bool,
    /// The call it is about.
    call: String,
}

#[derive(Deserialize)]
struct Opened {
    interaction: String,
    method: String,
    #[serde(default)]
    params: Value,
}

#[derive(Deserialize)]
struct Settled {
    interaction: String,
    #[serde(default)]
    outcome: String,
    #[serde(default)]
    answer: Value,
    #[serde(default)]
    by: Value,
}

impl Renderer {
    /// Open approvals, each as the params of `approval/request`, in the order of their opening.
    #[must_use]
    pub fn approvals(&self) -> Vec<Value> {
        self.opened(true)
    }

    /// Open user inputs, each as the params of `userInput/request`.
    #[must_use]
    pub fn user_inputs(&self) -> Vec<Value> {
        self.opened(false)
    }

    /// Pointers to all open questions, for `pendingRequests`.
    #[must_use]
    pub fn pending(&self) -> Vec<Value> {
        self.in_order()
            .into_iter()
            .map(|(id, ask)| {
                let (kind, name) = if ask.approval {
                    ("approval", "approvalId")
                } else {
                    ("userInput", "userInputId")
                };
                json!({ "kind": kind, name: id, "viewCursor": ask.cursor.text(self.key) })
            })
            .collect()
    }

    fn opened(&self, approval: bool) -> Vec<Value> {
        let asks = self.in_order().into_iter().filter(|(_, ask)| ask.approval == approval);
        asks.map(|(_, ask)| ask.params.clone()).collect()
    }

    fn in_order(&self) -> Vec<(&String, &Ask)> {
        let mut asks: Vec<_> = self.asks.iter().collect();
        asks.sort_by_key(|(_, ask)| ask.cursor);
        asks
    }

    pub(super) fn open_ask(&mut self, record: &Record, out: &mut Out<'_>) {
        let Some(opened) = record.payload::<Opened>() else { return };
        let turn = self.turn_id(record);
        let approval = opened.method == "session/request_permission";
        let asked = match (approval, opened.method.as_str()) {
            (true, _) => Some(self.approval(&opened, turn, out)),
            (false, "elicitation/create") => self.user_input(&opened, turn, out),
            // A question that this face has no form for: others may answer it.
            _ => None,
        };
        let Some((params, call)) = asked else { return };
        let method = if approval { "approval/requested" } else { "userInput/requested" };
        out.durable(method, params, record.seq);
        let params = out.events.last().map(|event| event.params.clone()).unwrap_or_default();
        let ask = Ask { params, cursor: out.cursor(), approval, call };
        self.asks.insert(opened.interaction, ask);
    }

    fn approval(
        &mut self,
        opened: &Opened,
        turn: Option<String>,
        out: &mut Out<'_>,
    ) -> (Map<String, Value>, String) {
        let call = opened.params["toolCall"]["toolCallId"].as_str().unwrap_or(&opened.interaction);
        let mut told = opened.params["toolCall"].clone();
        // What a question says of a call's state is older than what the call itself says.
        if let Some(told) = told.as_object_mut() {
            told.remove("status");
        }
        let at = self.know_tool(call, turn.clone(), &told, out);
        let tool = &self.tools[at];
        let id = &opened.interaction;
        let options = opened.params["options"].as_array().map(Vec::as_slice).unwrap_or_default();
        let choices: Vec<Value> = options.iter().take(CHOICES_MAX).map(choice).collect();
        let params = json!({
            "approvalId": id,
            "turnId": turn.unwrap_or_default(),
            "taskId": tool.call,
            "itemId": tool.item,
            "toolCallId": tool.call,
            "toolName": tool.name(),
            "rawArgs": tool.raw_args(),
            "subject": { "kind": "tool", "toolName": tool.name() },
            "currentRequirementId": { "approvalId": id, "sourceIndex": 0 },
            "availableChoices": choices,
            "protectedWrite": false,
            "judgeEscalated": false,
        });
        (object(params), tool.call.clone())
    }

    /// A form whose every field is a choice between few; `None` for every other one.
    fn user_input(
        &mut self,
        opened: &Opened,
        turn: Option<String>,
        out: &mut Out<'_>,
    ) -> Option<(Map<String, Value>, String)> {
        let fields = opened.params["requestedSchema"]["properties"].as_object()?;
        let message = opened.params["message"].as_str().unwrap_or_default();
        let questions: Vec<Value> =
            fields.iter().map(|(id, field)| question(id, field, message)).collect::<Option<_>>()?;
        if !QUESTIONS.contains(&questions.len()) {
            return None;
        }
        let told = json!({ "title": message, "kind": "elicitation" });
        let call = opened.params["toolCallId"].as_str().unwrap_or(&opened.interaction);
        let at = self.know_tool(call, turn.clone(), &told, out);
        let tool = &self.tools[at];
        let params = json!({
            "userInputId": opened.interaction,
            "turnId": turn.unwrap_or_default(),
            "itemId": tool.item,
            "toolCallId": tool.call,
            "toolName": tool.name(),
            "questions": questions,
        });
        Some((object(params), tool.call.clone()))
    }

    pub(super) fn settle_ask(&mut self, record: &Record, out: &mut Out<'_>) {
        let Some(settled) = record.payload::<Settled>() else { return };
        let Some(ask) = self.asks.remove(&settled.interaction) else { return };
        self.settle(&settled, &ask, out);
    }

    /// The instance that asked is gone: nobody can answer it any more.
    pub(super) fn abort_asks(&mut self, out: &mut Out<'_>) {
        for (interaction, ask) in std::mem::take(&mut self.asks) {
            let settled = Settled {
                interaction,
                outcome: "withdrawn".into(),
                answer: Value::Null,
                by: Value::Null,
            };
            self.settle(&settled, &ask, out);
        }
    }

    fn settle(&mut self, settled: &Settled, ask: &Ask, out: &mut Out<'_>) {
        if ask.approval {
            let (decision, allowed) = decision(settled, ask);
            if !allowed && let Some(tool) = self.tools.iter_mut().find(|t| t.call == ask.call) {
                Arc::make_mut(tool).denied = decision == "denied";
            }
            let by_person = settled.outcome == "answered" && settled.by["client"].is_string();
            let mut params = json!({
                "approvalId": settled.interaction,
                "itemId": ask.params["itemId"],
                "turnId": ask.params["turnId"],
                "decision": decision,
                "policyResult": if allowed { "allow" } else { "deny" },
                "resolvedBy": if by_person { "user" } else { "policy" },
                "decidedAt": out.at,
                "stageEvidence": [],
            });
            if let Some(command) = settled.by["commandId"].as_str() {
                params["decidedByCommandId"] = json!(command);
            }
            return out.durable("approval/resolved", object(params), out.seq);
        }
        let action = settled.answer["action"].as_str();
        let (outcome, status) = match (settled.outcome.as_str(), action) {
            ("answered", Some("accept")) => ("answered", "completed"),
            ("answered", _) | ("cancelled", _) => ("cancelled", "cancelled"),
            _ => ("aborted", "cancelled"),
        };
        let answers = if outcome == "answered" { answers(ask, settled) } else { Vec::new() };
        let params = json!({
            "userInputId": settled.interaction,
            "outcome": outcome,
            "answers": answers,
            "clarification": null,
            "reason": null,
            "decidedAt": out.at,
            "decidedByCommandId": null,
        });
        out.durable("userInput/settled", object(params), out.seq);
        // A call that exists only for the question ends with it.
        if ask.call == settled.interaction {
            self.know_tool(&ask.call, None, &json!({ "status": status }), out);
        }
    }
}

fn choice(option: &Value) -> Value {
    let text = |name: &str| cut(option[name].as_str().unwrap_or_default(), LABEL_BYTES_MAX).0;
    let (decision, scope) = match text("kind") {
        "allow_once" => ("approved", "once"),
        "allow_always" => ("approvedForSession", "session"),
        "reject_once" => ("denied", "once"),
        "reject_always" => ("denied", "session"),
        // The set is open: a kind of a newer agent is no yes that we know of.
        other => (other, "once"),
    };
    json!({
        "choiceId": text("optionId"),
        "label": text("name"),
        "decision": decision,
        "scope": scope,
    })
}

/// What was decided, and whether the call may go on.
fn decision(settled: &Settled, ask: &Ask) -> (String, bool) {
    let answer = if settled.answer["outcome"].is_object() {
        &settled.answer["outcome"]
    } else {
        &settled.answer
    };
    let chosen = answer["optionId"].as_str().filter(|_| settled.outcome == "answered");
    let choices = ask.params["availableChoices"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = chosen.and_then(|id| choices.iter().find(|choice| choice["choiceId"] == id));
    match found.and_then(|choice| choice["decision"].as_str()) {
        Some(word) => (word.to_owned(), matches!(word, "approved" | "approvedForSession")),
        None => ("abort".into(), false),
    }
}

/// One field of a form as a question; `None` if it is not a choice between few.
fn question(id: &str, field: &Value, message: &str) -> Option<Value> {
    let single = choices_of(field);
    let many = (field["type"] == "array").then(|| choices_of(&field["items"])).flatten();
    let (labels, mode) = match (single, many) {
        (Some(labels), _) => (labels, "single"),
        (None, Some(labels)) => (labels, "multiple"),
        (None, None) => return None,
    };
    if !OPTIONS.contains(&labels.len()) {
        return None;
    }
    let short = |text: &str| cut(text, LABEL_BYTES_MAX).0.to_owned();
    let options: Vec<Value> =
        labels.iter().map(|(_, label)| json!({ "label": short(label) })).collect();
    let title = field["title"].as_str().unwrap_or(id);
    let words = field["description"].as_str().unwrap_or(message);
    Some(json!({
        "id": short(id),
        "header": short(title),
        "question": short(words),
        "selection": { "mode": mode },
        "options": options,
    }))
}

/// The values of a choice and their labels.
fn choices_of(field: &Value) -> Option<Vec<(Value, String)>> {
    if field["type"] == "boolean" {
        return Some(vec![(json!(true), "Yes".into()), (json!(false), "No".into())]);
    }
    for name in ["oneOf", "anyOf"] {
        if let Some(list) = field[name].as_array() {
            let read = |entry: &Value| {
                let value = entry.get("const")?;
                let label = entry["title"].as_str().or(value.as_str())?;
                Some((value.clone(), label.to_owned()))
            };
            return list.iter().map(read).collect();
        }
    }
    let read = |value: &Value| Some((value.clone(), value.as_str()?.to_owned()));
    field["enum"].as_array()?.iter().map(read).collect()
}

/// The answers of an accepted form, in the labels that were offered where they are known.
fn answers(ask: &Ask, settled: &Settled) -> Vec<Value> {
    let questions = ask.params["questions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let label = |value: &Value| match value {
        Value::Bool(true) => "Yes".to_owned(),
        Value::Bool(false) => "No".to_owned(),
        Value::String(text) => cut(text, LABEL_BYTES_MAX).0.to_owned(),
        other => other.to_string(),
    };
    let of = |question: &Value| {
        let id = question["id"].as_str()?;
        Some(match settled.answer["content"].get(id)? {
            Value::Array(values) => {
                let labels: Vec<String> = values.iter().map(label).collect();
                json!({ "questionId": id, "selectedLabels": labels })
            }
            value => json!({ "questionId": id, "selectedLabel": label(value) }),
        })
    };
    questions.iter().filter_map(of).collect()
}
