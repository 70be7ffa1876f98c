//! `cargo xtask sampling`

use std::time::Instant;

use anyhow::Result;
use clap::Args;
use tandem_engine::sampling::Sampler;
use tandem_proto::SamplingParams;

/// Arguments of the task.
#[derive(Args)]
pub struct SamplingArguments {
    /// Tokens of the vocabulary; Gemma has as many by default.
    #[arg(long, default_value_t = 262_144)]
    tokens: usize,
    /// Tokens to choose with each setting.
    #[arg(long, default_value_t = 200)]
    draws: u32,
}

/// Measures how long choosing a token takes, on one core.
///
/// # Errors
/// If a token cannot be chosen.
pub fn measure(arguments: &SamplingArguments) -> Result<()> {
    let params = |temperature, top_k, top_p, min_p| SamplingParams {
        temperature: Some(temperature),
        top_k: Some(top_k),
        top_p: Some(top_p),
        min_p: Some(min_p),
        seed: Some(1),
        ..SamplingParams::default()
    };
    eprintln!("{:<44} {:>12}", "setting", "µs per token");
    let flat = "top-p 0.95, without an opinion";
    for (name, params) in [
        ("greedy", params(0.0, 0, 1.0, 0.0)),
        ("temperature 1", params(1.0, 0, 1.0, 0.0)),
        ("top-p 0.95", params(1.0, 0, 0.95, 0.0)),
        (flat, params(1.0, 0, 0.95, 0.0)),
        ("top-k 40", params(1.0, 40, 1.0, 0.0)),
        ("min-p 0.05", params(1.0, 0, 1.0, 0.05)),
        (
            "temperature 0.7, top-k 64, top-p 0.95, min-p 0.05",
            params(0.7, 64, 0.95, 0.05),
        ),
    ] {
        let logits = logits(arguments.tokens, name == flat);
        let mut sampler = Sampler::new(&params);
        let mut times = Vec::new();
        for _ in 0..arguments.draws {
            let start = Instant::now();
            sampler.sample(&logits, None)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        eprintln!(
            "{name:<44} {:>12.0}",
            times[times.len() / 2].as_secs_f64() * 1e6
        );
    }
    Ok(())
}

/// Noise as a model without an opinion has it, and unless it is flat a few hundred tokens in question far above it.
fn logits(count: usize, is_flat: bool) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f32::from(u16::try_from(state >> 48).unwrap_or(0)) / 65_536.0
    };
    (0..count)
        .map(|_| {
            let noise = (next() + next() + next() + next() - 2.0) * 5.0;
            let in_question = !is_flat && next() < 0.001;
            if in_question {
                6.0 + 8.0 * next()
            } else {
                noise - 4.0
            }
        })
        .collect()
}
