//! A rubric in a form: all fields are text, so that what is wrong stays as it was typed.

use std::collections::HashMap;

use askama::Template;
use tandem_grading::limits::{MAX_CRITERIA, MAX_LEVELS};
use tandem_grading::{
    CriterionDraft, Draft, Kind, LateDraft, Length, LevelDraft, PenaltyDraft, Points, Rubric,
};

use crate::paths::Paths;

/// Rows of levels that are empty, for more.
const BLANK_LEVELS: usize = 2;

/// The page.
#[derive(Template)]
#[template(path = "rubric.html")]
pub(crate) struct RubricPage {
    pub(crate) paths: Paths,
    pub(crate) course: String,
    pub(crate) name: String,
    pub(crate) back: String,
    pub(crate) action: String,
    pub(crate) file: String,
    pub(crate) read: String,
    pub(crate) number: i64,
    /// The beginning of the digest of its text.
    pub(crate) digest: String,
    pub(crate) checks: ChecksView,
    pub(crate) form: RubricForm,
}

/// What is said of it while it is written.
#[derive(Template)]
#[template(path = "parts/checks.html")]
pub(crate) struct ChecksView {
    pub(crate) problems: Vec<String>,
    pub(crate) warnings: Vec<String>,
    /// `10 points in 4 criteria`.
    pub(crate) sum: Option<String>,
}

/// The fields.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RubricForm {
    pub(crate) title: String,
    pub(crate) task: String,
    pub(crate) guidelines: String,
    pub(crate) language: String,
    pub(crate) tone: String,
    pub(crate) length: String,
    pub(crate) has_advice: bool,
    pub(crate) criteria: Vec<CriterionForm>,
    /// What a late submission loses: points, or a number with `%`; and what a student reads.
    pub(crate) late: String,
    pub(crate) late_title: String,
    pub(crate) penalties: Vec<PenaltyForm>,
    /// Digest of the criteria that a model proposed, while somebody goes over them.
    pub(crate) proposal: Option<String>,
}

/// Those of what a person may take off.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PenaltyForm {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) points: String,
}

/// Those of a criterion.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CriterionForm {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) description: String,
    pub(crate) points: String,
    pub(crate) is_bonus: bool,
    pub(crate) step: String,
    pub(crate) answer: String,
    pub(crate) question: String,
    pub(crate) words: String,
    pub(crate) levels: Vec<LevelForm>,
}

/// Those of a level.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LevelForm {
    pub(crate) label: String,
    pub(crate) points: String,
    pub(crate) text: String,
}

impl LevelForm {
    fn is_blank(&self) -> bool {
        [&self.label, &self.points, &self.text]
            .iter()
            .all(|text| text.trim().is_empty())
    }
}

impl CriterionForm {
    fn is_blank(&self) -> bool {
        let own = [&self.title, &self.description, &self.points, &self.step];
        own.iter().all(|text| text.trim().is_empty()) && self.levels.iter().all(LevelForm::is_blank)
    }
}

fn optional(text: &str) -> Option<String> {
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// A number with a point or a comma.
fn number(what: &str, text: &str) -> Result<f64, String> {
    let plain = text.trim().replace(',', ".");
    let found = plain
        .parse::<f64>()
        .ok()
        .filter(|number| number.is_finite());
    found.ok_or_else(|| match plain.is_empty() {
        true => format!("{what} has no points"),
        false => format!("{what}: “{}” is no number", text.trim()),
    })
}

impl RubricForm {
    pub(crate) fn new(draft: &Draft) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self {
            title: draft.title.clone(),
            task: draft.task.trim().to_owned(),
            guidelines: draft.guidelines.trim().to_owned(),
            language: text(&draft.language),
            tone: text(&draft.tone),
            length: draft.length.map_or("", Length::as_str).to_owned(),
            has_advice: draft.advice_at_full_marks,
            criteria: draft.criteria.iter().map(CriterionForm::new).collect(),
            late: draft.late.as_ref().map(late_text).unwrap_or_default(),
            late_title: draft
                .late
                .as_ref()
                .map(|late| text(&late.title))
                .unwrap_or_default(),
            penalties: draft.penalties.iter().map(PenaltyForm::new).collect(),
            proposal: None,
        }
    }

    /// The same with criteria that a model proposed.
    pub(crate) fn with_proposal(mut self, criteria: &[CriterionDraft]) -> Self {
        self.criteria = criteria.iter().map(CriterionForm::new).collect();
        self.proposal = Some(self.digest());
        self
    }

    /// A digest of the criteria, but for their ids.
    pub(crate) fn digest(&self) -> String {
        let mut digest = blake3::Hasher::new();
        for one in &self.criteria {
            let own = [
                &one.answer,
                &one.words,
                &one.title,
                &one.description,
                &one.points,
                &one.step,
                &one.question,
            ];
            let levels = one.levels.iter().filter(|level| !level.is_blank());
            let levels = levels.flat_map(|level| [&level.label, &level.points, &level.text]);
            for text in own.into_iter().chain(levels) {
                digest.update(text.trim().as_bytes());
                digest.update(&[0]);
            }
            digest.update(&[u8::from(one.is_bonus)]);
        }
        digest.finalize().to_hex().to_string()
    }

    /// As a browser sends it.
    pub(crate) fn read(fields: &HashMap<String, String>) -> Self {
        let text = |name: &str| {
            let text = fields.get(name).map_or("", String::as_str);
            // A browser sends lines with two signs at their end.
            text.replace("\r\n", "\n")
        };
        let level = |i: usize, j: usize| {
            let of = |what: &str| text(&format!("c{i}-l{j}-{what}"));
            LevelForm {
                label: of("label"),
                points: of("points"),
                text: of("text"),
            }
        };
        let criterion = |i: usize| {
            let of = |what: &str| text(&format!("c{i}-{what}"));
            let is_there = |j: &usize| fields.contains_key(&format!("c{i}-l{j}-label"));
            CriterionForm {
                id: of("id"),
                title: of("title"),
                description: of("description"),
                points: of("points"),
                is_bonus: fields.contains_key(&format!("c{i}-bonus")),
                step: of("step"),
                answer: of("answer"),
                question: of("question"),
                words: of("words"),
                levels: (0..MAX_LEVELS + BLANK_LEVELS)
                    .filter(is_there)
                    .map(|j| level(i, j))
                    .filter(|level| !level.is_blank())
                    .collect(),
            }
        };
        let place = |i: usize| {
            let place = text(&format!("c{i}-place"));
            place.trim().parse::<f64>().unwrap_or(f64::MAX)
        };
        let is_there = |i: &usize| fields.contains_key(&format!("c{i}-title"));
        let mut criteria: Vec<(f64, CriterionForm)> = (0..=MAX_CRITERIA)
            .filter(is_there)
            .map(|i| (place(i), criterion(i)))
            .filter(|(_, criterion)| !criterion.is_blank())
            .collect();
        criteria.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self {
            title: text("title"),
            task: text("task"),
            guidelines: text("guidelines"),
            language: text("language"),
            tone: text("tone"),
            length: text("length"),
            has_advice: fields.contains_key("advice"),
            criteria: criteria
                .into_iter()
                .map(|(_, criterion)| criterion)
                .collect(),
            late: text("late"),
            late_title: text("late-title"),
            penalties: (0..=MAX_CRITERIA)
                .filter(|i| fields.contains_key(&format!("p{i}-title")))
                .map(|i| PenaltyForm {
                    id: text(&format!("p{i}-id")),
                    title: text(&format!("p{i}-title")),
                    points: text(&format!("p{i}-points")),
                })
                .filter(|one| !one.is_blank())
                .collect(),
            proposal: fields.get("proposal").cloned(),
        }
    }

    /// The draft with an id, or all that is no number.
    pub(crate) fn draft(&self, id: &str) -> Result<Draft, Vec<String>> {
        let mut problems = Vec::new();
        let mut criteria = Vec::new();
        for criterion in &self.criteria {
            match criterion.draft() {
                Ok(draft) => criteria.push(draft),
                Err(found) => problems.extend(found),
            }
        }
        let mut penalties = Vec::new();
        for one in &self.penalties {
            match number(
                &format!("“{}”, what is taken off", one.title.trim()),
                &one.points,
            ) {
                Ok(points) => penalties.push(PenaltyDraft {
                    id: one.id.trim().to_owned(),
                    title: one.title.trim().to_owned(),
                    points,
                }),
                Err(problem) => problems.push(problem),
            }
        }
        let late = self.late_draft().unwrap_or_else(|problem| {
            problems.push(problem);
            None
        });
        let mut draft = Draft {
            id: id.to_owned(),
            title: self.title.trim().to_owned(),
            language: optional(&self.language),
            tone: optional(&self.tone),
            length: Length::ALL
                .into_iter()
                .find(|length| length.as_str() == self.length),
            advice_at_full_marks: self.has_advice,
            task: self.task.trim().to_owned(),
            guidelines: self.guidelines.trim().to_owned(),
            criteria,
            penalties,
            late,
            ..Draft::default()
        };
        draft.number();
        match problems.is_empty() {
            true => Ok(draft),
            false => Err(problems),
        }
    }

    fn late_draft(&self) -> Result<Option<LateDraft>, String> {
        let Some(text) = optional(&self.late) else {
            return Ok(None);
        };
        let title = optional(&self.late_title);
        let share = text.strip_suffix('%');
        let value = number("Late submissions", share.unwrap_or(&text))?;
        Ok(Some(LateDraft {
            points: share.is_none().then_some(value),
            percent: share.is_some().then_some(value),
            title,
        }))
    }

    /// The rubric, or what is wrong with it in the words of the form.
    pub(crate) fn rubric(&self, id: &str) -> Result<Rubric, Vec<String>> {
        let draft = self.draft(id)?;
        Rubric::parse(&draft.source()).map_err(|error| {
            let mut text = error.to_string();
            for (i, criterion) in draft.criteria.iter().enumerate() {
                let (path, title) = (format!("criteria[{i}]"), &criterion.title);
                text = text.replace(&format!("{path}."), &format!("“{title}”, "));
                text = text.replace(&path, &format!("“{title}”"));
            }
            vec![text.trim_start_matches("rubric: ").to_owned()]
        })
    }

    /// The same with rows that are empty, for more.
    pub(crate) fn with_blanks(mut self) -> Self {
        if self.criteria.len() < MAX_CRITERIA {
            self.criteria.push(CriterionForm::default());
        }
        if self.penalties.len() < MAX_CRITERIA {
            self.penalties.push(PenaltyForm::default());
        }
        for criterion in &mut self.criteria {
            let count = criterion.levels.len();
            let blanks = if count == 0 {
                BLANK_LEVELS + 1
            } else {
                BLANK_LEVELS
            };
            criterion
                .levels
                .resize(count + blanks, LevelForm::default());
        }
        self
    }
}

impl PenaltyForm {
    fn new(draft: &PenaltyDraft) -> Self {
        Self {
            id: draft.id.clone(),
            title: draft.title.clone(),
            points: draft.points.to_string(),
        }
    }

    fn is_blank(&self) -> bool {
        self.title.trim().is_empty() && self.points.trim().is_empty()
    }
}

/// Points, or percent of the maximum.
fn late_text(late: &LateDraft) -> String {
    match (late.points, late.percent) {
        (Some(points), _) => points.to_string(),
        (None, Some(percent)) => format!("{percent}%"),
        (None, None) => String::new(),
    }
}

impl CriterionForm {
    fn new(draft: &CriterionDraft) -> Self {
        let text = |text: &Option<String>| text.as_deref().unwrap_or_default().trim().to_owned();
        let level = |level: &LevelDraft| LevelForm {
            label: level.label.clone(),
            points: level.points.to_string(),
            text: level.description.trim().to_owned(),
        };
        Self {
            id: draft.id.clone(),
            title: draft.title.clone(),
            description: draft.description.trim().to_owned(),
            points: draft.max_points.to_string(),
            is_bonus: draft.bonus,
            step: draft.step.map(|step| step.to_string()).unwrap_or_default(),
            answer: text(&draft.answer),
            question: text(&draft.question),
            words: draft
                .min_words
                .map(|words| words.to_string())
                .unwrap_or_default(),
            levels: draft.levels.iter().flatten().map(level).collect(),
        }
    }

    fn draft(&self) -> Result<CriterionDraft, Vec<String>> {
        let mut problems = Vec::new();
        let title = self.title.trim();
        let name = if title.is_empty() {
            "A criterion without a title"
        } else {
            title
        };
        let mut take = |found: Result<f64, String>| {
            found.unwrap_or_else(|problem| {
                problems.push(problem);
                0.0
            })
        };
        let levels: Vec<LevelDraft> = self
            .levels
            .iter()
            .map(|level| LevelDraft {
                label: level.label.trim().to_owned(),
                points: take(number(
                    &format!("{name}, level “{}”", level.label.trim()),
                    &level.points,
                )),
                description: level.text.trim().to_owned(),
            })
            .collect();
        let highest = levels.iter().map(|level| level.points).fold(0.0, f64::max);
        let max_points = match (self.points.trim().is_empty(), levels.is_empty()) {
            // The highest level says it.
            (true, false) => highest,
            _ => take(number(name, &self.points)),
        };
        let step = optional(&self.step).map(|step| take(number(&format!("{name}, steps"), &step)));
        let words = optional(&self.words).map(|words| {
            words
                .parse::<usize>()
                .map_err(|_| format!("{name}: “{words}” is no number of words"))
        });
        let min_words = words.transpose().unwrap_or_else(|problem| {
            problems.push(problem);
            None
        });
        let question = optional(&self.question);
        match problems.is_empty() {
            true => Ok(CriterionDraft {
                id: self.id.trim().to_owned(),
                title: title.to_owned(),
                kind: if question.is_some() {
                    Kind::Reflection
                } else {
                    Kind::Code
                },
                description: self.description.trim().to_owned(),
                question,
                min_words,
                answer: optional(&self.answer),
                max_points,
                bonus: self.is_bonus,
                // Without levels and steps, each whole point can be given.
                step: step.or_else(|| levels.is_empty().then_some(1.0)),
                levels: (!levels.is_empty()).then_some(levels),
            }),
            false => Err(problems),
        }
    }
}

impl ChecksView {
    pub(crate) fn new(rubric: &Result<Rubric, Vec<String>>) -> Self {
        match rubric {
            Ok(rubric) => Self {
                problems: Vec::new(),
                warnings: rubric.warnings.clone(),
                sum: Some(sum_text(rubric)),
            },
            Err(problems) => Self {
                problems: problems.clone(),
                warnings: Vec::new(),
                sum: None,
            },
        }
    }
}

/// What all criteria give, and what else changes the sum.
fn sum_text(rubric: &Rubric) -> String {
    let bonus: Points = rubric
        .criteria
        .iter()
        .filter(|one| one.is_bonus)
        .map(|one| one.max_points)
        .sum();
    let (count, max) = (rubric.criteria.len(), rubric.max_points);
    let mut text = format!("{max} points in {count} criteria");
    if bonus > Points::ZERO {
        text.push_str(&format!(", {bonus} of a bonus on top"));
    }
    if let Some(late) = &rubric.late {
        text.push_str(&format!(", {} less where it is late", late.points));
    }
    text
}
