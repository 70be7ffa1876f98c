//! The phases of one answer by each way, as a drawing.

use std::fmt::Write as _;

use tandem_sched::plan::{Answered, Judged, Served};

use super::Request;
use super::trial::Ran;
use crate::numbers::float;

/// Units of the drawing.
const WIDTH: f64 = 960.0;
const LABELS: f64 = 230.0;
const BAR: f64 = 16.0;
const GAP: f64 = 4.0;
const HEAD: f64 = 26.0;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1d2330}.soft{fill:#5b6475}\
    .prefill{fill:#4c7bd9}.transfer{fill:#d99a2b}.decode{fill:#3d9a6a}.line{stroke:#c9cfda}\
    @media (prefers-color-scheme:dark){text{fill:#e8ebf2}.soft{fill:#a7b0c0}.line{stroke:#454d5c}}";

/// All ways of the first prompt, one below the other, on one scale of seconds. `figures` are those that it rests on.
pub fn svg(requests: &[Request], figures: &str) -> String {
    let first = requests.first().map_or(0, |request| request.prompt);
    let shown = requests.iter().filter(|request| request.prompt == first);
    let shown: Vec<(&str, &Answered)> = shown
        .flat_map(|r| {
            r.ways
                .iter()
                .filter_map(Judged::known)
                .map(|a| (r.model.as_str(), a))
        })
        .collect();
    let longest = shown.iter().map(|(_, a)| a.end_s).fold(1e-9, f64::max);
    let scale = (WIDTH - LABELS - 70.0) / longest;
    let mut body = String::new();
    let mut y = HEAD;
    for (model, answered) in &shown {
        let title = format!("{model}: {}", super::words::named(answered));
        let _ = write!(
            body,
            r#"<text x="8" y="{:.0}">{}</text>"#,
            y + 13.0,
            escaped(&title)
        );
        y += BAR + GAP;
        for phase in &answered.phases {
            let (x, width) = (
                LABELS + phase.from_s * scale,
                (phase.to_s - phase.from_s) * scale,
            );
            let label = format!("{} {}", phase.on, phase.what);
            let _ = write!(
                body,
                r#"<text class="soft" x="24" y="{:.0}">{}</text><rect class="{}" x="{x:.1}" y="{y:.0}" width="{:.1}" height="{BAR}"><title>{} s to {} s</title></rect>"#,
                y + 13.0,
                escaped(&label),
                phase.what,
                width.max(0.5),
                round(phase.from_s),
                round(phase.to_s),
            );
            y += BAR + GAP;
        }
        let end = LABELS + answered.end_s * scale;
        let _ = write!(
            body,
            r#"<text x="{:.1}" y="{:.0}">{} s</text><path class="line" d="M8 {:.0}H{WIDTH}"/>"#,
            end + 6.0,
            y - GAP - 3.0,
            round(answered.end_s),
            y + 4.0,
        );
        y += 12.0;
    }
    let head = format!("{first} tokens in; seconds; calculated of {figures}");
    picture("The phases of one answer by each way", &head, &body, y)
}

/// Height of a bar of one request among many.
const LANE: f64 = 9.0;

/// When each request of courses was read and written on which machine, as measured, on one scale of seconds.
pub fn timelines(runs: &[Ran]) -> String {
    let longest = runs
        .iter()
        .map(|run| run.measured.end_s)
        .fold(1e-9, f64::max);
    let scale = (WIDTH - LABELS - 70.0) / longest;
    let mut body = String::new();
    let mut y = HEAD;
    for run in runs {
        let title = format!(
            "{}, {} at once: {} s measured, {} s predicted",
            super::way(run.way, true),
            run.batch,
            round(run.measured.end_s),
            round(run.predicted.end_s)
        );
        let _ = write!(
            body,
            r#"<text x="8" y="{:.0}">{}</text>"#,
            y + 13.0,
            escaped(&title)
        );
        y += BAR + GAP;
        for machine in &run.machines {
            let _ = write!(
                body,
                r#"<text class="soft" x="24" y="{:.0}">{}</text>"#,
                y + 11.0,
                escaped(machine)
            );
            let lanes = lanes(&run.measured_requests, machine);
            for (lane, bar) in &lanes.bars {
                let top = y + float(*lane as u64) * LANE;
                let _ = write!(
                    body,
                    r#"<rect class="{}" x="{:.1}" y="{top:.0}" width="{:.1}" height="{}"><title>{}, work {}: {} s to {} s</title></rect>"#,
                    bar.what,
                    LABELS + bar.from * scale,
                    ((bar.to - bar.from) * scale - 0.5).max(0.5),
                    LANE - 1.0,
                    escaped(
                        run.models
                            .get(bar.request.workload)
                            .map_or("", String::as_str)
                    ),
                    bar.request.work + 1,
                    round(bar.from),
                    round(bar.to)
                );
            }
            let height = float(lanes.count as u64) * LANE;
            y += height.max(BAR) + GAP;
        }
        let _ = write!(body, r#"<path class="line" d="M8 {y:.0}H{WIDTH}"/>"#);
        y += 12.0;
    }
    let head = "seconds of the machines; blue: to the first token; green: the answer";
    let label = "When each request was read and written on which machine";
    picture(label, head, &body, y)
}

/// A drawing of this height, with a line above it.
fn picture(label: &str, head: &str, body: &str, height: f64) -> String {
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="{label}"><style>{STYLE}</style><text class="soft" x="8" y="16">{head}</text>{body}</svg>
"#
    )
}

struct Bar<'a> {
    request: &'a Served,
    what: &'static str,
    from: f64,
    to: f64,
}

/// Bars that overlap lie in lanes of their own.
struct Lanes<'a> {
    bars: Vec<(usize, Bar<'a>)>,
    count: usize,
}

fn lanes<'a>(requests: &'a [Served], machine: &str) -> Lanes<'a> {
    let mut bars = Vec::new();
    for request in requests {
        let first = request.first_token_s;
        if request.prefill_on == machine {
            bars.push(Bar {
                request,
                what: "prefill",
                from: request.begins_s,
                to: first,
            });
        }
        if request.decode_on == machine {
            bars.push(Bar {
                request,
                what: "decode",
                from: first,
                to: request.end_s,
            });
        }
    }
    bars.sort_by(|a, b| a.from.total_cmp(&b.from));
    let mut ends: Vec<f64> = Vec::new();
    let place = |bar: Bar<'a>| {
        let free = ends.iter().position(|end| *end <= bar.from);
        let lane = free.unwrap_or(ends.len());
        match ends.get_mut(lane) {
            Some(end) => *end = bar.to,
            None => ends.push(bar.to),
        }
        (lane, bar)
    };
    let bars = bars.into_iter().map(place).collect();
    Lanes {
        bars,
        count: ends.len(),
    }
}

fn round(seconds: f64) -> String {
    format!("{seconds:.2}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
