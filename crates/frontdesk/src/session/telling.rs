//! What a lane tells of its session, and its last word: a tombstone, or that its journal cannot be
//! opened.

use frontdesk_core::errors::{Code, WireError};
use frontdesk_core::record::{Kind, RECORD_VERSION, Record};
use frontdesk_core::session::{Client, Input};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::lane::Lane;
use super::{LaneMsg, Mailbox};

impl Lane {
    pub(super) fn describe(&self) -> Value {
        let clients: Vec<Value> = self
            .session
            .clients()
            .map(|(client, live, since)| {
                let (key, name) = (&*client.key, &*client.name);
                json!({ "key": key, "name": name, "role": "controller", "live": live, "since": since })
            })
            .collect();
        let named = |client: &Client| json!({ "key": &*client.key, "name": &*client.name });
        let interactions: Vec<Value> = self
            .session
            .open_questions()
            .map(|(id, frame, asked)| {
                let params: Value =
                    frame.params().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
                let asked: Vec<Value> = asked.into_iter().map(named).collect();
                json!({ "id": id, "method": &*frame.method, "title": params["toolCall"]["title"], "options": params["options"], "asked": asked })
            })
            .collect();
        let (lease, view) = (self.session.lease(), self.session.view());
        let native = view.native.as_deref().unwrap_or_default();
        let late = self.doubted.as_ref().map_or(0, |instance| instance.late_for(native));
        json!({
            "lease": lease.phase().word(),
            "epoch": lease.epoch(),
            "place": lease.owner().or(lease.doubt()),
            "lateWrites": self.late_before + lease.late() + late,
            "clients": clients,
            "interactions": interactions,
            "options": self.session.view().options,
            "additionalDirectories": self.session.view().additional_directories,
            "behind": self.node.log.is_behind(self.handle.key()),
        })
    }

    pub(super) fn entomb(&mut self) -> Result<(), String> {
        let view = self.session.view();
        let data = json!({ "agent": view.agent, "nativeId": view.native, "aliases": view.aliases });
        let record = Record {
            v: RECORD_VERSION,
            seq: view.seq + 1,
            epoch: view.epoch,
            at: Timestamp::now(),
            kind: Kind::Deleted,
            src: None,
            data: bytes::Bytes::from(data.to_string()),
        };
        self.node.log.entomb(self.journal.path(), &record).map_err(|error| error.to_string())?;
        self.node.directory.entomb(self.handle.key());
        for conn in self.conns.values() {
            conn.leave(self.handle.key());
        }
        self.entombed = true;
        Ok(())
    }
}

/// The journal cannot be opened: whoever asks for the session is told, for a while.
pub(super) async fn refuse_all(mut rx: Mailbox) {
    rx.close();
    while let Some(message) = rx.recv().await {
        let LaneMsg::Client(conn, input) = *message else { continue };
        let id: Box<str> = match &input {
            Input::Attach(attach) => attach.id.clone(),
            Input::Rejoin(rejoin) => rejoin.id.clone(),
            Input::Prompt { frame, .. } | Input::Forward { frame, .. } => {
                frame.id().unwrap_or("null").into()
            }
            Input::Close { id, .. } => id.clone(),
            _ => continue,
        };
        let error = WireError::new(Code::Storage, "the session's journal could not be opened");
        conn.answer(&id, Err(&error));
    }
}
