//! An answer of the code analysis, checked in code. A grammar bounds each field; what it cannot
//! bound is checked here, and totals are made here and nowhere else.

use crate::finding::{Finding, FindingKind};
use crate::graded::{CriterionResult, Evidence};
use crate::hidden::mark_hidden;
use crate::limits;
use crate::points::Points;
use crate::rubric::{Criterion, Rubric};
use crate::style::word_count;
use crate::submission::Submission;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A checked answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The criteria, in the rubric's order.
    pub criteria: Vec<CriterionResult>,
    /// Sum of the points.
    pub total: Points,
    /// What a person must look at, such as evidence that points nowhere.
    pub doubts: Vec<Finding>,
}

/// Why an answer gives no score.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerdictError {
    /// It is not JSON of the right shape.
    #[error("the answer is not the JSON that was asked for: {0}")]
    Shape(String),
    /// A criterion is missing or unknown.
    #[error("the answer's criteria are not the rubric's: '{0}'")]
    Criteria(String),
    /// Points that the rubric does not allow.
    #[error("criterion '{0}' was given points that the rubric does not allow")]
    Points(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawVerdict {
    criteria: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCriterion {
    evidence: Vec<RawEvidence>,
    rationale: String,
    points: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEvidence {
    file: Option<String>,
    line_start: usize,
    line_end: usize,
}

/// Reads and checks an answer.
///
/// # Errors
/// An answer that gives no score. Doubtful evidence is no error; it is dropped and named in `doubts`.
pub fn read_verdict(
    answer: &str,
    rubric: &Rubric,
    submission: &Submission,
) -> Result<Verdict, VerdictError> {
    let shape = |e: serde_json::Error| VerdictError::Shape(e.to_string());
    let mut raw: RawVerdict = serde_json::from_str(without_fence(answer)).map_err(shape)?;
    let mut criteria = Vec::with_capacity(rubric.criteria.len());
    let mut doubts = Vec::new();
    for criterion in &rubric.criteria {
        let value = raw
            .criteria
            .remove(&criterion.id)
            .ok_or_else(|| VerdictError::Criteria(criterion.id.clone()))?;
        let raw: RawCriterion = serde_json::from_value(value).map_err(shape)?;
        criteria.push(check(raw, criterion, submission, &mut doubts)?);
    }
    if let Some(unknown) = raw.criteria.keys().next() {
        return Err(VerdictError::Criteria(
            unknown.chars().take(limits::MAX_ID_CHARS).collect(),
        ));
    }
    let total = criteria.iter().map(|c| c.points).sum();
    Ok(Verdict {
        criteria,
        total,
        doubts,
    })
}

/// Servers that do not constrain their answers often wrap JSON in a Markdown fence.
fn without_fence(answer: &str) -> &str {
    let answer = answer.trim();
    let Some(inner) = answer
        .strip_prefix("```")
        .and_then(|a| a.strip_suffix("```"))
    else {
        return answer;
    };
    inner.strip_prefix("json").unwrap_or(inner)
}

fn check(
    raw: RawCriterion,
    criterion: &Criterion,
    submission: &Submission,
    doubts: &mut Vec<Finding>,
) -> Result<CriterionResult, VerdictError> {
    let id = &criterion.id;
    let points = Points::from_f64(raw.points).filter(|p| criterion.allowed().contains(p));
    let points = points.ok_or_else(|| VerdictError::Points(id.clone()))?;
    let mut doubt = |kind, what: String| {
        doubts.push(Finding::about(kind, id, &what));
    };
    if raw.evidence.len() > limits::MAX_EVIDENCE {
        doubt(
            FindingKind::Evidence,
            format!("more than {} pieces of evidence", limits::MAX_EVIDENCE),
        );
    }
    let mut evidence = Vec::new();
    for piece in raw.evidence.into_iter().take(limits::MAX_EVIDENCE) {
        match quote(&piece, submission) {
            Some(found) => evidence.push(found),
            None => doubt(FindingKind::Evidence, unknown_place(&piece)),
        }
    }
    if evidence.is_empty() && points > Points::ZERO {
        doubt(FindingKind::Evidence, "points without evidence".to_owned());
    }
    // The work is not empty, or no model was asked: whether something is missing in it, no quote can show.
    if points == Points::ZERO {
        doubt(FindingKind::Absence, "no points".to_owned());
    } else if points == criterion.max_points && says_missing(&raw.rationale) {
        let what = "all points, and the rationale says that something is missing";
        doubt(FindingKind::Absence, what.to_owned());
    }
    if let Some(min) = criterion.reflection.as_ref().and_then(|r| r.min_words)
        && points > Points::ZERO
    {
        let count = cited_words(&evidence, submission);
        if count < min {
            let what = format!("the cited answer has {count} words; at least {min} are asked for");
            doubt(FindingKind::TooShort, what);
        }
    }
    let rationale = submission.named(&raw.rationale.replace(['\n', '\r', '\t'], " "));
    let (rationale, hidden) = mark_hidden(&rationale);
    if hidden > 0 || rationale.trim().is_empty() {
        doubt(
            FindingKind::Rationale,
            "the rationale is empty or has hidden characters".to_owned(),
        );
    }
    Ok(CriterionResult {
        id: id.clone(),
        title: criterion.title.clone(),
        evidence,
        rationale,
        level: criterion.level_of(points).map(str::to_owned),
        points,
        max_points: criterion.max_points,
    })
}

/// Words that say that something is missing.
const MISSING: &[&str] = &[
    "missing",
    "misses",
    "lacks",
    "lacking",
    "absent", // English
    "fehlt",
    "fehlen", // German
    "manque",
    "manquent", // French
    "falta",
    "faltan", // Spanish; the first also Portuguese
    "manca",
    "mancano", // Italian
    "ontbreekt",
    "ontbreken", // Dutch
];
/// Words near them that say that nothing is.
const NOTHING: &[&str] = &[
    "nothing", "not", "no", "none", "never", "without", // English
    "nichts", "nicht", "kein", "keine", // German
    "rien", "pas", "nada", "nulla", "non", "niets", "geen",
];
/// What code may handle that is missing.
const MISSING_THINGS: &[&str] = &[
    "value",
    "values",
    "key",
    "keys",
    "data",
    "entry",
    "entries",
    "element",
    "elements",
    "file",
    "files",
    "argument",
    "arguments",
    "input",
    "inputs",
];

fn says_missing(rationale: &str) -> bool {
    let words: Vec<String> = rationale
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    words.iter().enumerate().any(|(i, word)| {
        let before = &words[i.saturating_sub(4)..i];
        let after = &words[i + 1..words.len().min(i + 3)];
        let is_denied = before
            .iter()
            .chain(after)
            .any(|w| NOTHING.contains(&w.as_str()));
        let is_thing = after
            .first()
            .is_some_and(|w| MISSING_THINGS.contains(&w.as_str()));
        MISSING.contains(&word.as_str()) && !is_denied && !is_thing
    })
}

/// Words in the cited lines, each line once.
fn cited_words(evidence: &[Evidence], submission: &Submission) -> usize {
    let mut cited = BTreeMap::new();
    for piece in evidence {
        let mut files = submission.files.iter();
        // What tests said is nobody's answer.
        let Some(file) = files.find(|f| f.name == piece.file && !f.is_tests) else {
            continue;
        };
        for (number, line) in (1..)
            .zip(&file.lines)
            .take(piece.line_end)
            .skip(piece.line_start - 1)
        {
            cited.insert((file.name.as_str(), number), word_count(line));
        }
    }
    cited.values().sum()
}

/// What is said of lines that do not exist.
fn unknown_place(piece: &RawEvidence) -> String {
    let (start, end) = (piece.line_start, piece.line_end);
    let lines = match start == end {
        true => format!("line {start}"),
        false => format!("lines {start} to {end}"),
    };
    // A server that enforces no schema may have written anything.
    let letters = |name: &String| -> String {
        let letters = name.chars().filter(|c| !c.is_control());
        letters.take(limits::MAX_TITLE_CHARS).collect()
    };
    let file = piece.file.as_ref().map(letters);
    let of = file.map(|name| format!(" of {name}")).unwrap_or_default();
    format!("evidence at {lines}{of} does not exist")
}

/// The cited lines, if they exist.
fn quote(piece: &RawEvidence, submission: &Submission) -> Option<Evidence> {
    let file = match (&piece.file, submission.files.as_slice()) {
        (Some(name), files) if files.len() > 1 => files.iter().find(|f| f.prompt_name() == name)?,
        (_, [only]) => only,
        _ => return None,
    };
    let start = piece.line_start.checked_sub(1)?;
    // `get` refuses a start after the end and an end after the last line.
    let lines = file
        .lines
        .get(start..piece.line_end)
        .filter(|lines| !lines.is_empty())?;
    let mut quote = lines[..lines.len().min(limits::MAX_QUOTE_LINES)].join("\n");
    if lines.len() > limits::MAX_QUOTE_LINES {
        quote.push_str(&format!(
            "\n[{} lines more]",
            lines.len() - limits::MAX_QUOTE_LINES
        ));
    }
    Some(Evidence {
        file: file.name.clone(),
        line_start: piece.line_start,
        line_end: piece.line_end,
        quote,
    })
}
