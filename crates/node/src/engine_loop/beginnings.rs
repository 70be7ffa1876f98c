//! Beginnings that prompts share in the engine's own cache: a sequence begins with the rows of another one, which runs or
//! whose request has ended, and nothing is copied but windows.
//!
//! A request goes through it in this order: [`EngineLoop::begin`] finds what there is of its prompt, and has it wait while
//! an older one reads what both have; [`EngineLoop::leave`] keeps its rows when it ends, until somebody needs the room.
//! A window is at one position only, so it is copied where prompts part (a cut), as soon as that is known.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tandem_engine::{EngineError, KvEngine, Sequence, Token};
use tandem_handoff::KvBlock;
use tokio::sync::{mpsc, oneshot};

use super::EngineLoop;
use super::sequences::{ActiveSequence, ReceiptState, Stage, Work};
use super::slices::{FullOut, Taking, Window};
use crate::limits::{MAX_CHUNKS_WAITING, MIN_SHARED, WINDOW_BYTES};
use crate::prefix_cache::Keep;
use crate::sequence::{Retired, SequenceId};

/// Rows in the engine that belong to no request, and windows in memory.
#[derive(Default)]
pub(super) struct Beginnings {
    cached: Vec<Cached>,
    windows: Vec<CutWindow>,
    /// Counts uses.
    clock: u64,
}

/// A sequence whose request has ended.
struct Cached {
    id: SequenceId,
    request: String,
    place: Sequence,
    salt: Arc<str>,
    /// Those whose rows it has.
    tokens: Vec<Token>,
    used: u64,
    /// What pages are to be made of, if that has not been done yet.
    pages: Option<Unpaged>,
}

/// KV of which pages are to be made.
pub(super) struct Unpaged {
    pub(super) keep: Keep,
    pub(super) retire: oneshot::Sender<Retired>,
    /// Tokens of the answer among those.
    pub(super) generated: u32,
    /// Where the rows end of which pages are made.
    pub(super) end: u32,
    /// True if no other node has computed any of it.
    pub(super) is_own: bool,
}

/// The window at the end of some tokens.
struct CutWindow {
    salt: Arc<str>,
    tokens: Vec<Token>,
    rows: Arc<KvBlock>,
    used: u64,
}

/// What there is of a prompt.
#[derive(Default)]
struct Found {
    /// Who has its first tokens, and how many of them can be used.
    best: Option<(Sequence, u32)>,
    /// The window there, if it is not that of the other sequence.
    window: Option<Arc<KvBlock>>,
    /// Another prompt that is being read will soon have so many more that it is worth to wait.
    waits: bool,
    /// The windows that will be wanted: whose, and where.
    cuts: Vec<(SequenceId, u32)>,
}

/// How many tokens two sequences begin with.
fn common(one: &[Token], other: &[Token]) -> u32 {
    let equal = one.iter().zip(other).take_while(|(a, b)| a == b);
    u32::try_from(equal.count()).unwrap_or(u32::MAX)
}

pub(super) fn length(tokens: &[Token]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX)
}

impl Beginnings {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Makes room: releases the sequence that was not used for longest, but not that one. False if there is none.
    pub(super) fn evict(&mut self, engine: &mut dyn KvEngine, but: Option<Sequence>) -> bool {
        let all = self.cached.iter().enumerate();
        let oldest = all
            .filter(|(_, cached)| Some(cached.place) != but)
            .min_by_key(|(_, cached)| cached.used);
        let Some(at) = oldest.map(|(at, _)| at) else {
            return false;
        };
        engine.release(self.cached.swap_remove(at).place);
        true
    }

    /// Calls the engine again for as long as it has no room and some can be made.
    pub(super) fn with_room<T>(
        &mut self,
        engine: &mut dyn KvEngine,
        but: Option<Sequence>,
        mut call: impl FnMut(&mut dyn KvEngine) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        loop {
            match call(engine) {
                Err(EngineError::NoRoom | EngineError::Full(_)) if self.evict(engine, but) => {}
                result => return result,
            }
        }
    }

    /// Releases all sequences, for one that runs alone: it begins with empty cells.
    pub(super) fn clear(&mut self, engine: &mut dyn KvEngine) {
        while self.evict(engine, None) {}
    }

    /// Drops what begins like these tokens, because it may be wrong.
    fn forget(&mut self, engine: &mut dyn KvEngine, salt: &Arc<str>, tokens: &[Token]) {
        let is_like =
            |of: &Arc<str>, all: &[Token]| of == salt && common(tokens, all) >= MIN_SHARED;
        self.cached.retain(|cached| {
            let is_like = is_like(&cached.salt, &cached.tokens);
            if is_like {
                engine.release(cached.place);
            }
            !is_like
        });
        self.windows.retain(|w| !is_like(&w.salt, &w.tokens));
    }

    /// Keeps a window, in the place of those that were not used for longest.
    fn add_window(&mut self, salt: &Arc<str>, tokens: &[Token], rows: Arc<KvBlock>) {
        let used = self.tick();
        self.windows
            .retain(|w| w.salt != *salt || w.tokens != tokens);
        self.windows.push(CutWindow {
            salt: Arc::clone(salt),
            tokens: tokens.to_vec(),
            rows,
            used,
        });
        let bytes = |all: &[CutWindow]| all.iter().map(|w| w.rows.bytes()).sum::<u64>();
        while bytes(&self.windows) > WINDOW_BYTES {
            let oldest = self.windows.iter().enumerate().min_by_key(|(_, w)| w.used);
            let Some(at) = oldest.map(|(at, _)| at) else {
                return;
            };
            self.windows.swap_remove(at);
        }
    }

    /// The last window within the first tokens of a prompt.
    fn window(&self, salt: &Arc<str>, tokens: &[Token], up_to: u32) -> Option<(u32, Arc<KvBlock>)> {
        let fits = |w: &&CutWindow| {
            w.salt == *salt && length(&w.tokens) <= up_to && tokens.starts_with(&w.tokens)
        };
        let last = self.windows.iter().filter(fits);
        let last = last.max_by_key(|w| w.tokens.len())?;
        Some((length(&last.tokens), Arc::clone(&last.rows)))
    }

    /// It has been used now.
    fn touch(&mut self, place: Sequence, window: Option<&Arc<KvBlock>>) {
        let used = self.tick();
        if let Some(cached) = self.cached.iter_mut().find(|c| c.place == place) {
            cached.used = used;
        }
        for one in &mut self.windows {
            if window.is_some_and(|w| Arc::ptr_eq(w, &one.rows)) {
                one.used = used;
            }
        }
    }
}

impl ActiveSequence {
    /// How many of these tokens it begins with, of its prompt and its answer so far.
    fn common(&self, tokens: &[Token]) -> u32 {
        let of_prompt = common(tokens, &self.tokens);
        match &self.work {
            Work::Generate(g) if of_prompt == length(&self.tokens) => {
                let rest = tokens.get(self.tokens.len()..).unwrap_or_default();
                of_prompt + common(rest, g.generation.generated())
            }
            _ => of_prompt,
        }
    }

    /// True if others may have its rows: they were computed here, or came as they were computed and have been compared.
    fn gives_rows(&self) -> bool {
        !self.is_doubtful
            && match &self.work {
                Work::Generate(g) => {
                    let is_here = !matches!(g.stage, Stage::Receiving | Stage::Seeding);
                    is_here && g.is_lossless() && matches!(g.receipt, ReceiptState::Settled)
                }
                Work::Retire { .. } => true,
                Work::Export(_) => false,
            }
    }

    /// The token that a prompt which is still read here reads next.
    fn reads(&self) -> Option<u32> {
        match &self.work {
            Work::Generate(g) => match g.stage {
                Stage::Waiting => Some(0),
                Stage::Prefilling { next }
                | Stage::Settling { next, .. }
                | Stage::Copying { next, .. } => Some(next),
                _ => None,
            },
            _ => None,
        }
    }

    /// Has the window copied at this position, unless that is done close before it.
    fn cut(&mut self, at: u32) {
        let is_near = |cut: &u32| *cut <= at && at - cut < MIN_SHARED;
        if !self.cuts.iter().any(is_near) {
            self.cuts.push(at);
            self.cuts.sort_unstable();
        }
    }
}

impl EngineLoop {
    /// Begins the prompt of a request with what there is of it: rows of other sequences, or pages; or has it wait for
    /// another one that reads the same.
    pub(super) fn begin(&mut self, id: SequenceId) {
        let found = self.find(id);
        for (whose, at) in &found.cuts {
            if let Some(sequence) = self.sequences.get_mut(whose) {
                sequence.cut(*at);
            }
        }
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let place = sequence.place;
        let Work::Generate(g) = &mut sequence.work else {
            return;
        };
        if found.waits {
            g.stage = Stage::Waiting;
            return;
        }
        let shared = found.best.map_or(0, |(_, tokens)| tokens);
        let pages = g.pages.take();
        let pages = pages.filter(|pages| match pages.tokens {
            Some(tokens) => tokens > shared,
            None => shared == 0,
        });
        if pages.is_some_and(|pages| pages.ask.send(()).is_ok()) {
            g.stage = Stage::Seeding;
            return;
        }
        g.stage = Stage::Prefilling { next: 0 };
        let Some((from, tokens)) = found.best else {
            return;
        };
        self.beginnings.touch(from, found.window.as_ref());
        let engine = self.engine.as_mut();
        let result = self
            .beginnings
            .with_room(engine, Some(from), |e| e.share(from, place, tokens));
        if let Err(error) = result {
            tracing::warn!(%error, "a beginning cannot be shared; computing instead");
            self.engine.clear(place);
            return;
        }
        g.summary.cached_tokens = tokens;
        g.stage = match found.window {
            Some(rows) => Stage::Settling {
                window: Window::Back(Taking::new(rows)),
                next: tokens,
            },
            None => Stage::Prefilling { next: tokens },
        };
    }

    /// Goes on with prompts that wait no longer.
    pub(super) fn begin_waiting(&mut self) {
        let is_waiting = |sequence: &ActiveSequence| match &sequence.work {
            Work::Generate(g) => matches!(g.stage, Stage::Waiting),
            _ => false,
        };
        let all = self.sequences.iter();
        let waiting: Vec<_> = all
            .filter(|(_, s)| is_waiting(s))
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.begin(id);
        }
    }

    fn find(&self, id: SequenceId) -> Found {
        let mut found = Found::default();
        let Some(me) = self.sequences.get(&id) else {
            return found;
        };
        let Some(salt) = &me.salt else { return found };
        let tokens = &me.tokens[..me.kv_end() as usize];
        let has_window = self.engine.contract().has_window();
        let mut parts_at = 0;
        let mut best = 0;
        let mut consider = |place: Sequence, common: u32, held: u32| {
            let (common, window) = match common.min(held) {
                // Its own window is there.
                common if !has_window || common == held => (common, None),
                common => match self.beginnings.window(salt, tokens, common) {
                    Some((at, rows)) => (at, Some(rows)),
                    None => (0, None),
                },
            };
            if common >= MIN_SHARED && common > best {
                best = common;
                (found.best, found.window) = (Some((place, common)), window);
            }
        };
        for cached in self.beginnings.cached.iter().filter(|c| c.salt == *salt) {
            let common = common(tokens, &cached.tokens);
            parts_at = parts_at.max(common);
            consider(cached.place, common, length(&cached.tokens));
        }
        let mut soon = 0;
        let mut reading = Vec::new();
        for (other, sequence) in &self.sequences {
            if *other == id || sequence.salt.as_ref() != Some(salt) || !sequence.gives_rows() {
                continue;
            }
            let common = sequence.common(tokens);
            consider(sequence.place, common, self.engine.held(sequence.place));
            let Some(next) = sequence.reads() else {
                parts_at = parts_at.max(common);
                continue;
            };
            let common = common.min(sequence.kv_end());
            // The older one goes first, so nobody waits for ever.
            if *other < id && next < common {
                soon = soon.max(common);
                reading.push((*other, common));
            } else if next >= common {
                parts_at = parts_at.max(common);
            }
        }
        found.waits = soon >= MIN_SHARED && soon >= best + MIN_SHARED;
        if has_window {
            reading.retain(|(_, at)| *at >= best + MIN_SHARED);
            found.cuts = reading;
            if parts_at >= best + MIN_SHARED {
                found.cuts.push((id, parts_at));
            }
        }
        found
    }

    /// Keeps a window that was copied at a cut.
    pub(super) fn keep_window(&mut self, id: SequenceId, rows: &Arc<KvBlock>) {
        let Some(sequence) = self.sequences.get(&id) else {
            return;
        };
        let end = rows.tokens.end as usize;
        if let (Some(salt), Some(tokens)) = (&sequence.salt, sequence.tokens.get(..end)) {
            self.beginnings.add_window(salt, tokens, Arc::clone(rows));
        }
    }

    /// A request has ended: its rows stay for others if they may have them, and its pages are made later.
    pub(super) fn leave(
        &mut self,
        id: SequenceId,
        sequence: ActiveSequence,
        pages: Option<Unpaged>,
    ) {
        let held = self.engine.held(sequence.place);
        let cached = self.engine.capacity().cached;
        let gives = sequence.gives_rows() && held >= MIN_SHARED && cached > 0;
        let Some(salt) = sequence.salt.clone().filter(|_| gives) else {
            self.engine.release(sequence.place);
            return;
        };
        let mut tokens = sequence.tokens;
        if let Work::Generate(g) = &sequence.work {
            tokens.extend_from_slice(g.generation.generated());
        }
        tokens.truncate(held as usize);
        let others = self.paging().saturating_add(1);
        while self.beginnings.cached.len() + others > cached as usize {
            if !self.beginnings.evict(self.engine.as_mut(), None) {
                self.engine.release(sequence.place);
                return;
            }
        }
        let used = self.beginnings.tick();
        self.beginnings.cached.push(Cached {
            id,
            request: sequence.request,
            place: sequence.place,
            salt,
            tokens,
            used,
            pages,
        });
        // Before the place is free, so that nobody finds the node idle.
        self.count_unpaged();
    }

    /// Tells how many sequences of ended requests are to become pages.
    fn count_unpaged(&self) {
        let cached = self.beginnings.cached.iter();
        let waiting = cached.filter(|c| c.pages.is_some()).count();
        self.unpaged
            .store(waiting + self.paging(), Ordering::SeqCst);
    }

    /// How many sequences make pages without a request.
    fn paging(&self) -> usize {
        let all = self.sequences.values();
        all.filter(|s| s.admission.is_none()).count()
    }

    /// Starts to make pages of a sequence whose request has ended, where there is nothing else to do, or before
    /// it loses its rows.
    pub(super) fn start_paging(&mut self) {
        self.count_unpaged();
        let all = &mut self.beginnings.cached;
        let wait = all.iter().filter(|c| c.pages.is_some()).count();
        let are_many = wait * 2 > self.engine.capacity().cached as usize;
        if wait == 0 || self.paging() > 0 || (!are_many && self.is_busy()) {
            return;
        }
        let all = &mut self.beginnings.cached;
        let unpaged = all.iter().enumerate().filter(|(_, c)| c.pages.is_some());
        let Some((at, _)) = unpaged.min_by_key(|(_, c)| c.used) else {
            return;
        };
        let mut cached = all.swap_remove(at);
        let pages = cached.pages.take();
        let Some(work) = pages.and_then(|pages| self.handing_out(&cached.tokens, pages)) else {
            self.beginnings.cached.push(cached);
            return;
        };
        let sequence = ActiveSequence {
            request: cached.request,
            place: cached.place,
            tokens: cached.tokens,
            chunk: 0,
            prefill_ms: 0.0,
            computed_tokens: 0,
            work,
            salt: Some(cached.salt),
            reproducible: false,
            cuts: Vec::new(),
            is_doubtful: false,
            admission: None,
        };
        self.sequences.insert(cached.id, sequence);
    }

    /// The work of handing the KV of these tokens out as far as there are no pages of it; `None` if nobody takes it.
    pub(super) fn handing_out(&self, tokens: &[Token], pages: Unpaged) -> Option<Work> {
        let tokens = &tokens[..pages.end as usize];
        let start = pages.keep.held(tokens).tokens;
        if start >= pages.end {
            return None;
        }
        let (chunks, receiver) = mpsc::channel(MAX_CHUNKS_WAITING);
        let retired = Retired {
            tokens: tokens.to_vec(),
            generated: pages.generated,
            is_own: pages.is_own,
            chunks: receiver,
        };
        pages.retire.send(retired).ok()?;
        Some(Work::Retire {
            chunks,
            full: FullOut::of(self.engine.contract(), start..pages.end),
            end: pages.end,
            window: None,
        })
    }

    /// One that runs alone begins: nothing else is in the engine.
    pub(super) fn clear_for_reproducible(&mut self) {
        let all = self.sequences.iter();
        let paging = all.filter(|(_, s)| s.admission.is_none());
        let paging: Vec<_> = paging.map(|(id, _)| *id).collect();
        for id in paging {
            if let Some(sequence) = self.sequences.remove(&id) {
                self.engine.release(sequence.place);
            }
        }
        self.beginnings.clear(self.engine.as_mut());
    }

    /// What begins like these tokens may be wrong: nobody else begins with it.
    pub(super) fn doubt(&mut self, salt: Option<&Arc<str>>, tokens: &[Token]) {
        let Some(salt) = salt else { return };
        for sequence in self.sequences.values_mut() {
            let is_like = sequence.salt.as_ref() == Some(salt);
            if is_like && common(tokens, &sequence.tokens) >= MIN_SHARED {
                sequence.is_doubtful = true;
                if let Work::Generate(g) = &mut sequence.work {
                    g.retire = None;
                }
            }
        }
        self.beginnings.forget(self.engine.as_mut(), salt, tokens);
    }
}
