//! Stub: the daemon is written elsewhere.

use std::path::PathBuf;
use std::process::ExitCode;

/// What `frontdesk serve` was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServeOptions {
    /// `HOST:PORT` to listen on.
    pub listen: Option<String>,
    /// The configuration file, if not the home's own.
    pub config: Option<PathBuf>,
}

/// Runs the daemon.
///
/// # Errors
/// Always: this is a stub.
pub fn run(_options: ServeOptions) -> anyhow::Result<ExitCode> {
    anyhow::bail!("failed to serve: this build has no daemon")
}
