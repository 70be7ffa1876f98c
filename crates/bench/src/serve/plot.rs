//! The times as a drawing: which part of them is below so many milliseconds.

use std::fmt::Write as _;

use super::summary::{Figures, Side};

/// Units of the drawing.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 360.0;
/// Of each of the two fields, and where they begin.
const FIELD: (f64, f64) = (380.0, 230.0);
const TOP: f64 = 64.0;
const LEFT: [f64; 2] = [40.0, 480.0];
/// Points of a line at most.
const POINTS: usize = 200;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1d2330}.soft{fill:#5b6475}\
    path{fill:none;stroke-width:2}.axis{stroke:#c9cfda;stroke-width:1}.s0{stroke:#4c7bd9}.s1{stroke:#d9782b}\
    @media (prefers-color-scheme:dark){text{fill:#e8ebf2}.soft{fill:#a7b0c0}.axis{stroke:#454d5c}}";

/// The times that a field shows of a server.
type Values = fn(&Side) -> &[f64];

/// Both fields, a line for each server.
pub fn svg(figures: &Figures) -> String {
    let mut body = String::new();
    let fields: [(&str, Values); 2] = [
        ("first token, ms", |side| &side.first),
        ("between tokens, ms", |side| &side.between),
    ];
    for (left, (name, values)) in LEFT.into_iter().zip(fields) {
        field(&mut body, left, name, &figures.sides, values);
    }
    for (number, side) in figures.sides.iter().enumerate() {
        let x = LEFT[number.min(1)];
        let label = format!("{}: {:.2} requests/s", side.address, side.requests_per_s);
        let _ = write!(
            body,
            r#"<path class="s{number}" d="M{x} 342h24"/><text x="{}" y="346">{}</text>"#,
            x + 32.0,
            escaped(&label)
        );
    }
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{title}</title><style>{STYLE}</style><text x="40" y="24">{title}</text>{body}</svg>"#,
        title = escaped(&figures.title()),
    )
}

/// Part of the values below, over milliseconds up to the longest.
fn field(body: &mut String, left: f64, name: &str, sides: &[Side], values: Values) {
    let (width, height) = FIELD;
    let bottom = TOP + height;
    let all = sides.iter().flat_map(values);
    let longest = all.copied().fold(1e-9, f64::max);
    let _ = write!(
        body,
        r#"<text class="soft" x="{left}" y="{:.0}">{name}: part of all that is below</text><path class="axis" d="M{left} {TOP}V{bottom}H{:.0}"/><text class="soft" x="{left}" y="{:.0}">0</text><text class="soft" x="{:.0}" y="{:.0}" text-anchor="end">{longest:.0}</text>"#,
        TOP - 14.0,
        left + width,
        bottom + 18.0,
        left + width,
        bottom + 18.0,
    );
    for (number, side) in sides.iter().enumerate() {
        let mut sorted = values(side).to_vec();
        sorted.sort_by(f64::total_cmp);
        let step = (sorted.len() / POINTS).max(1);
        let mut line = format!("M{left:.1} {bottom:.1}");
        let last = sorted.len().saturating_sub(1);
        let shown = sorted.iter().enumerate();
        for (index, value) in shown.filter(|(i, _)| i.is_multiple_of(step) || *i == last) {
            #[expect(clippy::cast_precision_loss, reason = "few values")]
            let part = (index + 1) as f64 / sorted.len() as f64;
            let (x, y) = (left + value / longest * width, bottom - part * height);
            let _ = write!(line, "L{x:.1} {y:.1}");
        }
        let _ = write!(body, r#"<path class="s{number}" d="{line}"/>"#);
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}
