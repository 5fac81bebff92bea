//! `frontdesk completions`: completion scripts for shells.

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell as Dialect;

use super::Cli;
use super::out::Out;

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  frontdesk completions bash > ~/.local/share/bash-completion/completions/frontdesk"
)]
pub(crate) struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Dialect,
}

impl Args {
    /// Prints the script.
    pub(crate) fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "frontdesk", &mut script);
        out.raw(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}
