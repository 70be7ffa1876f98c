//! Snapshots: what a model continues from beside complete pages.

use tandem_handoff::page::{Namespace, Origin};
use tandem_handoff::{Contract, KvBlock, LayerKind, Section};
use tandem_prefix_cache::{LoadError, PageStore, Provenance, PutError, Snapshot, Wanted};

use super::rig::{
    PATIENCE, PLENTY, block, contract, exact, files, full_block, full_only, in_memory, layer,
    mixed, part, private_dir, prompt, with_disk,
};

const PREFILLED: Provenance = Provenance::Prefilled;

fn window(contract: &Contract, end: u32, copy: u64) -> KvBlock {
    block(
        contract,
        Section::Window,
        contract.window_start(end)..end,
        copy,
    )
}

/// Puts the rows of `[0, end)` and a snapshot there.
fn put(store: &PageStore, contract: &Contract, tokens: &[u32], end: u32, copy: u64) {
    let space = exact(contract.clone());
    let rows = full_block(contract, 0..end, copy);
    store.put(&space, tokens, &rows, PREFILLED).unwrap();
    let has_window = contract.has_window();
    let window = has_window.then(|| window(contract, end, copy));
    let tokens = &tokens[..end as usize];
    let kept = store.put_snapshot(&space, tokens, Some(&rows), window.as_ref(), PREFILLED);
    assert_eq!(kept, Ok(has_window || !end.is_multiple_of(64)));
}

fn expected(contract: &Contract, end: u32, copy: u64) -> Snapshot {
    let rows = full_block(contract, 0..end, copy);
    let has_tail = !rows.planes.is_empty() && !end.is_multiple_of(64);
    Snapshot {
        tail: has_tail.then(|| part(&rows, end / 64 * 64..end)),
        window: contract.has_window().then(|| window(contract, end, copy)),
    }
}

#[test]
fn the_last_position_that_can_be_continued_from() {
    let (space, store) = (exact(mixed()), in_memory(PLENTY));
    let tokens = prompt(400);
    for end in [5, 64, 150, 191] {
        put(&store, &mixed(), &tokens, end, 1);
    }
    // Pages reach to 128, so a snapshot further on is of no use yet.
    let rows = full_block(&mixed(), 256..300, 1);
    let far = window(&mixed(), 300, 1);
    let kept = store.put_snapshot(&space, &tokens[..300], Some(&rows), Some(&far), PREFILLED);
    assert_eq!(kept, Ok(true));
    let snapshot = |tokens: &[u32]| store.held(&space, tokens, Wanted::Prefilled).snapshot;
    for (asked, found) in [
        (4, None),
        (5, Some(5)),
        (63, Some(5)),
        (64, Some(64)),
        (149, Some(64)),
        (150, Some(150)),
        (190, Some(150)),
        (191, Some(191)),
        (400, Some(191)),
    ] {
        assert_eq!(snapshot(&tokens[..asked]), found, "{asked}");
    }
    let rest = full_block(&mixed(), 128..256, 1);
    store.put(&space, &tokens, &rest, PREFILLED).unwrap();
    assert_eq!(snapshot(&tokens), Some(300));
    // Another token in the tail: the snapshot before it, another one before that: none.
    let mut other = tokens.clone();
    other[149] += 1;
    assert_eq!(snapshot(&other), Some(64));
    other[4] += 1;
    assert_eq!(snapshot(&other), None);
    for end in [5, 64, 150, 191, 300] {
        let loaded = store.load_snapshot(&space, &tokens, end, Wanted::Prefilled);
        assert_eq!(loaded, Ok(expected(&mixed(), end, 1)), "{end}");
    }
    let missing = Err(LoadError::Missing { end: 149 });
    assert_eq!(
        store.load_snapshot(&space, &tokens, 149, Wanted::Any),
        missing
    );
    let pinned = store.pin(&space, &[], &tokens, Wanted::Any);
    assert_eq!(pinned.load_snapshot(), Ok(expected(&mixed(), 300, 1)));
    assert_eq!(store.stats().snapshots, 5);
}

#[test]
fn only_rows_that_were_asked_for() {
    let (space, store) = (exact(mixed()), in_memory(PLENTY));
    let tokens = prompt(100);
    let rows = full_block(&mixed(), 0..100, 1);
    store.put(&space, &tokens, &rows, PREFILLED).unwrap();
    let put = |provenance, copy| {
        let (rows, window) = (
            full_block(&mixed(), 64..100, copy),
            window(&mixed(), 100, copy),
        );
        store.put_snapshot(&space, &tokens, Some(&rows), Some(&window), provenance)
    };
    let held = |wanted| store.held(&space, &tokens, wanted).snapshot;
    assert_eq!(put(Provenance::Decoded, 2), Ok(true));
    assert_eq!(put(Provenance::Decoded, 3), Ok(false));
    assert_eq!(
        (held(Wanted::Prefilled), held(Wanted::Any)),
        (None, Some(100))
    );
    let loaded = store.load_snapshot(&space, &tokens, 100, Wanted::Any);
    assert_eq!(loaded, Ok(expected(&mixed(), 100, 2)));
    assert_eq!(put(PREFILLED, 4), Ok(true));
    let loaded = store.load_snapshot(&space, &tokens, 100, Wanted::Prefilled);
    assert_eq!(loaded, Ok(expected(&mixed(), 100, 4)));
}

#[test]
fn windows_without_full_layers_need_no_pages() {
    let windows = contract(10, vec![layer(LayerKind::Window, 1, 2, 2)]);
    let (space, store) = (exact(windows.clone()), in_memory(PLENTY));
    let tokens = prompt(400);
    for end in [3, 130] {
        let window = window(&windows, end, 1);
        let tokens = &tokens[..end as usize];
        let kept = store.put_snapshot(&space, tokens, None, Some(&window), PREFILLED);
        assert_eq!(kept, Ok(true));
    }
    for (asked, found) in [(2, None), (129, Some(3)), (400, Some(130))] {
        let held = store.held(&space, &tokens[..asked], Wanted::Any);
        assert_eq!((held.tokens, held.snapshot), (0, found));
    }
    let pinned = store.pin(&space, &[], &tokens, Wanted::Any);
    assert_eq!(pinned.load_snapshot(), Ok(expected(&windows, 130, 1)));
}

#[test]
fn incomplete_snapshots_are_refused() {
    let (space, store) = (exact(mixed()), in_memory(PLENTY));
    let tokens = prompt(100);
    let rows = full_block(&mixed(), 0..100, 1);
    let whole = window(&mixed(), 100, 1);
    let put = |tokens: &[u32], tail, window: Option<&KvBlock>, provenance| {
        store.put_snapshot(&space, tokens, tail, window, provenance)
    };
    let late = full_block(&mixed(), 65..100, 1);
    let early = full_block(&mixed(), 0..99, 1);
    let short = block(&mixed(), Section::Window, 91..100, 1);
    for (tail, window) in [
        (None, Some(&whole)),
        (Some(&late), Some(&whole)),
        (Some(&early), Some(&whole)),
        (Some(&whole), Some(&whole)),
        (Some(&rows), Some(&short)),
        (Some(&rows), Some(&rows)),
        (Some(&rows), None),
    ] {
        let refused = put(&tokens, tail, window, PREFILLED);
        assert!(
            matches!(refused, Err(PutError::Range { .. })),
            "{refused:?}"
        );
    }
    let refused = put(&tokens[..99], Some(&rows), Some(&whole), PREFILLED);
    assert!(matches!(refused, Err(PutError::Range { .. })));
    // Where there are no windows, there is none to be kept, and rows are needed.
    let nothing = block(&full_only(), Section::Window, 100..100, 1);
    let other = full_block(&full_only(), 65..100, 1);
    for (tail, window) in [(None, None), (None, Some(&nothing)), (Some(&other), None)] {
        let refused = store.put_snapshot(&exact(full_only()), &tokens, tail, window, PREFILLED);
        assert!(
            matches!(refused, Err(PutError::Range { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(store.stats().snapshots, 0);
}

#[test]
fn without_windows_the_rows_since_the_last_page() {
    let (space, store) = (exact(full_only()), in_memory(PLENTY));
    let tokens = prompt(400);
    // At a page boundary there is nothing beside pages.
    for end in [5, 64, 150, 191] {
        put(&store, &full_only(), &tokens, end, 1);
    }
    assert_eq!(store.stats().snapshots, 3);
    for (asked, pages, found) in [
        (4, 0, None),
        (5, 0, Some(5)),
        (64, 64, Some(5)),
        (150, 128, Some(150)),
        (190, 128, Some(150)),
        (400, 128, Some(191)),
    ] {
        let held = store.held(&space, &tokens[..asked], Wanted::Prefilled);
        assert_eq!((held.tokens, held.snapshot), (pages, found), "{asked}");
    }
    for end in [5, 150, 191] {
        let loaded = store.load_snapshot(&space, &tokens, end, Wanted::Prefilled);
        assert_eq!(loaded, Ok(expected(&full_only(), end, 1)), "{end}");
    }
    let missing = Err(LoadError::Missing { end: 64 });
    assert_eq!(
        store.load_snapshot(&space, &tokens, 64, Wanted::Any),
        missing
    );
}

#[test]
fn snapshots_are_found_after_a_restart() {
    let dir = private_dir();
    let tokens = prompt(200);
    let space = exact(mixed());
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    put(&store, &mixed(), &tokens, 150, 1);
    put(&store, &mixed(), &tokens, 200, 2);
    assert!(store.flush(super::rig::PATIENCE));
    drop(store);
    assert_eq!(files(dir.path()).len(), 3 + 2);
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    let held = store.held(&space, &tokens, Wanted::Any);
    assert_eq!((held.tokens, held.snapshot), (192, Some(200)));
    let held = store.held(&space, &tokens[..199], Wanted::Any);
    assert_eq!(held.snapshot, Some(150));
    for (end, copy) in [(150, 1), (200, 2)] {
        let loaded = store.load_snapshot(&space, &tokens, end, Wanted::Any);
        assert_eq!(loaded, Ok(expected(&mixed(), end, copy)));
    }
}

#[test]
fn what_goes_on_from_less_than_a_page_is_forgotten_with_it() {
    for contract in [mixed(), full_only()] {
        let (space, store) = (exact(contract.clone()), in_memory(PLENTY));
        let tokens = prompt(200);
        let mut other = tokens.clone();
        other[10] += 1;
        put(&store, &contract, &tokens, 40, 1);
        put(&store, &contract, &tokens, 150, 1);
        put(&store, &contract, &other, 150, 2);
        // Two snapshots and two pages begin with these tokens.
        assert_eq!(store.forget([(&space, 0)], &tokens[..20]), 4);
        let nothing = tandem_prefix_cache::Held::default();
        assert_eq!(store.held(&space, &tokens, Wanted::Any), nothing);
        assert_eq!(store.held(&space, &other, Wanted::Any).snapshot, Some(150));
    }
}

#[test]
fn what_is_forgotten_takes_along_what_follows_from_it() {
    let dir = private_dir();
    let (space, salted) = (
        exact(mixed()),
        Namespace::new(mixed().into(), b"s", Origin::Exact),
    );
    let tokens = prompt(300);
    let mut other = tokens.clone();
    other[70] += 1;
    let apart: Vec<u32> = tokens.iter().map(|t| t + 1).collect();
    let open = || with_disk(PLENTY, dir.path(), PLENTY);
    let store = open();
    // Two sequences with one page in common, one without, and one of another tenant.
    for (tokens, copy) in [(&tokens, 1), (&other, 2), (&apart, 3)] {
        put(&store, &mixed(), tokens, 150, copy);
    }
    put(&store, &mixed(), &tokens, 64, 1);
    let rows = full_block(&mixed(), 0..150, 4);
    store.put(&salted, &tokens, &rows, PREFILLED).unwrap();
    let pinned = store.pin(&space, &[], &other, Wanted::Any);
    assert_eq!(pinned.held().tokens, 128);
    assert!(store.flush(PATIENCE));
    // Three pages and three snapshots of the first two; what follows 100 tokens goes, too.
    assert_eq!(store.forget([(&space, 0)], &tokens[..100]), 6);
    assert_eq!(store.forget([(&space, 0)], &tokens[..100]), 0);
    let nothing = tandem_prefix_cache::Held::default();
    let all_of_it = |store: &PageStore| {
        for gone in [&tokens, &other] {
            assert_eq!(store.held(&space, gone, Wanted::Any), nothing);
        }
        assert_eq!(store.held(&space, &apart, Wanted::Any).snapshot, Some(150));
        assert_eq!(store.held(&salted, &tokens, Wanted::Any).tokens, 128);
    };
    all_of_it(&store);
    assert_eq!(pinned.load(0..64), Err(LoadError::Missing { end: 64 }));
    drop(pinned);
    assert!(store.flush(PATIENCE));
    assert_eq!(files(dir.path()).len(), 2 + 1 + 2);
    drop(store);
    let store = open();
    all_of_it(&store);
    // Others can take their place.
    put(&store, &mixed(), &tokens, 150, 5);
    let rows = full_block(&mixed(), 0..128, 5);
    let loaded = store.load(&space, &tokens, 0..128, Wanted::Any);
    assert_eq!(loaded, Ok(vec![rows]));
}
