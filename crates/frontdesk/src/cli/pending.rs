//! `frontdesk pending`: every question that waits for somebody; and finding the one a person means.

use frontdesk_core::question::Named;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::client::{Answer, CALL, Client};
use super::out::{BOLD, DIM, WANTED};
use super::table::{fixed, flexible, lay_out};
use super::{Exit, Failure, Shell, rows, text, time};

/// Shortest beginning of an id that is looked up.
const PREFIX_CHARS_MIN: usize = 4;
/// Questions that an error lists.
const CANDIDATES_MAX: usize = 10;

/// Arguments of `pending`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk pending\n  frontdesk approve ask_01a22bb62da27132_8")]
pub(crate) struct Args {
    /// Only this session's: an id, or a unique beginning of one
    #[arg(value_name = "SESSION")]
    session: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// One open question.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Question {
    /// Its id.
    pub(crate) interaction: String,
    /// The session, as ACP clients name it.
    session_id: String,
    /// The session's key.
    pub(crate) key: String,
    #[serde(default)]
    agent: String,
    #[serde(default)]
    session: Option<String>,
    /// `permission` or `elicitation`.
    #[serde(default)]
    pub(crate) kind: String,
    #[serde(default)]
    title: Option<String>,
    /// What the agent asked, without its session, as it came.
    pub(crate) params: Box<RawValue>,
    #[serde(default)]
    age_ms: Option<u64>,
    #[serde(default)]
    asked: Option<Vec<Asked>>,
}

/// A client that is being asked.
#[derive(Debug, Deserialize)]
struct Asked {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Pending {
    pending: Vec<Question>,
}

/// Lists open questions, oldest first.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let mut client = shell.connect()?;
    let params = match &args.session {
        Some(typed) => json!({ "sessionId": rows::resolve(&mut client, typed)? }),
        None => json!({}),
    };
    let answer = client.call("_frontdesk/pending", &params, CALL)?;
    if args.json {
        shell.out.json(answer.raw())?;
    } else {
        show(&read(&answer)?, shell)?;
    }
    Ok(Exit::Done)
}

fn read(answer: &Answer) -> Result<Vec<Question>, Failure> {
    Ok(answer.read::<Pending>()?.pending)
}

fn show(questions: &[Question], shell: &mut Shell) -> Result<(), Failure> {
    if questions.is_empty() {
        shell.out.remark(DIM, "no open questions");
        return Ok(());
    }
    let cells: Vec<Vec<String>> = questions
        .iter()
        .map(|question| {
            let session = question.session.as_deref().unwrap_or(&question.session_id);
            vec![
                text::line(&question.interaction),
                question.age_ms.map_or_else(|| time::UNKNOWN.to_owned(), time::span_ms),
                text::line(&question.agent),
                text::line(session),
                text::line(question.title.as_deref().unwrap_or(&question.kind)),
            ]
        })
        .collect();
    let columns =
        [fixed("ID"), fixed("AGE"), fixed("AGENT"), flexible("SESSION"), flexible("ASKED")];
    let lines = lay_out(&columns, &cells, shell.out.width_columns);
    for (index, line) in lines.iter().enumerate() {
        let question = index.checked_sub(1).and_then(|index| questions.get(index));
        shell.out.styled(if question.is_some() { WANTED } else { BOLD }, line)?;
        let Some(question) = question else { continue };
        shell.out.styled(DIM, &format!("    {}", question.choices()))?;
        shell.out.styled(DIM, &format!("    {}", question.audience()))?;
    }
    Ok(())
}

impl Question {
    /// The params as a value.
    pub(crate) fn asked(&self) -> Value {
        serde_json::from_str(self.params.get()).unwrap_or_default()
    }

    /// What may be answered, for a person.
    fn choices(&self) -> String {
        let params = self.asked();
        if self.kind == "elicitation" {
            let names = fields(&params);
            return match (params["url"].as_str(), names.is_empty()) {
                (Some(url), _) => format!("visit {}, then approve or deny", text::line(url)),
                (None, true) => "approve or deny".to_owned(),
                (None, false) => {
                    format!("approve with --content and {}, or deny", text::line(&names.join(", ")))
                }
            };
        }
        let words = |option: &Value| {
            let word = |name: &str| text::line(option[name].as_str().unwrap_or("?"));
            format!("{} = {} ({})", word("optionId"), word("name"), word("kind"))
        };
        let options = params["options"].as_array().into_iter().flatten();
        let options: Vec<String> = options.map(words).collect();
        if options.is_empty() { "nothing is offered".to_owned() } else { options.join(", ") }
    }

    /// Who is being asked besides whoever looks at this.
    fn audience(&self) -> String {
        let names: Option<Vec<String>> = self
            .asked
            .as_ref()
            .map(|asked| asked.iter().map(|client| text::line(&client.name)).collect());
        match names.as_deref() {
            None => "answer it here, or in a client of the session".to_owned(),
            Some([]) => "no attached client can answer; approve or deny it here".to_owned(),
            Some(names) => format!("asked: {}", names.join(", ")),
        }
    }

    /// Whether a person means this one, by its id, its session's, or a beginning of one of them.
    fn is_meant(&self, typed: &str) -> bool {
        let ids = [&self.interaction, &self.session_id, &self.key];
        let long = typed.chars().count() >= PREFIX_CHARS_MIN;
        ids.iter().any(|id| *id == typed || (long && id.starts_with(typed)))
            || (long && self.key.starts_with(&typed.to_ascii_lowercase()))
    }
}

/// Names of a form's fields.
pub(crate) fn fields(params: &Value) -> Vec<String> {
    let properties = params["requestedSchema"]["properties"].as_object();
    properties.map(|all| all.keys().cloned().collect()).unwrap_or_default()
}

/// Finds the open question that a person means: its id or a beginning of it, or a session with one.
///
/// # Errors
/// [`Failure::Usage`] with the candidates where several fit; the daemon's own words on what became
/// of a question whose whole id was given; an unknown session's error for everything else.
pub(crate) fn find(client: &mut Client, typed: &str) -> Result<Question, Failure> {
    if Named::read(typed).is_some() {
        // A whole id means this question and no later one that begins the same.
        let answer = client.call("_frontdesk/pending", &json!({ "interaction": typed }), CALL)?;
        let mut found = read(&answer)?;
        return found.pop().ok_or_else(|| none_open(typed));
    }
    let all = read(&client.call("_frontdesk/pending", &json!({}), CALL)?)?;
    let mut found: Vec<Question> = all.into_iter().filter(|one| one.is_meant(typed)).collect();
    if found.len() > 1 {
        return Err(Failure::Usage(several(typed, &found)));
    }
    if let Some(one) = found.pop() {
        return Ok(one);
    }
    let session = rows::resolve(client, typed)?;
    let answer = client.call("_frontdesk/pending", &json!({ "sessionId": session }), CALL)?;
    let mut found = read(&answer)?;
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(one), false) => {
            found.push(one);
            Err(Failure::Usage(several(typed, &found)))
        }
        (None, _) => Err(none_open(typed)),
    }
}

fn none_open(typed: &str) -> Failure {
    anyhow::anyhow!("no question of {} is open", text::line(typed)).into()
}

fn several(typed: &str, found: &[Question]) -> String {
    let mut message = format!("{} has several open questions:", text::line(typed));
    for question in found.iter().take(CANDIDATES_MAX) {
        let title = question.title.as_deref().unwrap_or(&question.kind);
        let (id, title) = (text::line(&question.interaction), text::cut(&text::line(title), 60));
        message.push_str(&format!("\n  {id}  {title}"));
    }
    if found.len() > CANDIDATES_MAX {
        message.push_str("\n  and more; `frontdesk pending` lists them");
    }
    message
}
