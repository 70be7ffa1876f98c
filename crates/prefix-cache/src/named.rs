//! The tokens of a sequence with the ids of its pages, and what a store has of them.

use std::ops::Range;

use tandem_handoff::page::{Namespace, PAGE_TOKENS, PageId};

use super::index::{Entry, Index};
use super::object::Kind;
use super::{Held, Wanted};

const PAGE_LEN: usize = PAGE_TOKENS as usize;

/// A sequence from its first token.
#[derive(Debug)]
pub struct Named<'a> {
    pub namespace: &'a Namespace,
    tokens: &'a [u32],
    ids: Vec<PageId>,
}

/// Where an object of a sequence is looked for, and what it must be.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub id: PageId,
    pub kind: Kind,
    /// The page before.
    pub parent: PageId,
    /// One past the last token.
    pub end: u32,
    /// The tokens of the object.
    pub tokens: &'a [u32],
}

/// The objects that what is held of a sequence takes.
#[derive(Debug, Default)]
pub struct Used<'a> {
    /// The first page first.
    pub objects: Vec<PageId>,
    /// Which tokens have their pages in which namespace, without gaps.
    pub runs: Vec<(&'a Namespace, Range<u32>)>,
}

impl Place<'_> {
    /// The object, if it is there and wanted.
    pub fn find<'i>(&self, index: &'i Index, wanted: Wanted) -> Option<&'i Entry> {
        let entry = index.get(&self.id)?;
        let is_it = entry.meta.is(self.kind, self.end, self.tokens);
        let is_good = wanted.accepts(entry.meta.provenance);
        (is_it && is_good).then_some(entry)
    }
}

impl<'a> Named<'a> {
    /// Names the pages of a sequence.
    pub fn new(namespace: &'a Namespace, tokens: &'a [u32]) -> Self {
        Self {
            namespace,
            tokens,
            ids: namespace.chain(tokens),
        }
    }

    /// The id of the last of this many pages; of no page it is the root.
    pub fn parent(&self, pages: usize) -> PageId {
        let last = pages.checked_sub(1).and_then(|last| self.ids.get(last));
        last.copied().unwrap_or(PageId::ROOT)
    }

    /// The page with this number, from 0.
    pub fn page(&self, number: usize) -> Option<Place<'a>> {
        let start = number.checked_mul(PAGE_LEN)?;
        let tokens = self.tokens.get(start..start.checked_add(PAGE_LEN)?)?;
        Some(Place {
            id: *self.ids.get(number)?,
            kind: Kind::Page,
            parent: self.parent(number),
            end: u32::try_from(start + PAGE_LEN).ok()?,
            tokens,
        })
    }

    /// A snapshot after `tail` tokens more than a number of pages.
    pub fn snapshot(&self, pages: usize, tail: usize) -> Option<Place<'a>> {
        let start = pages.checked_mul(PAGE_LEN)?;
        let tokens = self.tokens.get(start..start.checked_add(tail)?)?;
        let parent = self.parent(pages);
        Some(Place {
            id: self.namespace.position(&parent, tokens),
            kind: Kind::Snapshot,
            parent,
            end: u32::try_from(start + tail).ok()?,
            tokens,
        })
    }

    /// All objects of the sequence behind so many pages that there are, whatever they are good for, and the
    /// next ones of those that go on with it.
    pub fn all(&self, index: &Index, from: usize) -> Vec<PageId> {
        let mut all = self.ids.get(from..).unwrap_or_default().to_vec();
        for pages in from..=self.ids.len() {
            let parent = self.parent(pages);
            let tails = index.tails(&parent);
            all.extend(tails.filter_map(|tail| Some(self.snapshot(pages, tail)?.id)));
        }
        let since = self.tokens.len() - self.tokens.len() % PAGE_LEN;
        let last = self.parent(self.ids.len());
        all.extend(index.following(&last, &self.tokens[since..]));
        all
    }

    /// What is held of a sequence, which has a name in each of several namespaces: of each page the
    /// first one that is there, and a snapshot of the first namespace behind pages of it.
    pub fn held(names: &[Self], index: &mut Index, wanted: Wanted) -> (Held, Used<'a>) {
        let mut used = Used::default();
        let pages = names.first().map_or(0, |first| first.ids.len());
        for number in 0..pages {
            let found = names.iter().find_map(|named| {
                let page = named.page(number)?;
                let entry = page.find(index, wanted)?;
                debug_assert_eq!(entry.meta.parent, page.parent);
                Some((named.namespace, page))
            });
            let Some((namespace, page)) = found else {
                break;
            };
            used.objects.push(page.id);
            match used.runs.last_mut() {
                Some((space, run)) if std::ptr::eq(*space, namespace) => run.end = page.end,
                _ => used
                    .runs
                    .push((namespace, page.end - PAGE_TOKENS..page.end)),
            }
        }
        let found = used.objects.len();
        let mut held = Held {
            tokens: u32::try_from(found * PAGE_LEN).unwrap_or(0),
            snapshot: None,
        };
        if let Some(first) = names.first() {
            let own = used
                .runs
                .first()
                .filter(|(space, _)| std::ptr::eq(*space, first.namespace));
            let own = own.map_or(0, |(_, run)| run.end as usize / PAGE_LEN);
            if let Some(snapshot) = first.last_snapshot(index, own, wanted) {
                held.snapshot = Some(snapshot.end);
                used.objects.push(snapshot.id);
            }
        }
        index.stats.hits += found as u64;
        index.stats.misses += (pages - found) as u64;
        // The start of a sequence is worth more than its end, which is of no use without it.
        used.objects.iter().rev().for_each(|id| index.touch(id));
        (held, used)
    }

    /// The longest snapshot that can be used with this many pages.
    fn last_snapshot(&self, index: &Index, pages: usize, wanted: Wanted) -> Option<Place<'a>> {
        let contract = self.namespace.contract();
        // A model with windows only needs no pages to continue from one.
        let needs_pages = contract.layers.iter().any(is_full);
        let reach = if needs_pages { pages } else { self.ids.len() };
        (0..=reach).rev().find_map(|pages| {
            let parent = self.parent(pages);
            let mut tails = index.tails(&parent);
            tails.find_map(|tail| {
                let place = self.snapshot(pages, tail)?;
                place.find(index, wanted).map(|_| place)
            })
        })
    }
}

fn is_full(layer: &tandem_handoff::LayerSpec) -> bool {
    layer.kind == tandem_handoff::LayerKind::Full
}
