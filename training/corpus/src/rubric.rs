//! The rubric of a task, in the form of the example course.

use crate::dice::Dice;
use crate::error::CorpusError;
use crate::task::Task;
use serde_json::{Value, json};
use tandem_grading::Rubric;

/// The criteria's ids, in the order of the labels.
pub(crate) const CRITERIA: [&str; 4] = ["correct", "empty", "readable", "shown"];

/// What varies between rubrics of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Points of each criterion.
    pub points: [u32; 4],
    wording: usize,
    guidelines: usize,
    tone: Option<&'static str>,
}

const GUIDELINES: [&str; 4] = [
    "First-semester course. Judge the code, not its length. Library functions are allowed.",
    "First course in programming. Library functions are allowed.",
    "Judge what the code does. Any style of loop is allowed.",
    "",
];
const TONES: [&str; 4] = [
    "friendly and direct",
    "encouraging",
    "brief and friendly",
    "direct",
];
const POINTS: [[u32; 4]; 5] = [
    [4, 2, 2, 2],
    [6, 2, 2, 2],
    [4, 4, 2, 2],
    [2, 2, 2, 2],
    [4, 2, 4, 2],
];

impl Shape {
    /// The rubric of the example course, for any task.
    #[must_use]
    pub fn standard() -> Self {
        Self {
            points: POINTS[0],
            wording: 0,
            guidelines: 0,
            tone: Some(TONES[0]),
        }
    }

    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let tone = dice.pick(&TONES);
        Self {
            points: dice.weighted(&[
                (60, POINTS[0]),
                (10, POINTS[1]),
                (10, POINTS[2]),
                (10, POINTS[3]),
                (10, POINTS[4]),
            ]),
            wording: dice.below(3),
            guidelines: dice.weighted(&[(50, 0), (20, 1), (15, 2), (15, 3)]),
            tone: (!dice.chance(15)).then_some(tone),
        }
    }

    /// The rubric of `task`.
    pub(crate) fn rubric(self, task: Task) -> Result<Rubric, CorpusError> {
        let mut text = json!({
            "id": task.id(),
            "title": task.title(),
            "language": "English",
            "task": self.task_text(task),
            "guidelines": GUIDELINES[self.guidelines],
            "criteria": self.criteria(task),
        });
        if let Some(tone) = self.tone {
            text["tone"] = json!(tone);
        }
        // JSON is YAML.
        Rubric::parse(&text.to_string()).map_err(|e| CorpusError::Refused {
            task: task.id(),
            reason: e.to_string(),
        })
    }

    fn task_text(self, task: Task) -> String {
        let parameter = task.select.parameter();
        let mut parameters = task.things().to_owned();
        if let Some(name) = parameter {
            parameters.push_str(&format!(", {name}"));
        }
        let function = task.id().replace('-', "_");
        let phrase = task.phrase(parameter.unwrap_or_default());
        match self.wording {
            0 => format!(
                "In a language of your choice write {function}({parameters}). It returns {phrase},\n\
                 or the language's \"nothing\" (None, null, NA) if there are none. Show one call."
            ),
            1 => format!(
                "Write a function {function}({parameters}) that returns {phrase}.\n\
                 If there are none it returns the language's \"nothing\" (None, null, NA). Show one call."
            ),
            _ => format!(
                "Write {function}({parameters}), which gives {phrase}, or None, null or NA if there are none.\n\
                 Explain it in a comment and show one call."
            ),
        }
    }

    fn criteria(self, task: Task) -> Value {
        let (noun, short) = (task.aggregate.noun(), task.select.short("the"));
        let [correct, empty, readable, shown] = self.points.map(f64::from);
        json!([
            {
                "id": CRITERIA[0], "title": "Correct result", "max_points": correct,
                "description": format!("{} of exactly the {} {short}.", crate::task::capital(noun), task.things()),
                "levels": [
                    {"label": "full", "points": correct, "description": "Right for every non-empty selection."},
                    {"label": "partial", "points": correct / 2.0, "description": "Wrong in one respect, such as >= for >."},
                    {"label": "none", "points": 0, "description": "Does not run or computes something else."},
                ],
            },
            {
                "id": CRITERIA[1], "title": "Empty selection", "max_points": empty,
                "description": format!("Nothing {short}."),
                "levels": [
                    {"label": "full", "points": empty, "description": "Returns the language's nothing."},
                    {"label": "partial", "points": empty / 2.0, "description": "Does not crash, returns another value."},
                    {"label": "none", "points": 0, "description": "Crashes or is not considered."},
                ],
            },
            {
                "id": CRITERIA[2], "title": "Readability", "max_points": readable, "step": readable / 4.0,
                "description": "Names say what they hold; no dead or repeated code.",
            },
            {
                "id": CRITERIA[3], "title": "Call and comment", "max_points": shown,
                "description": "One call is shown and one comment or docstring explains the function.",
                "levels": [
                    {"label": "both", "points": shown, "description": "Call and comment."},
                    {"label": "one", "points": shown / 2.0, "description": "Only one of them."},
                    {"label": "neither", "points": 0, "description": "Neither of them."},
                ],
            },
        ])
    }
}
