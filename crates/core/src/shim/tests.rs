//! What a shim remembers, and what it makes of a new daemon.
