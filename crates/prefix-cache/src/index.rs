//! What a store knows: where each object is, what is used least, who holds it back. No I/O here, so
//! the lock around it is never held for long; files to delete are handed back to the caller.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use lru::LruCache;
use tandem_handoff::page::PageId;

use super::disk::{FileName, Found, Spill, Unread};
use super::limits::{MAX_ENTRIES, MAX_SPILL_BYTES, MAX_SPILLS_WAITING};
use super::object::{Kind, Meta, Rows};
use super::{PageStats, Provenance};

/// One object.
#[derive(Debug)]
pub struct Entry {
    pub meta: Arc<Meta>,
    /// Set once: tells a new entry from one of the same id that was dropped before.
    pub birth: u64,
    /// Changes with the rows.
    pub version: u64,
    /// The rows, while the object is in memory or waits to be written.
    pub rows: Option<Rows>,
    /// It counts as memory and stands in the order of use there.
    resident: bool,
    /// It waits to be written, or is being written.
    queued: bool,
    /// Where it is on disk.
    pub file: Option<FileName>,
    pins: u32,
}

/// All objects of a store.
#[derive(Debug)]
pub struct Index {
    entries: HashMap<PageId, Entry>,
    /// How many snapshots there are of each length of tail after a page.
    tails: HashMap<PageId, BTreeMap<usize, u32>>,
    ram: LruCache<PageId, ()>,
    disk: LruCache<PageId, ()>,
    max_entries: usize,
    ram_limit: u64,
    /// `None` without a disk.
    disk_limit: Option<u64>,
    queue: VecDeque<Spill>,
    /// Objects handed to the writer.
    writing: usize,
    serial: u64,
    /// Files that nothing refers to any more; the writer deletes them without the lock.
    unused: Vec<FileName>,
    /// Files that the writer is deleting.
    removing: usize,
    /// How often objects have been forgotten because they may be wrong.
    forgotten: u64,
    /// Counters and sizes.
    pub stats: PageStats,
}

impl Index {
    /// An index without objects, for at most [`MAX_ENTRIES`].
    pub fn new(ram_limit: u64, disk_limit: Option<u64>) -> Self {
        Self::with_entries(MAX_ENTRIES, ram_limit, disk_limit)
    }

    fn with_entries(max_entries: usize, ram_limit: u64, disk_limit: Option<u64>) -> Self {
        Self {
            entries: HashMap::new(),
            tails: HashMap::new(),
            ram: LruCache::unbounded(),
            disk: LruCache::unbounded(),
            max_entries,
            ram_limit,
            disk_limit,
            queue: VecDeque::new(),
            writing: 0,
            serial: 0,
            unused: Vec::new(),
            removing: 0,
            forgotten: 0,
            stats: PageStats::default(),
        }
    }

    /// True if there are files to delete.
    pub fn has_unused(&self) -> bool {
        !self.unused.is_empty()
    }

    /// The files to delete now, until [`Index::removed`].
    pub fn take_unused(&mut self) -> Vec<FileName> {
        self.removing += self.unused.len();
        std::mem::take(&mut self.unused)
    }

    /// So many files have been deleted, or cannot be now.
    pub fn removed(&mut self, files: usize) {
        self.removing = self.removing.saturating_sub(files);
    }

    /// The object of this id.
    pub fn get(&self, id: &PageId) -> Option<&Entry> {
        self.entries.get(id)
    }

    /// Lengths of the tails of snapshots after a page, the longest first.
    pub fn tails(&self, parent: &PageId) -> impl Iterator<Item = usize> {
        let lengths = self.tails.get(parent).into_iter().flatten();
        lengths.rev().map(|(length, _)| *length)
    }

    /// Objects right after a page that begin with these tokens.
    pub fn following(&self, parent: &PageId, tokens: &[u32]) -> impl Iterator<Item = PageId> {
        let follows = |e: &Entry| e.meta.parent == *parent && e.meta.tokens.starts_with(tokens);
        let entries = self.entries.iter();
        entries.filter(move |(_, e)| follows(e)).map(|(id, _)| *id)
    }

    /// Notes that an object was used.
    pub fn touch(&mut self, id: &PageId) {
        self.ram.promote(id);
        self.disk.promote(id);
    }

    /// Takes an object in, in memory. False if it is not kept: because as good rows are there
    /// already, because its id collides, or because there is no room.
    pub fn insert(&mut self, id: PageId, meta: Meta, rows: Vec<u8>) -> bool {
        if let Some(entry) = self.entries.get(&id) {
            if !entry.meta.is(meta.kind, meta.end, &meta.tokens) {
                self.stats.collisions += 1;
                return false;
            }
            if !entry.gives_way(meta.provenance) {
                self.touch(&id);
                return false;
            }
        }
        let cost = meta.cost();
        if !self.make_room_in_memory(cost) || !self.make_room_for_entry(&id) {
            self.stats.refused += 1;
            return false;
        }
        let version = self.next_serial();
        let meta = Arc::new(meta);
        let rows = Some(Arc::new(rows));
        if let Some(entry) = self.entries.get_mut(&id) {
            if entry.resident {
                self.stats.ram_bytes -= entry.meta.cost();
            }
            let worse = entry.file.take();
            entry.meta = meta;
            entry.version = version;
            entry.rows = rows;
            entry.resident = true;
            entry.queued = false;
            self.drop_file(&id, worse);
        } else {
            self.count_tail(&meta, 1);
            let entry = Entry {
                meta,
                birth: version,
                version,
                rows,
                resident: true,
                queued: false,
                file: None,
                pins: 0,
            };
            self.entries.insert(id, entry);
        }
        self.stats.ram_bytes += cost;
        self.ram.put(id, ());
        true
    }

    /// Takes over the files that an earlier run left, the last used last.
    pub fn adopt(&mut self, found: Vec<Found>) {
        for Found { id, meta, file, .. } in found {
            self.serial = self.serial.max(file.serial);
            let limit = self.disk_limit.unwrap_or(0);
            let is_better = self
                .entries
                .get(&id)
                .is_none_or(|old| meta.provenance.rank() <= old.meta.provenance.rank());
            if meta.file_bytes() > limit || !is_better {
                self.unused.push(file);
                continue;
            }
            let version = self.next_serial();
            if let Some(old) = self.entries.remove(&id) {
                self.count_tail(&old.meta, -1);
                self.drop_file(&id, old.file);
            }
            if !self.make_room_on_disk(meta.file_bytes()) {
                self.unused.push(file);
                continue;
            }
            self.stats.disk_bytes += meta.file_bytes();
            self.count_tail(&meta, 1);
            self.disk.put(id, ());
            let entry = Entry {
                meta: Arc::new(meta),
                birth: version,
                version,
                rows: None,
                resident: false,
                queued: false,
                file: Some(file),
                pins: 0,
            };
            self.entries.insert(id, entry);
        }
    }

    /// Rows that were read from disk stay in memory, if they still are those of the entry.
    pub fn promote(&mut self, id: &PageId, version: u64, rows: &Rows) {
        let is_wanted = |e: &Entry| e.version == version && !e.resident;
        let Some(entry) = self.entries.get(id).filter(|e| is_wanted(e)) else {
            return;
        };
        let cost = entry.meta.cost();
        if !self.make_room_in_memory(cost) {
            return;
        }
        if let Some(entry) = self.entries.get_mut(id).filter(|e| is_wanted(e)) {
            entry.resident = true;
            entry.rows = Some(Arc::clone(rows));
            self.stats.ram_bytes += cost;
            self.ram.put(*id, ());
        }
    }

    /// Keeps an object from being evicted, until [`Index::unpin`] with what is returned.
    pub fn pin(&mut self, id: &PageId) -> Option<u64> {
        let entry = self.entries.get_mut(id)?;
        entry.pins += 1;
        Some(entry.birth)
    }

    /// Ends a pin.
    pub fn unpin(&mut self, id: &PageId, birth: u64) {
        if let Some(entry) = self.entries.get_mut(id).filter(|e| e.birth == birth) {
            entry.pins = entry.pins.saturating_sub(1);
        }
    }

    /// The file of an object could not be read. It is given up, unless another one took its place
    /// meanwhile.
    pub fn unread(&mut self, id: &PageId, file: &FileName, why: &Unread) {
        if let Some(entry) = self.entries.get_mut(id)
            && entry.file.as_ref() == Some(file)
        {
            let file = entry.file.take();
            self.drop_file(id, file);
            self.drop_if_nowhere(id);
            match why {
                Unread::Damaged | Unread::Gone => self.stats.damaged += 1,
                Unread::Failed(_) => self.stats.disk_errors += 1,
            }
        }
    }

    /// Forgets objects and all that follows from them; tells how many there were. What is pinned goes
    /// too: whoever was promised it does without.
    pub fn forget_all(&mut self, first: Vec<PageId>) -> u64 {
        // Also if none are here any more: somebody may have begun with them.
        self.forgotten += 1;
        let mut children: HashMap<PageId, Vec<PageId>> = HashMap::new();
        for (id, entry) in &self.entries {
            children.entry(entry.meta.parent).or_default().push(*id);
        }
        let before = self.entries.len();
        let mut open = first;
        // Behind a gap it cannot be seen from what an object follows; nor is it of use.
        let is_held = |id: &PageId| *id == PageId::ROOT || self.entries.contains_key(id);
        let gaps = children.keys().filter(|parent| !is_held(parent));
        let mut behind_gaps: Vec<PageId> = gaps.copied().collect();
        while let Some(id) = open.pop() {
            open.extend(children.remove(&id).unwrap_or_default());
            self.forget(&id);
        }
        while let Some(id) = behind_gaps.pop() {
            behind_gaps.extend(children.remove(&id).unwrap_or_default());
            self.forget(&id);
        }
        (before - self.entries.len()) as u64
    }

    /// Changes with [`Index::forget_all`].
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Objects in memory that are not on disk, the least used first.
    pub fn unwritten(&self) -> Vec<PageId> {
        let ids = self.ram.iter().rev().map(|(id, ())| *id);
        let is_unwritten = |e: &Entry| e.file.is_none();
        ids.filter(|id| self.entries.get(id).is_some_and(is_unwritten))
            .collect()
    }

    /// Queues a copy of an object in memory for the disk. False if the queue has no room.
    pub fn queue_copy(&mut self, id: &PageId) -> bool {
        let Some(entry) = self.entries.get(id) else {
            return true;
        };
        if entry.file.is_some() || entry.queued || !entry.resident {
            return true;
        }
        self.enqueue(id)
    }

    /// The next object to write, until [`Index::written`]. Files that make room for it are unused
    /// then, and its place is reserved.
    pub fn next_spill(&mut self) -> Option<Spill> {
        while let Some(spill) = self.queue.pop_front() {
            let entry = self.entries.get(&spill.id);
            let is_current = entry.is_some_and(|e| e.queued && e.version == spill.version);
            if is_current && self.make_room_on_disk(spill.meta.file_bytes()) {
                self.stats.disk_bytes += spill.meta.file_bytes();
                self.writing += 1;
                return Some(spill);
            }
            self.leave_queue(&spill);
        }
        None
    }

    /// An object was written, or not.
    pub fn written(&mut self, spill: &Spill, file: Option<FileName>) {
        self.writing = self.writing.saturating_sub(1);
        let is_current = |e: &&mut Entry| e.queued && e.version == spill.version;
        match (file, self.entries.get_mut(&spill.id).filter(is_current)) {
            (Some(file), Some(entry)) => {
                entry.file = Some(file);
                self.disk.put(spill.id, ());
                self.stats.spills += 1;
            }
            (file, _) => {
                self.stats.disk_bytes -= spill.meta.file_bytes();
                self.unused.extend(file);
            }
        }
        self.leave_queue(spill);
    }

    /// True if nothing waits to be written or deleted, and nothing is just then.
    pub fn is_written(&self) -> bool {
        let is_clear = self.unused.is_empty() && self.removing == 0;
        self.queue.is_empty() && self.writing == 0 && is_clear
    }

    /// A number that was not used before, for versions and file names.
    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Sizes and counters.
    pub fn stats(&self) -> PageStats {
        self.stats
    }

    fn enqueue(&mut self, id: &PageId) -> bool {
        let Some(entry) = self.entries.get_mut(id) else {
            return false;
        };
        let Some(rows) = entry.rows.clone() else {
            return false;
        };
        let cost = entry.meta.cost();
        let waiting = self.queue.len() + self.writing;
        let has_room = waiting == 0
            || (waiting < MAX_SPILLS_WAITING && self.stats.queued_bytes + cost <= MAX_SPILL_BYTES);
        let fits = self
            .disk_limit
            .is_some_and(|l| entry.meta.file_bytes() <= l);
        if !has_room || !fits {
            return false;
        }
        entry.queued = true;
        self.queue.push_back(Spill {
            id: *id,
            meta: Arc::clone(&entry.meta),
            rows,
            version: entry.version,
        });
        self.stats.queued_bytes += cost;
        true
    }

    /// The bytes of a spill wait no more; its entry stays where else it is.
    fn leave_queue(&mut self, spill: &Spill) {
        self.stats.queued_bytes -= spill.meta.cost();
        let Some(entry) = self.entries.get_mut(&spill.id) else {
            return;
        };
        if entry.version != spill.version || !entry.queued {
            return;
        }
        entry.queued = false;
        if entry.resident {
            return;
        }
        // What somebody was promised goes back to memory if it can.
        if entry.file.is_none() && entry.pins > 0 {
            self.promote(&spill.id, spill.version, &spill.rows);
        }
        if let Some(entry) = self.entries.get_mut(&spill.id)
            && !entry.resident
        {
            entry.rows = None;
        }
        self.drop_if_nowhere(&spill.id);
    }

    /// Evicts from memory, the least used first. False if the rest is pinned or the limit too small.
    fn make_room_in_memory(&mut self, need: u64) -> bool {
        if need > self.ram_limit {
            return false;
        }
        while self.stats.ram_bytes + need > self.ram_limit {
            let can_go = |id: &PageId| {
                let entry = self.entries.get(id);
                entry.is_none_or(|e| e.pins == 0 || e.file.is_some() || e.queued)
            };
            let oldest = self.ram.iter().rev().map(|(id, ())| *id).find(can_go);
            let Some(oldest) = oldest else {
                return false;
            };
            self.leave_memory(&oldest);
        }
        true
    }

    /// An object leaves memory: for the disk, or for good.
    fn leave_memory(&mut self, id: &PageId) {
        self.ram.pop(id);
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        entry.resident = false;
        self.stats.ram_bytes -= entry.meta.cost();
        let is_worth_it = entry.file.is_none() && !entry.queued;
        if is_worth_it && self.disk_limit.is_some() && !self.enqueue(id) {
            self.stats.spills_refused += 1;
        }
        if let Some(entry) = self.entries.get_mut(id)
            && !entry.queued
        {
            entry.rows = None;
        }
        self.drop_if_nowhere(id);
    }

    /// Evicts from disk, the least used first. False if the rest is pinned or the limit too small.
    fn make_room_on_disk(&mut self, need: u64) -> bool {
        let limit = self.disk_limit.unwrap_or(0);
        if need > limit {
            return false;
        }
        while self.stats.disk_bytes + need > limit {
            let can_go = |id: &PageId| {
                let entry = self.entries.get(id);
                entry.is_none_or(|e| e.pins == 0 || e.rows.is_some())
            };
            let oldest = self.disk.iter().rev().map(|(id, ())| *id).find(can_go);
            let Some(oldest) = oldest else {
                return false;
            };
            self.leave_disk(&oldest);
        }
        true
    }

    fn leave_disk(&mut self, id: &PageId) {
        let file = self.entries.get_mut(id).and_then(|e| e.file.take());
        self.drop_file(id, file);
        self.drop_if_nowhere(id);
    }

    /// Makes room for one more entry of the index.
    fn make_room_for_entry(&mut self, id: &PageId) -> bool {
        if self.entries.len() < self.max_entries || self.entries.contains_key(id) {
            return true;
        }
        let is_free = |id: &&PageId| self.entries.get(id).is_some_and(|e| e.pins == 0);
        let on_disk = self.disk.iter().rev().map(|(id, ())| id).find(is_free);
        let oldest = on_disk.or_else(|| self.ram.iter().rev().map(|(id, ())| id).find(is_free));
        let Some(oldest) = oldest.copied() else {
            return false;
        };
        self.forget(&oldest);
        true
    }

    fn forget(&mut self, id: &PageId) {
        if let Some(mut entry) = self.entries.remove(id) {
            if entry.resident {
                self.stats.ram_bytes -= entry.meta.cost();
                self.ram.pop(id);
            }
            self.drop_file(id, entry.file.take());
            self.count_tail(&entry.meta, -1);
            self.stats.evictions += 1;
        }
    }

    /// The file is not part of the store any more.
    fn drop_file(&mut self, id: &PageId, file: Option<FileName>) {
        if let Some(file) = file {
            self.disk.pop(id);
            self.stats.disk_bytes -= file.bytes;
            self.unused.push(file);
        }
    }

    fn drop_if_nowhere(&mut self, id: &PageId) {
        let is_nowhere = |e: &Entry| !e.resident && !e.queued && e.file.is_none();
        if self.entries.get(id).is_some_and(is_nowhere)
            && let Some(entry) = self.entries.remove(id)
        {
            self.count_tail(&entry.meta, -1);
            self.stats.evictions += 1;
        }
    }

    /// Keeps the numbers of objects, and of the tails of snapshots.
    fn count_tail(&mut self, meta: &Meta, by: i32) {
        if meta.kind == Kind::Page {
            self.stats.pages = self.stats.pages.saturating_add_signed(i64::from(by));
            return;
        }
        self.stats.snapshots = self.stats.snapshots.saturating_add_signed(i64::from(by));
        let lengths = self.tails.entry(meta.parent).or_default();
        let length = meta.tokens.len();
        let count = lengths.entry(length).or_default();
        *count = count.saturating_add_signed(by);
        if *count == 0 {
            lengths.remove(&length);
        }
        if lengths.is_empty() {
            self.tails.remove(&meta.parent);
        }
    }
}

impl Entry {
    /// True if such rows are better, and take its place.
    pub fn gives_way(&self, provenance: Provenance) -> bool {
        self.meta.provenance.rank() > provenance.rank()
    }
}

impl Provenance {
    /// Rows of a lower rank replace those of a higher one.
    pub(super) const fn rank(self) -> u8 {
        match self {
            Self::Prefilled => 0,
            Self::Decoded => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::object::Kind;
    use super::*;

    const ROWS: u64 = 1000;

    fn id(n: u16) -> PageId {
        let mut bytes = [7; 32];
        bytes[..2].copy_from_slice(&n.to_le_bytes());
        PageId::from_bytes(bytes)
    }

    fn meta(kind: Kind, bytes: u64) -> Meta {
        Meta {
            kind,
            provenance: Provenance::Prefilled,
            parent: PageId::ROOT,
            end: 64,
            tokens: vec![1; if kind == Kind::Page { 64 } else { 3 }].into(),
            bytes,
        }
    }

    fn insert(index: &mut Index, n: u16) -> bool {
        let rows = vec![n.to_le_bytes()[0]; 1000];
        index.insert(id(n), meta(Kind::Page, ROWS), rows)
    }

    fn name(spill: &Spill, serial: u64) -> FileName {
        FileName {
            id: spill.id,
            kind: spill.meta.kind,
            serial,
            bytes: spill.meta.file_bytes(),
        }
    }

    #[test]
    fn entries_are_bounded() {
        let mut index = Index::with_entries(3, u64::MAX >> 1, None);
        assert!((0..3).all(|n| insert(&mut index, n)));
        index.pin(&id(0)).unwrap();
        index.touch(&id(1));
        assert!(insert(&mut index, 3));
        let has = |index: &Index| [0, 1, 2, 3].map(|n| index.get(&id(n)).is_some());
        // 0 is pinned, 1 was used, so 2 had to go.
        assert_eq!(has(&index), [true, true, false, true]);
        index.pin(&id(1)).unwrap();
        index.pin(&id(3)).unwrap();
        assert!(!insert(&mut index, 2));
        assert_eq!(has(&index), [true, true, false, true]);
        let stats = index.stats();
        assert_eq!((stats.pages, stats.evictions, stats.refused), (3, 1, 1));
        assert_eq!(stats.ram_bytes, 3 * meta(Kind::Page, ROWS).cost());
    }

    #[test]
    fn what_waits_for_the_disk_is_bounded() {
        // Nobody writes here: everything that leaves memory waits.
        let mut index = Index::new(meta(Kind::Page, ROWS).cost(), Some(1 << 40));
        assert!((0..300).all(|n| insert(&mut index, n)));
        assert_eq!(index.queue.len(), MAX_SPILLS_WAITING);
        let stats = index.stats();
        assert_eq!((stats.spills_refused, stats.pages), (299 - 256, 257));

        // By bytes too: the rows here are only said to be large.
        let large = meta(Kind::Page, MAX_SPILL_BYTES / 2 - 10_000);
        let mut index = Index::new(large.cost(), Some(1 << 40));
        for n in 0..5 {
            index.insert(id(n), large.clone(), Vec::new());
        }
        assert_eq!(index.queue.len(), 2);
        assert!(index.stats().queued_bytes <= MAX_SPILL_BYTES);
        assert_eq!(index.stats().spills_refused, 2);
        assert_eq!(index.stats().pages, 3);
    }

    #[test]
    fn rows_that_became_better_while_they_were_written() {
        let cost = meta(Kind::Page, ROWS).cost();
        let mut index = Index::new(cost, Some(1 << 20));
        let mut decoded = meta(Kind::Page, ROWS);
        decoded.provenance = Provenance::Decoded;
        assert!(index.insert(id(1), decoded, vec![1; 1000]));
        assert!(index.queue_copy(&id(1)));
        let old = index.next_spill().unwrap();
        assert!(insert(&mut index, 1));
        // The file has the worse rows, so it is deleted, and the better ones are written later.
        let file = name(&old, 7);
        index.written(&old, Some(file));
        assert_eq!(index.take_unused(), [file]);
        assert!(index.get(&id(1)).unwrap().file.is_none());
        let stats = index.stats();
        assert_eq!((stats.disk_bytes, stats.queued_bytes), (0, 0));
        assert!(insert(&mut index, 2));
        let new = index.next_spill().unwrap();
        assert_eq!(*new.rows, vec![1; 1000]);
        assert_eq!(new.meta.provenance, Provenance::Prefilled);
        index.written(&new, Some(name(&new, 8)));
        assert_eq!(index.stats().disk_bytes, new.meta.file_bytes());
        assert!(index.take_unused().is_empty());
    }

    #[test]
    fn promised_rows_that_could_not_be_written_return_to_memory() {
        let cost = meta(Kind::Page, ROWS).cost();
        let mut index = Index::new(2 * cost, Some(1 << 20));
        assert!((1..4).all(|n| insert(&mut index, n)));
        let spill = index.next_spill().unwrap();
        assert_eq!(spill.id, id(1));
        let birth = index.pin(&id(1)).unwrap();
        index.written(&spill, None);
        let entry = index.get(&id(1)).unwrap();
        assert!(entry.resident && entry.rows.is_some());
        assert!(index.stats().ram_bytes <= 2 * cost);
        // It is as good as any other page once the promise ends, and an old promise ends nothing.
        index.unpin(&id(1), birth + 100);
        assert_eq!(index.get(&id(1)).unwrap().pins, 1);
        index.unpin(&id(1), birth);
        assert_eq!(index.get(&id(1)).unwrap().pins, 0);
    }

    #[test]
    fn snapshots_are_listed_by_length_while_they_are_there() {
        let mut index = Index::new(1 << 20, None);
        let mut other = meta(Kind::Snapshot, ROWS);
        other.tokens = vec![1; 10].into();
        assert!(index.insert(id(1), meta(Kind::Snapshot, ROWS), vec![0; 1000]));
        assert!(index.insert(id(2), meta(Kind::Snapshot, ROWS), vec![0; 1000]));
        assert!(index.insert(id(3), other, vec![0; 1000]));
        let lengths = |index: &Index| index.tails(&PageId::ROOT).collect::<Vec<_>>();
        assert_eq!(lengths(&index), [10, 3]);
        index.forget(&id(1));
        assert_eq!(lengths(&index), [10, 3]);
        index.forget(&id(2));
        assert_eq!(lengths(&index), [10]);
        index.forget(&id(3));
        assert_eq!(lengths(&index), [0; 0]);
        assert!(index.tails.is_empty());
        assert_eq!(index.stats().snapshots, 0);
    }
}
