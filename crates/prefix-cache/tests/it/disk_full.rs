//! A disk that takes no more: pages are not kept, everything else goes on.

use std::path::Path;

use tandem_prefix_cache::{PageStore, Provenance, Wanted};

use super::rig::{
    PAGE_COST, PATIENCE, PLENTY, exact, files, full_block, full_only, private_dir, with_disk,
};
#[cfg(target_os = "linux")]
use tandem_testkit::disk::SmallDisk;
use tandem_testkit::disk::{full_folder, without_room_on_disk};

/// Puts one page of tokens `i`.
fn put(store: &PageStore, i: u32) {
    let rows = full_block(&full_only(), 0..64, i.into());
    let space = exact(full_only());
    let kept = store.put(&space, &[i; 64], &rows, Provenance::Prefilled);
    assert_eq!(kept, Ok(1));
}

/// True if the page is there, with its own rows.
fn get(store: &PageStore, i: u32) -> bool {
    let space = exact(full_only());
    let loaded = store.load(&space, &[i; 64], 0..64, Wanted::Any);
    let rows = loaded.iter().flatten().next();
    assert!(rows.is_none_or(|r| *r == full_block(&full_only(), 0..64, i.into())));
    rows.is_some()
}

/// A store whose disk takes no byte more works from memory, and gives what was written before.
fn works_without_writing(store: &PageStore, written: u32, dir: &Path) {
    for i in 1000..1050 {
        put(store, i);
        assert!(get(store, i), "what was just put is in memory");
    }
    assert!(store.flush(PATIENCE));
    let stats = store.stats();
    assert!(stats.disk_errors > 0, "{stats:?}");
    assert!(stats.evictions > 0, "{stats:?}");
    assert!(stats.ram_bytes <= 2 * PAGE_COST, "{stats:?}");
    assert_eq!(stats.queued_bytes, 0);
    for i in 0..written {
        assert!(get(store, i), "page {i} was written before");
    }
    // What these loads moved out of memory has been tried too.
    assert!(store.flush(PATIENCE));
    // Nothing half-written is left, and nothing is counted that is not there.
    let on_disk = files(dir);
    let bytes: u64 = on_disk.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(store.stats().disk_bytes, bytes);
    let all = std::fs::read_dir(dir).unwrap().count();
    assert_eq!(all, on_disk.len() + 1, "pages and the lock");
}

/// Writes three pages to `dir`, as an earlier run would.
fn write_three(dir: &Path) {
    let store = with_disk(PLENTY, dir, PLENTY);
    (0..3).for_each(|i| put(&store, i));
    assert!(store.flush(PATIENCE));
    assert_eq!(store.stats().spills, 3);
}

#[test]
fn no_file_may_grow() {
    let dir = private_dir();
    write_three(dir.path());
    without_room_on_disk("it::disk_full::child_whose_files_may_not_grow", dir.path());
}

#[test]
#[ignore = "a part of no_file_may_grow, which starts it in a process of its own"]
fn child_whose_files_may_not_grow() {
    let dir = full_folder();
    let store = with_disk(2 * PAGE_COST, &dir, PLENTY);
    works_without_writing(&store, 3, &dir);
    assert_eq!(store.stats().spills, 0);
}

#[test]
fn the_directory_vanishes() {
    let outer = private_dir();
    let dir = outer.path().join("pages");
    let store = with_disk(2 * PAGE_COST, &dir, PLENTY);
    (0..3).for_each(|i| put(&store, i));
    assert!(store.flush(PATIENCE));
    std::fs::remove_dir_all(&dir).unwrap();
    for i in 10..30 {
        put(&store, i);
        assert!(get(&store, i));
    }
    assert!(store.flush(PATIENCE));
    let stats = store.stats();
    assert!(stats.disk_errors > 0, "{stats:?}");
    assert!(!get(&store, 0), "its file is gone");
    assert!(store.stats().damaged > 0);
    assert!(get(&store, 29), "it is in memory");
}

/// The same with a real file system that is full; elsewhere `no_file_may_grow` stands for it.
#[cfg(target_os = "linux")]
#[test]
fn the_file_system_is_full() {
    let outer = private_dir();
    let dir = outer.path();
    let Some(disk) = SmallDisk::mount(dir, 64) else {
        return;
    };
    write_three(dir);
    disk.fill();
    let store = with_disk(2 * PAGE_COST, dir, PLENTY);
    for i in 1000..1050 {
        put(&store, i);
        assert!(get(&store, i));
    }
    assert!(store.flush(PATIENCE));
    let stats = store.stats();
    assert!(stats.disk_errors > 0 && stats.spills == 0, "{stats:?}");
    assert!((0..3).all(|i| get(&store, i)));
    // What these loads moved out of memory has failed too, before there is room again.
    assert!(store.flush(PATIENCE));
    let failed = store.stats().disk_errors;
    // With room again, pages are kept again.
    std::fs::remove_file(dir.join("filler")).unwrap();
    for i in 2000..2006 {
        put(&store, i);
    }
    assert!(store.flush(PATIENCE));
    assert_eq!(store.stats().disk_errors, failed);
    assert!((2000..2006).all(|i| get(&store, i)));
    drop(store);
    let store = with_disk(PLENTY, dir, PLENTY);
    assert!((2000..2006).all(|i| get(&store, i)));
}
