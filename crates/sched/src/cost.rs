//! What a machine takes for a piece of work, and a link for a cache: seconds, of the figures of profiles.
//!
//! `docs/scheduling.md` has the formulas. Times never fall as work grows, and never rise as a link gets faster.

use crate::profile::{Figures, Link, Machine, Model};

/// Why something cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// A figure that a plan needs and a profile lacks.
    #[error("`{machine}` has no figures of {figure} for {model}")]
    Figure {
        /// The machine.
        machine: String,
        /// The model.
        model: String,
        /// What is missing.
        figure: &'static str,
    },
    /// The weights do not fit.
    #[error("`{machine}` has no room for {models}")]
    Memory {
        /// The machine.
        machine: String,
        /// The models, with commas.
        models: String,
    },
    /// No flow of works was found.
    #[error("no flow of works was found")]
    Flow,
}

/// Before a source that nobody can look up.
const NOT_PUBLISHED: &str = "not published";
/// Tokens for which the cost of depth is derived where it was not measured.
const DEPTHS: [f64; 6] = [512.0, 2048.0, 8192.0, 32_768.0, 131_072.0, 524_288.0];

/// A line through points, in the order of their places; beyond them it goes on as between the last two.
#[derive(Debug, Clone, Default)]
struct Curve(Vec<(f64, f64)>);

impl Curve {
    /// Through these points, but never falling.
    fn rising(mut points: Vec<(f64, f64)>) -> Self {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points.dedup_by(|a, b| a.0 == b.0);
        let mut highest = 0.0_f64;
        for point in &mut points {
            highest = highest.max(point.1);
            point.1 = highest;
        }
        Self(points)
    }

    fn at(&self, place: f64) -> f64 {
        let points = &self.0;
        let next = points.partition_point(|p| p.0 < place);
        let next = next.clamp(1, points.len().saturating_sub(1).max(1));
        match (points.get(next - 1), points.get(next)) {
            (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (place - a.0) / (b.0 - a.0),
            (Some(only), None) => only.1,
            (None, _) => 0.0,
        }
    }

    fn last(&self) -> f64 {
        self.0.last().map_or(0.0, |p| p.0)
    }
}

/// How fast a machine is with a model.
#[derive(Debug, Clone)]
pub struct Speed<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The model.
    pub model: &'a Model,
    /// What its profile says of the figures.
    note: &'a str,
    /// Where they come from.
    source: &'a str,
    /// Seconds of a prefill of so many tokens, none there.
    prefill: Curve,
    /// Most new tokens that are computed at once, where figures with tokens before them exist.
    chunk: Option<f64>,
    /// Seconds that each new token takes longer, by tokens before it.
    prefill_depth: Curve,
    /// Seconds of a step of so many sequences.
    step: Curve,
    /// Whether a step of several sequences was measured.
    has_batches: bool,
    /// Whether a step was measured with more than one number of tokens.
    has_depths: bool,
    /// Tokens of each sequence at which `step` holds.
    base: f64,
    /// Seconds that a step takes longer for each sequence, by its tokens beyond those.
    step_depth: Curve,
}

impl<'a> Speed<'a> {
    /// Of the first figures that the machine has for the model.
    ///
    /// # Errors
    /// If figures of prefill or of decode are missing.
    pub fn new(machine: &'a Machine, model: &'a Model) -> Result<Self, Missing> {
        let missing = |figure| Missing::Figure {
            machine: machine.name.clone(),
            model: model.name.clone(),
            figure,
        };
        let figures = machine.figures.iter().find(|f| f.model == model.name);
        let figures = figures.ok_or_else(|| missing("anything"))?;
        if figures.prefill.iter().all(|row| row.1 > 0.0) {
            return Err(missing("prefill"));
        }
        let mut rows = figures.decode.clone();
        rows.sort_by(|a, b| a.1.total_cmp(&b.1));
        let alone = rows.iter().filter(|row| row.0 == 1.0);
        let Some(&(_, base, rate)) = alone.clone().next() else {
            return Err(missing("decode of one sequence"));
        };
        let one = 1.0 / rate;
        let depth = alone.map(|row| (row.1 - base, 1.0 / row.2 - one));
        let mut depth: Vec<(f64, f64)> = depth.collect();
        let has_depths = depth.len() > 1;
        if !has_depths {
            // Each token's cache is read once in each step.
            let per_byte = 1.0 / (machine.bandwidth_gb_s * 1e9);
            let deeper = |tokens| model.kv_bytes(base + tokens) - model.kv_bytes(base);
            let drawn = DEPTHS.map(|tokens| (tokens, deeper(tokens) * per_byte));
            depth.extend(drawn);
        }
        let step_depth = Curve::rising(depth);
        // Rows of several sequences may be of other depths: of each number the least deep row counts.
        let mut steps: Vec<(f64, f64)> = Vec::new();
        for &(count, depth, rate) in &rows {
            if steps.iter().all(|step| step.0 != count) {
                let deeper = count * step_depth.at(depth - base);
                steps.push((count, (count / rate - deeper).max(one)));
            }
        }
        let has_batches = steps.len() > 1;
        let (prefill, chunk, prefill_depth) = prefill_curves(figures, one);
        if !has_batches {
            steps = derived_steps(model, one, &prefill);
        }
        Ok(Self {
            machine,
            model,
            prefill,
            chunk,
            prefill_depth,
            step: Curve::rising(steps),
            has_batches,
            has_depths,
            base,
            step_depth,
            note: &figures.note,
            source: &figures.source.at,
        })
    }

    /// Seconds until `new` tokens are computed after `have`.
    #[must_use]
    pub fn prefill_s(&self, have: f64, new: f64) -> f64 {
        if new <= 0.0 {
            return 0.0;
        }
        let Some(chunk) = self.chunk else {
            // What all of it takes, less what the beginning takes, so that parts add up to the whole.
            let rest = self.prefill.at(have + new) - self.prefill.at(have);
            return rest.max(self.prefill.at(1.0));
        };
        let (mut left, mut depth, mut seconds) = (new, have, 0.0);
        while left > 0.0 {
            let part = left.min(chunk);
            seconds += self.prefill.at(part) + part * self.prefill_depth.at(depth);
            (left, depth) = (left - part, depth + part);
        }
        seconds
    }

    /// Seconds of one step of decoding of so many sequences with so many tokens each.
    #[must_use]
    pub fn step_s(&self, batch: f64, tokens: f64) -> f64 {
        let deeper = self.step_depth.at((tokens - self.base).max(0.0));
        self.step.at(batch) + batch * deeper
    }

    /// Seconds until each of a batch of answers to prompts of this size has this many tokens.
    #[must_use]
    pub fn decode_s(&self, batch: f64, prompt: f64, answer: f64) -> f64 {
        // A step grows evenly with its tokens, so the one in the middle is the mean.
        answer * self.step_s(batch, prompt + answer / 2.0)
    }

    /// Longest prompt whose prefill was measured, in tokens.
    #[must_use]
    pub fn measured_to(&self) -> f64 {
        match self.chunk {
            Some(chunk) => self.prefill_depth.last() + chunk,
            None => self.prefill.last(),
        }
    }

    /// What should be known about figures that these sizes need.
    #[must_use]
    pub fn notes(&self, prompt: f64, batch: f64) -> Vec<String> {
        let name = format!("{} with {}", self.machine.name, self.model.name);
        let deepest = self.measured_to();
        let mut notes = Vec::new();
        if self.source.starts_with(NOT_PUBLISHED) {
            notes.push(format!("{name}: the figures are {}", self.source));
        }
        if !self.note.is_empty() {
            notes.push(format!("{name}: {}", self.note));
        }
        if prompt > deepest {
            notes.push(format!("{name}: prefill was measured up to {deepest:.0} tokens; beyond, the figures are drawn on"));
        }
        if !self.has_depths {
            notes.push(format!("{name}: decode was measured at one length only; what longer prompts add is derived from the bytes of their cache"));
        }
        let batches = self.step.last();
        if batch > 1.0 && !self.has_batches {
            notes.push(format!("{name}: a step of {batch:.0} sequences is derived from its bytes and its computing, not measured"));
        } else if batch > batches {
            notes.push(format!("{name}: decode was measured up to {batches:.0} sequences; beyond, the figures are drawn on"));
        }
        notes
    }
}

/// Seconds of prefill by tokens; the size of a chunk; what depth adds to each token.
fn prefill_curves(figures: &Figures, one: f64) -> (Curve, Option<f64>, Curve) {
    let rows = &figures.prefill;
    let fresh = rows.iter().filter(|row| row.1 == 0.0);
    // One token is one step of decoding.
    let points = fresh.map(|&(n, _, rate)| (n, n / rate));
    let points = points.chain([(0.0, 0.0), (1.0, one)]).collect();
    let curve = Curve::rising(points);
    let deep: Vec<_> = rows.iter().filter(|row| row.1 > 0.0).collect();
    let chunk = deep.iter().map(|row| row.0).reduce(f64::max);
    let slower = deep
        .iter()
        .map(|row| (row.1, 1.0 / row.2 - curve.at(row.0) / row.0));
    let depth = Curve::rising(slower.chain([(0.0, 0.0)]).collect());
    (curve, chunk, depth)
}

/// Steps of several sequences where one alone was measured: the weights that are read more, and the computing of each
/// further token, which costs what it costs in a long prefill.
fn derived_steps(model: &Model, one: f64, prefill: &Curve) -> Vec<(f64, f64)> {
    let longest = prefill.last();
    let computing = prefill.at(longest) / longest;
    let step = |n: f64| {
        let read = one * model.used_share(n) / model.used_share(1.0);
        (n, read + (n - 1.0) * computing)
    };
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0].map(step).to_vec()
}

/// What a prefill machine's cache takes on its way: seconds from the first token computed to the last byte applied.
///
/// Layers leave as they are computed, so all but the last layer of the last chunk may be on the way already.
/// `chunks` has of each when it begins, when it ends, and its bytes; `rest` are bytes that leave when all is computed.
#[must_use]
pub fn transfer_end_s(chunks: &[(f64, f64, f64)], rest: f64, layers: u32, link: &Link) -> f64 {
    let layers = f64::from(layers.max(1));
    let goodput = link.goodput_gb_s * 1e9;
    let mut left: f64 = chunks.iter().map(|c| c.2).sum();
    let mut end = 0.0_f64;
    for (i, &(begins, ends, bytes)) in chunks.iter().enumerate() {
        let first = begins + (ends - begins) / layers;
        end = end.max(first + left / goodput);
        if i + 1 == chunks.len() {
            end = end.max(ends + bytes / layers / goodput);
        }
        left -= bytes;
    }
    end + rest / goodput + link.round_trip_ms / 2e3
}
