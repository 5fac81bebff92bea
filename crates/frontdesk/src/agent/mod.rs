//! Agents as running things: holders, their links, processes.

pub mod link;
pub mod proc;
