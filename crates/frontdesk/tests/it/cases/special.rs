//! What cannot be said as data: named functions that a script runs.

use serde_json::Value;

use super::run::Run;

/// A function that a script names.
type Special = fn(&mut Run, &Value) -> Result<(), String>;

/// Finds a function by the name that the case files use.
pub(super) fn find(name: &str) -> Result<Special, String> {
    match name {
        _ => Err(format!("no such function: {name}")),
    }
}
