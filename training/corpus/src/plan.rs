//! What is wrong with one submission: its labels.

use crate::dice::Dice;
use crate::task::{Aggregate, Task, wrong_return};

/// A programming language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "they are names")]
pub enum Language {
    Python,
    Java,
    R,
}

/// Criterion `correct`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Correct {
    /// Nothing is wrong.
    Right,
    /// The test is wrong at its boundary, or the like.
    Boundary,
    /// The first element is never looked at.
    SkipsFirst,
    /// The last element is never looked at.
    SkipsLast,
    /// The decimals of a mean are lost.
    WholeDivision,
    /// Something else than what was asked for is returned.
    WrongReturn,
    /// All elements count.
    NoSelection,
    /// The answer of the example is returned.
    HardCoded,
}

/// Criterion `empty`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Empty {
    /// The language's nothing is returned.
    Right,
    /// Another value is returned.
    OtherValue,
    /// Not considered.
    Missing,
}

/// Criterion `readable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Readable {
    /// Nothing is wrong.
    Right,
    /// Names say nothing.
    PoorNames,
    /// Dead code.
    Dead,
    /// No spaces around operators.
    Cramped,
}

/// Criterion `shown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shown {
    /// Call and comment.
    Both,
    /// No comment.
    NoComment,
    /// No call.
    NoCall,
    /// Neither of them.
    Neither,
}

/// How the code goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Style {
    /// Selects in one expression.
    Expression,
    /// Selects in a loop.
    Collect,
    /// Counts in a loop and keeps nothing.
    Tally,
}

/// What is wrong with one submission, and how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Its language.
    pub language: Language,
    /// The result.
    pub correct: Correct,
    /// The empty selection.
    pub empty: Empty,
    /// Names and style.
    pub readable: Readable,
    /// Call and comment.
    pub shown: Shown,
    pub(crate) style: Style,
    /// Loops count positions.
    pub(crate) indexed: bool,
    /// Two Java files, or a notebook.
    pub(crate) parted: bool,
    /// A comment tries to instruct the grader.
    pub(crate) pleads: bool,
    /// Java's streams, ...
    pub(crate) streams: bool,
    /// ... which return an `Optional`.
    pub(crate) optional: bool,
    /// Notebooks show an output.
    pub(crate) outputs: bool,
}

impl Plan {
    /// A plan for a task: often one defect, sometimes none or several. With `varied` more ways to write
    /// it; without, no choice is spent on them.
    pub(crate) fn draw(task: Task, varied: bool, dice: &mut Dice) -> Self {
        let language =
            dice.weighted(&[(5, Language::Python), (3, Language::Java), (2, Language::R)]);
        let mut plan = Self {
            language,
            correct: Correct::Right,
            empty: Empty::Right,
            readable: Readable::Right,
            shown: Shown::Both,
            style: dice.pick(&[Style::Expression, Style::Collect, Style::Tally]),
            indexed: dice.chance(25),
            parted: dice.chance(12),
            pleads: false,
            streams: varied && dice.chance(60),
            optional: varied && dice.chance(60),
            outputs: varied && dice.chance(70),
        };
        let defects = dice.weighted(&[(12, 0), (55, 1), (25, 2), (8, 3)]);
        for _ in 0..defects {
            plan.worsen(dice);
        }
        plan.pleads = plan.shown == Shown::NoComment && dice.chance(12);
        plan.reconcile(task, dice);
        plan
    }

    fn worsen(&mut self, dice: &mut Dice) {
        match dice.weighted(&[(34, 0), (22, 1), (22, 2), (22, 3)]) {
            0 => {
                self.correct = dice.weighted(&[
                    (30, Correct::Boundary),
                    (12, Correct::SkipsFirst),
                    (12, Correct::SkipsLast),
                    (10, Correct::WholeDivision),
                    (14, Correct::WrongReturn),
                    (12, Correct::NoSelection),
                    (10, Correct::HardCoded),
                ]);
            }
            1 => self.empty = dice.pick(&[Empty::OtherValue, Empty::Missing, Empty::Missing]),
            2 => {
                self.readable = dice.weighted(&[
                    (5, Readable::PoorNames),
                    (3, Readable::Dead),
                    (3, Readable::Cramped),
                ]);
            }
            _ => {
                self.shown = dice.weighted(&[
                    (4, Shown::NoComment),
                    (4, Shown::NoCall),
                    (3, Shown::Neither),
                ]);
            }
        }
    }

    /// Takes back what does not go together.
    fn reconcile(&mut self, task: Task, dice: &mut Dice) {
        let tallies = [
            Aggregate::Mean,
            Aggregate::Sum,
            Aggregate::Product,
            Aggregate::Count,
            Aggregate::Squares,
            Aggregate::Length,
        ];
        if self.style == Style::Tally && !tallies.contains(&task.aggregate) {
            self.style = dice.pick(&[Style::Expression, Style::Collect]);
        }
        // Without streams Java's expression is a loop that collects.
        if self.language == Language::Java && self.style == Style::Expression && !self.streams {
            self.style = Style::Collect;
        }
        let division = task.aggregate == Aggregate::Mean && self.language != Language::Java;
        if self.correct == Correct::WholeDivision && !division {
            self.correct = Correct::Boundary;
        }
        if self.correct == Correct::WrongReturn && task.aggregate == Aggregate::Count {
            self.correct = Correct::NoSelection;
        }
        match self.correct {
            Correct::HardCoded | Correct::NoSelection => {
                self.empty = Empty::Missing;
                self.style = Style::Expression;
                self.indexed = false;
                if self.correct == Correct::HardCoded {
                    self.readable = Readable::Right;
                }
            }
            Correct::SkipsFirst | Correct::SkipsLast if self.style != Style::Expression => {
                self.indexed = true;
            }
            _ => {}
        }
        self.optional = self.optional
            && self.language == Language::Java
            && self.style == Style::Expression
            && !task.words()
            && !self.blind()
            && self.correct != Correct::WrongReturn
            && self.empty == Empty::Right
            && matches!(
                task.aggregate,
                Aggregate::Mean | Aggregate::Largest | Aggregate::Smallest
            );
        // R's first element of nothing is NA without a test.
        if self.language == Language::R
            && task.aggregate == Aggregate::First
            && self.empty == Empty::Missing
            && self.correct != Correct::HardCoded
            && self.correct != Correct::NoSelection
        {
            self.empty = Empty::Right;
        }
    }

    /// True if all elements count or none does.
    pub(crate) fn blind(&self) -> bool {
        matches!(self.correct, Correct::HardCoded | Correct::NoSelection)
    }

    /// True if an empty selection crashes it.
    pub(crate) fn crashes(&self, task: Task) -> bool {
        use Aggregate as A;
        let returned = match self.correct {
            Correct::WrongReturn => wrong_return(task.aggregate),
            _ => task.aggregate,
        };
        match self.language {
            Language::R => false,
            Language::Java => !matches!(
                returned,
                A::Mean | A::Sum | A::Product | A::Count | A::Squares | A::Length | A::Joined
            ),
            Language::Python => !matches!(
                returned,
                A::Sum | A::Product | A::Count | A::Squares | A::Length | A::Joined
            ),
        }
    }

    /// Quarters of a criterion's points: correct, empty, readable, shown.
    pub(crate) fn quarters(&self, task: Task) -> [u32; 4] {
        let correct = match self.correct {
            Correct::Right => 4,
            Correct::Boundary
            | Correct::SkipsFirst
            | Correct::SkipsLast
            | Correct::WholeDivision => 2,
            Correct::WrongReturn | Correct::NoSelection | Correct::HardCoded => 0,
        };
        let empty = match self.empty {
            Empty::Right => 4,
            Empty::OtherValue => 2,
            Empty::Missing if self.blind() || self.crashes(task) => 0,
            Empty::Missing => 2,
        };
        let readable = match self.readable {
            Readable::Right => 4,
            Readable::Cramped => 3,
            Readable::Dead => 2,
            Readable::PoorNames => 1,
        };
        let shown = match self.shown {
            Shown::Both => 4,
            Shown::NoComment | Shown::NoCall => 2,
            Shown::Neither => 0,
        };
        [correct, empty, readable, shown]
    }

    /// Labels of the defects, in the words of the model card.
    #[must_use]
    pub fn defects(&self) -> Vec<&'static str> {
        let mut out = Vec::new();
        match self.correct {
            Correct::Right => {}
            Correct::Boundary | Correct::SkipsFirst | Correct::SkipsLast => out.push("off_by_one"),
            Correct::WholeDivision | Correct::WrongReturn | Correct::NoSelection => {
                out.push("wrong_return");
            }
            Correct::HardCoded => out.push("hard_coded"),
        }
        if self.empty != Empty::Right {
            out.push("missing_edge_case");
        }
        match self.readable {
            Readable::Right => {}
            Readable::PoorNames => out.push("poor_naming"),
            Readable::Dead | Readable::Cramped => out.push("style"),
        }
        if matches!(self.shown, Shown::NoCall | Shown::Neither) {
            out.push("no_tests");
        }
        if matches!(self.shown, Shown::NoComment | Shown::Neither) {
            out.push("no_comment");
        }
        out
    }
}
