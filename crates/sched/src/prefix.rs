//! Which nodes have seen the beginning of a prompt before.

use lru::LruCache;

use crate::limits::MAX_PREFIXES;

/// Beginnings of earlier prompts and their answers, and the nodes that may hold their KV. What was used
/// least recently is forgotten first. It may be wrong, which costs a worse choice and nothing else.
#[derive(Debug, Clone)]
pub(crate) struct Prefixes(LruCache<(usize, u64), Vec<usize>>);

/// How much of a prompt a node has seen before, in blocks of [`crate::limits::PREFIX_BLOCK`] bytes.
pub(crate) type Seen = Vec<(usize, usize)>;

impl Default for Prefixes {
    fn default() -> Self {
        Self(LruCache::new(MAX_PREFIXES))
    }
}

impl Prefixes {
    /// These nodes have seen this prompt of a model.
    pub(crate) fn learn(&mut self, model: usize, prefix: &[u64], nodes: &[usize]) {
        for digest in prefix {
            let known = self.0.get_or_insert_mut((model, *digest), Vec::new);
            for node in nodes {
                if !known.contains(node) {
                    known.push(*node);
                }
            }
        }
    }

    /// Which nodes have seen how much of this prompt of a model: each digest stands for all before it.
    pub(crate) fn seen(&self, model: usize, prefix: &[u64]) -> Seen {
        let mut seen = Seen::new();
        for (i, digest) in prefix.iter().enumerate().rev() {
            for node in self.0.peek(&(model, *digest)).into_iter().flatten() {
                if !seen.iter().any(|(known, _)| known == node) {
                    seen.push((*node, i + 1));
                }
            }
        }
        seen
    }
}
