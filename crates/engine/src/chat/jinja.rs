//! Jinja as templates of models expect it: Jinja2 with the settings of Hugging Face's `apply_chat_template`.
//!
//! minijinja is close to it. What differs and is used by published templates is fixed here; `cargo xtask templates`
//! compares the two.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::ChatError;
use super::date::Date;
use super::python;

/// Name of the one template of an environment.
pub(super) const TEMPLATE: &str = "chat";
/// Most steps of one rendering: a template is a program, and 1,024 messages of some parts take far fewer.
const FUEL: u64 = 20_000_000;

/// The environment with one template: Python's string methods, `raise_exception`, `strftime_now`, `tojson` as Python
/// writes JSON, and whitespace around blocks trimmed.
pub(super) fn environment(source: &str, date: Date) -> Result<Environment<'static>, ChatError> {
    let mut environment = Environment::new();
    environment.set_debug(false);
    environment.set_fuel(Some(FUEL));
    environment.set_syntax(syntax()?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, _, value| {
        // What is undefined is written as nothing.
        if value.is_undefined() {
            return Ok(());
        }
        out.write_str(&python::text(value)).map_err(Error::from)
    });
    environment.add_function("raise_exception", |message: String| {
        Err::<Value, Error>(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", move |format: String| date.format(&format));
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: Value| python::text(&value));
    // As Python sees it: a text is a sequence of characters, and none is not iterable.
    environment.add_test("sequence", |value: Value| {
        is(&value, &[ValueKind::Seq, ValueKind::String, ValueKind::Map])
    });
    environment.add_test("iterable", |value: Value| {
        let kinds = [
            ValueKind::Seq,
            ValueKind::String,
            ValueKind::Map,
            ValueKind::Iterable,
        ];
        is(&value, &kinds)
    });
    environment
        .add_template_owned(TEMPLATE, without_generation(source))
        .map_err(|e| ChatError::Template(reason(&e)))?;
    Ok(environment)
}

fn is(value: &Value, kinds: &[ValueKind]) -> bool {
    value.is_undefined() || kinds.contains(&value.kind())
}

/// Jinja's own delimiters, with the whitespace rules of Hugging Face.
fn syntax() -> Result<SyntaxConfig, ChatError> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|e| ChatError::Template(reason(&e)))
}

/// What went wrong, in the template's own words where it has any.
pub(super) fn reason(error: &Error) -> String {
    error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned)
}

/// `{% generation %}` says which part of a conversation the model wrote, for training. Here it is a block of its own
/// scope.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(end) = rest[at..].find("%}").map(|end| at + end) else {
            break;
        };
        let (tag, after) = (&rest[at..end], &rest[end..]);
        out.push_str(&rest[..at]);
        let word = tag[2..].trim_matches(|c: char| "-+".contains(c) || c.is_whitespace());
        match word {
            "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// `tojson` of Hugging Face: `json.dumps(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson(value: Value, ensure_ascii: Option<Value>, options: Kwargs) -> Result<String, Error> {
    let ensure_ascii = match ensure_ascii {
        Some(value) => Some(value),
        None => options.get("ensure_ascii")?,
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let indent: Option<Value> = options.get("indent")?;
    options.assert_all_used()?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(text) if text.kind() == ValueKind::String => Some(text.to_string()),
        Some(count) => Some(" ".repeat(usize::try_from(count)?.min(64))),
    };
    let separators = match separators.as_deref() {
        None => (
            if indent.is_some() { "," } else { ", " }.to_owned(),
            ": ".to_owned(),
        ),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            let message = "tojson: `separators` must be two";
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    };
    let style = python::Json {
        ensure_ascii: ensure_ascii.is_some_and(|value| value.is_true()),
        sort_keys: sort_keys.unwrap_or(false),
        indent,
        separators,
    };
    style.dumps(&value)
}
