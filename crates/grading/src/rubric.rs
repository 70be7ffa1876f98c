//! The rubric: read from YAML, checked completely before any submission is graded.

use crate::attempt::{self, Material};
use crate::draft::{CriterionDraft, Draft, Kind, LateDraft, LevelDraft, PenaltyDraft};
use crate::error::{GradingError, fault};
use crate::files;
use crate::limits;
use crate::points::Points;
use crate::style::Style;
use crate::tree::is_archive;
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
    /// How the feedback is to be written.
    pub style: Style,
    /// The criteria, in the teacher's order; at least one.
    pub criteria: Vec<Criterion>,
    /// Sum of the criteria's maxima, but for bonuses.
    pub max_points: Points,
    /// What a person may take off.
    pub penalties: Vec<Penalty>,
    /// What a late submission loses.
    pub late: Option<Late>,
    /// What a person should look at before using the rubric, such as vague words.
    pub warnings: Vec<String>,
    /// The text that it was read from.
    pub source: String,
    /// What students started from; each is an alternative.
    pub templates: Vec<Material>,
    /// Ways to solve the task, for those who grade; no student sees them.
    pub solutions: Vec<Material>,
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
    /// The question that a student answers in words, if it is a reflection.
    pub reflection: Option<Reflection>,
    /// A model answer, for those who grade; no student sees it.
    pub answer: Option<String>,
    /// Points for full marks.
    pub max_points: Points,
    /// Its points come on top: they are no part of the rubric's maximum.
    pub is_bonus: bool,
    /// Which points can be given.
    pub scale: Scale,
}

/// Points that a person may take off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Penalty {
    /// Short id: letters, digits, `_`, `-`.
    pub id: String,
    /// For what.
    pub title: String,
    /// How many.
    pub points: Points,
}

/// What a late submission loses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Late {
    /// What a student reads.
    pub title: String,
    /// How many points.
    pub points: Points,
}

/// A question that is answered in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reflection {
    /// The question.
    pub question: String,
    /// Fewest words of an answer that gets points without a second look.
    pub min_words: Option<usize>,
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
    /// The points that stand for earlier ones: of the same level, or the same share of the maximum.
    pub(crate) fn carried(
        &self,
        level: Option<&str>,
        points: Points,
        max: Points,
    ) -> Option<Points> {
        if let (Scale::Levels(levels), Some(label)) = (&self.scale, level) {
            return levels.iter().find(|l| l.label == label).map(|l| l.points);
        }
        let points = match (&self.scale, max == self.max_points) {
            (Scale::Steps(_), false) => points.share_of(max, self.max_points)?,
            (Scale::Levels(_), false) => return None,
            (_, true) => points,
        };
        self.allowed().contains(&points).then_some(points)
    }

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

impl Rubric {
    /// Whether that is its title or its id.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let name = name.trim().to_lowercase();
        [&self.title, &self.id]
            .map(|own| own.trim().to_lowercase())
            .contains(&name)
    }

    /// Reads a rubric and the templates and solutions that it names; also what is called `template` or `solution` beside
    /// it.
    ///
    /// # Errors
    /// An unreadable file, or a rubric that fails a check; the message names the field.
    pub fn load(path: &Path) -> Result<Self, GradingError> {
        let (rubric, [templates, solutions]) = read(path)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let all = |what: &str, named: Vec<PathBuf>| {
            let named = named.into_iter().map(|p| folder.join(p));
            let mut found: Vec<PathBuf> = named.collect();
            // What is named need not be found once more.
            for beside in attempt::beside(folder, what) {
                if !found.contains(&beside) {
                    found.push(beside);
                }
            }
            found
        };
        let (templates, solutions) = (all("template", templates), all("solution", solutions));
        rubric.with(&templates, &solutions)
    }

    /// Reads a rubric that came from elsewhere, with the files that came with it as its templates and solutions. It opens
    /// no other path: what it names must be among them.
    ///
    /// # Errors
    /// As [`load`](Self::load), and where it names a file that did not come with it.
    pub fn load_with(
        path: &Path,
        templates: &[PathBuf],
        solutions: &[PathBuf],
    ) -> Result<Self, GradingError> {
        let (rubric, [named_templates, named_solutions]) = read(path)?;
        check_sent("template", &named_templates, templates)?;
        check_sent("solution", &named_solutions, solutions)?;
        let is_named = [!named_templates.is_empty(), !named_solutions.is_empty()];
        rubric.with_sent([templates, solutions], is_named)
    }

    /// The same with what a browser sent: several files that nobody names one by one are one template, or one solution.
    fn with_sent(
        self,
        [templates, solutions]: [&[PathBuf]; 2],
        is_named: [bool; 2],
    ) -> Result<Self, GradingError> {
        let is_file = |path: &PathBuf| path.is_file() && !is_archive(&path.to_string_lossy());
        let is_one = |paths: &[PathBuf], is_named: bool| {
            !is_named && paths.len() > 1 && paths.iter().all(is_file)
        };
        let one = [
            is_one(templates, is_named[0]),
            is_one(solutions, is_named[1]),
        ];
        let kept = |paths, is_one| if is_one { &[][..] } else { paths };
        let mut rubric = self.with(kept(templates, one[0]), kept(solutions, one[1]))?;
        if one[0] {
            rubric.templates = vec![Material::of_files("template", templates)?];
        }
        if one[1] {
            rubric.solutions = vec![Material::of_files("solution", solutions)?];
            return rubric.check_solutions();
        }
        Ok(rubric)
    }

    /// The same with these templates and solutions.
    fn with(mut self, templates: &[PathBuf], solutions: &[PathBuf]) -> Result<Self, GradingError> {
        let read = |what: &str, paths: &[PathBuf]| -> Result<Vec<Material>, GradingError> {
            let read = |path: &PathBuf| Material::read(what, path);
            paths.iter().map(read).collect()
        };
        let rubric = &mut self;
        rubric.templates = read("template", templates)?;
        rubric.solutions = read("solution", solutions)?;
        self.check_solutions()
    }

    /// Says what of the solutions no model sees, and that they are not too long.
    fn check_solutions(mut self) -> Result<Self, GradingError> {
        let rubric = &mut self;
        let unread = rubric.solutions.iter().flat_map(Material::unread);
        let warnings =
            unread.map(|name| format!("solution: {name} was not read, and no model sees it"));
        rubric.warnings.extend(warnings.collect::<Vec<_>>());
        let files = rubric.solutions.iter().flat_map(Material::files);
        let bytes: usize = files
            .flat_map(|f| &f.lines)
            .map(|line| line.len() + 1)
            .sum();
        if bytes > limits::MAX_SOLUTION_BYTES {
            let most = limits::MAX_SOLUTION_BYTES;
            return Err(fault(
                "solution",
                format!("has {bytes} bytes, which stand in each prompt; at most {most}"),
            ));
        }
        Ok(self)
    }

    /// Reads a rubric from text, without its templates and solutions.
    ///
    /// # Errors
    /// A rubric that fails a check; the message names the field.
    pub fn parse(text: &str) -> Result<Self, GradingError> {
        parse(text).map(|(rubric, _)| rubric)
    }
}

/// The rubric in a file, and the templates and solutions that it names.
fn read(path: &Path) -> Result<(Rubric, [Vec<PathBuf>; 2]), GradingError> {
    let bytes = files::read_bounded(path, limits::MAX_RUBRIC_BYTES).map_err(|source| {
        GradingError::Read {
            path: path.to_owned(),
            source,
        }
    })?;
    let text = String::from_utf8(bytes)
        .map_err(|_| fault("file", "it is not UTF-8 text; save it as UTF-8"))?;
    parse(&text)
}

/// What a rubric names must have come with it, by the last part of its name.
fn check_sent(field: &str, named: &[PathBuf], sent: &[PathBuf]) -> Result<(), GradingError> {
    for path in named {
        let text = path.to_string_lossy();
        let last = text.rsplit(['/', '\\']).next().unwrap_or_default();
        let is_inside = !text.starts_with(['/', '\\'])
            && !text.contains(':')
            && text.split(['/', '\\']).all(|part| part != "..");
        let is_sent = |file: &PathBuf| file.file_name().is_some_and(|name| name == last);
        if !is_inside {
            let problem = format!("'{text}' leads out of the files that came with the rubric");
            return Err(fault(field, problem));
        }
        if !sent.iter().any(is_sent) {
            let problem = format!("'{text}' was not sent; choose it as a file of the {field}");
            return Err(fault(field, problem));
        }
    }
    Ok(())
}

/// What a rubric says before its criteria.
fn check_head(raw: &Draft) -> Result<(), GradingError> {
    check_id("id", &raw.id)?;
    check_text("title", &raw.title, limits::MAX_TITLE_CHARS)?;
    check_text("task", &raw.task, limits::MAX_TASK_CHARS)?;
    for (field, text) in [("language", &raw.language), ("tone", &raw.tone)] {
        check_optional(field, text.as_deref(), limits::MAX_TITLE_CHARS)?;
    }
    if raw.guidelines.chars().count() > limits::MAX_TASK_CHARS {
        return Err(fault(
            "guidelines",
            format!("longer than {} characters", limits::MAX_TASK_CHARS),
        ));
    }
    for (field, files) in [("template", &raw.template), ("solution", &raw.solution)] {
        if files.len() > limits::MAX_MATERIALS {
            return Err(fault(
                field,
                format!("more than {} files", limits::MAX_MATERIALS),
            ));
        }
    }
    Ok(())
}

/// The rubric, and the templates and solutions that it names.
fn parse(text: &str) -> Result<(Rubric, [Vec<PathBuf>; 2]), GradingError> {
    let raw = Draft::parse(text)?;
    check_head(&raw)?;
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
    let counted = criteria.iter().filter(|c| !c.is_bonus);
    let sum: Points = counted.map(|c| c.max_points).sum();
    if sum == Points::ZERO {
        return Err(fault("criteria", "all are bonuses; one must count"));
    }
    let penalties = penalties(raw.penalties)?;
    let late = raw.late.map(|late| late_rule(late, sum)).transpose()?;
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
        style: Style {
            language: raw.language,
            tone: raw.tone,
            length: raw.length,
            advice_at_full_marks: raw.advice_at_full_marks,
        },
        criteria,
        max_points: sum,
        penalties,
        late,
        warnings,
        source: text.to_owned(),
        templates: Vec::new(),
        solutions: Vec::new(),
    };
    Ok((rubric, [raw.template, raw.solution]))
}

fn criterion(path: &str, raw: CriterionDraft) -> Result<Criterion, GradingError> {
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
    let answer = format!("{path}.answer");
    check_optional(
        &answer,
        raw.answer.as_deref(),
        limits::MAX_DESCRIPTION_CHARS,
    )?;
    let reflection = reflection(path, &raw.kind, raw.question, raw.min_words)?;
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
        reflection,
        answer: raw.answer.map(|answer| answer.trim().to_owned()),
        max_points,
        is_bonus: raw.bonus,
        scale,
    })
}

fn penalties(raw: Vec<PenaltyDraft>) -> Result<Vec<Penalty>, GradingError> {
    if raw.len() > limits::MAX_CRITERIA {
        let most = limits::MAX_CRITERIA;
        return Err(fault("penalties", format!("more than {most}")));
    }
    let mut ids = HashSet::new();
    let mut all = Vec::with_capacity(raw.len());
    for (i, raw) in raw.into_iter().enumerate() {
        let path = format!("penalties[{i}]");
        check_id(&format!("{path}.id"), &raw.id)?;
        check_text(
            &format!("{path}.title"),
            &raw.title,
            limits::MAX_TITLE_CHARS,
        )?;
        if !ids.insert(raw.id.clone()) {
            let problem = format!("'{}' occurs twice; ids must be unique", raw.id);
            return Err(fault(format!("{path}.id"), problem));
        }
        all.push(Penalty {
            points: taken_off(&format!("{path}.points"), raw.points)?,
            id: raw.id,
            title: raw.title,
        });
    }
    Ok(all)
}

fn late_rule(raw: LateDraft, max: Points) -> Result<Late, GradingError> {
    let points = match (raw.points, raw.percent) {
        (Some(points), None) => taken_off("late.points", points)?,
        (None, Some(percent)) => {
            let is_share = percent > 0.0 && percent <= 100.0;
            let share = Points::from_f64((max.as_f64() * percent * 10.0).round() / 1000.0);
            let share = share.filter(|share| is_share && *share > Points::ZERO);
            share.ok_or_else(|| fault("late.percent", "must be above 0, and 100 at most"))?
        }
        _ => return Err(fault("late", "must have points or percent, and not both")),
    };
    let title = raw.title.unwrap_or_else(|| "Handed in late".to_owned());
    check_text("late.title", &title, limits::MAX_TITLE_CHARS)?;
    Ok(Late { title, points })
}

/// Points that are taken off, which are written without a sign.
fn taken_off(field: &str, value: f64) -> Result<Points, GradingError> {
    let points = points(field, value)?;
    match points == Points::ZERO {
        true => Err(fault(field, "must be above 0; it is taken off")),
        false => Ok(points),
    }
}

fn reflection(
    path: &str,
    kind: &Kind,
    question: Option<String>,
    min_words: Option<usize>,
) -> Result<Option<Reflection>, GradingError> {
    let field = format!("{path}.question");
    if *kind == Kind::Code {
        let is_set = [
            (question.is_some(), "question"),
            (min_words.is_some(), "min_words"),
        ];
        return match is_set.into_iter().find(|(is_set, _)| *is_set) {
            Some((_, key)) => Err(fault(
                format!("{path}.{key}"),
                "is for reflections; add `kind: reflection`, or take it out",
            )),
            None => Ok(None),
        };
    }
    let question = question.ok_or_else(|| fault(&field, "a reflection needs one"))?;
    check_text(&field, &question, limits::MAX_DESCRIPTION_CHARS)?;
    if min_words.is_some_and(|n| n == 0 || n > limits::MAX_LEAST_WORDS) {
        return Err(fault(
            format!("{path}.min_words"),
            format!("must be 1 to {}", limits::MAX_LEAST_WORDS),
        ));
    }
    Ok(Some(Reflection {
        question: question.trim().to_owned(),
        min_words,
    }))
}

fn levels(path: &str, raw: Vec<LevelDraft>, max: Points) -> Result<Vec<Level>, GradingError> {
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

fn check_optional(field: &str, text: Option<&str>, limit: usize) -> Result<(), GradingError> {
    text.map_or(Ok(()), |text| check_text(field, text, limit))
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
