//! The batches of a prefill: the same ones, or such as give the same bits, wherever it goes on.

use std::ops::Range;

use tandem_handoff::page::{PAGE_TOKENS, page_start};

/// From so many tokens on, llama.cpp's CPU backend computes a batch with the same kernels, whose rows are the same to the
/// bit whatever the size is (shown by `steps` in the tests of `tandem-engine-llama`); with fewer it takes others.
const ALIKE_TOKENS: u32 = 64;

/// How the KV of a prompt is computed: chunk by chunk, and step by step at its end.
#[derive(Debug, Clone, Copy)]
pub struct Chunking {
    /// Where it ends.
    pub kv_end: u32,
    /// Tokens of a chunk, at least one.
    pub chunk: u32,
    /// Tokens of a step ([`tandem_engine::Compute::tail_tokens`]).
    pub tail: u32,
}

impl Chunking {
    /// Where steps begin: the last complete chunk and what follows it come in steps, so that while a chunk is
    /// sent, at least as much is still to be computed.
    const fn in_chunks(&self) -> u32 {
        (self.kv_end / self.chunk).saturating_sub(1) * self.chunk
    }

    /// The size of the batches around a position.
    fn size(&self, position: u32) -> u32 {
        if position < self.in_chunks() {
            self.chunk
        } else {
            self.tail.clamp(1, self.chunk)
        }
    }

    /// The end of the last complete chunk or step: what comes before is computed in the same batches, or by the same
    /// kernels, in every prompt that begins with it.
    #[must_use]
    pub fn complete(&self) -> u32 {
        self.kv_end - self.kv_end % self.size(self.kv_end)
    }

    /// The batch that starts at `next`. It ends where one of an undisturbed prefill ends, wherever this one started.
    #[must_use]
    pub fn at(&self, next: u32) -> Range<u32> {
        let size = self.size(next);
        next..(next / size + 1).saturating_mul(size).min(self.kv_end)
    }

    /// Where a prefill goes on that has the KV of so many tokens: where an undisturbed one begins a batch, or at
    /// a page from which on no batch is computed by other kernels than there.
    #[must_use]
    pub fn goes_on_at(&self, held: u32) -> u32 {
        if held >= self.kv_end {
            return self.kv_end;
        }
        let begin = held - held % self.size(held);
        let end = self.at(begin).end;
        let mut page = page_start(held);
        while page > begin {
            // An engine may compute a chunk in parts, which are no smaller than a step.
            let left = (end - page) % self.tail.max(1);
            if left == 0 || left >= ALIKE_TOKENS {
                return page;
            }
            page -= PAGE_TOKENS;
        }
        begin
    }

    /// The same where only whole pages are to be had.
    #[must_use]
    pub fn goes_on_at_page(&self, held: u32) -> u32 {
        let mut at = self.goes_on_at(held);
        while !at.is_multiple_of(PAGE_TOKENS) {
            at = self.goes_on_at(page_start(at));
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ALIKE_TOKENS, Chunking, PAGE_TOKENS};

    /// The parts in which an engine computes a prefill that starts there: no batch is larger than `micro`.
    fn parts(chunking: Chunking, start: u32, micro: u32) -> Vec<(u32, u32)> {
        let mut parts = Vec::new();
        let mut next = start;
        while next < chunking.kv_end {
            let batch = chunking.at(next);
            assert!(batch.start == next && batch.end > next);
            while next < batch.end {
                let end = batch.end.min(next + micro);
                parts.push((next, end));
                next = end;
            }
        }
        assert_eq!(next, chunking.kv_end);
        parts
    }

    /// True if the tokens of a part are computed in the same one there, or by the same kernels.
    fn is_computed_alike((start, end): (u32, u32), there: &[(u32, u32)]) -> bool {
        let alike = |(s, e): (u32, u32)| e - s >= ALIKE_TOKENS && end - start >= ALIKE_TOKENS;
        let mut touching = there.iter().filter(|(s, e)| *s < end && start < *e);
        touching.all(|&it| it == (start, end) || alike(it))
    }

    /// How large parts are, how many of them a chunk has, and how many tokens a step.
    fn shapes() -> impl Strategy<Value = (u32, u32, u32)> {
        let micro = prop_oneof![
            Just(16u32),
            Just(64),
            Just(96),
            Just(100),
            Just(128),
            Just(256),
            Just(512),
            1u32..700
        ];
        (micro, 1u32..5).prop_map(|(micro, in_chunk)| {
            let tail = if micro.is_multiple_of(64) { 64 } else { micro };
            (micro, micro * in_chunk, tail)
        })
    }

    proptest! {
        #[test]
        fn a_token_never_gets_into_a_batch_of_other_kernels(
            (micro, chunk, tail) in shapes(),
            kv_end in 1u32..4000,
            held in 0u32..4000,
        ) {
            let chunking = Chunking { kv_end, chunk, tail };
            let held = held.min(kv_end);
            let (begin, page) = (chunking.goes_on_at(held), chunking.goes_on_at_page(held));
            // Not much is computed twice.
            prop_assert!(begin <= held && held - begin < chunking.chunk);
            prop_assert!(page <= held && page.is_multiple_of(PAGE_TOKENS));
            prop_assert_eq!((chunking.goes_on_at(begin), chunking.goes_on_at(page)), (begin, page));
            let undisturbed = parts(chunking, 0, micro);
            let continued = [begin, page].map(|from| parts(chunking, from, micro));
            for (start, end) in continued.concat() {
                prop_assert!(
                    is_computed_alike((start, end), &undisturbed),
                    "{chunking:?}, {held}, {begin}, {page}: {start}..{end}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_complete_is_computed_alike_in_every_prompt_that_begins_with_it(
            (micro, chunk, tail) in shapes(),
            kv_end in 1u32..4000,
            longer in 0u32..4000,
        ) {
            let chunking = |kv_end| Chunking { kv_end, chunk, tail };
            let complete = chunking(kv_end).complete();
            prop_assert!(complete <= kv_end && kv_end - complete < tail);
            let of = |kv_end| {
                let mut parts = parts(chunking(kv_end), 0, micro);
                parts.retain(|(start, _)| *start < complete);
                parts
            };
            let (first, other) = (of(kv_end), of(kv_end + longer));
            for &(start, end) in &first {
                prop_assert!(is_computed_alike((start, end), &other), "{start}..{end}");
            }
        }
    }

    #[test]
    fn steps_begin_with_the_last_complete_chunk() {
        for (kv_end, ends) in [
            (
                1600,
                &[
                    512, 1024, 1088, 1152, 1216, 1280, 1344, 1408, 1472, 1536, 1600,
                ][..],
            ),
            (1030, &[512, 576, 640, 704, 768, 832, 896, 960, 1024, 1030]),
            (512, &[64, 128, 192, 256, 320, 384, 448, 512]),
            (300, &[64, 128, 192, 256, 300]),
            (5, &[5]),
            (0, &[]),
        ] {
            let chunking = Chunking {
                kv_end,
                chunk: 512,
                tail: 64,
            };
            let found: Vec<u32> = parts(chunking, 0, 512)
                .iter()
                .map(|(_, end)| *end)
                .collect();
            assert_eq!(found, ends, "{kv_end}");
        }
        let chunking = Chunking {
            kv_end: 1030,
            chunk: 512,
            tail: u32::MAX,
        };
        assert_eq!(
            parts(chunking, 0, 512),
            [(0, 512), (512, 1024), (1024, 1030)]
        );
    }
}
