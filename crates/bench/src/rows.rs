//! Rows to send: seeded, of normal distribution. Rows of a model compress differently; what `plane`
//! saves on those is in `docs/codecs.md`.

use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tandem_handoff::plane::plane_bytes;
use tandem_handoff::segment::block_tokens;
use tandem_handoff::{Contract, KvBlock, Plane, PlaneKind, Section};

use super::engine::digest_of;

/// Rows of all layers for tokens `[0, tokens)`, in blocks as an engine hands them out.
pub fn blocks(contract: &Contract, tokens: u32, seed: u64) -> Vec<Arc<KvBlock>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let step = block_tokens(contract, Section::Full);
    let starts = (0..tokens).step_by(step as usize);
    starts
        .map(|start| {
            let end = start.saturating_add(step).min(tokens);
            Arc::new(block(contract, start..end, &mut random))
        })
        .collect()
}

fn block(contract: &Contract, tokens: std::ops::Range<u32>, random: &mut ChaCha8Rng) -> KvBlock {
    let layers = contract.section_layers(Section::Full);
    let planes = layers
        .iter()
        .flat_map(|&layer| [PlaneKind::Key, PlaneKind::Value].map(|kind| (layer, kind)));
    let planes = planes.map(|(layer, kind)| {
        let bytes = plane_bytes(contract, layer, kind, tokens.end - tokens.start);
        let elements = usize::try_from(bytes.unwrap_or(0)).unwrap_or(0) / 2;
        Plane {
            layer,
            kind,
            data: normal(elements, random).into(),
        }
    });
    KvBlock {
        section: Section::Full,
        planes: planes.collect(),
        tokens,
    }
}

/// So many f16 elements of mean 0 and variance 1: sums of four uniform numbers.
fn normal(elements: usize, random: &mut ChaCha8Rng) -> Vec<u8> {
    /// The standard deviation of a sum of four numbers of 0 to 65535, all equally likely.
    const DEVIATION: f32 = 37_837.2;
    const MEAN: f32 = 131_070.0;
    let numbers: Vec<f32> = (0..elements)
        .map(|_| {
            let bits: u64 = random.random();
            let sum: u32 = [0, 16, 32, 48]
                .map(|shift| u32::try_from(bits >> shift & 0xffff).unwrap_or(0))
                .iter()
                .sum();
            #[expect(clippy::cast_precision_loss, reason = "18 bits fit")]
            let sum = sum as f32;
            (sum - MEAN) / DEVIATION
        })
        .collect();
    let mut halves = vec![f16::ZERO; elements];
    halves.convert_from_f32_slice(&numbers);
    halves.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// BLAKE3 of the digests of all planes, as the receiver's cache computes it.
pub fn digest(blocks: &[Arc<KvBlock>]) -> String {
    let count = blocks.first().map_or(0, |b| b.planes.len());
    let plane = |i: usize| {
        let mut hasher = blake3::Hasher::new();
        for block in blocks {
            hasher.update(&block.planes[i].data);
        }
        hasher.finalize()
    };
    digest_of((0..count).map(plane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_distribution_that_is_said() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let bytes = normal(100_000, &mut random);
        let values: Vec<f64> = bytes
            .chunks_exact(2)
            .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f64())
            .collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
    }
}
