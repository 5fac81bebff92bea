//! The MSP face: the Muse Session Protocol for clients, over the same sessions.
//!
//! `serve` hands each line of an MSP connection to its [`Peer`]. What is shown is a function of the
//! journal (`frontdesk_core::msp`); nothing here starts, loads or attaches an agent, except that a
//! fork asks the agent to fork.

mod command;
mod decide;
mod follow;
mod fork;
mod frames;
mod list;
mod news;
mod page;
mod peer;
mod read;
mod session;
mod track;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use frontdesk_core::msp::Host;

use crate::lock::lock;
use crate::node::Node;
pub use peer::Peer;
use track::Tracks;

/// What all MSP connections of a daemon share.
#[derive(Debug)]
pub struct Face {
    node: Arc<Node>,
    host: Host,
    tracks: Tracks,
    /// Commands that are being carried out and have no answer yet.
    running: Mutex<HashSet<String>>,
}

/// A command that is being carried out.
struct Running<'a> {
    face: &'a Face,
    command: &'a str,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.face.running).remove(self.command);
    }
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
        Self { node, host, tracks: Tracks::default(), running: Mutex::default() }
    }

    /// Notes a command as being carried out; `None` if it is already.
    fn running<'a>(&'a self, command: &'a str) -> Option<Running<'a>> {
        let is_new = lock(&self.running).insert(command.to_owned());
        is_new.then_some(Running { face: self, command })
    }

    /// Longest frame, in bytes.
    fn frame_bytes(&self) -> usize {
        usize::try_from(self.node.limits.msp_frame_bytes).unwrap_or(usize::MAX)
    }
}
