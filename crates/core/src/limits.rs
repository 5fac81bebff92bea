//! Every limit with its unit in the name and its default in one table.
//!
//! The configuration's `[limits]` table sets the same names.

use serde::{Deserialize, Serialize};

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr;)*) => {
        /// The limits in force.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Limits {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Limits {
            /// The names, as the configuration spells them.
            pub const NAMES: &[&str] = &[$(stringify!($name),)*];
        }
    };
}

limits! {
    /// Longest ACP frame in bytes, without its line end.
    frame_bytes: u64 = 64 << 20;
    /// Bytes waiting for one client before it is served from the journal instead.
    outbox_bytes: u64 = 8 << 20;
    /// Prompts waiting behind the running turn of one session.
    queued_turns: u32 = 16;
    /// Questions open at once in one session.
    open_interactions: u32 = 64;
    /// Other requests of an agent that clients have not answered yet, in one session: files, terminals, extensions.
    open_passes: u32 = 64;
    /// Terminals of one session that its agent has made at clients and not released.
    terminals: u32 = 1024;
    /// Clients attached to one session.
    attachments: u32 = 64;
    /// Subagents of one session that are known while it is loaded; what more of them send is refused.
    session_children: u32 = 4096;
    /// Client connections of one daemon.
    connections: u32 = 4096;
    /// Time for a client's first line, in milliseconds.
    handshake_ms: u64 = 10_000;
    /// Time for an agent to start and answer `initialize`, in milliseconds.
    agent_start_ms: u64 = 60_000;
    /// Silence allowed while an agent opens, loads or lists a session, in milliseconds.
    agent_open_ms: u64 = 60_000;
    /// Time for an agent to answer `session/close`, `session/delete` and other housekeeping, in milliseconds.
    agent_close_ms: u64 = 5_000;
    /// Time for one status probe, in milliseconds.
    probe_ms: u64 = 2_000;
    /// How long an id that all instances called unknown is not asked about again, in milliseconds.
    probe_negative_ms: u64 = 1_000;
    /// Questions about different ids under way at one instance.
    probe_requests: u32 = 64;
    /// How often an instance that may have a session is asked whether it has, in milliseconds.
    doubt_probe_ms: u64 = 5_000;
    /// Time for a connection to a url to be there, without `initialize`, in milliseconds.
    url_connect_ms: u64 = 10_000;
    /// Wait before a url is tried again, at first, in milliseconds; each failure doubles it.
    url_retry_ms: u64 = 500;
    /// The longest wait before a url is tried again, in milliseconds.
    url_retry_max_ms: u64 = 30_000;
    /// Silence of a url before it is asked for a sign of life, in milliseconds.
    url_ping_ms: u64 = 20_000;
    /// Time for that sign of life to come before the connection is given up, in milliseconds.
    url_pong_ms: u64 = 10_000;
    /// Time for a client to answer a request whose method nobody may know, in milliseconds.
    ext_answer_ms: u64 = 10_000;
    /// Grace for a running turn after `session/cancel`, in milliseconds.
    cancel_grace_ms: u64 = 10_000;
    /// How long the next prompt waits for the late answer of a cancelled turn, in milliseconds.
    cancel_kill_ms: u64 = 60_000;
    /// Time an agent gets to end by itself once its input is closed, in milliseconds.
    stop_eof_ms: u64 = 2_000;
    /// Time from TERM to KILL when an agent is stopped, in milliseconds.
    stop_term_ms: u64 = 2_000;
    /// Silence of a stream whose first process has gone before the tree is killed, in milliseconds.
    silent_orphan_ms: u64 = 10_000;
    /// Input that waits in a holder for its agent, in bytes; a frame beyond it is refused.
    input_spool_bytes: u64 = 256 << 20;
    /// Output that waits in a holder for its daemon, in bytes; the agent's pipe is not read beyond it.
    output_spool_bytes: u64 = 1 << 30;
    /// How long a holder waits without a daemon, in seconds.
    holder_orphan_s: u64 = 3_600;
    /// How long a claim waits for a holder of the same home to leave, in milliseconds.
    own_holder_ms: u64 = 2_000;
    /// How often a daemon looks for what is left of instances that nobody has, in seconds; 0: only at its start.
    sweep_s: u64 = 60;
    /// Grace for running turns when the daemon stops, in seconds.
    drain_s: u64 = 10;
    /// Unload after this long without activity, in seconds.
    idle_unload_s: u64 = 1_800;
    /// A spare instance that nobody used is ended after this long, in seconds.
    spare_idle_s: u64 = 60;
    /// A list of an agent is not asked again within this time, in milliseconds.
    list_fresh_ms: u64 = 2_000;
    /// Longest wait for an agent's list before ours is answered alone, in milliseconds.
    list_wait_ms: u64 = 5_000;
    /// Pages taken from one agent's list at a time.
    list_pages: u32 = 200;
    /// Rows in one page of `session/list`.
    page_rows: u32 = 50;
    /// Frames held for sessions whose id no answer has introduced yet, per instance.
    early_frames: u32 = 256;
    /// Bytes of text on stdout that is no message, kept per instance and allowed before the handshake.
    noise_bytes: u64 = 1 << 20;
    /// Bytes of an agent's stderr kept.
    stderr_bytes: u64 = 256 << 10;
    /// Unreadable lines from one client before it is cut off.
    client_garbage_lines: u32 = 100;
    /// A client that takes nothing for this long is disconnected, in milliseconds.
    client_stall_ms: u64 = 60_000;
    /// After a client closed its sending side its open requests are still answered for this long, in milliseconds.
    client_eof_ms: u64 = 2_000;
    /// Streamed records are synced within this time, in milliseconds.
    stream_sync_ms: u64 = 100;
    /// Durable records that nobody waits for share the next sync of the commit log, begun within this time, in milliseconds.
    commit_delay_ms: u64 = 5;
    /// A commit log file is cut at this size, in bytes.
    commit_log_bytes: u64 = 64 << 20;
    /// Records waiting for one sync of the commit log, in bytes; appends beyond it are refused until a round is through.
    commit_queue_bytes: u64 = 256 << 20;
    /// Journals kept open at once; others are opened again when they are written to.
    journal_files: u32 = 256;
    /// Changed sessions that wait to be written to the index; an agent's list waits beyond them.
    index_rows: u32 = 4096;
    /// Changes are gathered for this long before they are written to the index, in milliseconds.
    index_delay_ms: u64 = 200;
    /// Longest wait for an index that is being made, before a list is refused or an id is called unknown, in milliseconds.
    index_wait_ms: u64 = 5_000;
    /// Passages of transcripts that one search looks at, newest first, as rows of the index.
    search_rows: u32 = 10_000;
    /// Room set aside on the disk, in bytes, so that cancel and close work while it is full.
    reserve_bytes: u64 = 4 << 20;
    /// A snapshot is written beside a journal each time it has grown by so many bytes.
    snapshot_every_bytes: u64 = 8 << 20;
    /// Messages waiting in one session's lane.
    lane_messages: u32 = 1024;
    /// Longest MSP frame in bytes, both ways, without its line end.
    msp_frame_bytes: u64 = 10 << 20;
    /// Requests of one MSP client that wait for their answers.
    msp_requests: u32 = 256;
    /// Sessions that one MSP client follows.
    msp_subscriptions: u32 = 256;
    /// Changed rows are told to an MSP client at most this often, in milliseconds.
    msp_list_ms: u64 = 100;
    /// Repositories watched for their branch at once; others are looked at from time to time.
    watched_folders: u32 = 512;
    /// How often a folder that is not watched is looked at for its branch, in milliseconds.
    branch_poll_ms: u64 = 5_000;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_ends_with_what_it_counts() {
        let units = [
            "_bytes",
            "_ms",
            "_s",
            "turns",
            "interactions",
            "passes",
            "terminals",
            "attachments",
            "children",
            "connections",
            "frames",
            "files",
            "folders",
            "rows",
            "pages",
            "lines",
            "messages",
            "requests",
            "subscriptions",
        ];
        for name in Limits::NAMES {
            assert!(units.iter().any(|unit| name.ends_with(unit)), "{name} has no unit");
        }
    }
}
