//! The phases of one answer by each way, as a drawing.

use std::fmt::Write as _;

use tandem_sched::plan::{Answered, Judged};

use super::Request;

/// Units of the drawing.
const WIDTH: f64 = 960.0;
const LABELS: f64 = 230.0;
const BAR: f64 = 16.0;
const GAP: f64 = 4.0;
const HEAD: f64 = 26.0;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1d2330}.soft{fill:#5b6475}\
    .prefill{fill:#4c7bd9}.transfer{fill:#d99a2b}.decode{fill:#3d9a6a}.line{stroke:#c9cfda}\
    @media (prefers-color-scheme:dark){text{fill:#e8ebf2}.soft{fill:#a7b0c0}.line{stroke:#454d5c}}";

/// All ways of the first prompt, one below the other, on one scale of seconds.
pub fn svg(requests: &[Request]) -> String {
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
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0}" role="img" aria-label="The phases of one answer by each way"><style>{STYLE}</style><text class="soft" x="8" y="16">{first} tokens in; seconds; calculated of profiles</text>{body}</svg>
"#
    )
}

fn round(seconds: f64) -> String {
    format!("{seconds:.2}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
