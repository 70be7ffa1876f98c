//! The right side of the review: points, reasons, feedback, and what can be done.

use tandem_grading::review::{Comment, PointsOf, Standing};
use tandem_grading::{
    Criterion, Evidence, FindingKind, Item, ItemKind, Points, Rubric, Scale, SourceFile, Submission,
};

use super::list::List;
use super::queue::{Ordered, label};
use super::words;
use crate::bare::is_flagged;
use crate::limits::{MAX_BUTTONS, MAX_FINDINGS};
use crate::store::Work;

/// All of it.
pub(crate) struct Desk {
    pub(crate) work: i64,
    pub(crate) version: String,
    pub(crate) action: String,
    /// Where it is graded once more, and whether this person may.
    pub(crate) runs: String,
    pub(crate) may_run: bool,
    pub(crate) record: String,
    pub(crate) label: String,
    pub(crate) state: &'static str,
    pub(crate) is_settled: bool,
    /// The points that hold, and the model's.
    pub(crate) total: Option<String>,
    pub(crate) model_total: Option<String>,
    pub(crate) max: String,
    /// When it was saved last, in milliseconds since 1970, and by whom.
    pub(crate) saved: Option<i64>,
    pub(crate) saved_by: String,
    pub(crate) findings: Vec<FindingView>,
    /// What the model gives without the comments; and where it is asked for that.
    pub(crate) bare: Option<String>,
    pub(crate) read_bare: Option<String>,
    pub(crate) criteria: Vec<CriterionView>,
    /// What can be taken off, if the rubric has something.
    pub(crate) corrections: Vec<CorrectionView>,
    /// Points beside the rubric, with their sign, and why.
    pub(crate) adjustment: Option<(String, String)>,
    /// What a person says of lines.
    pub(crate) comments: Vec<CommentView>,
    /// Names of the files that can be commented on, and what was said of other lines.
    pub(crate) files: Vec<String>,
    pub(crate) earlier_comments: Vec<String>,
    pub(crate) text: Vec<ItemView>,
    pub(crate) text_is_marked: bool,
    pub(crate) text_is_own: bool,
    /// Where a model is asked to write it once more, if it may.
    pub(crate) rewrite: Option<String>,
    /// True if nothing stands against approving it.
    pub(crate) can_approve: bool,
    pub(crate) second_look: bool,
    pub(crate) note: String,
    pub(crate) notice: Option<Notice>,
    pub(crate) previous: Option<String>,
    pub(crate) next: Option<String>,
    /// The next one that needs a person, else the page that says how far it is.
    pub(crate) next_open: String,
    pub(crate) is_last: bool,
    /// True if it was handed in again, so that this one does not count.
    pub(crate) is_replaced: bool,
    /// True if what others gave is hidden; and where that ends.
    pub(crate) is_blind: bool,
    pub(crate) blind: String,
}

/// Something to look at.
pub(crate) struct FindingView {
    pub(crate) text: String,
    /// Where: a link into the work, and what it is called.
    pub(crate) place: Option<(String, String)>,
}

/// One criterion.
pub(crate) struct CriterionView {
    /// From 1.
    pub(crate) number: usize,
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) description: String,
    pub(crate) is_open: bool,
    pub(crate) model: Option<String>,
    pub(crate) person: Option<String>,
    pub(crate) max: String,
    pub(crate) is_bonus: bool,
    pub(crate) levels: Vec<LevelView>,
    /// True if the values are short buttons in a row.
    pub(crate) is_compact: bool,
    /// Which values there are, where they are too many for buttons.
    pub(crate) values: Option<String>,
    pub(crate) evidence: Vec<EvidenceView>,
    pub(crate) rationale: String,
    /// Of a reflection.
    pub(crate) question: String,
    /// For those who grade.
    pub(crate) answer: String,
    /// Other works with the same points, and where they are listed.
    pub(crate) others: usize,
    pub(crate) others_href: String,
    /// True if it stays open through all works; and where that is begun or ended.
    pub(crate) is_alone: bool,
    pub(crate) alone_href: String,
}

/// Points that can be given.
pub(crate) struct LevelView {
    pub(crate) key: Option<usize>,
    pub(crate) text: String,
    pub(crate) points: String,
    pub(crate) is_model: bool,
    pub(crate) is_person: bool,
}

/// Points that are taken off, or may be.
pub(crate) struct CorrectionView {
    pub(crate) title: String,
    pub(crate) points: String,
    pub(crate) is_given: bool,
    /// What the button does, and of which penalty.
    pub(crate) act: &'static str,
    pub(crate) id: String,
    /// Who says so, where it is not the person.
    pub(crate) by: &'static str,
}

/// A quote with a link to it.
pub(crate) struct EvidenceView {
    pub(crate) href: String,
    pub(crate) place: String,
    pub(crate) quote: String,
}

/// What a person says of a line.
pub(crate) struct CommentView {
    pub(crate) index: usize,
    pub(crate) href: String,
    pub(crate) place: String,
    pub(crate) text: String,
}

/// An item of the feedback.
pub(crate) struct ItemView {
    pub(crate) index: usize,
    pub(crate) kind: &'static str,
    pub(crate) text: String,
    /// The same, cut where code begins and ends; true for code.
    pub(crate) parts: Vec<(bool, String)>,
}

/// What did not go as asked.
pub(crate) struct Notice {
    pub(crate) text: String,
    /// What to send again, if that is what the person wants: its button, and the form's fields.
    pub(crate) again: Option<(&'static str, Vec<(String, String)>)>,
    /// True if somebody else changed the work meanwhile.
    pub(crate) is_conflict: bool,
}

/// What a desk is made of.
pub(crate) struct DeskOf<'a> {
    pub(crate) work: &'a Work,
    pub(crate) rubric: &'a Rubric,
    pub(crate) submission: &'a Submission,
    /// What the model gave without the comments, if it was asked.
    pub(crate) bare: Option<&'a PointsOf>,
    /// What was said of lines in the assignment.
    pub(crate) comments: &'a [String],
    pub(crate) order: &'a Ordered<'a>,
    pub(crate) list: &'a List,
    pub(crate) names_hidden: bool,
    /// True if this person may have works graded.
    pub(crate) may_run: bool,
    /// The criterion that is open; the first if there is no such.
    pub(crate) open: Option<&'a str>,
}

impl Desk {
    pub(crate) fn new(of: &DeskOf<'_>, notice: Option<Notice>) -> Self {
        let (work, paths) = (of.work, of.order.paths());
        let standing = work.standing(of.rubric);
        let text = standing.text().into_iter().enumerate();
        let text_is_marked = standing.text_is_marked();
        let link = |id: i64| of.list.href(paths, id);
        let (previous, next) = of.order.beside(work.id);
        let next_open = of.order.next_open(work.id);
        Self {
            work: work.id,
            version: work.seen.to_string(),
            action: link(work.id),
            runs: paths.runs(work.assignment),
            may_run: of.may_run,
            record: paths.record(work.id),
            label: label(&work.name, work.draw, of.names_hidden),
            state: words::state(standing.state()),
            is_settled: standing.state().is_settled(),
            total: standing.total().map(|p| p.to_string()),
            model_total: standing.model_total().map(|p| p.to_string()),
            max: of.rubric.max_points.to_string(),
            saved: work.changed,
            saved_by: work.changed_by.clone().unwrap_or_default(),
            findings: findings(&standing, of.submission),
            bare: of.bare.map(|points| bare(points, &standing)),
            read_bare: (of.bare.is_none() && work.graded.as_ref().is_some_and(is_flagged))
                .then(|| of.list.on(paths.bare(work.id))),
            criteria: criteria(of, &standing),
            comments: comments(of),
            files: of
                .submission
                .files
                .iter()
                .map(|file| name_of(of, file))
                .collect(),
            earlier_comments: of.comments.to_vec(),
            corrections: corrections(&standing),
            adjustment: work.review.adjustment.as_ref().map(|one| {
                let sign = if one.is_on_top { "+" } else { "-" };
                (format!("{sign}{}", one.points), one.title.clone())
            }),
            text: text.map(item).collect(),
            text_is_marked,
            text_is_own: work.review.text.is_some() && !work.review.text_is_models,
            rewrite: (text_is_marked && standing.may_rewrite() && work.graded.is_some())
                .then(|| of.list.on(paths.rewrite(work.id))),
            can_approve: standing.total().is_some() && !text_is_marked && !standing.lacks_text(),
            second_look: work.review.second_look,
            note: work.review.note.clone(),
            notice,
            previous: previous.map(link),
            next: next.map(link),
            is_last: next_open.is_none(),
            is_replaced: work.replaced_by.is_some(),
            is_blind: work.is_blind,
            blind: of.list.on(paths.blind(work.id)),
            next_open: next_open.map_or_else(|| of.list.on(paths.end(work.assignment)), link),
        }
    }
}

/// All of them, in the rubric's order.
fn criteria(of: &DeskOf<'_>, standing: &Standing<'_>) -> Vec<CriterionView> {
    let (work, paths) = (of.work.id, of.order.paths());
    let all = &of.rubric.criteria;
    let open = of.open.filter(|id| all.iter().any(|c| c.id == **id));
    let open = open.or(all.first().map(|c| c.id.as_str()));
    let view = |(i, c): (usize, &Criterion)| {
        let is_open = open == Some(c.id.as_str());
        let mut view = criterion(i + 1, c, standing, of.submission, is_open);
        if let Some(points) = standing.points(c) {
            view.others = of.order.others_with(i, points, work);
            view.others_href = List::at_points(&c.id, points).href(paths, work);
        }
        view.is_alone = of.list.by.as_ref() == Some(&c.id);
        let way = (!view.is_alone).then_some(c.id.as_str());
        view.alone_href = of.list.by(way).href(paths, work);
        view
    };
    all.iter().enumerate().map(view).collect()
}

fn name_of(of: &DeskOf<'_>, file: &SourceFile) -> String {
    match of.names_hidden {
        true => of.submission.shown_name(file),
        false => file.name.clone(),
    }
}

fn comments(of: &DeskOf<'_>) -> Vec<CommentView> {
    let files = &of.submission.files;
    let view = |(index, one): (usize, &Comment)| {
        let file = file_index(of.submission, &one.file);
        CommentView {
            index,
            href: file.map_or_else(String::new, |file| format!("#f{file}l{}", one.line)),
            place: match file.and_then(|file| files.get(file)) {
                Some(file) if files.len() > 1 => format!("{} {}", name_of(of, file), one.line),
                _ => format!("line {}", one.line),
            },
            text: one.text.clone(),
        }
    };
    of.work
        .review
        .comments
        .iter()
        .enumerate()
        .map(view)
        .collect()
}

fn corrections(standing: &Standing<'_>) -> Vec<CorrectionView> {
    let (rubric, review) = (standing.rubric, standing.review);
    let penalties = rubric.penalties.iter().map(|one| {
        let is_given = review.penalties.contains(&one.id);
        CorrectionView {
            title: one.title.clone(),
            points: one.points.to_string(),
            is_given,
            act: if is_given { "no-penalty" } else { "penalty" },
            id: one.id.clone(),
            by: "",
        }
    });
    let late = rubric.late.iter().map(|late| {
        let is_given = standing.counts_as_late();
        CorrectionView {
            title: late.title.clone(),
            points: late.points.to_string(),
            is_given,
            act: if is_given { "not-late" } else { "late" },
            id: String::new(),
            by: match (review.late, standing.is_late) {
                (None, true) => "as the learning system says",
                (Some(false), _) => "it came late, and you let it pass",
                _ => "",
            },
        }
    });
    penalties.chain(late).collect()
}

fn findings(standing: &Standing<'_>, submission: &Submission) -> Vec<FindingView> {
    let mut found: Vec<FindingView> = Vec::new();
    for reason in standing.findings().take(MAX_FINDINGS) {
        let place = reason.place.as_ref().and_then(|place| {
            let file = file_index(submission, &place.file)?;
            let link = format!("#f{file}l{}", place.line);
            let name = match submission.files.len() {
                1 => format!("line {}", place.line),
                _ => format!("{} {}", place.file, place.line),
            };
            Some((link, name))
        });
        let text = match reason.kind {
            // Which code, and why there is none: the person need not look for it.
            FindingKind::UnknownCode | FindingKind::NoText => reason.text.clone(),
            kind => words::finding(kind).to_owned(),
        };
        let is_known = found.iter().any(|f| f.text == text && f.place == place);
        if !is_known {
            found.push(FindingView { text, place });
        }
    }
    found
}

/// What the model gives without the comments, beside what it gave with them.
fn bare(points: &PointsOf, standing: &Standing<'_>) -> String {
    let criteria = &standing.rubric.criteria;
    let total: Option<Points> = criteria
        .iter()
        .map(|c| points.get(&c.id).copied())
        .collect::<Option<Vec<_>>>()
        .map(|all| all.into_iter().sum());
    let Some(total) = total else {
        return "Without its comments the model gave no usable answer.".to_owned();
    };
    let changed = criteria.iter().filter_map(|c| {
        let (with, without) = (standing.model_points(c)?, *points.get(&c.id)?);
        (with != without).then(|| format!("{} {without} instead of {with}", c.title))
    });
    let changed: Vec<String> = changed.collect();
    match changed.is_empty() {
        true => "Without its comments the model gives the same points.".to_owned(),
        false => format!(
            "Without its comments the model gives {total}: {}.",
            changed.join(", ")
        ),
    }
}

fn file_index(submission: &Submission, name: &str) -> Option<usize> {
    submission.files.iter().position(|f| f.name == name)
}

fn item((index, item): (usize, Item)) -> ItemView {
    ItemView {
        index,
        kind: match item.kind {
            ItemKind::Strength => "strength",
            ItemKind::NextStep => "next_step",
        },
        parts: parts(&item.text),
        text: item.text,
    }
}

/// Text and code between backticks. A backtick without another one is a backtick.
fn parts(text: &str) -> Vec<(bool, String)> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, (code, after))) = rest
        .split_once('`')
        .and_then(|(before, rest)| Some((before, rest.split_once('`')?)))
    {
        parts.push((false, before.to_owned()));
        parts.push((true, code.to_owned()));
        rest = after;
    }
    parts.push((false, rest.to_owned()));
    parts.retain(|(_, text)| !text.is_empty());
    parts
}

fn criterion(
    number: usize,
    of: &Criterion,
    standing: &Standing<'_>,
    submission: &Submission,
    is_open: bool,
) -> CriterionView {
    let (model, person) = (standing.model_points(of), standing.person_points(of));
    let result = standing.model_result(of);
    let evidence = result.into_iter().flat_map(|r| &r.evidence);
    let mut levels: Vec<(Points, String)> = match &of.scale {
        Scale::Levels(levels) => {
            let text = |l: &tandem_grading::Level| (l.points, l.description.clone());
            levels.iter().map(text).collect()
        }
        Scale::Steps(steps) => steps.iter().map(|p| (*p, String::new())).collect(),
    };
    levels.sort_by_key(|(points, _)| *points);
    let is_compact = matches!(of.scale, Scale::Steps(_));
    let values = match levels.as_slice() {
        [(first, _), (second, _), .., (last, _)] if is_compact && levels.len() > MAX_BUTTONS => {
            Some(format!("{first}, {second}, … {last}"))
        }
        _ => None,
    };
    let level = |(i, (points, text)): (usize, (Points, String))| LevelView {
        key: (i < 9).then_some(i + 1),
        text,
        points: points.to_string(),
        is_model: model == Some(points),
        is_person: person == Some(points),
    };
    let mut views: Vec<LevelView> = match values {
        None => levels.into_iter().enumerate().map(level).collect(),
        Some(_) => Vec::new(),
    };
    if !is_compact {
        views.reverse();
    }
    CriterionView {
        number,
        id: of.id.clone(),
        title: of.title.clone(),
        description: of.description.clone(),
        question: of
            .reflection
            .as_ref()
            .map(|r| r.question.clone())
            .unwrap_or_default(),
        answer: of.answer.clone().unwrap_or_default(),
        others: 0,
        others_href: String::new(),
        is_alone: false,
        alone_href: String::new(),
        is_open,
        model: model.map(|p| p.to_string()),
        person: person.map(|p| p.to_string()),
        max: of.max_points.to_string(),
        is_bonus: of.is_bonus,
        levels: views,
        is_compact,
        values,
        evidence: evidence.map(|e| quote(e, submission)).collect(),
        rationale: result.map(|r| r.rationale.clone()).unwrap_or_default(),
    }
}

fn quote(evidence: &Evidence, submission: &Submission) -> EvidenceView {
    let file = file_index(submission, &evidence.file).unwrap_or_default();
    let lines = match evidence.line_end > evidence.line_start {
        true => format!("{}–{}", evidence.line_start, evidence.line_end),
        false => evidence.line_start.to_string(),
    };
    let first = evidence.quote.lines().find(|line| !line.trim().is_empty());
    EvidenceView {
        href: format!("#f{file}l{}", evidence.line_start),
        place: match submission.files.len() {
            1 => format!("line {lines}"),
            _ => format!("{} {lines}", evidence.file),
        },
        quote: first.unwrap_or_default().trim().to_owned(),
    }
}
