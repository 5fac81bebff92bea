//! `frontdesk take`: takes a session from whoever has it.

use serde_json::Value;

use super::client::CALL_AGENT;
use super::out::WANTED;
use super::rows::One;
use super::{Exit, Failure, Shell, text, time};

/// Arguments of `take`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The turn that runs is cancelled and the old owner fenced: what it still says is refused.\n\
                  Clients stay; their next prompt calls the session back. A process that Frontdesk did not\n\
                  start is never signalled.\n\n\
                  Exit codes: 0 taken, 1 not taken, 3 nobody has it, 4 unknown session, 6 no daemon.\n\n\
                  Example:\n  frontdesk take 01a22bb6-2da2"
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) one: One,
}

/// Takes a session.
pub(crate) fn run(args: &Args, shell: &mut Shell) -> Result<Exit, Failure> {
    let answer = args.one.ask("_frontdesk/take", CALL_AGENT, shell)?;
    let result: Value = answer.read()?;
    let taken = result["taken"] == true;
    let id = result["sessionId"].as_str().unwrap_or("it");
    if args.one.json {
        shell.out.json(answer.raw())?;
    } else if taken {
        let from = &result["from"];
        let from = match (from["instance"].as_str(), from["socket"].as_str(), from["url"].as_str())
        {
            (Some(instance), ..) => format!("instance {instance}"),
            (_, Some(socket), _) => format!("the daemon at {socket}"),
            (.., Some(url)) => url.to_owned(),
            _ => "its owner".to_owned(),
        };
        let line = format!("took {id} from {from}, epoch {}", result["epoch"]);
        shell.out.line(&text::line(&line))?;
        if let Some(late) = result["lateWrites"].as_u64().filter(|late| *late > 0) {
            shell.out.line(&format!("late writes refused: {late}"))?;
        }
        let stay = result["clients"].as_array().map_or(0, Vec::len);
        if stay > 0 {
            let clients = time::plural(i64::try_from(stay).unwrap_or(i64::MAX), "client");
            shell.out.line(&format!("{clients} stay attached"))?;
        }
        if result["lease"] == "suspect" {
            let text =
                "its agent could not be told to let go; only where it is can it be opened again";
            shell.out.remark(WANTED, text);
        }
    } else {
        shell.out.remark(WANTED, &format!("nobody has {id}; load it to begin"));
    }
    Ok(if taken { Exit::Done } else { Exit::Inactive })
}
