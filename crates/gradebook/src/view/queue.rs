//! The queue: what needs a person first, then a random order that stays.

use std::collections::HashMap;

use tandem_grading::review::{Rank, Review, Standing, State};
use tandem_grading::{Points, Rubric};

use super::list::List;
use super::{Meter, words};
use crate::limits::MAX_QUEUE;
use crate::paths::Paths;
use crate::store::Work;

/// Works in their order, around the one that is shown.
pub(crate) struct Queue {
    pub(crate) undo: String,
    /// Where a search goes.
    pub(crate) here: String,
    pub(crate) entries: Vec<Entry>,
    /// Link, name, and whether it is the one that is shown: the lists that there are.
    pub(crate) lists: Vec<(String, String, bool)>,
    /// The same of the ways to work through them: by submission, or by a criterion.
    pub(crate) ways: Vec<(String, String, bool)>,
    /// What is listed, where it is a part.
    pub(crate) part: String,
    pub(crate) finds: String,
    /// The criterion that stays open.
    pub(crate) by: String,
    /// Works that are not listed here.
    pub(crate) unlisted: usize,
}

/// A line of it.
pub(crate) struct Entry {
    pub(crate) id: i64,
    pub(crate) href: String,
    pub(crate) label: String,
    pub(crate) points: String,
    pub(crate) remark: &'static str,
    pub(crate) is_current: bool,
}

/// The works of an assignment in their order.
pub(crate) struct Ordered<'a> {
    rows: Vec<Row>,
    rubric: &'a Rubric,
    of: &'a ListOf<'a>,
    meter: Meter,
    /// Of all works, listed or not: the place while it is not done, and the place now.
    places: HashMap<i64, (Place, Place)>,
    /// How many have which points for each criterion, by place and thousandths.
    spread: HashMap<(usize, u32), usize>,
    has_shares: bool,
    /// How many this person grades blind.
    blind: usize,
}

/// Which list, and for whom.
pub(crate) struct ListOf<'a> {
    pub(crate) paths: Paths,
    pub(crate) list: &'a List,
    pub(crate) names_hidden: bool,
    pub(crate) person: i64,
}

/// What the order and the list need of a work.
struct Row {
    id: i64,
    label: String,
    is_mine: bool,
    is_blind: bool,
    state: State,
    /// Nothing more is to be done in this way of working.
    is_done: bool,
    /// Its place while it is not done, and its place now.
    open_place: Place,
    place: Place,
    remark: &'static str,
    points: Option<String>,
    /// The points for the criterion that is open through all works.
    at: Option<Points>,
}

/// Where a work stands: by a criterion equal suggestions stand together.
type Place = (bool, u32, Rank);

impl Row {
    fn new(work: &Work, standing: &Standing<'_>, of: &ListOf<'_>) -> Self {
        let state = standing.state();
        let finding = standing.first_finding().map(|f| f.kind);
        let second_look = work.review.second_look;
        let open = Review::default();
        let open = Standing {
            review: &open,
            ..*standing
        };
        let remark = match (finding, state) {
            _ if work.is_blind => "to grade blind",
            (_, state) if second_look && !state.is_settled() => "a second look is wanted",
            (_, State::NotAttempted) => words::state(State::NotAttempted),
            (Some(kind), State::ToReview | State::Failed) => words::finding(kind),
            (_, State::ToApprove) => "",
            (_, State::Ungraded) if work.earlier.is_some() => "handed in again, not graded yet",
            (_, state) => words::state(state),
        };
        let by = of.list.by.as_deref();
        let by = by.and_then(|id| standing.rubric.criteria.iter().find(|c| c.id == id));
        let is_done = match by {
            Some(criterion) => state.is_settled() || standing.person_points(criterion).is_some(),
            None => state.is_settled(),
        };
        let suggested = by.and_then(|criterion| standing.model_points(criterion));
        let group = suggested.map_or(0, |points| points.thousandths());
        let at = by.and_then(|criterion| standing.points(criterion));
        let open_finding = open.first_finding().map(|f| f.kind);
        let open_rank = Rank::new(open.state(), open_finding, second_look, work.draw);
        let rank = Rank::new(state, finding, second_look, work.draw);
        Self {
            id: work.id,
            label: label(&work.name, work.draw, of.names_hidden),
            is_mine: work.share == Some(of.person),
            is_blind: work.is_blind,
            state,
            is_done,
            open_place: (false, group, open_rank),
            place: (by.is_some() && is_done, group, rank),
            remark,
            points: match by {
                Some(_) => at,
                None => standing.total(),
            }
            .map(|points| points.to_string()),
            at,
        }
    }

    fn is_in(&self, list: &List) -> bool {
        let is_found = list
            .finds()
            .is_none_or(|text| self.label.to_lowercase().contains(&text));
        let has_points = list.at().is_none_or(|points| self.at == Some(points));
        is_found
            && has_points
            && (!list.is_mine() || self.is_mine)
            && (!list.is_blind() || self.is_blind)
    }
}

/// The name that stands for a student's while names are hidden.
pub(crate) fn hidden_name(draw: u32) -> String {
    // No vowels, so that it makes no words.
    const LETTERS: &[u8] = b"BCDFGHJKLMNPQRSTVWXZ23456789";
    let mut rest = usize::try_from(draw).unwrap_or_default();
    let mut name = String::from("P-");
    for _ in 0..5 {
        name.push(char::from(LETTERS[rest % LETTERS.len()]));
        rest /= LETTERS.len();
    }
    name
}

/// What a work is called on a page.
pub(crate) fn label(name: &str, draw: u32, names_hidden: bool) -> String {
    match names_hidden {
        true => hidden_name(draw),
        false => name.to_owned(),
    }
}

impl<'a> Ordered<'a> {
    pub(crate) fn new(works: &[Work], rubric: &'a Rubric, of: &'a ListOf<'a>) -> Self {
        let mut spread = HashMap::new();
        let row = |work: &Work| {
            let standing = work.standing(rubric);
            for (i, criterion) in rubric.criteria.iter().enumerate() {
                if let Some(points) = standing.points(criterion) {
                    *spread.entry((i, points.thousandths())).or_default() += 1;
                }
            }
            Row::new(work, &standing, of)
        };
        let mut rows: Vec<Row> = works.iter().map(row).collect();
        let meter = meter(&rows);
        let places = rows.iter().map(|row| (row.id, (row.open_place, row.place)));
        let places = places.collect();
        rows.retain(|row| row.is_in(of.list));
        rows.sort_by_key(|row| (row.place, row.id));
        Self {
            rows,
            rubric,
            of,
            meter,
            places,
            spread,
            blind: works.iter().filter(|work| work.is_blind).count(),
            has_shares: works.iter().any(|work| work.share.is_some()),
        }
    }

    fn place(&self, id: i64) -> Option<usize> {
        self.rows.iter().position(|row| row.id == id)
    }

    /// The first of the list.
    pub(crate) fn first(&self) -> Option<i64> {
        self.rows.first().map(|row| row.id)
    }

    /// Where the pages are.
    pub(crate) const fn paths(&self) -> Paths {
        self.of.paths
    }

    /// The first one that is not done.
    pub(crate) fn first_open(&self) -> Option<i64> {
        self.rows.iter().find(|row| !row.is_done).map(|row| row.id)
    }

    /// How many of the list are not done.
    pub(crate) fn open(&self) -> usize {
        self.rows.iter().filter(|row| !row.is_done).count()
    }

    /// Whether a work is in the list.
    pub(crate) fn has(&self, id: i64) -> bool {
        self.place(id).is_some()
    }

    /// The works before and after one, in the order of the list, also of one that is no more in it.
    pub(crate) fn beside(&self, id: i64) -> (Option<i64>, Option<i64>) {
        let Some((_, own)) = self.places.get(&id) else {
            return (None, self.first());
        };
        let own = (*own, id);
        let mut before = self.rows.iter().rev();
        let before = before.find(|row| (row.place, row.id) < own);
        let after = self.rows.iter().find(|row| (row.place, row.id) > own);
        (before.map(|row| row.id), after.map(|row| row.id))
    }

    /// The next work after one that is not done, from the place that it had before it was done itself; after the last one
    /// the first.
    pub(crate) fn next_open(&self, id: i64) -> Option<i64> {
        let open = || self.rows.iter().filter(|row| !row.is_done && row.id != id);
        let from = self.places.get(&id).map(|(open, _)| (*open, id));
        let after = open().find(|row| from.is_some_and(|from| (row.place, row.id) > from));
        after.or_else(|| open().next()).map(|row| row.id)
    }

    /// How many works other than this one have these points for a criterion, by its place. One that was handed in again
    /// is not among those that are counted.
    pub(crate) fn others_with(&self, criterion: usize, points: Points, id: i64) -> usize {
        let all = self.spread.get(&(criterion, points.thousandths()));
        let itself = usize::from(self.places.contains_key(&id));
        all.copied().unwrap_or_default().saturating_sub(itself)
    }

    /// The list around a work.
    pub(crate) fn queue(&self, assignment: i64, current: i64) -> Queue {
        let (list, paths) = (self.of.list, self.of.paths);
        let is_listed = |row: &&Row| list.shows_all() || !row.is_done || row.id == current;
        let listed: Vec<&Row> = self.rows.iter().filter(is_listed).collect();
        let place = listed.iter().position(|row| row.id == current).unwrap_or(0);
        let from = place
            .saturating_sub(MAX_QUEUE / 2)
            .min(listed.len().saturating_sub(MAX_QUEUE));
        let entries: Vec<Entry> = listed
            .iter()
            .skip(from)
            .take(MAX_QUEUE)
            .map(|row| self.entry(row, current))
            .collect();
        Queue {
            undo: list.on(paths.undo(assignment)),
            by: list.by.clone().unwrap_or_default(),
            here: paths.work(current),
            unlisted: listed.len() - entries.len(),
            entries,
            lists: self.lists(current),
            ways: self.ways(current),
            part: self.part(),
            finds: list.finds().unwrap_or_default(),
        }
    }

    fn lists(&self, current: i64) -> Vec<(String, String, bool)> {
        let list = self.of.list;
        let is_part = list.finds().is_some() || list.at().is_some();
        let open = self.open();
        let mut lists = Vec::new();
        let mut add = |name: &str, text: &str, is_shown: bool, count: usize| {
            let text = match is_shown || name == "blind" {
                true => format!("{text} {count}"),
                false => text.to_owned(),
            };
            lists.push((list.with(name).href(self.of.paths, current), text, is_shown));
        };
        if self.has_shares {
            add("mine", "Mine", list.is_mine(), open);
        }
        if self.blind > 0 {
            add("blind", "Blind", list.is_blind(), self.blind);
        }
        let is_all = list.shows_all() && !is_part;
        let is_open = !list.shows_all() && !list.is_mine() && !list.is_blind();
        add("open", "Open", is_open, open);
        add("all", "All", is_all, self.rows.len());
        lists
    }

    fn ways(&self, current: i64) -> Vec<(String, String, bool)> {
        let list = self.of.list;
        let way = |id: Option<&str>, title: &str| {
            let is_shown = list.by.as_deref() == id;
            (
                list.by(id).href(self.of.paths, current),
                title.to_owned(),
                is_shown,
            )
        };
        let mut ways = vec![way(None, "by submission")];
        let criteria = self.rubric.criteria.iter();
        ways.extend(criteria.map(|c| way(Some(&c.id), &format!("by {}", c.title))));
        ways
    }

    fn part(&self) -> String {
        let count = self.rows.len();
        match (self.of.list.at(), self.of.list.finds()) {
            (Some(points), _) => format!("{count} with {points} points here"),
            (None, Some(text)) => format!("{count} with “{text}” in the name"),
            (None, None) => String::new(),
        }
    }

    fn entry(&self, row: &Row, current: i64) -> Entry {
        Entry {
            id: row.id,
            href: self.of.list.href(self.of.paths, row.id),
            label: row.label.clone(),
            points: row.points.clone().unwrap_or_else(|| "–".to_owned()),
            remark: row.remark,
            is_current: row.id == current,
        }
    }

    /// How many are how far.
    pub(crate) fn meter(&self) -> Meter {
        self.meter.clone()
    }
}

/// How many are how far.
fn meter(rows: &[Row]) -> Meter {
    let all = rows.len();
    let count = |is: &dyn Fn(State) -> bool| rows.iter().filter(|row| is(row.state)).count();
    let approved = count(&State::is_settled);
    let failed = count(&|state| state == State::Failed);
    let review = count(&|state| state == State::ToReview);
    let mut text = vec![format!("{approved} of {all} settled")];
    for (count, what) in [(review, "to review"), (failed, "failed")] {
        if count > 0 {
            text.push(format!("{count} {what}"));
        }
    }
    let mut from = 0;
    let mut parts = Vec::new();
    for (class, count) in [
        ("m-person", approved),
        ("m-review", review),
        ("m-bad", failed),
    ] {
        let size = (count * 100).div_ceil(all.max(1)).min(100 - from);
        parts.push((class, from, size));
        from += size;
    }
    Meter {
        parts,
        text: text.join(" · "),
    }
}
