//! Figures of one codec on one model.

use half::f16;
use serde_json::{Value, json};
use tandem_handoff::codec::Codec;
use tandem_handoff::{KvBlock, PlaneKind};

use super::speed::Speed;

/// Sums over all prompts.
#[derive(Default)]
pub struct Figures {
    raw_bytes: u64,
    encoded_bytes: u64,
    largest_error: f64,
    keys: Energy,
    values: Energy,
    positions: u32,
    agreeing: u32,
    sum_kl: f64,
    max_kl: f64,
}

/// Squares of rows and of their errors.
#[derive(Default)]
struct Energy {
    rows: f64,
    errors: f64,
}

impl Energy {
    fn relative_error(&self) -> f64 {
        (self.errors / self.rows).sqrt()
    }
}

impl Figures {
    /// Compares rows that were sent with rows that arrived.
    pub fn add_rows(&mut self, sent: &[KvBlock], arrived: &[KvBlock], encoded_bytes: u64) {
        self.encoded_bytes += encoded_bytes;
        let planes = |blocks| <[KvBlock]>::iter(blocks).flat_map(|b| &b.planes);
        for (sent, arrived) in planes(sent).zip(planes(arrived)) {
            self.raw_bytes += sent.data.len() as u64;
            let energy = match sent.kind {
                PlaneKind::Key => &mut self.keys,
                PlaneKind::Value => &mut self.values,
            };
            for (x, y) in halves(&sent.data).zip(halves(&arrived.data)) {
                let error = (x - y).abs();
                self.largest_error = self.largest_error.max(error);
                energy.rows += x * x;
                energy.errors += error * error;
            }
        }
    }

    /// Compares the distributions of next tokens.
    pub fn add_answer(&mut self, exact: &[Vec<f32>], found: &[Vec<f32>]) {
        for (exact, found) in exact.iter().zip(found) {
            let (p, q) = (log_probabilities(exact), log_probabilities(found));
            let kl: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
            // Rounding may leave a little less than nothing.
            let kl = kl.max(0.0);
            self.sum_kl += kl;
            self.max_kl = self.max_kl.max(kl);
            self.positions += 1;
            self.agreeing += u32::from(likeliest(exact) == likeliest(found));
        }
    }

    pub fn json(&self, codec: Codec, speed: &Speed) -> Value {
        let positions = f64::from(self.positions.max(1));
        let kilobytes = |bytes: u64| f64::from(u32::try_from(bytes / 1000).unwrap_or(u32::MAX));
        json!({
            "codec": codec.name(),
            "ratio": kilobytes(self.raw_bytes) / kilobytes(self.encoded_bytes),
            "encode_gb_s": speed.encode,
            "decode_gb_s": speed.decode,
            "largest_error": self.largest_error,
            "relative_error_k": self.keys.relative_error(),
            "relative_error_v": self.values.relative_error(),
            "mean_kl": self.sum_kl / positions,
            "max_kl": self.max_kl,
            "top1_agreement": f64::from(self.agreeing) / positions,
        })
    }
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = f64> {
    let halves = bytes.chunks_exact(2);
    halves.map(|b| f16::from_le_bytes([b[0], b[1]]).to_f64())
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |max, l| max.max(*l));
    let shifted = |l: &f32| f64::from(*l) - f64::from(largest);
    let sum: f64 = logits.iter().map(|l| shifted(l).exp()).sum();
    logits.iter().map(|l| shifted(l) - sum.ln()).collect()
}

fn likeliest(logits: &[f32]) -> Option<usize> {
    let logits = logits.iter().enumerate();
    let best = logits.max_by(|a, b| a.1.total_cmp(b.1));
    best.map(|(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_handoff::{Plane, Section};

    fn block(kind: PlaneKind, values: &[f32]) -> KvBlock {
        let data = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes());
        KvBlock {
            section: Section::Full,
            tokens: 0..1,
            planes: vec![Plane {
                layer: 0,
                kind,
                data: data.collect::<Vec<u8>>().into(),
            }],
        }
    }

    #[test]
    fn errors_and_divergences_of_known_rows() {
        let mut figures = Figures::default();
        let sent = [block(PlaneKind::Key, &[3.0, 4.0])];
        let arrived = [block(PlaneKind::Key, &[3.0, 3.5])];
        figures.add_rows(&sent, &arrived, 2);
        // Probabilities 3/4 and 1/4 against 1/4 and 3/4: KL = ln(3) / 2.
        let ln3 = 3f32.ln();
        let rows = [vec![ln3 + 7.0, 7.0], vec![0.0, 1.0]];
        figures.add_answer(&rows, &[vec![1.0, 1.0 + ln3], vec![0.0, 1.0]]);
        let speed = Speed {
            encode: 2.0,
            decode: 3.0,
        };
        let found = figures.json(Codec::Q8, &speed);
        assert_eq!(found["codec"], "q8");
        for (key, expected) in [
            ("largest_error", 0.5),
            ("relative_error_k", 0.1),
            ("max_kl", 3f64.ln() / 2.0),
            ("mean_kl", 3f64.ln() / 4.0),
            ("top1_agreement", 0.5),
        ] {
            let value = found[key].as_f64().unwrap();
            assert!((value - expected).abs() < 1e-6, "{key}: {value}");
        }
    }
}
