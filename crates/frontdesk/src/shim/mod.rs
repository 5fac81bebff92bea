//! Stub: the shim is written elsewhere.

use std::process::ExitCode;

/// What `frontdesk acp` was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShimOptions {
    /// The agent to bind the connection to.
    pub agent: Option<String>,
    /// The spelling of status words: `active` or `open`.
    pub status_words: Option<String>,
}

/// Runs the shim.
///
/// # Errors
/// Always: this is a stub.
pub fn run(_options: ShimOptions) -> anyhow::Result<ExitCode> {
    anyhow::bail!("failed to serve ACP: this build has no shim")
}
