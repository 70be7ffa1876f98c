//! The owner of a handoff: applies blocks, answers, and waits for another connection after a break.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tandem_cluster::WriteHalf;
use tandem_handoff::codec::Codec;
use tandem_handoff::frame::{Header, Kind, encode_frame};
use tandem_handoff::message::{Hello, RefusalCode, Refuse, abort_frame};
use tandem_handoff::receiver::{Arrived, Receiver, Step, Terms};
use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{sleep, sleep_until, timeout, timeout_at};

use super::reader::{self, Reader, StepOf};
use super::{last_words, lock, say, tokens_of};
use crate::handoffs::{Arrival, Greeted, Secrets};
use crate::limits::{GOODBYE, Limits, MAX_RECONNECTS};
use crate::model::ApplyOrder;
use crate::prefix_cache::keep_block;
use crate::prefix_cache::{Pieces, Tail};
use crate::sequence::{Carried, HandedOver, Lost, Told};
use crate::tickets::{Permitted, Target};
use crate::transfer::wire::{WireError, write_frame};

/// A block on its way into the engine.
type Applying = std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// The open connection of the handoff.
pub(super) struct Connection {
    pub(super) write: WriteHalf,
    pub(super) reader: tokio::task::JoinHandle<()>,
    pub(super) generation: u32,
    /// When this end last showed that it is alive, whatever else it does.
    pub(super) beaten: tokio::time::Instant,
}

pub(super) struct Pump {
    pub(super) permitted: Permitted,
    /// Tokens `[0, kv_end)`.
    pub(super) tokens: Arc<[u32]>,
    pub(super) kv_end: u32,
    /// End of the tokens that were there before.
    pub(super) had: u32,
    pub(super) limits: Limits,
    pub(super) receiver: Option<Arc<Mutex<Receiver>>>,
    pub(super) connection: Option<Connection>,
    pub(super) secrets: Secrets,
    pub(super) connections: mpsc::Receiver<Arrival>,
    pub(super) steps: mpsc::Sender<StepOf>,
    pub(super) taken: mpsc::Receiver<StepOf>,
    /// Of the blocks on their way into the engine.
    pub(super) turn: Arc<ApplyOrder>,
    pub(super) applying: FuturesOrdered<Applying>,
    /// When the last connection broke, and why.
    pub(super) broken: Option<(Instant, String)>,
    pub(super) place: Option<OwnedSemaphorePermit>,
    pub(super) staging: Option<OwnedSemaphorePermit>,
    /// For which it has memory.
    pub(super) credit_bytes: u64,
    pub(super) handed: HandedOver,
    /// True once a receipt has come, or if none will.
    pub(super) receipt: bool,
    pub(super) committed: bool,
    pub(super) from: SocketAddr,
    /// True if pages have names that both ends agree on.
    pub(super) names_pages: bool,
    /// The blocks since the last page boundary.
    pub(super) tail: Tail,
    /// Those who make pages of blocks at once: all blocks of a step come at nearly the same time.
    pub(super) keepers: Arc<Semaphore>,
    /// When the commit was read.
    pub(super) all_sent: Option<Instant>,
}

/// Works before the answer to a hello, and shows the sender meanwhile that this end is alive. Fails when it has gone;
/// then the work is dropped.
async fn beating<T>(
    write: &mut WriteHalf,
    handoff: u64,
    limits: Limits,
    work: impl Future<Output = T>,
) -> Result<T, WireError> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            () = sleep(limits.handoff_beat) => {}
        }
        let beat = encode_frame(Header::control(Kind::Beat, handoff, 0), &[]);
        write_frame(write, &beat, limits.handoff_silence).await?;
    }
}

/// A page of this node, whose rows may have come in a lossy codec.
const fn of_page(codec: Option<Codec>) -> Carried {
    Carried {
        codec,
        wire_bytes: 0,
    }
}

/// Why the owner of a handoff stops.
pub(super) enum Fault {
    /// The connection; another one may come.
    Broken(String),
    /// The handoff.
    Over(String),
}

impl Pump {
    /// Works until the end, which also comes when nobody waits for the KV any more.
    pub(super) async fn run(&mut self, first: Greeted) -> Result<(), Lost> {
        let permitted = self.permitted.clone();
        let mut result = tokio::select! {
            result = self.work(first) => result,
            () = permitted.ended() => Err("the request has ended".into()),
        };
        if let Err(lost) = &mut result {
            lost.is_wrong = self.is_discredited();
            if lost.is_wrong {
                self.judge(lost).await;
            }
        }
        match result {
            // What was confirmed has not failed.
            Err(Lost { reason, .. }) if self.is_committed() => {
                tracing::debug!(%reason, "a handoff ended behind its confirmation");
                Ok(())
            }
            result => result,
        }
    }

    async fn work(&mut self, first: Greeted) -> Result<(), Lost> {
        let mut last = self.start(first).await;
        loop {
            match last {
                Ok(()) if self.done() => return Ok(()),
                Ok(()) => {}
                Err(Fault::Over(reason)) => return Err(self.over(reason).await),
                Err(Fault::Broken(reason)) => self.break_off(reason).await?,
            }
            last = self.step().await;
        }
    }

    /// Ends the handoff, and takes in the blocks that were whole before: they need not be computed.
    async fn over(&mut self, reason: String) -> Lost {
        if !self.is_discredited() {
            // The sender need not wait for the engine to hear it.
            self.leave(Some(&reason)).await;
            self.apply_blocks();
            while let Some(Ok(())) = self.applying.next().await {}
        }
        reason.into()
    }

    /// Forgets the pages of a handoff that has brought what was not sent.
    async fn judge(&mut self, lost: &Lost) {
        // Before the sender hears it, whose coordinator would say less: the first news counts.
        self.permitted.failed(lost.clone()).await;
        // What is being kept is there then.
        while self.applying.next().await.is_some() {}
        // A prompt's own pages are not those of an answer behind it.
        let exact = match &self.permitted.target {
            Target::Pages { .. } => self.had,
            Target::Sequence { .. } => 0,
        };
        let forgotten = self.permitted.keep.forget(&self.tokens, exact);
        tracing::warn!(reason = %lost.reason, forgotten, "what came is not used");
    }

    /// True if what came is not what was sent, and nobody has decoded from it.
    fn is_discredited(&self) -> bool {
        let receiver = self.receiver.as_ref().filter(|_| !self.committed);
        receiver.is_some_and(|r| lock(r).discredited().is_some())
    }

    /// True once the sender has been told over its last connection, and no receipt is missing.
    fn done(&self) -> bool {
        self.receipt && self.receiver.as_ref().is_some_and(|r| lock(r).confirmed())
    }

    fn is_over(&self) -> bool {
        self.receiver
            .as_ref()
            .is_none_or(|r| lock(r).over().is_some())
    }

    /// Why the handoff is over: the first reason, which may be noticed after the connection broke.
    fn why(&self, told: String) -> String {
        let receiver = self.receiver.as_ref().map(|r| lock(r));
        let first = receiver.and_then(|r| r.over().map(str::to_owned));
        first.unwrap_or(told)
    }

    /// True if the request has all of its KV, and no rule was broken behind the commit.
    pub(super) fn is_committed(&self) -> bool {
        self.committed && !self.is_over()
    }

    /// Puts held pages into place, and says what must still be sent.
    async fn start(&mut self, mut first: Greeted) -> Result<(), Fault> {
        let (handoff, limits) = (self.permitted.expectation.handoff, self.limits);
        let beginning = async {
            match &self.permitted.target {
                Target::Pages { .. } => Ok(self.permitted.keep.held(&self.tokens).tokens),
                Target::Sequence { .. } => self.seed().await,
            }
        };
        let beginning = beating(&mut first.write, handoff, limits, beginning).await;
        // Who has not been answered cannot come again.
        let have = beginning.map_err(|e| Fault::Over(e.to_string()))??;
        self.had = have;
        let terms = self.terms(have, None);
        let (receiver, accept) =
            Receiver::accept(&self.permitted.expectation, self.kv_end, have, &terms)
                .map_err(|e| Fault::Over(e.to_string()))?;
        self.receiver = Some(Arc::new(Mutex::new(receiver)));
        self.open(first, accept).await
    }

    /// Begins with rows that other sequences have, then with pages of this node; gives the end of the tokens that are there
    /// then.
    async fn seed(&mut self) -> Result<u32, Fault> {
        // The engine may be in the middle of a step.
        let mut have = match self.permitted.keep.shares() {
            true => self.permitted.begin().await,
            false => 0,
        };
        let Some(pinned) = self.permitted.keep.pin(&self.tokens) else {
            return Ok(have);
        };
        let mut pieces = Pieces::pages(pinned, have..self.kv_end, self.limits.page_read);
        loop {
            let blocks = match pieces.next().await {
                Ok(blocks) => blocks,
                Err(reason) => {
                    tracing::warn!(%reason, "pages cannot be read; they are sent again");
                    return Ok(have);
                }
            };
            if blocks.is_empty() {
                return Ok(have);
            }
            for block in blocks {
                let (end, codec) = (block.tokens.end, pieces.codec(&block));
                // Known before, should the handoff end meanwhile.
                self.permitted.cached(end).await;
                let applied = self
                    .permitted
                    .target
                    .apply(&self.turn, Arc::new(block), of_page(codec))
                    .await;
                applied.map_err(Fault::Over)?;
                have = end;
            }
        }
    }

    /// `said` is the session that the sender has named.
    fn terms(&mut self, have: u32, said: Option<&str>) -> Terms {
        let session = self.secrets.renew(said);
        let tokens = &self.tokens[..(have as usize).min(self.tokens.len())];
        let have_page = self
            .names_pages
            .then(|| self.permitted.keep.last_page(tokens))
            .flatten();
        Terms {
            session,
            credit_bytes: self.credit_bytes,
            have_page,
        }
    }

    /// Starts to read from a connection after its answer has been written.
    async fn open(&mut self, greeted: Greeted, accept: Vec<u8>) -> Result<(), Fault> {
        let Some(receiver) = self.receiver.clone() else {
            return Err(Fault::Over("not started".into()));
        };
        let inbound = lock(&receiver).inbound();
        let Greeted { read, write } = greeted;
        let reader = Reader::new(read, inbound, receiver, self.steps.clone(), self.limits);
        let generation = reader.generation();
        self.connection = Some(Connection {
            write,
            reader: tokio::spawn(reader.run()),
            generation,
            beaten: tokio::time::Instant::now(),
        });
        self.broken = None;
        self.say(&accept).await
    }

    async fn say(&mut self, frame: &[u8]) -> Result<(), Fault> {
        let silence = self.limits.handoff_silence;
        let Some(c) = &mut self.connection else {
            return Ok(());
        };
        write_frame(&mut c.write, frame, silence)
            .await
            .map_err(|e| Fault::Broken(e.to_string()))
    }

    /// Waits for one thing to happen and deals with it.
    async fn step(&mut self) -> Result<(), Fault> {
        self.finish().await?;
        if self.done() {
            return Ok(());
        }
        let waiting_for = self.broken.as_ref().map_or(Duration::MAX, |(since, _)| {
            self.limits.resume.saturating_sub(since.elapsed())
        });
        let now = tokio::time::Instant::now();
        let beaten = self.connection.as_ref().map_or(now, |c| c.beaten);
        let beat_at = beaten + self.limits.handoff_beat;
        tokio::select! {
            applied = self.applying.next(), if !self.applying.is_empty() => {
                let Some(result) = applied else { return Ok(()) };
                result.map_err(Fault::Over)?;
                self.applied().await
            }
            step = self.taken.recv() => match step {
                Some(step) => self.took(step).await,
                None => Ok(()),
            },
            arrival = self.connections.recv() => match arrival {
                Some(Arrival { greeted, hello }) => self.again(greeted, &hello).await,
                None => Ok(()),
            },
            // The sender would take a long step of the engine, or a slow link, for silence.
            () = sleep_until(beat_at), if self.connection.is_some() => {
                if let Some(connection) = &mut self.connection {
                    connection.beaten = tokio::time::Instant::now();
                }
                let beat = self.receiver.as_ref().and_then(|r| lock(r).beat());
                match beat {
                    Some(beat) => self.say(&beat).await,
                    None => Ok(()),
                }
            }
            () = sleep(waiting_for), if self.broken.is_some() => {
                let reason = self.broken.as_ref().map(|(_, r)| r.clone());
                Err(Fault::Over(reason.unwrap_or_default()))
            }
        }
    }

    /// Confirms once everything has been applied.
    async fn finish(&mut self) -> Result<(), Fault> {
        let since_commit = self.all_sent.map_or(Duration::ZERO, |at| at.elapsed());
        let receiver = self.receiver.as_ref();
        let frame = receiver.and_then(|r| lock(r).finish(since_commit));
        let Some(frame) = frame else { return Ok(()) };
        if !self.committed {
            self.committed = true;
            if let Some(receiver) = &self.receiver {
                let receiver = lock(receiver);
                self.handed.raw_bytes = receiver.raw_bytes();
                self.handed.wire_bytes = receiver.wire_bytes();
            }
            self.permitted.committed(self.handed).await;
            // Nothing more will be staged.
            self.staging = None;
        }
        self.say(&frame).await
    }

    async fn applied(&mut self) -> Result<(), Fault> {
        let Some(receiver) = self.receiver.clone() else {
            return Ok(());
        };
        let ack = lock(&receiver).applied();
        match ack {
            Some(ack) => self.say(&ack).await,
            None => Ok(()),
        }
    }

    /// Acknowledges what has come of the window: this end keeps it, whatever becomes of the connection.
    async fn acknowledge(&mut self) -> Result<(), Fault> {
        while let Some(ack) = self.receiver.as_ref().and_then(|r| lock(r).ack_window()) {
            self.say(&ack).await?;
        }
        Ok(())
    }

    async fn took(&mut self, step: StepOf) -> Result<(), Fault> {
        let current = self.connection.as_ref().map(|c| c.generation);
        if current != Some(step.generation) {
            return Ok(());
        }
        if step.result.is_ok() {
            self.secrets.heard();
        }
        match step.result {
            Ok(Step::Wait) => Ok(()),
            Ok(Step::Commit) => {
                self.all_sent = Some(Instant::now());
                Ok(())
            }
            Ok(Step::Block) => {
                self.apply_blocks();
                self.acknowledge().await
            }
            Ok(Step::Receipt(receipt)) => {
                self.receipt = true;
                let from = self.from.ip();
                let told = Told::Receipt(Box::new(receipt));
                self.permitted.told(told, from).await;
                Ok(())
            }
            // After the commit the sender may leave without a receipt.
            Err(reader::Fault::Wire(WireError::Closed)) if self.committed => {
                Err(Fault::Broken("the sender left".into()))
            }
            Err(fault) if fault.is_lasting() => Err(Fault::Over(self.why(fault.to_string()))),
            Err(fault) => Err(Fault::Broken(fault.to_string())),
        }
    }

    fn apply_blocks(&mut self) {
        let Some(receiver) = self.receiver.clone() else {
            return;
        };
        loop {
            let next = lock(&receiver).next_block();
            let Some(arrived) = next else {
                return;
            };
            let Arrived {
                block,
                codec,
                wire_bytes,
            } = arrived;
            let carried = Carried {
                codec: Some(codec),
                wire_bytes,
            };
            let block = Arc::new(block);
            let permitted = self.permitted.clone();
            let tokens = Arc::clone(&self.tokens);
            // What is not kept is not held on to, so that its memory is free again.
            let before = if permitted.keep.keeps() {
                self.tail.then(&block, codec)
            } else {
                Tail::default()
            };
            let (turn, keepers) = (Arc::clone(&self.turn), Arc::clone(&self.keepers));
            self.applying.push_back(Box::pin(async move {
                let applying = permitted.target.apply(&turn, Arc::clone(&block), carried);
                let keeping = async {
                    // It is never closed.
                    let _one = keepers.acquire().await;
                    keep_block(&permitted.keep, &tokens, &block, codec, before).await;
                };
                let (applied, ()) = tokio::join!(applying, keeping);
                applied
            }));
        }
    }

    /// A new connection in the place of the last one, which may not have noticed that it is broken.
    async fn again(&mut self, mut greeted: Greeted, hello: &Hello) -> Result<(), Fault> {
        // It may have waited here while the handoff went on without it.
        if !self.secrets.good().is_session(&hello.ticket) {
            return Ok(());
        }
        self.close().await;
        if let Err(refusal) = self.check_again(hello) {
            say(
                &mut greeted.write,
                self.permitted.expectation.handoff,
                &refusal,
            )
            .await;
            return Err(Fault::Over(refusal.message));
        }
        // What was given out is applied first: it will not be sent again.
        let (handoff, limits) = (self.permitted.expectation.handoff, self.limits);
        let applying = beating(&mut greeted.write, handoff, limits, self.apply_all()).await;
        applying.map_err(|e| Fault::Broken(e.to_string()))??;
        let Some(receiver) = self.receiver.clone() else {
            return Err(Fault::Over("not started".into()));
        };
        let have = lock(&receiver).next().full;
        let terms = self.terms(have, Some(&hello.ticket));
        let resumed = lock(&receiver).resume(&terms);
        let accept = resumed.map_err(|e| Fault::Over(e.to_string()))?;
        self.handed.reconnects += 1;
        // It will be sent again.
        self.receipt = self.permitted.target.is_pages();
        self.open(greeted, accept).await
    }

    /// Waits until everything that has come has been applied.
    async fn apply_all(&mut self) -> Result<(), Fault> {
        self.apply_blocks();
        while let Some(result) = self.applying.next().await {
            result.map_err(Fault::Over)?;
            self.applied().await?;
        }
        Ok(())
    }

    /// Whoever comes again must bring the same tokens.
    fn check_again(&self, hello: &Hello) -> Result<(), Box<Refuse>> {
        let expected = &self.permitted.expectation;
        let kv_end = Receiver::check_hello(hello, expected)?;
        if *tokens_of(expected, hello, kv_end) == *self.tokens {
            return Ok(());
        }
        Err(Box::new(Refuse {
            code: RefusalCode::Hello,
            message: "hello field `token_digest`: not that of the first hello".into(),
            differences: Vec::new(),
        }))
    }

    /// Ends the reader and waits for it, so that it does not touch what comes after.
    async fn close(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        connection.reader.abort();
        let _ = connection.reader.await;
    }

    /// The connection is broken; waits for another one from now on.
    async fn break_off(&mut self, reason: String) -> Result<(), Lost> {
        self.close().await;
        if self.is_over() {
            let reason = self.why(reason);
            return Err(self.over(reason).await);
        }
        tracing::info!(%reason, "the connection of a handoff broke; waiting for another one");
        self.apply_blocks();
        self.broken = Some((Instant::now(), reason));
        Ok(())
    }

    /// Tells the sequence that there will be no receipt if none has come, and the sender how it ended.
    pub(super) async fn end(&mut self, result: &Result<(), Lost>) {
        if !self.receipt {
            let receiver = self.receiver.as_ref().map(|r| lock(r));
            let why = receiver.and_then(|r| r.discredited().map(str::to_owned));
            let told = why.map_or(Told::Nothing, Told::Unusable);
            self.permitted.told(told, self.from.ip()).await;
        }
        let fault = result.as_ref().err();
        self.leave(fault.map(|lost| lost.reason.as_str())).await;
    }

    /// Answers a sender that asks again because it has not read the confirmation, for as long as it
    /// would go on. `_place` bounds how many handoffs are remembered for that.
    pub(super) async fn confirm(mut self, _place: OwnedSemaphorePermit) {
        self.place = None;
        self.staging = None;
        self.tail = Tail::default();
        // The answer is not handed back to a node that comes late.
        drop(self.permitted.target.take_hand_back());
        let silence = self.limits.handoff_silence;
        let mut until = tokio::time::Instant::now() + self.limits.resume;
        while self.handed.reconnects < MAX_RECONNECTS {
            let arrival = timeout_at(until, self.connections.recv()).await;
            let (greeted, hello) = match arrival {
                Ok(Some(Arrival { greeted, hello })) => (greeted, hello),
                Ok(None) | Err(_) => return,
            };
            let answering = async {
                self.again(greeted, &hello).await?;
                while !self.done() {
                    self.step().await?;
                }
                Ok(())
            };
            let answered = timeout(silence, answering).await;
            let fault = match answered {
                Ok(Err(Fault::Over(reason))) => Some(reason),
                Ok(_) | Err(_) => None,
            };
            self.leave(fault.as_deref()).await;
            if fault.is_some() || self.is_over() {
                return;
            }
            until = tokio::time::Instant::now() + self.limits.resume;
        }
    }

    /// Closes the connection, with a last word if there was a fault.
    async fn leave(&mut self, fault: Option<&str>) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        connection.reader.abort();
        match fault {
            Some(reason) => {
                let frame = match &self.receiver {
                    Some(receiver) => lock(receiver).abort(reason),
                    None => abort_frame(self.permitted.expectation.handoff, 0, reason),
                };
                last_words(&mut connection.write, &frame).await;
            }
            None => {
                let _ = timeout(GOODBYE, connection.write.shutdown()).await;
            }
        }
    }
}
