//! [`LlamaEngine`]: one model and one context.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use llama_cpp_2::DecodeError;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::session::LlamaStateSeqFlags;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use tandem_engine::compute::{check_items, check_share};
use tandem_engine::{
    Capacity, Compute, DecodeStep, EngineError, GiveRows, Item, KvCache, KvEngine, LayerRows,
    Sequence, Tokenizer,
};
use tandem_handoff::plane::plane_bytes;
use tandem_handoff::{Contract, KvBlock, Plane, Section};

use crate::blob::{self, BlobError};
use crate::build::backend_lock;
use crate::gguf::{Gguf, Value};
use crate::layout;
use crate::options::{LlamaError, LlamaOptions, check_options, context_params, model_params};
use crate::pool::{self, Seat};
use crate::tap::{self, Side, Staging};
use crate::turns::{self, Turn};
use crate::vocabulary::{Vocabulary, native};

/// What failed if it is not the layout of the cache.
const COMPUTING: &str = "computing";

/// Tokens of a step at the end of a prompt where the processor computes: short enough for little of a prompt to be
/// left to send behind it, long enough not to take longer. A GPU computes so few at a loss.
const TAIL_TOKENS: u32 = 64;

/// The process's one llama.cpp backend; the first call initialises it.
///
/// # Errors
/// If llama.cpp cannot be initialised.
pub fn shared_backend() -> Result<&'static LlamaBackend, String> {
    static BACKEND: OnceLock<Result<LlamaBackend, String>> = OnceLock::new();
    BACKEND
        .get_or_init(|| {
            llama_cpp_2::send_logs_to_tracing(llama_cpp_2::LogOptions::default());
            LlamaBackend::init().map_err(|e| e.to_string())
        })
        .as_ref()
        .map_err(Clone::clone)
}

self_cell::self_cell!(
    struct Loaded {
        owner: Arc<LlamaModel>,
        #[not_covariant]
        dependent: LlamaContext,
    }
);

/// What tandem knows about an open sequence.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    open: bool,
    /// Tokens in the cache of the full-attention layers.
    full: u32,
    /// True if the window of the last tokens is there too (always, without window layers).
    complete: bool,
    /// One past the last token of an incomplete window.
    window: u32,
}

/// A model in llama.cpp. Its first sequence ids are slots, the next one is the scratch.
pub struct LlamaEngine {
    cell: Loaded,
    contract: Contract,
    /// Why its KV is not handed over, if it is not. The contract then says which model it is, and nothing of its cache.
    stays: Option<String>,
    capacity: Capacity,
    tail_tokens: u32,
    by_layer: bool,
    /// Of each step, where the processor computes.
    threads: Option<u32>,
    takes_turns: bool,
    /// That of a step whose results are being used.
    turn: Option<Turn>,
    seat: Option<Seat>,
    rows_are_read: Side,
    /// Where rows of a GPU come to, from the first time on that they are read.
    staging: Option<Staging>,
    vocabulary: Arc<Vocabulary>,
    slots: Vec<Slot>,
    /// For a state, one after the other: the system takes as long to give memory of that size as a copy takes.
    state: Vec<u8>,
}

impl std::fmt::Debug for LlamaEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LlamaEngine")
            .field("architecture", &self.contract.architecture)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl LlamaEngine {
    /// Loads a GGUF file, derives its contract, and checks it against a real state of its cache. A model whose cache cannot
    /// be described [stays](KvCache::stays).
    ///
    /// # Errors
    /// See [`LlamaError`].
    pub fn load(path: &Path, options: &LlamaOptions) -> Result<Self, LlamaError> {
        let engine = match Self::load_as(path, options, None) {
            Err(LlamaError::Probe { source, .. }) if source.at != COMPUTING => {
                let reason = format!("llama.cpp's cache is not what the metadata say: {source}");
                return Self::load_as(path, options, Some(reason));
            }
            loaded => loaded?,
        };
        if engine.by_layer == options.by_layer || engine.stays.is_some() {
            return Ok(engine);
        }
        drop(engine);
        // A graph that nobody watches is not to be cut either.
        let options = LlamaOptions {
            by_layer: false,
            ..options.clone()
        };
        Self::load_as(path, &options, None)
    }

    /// `stays` says why the model does, if that is known already.
    fn load_as(
        path: &Path,
        options: &LlamaOptions,
        stays: Option<String>,
    ) -> Result<Self, LlamaError> {
        check_options(options)?;
        let (gguf, chat_template) = read(path, options)?;
        let fail = |reason: String| LlamaError::Llama {
            path: path.to_owned(),
            reason,
        };
        let backend = shared_backend().map_err(fail)?;
        let _lock = backend_lock();
        let model = LlamaModel::load_from_file(backend, path, &model_params(options))
            .map_err(|e| fail(format!("{e}; is the file complete?")))?;
        let (contract, stays) = described(&gguf, &model, stays)?;
        let mut capacity = options.fitting(&contract);
        if stays.is_some() {
            // Its state is not rows that another sequence can have, too.
            capacity.cached = 0;
        }
        let by_layer = options.by_layer && stays.is_none();
        let layers = model.n_layer();
        let model = Arc::new(model);
        let vocabulary = Arc::new(Vocabulary::new(Arc::clone(&model), chat_template));
        let cell = Loaded::try_new(model, |model| {
            let params = context_params(options, &capacity, stays.is_none());
            let params = if by_layer {
                tap::tapped(params)
            } else {
                params
            };
            model.new_context(backend, params)
        })
        .map_err(|e| {
            let c = capacity;
            fail(format!(
                "{e}; is there memory for {} x {} tokens of context?",
                c.sequences, c.tokens_per_sequence
            ))
        })?;
        let micro = capacity.microbatch_tokens;
        let on_gpu = options.gpu_layers > 0 && backend.supports_gpu_offload();
        let all_on_gpu = on_gpu && options.gpu_layers >= layers;
        // One thread waits for no other, so that it may share its core.
        let takes_turns = !all_on_gpu && options.threads > 1;
        let seat =
            takes_turns.then(|| cell.with_dependent(|_, c| pool::attach(c, options.threads)));
        let has_steps = !on_gpu && micro.is_multiple_of(TAIL_TOKENS);
        let mut engine = Self {
            cell,
            contract,
            stays,
            capacity,
            tail_tokens: if has_steps { TAIL_TOKENS } else { micro },
            by_layer,
            threads: (!all_on_gpu).then_some(options.threads),
            takes_turns,
            turn: None,
            seat: None,
            rows_are_read: if on_gpu { Side::Beside } else { Side::Here },
            staging: None,
            vocabulary,
            slots: vec![Slot::default(); open_sequences(&capacity) as usize],
            state: Vec::new(),
        };
        let probed = match engine.stays {
            None => engine.probe(),
            Some(_) => engine.probe_staying(),
        };
        probed.map_err(|source| LlamaError::Probe {
            path: path.to_owned(),
            source,
        })?;
        // It is for the thread that will compute, not for this one.
        engine.seat = seat.flatten();
        Ok(engine)
    }

    /// Evaluates two tokens and reads them back, so that a model whose cache is not what the
    /// contract says is refused at load time and not in the middle of a request. If its layers cannot be
    /// read while they are computed, they are not given.
    fn probe(&mut self) -> Result<(), BlobError> {
        let sequence = self.open().map_err(probed)?;
        let blocks = self.evaluate_two(sequence);
        let blocks = blocks.and_then(|blocks| self.write_third(sequence).map(|()| blocks));
        self.release(sequence);
        let (given, blocks) = blocks?;
        let mut planes = blocks.iter().flat_map(|block| &block.planes);
        if self.by_layer && !planes.all(|plane| given.contains(plane)) {
            self.gives_none("rows are others than those in the cache");
        }
        Ok(())
    }

    /// Evaluates two tokens and the logits of a third, so that a model that writes no text is refused at load time.
    fn probe_staying(&mut self) -> Result<(), BlobError> {
        let sequence = self.open().map_err(probed)?;
        let computed = self
            .prefill(sequence, 0, &[0, 0])
            .and_then(|()| self.verify(sequence, 2))
            .map_err(probed)
            .and_then(|()| self.write_third(sequence));
        self.release(sequence);
        computed
    }

    /// Evaluates the logits of the third token: those of a model that gives vectors are all the same.
    fn write_third(&mut self, sequence: Sequence) -> Result<(), BlobError> {
        let step = DecodeStep {
            sequence,
            token: 0,
            position: 2,
        };
        let rows = self.decode(&[step]).map_err(probed)?;
        let mut logits = rows.iter().flatten();
        let first = logits.next().copied().unwrap_or_default();
        if first.is_finite() && logits.any(|x| x.is_finite() && *x != first) {
            return Ok(());
        }
        Err(BlobError {
            at: COMPUTING,
            reason: "all logits are the same".to_owned(),
        })
    }

    /// That KV of this model is handed over.
    fn is_handed_over(&self) -> Result<(), EngineError> {
        match &self.stays {
            None => Ok(()),
            Some(reason) => Err(EngineError::Refused(format!(
                "KV of this model is not handed over: {reason}"
            ))),
        }
    }

    /// What is given of two tokens while they are computed, and what is in the cache then.
    fn evaluate_two(
        &mut self,
        sequence: Sequence,
    ) -> Result<(Vec<Plane>, Vec<KvBlock>), BlobError> {
        let mut given = Vec::new();
        let mut give = |rows: &LayerRows<'_>| {
            let mut data = Vec::new();
            (rows.read)(0..2, &mut data);
            given.push(Plane {
                layer: rows.layer,
                kind: rows.kind,
                data: data.into(),
            });
        };
        let chunk = Item::chunk(sequence, 0, &[0, 0]);
        let computed = self.evaluate(&[chunk], Some(&mut give)).map(drop);
        match computed {
            Err(reason) if self.by_layer => {
                self.gives_none(&reason.to_string());
                self.prefill(sequence, 0, &[0, 0]).map_err(probed)?;
            }
            computed => computed.map_err(probed)?,
        }
        self.read_state(native_id(sequence), false)?;
        let sections = blob::parse(&self.state, &self.contract, false)?;
        let blocks = sections.iter().map(|(section, cells)| {
            blob::to_block(&self.state, cells, &self.contract, *section, 0..2)
        });
        Ok((given, blocks.collect::<Result<_, BlobError>>()?))
    }

    /// Says why no layers are given from now on.
    fn gives_none(&mut self, reason: &str) {
        let architecture = &self.contract.architecture;
        tracing::warn!(%architecture, %reason, "layers cannot be read while they are computed: chunks are sent as a whole");
        self.by_layer = false;
    }

    /// Has rows read on this side, whatever computes.
    #[cfg(test)]
    pub(crate) fn read_rows_on(&mut self, side: Side) {
        self.rows_are_read = side;
    }

    fn scratch(&self) -> i32 {
        i32::try_from(open_sequences(&self.capacity)).unwrap_or(0)
    }

    fn slot(&self, sequence: Sequence) -> Result<Slot, EngineError> {
        match self.slots.get(sequence.0 as usize) {
            Some(slot) if slot.open => Ok(*slot),
            _ => Err(EngineError::Refused(format!(
                "sequence {} is not open",
                sequence.0
            ))),
        }
    }

    fn context<R>(&mut self, f: impl FnOnce(&mut LlamaContext<'_>) -> R) -> R {
        self.cell.with_dependent_mut(|_, context| f(context))
    }

    fn remove(&mut self, id: i32) {
        // Removing a whole sequence cannot fail (llama.h: "removing a whole sequence never fails").
        self.context(|c| c.kv_cache_seq_rm(id, None, None).is_ok());
    }

    /// Reads the state of a llama.cpp sequence into `self.state`.
    fn read_state(&mut self, id: i32, only_window: bool) -> Result<(), BlobError> {
        let flags = flags(only_window);
        let mut blob = std::mem::take(&mut self.state);
        let (size, written, blob) = self.context(|c| {
            let size = c.state_seq_get_size_ext(id, flags);
            blob.resize(size, 0);
            // SAFETY: `blob` has exactly the size that llama.cpp asks for with the same flags, and
            // nothing changes the cache between the two calls (`&mut` context).
            let written = unsafe { c.state_seq_get_data_ext(blob.as_mut_ptr(), id, flags) };
            (size, written, blob)
        });
        self.state = blob;
        if written != size || size == 0 {
            return Err(BlobError {
                at: "size",
                reason: format!("llama.cpp wrote {written} of {size} bytes"),
            });
        }
        Ok(())
    }

    /// Gives `self.state` to a llama.cpp sequence.
    fn set_state(&mut self, id: i32, only_window: bool) -> bool {
        let blob = std::mem::take(&mut self.state);
        // SAFETY: the blob was built by `blob::from_block` from a block that passed
        // `KvBlock::validate` for this engine's contract, which `probe` has shown to be the layout
        // that this llama.cpp writes; `id` is below `n_seq_max`.
        let is_set =
            self.context(|c| unsafe { c.state_seq_set_data_ext(&blob, id, flags(only_window)) });
        self.state = blob;
        is_set
    }

    fn run(&mut self, batch: &mut LlamaBatch<'_>) -> Result<(), EngineError> {
        let _turn = (self.takes_turns && self.turn.is_none()).then(turns::take);
        if let Some(seat) = self.seat {
            seat.take();
        }
        self.context(|c| c.decode(batch)).map_err(|e| match e {
            // It looks for room for the whole batch before it changes anything.
            DecodeError::NoKvCacheSlot => EngineError::NoRoom,
            e => EngineError::Failed(format!("llama_decode: {e}")),
        })
    }

    /// The tokens of all items as one batch, and which of them logits are asked for.
    fn batch<'a>(
        &self,
        items: &[Item<'_>],
        tokens: usize,
    ) -> Result<(LlamaBatch<'a>, Vec<i32>), EngineError> {
        let mut batch = LlamaBatch::new(tokens, 1);
        let mut asked = Vec::new();
        for item in items {
            let ids = [native_id(item.sequence)];
            for (position, token) in (item.start..).zip(item.tokens) {
                let is_asked = item.logits && position + 1 == item.end();
                if is_asked {
                    asked.push(batch.n_tokens());
                }
                let position = i32::try_from(position)
                    .map_err(|_| EngineError::Refused(format!("position {position}")))?;
                batch
                    .add(native(*token), position, &ids, is_asked)
                    .map_err(|e| EngineError::Failed(e.to_string()))?;
            }
        }
        Ok((batch, asked))
    }

    /// Computes a batch of these tokens and gives rows meanwhile.
    fn run_watched(
        &mut self,
        batch: &mut LlamaBatch<'_>,
        items: &[Item<'_>],
        give: &mut GiveRows<'_>,
    ) -> Result<(), EngineError> {
        let layers = self.contract.layers.len();
        let (side, mut staging) = (self.rows_are_read, self.staging.take());
        let rows = (items, &mut *give);
        let (result, seen) = tap::watch(layers, rows, (side, &mut staging), || self.run(batch));
        self.staging = staging;
        result?;
        let count: usize = items.iter().map(|item| item.tokens.len()).sum();
        let reason = match seen {
            Ok(end) if end as usize == count => return Ok(()),
            Ok(end) => format!("those of the tokens {end} to {count} of a call were not seen"),
            Err(reason) => reason,
        };
        let error = format!("rows of llama.cpp while it computes: {reason}");
        Err(EngineError::Failed(error))
    }

    /// Reads the state of some tokens of a llama.cpp sequence into `self.state`.
    fn read_part(
        &mut self,
        id: i32,
        tokens: &Range<u32>,
        only_window: bool,
    ) -> Result<(), EngineError> {
        let scratch = self.scratch();
        let range = (Some(tokens.start), Some(tokens.end));
        self.context(|c| c.kv_cache_seq_cp(id, scratch, range.0, range.1))
            .map_err(|e| EngineError::Failed(e.to_string()))?;
        // The tag must be gone before the next decode, or window cells are never recycled.
        let read = self.read_state(scratch, only_window);
        self.remove(scratch);
        read.map_err(failed)
    }

    /// Adds the rows of `self.state` to those of a sequence.
    ///
    /// llama.cpp sets the whole state of a sequence. So the rows become the state of the scratch,
    /// whose cells the sequence then has, too.
    fn add_state(&mut self, sequence: Sequence, only_window: bool) -> bool {
        let (id, scratch) = (native_id(sequence), self.scratch());
        let added = self.set_state(scratch, only_window)
            && self
                .context(|c| c.kv_cache_seq_cp(scratch, id, None, None))
                .is_ok();
        self.remove(scratch);
        added
    }

    fn import_full(
        &mut self,
        sequence: Sequence,
        block: &KvBlock,
        tokens: &Range<u32>,
    ) -> Result<(), EngineError> {
        blob::from_block(&mut self.state, block, tokens, &self.contract);
        if !self.add_state(sequence, false) {
            return Err(EngineError::NoRoom);
        }
        let slot = &mut self.slots[sequence.0 as usize];
        slot.full = tokens.end;
        slot.complete = !self.contract.has_window();
        slot.window = 0;
        Ok(())
    }

    /// The first part replaces the window that the sequence has, if any.
    fn import_window(
        &mut self,
        sequence: Sequence,
        block: &KvBlock,
        tokens: &Range<u32>,
    ) -> Result<(), EngineError> {
        blob::from_block(&mut self.state, block, tokens, &self.contract);
        let taken = if tokens.start == block.tokens.start {
            self.set_state(native_id(sequence), true)
        } else {
            self.add_state(sequence, true)
        };
        if !taken {
            self.clear(sequence);
            return Err(EngineError::Failed(
                "llama.cpp did not take the window; the sequence was cleared".into(),
            ));
        }
        let complete = tokens.end == block.tokens.end;
        let slot = &mut self.slots[sequence.0 as usize];
        slot.full = block.tokens.end;
        slot.complete = complete;
        slot.window = tokens.end;
        if complete {
            self.verify(sequence, block.tokens.end)
        } else {
            Ok(())
        }
    }

    /// Has a sequence that shares all cells of another one have a window of its own: that of the other one if it ends there,
    /// else a row that stands for it until it comes. llama.cpp uses no cell again that two sequences have, also when it
    /// has left both windows.
    fn own_window(
        &mut self,
        from: Sequence,
        to: Sequence,
        tokens: u32,
        is_all: bool,
    ) -> Result<(), EngineError> {
        if is_all {
            self.read_state(native_id(from), true).map_err(failed)?;
        } else {
            let row = zero_row(&self.contract, tokens - 1);
            blob::from_block(&mut self.state, &row, &row.tokens, &self.contract);
        }
        match self.set_state(native_id(to), true) {
            true => Ok(()),
            false => Err(EngineError::NoRoom),
        }
    }

    /// Checks llama.cpp's own idea of where a sequence ends.
    fn verify(&mut self, sequence: Sequence, end: u32) -> Result<(), EngineError> {
        let id = native_id(sequence);
        let last = self.context(|c| c.kv_cache_seq_pos_max(id));
        if i64::from(last) == i64::from(end) - 1 {
            return Ok(());
        }
        self.clear(sequence);
        Err(EngineError::Failed(format!(
            "llama.cpp holds positions up to {last}, expected {}; the sequence was cleared",
            i64::from(end) - 1
        )))
    }
}

/// A file of a model that writes text, and its chat template.
fn read(path: &Path, options: &LlamaOptions) -> Result<(Gguf, Option<String>), LlamaError> {
    let gguf = Gguf::read(path, options.fingerprints.as_deref(), &options.watch)?;
    layout::check_writes(&gguf)?;
    let chat_template = match gguf.metadata.get("tokenizer.chat_template") {
        Some(Value::Text(t)) => Some(t.clone()),
        _ => None,
    };
    Ok((gguf, chat_template))
}

/// What is known of a model's cache, or why that is not enough to hand its KV over.
fn described(
    gguf: &Gguf,
    model: &LlamaModel,
    stays: Option<String>,
) -> Result<(Contract, Option<String>), LlamaError> {
    let has_states = model.is_recurrent() || model.is_hybrid();
    let stays = stays.map_or_else(|| layout::contract(gguf).map_err(|e| e.why()), Err);
    match stays {
        Ok(_) if has_states => Ok((
            layout::unknown(gguf)?,
            Some("it keeps a recurrent state".to_owned()),
        )),
        Ok(contract) => Ok((contract, None)),
        Err(reason) => Ok((layout::unknown(gguf)?, Some(reason))),
    }
}

/// The window of one token, of zeros.
fn zero_row(contract: &Contract, position: u32) -> KvBlock {
    let tokens = position..position + 1;
    let mut row = KvBlock::with_room(contract, Section::Window, &tokens);
    for plane in &mut row.planes {
        let bytes = plane_bytes(contract, plane.layer, plane.kind, 1).unwrap_or(0);
        plane.data = vec![0; usize::try_from(bytes).unwrap_or(0)].into();
    }
    row.tokens = tokens;
    row
}

fn probed(e: EngineError) -> BlobError {
    BlobError {
        at: COMPUTING,
        reason: e.to_string(),
    }
}

fn failed(e: BlobError) -> EngineError {
    EngineError::Failed(e.to_string())
}

fn flags(only_window: bool) -> LlamaStateSeqFlags {
    if only_window {
        LlamaStateSeqFlags::PARTIAL_ONLY
    } else {
        LlamaStateSeqFlags::empty()
    }
}

/// Sequences that may be open at once; the scratch comes behind them.
const fn open_sequences(capacity: &Capacity) -> u32 {
    capacity.sequences + capacity.cached
}

fn native_id(sequence: Sequence) -> i32 {
    i32::try_from(sequence.0).unwrap_or(0)
}

impl KvEngine for LlamaEngine {
    fn tokenizer(&self) -> Arc<dyn Tokenizer> {
        Arc::clone(&self.vocabulary) as Arc<dyn Tokenizer>
    }
}

impl KvCache for LlamaEngine {
    fn contract(&self) -> &Contract {
        &self.contract
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn stays(&self) -> Option<&str> {
        self.stays.as_deref()
    }

    fn open(&mut self) -> Result<Sequence, EngineError> {
        let free = self.slots.iter().position(|s| !s.open);
        let index = free.ok_or(EngineError::Full(open_sequences(&self.capacity)))?;
        self.slots[index] = Slot {
            open: true,
            full: 0,
            complete: true,
            window: 0,
        };
        Ok(Sequence(u32::try_from(index).unwrap_or(0)))
    }

    fn share(&mut self, from: Sequence, to: Sequence, tokens: u32) -> Result<(), EngineError> {
        self.is_handed_over()?;
        check_share(self, from, to, tokens)?;
        // Full rows that still lack their window may lie there.
        self.clear(to);
        let (source, target) = (native_id(from), native_id(to));
        self.context(|c| c.kv_cache_seq_cp(source, target, None, Some(tokens)))
            .map_err(|e| EngineError::Failed(e.to_string()))?;
        let is_all = tokens == self.held(from);
        let slot = Slot {
            open: true,
            full: tokens,
            complete: is_all || !self.contract.has_window(),
            window: 0,
        };
        self.slots[to.0 as usize] = slot;
        if !self.contract.has_window() || tokens == 0 {
            return Ok(());
        }
        let owned = self.own_window(from, to, tokens, is_all);
        if owned.is_err() {
            self.clear(to);
        }
        owned
    }

    fn is_open(&self, sequence: Sequence) -> bool {
        self.slot(sequence).is_ok()
    }

    fn export(
        &mut self,
        sequence: Sequence,
        section: Section,
        tokens: Range<u32>,
    ) -> Result<KvBlock, EngineError> {
        self.is_handed_over()?;
        self.slot(sequence)?;
        let held = self.held(sequence);
        let window = section == Section::Window;
        let allowed = match section {
            Section::Full => tokens.start < tokens.end && tokens.end <= held,
            Section::Window => {
                self.contract.has_window()
                    && self.contract.window_start(held) <= tokens.start
                    && tokens.start < tokens.end
                    && tokens.end <= held
            }
        };
        if !allowed {
            return Err(EngineError::Refused(format!(
                "{section:?} tokens {}..{} are not held ({held} tokens are)",
                tokens.start, tokens.end
            )));
        }
        self.read_part(native_id(sequence), &tokens, window)?;
        let sections = blob::parse(&self.state, &self.contract, window).map_err(failed)?;
        let cells = sections.iter().find(|(s, _)| *s == section);
        let (_, cells) = cells.ok_or_else(|| EngineError::Failed("section is missing".into()))?;
        blob::to_block(&self.state, cells, &self.contract, section, tokens).map_err(failed)
    }

    fn import_part(
        &mut self,
        sequence: Sequence,
        block: &KvBlock,
        tokens: Range<u32>,
    ) -> Result<(), EngineError> {
        self.is_handed_over()?;
        let slot = self.slot(sequence)?;
        block
            .validate(&self.contract)
            .map_err(|e| EngineError::Refused(e.to_string()))?;
        // A model with only window layers has no full blocks; its window says where it ends.
        let only_windows = self.contract.section_layers(Section::Full).is_empty();
        let allowed = match block.section {
            Section::Full => {
                tokens.start == slot.full
                    && (!self.contract.has_window() || !slot.complete || slot.full == 0)
            }
            Section::Window => {
                let ends_here = block.tokens.end == slot.full;
                let goes_on = !slot.complete && ends_here && tokens.start == slot.window;
                (only_windows || ends_here)
                    && block.tokens.start == self.contract.window_start(block.tokens.end)
                    && (tokens.start == block.tokens.start || goes_on)
            }
        };
        let inside = block.tokens.start <= tokens.start
            && tokens.start < tokens.end
            && tokens.end <= block.tokens.end;
        if !allowed || !inside || block.tokens.end > self.capacity.tokens_per_sequence {
            return Err(EngineError::Refused(format!(
                "tokens {}..{} of {:?} block {}..{} do not continue the {} tokens held",
                tokens.start,
                tokens.end,
                block.section,
                block.tokens.start,
                block.tokens.end,
                slot.full
            )));
        }
        match block.section {
            Section::Full => self.import_full(sequence, block, &tokens),
            Section::Window => self.import_window(sequence, block, &tokens),
        }
    }

    fn held(&self, sequence: Sequence) -> u32 {
        match self.slots.get(sequence.0 as usize) {
            Some(slot) if slot.open && slot.complete => slot.full,
            _ => 0,
        }
    }

    fn truncate(&mut self, sequence: Sequence, tokens: u32) {
        let held = self.held(sequence);
        if tokens >= held && held > 0 {
            return;
        }
        let id = native_id(sequence);
        // A recurrent state does not go back, and what other caches have dropped is not known.
        let mut kept = if self.contract.has_window() || self.stays.is_some() {
            0
        } else {
            tokens.min(held)
        };
        if kept == 0
            || self
                .context(|c| c.kv_cache_seq_rm(id, Some(kept), None))
                .is_err()
        {
            self.remove(id);
            kept = 0;
        }
        if let Some(slot) = self.slots.get_mut(sequence.0 as usize) {
            slot.full = kept;
            slot.complete = true;
            slot.window = 0;
        }
    }

    fn release(&mut self, sequence: Sequence) {
        self.clear(sequence);
        if let Some(slot) = self.slots.get_mut(sequence.0 as usize) {
            slot.open = false;
        }
    }
}

impl Compute for LlamaEngine {
    fn tail_tokens(&self) -> u32 {
        self.tail_tokens
    }

    fn threads(&self) -> Option<u32> {
        self.threads
    }

    fn begin_step(&mut self) {
        if self.takes_turns && self.turn.is_none() {
            self.turn = Some(turns::take());
        }
    }

    fn end_step(&mut self) {
        self.turn = None;
    }

    fn gives_layers(&self) -> bool {
        self.by_layer
    }

    /// A processor's are. CUDA and Vulkan end the process where computing fails, Metal tells it only when the next part of
    /// the graph is to be computed (`ggml_metal_graph_compute`), when a layer that is wrong may have been given.
    fn gives_final_rows(&self) -> bool {
        self.rows_are_read == Side::Here || !cfg!(target_vendor = "apple")
    }

    fn evaluate(
        &mut self,
        items: &[Item<'_>],
        give: Option<&mut GiveRows<'_>>,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        check_items(self, self.vocabulary.len(), items)?;
        for item in items {
            // One that still lacks its window goes on from nothing.
            if !self.slot(item.sequence)?.complete {
                self.clear(item.sequence);
            }
        }
        let tokens = items.iter().map(|item| item.tokens.len()).sum();
        if tokens == 0 {
            return Ok(Vec::new());
        }
        let (mut batch, asked) = self.batch(items, tokens)?;
        let result = match give.filter(|_| self.by_layer) {
            Some(give) => self.run_watched(&mut batch, items, give),
            None => self.run(&mut batch),
        };
        if let Err(error) = result {
            if error != EngineError::NoRoom {
                items.iter().for_each(|item| self.clear(item.sequence));
            }
            return Err(error);
        }
        for item in items {
            self.slots[item.sequence.0 as usize].full = item.end();
        }
        Ok(self.context(|c| {
            // Logits wait for a GPU, which has only begun; where there are none, this does.
            if asked.is_empty() {
                c.synchronize();
            }
            let rows = asked.iter().map(|at| c.get_logits_ith(*at).to_vec());
            rows.collect()
        }))
    }
}
