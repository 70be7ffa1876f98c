//! Fixtures loaded by llama.cpp.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::LazyLock;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use tandem_testkit::{Spec, ensure};

static BACKEND: LazyLock<LlamaBackend> = LazyLock::new(|| {
    let mut backend = LlamaBackend::init().unwrap();
    backend.void_logs();
    backend
});

/// Makes the fixture in a folder of its own and loads it.
pub fn load(spec: &Spec) -> LlamaModel {
    let dir = tempfile::tempdir().unwrap();
    load_file(&ensure(dir.path(), spec).unwrap())
}

pub fn load_file(path: &Path) -> LlamaModel {
    // Not mapped, so that the file can go; on the CPU, which is the reference.
    let params = LlamaModelParams::default()
        .with_use_mmap(false)
        .with_n_gpu_layers(0);
    LlamaModel::load_from_file(&BACKEND, path, &params).unwrap()
}

/// A context as the project's engine makes it: flash attention, f16 KV, unified, windows not kept whole.
pub fn context(model: &LlamaModel, tokens: u32) -> LlamaContext<'_> {
    let params = LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(tokens))
        .with_n_batch(512)
        .with_n_ubatch(512)
        .with_n_threads(1)
        .with_n_threads_batch(1)
        .with_type_k(KvCacheType::F16)
        .with_type_v(KvCacheType::F16)
        .with_flash_attention_policy(llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED)
        .with_kv_unified(true)
        .with_swa_full(false)
        .with_offload_kqv(false);
    model.new_context(&BACKEND, params).unwrap()
}
