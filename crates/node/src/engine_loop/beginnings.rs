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
use tandem_handoff::page::page_start;
use tokio::sync::oneshot;

use super::EngineLoop;
use super::retire::Retiring;
use super::sequences::{ActiveSequence, Cached, Reading, ReceiptState, Unpaged, Work};
use super::slices::{Taking, Window};
use crate::limits::{MAX_WINDOWS, MIN_SHARED, WINDOW_BYTES};
use crate::sequence::SequenceId;

/// Rows in the engine that belong to no request, and windows in memory.
#[derive(Default)]
pub(super) struct Beginnings {
    cached: Vec<Cached>,
    pub(super) retiring: Vec<Retiring>,
    windows: Vec<CutWindow>,
    /// Counts uses.
    clock: u64,
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
    /// Another prompt that is being read, which will soon have so many more that it is worth to wait.
    waits: Option<(SequenceId, u32)>,
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

    /// Makes room: releases the sequence that was not used for longest, but not that one, and those last of which pages are
    /// still to be made; then what pages are made of for no request. False if there is none.
    pub(super) fn evict(&mut self, engine: &mut dyn KvEngine, but: Option<Sequence>) -> bool {
        let all = self.cached.iter().enumerate();
        let oldest = all
            .filter(|(_, cached)| Some(cached.place) != but)
            .min_by_key(|(_, cached)| (cached.pages.is_some(), cached.used));
        if let Some((at, _)) = oldest {
            engine.release(self.cached.swap_remove(at).place);
            return true;
        }
        let is_free = |r: &Retiring| r.admission.is_none() && Some(r.place()) != but;
        let Some(at) = self.retiring.iter().position(is_free) else {
            return false;
        };
        engine.release(self.retiring.swap_remove(at).place());
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
        let mut stays = |cached: &Cached| {
            let is_like = cached
                .salt
                .as_ref()
                .is_some_and(|of| is_like(of, &cached.tokens));
            if is_like {
                engine.release(cached.place);
            }
            !is_like
        };
        self.cached.retain(&mut stays);
        self.retiring.retain(|r| stays(&r.cached));
        self.windows.retain(|w| !is_like(&w.salt, &w.tokens));
    }

    /// Those of a salt, also those that pages are made of.
    fn of<'a>(&'a self, salt: &'a Arc<str>) -> impl Iterator<Item = &'a Cached> {
        let retiring = self.retiring.iter().map(|r| &r.cached);
        let all = self.cached.iter().chain(retiring);
        all.filter(move |c| c.salt.as_ref() == Some(salt))
    }

    /// Keeps the rows of a sequence for as long as nobody needs the room, if it shares them.
    pub(super) fn add(&mut self, engine: &mut dyn KvEngine, mut cached: Cached) {
        if cached.salt.is_none() {
            return engine.release(cached.place);
        }
        cached.used = self.tick();
        let most = engine.capacity().cached as usize;
        let free = self.retiring.iter().filter(|r| r.admission.is_none());
        let others = free.count() + 1;
        while self.cached.len() + others > most {
            if self.cached.is_empty() {
                return engine.release(cached.place);
            }
            self.evict(engine, None);
        }
        self.cached.push(cached);
    }

    /// How many sequences of ended requests are to become pages.
    pub(super) fn unpaged(&self) -> usize {
        let waiting = self.cached.iter().filter(|c| c.pages.is_some());
        let free = self.retiring.iter().filter(|r| r.admission.is_none());
        waiting.count() + free.count()
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
        while bytes(&self.windows) > WINDOW_BYTES || self.windows.len() > MAX_WINDOWS {
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
        let retiring = self.retiring.iter_mut().map(|r| &mut r.cached);
        let mut all = self.cached.iter_mut().chain(retiring);
        if let Some(cached) = all.find(|c| c.place == place) {
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
    pub(super) fn gives_rows(&self) -> bool {
        let is_here = !matches!(self.reading, Reading::Receiving | Reading::Seeding);
        is_here
            && !self.is_doubtful
            && match &self.work {
                Work::Generate(g) => g.is_lossless() && matches!(g.receipt, ReceiptState::Settled),
                Work::Export(_) => true,
            }
    }

    /// The token that a prompt which is still read here reads next.
    fn reads(&self) -> Option<u32> {
        match self.reading {
            Reading::Waiting { .. } => Some(0),
            Reading::Next(next)
            | Reading::Settling { next, .. }
            | Reading::Copying { next, .. } => Some(next),
            Reading::Receiving | Reading::Seeding | Reading::Complete => None,
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
        let found = self.find(id, self.engine.contract().has_window());
        for (whose, at) in &found.cuts {
            if let Some(sequence) = self.sequences.get_mut(whose) {
                sequence.cut(*at);
            }
        }
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        if let Some((whom, until)) = found.waits {
            sequence.reading = Reading::Waiting { whom, until };
            return;
        }
        let shared = found.best.map_or(0, |(_, tokens)| tokens);
        let pages = sequence.pages.take().filter(|pages| match pages.tokens {
            Some(tokens) => tokens > shared,
            None => shared == 0,
        });
        if pages.is_some_and(|pages| pages.ask.send(()).is_ok()) {
            sequence.reading = Reading::Seeding;
            return;
        }
        let shared = match found.best {
            Some((from, tokens)) => self.share(id, from, tokens, found.window.as_ref()),
            None => 0,
        };
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        match found.window {
            Some(rows) if shared > 0 => {
                sequence.reading = Reading::Settling {
                    window: Window::Back(Taking::new(rows)),
                    next: shared,
                };
            }
            _ => sequence.read_from(shared),
        }
    }

    /// Begins a prompt whose KV comes from another node with rows that are here. Tells how many pages of tokens they are.
    pub(super) fn begin_receiving(&mut self, id: SequenceId, reply: oneshot::Sender<u32>) {
        let is_receiving = |s: &ActiveSequence| {
            matches!(s.reading, Reading::Receiving) && self.engine.held(s.place) == 0
        };
        let mut shared = 0;
        if self.sequences.get(&id).is_some_and(is_receiving)
            && let Some((from, tokens)) = self.find(id, false).best
        {
            // The window comes with the handoff: that of the other sequence is not taken, which it would be at its end.
            let most = match self.engine.contract().has_window() {
                true => self.engine.held(from).saturating_sub(1),
                false => tokens,
            };
            let tokens = page_start(tokens.min(most));
            if tokens > 0 {
                shared = self.share(id, from, tokens, None);
            }
        }
        let _ = reply.send(shared);
    }

    /// Gives a sequence the first tokens of another one; tells how many it has then.
    fn share(
        &mut self,
        id: SequenceId,
        from: Sequence,
        tokens: u32,
        window: Option<&Arc<KvBlock>>,
    ) -> u32 {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return 0;
        };
        let place = sequence.place;
        self.beginnings.touch(from, window);
        let engine = self.engine.as_mut();
        let share = |e: &mut dyn KvEngine| e.share(from, place, tokens);
        let result = self.beginnings.with_room(engine, Some(from), share);
        let shared = match result {
            Ok(()) => tokens,
            Err(error) => {
                tracing::warn!(%error, "a beginning cannot be shared; computing instead");
                self.engine.clear(place);
                0
            }
        };
        if let Work::Generate(g) = &mut sequence.work {
            g.summary.cached_tokens = shared;
        }
        shared
    }

    /// Goes on with prompts that wait no longer.
    pub(super) fn begin_waiting(&mut self) {
        let waits = |sequence: &ActiveSequence| match sequence.reading {
            Reading::Waiting { whom, until } => {
                let reads = self.sequences.get(&whom).filter(|s| s.gives_rows());
                let next = reads.and_then(ActiveSequence::reads);
                Some(next.is_some_and(|next| next < until))
            }
            _ => None,
        };
        let all = self.sequences.iter();
        let over = all.filter(|(_, s)| waits(s) == Some(false));
        let over: Vec<_> = over.map(|(id, _)| *id).collect();
        for id in over {
            self.begin(id);
        }
    }

    /// What there is of a prompt. Without its window a beginning is of no use to a model that has windows, but where the
    /// window comes from elsewhere.
    fn find(&self, id: SequenceId, needs_window: bool) -> Found {
        let mut found = Found::default();
        let Some(me) = self.sequences.get(&id) else {
            return found;
        };
        let Some(salt) = &me.salt else { return found };
        let tokens = &me.tokens[..me.kv_end() as usize];
        let mut parts_at = 0;
        let mut best = 0;
        let mut consider = |place: Sequence, common: u32, held: u32| {
            let (common, window) = match common.min(held) {
                // Its own window is there.
                common if !needs_window || common == held => (common, None),
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
        for cached in self.beginnings.of(salt) {
            let common = common(tokens, &cached.tokens);
            parts_at = parts_at.max(common);
            consider(cached.place, common, length(&cached.tokens));
        }
        let mut soon = (id, 0);
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
                if common > soon.1 {
                    soon = (*other, common);
                }
                reading.push((*other, common));
            } else if next >= common {
                parts_at = parts_at.max(common);
            }
        }
        let is_worth_it = soon.1 >= MIN_SHARED && soon.1 >= best + MIN_SHARED;
        found.waits = is_worth_it.then_some(soon);
        if needs_window {
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
    pub(super) fn leave(&mut self, sequence: ActiveSequence, pages: Option<Box<Unpaged>>) {
        let held = self.engine.held(sequence.place);
        let gives = sequence.gives_rows() && held >= MIN_SHARED;
        let Some(salt) = sequence.salt.clone().filter(|_| gives) else {
            self.engine.release(sequence.place);
            return;
        };
        let (mut cached, _admission) = sequence.into_cached(Some(salt));
        cached.tokens.truncate(held as usize);
        cached.pages = pages;
        self.beginnings.add(self.engine.as_mut(), cached);
        // Before the place is free, so that nobody finds the node idle.
        self.count_unpaged();
    }

    /// Tells how many sequences of ended requests are to become pages.
    fn count_unpaged(&self) {
        let unpaged = self.beginnings.unpaged();
        self.unpaged.store(unpaged, Ordering::SeqCst);
    }

    /// Starts to make pages of a sequence whose request has ended, where there is nothing else to do, or before
    /// it loses its rows.
    pub(super) fn start_paging(&mut self) {
        self.count_unpaged();
        let all = &mut self.beginnings.cached;
        let wait = all.iter().filter(|c| c.pages.is_some()).count();
        let are_many = wait * 2 > self.engine.capacity().cached as usize;
        let is_paging = !self.beginnings.retiring.is_empty();
        if wait == 0 || is_paging || (!are_many && self.is_busy()) {
            return;
        }
        let all = &mut self.beginnings.cached;
        let unpaged = all.iter().enumerate().filter(|(_, c)| c.pages.is_some());
        let Some((at, _)) = unpaged.min_by_key(|(_, c)| c.used) else {
            return;
        };
        let mut cached = all.swap_remove(at);
        let Some(pages) = cached.pages.take() else {
            return;
        };
        let contract = self.engine.contract();
        match Retiring::start(contract, cached, *pages, None) {
            Ok(retiring) => self.beginnings.retiring.push(retiring),
            Err(cached) => self.beginnings.cached.push(cached),
        }
    }

    /// One that runs alone begins: nothing else is in the engine.
    pub(super) fn clear_for_reproducible(&mut self) {
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
