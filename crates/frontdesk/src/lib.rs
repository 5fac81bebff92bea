//! Frontdesk: everything that waits. The rules live in `frontdesk-core`.

pub mod agent;
pub mod cli;
pub mod config;
pub mod conn;
pub mod demo_agent;
pub mod dispatch;
pub mod hold;
pub mod index;
pub mod lock;
pub mod log;
pub mod msp;
pub mod node;
pub mod paths;
pub mod serve;
pub mod session;
pub mod shim;
pub mod workspace;
