//! The Muse Session Protocol as a client sees it: objects, and what becomes of records.

pub mod object;
pub mod words;
