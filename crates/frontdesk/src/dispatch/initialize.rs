//! `initialize`: a bound connection is told what its agent and Frontdesk can do together, an
//! unbound one what Frontdesk keeps for every session.

use std::sync::Arc;

use frontdesk_core::agent::{bound_answer, unbound_answer};
use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::{Code, WireError};
use serde_json::Value;

use super::params;
use crate::conn::{Conn, Greeting};
use crate::node::Node;

/// Until ACP v2 is served, every offer is answered with version 1.
pub(super) async fn initialize(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    frame: &Frame,
) -> Result<String, WireError> {
    if conn.greeting().is_some() {
        let text = "initialize was sent already on this connection";
        return Err(WireError::new(Code::InvalidRequest, text));
    }
    if !params(frame).get("protocolVersion").is_some_and(Value::is_u64) {
        let text = "params.protocolVersion must be a number";
        return Err(WireError::new(Code::InvalidParams, text));
    }
    let greeting = Greeting::read(frame.params().unwrap_or("{}"));
    let version = env!("CARGO_PKG_VERSION");
    let answer = match conn.bound.clone() {
        None => {
            let default = node.agent(&node.config.default_agent);
            let greeted = default.and_then(|agent| node.greeted(&agent));
            unbound_answer(greeted.as_ref().map(|greeted| &greeted.result), version)
        }
        Some(name) => {
            let result = bound_result(node, conn, &name, &greeting.params).await?;
            bound_answer(&result, &name, version)
        }
    };
    conn.greet(greeting);
    Ok(answer.to_string())
}

/// What the agent answers: from the last time, else by starting it now. The instance that is started
/// for this is kept for the client's first session.
async fn bound_result(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    name: &str,
    greeting: &str,
) -> Result<Value, WireError> {
    let agent = node.agent_or_error(name)?;
    if let Some(greeted) = node.greeted(&agent) {
        return Ok(greeted.result);
    }
    let cwd = conn.cwd.clone().unwrap_or_default();
    let instance = node.start_instance(&agent, greeting, &cwd).await?;
    let result = instance.initialized().map(|(result, _)| result.clone()).unwrap_or_default();
    node.set_aside(instance, conn);
    Ok(result)
}
