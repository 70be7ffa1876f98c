//! The store against a model of it: every operation in any order, with room for everything and
//! with room for little.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use tandem_handoff::page::{Namespace, Origin};
use tandem_handoff::{KvBlock, Section};
use tandem_prefix_cache::{Held, PageStore, PagesConfig, Provenance, Snapshot, Wanted};

use super::rig::{
    PAGE_COST, PAGE_FILE, PATIENCE, PLENTY, block, config, files, full_block, mixed, part,
    private_dir,
};

const LONGEST: u32 = 64 * 6 + 30;
const PROVENANCES: [Provenance; 2] = [Provenance::Prefilled, Provenance::Decoded];
const WANTED: [Wanted; 2] = [Wanted::Prefilled, Wanted::Any];

/// Two that share two pages and a half, and one that has nothing in common with them.
fn sequence(which: usize) -> Vec<u32> {
    let other = |at: u32| which == 2 || (which == 1 && at >= 160);
    (0..LONGEST)
        .map(|at| at + if other(at) { 5000 } else { 0 })
        .collect()
}

#[derive(Debug, Clone)]
enum Step {
    Put {
        sequence: usize,
        start: u32,
        length: u32,
        provenance: usize,
    },
    Snapshot {
        sequence: usize,
        end: u32,
        provenance: usize,
    },
    Held {
        sequence: usize,
        length: u32,
        wanted: usize,
    },
    Load {
        sequence: usize,
        pages: (u32, u32),
        wanted: usize,
    },
    LoadSnapshot {
        sequence: usize,
        end: u32,
        wanted: usize,
    },
    /// A pin, the steps before its end that could evict, and a load of what it promised.
    Pinned {
        sequence: usize,
        length: u32,
        wanted: usize,
        flood: u32,
    },
    Reopen,
}

fn any_step() -> impl Strategy<Value = Step> {
    let (s, w) = (0..3_usize, 0..2_usize);
    prop_oneof![
        6 => (s.clone(), 0..LONGEST, 0..300_u32, w.clone())
            .prop_map(|(sequence, start, length, provenance)| Step::Put { sequence, start, length, provenance }),
        3 => (s.clone(), 1..=LONGEST, w.clone())
            .prop_map(|(sequence, end, provenance)| Step::Snapshot { sequence, end, provenance }),
        3 => (s.clone(), 0..=LONGEST, w.clone())
            .prop_map(|(sequence, length, wanted)| Step::Held { sequence, length, wanted }),
        3 => (s.clone(), (0..7_u32, 0..7_u32), w.clone())
            .prop_map(|(sequence, pages, wanted)| Step::Load { sequence, pages, wanted }),
        2 => (s.clone(), 1..=LONGEST, w.clone())
            .prop_map(|(sequence, end, wanted)| Step::LoadSnapshot { sequence, end, wanted }),
        2 => (s, 0..=LONGEST, w, 0..4_u32)
            .prop_map(|(sequence, length, wanted, flood)| Step::Pinned { sequence, length, wanted, flood }),
        1 => Just(Step::Reopen),
    ]
}

/// All that was ever put under the tokens up to its end: how it came to be and which copy it is.
type Copies = HashMap<Vec<u32>, Vec<(Provenance, u64)>>;

struct Rig {
    space: Namespace,
    config: PagesConfig,
    store: Option<PageStore>,
    /// Nothing is evicted: the store must have what the model has.
    is_roomy: bool,
    pages: Copies,
    snapshots: Copies,
    copy: u64,
    _dir: tempfile::TempDir,
}

/// What a store that forgets nothing has: the best provenance, the first copy of it.
fn best(copies: &Copies, tokens: &[u32], wanted: Wanted) -> Option<u64> {
    let rank = |p: Provenance| PROVENANCES.iter().position(|known| *known == p);
    let all = copies.get(tokens)?.iter();
    let (provenance, copy) = all.min_by_key(|(p, copy)| (rank(*p), *copy))?;
    wanted.accepts(*provenance).then_some(*copy)
}

impl Rig {
    fn new(room: usize) -> Self {
        let dir = private_dir();
        let (few, many) = (5 * PAGE_COST, PLENTY);
        let (ram, disk) = [
            (many, None),
            (few, None),
            (many, Some(PLENTY)),
            (few, Some(PLENTY)),
            (few, Some(7 * PAGE_FILE)),
        ][room];
        let mut config = config(ram, dir.path(), disk.unwrap_or(0));
        config.disk = config.disk.filter(|_| disk.is_some());
        Self {
            space: Namespace::new(Arc::new(mixed()), b"salt", Origin::Lossy(2)),
            store: Some(PageStore::open(&config).unwrap()),
            config,
            is_roomy: ram == many || disk == Some(PLENTY),
            pages: Copies::new(),
            snapshots: Copies::new(),
            copy: 0,
            _dir: dir,
        }
    }

    fn store(&self) -> &PageStore {
        self.store.as_ref().unwrap()
    }

    fn put(&mut self, tokens: &[u32], start: u32, end: u32, provenance: Provenance) {
        self.copy += 1;
        let rows = full_block(&mixed(), start..end, self.copy);
        let mut new = 0;
        for page in start.div_ceil(64)..end / 64 {
            let copies = self.pages.entry(tokens[..page as usize * 64 + 64].to_vec());
            let copies = copies.or_default();
            copies.push((provenance, self.copy));
            new += u32::from(best_is(copies, self.copy));
        }
        let kept = self
            .store()
            .put(&self.space, tokens, &rows, provenance)
            .unwrap();
        if self.is_roomy {
            assert_eq!(kept, new);
        }
    }

    fn put_snapshot(&mut self, tokens: &[u32], end: u32, provenance: Provenance) {
        self.copy += 1;
        let tail = full_block(&mixed(), end / 64 * 64..end, self.copy);
        let window = window(end, self.copy);
        let tokens = &tokens[..end as usize];
        let copies = self.snapshots.entry(tokens.to_vec());
        let copies = copies.or_default();
        copies.push((provenance, self.copy));
        let is_new = best_is(copies, self.copy);
        let kept =
            self.store()
                .put_snapshot(&self.space, tokens, Some(&tail), Some(&window), provenance);
        if self.is_roomy {
            assert_eq!(kept, Ok(is_new));
        }
    }

    /// What the model has of a sequence.
    fn expected(&self, tokens: &[u32], wanted: Wanted) -> Held {
        let has = |copies: &Copies, end: usize| best(copies, &tokens[..end], wanted).is_some();
        let pages = (1..=tokens.len() / 64).take_while(|n| has(&self.pages, n * 64));
        let pages = pages.count();
        let reach = tokens.len().min(pages * 64 + 63);
        let snapshot = (1..=reach).rev().find(|end| has(&self.snapshots, *end));
        Held {
            tokens: u32::try_from(pages * 64).unwrap(),
            snapshot: snapshot.map(|end| u32::try_from(end).unwrap()),
        }
    }

    fn check_held(&self, held: Held, tokens: &[u32], wanted: Wanted) {
        // Where things are evicted, a worse copy may have come after a better one was gone.
        let expected = self.expected(tokens, if self.is_roomy { wanted } else { Wanted::Any });
        if self.is_roomy {
            assert_eq!(held, expected);
        } else {
            assert!(held.tokens <= expected.tokens);
            assert!(held.snapshot <= expected.snapshot);
        }
    }

    /// That rows are those of a copy that was put and is wanted; of the best one if all are kept.
    fn check_rows(
        &self,
        copies: &Copies,
        tokens: &[u32],
        wanted: Wanted,
        is: impl Fn(u64) -> bool,
    ) {
        let found = copies[tokens].iter().find(|(_, copy)| is(*copy));
        let (provenance, copy) = found.expect("rows that nobody put");
        assert!(wanted.accepts(*provenance));
        if self.is_roomy {
            assert_eq!(best(copies, tokens, wanted), Some(*copy));
        }
    }

    fn check_blocks(
        &self,
        blocks: &[KvBlock],
        tokens: &[u32],
        start: u32,
        end: u32,
        wanted: Wanted,
    ) {
        let mut at = start;
        for block in blocks {
            assert_eq!(block.tokens.start, at);
            assert_eq!(block.validate(&mixed()), Ok(()));
            while at < block.tokens.end {
                let page = part(block, at..at + 64);
                let is = |copy| page == full_block(&mixed(), page.tokens.clone(), copy);
                self.check_rows(&self.pages, &tokens[..at as usize + 64], wanted, is);
                at += 64;
            }
        }
        assert_eq!(at, end);
    }

    fn check_snapshot(&self, snapshot: &Snapshot, tokens: &[u32], wanted: Wanted) {
        let end = u32::try_from(tokens.len()).unwrap();
        let is = |copy| {
            let tail =
                (!end.is_multiple_of(64)).then(|| full_block(&mixed(), end / 64 * 64..end, copy));
            *snapshot
                == Snapshot {
                    tail,
                    window: Some(window(end, copy)),
                }
        };
        self.check_rows(&self.snapshots, tokens, wanted, is);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Put {
                sequence: s,
                start,
                length,
                provenance,
            } => {
                let end = LONGEST.min(start + length);
                self.put(&sequence(s), start, end, PROVENANCES[provenance]);
            }
            Step::Snapshot {
                sequence: s,
                end,
                provenance,
            } => {
                self.put_snapshot(&sequence(s), end, PROVENANCES[provenance]);
            }
            Step::Held {
                sequence: s,
                length,
                wanted,
            } => {
                let tokens = &sequence(s)[..length as usize];
                let held = self.store().held(&self.space, tokens, WANTED[wanted]);
                self.check_held(held, tokens, WANTED[wanted]);
            }
            Step::Load {
                sequence: s,
                pages: (a, b),
                wanted,
            } => {
                self.load(&sequence(s), a.min(b) * 64, a.max(b) * 64, WANTED[wanted]);
            }
            Step::LoadSnapshot {
                sequence: s,
                end,
                wanted,
            } => {
                let (tokens, wanted) = (&sequence(s)[..end as usize], WANTED[wanted]);
                let loaded = self.store().load_snapshot(&self.space, tokens, end, wanted);
                match loaded {
                    Ok(snapshot) => self.check_snapshot(&snapshot, tokens, wanted),
                    Err(_) => {
                        assert!(!self.is_roomy || best(&self.snapshots, tokens, wanted).is_none())
                    }
                }
            }
            Step::Pinned {
                sequence: s,
                length,
                wanted,
                flood,
            } => {
                self.pinned(&sequence(s)[..length as usize], WANTED[wanted], flood);
            }
            Step::Reopen => self.reopen(),
        }
    }

    fn load(&self, tokens: &[u32], start: u32, end: u32, wanted: Wanted) {
        let loaded = self.store().load(&self.space, tokens, start..end, wanted);
        let has = |end: usize| best(&self.pages, &tokens[..end], wanted).is_some();
        let mut ends = (start..end).step_by(64).map(|at| at as usize + 64);
        match loaded {
            Ok(blocks) => self.check_blocks(&blocks, tokens, start, end, wanted),
            Err(_) => assert!(!self.is_roomy || end > LONGEST || !ends.all(has)),
        }
    }

    fn reopen(&mut self) {
        assert!(self.store().flush(PATIENCE));
        if let Some(disk) = &self.config.disk {
            let bytes = files(&disk.dir).iter().map(|(_, bytes)| bytes).sum::<u64>();
            assert_eq!(self.store().stats().disk_bytes, bytes);
        }
        self.store = None;
        self.store = Some(PageStore::open(&self.config).unwrap());
        // Without a disk nothing outlives it.
        if self.config.disk.is_none() {
            self.pages.clear();
            self.snapshots.clear();
        }
        assert_eq!(self.store().stats().damaged, 0);
    }

    fn pinned(&mut self, tokens: &[u32], wanted: Wanted, flood: u32) {
        let pinned = self.store().pin(&self.space, &[], tokens, wanted);
        let held = pinned.held();
        self.check_held(held, tokens, wanted);
        for i in 0..flood {
            let other = vec![9000 + i; 128];
            self.put(&other, 0, 128, Provenance::Prefilled);
            self.put_snapshot(&other, 40, Provenance::Prefilled);
        }
        let blocks = pinned.load(0..held.tokens).expect("promised");
        self.check_blocks(&blocks, tokens, 0, held.tokens, wanted);
        if let Some(end) = held.snapshot {
            let snapshot = pinned.load_snapshot().expect("promised");
            self.check_snapshot(&snapshot, &tokens[..end as usize], wanted);
        }
    }

    fn check_sizes(&self) {
        let stats = self.store().stats();
        assert!(stats.ram_bytes <= self.config.ram_bytes);
        assert!(stats.disk_bytes <= self.config.disk.as_ref().map_or(0, |d| d.bytes));
        let (pages, snapshots) = (self.pages.len() as u64, self.snapshots.len() as u64);
        if self.is_roomy {
            assert_eq!((stats.pages, stats.snapshots), (pages, snapshots));
        } else {
            assert!(stats.pages <= pages && stats.snapshots <= snapshots);
        }
        assert_eq!((stats.pins, stats.collisions, stats.disk_errors), (0, 0, 0));
    }
}

/// True if the copy that was put last is the one to keep.
fn best_is(copies: &[(Provenance, u64)], copy: u64) -> bool {
    let all = Copies::from([(vec![], copies.to_vec())]);
    best(&all, &[], Wanted::Any) == Some(copy)
}

fn window(end: u32, copy: u64) -> KvBlock {
    let start = mixed().window_start(end);
    block(&mixed(), Section::Window, start..end, copy)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, ..ProptestConfig::default() })]
    #[test]
    fn the_store_is_what_the_model_says(
        room in 0..5_usize,
        steps in prop::collection::vec(any_step(), 1..40),
    ) {
        let mut rig = Rig::new(room);
        for step in &steps {
            rig.step(step);
            rig.check_sizes();
        }
    }
}
