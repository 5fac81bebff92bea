//! The Muse Session Protocol as data: what its face says and how records become its events.
//!
//! Sources: the published `Session` type page, the published Python models (1.4.13, stable and
//! experimental) and the Rust crate 1.4.14. Nothing here reads a clock, a file or a socket.

pub mod cursor;
pub mod errors;
pub mod filter;
pub mod gate;
pub mod handshake;
pub mod history;
pub mod object;
pub mod params;
pub mod view;
pub mod words;

pub use cursor::ViewCursor;
pub use errors::{ErrorKind, MspError};
pub use filter::{ListFilter, RowFacts};
pub use handshake::{Host, Initialize};
pub use view::{Event, Renderer};
