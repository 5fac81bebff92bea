//! Agents as running things: holders, their links, processes, instances.

pub mod instance;
pub mod link;
pub mod proc;
pub mod reading;
