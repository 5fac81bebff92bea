//! History for one client, out of the journal, at the client's pace.
//!
//! Whatever is shown is in the journal first, so reading to its end and then asking the lane to
//! go live leaves no gap and repeats nothing, however slow the client is.

use std::path::PathBuf;
use std::sync::Arc;

use frontdesk_core::ids::Seq;
use frontdesk_core::record::{Kind, Record};
use frontdesk_core::render::{Audience, Renderer, Shown, remark, respell};
use frontdesk_core::session::{Input, Mark};

use super::{LaneHandle, LaneMsg};
use crate::conn::Conn;
use crate::log::{Damage, Reader, in_words};

/// Bytes read from the journal at a time.
const BATCH_BYTES: usize = 256 << 10;

/// What one client is sent.
#[derive(Debug)]
pub(super) struct CatchUp {
    pub(super) conn: Arc<Conn>,
    pub(super) lane: LaneHandle,
    pub(super) path: PathBuf,
    pub(super) native: String,
    pub(super) spelling: Box<str>,
    pub(super) key: Arc<str>,
    pub(super) from: Mark,
    pub(super) own_after: Seq,
}

impl CatchUp {
    /// Sends what the journal has after `from`, then says `CaughtUp`.
    pub(super) async fn run(self) {
        let mut at = self.from.seq;
        match self.send_all(&mut at).await {
            Ok(true) => {
                let input = Input::CaughtUp { conn: self.conn.id, seq: at };
                self.lane.send(LaneMsg::Input(input)).await;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!(path = %self.path.display(), error, "failed to read history");
                // The client must not wait for ever, and must not take this for the whole.
                self.conn.outbox.close();
            }
        }
    }

    async fn send_all(&self, at: &mut Seq) -> Result<bool, String> {
        let path = self.path.clone();
        // A record that was shown in part is read again.
        let from = self.from.seq.saturating_sub(Seq::from(self.from.part > 0));
        let mut reader = blocking(move || {
            let reader = match from {
                0 => Reader::open(&path),
                from => Reader::open_before(&path, from + 1),
            };
            reader.map_err(|error| error.to_string())
        })
        .await?;
        let mut renderer = Renderer::default();
        loop {
            let (back, batch) = blocking(move || {
                let batch = reader.read_batch(BATCH_BYTES).map_err(|error| error.to_string())?;
                Ok((reader, batch))
            })
            .await?;
            reader = back;
            if batch.is_empty() {
                if self.from == Mark::default() {
                    self.tell_damage(reader.damage());
                }
                return Ok(true);
            }
            for record in batch {
                *at = record.seq.max(*at);
                self.show(&mut renderer, &record);
            }
            if !self.conn.outbox.room().await {
                return Ok(false);
            }
        }
    }

    /// Whoever reads a history in which something is missing is told, in place of silence. The
    /// journal is not changed by being read, so this is no record.
    fn tell_damage(&self, damage: &[Damage]) {
        if let Some((count, text)) = in_words(damage) {
            self.conn.send(remark(&self.spelling, &text, &format!(r#""damage":{count}"#)));
        }
    }

    fn show(&self, renderer: &mut Renderer, record: &Record) {
        let mut shown = Vec::new();
        renderer.acp_v1(record, &self.native, &mut shown);
        let count = shown.len();
        for (at, Shown { to, frame }) in shown.into_iter().enumerate() {
            if record.seq == self.from.seq && at < self.from.part as usize {
                continue;
            }
            let mark = Mark::of(record.seq, at, count);
            let own = |sender: &str| *sender == *self.key && record.seq > self.own_after;
            let wanted = match &to {
                Audience::All => true,
                // History shows a client its own prompts too, except those of this very attachment.
                Audience::Others(sender) => !own(sender),
                Audience::Sender(sender) => own(sender) && record.kind == Kind::Update,
            };
            if wanted {
                let frame = respell(&frame, &self.native, &self.spelling);
                self.conn.send_marked(Some((mark, &self.spelling)), frame);
            }
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}
