//! Rows while llama.cpp computes: a callback sees what each layer writes to the cache, as soon as it is written.
//!
//! llama.cpp writes K and V of a layer by a node `SET_ROWS` each, whose result is the cache tensor (`cache_k_l0`, ...,
//! `llama_kv_cache::cpy_k`) and whose second source is the cell of each token. The callback of the graph's scheduler
//! (`cb_eval`, `ggml_backend_sched_compute_splits`) has the graph computed up to the second node of a layer and reads
//! these cells of both. A node has no other name than that of its tensor, so an engine compares what it sees with what
//! the cache holds when it loads a model.
//!
//! A GPU does not compute while the callback runs. So the rows of a GPU are read on a thread of their own while it
//! computes the next layers: they lie in the cache, where nothing else is written to before the call is over. The only
//! exception are cells of a window that later tokens of a call no longer see, and whoever hands a prompt over wants no
//! such rows. They are read into memory that the GPU writes to by itself (pinned): into other memory a driver copies, and holds up who computes.

use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, mpsc};
use std::thread;

use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_sys_2::{
    GGML_OP_SET_ROWS, GGML_TYPE_F16, GGML_TYPE_I64, ggml_backend_buffer_free,
    ggml_backend_buffer_get_base, ggml_backend_buffer_get_type, ggml_backend_buffer_t,
    ggml_backend_buft_alloc_buffer, ggml_backend_buft_get_device,
    ggml_backend_dev_host_buffer_type, ggml_backend_tensor_get, ggml_tensor, llama_context_params,
};
use tandem_engine::{GiveRows, Item, LayerRows, Sequence};
use tandem_handoff::PlaneKind;

/// Where rows are read and given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// On the thread that computes: another one would take a processor's core.
    Here,
    /// On another one: a GPU computes meanwhile.
    Beside,
}

/// Memory that a GPU writes to by itself.
pub(crate) struct Staging {
    buffer: ggml_backend_buffer_t,
    bytes: *mut u8,
    size: usize,
    /// Bytes that have been read, from the first one on.
    filled: usize,
}

// SAFETY: the memory is the buffer's, which is used by one thread at a time and may be freed by any.
unsafe impl Send for Staging {}

impl Staging {
    /// So much for what computes into a tensor; `None` if that has no such memory, as a processor.
    fn of(tensor: &ggml_tensor, size: usize) -> Option<Self> {
        // SAFETY: a tensor of a cache, or what it is a view of, has a buffer, and a buffer a type; the device of a type
        // and its memory for the host may be null, which is looked at before it is used.
        unsafe {
            let buffer = tensor.view_src.as_ref().unwrap_or(tensor).buffer;
            let device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer));
            let memory = NonNull::new(device)
                .map(|device| ggml_backend_dev_host_buffer_type(device.as_ptr()))?;
            let memory = NonNull::new(memory)?;
            let buffer = ggml_backend_buft_alloc_buffer(memory.as_ptr(), size);
            let buffer = NonNull::new(buffer)?.as_ptr();
            let bytes = ggml_backend_buffer_get_base(buffer).cast();
            Some(Self {
                buffer,
                bytes,
                size,
                filled: 0,
            })
        }
    }

    /// Reads all rows into such memory, one after the other, which becomes as large as they are if it is not.
    fn fill(staging: &mut Option<Self>, rows: &Written) {
        let bytes = rows.cells.len() * rows.tensor.nb[1];
        if staging.as_ref().is_none_or(|staging| staging.size < bytes) {
            *staging = Self::of(&rows.tensor, bytes);
        }
        let Some(staging) = staging else {
            return;
        };
        staging.filled = 0;
        for (offset, bytes) in runs(&rows.tensor, rows.cells.iter().copied()) {
            // SAFETY: the cells have been compared with the number of rows of the tensor, and it has been computed; all
            // of them together are as many bytes as there is room for.
            unsafe {
                let to = staging.bytes.add(staging.filled);
                ggml_backend_tensor_get(&raw const rows.tensor, to.cast(), offset, bytes);
            }
            staging.filled += bytes;
        }
    }

    /// What has been read.
    fn filled(&self) -> &[u8] {
        // SAFETY: so many bytes of the buffer have been written to, which lives as long as this does.
        unsafe { std::slice::from_raw_parts(self.bytes, self.filled) }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: it was given by `ggml_backend_buft_alloc_buffer` and nothing else frees it.
        unsafe { ggml_backend_buffer_free(self.buffer) }
    }
}

/// To whom rows go.
enum To {
    Here(*mut GiveRows<'static>),
    /// As many as a batch has layers, twice, for each part that is computed at once.
    Beside(mpsc::Sender<Written>),
}

/// Where the tokens of an item are in a batch, of which llama.cpp computes one part after the other
/// (`llama_batch_allocr::split_simple`, for a cache that all sequences share).
struct InBatch {
    sequence: Sequence,
    /// In the batch.
    tokens: Range<u32>,
    /// The position of the first one.
    position: u32,
}

/// What is looked for while a batch is computed.
struct Watch {
    items: Arc<[InBatch]>,
    /// Of each layer, K and V: the first token of the batch whose rows have not been seen.
    next: Vec<[u32; 2]>,
    to: To,
    /// The first node of a layer, which is read with the second.
    first: Option<Node>,
    /// Lists of cells of a part that is computed at once, which all of its layers have.
    lists: Vec<Cells>,
    fault: Option<String>,
}

/// A node that writes K or V of a layer to the cache.
#[derive(Clone, Copy)]
struct Node {
    tensor: *const ggml_tensor,
    layer: u32,
    kind: PlaneKind,
}

thread_local! {
    /// Set while [`watch`] computes: llama.cpp calls back on the thread that called it.
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

// The only field of `LlamaContextParams` is the `llama_context_params`: nothing else would have room.
const _: () = assert!(size_of::<LlamaContextParams>() == size_of::<llama_context_params>());

/// Parameters of a context whose graphs can be watched.
pub(crate) fn tapped(mut params: LlamaContextParams) -> LlamaContextParams {
    // SAFETY: `LlamaContextParams` (exactly pinned) has one field, of type `llama_context_params`, and both are
    // as large, so that the field lies where the struct does.
    let raw = unsafe { &mut *(&raw mut params).cast::<llama_context_params>() };
    raw.cb_eval = Some(see);
    params
}

/// Calls `compute`, which evaluates the tokens of these items, one item after the other in one batch, with a [`tapped`]
/// context of so many layers, and gives rows meanwhile, which must not panic. Gives how many tokens there are whose rows
/// it has seen of all layers; all of those have been given then.
///
/// # Errors
/// Why rows could not be read; what was computed is of no use then.
pub(crate) fn watch<R>(
    layers: usize,
    (items, give): (&[Item<'_>], &mut GiveRows<'_>),
    (side, staging): (Side, &mut Option<Staging>),
    compute: impl FnOnce() -> R,
) -> (R, Result<u32, String>) {
    let items = in_batch(items);
    match side {
        Side::Here => {
            // SAFETY: the lifetime alone is changed, and `watch_to` ends the use of the pointer before it returns or
            // unwinds.
            let give =
                unsafe { std::mem::transmute::<*mut GiveRows<'_>, *mut GiveRows<'static>>(give) };
            watch_to(To::Here(give), layers, items, compute)
        }
        Side::Beside => thread::scope(|scope| {
            let (to, written) = mpsc::channel::<Written>();
            // Ends when `watch_to` has dropped the sender; the scope waits for that.
            let reads = move || {
                for one in written {
                    one.give_staged(staging, give);
                }
            };
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, reads) {
                // Nobody receives what is sent then, which is a fault.
                tracing::error!(%error, "no thread to read rows on");
            }
            watch_to(To::Beside(to), layers, items, compute)
        }),
    }
}

fn in_batch(items: &[Item<'_>]) -> Arc<[InBatch]> {
    let mut next = 0;
    let items = items.iter().map(|item| {
        let start = next;
        next += item.end() - item.start;
        InBatch {
            sequence: item.sequence,
            tokens: start..next,
            position: item.start,
        }
    });
    items.collect()
}

fn watch_to<R>(
    to: To,
    layers: usize,
    items: Arc<[InBatch]>,
    compute: impl FnOnce() -> R,
) -> (R, Result<u32, String>) {
    let watch = Watch {
        items,
        next: vec![[0; 2]; layers],
        to,
        first: None,
        lists: Vec::new(),
        fault: None,
    };
    let unset = Unset;
    WATCH.set(Some(watch));
    let result = compute();
    let watch = WATCH.take();
    drop(unset);
    let seen = match watch {
        None => Err("another watch began meanwhile".to_owned()),
        Some(Watch {
            fault: Some(fault), ..
        }) => Err(fault),
        Some(Watch { next, .. }) => Ok(next.into_iter().flatten().min().unwrap_or(0)),
    };
    (result, seen)
}

/// Ends a watch, also when what is watched panics.
struct Unset;

impl Drop for Unset {
    fn drop(&mut self) {
        WATCH.take();
    }
}

/// Called before a node of a graph is computed (`ask`), to say whether it is to be seen, and then when it has been.
/// False the second time stops this part of the graph; what is computed then is of no use.
unsafe extern "C" fn see(tensor: *mut ggml_tensor, ask: bool, _: *mut c_void) -> bool {
    WATCH.with_borrow_mut(|watch| {
        let Some(watch) = watch.as_mut().filter(|w| w.fault.is_none()) else {
            return false;
        };
        let Some(node) = Node::of(tensor) else {
            return false;
        };
        if ask {
            let is_other = |first: Node| first.layer == node.layer && first.kind != node.kind;
            if watch.first.is_some_and(is_other) {
                return true;
            }
            watch.first = Some(node);
            return false;
        }
        let first = watch.first.take();
        let mut nodes = first.into_iter().chain([node]);
        // K and V of a token lie in the same cell. The list is read behind the node that has just used it: its memory
        // may be another's later.
        let seen = watch.cells(node);
        let seen = seen.and_then(|cells| nodes.try_for_each(|node| watch.written(node, &cells)));
        watch.fault = seen.err();
        watch.fault.is_none()
    })
}

impl Node {
    /// What a node of a graph writes to the cache; `None` of any other.
    fn of(tensor: *const ggml_tensor) -> Option<Self> {
        // SAFETY: llama.cpp calls with a node of its graph, which it does not change meanwhile.
        let node = unsafe { tensor.as_ref() }?;
        if node.op != GGML_OP_SET_ROWS {
            return None;
        }
        // SAFETY: what a node is a view of is null or lives as long as the node; ggml ends each name with a zero.
        let name = unsafe { CStr::from_ptr(node.view_src.as_ref()?.name.as_ptr()) };
        let name = name.to_str().ok()?;
        let (kind, layer) = match name.strip_prefix("cache_k_l") {
            Some(layer) => (PlaneKind::Key, layer),
            None => (PlaneKind::Value, name.strip_prefix("cache_v_l")?),
        };
        let layer = layer.parse().ok()?;
        #[cfg(test)]
        let layer = tests::seen_as(layer)?;
        Some(Self {
            tensor,
            layer,
            kind,
        })
    }

    /// Where it writes to.
    fn list<'a>(self) -> Option<&'a ggml_tensor> {
        // SAFETY: it is the node that llama.cpp calls with, or one of the same graph before it; a source of a node is
        // null or lives as long as the graph.
        let list = unsafe { self.tensor.as_ref()?.src[1].as_ref() };
        list.filter(|t| t.type_ == GGML_TYPE_I64 && t.ne[1..] == [1, 1, 1])
    }
}

/// A list of cells that nodes of a graph have in common.
struct Cells {
    list: *const ggml_tensor,
    /// The first token of the batch: a graph of later ones may have its lists where this one had them.
    start: u32,
    cells: Arc<[i64]>,
}

impl Watch {
    /// The first token of the batch whose rows a node writes.
    fn start(&self, node: Node) -> u32 {
        let next = self.next.get(node.layer as usize);
        next.map_or(0, |next| next[usize::from(node.kind == PlaneKind::Value)])
    }

    /// The cells that a node has written to, which has just been computed.
    fn cells(&mut self, node: Node) -> Result<Arc<[i64]>, String> {
        let list = node.list().ok_or("no list of cells")?;
        let start = self.start(node);
        self.lists.retain(|known| known.start == start);
        let mut lists = self.lists.iter();
        if let Some(known) = lists.find(|known| std::ptr::eq(known.list, list)) {
            return Ok(Arc::clone(&known.cells));
        }
        let count = usize::try_from(list.ne[0]).map_err(|e| e.to_string())?;
        let mut cells = vec![0_i64; count];
        // SAFETY: the node has been computed, so its source is in memory, `count` numbers of 8 bytes one after the
        // other (one dimension, not transposed), and so many are there to be written to.
        unsafe {
            ggml_backend_tensor_get(list, cells.as_mut_ptr().cast(), 0, count * 8);
        }
        let cells: Arc<[i64]> = cells.into();
        self.lists.push(Cells {
            list,
            start,
            cells: Arc::clone(&cells),
        });
        Ok(cells)
    }

    /// A node has been computed that writes rows of the next tokens to these cells.
    fn written(&mut self, node: Node, cells: &Arc<[i64]>) -> Result<(), String> {
        let Node {
            tensor,
            layer,
            kind,
        } = node;
        // SAFETY: it is the node that llama.cpp calls with, or one of the same graph before it.
        let tensor = unsafe { tensor.as_ref() }.ok_or("no node")?;
        let at = usize::from(kind == PlaneKind::Value);
        let next = self.next.get_mut(layer as usize);
        let next = &mut next.ok_or_else(|| format!("layer {layer} is not in the contract"))?[at];
        if tensor.type_ != GGML_TYPE_F16 {
            return Err(format!("rows of type {}", tensor.type_));
        }
        let rows = u64::try_from(tensor.ne[1]).unwrap_or(0);
        let is_inside = |cell: &i64| u64::try_from(*cell).is_ok_and(|cell| cell < rows);
        if !cells.iter().all(is_inside) {
            return Err("a cell outside of the cache".to_owned());
        }
        let tokens = *next..next.saturating_add(u32::try_from(cells.len()).unwrap_or(u32::MAX));
        *next = tokens.end;
        let written = Written {
            tensor: *tensor,
            layer,
            kind,
            tokens,
            cells: Arc::clone(cells),
            items: Arc::clone(&self.items),
        };
        match &self.to {
            // SAFETY: what `give` points to outlives the watch, which has the only reference to it.
            To::Here(give) => written.give(unsafe { &mut **give }),
            To::Beside(to) => {
                let sent = to.send(written);
                sent.map_err(|_| "no thread reads them".to_owned())?;
            }
        }
        Ok(())
    }
}

/// Rows that have been written to the cache.
struct Written {
    /// A node whose result is the cache. The node itself may be gone when rows are read, but not the tensor of the
    /// cache that it is a view of, nor its memory.
    tensor: ggml_tensor,
    layer: u32,
    kind: PlaneKind,
    /// In the batch.
    tokens: Range<u32>,
    cells: Arc<[i64]>,
    items: Arc<[InBatch]>,
}

// SAFETY: the pointers of a tensor are read by `ggml_backend_tensor_get` alone, which any thread may call while another
// one computes: every backend reads on a queue of its own, or copies memory that both see.
unsafe impl Send for Written {}

impl Written {
    /// Gives them straight from the cache.
    fn give(&self, give: &mut GiveRows<'_>) {
        self.give_by(give, &|wanted, out| self.read(wanted, out));
    }

    /// Gives them from memory that they are read into all at once, where there is such memory.
    fn give_staged(&self, staging: &mut Option<Staging>, give: &mut GiveRows<'_>) {
        let staged = OnceCell::new();
        let staging = Cell::new(Some(staging));
        self.give_by(give, &|wanted, out| {
            let staged = staged.get_or_init(|| {
                let staging = staging.take()?;
                Staging::fill(staging, self);
                staging.as_ref()
            });
            let Some(staged) = staged else {
                return self.read(wanted, out);
            };
            let row = self.tensor.nb[1];
            let at = |token: u32| (token - self.tokens.start) as usize * row;
            out.extend_from_slice(&staged.filled()[at(wanted.start)..at(wanted.end)]);
        });
    }

    /// Gives those of each item; `read` takes tokens of the batch.
    fn give_by(&self, give: &mut GiveRows<'_>, read: &dyn Fn(Range<u32>, &mut Vec<u8>)) {
        for item in self.items.iter() {
            let (first, end) = (
                item.tokens.start.max(self.tokens.start),
                item.tokens.end.min(self.tokens.end),
            );
            if first >= end {
                continue;
            }
            let position = |at: u32| at - item.tokens.start + item.position;
            let tokens = position(first)..position(end);
            give(&LayerRows {
                sequence: item.sequence,
                layer: self.layer,
                kind: self.kind,
                tokens: tokens.clone(),
                read: &|wanted, out| {
                    let wanted = wanted.start.max(tokens.start)..wanted.end.min(tokens.end);
                    if !wanted.is_empty() {
                        let at = |position: u32| position - item.position + item.tokens.start;
                        read(at(wanted.start)..at(wanted.end), out);
                    }
                },
            });
        }
    }

    /// Appends the rows of some tokens from the cache.
    fn read(&self, wanted: Range<u32>, out: &mut Vec<u8>) {
        let cells = wanted.map(|token| self.cells[(token - self.tokens.start) as usize]);
        for (offset, bytes) in runs(&self.tensor, cells) {
            out.reserve(bytes);
            // SAFETY: the cells have been compared with the number of rows of the tensor, each of `nb[1]` bytes, and it
            // has been computed; `out` has room for so many bytes, all of which are written.
            unsafe {
                let to = out.as_mut_ptr().add(out.len());
                ggml_backend_tensor_get(&raw const self.tensor, to.cast(), offset, bytes);
                out.set_len(out.len() + bytes);
            }
        }
    }
}

/// Where rows of these cells lie in the cache that a node writes to, and how many bytes they are: those of cells that
/// follow one another in one piece.
fn runs(
    node: &ggml_tensor,
    cells: impl Iterator<Item = i64>,
) -> impl Iterator<Item = (usize, usize)> {
    let row = node.nb[1];
    let mut cells = cells
        .filter_map(|cell| usize::try_from(cell).ok())
        .peekable();
    std::iter::from_fn(move || {
        let start = cells.next()?;
        let mut end = start + 1;
        while cells.next_if_eq(&end).is_some() {
            end += 1;
        }
        Some((start * row, (end - start) * row))
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::PathBuf;
    use std::thread;

    use tandem_engine::{Capacity, Compute, Item, KvCache, LayerRows};
    use tandem_handoff::Section;

    use super::Side;
    use crate::{LlamaEngine, LlamaOptions};

    /// As what a layer is seen on this thread, as if llama.cpp named its tensors otherwise.
    type SeenAs = fn(u32) -> Option<u32>;

    thread_local! {
        static SEEN_AS: Cell<SeenAs> = const { Cell::new(Some) };
    }

    pub(super) fn seen_as(layer: u32) -> Option<u32> {
        SEEN_AS.get()(layer)
    }

    fn load(by_layer: bool) -> LlamaEngine {
        let model = "../../models/nano-writer.gguf";
        let options = LlamaOptions {
            capacity: Capacity {
                sequences: 1,
                cached: 0,
                tokens_per_sequence: 64,
                prefill_tokens: 64,
                microbatch_tokens: 64,
            },
            threads: 1,
            by_layer,
            ..LlamaOptions::default()
        };
        LlamaEngine::load(
            &PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(model),
            &options,
        )
        .unwrap()
    }

    #[test]
    fn layers_that_cannot_be_seen_are_not_given() {
        let rows = |engine: &mut LlamaEngine| {
            let sequence = engine.open().unwrap();
            let tokens: Vec<u32> = (5..25).collect();
            engine.prefill(sequence, 0, &tokens).unwrap();
            Section::ALL.map(|section| engine.export(sequence, section, 0..20).unwrap())
        };
        let expected = rows(&mut load(false));
        let hidden: [SeenAs; 4] = [
            // No layer has a name that we know.
            |_| None,
            // One has not.
            |layer| (layer != 2).then_some(layer),
            // Two have each other's.
            |layer| Some([1, 0][..].get(layer as usize).map_or(layer, |other| *other)),
            // One is not in the contract.
            |layer| Some(if layer == 0 { 99 } else { layer }),
        ];
        for (number, seen_as) in hidden.into_iter().enumerate() {
            SEEN_AS.set(seen_as);
            let mut engine = load(true);
            assert!(!engine.gives_layers(), "{number}");
            assert_eq!(rows(&mut engine), expected, "{number}");
        }
        SEEN_AS.set(Some);
        let mut engine = load(true);
        assert!(engine.gives_layers());
        assert_eq!(rows(&mut engine), expected);
    }

    #[test]
    fn rows_are_the_same_on_another_thread() {
        let mut engine = load(true);
        let tokens: Vec<u32> = (5..64).collect();
        // Steps of 16 tokens, and the rest.
        let steps = || (0..).step_by(16).zip(tokens.chunks(16));
        let thread = thread::current().id();
        let [here, beside] = [Side::Here, Side::Beside].map(|side| {
            engine.read_rows_on(side);
            let sequence = engine.open().unwrap();
            let mut all = Vec::new();
            for (start, tokens) in steps() {
                let mut give = |given: &LayerRows<'_>| {
                    assert_eq!(thread::current().id() == thread, side == Side::Here);
                    let mut rows = Vec::new();
                    (given.read)(given.tokens.clone(), &mut rows);
                    all.push((given.layer, given.kind, given.tokens.clone(), rows));
                };
                engine
                    .evaluate(&[Item::chunk(sequence, start, tokens)], Some(&mut give))
                    .unwrap();
            }
            engine.release(sequence);
            all
        });
        let layers = engine.contract().layers.len();
        assert_eq!(here.len(), 4 * 2 * layers);
        assert_eq!(here, beside);
    }
}
