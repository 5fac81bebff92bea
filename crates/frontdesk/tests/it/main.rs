//! Everything against the real binary, in one test program.

mod hold;
