//! Pages on disk: restarts, damage, files of others, and who may read them.

use std::fs;
use std::path::Path;

use tandem_handoff::page::Namespace;
use tandem_prefix_cache::{Held, LoadError, OpenError, PageStore, Provenance, Wanted};

use super::rig::{
    PAGE_COST, PAGE_FILE, PATIENCE, PLENTY, config, exact, files, full_block, full_only,
    private_dir, prompt, with_disk,
};

const PREFILLED: Provenance = Provenance::Prefilled;

/// Puts pages of `tokens`, from the first on, and waits until they are on disk.
fn put(store: &PageStore, tokens: &[u32], copy: u64) {
    let end = u32::try_from(tokens.len()).unwrap();
    let rows = full_block(&full_only(), 0..end, copy);
    store.put(&space(), tokens, &rows, PREFILLED).unwrap();
    assert!(store.flush(PATIENCE));
}

fn space() -> Namespace {
    exact(full_only())
}

fn held(store: &PageStore, tokens: &[u32]) -> u32 {
    store.held(&space(), tokens, Wanted::Any).tokens
}

fn load(store: &PageStore, tokens: &[u32]) -> Result<Vec<tandem_handoff::KvBlock>, LoadError> {
    let end = u32::try_from(tokens.len()).unwrap();
    store.load(&space(), tokens, 0..end, Wanted::Any)
}

#[test]
fn pages_that_memory_has_no_room_for_are_loaded_from_disk() {
    let dir = private_dir();
    let store = with_disk(2 * PAGE_COST, dir.path(), PLENTY);
    let tokens = prompt(64 * 10);
    put(&store, &tokens, 1);
    assert_eq!(held(&store, &tokens), 640);
    let stats = store.stats();
    assert_eq!((stats.pages, stats.spills, stats.evictions), (10, 10, 0));
    assert_eq!(stats.disk_bytes, 10 * PAGE_FILE);
    assert_eq!(stats.ram_bytes, 2 * PAGE_COST);
    assert_eq!(stats.queued_bytes, 0);
    let rows = full_block(&full_only(), 0..640, 1);
    assert_eq!(load(&store, &tokens), Ok(vec![rows]));
    assert_eq!(store.stats().disk_loads, 8);
    // What was loaded last is in memory now, and no file was written for it again.
    let last = store.load(&space(), &tokens, 576..640, Wanted::Any);
    assert_eq!(last, Ok(vec![full_block(&full_only(), 576..640, 1)]));
    let stats = store.stats();
    assert_eq!((stats.disk_loads, stats.spills), (8, 10));
    assert_eq!(stats.ram_bytes, 2 * PAGE_COST);
}

#[test]
fn a_restart_finds_the_pages() {
    let dir = private_dir();
    let tokens = prompt(256);
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    put(&store, &tokens, 1);
    let before = store.held(&space(), &tokens, Wanted::Prefilled);
    drop(store);
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    assert_eq!(store.held(&space(), &tokens, Wanted::Prefilled), before);
    assert_eq!(store.stats().disk_bytes, 4 * PAGE_FILE);
    let rows = full_block(&full_only(), 0..256, 1);
    assert_eq!(load(&store, &tokens), Ok(vec![rows.clone()]));
    // Files of an earlier run are not written again, but better rows are.
    drop(store);
    let store = with_disk(PLENTY, dir.path(), 3 * PAGE_FILE);
    assert_eq!(store.stats().pages, 3, "a lower limit evicts");
    assert!(store.flush(PATIENCE));
    assert_eq!(files(dir.path()).len(), 3);
    assert!(held(&store, &tokens) < 256);
}

#[test]
fn provenance_outlives_a_restart_and_better_rows_replace_the_file() {
    let dir = private_dir();
    let tokens = prompt(64);
    let open = || with_disk(PLENTY, dir.path(), PLENTY);
    let put = |store: &PageStore, provenance, copy| {
        let rows = full_block(&full_only(), 0..64, copy);
        store.put(&space(), &tokens, &rows, provenance).unwrap();
        assert!(store.flush(PATIENCE));
    };
    let stages = [
        (Provenance::Decoded, [true, false]),
        (PREFILLED, [true, true]),
    ];
    for (copy, (provenance, expected)) in (0..).zip(stages) {
        put(&open(), provenance, copy);
        assert_eq!(files(dir.path()).len(), 1);
        let store = open();
        let wanted = [Wanted::Any, Wanted::Prefilled];
        let held = wanted.map(|w| store.held(&space(), &tokens, w).tokens == 64);
        assert_eq!(held, expected);
        let rows = store.load(&space(), &tokens, 0..64, Wanted::Any);
        assert_eq!(rows, Ok(vec![full_block(&full_only(), 0..64, copy)]));
        assert_eq!(files(dir.path()).len(), 1);
        assert_eq!(store.stats().disk_bytes, PAGE_FILE);
    }
}

#[test]
fn of_two_files_of_a_page_the_better_one_is_kept() {
    // As a process leaves them that is killed between writing one and deleting the other.
    let tokens = prompt(64);
    let one = |provenance, copy| {
        let dir = private_dir();
        let store = with_disk(PLENTY, dir.path(), PLENTY);
        let rows = full_block(&full_only(), 0..64, copy);
        store.put(&space(), &tokens, &rows, provenance).unwrap();
        assert!(store.flush(PATIENCE));
        let name = files(dir.path())[0].0.clone();
        (fs::read(dir.path().join(&name)).unwrap(), name)
    };
    let (prefilled, name) = one(PREFILLED, 1);
    let (decoded, _) = one(Provenance::Decoded, 2);
    let named = |serial: u32| format!("{}-{serial:016x}.page", &name[..64]);
    for (first, second) in [(&prefilled, &decoded), (&decoded, &prefilled)] {
        let dir = private_dir();
        fs::write(dir.path().join(named(5)), first).unwrap();
        fs::write(dir.path().join(named(6)), second).unwrap();
        let store = with_disk(PLENTY, dir.path(), PLENTY);
        let rows = full_block(&full_only(), 0..64, 1);
        assert_eq!(load(&store, &tokens), Ok(vec![rows]));
        assert!(store.flush(PATIENCE));
        assert_eq!(files(dir.path()).len(), 1);
        let stats = store.stats();
        assert_eq!((stats.pages, stats.disk_bytes), (1, PAGE_FILE));
    }
}

#[test]
fn the_disk_keeps_its_limit_and_what_was_used_last() {
    let dir = private_dir();
    let store = with_disk(PAGE_COST, dir.path(), 3 * PAGE_FILE);
    for i in 0..6 {
        put(&store, &[i; 64], i.into());
        let total: u64 = files(dir.path()).iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(total, store.stats().disk_bytes);
        assert!(total <= 3 * PAGE_FILE);
        assert_eq!(held(&store, &[0; 64]), if i < 6 { 64 } else { 0 });
    }
    // The first page was used all the time.
    let held: Vec<u32> = (0..6).map(|i| held(&store, &[i; 64])).collect();
    assert_eq!(held, [64, 0, 0, 0, 64, 64]);
    // Pinned on disk only: nothing takes its place.
    let pins: Vec<_> = [0, 4, 5]
        .map(|i| store.pin(&space(), &[], &[i; 64], Wanted::Any))
        .into();
    for i in 6..9 {
        put(&store, &[i; 64], i.into());
    }
    for (pin, i) in pins.iter().zip([0, 4, 5]) {
        let rows = full_block(&full_only(), 0..64, i);
        assert_eq!(pin.load(0..64), Ok(vec![rows]));
    }
}

#[test]
fn while_a_read_is_overdue_nobody_waits_for_the_disk() {
    let dir = private_dir();
    let (first, second) = (prompt(64), prompt(128)[64..].to_vec());
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    put(&store, &first, 1);
    put(&store, &second, 2);
    drop(store);
    // Both are on disk only.
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    let pin = store.pin(&space(), &[], &first, Wanted::Any);
    let overdue = [pin.overdue(), pin.overdue()];
    assert_eq!(pin.load(0..64), Err(LoadError::Missing { end: 64 }));
    assert_eq!(store.stats().disk_errors, 1);
    let [one, other] = overdue;
    drop(one);
    assert_eq!(pin.load(0..64), Err(LoadError::Missing { end: 64 }));
    assert_eq!(store.stats().disk_errors, 2);
    drop(other);
    // The file was never touched.
    for (tokens, copy) in [(&first, 1), (&second, 2)] {
        let rows = full_block(&full_only(), 0..64, copy);
        assert_eq!(load(&store, tokens), Ok(vec![rows]));
    }
}

/// A directory with one page, and the bytes of its file.
fn one_page(dir: &Path) -> (std::path::PathBuf, Vec<u8>) {
    let store = with_disk(PLENTY, dir, PLENTY);
    put(&store, &prompt(64), 1);
    let path = dir.join(&files(dir)[0].0);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, PAGE_FILE);
    (path, bytes)
}

/// The damaged file is never taken for rows, is deleted and counted, and the page can be put again.
fn is_a_miss(dir: &Path, damaged: &str, before_opening: bool) {
    let tokens = prompt(64);
    let store = with_disk(PLENTY, dir, PLENTY);
    if before_opening {
        assert_eq!(held(&store, &tokens), 0, "{damaged}");
    }
    let missing = Err(LoadError::Missing { end: 64 });
    assert_eq!(load(&store, &tokens), missing, "{damaged}");
    let stats = store.stats();
    assert_eq!((stats.damaged, stats.disk_bytes), (1, 0), "{damaged}");
    assert!(store.flush(PATIENCE));
    assert_eq!(files(dir), [], "{damaged}");
    put(&store, &tokens, 2);
    let rows = full_block(&full_only(), 0..64, 2);
    assert_eq!(load(&store, &tokens), Ok(vec![rows]), "{damaged}");
    for (name, _) in files(dir) {
        fs::remove_file(dir.join(name)).unwrap();
    }
}

/// A later start would find it, and what was forgotten may be wrong.
#[test]
fn a_file_that_cannot_be_deleted_is_tried_again() {
    let dir = private_dir();
    let (path, _) = one_page(dir.path());
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    let tokens = prompt(64);
    assert_eq!(held(&store, &tokens), 64);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(store.forget([(&space(), 0)], &tokens), 1);
    let start = std::time::Instant::now();
    while store.stats().disk_errors < 2 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // Nobody waits for it.
    assert!(store.flush(PATIENCE));
    let other = prompt(64 * 2)[64..].to_vec();
    put(&store, &other, 2);
    assert_eq!(held(&store, &other), 64);
    fs::remove_dir(&path).unwrap();
}

#[test]
fn a_flipped_bit_anywhere_is_a_miss() {
    let dir = private_dir();
    let (path, bytes) = one_page(dir.path());
    fs::remove_file(&path).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, &damaged).unwrap();
        // Damage of the head is found when the store is opened, damage of the rows when they are read.
        is_a_miss(dir.path(), &format!("byte {at}"), at < 160 + 256);
    }
}

#[test]
fn a_file_of_another_length_is_a_miss() {
    let dir = private_dir();
    let (path, bytes) = one_page(dir.path());
    fs::remove_file(&path).unwrap();
    let cuts = [0, 1, 63, 159, 160, 415, 416, 417, bytes.len() - 1];
    for length in cuts {
        fs::write(&path, &bytes[..length]).unwrap();
        is_a_miss(dir.path(), &format!("{length} bytes"), true);
    }
    let mut longer = bytes;
    longer.push(0);
    fs::write(&path, &longer).unwrap();
    is_a_miss(dir.path(), "a byte more", true);
}

#[test]
fn damage_while_the_store_is_open_is_a_miss() {
    let dir = private_dir();
    let (path, bytes) = one_page(dir.path());
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    let tokens = prompt(64);
    assert_eq!(held(&store, &tokens), 64);
    fs::write(&path, &bytes[..700]).unwrap();
    assert!(load(&store, &tokens).is_err());
    assert_eq!(held(&store, &tokens), 0);
    // And a file that somebody deleted.
    drop(store);
    fs::write(&path, &bytes).unwrap();
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    fs::remove_file(&path).unwrap();
    assert!(load(&store, &tokens).is_err());
    let stats = store.stats();
    assert_eq!((stats.damaged, stats.pages, stats.disk_bytes), (1, 0, 0));
}

#[test]
fn a_page_of_other_tokens_under_the_same_id_is_a_miss() {
    // Nobody knows a collision of BLAKE3, so one is forged: a whole file, with digests that fit,
    // whose tokens are others than those of its id.
    let dir = private_dir();
    let (path, bytes) = one_page(dir.path());
    let mut forged = bytes;
    forged[160] ^= 1;
    let digest = blake3::Hasher::new()
        .update(&forged[..128])
        .update(&forged[160..416])
        .finalize();
    forged[128..160].copy_from_slice(digest.as_bytes());
    fs::write(&path, &forged).unwrap();
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    let tokens = prompt(64);
    assert_eq!((store.stats().pages, store.stats().damaged), (1, 0));
    let held = store.held(&space(), &tokens, Wanted::Any);
    assert_eq!(held, Held::default());
    assert!(load(&store, &tokens).is_err());
    let rows = full_block(&full_only(), 0..64, 2);
    assert_eq!(store.put(&space(), &tokens, &rows, PREFILLED), Ok(0));
    assert_eq!(store.stats().collisions, 1);
}

#[test]
fn other_versions_go_and_files_of_others_stay() {
    let dir = private_dir();
    let (path, mut bytes) = one_page(dir.path());
    bytes[4] = 9;
    fs::write(&path, &bytes).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let id = &name[..64];
    let foreign = [
        "notes.txt".to_owned(),
        "x.page".to_owned(),
        format!("{id}.page"),
        format!("{id}-1.page"),
        format!("{id}-{:016X}.page", 0xAB),
        format!("{id}-{:016x}.pages", 1),
    ];
    for name in &foreign {
        fs::write(dir.path().join(name), "mine").unwrap();
    }
    let odd = format!("{id}-{:016x}.page", 77);
    fs::create_dir(dir.path().join(&odd)).unwrap();
    fs::write(dir.path().join(".writing-1"), "half").unwrap();
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    assert_eq!((store.stats().damaged, store.stats().pages), (1, 0));
    assert!(!path.exists());
    assert!(!dir.path().join(".writing-1").exists());
    for name in &foreign {
        assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"mine", "{name}");
    }
    assert!(dir.path().join(&odd).is_dir());
}

#[test]
fn a_directory_has_one_store() {
    let dir = private_dir();
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    let again = PageStore::open(&config(PLENTY, dir.path(), PLENTY));
    assert!(matches!(again, Err(OpenError::InUse { .. })), "{again:?}");
    let clone = store.clone();
    drop(store);
    let again = PageStore::open(&config(PLENTY, dir.path(), PLENTY));
    assert!(matches!(again, Err(OpenError::InUse { .. })), "{again:?}");
    drop(clone);
    with_disk(PLENTY, dir.path(), PLENTY);
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let dir = private_dir();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = PageStore::open(&config(PLENTY, &file, PLENTY)).unwrap_err();
    assert!(matches!(error, OpenError::Directory { .. }), "{error:?}");
    assert!(error.to_string().contains("file"), "{error}");
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_pages() {
    use std::os::unix::fs::PermissionsExt;
    let outer = private_dir();
    let dir = outer.path().join("new/pages");
    let store = with_disk(PLENTY, &dir, PLENTY);
    put(&store, &prompt(128), 1);
    drop(store);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    let mut seen = 0;
    for entry in fs::read_dir(&dir).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
        seen += 1;
    }
    assert_eq!(seen, 2 + 1);
    for open in [0o750, 0o701] {
        fs::set_permissions(&dir, fs::Permissions::from_mode(open)).unwrap();
        let error = PageStore::open(&config(PLENTY, &dir, PLENTY)).unwrap_err();
        assert!(error.to_string().contains("chmod 700"), "{error}");
        assert_eq!(mode(&dir), open);
    }
}

#[test]
fn what_follows_behind_a_gap_is_forgotten_too() {
    let dir = private_dir();
    let tokens = prompt(192);
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    put(&store, &tokens, 1);
    drop(store);
    let middle = space().chain(&tokens)[1].to_string();
    let gone = files(dir.path())
        .into_iter()
        .find(|(name, _)| name.starts_with(&middle));
    fs::remove_file(dir.path().join(gone.unwrap().0)).unwrap();
    let store = with_disk(PLENTY, dir.path(), PLENTY);
    assert_eq!(store.stats().pages, 2);
    assert_eq!(store.forget([(&space(), 0)], &tokens[..64]), 2);
    // With the gap closed, what was behind it would be found again.
    put(&store, &tokens[..128], 2);
    assert_eq!(held(&store, &tokens), 128);
    assert!(store.flush(PATIENCE));
    assert_eq!(files(dir.path()).len(), 2);
}
