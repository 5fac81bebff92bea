//! The experimental part of the protocol, refused inbound on connections that did not ask for it.
//!
//! Outbound it is taken out of the one object that has any (`Session::strip_experimental`).
//! Source: the members and methods marked `x-msp-stability: experimental`, as the experimental
//! Python models 1.4.13 have them.

use super::errors::{ErrorKind, MspError};
use super::params::{Params, Read as _};

/// Methods that are experimental as a whole.
const METHODS: &[&str] = &[
    "account/loginCancel",
    "account/loginStart",
    "account/logout",
    "account/read",
    "admission/decide",
    "admission/listPending",
    "host/readLimits",
    "log/page",
    "log/physicalFiles",
    "log/physicalSubscribe",
    "log/physicalUnsubscribe",
    "log/streams",
    "log/subscribe",
    "log/unsubscribe",
    "mcpServer/list",
    "mcpServer/oauthLogin",
    "mcpServer/oauthLoginCancel",
    "mcpServer/oauthLogout",
    "peer/list",
    "permissionProfile/list",
    "projection/list",
    "projection/read",
    "session/promptHint",
    "session/readLimits",
    "session/reportStartupPhases",
    "session/setPermissionProfile",
    "settings/read",
    "settings/readSchema",
    "settings/writeMany",
    "settings/writeValue",
    "usage/refresh",
    "worktree/list",
];

/// Parameters of stable methods that are experimental.
const PARAMS: &[(&str, &str)] =
    &[("session/start", "worktree"), ("session/start", "limits"), ("turn/start", "tokenBudget")];

/// Refuses what an unopted connection may not ask.
///
/// # Errors
/// `-32601` or `-32602`, kind `experimentalRequired`, with the descriptor.
pub fn check(method: &str, params: &Params, experimental: bool) -> Result<(), MspError> {
    if experimental {
        return Ok(());
    }
    if METHODS.contains(&method) {
        let text = format!("{method} is experimental; ask for experimentalApi in initialize");
        return Err(MspError::new(ErrorKind::ExperimentalMethod, text).with("descriptor", method));
    }
    let used = PARAMS.iter().find(|(of, name)| *of == method && params.member(name).is_some());
    match used {
        Some((_, name)) => {
            let text = format!("params.{name} is experimental; ask for experimentalApi");
            let descriptor = format!("{method}.{name}");
            Err(MspError::new(ErrorKind::ExperimentalParam, text).with("descriptor", descriptor))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn params(value: Value) -> Params {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn experimental_methods_and_params_need_the_opt_in() {
        let none = params(json!({}));
        let error = check("peer/list", &none, false).unwrap_err();
        assert_eq!((error.kind.code(), error.kind.word()), (-32601, "experimentalRequired"));
        assert_eq!(error.data["descriptor"], "peer/list");
        assert!(check("peer/list", &none, true).is_ok());
        let tree = params(json!({ "worktree": {} }));
        let error = check("session/start", &tree, false).unwrap_err();
        assert_eq!(error.kind.code(), -32602);
        assert_eq!(error.data["descriptor"], "session/start.worktree");
        assert!(check("session/start", &params(json!({ "worktree": null })), false).is_ok());
        assert!(check("session/read", &tree, false).is_ok());
    }
}
