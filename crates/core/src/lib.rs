//! The rules of Frontdesk, without any input or output: no clock, no files, no randomness.
//!
//! Everything here is computable from its arguments; `frontdesk` does the waiting.

pub mod agent;
pub mod copy;
pub mod envelope;
pub mod errors;
pub mod fold;
pub mod hold;
pub mod ids;
pub mod import;
pub mod lease;
pub mod limits;
pub mod lines;
pub mod methods;
pub mod msp;
pub mod names;
pub mod place;
pub mod policy;
pub mod question;
pub mod record;
pub mod render;
pub mod route;
pub mod session;
pub mod shim;
pub mod status;
pub mod sweep;
pub mod workspace;
