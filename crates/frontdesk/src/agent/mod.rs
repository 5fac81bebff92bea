//! Agents as running things: holders, their links, processes, instances.

pub mod facts;
mod having;
pub mod instance;
pub mod ledger;
pub mod link;
pub mod names;
pub mod proc;
pub mod reading;
mod routes;
pub mod sending;
