//! The pages that a request shares with earlier and later ones.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tandem_handoff::codec::Codec;
use tandem_handoff::page::{Namespace, Origin, PAGE_TOKENS, PageId, page_start};
use tandem_handoff::{Contract, KvBlock, Section};
use tandem_proto::HandoffTerms;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::chunking::Chunking;
use tandem_prefix_cache::{Held, LoadError, PageStore, Pinned, Provenance, Snapshot, Wanted};

/// Keeps KV of a request as pages, and finds pages for it.
#[derive(Debug, Clone)]
pub struct Keep {
    store: PageStore,
    /// Of rows as they were computed.
    namespace: Namespace,
    /// Of rows that came in a lossy codec, from the least lossy on.
    lossy: Arc<[Namespace]>,
    /// How many of those the request allows.
    allowed: usize,
    /// True if any are found and kept.
    reuse: bool,
    /// True if only those are found that have the bits of an undisturbed prefill.
    reproducible: bool,
    /// Tokens before this were computed in complete chunks or steps, so that another prompt which begins
    /// with them gives the same rows to the bit.
    exact: u32,
    /// How the prompt is computed.
    chunking: Chunking,
    /// True if what comes behind those is kept, too.
    inexact: bool,
    /// True if the answer is kept.
    answer: bool,
}

impl Keep {
    /// For a request whose prompt is computed like this.
    #[must_use]
    pub fn new(
        store: &PageStore,
        contract: &Arc<Contract>,
        terms: &HandoffTerms,
        chunking: Chunking,
    ) -> Self {
        let namespace =
            |origin| Namespace::new(Arc::clone(contract), terms.salt.as_bytes(), origin);
        let lossy = Codec::ALL.into_iter().filter(|c| !c.is_lossless());
        let allowed = lossy.clone().filter(|c| terms.quality.allows(*c)).count();
        Self {
            store: store.of_request(),
            namespace: namespace(Origin::Exact),
            lossy: lossy.map(Origin::of).map(namespace).collect(),
            allowed,
            reuse: terms.reuse,
            reproducible: terms.reproducible,
            // After rows that were decoded nothing is exact, and what the other node began with is
            // not known here.
            exact: match terms.reuse && terms.reproducible {
                true => chunking.complete(),
                false => 0,
            },
            inexact: (terms.reuse && !terms.reproducible) || terms.keeps_answer(),
            answer: terms.keeps_answer(),
            chunking,
        }
    }

    /// Another node computes the rows, as far as here in batches that other prompts have, too.
    pub fn compute_alike_to(&mut self, end: u32) {
        self.exact = self.exact.min(end);
    }

    /// What a prefill of these tokens can begin with on this node: exact rows.
    #[must_use]
    pub fn pieces(&self, tokens: &[u32], limit: Duration) -> Option<Pieces> {
        let pinned = self.pinned(&[], tokens)?;
        let held = pinned.held().tokens;
        let end = match self.reproducible {
            true => self.chunking.goes_on_at_page(held),
            false => held,
        };
        let contract = self.namespace.contract();
        Pieces::all(pinned, contract, end, self.reproducible, limit)
    }

    /// For the answer, which comes behind all that was kept of the prompt: nothing more is exact.
    #[must_use]
    pub fn behind_all(&self) -> Self {
        Self {
            exact: 0,
            reproducible: self.reproducible && !self.inexact,
            ..self.clone()
        }
    }

    /// The page chain of tokens.
    #[must_use]
    pub fn chain(&self, tokens: &[u32]) -> Vec<PageId> {
        self.namespace.chain(tokens)
    }

    /// Id of the last complete page of tokens, hex.
    #[must_use]
    pub fn last_page(&self, tokens: &[u32]) -> Option<String> {
        self.chain(tokens).last().map(ToString::to_string)
    }

    /// Which pages a request can use that gets rows of a handoff; `None` if none.
    #[must_use]
    pub const fn wanted(&self) -> Option<Wanted> {
        match (self.reuse, self.reproducible) {
            (false, _) => None,
            (true, true) => Some(Wanted::Prefilled),
            (true, false) => Some(Wanted::Any),
        }
    }

    /// What is there of a sequence, exact.
    #[must_use]
    pub fn held(&self, tokens: &[u32]) -> Held {
        let wanted = self.wanted();
        wanted.map_or_else(Held::default, |w| {
            self.store.held(&self.namespace, tokens, w)
        })
    }

    /// What is there of a sequence for a request that may get rows of a handoff, exact or as lossy as it
    /// allows, and stays while this lives.
    #[must_use]
    pub fn pin(&self, tokens: &[u32]) -> Option<Pinned> {
        self.pinned(self.allowed(), tokens)
    }

    fn pinned(&self, others: &[Namespace], tokens: &[u32]) -> Option<Pinned> {
        let wanted = self.wanted()?;
        let pinned = self.store.pin(&self.namespace, others, tokens, wanted);
        (pinned.held() != Held::default()).then_some(pinned)
    }

    fn allowed(&self) -> &[Namespace] {
        self.lossy.get(..self.allowed).unwrap_or_default()
    }

    /// True if anything is kept.
    #[must_use]
    pub const fn keeps(&self) -> bool {
        self.reuse
    }

    /// True if it shares rows in the engine.
    #[must_use]
    pub const fn shares(&self) -> bool {
        self.reuse && !self.reproducible
    }

    /// True if the answer is kept.
    #[must_use]
    pub const fn keeps_answer(&self) -> bool {
        self.answer
    }

    /// Where those rows end of a prompt computed here that are kept although its answer is not. Without the window at
    /// that place, which is gone when the answer is complete, they are of use to nobody.
    #[must_use]
    pub fn prompt_end(&self) -> u32 {
        match self.inexact {
            _ if self.has_window() || !self.keeps() => 0,
            true => page_start(self.chunking.kv_end),
            false => page_start(self.exact),
        }
    }

    /// Where rows belong that came in this codec.
    fn space(&self, codec: Codec) -> Option<&Namespace> {
        let mut all = std::iter::once(&self.namespace).chain(self.allowed());
        all.find(|space| space.origin() == Origin::of(codec))
    }

    /// Keeps the complete pages of a block of full-attention layers, of which `codec` is the most lossy
    /// that any of its rows came in; on a thread where it may block.
    pub fn block(&self, tokens: &[u32], block: &KvBlock, codec: Codec) {
        let space = self.space(codec);
        let Some(space) = space.filter(|_| self.keeps() && block.section == Section::Full) else {
            return;
        };
        let exact = self.exact.clamp(block.tokens.start, block.tokens.end);
        let exact = page_start(exact);
        let parts = [
            (
                block.tokens.start..exact.max(block.tokens.start),
                Provenance::Prefilled,
            ),
            (
                exact.max(block.tokens.start)..block.tokens.end,
                Provenance::Decoded,
            ),
        ];
        for (range, provenance) in parts {
            let has_pages = range.end / PAGE_TOKENS > range.start.div_ceil(PAGE_TOKENS);
            if !has_pages || (provenance == Provenance::Decoded && !self.inexact) {
                continue;
            }
            let result = if range == block.tokens {
                self.store.put(space, tokens, block, provenance)
            } else {
                let part = block.part(range);
                self.store.put(space, tokens, &part, provenance)
            };
            if let Err(error) = result {
                tracing::warn!(%error, "pages are not kept");
            }
        }
    }

    /// Forgets what is there of a sequence and of all that begin with a page of it, because it may be
    /// wrong: all lossy rows, and the exact ones behind a position.
    pub fn forget(&self, tokens: &[u32], exact: u32) -> u64 {
        if !self.keeps() {
            return 0;
        }
        let lossy = self.lossy.iter().map(|space| (space, 0));
        let all = lossy.chain([(&self.namespace, exact)]);
        self.store.forget(all, tokens)
    }

    /// True if what the request computes may be wrong: it began with pages that have been forgotten since.
    #[must_use]
    pub fn is_discredited(&self) -> bool {
        self.store.is_discredited()
    }

    /// True if the model has windows, without which there is no snapshot.
    #[must_use]
    pub fn has_window(&self) -> bool {
        self.namespace.contract().has_window()
    }

    /// Keeps the rows of the full layers since the last page before the end of `tokens`, and the window
    /// there, if they are exact: to go on from lossy ones would give lossy ones.
    pub fn snapshot(
        &self,
        tokens: &[u32],
        tail: Option<&(KvBlock, Codec)>,
        window: Option<&KvBlock>,
        codec: Codec,
    ) {
        let worst = tail.map_or(codec, |(_, of_tail)| codec.max(*of_tail));
        if !self.inexact || !worst.is_lossless() {
            return;
        }
        let tail = tail.map(|(rows, _)| rows);
        let provenance = Provenance::Decoded;
        let result = self
            .store
            .put_snapshot(&self.namespace, tokens, tail, window, provenance);
        if let Err(error) = result {
            tracing::debug!(%error, "a snapshot is not kept");
        }
    }
}

/// The blocks of full-attention layers since the last page boundary, with the codecs in which they came:
/// the rows of a page may come in several blocks.
#[derive(Debug, Clone, Default)]
pub struct Tail {
    blocks: Vec<(Arc<KvBlock>, Codec)>,
}

impl Tail {
    /// What came before `block`, which is the next one from now on.
    #[must_use]
    pub fn then(&mut self, block: &Arc<KvBlock>, codec: Codec) -> Self {
        if block.section == Section::Window {
            return std::mem::take(self);
        }
        let before = self.clone();
        let end = self.blocks.last().map(|(b, _)| b.tokens.end);
        if end.is_some_and(|end| end != block.tokens.start) {
            self.blocks.clear();
        }
        let boundary = page_start(block.tokens.end);
        self.blocks.push((Arc::clone(block), codec));
        self.blocks.retain(|(b, _)| b.tokens.end > boundary);
        before
    }

    /// The page that `block` completes and does not contain, and the most lossy codec of its rows.
    #[must_use]
    pub fn page(&self, block: &Arc<KvBlock>, codec: Codec) -> Option<(KvBlock, Codec)> {
        let start = page_start(block.tokens.start);
        let page = start..start.saturating_add(PAGE_TOKENS);
        if start == block.tokens.start || page.end > block.tokens.end {
            return None;
        }
        self.clone().with(block, codec).rows(page)
    }

    /// The same with `block`, which follows.
    #[must_use]
    pub fn with(mut self, block: &Arc<KvBlock>, codec: Codec) -> Self {
        self.blocks.push((Arc::clone(block), codec));
        self
    }

    /// The rows since the last page boundary before a position, and the most lossy codec of them; `None` if
    /// there are none.
    #[must_use]
    pub fn until(&self, position: u32) -> Option<(KvBlock, Codec)> {
        self.rows(page_start(position)..position)
    }

    /// The rows of these tokens, if all of them are here.
    fn rows(&self, tokens: Range<u32>) -> Option<(KvBlock, Codec)> {
        let mut joined: Option<(KvBlock, Codec)> = None;
        let mut at = tokens.start;
        for (block, codec) in &self.blocks {
            if !block.tokens.contains(&at) || at >= tokens.end {
                continue;
            }
            let part = block.part(at..tokens.end);
            at = part.tokens.end;
            let Some((all, worst)) = &mut joined else {
                joined = Some((part, *codec));
                continue;
            };
            all.append(&part);
            *worst = (*worst).max(*codec);
        }
        joined.filter(|_| at == tokens.end)
    }
}

/// Keeps a block on a thread where it may block. `tokens` are those that KV is there of in the end,
/// `before` is what came before the block since the last page boundary.
pub async fn keep_block(
    keep: &Keep,
    tokens: &Arc<[u32]>,
    block: &Arc<KvBlock>,
    codec: Codec,
    before: Tail,
) {
    if !keep.keeps() {
        return;
    }
    let (keep, tokens, block) = (keep.clone(), Arc::clone(tokens), Arc::clone(block));
    let keeping = tokio::task::spawn_blocking(move || match block.section {
        Section::Full => {
            if let Some((page, worst)) = before.page(&block, codec) {
                keep.block(&tokens, &page, worst);
            }
            keep.block(&tokens, &block, codec);
            let end = block.tokens.end;
            if end as usize == tokens.len() && !keep.has_window() {
                let tail = before.with(&block, codec).until(end);
                keep.snapshot(&tokens, tail.as_ref(), None, codec);
            }
        }
        Section::Window => {
            let tail = before.until(block.tokens.end);
            keep.snapshot(&tokens, tail.as_ref(), Some(&block), codec);
        }
    });
    if let Err(error) = keeping.await {
        tracing::error!(%error, "keeping pages ended");
    }
}

/// Reads pinned pages piece by piece, in the order in which an engine takes them.
pub struct Pieces {
    pinned: Arc<Pinned>,
    /// Longest wait for a piece.
    limit: Duration,
    next: u32,
    end: u32,
    snapshot: bool,
    /// True if what is computed behind them must be what it is without them, to the bit.
    exact: bool,
}

impl Pieces {
    /// Pages for the full layers of a sequence from `start`, a page boundary, up to the end of this range.
    #[must_use]
    pub fn pages(pinned: Pinned, tokens: Range<u32>, limit: Duration) -> Self {
        Self {
            end: pinned.held().tokens.min(page_start(tokens.end)),
            pinned: Arc::new(pinned),
            limit,
            next: tokens.start,
            snapshot: false,
            exact: false,
        }
    }

    /// All that is needed to continue a sequence: a snapshot and the pages before it, or without
    /// windows pages alone, up to `end`.
    fn all(
        pinned: Pinned,
        contract: &Contract,
        end: u32,
        exact: bool,
        limit: Duration,
    ) -> Option<Self> {
        let held = pinned.held();
        let further = held.snapshot.filter(|position| *position > held.tokens);
        let (end, snapshot) = match (contract.has_window(), held.snapshot, further) {
            (true, position, _) => (page_start(position?), true),
            (false, _, Some(position)) => (page_start(position), true),
            (false, _, None) => (end, false),
        };
        (end > 0 || snapshot).then(|| Self {
            pinned: Arc::new(pinned),
            limit,
            next: 0,
            end,
            snapshot,
            exact,
        })
    }

    /// True if what is computed behind them must be what it is without them, to the bit.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.exact
    }

    /// Tokens up to which they reach.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        let snapshot = self.pinned.held().snapshot.filter(|_| self.snapshot);
        snapshot.unwrap_or(self.end)
    }

    /// The most lossy codec that rows of a block came in; `None` if they are exact.
    #[must_use]
    pub fn codec(&self, block: &KvBlock) -> Option<Codec> {
        self.pinned.origin(&block.tokens).codec()
    }

    /// The next blocks; empty at the end.
    ///
    /// # Errors
    /// If the disk failed, or did not answer within the limit.
    pub async fn next(&mut self) -> Result<Vec<KvBlock>, String> {
        if self.next < self.end {
            // One block at a time, so that memory does not grow with the model.
            let next = self.next.saturating_add(self.pinned.block_tokens());
            let range = self.next..self.end.min(next);
            self.next = range.end;
            return self.read(|pinned| pinned.load(range)).await;
        }
        if std::mem::take(&mut self.snapshot) {
            return self
                .read(|pinned| {
                    let Snapshot { tail, window } = pinned.load_snapshot()?;
                    Ok(tail.into_iter().chain(window).collect())
                })
                .await;
        }
        Ok(Vec::new())
    }

    async fn read(
        &self,
        work: impl FnOnce(&Pinned) -> Result<Vec<KvBlock>, LoadError> + Send + 'static,
    ) -> Result<Vec<KvBlock>, String> {
        let pinned = Arc::clone(&self.pinned);
        let mut reading = tokio::task::spawn_blocking(move || work(&pinned));
        let (pinned, limit) = (Arc::clone(&self.pinned), self.limit);
        let (tell, told) = oneshot::channel();
        // A thread cannot be told to stop, whoever still waits for it; until it does, no other one waits
        // for the disk.
        tokio::spawn(async move {
            let late = match timeout(limit, &mut reading).await {
                Ok(Ok(read)) => {
                    let _ = tell.send(read.map_err(|e| e.to_string()));
                    return;
                }
                Ok(Err(ended)) => {
                    let _ = tell.send(Err(ended.to_string()));
                    return;
                }
                Err(_) => format!("the disk did not answer within {} s", limit.as_secs_f32()),
            };
            let _overdue = pinned.overdue();
            let _ = tell.send(Err(late));
            let _ = reading.await;
        });
        told.await.map_err(|e| e.to_string())?
    }
}
