//! Reserved.
