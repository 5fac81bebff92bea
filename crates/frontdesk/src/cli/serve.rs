//! `frontdesk serve`: the daemon in the foreground. The work is in [`crate::serve`].

use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Prints one line when ready: ready socket=PATH http=URL-or-- version=VERSION\n\n\
                  Example:\n  frontdesk serve"
)]
pub(crate) struct Args {
    /// Listen for HTTP and WebSocket clients too
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Read this configuration file instead of the home's own
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Leave the caller's process session and folder
    #[arg(long, hide = true)]
    detach: bool,
}

impl Args {
    /// Runs the daemon until it is told to stop.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        crate::serve::run(crate::serve::ServeOptions {
            listen: self.listen,
            config: self.config,
            detach: self.detach,
        })
    }
}
