//! `frontdesk acp`: ACP on stdio. The work is in [`crate::shim`].

use std::process::ExitCode;

/// Arguments of `acp`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Put this where your editor wants an agent's command.\n\n\
                  Example:\n  frontdesk acp --agent demo")]
pub(crate) struct Args {
    /// Make and list sessions of this agent only
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// The spelling of status words: active/inactive, or open/saved
    #[arg(long, value_name = "WORDS", value_parser = ["active", "open"])]
    status_words: Option<String>,
    /// How long to look for a daemon once one is gone, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, conflicts_with = "once")]
    wait_s: u64,
    /// End when the daemon ends, instead of going on with the next one
    #[arg(long)]
    once: bool,
}

impl Args {
    /// Serves the editor until it closes stdin.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        crate::shim::run(crate::shim::ShimOptions {
            face: "acp",
            agent: self.agent,
            status_words: self.status_words,
            once: self.once,
            wait_s: self.wait_s,
        })
    }
}
