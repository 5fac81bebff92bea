//! A client whose connection was gone goes on where it was: its place among the clients, what it was
//! not shown, the answers to its prompts (DESIGN section 8, "The stdio shim"). Nothing is loaded.

use std::sync::Arc;

use bytes::Bytes;

use super::{Attachment, Effect, Mark, Rejoin, Session};
use crate::envelope::{Message, quote};
use crate::errors::{Code, WireError};
use crate::ids::ConnId;

/// A client that goes on and has not been told so.
#[derive(Debug)]
pub(super) struct Rejoining {
    pub(super) id: Box<str>,
    seen: Option<Mark>,
    /// Prompts that were never recorded.
    unknown: Vec<Box<str>>,
    search: Search,
}

/// The search for what became of its prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    /// None, or it is over.
    Done,
    /// `Found` is still to come.
    UnderWay,
    /// So it is, and the client is dismissed behind it.
    ThenDismiss,
}

impl Rejoining {
    /// A client is not dismissed before its prompts have what the journal says of them: whether
    /// that is still to come.
    pub(super) fn puts_dismissal_off(&mut self) -> bool {
        let is_open = self.search != Search::Done;
        if is_open {
            self.search = Search::ThenDismiss;
        }
        is_open
    }

    /// Whether what became of its prompts is still to come.
    pub(super) fn is_looked_up(&self) -> bool {
        self.search != Search::Done
    }

    /// Whether it takes part no more, but for what is still to be found.
    pub(super) fn is_dismissed(&self) -> bool {
        self.search == Search::ThenDismiss
    }
}

impl Session {
    pub(super) fn rejoin(&mut self, rejoin: Rejoin) {
        let Rejoin { client, id, spelling, seen, prompts } = rejoin;
        let (conn, key) = (client.conn, client.key.clone());
        let limit = usize::try_from(self.limits.attachments).unwrap_or(usize::MAX);
        let refused = if self.clients.contains_key(&conn) {
            let text = "this connection takes part in the session already";
            Some(WireError::new(Code::InvalidRequest, text))
        } else if self.clients.len() >= limit {
            let text = format!("{limit} clients are attached to this session already");
            Some(WireError::new(Code::TooMany, text))
        } else {
            None
        };
        if let Some(error) = refused {
            self.tell_error(conn, &id, &error);
            if !self.clients.contains_key(&conn) {
                self.out.push(Effect::Left { conn });
            }
            return;
        }
        let unknown = Vec::new();
        let attachment = Box::new(Attachment {
            client,
            spelling,
            live: false,
            since: self.now.wall,
            // All prompts of this key since then are its own, and it knows them.
            joined: 0,
            reply: None,
            from: Mark::default(),
            rejoin: Some(Box::new(Rejoining { id, seen, unknown, search: Search::Done })),
            waiting: false,
            owed: Vec::new(),
            again: None,
        });
        self.clients.insert(conn, attachment);
        self.out.push(Effect::Joined { conn });
        let lost: Vec<_> =
            prompts.into_iter().filter(|(id, _)| !self.take_back(conn, &key, id)).collect();
        if lost.is_empty() {
            self.show_missed(conn, false);
        } else {
            // Neither runs nor waits: what became of it was recorded before, or it never came.
            let attachment = self.clients.get_mut(&conn);
            if let Some(rejoin) = attachment.and_then(|it| it.rejoin.as_mut()) {
                rejoin.search = Search::UnderWay;
            }
            self.out.push(Effect::Find { conn, key, prompts: lost });
        }
        self.active();
    }

    /// A prompt that runs or waits is answered on this connection from here on.
    fn take_back(&mut self, conn: ConnId, key: &Arc<str>, id: &str) -> bool {
        let mut own = None;
        if let Some(turn) = self.turn.as_mut().filter(|it| it.client == *key && *it.id == *id) {
            own = Some(std::mem::replace(&mut turn.conn, conn));
        }
        if let Some(before) = own {
            for ask in self.asks.values_mut().filter(|ask| ask.only == Some(before)) {
                ask.only = Some(conn);
            }
        } else {
            let mut waiting = self.queue.iter_mut();
            let found = waiting.find(|it| it.client == *key && it.frame.id() == Some(id));
            let Some(queued) = found else { return false };
            queued.conn = conn;
        }
        self.out.push(Effect::TakenBack { conn, id: id.into() });
        true
    }

    pub(super) fn found(&mut self, conn: ConnId, found: Vec<(Box<str>, Option<Bytes>)>) {
        for (id, answer) in found {
            match answer.map(Message::parse) {
                Some(Ok(message)) => self.pass_answer_on(conn, &id, message.frame()),
                Some(Err(_)) => {
                    let error = WireError::new(Code::Internal, "the answer cannot be read back");
                    self.tell_error(conn, &id, &error);
                }
                None => {
                    let attachment = self.clients.get_mut(&conn);
                    if let Some(rejoin) = attachment.and_then(|it| it.rejoin.as_mut()) {
                        rejoin.unknown.push(id);
                    }
                }
            }
        }
        let rejoin = self.clients.get_mut(&conn).and_then(|it| it.rejoin.as_mut());
        let search = rejoin.map(|it| std::mem::replace(&mut it.search, Search::Done));
        self.show_missed(conn, search == Some(Search::ThenDismiss));
    }

    /// Shows what it missed. One that is dismissed leaves behind that.
    fn show_missed(&mut self, conn: ConnId, leaves: bool) {
        let attachment = self.clients.get(&conn).and_then(|it| it.rejoin.as_ref());
        match attachment.map(|rejoin| rejoin.seen) {
            Some(Some(seen)) if seen.part > 0 || seen.seq < self.view.seq => {
                self.catch_up(conn, seen);
                if leaves {
                    self.let_leave(conn, self.view.seq);
                }
            }
            Some(_) if leaves => self.leave(conn),
            Some(_) => self.go_live(conn),
            None => {}
        }
    }

    /// It has been shown what it missed and asked what is open.
    pub(super) fn rejoined(&mut self, conn: ConnId, rejoin: &Rejoining) {
        let asks = self.asks.values().filter(|ask| ask.asked.contains(&conn));
        let passes = self.passes.iter().filter(|(_, pass)| pass.current == conn);
        let hops = asks.map(|ask| &ask.hop).chain(passes.map(|(hop, _)| hop));
        let open: Vec<String> = hops.map(|hop| quote(hop)).collect();
        let result =
            format!(r#"{{"open":[{}],"unknown":[{}]}}"#, open.join(","), rejoin.unknown.join(","),);
        let frame = crate::envelope::Frame::success(&rejoin.id, &result);
        self.answer(conn, &rejoin.id, frame);
    }
}
