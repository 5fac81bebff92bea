//! `frontdesk show`: all that is known about one session.

use serde_json::Value;

use super::client::CALL;
use super::out::{BOLD, WANTED};
use super::rows::One;
use super::wire::Row;
use super::{Exit, Failure, Shell, ls, text, time};

/// Arguments of `show`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk show 01a22bb6-2da2")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) one: One,
}

/// Shows one session.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let answer = args.one.ask("_frontdesk/session", CALL, shell)?;
    if args.one.json {
        shell.out.json(answer.raw())?;
        return Ok(Exit::Done);
    }
    let row: Row = answer.read()?;
    let more: Value = answer.read()?;
    let title = row.title.as_deref().map_or_else(|| "(no title)".to_owned(), text::line);
    shell.out.styled(BOLD, &title)?;
    shell.out.styled(ls::style(&row), &format!("  {:<11} {}", "status", row.status_words()))?;
    for (name, value) in facts(&row, &more, shell) {
        shell.out.line(&format!("  {name:<11} {}", text::line(&value)))?;
    }
    for question in questions(&more) {
        shell.out.styled(WANTED, &format!("  {:<11} {question}", "question"))?;
    }
    Ok(Exit::Done)
}

/// What is known, in the order people ask for it. What is unknown is left out.
fn facts(row: &Row, more: &Value, shell: &Shell) -> Vec<(&'static str, String)> {
    let now = (shell.now)();
    let when = |instant: &Option<String>| {
        instant.as_deref().map(|text| format!("{} ({text})", time::ago(Some(text), now)))
    };
    let agent = more["agentInfo"]["version"].as_str().map(|version| format!(" {version}"));
    let gone = (row.resumable == Some(false)).then(|| "no".to_owned());
    let folders = more["additionalDirectories"].as_array().filter(|list| !list.is_empty());
    let list =
        |values: &[Value]| values.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
    let all = [
        ("id", Some(row.id.clone())),
        ("key", (row.key != row.id).then(|| row.key.clone())),
        ("native id", row.native_id.clone().filter(|id| *id != row.id)),
        ("agent", Some(format!("{}{}", row.agent, agent.unwrap_or_default()))),
        ("owner", row.owner.as_ref().map(|owner| owner.describe(now))),
        ("name", name(more)),
        ("folder", Some(row.cwd.clone())),
        ("branch", text_of(&more["branch"])),
        ("worktree", text_of(&more["worktree"]["path"])),
        ("more roots", folders.map(|values| list(values))),
        ("created", when(&row.created_at)),
        ("quiet", quiet(more)),
        ("updated", when(&row.updated_at)),
        ("active", when(&row.last_activity_at)),
        ("turns", row.turn_count.map(|turns| turns.to_string())),
        ("queued", row.queued_turns.filter(|&turns| turns > 0).map(|turns| turns.to_string())),
        ("resumable", gone),
        ("clients", clients(more)),
        ("model", text_of(&more["modelId"])),
        ("provider", text_of(&more["providerId"])),
        ("mode", current_mode(more)),
        ("policy", policy(more)),
        ("child of", text_of(&more["parent"])),
        ("forked from", text_of(&more["forkedFrom"]["sessionId"])),
        ("created by", created_by(more)),
        ("archived", (more["archived"] == true).then(|| "yes".to_owned())),
        ("late writes", late_writes(more)),
        ("journal", row.path.clone()),
    ];
    all.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect()
}

fn clients(more: &Value) -> Option<String> {
    let clients = more["clients"].as_array().filter(|clients| !clients.is_empty())?;
    let names: Vec<String> = clients
        .iter()
        .map(|client| {
            let name = client["name"].as_str().or(client["key"].as_str()).unwrap_or("unnamed");
            let role = client["role"].as_str().map(|role| format!(" ({role})"));
            format!("{name}{}", role.unwrap_or_default())
        })
        .collect();
    Some(names.join(", "))
}

/// How long ago a running turn's last sign of life was, where that is worth a word.
fn quiet(more: &Value) -> Option<String> {
    let quiet = more["quietMs"].as_u64().filter(|quiet| *quiet >= super::status::QUIET_SHOWN_MS)?;
    Some(format!("for {}", time::span_ms(quiet)))
}

/// What an owner that was none any more has said.
fn late_writes(more: &Value) -> Option<String> {
    let late = more["lateWrites"].as_u64().filter(|late| *late > 0)?;
    Some(format!("refused: {late}"))
}

fn text_of(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn name(more: &Value) -> Option<String> {
    let name = text_of(&more["name"])?;
    let automatic = more["nameOrigin"] == "automatic";
    Some(if automatic { format!("{name} (automatic)") } else { name })
}

/// The policy Frontdesk was told, and whether it is known to decide anything.
fn policy(more: &Value) -> Option<String> {
    let mode = more["policy"]["mode"].as_str()?;
    let decides = more["policy"]["decides"] == true;
    let doubt = "it covers questions, and this agent is not known to ask in this mode";
    Some(if decides { mode.to_owned() } else { format!("{mode} ({doubt})") })
}

fn created_by(more: &Value) -> Option<String> {
    let client = &more["createdByClient"];
    Some(format!("{} {}", client["name"].as_str()?, client["version"].as_str()?))
}

fn current_mode(more: &Value) -> Option<String> {
    more["options"]["modes"]["currentModeId"].as_str().map(str::to_owned)
}

fn questions(more: &Value) -> Vec<String> {
    let Some(open) = more["interactions"].as_array() else { return Vec::new() };
    open.iter()
        .map(|one| {
            let title = one["title"].as_str().or(one["method"].as_str()).unwrap_or("(no title)");
            let id = one["id"].as_str().map(|id| format!("{id}: ")).unwrap_or_default();
            text::line(&format!("{id}{title}"))
        })
        .collect()
}
