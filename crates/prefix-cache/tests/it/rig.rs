//! Contracts, sequences and blocks whose bytes tell everything apart.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tandem_handoff::page::{Namespace, Origin};
use tandem_handoff::plane::plane_bytes;
use tandem_handoff::{
    Contract, ElementType, KvBlock, LayerKind, LayerSpec, Plane, PlaneKind, Section,
};
use tandem_prefix_cache::{DiskConfig, PageStore, PagesConfig};

/// A wait that no test should reach.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Memory that no test fills.
pub const PLENTY: u64 = 1 << 30;

pub const fn layer(kind: LayerKind, kv_heads: u32, key_dim: u32, value_dim: u32) -> LayerSpec {
    LayerSpec {
        kind,
        kv_heads,
        key_dim,
        value_dim,
    }
}

pub fn contract(window: u32, layers: Vec<LayerSpec>) -> Contract {
    Contract {
        layout_version: 1,
        engine: "fake 1".into(),
        architecture: "llama".into(),
        quantisation: "F16".into(),
        weights: "aa".repeat(32),
        tokenizer: "bb".repeat(32),
        rope: "base=10000".into(),
        rotation: "none".into(),
        window,
        key_type: ElementType::F16,
        value_type: ElementType::F16,
        layers,
    }
}

/// Two layers of 12 bytes a token: a page has 768 bytes of rows.
pub fn full_only() -> Contract {
    let full = LayerKind::Full;
    contract(0, vec![layer(full, 1, 2, 1), layer(full, 1, 1, 2)])
}

/// What a page of [`full_only`] counts as: rows, tokens and overhead.
pub const PAGE_COST: u64 = 768 + 256 + tandem_prefix_cache::limits::ENTRY_OVERHEAD;
/// The file of such a page: head, tokens and rows.
pub const PAGE_FILE: u64 = 160 + 256 + 768;

/// The same with a layer between them that has a window of 10 tokens.
pub fn mixed() -> Contract {
    let mut mixed = full_only();
    mixed.window = 10;
    mixed.layers.insert(1, layer(LayerKind::Window, 2, 1, 1));
    mixed
}

pub fn exact(contract: Contract) -> Namespace {
    Namespace::new(Arc::new(contract), b"salt", Origin::Exact)
}

pub fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|i| i * 7 + 3).collect()
}

/// A block of which every byte depends on layer, plane, position, place in the row and `copy`.
pub fn block(contract: &Contract, section: Section, tokens: Range<u32>, copy: u64) -> KvBlock {
    let mut planes = Vec::new();
    for layer in contract.section_layers(section) {
        for kind in [PlaneKind::Key, PlaneKind::Value] {
            let row = plane_bytes(contract, layer, kind, 1).unwrap();
            let byte = |token: u32, i: u64| {
                let place = u64::from(token) << 32 | u64::from(layer) << 17 | i << 1 | kind as u64;
                let mixed = (copy << 50 ^ place).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                (mixed ^ mixed >> 29)
                    .wrapping_mul(0xBF58_476D_1CE4_E5B9)
                    .to_be_bytes()[0]
            };
            let rows = tokens
                .clone()
                .flat_map(|t| (0..row).map(move |i| byte(t, i)));
            let data = rows.collect::<Vec<u8>>().into();
            planes.push(Plane { layer, kind, data });
        }
    }
    KvBlock {
        section,
        tokens,
        planes,
    }
}

pub fn full_block(contract: &Contract, tokens: Range<u32>, copy: u64) -> KvBlock {
    block(contract, Section::Full, tokens, copy)
}

/// The part of a block for some of its tokens.
pub fn part(whole: &KvBlock, tokens: Range<u32>) -> KvBlock {
    let planes = whole.planes.iter().map(|plane| {
        let row = plane.data.len() / whole.len() as usize;
        let at = |token: u32| (token - whole.tokens.start) as usize * row;
        Plane {
            data: plane.data[at(tokens.start)..at(tokens.end)].to_vec().into(),
            ..plane.clone()
        }
    });
    KvBlock {
        section: whole.section,
        planes: planes.collect(),
        tokens,
    }
}

pub fn in_memory(ram_bytes: u64) -> PageStore {
    PageStore::open(&PagesConfig {
        ram_bytes,
        disk: None,
    })
    .unwrap()
}

pub fn with_disk(ram_bytes: u64, dir: &Path, bytes: u64) -> PageStore {
    PageStore::open(&config(ram_bytes, dir, bytes)).unwrap()
}

pub fn config(ram_bytes: u64, dir: &Path, bytes: u64) -> PagesConfig {
    PagesConfig {
        ram_bytes,
        disk: Some(DiskConfig {
            dir: dir.to_owned(),
            bytes,
        }),
    }
}

/// Names and lengths of the files of pages and snapshots in a directory, sorted.
pub fn files(dir: &Path) -> Vec<(String, u64)> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, entry.metadata().unwrap().len())
    });
    let mut files: Vec<_> = entries
        .filter(|(name, _)| name.ends_with(".page") || name.ends_with(".snapshot"))
        .collect();
    files.sort();
    files
}

/// A directory that only its owner can read, as a store wants it; deleted with the test.
pub fn private_dir() -> tempfile::TempDir {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder.tempdir().unwrap()
}
