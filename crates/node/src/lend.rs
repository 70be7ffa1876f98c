//! Loans: pages that another node has of a prompt come here before it is prefilled, so that only the rest is computed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tandem_engine::Token;
use tandem_identity::PeerId;
use tandem_kv::page::page_start;
use tandem_kv::receiver::{Covers, Expectation};
use tandem_proto::{HandoffTerms, Ticket};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::api::Node;
use crate::conversation::seed;
use crate::held::{Keep, Pieces};
use crate::job::{Command, Computed, JobId};
use crate::model::Model;
use crate::send::Input;
use crate::tickets::{Permitted, Target, Until, handoff_id};

/// The requests that wait for a loan, by id.
#[derive(Debug, Default)]
pub struct Borrowers(Mutex<HashMap<String, Arc<Notify>>>);

impl Borrowers {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.all().len()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing (more) will come for a request; false if it does not wait for anything.
    pub fn fail(&self, request: &str) -> bool {
        let all = self.all();
        let waiting = all.get(request);
        waiting.inspect(|waiting| waiting.notify_one()).is_some()
    }
}

/// Who may lend: one machine, or without TLS, where nobody is known, whoever has the ticket.
#[derive(Debug, Clone)]
pub struct Lender(pub Option<PeerId>);

/// Whose prompt it is.
pub struct Borrower<'a> {
    /// Id of the request.
    pub request: &'a str,
    /// All tokens of the prompt.
    pub tokens: &'a [Token],
    /// How it is handed over.
    pub terms: &'a HandoffTerms,
}

/// A prompt that waits for pages of another node.
pub struct Loan {
    node: Arc<Node>,
    model: Arc<Model>,
    keep: Keep,
    prompt: Vec<Token>,
    request: String,
    secret: String,
    has_failed: Arc<Notify>,
    /// Dropped when nothing more is wanted.
    wanted: Option<watch::Sender<()>>,
    /// Closed when nothing more comes.
    over: mpsc::Receiver<Infallible>,
}

impl Loan {
    /// Permits another node to send what it has of a prompt; `None` if there is no such node, or all complete pages of the
    /// prompt are here.
    #[must_use]
    pub fn ask(
        node: &Arc<Node>,
        model: &Arc<Model>,
        keep: &Keep,
        lender: Option<Lender>,
        borrower: Borrower<'_>,
    ) -> Option<(Self, Ticket)> {
        let Lender(peer) = lender?;
        let Borrower {
            request,
            tokens,
            terms,
        } = borrower;
        let prompt = &tokens[..tokens.len().saturating_sub(1)];
        let kv_end = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        if keep.usable(prompt) >= page_start(kv_end) {
            return None;
        }
        let (wanted, unwanted) = watch::channel(());
        let (lives, over) = mpsc::channel(1);
        let handoff = handoff_id(0);
        let permitted = Permitted {
            request: request.to_owned(),
            target: Target::Pages,
            expectation: Expectation {
                contract: Arc::clone(&model.contract),
                handoff,
                tokens: tokens.to_vec(),
                kv_end,
                covers: Covers::Beginning,
                quality: terms.handing_back().quality,
                mixed_quantisation: false,
            },
            // Good when all of it has come, or as much as will.
            keep: keep.behind_all().in_doubt(),
            peer,
            until: Until::Request(unwanted),
            hand_back: Arc::default(),
            place: None,
            loan: Some(lives),
        };
        let secret = node.tickets.issue(permitted, node.config.limits.loan);
        let has_failed = Arc::new(Notify::new());
        let waiting = Arc::clone(&has_failed);
        node.borrowers.all().insert(request.to_owned(), waiting);
        let ticket = Ticket {
            secret: secret.clone(),
            handoff,
            ip: node.handoff_ip,
            port: node.return_port,
        };
        let loan = Self {
            node: Arc::clone(node),
            model: Arc::clone(model),
            keep: keep.clone(),
            prompt: prompt.to_vec(),
            request: request.to_owned(),
            secret,
            has_failed,
            wanted: Some(wanted),
            over,
        };
        Some((loan, ticket))
    }

    /// Waits for the pages, and puts them and those of this node into the sequence of a job. `gone` completes when nobody
    /// waits for the job any more.
    pub async fn seed(
        mut self,
        job: JobId,
        forward: Option<mpsc::Sender<Input>>,
        gone: impl Future<Output = ()>,
    ) {
        let patience = self.patience();
        tokio::select! {
            _ = self.over.recv() => {}
            () = self.has_failed.notified() => {}
            () = gone => {}
            () = sleep(patience) => {}
        }
        self.end();
        // What has come until now is good then.
        let limits = self.node.config.limits;
        let _ = timeout(limits.connect, self.over.recv()).await;
        match self.keep.pieces(&self.prompt, limits.page_read) {
            Some(pieces) => seed(Arc::clone(&self.model), job, pieces, forward).await,
            None => {
                // The sender must not wait for this end of the channel.
                drop(forward);
                self.model.deliver(Command::Seeded(job, true)).await;
            }
        }
    }

    fn patience(&self) -> Duration {
        let usable = self.keep.usable(&self.prompt) as usize;
        let lacks = self.prompt.len().saturating_sub(usable);
        patience(self.node.config.limits.loan, self.model.prefill_time(lacks))
    }

    /// Nothing more is wanted.
    fn end(&mut self) {
        self.wanted = None;
        self.node.tickets.revoke(&self.secret);
        let mut all = self.node.borrowers.all();
        let is_own = |waiting: &Arc<Notify>| Arc::ptr_eq(waiting, &self.has_failed);
        if all.get(&self.request).is_some_and(is_own) {
            all.remove(&self.request);
        }
    }
}

/// How long a loan is waited for: no longer than this node would need alone, as far as that is known, so that it takes at
/// most twice as long; but long enough to open connections.
fn patience(most: Duration, alone: Option<Duration>) -> Duration {
    alone.map_or(most, |time| time.clamp(most / 10, most))
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads pages to be sent, the end of which is in the last chunk. Nothing behind pages that turn out to be wrong is sent.
pub async fn read(keep: Keep, mut pieces: Pieces, chunks: mpsc::Sender<Input>) {
    let end = pieces.tokens();
    loop {
        let blocks = match pieces.next().await {
            Ok(blocks) => blocks,
            Err(reason) => {
                tracing::warn!(%reason, "pages cannot be read; they are not lent");
                return;
            }
        };
        let last = blocks.is_empty();
        let chunk = Computed {
            tokens: blocks.last().map_or(end, |block| block.tokens.end),
            blocks: blocks.into_iter().map(Arc::new).collect(),
            window: None,
            computed: std::time::Instant::now(),
            prefill_ms: 0.0,
            computed_tokens: 0,
            last,
            receipt_follows: false,
        };
        let is_taken = !keep.is_discredited() && chunks.send(Input::Chunk(chunk)).await.is_ok();
        if last || !is_taken {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_is_waited_for_as_long_as_it_may_save() {
        let seconds = Duration::from_secs;
        for (alone, expected) in [
            (None, 20),
            (Some(0), 2),
            (Some(2), 2),
            (Some(3), 3),
            (Some(20), 20),
            (Some(21), 20),
        ] {
            let waits = patience(seconds(20), alone.map(seconds));
            assert_eq!(waits, seconds(expected), "{alone:?}");
        }
    }
}
