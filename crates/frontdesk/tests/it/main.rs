//! Integration tests: one binary, one module a subject. They drive the real program.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "tests"
)]

mod architecture;
mod cli;
mod demo_agent;
mod hold;
