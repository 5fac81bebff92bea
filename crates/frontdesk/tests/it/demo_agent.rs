//! The scripted agent over its pipes.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test may stop")]

mod client;
mod faults;
mod methods;
mod questions;
mod turns;
