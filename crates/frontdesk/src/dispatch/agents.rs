//! Requests that name no session: to the bound connection's agent, as `authenticate`, `logout` and
//! whatever else an agent serves. A method nobody answers gets `-32601`, never silence.

use std::sync::Arc;

use frontdesk_core::envelope::Frame;
use frontdesk_core::errors::WireError;

use crate::conn::Conn;
use crate::node::Node;

/// Passes a request on to the client's own instance: the spare one, that of one of its sessions, or
/// a new one, which then waits for its session.
pub(super) async fn to_agent(
    node: Arc<Node>,
    conn: Arc<Conn>,
    frame: Frame,
) -> Option<Result<String, WireError>> {
    match try_forward(&node, &conn, &frame).await {
        Ok(answer) => {
            // The agent's answer goes back with the client's own id, all else unchanged.
            let id = frame.id().unwrap_or("null");
            conn.answer_frame(id, answer.spliced(Some(id), None));
            None
        }
        Err(error) => Some(Err(error)),
    }
}

async fn try_forward(
    node: &Arc<Node>,
    conn: &Arc<Conn>,
    frame: &Frame,
) -> Result<Frame, WireError> {
    let name = match (&conn.bound, &*frame.method) {
        (Some(bound), _) => bound.clone(),
        (None, "authenticate" | "logout") => node.config.default_agent.clone(),
        (None, _) => return Err(WireError::method_not_found(&frame.method)),
    };
    let agent = node.agent_or_error(&name)?;
    let own = conn.lanes().into_iter().find_map(|lane| {
        let owner = node.directory.get(lane.key())?.live.as_ref()?.owner.as_ref()?.instance.clone();
        node.running_instances()
            .into_iter()
            .find(|i| *i.id.0 == *owner && i.agent.name == agent.name)
    });
    let (instance, is_new) = match (conn.spare(), own) {
        (Some(spare), _) if spare.has_ended().is_none() => (spare, false),
        (_, Some(own)) => (own, false),
        (_, None) => {
            let greeting =
                conn.greeting().map(|greeting| greeting.params.clone()).unwrap_or_default();
            let cwd = conn.cwd.clone().unwrap_or_default();
            (node.start_instance(&agent, &greeting, &cwd).await?, true)
        }
    };
    let params = frame.params().unwrap_or("{}");
    let answer = instance.call(&frame.method, params, node.limits.agent_open_ms).await;
    if is_new {
        node.set_aside(instance, conn);
    }
    answer
}
