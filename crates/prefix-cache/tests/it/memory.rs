//! Pages in memory: what is kept, what is found, what is evicted, what is refused.

use std::sync::Arc;

use tandem_handoff::KvBlock;
use tandem_handoff::limits::TARGET_BLOCK_BYTES;
use tandem_handoff::page::{Namespace, Origin, PageId};
use tandem_handoff::{LayerKind, Section};
use tandem_prefix_cache::limits::{ENTRY_OVERHEAD, MAX_PINS};
use tandem_prefix_cache::{Held, LoadError, Provenance, PutError, Wanted};

use super::rig::{
    PAGE_COST, PLENTY, block, contract, exact, full_block, full_only, in_memory, layer, mixed,
    prompt,
};

const PREFILLED: Provenance = Provenance::Prefilled;

#[test]
fn complete_pages_inside_a_block_are_kept() {
    let (space, store) = (exact(full_only()), in_memory(PLENTY));
    let tokens = prompt(300);
    // Tokens 40 to 250 contain the pages 64..128 and 128..192.
    let rows = full_block(&full_only(), 40..250, 1);
    assert_eq!(store.put(&space, &tokens, &rows, PREFILLED), Ok(2));
    // Nothing from the start on.
    assert_eq!(store.held(&space, &tokens, Wanted::Any), Held::default());
    let first = full_block(&full_only(), 0..64, 1);
    assert_eq!(store.put(&space, &tokens[..64], &first, PREFILLED), Ok(1));
    for (asked, pages) in [(0, 0), (63, 0), (64, 1), (191, 2), (192, 3), (300, 3)] {
        let held = Held {
            tokens: pages * 64,
            snapshot: None,
        };
        assert_eq!(store.held(&space, &tokens[..asked], Wanted::Any), held);
    }
    let loaded = store.load(&space, &tokens, 0..192, Wanted::Prefilled);
    assert_eq!(loaded.unwrap(), [full_block(&full_only(), 0..192, 1)]);
    let loaded = store.load(&space, &tokens, 64..128, Wanted::Prefilled);
    assert_eq!(loaded.unwrap(), [full_block(&full_only(), 64..128, 1)]);
    assert_eq!(store.load(&space, &tokens, 64..64, Wanted::Any), Ok(vec![]));
    let stats = store.stats();
    assert_eq!((stats.pages, stats.ram_bytes), (3, 3 * PAGE_COST));
    assert_eq!((stats.hits, stats.misses), (1 + 2 + 3 + 3, 4 + 1));
    // Again, and a block without a complete page.
    assert_eq!(store.put(&space, &tokens, &rows, PREFILLED), Ok(0));
    let short = full_block(&full_only(), 1..127, 1);
    assert_eq!(store.put(&space, &tokens, &short, PREFILLED), Ok(0));
    assert_eq!(store.stats().pages, 3);
}

/// They may be as wrong.
#[test]
fn what_follows_from_pages_that_are_forgotten_meanwhile_is_not_kept() {
    let (space, store) = (exact(full_only()), in_memory(PLENTY));
    let (tokens, other) = (prompt(192), prompt(200)[5..197].to_vec());
    let rows = full_block(&full_only(), 0..192, 1);
    let first = full_block(&full_only(), 0..64, 1);
    store.put(&space, &tokens[..64], &first, PREFILLED).unwrap();
    let [with, without] = [(); 2].map(|()| store.of_request());
    let pinned = with.pin(&space, &[], &tokens, Wanted::Any);
    assert_eq!(pinned.held().tokens, 64);
    drop(pinned);
    let pinned = without.pin(&space, &[], &other, Wanted::Any);
    assert_eq!(pinned.held(), Held::default());
    drop(pinned);
    assert_eq!(store.forget([(&space, 0)], &tokens), 1);
    assert_eq!(with.put(&space, &tokens, &rows, PREFILLED), Ok(0));
    let tail = full_block(&full_only(), 64..70, 1);
    let kept = with.put_snapshot(&space, &tokens[..70], Some(&tail), None, PREFILLED);
    assert_eq!(kept, Ok(false));
    assert_eq!(store.stats().pages, 0);
    assert_eq!(without.put(&space, &other, &rows, PREFILLED), Ok(3));
    // And one that begins from here on.
    assert_eq!(
        store.of_request().put(&space, &tokens, &rows, PREFILLED),
        Ok(3)
    );
}

#[test]
fn other_tokens_salts_contracts_and_origins_share_nothing() {
    let (space, store) = (exact(full_only()), in_memory(PLENTY));
    let tokens = prompt(192);
    let rows = full_block(&full_only(), 0..192, 1);
    store.put(&space, &tokens, &rows, PREFILLED).unwrap();
    let mut other = tokens.clone();
    other[70] += 1;
    assert_eq!(store.held(&space, &other, Wanted::Any).tokens, 64);
    assert_eq!(store.held(&space, &tokens[1..], Wanted::Any).tokens, 0);
    let mut requantised = full_only();
    requantised.quantisation = "Q4_K".into();
    let contract = Arc::new(full_only());
    for space in [
        exact(requantised),
        Namespace::new(Arc::clone(&contract), b"Salt", Origin::Exact),
        Namespace::new(contract, b"salt", Origin::Lossy(2)),
    ] {
        assert_eq!(store.held(&space, &tokens, Wanted::Any), Held::default());
        let missing = LoadError::Missing { end: 64 };
        assert_eq!(
            store.load(&space, &tokens, 0..128, Wanted::Any),
            Err(missing)
        );
    }
}

#[test]
fn better_rows_replace_worse_ones() {
    let shape = full_only();
    let (space, store) = (exact(shape.clone()), in_memory(PLENTY));
    let tokens = prompt(64);
    let put = |provenance, copy| {
        let rows = full_block(&shape, 0..64, copy);
        store.put(&space, &tokens, &rows, provenance).unwrap()
    };
    let has = |wanted, copy: Option<u64>| {
        let held = store.held(&space, &tokens, wanted).tokens;
        assert_eq!(held, if copy.is_some() { 64 } else { 0 }, "{wanted:?}");
        let loaded = store.load(&space, &tokens, 0..64, wanted).ok();
        let expected = copy.map(|copy| vec![full_block(&shape, 0..64, copy)]);
        assert_eq!(loaded, expected, "{wanted:?}");
    };
    assert_eq!(put(Provenance::Decoded, 2), 1);
    assert_eq!(put(Provenance::Decoded, 3), 0);
    has(Wanted::Any, Some(2));
    has(Wanted::Prefilled, None);
    assert_eq!(put(PREFILLED, 4), 1);
    assert_eq!(put(Provenance::Decoded, 5), 0);
    assert_eq!(put(PREFILLED, 6), 0);
    has(Wanted::Prefilled, Some(4));
    has(Wanted::Any, Some(4));
    let stats = store.stats();
    assert_eq!((stats.pages, stats.ram_bytes), (1, PAGE_COST));
}

/// Every way in which three namespaces can have the pages of a sequence: of each page the first is taken.
#[test]
fn pages_are_taken_from_the_first_namespace_that_has_them() {
    const PAGES: u32 = 4;
    let shape = full_only();
    let origins = [Origin::Exact, Origin::Lossy(2), Origin::Lossy(3)];
    let spaces = origins.map(|o| Namespace::new(Arc::new(shape.clone()), b"salt", o));
    let tokens = prompt(64 * PAGES + 10);
    let range = |page: u32| page * 64..page * 64 + 64;
    for has in 0..1_u32 << (3 * PAGES) {
        let store = in_memory(PLENTY);
        let is_there = |page: u32, space: u32| has >> (page * 3 + space) & 1 == 1;
        for (page, space) in (0..PAGES).flat_map(|p| (0..3).map(move |s| (p, s))) {
            if is_there(page, space) {
                let rows = full_block(&shape, range(page), u64::from(space));
                let put = store.put(&spaces[space as usize], &tokens, &rows, PREFILLED);
                assert_eq!(put, Ok(1));
            }
        }
        let first = |page| (0..3).find(|space| is_there(page, *space));
        let expected: Vec<u32> = (0..PAGES).map_while(first).collect();
        let pinned = store.pin(&spaces[0], &spaces[1..], &tokens, Wanted::Prefilled);
        let end = expected.len() as u32 * 64;
        assert_eq!((pinned.held().tokens, pinned.held().snapshot), (end, None));
        let worst = expected
            .iter()
            .max()
            .map_or(Origin::Exact, |s| origins[*s as usize]);
        assert_eq!(pinned.origin(&(0..end)), worst);
        let copies = (0..).zip(&expected);
        let rows: Vec<KvBlock> = copies
            .map(|(p, s)| full_block(&shape, range(p), u64::from(*s)))
            .collect();
        let blocks = pinned.load(0..end).unwrap();
        for (page, rows) in (0..).zip(&rows) {
            let block = blocks.iter().find(|b| b.tokens.contains(&(page * 64)));
            assert_eq!(block.unwrap().part(range(page)), *rows);
            assert_eq!(pinned.load(range(page)), Ok(vec![rows.clone()]));
        }
        let beyond = LoadError::Missing { end: end + 64 };
        assert_eq!(pinned.load(0..end + 64), Err(beyond));
    }
}

#[test]
fn the_least_used_page_goes_first() {
    let (space, store) = (exact(full_only()), in_memory(3 * PAGE_COST));
    let tokens: Vec<Vec<u32>> = (0..4).map(|i| vec![i; 64]).collect();
    let put = |i: u32| {
        let rows = full_block(&full_only(), 0..64, i.into());
        store.put(&space, &tokens[i as usize], &rows, PREFILLED)
    };
    let held = |i: usize| store.held(&space, &tokens[i], Wanted::Any).tokens == 64;
    assert_eq!([put(0), put(1), put(2)], [Ok(1), Ok(1), Ok(1)]);
    // 1 is now the least used; asking for a page uses it, so this asks for 0 only.
    assert!(held(0));
    assert_eq!(put(3), Ok(1));
    assert_eq!(
        [held(1), held(2), held(0), held(3)],
        [false, true, true, true]
    );
    assert_eq!(store.stats().evictions, 1);
    // A promise is a use, too.
    drop(store.pin(&space, &[], &tokens[2], Wanted::Any));
    put(1).unwrap();
    assert_eq!(
        [held(0), held(2), held(3), held(1)],
        [false, true, true, true]
    );
    assert_eq!(store.stats().ram_bytes, 3 * PAGE_COST);
}

#[test]
fn of_a_sequence_that_is_too_long_the_start_stays() {
    let (space, store) = (exact(full_only()), in_memory(3 * PAGE_COST));
    let tokens = prompt(64 * 8);
    let rows = full_block(&full_only(), 0..512, 1);
    assert_eq!(store.put(&space, &tokens, &rows, PREFILLED), Ok(8));
    assert_eq!(store.held(&space, &tokens, Wanted::Any).tokens, 3 * 64);
    // Also if it comes in several blocks, as the KV of every long prompt does.
    for pages in 1..4 {
        let store = in_memory(4 * PAGE_COST);
        for first in (0..8).step_by(pages) {
            let last = (first + pages).min(8);
            let block = full_block(&full_only(), first as u32 * 64..last as u32 * 64, 1);
            store.put(&space, &tokens, &block, PREFILLED).unwrap();
        }
        let held = store.held(&space, &tokens, Wanted::Any).tokens;
        // The last block takes the place of its like, not of the beginning.
        assert!(held >= 64 * (4 - pages as u32), "{pages}: {held}");
    }
    // A store that has no room for a single page keeps nothing and says so.
    let tiny = in_memory(PAGE_COST - 1);
    assert_eq!(tiny.put(&space, &tokens, &rows, PREFILLED), Ok(0));
    assert_eq!((tiny.stats().refused, tiny.stats().ram_bytes), (8, 0));
}

#[test]
fn of_a_sequence_that_was_asked_for_the_start_stays() {
    let (space, store) = (exact(full_only()), in_memory(4 * PAGE_COST));
    let tokens = prompt(64 * 4);
    for start in [0, 64, 128, 192] {
        let rows = full_block(&full_only(), start..start + 64, 1);
        store.put(&space, &tokens, &rows, PREFILLED).unwrap();
    }
    // Now the start is what was used longest ago.
    store.load(&space, &tokens, 0..256, Wanted::Any).unwrap();
    assert_eq!(store.held(&space, &tokens, Wanted::Any).tokens, 256);
    let other = full_block(&full_only(), 0..128, 2);
    store.put(&space, &[1; 128], &other, PREFILLED).unwrap();
    assert_eq!(store.held(&space, &tokens, Wanted::Any).tokens, 128);
}

#[test]
fn what_is_pinned_stays() {
    let (space, store) = (exact(full_only()), in_memory(4 * PAGE_COST));
    let (promised, other) = (prompt(128), vec![1; 64 * 8]);
    let rows = full_block(&full_only(), 0..128, 1);
    store.put(&space, &promised, &rows, PREFILLED).unwrap();
    let pinned = store.pin(&space, &[], &promised, Wanted::Prefilled);
    assert_eq!(pinned.held(), store.held(&space, &promised, Wanted::Any));
    let flood = full_block(&full_only(), 0..512, 2);
    for _ in 0..3 {
        store.put(&space, &other, &flood, PREFILLED).unwrap();
        assert_eq!(pinned.load(0..128).unwrap(), std::slice::from_ref(&rows));
    }
    assert_eq!(store.held(&space, &other, Wanted::Any).tokens, 128);
    // Beyond what was promised there is nothing.
    assert!(pinned.load(0..192).is_err());
    assert!(pinned.load_snapshot().is_err());
    // Everything pinned: nothing more fits, and nothing is lost.
    let rest = store.pin(&space, &[], &other, Wanted::Any);
    assert_eq!(
        store.put(
            &space,
            &[2; 64],
            &full_block(&full_only(), 0..64, 3),
            PREFILLED
        ),
        Ok(0)
    );
    assert_eq!(store.stats().refused, 1);
    drop((pinned, rest));
    assert_eq!(store.stats().pins, 0);
    store
        .put(
            &space,
            &[3; 256],
            &full_block(&full_only(), 0..256, 3),
            PREFILLED,
        )
        .unwrap();
    assert_eq!(store.held(&space, &promised, Wanted::Any).tokens, 0);
}

#[test]
fn pins_are_bounded() {
    let (space, store) = (exact(full_only()), in_memory(PLENTY));
    let tokens = prompt(64);
    store
        .put(
            &space,
            &tokens,
            &full_block(&full_only(), 0..64, 1),
            PREFILLED,
        )
        .unwrap();
    let pin = || store.pin(&space, &[], &tokens, Wanted::Any);
    let mut pins: Vec<_> = (0..MAX_PINS).map(|_| pin()).collect();
    assert!(pins.iter().all(|p| p.held().tokens == 64));
    assert_eq!(pin().held(), Held::default());
    assert_eq!(store.stats().pins, MAX_PINS as u64);
    pins.pop();
    assert_eq!(pin().held().tokens, 64);
    drop(pins);
    assert_eq!(store.stats().pins, 0);
}

#[test]
fn blocks_of_a_load_are_bounded() {
    // 4 MiB of rows per page.
    let wide = contract(0, vec![layer(LayerKind::Full, 16, 1024, 1024); 1]);
    let (space, store) = (exact(wide.clone()), in_memory(PLENTY));
    let tokens = prompt(64 * 9);
    let rows = full_block(&wide, 0..576, 1);
    assert_eq!(store.put(&space, &tokens, &rows, PREFILLED), Ok(9));
    let blocks = store.load(&space, &tokens, 0..576, Wanted::Any).unwrap();
    let ranges: Vec<_> = blocks.iter().map(|b| b.tokens.clone()).collect();
    assert_eq!(ranges, [0..128, 128..256, 256..384, 384..512, 512..576]);
    for block in &blocks {
        assert!(block.bytes() <= TARGET_BLOCK_BYTES);
        assert_eq!(block.validate(&wide), Ok(()));
        assert_eq!(*block, full_block(&wide, block.tokens.clone(), 1));
    }
    let cost = (4 << 20) + 256 + ENTRY_OVERHEAD;
    assert_eq!(store.stats().ram_bytes, 9 * cost);
}

#[test]
fn what_does_not_fit_the_contract_is_refused() {
    let (space, store) = (exact(mixed()), in_memory(PLENTY));
    let tokens = prompt(128);
    let rows = full_block(&mixed(), 0..128, 1);
    let put = |tokens: &[u32], block: &_, provenance| store.put(&space, tokens, block, provenance);
    let refusals = [
        put(&tokens[..127], &rows, PREFILLED),
        put(
            &tokens,
            &block(&mixed(), Section::Window, 118..128, 1),
            PREFILLED,
        ),
        put(&tokens, &full_block(&full_only(), 0..127, 1), PREFILLED).map(|_| 0),
    ];
    assert_eq!(
        refusals[0],
        Err(PutError::Tokens {
            given: 127,
            needed: 128
        })
    );
    assert!(matches!(refusals[1], Err(PutError::Range { .. })));
    // The layer in the middle is another one under the contract of the namespace.
    assert!(matches!(refusals[2], Err(PutError::Block(_))));
    let mut cut = rows.clone();
    cut.planes[1].data.pop();
    assert!(matches!(
        put(&tokens, &cut, PREFILLED),
        Err(PutError::Block(_))
    ));
    let mut broken = mixed();
    broken.layers[0].key_dim = u32::MAX;
    let refused = store.put(&exact(broken), &tokens, &rows, PREFILLED);
    assert!(matches!(refused, Err(PutError::Contract(_))));
    assert_eq!(store.stats().pages, 0);
    for (start, end) in [(0, 65), (1, 64), (64, 192), (128, 64)] {
        let error = store.load(&space, &tokens, start..end, Wanted::Any);
        assert_eq!(error, Err(LoadError::Range { start, end }));
    }
}

#[test]
fn a_model_of_windows_only_has_no_pages() {
    let windows = contract(10, vec![layer(LayerKind::Window, 1, 2, 2)]);
    let (space, store) = (exact(windows.clone()), in_memory(PLENTY));
    let empty = full_block(&windows, 0..128, 1);
    assert_eq!(store.put(&space, &prompt(128), &empty, PREFILLED), Ok(0));
    assert_eq!(
        store.held(&space, &prompt(128), Wanted::Any),
        Held::default()
    );
    assert_ne!(space.chain(&prompt(64)), [PageId::ROOT]);
}
