//! Identifiers.

use crate::dice::Dice;
use crate::plan::{Language, Plan, Readable};
use crate::task::Task;

/// The identifiers of one submission.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) function: String,
    pub(crate) list: String,
    pub(crate) parameter: String,
    pub(crate) element: String,
    pub(crate) index: String,
    pub(crate) selected: String,
    pub(crate) total: String,
    pub(crate) count: String,
    /// The Java class.
    pub(crate) class: String,
}

const LISTS: [&str; 6] = ["numbers", "values", "data", "items", "series", "samples"];
const WORD_LISTS: [&str; 5] = ["words", "texts", "names", "terms", "tokens"];
const ELEMENTS: [&str; 6] = ["number", "value", "n", "item", "current", "num"];
const WORD_ELEMENTS: [&str; 5] = ["word", "text", "w", "entry", "term"];
const SELECTED: [&str; 8] = [
    "selected", "kept", "matching", "chosen", "found", "result", "filtered", "hits",
];
const TOTALS: [&str; 5] = ["total", "running", "accumulated", "so_far", "amount"];
const COUNTS: [&str; 5] = ["count", "how_many", "seen", "counter", "hit_count"];
const POOR: [&str; 14] = [
    "a", "b", "c", "d", "l", "x", "y", "z", "q", "tmp", "foo", "aa", "xx", "v1",
];

const VERBS: [&str; 16] = [
    "compute",
    "get",
    "find",
    "calc",
    "calculate",
    "determine",
    "my",
    "task",
    "exercise",
    "solve",
    "make",
    "return",
    "give",
    "search",
    "collect",
    "derive",
];
const ENDINGS: [&str; 12] = [
    "", "", "", "of_list", "safe", "v2", "new", "all", "for", "final", "simple", "in_array",
];
const VARIED_LISTS: [&str; 36] = [
    "temperatures",
    "heights",
    "prices",
    "weights",
    "ages",
    "lengths",
    "distances",
    "readings",
    "speeds",
    "levels",
    "years",
    "costs",
    "inputs",
    "amounts",
    "widths",
    "times",
    "sizes",
    "depths",
    "sales",
    "steps",
    "measurements",
    "observations",
    "population",
    "balances",
    "fees",
    "incomes",
    "delays",
    "masses",
    "volumes",
    "counts",
    "ratios",
    "sums",
    "durations",
    "voltages",
    "areas",
    "angles",
];
const VARIED_WORD_LISTS: [&str; 16] = [
    "cities",
    "fruits",
    "animals",
    "colours",
    "titles",
    "countries",
    "labels",
    "phrases",
    "strings",
    "plants",
    "rivers",
    "tools",
    "dishes",
    "songs",
    "books",
    "streets",
];
const ADJECTIVES: [&str; 14] = [
    "big",
    "good",
    "picked",
    "valid",
    "right",
    "wanted",
    "relevant",
    "remaining",
    "usable",
    "accepted",
    "only",
    "passing",
    "true",
    "inner",
];
const VARIED_TOTALS: [&str; 12] = [
    "acc",
    "sum_so_far",
    "grand_total",
    "partial",
    "collected",
    "outcome",
    "built",
    "tally",
    "whole",
    "gathered",
    "aggregate",
    "combined",
];
const VARIED_COUNTS: [&str; 10] = [
    "n_found",
    "num_hits",
    "quantity",
    "occurrences",
    "n_kept",
    "number_found",
    "matches",
    "n_selected",
    "times_seen",
    "size_kept",
];
const VARIED_LIMITS: [&str; 8] = [
    "threshold",
    "bound",
    "cutoff",
    "target",
    "barrier",
    "reference",
    "edge",
    "given",
];
const VARIED_LETTERS: [&str; 6] = ["glyph", "character", "symbol", "piece", "part", "sign"];
const VARIED_POOR: [&str; 20] = [
    "e", "f", "g", "h", "m", "o", "p", "r", "s", "t", "u", "w", "var1", "thing", "stuff", "bla",
    "bb", "zz", "xyz", "abc",
];

impl Names {
    /// Names for a submission; in `varied` of 100 cases other ones than the task and the usual habits
    /// suggest, so that a model must look at them.
    pub(crate) fn draw(task: Task, plan: &Plan, varied: usize, dice: &mut Dice) -> Self {
        let asked = task.select.parameter().unwrap_or("");
        let plain = dice.chance(60);
        let list = if task.words() {
            if plain {
                "words"
            } else {
                dice.pick(&WORD_LISTS)
            }
        } else if plain {
            "numbers"
        } else {
            dice.pick(&LISTS)
        };
        let element = dice.pick(if task.words() {
            &WORD_ELEMENTS[..]
        } else {
            &ELEMENTS[..]
        });
        let mut selected = dice.pick(&SELECTED);
        if selected == "result" && dice.chance(50) {
            selected = "selected";
        }
        let camel =
            plan.language == Language::Java || (plan.language == Language::R && dice.chance(20));
        let case = |text: &str| {
            if camel {
                camel_case(text)
            } else {
                text.to_owned()
            }
        };
        let mut names = Self {
            function: case(&task.id().replace('-', "_")),
            list: list.to_owned(),
            parameter: asked.to_owned(),
            element: element.to_owned(),
            index: dice
                .pick(&["i", "i", "i", "j", "k", "index", "position"])
                .to_owned(),
            selected: selected.to_owned(),
            total: case(dice.pick(&TOTALS)),
            count: case(dice.pick(&COUNTS)),
            class: crate::task::capital(&camel_case(&task.id().replace('-', "_"))),
        };
        // No choice is made where none varies, so that the rest of the choices stay.
        let varies = varied > 0 && dice.chance(varied);
        if varies {
            names.vary(task, camel, dice);
        }
        if plan.readable == Readable::PoorNames {
            names.spoil(asked, varies, dice);
        }
        names
    }

    fn vary(&mut self, task: Task, camel: bool, dice: &mut Dice) {
        let case = |text: &str| {
            if camel {
                camel_case(text)
            } else {
                text.to_owned()
            }
        };
        let core = match dice.below(5) {
            0 => task.aggregate.word().to_owned(),
            1 => task.select.word().to_owned(),
            2 => dice
                .pick(&["result", "answer", "summary", "value_of", "it", "items"])
                .to_owned(),
            _ => task.id().replace('-', "_"),
        };
        let mut function = format!("{}_{core}", dice.pick(&VERBS));
        let ending = dice.pick(&ENDINGS);
        if !ending.is_empty() {
            function = format!("{function}_{ending}");
        }
        if dice.chance(80) {
            self.function = case(&function);
            self.class = crate::task::capital(&camel_case(&function));
        }
        let lists = if task.words() {
            &VARIED_WORD_LISTS[..]
        } else {
            &VARIED_LISTS[..]
        };
        if dice.chance(80) {
            self.list = dice.pick(lists).to_owned();
        }
        self.selected = case(&format!("{}_{}", dice.pick(&ADJECTIVES), self.list));
        self.total = case(dice.pick(&VARIED_TOTALS));
        self.count = case(dice.pick(&VARIED_COUNTS));
        if dice.chance(50) {
            self.element = case(&format!(
                "one_{}",
                dice.pick(&["item", "entry", "thing", "piece"])
            ));
        }
        if !self.parameter.is_empty() && dice.chance(70) {
            let letters = task.words() && task.select.parameter() == Some("letter");
            let from = if letters {
                &VARIED_LETTERS[..]
            } else {
                &VARIED_LIMITS[..]
            };
            self.parameter = dice.pick(from).to_owned();
        }
    }

    fn spoil(&mut self, asked: &str, varies: bool, dice: &mut Dice) {
        let mut pool = POOR.to_vec();
        if varies {
            pool.extend(VARIED_POOR);
        }
        let mut take = || pool.remove(dice.below(pool.len())).to_owned();
        self.list = take();
        if !asked.is_empty() {
            self.parameter = take();
        }
        self.element = take();
        self.selected = take();
        self.total = take();
        self.count = take();
    }

    /// The parameters, as they are called.
    pub(crate) fn parameters(&self) -> Vec<&str> {
        let mut out = vec![self.list.as_str()];
        if !self.parameter.is_empty() {
            out.push(&self.parameter);
        }
        out
    }
}

/// `so_far` to `soFar`.
pub(crate) fn camel_case(text: &str) -> String {
    let mut parts = text.split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + &crate::task::capital(part))
}
