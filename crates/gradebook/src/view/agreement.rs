//! How far persons and models agree, in tables.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use askama::Template;
use tandem_grading::review::{PointsOf, Standing};
use tandem_grading::{Agreement, Comparison, Criterion, CriterionAgreement, Given, Points, Rubric};

use super::queue::label;
use crate::limits::{DEFAULT_ANCHORS, MAX_CHANGES, MAX_PLOT_VALUES};
use crate::paths::Paths;
use crate::runs::Settings;
use crate::store::{Assignment, BlindReading, RubricVersion, RunRow, Work};
use crate::view::list::List;

/// The page.
#[derive(Template)]
#[template(path = "agreement.html")]
pub(crate) struct AgreementPage {
    pub(crate) paths: Paths,
    pub(crate) course: String,
    pub(crate) title: String,
    pub(crate) review: String,
    /// Where anchors are drawn, and where the page is.
    pub(crate) draw: String,
    pub(crate) here: String,
    pub(crate) default: usize,
    /// Anchors, those that are graded blind by somebody, and those that can be drawn.
    pub(crate) drawn: usize,
    pub(crate) read: usize,
    pub(crate) persons: usize,
    pub(crate) possible: usize,
    /// The next one to grade blind.
    pub(crate) next: Option<String>,
    /// A model beside persons, and persons beside each other.
    pub(crate) model: Vec<AgreementRow>,
    pub(crate) human: Vec<AgreementRow>,
    /// The model beside persons.
    pub(crate) plots: Vec<Plot>,
    pub(crate) spread: Vec<Spread>,
    /// Works that were approved with a model's result; of these, with other points, and with another text.
    pub(crate) approved: usize,
    pub(crate) other_points: usize,
    pub(crate) other_text: usize,
    pub(crate) can_compare: bool,
    pub(crate) runs: [Vec<RunChoice>; 2],
    pub(crate) compared: Option<Compared>,
}

/// A criterion in which two are compared.
pub(crate) struct AgreementRow {
    pub(crate) title: String,
    pub(crate) count: usize,
    pub(crate) equal: usize,
    pub(crate) within_one: usize,
    pub(crate) bias: String,
    pub(crate) kappa: String,
    /// Equal if the second one always gave the same.
    pub(crate) constant: usize,
}

/// How often each pair of points was given for a criterion, as a plot.
pub(crate) struct Plot {
    pub(crate) title: String,
    /// Width and height.
    pub(crate) size: usize,
    /// Each value with its middle, from the left and from below.
    pub(crate) axis: Vec<(usize, usize, String)>,
    pub(crate) dots: Vec<Dot>,
    /// The same in words.
    pub(crate) text: String,
}

/// A pair that was given.
pub(crate) struct Dot {
    pub(crate) x: usize,
    pub(crate) y: usize,
    pub(crate) radius: String,
    pub(crate) count: usize,
    pub(crate) is_equal: bool,
}

/// Side of a cell of a plot, and what its values have beside and below it.
const CELL: usize = 30;
const GUTTER: usize = 34;

/// How often each number of points was given for a criterion.
pub(crate) struct Spread {
    pub(crate) title: String,
    pub(crate) values: Vec<SpreadValue>,
}

/// One number of points.
pub(crate) struct SpreadValue {
    pub(crate) points: String,
    /// How often models suggested it, and persons approved it.
    pub(crate) suggested: usize,
    pub(crate) approved: usize,
    /// The same in hundredths of the largest.
    pub(crate) suggested_bar: usize,
    pub(crate) approved_bar: usize,
}

/// A run that can be compared.
pub(crate) struct RunChoice {
    pub(crate) id: i64,
    pub(crate) text: String,
    pub(crate) is_chosen: bool,
}

/// Two runs side by side.
pub(crate) struct Compared {
    pub(crate) compared: usize,
    pub(crate) equal: usize,
    pub(crate) only_one: usize,
    pub(crate) mean_change: String,
    pub(crate) rows: Vec<AgreementRow>,
    pub(crate) changes: Vec<ChangeView>,
    /// Those that are not listed.
    pub(crate) more: usize,
}

/// A submission that they give other points.
pub(crate) struct ChangeView {
    pub(crate) href: String,
    pub(crate) label: String,
    pub(crate) before: String,
    pub(crate) after: String,
    pub(crate) criteria: String,
}

/// What the page is made of.
pub(crate) struct Of<'a> {
    pub(crate) paths: Paths,
    pub(crate) names_hidden: bool,
    pub(crate) assignment: &'a Assignment,
    pub(crate) version: &'a RubricVersion,
    pub(crate) works: &'a [Work],
    pub(crate) approved: &'a [Work],
    pub(crate) readings: &'a [BlindReading],
    pub(crate) drawn: usize,
    pub(crate) blind_here: Option<i64>,
    pub(crate) possible: usize,
    /// Runs, the latest first, with the number of the rubric's version of each.
    pub(crate) runs: &'a [(RunRow, i64)],
    pub(crate) chosen: [Option<i64>; 2],
    /// What models had given works when each of both ended.
    pub(crate) sides: Option<&'a [HashMap<i64, PointsOf>; 2]>,
}

impl AgreementPage {
    pub(crate) fn new(of: &Of<'_>) -> Self {
        let (paths, id, rubric) = (of.paths, of.assignment.id, &of.version.rubric);
        let works: BTreeSet<i64> = of.readings.iter().map(|one| one.work).collect();
        let persons: BTreeSet<i64> = of.readings.iter().map(|one| one.person).collect();
        let list = List::default().with("blind");
        let (other_points, other_text) = edits(rubric, of.approved);
        let models = of.works.iter();
        let models = models.filter_map(|work| Some((work.id, model_points(rubric, work)?)));
        let models: HashMap<i64, PointsOf> = models.collect();
        Self {
            paths,
            course: of.assignment.course.clone(),
            title: of.assignment.title.clone(),
            review: paths.assignment(id),
            draw: paths.anchors(id),
            here: paths.agreement(id),
            default: DEFAULT_ANCHORS,
            drawn: of.drawn,
            read: works.len(),
            persons: persons.len(),
            possible: of.possible,
            next: of.blind_here.map(|work| list.href(paths, work)),
            model: rows(&Agreement::by_criterion(rubric, with_model(of, &models))),
            plots: rubric
                .criteria
                .iter()
                .filter_map(|c| plot(c, with_model(of, &models)))
                .collect(),
            human: rows(&among_persons(of)),
            spread: match of.blind_here {
                // What models gave is hidden while somebody has to grade blind.
                Some(_) => Vec::new(),
                None => rubric.criteria.iter().map(|c| spread(of, c)).collect(),
            },
            approved: of.approved.len(),
            other_points,
            other_text,
            can_compare: of.runs.len() > 1,
            runs: of.chosen.map(|chosen| choices(of, chosen)),
            compared: of.sides.map(|sides| compared(of, sides)),
        }
    }
}

fn standing<'a>(of: &Of<'a>, work: &'a Work) -> Standing<'a> {
    work.standing(&of.version.rubric)
}

/// The points of a model alone.
fn model_points(rubric: &Rubric, work: &Work) -> Option<PointsOf> {
    let standing = Standing::of_model(rubric, work.graded.as_ref());
    standing.model_total().map(|_| standing.all_points())
}

/// What persons gave blind, and a model.
fn with_model<'a>(
    of: &Of<'a>,
    models: &'a HashMap<i64, PointsOf>,
) -> impl Iterator<Item = (&'a PointsOf, &'a PointsOf)> {
    let pairs = of.readings.iter();
    pairs.filter_map(|one| Some((&one.points, models.get(&one.work)?)))
}

/// Which points a model gave where a person gave which; nothing of a criterion with more values than anybody reads.
fn plot<'a>(
    criterion: &Criterion,
    pairs: impl Iterator<Item = (&'a PointsOf, &'a PointsOf)>,
) -> Option<Plot> {
    let mut values = criterion.allowed();
    values.sort_unstable();
    values.dedup();
    if values.len() > MAX_PLOT_VALUES {
        return None;
    }
    let place = |points: &PointsOf| {
        let points = points.get(&criterion.id)?;
        values.iter().position(|value| value == points)
    };
    let mut counts: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (person, model) in pairs {
        if let (Some(person), Some(model)) = (place(person), place(model)) {
            *counts.entry((person, model)).or_default() += 1;
        }
    }
    let most = *counts.values().max()?;
    let size = GUTTER + CELL * values.len();
    let middle = |place: usize| GUTTER + CELL * place + CELL / 2;
    let said = counts.iter().map(|((person, model), count)| {
        let (person, model) = (values[*person], values[*model]);
        format!("you {person}, the model {model}: {count}")
    });
    Some(Plot {
        title: criterion.title.clone(),
        size,
        text: said.collect::<Vec<_>>().join("; "),
        axis: (values.iter().enumerate())
            .map(|(place, value)| (middle(place), size - middle(place), value.to_string()))
            .collect(),
        dots: counts
            .iter()
            .map(|((person, model), count)| Dot {
                x: middle(*person),
                y: size - middle(*model),
                radius: radius(*count, most),
                count: *count,
                is_equal: person == model,
            })
            .collect(),
    })
}

/// The area tells how many there are of the most.
fn radius(count: usize, most: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "counts of submissions")]
    let share = count as f64 / most as f64;
    #[expect(clippy::cast_precision_loss, reason = "a constant")]
    let largest = CELL as f64 / 2.0 - 2.0;
    format!("{:.1}", largest * share.sqrt())
}

fn among_persons(of: &Of<'_>) -> Vec<CriterionAgreement> {
    let mut pairs = Vec::new();
    for (i, one) in of.readings.iter().enumerate() {
        let others = of.readings.iter().skip(i + 1);
        let others = others.filter(|other| other.work == one.work);
        pairs.extend(others.map(|other| (&one.points, &other.points)));
    }
    Agreement::by_criterion(&of.version.rubric, pairs)
}

fn rows(criteria: &[CriterionAgreement]) -> Vec<AgreementRow> {
    let row = |one: &CriterionAgreement| AgreementRow {
        title: one.title.clone(),
        count: one.agreement.count,
        equal: one.agreement.equal,
        within_one: one.agreement.within_one,
        bias: format!("{:+.2}", one.agreement.bias),
        kappa: one
            .agreement
            .kappa
            .map_or_else(|| "–".to_owned(), |kappa| format!("{kappa:.2}")),
        constant: one.agreement.constant,
    };
    criteria.iter().map(row).collect()
}

/// How often each value was given for a criterion.
fn spread(of: &Of<'_>, criterion: &Criterion) -> Spread {
    let mut counts: BTreeMap<Points, (usize, usize)> = criterion
        .allowed()
        .into_iter()
        .map(|points| (points, (0, 0)))
        .collect();
    for work in of.works {
        let standing = standing(of, work);
        if let Some(count) = standing
            .model_points(criterion)
            .and_then(|points| counts.get_mut(&points))
        {
            count.0 += 1;
        }
        let is_approved = standing.state() == tandem_grading::review::State::Approved;
        let points = standing.points(criterion).filter(|_| is_approved);
        if let Some(count) = points.and_then(|points| counts.get_mut(&points)) {
            count.1 += 1;
        }
    }
    let most = counts
        .values()
        .map(|(model, person)| *model.max(person))
        .max();
    let most = most.unwrap_or_default().max(1);
    Spread {
        title: criterion.title.clone(),
        values: counts
            .into_iter()
            .map(|(points, (suggested, approved))| SpreadValue {
                points: points.to_string(),
                suggested,
                approved,
                suggested_bar: suggested * 100 / most,
                approved_bar: approved * 100 / most,
            })
            .collect(),
    }
}

/// How many of the approved works have other points than the model gave, and another text than it wrote.
fn edits(rubric: &Rubric, approved: &[Work]) -> (usize, usize) {
    let (mut points, mut text) = (0, 0);
    for work in approved {
        let standing = work.standing(rubric);
        let differs = |c: &Criterion| {
            let model = standing.model_points(c);
            model.is_some() && model != standing.points(c)
        };
        points += usize::from(rubric.criteria.iter().any(differs));
        let is_other = !work.review.text_is_models && standing.text() != standing.model_text();
        text += usize::from(is_other);
    }
    (points, text)
}

fn choices(of: &Of<'_>, chosen: Option<i64>) -> Vec<RunChoice> {
    let choice = |(run, version): &(RunRow, i64)| {
        let settings: Option<Settings> = serde_json::from_str(&run.settings).ok();
        let by = settings.map(|settings| format!(", points by {}", settings.code_analysis.model));
        RunChoice {
            id: run.id,
            text: format!(
                "run {}{}, version {version} of the rubric",
                run.number,
                by.unwrap_or_default()
            ),
            is_chosen: chosen == Some(run.id),
        }
    };
    of.runs.iter().map(choice).collect()
}

/// Two runs side by side, by the criteria of the rubric that holds now.
fn compared(of: &Of<'_>, [first, second]: &[HashMap<i64, PointsOf>; 2]) -> Compared {
    // Numbers tell works apart, whatever their names.
    let given = |side: &HashMap<i64, PointsOf>| -> Given {
        side.iter()
            .map(|(work, points)| (work.to_string(), points.clone()))
            .collect()
    };
    let comparison = Comparison::new(&of.version.rubric, &given(first), &given(second));
    let works: HashMap<String, &Work> = of.works.iter().map(|w| (w.id.to_string(), w)).collect();
    let title = |id: &str| {
        let criteria = of.version.rubric.criteria.iter();
        let mut titles = criteria.filter(|c| c.id == id).map(|c| c.title.clone());
        titles.next().unwrap_or_else(|| id.to_owned())
    };
    let change = |one: &tandem_grading::Changed| {
        let work = works.get(&one.name)?;
        let criteria = one.criteria.iter();
        let criteria = criteria.map(|(id, a, b)| format!("{} {a} → {b}", title(id)));
        Some(ChangeView {
            href: of.paths.work(work.id),
            label: label(&work.name, work.draw, of.names_hidden),
            before: one.before.to_string(),
            after: one.after.to_string(),
            criteria: criteria.collect::<Vec<_>>().join(", "),
        })
    };
    let changes: Vec<ChangeView> = comparison
        .changes
        .iter()
        .take(MAX_CHANGES)
        .filter_map(change)
        .collect();
    Compared {
        compared: comparison.compared,
        equal: comparison.equal,
        only_one: comparison.only_one,
        mean_change: format!("{:+.2}", comparison.mean_change),
        rows: rows(&comparison.criteria),
        more: comparison.changes.len() - changes.len(),
        changes,
    }
}
