//! Process tests: the real binary, driven from outside.

mod demo_agent;
