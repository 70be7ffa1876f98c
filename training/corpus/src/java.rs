//! Java.

use crate::condition::length;
use crate::draft::Draft;
use crate::page::{Page, Tag};
use crate::plan::{Correct, Empty, Language, Readable, Shown, Style};
use crate::task::{Aggregate, Select, empty_optional};

/// One file, or two if the plan is parted and a call is shown.
pub(crate) fn write(draft: &mut Draft) -> Vec<Page> {
    let class = draft.names.class.clone();
    let called = matches!(draft.plan.shown, Shown::Both | Shown::NoComment);
    let apart = draft.plan.parted && called;
    let mut page = Page::new(&format!("{class}.java"));
    page.push(Tag::Other, format!("public class {class} {{"));
    if matches!(draft.plan.shown, Shown::Both | Shown::NoCall) {
        let comment = match draft.dice.below(3) {
            0 => format!("    // {}", draft.comment),
            _ => format!("    /** {} */", draft.comment),
        };
        page.push(Tag::Comment, comment);
    }
    method(draft, &mut page);
    let mut pages = Vec::new();
    if called {
        let prefix = if apart {
            format!("{class}.")
        } else {
            String::new()
        };
        let mut program = Page::new("Program.java");
        program.push(Tag::Other, "public class Program {");
        let into = if apart { &mut program } else { &mut page };
        if !apart {
            into.blank();
        }
        main_method(draft, into, &prefix);
        program.push(Tag::Other, "}");
        if apart {
            pages.push(program);
        }
    }
    page.push(Tag::Other, "}");
    imports(&mut page);
    pages.insert(0, page);
    // The grading orders files by their names.
    pages.sort_by(|a, b| a.name.cmp(&b.name));
    pages
}

fn imports(page: &mut Page) {
    let uses = |word: &str| page.lines.iter().any(|l| l.1.contains(word));
    let mut lines = Vec::new();
    for class in [
        "ArrayList",
        "Arrays",
        "Collections",
        "Comparator",
        "List",
        "OptionalDouble",
        "OptionalInt",
    ] {
        let returned = class.starts_with("Optional") && uses(&format!("{class} "));
        if returned || uses(&format!("{class}<")) || uses(&format!("{class}.")) {
            lines.push((Tag::Other, format!("import java.util.{class};")));
        }
    }
    if !lines.is_empty() {
        lines.push((Tag::Other, String::new()));
    }
    page.lines.splice(0..0, lines);
}

/// Primitive and boxed type of an element.
fn element_type(draft: &Draft) -> (&'static str, &'static str) {
    match draft.task.select {
        _ if draft.task.words() => ("String", "String"),
        Select::Even | Select::Odd | Select::Multiple => ("int", "Integer"),
        _ => ("double", "Double"),
    }
}

fn parameter_type(draft: &Draft) -> &'static str {
    match draft.task.select.parameter() {
        Some("letter") => "String",
        Some("size") => "int",
        _ => element_type(draft).0,
    }
}

fn return_type(draft: &Draft) -> &'static str {
    match draft.task.aggregate {
        _ if draft.plan.optional => empty_optional(draft.task).trim_end_matches(".empty()"),
        Aggregate::Mean => "Double",
        Aggregate::Count | Aggregate::Length => "Integer",
        _ => element_type(draft).1,
    }
}

fn method(draft: &mut Draft, page: &mut Page) {
    let n = draft.names.clone();
    let mut parameters = format!("{}[] {}", element_type(draft).0, n.list);
    if !n.parameter.is_empty() {
        parameters.push_str(&format!(", {} {}", parameter_type(draft), n.parameter));
    }
    let signature = format!(
        "    static {} {}({parameters}) {{",
        return_type(draft),
        n.function
    );
    page.push(Tag::Signature, draft.spaced(&signature));
    if draft.plan.readable == Readable::Dead {
        let line = draft.dice.pick(&[
            "int unused = 0;",
            "System.out.println(\"test\");",
            "boolean flag = false;",
            "String old = \"\";",
        ]);
        page.push(Tag::Dead, format!("        {line}"));
    }
    match draft.plan.correct {
        Correct::HardCoded => {
            let value = match return_type(draft) {
                "String" => "\"pear\"",
                "Integer" => draft.dice.pick(&["3", "8", "25"]),
                _ => draft.dice.pick(&["8.5", "12.0", "4.5"]),
            };
            page.push(Tag::Result, format!("        return {value};"));
        }
        Correct::NoSelection => no_selection(draft, page),
        _ if draft.plan.style == Style::Tally => tally(draft, page),
        _ if draft.plan.style == Style::Expression => stream(draft, page),
        _ => collect(draft, page),
    }
    page.push(Tag::Other, "    }");
}

fn header(draft: &Draft) -> String {
    let n = &draft.names;
    if !draft.plan.indexed {
        return format!(
            "        for ({} {} : {}) {{",
            element_type(draft).0,
            n.element,
            n.list
        );
    }
    let (i, list) = (&n.index, &n.list);
    let (from, to) = match draft.plan.correct {
        Correct::SkipsFirst => (1, ""),
        Correct::SkipsLast => (0, " - 1"),
        _ => (0, ""),
    };
    format!("        for (int {i} = {from}; {i} < {list}.length{to}; {i}++) {{")
}

fn no_selection(draft: &Draft, page: &mut Page) {
    let n = &draft.names;
    let (_, boxed) = element_type(draft);
    let line = format!("        List<{boxed}> {} = new ArrayList<>();", n.selected);
    page.push(Tag::Local, draft.spaced(&line));
    page.push(Tag::Loop, draft.spaced(&header(draft)));
    let line = format!(
        "            {}.add({});",
        n.selected,
        draft.element_in_loop()
    );
    page.push(Tag::Other, line);
    page.push(Tag::Other, "        }");
    let line = format!("        return {};", result(draft));
    page.push(Tag::Result, draft.spaced(&line));
}

fn stream(draft: &Draft, page: &mut Page) {
    let n = &draft.names;
    let (plain, boxed) = element_type(draft);
    let part = match draft.plan.correct {
        Correct::SkipsFirst => ".skip(1)".to_owned(),
        Correct::SkipsLast => format!(".limit({}.length - 1)", n.list),
        _ => String::new(),
    };
    let (list, element, test) = (&n.list, &n.element, draft.test(&n.element));
    let kept = format!("Arrays.stream({list}){part}.filter({element} -> {test})");
    if draft.plan.optional {
        let end = match draft.task.aggregate {
            Aggregate::Mean => "average",
            Aggregate::Largest => "max",
            _ => "min",
        };
        let line = format!("        return {kept}.{end}();");
        page.push(Tag::Result, draft.spaced(&line));
        return;
    }
    let boxing = if plain == boxed { "" } else { ".boxed()" };
    let line = format!(
        "        List<{boxed}> {} = {kept}{boxing}.toList();",
        n.selected
    );
    page.push(Tag::Condition, draft.spaced(&line));
    edge(draft, page, &format!("{}.isEmpty()", n.selected));
    let line = format!("        return {};", result(draft));
    page.push(Tag::Result, draft.spaced(&line));
}

fn collect(draft: &Draft, page: &mut Page) {
    let n = &draft.names;
    let (_, boxed) = element_type(draft);
    let element = draft.element_in_loop();
    let line = format!("        List<{boxed}> {} = new ArrayList<>();", n.selected);
    page.push(Tag::Local, draft.spaced(&line));
    page.push(Tag::Loop, draft.spaced(&header(draft)));
    let line = format!("            if ({}) {{", draft.test(&element));
    page.push(Tag::Condition, draft.spaced(&line));
    page.push(
        Tag::Other,
        format!("                {}.add({element});", n.selected),
    );
    page.push(Tag::Other, "            }");
    page.push(Tag::Other, "        }");
    edge(draft, page, &format!("{}.isEmpty()", n.selected));
    let line = format!("        return {};", result(draft));
    page.push(Tag::Result, draft.spaced(&line));
}

fn tally(draft: &Draft, page: &mut Page) {
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
        let kind = match aggregate {
            Aggregate::Mean => "double",
            Aggregate::Length => "int",
            _ => element_type(draft).0,
        };
        let line = format!("        {kind} {} = {start};", n.total);
        page.push(Tag::Local, draft.spaced(&line));
    }
    page.push(
        Tag::Local,
        draft.spaced(&format!("        int {} = 0;", n.count)),
    );
    page.push(Tag::Loop, draft.spaced(&header(draft)));
    let line = format!("            if ({}) {{", draft.test(&element));
    page.push(Tag::Condition, draft.spaced(&line));
    if needs_total {
        let step = match aggregate {
            Aggregate::Product => format!("*= {element}"),
            Aggregate::Squares => format!("+= {element} * {element}"),
            Aggregate::Length => format!("+= {}", length(Language::Java, &element)),
            _ => format!("+= {element}"),
        };
        let line = format!("                {} {step};", n.total);
        page.push(Tag::Other, draft.spaced(&line));
    }
    page.push(Tag::Other, format!("                {}++;", n.count));
    page.push(Tag::Other, "            }");
    page.push(Tag::Other, "        }");
    edge(draft, page, &format!("{} == 0", n.count));
    let value = match aggregate {
        Aggregate::Mean => format!("{} / {}", n.total, n.count),
        Aggregate::Count => n.count.clone(),
        _ => n.total.clone(),
    };
    page.push(
        Tag::Result,
        draft.spaced(&format!("        return {value};")),
    );
}

fn edge(draft: &Draft, page: &mut Page, test: &str) {
    let value = match draft.plan.empty {
        Empty::Missing => return,
        Empty::Right => draft.nothing(),
        Empty::OtherValue if return_type(draft) == "Double" => "0.0",
        Empty::OtherValue => draft.other_value(),
    };
    page.push(Tag::Edge, draft.spaced(&format!("        if ({test}) {{")));
    page.push(Tag::Other, format!("            return {value};"));
    page.push(Tag::Other, "        }");
}

fn result(draft: &Draft) -> String {
    let of = &draft.names.selected;
    let (plain, boxed) = element_type(draft);
    let sum = if plain == "int" {
        ".mapToInt(Integer::intValue).sum()"
    } else {
        ".mapToDouble(Double::doubleValue).sum()"
    };
    match draft.aggregate() {
        Aggregate::Mean if plain == "int" => format!("(double) {of}.stream(){sum} / {of}.size()"),
        Aggregate::Mean => format!("{of}.stream(){sum} / {of}.size()"),
        Aggregate::Sum => format!("{of}.stream(){sum}"),
        Aggregate::Product if plain == "int" => format!("{of}.stream().reduce(1, (u, v) -> u * v)"),
        Aggregate::Product => format!("{of}.stream().reduce(1.0, (u, v) -> u * v)"),
        Aggregate::Count => format!("{of}.size()"),
        Aggregate::Largest => format!("Collections.max({of})"),
        Aggregate::Smallest => format!("Collections.min({of})"),
        Aggregate::Spread => format!("Collections.max({of}) - Collections.min({of})"),
        Aggregate::First => format!("{of}.get(0)"),
        Aggregate::Last => format!("{of}.get({of}.size() - 1)"),
        Aggregate::Squares => {
            let map = sum.replace(&format!("{boxed}::{plain}Value"), "v -> v * v");
            format!("{of}.stream(){map}")
        }
        Aggregate::Longest => {
            format!("Collections.max({of}, Comparator.comparing(String::length))")
        }
        Aggregate::Shortest => {
            format!("Collections.min({of}, Comparator.comparing(String::length))")
        }
        Aggregate::Joined => format!("String.join(\" \", {of})"),
        Aggregate::Length => format!("{of}.stream().mapToInt(String::length).sum()"),
    }
}

fn main_method(draft: &mut Draft, page: &mut Page, prefix: &str) {
    let plain = element_type(draft).0;
    let array = draft.elements.join(", ");
    let mut rest = String::new();
    if !draft.argument.is_empty() {
        rest = format!(", {}", draft.argument);
    }
    let function = &draft.names.function;
    page.push(Tag::Other, "    public static void main(String[] args) {");
    if draft.dice.chance(40) {
        let list = if draft.task.words() {
            "words"
        } else {
            "numbers"
        };
        page.push(
            Tag::Other,
            format!("        {plain}[] {list} = {{{array}}};"),
        );
        page.push(
            Tag::Call,
            format!("        System.out.println({prefix}{function}({list}{rest}));"),
        );
    } else {
        page.push(
            Tag::Call,
            format!(
                "        System.out.println({prefix}{function}(new {plain}[] {{{array}}}{rest}));"
            ),
        );
    }
    page.push(Tag::Other, "    }");
}
