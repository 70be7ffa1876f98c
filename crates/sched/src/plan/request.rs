//! One request: when each of its phases begins and ends, by each way.

use serde::Serialize;

use super::{Judged, Way, Workload};
use crate::cost::{Missing, Speed, transfer_end_s};
use crate::profile::{Link, Machine};

/// A stretch of time in which something happens.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Phase {
    /// The machine, or `link`.
    pub on: String,
    /// `prefill`, `transfer` or `decode`.
    pub what: &'static str,
    /// When it begins, in seconds from the request.
    pub from_s: f64,
    /// When it ends.
    pub to_s: f64,
}

/// What one request takes by one way.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answered {
    /// The way.
    pub way: Way,
    /// The machines: who prefills, then who decodes.
    pub machines: Vec<String>,
    /// What happens when.
    pub phases: Vec<Phase>,
    /// Seconds to the first token.
    pub first_token_s: f64,
    /// Seconds to the last.
    pub end_s: f64,
    /// Whether tandem does it.
    pub is_built: bool,
    /// What the figures rest on.
    pub notes: Vec<String>,
}

/// One request by each way: each machine alone, the best pair, the best layer split.
///
/// `chunk` is the most new tokens of one step of prefill.
#[must_use]
pub fn request(
    machines: &[&Machine],
    link: &Link,
    workload: &Workload<'_>,
    chunk: f64,
) -> Vec<Judged<Answered>> {
    let alone = |machine: &&Machine| {
        let made =
            Speed::new(machine, workload.model).map(|speed| served_alone(&speed, workload, 1.0));
        Judged::of(Way::Alone, &[machine], made)
    };
    // Of equal machines one is enough.
    let kinds = machines.iter().enumerate();
    let kinds = kinds.filter(|(i, m)| {
        machines[..*i]
            .iter()
            .all(|other| other.figures != m.figures)
    });
    let mut ways: Vec<_> = kinds.map(|(_, machine)| alone(machine)).collect();
    for (way, serve) in [
        (Way::Pair, served_by_pair as Together),
        (Way::LayerSplit, served_by_layers),
    ] {
        let pairs = machines
            .iter()
            .flat_map(|p| machines.iter().map(move |d| [*p, *d]));
        let pairs = pairs.filter(|[p, d]| p.name != d.name).map(|[p, d]| {
            let speeds =
                Speed::new(p, workload.model).and_then(|p| Ok([p, Speed::new(d, workload.model)?]));
            let made = speeds.map(|[p, d]| serve([&p, &d], link, workload, chunk));
            Judged::of(way, &[p, d], made)
        });
        let end = |judged: &Judged<Answered>| judged.known().map_or(f64::INFINITY, |a| a.end_s);
        ways.extend(pairs.min_by(|a, b| end(a).total_cmp(&end(b))));
    }
    ways
}

type Together = fn([&Speed<'_>; 2], &Link, &Workload<'_>, f64) -> Answered;

fn phase(on: &str, what: &'static str, from_s: f64, to_s: f64) -> Phase {
    Phase {
        on: on.to_owned(),
        what,
        from_s,
        to_s,
    }
}

/// What one machine takes, which decodes a batch at once.
#[must_use]
pub fn served_alone(speed: &Speed<'_>, workload: &Workload<'_>, batch: f64) -> Answered {
    let name = &speed.machine.name;
    let prefilled = speed.prefill_s(0.0, workload.prompt);
    let first = prefilled + speed.step_s(batch, workload.prompt);
    let end = prefilled + speed.decode_s(batch, workload.prompt, workload.answer);
    Answered {
        way: Way::Alone,
        machines: vec![name.clone()],
        phases: vec![
            phase(name, "prefill", 0.0, prefilled),
            phase(name, "decode", prefilled, end),
        ],
        first_token_s: first,
        end_s: end,
        is_built: true,
        notes: speed.notes(workload.prompt, batch),
    }
}

/// When each chunk of a prompt begins and ends on a machine, and the bytes that it makes.
fn chunks(speed: &Speed<'_>, prompt: f64, chunk: f64) -> Vec<(f64, f64, f64)> {
    let (mut made, mut at, mut chunks) = (0.0, 0.0, Vec::new());
    while made < prompt {
        let part = chunk.min(prompt - made);
        let seconds = speed.prefill_s(made, part);
        let (bytes, _) = speed.model.handoff_bytes(made, made + part);
        chunks.push((at, at + seconds, bytes));
        (made, at) = (made + part, at + seconds);
    }
    chunks
}

/// What a pair takes that streams the cache while the prefill runs. The decode machine computes the last token itself.
#[must_use]
pub fn served_by_pair(
    [p, d]: [&Speed<'_>; 2],
    link: &Link,
    workload: &Workload<'_>,
    chunk: f64,
) -> Answered {
    let asked = link.round_trip_ms / 1e3;
    let chunks = chunks(p, workload.prompt, chunk);
    let prefilled = asked + chunks.last().map_or(0.0, |c| c.1);
    let (_, rest) = p.model.handoff_bytes(0.0, workload.prompt);
    let arrived = asked + transfer_end_s(&chunks, rest, p.model.cached_layers(), link);
    let first_layer = chunks.first().map_or(0.0, |c| {
        (c.1 - c.0) / f64::from(p.model.cached_layers().max(1))
    });
    let end = arrived + d.decode_s(1.0, workload.prompt, workload.answer);
    let (from, to) = (&p.machine.name, &d.machine.name);
    Answered {
        way: Way::Pair,
        machines: vec![from.clone(), to.clone()],
        phases: vec![
            phase(from, "prefill", asked, prefilled),
            phase("link", "transfer", asked + first_layer, arrived),
            phase(to, "decode", arrived, end),
        ],
        first_token_s: arrived + d.step_s(1.0, workload.prompt),
        end_s: end,
        is_built: Way::Pair.is_built_for(p.model),
        notes: [p.notes(workload.prompt, 1.0), d.notes(workload.prompt, 1.0)].concat(),
    }
}

/// What a pair takes of which the first machine computes the first layers of each chunk, the second the others.
///
/// The best number of layers is taken. Hidden states cross once for each chunk, the cache of the first layers follows.
fn served_by_layers(
    [p, d]: [&Speed<'_>; 2],
    link: &Link,
    workload: &Workload<'_>,
    chunk: f64,
) -> Answered {
    let layers = p.model.cached_layers().max(1);
    let of_all = |n: u32| f64::from(n) / f64::from(layers);
    let (on_p, on_d) = (
        chunks(p, workload.prompt, chunk),
        chunks(d, workload.prompt, chunk),
    );
    let goodput = link.goodput_gb_s * 1e9;
    let pass = |share: f64| {
        let (mut p_free, mut d_free, mut sent) = (0.0_f64, 0.0_f64, 0.0_f64);
        for (a, b) in on_p.iter().zip(&on_d) {
            p_free += share * (a.1 - a.0);
            sent = sent.max(p_free) + share * a.2 / goodput;
            d_free = d_free.max(p_free + link.round_trip_ms / 2e3) + (1.0 - share) * (b.1 - b.0);
        }
        (p_free, d_free.max(sent))
    };
    let ends = |share: f64| pass(share).1;
    let by_end = |a: &u32, b: &u32| ends(of_all(*a)).total_cmp(&ends(of_all(*b)));
    let count = (1..layers).min_by(by_end).unwrap_or(layers);
    let share = of_all(count);
    let (p_end, arrived) = pass(share);
    let end = arrived + d.decode_s(1.0, workload.prompt, workload.answer);
    let (from, to) = (&p.machine.name, &d.machine.name);
    let mut notes = [p.notes(workload.prompt, 1.0), d.notes(workload.prompt, 1.0)].concat();
    notes.push(format!("{count} of {layers} layers on {from}"));
    Answered {
        way: Way::LayerSplit,
        machines: vec![from.clone(), to.clone()],
        phases: vec![
            phase(from, "prefill", 0.0, p_end),
            phase(to, "prefill", 0.0, arrived),
            phase(to, "decode", arrived, end),
        ],
        first_token_s: arrived + d.step_s(1.0, workload.prompt),
        end_s: end,
        is_built: Way::LayerSplit.is_built_for(p.model),
        notes,
    }
}

/// From which prompt on a pair is faster than its decode machine alone.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BreakEven {
    /// Who prefills, and who decodes.
    pub machines: [String; 2],
    /// The shortest prompt from which every longer one is faster; nothing if the longest is not.
    pub tokens: Option<f64>,
    /// The longest prompt that was looked at: to there the figures of both machines reach.
    pub up_to: f64,
}

/// From which prompt on a pair pays.
///
/// # Errors
/// If a figure is missing.
pub fn break_even(
    [prefill, decode]: [&Machine; 2],
    link: &Link,
    workload: &Workload<'_>,
    chunk: f64,
) -> Result<BreakEven, Missing> {
    let p = Speed::new(prefill, workload.model)?;
    let d = Speed::new(decode, workload.model)?;
    let pays = |prompt: f64| {
        let workload = Workload {
            prompt,
            ..workload.clone()
        };
        let pair = served_by_pair([&p, &d], link, &workload, chunk);
        pair.end_s < served_alone(&d, &workload, 1.0).end_s
    };
    let up_to = p.measured_to().min(d.measured_to()).floor();
    // Down in steps of a fifth, then between two of them by halves.
    let (mut below, mut above) = (up_to, up_to);
    while below >= 1.0 && pays(below) {
        (above, below) = (below, (below / 1.25).floor());
    }
    while above - below > 1.0 {
        let middle = ((above + below) / 2.0).floor();
        match pays(middle) {
            true => above = middle,
            false => below = middle,
        }
    }
    Ok(BreakEven {
        machines: [prefill.name.clone(), decode.name.clone()],
        tokens: pays(above).then_some(above),
        up_to,
    })
}
