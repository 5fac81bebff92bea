//! The language between a daemon and a holder, as bytes: no sockets, no files.
//!
//! `frontdesk::hold` (the holder) and `frontdesk::agent::link` (the daemon's end) both use it. A
//! message is one type byte, the length of its body as a little-endian `u32`, and the body. Two
//! rules let an older holder work with a newer daemon: a message of an unknown type is skipped,
//! and bytes behind the known end of a body are ignored.
//!
//! Long messages are never gathered: the decoder hands out what has come so far. A half [`ToDaemon::Out`]
//! is two of them with fitting offsets, and the rest of a half [`ToHolder::Input`] is a
//! [`ToHolder::InputPiece`], so nobody needs to know where the sender cut.

#[cfg(test)]
mod tests;
mod wire;

use serde::{Deserialize, Serialize};

pub use wire::{DaemonDecoder, HolderDecoder, input_header, input_piece_header, out_header};

/// Version of the protocol spoken here.
pub const VERSION: u32 = 1;
/// Longest run of agent bytes in one message, in bytes.
pub const PIECE_BYTES_MAX: usize = 64 << 10;
/// Type and length in front of each body, in bytes.
pub const HEADER_BYTES: usize = 5;
/// Longest body, in bytes: a piece and the numbers in front of it.
pub const BODY_BYTES_MAX: usize = PIECE_BYTES_MAX + 16;
/// Longest name of a claim, in bytes.
pub const CLAIM_NAME_BYTES_MAX: usize = 16 << 10;
/// Longest text in a claim file, in bytes.
pub const CLAIM_INFO_BYTES_MAX: usize = 16 << 10;
/// The environment variable that marks an agent and all it starts; its value is the instance id.
pub const MARK: &str = "FRONTDESK_INSTANCE";

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// The process number.
    pub pid: i32,
    /// When it started, in the kernel's clock ticks since boot.
    pub birth: u64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// Where an agent stands, as its holder knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    /// Its first process runs and its output is open.
    Running,
    /// Its first process has gone, its output is still open.
    Orphaned,
    /// Its output has ended; processes may be left.
    Ended,
    /// Nothing of it is left.
    Gone,
    /// A word of a later version.
    #[serde(other)]
    Unknown,
}

/// A holder's first words on each connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Protocol version of the holder.
    pub version: u32,
    /// The instance it keeps.
    pub instance: String,
    /// The holder itself.
    pub holder: ProcessId,
    /// The agent's first process, which leads the agent's process group.
    pub agent: ProcessId,
    /// The kernel's name for this boot.
    pub boot_id: String,
    /// First offset of the output that can still be had.
    pub out_start: u64,
    /// Offset behind the last byte of output so far.
    pub out_end: u64,
    /// Number of the last accepted input frame; 0 when there is none.
    pub last_input: u64,
    /// Where the agent stands.
    pub state: AgentState,
}

/// Why a holder did not take an input frame. The number may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The agent has closed its input, or it is being stopped.
    Closed,
    /// Too much input waits for the agent already.
    Full,
    /// The frame could not be written to the spool.
    Disk,
    /// A reason of a later version.
    Other(u8),
}

/// What a daemon says to a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHolder<'a> {
    /// Send the agent's output from here on, and all later news; the newest attachment wins.
    Attach {
        /// The daemon's protocol version.
        version: u32,
        /// First byte wanted.
        from_offset: u64,
    },
    /// An input frame begins.
    Input {
        /// Its number, higher than all before.
        number: u64,
        /// Its whole length in bytes, without a line end.
        total_bytes: u64,
        /// Its first bytes, possibly all.
        piece: &'a [u8],
    },
    /// The open input frame goes on.
    InputPiece {
        /// The next bytes.
        piece: &'a [u8],
    },
    /// Output before this offset is not needed any more.
    Ack {
        /// First byte still needed.
        offset: u64,
    },
    /// Close the agent's input: the polite way to ask it to end.
    CloseInput,
    /// End the agent and all it started, then leave.
    Stop {
        /// Time between TERM and KILL, in milliseconds.
        term_ms: u32,
    },
    /// Lock a claim file.
    Claim {
        /// What is claimed.
        name: &'a str,
        /// What the file shall say about the claimer.
        info: &'a str,
    },
    /// Free a claim file.
    Release {
        /// What was claimed.
        name: &'a str,
    },
}

/// What a holder says to a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToDaemon<'a> {
    /// First message of each connection.
    Hello(Box<Hello>),
    /// Output of the agent.
    Out {
        /// Offset of the first byte.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The frame with this number is complete in the input spool.
    Accepted {
        /// The frame's number.
        number: u64,
    },
    /// The frame with this number was not taken.
    Refused {
        /// The frame's number.
        number: u64,
        /// Why not.
        reason: Refusal,
    },
    /// The agent takes no more input.
    InputClosed,
    /// The agent's first process has ended. Its output may go on.
    AgentExited(Exit),
    /// The output has ended.
    Eof {
        /// Offset behind its last byte.
        end: u64,
    },
    /// Proven: nothing of the agent is left.
    Gone,
    /// The claim is ours.
    Claimed {
        /// What was claimed.
        name: &'a str,
    },
    /// Someone else has the claim.
    Held {
        /// What was asked for.
        name: &'a str,
        /// What the holder of the claim wrote about itself.
        info: &'a str,
    },
    /// The claim could neither be made nor be found held.
    ClaimFailed {
        /// What was asked for.
        name: &'a str,
        /// Why.
        reason: &'a str,
    },
    /// The claim is free again, or never was ours.
    Released {
        /// What was claimed.
        name: &'a str,
    },
}

/// Why bytes are not the protocol.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A body longer than any message's.
    #[error("failed to read a holder message: a body of {0} bytes is too long")]
    TooLong(u32),
    /// A body too short for its type, or text that is no UTF-8.
    #[error("failed to read a holder message of type {0:#04x}: its body is damaged")]
    Damaged(u8),
    /// A greeting that is no such document.
    #[error("failed to read a holder's greeting")]
    Hello(#[source] serde_json::Error),
}
