//! Rows while llama.cpp computes: a callback sees what each layer writes to the cache, as soon as it is written.
//!
//! llama.cpp writes K and V of a layer by a node `SET_ROWS` each, whose result is the cache tensor (`cache_k_l0`, ...,
//! `llama_kv_cache::cpy_k`) and whose second source is the cell of each token. The callback of the graph's scheduler
//! (`cb_eval`, `ggml_backend_sched_compute_splits`) has the graph computed up to the second node of a layer and reads
//! these cells of both. A node has no other name than that of its tensor, so an engine compares what it sees with what
//! the cache holds when it loads a model.

use std::cell::RefCell;
use std::ffi::{CStr, c_void};
use std::ops::Range;

use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_sys_2::{
    GGML_OP_SET_ROWS, GGML_TYPE_F16, GGML_TYPE_I64, ggml_backend_tensor_get, ggml_tensor,
    llama_context_params,
};
use tandem_engine::LayerRows;
use tandem_kv::PlaneKind;

/// Takes rows as they come.
type Take<'a> = dyn FnMut(&LayerRows<'_>) + 'a;

/// What is looked for while a batch is computed.
struct Watch {
    /// Of each layer, K and V: the first token whose rows have not been seen.
    next: Vec<[u32; 2]>,
    take: *mut Take<'static>,
    /// The first node of a layer, which is read with the second.
    first: Option<Node>,
    /// The cells of a layer, to which memory is given once.
    cells: Vec<i64>,
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

/// Calls `compute`, which evaluates tokens from `start` on with a [`tapped`] context of so many layers, and gives rows
/// to `take` meanwhile, which must not panic. Gives the end of the tokens whose rows it has seen of all layers.
///
/// # Errors
/// Why rows could not be read; what was computed is of no use then.
pub(crate) fn watch<R>(
    layers: usize,
    start: u32,
    take: &mut Take<'_>,
    compute: impl FnOnce() -> R,
) -> (R, Result<u32, String>) {
    // SAFETY: the lifetime alone is changed, and `Unset` ends the use of the pointer before this function returns
    // or unwinds.
    let take = unsafe { std::mem::transmute::<*mut Take<'_>, *mut Take<'static>>(take) };
    let watch = Watch {
        next: vec![[start; 2]; layers],
        take,
        first: None,
        cells: Vec::new(),
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
        Some(Watch { next, .. }) => Ok(next.into_iter().flatten().min().unwrap_or(start)),
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
        let seen = watch.read_cells(node);
        let seen = seen.and_then(|()| nodes.try_for_each(|node| watch.written(node)));
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
}

impl Watch {
    /// The cells that a node has written to, which has just been computed.
    fn read_cells(&mut self, node: Node) -> Result<(), String> {
        // SAFETY: it is the node that llama.cpp calls with; a source of a node is null or lives as long as the node.
        let cells = unsafe { node.tensor.as_ref().and_then(|node| node.src[1].as_ref()) };
        let cells = cells.filter(|t| t.type_ == GGML_TYPE_I64 && t.ne[1..] == [1, 1, 1]);
        let cells = cells.ok_or("no list of cells")?;
        let count = usize::try_from(cells.ne[0]).map_err(|e| e.to_string())?;
        self.cells.resize(count, 0);
        // SAFETY: the node has been computed, so its source is in memory, `count` numbers of 8 bytes one after the
        // other (one dimension, not transposed), and so many are there to be written to.
        unsafe {
            ggml_backend_tensor_get(cells, self.cells.as_mut_ptr().cast(), 0, count * 8);
        }
        Ok(())
    }

    /// A node has been computed that writes rows of the next tokens.
    fn written(&mut self, node: Node) -> Result<(), String> {
        let Node {
            tensor,
            layer,
            kind,
        } = node;
        // SAFETY: it is the node that llama.cpp calls with, or one of the same graph before it.
        let node = unsafe { tensor.as_ref() }.ok_or("no node")?;
        let at = usize::from(kind == PlaneKind::Value);
        let next = self.next.get_mut(layer as usize);
        let next = &mut next.ok_or_else(|| format!("layer {layer} is not in the contract"))?[at];
        if node.type_ != GGML_TYPE_F16 {
            return Err(format!("rows of type {}", node.type_));
        }
        let count = self.cells.len();
        let rows = u64::try_from(node.ne[1]).unwrap_or(0);
        let is_inside = |cell: &i64| u64::try_from(*cell).is_ok_and(|cell| cell < rows);
        if !self.cells.iter().all(is_inside) {
            return Err("a cell outside of the cache".to_owned());
        }
        let tokens = *next..next.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        *next = tokens.end;
        let (given, cells, take) = (tokens.clone(), &self.cells, self.take);
        let read = |wanted: Range<u32>, out: &mut Vec<u8>| {
            let wanted = wanted.start.max(tokens.start)..wanted.end.min(tokens.end);
            let cells = wanted.map(|token| cells[(token - tokens.start) as usize]);
            read_rows(node, cells, out);
        };
        let rows = LayerRows {
            layer,
            kind,
            tokens: given,
            read: &read,
        };
        // SAFETY: `watch` is on the stack below, which has the only reference and does not use it meanwhile.
        unsafe { (*take)(&rows) };
        Ok(())
    }
}

/// Appends the rows of these cells, which are in the cache that the node writes to.
fn read_rows(node: &ggml_tensor, cells: impl Iterator<Item = i64>, out: &mut Vec<u8>) {
    let row = node.nb[1];
    let mut cells = cells.filter_map(|cell| usize::try_from(cell).ok());
    let mut run = cells.next().map(|first| first..first + 1);
    while let Some(Range { start, mut end }) = run.take() {
        for cell in cells.by_ref() {
            if cell != end {
                run = Some(cell..cell + 1);
                break;
            }
            end += 1;
        }
        let bytes = (end - start) * row;
        out.reserve(bytes);
        // SAFETY: the cells have been compared with the number of rows of the tensor, each of `nb[1]` bytes, and it
        // has been computed; `out` has room for so many bytes, all of which are written.
        unsafe {
            let to = out.as_mut_ptr().add(out.len());
            ggml_backend_tensor_get(node, to.cast(), start * row, bytes);
            out.set_len(out.len() + bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::PathBuf;

    use tandem_engine::{Capacity, KvEngine};
    use tandem_kv::Section;

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
}
