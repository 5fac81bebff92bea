//! The MSP face: the Muse Session Protocol for clients, over the same sessions.
//!
//! `serve` hands each line of an MSP connection to its [`Peer`]. What is shown is a function of the
//! journal (`frontdesk_core::msp`); nothing here starts, loads or attaches an agent, except that a
//! fork asks the agent to fork.

mod follow;
mod frames;
mod list;
mod news;
mod page;
mod peer;
mod read;
mod session;
mod track;

use std::sync::Arc;

use frontdesk_core::msp::Host;

use crate::node::Node;
pub use peer::Peer;
use track::Tracks;

/// What all MSP connections of a daemon share.
#[derive(Debug)]
pub struct Face {
    node: Arc<Node>,
    host: Host,
    tracks: Tracks,
}

impl Face {
    /// The face of a daemon.
    #[must_use]
    pub fn new(node: Arc<Node>) -> Self {
        let host = Host {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            home: node.paths.data.display().to_string(),
            family: if cfg!(windows) { "windows" } else { "unix" },
            os: match std::env::consts::OS {
                "macos" => "macos",
                "windows" => "windows",
                // The set is closed and has no word for the other kinds of Unix.
                _ => "linux",
            },
            fingerprint: node.config.fingerprint.clone(),
        };
        Self { node, host, tracks: Tracks::default() }
    }

    /// Longest frame, in bytes.
    fn frame_bytes(&self) -> usize {
        usize::try_from(self.node.limits.msp_frame_bytes).unwrap_or(usize::MAX)
    }
}
