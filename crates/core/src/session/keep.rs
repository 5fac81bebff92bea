//! What is kept about a session besides its turns: name, policy, branch, whether it is put aside.
//!
//! Each is a record; the fold makes members of the Session object of them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::made::Rename;
use super::{Effect, Session};
use crate::envelope::Frame;
use crate::fold::{ApprovalMode, Common, Done, Policy, View};
use crate::ids::ConnId;
use crate::names;
use crate::record::{Kind, Record};
use crate::render::Audience;
use crate::workspace::Workspace;

impl Session {
    /// Has the view say what a record says, too.
    pub(super) fn fold(&mut self, record: &Record) {
        let view = Arc::make_mut(&mut self.view);
        let told =
            |view: &View| (Arc::as_ptr(&view.options), view.commands.as_ref().map(Arc::as_ptr));
        let before = told(view);
        view.apply(record);
        self.has_unshared |= told(view) != before;
    }

    /// Whether options or commands came since they were shared last.
    #[must_use]
    pub fn has_unshared(&self) -> bool {
        self.has_unshared
    }

    /// Holds options and commands in one place with other sessions that were told the same.
    pub fn share(&mut self, common: &mut Common) {
        common.share(&mut self.view);
        self.has_unshared = false;
    }

    /// Names a session that has no name after its first prompt: after `earlier`, where it came with
    /// a history, else after the prompt that has just been written (its content blocks, JSON text).
    pub(super) fn allocate_name(&mut self, earlier: Option<&str>, prompt: &str) {
        if self.view.name.is_some() {
            return;
        }
        let name = earlier.and_then(names::of_line).or_else(|| names::of_prompt(prompt));
        if let Some(name) = name {
            self.append_json(Kind::Renamed, &json!({ "name": name, "origin": "automatic" }));
        }
    }

    pub(super) fn rename(&mut self, rename: &Rename) {
        let mut data = json!({ "name": rename.name, "origin": "custom" });
        if let Some(by) = &rename.by {
            data["by"] = json!({ "client": &*by.client, "name": &*by.name });
        }
        if let Some(command) = &rename.command_id {
            data["commandId"] = json!(command);
        }
        self.append_json(Kind::Renamed, &data);
        self.out.push(Effect::Sync);
        self.show_name();
    }

    /// Keeps a command, so that whoever repeats it gets the same answer.
    pub(super) fn command(&mut self, done: &Done) {
        let data = serde_json::to_value(done).unwrap_or(Value::Null);
        self.append_json(Kind::Command, &data);
        self.out.push(Effect::Sync);
    }

    /// Whether a person gave the session its name.
    pub(super) fn is_named(&self) -> bool {
        names::given(&self.view).is_some()
    }

    /// Shows everybody the name that a person gave, as version 1 shows titles.
    pub(super) fn show_name(&mut self) {
        if let Some(frame) = self.name_frame(self.native()) {
            self.show(&Audience::All, &frame);
        }
    }

    /// Shows a client that has just come the name that a person gave.
    pub(super) fn tell_name(&mut self, conn: ConnId) {
        if let Some(frame) = self.name_frame(&self.spelling(conn)) {
            self.tell(conn, frame);
        }
    }

    fn name_frame(&self, session: &str) -> Option<bytes::Bytes> {
        let name = names::given(&self.view)?;
        let update = json!({ "sessionUpdate": "session_info_update", "title": name });
        let params = json!({ "sessionId": session, "update": update });
        Some(Frame::call("session/update", None, &params.to_string()))
    }

    /// The policy that a session begins with: what was asked for, else the configuration's. One
    /// that it has already stays.
    pub(super) fn begin_policy(&mut self, asked: Option<ApprovalMode>) {
        if self.view.policy.is_some() {
            return;
        }
        if let Some(mode) = asked.or(self.facts.approval) {
            self.append_policy(mode, "startup", None);
        }
    }

    pub(super) fn set_policy(&mut self, mode: ApprovalMode, command_id: Option<&str>) {
        self.append_policy(mode, "approvalReconfigure", command_id);
        self.out.push(Effect::Sync);
        self.rule_open_asks();
    }

    fn append_policy(&mut self, mode: ApprovalMode, source: &str, command_id: Option<&str>) {
        let command_id = command_id.map(str::to_owned);
        let policy = Policy { mode, source: source.to_owned(), command_id };
        let data = serde_json::to_value(policy).unwrap_or(Value::Null);
        self.append_json(Kind::Policy, &data);
    }

    /// Puts the session aside or takes it back; what it is already is not written again.
    pub(super) fn archive(&mut self, archived: bool) {
        if self.view.archived != archived {
            self.append_json(Kind::Archived, &json!({ "archived": archived }));
            self.out.push(Effect::Sync);
        }
    }

    /// What git says now; only a change is written. It is no activity.
    pub(super) fn workspace(&mut self, workspace: &Workspace) {
        let known = self.view.worktree.as_ref().map(|worktree| &worktree.path);
        if self.view.branch != workspace.branch || known != workspace.worktree.as_ref() {
            let data = serde_json::to_value(workspace.to_record()).unwrap_or(Value::Null);
            self.append_json(Kind::Branch, &data);
        }
    }
}
