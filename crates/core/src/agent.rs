//! Agents as data: which ones are known, how they differ from an honest agent, what their answers
//! mean.
//!
//! Owns the table of known agents ([`known`], [`table`]), the named quirks ([`quirks`]), the verdict on a
//! failed open ([`open`]), what lists tell of a session ([`listed`]), modes that skip questions ([`modes`]), and both sides of `initialize` ([`abilities`], [`initialize`]). The
//! configuration attaches a [`Known`] to each of its agents; sessions and the directory read the
//! quirks. Nothing here waits or looks anything up. `docs/tolerance.md` lists what real agents do
//! and which room takes care of it.

pub mod abilities;
pub mod aliases;
pub mod initialize;
pub mod known;
pub mod listed;
pub mod modes;
pub mod open;
pub mod quirks;
pub mod table;

pub use abilities::{Abilities, ClientAbilities, PromptKinds, Shape};
pub use initialize::{bound_answer, unbound_answer, upstream_initialize};
pub use known::{Known, Store, effective_home, recognise, refine, store_family};
pub use open::{Listed, OpenError, Verdict, open_error, verdict};
pub use quirks::{Asks, Busy, Quirks};
pub use table::KNOWN;
