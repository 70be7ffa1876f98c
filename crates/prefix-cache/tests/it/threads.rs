//! Many threads at once, on a store that evicts, spills and loads all the time.

use std::sync::atomic::{AtomicU64, Ordering};

use tandem_prefix_cache::{Provenance, Wanted};

use super::rig::{
    PAGE_COST, PAGE_FILE, PATIENCE, exact, files, full_block, full_only, private_dir, with_disk,
};

#[test]
fn rows_are_right_and_limits_hold() {
    const RAM: u64 = 12 * PAGE_COST;
    const DISK: u64 = 30 * PAGE_FILE;
    let dir = private_dir();
    let store = with_disk(RAM, dir.path(), DISK);
    let space = exact(full_only());
    let loaded = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (store, space, loaded) = (&store, &space, &loaded);
            scope.spawn(move || {
                for round in 0..400_u32 {
                    // Twenty sequences of two to four pages, shared by all threads.
                    let which = (round * 7 + thread * 3) % 20;
                    let pages = which % 3 + 2;
                    let tokens = vec![which; pages as usize * 64];
                    let rows = full_block(&full_only(), 0..pages * 64, which.into());
                    match round % 3 {
                        0 => {
                            let put = store.put(space, &tokens, &rows, Provenance::Prefilled);
                            assert!(put.unwrap() <= pages);
                        }
                        1 => {
                            let pinned = store.pin(space, &[], &tokens, Wanted::Any);
                            let end = pinned.held().tokens;
                            // What is promised can be loaded, whatever the others do.
                            for block in pinned.load(0..end).unwrap() {
                                let expected =
                                    full_block(&full_only(), block.tokens.clone(), which.into());
                                assert_eq!(block, expected);
                                loaded.fetch_add(u64::from(block.len()), Ordering::Relaxed);
                            }
                        }
                        _ => {
                            let got = store.load(space, &tokens, 0..pages * 64, Wanted::Any);
                            assert!(got.is_err() || got.unwrap() == [rows]);
                        }
                    }
                    let stats = store.stats();
                    assert!(
                        stats.ram_bytes <= RAM && stats.disk_bytes <= DISK,
                        "{stats:?}"
                    );
                }
            });
        }
    });
    assert!(loaded.load(Ordering::Relaxed) > 0);
    assert!(store.flush(PATIENCE));
    let stats = store.stats();
    assert_eq!((stats.pins, stats.queued_bytes), (0, 0));
    assert_eq!((stats.damaged, stats.disk_errors), (0, 0));
    assert!(
        stats.spills > 0 && stats.disk_loads > 0 && stats.evictions > 0,
        "{stats:?}"
    );
    drop(store);
    let bytes: u64 = files(dir.path()).iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(bytes, stats.disk_bytes);
}
