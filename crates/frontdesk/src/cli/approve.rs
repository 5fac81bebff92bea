//! `frontdesk approve`: says yes to an open question, or chooses one of its answers.

use std::collections::BTreeMap;

use frontdesk_core::question::{Wish, chosen_name, permission_result};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::client::{CALL, Client};
use super::pending::{Question, fields, find};
use super::{Exit, Failure, Shell, text};

/// Arguments of `approve`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without CHOICE: the one that says yes for this once, else the only one that says yes.\n\nExample:\n  frontdesk approve 01a22bb6-2da2\n  frontdesk approve ask_01a22bb62da27132_8 allow_always\n  frontdesk approve ask_01a22bb62da27132_9 --content '{\"branch\":\"main\"}'"
)]
pub(crate) struct Args {
    /// The question, or a session with one open question: an id, or a unique beginning of one
    #[arg(value_name = "ID")]
    id: String,
    /// The answer: a choice's id, kind or name; or the fields of a form, as a JSON object
    #[arg(value_name = "CHOICE")]
    choice: Option<String>,
    /// The fields of a form, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = object, conflicts_with = "choice")]
    content: Option<Value>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

fn object(text: &str) -> Result<Value, String> {
    match serde_json::from_str::<Value>(text) {
        Ok(value) if value.is_object() => Ok(value),
        Ok(_) => Err("it is a JSON object".to_owned()),
        Err(error) => Err(format!("it is no JSON: {error}")),
    }
}

/// Says yes.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let mut client = shell.connect()?;
    let question = find(&mut client, &args.id)?;
    let result = match question.kind.as_str() {
        "elicitation" => accept(args, &question)?,
        _ if args.content.is_some() => {
            let text = "this question is no form; choose one of its answers instead of --content";
            return Err(Failure::Usage(text.to_owned()));
        }
        _ => permission(&question, args.choice.as_deref().map_or(Wish::Allow, Wish::Choice))?,
    };
    send(&mut client, shell, &question, &result, args.json)
}

/// What becomes of a form.
fn accept(args: &Args, question: &Question) -> Result<String, Failure> {
    let typed = match (&args.content, &args.choice) {
        (Some(content), _) => Some(content.clone()),
        (None, Some(choice)) => Some(object(choice).map_err(|_| {
            let text = format!(
                "a form has no choices such as {choice:?}; fill it in with --content and a JSON object"
            );
            Failure::Usage(text)
        })?),
        (None, None) => None,
    };
    let asked = question.asked();
    let required = asked["requestedSchema"]["required"].as_array().into_iter().flatten();
    let missing: Vec<&str> = required
        .filter_map(Value::as_str)
        .filter(|name| typed.as_ref().is_none_or(|typed| typed.get(name).is_none()))
        .collect();
    if !missing.is_empty() {
        let (names, missing) = (fields(&asked).join(", "), missing.join(", "));
        let text = format!(
            "the form has to be filled in: --content with {}; without {} it is not complete",
            text::line(&names),
            text::line(&missing)
        );
        return Err(Failure::Usage(text));
    }
    match typed {
        Some(content) => Ok(json!({ "action": "accept", "content": content }).to_string()),
        None if fields(&asked).is_empty() => Ok(json!({ "action": "accept" }).to_string()),
        None => Ok(json!({ "action": "accept", "content": {} }).to_string()),
    }
}

/// The result that a wish means for a permission.
pub(crate) fn permission(question: &Question, wish: Wish<'_>) -> Result<String, Failure> {
    permission_result(question.params.get(), wish)
        .map_err(|error| Failure::Usage(text::line(&error.to_string())))
}

/// Sends an answer (JSON text) and says what it was.
pub(crate) fn send(
    client: &mut Client,
    shell: &mut Shell,
    question: &Question,
    result: &str,
    json: bool,
) -> Result<Exit, Failure> {
    // The answer's members keep the spelling of what the agent offered.
    let mut params: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(result).map_err(anyhow::Error::from)?;
    for (name, id) in [("sessionId", &question.key), ("interaction", &question.interaction)] {
        let id = serde_json::value::to_raw_value(id).map_err(anyhow::Error::from)?;
        params.insert(name.to_owned(), id);
    }
    let answer = client.call("_frontdesk/answer", &params, CALL)?;
    if json {
        shell.out.json(answer.raw())?;
        return Ok(Exit::Done);
    }
    let told: Value = answer.read()?;
    let told = &told["answer"];
    let asked = question.asked();
    let word = chosen_name(&asked, told)
        .or(told["action"].as_str())
        .or(told["outcome"]["outcome"].as_str());
    let word = text::line(word.unwrap_or("an answer"));
    shell.out.line(&format!("answered {} with {word}", text::line(&question.interaction)))?;
    Ok(Exit::Done)
}
