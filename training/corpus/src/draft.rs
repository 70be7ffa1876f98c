//! What the emitters of all languages share.

use crate::condition::condition;
use crate::dice::Dice;
use crate::names::Names;
use crate::plan::{Correct, Language, Plan, Readable};
use crate::task::{Aggregate, Task, empty_optional, wrong_return};

/// One submission about to be written.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) task: Task,
    pub(crate) plan: Plan,
    pub(crate) names: Names,
    /// Choices that carry no label.
    pub(crate) dice: Dice,
    /// What a comment says, without comment signs.
    pub(crate) comment: String,
    /// Elements of the call, and the second argument.
    pub(crate) elements: Vec<String>,
    pub(crate) argument: String,
}

impl Draft {
    pub(crate) fn new(task: Task, plan: Plan, varied: usize, mut dice: Dice) -> Self {
        let names = Names::draw(task, &plan, varied, &mut dice);
        let comment = comment(task, &names, &mut dice);
        let (elements, argument) = example(task, &mut dice);
        Self {
            task,
            plan,
            names,
            dice,
            comment,
            elements,
            argument,
        }
    }

    /// The test of `element` as the submission writes it.
    pub(crate) fn test(&self, element: &str) -> String {
        self.condition(element, self.plan.correct == Correct::Boundary)
    }

    /// The test as it should be, or as it is when `wrong`.
    pub(crate) fn condition(&self, element: &str, wrong: bool) -> String {
        let (select, language) = (self.task.select, self.plan.language);
        condition(select, language, element, &self.names.parameter, wrong)
    }

    /// What is computed, rightly or not.
    pub(crate) fn aggregate(&self) -> Aggregate {
        match self.plan.correct {
            Correct::WrongReturn => wrong_return(self.task.aggregate),
            _ => self.task.aggregate,
        }
    }

    /// The language's nothing.
    pub(crate) fn nothing(&self) -> &'static str {
        match self.plan.language {
            Language::Java if self.plan.optional => empty_optional(self.task),
            Language::Python => "None",
            Language::Java => "null",
            Language::R => "NA",
        }
    }

    /// The value that a wrong edge case returns.
    pub(crate) fn other_value(&self) -> &'static str {
        match self.task.aggregate {
            Aggregate::First
            | Aggregate::Last
            | Aggregate::Longest
            | Aggregate::Shortest
            | Aggregate::Joined
                if self.task.words() =>
            {
                "\"\""
            }
            _ => "0",
        }
    }

    /// The element inside a loop.
    pub(crate) fn element_in_loop(&self) -> String {
        if !self.plan.indexed {
            return self.names.element.clone();
        }
        let (list, index) = (&self.names.list, &self.names.index);
        format!("{list}[{index}]")
    }

    /// The line without spaces around operators, if that is the defect.
    pub(crate) fn spaced(&self, line: &str) -> String {
        if self.plan.readable != Readable::Cramped {
            return line.to_owned();
        }
        let start = line.len() - line.trim_start().len();
        let (indent, mut code) = (&line[..start], line[start..].to_owned());
        for sign in [
            "<-", "==", ">=", "<=", "!=", "+=", "=", "+", "/", ">", "<", "%", "*",
        ] {
            code = code.replace(&format!(" {sign} "), sign);
        }
        format!("{indent}{}", code.replace(", ", ","))
    }
}

fn comment(task: Task, names: &Names, dice: &mut Dice) -> String {
    let named = if names.parameter.is_empty() {
        "limit"
    } else {
        task.select.parameter().unwrap_or("limit")
    };
    let phrase = task.phrase(named);
    match dice.below(4) {
        0 => format!("Return {phrase}."),
        1 => format!("{}.", crate::task::capital(&phrase)),
        2 => format!("Computes {phrase}."),
        _ => phrase,
    }
}

const WORDS: [&str; 14] = [
    "pear", "apple", "plum", "kiwi", "banana", "fig", "lemon", "cherry", "grape", "olive", "mango",
    "peach", "date", "melon",
];

fn example(task: Task, dice: &mut Dice) -> (Vec<String>, String) {
    let length = 3 + dice.below(3);
    if task.words() {
        let mut words: Vec<String> = Vec::new();
        while words.len() < length {
            let word = format!("\"{}\"", dice.pick(&WORDS));
            if !words.contains(&word) {
                words.push(word);
            }
        }
        let argument = match task.select.parameter() {
            Some("size") => (3 + dice.below(3)).to_string(),
            _ => format!("\"{}\"", dice.pick(&["a", "e", "p", "l", "m"])),
        };
        return (words, argument);
    }
    let numbers = (0..length)
        .map(|_| {
            let sign = if dice.chance(20) { "-" } else { "" };
            format!("{sign}{}", 1 + dice.below(20))
        })
        .collect();
    let argument = match task.select.parameter() {
        Some("step") => (2 + dice.below(4)).to_string(),
        Some(_) => (2 + dice.below(9)).to_string(),
        None => String::new(),
    };
    (numbers, argument)
}
