//! Tests of the one binary.

mod cli;
