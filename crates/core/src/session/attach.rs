//! Clients come and go. Replay comes from the journal; a subscriber is registered and its
//! position noted in one step.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Attach, Attachment, Effect, How, Mark, Session};
use crate::envelope::Frame;
use crate::errors::{Code, WireError};
use crate::ids::{ConnId, Seq};
use crate::lease::Phase;

impl Attachment {
    /// Whether it is served from the journal now.
    pub(super) fn is_reading(&self) -> bool {
        !self.live && !self.waiting
    }
}

/// A client that takes no more part once it has read the records up to `upto`.
#[derive(Debug)]
pub(super) struct Leaving {
    attachment: Box<Attachment>,
    upto: Seq,
}

impl Session {
    pub(super) fn attach(&mut self, attach: Attach) {
        let Attach { client, id, how, spelling, params, from } = attach;
        let conn = client.conn;
        if let Some(leaving) = self.leaving.remove(&conn) {
            // It stays after all, and reads on.
            self.clients.insert(conn, leaving.attachment);
        }
        let limit = usize::try_from(self.limits.attachments).unwrap_or(usize::MAX);
        if !self.clients.contains_key(&conn) && self.clients.len() >= limit {
            let text = format!("{limit} clients are attached to this session already");
            self.tell_error(conn, &id, &WireError::new(Code::TooMany, text));
            self.out.push(Effect::Left { conn });
            return;
        }
        if self.clients.get(&conn).is_some_and(|attachment| attachment.reply.is_some()) {
            let text = "a load or resume of this session is open already on this connection";
            return self.tell_error(conn, &id, &WireError::new(Code::InvalidRequest, text));
        }
        if let Some(reading) = self.clients.get_mut(&conn).filter(|it| it.is_reading()) {
            // Two readings at once would show everything twice.
            let attach = Attach { client, id, how, spelling, params, from };
            return match reading.again.replace(Box::new(attach)) {
                None => {}
                Some(earlier) => {
                    let text = "a later load or resume of this session took its place";
                    let error = WireError::new(Code::InvalidRequest, text);
                    self.tell_error(conn, &earlier.id, &error);
                }
            };
        }
        if self.is_history() && self.phase().is_cold() {
            self.attach_to_history(client, id, how, spelling, from);
            return;
        }
        let attachment = Box::new(Attachment {
            client,
            spelling,
            live: false,
            since: self.now.wall,
            joined: self.view.seq,
            reply: Some((id, how)),
            from,
            rejoin: None,
            waiting: self.phase() != Phase::Live,
            owed: Vec::new(),
            again: None,
        });
        self.clients.insert(conn, attachment);
        self.out.push(Effect::Joined { conn });
        if self.phase() == Phase::Live {
            self.admit(conn);
        } else {
            self.call_back(Some(conn), how, Some(params));
        }
        self.active();
    }

    /// A session that its agent cannot continue: load shows what we have, resume says what is lost.
    fn attach_to_history(
        &mut self,
        client: super::Client,
        id: Box<str>,
        how: How,
        spelling: Box<str>,
        from: Mark,
    ) {
        let conn = client.conn;
        if how == How::Resume || self.view.items == 0 {
            let error = self.lost_error(&spelling);
            self.tell_error(conn, &id, &error);
            self.out.push(Effect::Left { conn });
            return;
        }
        let (joined, reply) = (self.view.seq, Some((id, how)));
        let attachment = Box::new(Attachment {
            client,
            spelling,
            live: false,
            since: self.now.wall,
            joined,
            reply,
            from,
            rejoin: None,
            waiting: false,
            owed: Vec::new(),
            again: None,
        });
        self.clients.insert(conn, attachment);
        self.out.push(Effect::Joined { conn });
        self.admit(conn);
    }

    /// Lets a client in: history first for a load, the answer at once for a resume.
    pub(super) fn admit(&mut self, conn: ConnId) {
        let Some(attachment) = self.clients.get_mut(&conn) else { return };
        attachment.waiting = false;
        match attachment.reply {
            Some((_, How::Load)) => {
                let from = attachment.from;
                self.catch_up(conn, from);
            }
            Some((_, How::Resume)) | None => self.go_live(conn),
        }
    }

    pub(super) fn catch_up(&mut self, conn: ConnId, from: Mark) {
        let Some(attachment) = self.clients.get_mut(&conn) else { return };
        attachment.live = false;
        self.out.push(Effect::CatchUp {
            conn,
            key: attachment.client.key.clone(),
            spelling: attachment.spelling.clone(),
            from,
            own_after: attachment.joined,
        });
    }

    pub(super) fn caught_up(&mut self, conn: ConnId, seq: Seq) {
        match self.clients.get(&conn) {
            Some(attachment) if attachment.live || attachment.waiting => {}
            Some(_) if seq < self.view.seq => self.catch_up(conn, Mark::whole(seq)),
            Some(_) => self.go_live(conn),
            None => self.read_before_leaving(conn, seq),
        }
    }

    /// One that takes no more part has read so far.
    fn read_before_leaving(&mut self, conn: ConnId, seq: Seq) {
        let Some(Leaving { attachment, upto }) = self.leaving.remove(&conn) else { return };
        self.clients.insert(conn, attachment);
        if seq < upto {
            self.catch_up(conn, Mark::whole(seq));
            self.let_leave(conn, upto);
        } else {
            self.leave(conn);
        }
    }

    pub(super) fn lagging(&mut self, conn: ConnId) {
        if self.clients.get(&conn).is_some_and(|attachment| attachment.live) {
            let seq = self.view.seq;
            self.catch_up(conn, Mark::whole(seq));
        }
    }

    pub(super) fn go_live(&mut self, conn: ConnId) {
        let meta = self.attach_meta(conn);
        let mut result = (*self.view.options).clone();
        result.insert("_meta".into(), json!({ "frontdesk": meta }));
        let result = Value::Object(result).to_string();
        let commands = self.view.commands.clone();
        let Some(attachment) = self.clients.get_mut(&conn) else { return };
        attachment.live = true;
        let (owed, again) = (std::mem::take(&mut attachment.owed), attachment.again.take());
        let rejoin = attachment.rejoin.take();
        let spelling = attachment.spelling.clone();
        if let Some((id, how)) = attachment.reply.take() {
            let frame = Frame::success(&id, &result);
            let mark = Some(Mark::whole(self.view.seq));
            self.out.push(Effect::Answer { conn, id, frame, mark });
            if let (How::Resume, Some(commands)) = (how, commands) {
                let frame = Bytes::copy_from_slice(commands.as_bytes());
                let frame = crate::render::respell(&frame, "", &spelling);
                self.tell(conn, frame);
            }
        }
        for (id, frame) in owed {
            self.answer(conn, &id, frame);
        }
        self.tell_name(conn);
        if rejoin.is_none() {
            self.tell_running_turn(conn);
        }
        self.offer_open_asks(conn);
        self.offer_waiting_passes(conn);
        if let Some(rejoin) = rejoin {
            self.rejoined(conn, &rejoin);
        }
        if let Some(again) = again {
            self.take(super::Input::Attach(*again));
        }
    }

    fn attach_meta(&self, conn: ConnId) -> Value {
        let mut meta = json!({ "agent": self.view.agent, "clients": self.clients.len() });
        if let Some(state) = self.state() {
            meta["state"] = json!(state);
        }
        if self.clients.len() > 1 && self.clients.contains_key(&conn) {
            meta["joined"] = json!(true);
        }
        if self.view.resumable == Some(false) {
            meta["resumable"] = json!(false);
        }
        meta
    }

    /// A client takes no more part; a load or resume of its that is still open is answered. One whose
    /// prompts are being looked up goes when they have been found.
    pub(super) fn dismiss(&mut self, conn: ConnId) {
        let rejoin = self.clients.get_mut(&conn).and_then(|attachment| attachment.rejoin.as_mut());
        if rejoin.is_some_and(|rejoin| rejoin.puts_dismissal_off()) {
            return;
        }
        self.leave(conn);
    }

    /// The session is closed: a client takes no more part. One that still reads what was said before
    /// is shown that first, unless it asked for the close itself.
    pub(super) fn dismiss_behind(&mut self, conn: ConnId) {
        let reads = |it: &Attachment| it.is_reading() && it.reply.is_none();
        let is_looked_up = |it: &Attachment| it.rejoin.as_ref().is_some_and(|it| it.is_looked_up());
        match self.clients.get(&conn) {
            Some(it) if reads(it) && !is_looked_up(it) => self.let_leave(conn, self.view.seq),
            _ => self.dismiss(conn),
        }
    }

    /// A client that is reading leaves when it has read the records up to `upto`.
    pub(super) fn let_leave(&mut self, conn: ConnId, upto: Seq) {
        if let Some(attachment) = self.clients.remove(&conn) {
            self.leaving.insert(conn, Leaving { attachment, upto });
            self.active();
        }
    }

    /// What a client still waits for is answered, and it is gone.
    pub(super) fn leave(&mut self, conn: ConnId) {
        let open = self.clients.get_mut(&conn).and_then(|attachment| attachment.reply.take());
        if let Some((id, _)) = open {
            let text = "the session was closed before this was answered";
            self.tell_error(conn, &id, &WireError::new(Code::InstanceEnded, text));
        }
        let rejoin = self.clients.get_mut(&conn).and_then(|attachment| attachment.rejoin.take());
        if let Some(rejoin) = rejoin {
            // It answers those prompts that never ran, and no others.
            let mut error = WireError::not_found(&self.spelling(conn));
            error.message =
                "Resource not found: the session was closed; load or resume it first".into();
            self.tell_error(conn, &rejoin.id, &error);
        }
        for forward in self.take_forwards(conn) {
            let text = "the session was closed before the agent answered";
            self.tell_error(conn, &forward.id, &WireError::new(Code::InstanceEnded, text));
        }
        self.detach(conn);
        self.out.push(Effect::Left { conn });
    }

    fn take_forwards(&mut self, conn: ConnId) -> Vec<super::turns::Forward> {
        let (own, others) = std::mem::take(&mut self.forwards)
            .into_iter()
            .partition(|(_, forward)| forward.conn == conn);
        self.forwards = others;
        let own: std::collections::BTreeMap<_, _> = own;
        own.into_values().collect()
    }

    pub(super) fn detach(&mut self, conn: ConnId) {
        let Some(attachment) = self.clients.remove(&conn) else { return };
        for (id, frame) in attachment.owed {
            self.out.push(Effect::Answer { conn, id, frame, mark: None });
        }
        if let Some(again) = attachment.again {
            let text = "the session was closed before this was answered";
            self.tell_error(conn, &again.id, &WireError::new(Code::InstanceEnded, text));
        }
        self.closers.retain(|(closer, _)| *closer != conn);
        self.forwards.retain(|_, forward| forward.conn != conn);
        self.terminals.retain(|_, owner| *owner != conn);
        self.passes_lost_client(conn);
        self.active();
    }
}
