//! The history of a fork: read from its parent's journal, piece by piece, before anybody is told of
//! the fork. The parent's journal is only read.

use std::path::PathBuf;

use bytes::Bytes;
use frontdesk_core::copy::Copier;
use frontdesk_core::ids::Seq;
use frontdesk_core::record::Kind;
use frontdesk_core::session::Input;

use super::lane::Lane;
use crate::log::{LogError, Reader};

/// Bytes read from the parent's journal at a time.
const BATCH_BYTES: usize = 1 << 20;

/// What a fork begins with.
#[derive(Debug)]
pub struct Copy {
    /// The parent's journal.
    pub path: PathBuf,
    /// The agent's id of the parent.
    pub parent: String,
    /// The agent's id of the fork.
    pub fork: String,
    /// The last record that is copied.
    pub upto: Seq,
}

/// A parent that is being read.
struct Source {
    reader: Reader,
    copier: Copier,
    upto: Seq,
}

impl Lane {
    /// Writes the parent's history into the fork's journal. What cannot be read is said in its
    /// place: the fork is there at the agent, whatever becomes of the copy.
    pub(super) async fn copy(&mut self, copy: Copy) {
        if let Err(error) = self.copy_all(copy).await {
            tracing::error!(session = %self.handle.key(), %error, "failed to copy the history of a fork");
            let text = "the history before this fork could not be copied; it is in the session it was forked from";
            let data = serde_json::json!({ "text": text, "shown": true }).to_string();
            let input = Input::Record { kind: Kind::Note, data };
            self.handle_now(input).await;
        }
    }

    async fn copy_all(&mut self, copy: Copy) -> Result<(), LogError> {
        let mut source = blocking(move || {
            let reader = Reader::open(&copy.path)?;
            let copier = Copier::new(&copy.parent, &copy.fork);
            Ok(Source { reader, copier, upto: copy.upto })
        })
        .await?;
        loop {
            let (back, items, more) = blocking(move || {
                let (items, more) = source.next()?;
                Ok((source, items, more))
            })
            .await?;
            source = back;
            if !items.is_empty() {
                self.handle_now(Input::Copied { items }).await;
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Gives the machine one input and carries out what follows; `false` if records are not safe and
    /// never will be.
    pub(super) async fn handle_now(&mut self, input: Input) -> bool {
        let effects = self.session.handle(input, self.node.now());
        self.carry_out(effects).await
    }
}

impl Source {
    /// The next pieces, and whether there may be more.
    fn next(&mut self) -> Result<(Vec<Bytes>, bool), LogError> {
        let batch = self.reader.read_batch(BATCH_BYTES)?;
        let more = batch.last().is_some_and(|record| record.seq < self.upto);
        let mut items = Vec::new();
        for record in batch.iter().filter(|record| record.seq <= self.upto) {
            self.copier.take(record, &mut items);
        }
        Ok((items, more))
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LogError> + Send + 'static,
) -> Result<T, LogError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| LogError::Closed)?
}
