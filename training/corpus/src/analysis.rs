//! The reference answer of the code analysis.

use crate::draft::Draft;
use crate::page::{Page, Tag};
use crate::plan::{Correct, Empty, Language, Readable, Shown};
use crate::rubric::{CRITERIA, Shape};
use serde_json::{Map, Value, json};

/// Lines of a file: its index, first and last line from 1.
type Lines = (usize, usize, usize);

/// The answer as compact JSON.
pub(crate) fn answer(draft: &Draft, pages: &[Page], shape: Shape) -> String {
    let quarters = draft.plan.quarters(draft.task);
    let parts = [
        correct(draft, pages),
        empty(draft, pages),
        readable(draft, pages),
        shown(draft, pages),
    ];
    let mut criteria = Map::new();
    for (i, (evidence, rationale)) in parts.into_iter().enumerate() {
        let evidence: Vec<Value> = evidence
            .into_iter()
            .flatten()
            .map(|lines| piece(lines, pages))
            .collect();
        let points = points(shape.points[i] * quarters[i]);
        let value = json!({"evidence": evidence, "rationale": rationale, "points": points});
        criteria.insert(CRITERIA[i].to_owned(), value);
    }
    json!({ "criteria": criteria }).to_string()
}

/// Points from quarters of a point: `4`, not `4.0`, when whole.
fn points(quarters: u32) -> Value {
    if quarters.is_multiple_of(4) {
        json!(quarters / 4)
    } else {
        json!(f64::from(quarters) / 4.0)
    }
}

fn piece((file, start, end): Lines, pages: &[Page]) -> Value {
    if pages.len() > 1 {
        json!({"file": pages[file].name, "line_start": start, "line_end": end})
    } else {
        json!({"line_start": start, "line_end": end})
    }
}

/// The first line with a tag.
fn find(pages: &[Page], tag: Tag) -> Option<Lines> {
    pages.iter().enumerate().find_map(|(file, page)| {
        let line = page.lines.iter().position(|l| l.0 == tag)? + 1;
        Some((file, line, line))
    })
}

/// The first line whose operators or commas have no spaces.
pub(crate) fn find_cramped(pages: &[Page]) -> Option<Lines> {
    pages.iter().enumerate().find_map(|(file, page)| {
        let line = page.lines.iter().position(|l| is_cramped(&l.1))? + 1;
        Some((file, line, line))
    })
}

fn is_cramped(line: &str) -> bool {
    if line.trim_start().starts_with(['#', '/', '*', '"', '[']) {
        return false;
    }
    let bytes = line.as_bytes();
    bytes.windows(2).any(|w| w[0] == b',' && w[1] != b' ')
        || bytes.windows(3).any(|w| {
            w[0].is_ascii_alphanumeric()
                && matches!(w[1], b'=' | b'>' | b'<' | b'%' | b'/')
                && w[2] != b' '
                && (w[2].is_ascii_alphanumeric() || matches!(w[2], b'=' | b'[' | b'-' | b'/'))
        }) && !line.contains("List<")
}

fn pick(draft: &Draft, lane: u64, from: &[String]) -> String {
    let mut dice = draft.dice.clone();
    let mut at = 0;
    for _ in 0..=lane {
        at = dice.below(from.len());
    }
    from[at].clone()
}

/// The element as the condition of the page names it.
pub(crate) fn tested(draft: &Draft) -> String {
    use crate::plan::Style;
    let n = &draft.names;
    if draft.plan.style != Style::Expression {
        return draft.element_in_loop();
    }
    match (draft.plan.language, draft.plan.correct) {
        (Language::R, Correct::SkipsFirst | Correct::SkipsLast) => "rest".to_owned(),
        (Language::R, _) => n.list.clone(),
        _ => n.element.clone(),
    }
}

fn correct(draft: &Draft, pages: &[Page]) -> (Vec<Option<Lines>>, String) {
    let result = find(pages, Tag::Result);
    let test = find(pages, Tag::Condition).or(result);
    let line = match draft.plan.correct {
        Correct::Right | Correct::Boundary => test,
        Correct::SkipsFirst | Correct::SkipsLast => find(pages, Tag::Loop).or(test),
        Correct::WholeDivision
        | Correct::WrongReturn
        | Correct::NoSelection
        | Correct::HardCoded => result,
    };
    (vec![line], pick(draft, 0, &correct_texts(draft)))
}

fn correct_texts(draft: &Draft) -> [String; 2] {
    let things = draft.task.things();
    let noun = draft.task.aggregate.noun();
    let right = draft.condition(&tested(draft), false);
    match draft.plan.correct {
        Correct::Right => [
            format!("Tests {right} and returns the {noun}."),
            format!("{right} keeps the right {things}; the {noun} is right."),
        ],
        Correct::Boundary => {
            let wrong = draft.condition(&tested(draft), true);
            [
                format!("Tests {wrong}; it should be {right}."),
                format!("{wrong} picks the wrong {things}; it should be {right}."),
            ]
        }
        Correct::SkipsFirst => [
            "Starts at the second element; the first is never looked at.".to_owned(),
            format!("The first of the {things} is skipped."),
        ],
        Correct::SkipsLast => [
            "Stops one element early; the last is never looked at.".to_owned(),
            format!("The last of the {things} is skipped."),
        ],
        Correct::WholeDivision => [
            "Whole division loses the decimals of the mean.".to_owned(),
            "The decimals of the mean are lost by whole division.".to_owned(),
        ],
        Correct::WrongReturn => {
            let wrong = draft.aggregate().noun();
            [
                format!("Returns the {wrong}, not the {noun}."),
                format!("The {noun} was asked for, but the {wrong} is returned."),
            ]
        }
        Correct::NoSelection => [
            format!("Takes all {things}; nothing is selected."),
            format!("Nothing is selected: all {things} count."),
        ],
        Correct::HardCoded => [
            "Returns a fixed value and computes nothing.".to_owned(),
            format!("The result is fixed and does not depend on the {things}."),
        ],
    }
}

fn empty(draft: &Draft, pages: &[Page]) -> (Vec<Option<Lines>>, String) {
    let nothing = draft.nothing();
    let edge = find(pages, Tag::Edge).map(|(file, line, _)| (file, line, line + 1));
    let result = find(pages, Tag::Result);
    let line = edge.or(result);
    let texts = match draft.plan.empty {
        Empty::Right => [
            format!("Returns {nothing} if nothing is selected."),
            format!("An empty selection gives {nothing}."),
        ],
        Empty::OtherValue => {
            let value = draft.other_value();
            [
                format!("Returns {value} instead of {nothing} if nothing is selected."),
                format!("An empty selection gives {value}, not {nothing}."),
            ]
        }
        Empty::Missing if draft.plan.blind() => [
            "An empty selection is not considered.".to_owned(),
            "Does not consider that nothing may be selected.".to_owned(),
        ],
        Empty::Missing if draft.plan.crashes(draft.task) => [
            "No test for an empty selection, so it crashes.".to_owned(),
            "Crashes if nothing is selected.".to_owned(),
        ],
        Empty::Missing => [
            format!("No test for an empty selection; it gives another value than {nothing}."),
            format!("Does not crash, but nothing selected does not give {nothing}."),
        ],
    };
    (vec![line], pick(draft, 1, &texts))
}

fn readable(draft: &Draft, pages: &[Page]) -> (Vec<Option<Lines>>, String) {
    let signature = find(pages, Tag::Signature);
    let list = &draft.names.list;
    let (line, texts) = match draft.plan.readable {
        Readable::Right => (
            signature,
            [
                format!("Names such as {list} say what they hold."),
                format!("{list} and the other names are clear; no dead code."),
            ],
        ),
        Readable::PoorNames => {
            let other = other_name(draft, pages);
            (
                signature,
                [
                    format!("Names such as {list} and {other} say nothing."),
                    format!("{list} and {other} do not say what they hold."),
                ],
            )
        }
        Readable::Dead => {
            let dead = find(pages, Tag::Dead);
            let text = dead
                .map(|(file, line, _)| pages[file].lines[line - 1].1.trim().replace('"', "'"))
                .unwrap_or_default();
            (
                dead,
                [
                    format!("{text} is dead code."),
                    format!("{text} has no use and should go."),
                ],
            )
        }
        Readable::Cramped => (
            find_cramped(pages),
            [
                "Cramped: no spaces around operators or after commas.".to_owned(),
                "Spaces around operators and after commas are missing.".to_owned(),
            ],
        ),
    };
    (vec![line], pick(draft, 2, &texts))
}

/// A second poor name that occurs in the code.
pub(crate) fn other_name(draft: &Draft, pages: &[Page]) -> String {
    let n = &draft.names;
    let occurs = |name: &&String| {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        !name.is_empty()
            && pages.iter().flat_map(|p| &p.lines).any(|l| {
                l.0 != Tag::Comment && l.1.split(|c| !is_word(c)).any(|w| w == name.as_str())
            })
    };
    [&n.selected, &n.total, &n.parameter, &n.element, &n.list]
        .into_iter()
        .find(occurs)
        .cloned()
        .unwrap_or_default()
}

fn shown(draft: &Draft, pages: &[Page]) -> (Vec<Option<Lines>>, String) {
    let comment = find(pages, Tag::Comment);
    let call = find(pages, Tag::Call);
    let texts = match draft.plan.shown {
        Shown::Both => [
            "A comment explains the function and a call is shown.",
            "Both a comment and a call are there.",
        ],
        Shown::NoComment => [
            "A call is shown, but no comment explains the function.",
            "There is a call, but no comment.",
        ],
        Shown::NoCall => [
            "A comment explains the function, but no call is shown.",
            "There is a comment, but no call.",
        ],
        Shown::Neither => [
            "There is neither a call nor a comment.",
            "Call and comment are both missing.",
        ],
    };
    (
        vec![comment, call],
        pick(draft, 3, &texts.map(str::to_owned)),
    )
}
