//! The rotation of V: fixed sign flips, then a Sylvester-Hadamard transform over one head, divided
//! by the root of its size. It is orthonormal, so errors after it are as large as before it, but an
//! outlier of one channel is spread over all of them and no longer decides the scale of its block.

use crate::limits::MAX_HEAD_DIM;

/// Largest head, in elements.
pub const MAX_DIM: usize = MAX_HEAD_DIM as usize;

/// Seed of the sign flips: `tandem` in ASCII. Part of the format.
const SIGN_SEED: u64 = 0x7461_6E64_656D;

/// The sign of each channel: -1 where the top bit of the channel's output of `SplitMix64`
/// (Steele, Lea and Flood 2014, with `SIGN_SEED`) is set.
const SIGNS: [f32; MAX_DIM] = signs();

const fn signs() -> [f32; MAX_DIM] {
    let mut signs = [1.0; MAX_DIM];
    let mut state = SIGN_SEED;
    let mut i = 0;
    while i < MAX_DIM {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        if z >> 63 == 1 {
            signs[i] = -1.0;
        }
        i += 1;
    }
    signs
}

/// Rotates heads of one size, a power of two up to [`MAX_DIM`].
pub struct Rotation {
    dim: usize,
    /// Sign over root of the size.
    factors: [f32; MAX_DIM],
    transform: fn(&mut [f32]),
}

impl Rotation {
    pub fn new(dim: usize) -> Self {
        // A power of two as f32 is exact.
        let root = (0..dim.ilog2()).fold(1f32, |n, _| n * 2.0).sqrt();
        Self {
            dim,
            factors: SIGNS.map(|sign| sign / root),
            transform: transform_of(dim),
        }
    }

    /// Rotates every head of `values`, whole heads.
    pub fn forward(&self, values: &mut [f32]) {
        for head in values.chunks_exact_mut(self.dim) {
            self.flip(head);
            (self.transform)(head);
        }
    }

    /// Undoes [`Rotation::forward`]: the transform is its own inverse, and so are the signs.
    pub fn backward(&self, values: &mut [f32]) {
        for head in values.chunks_exact_mut(self.dim) {
            (self.transform)(head);
            self.flip(head);
        }
    }

    #[inline]
    fn flip(&self, head: &mut [f32]) {
        for (value, factor) in head.iter_mut().zip(&self.factors) {
            *value *= factor;
        }
    }
}

/// The transform for a size. Each is compiled for itself, which is about twice as fast as one for any.
fn transform_of(dim: usize) -> fn(&mut [f32]) {
    match dim {
        2 => transform::<2>,
        4 => transform::<4>,
        8 => transform::<8>,
        16 => transform::<16>,
        32 => transform::<32>,
        64 => transform::<64>,
        128 => transform::<128>,
        256 => transform::<256>,
        512 => transform::<512>,
        1024 => transform::<1024>,
        // One element is its own transform.
        _ => |_| {},
    }
}

/// The transform of the first `N` elements without its divisor, in natural (Sylvester) order.
///
/// Every stage takes sums and differences of element `i` and element `i + n/2` to `2i` and `2i + 1`;
/// after `log2 n` such stages the order is natural again. All stages being alike, they vectorise at
/// every size, unlike the butterflies of the last stages of the usual form. Two stages go at once.
fn transform<const N: usize>(head: &mut [f32]) {
    let Some(head) = head.first_chunk_mut::<N>() else {
        return;
    };
    let mut scratch = [0.0; N];
    let mut stages = N.ilog2();
    while stages >= 4 {
        two_stages(head, &mut scratch);
        two_stages(&scratch, head);
        stages -= 4;
    }
    if stages >= 2 {
        two_stages(head, &mut scratch);
        *head = scratch;
        stages -= 2;
    }
    if stages == 1 {
        one_stage(head, &mut scratch);
        *head = scratch;
    }
}

#[inline]
fn one_stage<const N: usize>(from: &[f32; N], to: &mut [f32; N]) {
    let (a, b) = from.split_at(N / 2);
    for ((to, a), b) in to.as_chunks_mut::<2>().0.iter_mut().zip(a).zip(b) {
        *to = [a + b, a - b];
    }
}

#[inline]
fn two_stages<const N: usize>(from: &[f32; N], to: &mut [f32; N]) {
    let (low, high) = from.split_at(N / 2);
    let (a, b) = low.split_at(N / 4);
    let (c, d) = high.split_at(N / 4);
    let quarters = a.iter().zip(b).zip(c).zip(d);
    for (to, (((a, b), c), d)) in to.as_chunks_mut::<4>().0.iter_mut().zip(quarters) {
        let (p, q, r, s) = (a + c, a - c, b + d, b - d);
        *to = [p + r, p - r, q + s, q - s];
    }
}
