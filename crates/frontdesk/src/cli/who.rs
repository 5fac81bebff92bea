//! `frontdesk who`: who has a session, and how to get it.

use serde_json::Value;

use super::client::CALL;
use super::out::{BOLD, DIM};
use super::rows::One;
use super::wire::Owner;
use super::{Exit, Failure, Shell, text, time};

/// Arguments of `who`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 somebody has it, 3 nobody has, 4 unknown session, 6 no daemon.\n\n\
                  Example:\n  frontdesk who 01a22bb6-2da2"
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) one: One,
}

/// Says who has a session.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let answer = args.one.ask("_frontdesk/who", CALL, shell)?;
    let who: Value = answer.read()?;
    let is_held = is_held(&who);
    if args.one.json {
        shell.out.json(answer.raw())?;
    } else {
        show(&who, is_held, shell)?;
    }
    Ok(if is_held { Exit::Done } else { Exit::Inactive })
}

fn is_held(who: &Value) -> bool {
    who["heldBy"].is_object() || !matches!(who["lease"].as_str(), Some("cold" | "lost"))
}

fn show(who: &Value, is_held: bool, shell: &mut Shell) -> Result<(), Failure> {
    let now = (shell.now)();
    let word = |value: &Value| value.as_str().map(str::to_owned);
    let held = &who["heldBy"];
    let headline = match (held.is_object(), is_held) {
        (true, _) => "another home".to_owned(),
        (false, true) => word(&who["agent"]).unwrap_or_default(),
        (false, false) => "nobody".to_owned(),
    };
    shell.out.styled(if is_held { BOLD } else { DIM }, &text::line(&headline))?;
    let owner: Option<Owner> = serde_json::from_value(who["owner"].clone()).ok();
    let since = |text: &Value| text.as_str().map(|text| time::ago(Some(text), now));
    let elsewhere = held.is_object().then(|| {
        let state = if held["alive"] == true { "" } else { " (gone)" };
        let since = since(&held["since"]).unwrap_or_default();
        format!("pid {}{state}, since {since}", held["pid"])
    });
    let place = &who["place"];
    let place = word(&place["instance"]).map(|id| format!("instance {id}")).or(word(&place["url"]));
    let source = word(&who["source"]).map(|source| {
        let age = who["ageMs"].as_u64().map(|ms| format!(", {} old", time::span_ms(ms)));
        format!("{source}{}", age.unwrap_or_default())
    });
    let host = word(&who["node"]["host"]);
    let late = who["lateWrites"].as_u64().filter(|late| *late > 0);
    let facts = [
        ("lease", word(&who["lease"])),
        ("daemon", elsewhere),
        ("socket", word(&held["socket"])),
        ("home", word(&held["home"])),
        ("owner", owner.as_ref().map(|owner| owner.describe(now))),
        ("place", place.filter(|_| owner.is_none())),
        ("host", host.map(|host| format!("{host}, daemon pid {}", who["node"]["pid"]))),
        ("epoch", who["epoch"].as_u64().map(|epoch| epoch.to_string())),
        ("source", source),
        ("late writes", late.map(|late| format!("refused: {late}"))),
        ("take over", word(&who["takeOver"])),
    ];
    for (name, value) in facts {
        if let Some(value) = value {
            shell.out.line(&format!("  {name:<11} {}", text::line(&value)))?;
        }
    }
    for also in who["alsoHeld"].as_array().into_iter().flatten() {
        let id = word(&also["id"]).unwrap_or_default();
        let by = &also["heldBy"];
        let line =
            format!("{id}, by pid {} as {}", by["pid"], word(&by["key"]).unwrap_or_default());
        shell.out.line(&format!("  {:<11} {}", "also held", text::line(&line)))?;
    }
    for client in who["clients"].as_array().into_iter().flatten() {
        let name = word(&client["name"]).unwrap_or_else(|| "unnamed".to_owned());
        let role = word(&client["role"]).unwrap_or_default();
        let since = since(&client["since"]).map(|since| format!(", since {since}"));
        let line = format!("{name} ({role}{})", since.unwrap_or_default());
        shell.out.line(&format!("  {:<11} {}", "client", text::line(&line)))?;
    }
    Ok(())
}
