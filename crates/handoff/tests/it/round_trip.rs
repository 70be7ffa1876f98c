//! What is sent is received: once, contiguously, byte for byte.

use proptest::prelude::*;
use tandem_handoff::codec::Codec;
use tandem_handoff::frame::Kind;
use tandem_handoff::limits::{
    MAX_CHUNK_TOKENS, MAX_SEGMENT_PAYLOAD, MAX_WINDOW_BYTES, TARGET_BLOCK_BYTES,
};
use tandem_handoff::page::PAGE_TOKENS;
use tandem_handoff::segment::{block_tokens, next_block, window_bytes};
use tandem_handoff::{Contract, KvBlock, LayerKind, Section};

use super::driver::{
    Manner, Recording, blocks, contract, full, layer, mixed, run, run_with, split, windowed,
};

/// Runs a handoff in both acknowledgement orders and checks it against what was put in.
fn check(contract: &Contract, kv_end: u32, chunks: &[u32]) -> Recording {
    for lazy in [true, false] {
        let got = run(contract, kv_end, chunks, lazy);
        check_contiguous(contract, kv_end, &got.applied);
        check_segments(&got);
    }
    let beats = Manner {
        lazy: true,
        beats: true,
        codec: Codec::Raw,
        mixed: 0,
    };
    let beaten = run_with(contract, kv_end, blocks(contract, kv_end, chunks), beats);
    check_segments(&beaten);
    let exact = Manner {
        beats: false,
        codec: Codec::Plane,
        ..beats
    };
    let encoded = run_with(contract, kv_end, blocks(contract, kv_end, chunks), exact);
    assert_eq!(encoded.applied, beaten.applied);
    for (lazy, mixed) in [(true, 3), (false, 2)] {
        let order = Manner {
            lazy,
            mixed,
            ..beats
        };
        let order = run_with(contract, kv_end, blocks(contract, kv_end, chunks), order);
        assert_eq!(order.applied, beaten.applied);
        check_segments(&order);
    }
    run(contract, kv_end, chunks, true)
}

fn check_contiguous(contract: &Contract, kv_end: u32, applied: &[KvBlock]) {
    let mut at = 0;
    let mut windows = 0;
    for block in applied {
        match block.section {
            Section::Full => {
                assert_eq!(windows, 0, "full block after the window");
                assert_eq!(block.tokens.start, at);
                at = block.tokens.end;
            }
            Section::Window => {
                windows += 1;
                let start = kv_end.saturating_sub(contract.window);
                assert_eq!(block.tokens, start..kv_end);
            }
        }
    }
    let has = |kind| contract.layers.iter().any(|l| l.kind == kind);
    assert_eq!(at, if has(LayerKind::Full) { kv_end } else { 0 });
    assert_eq!(
        windows,
        u32::from(has(LayerKind::Window) && kv_end > 0),
        "windows"
    );
}

fn check_segments(got: &Recording) {
    let mut bytes = 0;
    for (number, frame) in (0u32..).zip(&got.forward) {
        let (header, payload) = split(frame);
        assert_eq!(header.sequence, number);
        if header.kind == Kind::Segment {
            assert!(header.payload_len <= MAX_SEGMENT_PAYLOAD);
            bytes += payload.len() as u64;
        }
    }
    let sent: u64 = got.sent.iter().map(KvBlock::bytes).sum();
    assert_eq!(bytes, sent, "every byte travels once");
}

fn segments(got: &Recording) -> Vec<(std::ops::Range<u16>, std::ops::Range<u32>)> {
    got.forward
        .iter()
        .map(|f| split(f).0)
        .filter(|h| h.kind == Kind::Segment)
        .map(|h| (h.layer_start..h.layer_end, h.token_start..h.token_end))
        .collect()
}

#[test]
fn shapes_and_chunkings() {
    let contracts = [
        contract(0, vec![full(2, 4, 4)]),
        contract(0, vec![full(2, 4, 4), full(1, 8, 2), full(3, 1, 5)]),
        mixed(),
        contract(4, vec![windowed(1, 2, 3), full(2, 2, 2), windowed(1, 1, 1)]),
        contract(4, vec![windowed(2, 2, 2)]),
        contract(1, vec![windowed(2, 2, 2), windowed(1, 3, 3)]),
        contract(1000, vec![windowed(1, 1, 1), full(1, 1, 1)]),
    ];
    let chunkings: [(u32, &[u32]); 8] = [
        (1, &[]),
        (2, &[1, 1]),
        (9, &[9]),
        (9, &[3, 3, 3]),
        (9, &[5, 1, 2]),
        (4, &[2, 2]),
        (5, &[4]),
        // More blocks than credit.
        (12, &[1; 12]),
    ];
    for contract in &contracts {
        for (kv_end, chunks) in chunkings {
            check(contract, kv_end, chunks);
        }
    }
}

#[test]
fn blocks_that_grow_together_begin_in_order() {
    // Of a block of 8 tokens the first segment has two layers, of one of 6 it has one.
    let layers = vec![full(1, 3, 3), full(4, 9, 6), full(2, 6, 4), full(1, 6, 5)];
    check(&contract(0, layers), 14, &[8]);
}

#[test]
fn a_prompt_of_one_token_has_no_blocks() {
    for contract in [
        mixed(),
        contract(0, vec![full(1, 1, 1)]),
        contract(4, vec![windowed(1, 1, 1)]),
    ] {
        let got = check(&contract, 0, &[]);
        assert!(got.applied.is_empty());
        assert_eq!((got.forward.len(), got.backward.len()), (2, 2));
    }
}

#[test]
fn interleaved_sections_travel_together() {
    let contract = contract(2, vec![full(1, 1, 1), windowed(1, 1, 1), full(1, 1, 1)]);
    let got = check(&contract, 3, &[3]);
    assert_eq!(segments(&got), [(0..3, 0..3), (1..2, 1..3)]);
}

#[test]
fn segments_are_cut_at_layers_near_the_target() {
    // 16 KiB for each token and layer, 48 tokens: 768 KiB for each layer, 3.75 MiB in all.
    let contract = contract(0, vec![full(16, 256, 256); 5]);
    let got = check(&contract, 48, &[]);
    assert_eq!(segments(&got), [(0..2, 0..48), (2..5, 0..48)]);
}

#[test]
fn a_layer_larger_than_a_segment_is_cut_by_tokens() {
    // 256 KiB for each token; 35 tokens are 8.75 MiB, which is nearest to four times 2 MiB.
    let contract = contract(0, vec![full(1, 1, 1), full(64, 1024, 1024), full(1, 1, 1)]);
    let got = check(&contract, 37, &[35, 2]);
    let large = [(1..2, 0..8), (1..2, 8..17), (1..2, 17..26)];
    let mut expected = vec![(0..1, 0..35)];
    expected.extend(large);
    // The last cut ends the layer, and the layers after it go on from the start of the block.
    expected.extend([(1..2, 26..35), (2..3, 0..35), (0..3, 35..37)]);
    assert_eq!(segments(&got), expected);
}

#[test]
fn the_largest_row_fits_a_segment() {
    // 4 MiB for each token, the most that a valid contract allows.
    let contract = contract(3, vec![windowed(1024, 1024, 1024)]);
    contract.validate().unwrap();
    let got = check(&contract, 3, &[]);
    assert_eq!(segments(&got), [(0..1, 0..1), (0..1, 1..2), (0..1, 2..3)]);
    assert!(contract.token_bytes(&[0]) <= u64::from(MAX_SEGMENT_PAYLOAD));
    assert!(contract.token_bytes(&[0]) <= MAX_WINDOW_BYTES);
}

#[test]
fn blocks_are_whole_pages_near_the_target() {
    let table = [
        // 4 MiB for each token: less than a page of them.
        (contract(0, vec![full(1024, 1024, 1024)]), 2),
        (contract(0, vec![full(1024, 1024, 1024); 9]), 1),
        // 128 KiB and 36 KiB for each token: 64 tokens, and 227 rounded down.
        (contract(0, vec![full(8, 128, 128); 32]), 64),
        (
            contract(
                9,
                [full(8, 64, 64), windowed(9, 9, 9)]
                    .iter()
                    .cycle()
                    .take(36)
                    .cloned()
                    .collect(),
            ),
            192,
        ),
        (contract(0, vec![full(1, 1, 1)]), MAX_CHUNK_TOKENS),
        (contract(9, vec![windowed(1, 1, 1)]), MAX_CHUNK_TOKENS),
    ];
    for (contract, expected) in table {
        let tokens = block_tokens(&contract, Section::Full);
        assert_eq!(tokens, expected);
        // A window is cut like full rows of the same layers.
        let mut windows = contract.clone();
        for layer in &mut windows.layers {
            layer.kind = match layer.kind {
                LayerKind::Full => LayerKind::Window,
                LayerKind::Window => LayerKind::Full,
            };
        }
        assert_eq!(block_tokens(&windows, Section::Window), expected);
        let layers = contract.section_layers(Section::Full);
        let bytes = contract.token_bytes(&layers) * u64::from(tokens);
        assert!(bytes <= TARGET_BLOCK_BYTES || tokens == 1);
    }
    let windows = contract(4, vec![full(9, 9, 9), windowed(2, 3, 5), windowed(1, 1, 1)]);
    for (kv_end, tokens) in [(0, 0), (3, 3), (4, 4), (5, 4), (4000, 4)] {
        assert_eq!(window_bytes(&windows, kv_end), tokens * (2 * 8 + 2) * 2);
    }
    assert_eq!(window_bytes(&contract(0, vec![full(9, 9, 9)]), 4000), 0);
}

fn any_contract(max_heads: u32, max_dim: u32) -> impl Strategy<Value = Contract> {
    let kind = prop_oneof![Just(LayerKind::Full), Just(LayerKind::Window)];
    let spec = (kind, 1..=max_heads, 1..=max_dim, 1..=max_dim)
        .prop_map(|(kind, heads, key, value)| layer(kind, heads, key, value));
    (proptest::collection::vec(spec, 1..7), 1u32..12).prop_map(|(layers, window)| {
        let has_window = layers.iter().any(|l| l.kind == LayerKind::Window);
        contract(if has_window { window } else { 0 }, layers)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_small_handoff(
        contract in any_contract(4, 9),
        kv_end in 0u32..40,
        chunks in proptest::collection::vec(1u32..16, 0..8),
    ) {
        check(&contract, kv_end, &chunks);
    }
}

proptest! {
    /// No more blocks than need be, whole pages but at the ends, and none more than a page longer than another.
    #[test]
    fn the_blocks_of_a_step_are_about_as_long(
        heads in 1u32..900,
        start in 0u32..600,
        tokens in 1u32..3000,
    ) {
        let contract = contract(0, vec![full(heads, 64, 64); 4]);
        let end = start + tokens;
        let most = block_tokens(&contract, Section::Full);
        let unit = if most < PAGE_TOKENS { 1 } else { PAGE_TOKENS };
        let (mut at, mut blocks) = (start, Vec::new());
        while at < end {
            let block = next_block(&contract, Section::Full, at..end);
            prop_assert!(block.start == at && at < block.end && block.end <= end);
            prop_assert!(block.end == end || block.end.is_multiple_of(unit));
            at = block.end;
            blocks.push(block.start / unit..block.end.div_ceil(unit));
        }
        let lengths: Vec<usize> = blocks.iter().map(ExactSizeIterator::len).collect();
        let (least, longest) = (lengths.iter().min().unwrap(), lengths.iter().max().unwrap());
        prop_assert!(longest - least <= 1, "{lengths:?}");
        let units: usize = lengths.iter().sum();
        prop_assert_eq!(lengths.len(), units.div_ceil((most / unit) as usize));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_handoff_of_many_segments(
        contract in any_contract(96, 512),
        kv_end in 1u32..48,
        chunks in proptest::collection::vec(1u32..48, 0..3),
    ) {
        check(&contract, kv_end, &chunks);
    }
}
