//! R.

use crate::condition::length;
use crate::draft::Draft;
use crate::page::{Page, Tag};
use crate::plan::{Correct, Empty, Language, Readable, Shown, Style};
use crate::task::Aggregate;

/// The file's lines: function, then call.
pub(crate) fn write(draft: &mut Draft) -> Page {
    let mut page = Page::new("submission.R");
    if matches!(draft.plan.shown, Shown::Both | Shown::NoCall) {
        page.push(Tag::Comment, format!("# {}", draft.comment));
    }
    let signature = format!(
        "{} <- function({}) {{",
        draft.names.function,
        draft.names.parameters().join(", ")
    );
    page.push(Tag::Signature, draft.spaced(&signature));
    if draft.plan.readable == Readable::Dead {
        let line = draft.dice.pick(&[
            "unused <- 0",
            "print(\"test\")",
            "old <- c()",
            "flag <- FALSE",
        ]);
        page.push(Tag::Dead, format!("  {line}"));
    }
    body(draft, &mut page);
    page.push(Tag::Other, "}");
    call(draft, &mut page);
    page
}

fn body(draft: &mut Draft, page: &mut Page) {
    let returns = draft.dice.chance(40);
    let value = match draft.plan.correct {
        Correct::HardCoded if draft.task.words() => "\"pear\"".to_owned(),
        Correct::HardCoded => draft
            .dice
            .pick(&["8", "12.5", "7", "3", "25", "4.5"])
            .to_owned(),
        Correct::NoSelection => result(draft, &draft.names.list),
        _ => match draft.plan.style {
            Style::Expression => expression(draft, page),
            Style::Collect => collect(draft, page),
            Style::Tally => tally(draft, page),
        },
    };
    let value = draft.spaced(&value);
    let line = if returns {
        format!("  return({value})")
    } else {
        format!("  {value}")
    };
    page.push(Tag::Result, line);
}

fn expression(draft: &Draft, page: &mut Page) -> String {
    let n = &draft.names;
    let list = match draft.plan.correct {
        Correct::SkipsFirst => {
            page.push(Tag::Loop, format!("  rest <- {}[-1]", n.list));
            "rest"
        }
        Correct::SkipsLast => {
            page.push(Tag::Loop, format!("  rest <- {0}[-length({0})]", n.list));
            "rest"
        }
        _ => n.list.as_str(),
    };
    let line = format!("  {} <- {list}[{}]", n.selected, draft.test(list));
    page.push(Tag::Condition, draft.spaced(&line));
    edge(draft, page, &format!("length({}) == 0", n.selected));
    result(draft, &n.selected)
}

fn header(draft: &Draft) -> String {
    let n = &draft.names;
    if !draft.plan.indexed {
        return format!("  for ({} in {}) {{", n.element, n.list);
    }
    let range = match draft.plan.correct {
        Correct::SkipsFirst => format!("2:length({})", n.list),
        Correct::SkipsLast => format!("1:(length({}) - 1)", n.list),
        _ => format!("seq_along({})", n.list),
    };
    format!("  for ({} in {range}) {{", n.index)
}

fn collect(draft: &Draft, page: &mut Page) -> String {
    let n = &draft.names;
    let element = draft.element_in_loop();
    page.push(
        Tag::Local,
        draft.spaced(&format!("  {} <- c()", n.selected)),
    );
    page.push(Tag::Loop, draft.spaced(&header(draft)));
    let line = format!("    if ({}) {{", draft.test(&element));
    page.push(Tag::Condition, draft.spaced(&line));
    let line = format!("      {0} <- c({0}, {element})", n.selected);
    page.push(Tag::Other, draft.spaced(&line));
    page.push(Tag::Other, "    }");
    page.push(Tag::Other, "  }");
    edge(draft, page, &format!("length({}) == 0", n.selected));
    result(draft, &n.selected)
}

fn tally(draft: &Draft, page: &mut Page) -> String {
    let n = &draft.names;
    let element = draft.element_in_loop();
    let aggregate = draft.aggregate();
    let start = if aggregate == Aggregate::Product {
        1
    } else {
        0
    };
    let needs_total = aggregate != Aggregate::Count;
    if needs_total {
        page.push(
            Tag::Local,
            draft.spaced(&format!("  {} <- {start}", n.total)),
        );
    }
    page.push(Tag::Local, draft.spaced(&format!("  {} <- 0", n.count)));
    page.push(Tag::Loop, draft.spaced(&header(draft)));
    let line = format!("    if ({}) {{", draft.test(&element));
    page.push(Tag::Condition, draft.spaced(&line));
    if needs_total {
        let added = match aggregate {
            Aggregate::Product => format!("* {element}"),
            Aggregate::Squares => format!("+ {element}^2"),
            Aggregate::Length => format!("+ {}", length(Language::R, &element)),
            _ => format!("+ {element}"),
        };
        let line = format!("      {0} <- {0} {added}", n.total);
        page.push(Tag::Other, draft.spaced(&line));
    }
    let line = format!("      {0} <- {0} + 1", n.count);
    page.push(Tag::Other, draft.spaced(&line));
    page.push(Tag::Other, "    }");
    page.push(Tag::Other, "  }");
    edge(draft, page, &format!("{} == 0", n.count));
    match aggregate {
        Aggregate::Mean => format!("{} {} {}", n.total, slash(draft), n.count),
        Aggregate::Count => n.count.clone(),
        _ => n.total.clone(),
    }
}

fn slash(draft: &Draft) -> &'static str {
    match draft.plan.correct {
        Correct::WholeDivision => "%/%",
        _ => "/",
    }
}

fn edge(draft: &Draft, page: &mut Page, test: &str) {
    let value = match draft.plan.empty {
        Empty::Missing => return,
        Empty::Right => draft.nothing(),
        Empty::OtherValue => draft.other_value(),
    };
    page.push(Tag::Edge, draft.spaced(&format!("  if ({test}) {{")));
    page.push(Tag::Other, format!("    return({value})"));
    page.push(Tag::Other, "  }");
}

fn result(draft: &Draft, of: &str) -> String {
    match draft.aggregate() {
        Aggregate::Mean if draft.plan.correct == Correct::WholeDivision => {
            format!("sum({of}) %/% length({of})")
        }
        Aggregate::Mean => format!("mean({of})"),
        Aggregate::Sum => format!("sum({of})"),
        Aggregate::Product => format!("prod({of})"),
        Aggregate::Count => format!("length({of})"),
        Aggregate::Largest => format!("max({of})"),
        Aggregate::Smallest => format!("min({of})"),
        Aggregate::Spread => format!("max({of}) - min({of})"),
        Aggregate::First => format!("{of}[1]"),
        Aggregate::Last => format!("{of}[length({of})]"),
        Aggregate::Squares => format!("sum({of}^2)"),
        Aggregate::Longest => format!("{of}[which.max(nchar({of}))]"),
        Aggregate::Shortest => format!("{of}[which.min(nchar({of}))]"),
        Aggregate::Joined => format!("paste({of}, collapse = \" \")"),
        Aggregate::Length => format!("sum(nchar({of}))"),
    }
}

fn call(draft: &mut Draft, page: &mut Page) {
    if matches!(draft.plan.shown, Shown::NoCall | Shown::Neither) {
        return;
    }
    let mut arguments = format!("c({})", draft.elements.join(", "));
    if !draft.argument.is_empty() {
        arguments.push_str(&format!(", {}", draft.argument));
    }
    let call = format!("{}({arguments})", draft.names.function);
    page.blank();
    if draft.dice.chance(40) {
        page.push(Tag::Call, format!("print({call})"));
    } else {
        page.push(Tag::Call, call);
    }
}
