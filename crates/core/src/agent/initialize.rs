//! Both sides of `initialize`, for ACP v1: what clients are told and what agents are asked.
//!
//! Called by the face that answers a client and by the room that starts an instance. Source: ACP v1
//! "Initialization". Choices: a bound endpoint passes the agent's own answer on and adds what
//! Frontdesk keeps for every session; an unbound one speaks for itself, with the default agent's
//! prompt kinds and log-in methods and nothing else of it, because its sessions are of any agent.

use serde_json::{Map, Value, json};

use crate::envelope::Members;

/// The ACP version Frontdesk speaks, to both sides.
const VERSION: u64 = 1;

/// What Frontdesk serves for every session, whatever its agent can do. Marks of the agent's own
/// under these names are kept.
const SERVED: [&str; 4] = ["list", "resume", "close", "status"];

/// The answer of an endpoint that is bound to one agent.
///
/// The agent's own `result`, with version 1, `loadSession`, and the session methods that Frontdesk
/// serves itself. Everything else stays, members nobody knows too; what the agent cannot do (delete,
/// fork) is never added. A missing `agentInfo` stays missing. `agent` is the configured name.
#[must_use]
pub fn bound_answer(agent_result: &Value, agent: &str, frontdesk_version: &str) -> Value {
    let mut answer = agent_result.as_object().cloned().unwrap_or_default();
    answer.insert("protocolVersion".to_owned(), json!(VERSION));
    within(&mut answer, "agentCapabilities", |capabilities| {
        capabilities.insert("loadSession".to_owned(), json!(true));
        within(capabilities, "sessionCapabilities", |session| {
            for name in SERVED {
                within(session, name, |_| {});
            }
        });
    });
    within(&mut answer, "_meta", |meta| {
        let ours = json!({ "version": frontdesk_version, "agent": agent });
        meta.insert("frontdesk".to_owned(), ours);
    });
    Value::Object(answer)
}

/// The answer of an endpoint that is bound to no agent.
///
/// `default_agent_result` is what the default agent answered, if it was asked: its prompt kinds and
/// its log-in methods are passed on. Kinds that a session's own agent lacks are refused per prompt.
#[must_use]
pub fn unbound_answer(default_agent_result: Option<&Value>, frontdesk_version: &str) -> Value {
    let theirs = default_agent_result.unwrap_or(&Value::Null);
    let mut capabilities = Map::new();
    capabilities.insert("loadSession".to_owned(), json!(true));
    for name in ["promptCapabilities", "auth"] {
        if let value @ Value::Object(_) = &theirs["agentCapabilities"][name] {
            capabilities.insert(name.to_owned(), value.clone());
        }
    }
    let session: Map<String, Value> =
        SERVED.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
    capabilities.insert("sessionCapabilities".to_owned(), Value::Object(session));
    let methods = match &theirs["authMethods"] {
        methods @ Value::Array(_) => methods.clone(),
        _ => json!([]),
    };
    json!({
        "protocolVersion": VERSION,
        "agentCapabilities": capabilities,
        "authMethods": methods,
        "agentInfo": { "name": "frontdesk", "title": "Frontdesk", "version": frontdesk_version },
        "_meta": { "frontdesk": { "version": frontdesk_version } },
    })
}

/// The `params` of the `initialize` that an agent is sent: the client's own text with
/// `protocolVersion` 1. All other bytes stay. An absent version or `clientCapabilities` is added,
/// since some agents insist on them; text that is no object is replaced by a plain greeting.
#[must_use]
pub fn upstream_initialize(client_params: &str) -> String {
    let plain = || format!(r#"{{"protocolVersion":{VERSION},"clientCapabilities":{{}}}}"#);
    let text = client_params.trim();
    let Ok(members) = serde_json::from_str::<Members<'_>>(text) else {
        return plain();
    };
    let Some(body) = text.strip_prefix('{') else {
        return plain();
    };
    let named = |name: &str| members.0.iter().any(|(key, _)| key == name);
    let mut added = String::new();
    if !named("protocolVersion") {
        added.push_str(&format!(r#""protocolVersion":{VERSION},"#));
    }
    if !named("clientCapabilities") {
        added.push_str(r#""clientCapabilities":{},"#);
    }
    if members.0.is_empty() {
        added.pop();
    }
    let mut out = String::with_capacity(text.len() + added.len() + 1);
    out.push('{');
    out.push_str(&added);
    let mut from = 0;
    for (_, raw) in members.0.iter().filter(|(key, _)| key == "protocolVersion") {
        // The value is a slice of `text`, so its place is the distance of the two.
        let at = (raw.get().as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
        out.push_str(body.get(from..at).unwrap_or_default());
        out.push_str(&VERSION.to_string());
        from = at + raw.get().len();
    }
    out.push_str(body.get(from..).unwrap_or_default());
    out
}

/// Changes the member of this name as an object, made or replaced where it is none.
fn within(
    parent: &mut Map<String, Value>,
    name: &str,
    change: impl FnOnce(&mut Map<String, Value>),
) {
    let mut map = match parent.get_mut(name).map(Value::take) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    change(&mut map);
    parent.insert(name.to_owned(), Value::Object(map));
}

#[cfg(test)]
#[path = "initialize_tests.rs"]
mod tests;
