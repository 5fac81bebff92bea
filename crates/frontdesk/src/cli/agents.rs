//! `frontdesk agents`: the agents that are configured or were found.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::client::CALL;
use super::out::{BOLD, DIM, PLAIN};
use super::table::{fixed, flexible, lay_out};
use super::wire::{self, Agent};
use super::{Exit, Failure, Shell, doctor, text};

/// Arguments of `agents`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  frontdesk agents --check")]
pub(crate) struct Args {
    /// Start each agent that was found and ask what it offers
    #[arg(long)]
    check: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// The result of `_frontdesk/agents`, entries as sent.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct List {
    /// The entries.
    pub(crate) agents: Vec<Box<RawValue>>,
}

impl List {
    /// The entries, read. What has another shape is left out.
    pub(crate) fn read(&self) -> Vec<Agent> {
        self.agents.iter().filter_map(|raw| serde_json::from_str(raw.get()).ok()).collect()
    }
}

/// Lists agents.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let mut client = shell.connect()?;
    let answer = client.call("_frontdesk/agents", &serde_json::json!({}), CALL)?;
    let list: List = answer.read()?;
    if args.check {
        let checks = doctor::check_all(&mut client, &list.read(), shell)?;
        if args.json {
            let raw: Vec<&RawValue> = checks.iter().map(|(raw, _)| raw.as_ref()).collect();
            let document = serde_json::to_string(&serde_json::json!({ "agents": raw }));
            shell.out.json(&document.map_err(anyhow::Error::from)?)?;
        } else {
            doctor::show_checks(&checks, shell)?;
        }
        let broken = checks.iter().any(|(_, check)| check.can_be_asked() && !check.starts);
        return Ok(if broken { Exit::Failed } else { Exit::Done });
    }
    if args.json {
        shell.out.json(answer.raw())?;
    } else {
        show(&list.read(), shell)?;
    }
    Ok(Exit::Done)
}

fn show(agents: &[Agent], shell: &mut Shell) -> Result<(), Failure> {
    let columns = [
        fixed("AGENT"),
        fixed("VERSION"),
        fixed("SESSIONS"),
        fixed("RUNNING"),
        flexible("COMMAND"),
        flexible("OFFERS"),
    ];
    let cells: Vec<Vec<String>> = agents
        .iter()
        .map(|agent| {
            let default = if agent.default { " *" } else { "" };
            let urls: Vec<String> = agent.urls.iter().map(wire::Url::describe).collect();
            let way = if urls.is_empty() { agent.command.join(" ") } else { urls.join(", ") };
            let way = text::line(&way);
            let is_missing = agent.found.is_none() && urls.is_empty();
            let missing = if is_missing { " (not found)" } else { "" };
            vec![
                format!("{}{default}", text::line(&agent.name)),
                wire::info_version(agent.agent_info.as_ref()).unwrap_or_else(|| "-".to_owned()),
                agent.sessions.to_string(),
                agent.instances.to_string(),
                format!("{way}{missing}"),
                wire::ability_names(agent.abilities.as_ref()).join(" "),
            ]
        })
        .collect();
    for (index, line) in lay_out(&columns, &cells, shell.out.width_columns).iter().enumerate() {
        let agent = index.checked_sub(1).and_then(|index| agents.get(index));
        let style = match agent {
            None => BOLD,
            Some(agent) if !agent.is_there() => DIM,
            Some(_) => PLAIN,
        };
        shell.out.styled(style, line)?;
    }
    if agents.iter().any(|agent| agent.default) {
        shell.out.remark(DIM, "* the default agent");
    }
    Ok(())
}
