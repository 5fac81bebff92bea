//! A child session: announced on its parent, then speaking and asking under its own id.

use serde_json::{Value, json};

use super::questions::Verdict;
use super::session::update_params;
use super::turn::{End, Turn};

impl Turn {
    /// Has a child work on something, ask for permission, and end.
    pub(super) fn subagent(&mut self, title: &str) -> Result<(), End> {
        let fresh = self.fresh("child");
        let child = format!("{}-{}-{fresh}", self.session.id, self.number);
        self.announce(&child, &json!({ "title": title, "state": { "state": "running" }, "capabilities": { "cancel": {} } }));
        self.child_says(&child, &format!("Working on {title}."));
        let tool = json!({ "toolCallId": self.fresh("call"), "title": title, "kind": "other" });
        let said = match self.permit_in(&child, &tool)? {
            Verdict::Allowed { option, .. } => format!("Allowed ({option})."),
            Verdict::Refused(why) => format!("Not allowed ({why})."),
        };
        self.child_says(&child, &said);
        let idle = json!({ "state": "idle", "stopReason": "end_turn" });
        self.announce(&child, &json!({ "state": idle }));
        Ok(())
    }

    fn announce(&self, child: &str, about: &Value) {
        let mut update = json!({ "sessionUpdate": "subagent_update", "sessionId": child });
        if let (Some(update), Some(about)) = (update.as_object_mut(), about.as_object()) {
            update.extend(about.clone());
        }
        self.update(&update);
    }

    /// Under the child's id, and kept in no store: a child ends with its parent's turn.
    fn child_says(&self, child: &str, text: &str) {
        let chunk = json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
        self.agent.out.notify("session/update", &update_params(child, &chunk.to_string()));
    }
}
