//! The queue: what needs a person first, then a random order that stays.

use tandem_grading::Rubric;
use tandem_grading::review::{Rank, Standing, State};

use super::{Meter, words};
use crate::limits::MAX_QUEUE;
use crate::routes;
use crate::store::Work;

/// Works in their order, around the one that is shown.
pub(crate) struct Queue {
    pub(crate) undo: String,
    pub(crate) entries: Vec<Entry>,
    pub(crate) open: usize,
    pub(crate) all: usize,
    /// True if all works are listed, and not only those that are open.
    pub(crate) shows_all: bool,
    /// Where the other list is.
    pub(crate) open_href: String,
    pub(crate) all_href: String,
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
pub(crate) struct Ordered {
    rows: Vec<Row>,
    names_hidden: bool,
}

/// What the order and the list need of a work.
struct Row {
    id: i64,
    name: String,
    draw: u32,
    state: State,
    /// Its place while it is not settled, and its place now.
    open_rank: Rank,
    rank: Rank,
    remark: &'static str,
    points: Option<String>,
}

impl Row {
    fn new(work: &Work, rubric: &Rubric) -> Self {
        let standing = Standing {
            rubric,
            model: work.graded.as_ref(),
            review: &work.review,
        };
        let state = standing.state();
        let finding = standing.first_finding().map(|f| f.kind);
        let second_look = work.review.second_look;
        let unsettled = match state {
            State::Approved | State::WithoutPoints => State::ToApprove,
            state => state,
        };
        let remark = match (finding, state) {
            (_, state) if second_look && !state.is_settled() => "a second look is wanted",
            (_, State::NotAttempted) => words::state(State::NotAttempted),
            (Some(kind), State::ToReview | State::Failed) => words::finding(kind),
            (_, State::ToApprove) => "",
            (_, state) => words::state(state),
        };
        Self {
            id: work.id,
            name: work.name.clone(),
            draw: work.draw,
            state,
            open_rank: Rank::new(unsettled, finding, second_look, work.draw),
            rank: Rank::new(state, finding, second_look, work.draw),
            remark,
            points: standing.total().map(|points| points.to_string()),
        }
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

impl Ordered {
    pub(crate) fn new(works: &[Work], rubric: &Rubric, names_hidden: bool) -> Self {
        let mut rows: Vec<Row> = works.iter().map(|work| Row::new(work, rubric)).collect();
        rows.sort_by_key(|row| (row.rank, row.id));
        Self { rows, names_hidden }
    }

    fn place(&self, id: i64) -> Option<usize> {
        self.rows.iter().position(|row| row.id == id)
    }

    /// The first work that needs a person, or the first of all.
    pub(crate) fn first(&self) -> Option<i64> {
        self.rows.first().map(|row| row.id)
    }

    /// The works before and after one, in the order of the list.
    pub(crate) fn beside(&self, id: i64) -> (Option<i64>, Option<i64>) {
        let Some(place) = self.place(id) else {
            return (None, self.first());
        };
        let before = place.checked_sub(1).map(|i| self.rows[i].id);
        (before, self.rows.get(place + 1).map(|row| row.id))
    }

    /// The next work after one that is not settled, from the place that it had before it was settled itself; after the
    /// last one the first.
    pub(crate) fn next_open(&self, id: i64) -> Option<i64> {
        let from = self.place(id).map(|i| (self.rows[i].open_rank, id))?;
        let open = || {
            self.rows
                .iter()
                .filter(|row| !row.state.is_settled() && row.id != id)
        };
        let after = open().find(|row| (row.rank, row.id) > from);
        after.or_else(|| open().next()).map(|row| row.id)
    }

    /// The list around a work.
    pub(crate) fn queue(&self, assignment: i64, current: i64, shows_all: bool) -> Queue {
        let is_listed = |row: &&Row| shows_all || !row.state.is_settled() || row.id == current;
        let listed: Vec<&Row> = self.rows.iter().filter(is_listed).collect();
        let place = listed.iter().position(|row| row.id == current).unwrap_or(0);
        let from = place
            .saturating_sub(MAX_QUEUE / 2)
            .min(listed.len().saturating_sub(MAX_QUEUE));
        let entries: Vec<Entry> = listed
            .iter()
            .skip(from)
            .take(MAX_QUEUE)
            .map(|row| self.entry(row, current, shows_all))
            .collect();
        let href = |all: bool| href(current, all);
        Queue {
            undo: routes::undo(assignment),
            unlisted: listed.len() - entries.len(),
            entries,
            open: self.count(|state| !state.is_settled()),
            all: self.rows.len(),
            shows_all,
            open_href: href(false),
            all_href: href(true),
        }
    }

    fn entry(&self, row: &Row, current: i64, shows_all: bool) -> Entry {
        Entry {
            id: row.id,
            href: href(row.id, shows_all),
            label: label(&row.name, row.draw, self.names_hidden),
            points: row.points.clone().unwrap_or_else(|| "–".to_owned()),
            remark: row.remark,
            is_current: row.id == current,
        }
    }

    fn count(&self, is_counted: impl Fn(State) -> bool) -> usize {
        self.rows.iter().filter(|row| is_counted(row.state)).count()
    }

    /// How many are how far.
    pub(crate) fn meter(&self) -> Meter {
        let all = self.rows.len();
        let approved = self.count(State::is_settled);
        let failed = self.count(|state| state == State::Failed);
        let review = self.count(|state| state == State::ToReview);
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
}

/// A work in one of the two lists.
pub(crate) fn href(id: i64, shows_all: bool) -> String {
    let work = routes::work(id);
    match shows_all {
        true => format!("{work}?list=all"),
        false => work,
    }
}
