//! KV of earlier requests, kept by page so that a prefix that is here is not sent, or not
//! computed, again.
//!
//! A *page* is the rows of all full layers for 64 tokens ([`tandem_handoff::page`] names it). A
//! *snapshot* is what it takes to continue at one position beside complete pages: the rows since the
//! last page boundary, and the window of a model with sliding windows, which can be continued from
//! nowhere else.
//!
//! Objects live in memory, least used evicted first, and from there go to a directory if one is
//! configured, where a restart finds them again. A cache owes nobody anything: a disk that is full
//! or damaged costs pages, never a request. Rows come back bit for bit or not at all.

mod disk;
mod index;
pub mod limits;
mod named;
mod object;
mod pinned;
mod rows;
mod spill;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tandem_handoff::contract::InvalidContract;
use tandem_handoff::page::{Namespace, PAGE_TOKENS, PageId, page_start};
use tandem_handoff::plane::InvalidBlock;
use tandem_handoff::{KvBlock, Section};

use self::disk::{Disk, FileName, Unread};
use self::index::Index;
use self::limits::{LOAD_ATTEMPTS, MAX_OBJECT_BYTES, MAX_PINS};
use self::named::{Named, Place};
use self::object::{Meta, Rows};
pub use self::pinned::{Overdue, Pinned};
use self::rows::Shape;
use self::spill::{Shared, Writer};

const PAGE_LEN: usize = PAGE_TOKENS as usize;

/// How much is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PagesConfig {
    /// Bytes of memory: rows, tokens and [`limits::ENTRY_OVERHEAD`] of each object.
    pub ram_bytes: u64,
    /// Where pages go that memory has no room for; `None`: they are dropped.
    pub disk: Option<DiskConfig>,
}

impl PagesConfig {
    /// True if anything is kept.
    #[must_use]
    pub const fn keeps_any(&self) -> bool {
        self.ram_bytes > 0 || self.disk.is_some()
    }
}

/// A directory for pages, of one store alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// Made if it is missing. Only its owner may be able to read it.
    pub dir: PathBuf,
    /// Bytes of all files in it.
    pub bytes: u64,
}

/// How rows came to be. Of two copies of the same page the better one is kept, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Provenance {
    /// Computed by a prefill inside a complete chunk or step.
    Prefilled,
    /// Computed token by token while an answer was decoded: not equal to the bit.
    Decoded,
}

/// Which rows will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// [`Provenance::Prefilled`] only: what a prefill here would give, to the bit, but for what a lossy
    /// codec of the namespace has changed.
    Prefilled,
    /// All of the namespace.
    Any,
}

impl Wanted {
    /// True if such rows will do.
    #[must_use]
    pub const fn accepts(self, provenance: Provenance) -> bool {
        match self {
            Self::Prefilled => matches!(provenance, Provenance::Prefilled),
            Self::Any => true,
        }
    }
}

/// What a store has of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Complete pages from the first token on cover `[0, tokens)`, a multiple of [`PAGE_TOKENS`].
    pub tokens: u32,
    /// The last position with a usable snapshot.
    pub snapshot: Option<u32>,
}

/// All that is needed beside complete pages, to continue at a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Rows of the full layers from the last page boundary to the position; `None` if there are
    /// no such tokens or layers.
    pub tail: Option<KvBlock>,
    /// The window that ends at the position; `None` if the model has none.
    pub window: Option<KvBlock>,
}

/// Sizes now, and counts since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageStats {
    /// Pages held, in memory or on disk.
    pub pages: u64,
    /// Snapshots held.
    pub snapshots: u64,
    /// Memory used, as [`PagesConfig::ram_bytes`] counts it.
    pub ram_bytes: u64,
    /// Memory of what waits to be written, beside that.
    pub queued_bytes: u64,
    /// Bytes of files, those being written included.
    pub disk_bytes: u64,
    /// Pins now.
    pub pins: u64,
    /// Pages that were asked for and held.
    pub hits: u64,
    /// Complete pages that were asked for and not held.
    pub misses: u64,
    /// Objects written to disk.
    pub spills: u64,
    /// Objects that left memory for good because too much waited to be written.
    pub spills_refused: u64,
    /// Objects read from disk.
    pub disk_loads: u64,
    /// Objects dropped for want of room, or lost.
    pub evictions: u64,
    /// Objects not kept because nothing could be evicted for them, or they exceed the limit.
    pub refused: u64,
    /// Objects not kept because other tokens have the same id.
    pub collisions: u64,
    /// Files of no use: damaged, or of another version.
    pub damaged: u64,
    /// Operations on files that failed.
    pub disk_errors: u64,
}

/// A store that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be used.
    #[error("directory of pages {}: {error}", dir.display())]
    Directory {
        /// Which.
        dir: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Others can read it.
    #[error("directory of pages {0}: others than its owner have access; `chmod 700 {0}` fixes it", dir.display())]
    Shared {
        /// Which.
        dir: PathBuf,
    },
    /// Another store uses it.
    #[error("directory of pages {}: another node uses it; give each node its own", dir.display())]
    InUse {
        /// Which.
        dir: PathBuf,
    },
    /// The system gives no thread.
    #[error("no thread to write pages: {0}")]
    Thread(std::io::Error),
}

/// Rows that cannot be kept: a mistake of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// The contract of the namespace is out of bounds.
    #[error(transparent)]
    Contract(#[from] InvalidContract),
    /// The block does not follow the contract.
    #[error(transparent)]
    Block(#[from] InvalidBlock),
    /// Not all tokens up to the end of the block were given.
    #[error("{given} tokens were given for rows up to {needed}")]
    Tokens {
        /// Number of tokens.
        given: usize,
        /// End of the block.
        needed: u32,
    },
    /// A block of the other section, or of another range than its use asks for.
    #[error("expected rows of section {section:?} that cover tokens {start}..{end}")]
    Range {
        /// Which layers.
        section: Section,
        /// First token.
        start: u32,
        /// One past the last token.
        end: u32,
    },
}

/// Rows that cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// They are not held, or not any more.
    #[error("KV up to token {end} is not held")]
    Missing {
        /// One past the last token of the page or snapshot that is missing.
        end: u32,
    },
    /// The range is not made of pages of the sequence.
    #[error("tokens {start}..{end} are no complete pages of the sequence")]
    Range {
        /// First token.
        start: u32,
        /// One past the last token.
        end: u32,
    },
}

/// A bounded cache of KV. Clones share it; it closes with the last of them.
///
/// All methods may be called from any thread. [`PageStore::put`], [`PageStore::held`] and
/// [`PageStore::pin`] do not wait for the disk; [`PageStore::open`], [`PageStore::load`],
/// [`PageStore::load_snapshot`] and [`PageStore::flush`] do, so asynchronous callers call these
/// where blocking is allowed. Closing waits for at most one write, and not longer than
/// [`limits::CLOSE`]; what shall outlive a restart is flushed before.
#[derive(Debug, Clone)]
pub struct PageStore {
    shared: Arc<Shared>,
    _writer: Arc<Writer>,
    /// Of the store of one request: how often pages had been forgotten when it began; empty if it began with none.
    begun: Option<Arc<OnceLock<u64>>>,
}

impl PageStore {
    /// Opens a store, and finds the pages that an earlier one left in the directory.
    ///
    /// # Errors
    /// If the directory cannot be used, or there is no thread to write with.
    pub fn open(config: &PagesConfig) -> Result<Self, OpenError> {
        let disk_limit = config.disk.as_ref().map(|d| d.bytes);
        let mut index = Index::new(config.ram_bytes, disk_limit);
        let disk = config.disk.as_ref().map(Disk::open).transpose()?;
        if let Some(disk) = &disk {
            let scan = disk.scan()?;
            if scan.unusable > 0 {
                let (dir, files) = (disk.dir().display(), scan.unusable);
                tracing::warn!(%dir, files, "pages: deleted files that were damaged or of another version");
            }
            index.stats.damaged += scan.unusable;
            index.stats.disk_errors += scan.errors;
            index.adopt(scan.found);
        }
        let shared = Arc::new(Shared::new(index, disk));
        let writer = Writer::start(&shared).map_err(OpenError::Thread)?;
        Ok(Self {
            shared,
            _writer: Arc::new(writer),
            begun: None,
        })
    }

    /// The same store for the rows of one request. If it begins with pages, and any are forgotten before its rows are put in,
    /// these are not kept: what was wrong with those may be wrong with what followed from them.
    #[must_use]
    pub fn of_request(&self) -> Self {
        Self {
            begun: Some(Arc::default()),
            ..self.clone()
        }
    }

    /// True if the rows of a [request](Self::of_request) may follow from pages that have been forgotten since it began with them.
    #[must_use]
    pub fn is_discredited(&self) -> bool {
        self.shared.look(|index| self.has_begun_before(index))
    }

    fn has_begun_before(&self, index: &Index) -> bool {
        let begun = self.begun.as_ref().and_then(|begun| begun.get());
        begun.is_some_and(|forgotten| *forgotten != index.forgotten())
    }

    /// Keeps every complete page inside a block of full layers; returns how many are new, or better
    /// than what was there. `tokens` are those of the sequence from its first, at least up to the
    /// end of the block.
    ///
    /// # Errors
    /// If the block does not follow the contract of the namespace. That there is no room is none.
    pub fn put(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        block: &KvBlock,
        provenance: Provenance,
    ) -> Result<u32, PutError> {
        let tokens = check(namespace, tokens, block, Section::Full)?;
        let shape = Shape::new(namespace.contract(), Section::Full)?;
        if shape.is_empty() {
            return Ok(0);
        }
        let named = Named::new(namespace, tokens);
        let numbers = block.tokens.start.div_ceil(PAGE_TOKENS)..block.tokens.end / PAGE_TOKENS;
        let places = numbers.filter_map(|n| named.page(n as usize));
        let missing: Vec<Place> = self.shared.look(|index| {
            // A collision is for the index to count.
            let is_better = |place: &Place| {
                index.get(&place.id).is_none_or(|entry| {
                    let is_it = entry.meta.is(place.kind, place.end, place.tokens);
                    !is_it || entry.gives_way(provenance)
                })
            };
            places.filter(is_better).collect()
        });
        // Copied without the lock.
        let bytes = shape.bytes(PAGE_TOKENS);
        let mut objects = Vec::with_capacity(missing.len());
        for place in missing.iter().filter(|_| bytes <= MAX_OBJECT_BYTES) {
            let mut rows = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
            shape.cut(block, &(place.end - PAGE_TOKENS..place.end), &mut rows);
            objects.push((place.id, meta(place, provenance, bytes), rows));
        }
        let oversized = (missing.len() - objects.len()) as u64;
        Ok(self.shared.with(|index| {
            index.stats.refused += oversized;
            // The first page last, as the one that shall stay longest.
            let objects = objects.into_iter().rev();
            let kept = objects.map(|(id, meta, rows)| self.insert(index, id, meta, rows));
            let kept = kept.map(u32::from).sum();
            // Those before the block stay longer than it: without them it is of no use.
            let before = (0..block.tokens.start / PAGE_TOKENS).rev();
            for place in before.filter_map(|n| named.page(n as usize)) {
                index.touch(&place.id);
            }
            kept
        }))
    }

    /// Keeps what is needed to continue at the end of `tokens`, beside the complete pages before it,
    /// which are put by themselves; true if it is new, or better than what was there. `tail` must
    /// contain the rows of the full layers since the last page boundary, unless the model has none or
    /// the position is such a boundary, and `window` is that of a model with windows.
    ///
    /// # Errors
    /// If a block does not follow the contract of the namespace, or is missing or not the whole one.
    pub fn put_snapshot(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        tail: Option<&KvBlock>,
        window: Option<&KvBlock>,
        provenance: Provenance,
    ) -> Result<bool, PutError> {
        let contract = namespace.contract();
        let shape = Shape::new(contract, Section::Window)?;
        let full = Shape::new(contract, Section::Full)?;
        let end = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let whole = contract.window_start(end)..end;
        if window.is_some() == shape.is_empty() || window.is_some_and(|w| w.tokens != whole) {
            return Err(range_error(Section::Window, &whole));
        }
        let since = page_start(end)..end;
        let tail_bytes = full.bytes(end % PAGE_TOKENS);
        let bytes = tail_bytes.saturating_add(window.map_or(0, KvBlock::bytes));
        if bytes == 0 {
            return Ok(false);
        }
        let named = Named::new(namespace, tokens);
        let place = named.snapshot((end / PAGE_TOKENS) as usize, (end % PAGE_TOKENS) as usize);
        let place = place.ok_or_else(|| range_error(Section::Window, &whole))?;
        let mut rows = Vec::new();
        if bytes <= MAX_OBJECT_BYTES {
            rows.reserve_exact(usize::try_from(bytes).unwrap_or(0));
        }
        if tail_bytes > 0 {
            let tail = tail.ok_or_else(|| range_error(Section::Full, &since))?;
            check(namespace, tokens, tail, Section::Full)?;
            if tail.tokens.start > since.start || tail.tokens.end < since.end {
                return Err(range_error(Section::Full, &since));
            }
            full.cut(tail, &since, &mut rows);
        }
        if let Some(window) = window {
            check(namespace, tokens, window, Section::Window)?;
            shape.cut(window, &whole, &mut rows);
        }
        let meta = meta(&place, provenance, bytes);
        Ok(self.shared.with(|index| {
            if bytes > MAX_OBJECT_BYTES {
                index.stats.refused += 1;
                return false;
            }
            self.insert(index, place.id, meta, rows)
        }))
    }

    /// Forgets the pages and snapshots of a sequence that end behind a position, one for each namespace, and those of
    /// longer ones that begin with such a page; tells how many there were. They are wrong, or may be:
    /// pins do not hold them back.
    pub fn forget<'n>(
        &self,
        names: impl IntoIterator<Item = (&'n Namespace, u32)>,
        tokens: &[u32],
    ) -> u64 {
        let names = names.into_iter();
        let named: Vec<(Named, usize)> = names
            .map(|(space, from)| (Named::new(space, tokens), (from / PAGE_TOKENS) as usize))
            .collect();
        self.shared.with(|index| {
            let all = named
                .iter()
                .flat_map(|(named, from)| named.all(index, *from));
            let all = all.collect();
            index.forget_all(all)
        })
    }

    fn insert(&self, index: &mut Index, id: PageId, meta: Meta, rows: Vec<u8>) -> bool {
        if self.has_begun_before(index) {
            return false;
        }
        index.insert(id, meta, rows)
    }

    /// What is held of a sequence: the longest run of complete pages from its first token, and the
    /// last position of a usable snapshot.
    #[must_use]
    pub fn held(&self, namespace: &Namespace, tokens: &[u32], wanted: Wanted) -> Held {
        let named = [Named::new(namespace, tokens)];
        self.shared
            .look(|index| Named::held(&named, index, wanted).0)
    }

    /// The same, and keeps it from being evicted for as long as the guard lives, so that it can be
    /// promised. A page that the namespace does not have is taken from the first of `others` that has it;
    /// a snapshot is not. With [`MAX_PINS`] guards nothing more is promised: nothing is held.
    ///
    /// A promise holds against other pages, as long as all that is pinned fits memory and disk; not
    /// against a disk that fails.
    #[must_use]
    pub fn pin(
        &self,
        namespace: &Namespace,
        others: &[Namespace],
        tokens: &[u32],
        wanted: Wanted,
    ) -> Pinned {
        let all = std::iter::once(namespace).chain(others);
        let named: Vec<Named> = all.map(|space| Named::new(space, tokens)).collect();
        let pinned = self.shared.look(|index| {
            if index.stats.pins >= MAX_PINS as u64 {
                return None;
            }
            index.stats.pins += 1;
            let (held, used) = Named::held(&named, index, wanted);
            if let Some(begun) = self.begun.as_ref().filter(|_| held != Held::default()) {
                begun.get_or_init(|| index.forgotten());
            }
            let pins: Vec<_> = used
                .objects
                .into_iter()
                .filter_map(|id| Some((id, index.pin(&id)?)))
                .collect();
            Some((held, used.runs, pins))
        });
        let is_counted = pinned.is_some();
        let (held, runs, objects) = pinned.unwrap_or_default();
        let runs = runs.into_iter();
        let reach = held.tokens.max(held.snapshot.unwrap_or(0)) as usize;
        Pinned {
            store: self.clone(),
            namespace: namespace.clone(),
            runs: runs.map(|(space, range)| (space.clone(), range)).collect(),
            tokens: tokens[..reach.min(tokens.len())].into(),
            wanted,
            held,
            objects,
            is_counted,
        }
    }

    /// The rows of complete pages, in blocks of at most [`tandem_handoff::limits::TARGET_BLOCK_BYTES`] (or one page)
    /// that an engine can import one after the other. Blocks on the disk.
    ///
    /// # Errors
    /// If a page is not held any more, or `range` is not made of pages of the sequence.
    pub fn load(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        range: Range<u32>,
        wanted: Wanted,
    ) -> Result<Vec<KvBlock>, LoadError> {
        let Range { start, end } = range;
        let is_aligned = start.is_multiple_of(PAGE_TOKENS) && end.is_multiple_of(PAGE_TOKENS);
        if !is_aligned || start > end || tokens.len() < end as usize {
            return Err(LoadError::Range { start, end });
        }
        let missing = LoadError::Missing { end };
        let named = Named::new(namespace, &tokens[..end as usize]);
        let shape = Shape::new(namespace.contract(), Section::Full).map_err(|_| missing)?;
        let numbers: Vec<usize> =
            ((start as usize / PAGE_LEN)..(end as usize / PAGE_LEN)).collect();
        let mut blocks = Vec::new();
        let mut at = start;
        for numbers in numbers.chunks(shape.pages_per_block()) {
            let places = numbers.iter().filter_map(|n| named.page(*n));
            let objects = places.map(|p| self.object(&p, wanted));
            let objects: Result<Vec<Rows>, _> = objects.collect();
            let objects = objects?;
            let rows: Vec<&[u8]> = objects.iter().map(|r| r.as_slice()).collect();
            let block = shape.join(at, PAGE_TOKENS, &rows).ok_or(missing)?;
            at = block.tokens.end;
            blocks.push(block);
        }
        Ok(blocks)
    }

    /// What is needed to continue at `position` beside the complete pages before it. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// If there is no snapshot at the position, or not any more.
    pub fn load_snapshot(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        position: u32,
        wanted: Wanted,
    ) -> Result<Snapshot, LoadError> {
        let missing = LoadError::Missing { end: position };
        let tokens = tokens.get(..position as usize).ok_or(missing)?;
        let contract = namespace.contract();
        let named = Named::new(namespace, tokens);
        let length = position % PAGE_TOKENS;
        let place = named.snapshot((position / PAGE_TOKENS) as usize, length as usize);
        let rows = self.object(&place.ok_or(missing)?, wanted)?;
        let shape = |section| Shape::new(contract, section).map_err(|_| missing);
        let full = shape(Section::Full)?;
        let tail_bytes = usize::try_from(full.bytes(length)).map_err(|_| missing)?;
        let (tail, window) = rows.split_at_checked(tail_bytes).ok_or(missing)?;
        let start = contract.window_start(position);
        let windows = shape(Section::Window)?;
        let window = match window {
            [] if windows.is_empty() => None,
            window => Some(
                windows
                    .join(start, position - start, &[window])
                    .ok_or(missing)?,
            ),
        };
        let tail = match tail {
            [] => None,
            tail => Some(
                full.join(position - length, length, &[tail])
                    .ok_or(missing)?,
            ),
        };
        Ok(Snapshot { tail, window })
    }

    /// Writes everything in memory to disk as far as it has room, so that a restart finds it; false
    /// if that took longer than `limit`. Blocks; without a disk there is nothing to do.
    pub fn flush(&self, limit: Duration) -> bool {
        if self.shared.disk.is_none() {
            return true;
        }
        let deadline = Instant::now() + limit;
        let unwritten = self.shared.look(|index| index.unwritten());
        for id in unwritten {
            // Also when it cannot be queued at all, which is so once nothing else waits.
            let done = |index: &mut Index| index.queue_copy(&id) || index.is_written();
            if !self.shared.wait(deadline, done) {
                return false;
            }
        }
        self.shared.wait(deadline, |index| index.is_written())
    }

    /// Sizes and counts.
    #[must_use]
    pub fn stats(&self) -> PageStats {
        self.shared.look(|index| index.stats())
    }

    /// The rows of one object, from memory or from disk.
    fn object(&self, place: &Place, wanted: Wanted) -> Result<Rows, LoadError> {
        enum At {
            Memory(Rows),
            File(FileName, Arc<Meta>, u64),
        }
        let missing = LoadError::Missing { end: place.end };
        for _ in 0..LOAD_ATTEMPTS {
            let at = self.shared.look(|index| {
                let entry = place.find(index, wanted)?;
                match (&entry.rows, &entry.file) {
                    (Some(rows), _) => Some(At::Memory(Arc::clone(rows))),
                    (None, Some(file)) => {
                        Some(At::File(*file, Arc::clone(&entry.meta), entry.version))
                    }
                    (None, None) => None,
                }
            });
            let (file, meta, version) = match at.ok_or(missing)? {
                At::Memory(rows) => return Ok(rows),
                At::File(file, meta, version) => (file, meta, version),
            };
            let Some(disk) = &self.shared.disk else { break };
            if disk.is_overdue() {
                self.shared.look(|index| index.stats.disk_errors += 1);
                break;
            }
            let read = disk.read(&file, &meta).map(Arc::new);
            match read {
                Ok(rows) => {
                    self.shared.with(|index| {
                        index.stats.disk_loads += 1;
                        index.promote(&place.id, version, &rows);
                    });
                    return Ok(rows);
                }
                Err(why) => {
                    if let Unread::Failed(error) = &why {
                        disk.log("read", disk.dir(), error);
                    }
                    self.shared
                        .with(|index| index.unread(&place.id, &file, &why));
                }
            }
        }
        Err(missing)
    }
}

/// The tokens up to the end of a block that has been checked.
fn check<'a>(
    namespace: &Namespace,
    tokens: &'a [u32],
    block: &KvBlock,
    section: Section,
) -> Result<&'a [u32], PutError> {
    namespace.contract().validate()?;
    if block.section != section {
        return Err(range_error(section, &block.tokens));
    }
    block.validate(namespace.contract())?;
    let needed = block.tokens.end;
    tokens.get(..needed as usize).ok_or(PutError::Tokens {
        given: tokens.len(),
        needed,
    })
}

fn range_error(section: Section, range: &Range<u32>) -> PutError {
    PutError::Range {
        section,
        start: range.start,
        end: range.end,
    }
}

fn meta(place: &Place, provenance: Provenance, bytes: u64) -> Meta {
    Meta {
        kind: place.kind,
        provenance,
        parent: place.parent,
        end: place.end,
        tokens: place.tokens.into(),
        bytes,
    }
}
