//! Tasks: a selection and an aggregate, and which of them are never trained on.

/// Which elements count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "`Select::phrase` says what each means")]
pub enum Select {
    Above,
    Below,
    AtLeast,
    AtMost,
    Even,
    Odd,
    Positive,
    Negative,
    Multiple,
    Different,
    Longer,
    Shorter,
    Starting,
    Containing,
    Ending,
}

/// What is made of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "`Aggregate::phrase` says what each means")]
pub enum Aggregate {
    Mean,
    Sum,
    Product,
    Count,
    Largest,
    Smallest,
    Spread,
    First,
    Last,
    Squares,
    Longest,
    Shortest,
    Joined,
    Length,
}

/// A task template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Task {
    /// Which elements count.
    pub select: Select,
    /// What is made of them.
    pub aggregate: Aggregate,
}

/// Whether a task may be trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// It may.
    Train,
    /// Never.
    Heldout,
}

/// How far a held-out task is from the tasks of the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// It is trained on.
    Trained,
    /// Selection and aggregate are trained on, but not together.
    NewPair,
    /// The selection is not trained on at all.
    NewSelection,
}

use Aggregate as A;
use Select as S;

const NUMBER_SELECTS: [S; 10] = [
    S::Above,
    S::Below,
    S::AtLeast,
    S::AtMost,
    S::Even,
    S::Odd,
    S::Positive,
    S::Negative,
    S::Multiple,
    S::Different,
];
const WORD_SELECTS: [S; 5] = [S::Longer, S::Shorter, S::Starting, S::Containing, S::Ending];
const NUMBER_AGGREGATES: [A; 10] = [
    A::Mean,
    A::Sum,
    A::Product,
    A::Count,
    A::Largest,
    A::Smallest,
    A::Spread,
    A::First,
    A::Last,
    A::Squares,
];
const WORD_AGGREGATES: [A; 7] = [
    A::Count,
    A::First,
    A::Last,
    A::Longest,
    A::Shortest,
    A::Joined,
    A::Length,
];
/// Selections that no training task uses.
const UNSEEN: [S; 2] = [S::Different, S::Ending];

impl Task {
    /// All task templates, in a fixed order.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let pairs = |selects: &[Select], aggregates: &[Aggregate]| -> Vec<Self> {
            let of = |select: &Select| {
                let select = *select;
                let task = move |aggregate: &Aggregate| Self {
                    select,
                    aggregate: *aggregate,
                };
                aggregates.iter().map(task).collect::<Vec<_>>()
            };
            selects.iter().flat_map(of).collect()
        };
        let mut all = pairs(&NUMBER_SELECTS, &NUMBER_AGGREGATES);
        all.extend(pairs(&WORD_SELECTS, &WORD_AGGREGATES));
        all
    }

    /// The tasks of one side.
    #[must_use]
    pub fn of(split: Split) -> Vec<Self> {
        let mut tasks = Self::all();
        tasks.retain(|task| (task.tier() == Tier::Trained) == (split == Split::Train));
        tasks
    }

    /// How far it is from the training. Mean above a limit, the task of the example course, is not
    /// trained on; of the others about every tenth pair.
    #[must_use]
    pub fn tier(self) -> Tier {
        if UNSEEN.contains(&self.select) {
            return Tier::NewSelection;
        }
        let mean_above = self.select == S::Above && self.aggregate == A::Mean;
        let number = self.select as usize * 3 + self.aggregate as usize * 5;
        if mean_above || number % 11 == 7 {
            Tier::NewPair
        } else {
            Tier::Trained
        }
    }

    /// Such as `mean-above`.
    #[must_use]
    pub fn id(self) -> String {
        format!("{}-{}", self.aggregate.word(), self.select.word())
    }

    /// True if the elements are words.
    #[must_use]
    pub fn words(self) -> bool {
        WORD_SELECTS.contains(&self.select)
    }

    /// `numbers` or `words`.
    pub(crate) fn things(self) -> &'static str {
        if self.words() { "words" } else { "numbers" }
    }

    /// "the mean of all numbers greater than limit".
    pub(crate) fn phrase(self, parameter: &str) -> String {
        let of = format!("all {} {}", self.things(), self.select.phrase(parameter));
        match self.aggregate {
            A::Joined => format!("one text of {of}, joined with spaces"),
            other => format!("the {} {of}", other.phrase()),
        }
    }

    /// "Mean above a limit".
    pub(crate) fn title(self) -> String {
        format!(
            "{} {}",
            capital(self.aggregate.noun()),
            self.select.short("a")
        )
    }
}

impl Select {
    pub(crate) fn word(self) -> &'static str {
        match self {
            S::Above => "above",
            S::Below => "below",
            S::AtLeast => "from",
            S::AtMost => "up_to",
            S::Even => "even",
            S::Odd => "odd",
            S::Positive => "positive",
            S::Negative => "negative",
            S::Multiple => "multiples",
            S::Different => "other_than",
            S::Longer => "longer",
            S::Shorter => "shorter",
            S::Starting => "starting",
            S::Containing => "containing",
            S::Ending => "ending",
        }
    }

    /// What the second parameter is called; `None` if there is none.
    pub(crate) fn parameter(self) -> Option<&'static str> {
        match self {
            S::Above | S::Below | S::AtLeast | S::AtMost => Some("limit"),
            S::Multiple => Some("step"),
            S::Different => Some("value"),
            S::Longer | S::Shorter => Some("size"),
            S::Starting | S::Containing | S::Ending => Some("letter"),
            S::Even | S::Odd | S::Positive | S::Negative => None,
        }
    }

    fn phrase(self, p: &str) -> String {
        match self {
            S::Above => format!("greater than {p}"),
            S::Below => format!("less than {p}"),
            S::AtLeast => format!("of at least {p}"),
            S::AtMost => format!("of at most {p}"),
            S::Even => "that are even".to_owned(),
            S::Odd => "that are odd".to_owned(),
            S::Positive => "greater than zero".to_owned(),
            S::Negative => "less than zero".to_owned(),
            S::Multiple => format!("that are multiples of {p}"),
            S::Different => format!("that differ from {p}"),
            S::Longer => format!("longer than {p}"),
            S::Shorter => format!("shorter than {p}"),
            S::Starting => format!("that start with {p}"),
            S::Containing => format!("that contain {p}"),
            S::Ending => format!("that end with {p}"),
        }
    }

    /// "above a limit", with the article that is asked for.
    pub(crate) fn short(self, article: &str) -> String {
        match self {
            S::Above => format!("above {article} limit"),
            S::Below => format!("below {article} limit"),
            S::AtLeast => format!("from {article} limit up"),
            S::AtMost => format!("up to {article} limit"),
            S::Even => "among even numbers".to_owned(),
            S::Odd => "among odd numbers".to_owned(),
            S::Positive => "among positive numbers".to_owned(),
            S::Negative => "among negative numbers".to_owned(),
            S::Multiple => format!("among multiples of {article} step"),
            S::Different => format!("other than {article} value"),
            S::Longer => format!("longer than {article} size"),
            S::Shorter => format!("shorter than {article} size"),
            S::Starting => format!("starting with {article} letter"),
            S::Containing => format!("containing {article} letter"),
            S::Ending => format!("ending with {article} letter"),
        }
    }
}

impl Aggregate {
    pub(crate) fn word(self) -> &'static str {
        match self {
            A::Mean => "mean",
            A::Sum => "sum",
            A::Product => "product",
            A::Count => "count",
            A::Largest => "largest",
            A::Smallest => "smallest",
            A::Spread => "spread",
            A::First => "first",
            A::Last => "last",
            A::Squares => "squares",
            A::Longest => "longest",
            A::Shortest => "shortest",
            A::Joined => "joined",
            A::Length => "length",
        }
    }

    /// As a thing that code computes: "sum of squares".
    pub(crate) fn noun(self) -> &'static str {
        match self {
            A::Spread => "difference",
            A::Squares => "sum of squares",
            A::Length => "total length",
            A::Joined => "joined text",
            other => other.word(),
        }
    }

    fn phrase(self) -> &'static str {
        match self {
            A::Mean => "mean of",
            A::Sum => "sum of",
            A::Product => "product of",
            A::Count => "count of",
            A::Largest => "largest of",
            A::Smallest => "smallest of",
            A::Spread => "difference between the largest and the smallest of",
            A::First => "first of",
            A::Last => "last of",
            A::Squares => "sum of the squares of",
            A::Longest => "longest of",
            A::Shortest => "shortest of",
            A::Joined => "text of",
            A::Length => "total length of",
        }
    }
}

/// The text with a capital first letter.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

/// What is returned instead of what was asked for.
pub(crate) fn wrong_return(asked: Aggregate) -> Aggregate {
    match asked {
        Aggregate::Mean => Aggregate::Sum,
        Aggregate::Sum | Aggregate::Product | Aggregate::Length | Aggregate::Count => {
            Aggregate::Count
        }
        Aggregate::Largest => Aggregate::Smallest,
        Aggregate::Smallest | Aggregate::Spread => Aggregate::Largest,
        Aggregate::First => Aggregate::Last,
        Aggregate::Last => Aggregate::First,
        Aggregate::Squares => Aggregate::Sum,
        Aggregate::Longest => Aggregate::Shortest,
        Aggregate::Shortest => Aggregate::Longest,
        Aggregate::Joined => Aggregate::First,
    }
}

/// The nothing of the streams that return an `Optional`.
pub(crate) fn empty_optional(task: Task) -> &'static str {
    let whole = matches!(task.select, Select::Even | Select::Odd | Select::Multiple);
    if whole && task.aggregate != Aggregate::Mean {
        "OptionalInt.empty()"
    } else {
        "OptionalDouble.empty()"
    }
}
