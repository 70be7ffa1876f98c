//! Python.

use crate::draft::Draft;
use crate::page::{Page, Tag};
use crate::plan::{Correct, Empty, Readable, Shown, Style};
use crate::task::Aggregate;

/// The file's lines: function, then call.
pub(crate) fn write(draft: &mut Draft) -> Page {
    let mut page = Page::new("submission.py");
    let commented = matches!(draft.plan.shown, Shown::Both | Shown::NoCall);
    let docstring = draft.dice.chance(50);
    if commented && !docstring {
        page.push(Tag::Comment, format!("# {}", draft.comment));
    }
    let signature = format!(
        "def {}({}):",
        draft.names.function,
        draft.names.parameters().join(", ")
    );
    page.push(Tag::Signature, draft.spaced(&signature));
    if commented && docstring {
        page.push(Tag::Comment, format!("    \"\"\"{}\"\"\"", draft.comment));
    }
    body(draft, &mut page);
    call(draft, &mut page);
    page
}

fn body(draft: &mut Draft, page: &mut Page) {
    if draft.plan.readable == Readable::Dead && draft.dice.chance(50) {
        let line = draft
            .dice
            .pick(&["unused = 0", "print(\"test\")", "old = []", "flag = False"]);
        page.push(Tag::Dead, format!("    {line}"));
    }
    if draft.plan.correct == Correct::HardCoded {
        let value = draft.dice.pick(&["8", "12.5", "7", "3", "25", "4.5"]);
        let value = if draft.task.words() {
            "\"pear\""
        } else {
            value
        };
        page.push(Tag::Result, format!("    return {value}"));
    } else {
        match draft.plan.style {
            _ if draft.plan.correct == Correct::NoSelection => {
                let line = format!("    return {}", result(draft, &draft.names.list));
                page.push(Tag::Result, draft.spaced(&line));
            }
            Style::Expression => expression(draft, page),
            Style::Collect => collect(draft, page),
            Style::Tally => tally(draft, page),
        }
    }
    if draft.plan.readable == Readable::Dead && !page.lines.iter().any(|l| l.0 == Tag::Dead) {
        let name = draft.names.list.clone();
        page.push(Tag::Dead, format!("    return {name}"));
    }
}

fn expression(draft: &Draft, page: &mut Page) {
    let n = &draft.names;
    let list = match draft.plan.correct {
        Correct::SkipsFirst => format!("{}[1:]", n.list),
        Correct::SkipsLast => format!("{}[:-1]", n.list),
        _ => n.list.clone(),
    };
    let (element, test) = (&n.element, draft.test(&n.element));
    let line = format!(
        "    {} = [{element} for {element} in {list} if {test}]",
        n.selected
    );
    page.push(Tag::Condition, draft.spaced(&line));
    edge(draft, page, &format!("not {}", n.selected));
    let line = format!("    return {}", result(draft, &n.selected));
    page.push(Tag::Result, draft.spaced(&line));
}

fn header(draft: &Draft) -> String {
    let n = &draft.names;
    if !draft.plan.indexed {
        return format!("    for {} in {}:", n.element, n.list);
    }
    let range = match draft.plan.correct {
        Correct::SkipsFirst => format!("1, len({})", n.list),
        Correct::SkipsLast => format!("len({}) - 1", n.list),
        _ => format!("len({})", n.list),
    };
    format!("    for {} in range({range}):", n.index)
}

fn collect(draft: &Draft, page: &mut Page) {
    let n = &draft.names;
    let element = draft.element_in_loop();
    page.push(
        Tag::Local,
        draft.spaced(&format!("    {} = []", n.selected)),
    );
    page.push(Tag::Loop, draft.spaced(&header(draft)));
    let line = format!("        if {}:", draft.test(&element));
    page.push(Tag::Condition, draft.spaced(&line));
    page.push(
        Tag::Other,
        format!("            {}.append({element})", n.selected),
    );
    edge(draft, page, &format!("len({}) == 0", n.selected));
    let line = format!("    return {}", result(draft, &n.selected));
    page.push(Tag::Result, draft.spaced(&line));
}

fn tally(draft: &Draft, page: &mut Page) {
    let n = &draft.names;
    let element = draft.element_in_loop();
    let start = if draft.aggregate() == Aggregate::Product {
        1
    } else {
        0
    };
    let needs_total = draft.aggregate() != Aggregate::Count;
    if needs_total {
        page.push(
            Tag::Local,
            draft.spaced(&format!("    {} = {start}", n.total)),
        );
    }
    page.push(Tag::Local, draft.spaced(&format!("    {} = 0", n.count)));
    page.push(Tag::Loop, draft.spaced(&header(draft)));
    let line = format!("        if {}:", draft.test(&element));
    page.push(Tag::Condition, draft.spaced(&line));
    if needs_total {
        let step = match draft.aggregate() {
            Aggregate::Product => format!("{} *= {element}", n.total),
            Aggregate::Squares => format!("{} += {element} ** 2", n.total),
            Aggregate::Length => format!("{} += len({element})", n.total),
            _ => format!("{} += {element}", n.total),
        };
        page.push(Tag::Other, draft.spaced(&format!("            {step}")));
    }
    page.push(
        Tag::Other,
        draft.spaced(&format!("            {} += 1", n.count)),
    );
    edge(draft, page, &format!("{} == 0", n.count));
    let slash = slash(draft);
    let value = match draft.aggregate() {
        Aggregate::Mean => format!("{} {slash} {}", n.total, n.count),
        Aggregate::Count => n.count.clone(),
        _ => n.total.clone(),
    };
    page.push(Tag::Result, draft.spaced(&format!("    return {value}")));
}

fn slash(draft: &Draft) -> &'static str {
    match draft.plan.correct {
        Correct::WholeDivision => "//",
        _ => "/",
    }
}

fn edge(draft: &Draft, page: &mut Page, test: &str) {
    let value = match draft.plan.empty {
        Empty::Missing => return,
        Empty::Right => draft.nothing(),
        Empty::OtherValue => draft.other_value(),
    };
    page.push(Tag::Edge, draft.spaced(&format!("    if {test}:")));
    page.push(Tag::Other, format!("        return {value}"));
}

fn result(draft: &Draft, of: &str) -> String {
    match draft.aggregate() {
        Aggregate::Mean => format!("sum({of}) {} len({of})", slash(draft)),
        Aggregate::Sum => format!("sum({of})"),
        Aggregate::Product => format!("math.prod({of})"),
        Aggregate::Count => format!("len({of})"),
        Aggregate::Largest => format!("max({of})"),
        Aggregate::Smallest => format!("min({of})"),
        Aggregate::Spread => format!("max({of}) - min({of})"),
        Aggregate::First => format!("{of}[0]"),
        Aggregate::Last => format!("{of}[-1]"),
        Aggregate::Squares => format!("sum(v * v for v in {of})"),
        Aggregate::Longest => format!("max({of}, key=len)"),
        Aggregate::Shortest => format!("min({of}, key=len)"),
        Aggregate::Joined => format!("\" \".join({of})"),
        Aggregate::Length => format!("sum(len(v) for v in {of})"),
    }
}

fn call(draft: &mut Draft, page: &mut Page) {
    if page.lines.iter().any(|l| l.1.contains("math.")) {
        page.lines.insert(0, (Tag::Other, String::new()));
        page.lines.insert(0, (Tag::Other, "import math".to_owned()));
    }
    if matches!(draft.plan.shown, Shown::NoCall | Shown::Neither) {
        return;
    }
    let mut arguments = format!("[{}]", draft.elements.join(", "));
    if !draft.argument.is_empty() {
        arguments.push_str(&format!(", {}", draft.argument));
    }
    let call = format!("print({}({arguments}))", draft.names.function);
    for _ in 0..1 + draft.dice.below(2) {
        page.blank();
    }
    if draft.dice.chance(15) {
        page.push(Tag::Other, "if __name__ == \"__main__\":");
        page.push(Tag::Call, format!("    {call}"));
    } else {
        page.push(Tag::Call, call);
    }
}
