//! The rubric: read from YAML, checked completely before any submission is graded.

use crate::attempt::{self, Template};
use crate::error::GradingError;
use crate::files;
use crate::limits;
use crate::points::Points;
use serde::Deserialize;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// A checked rubric.
#[derive(Debug, Clone)]
pub struct Rubric {
    /// Identifies the assignment.
    pub id: String,
    /// What the assignment is called.
    pub title: String,
    /// What the students were asked to do.
    pub task: String,
    /// How the teacher wants work to be judged.
    pub guidelines: String,
    /// Language of the feedback, if not the model's own choice.
    pub language: Option<String>,
    /// Tone of the feedback.
    pub tone: Option<String>,
    /// The criteria, in the teacher's order; at least one.
    pub criteria: Vec<Criterion>,
    /// Sum of the criteria's maxima.
    pub max_points: Points,
    /// What a person should look at before using the rubric, such as vague words.
    pub warnings: Vec<String>,
    /// The text that it was read from.
    pub source: String,
    /// What students started from; each is an alternative.
    pub templates: Vec<Template>,
}

/// One criterion.
#[derive(Debug, Clone)]
pub struct Criterion {
    /// Short id: letters, digits, `_`, `-`.
    pub id: String,
    /// What it is called.
    pub title: String,
    /// What it asks for.
    pub description: String,
    /// Points for full marks.
    pub max_points: Points,
    /// Which points can be given.
    pub scale: Scale,
}

/// Which points a criterion can give.
#[derive(Debug, Clone)]
pub enum Scale {
    /// The points of described levels, in the teacher's order.
    Levels(Vec<Level>),
    /// Every multiple of a step from 0 to the maximum, ascending.
    Steps(Vec<Points>),
}

/// One level of a criterion.
#[derive(Debug, Clone)]
pub struct Level {
    /// What it is called.
    pub label: String,
    /// Points it gives.
    pub points: Points,
    /// When it applies.
    pub description: String,
}

impl Criterion {
    /// The points that can be given, ascending.
    pub fn allowed(&self) -> Vec<Points> {
        let mut allowed: Vec<Points> = match &self.scale {
            Scale::Levels(levels) => levels.iter().map(|l| l.points).collect(),
            Scale::Steps(steps) => steps.clone(),
        };
        allowed.sort_unstable();
        allowed
    }

    /// The label of the level that gives these points.
    pub fn level_of(&self, points: Points) -> Option<&str> {
        match &self.scale {
            Scale::Levels(levels) => levels
                .iter()
                .find(|l| l.points == points)
                .map(|l| l.label.as_str()),
            Scale::Steps(_) => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRubric {
    id: String,
    title: String,
    task: String,
    #[serde(default)]
    guidelines: String,
    language: Option<String>,
    tone: Option<String>,
    max_points: Option<f64>,
    #[serde(default)]
    template: Vec<PathBuf>,
    criteria: Vec<RawCriterion>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCriterion {
    id: String,
    title: String,
    description: String,
    max_points: f64,
    levels: Option<Vec<RawLevel>>,
    step: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLevel {
    label: String,
    points: f64,
    description: String,
}

impl Rubric {
    /// Reads a rubric and the templates that it names; also a folder `template` and any `template.*` beside it.
    ///
    /// # Errors
    /// An unreadable file, or a rubric that fails a check; the message names the field.
    pub fn load(path: &Path) -> Result<Self, GradingError> {
        let bytes = files::read_bounded(path, limits::MAX_RUBRIC_BYTES).map_err(|source| {
            GradingError::Read {
                path: path.to_owned(),
                source,
            }
        })?;
        let text = String::from_utf8(bytes)
            .map_err(|_| fault("file", "it is not UTF-8 text; save it as UTF-8"))?;
        let (mut rubric, named) = parse(&text)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut templates: Vec<PathBuf> = named.into_iter().map(|p| folder.join(p)).collect();
        templates.extend(attempt::templates_beside(folder));
        for template in templates {
            rubric.templates.push(Template::read(&template)?);
        }
        Ok(rubric)
    }

    /// Reads a rubric from text, without its templates.
    ///
    /// # Errors
    /// A rubric that fails a check; the message names the field.
    pub fn parse(text: &str) -> Result<Self, GradingError> {
        parse(text).map(|(rubric, _)| rubric)
    }
}

fn fault(field: impl Into<String>, problem: impl Into<String>) -> GradingError {
    GradingError::Rubric {
        field: field.into(),
        problem: problem.into(),
    }
}

fn parse(text: &str) -> Result<(Rubric, Vec<PathBuf>), GradingError> {
    let raw: RawRubric = serde_saphyr::from_str(text).map_err(|e| fault("file", e.to_string()))?;
    check_id("id", &raw.id)?;
    check_text("title", &raw.title, limits::MAX_TITLE_CHARS)?;
    check_text("task", &raw.task, limits::MAX_TASK_CHARS)?;
    for (field, text) in [("language", &raw.language), ("tone", &raw.tone)] {
        if let Some(text) = text {
            check_text(field, text, limits::MAX_TITLE_CHARS)?;
        }
    }
    if raw.guidelines.chars().count() > limits::MAX_TASK_CHARS {
        return Err(fault(
            "guidelines",
            format!("longer than {} characters", limits::MAX_TASK_CHARS),
        ));
    }
    if raw.template.len() > limits::MAX_TEMPLATES {
        return Err(fault(
            "template",
            format!("more than {} files", limits::MAX_TEMPLATES),
        ));
    }
    if raw.criteria.is_empty() || raw.criteria.len() > limits::MAX_CRITERIA {
        return Err(fault(
            "criteria",
            format!("there must be 1 to {}", limits::MAX_CRITERIA),
        ));
    }
    let mut ids = HashSet::new();
    let mut criteria = Vec::with_capacity(raw.criteria.len());
    for (i, raw) in raw.criteria.into_iter().enumerate() {
        let path = format!("criteria[{i}]");
        if !ids.insert(raw.id.clone()) {
            return Err(fault(
                format!("{path}.id"),
                format!("'{}' occurs twice; ids must be unique", raw.id),
            ));
        }
        criteria.push(criterion(&path, raw)?);
    }
    let sum: Points = criteria.iter().map(|c| c.max_points).sum();
    if let Some(stated) = raw.max_points
        && Points::from_f64(stated) != Some(sum)
    {
        return Err(fault(
            "max_points",
            format!("it is {stated}, but the criteria add up to {sum}"),
        ));
    }
    let warnings = vague_words(&criteria);
    let rubric = Rubric {
        id: raw.id,
        title: raw.title,
        task: raw.task.trim().to_owned(),
        guidelines: raw.guidelines.trim().to_owned(),
        language: raw.language,
        tone: raw.tone,
        criteria,
        max_points: sum,
        warnings,
        source: text.to_owned(),
        templates: Vec::new(),
    };
    Ok((rubric, raw.template))
}

fn criterion(path: &str, raw: RawCriterion) -> Result<Criterion, GradingError> {
    check_id(&format!("{path}.id"), &raw.id)?;
    check_text(
        &format!("{path}.title"),
        &raw.title,
        limits::MAX_TITLE_CHARS,
    )?;
    check_text(
        &format!("{path}.description"),
        &raw.description,
        limits::MAX_DESCRIPTION_CHARS,
    )?;
    let max_points = points(&format!("{path}.max_points"), raw.max_points)?;
    if max_points == Points::ZERO {
        return Err(fault(format!("{path}.max_points"), "must be above 0"));
    }
    let scale = match (raw.levels, raw.step) {
        (Some(raw), None) => Scale::Levels(levels(path, raw, max_points)?),
        (None, Some(step)) => Scale::Steps(steps(path, step, max_points)?),
        (Some(_), Some(_)) => return Err(fault(path, "has both levels and step; keep one")),
        (None, None) => return Err(fault(path, "has neither levels nor step; add one")),
    };
    Ok(Criterion {
        id: raw.id,
        title: raw.title,
        description: raw.description.trim().to_owned(),
        max_points,
        scale,
    })
}

fn levels(path: &str, raw: Vec<RawLevel>, max: Points) -> Result<Vec<Level>, GradingError> {
    if raw.len() < 2 || raw.len() > limits::MAX_LEVELS {
        return Err(fault(
            format!("{path}.levels"),
            format!("there must be 2 to {}", limits::MAX_LEVELS),
        ));
    }
    let mut levels: Vec<Level> = Vec::with_capacity(raw.len());
    for (i, raw) in raw.into_iter().enumerate() {
        let path = format!("{path}.levels[{i}]");
        check_text(
            &format!("{path}.label"),
            &raw.label,
            limits::MAX_TITLE_CHARS,
        )?;
        check_text(
            &format!("{path}.description"),
            &raw.description,
            limits::MAX_DESCRIPTION_CHARS,
        )?;
        let points = points(&format!("{path}.points"), raw.points)?;
        if points > max {
            return Err(fault(
                format!("{path}.points"),
                format!("{points} is above the criterion's {max}"),
            ));
        }
        if levels
            .iter()
            .any(|l| l.points == points || l.label == raw.label)
        {
            return Err(fault(
                path,
                "label and points must differ from every other level's",
            ));
        }
        levels.push(Level {
            label: raw.label,
            points,
            description: raw.description.trim().to_owned(),
        });
    }
    if levels.iter().all(|l| l.points != max) {
        return Err(fault(
            format!("{path}.levels"),
            format!("none gives the maximum of {max}"),
        ));
    }
    Ok(levels)
}

fn steps(path: &str, step: f64, max: Points) -> Result<Vec<Points>, GradingError> {
    let field = format!("{path}.step");
    let step = points(&field, step)?;
    let steps = step.multiples_up_to(max);
    let steps = steps.ok_or_else(|| {
        fault(
            &field,
            format!("must be above 0 and divide the maximum of {max}"),
        )
    })?;
    if steps.len() > limits::MAX_LEVELS {
        return Err(fault(
            field,
            format!(
                "gives more than {} values; use a larger step",
                limits::MAX_LEVELS
            ),
        ));
    }
    Ok(steps)
}

fn points(field: &str, value: f64) -> Result<Points, GradingError> {
    Points::from_f64(value).ok_or_else(|| {
        fault(
            field,
            format!("{value} must be 0 or more, with at most 3 decimals"),
        )
    })
}

fn check_id(field: &str, id: &str) -> Result<(), GradingError> {
    let ok = !id.is_empty()
        && id
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if ok && id.len() <= limits::MAX_ID_CHARS {
        return Ok(());
    }
    let limit = limits::MAX_ID_CHARS;
    Err(fault(
        field,
        format!("must have 1 to {limit} letters, digits, '_' or '-'"),
    ))
}

fn check_text(field: &str, text: &str, limit: usize) -> Result<(), GradingError> {
    if text.trim().is_empty() {
        return Err(fault(field, "must not be empty"));
    }
    if text.chars().count() > limit {
        return Err(fault(field, format!("longer than {limit} characters")));
    }
    Ok(())
}

/// Words that leave the decision to the reader.
const VAGUE: &[&str] = &[
    "good",
    "appropriate",
    "adequate",
    "nice",
    "reasonable",
    "sufficient",
    "proper",
];

fn vague_words(criteria: &[Criterion]) -> Vec<String> {
    let mut warnings = Vec::new();
    for criterion in criteria {
        let Scale::Levels(levels) = &criterion.scale else {
            continue;
        };
        for level in levels {
            let words = level
                .description
                .split(|c: char| !c.is_alphanumeric())
                .map(str::to_lowercase);
            for word in words.filter(|w| VAGUE.contains(&w.as_str())) {
                let (id, label) = (&criterion.id, &level.label);
                warnings.push(format!(
                    "criterion '{id}', level '{label}': '{word}' is vague; say what can be seen"
                ));
            }
        }
    }
    warnings
}
