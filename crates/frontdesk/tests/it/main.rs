//! Integration tests: one binary, one module a subject. They drive the real program.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    dead_code,
    reason = "tests; not every helper of the desk is used yet"
)]

mod acp;
mod architecture;
mod cases;
mod cli;
mod demo_agent;
mod desk;
mod editor;
mod faults;
mod harness_tests;
mod hold;
mod index;
mod interop;
mod msp;
mod pools;
mod small_disk;
mod urls;
