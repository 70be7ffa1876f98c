//! How a model is loaded, and why it cannot be.

use std::path::PathBuf;

use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::model::params::LlamaModelParams;
use tandem_engine::Capacity;
use tandem_handoff::{Contract, Section};

use crate::blob::BlobError;
use crate::gguf::GgufError;
use crate::layout::LayoutError;
use crate::loading::{Loading, Watch};

/// Largest number of sequences: llama.cpp aborts the process beyond `LLAMA_MAX_SEQ` = 256 ids,
/// and one id is the scratch.
pub const MAX_SEQUENCES: u32 = 255;

/// Reads `NAME=PATH`: the name of a model, and its file.
///
/// # Errors
/// If it is not of that form.
pub fn parse_model(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), PathBuf::from(path)))
        }
        _ => Err("write NAME=PATH, such as code=models/coder.gguf".to_owned()),
    }
}

/// How to load a model.
#[derive(Debug, Clone)]
pub struct LlamaOptions {
    /// What should fit at once.
    pub capacity: Capacity,
    /// CPU threads.
    pub threads: u32,
    /// Layers on the GPU, where the build has one; all by default.
    pub gpu_layers: u32,
    /// True if the engine gives layers while it computes the next ones, where llama.cpp shows them. A GPU then waits
    /// behind each part of a graph, also where nothing is read, as in decoding, but not for what is read.
    pub by_layer: bool,
    /// Memory for the cache, in bytes: where it would take more, sequences are shorter than the capacity says.
    pub cache_bytes: Option<u64>,
    /// Folder of the fingerprints of files that were read before; without one each file is hashed.
    pub fingerprints: Option<PathBuf>,
    /// Who is told how far loading is.
    pub watch: Watch,
}

impl Default for LlamaOptions {
    fn default() -> Self {
        Self {
            capacity: Capacity {
                sequences: 4,
                cached: 0,
                tokens_per_sequence: 8192,
                prefill_tokens: 512,
                microbatch_tokens: 512,
            },
            threads: 1,
            gpu_layers: 999,
            by_layer: true,
            cache_bytes: None,
            fingerprints: None,
            watch: Watch::default(),
        }
    }
}

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LlamaError {
    /// The file.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The cache layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The model does not do what it is loaded for.
    #[error(
        "{path}: two tokens and the logits of a third could not be computed; is it a model that writes text? {source}"
    )]
    Probe {
        /// The model.
        path: PathBuf,
        /// What went wrong.
        source: BlobError,
    },
    /// An option is out of range.
    #[error("option `{option}`: {reason}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What is wrong and what is allowed.
        reason: String,
    },
    /// llama.cpp refused.
    #[error("{path}: llama.cpp: {reason}")]
    Llama {
        /// The model.
        path: PathBuf,
        /// Its message.
        reason: String,
    },
}

/// Sequences of ended requests that stay in the cache beside so many, unless somebody knows better: prompts that begin
/// alike come one behind the other. No more, because attention looks at the cells of all sequences, and passes over those
/// of others: with eight instead of two, eight answers of a small model with windows took a quarter longer.
#[must_use]
pub fn cached_sequences(sequences: u32) -> u32 {
    2.min(MAX_SEQUENCES.saturating_sub(sequences))
}

/// Sequences are not made shorter than this for want of memory: a prompt of one work would have no place.
const LEAST_TOKENS: u32 = 4096;

impl LlamaOptions {
    /// The capacity of a model with this cache, as far as there is memory for it. Windows are of one size, whatever
    /// the length of a sequence.
    pub(crate) fn fitting(&self, contract: &Contract) -> Capacity {
        let mut capacity = self.capacity;
        if let Some(bytes) = self.cache_bytes {
            let row = contract.token_bytes(&contract.section_layers(Section::Full));
            let rows = bytes / row.max(1) / u64::from(capacity.sequences.max(1));
            let fitting = u32::try_from(rows).unwrap_or(u32::MAX).max(LEAST_TOKENS);
            capacity.tokens_per_sequence = capacity.tokens_per_sequence.min(fitting);
        }
        capacity
    }
}

/// That they are in range.
pub(crate) fn check_options(options: &LlamaOptions) -> Result<(), LlamaError> {
    let c = options.capacity;
    let fail = |option, reason: String| Err(LlamaError::Option { option, reason });
    if c.sequences == 0 || c.sequences.saturating_add(c.cached) > MAX_SEQUENCES {
        return fail(
            "sequences",
            format!(
                "{} and {} cached, allowed 1..={MAX_SEQUENCES} together",
                c.sequences, c.cached
            ),
        );
    }
    if c.tokens_per_sequence < 2 || c.tokens_per_sequence > tandem_handoff::limits::MAX_TOKENS {
        return fail(
            "context",
            format!(
                "{}, allowed 2..={}",
                c.tokens_per_sequence,
                tandem_handoff::limits::MAX_TOKENS
            ),
        );
    }
    if c.microbatch_tokens == 0
        || !c.prefill_tokens.is_multiple_of(c.microbatch_tokens)
        || c.prefill_tokens == 0
    {
        return fail(
            "chunk",
            format!(
                "{} is not a multiple of the microbatch {}",
                c.prefill_tokens, c.microbatch_tokens
            ),
        );
    }
    if options.threads == 0 || options.threads > 512 {
        return fail("threads", format!("{}, allowed 1..=512", options.threads));
    }
    Ok(())
}

/// How llama.cpp loads the model.
pub(crate) fn model_params(options: &LlamaOptions) -> LlamaModelParams {
    let params = LlamaModelParams::default().with_n_gpu_layers(options.gpu_layers);
    if !options.watch.is_on() {
        return params;
    }
    let watch = options.watch.clone();
    params.with_progress_callback(move |part| {
        watch.tell(Loading::Loaded(part));
        true
    })
}

/// How llama.cpp makes the context. Only where KV is handed over are the scratch sequence and a certain layout of the
/// cache needed.
pub(crate) fn context_params(
    options: &LlamaOptions,
    c: &Capacity,
    is_handed_over: bool,
) -> LlamaContextParams {
    let attention = match is_handed_over {
        true => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        false => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_AUTO,
    };
    let tokens = c.sequences.saturating_mul(c.tokens_per_sequence);
    let threads = i32::try_from(options.threads).unwrap_or(1);
    LlamaContextParams::default()
        .with_n_ctx(std::num::NonZeroU32::new(tokens))
        .with_n_batch(c.prefill_tokens.max(c.sequences))
        .with_n_ubatch(c.microbatch_tokens)
        .with_n_seq_max(c.sequences + if is_handed_over { c.cached + 1 } else { 0 })
        .with_n_threads(threads)
        .with_n_threads_batch(threads)
        .with_flash_attention_policy(attention)
        .with_type_k(llama_cpp_2::context::params::KvCacheType::F16)
        .with_type_v(llama_cpp_2::context::params::KvCacheType::F16)
        .with_kv_unified(true)
        .with_swa_full(false)
        .with_offload_kqv(true)
}
