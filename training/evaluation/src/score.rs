//! Figures from answers and labels.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use tandem_corpus::{Example, Tier};
use tandem_grading::{Verdict, check_feedback, read_verdict};

use super::answers::Answer;

/// The criterion with the lowest share of its points, if there is one alone.
fn lowest<'a>(shares: &[(&'a str, f64)]) -> Option<&'a str> {
    let least = shares.iter().map(|s| s.1).fold(f64::INFINITY, f64::min);
    let mut lowest = shares.iter().filter(|s| s.1 <= least);
    match (lowest.next(), lowest.next()) {
        (Some(found), None) => Some(found.0),
        _ => None,
    }
}

fn shares(verdict: &Verdict) -> Vec<(&str, f64)> {
    let share = |c: &tandem_grading::CriterionResult| c.points.as_f64() / c.max_points.as_f64();
    verdict
        .criteria
        .iter()
        .map(|c| (c.id.as_str(), share(c)))
        .collect()
}

/// Hits of so many.
#[derive(Default, Clone, Copy)]
struct Count {
    hits: usize,
    of: usize,
}

impl Count {
    fn add(&mut self, hit: bool) {
        self.hits += usize::from(hit);
        self.of += 1;
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tenths = (self.hits * 1000 + self.of / 2)
            .checked_div(self.of)
            .unwrap_or(0);
        let (hits, of) = (self.hits, self.of);
        write!(f, "{:>3}.{} % ({hits} of {of})", tenths / 10, tenths % 10)
    }
}

/// Figures of the code analysis.
#[derive(Default)]
struct Analyses {
    submissions: usize,
    accepted: Count,
    clean: Count,
    named: Count,
    groups: BTreeMap<String, Count>,
    points: BTreeMap<&'static str, Count>,
    full_points: BTreeMap<&'static str, Count>,
    /// How often each criterion is the right one to name.
    truth: BTreeMap<&'static str, usize>,
    evidence: Count,
    /// Differences of the totals.
    errors: Vec<f64>,
}

/// Figures of the code analysis.
pub fn analyses(examples: &[Example], answers: &[Answer]) -> String {
    let mut figures = Analyses::default();
    for (example, answer) in examples.iter().zip(answers) {
        figures.add(example, answer);
    }
    figures.text()
}

impl Analyses {
    fn add(&mut self, example: &Example, answer: &Answer) {
        self.submissions += 1;
        let read = |text: &str| read_verdict(text, &example.rubric, &example.submission).ok();
        let verdict = read(&answer.text).filter(|_| answer.complete);
        self.accepted.add(verdict.is_some());
        self.clean
            .add(verdict.as_ref().is_some_and(|v| v.doubts.is_empty()));
        let labels = example.relative_points();
        let given = verdict.as_ref().map(shares).unwrap_or_default();
        let equal = |a: f64, b: f64| (a - b).abs() < 1e-9;
        for (i, (id, share)) in labels.iter().enumerate() {
            let same = given.get(i).is_some_and(|g| equal(g.1, *share));
            self.points.entry(id).or_default().add(same);
            self.full_points
                .entry(id)
                .or_default()
                .add(equal(*share, 1.0));
        }
        let both = verdict.as_ref().zip(read(&example.analysis));
        if let Some((given, reference)) = &both {
            let error = given.total.as_f64() - reference.total.as_f64();
            self.errors.push(error.abs());
        }
        let Some(right) = lowest(&labels) else {
            return;
        };
        *self.truth.entry(right).or_default() += 1;
        let hit = lowest(&given) == Some(right);
        self.named.add(hit);
        let tier = match example.task.tier() {
            Tier::NewSelection => "selection not trained on",
            Tier::NewPair | Tier::Trained => "pair not trained on",
        };
        let language = format!("{:?}", example.plan.language);
        for group in [tier.to_owned(), language, format!("defect in {right}")] {
            self.groups.entry(group).or_default().add(hit);
        }
        if let Some((given, reference)) = &both {
            self.evidence.add(same_evidence(given, reference, right));
        }
    }

    /// Writing into a `String` cannot fail, hence the ignored results.
    fn text(&self) -> String {
        let constant = Count {
            hits: self.truth.values().copied().max().unwrap_or(0),
            of: self.named.of,
        };
        let mut out = format!("code analysis, {} submissions\n", self.submissions);
        let mut line = |what: &str, count: Count| {
            let _ = writeln!(out, "  {what:<38}{count}");
        };
        line("accepted by the grading", self.accepted);
        line("and without a doubt", self.clean);
        line("names the defect's criterion", self.named);
        line("  always the most frequent one", constant);
        for (group, count) in &self.groups {
            line(&format!("  {group}"), *count);
        }
        line("cites a line of the defect", self.evidence);
        for (id, count) in &self.points {
            line(&format!("points of {id} right"), *count);
            let full = self.full_points.get(id).copied().unwrap_or_default();
            line("  always full points", full);
        }
        let count = u32::try_from(self.errors.len().max(1)).unwrap_or(u32::MAX);
        let mean = self.errors.iter().sum::<f64>() / f64::from(count);
        let _ = writeln!(
            out,
            "  mean error of the total               {mean:.2} of 10 points"
        );
        out.push_str("  (naming one of four criteria by chance: 25 %)\n");
        out
    }
}

/// Whether a cited line of criterion `id` is among the reference's, or both cite none.
fn same_evidence(verdict: &Verdict, reference: &Verdict, id: &str) -> bool {
    let lines = |v: &Verdict| -> HashSet<(String, usize)> {
        let criteria = v.criteria.iter().filter(|c| c.id == id);
        criteria
            .flat_map(|c| &c.evidence)
            .flat_map(|e| (e.line_start..=e.line_end).map(|l| (e.file.clone(), l)))
            .collect()
    };
    let (given, right) = (lines(verdict), lines(reference));
    !given.is_disjoint(&right) || (given.is_empty() && right.is_empty())
}

/// Figures of the feedback.
pub fn feedbacks(examples: &[Example], answers: &[Answer]) -> String {
    let (mut complete, mut scoreless) = (Count::default(), Count::default());
    let (mut mentions, mut by_chance) = (Count::default(), Count::default());
    let (mut improve, mut whole) = (Count::default(), Count::default());
    for (i, (example, answer)) in examples.iter().zip(answers).enumerate() {
        complete.add(answer.complete);
        scoreless.add(check_feedback(&answer.text).is_empty());
        let quoted = quoted_words(&answer.text);
        mentions.add(!quoted.is_disjoint(&names(example)));
        // The next submission to another task.
        let others = examples.iter().cycle().skip(i + 1);
        if let Some(other) = others.take(examples.len()).find(|o| o.task != example.task) {
            by_chance.add(!quoted.is_disjoint(&names(other)));
        }
        let part = |text: &str| text.split("\n\n").nth(1).map(str::to_owned);
        improve.add(part(&answer.text) == part(&example.feedback));
        whole.add(answer.text.trim() == example.feedback);
    }
    let mut out = format!("feedback, {} submissions\n", examples.len());
    for (what, count) in [
        ("ends by itself", complete),
        ("has no scores", scoreless),
        ("names something of the submission", mentions),
        ("  the same text for another task", by_chance),
        ("improves what the reference does", improve),
        ("is the reference, word for word", whole),
    ] {
        let _ = writeln!(out, "  {what:<38}{count}");
    }
    out
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|w| w.starts_with(|c: char| c.is_alphabetic()))
        .map(str::to_owned)
}

/// Words between backticks.
fn quoted_words(text: &str) -> HashSet<String> {
    text.split('`').skip(1).step_by(2).flat_map(words).collect()
}

/// Names that the submission chose: its words without those of its language.
fn names(example: &Example) -> HashSet<String> {
    const LANGUAGE: &str = "def return for in if not None len range sum min max print import math prod append key \
        public class static void main String args System out println int double Integer Double List ArrayList new \
        null size get add isEmpty stream length Collections Comparator comparing util java startsWith contains \
        endsWith function c NA TRUE FALSE mean nchar paste collapse grepl fixed seq_along startswith endswith \
        which is a the";
    let language: HashSet<&str> = LANGUAGE.split_whitespace().collect();
    let lines = example.submission.files.iter().flat_map(|f| &f.lines);
    lines
        .flat_map(|l| words(l))
        .filter(|w| !language.contains(w.as_str()))
        .collect()
}
