//! Passes over the logits of a whole vocabulary: written so that compilers vectorise them, and with results that are the
//! same on every machine, because each is a fixed sequence of additions, multiplications and divisions.

use crate::tokenizer::Token;

/// A token that may be chosen, and its logit.
pub(crate) type Candidate = (Token, f32);

/// Numbers that are worked on side by side: part of the order of sums, so the same on every machine.
const LANES: usize = 16;
/// Tokens of which the sum of the weights is kept, to find one in.
const BLOCK: usize = 1024;
/// Below it `exp` is taken for 0; above it no result is subnormal.
const LEAST: f32 = -87.0;
/// Added to a number below 2^22 it rounds that to a whole one, whose bits are then the lowest of the sum.
const ROUNDER: f32 = 12_582_912.0;

/// `exp` of a number that is 0 or less, to a relative error below 2e-7: `2^n * exp(r)` with `r` up to half of `ln 2` and
/// the first terms of the series of `exp`.
#[inline]
fn exp(y: f32) -> f32 {
    // `ln 2` in two parts, of which the first times a whole number is exact.
    const HIGH: f32 = 0.693_359_4;
    const LOW: f32 = -0.000_212_194_44;
    let shifted = y * std::f32::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = (y - n * HIGH) - n * LOW;
    let series = 1.0 / 5040.0;
    let series = series * r + 1.0 / 720.0;
    let series = series * r + 1.0 / 120.0;
    let series = series * r + 1.0 / 24.0;
    let series = series * r + 1.0 / 6.0;
    let series = series * r + 0.5;
    let series = (series * r + 1.0) * r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()) << 23;
    let power = f32::from_bits(1.0_f32.to_bits().wrapping_add(exponent));
    if y > LEAST { series * power } else { 0.0 }
}

/// Unnormalised softmax; 1 for the best token, whose logit is `max`, and 0 for one that must not be chosen.
#[inline]
pub(crate) fn weight(logit: f32, max: f32, temperature: f32) -> f32 {
    exp((logit - max) / temperature)
}

/// The highest logit.
///
/// # Errors
/// The index of the first one that is NaN or positive infinity.
pub(crate) fn highest(logits: &[f32]) -> Result<f32, usize> {
    let begin = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    let (best, bad) = fold_lanes(logits, begin, |(mut best, mut bad), x| {
        for i in 0..LANES {
            best[i] = if x[i] > best[i] { x[i] } else { best[i] };
            bad[i] |= x[i].is_nan() | (x[i] == f32::INFINITY);
        }
        (best, bad)
    });
    if bad.contains(&true) {
        let is_bad = |x: &f32| x.is_nan() || *x == f32::INFINITY;
        return Err(logits.iter().position(is_bad).unwrap_or_default());
    }
    Ok(best.into_iter().fold(f32::NEG_INFINITY, f32::max))
}

/// The tokens whose logit is at least that, in order of id; none that must not be chosen.
pub(crate) fn above(logits: &[f32], least: f32) -> impl Iterator<Item = Candidate> {
    let least = least.max(f32::MIN);
    let chunks = logits.chunks(LANES).zip((0..).step_by(LANES));
    chunks
        .filter(move |(chunk, _)| chunk.iter().fold(false, |any, x| any | (*x >= least)))
        .flat_map(|(chunk, first)| (first..).zip(chunk.iter().copied()))
        .filter(move |(_, x)| *x >= least)
}

/// Sums of the weights of each [`BLOCK`] tokens, in order of id.
pub(crate) fn block_sums(logits: &[f32], max: f32, temperature: f32) -> Vec<f64> {
    let sum = |block: &[f32]| {
        let sums = fold_lanes(block, [0.0_f64; LANES], |mut sums, x| {
            for i in 0..LANES {
                sums[i] += f64::from(weight(x[i], max, temperature));
            }
            sums
        });
        sums.iter().sum()
    };
    logits.chunks(BLOCK).map(sum).collect()
}

/// One draw from the softmax of all, as far into it as `target` (from 0 to below 1) says.
pub(crate) fn draw_of_all(
    logits: &[f32],
    max: f32,
    temperature: f32,
    target: f64,
) -> Option<usize> {
    let sums = block_sums(logits, max, temperature);
    let mut left = target * sums.iter().sum::<f64>();
    // Rounding can leave the target at the very end of the last one that has any.
    let last = sums.iter().rposition(|sum| *sum > 0.0)?;
    let mut block = 0;
    while block < last && left >= sums[block] {
        left -= sums[block];
        block += 1;
    }
    let first = block * BLOCK;
    let weights: Vec<f32> = (logits.iter().skip(first).take(BLOCK))
        .map(|logit| weight(*logit, max, temperature))
        .collect();
    index_at(&weights, left).map(|index| first + index)
}

/// One draw from these.
pub(crate) fn draw(weights: &[f32], target: f64) -> Option<usize> {
    let sum: f64 = weights.iter().map(|w| f64::from(*w)).sum();
    index_at(weights, target * sum)
}

/// The one that lies at `target` if all are laid side by side; none has width 0.
fn index_at(weights: &[f32], target: f64) -> Option<usize> {
    let mut sum = 0.0;
    let found = weights.iter().position(|weight| {
        sum += f64::from(*weight);
        target < sum
    });
    found.or_else(|| weights.iter().rposition(|weight| *weight > 0.0))
}

/// All numbers, some side by side; negative infinity where there are none at the end.
#[inline]
fn fold_lanes<T>(numbers: &[f32], begin: T, step: impl Fn(T, &[f32; LANES]) -> T) -> T {
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    let mut so_far = chunks.iter().fold(begin, &step);
    if !rest.is_empty() {
        let mut last = [f32::NEG_INFINITY; LANES];
        last[..rest.len()].copy_from_slice(rest);
        so_far = step(so_far, &last);
    }
    so_far
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_that_of_libm() {
        for i in 0..=u16::MAX {
            let y = -f32::from(i) * 1.35e-3;
            let (found, exact) = (f64::from(exp(y)), libm::exp(f64::from(y)));
            assert!(
                found == 0.0 && y < -86.9 || (found / exact - 1.0).abs() < 2e-7,
                "{y}: {found} {exact}"
            );
        }
        assert_eq!((exp(0.0), exp(-0.0)), (1.0, 1.0));
        for never in [f32::NEG_INFINITY, f32::MIN, -88.0] {
            assert_eq!(exp(never), 0.0, "{never}");
        }
    }
}
