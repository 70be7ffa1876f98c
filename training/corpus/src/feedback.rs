//! The reference feedback: what works, what to improve, one next step. No scores.

use crate::analysis::{other_name, tested};
use crate::draft::Draft;
use crate::page::{Page, Tag};
use crate::plan::{Correct, Empty, Readable, Shown};

/// What to improve and the step that fixes it.
type Advice = (String, String);

/// The feedback as Markdown.
pub(crate) fn answer(draft: &Draft, pages: &[Page]) -> String {
    let mut advice = Vec::new();
    advice.extend(on_correct(draft));
    advice.extend(on_empty(draft));
    advice.extend(on_readable(draft, pages));
    advice.extend(on_shown(draft));
    let works = works(draft);
    let Some((_, step)) = advice.first() else {
        let function = &draft.names.function;
        return format!(
            "**What works:** {works}\n\n**To improve:** Nothing stands out; the code does what was asked.\n\n\
             **Next step:** Try `{function}` with negative and repeated values."
        );
    };
    let improve: Vec<&str> = advice.iter().map(|a| a.0.as_str()).collect();
    format!(
        "**What works:** {works}\n\n**To improve:** {}\n\n**Next step:** {step}",
        improve.join(" ")
    )
}

fn works(draft: &Draft) -> String {
    let n = &draft.names;
    let (function, noun) = (&n.function, draft.task.aggregate.noun());
    let plan = &draft.plan;
    if plan.correct == Correct::Right {
        let test = draft.test(&tested(draft));
        return format!("`{function}` tests `{test}` and returns the {noun}, as the task asks.");
    }
    if plan.empty == Empty::Right {
        return format!(
            "`{function}` returns `{}` if nothing is selected.",
            draft.nothing()
        );
    }
    match (plan.readable, plan.shown) {
        (Readable::Right, _) => format!("`{function}` is easy to read."),
        (_, Shown::Both | Shown::NoComment) => format!("You show a call of `{function}`."),
        (_, Shown::NoCall) => format!("A comment says what `{function}` is for."),
        _ => format!("`{function}` has the parameters that were asked for."),
    }
}

fn on_correct(draft: &Draft) -> Option<Advice> {
    let n = &draft.names;
    let things = draft.task.things();
    let right = draft.condition(&tested(draft), false);
    Some(match draft.plan.correct {
        Correct::Right => return None,
        Correct::Boundary => {
            let wrong = draft.condition(&tested(draft), true);
            (
                format!("`{wrong}` picks the wrong {things}."),
                format!("Change it to `{right}`."),
            )
        }
        Correct::SkipsFirst => (
            format!("The first element of `{}` is skipped.", n.list),
            "Start at the first position.".to_owned(),
        ),
        Correct::SkipsLast => (
            format!("The last element of `{}` is skipped.", n.list),
            "Go on to the last position.".to_owned(),
        ),
        Correct::WholeDivision => (
            format!("Whole division in `{}` loses the decimals.", n.function),
            "Divide with `/`.".to_owned(),
        ),
        Correct::WrongReturn => (
            format!(
                "`{}` returns the {} where the {} was asked for.",
                n.function,
                draft.aggregate().noun(),
                draft.task.aggregate.noun()
            ),
            format!("Return the {}.", draft.task.aggregate.noun()),
        ),
        Correct::NoSelection => (
            format!("All of `{}` count, because nothing is selected.", n.list),
            format!("Keep only the {things} for which `{right}` holds."),
        ),
        Correct::HardCoded => (
            format!(
                "`{}` returns a fixed value whatever it is given.",
                n.function
            ),
            format!("Compute the result from `{}`.", n.list),
        ),
    })
}

fn on_empty(draft: &Draft) -> Option<Advice> {
    let nothing = draft.nothing();
    let step = format!("Return `{nothing}` if nothing is selected.");
    match draft.plan.empty {
        Empty::Right => None,
        Empty::OtherValue => Some((
            format!(
                "If nothing is selected you return `{}` instead of `{nothing}`.",
                draft.other_value()
            ),
            step,
        )),
        Empty::Missing if draft.plan.crashes(draft.task) && !draft.plan.blind() => {
            Some(("If nothing is selected the code crashes.".to_owned(), step))
        }
        Empty::Missing => Some((
            "The case that nothing is selected is missing.".to_owned(),
            step,
        )),
    }
}

fn on_readable(draft: &Draft, pages: &[Page]) -> Option<Advice> {
    let n = &draft.names;
    match draft.plan.readable {
        Readable::Right => None,
        Readable::PoorNames => {
            let other = other_name(draft, pages);
            Some((
                format!("Names such as `{}` and `{other}` say nothing.", n.list),
                format!("Give `{}` a name that says what it holds.", n.list),
            ))
        }
        Readable::Dead => {
            let line = pages
                .iter()
                .flat_map(|p| &p.lines)
                .find(|l| l.0 == Tag::Dead)?;
            Some((
                format!("`{}` has no use.", line.1.trim()),
                "Remove that line.".to_owned(),
            ))
        }
        Readable::Cramped => Some((
            format!("Spaces around operators are missing in `{}`.", n.function),
            "Put spaces around operators and after commas.".to_owned(),
        )),
    }
}

fn on_shown(draft: &Draft) -> Option<Advice> {
    let function = &draft.names.function;
    match draft.plan.shown {
        Shown::Both => None,
        Shown::NoComment => Some((
            format!("No comment explains `{function}`."),
            format!("Add one sentence above `{function}`."),
        )),
        Shown::NoCall => Some((
            format!("There is no call of `{function}`."),
            format!("Show one call of `{function}` with its result."),
        )),
        Shown::Neither => Some((
            format!("`{function}` has neither a comment nor a call."),
            format!("Add one sentence above `{function}` and show one call."),
        )),
    }
}
