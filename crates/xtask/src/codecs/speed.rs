//! How fast one core encodes and decodes.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Context;
use tandem_handoff::codec::{Codec, Decoder, Encoder, RunSpec};
use tandem_handoff::{Contract, KvBlock};

use super::handoff::run_of;

/// Passes over the sample. Of each plane the fastest time counts: other work on the machine only ever
/// adds to it, and other planes in between keep this one out of the core's own cache.
const PASSES: u32 = 15;

/// Raw gigabytes (10^9) per second.
pub struct Speed {
    pub encode: f64,
    pub decode: f64,
}

/// A plane, what it is encoded to, and the fastest times in seconds.
struct Run<'a> {
    spec: RunSpec,
    rows: &'a [u8],
    bytes: Vec<u8>,
    encode: f64,
    decode: f64,
}

/// Encodes and decodes all planes of the sample, plane by plane into the same buffers.
pub fn measure(codec: Codec, contract: &Contract, sample: &[KvBlock]) -> anyhow::Result<Speed> {
    let mut runs = Vec::new();
    let mut encoder = Encoder::new()?;
    let mut decoder = Decoder::new()?;
    for block in sample {
        for plane in &block.planes {
            let spec = run_of(contract, block, plane)?;
            let mut bytes = Vec::new();
            encoder.encode(codec, &spec, &plane.data, &mut bytes)?;
            runs.push(Run {
                spec,
                rows: &plane.data,
                bytes,
                encode: f64::INFINITY,
                decode: f64::INFINITY,
            });
        }
    }
    let largest = runs.iter().map(|r| r.rows.len()).max();
    let mut raw = vec![0; largest.context("no KV to measure with")?];
    let mut bytes = Vec::new();
    for _ in 0..PASSES {
        for run in &mut runs {
            bytes.clear();
            let start = Instant::now();
            encoder.encode(codec, &run.spec, black_box(run.rows), &mut bytes)?;
            black_box(&bytes);
            run.encode = run.encode.min(start.elapsed().as_secs_f64());
            let start = Instant::now();
            let rows = &mut raw[..run.rows.len()];
            decoder.decode(codec, &run.spec, black_box(&run.bytes), rows)?;
            black_box(&raw);
            run.decode = run.decode.min(start.elapsed().as_secs_f64());
        }
    }
    let total: usize = runs.iter().map(|r| r.rows.len()).sum();
    let gigabytes = f64::from(u32::try_from(total)?) / 1e9;
    Ok(Speed {
        encode: gigabytes / runs.iter().map(|r| r.encode).sum::<f64>(),
        decode: gigabytes / runs.iter().map(|r| r.decode).sum::<f64>(),
    })
}
